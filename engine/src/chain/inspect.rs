//! `inspect`: looks at every item and passes it on.

use super::*;

/// See [`Stream::inspect`](crate::Stream::inspect).
#[derive(Clone)]
pub struct Inspect<P, F> {
    previous: P,
    user: F,
    id: OperatorId,
}

impl<P: Blueprint, F> Inspect<P, F> {
    pub(crate) fn new(previous: P, user: F) -> Self {
        Self { previous, user, id: OperatorId::after::<P>("inspect") }
    }
}

impl<P, F> Blueprint for Inspect<P, F>
where
    P: Blueprint,
    F: for<'a, 'b> FnMut(&'b <P::Out as Items>::Of<'a>) + Clone + Send + 'static,
{
    type In = P::In;
    type Out = P::Out;
    type Operator = Inspect<P::Operator, F>;
    const LENGTH: usize = P::LENGTH + 1;

    fn build(self) -> Self::Operator {
        Inspect { previous: self.previous.build(), user: self.user, id: self.id }
    }

    fn describe(&self, names: &mut Vec<&'static str>) {
        self.previous.describe(names);
        names.push("inspect");
    }
}

impl<P, F> Operator for Inspect<P, F>
where
    P: Operator,
    F: for<'a, 'b> FnMut(&'b <P::Out as Items>::Of<'a>) + 'static,
{
    type In = P::In;
    type Out = P::Out;

    #[inline(always)]
    fn push(&mut self, item: <P::In as Items>::Of<'_>, next: &mut impl FnMut(<P::Out as Items>::Of<'_>)) {
        let Self { previous, user, id } = self;
        previous.push(item, &mut |item| {
            blaming(*id, || user(&item));
            next(item);
        });
    }
}
