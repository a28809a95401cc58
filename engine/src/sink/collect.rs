//! A sink into a vector of the same process, for tests and embedding: exactly once, as long as the process lives.
//!
//! It shows what a transactional sink shows: only results whose epoch is complete, each once, also when the job is stopped
//! and started again with the same sink. With the process the results are gone; a job that is restored in another one
//! commits what an earlier one prepared to nobody.

use super::ledger::Ledger;
use super::{Committer, Guarantee, Owner, Sink, SinkActivity, SinkWriter};
use crate::items::Items;
use crate::{Error, Result};
use millstream_state::Epoch;
use millstream_state::io::{Disk, Files};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A sink and the handle to what it has committed. `T` is the item, or what owns a copy of it: `String` for lines.
///
/// ```
/// let (collected, sink) = millstream::sink::collect::<String>();
/// assert!(collected.is_empty());
/// # let _ = sink;
/// ```
pub fn collect<T: Send + 'static>() -> (Collected<T>, Collect<T>) {
    let shared = Arc::new(Mutex::new(Shared { staged: BTreeMap::new(), committed: Vec::new() }));
    (Collected(Arc::clone(&shared)), Collect(shared))
}

/// Names one staged batch: run, shard, number.
type BatchId = (u64, u32, u64);

struct Shared<T> {
    staged: BTreeMap<BatchId, Vec<T>>,
    committed: Vec<T>,
}

fn lock<T>(shared: &Mutex<Shared<T>>) -> MutexGuard<'_, Shared<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was committed so far. Within an epoch each shard's results stand in their order.
pub struct Collected<T>(Arc<Mutex<Shared<T>>>);

impl<T> Collected<T> {
    /// Takes what is there; later results start anew.
    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut lock(&self.0).committed)
    }

    /// A copy of what is there.
    pub fn to_vec(&self) -> Vec<T>
    where
        T: Clone,
    {
        lock(&self.0).committed.clone()
    }

    /// How many results are there.
    pub fn len(&self) -> usize {
        lock(&self.0).committed.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Clone for Collected<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// See [`collect`].
pub struct Collect<T>(Arc<Mutex<Shared<T>>>);

impl<I: Items, T: Send + 'static> Sink<I> for Collect<T>
where
    for<'a> I::Of<'a>: Into<T>,
{
    type Writer = CollectWriter<T>;

    fn describe(&self) -> String {
        "collected in memory, exactly once while the process lives".into()
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::ExactlyOnce
    }

    fn open(&self, _: Owner<'_>, shard: u32, run: u64) -> Result<CollectWriter<T>> {
        Ok(CollectWriter {
            shared: Arc::clone(&self.0),
            run,
            shard,
            next: 0,
            results: Vec::new(),
            batches: Ledger::new(),
        })
    }

    fn committer(&self, _: Owner<'_>) -> Result<Option<Box<dyn Committer>>> {
        Ok(Some(Box::new(CollectCommitter(Arc::clone(&self.0)))))
    }
}

/// Writer of a [`Collect`].
pub struct CollectWriter<T> {
    shared: Arc<Mutex<Shared<T>>>,
    run: u64,
    shard: u32,
    next: u64,
    /// Written since the last cut.
    results: Vec<T>,
    batches: Ledger<BatchId>,
}

impl<I: Items, T: Send + 'static> SinkWriter<I> for CollectWriter<T>
where
    for<'a> I::Of<'a>: Into<T>,
{
    #[inline]
    fn write(&mut self, item: I::Of<'_>) {
        self.results.push(item.into());
    }

    fn turn(&mut self, _: &mut dyn Disk, _: u64) -> Result<SinkActivity> {
        Ok(SinkActivity::Idle)
    }

    fn prepare(&mut self, epoch: Epoch) {
        if !self.results.is_empty() {
            let id = (self.run, self.shard, self.next);
            self.next += 1;
            lock(&self.shared).staged.insert(id, std::mem::take(&mut self.results));
            self.batches.push(id);
        }
        self.batches.prepare(epoch).for_each(drop);
    }

    fn take_prepared(&mut self, epoch: Epoch) -> Option<Result<Vec<Vec<u8>>>> {
        let answer = self.batches.take(epoch, |_| true)?;
        Some(answer.map(|ids| ids.iter().map(|id| serde_json::to_vec(id).expect("plain data")).collect()))
    }

    fn abandon(&mut self, epoch: Epoch) {
        self.batches.abandon(epoch);
    }
}

struct CollectCommitter<T>(Arc<Mutex<Shared<T>>>);

impl<T: Send> Committer for CollectCommitter<T> {
    fn commit(&mut self, _: &dyn Files, prepared: &[u8]) -> Result<()> {
        let id: BatchId = serde_json::from_slice(prepared).map_err(|error| {
            Error::corrupt(format_args!("output prepared by a collecting sink cannot be read: {error}"))
        })?;
        let mut shared = lock(&self.0);
        // Not there: committed before, or by a process that is gone.
        if let Some(results) = shared.staged.remove(&id) {
            shared.committed.extend(results);
        }
        Ok(())
    }

    fn clean(&mut self, _: &dyn Files) -> Result<()> {
        lock(&self.0).staged.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::{Lines, Own};
    use crate::sink::OWNER;
    use millstream_state::io::RealFiles;

    fn prepare(writer: &mut CollectWriter<u64>, numbers: &[u64], epoch: u64) -> Vec<Vec<u8>> {
        for &n in numbers {
            SinkWriter::<Own<u64>>::write(writer, n);
        }
        SinkWriter::<Own<u64>>::prepare(writer, Epoch(epoch));
        SinkWriter::<Own<u64>>::take_prepared(writer, Epoch(epoch)).unwrap().unwrap()
    }

    #[test]
    fn only_committed_results_are_seen_and_each_once() {
        let (collected, sink) = collect::<u64>();
        let mut writer = Sink::<Own<u64>>::open(&sink, OWNER, 0, 1).unwrap();
        let mut committer = Sink::<Own<u64>>::committer(&sink, OWNER).unwrap().unwrap();
        let one = prepare(&mut writer, &[42], 1);
        let two = prepare(&mut writer, &[43], 2);
        assert!(collected.is_empty());
        committer.commit(&RealFiles, &two[0]).unwrap();
        committer.commit(&RealFiles, &one[0]).unwrap();
        committer.commit(&RealFiles, &two[0]).unwrap();
        assert_eq!(collected.to_vec(), [43, 42]);

        // A restart at epoch 2 with 44 prepared and 45 written: both are written again.
        prepare(&mut writer, &[44], 3);
        SinkWriter::<Own<u64>>::write(&mut writer, 45);
        let mut committer = Sink::<Own<u64>>::committer(&sink, OWNER).unwrap().unwrap();
        committer.commit(&RealFiles, &two[0]).unwrap();
        committer.clean(&RealFiles).unwrap();
        let mut writer = Sink::<Own<u64>>::open(&sink, OWNER, 0, 2).unwrap();
        let three = prepare(&mut writer, &[44, 45], 3);
        committer.commit(&RealFiles, &three[0]).unwrap();
        assert_eq!(collected.take(), [43, 42, 44, 45]);
        assert_eq!(collected.len(), 0);
    }

    #[test]
    fn lines_are_collected_as_strings() {
        let (_, sink) = collect::<String>();
        let mut writer = Sink::<Lines>::open(&sink, OWNER, 0, 1).unwrap();
        SinkWriter::<Lines>::write(&mut writer, "one");
        assert_eq!(writer.results, ["one"]);
    }
}
