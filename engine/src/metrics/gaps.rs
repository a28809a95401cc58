//! Gaps: the time between the starts of consecutive batches of a shard that has input.
//!
//! A gap ends when the next batch starts; a turn without input ends the row, so idleness is no gap. Long gaps are kept
//! with their moments, so that whoever watches the thread's run delay can tell which of them were the host's.
//!
//! Cost: one clock reading and one histogram increment per batch.

use hdrhistogram::Histogram;

/// Gaps from this length on are kept one by one.
pub const LONG_GAP_NS: u64 = 100_000;

/// Most long gaps that are kept between two looks: 1 MiB, enough for a minute of one every millisecond.
const LONG_GAPS_MAX: usize = 1 << 16;

/// A gap of at least [`LONG_GAP_NS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LongGap {
    /// Start of the earlier batch, in nanoseconds of the job's clock.
    pub start_ns: u64,
    /// Start of the later one.
    pub end_ns: u64,
}

/// See the module.
pub struct GapHistogram {
    last_ns: Option<u64>,
    histogram: Histogram<u64>,
    /// Sum of all gaps, and of those over one millisecond.
    total_ns: u64,
    over_1ms_ns: u64,
    long: Vec<LongGap>,
}

impl Default for GapHistogram {
    fn default() -> Self {
        // Three digits from 1 ns to 100 s.
        let histogram = Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("constant bounds");
        Self { last_ns: None, histogram, total_ns: 0, over_1ms_ns: 0, long: Vec::with_capacity(LONG_GAPS_MAX) }
    }
}

impl GapHistogram {
    /// Notes that a batch started.
    #[inline]
    pub fn batch_started(&mut self, now_ns: u64) {
        if let Some(last_ns) = self.last_ns {
            let gap_ns = now_ns - last_ns;
            self.histogram.saturating_record(gap_ns);
            self.total_ns += gap_ns;
            if gap_ns >= LONG_GAP_NS {
                self.note_long(last_ns, now_ns);
            }
        }
        self.last_ns = Some(now_ns);
    }

    #[cold]
    fn note_long(&mut self, start_ns: u64, end_ns: u64) {
        if end_ns - start_ns > 1_000_000 {
            self.over_1ms_ns += end_ns - start_ns;
        }
        if self.long.len() < LONG_GAPS_MAX {
            self.long.push(LongGap { start_ns, end_ns });
        }
    }

    /// Notes that there was no input.
    #[inline]
    pub fn idle(&mut self) {
        self.last_ns = None;
    }

    /// All gaps in nanoseconds.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }

    /// The part of all time covered that lies in gaps over one millisecond; zero to one.
    pub fn share_over_1ms(&self) -> f64 {
        if self.total_ns == 0 { 0.0 } else { self.over_1ms_ns as f64 / self.total_ns as f64 }
    }

    /// The long gaps, oldest first; at most 65,536 are kept.
    pub fn long(&self) -> &[LongGap] {
        &self.long
    }

    /// Adds the gaps of another shard.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("same bounds");
        self.total_ns += other.total_ns;
        self.over_1ms_ns += other.over_1ms_ns;
        self.long.extend_from_slice(&other.long);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idleness_is_no_gap_and_long_gaps_are_kept_with_their_moments() {
        let mut gaps = GapHistogram::default();
        [1_000, 2_000, 3_002_000].into_iter().for_each(|now| gaps.batch_started(now));
        gaps.idle();
        gaps.batch_started(9_000_000_000);
        assert_eq!(gaps.histogram().len(), 2);
        assert_eq!(gaps.long(), [LongGap { start_ns: 2_000, end_ns: 3_002_000 }]);
        assert!((gaps.share_over_1ms() - 3_000_000.0 / 3_001_000.0).abs() < 1e-9);
    }
}
