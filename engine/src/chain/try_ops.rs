//! `try_map` and `try_flat_map`: the closure may fail; a policy says what then.

use super::*;
use crate::items::Own;
use std::fmt::Display;

/// See [`Stream::try_map`](crate::Stream::try_map).
pub struct TryMap<P, F, U, E> {
    previous: P,
    user: F,
    policy: OnError,
    id: OperatorId,
    items: PhantomData<fn() -> (U, E)>,
}

impl<P: Blueprint, F, U, E> TryMap<P, F, U, E> {
    pub(crate) fn new(previous: P, policy: OnError, user: F) -> Self {
        Self { previous, user, policy, id: OperatorId::after::<P>("try_map"), items: PhantomData }
    }
}

impl<P: Clone, F: Clone, U, E> Clone for TryMap<P, F, U, E> {
    fn clone(&self) -> Self {
        let Self { previous, user, policy, id, .. } = self;
        Self { previous: previous.clone(), user: user.clone(), policy: *policy, id: *id, items: PhantomData }
    }
}

impl<P, F, U: 'static, E: Display + 'static> Blueprint for TryMap<P, F, U, E>
where
    P: Blueprint,
    F: for<'a> FnMut(<P::Out as Items>::Of<'a>) -> Result<U, E> + Clone + Send + 'static,
{
    type In = P::In;
    type Out = Own<U>;
    type Operator = TryMap<P::Operator, F, U, E>;
    const LENGTH: usize = P::LENGTH + 1;

    fn build(self) -> Self::Operator {
        let Self { previous, user, policy, id, .. } = self;
        TryMap { previous: previous.build(), user, policy, id, items: PhantomData }
    }

    fn describe(&self, names: &mut Vec<&'static str>) {
        self.previous.describe(names);
        names.push("try_map");
    }
}

impl<P, F, U: 'static, E: Display + 'static> Operator for TryMap<P, F, U, E>
where
    P: Operator,
    F: for<'a> FnMut(<P::Out as Items>::Of<'a>) -> Result<U, E> + 'static,
{
    type In = P::In;
    type Out = Own<U>;

    #[inline(always)]
    fn push(&mut self, item: <P::In as Items>::Of<'_>, next: &mut impl FnMut(U)) {
        let Self { previous, user, policy, id, .. } = self;
        previous.push(item, &mut |item| match blaming(*id, || user(item)) {
            Ok(item) => next(item),
            Err(error) => Faults::apply(*policy, *id, error),
        });
    }
}

/// See [`Stream::try_flat_map`](crate::Stream::try_flat_map).
pub struct TryFlatMapPlan<P, F, U, E> {
    previous: P,
    user: F,
    policy: OnError,
    items: PhantomData<fn() -> (U, E)>,
}

impl<P: Blueprint, F, U, E> TryFlatMapPlan<P, F, U, E> {
    pub(crate) fn new(previous: P, policy: OnError, user: F) -> Self {
        Self { previous, user, policy, items: PhantomData }
    }
}

impl<P: Clone, F: Clone, U, E> Clone for TryFlatMapPlan<P, F, U, E> {
    fn clone(&self) -> Self {
        let Self { previous, user, policy, .. } = self;
        Self { previous: previous.clone(), user: user.clone(), policy: *policy, items: PhantomData }
    }
}

impl<P, F, U: 'static, E: Display + 'static> Blueprint for TryFlatMapPlan<P, F, U, E>
where
    P: Blueprint,
    F: for<'a> FnMut(<P::Out as Items>::Of<'a>, &mut Out<U>) -> Result<(), E> + Clone + Send + 'static,
{
    type In = P::In;
    type Out = Own<U>;
    type Operator = TryFlatMap<P::Operator, F, U, E>;
    const LENGTH: usize = P::LENGTH + 1;

    fn build(self) -> Self::Operator {
        let Self { previous, user, policy, .. } = self;
        let id = OperatorId::after::<P>("try_flat_map");
        TryFlatMap { previous: previous.build(), user, policy, id, out: Out::new(), errors: PhantomData }
    }

    fn describe(&self, names: &mut Vec<&'static str>) {
        self.previous.describe(names);
        names.push("try_flat_map");
    }
}

/// What runs a [`TryFlatMapPlan`].
pub struct TryFlatMap<P, F, U, E> {
    previous: P,
    user: F,
    policy: OnError,
    id: OperatorId,
    out: Out<U>,
    errors: PhantomData<fn() -> E>,
}

impl<P, F, U: 'static, E: Display + 'static> Operator for TryFlatMap<P, F, U, E>
where
    P: Operator,
    F: for<'a> FnMut(<P::Out as Items>::Of<'a>, &mut Out<U>) -> Result<(), E> + 'static,
{
    type In = P::In;
    type Out = Own<U>;

    #[inline(always)]
    fn push(&mut self, item: <P::In as Items>::Of<'_>, next: &mut impl FnMut(U)) {
        let Self { previous, user, policy, id, out, .. } = self;
        previous.push(item, &mut |item| match blaming(*id, || user(item, out)) {
            Ok(()) => out.drain().for_each(&mut *next),
            Err(error) => {
                // All or nothing: what a failed call had pushed is left out with its record.
                out.clear();
                Faults::apply(*policy, *id, error);
            }
        });
    }
}
