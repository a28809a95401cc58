//! What the outside may see of a running shard: plain counters, stored once per turn with relaxed order.

use crate::topology::ThreadId;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of one shard. Written by the shard, read by anyone.
#[derive(Default)]
pub(super) struct LiveShard {
    records_in: AtomicU64,
    records_keyed: AtomicU64,
    /// Input left, or `u64::MAX` when unknown.
    remaining: AtomicU64,
    state_bytes: AtomicU64,
    thread: OnceLock<ThreadId>,
}

/// Counters of a running job, as of now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LiveMetrics {
    /// Records that sources have handed out.
    pub records_in: u64,
    /// Records that keyed operators have applied.
    pub records_keyed: u64,
    /// Input left in the terms of its sources (bytes of files, records of generators), if known.
    pub remaining: Option<u64>,
    /// Bytes of live state.
    pub state_bytes: u64,
    /// Epochs that are complete.
    pub epochs_completed: u64,
    /// Epochs that failed.
    pub epochs_failed: u64,
    /// Longest cut of a shard so far, in nanoseconds.
    pub cut_ns_max: u64,
    /// Longest cut of a shard in the newest complete epoch, in nanoseconds.
    pub cut_ns_last: u64,
    /// Longest time from a cut until it was durable in the newest complete epoch, in microseconds.
    pub flush_us_last: u64,
    /// Median time from a cut until it was durable, in microseconds.
    pub flush_us_median: u64,
}

impl LiveShard {
    pub(super) fn set_thread(&self, thread: ThreadId) {
        // A shard runs on one thread for all its life.
        let _ = self.thread.set(thread);
    }

    pub(super) fn thread(&self) -> Option<ThreadId> {
        self.thread.get().copied()
    }

    pub(super) fn store(&self, records_in: u64, records_keyed: u64) {
        self.records_in.store(records_in, Relaxed);
        self.records_keyed.store(records_keyed, Relaxed);
    }

    pub(super) fn store_slow(&self, remaining: Option<u64>, state_bytes: u64) {
        self.remaining.store(remaining.unwrap_or(u64::MAX), Relaxed);
        self.state_bytes.store(state_bytes, Relaxed);
    }

    pub(super) fn add_to(&self, sum: &mut LiveMetrics) {
        sum.records_in += self.records_in.load(Relaxed);
        sum.records_keyed += self.records_keyed.load(Relaxed);
        sum.state_bytes += self.state_bytes.load(Relaxed);
        let remaining = self.remaining.load(Relaxed);
        sum.remaining = sum.remaining.and_then(|sum| (remaining != u64::MAX).then(|| sum + remaining));
    }
}
