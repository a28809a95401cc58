//! A source at the head of a stage.

use super::{Head, HeadActivity, Saved, TurnContext};
use crate::Result;
use crate::exchange::LogPiece;
use crate::items::Items;
use crate::source::{Polled, ReadContext, Reader, Split};
use millstream_state::Epoch;

/// See the module.
pub struct SourceHead<R> {
    reader: R,
    /// How many splits the last cut found.
    splits: usize,
}

impl<R> SourceHead<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { reader, splits: 0 }
    }
}

/// The state of a source stage in a snapshot: its splits with their positions.
pub(crate) fn decode_splits(bytes: &[u8]) -> Result<Vec<Split>> {
    serde_json::from_slice(bytes)
        .map_err(|error| crate::Error::corrupt(format_args!("positions of a source cannot be read: {error}")))
}

impl<R: Reader> Head for SourceHead<R> {
    type Out = R::Items;

    fn observe(&mut self) -> Option<Epoch> {
        None
    }

    fn turn(
        &mut self,
        cx: &mut TurnContext<'_>,
        push: &mut impl FnMut(<R::Items as Items>::Of<'_>),
    ) -> Result<HeadActivity> {
        if cx.draining {
            return Ok(HeadActivity::Ended);
        }
        let mut read = ReadContext { disk: &mut *cx.disk, now_ns: cx.now_ns };
        Ok(match self.reader.poll(&mut read, cx.records_max, push)? {
            Polled::Records(records) => {
                cx.metrics.records_in += records as u64;
                HeadActivity::Busy { records }
            }
            Polled::Pending { due_ns } => HeadActivity::Idle { due_ns },
            Polled::Ended => HeadActivity::Ended,
        })
    }

    fn cut(&mut self, _: Epoch) -> Saved {
        let mut splits = Vec::with_capacity(self.splits);
        self.reader.splits(&mut splits);
        self.splits = splits.len();
        Saved::Splits(splits)
    }

    fn log_overtaken(&mut self, _: &mut LogPiece<'_>) -> bool {
        false
    }

    fn is_logged(&self, _: Epoch) -> bool {
        true
    }

    fn forget(&mut self, _: Epoch) {}

    fn place(&self) -> String {
        format!("source at {}", self.reader.place())
    }

    fn remaining(&self) -> Option<u64> {
        self.reader.remaining()
    }
}
