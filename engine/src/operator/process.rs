//! `process`: full control, with state as typed constants that only exist under a key.

use super::{KeyedOperator, KeyedPlan, OpenContext, StateSchema};
use crate::Result;
use crate::chain::{Faults, OperatorId, Out, blaming, blaming_key};
use crate::exchange::{Batch, RecordFreight};
use crate::items::Own;
use crate::key_of::KeyOf;
use crate::state::ValueState;
use millstream_state::shard_store::ShardStore;
use millstream_state::table::{Domain, Log, Table, TableOptions};
use millstream_state::{Key, Record, State};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;

const ID: OperatorId = OperatorId::head("process");

/// What is done with each record of a keyed stream, and which states it keeps.
///
/// `&self` throughout: what must survive a restart is state, not a field.
pub trait KeyedProcess<K: Key + ?Sized, R>: Clone + Send + 'static {
    /// The handles that [`open`](Self::open) makes: one, or a struct or tuple of them.
    type Handles: 'static;
    /// What comes out.
    type Out: 'static;

    /// Declares the states. Called once per shard, and once before the job starts to list them.
    fn open(&self, states: &mut ProcessState<'_, K>) -> Self::Handles;

    /// Processes one record.
    fn on_record(
        &self,
        record: R,
        states: &Self::Handles,
        key: &mut KeyContext<'_, K>,
        out: &mut impl Collector<Self::Out>,
    );
}

/// Where a [`KeyedProcess`] puts its results.
pub trait Collector<T> {
    /// Passes one item on.
    fn push(&mut self, item: T);
}

struct Push<F>(F);

impl<T, F: FnMut(T)> Collector<T> for Push<F> {
    #[inline(always)]
    fn push(&mut self, item: T) {
        (self.0)(item);
    }
}

/// Access to one value per key. Has no `get` of its own: only a [`KeyContext`] can use it, so keyed state outside a key
/// does not compile.
pub struct ValueHandle<K: ?Sized, V> {
    /// Absent while a job only lists its states, before it runs.
    table: Option<Rc<Table<K, V>>>,
}

impl<K: Key + ?Sized, V: State> ValueHandle<K, V> {
    #[inline(always)]
    fn table(&self) -> &Table<K, V> {
        self.table.as_ref().expect("opened on a shard before the first record")
    }
}

/// Declares the states of a [`KeyedProcess`].
pub struct ProcessState<'a, K: ?Sized> {
    operator: &'a str,
    /// Absent while a job only lists its states.
    store: Option<(&'a mut ShardStore, Domain)>,
    prefetches: Vec<Prefetch>,
    schemas: Vec<StateSchema>,
    failed: Option<crate::Error>,
    key: PhantomData<fn(&K)>,
}

type Prefetch = Box<dyn Fn(&Log, &[u64])>;

impl<'a, K: Key + ?Sized> ProcessState<'a, K> {
    fn new(operator: &'a str, store: Option<(&'a mut ShardStore, Domain)>) -> Self {
        Self { operator, store, prefetches: Vec::new(), schemas: Vec::new(), failed: None, key: PhantomData }
    }

    /// Declares a value per key. Its name in snapshots is `operator.state`.
    pub fn value<V: State>(&mut self, state: ValueState<V>) -> ValueHandle<K, V> {
        let name = format!("{}.{}", self.operator, state.name());
        self.schemas.push(StateSchema { name: name.clone(), key: K::schema(), value: V::schema() });
        let table = match &mut self.store {
            None => None,
            Some((store, domain)) => match store.open_table::<K, V>(&name, *domain, TableOptions { removal: true }) {
                Ok(table) => {
                    let table = Rc::new(table);
                    let prefetched = table.clone();
                    self.prefetches.push(Box::new(move |log, hashes| prefetched.prefetch(log, hashes)));
                    Some(table)
                }
                Err(error) => {
                    self.failed.get_or_insert(error);
                    None
                }
            },
        };
        ValueHandle { table }
    }
}

/// The key at hand and what is stored under it.
pub struct KeyContext<'a, K: Key + ?Sized> {
    log: &'a mut Log,
    hash: u64,
    key: &'a [u8],
    marker: PhantomData<fn(&K)>,
}

impl<K: Key + ?Sized> KeyContext<'_, K> {
    /// The key.
    pub fn key(&self) -> K::Ref<'_> {
        K::view(self.key)
    }

    /// The value under this key; `None` when unset.
    pub fn get<V: State>(&self, state: &ValueHandle<K, V>) -> Option<V> {
        state.table().load(self.log, self.hash, self.key)
    }

    /// Shows the value under this key in place, without decoding it.
    pub fn read<V: State, T>(&self, state: &ValueHandle<K, V>, read: impl FnOnce(Option<V::View<'_>>) -> T) -> T {
        read(state.table().get(self.log, self.hash, self.key))
    }

    /// Sets the value under this key.
    pub fn set<V: State>(&mut self, state: &ValueHandle<K, V>, value: &V) {
        if let Err(error) = state.table().put(self.log, self.hash, self.key, value) {
            Faults::fail(error);
        }
    }

    /// Changes the value under this key, starting from the default when unset, and returns what `change` returns.
    pub fn update<V: State + Default, T>(&mut self, state: &ValueHandle<K, V>, change: impl FnOnce(&mut V) -> T) -> T {
        let mut value = self.get(state).unwrap_or_default();
        let result = change(&mut value);
        self.set(state, &value);
        result
    }

    /// Unsets the value under this key.
    pub fn clear<V: State>(&mut self, state: &ValueHandle<K, V>) {
        if let Err(error) = state.table().remove(self.log, self.hash, self.key) {
            Faults::fail(error);
        }
    }
}

