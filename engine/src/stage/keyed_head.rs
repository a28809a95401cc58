//! A keyed operator at the head of a stage: takes records in batches, so that the operator can prefetch its state.

use super::{Head, HeadActivity, Saved, TurnContext};
use crate::Result;
use crate::exchange::{BatchParts, Inbox, LogPiece, parse};
use crate::items::Items;
use crate::operator::KeyedOperator;
use millstream_state::Epoch;

/// How many times as many records as a source hands out in a call are taken in one: a backlog becomes shorter, and so what
/// a barrier overtakes, and what has left the cache meanwhile.
const TAKE_FACTOR: usize = 4;
/// No further batch is begun after this long.
const TAKE_NS: u64 = 50_000;

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

    fn observe(&mut self) -> Option<Epoch> {
        self.inbox.observe()
    }

    fn turn(
        &mut self,
        cx: &mut TurnContext<'_>,
        push: &mut impl FnMut(<O::Out as Items>::Of<'_>),
    ) -> Result<HeadActivity> {
        let records_max = cx.records_max * TAKE_FACTOR;
        let (start_ns, mut left) = (cx.clock.now_ns(), records_max);
        while left > 0 {
            let (batch, bytes) = parse(self.inbox.records(&mut cx.log_piece()), left, &mut self.parts);
            if batch.len() == 0 {
                break;
            }
            left -= batch.len();
            self.operator.apply(cx.store.log_mut(), &batch, push)?;
            self.inbox.consume(bytes);
            if cx.clock.now_ns() - start_ns > TAKE_NS {
                break;
            }
        }
        if left < records_max {
            cx.metrics.records_keyed += (records_max - left) as u64;
            return Ok(HeadActivity::Busy { records: (records_max - left).div_ceil(TAKE_FACTOR) });
        }
        if !self.inbox.ended() {
            return Ok(HeadActivity::Idle { due_ns: None });
        }
        Ok(match self.operator.finish(cx.store.log_mut(), cx.records_max, push)? {
            true => HeadActivity::Ended,
            false => HeadActivity::Busy { records: cx.records_max },
        })
    }

    fn cut(&mut self, epoch: Epoch) -> Saved {
        self.inbox.cut(epoch);
        Saved::Progress(self.operator.save())
    }

    fn log_overtaken(&mut self, log: &mut LogPiece<'_>) -> bool {
        self.inbox.log_overtaken(log)
    }

    fn is_logged(&self, epoch: Epoch) -> bool {
        self.inbox.is_logged(epoch)
    }

    fn forget(&mut self, epoch: Epoch) {
        self.inbox.forget(epoch);
    }

    fn place(&self) -> String {
        "behind an exchange".to_owned()
    }
}
