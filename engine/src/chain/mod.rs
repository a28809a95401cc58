//! Chains: operators without state, fused into one loop.
//!
//! A chain is one type made of all its operators; pushing an item through it is a plain function call that the compiler
//! inlines from end to end. There is one dynamic call per batch, at the stage's edge, and none per record.
//!
//! A [`Blueprint`] is the chain as it stands in a job, one clone per shard; [`Blueprint::build`] makes the [`Operator`]
//! that runs there, so that what an operator needs while running has not to be `Send`.

mod fault;
mod filter;
mod flat_map;
mod inspect;
mod map;
mod try_ops;

pub(crate) use fault::{Faults, blaming, blaming_key};

pub use fault::OnError;
pub use filter::Filter;
pub use flat_map::{FlatMap, FlatMapPlan, Out};
pub use inspect::Inspect;
pub use map::Map;
pub use try_ops::{TryFlatMap, TryFlatMapPlan, TryMap};

use crate::items::Items;
use std::marker::PhantomData;

/// A chain as it stands in a job.
pub trait Blueprint: Clone + Send + 'static {
    /// What goes in.
    type In: Items;
    /// What comes out.
    type Out: Items;
    /// What runs on a shard.
    type Operator: Operator<In = Self::In, Out = Self::Out>;

    /// How many operators it has.
    const LENGTH: usize;

    /// Makes the operator of one shard.
    fn build(self) -> Self::Operator;

    /// Appends the names of its operators, first to last, for `explain`.
    fn describe(&self, names: &mut Vec<&'static str>);
}

/// A chain on a shard.
pub trait Operator: 'static {
    /// What goes in.
    type In: Items;
    /// What comes out.
    type Out: Items;

    /// Takes one item and hands what becomes of it to `next`.
    fn push(&mut self, item: <Self::In as Items>::Of<'_>, next: &mut impl FnMut(<Self::Out as Items>::Of<'_>));
}

/// Which operator of a chain: its name and its place, counted from one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OperatorId {
    name: &'static str,
    place: usize,
}

impl OperatorId {
    /// The operator `name` behind the chain `P`.
    pub(crate) const fn after<P: Blueprint>(name: &'static str) -> Self {
        Self { name, place: P::LENGTH + 1 }
    }

    /// The keyed operator at the head of a stage.
    pub(crate) const fn head(name: &'static str) -> Self {
        Self { name, place: 0 }
    }
}

impl std::fmt::Display for OperatorId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.place {
            0 => write!(f, "operator {}", self.name),
            place => write!(f, "operator {place} ({})", self.name),
        }
    }
}

/// The empty chain.
pub struct Identity<I>(PhantomData<fn() -> I>);

impl<I> Default for Identity<I> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<I> Clone for Identity<I> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<I: Items> Blueprint for Identity<I> {
    type In = I;
    type Out = I;
    type Operator = Self;
    const LENGTH: usize = 0;
    fn build(self) -> Self {
        self
    }
    fn describe(&self, _: &mut Vec<&'static str>) {}
}

impl<I: Items> Operator for Identity<I> {
    type In = I;
    type Out = I;
    #[inline(always)]
    fn push(&mut self, item: I::Of<'_>, next: &mut impl FnMut(I::Of<'_>)) {
        next(item);
    }
}
