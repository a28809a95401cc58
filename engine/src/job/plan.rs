//! Stages as they stand in a job: values that can be described, checked, cloned for each shard and built there.

use crate::Result;
use crate::chain::{Blueprint, Identity};
use crate::exchange::{Freight, Inbox, OpenEdge, RecordFreight, check_log};
use crate::items::{Items, Own};
use crate::key_of::KeyOf;
use crate::operator::{KeyedOperator, KeyedPlan, OpenContext, StateSchema};
use crate::sink::{Committer, Guarantee, Owner, Sink};
use crate::source::{Source, Split};
use crate::stage::{
    ByKey, EdgeOutput, Head, Here, KeyedHead, Load, Output, SinkOutput, SourceHead, Stage, StageTask, UnionHead,
};
use millstream_state::shard_store::ShardStore;
use millstream_state::{KeyGroupCount, KeyGroupRange, Record, Schema};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names an edge while a job is put together; numbered in order when it is finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EdgeKey(u64);

impl EdgeKey {
    /// A key that no other edge of this process has.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What a stage is built from on its shard.
pub(crate) struct BuildContext<'a> {
    /// Whose output it is.
    pub owner: Owner<'a>,
    /// Number of this shard.
    pub shard: u32,
    /// Grows with every start on the state directory.
    pub run: u64,
    /// Key groups of the job.
    pub key_groups: KeyGroupCount,
    /// Key groups of this shard.
    pub owned: KeyGroupRange,
    /// The shard's state, restored.
    pub store: &'a mut ShardStore,
    /// This shard's ends of every edge, in order.
    pub edges: &'a mut [OpenEdge],
    /// The order of the edges.
    pub edge_order: &'a [EdgeKey],
    /// What this stage continues from.
    pub restored: &'a mut RestoredStage,
}

/// What one stage on one shard continues from.
#[derive(Default)]
pub(crate) struct RestoredStage {
    /// Splits dealt to this shard, for a source.
    pub splits: Vec<Split>,
    /// Shards that were dealt a split which has not ended.
    pub readers: u32,
    /// The stage's own state as every shard of the snapshot saved it.
    pub saved: Vec<Vec<u8>>,
    /// Records of the channel logs that this shard owns, in order.
    pub records: Vec<u8>,
}

impl BuildContext<'_> {
    fn edge(&mut self, key: EdgeKey) -> &mut OpenEdge {
        let number = self.edge_order.iter().position(|&edge| edge == key).expect("every edge is in the order");
        &mut self.edges[number]
    }
}

/// What feeds a stage, as it stands in a job.
pub trait HeadPlan: Clone + Send + 'static {
    type Out: Items;
    type Head: Head<Out = Self::Out>;

    fn build(self, cx: &mut BuildContext<'_>) -> Result<Self::Head>;
    fn describe(&self) -> String;
    fn edges(&self) -> Vec<EdgeKey>;
    fn states(&self) -> Vec<StateSchema>;

    /// Lists the splits of a source: all, or after a restore those that are new beside the known ones.
    fn splits(&self, _shards: u32, _known: Option<&[Split]>) -> Option<Result<Vec<Split>>> {
        None
    }

    /// What crosses the edges in front of it.
    fn record_schema(&self) -> Option<Schema> {
        None
    }

    /// Reads a channel log in front of this head: checks it and hands on each record with its hash.
    fn read_log(&self, bytes: &[u8], keep: &mut dyn FnMut(u64, &[u8])) -> Result<()>;

    fn replayable(&self) -> bool {
        true
    }
}

/// A source at the head of a stage.
pub struct SourcePlan<S>(Arc<S>);

impl<S> SourcePlan<S> {
    pub(crate) fn new(source: S) -> Self {
        Self(Arc::new(source))
    }
}

impl<S> Clone for SourcePlan<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Source> HeadPlan for SourcePlan<S> {
    type Out = S::Items;
    type Head = SourceHead<S::Reader>;

    fn build(self, cx: &mut BuildContext<'_>) -> Result<Self::Head> {
        Ok(SourceHead::new(self.0.open(cx.shard, cx.restored.readers, std::mem::take(&mut cx.restored.splits))?))
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn edges(&self) -> Vec<EdgeKey> {
        Vec::new()
    }
    fn states(&self) -> Vec<StateSchema> {
        Vec::new()
    }
    fn splits(&self, shards: u32, known: Option<&[Split]>) -> Option<Result<Vec<Split>>> {
        Some(match known {
            None => self.0.splits(shards),
            Some(known) => self.0.new_splits(shards, known),
        })
    }
    fn read_log(&self, _: &[u8], _: &mut dyn FnMut(u64, &[u8])) -> Result<()> {
        unreachable!("a source has no edge in front of it")
    }
    fn replayable(&self) -> bool {
        self.0.replayable()
    }
}

/// A keyed operator at the head of a stage.
pub struct KeyedHeadPlan<P> {
    edge: EdgeKey,
    operator: P,
}

impl<P> KeyedHeadPlan<P> {
    pub(crate) fn new(edge: EdgeKey, operator: P) -> Self {
        Self { edge, operator }
    }
}

impl<P: Clone> Clone for KeyedHeadPlan<P> {
    fn clone(&self) -> Self {
        Self { edge: self.edge, operator: self.operator.clone() }
    }
}

impl<P: KeyedPlan> HeadPlan for KeyedHeadPlan<P> {
    type Out = <P::Operator as KeyedOperator>::Out;
    type Head = KeyedHead<P::Operator>;

