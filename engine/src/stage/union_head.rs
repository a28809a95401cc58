//! Several streams that go on as one.

use super::{Head, HeadActivity, Saved, TurnContext};
use crate::Result;
use crate::exchange::{BatchParts, Inbox, LogPiece, RecordFreight, parse};
use crate::items::Own;
use millstream_state::{Epoch, Record};
use std::marker::PhantomData;

/// See the module.
pub struct UnionHead<R> {
    inbox: Inbox,
    parts: BatchParts,
    items: PhantomData<fn() -> R>,
}

impl<R> UnionHead<R> {
    pub(crate) fn new(inbox: Inbox) -> Self {
        Self { inbox, parts: BatchParts::default(), items: PhantomData }
    }
}

impl<R: Record> Head for UnionHead<R> {
    type Out = Own<R>;

    fn observe(&mut self) -> Option<Epoch> {
        self.inbox.observe()
    }

    fn turn(&mut self, cx: &mut TurnContext<'_>, push: &mut impl FnMut(R)) -> Result<HeadActivity> {
        let mut left = cx.records_max;
        while left > 0 {
            let (batch, bytes) =
                parse::<RecordFreight<R>>(self.inbox.records(&mut cx.log_piece()), left, &mut self.parts);
            if batch.len() == 0 {
                break;
            }
            left -= batch.len();
            for index in 0..batch.len() {
                push(R::decode(batch.payload(index)));
            }
            self.inbox.consume(bytes);
        }
        Ok(match left < cx.records_max {
            true => HeadActivity::Busy { records: cx.records_max - left },
            false if self.inbox.ended() => HeadActivity::Ended,
            false => HeadActivity::Idle { due_ns: None },
        })
    }

    fn cut(&mut self, epoch: Epoch) -> Saved {
        self.inbox.cut(epoch);
        Saved::Progress(Vec::new())
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
        "behind a union".to_owned()
    }
}
