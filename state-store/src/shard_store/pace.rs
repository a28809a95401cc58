//! How fast a flush may write.

/// A token bucket over bytes.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: u64,
    credit: i64,
    last_ns: u64,
}

/// Most credit that idle time earns: one large block.
const CREDIT_MAX: i64 = 1 << 20;

impl Pace {
    /// At most this many bytes a second; zero for as fast as the disk takes them.
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, credit: CREDIT_MAX, last_ns: 0 }
    }

    /// Says whether a block may be written now.
    pub(super) fn may_write(&mut self, now_ns: u64) -> bool {
        let elapsed_ns = now_ns.saturating_sub(self.last_ns).min(1_000_000_000);
        let earned = u128::from(elapsed_ns) * u128::from(self.bytes_per_second) / 1_000_000_000;
        if earned > 0 || self.credit >= CREDIT_MAX {
            self.last_ns = now_ns;
            self.credit = self.credit.saturating_add(i64::try_from(earned).unwrap_or(i64::MAX)).min(CREDIT_MAX);
        }
        self.bytes_per_second == 0 || self.credit > 0
    }

    /// Counts what was written.
    pub(super) fn spend(&mut self, bytes: u64) {
        self.credit -= i64::try_from(bytes).unwrap_or(i64::MAX);
        if self.bytes_per_second == 0 {
            self.credit = CREDIT_MAX;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paced_writer_writes_its_rate_whatever_the_step_of_time() {
        for step_ns in [1, 977, 1_000_000, 30_000_000] {
            let mut pace = Pace::new(100 << 20);
            let (mut now, mut written) = (0, 0u64);
            let end = step_ns * 200_000.min(3_000_000_000 / step_ns);
            while now < end {
                now += step_ns;
                if pace.may_write(now) {
                    pace.spend(256 << 10);
                    written += 256 << 10;
                }
            }
            let allowed = end as f64 / 1e9 * (100 << 20) as f64;
            assert!(written as f64 <= allowed + 1.5e6, "step {step_ns}: {written} of {allowed}");
            if step_ns < 1_000_000 {
                assert!(written as f64 >= allowed, "step {step_ns}: {written} of {allowed}");
            }
        }
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut pace = Pace::new(0);
        (0..100).for_each(|_| {
            assert!(pace.may_write(0));
            pace.spend(1 << 20);
        });
    }
}
