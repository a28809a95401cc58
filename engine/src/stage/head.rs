//! What feeds a stage.

use super::{Saved, TurnContext};
use crate::Result;
use crate::exchange::LogPiece;
use crate::items::Items;
use millstream_state::Epoch;

/// What one call of a head achieved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeadActivity {
    /// Took input; there may be more.
    Busy {
        /// How much of the records it was allowed it made use of.
        records: usize,
    },
    /// Nothing came in; nothing will before this time, if it is known.
    Idle {
        /// Nanoseconds of the clock.
        due_ns: Option<u64>,
    },
    /// All input was taken, and what the end itself emits was emitted.
    Ended,
}

/// See the module.
pub(crate) trait Head: 'static {
    /// What it hands on.
    type Out: Items;

    /// Looks at what has come in; returns the newest barrier seen.
    fn observe(&mut self) -> Option<Epoch>;

    /// Takes up to a batch of input.
    fn turn(
        &mut self,
        cx: &mut TurnContext<'_>,
        push: &mut impl FnMut(<Self::Out as Items>::Of<'_>),
    ) -> Result<HeadActivity>;

    /// The shard's cut: returns the head's own state.
    fn cut(&mut self, epoch: Epoch) -> Saved;

    /// Hands a step of what cuts have overtaken in front of the stage to `log`; says whether there was any.
    fn log_overtaken(&mut self, log: &mut LogPiece<'_>) -> bool;

    /// Whether everything in front of the barrier of a cut epoch is in its channel log.
    fn is_logged(&self, epoch: Epoch) -> bool;

    /// Gives up an epoch and all before it.
    fn forget(&mut self, epoch: Epoch);

    /// Where the record at hand came from, for messages.
    fn place(&self) -> String;

    /// Bytes or records of input left, if known.
    fn remaining(&self) -> Option<u64> {
        None
    }
}