    fn build(self, cx: &mut BuildContext<'_>) -> Result<Self::Head> {
        let restored = std::mem::take(&mut *cx.restored);
        let domain = cx.store.domain();
        let open =
            OpenContext { store: cx.store, domain, key_groups: cx.key_groups, owned: cx.owned, saved: &restored.saved };
        let operator = self.operator.open(open)?;
        Ok(KeyedHead::new(Inbox::new(&mut [cx.edge(self.edge)], restored.records), operator))
    }
    fn describe(&self) -> String {
        self.operator.describe()
    }
    fn edges(&self) -> Vec<EdgeKey> {
        vec![self.edge]
    }
    fn states(&self) -> Vec<StateSchema> {
        self.operator.states()
    }
    fn read_log(&self, bytes: &[u8], keep: &mut dyn FnMut(u64, &[u8])) -> Result<()> {
        check_log::<<P::Operator as KeyedOperator>::Freight>(bytes, keep)
    }
    fn record_schema(&self) -> Option<Schema> {
        Some(<P::Operator as KeyedOperator>::Freight::schema())
    }
}

/// Several streams that go on as one.
pub struct UnionPlan<R> {
    edges: [EdgeKey; 2],
    items: PhantomData<fn() -> R>,
}

impl<R> UnionPlan<R> {
    pub(crate) fn new(edges: [EdgeKey; 2]) -> Self {
        Self { edges, items: PhantomData }
    }
}

impl<R> Clone for UnionPlan<R> {
    fn clone(&self) -> Self {
        Self { edges: self.edges, items: PhantomData }
    }
}

impl<R: Record> HeadPlan for UnionPlan<R> {
    type Out = Own<R>;
    type Head = UnionHead<R>;

    fn build(self, cx: &mut BuildContext<'_>) -> Result<UnionHead<R>> {
        let records = std::mem::take(&mut cx.restored.records);
        let numbers = self.edges.map(|key| cx.edge_order.iter().position(|&edge| edge == key));
        let ends = cx.edges.iter_mut().enumerate().filter(|(number, _)| numbers.contains(&Some(*number)));
        Ok(UnionHead::new(Inbox::new(&mut ends.map(|(_, ends)| ends).collect::<Vec<_>>(), records)))
    }
    fn describe(&self) -> String {
        format!("union {}", R::schema().describe())
    }
    fn edges(&self) -> Vec<EdgeKey> {
        self.edges.to_vec()
    }
    fn states(&self) -> Vec<StateSchema> {
        Vec::new()
    }
    fn read_log(&self, bytes: &[u8], keep: &mut dyn FnMut(u64, &[u8])) -> Result<()> {
        check_log::<RecordFreight<R>>(bytes, keep)
    }
    fn record_schema(&self) -> Option<Schema> {
        Some(R::schema())
    }
}

/// Where a stage puts its results, as it stands in a job.
pub(crate) trait OutputPlan<I: Items>: Clone + Send + 'static {
    type Output: Output<I>;

    fn build(self, cx: &mut BuildContext<'_>) -> Result<Self::Output>;
    fn describe(&self) -> String;

    /// The edge it feeds and whether that re-partitions.
    fn edge(&self) -> Option<(EdgeKey, bool)> {
        None
    }

    /// For a sink: what it promises and what commits it.
    fn sink(&self) -> Option<Guarantee> {
        None
    }
    fn committer(&self, _: Owner<'_>) -> Result<Option<Box<dyn Committer>>> {
        Ok(None)
    }
}

/// Into an exchange by key.
pub(crate) struct ExchangePlan<N, L> {
    pub edge: EdgeKey,
    pub key_of: N,
    pub load: PhantomData<fn() -> L>,
}

impl<N: Clone, L> Clone for ExchangePlan<N, L> {
    fn clone(&self) -> Self {
        Self { edge: self.edge, key_of: self.key_of.clone(), load: PhantomData }
    }
}

impl<I: Items, N: KeyOf<I>, L: Load<I, N::Key>> OutputPlan<I> for ExchangePlan<N, L> {
    type Output = EdgeOutput<ByKey<N, L>>;

