//! A keyed operator at the head of a stage: takes records in batches, so that the operator can prefetch its state.

use super::{Head, HeadActivity, TurnContext};
use crate::Result;
use crate::exchange::{BatchParts, Inbox, parse};
use crate::items::Items;
use crate::operator::KeyedOperator;
use millstream_state::Epoch;

/// See the module.
pub struct KeyedHead<O> {
    inbox: Inbox,
    operator: O,
    parts: BatchParts,
}

impl<O> KeyedHead<O> {
    pub(crate) fn new(inbox: Inbox, operator: O) -> Self {
        Self { inbox, operator, parts: BatchParts::default() }
    }
}

impl<O: KeyedOperator> Head for KeyedHead<O> {
    type Out = O::Out;

    fn observe(&mut self, cx: &mut TurnContext<'_>) -> Option<Epoch> {
        self.inbox.observe(&mut cx.log_piece())
    }

    fn turn(
        &mut self,
        cx: &mut TurnContext<'_>,
        push: &mut impl FnMut(<O::Out as Items>::Of<'_>),
    ) -> Result<HeadActivity> {
        let mut left = cx.records_max;
        while left > 0 {
            let (batch, bytes) = parse(self.inbox.records(&mut cx.log_piece()), left, &mut self.parts);
            if batch.len() == 0 {
                break;
            }
            left -= batch.len();
            self.operator.apply(cx.store.log_mut(), &batch, push)?;
            self.inbox.consume(bytes);
        }
        if left < cx.records_max {
            cx.metrics.records_keyed += (cx.records_max - left) as u64;
            return Ok(HeadActivity::Busy);
        }
        if !self.inbox.ended() {
            return Ok(HeadActivity::Idle { due_ns: None });
        }
        Ok(match self.operator.finish(cx.store.log_mut(), cx.records_max, push)? {
            true => HeadActivity::Ended,
            false => HeadActivity::Busy,
        })
    }

    fn cut(&mut self, epoch: Epoch, cx: &mut TurnContext<'_>) -> Vec<u8> {
        self.inbox.cut(epoch, &mut cx.log_piece());
        self.operator.save()
    }

    fn has_all_barriers(&self, epoch: Epoch) -> bool {
        self.inbox.has_all_barriers(epoch)
    }

    fn forget(&mut self, epoch: Epoch) {
        self.inbox.forget(epoch);
    }

    fn place(&self) -> String {
        "behind an exchange".to_owned()
    }
}
