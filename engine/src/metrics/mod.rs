//! What a job can say about itself: counters and histograms, kept per shard without atomics, merged when asked for.

mod gaps;

pub use gaps::{GapHistogram, LONG_GAP_NS, LongGap};

/// Counters of one shard. Written by the shard only.
#[derive(Default)]
pub(crate) struct ShardMetrics {
    /// Records that sources handed out.
    pub records_in: u64,
    /// Records that keyed operators applied.
    pub records_keyed: u64,
    /// Records left out because user code failed on them and the policy says to skip.
    pub skipped_records: u64,
    /// Gaps between batches.
    pub gaps: GapHistogram,
}

impl ShardMetrics {
    /// Adds the counters of another shard; gaps stay by shard.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.records_in += other.records_in;
        self.records_keyed += other.records_keyed;
        self.skipped_records += other.skipped_records;
    }
}
