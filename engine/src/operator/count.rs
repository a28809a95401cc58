//! `count`: how many records of each key there were.

use super::{EndProgress, KeyedOperator, KeyedPlan, OpenContext, StateSchema};
use crate::Result;
use crate::chain::blaming_key;
use crate::exchange::{Batch, KeyFreight};
use crate::items::Pairs;
use millstream_state::table::{Log, Table, TableOptions};
use millstream_state::{Key, Record};
use std::marker::PhantomData;

/// When an operator emits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Emit {
    /// After every record: the key and its value so far.
    Updates,
    /// Once for every key, after the last record of a bounded input. When a job that had ended goes on with more input
    /// ([`resume_ended`](crate::EngineConfig::resume_ended)), every key is emitted again at the new end, whether its value has
    /// changed or not: only the output of the newest epoch counts.
    AtEnd,
}

/// See [`KeyedStream::count`](crate::KeyedStream::count).
pub struct CountPlan<K: ?Sized> {
    name: String,
    emit: Emit,
    key: PhantomData<fn(&K)>,
}

impl<K: ?Sized> CountPlan<K> {
    pub(crate) fn new(name: String, emit: Emit) -> Self {
        Self { name, emit, key: PhantomData }
    }
}

impl<K: ?Sized> Clone for CountPlan<K> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), emit: self.emit, key: PhantomData }
    }
}

impl<K: Key + ?Sized> KeyedPlan for CountPlan<K> {
    type Operator = Count<K>;

    fn open(self, cx: OpenContext<'_>) -> Result<Count<K>> {
        let table = cx.store.open_table(&self.name, cx.domain, TableOptions::default())?;
        let progress = EndProgress::restore(cx.key_groups, cx.owned, cx.saved)?;
        Ok(Count { table, emit: self.emit, progress })
    }

    fn states(&self) -> Vec<StateSchema> {
        vec![StateSchema { name: self.name.clone(), key: K::schema(), value: <u64 as Record>::schema() }]
    }

    fn describe(&self) -> String {
        format!("count, emits {:?}", self.emit)
    }
}

/// What runs a [`CountPlan`].
pub struct Count<K: ?Sized + Key> {
    table: Table<K, u64>,
    emit: Emit,
    progress: EndProgress,
}

impl<K: Key + ?Sized> KeyedOperator for Count<K> {
    type Freight = KeyFreight<K>;
    type Out = Pairs<K, u64>;

    #[inline]
    fn apply(
        &mut self,
        log: &mut Log,
        batch: &Batch<'_, KeyFreight<K>>,
        push: &mut impl FnMut((K::Ref<'_>, u64)),
    ) -> Result<()> {
        let hashes = batch.hashes();
        match self.emit {
            Emit::Updates => self.table.update_batch(
                log,
                hashes,
                |i| batch.payload(i),
                |_| 0,
                |i, count, _| {
                    *count += 1;
                    let count = *count;
                    blaming_key(hashes[i], || push((K::view(batch.payload(i)), count)));
                },
            ),
            Emit::AtEnd => self.table.update_batch(log, hashes, |i| batch.payload(i), |_| 0, |_, count, _| *count += 1),
        }
    }

    fn finish(&mut self, log: &mut Log, records_max: usize, push: &mut impl FnMut((K::Ref<'_>, u64))) -> Result<bool> {
        if self.emit == Emit::Updates {
            return Ok(true);
        }
        let Self { table, progress, .. } = self;
        let next = table.scan(log, progress.cursor(), records_max, |hash, key, count| {
            if !progress.emitted(hash) {
                blaming_key(hash, || push((K::view(key), count)));
            }
        });
        progress.advance(next);
        Ok(progress.is_done())
    }

    fn save(&self) -> Vec<u8> {
        match self.emit {
            Emit::Updates => Vec::new(),
            Emit::AtEnd => self.progress.save(),
        }
    }
}
