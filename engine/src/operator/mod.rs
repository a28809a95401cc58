//! Keyed operators: what is done with the records of one key, and the state it keeps.
//!
//! An operator stands at the head of a stage and takes whole batches: the hashes came with the records, the state is
//! prefetched for all of them, then they are applied in order.

mod at_end;
mod count;
mod process;
mod reduce;

pub use count::{Count, CountPlan, Emit};
pub use process::{Collector, KeyContext, KeyedProcess, Process, ProcessPlan, ProcessState, ProcessWith, ValueHandle};
pub use reduce::{Reduce, ReducePlan};

pub(crate) use at_end::EndProgress;

use crate::Result;
use crate::exchange::{Batch, Freight};
use crate::items::Items;
use millstream_state::shard_store::ShardStore;
use millstream_state::table::{Domain, Log};
use millstream_state::{KeyGroupCount, KeyGroupRange, Schema};

/// A keyed operator as it stands in a job.
pub trait KeyedPlan: Clone + Send + 'static {
    /// What runs on a shard.
    type Operator: KeyedOperator;

    /// Opens its state on a shard and continues where the snapshot left off.
    fn open(self, cx: OpenContext<'_>) -> Result<Self::Operator>;

    /// The states it keeps, without opening them.
    fn states(&self) -> Vec<StateSchema>;

    /// A few words for `explain`: which operator, when it emits.
    fn describe(&self) -> String;
}

/// A state that a job keeps: what a snapshot is compared with before anything starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StateSchema {
    /// Identity in snapshots.
    pub name: String,
    /// Meaning of its keys.
    pub key: Schema,
    /// Meaning of its values.
    pub value: Schema,
}

/// What a keyed operator learns when it opens on a shard.
pub(crate) struct OpenContext<'a> {
    /// The shard's state.
    pub store: &'a mut ShardStore,
    /// What the operator's tables are cut with.
    pub domain: Domain,
    /// Key groups of the job.
    pub key_groups: KeyGroupCount,
    /// Key groups of this shard.
    pub owned: KeyGroupRange,
    /// The operator's own state as every shard of the restored snapshot saved it.
    pub saved: &'a [Vec<u8>],
}

/// A keyed operator on a shard.
pub trait KeyedOperator: 'static {
    /// What crosses the exchange in front of it.
    type Freight: Freight;
    /// What it hands on.
    type Out: Items;

    /// Processes a batch in order.
    fn apply(
        &mut self,
        log: &mut Log,
        batch: &Batch<'_, Self::Freight>,
        push: &mut impl FnMut(<Self::Out as Items>::Of<'_>),
    ) -> Result<()>;

    /// After the last record: emits up to about `records_max` results; `true` when there are no more.
    fn finish(
        &mut self,
        log: &mut Log,
        records_max: usize,
        push: &mut impl FnMut(<Self::Out as Items>::Of<'_>),
    ) -> Result<bool>;

    /// The operator's own state for a snapshot.
    fn save(&self) -> Vec<u8>;
}
