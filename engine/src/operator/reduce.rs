//! `reduce`: folds the records of each key into one.

use super::{Emit, EndProgress, KeyedOperator, KeyedPlan, OpenContext, StateSchema};
use crate::Result;
use crate::chain::{OperatorId, blaming, blaming_key};
use crate::exchange::{Batch, RecordFreight};
use crate::items::{Own, Pairs};
use crate::key_of::KeyOf;
use millstream_state::table::{Log, Table, TableOptions};
use millstream_state::{Key, State};
use std::cell::Cell;
use std::marker::PhantomData;

/// See [`KeyedStream::reduce`](crate::KeyedStream::reduce).
pub struct ReducePlan<N, R, F> {
    name: String,
    emit: Emit,
    key_of: N,
    user: F,
    items: PhantomData<fn() -> R>,
}

impl<N, R, F> ReducePlan<N, R, F> {
    pub(crate) fn new(name: String, emit: Emit, key_of: N, user: F) -> Self {
        Self { name, emit, key_of, user, items: PhantomData }
    }
}

impl<N: Clone, R, F: Clone> Clone for ReducePlan<N, R, F> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            emit: self.emit,
            key_of: self.key_of.clone(),
            user: self.user.clone(),
            items: PhantomData,
        }
    }
}

impl<N, R, F> KeyedPlan for ReducePlan<N, R, F>
where
    N: KeyOf<Own<R>>,
    R: State + Clone,
    F: FnMut(&mut R, R) + Clone + Send + 'static,
{
    type Operator = Reduce<N, N::Key, R, F>;

    fn open(self, cx: OpenContext<'_>) -> Result<Self::Operator> {
        let table = cx.store.open_table(&self.name, cx.domain, TableOptions::default())?;
        let progress = EndProgress::restore(cx.key_groups, cx.owned, cx.saved)?;
        let Self { emit, key_of, user, .. } = self;
        Ok(Reduce { table, emit, key_of, user, progress, key: Vec::new() })
    }

    fn states(&self) -> Vec<StateSchema> {
        vec![StateSchema { name: self.name.clone(), key: N::Key::schema(), value: R::schema() }]
    }

    fn describe(&self) -> String {
        format!("reduce, emits {:?}", self.emit)
    }
}

/// What runs a [`ReducePlan`].
pub struct Reduce<N, K: Key + ?Sized, R: State, F> {
    table: Table<K, R>,
    emit: Emit,
    key_of: N,
    user: F,
    progress: EndProgress,
    /// The encoded key at hand.
    key: Vec<u8>,
}

impl<N, R, F> KeyedOperator for Reduce<N, N::Key, R, F>
where
    N: KeyOf<Own<R>>,
    R: State + Clone,
    F: FnMut(&mut R, R) + 'static,
{
    type Freight = RecordFreight<R>;
    type Out = Pairs<N::Key, R>;

    fn apply(
        &mut self,
        log: &mut Log,
        batch: &Batch<'_, RecordFreight<R>>,
        push: &mut impl FnMut((<N::Key as Key>::Ref<'_>, R)),
    ) -> Result<()> {
        const ID: OperatorId = OperatorId::head("reduce");
        self.table.prefetch(log, batch.hashes());
        for (index, &hash) in batch.hashes().iter().enumerate() {
            let record = R::decode(batch.payload(index));
            let Self { table, key_of, user, key, emit, .. } = self;
            key.clear();
            key_of.with_key(&record, |k| k.encode(key));
            let emit = *emit == Emit::Updates;
            let record = Cell::new(Some(record));
            let record = || record.take().expect("taken once, by whichever of the two runs first");
            let reduced = table.update(log, hash, key, record, |so_far, is_first| {
                if !is_first {
                    blaming_key(hash, || blaming(ID, || user(so_far, record())));
                }
                emit.then(|| so_far.clone())
            })?;
            if let Some(reduced) = reduced {
                blaming_key(hash, || push((N::Key::view(key), reduced)));
            }
        }
        Ok(())
    }

    fn finish(
        &mut self,
        log: &mut Log,
        records_max: usize,
        push: &mut impl FnMut((<N::Key as Key>::Ref<'_>, R)),
    ) -> Result<bool> {
        if self.emit == Emit::Updates {
            return Ok(true);
        }
        let Self { table, progress, .. } = self;
        let log = &*log;
        let next = table.scan(log, progress.cursor(), records_max, |hash, key, _| {
            if !progress.emitted(hash) {
                let value = table.load(log, hash, key).expect("just seen");
                blaming_key(hash, || push((N::Key::view(key), value)));
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
