//! How many records a stage takes in one call: so many that a call is short, whatever user code does with each.
//!
//! Between two calls the shard looks at the disk, at barriers and at its other stages; a call of a thousand records at 200 us
//! each would hold all of that up for a fifth of a second.

/// A call shall not take longer than this many nanoseconds, if it takes more than one record.
const CALL_NS: u64 = 500_000;

/// What a stage is given before anything is known of it.
const RECORDS_FIRST: usize = 64;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slice(usize);

impl Default for Slice {
    fn default() -> Self {
        Self(RECORDS_FIRST)
    }
}

impl Slice {
    /// How many records the next call takes, at most `records_max`.
    pub(super) fn records(&mut self, records_max: usize) -> usize {
        self.0 = self.0.clamp(1, records_max);
        self.0
    }

    /// A call has taken so many records, and so long.
    #[inline]
    pub(super) fn took(&mut self, records: usize, elapsed_ns: u64) {
        if elapsed_ns > CALL_NS {
            let fitting = records as u128 * u128::from(CALL_NS) / u128::from(elapsed_ns);
            self.0 = usize::try_from(fitting).unwrap_or(usize::MAX).max(1);
        } else if records >= self.0 && elapsed_ns < CALL_NS / 2 {
            self.0 = self.0.saturating_mul(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goes through calls of a stage with these nanoseconds for a record, and returns what the last ones take.
    fn settle(slice: &mut Slice, record_ns: u64, waiting: usize) -> usize {
        for _ in 0..20 {
            let records = slice.records(1024).min(waiting);
            slice.took(records, record_ns * records as u64);
        }
        slice.records(1024)
    }

    #[test]
    fn a_call_is_as_long_as_it_may_be_and_no_longer() {
        let mut slice = Slice::default();
        for (record_ns, expected) in [(50, 1024..=1024), (200_000, 1..=2), (1_000_000, 1..=1), (10_000, 25..=50)] {
            let records = settle(&mut slice, record_ns, usize::MAX);
            assert!(expected.contains(&records), "{records} records of {record_ns} ns");
        }
    }

    #[test]
    fn short_calls_with_little_to_take_say_nothing_about_long_ones() {
        let mut slice = Slice::default();
        settle(&mut slice, 200_000, usize::MAX);
        assert!(settle(&mut slice, 100_000, 1) <= 2);
    }

    #[test]
    fn a_pause_of_the_host_is_soon_made_up_for() {
        let mut slice = Slice::default();
        settle(&mut slice, 50, usize::MAX);
        slice.took(1024, 50_000_000);
        let calls = (0..).find(|_| {
            let records = slice.records(1024);
            slice.took(records, 50 * records as u64);
            records == 1024
        });
        assert!(calls.unwrap() < 10, "{calls:?}");
    }
}
