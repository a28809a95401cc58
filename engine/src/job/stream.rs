//! Streams: the calls with which a job is written down. Nothing runs here; each call adds to the plan.

use super::Job;
use super::draft::{Draft, StageDraft};
use super::plan::{
    EdgeKey, ExchangePlan, HeadPlan, KeyedHeadPlan, OutputPlan, Planned, SinkPlan, SourcePlan, Start, UnionInputPlan,
    UnionPlan,
};
use crate::chain::{Blueprint, Filter, FlatMapPlan, Identity, Inspect, Map, OnError, Out, TryFlatMapPlan, TryMap};
use crate::items::{Items, Own};
use crate::key_of::{ByRef, ByValue, KeyOf};
use crate::operator::{CountPlan, Emit, KeyedPlan, KeyedProcess, ProcessPlan, ProcessWith, ReducePlan};
use crate::sink::Sink;
use crate::source::Source;
use crate::stage::{KeyOnly, Load, WholeRecord};
use crate::state::ValueState;
use millstream_state::{Key, Record, State};
use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::Arc;

/// A stream of items: what feeds its last stage, and the operators fused onto it so far.
///
/// Closures are cloned once per shard, so they are `FnMut + Clone + Send + 'static`.
#[must_use = "a stream does nothing before it reaches a sink"]
pub struct Stream<H, C> {
    draft: Draft,
    name: Option<String>,
    head: H,
    chain: C,
}

/// A stream whose items have a key. What follows an operator here runs on the shard that owns the key.
#[must_use = "a keyed stream does nothing before an operator and a sink"]
pub struct KeyedStream<H, C, N> {
    stream: Stream<H, C>,
    key_of: N,
}

impl<S: Source> Stream<SourcePlan<S>, Identity<S::Items>> {
    pub(super) fn start(draft: Draft, name: Option<String>, source: S) -> Self {
        Self { draft, name, head: SourcePlan::new(source), chain: Identity::default() }
    }

    /// A stream outside a job, to be joined to one by [`union`](Stream::union).
    pub fn of(source: S) -> Self {
        Self::start(Draft::default(), None, source)
    }
}

impl<H: HeadPlan, C: Blueprint<In = H::Out>> Stream<H, C> {
    fn chained<D>(self, add: impl FnOnce(C) -> D) -> Stream<H, D> {
        let Self { draft, name, head, chain } = self;
        Stream { draft, name, head, chain: add(chain) }
    }

    /// Turns every item into another.
    pub fn map<U: 'static, F>(self, user: F) -> Stream<H, Map<C, F, U>>
    where
        F: for<'a> FnMut(<C::Out as Items>::Of<'a>) -> U + Clone + Send + 'static,
    {
        self.chained(|chain| Map::new(chain, user))
    }

    /// Keeps the items for which `user` returns true.
    pub fn filter<F>(self, user: F) -> Stream<H, Filter<C, F>>
    where
        F: for<'a, 'b> FnMut(&'b <C::Out as Items>::Of<'a>) -> bool + Clone + Send + 'static,
    {
        self.chained(|chain| Filter::new(chain, user))
    }

    /// Turns every item into any number of others, which `user` pushes to [`Out`].
    pub fn flat_map<U: 'static, F>(self, user: F) -> Stream<H, FlatMapPlan<C, F, U>>
    where
        F: for<'a> FnMut(<C::Out as Items>::Of<'a>, &mut Out<U>) + Clone + Send + 'static,
    {
        self.chained(|chain| FlatMapPlan::new(chain, user))
    }

    /// [`map`](Self::map) that may fail; `policy` says what then.
    pub fn try_map<U: 'static, E: Display + 'static, F>(self, policy: OnError, user: F) -> Stream<H, TryMap<C, F, U, E>>
    where
        F: for<'a> FnMut(<C::Out as Items>::Of<'a>) -> Result<U, E> + Clone + Send + 'static,
    {
        self.chained(|chain| TryMap::new(chain, policy, user))
    }

    /// [`flat_map`](Self::flat_map) that may fail; `policy` says what then. Nothing that a failed call pushed goes on.
    pub fn try_flat_map<U: 'static, E: Display + 'static, F>(
        self,
        policy: OnError,
        user: F,
    ) -> Stream<H, TryFlatMapPlan<C, F, U, E>>
    where
        F: for<'a> FnMut(<C::Out as Items>::Of<'a>, &mut Out<U>) -> Result<(), E> + Clone + Send + 'static,
    {
        self.chained(|chain| TryFlatMapPlan::new(chain, policy, user))
    }

    /// Shows every item to `user` and passes it on.
    pub fn inspect<F>(self, user: F) -> Stream<H, Inspect<C, F>>
    where
        F: for<'a, 'b> FnMut(&'b <C::Out as Items>::Of<'a>) + Clone + Send + 'static,
    {
        self.chained(|chain| Inspect::new(chain, user))
    }

    /// Keys the stream by what `user` makes of each item.
    pub fn key_by<K: Key, F>(self, user: F) -> KeyedStream<H, C, ByValue<F, K>>
    where
        F: for<'a, 'b> FnMut(&'b <C::Out as Items>::Of<'a>) -> K + Clone + Send + 'static,
    {
        KeyedStream { stream: self, key_of: ByValue::new(user) }
    }

    /// Keys the stream by a part of each item, borrowed: no clone per item.
    pub fn key_by_ref<K: Key + ?Sized, F>(self, user: F) -> KeyedStream<H, C, ByRef<F, K>>
    where
        F: for<'a, 'b> FnMut(&'b <C::Out as Items>::Of<'a>) -> &'b K + Clone + Send + 'static,
    {
        KeyedStream { stream: self, key_of: ByRef::new(user) }
    }

    /// Ends the stream in a sink. The job can take further sources after it.
    pub fn sink<S: Sink<C::Out>>(self, sink: S) -> Job {
        Job::from_draft(self.end(SinkPlan(Arc::new(sink))))
    }

    fn end<O: OutputPlan<C::Out>>(self, output: O) -> Draft {
        let Self { mut draft, name, head, chain } = self;
        draft.stages.push(StageDraft { name, plan: Box::new(Planned { head, chain, output }) });
        draft
    }
}