/// See [`KeyedStream::process`](crate::KeyedStream::process).
pub struct ProcessPlan<N, R, P> {
    name: String,
    key_of: N,
    user: P,
    items: PhantomData<fn() -> R>,
}

impl<N, R, P> ProcessPlan<N, R, P> {
    pub(crate) fn new(name: String, key_of: N, user: P) -> Self {
        Self { name, key_of, user, items: PhantomData }
    }
}

impl<N: Clone, R, P: Clone> Clone for ProcessPlan<N, R, P> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), key_of: self.key_of.clone(), user: self.user.clone(), items: PhantomData }
    }
}

impl<N, R, P> KeyedPlan for ProcessPlan<N, R, P>
where
    N: KeyOf<Own<R>>,
    R: Record,
    P: KeyedProcess<N::Key, R>,
{
    type Operator = Process<N, R, P, P::Handles>;

    fn open(self, cx: OpenContext<'_>) -> Result<Self::Operator> {
        let mut states = ProcessState::<N::Key>::new(&self.name, Some((&mut *cx.store, cx.domain)));
        let handles = self.user.open(&mut states);
        let ProcessState { prefetches, failed, .. } = states;
        match failed {
            Some(error) => Err(error.within(format_args!("operator {}", self.name))),
            None => {
                let Self { key_of, user, .. } = self;
                Ok(Process { prefetches, handles, key_of, user, key: Vec::new(), items: PhantomData })
            }
        }
    }

    fn states(&self) -> Vec<StateSchema> {
        let mut states = ProcessState::<N::Key>::new(&self.name, None);
        drop(self.user.open(&mut states));
        states.schemas
    }

    fn describe(&self) -> String {
        format!("process {}", R::schema().describe())
    }
}

/// What runs a [`ProcessPlan`].
pub struct Process<N, R, P, H> {
    prefetches: Vec<Prefetch>,
    handles: H,
    key_of: N,
    user: P,
    /// The encoded key at hand.
    key: Vec<u8>,
    items: PhantomData<fn() -> R>,
}

impl<N, R, P> KeyedOperator for Process<N, R, P, P::Handles>
where
    N: KeyOf<Own<R>>,
    R: Record,
    P: KeyedProcess<N::Key, R>,
{
    type Freight = RecordFreight<R>;
    type Out = Own<P::Out>;

    fn apply(
        &mut self,
        log: &mut Log,
        batch: &Batch<'_, RecordFreight<R>>,
        push: &mut impl FnMut(P::Out),
    ) -> Result<()> {
        let Self { prefetches, handles, key_of, user, key, .. } = self;
        prefetches.iter().for_each(|prefetch| prefetch(log, batch.hashes()));
        for (index, &hash) in batch.hashes().iter().enumerate() {
            let record = R::decode(batch.payload(index));
            key.clear();
            key_of.with_key(&record, |k| k.encode(key));
            let mut context = KeyContext { log: &mut *log, hash, key, marker: PhantomData };
            let mut out = Push(&mut *push);
            blaming_key(hash, || blaming(ID, || user.on_record(record, handles, &mut context, &mut out)));
        }
        Ok(())
    }

    fn finish(&mut self, _: &mut Log, _: usize, _: &mut impl FnMut(P::Out)) -> Result<bool> {
        Ok(true)
    }

    fn save(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// A [`KeyedProcess`] with one value per key, from a closure.
pub struct ProcessWith<V: 'static, U, F> {
    state: ValueState<V>,
    user: F,
    items: PhantomData<fn() -> U>,
}

impl<V, U, F> ProcessWith<V, U, F> {
    pub(crate) fn new(state: ValueState<V>, user: F) -> Self {
        Self { state, user, items: PhantomData }
    }
}

impl<V, U, F: Clone> Clone for ProcessWith<V, U, F> {
    fn clone(&self) -> Self {
        Self { state: self.state, user: self.user.clone(), items: PhantomData }
    }
}

impl<K, R, V, U, F> KeyedProcess<K, R> for ProcessWith<V, U, F>
where
    K: Key + ?Sized,
    V: State,
    U: 'static,
    F: for<'a> Fn(&mut Option<V>, R, K::Ref<'a>, &mut Out<U>) + Clone + Send + 'static,
{
    type Handles = (ValueHandle<K, V>, RefCell<Out<U>>);
    type Out = U;

    fn open(&self, states: &mut ProcessState<'_, K>) -> Self::Handles {
        (states.value(self.state), RefCell::new(Out::new()))
    }

    fn on_record(
        &self,
        record: R,
        (state, results): &Self::Handles,
        key: &mut KeyContext<'_, K>,
        out: &mut impl Collector<U>,
    ) {
        let mut results = results.borrow_mut();
        let mut value = key.get(state);
        let was_set = value.is_some();
        (self.user)(&mut value, record, key.key(), &mut results);
        results.drain().for_each(|result| out.push(result));
        match value {
            Some(value) => key.set(state, &value),
            None if was_set => key.clear(state),
            None => {}
        }
    }
}
