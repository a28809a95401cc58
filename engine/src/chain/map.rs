//! `map`: one item in, one item out.

use super::*;
use crate::items::Own;

/// See [`Stream::map`](crate::Stream::map).
pub struct Map<P, F, U> {
    previous: P,
    user: F,
    id: OperatorId,
    items: PhantomData<fn() -> U>,
}

impl<P: Blueprint, F, U> Map<P, F, U> {
    pub(crate) fn new(previous: P, user: F) -> Self {
        Self { previous, user, id: OperatorId::after::<P>("map"), items: PhantomData }
    }
}

impl<P: Clone, F: Clone, U> Clone for Map<P, F, U> {
    fn clone(&self) -> Self {
        Self { previous: self.previous.clone(), user: self.user.clone(), id: self.id, items: PhantomData }
    }
}

impl<P, F, U: 'static> Blueprint for Map<P, F, U>
where
    P: Blueprint,
    F: for<'a> FnMut(<P::Out as Items>::Of<'a>) -> U + Clone + Send + 'static,
{
    type In = P::In;
    type Out = Own<U>;
    type Operator = Map<P::Operator, F, U>;
    const LENGTH: usize = P::LENGTH + 1;

    fn build(self) -> Self::Operator {
        Map { previous: self.previous.build(), user: self.user, id: self.id, items: PhantomData }
    }

    fn describe(&self, names: &mut Vec<&'static str>) {
        self.previous.describe(names);
        names.push("map");
    }
}

impl<P, F, U: 'static> Operator for Map<P, F, U>
where
    P: Operator,
    F: for<'a> FnMut(<P::Out as Items>::Of<'a>) -> U + 'static,
{
    type In = P::In;
    type Out = Own<U>;

    #[inline(always)]
    fn push(&mut self, item: <P::In as Items>::Of<'_>, next: &mut impl FnMut(U)) {
        let Self { previous, user, id, .. } = self;
        previous.push(item, &mut |item| next(blaming(*id, || user(item))));
    }
}
