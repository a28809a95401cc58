//! `filter`: keeps the items that a predicate accepts.

use super::*;

/// See [`Stream::filter`](crate::Stream::filter).
#[derive(Clone)]
pub struct Filter<P, F> {
    previous: P,
    user: F,
    id: OperatorId,
}

impl<P: Blueprint, F> Filter<P, F> {
    pub(crate) fn new(previous: P, user: F) -> Self {
        Self { previous, user, id: OperatorId::after::<P>("filter") }
    }
}

impl<P, F> Blueprint for Filter<P, F>
where
    P: Blueprint,
    F: for<'a, 'b> FnMut(&'b <P::Out as Items>::Of<'a>) -> bool + Clone + Send + 'static,
{
    type In = P::In;
    type Out = P::Out;
    type Operator = Filter<P::Operator, F>;
    const LENGTH: usize = P::LENGTH + 1;

    fn build(self) -> Self::Operator {
        Filter { previous: self.previous.build(), user: self.user, id: self.id }
    }

    fn describe(&self, names: &mut Vec<&'static str>) {
        self.previous.describe(names);
        names.push("filter");
    }
}

impl<P, F> Operator for Filter<P, F>
where
    P: Operator,
    F: for<'a, 'b> FnMut(&'b <P::Out as Items>::Of<'a>) -> bool + 'static,
{
    type In = P::In;
    type Out = P::Out;

    #[inline(always)]
    fn push(&mut self, item: <P::In as Items>::Of<'_>, next: &mut impl FnMut(<P::Out as Items>::Of<'_>)) {
        let Self { previous, user, id } = self;
        previous.push(item, &mut |item| {
            if blaming(*id, || user(&item)) {
                next(item);
            }
        });
    }
}