impl<H: HeadPlan, C: Blueprint<In = H::Out, Out = Own<R>>, R: 'static> Stream<H, C> {
    /// Goes on with the items of both streams. Each keeps its order; between the two there is none.
    pub fn union<H2, C2>(self, other: Stream<H2, C2>) -> Stream<UnionPlan<R>, Start<UnionPlan<R>>>
    where
        R: Record,
        H2: HeadPlan,
        C2: Blueprint<In = H2::Out, Out = Own<R>>,
    {
        let edges = [EdgeKey::new(), EdgeKey::new()];
        let [edge, other_edge] = edges;
        let mut draft = self.end(UnionInputPlan { edge, items: PhantomData });
        draft.join(other.end(UnionInputPlan { edge: other_edge, items: PhantomData }));
        Stream { draft, name: None, head: UnionPlan::new(edges), chain: Identity::default() }
    }
}

/// What a keyed operator makes of a stream.
type Operated<P> = Stream<KeyedHeadPlan<P>, Start<KeyedHeadPlan<P>>>;

impl<H: HeadPlan, C: Blueprint<In = H::Out>, N: KeyOf<C::Out>> KeyedStream<H, C, N> {
    fn operate<L: Load<C::Out, N::Key>, P: KeyedPlan>(self, name: &str, make: impl FnOnce(N) -> P) -> Operated<P> {
        let Self { stream, key_of } = self;
        let edge = EdgeKey::new();
        let operator = make(key_of.clone());
        let draft = stream.end(ExchangePlan { edge, key_of, load: PhantomData::<fn() -> L> });
        Stream {
            draft,
            name: Some(name.to_owned()),
            head: KeyedHeadPlan::new(edge, operator),
            chain: Identity::default(),
        }
    }

    /// Counts the items of each key and emits `(key, count)` after every item.
    ///
    /// `name` is the identity of the operator and its state in snapshots.
    pub fn count(self, name: &str) -> Operated<CountPlan<N::Key>> {
        self.count_emitting(name, Emit::Updates)
    }

    /// [`count`](Self::count), emitting when `emit` says.
    pub fn count_emitting(self, name: &str, emit: Emit) -> Operated<CountPlan<N::Key>> {
        self.operate::<KeyOnly, _>(name, |_| CountPlan::new(name.to_owned(), emit))
    }
}

impl<H, C, N, R> KeyedStream<H, C, N>
where
    H: HeadPlan,
    C: Blueprint<In = H::Out, Out = Own<R>>,
    N: KeyOf<Own<R>>,
    R: 'static,
{
    /// Folds the records of each key into one: the first record starts, `user` folds each further one into it. Emits
    /// `(key, record)` when `emit` says.
    ///
    /// `name` is the identity of the operator and its state in snapshots.
    pub fn reduce<F>(self, name: &str, emit: Emit, user: F) -> Operated<ReducePlan<N, R, F>>
    where
        R: Record + State + Clone,
        F: FnMut(&mut R, R) + Clone + Send + 'static,
    {
        self.operate::<WholeRecord, _>(name, |key_of| ReducePlan::new(name.to_owned(), emit, key_of, user))
    }

    /// Processes each record with the states that `process` declares.
    ///
    /// `name` is the identity of the operator in snapshots.
    pub fn process<P: KeyedProcess<N::Key, R>>(self, name: &str, process: P) -> Operated<ProcessPlan<N, R, P>>
    where
        R: Record,
    {
        self.operate::<WholeRecord, _>(name, |key_of| ProcessPlan::new(name.to_owned(), key_of, process))
    }

    /// [`process`](Self::process) with one value per key and a closure: `|value, record, key, out|`. The value is `None`
    /// when unset, and setting it to `None` removes it.
    pub fn process_with<V, U, F>(
        self,
        name: &str,
        state: ValueState<V>,
        user: F,
    ) -> Operated<ProcessPlan<N, R, ProcessWith<V, U, F>>>
    where
        R: Record,
        V: State,
        U: 'static,
        F: for<'a> Fn(&mut Option<V>, R, <N::Key as Key>::Ref<'a>, &mut Out<U>) + Clone + Send + 'static,
    {
        self.process(name, ProcessWith::new(state, user))
    }
}
