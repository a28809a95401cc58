//! A sink that counts and forgets: for measuring, and for jobs whose work is their state.

use super::{Committer, Guarantee, Owner, Sink, SinkActivity, SinkWriter};
use crate::Result;
use crate::items::Items;
use millstream_state::Epoch;
use millstream_state::io::Disk;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts results and drops them.
///
/// ```
/// let sink = millstream::sink::Discard::counting();
/// let count = sink.count();
/// assert_eq!(count.total(), 0);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Discard(Arc<Mutex<Vec<Arc<Counter>>>>);

/// One shard's count, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counter(AtomicU64);

impl Discard {
    /// A new sink whose count starts at zero.
    pub fn counting() -> Self {
        Self::default()
    }

    /// A handle that tells the count while the job runs and after.
    pub fn count(&self) -> DiscardCount {
        DiscardCount(self.clone())
    }

    fn counters(&self) -> MutexGuard<'_, Vec<Arc<Counter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many results a [`Discard`] has had, replayed ones included.
#[derive(Clone, Debug)]
pub struct DiscardCount(Discard);

impl DiscardCount {
    /// The sum over all shards, as of their last turns.
    pub fn total(&self) -> u64 {
        self.0.counters().iter().map(|counter| counter.0.load(Ordering::Relaxed)).sum()
    }

    /// The count of each shard.
    pub fn by_shard(&self) -> Vec<u64> {
        self.0.counters().iter().map(|counter| counter.0.load(Ordering::Relaxed)).collect()
    }
}

impl<I: Items> Sink<I> for Discard {
    type Writer = DiscardWriter;

    fn describe(&self) -> String {
        "discard, counting".into()
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::Volatile
    }

    fn open(&self, _: Owner<'_>, shard: u32, _: u64) -> Result<DiscardWriter> {
        let mut counters = self.counters();
        let shard = shard as usize;
        while counters.len() <= shard {
            counters.push(Arc::default());
        }
        let shared = Arc::clone(&counters[shard]);
        let count = shared.0.load(Ordering::Relaxed);
        Ok(DiscardWriter { count, shared })
    }

    fn committer(&self, _: Owner<'_>) -> Result<Option<Box<dyn Committer>>> {
        Ok(None)
    }
}

/// Writer of a [`Discard`].
#[derive(Debug)]
pub struct DiscardWriter {
    count: u64,
    shared: Arc<Counter>,
}

impl DiscardWriter {
    fn publish(&self) {
        // Only this shard writes its counter.
        self.shared.0.store(self.count, Ordering::Relaxed);
    }
}

impl<I: Items> SinkWriter<I> for DiscardWriter {
    #[inline(always)]
    fn write(&mut self, _: I::Of<'_>) {
        self.count += 1;
    }

    fn turn(&mut self, _: &mut dyn Disk, _: u64) -> Result<SinkActivity> {
        self.publish();
        Ok(SinkActivity::Idle)
    }

    fn prepare(&mut self, _: Epoch) {
        self.publish();
    }

    fn take_prepared(&mut self, _: Epoch) -> Option<Result<Vec<Vec<u8>>>> {
        self.publish();
        Some(Ok(Vec::new()))
    }

    fn abandon(&mut self, _: Epoch) {}
}

impl Drop for DiscardWriter {
    fn drop(&mut self) {
        self.publish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::Own;
    use crate::sink::OWNER;

    #[test]
    fn the_total_is_what_all_shards_wrote() {
        let sink = Discard::counting();
        let count = sink.count();
        for (shard, records) in [(1, 10), (0, 3), (1, 5)] {
            let mut writer = Sink::<Own<u8>>::open(&sink, OWNER, shard, 1).unwrap();
            for _ in 0..records {
                SinkWriter::<Own<u8>>::write(&mut writer, 7);
            }
        }
        assert_eq!(count.by_shard(), [3, 15]);
        assert_eq!(count.total(), 18);
    }
}