    fn build(self, cx: &mut BuildContext<'_>) -> Result<Self::Output> {
        let key_groups = cx.key_groups;
        Ok(EdgeOutput::new(cx.edge(self.edge).take_outbox(key_groups), ByKey::new(self.key_of)))
    }
    fn describe(&self) -> String {
        use millstream_state::Key;
        format!("exchange by {}", N::Key::schema().describe())
    }
    fn edge(&self) -> Option<(EdgeKey, bool)> {
        Some((self.edge, true))
    }
}

/// Into a union.
pub(crate) struct UnionInputPlan<R> {
    pub edge: EdgeKey,
    pub items: PhantomData<fn() -> R>,
}

impl<R> Clone for UnionInputPlan<R> {
    fn clone(&self) -> Self {
        Self { edge: self.edge, items: PhantomData }
    }
}

impl<R: Record> OutputPlan<Own<R>> for UnionInputPlan<R> {
    type Output = EdgeOutput<Here>;

    fn build(self, cx: &mut BuildContext<'_>) -> Result<Self::Output> {
        let key_groups = cx.key_groups;
        Ok(EdgeOutput::new(cx.edge(self.edge).take_outbox(key_groups), Here))
    }
    fn describe(&self) -> String {
        "union".to_owned()
    }
    fn edge(&self) -> Option<(EdgeKey, bool)> {
        Some((self.edge, false))
    }
}

/// Into a sink.
pub(crate) struct SinkPlan<S>(pub Arc<S>);

impl<S> Clone for SinkPlan<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<I: Items, S: Sink<I>> OutputPlan<I> for SinkPlan<S> {
    type Output = SinkOutput<S::Writer>;

    fn build(self, cx: &mut BuildContext<'_>) -> Result<Self::Output> {
        Ok(SinkOutput::new(self.0.open(cx.owner, cx.shard, cx.run)?))
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn sink(&self) -> Option<Guarantee> {
        Some(self.0.guarantee())
    }
    fn committer(&self, owner: Owner<'_>) -> Result<Option<Box<dyn Committer>>> {
        self.0.committer(owner)
    }
}

/// A stage with its types erased.
pub(crate) trait StagePlan: Send {
    fn clone_for_shard(&self) -> Box<dyn StagePlan>;
    fn build(self: Box<Self>, name: &str, cx: &mut BuildContext<'_>) -> Result<Box<dyn StageTask>>;
    fn describe_head(&self) -> String;
    fn describe_chain(&self) -> Vec<&'static str>;
    fn describe_output(&self) -> String;
    fn inputs(&self) -> Vec<EdgeKey>;
    fn output_edge(&self) -> Option<(EdgeKey, bool)>;
    fn states(&self) -> Vec<StateSchema>;
    fn splits(&self, shards: u32, known: Option<&[Split]>) -> Option<Result<Vec<Split>>>;
    fn record_schema(&self) -> Option<Schema>;
    fn replayable(&self) -> bool;
    fn read_log(&self, bytes: &[u8], keep: &mut dyn FnMut(u64, &[u8])) -> Result<()>;
    fn sink(&self) -> Option<Guarantee>;
    fn committer(&self, owner: Owner<'_>) -> Result<Option<Box<dyn Committer>>>;
}

/// A stage with its types.
#[derive(Clone)]
pub(crate) struct Planned<H, C, O> {
    pub head: H,
    pub chain: C,
    pub output: O,
}

impl<H, C, O> StagePlan for Planned<H, C, O>
where
    H: HeadPlan,
    C: Blueprint<In = H::Out>,
    O: OutputPlan<C::Out>,
{
    fn clone_for_shard(&self) -> Box<dyn StagePlan> {
        Box::new(Self { head: self.head.clone(), chain: self.chain.clone(), output: self.output.clone() })
    }
    fn build(self: Box<Self>, name: &str, cx: &mut BuildContext<'_>) -> Result<Box<dyn StageTask>> {
        let head = self.head.build(cx)?;
        let output = self.output.build(cx)?;
        Ok(Box::new(Stage::new(name.to_owned(), head, self.chain.build(), output)))
    }
    fn describe_head(&self) -> String {
        self.head.describe()
    }
    fn describe_chain(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        self.chain.describe(&mut names);
        names
    }
    fn describe_output(&self) -> String {
        self.output.describe()
    }
    fn inputs(&self) -> Vec<EdgeKey> {
        self.head.edges()
    }
    fn output_edge(&self) -> Option<(EdgeKey, bool)> {
        self.output.edge()
    }
    fn states(&self) -> Vec<StateSchema> {
        self.head.states()
    }
    fn splits(&self, shards: u32, known: Option<&[Split]>) -> Option<Result<Vec<Split>>> {
        self.head.splits(shards, known)
    }
    fn record_schema(&self) -> Option<Schema> {
        self.head.record_schema()
    }
    fn replayable(&self) -> bool {
        self.head.replayable()
    }
    fn read_log(&self, bytes: &[u8], keep: &mut dyn FnMut(u64, &[u8])) -> Result<()> {
        self.head.read_log(bytes, keep)
    }
    fn sink(&self) -> Option<Guarantee> {
        self.output.sink()
    }
    fn committer(&self, owner: Owner<'_>) -> Result<Option<Box<dyn Committer>>> {
        self.output.committer(owner)
    }
}

/// The chain with which a stream begins.
pub(super) type Start<H> = Identity<<H as HeadPlan>::Out>;
