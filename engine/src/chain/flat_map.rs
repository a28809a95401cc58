//! `flat_map`: one item in, any number of items out.

use super::*;
use crate::items::Own;

/// Where the closure of a `flat_map` puts its items. Reused from call to call: no allocation in steady state.
pub struct Out<U>(Vec<U>);

impl<U> Out<U> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn drain(&mut self) -> std::vec::Drain<'_, U> {
        self.0.drain(..)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Passes one item on.
    #[inline(always)]
    pub fn push(&mut self, item: U) {
        self.0.push(item);
    }
}

impl<U> Extend<U> for Out<U> {
    fn extend<T: IntoIterator<Item = U>>(&mut self, items: T) {
        self.0.extend(items);
    }
}

/// See [`Stream::flat_map`](crate::Stream::flat_map).
pub struct FlatMapPlan<P, F, U> {
    previous: P,
    user: F,
    items: PhantomData<fn() -> U>,
}

impl<P: Blueprint, F, U> FlatMapPlan<P, F, U> {
    pub(crate) fn new(previous: P, user: F) -> Self {
        Self { previous, user, items: PhantomData }
    }
}

impl<P: Clone, F: Clone, U> Clone for FlatMapPlan<P, F, U> {
    fn clone(&self) -> Self {
        Self { previous: self.previous.clone(), user: self.user.clone(), items: PhantomData }
    }
}

impl<P, F, U: 'static> Blueprint for FlatMapPlan<P, F, U>
where
    P: Blueprint,
    F: for<'a> FnMut(<P::Out as Items>::Of<'a>, &mut Out<U>) + Clone + Send + 'static,
{
    type In = P::In;
    type Out = Own<U>;
    type Operator = FlatMap<P::Operator, F, U>;
    const LENGTH: usize = P::LENGTH + 1;

    fn build(self) -> Self::Operator {
        FlatMap {
            previous: self.previous.build(),
            user: self.user,
            id: OperatorId::after::<P>("flat_map"),
            out: Out::new(),
        }
    }

    fn describe(&self, names: &mut Vec<&'static str>) {
        self.previous.describe(names);
        names.push("flat_map");
    }
}

/// What runs a [`FlatMapPlan`].
pub struct FlatMap<P, F, U> {
    previous: P,
    user: F,
    id: OperatorId,
    out: Out<U>,
}

impl<P, F, U: 'static> Operator for FlatMap<P, F, U>
where
    P: Operator,
    F: for<'a> FnMut(<P::Out as Items>::Of<'a>, &mut Out<U>) + 'static,
{
    type In = P::In;
    type Out = Own<U>;

    #[inline(always)]
    fn push(&mut self, item: <P::In as Items>::Of<'_>, next: &mut impl FnMut(U)) {
        let Self { previous, user, id, out } = self;
        previous.push(item, &mut |item| {
            blaming(*id, || user(item, out));
            out.drain().for_each(&mut *next);
        });
    }
}
