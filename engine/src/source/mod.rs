//! Sources: where records come from, in splits that each have a position.
//!
//! Invariants
//! * I1. A position names the next record to read: seeking to it replays exactly the records that were not before it.
//! * I2. A reader hands out whole records only, and its positions change only inside [`Reader::poll`].
//! * I3. A reader never blocks and never allocates per record: it asks the [`Disk`] and takes completions.

mod channel;
mod file;
mod generator;
mod iter;
mod position;
mod rate;
#[cfg(test)]
mod tests;

pub use channel::{ChannelReader, ChannelSource, SendError, Sender, channel};
pub use file::{FileReader, FileSource, InvalidLines, InvalidText, LineItems};
pub use generator::{Generator, GeneratorReader, Random};
pub use iter::{IterReader, IterSource, iter};
pub use position::Position;
pub use rate::{Rated, RatedReader};

use crate::items::Items;
use crate::{Error, Result};
use millstream_state::io::Disk;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::sync::Arc;

/// One part of a source's input, read in order by one shard at a time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Split {
    /// Identity within the source, the same in every run: a path and a range, the number of a generator's slice.
    pub id: Arc<str>,
    /// The next record to read, in the source's own terms. Kept in every manifest.
    pub position: Position,
    /// Whether the split was read to its end.
    pub ended: bool,
}

/// What a call of [`Reader::poll`] achieved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polled {
    /// This many records were handed out; there may be more at once.
    Records(usize),
    /// Nothing now: a read is under way, or the next record is not due before this time (nanoseconds of the clock).
    Pending {
        /// When to ask again at the latest, if the source knows.
        due_ns: Option<u64>,
    },
    /// Every split of this reader was read to its end.
    Ended,
}

/// What a reader may use during a turn.
pub struct ReadContext<'a> {
    /// The shard's disk.
    pub disk: &'a mut dyn Disk,
    /// The shard's clock in nanoseconds, as of the start of the turn.
    pub now_ns: u64,
}

/// A source as it stands in a job: a description that can list its splits and make readers.
pub trait Source: Send + Sync + 'static {
    /// What it produces.
    type Items: Items;
    /// What reads it on one shard. Made on the shard, never moved.
    type Reader: Reader<Items = Self::Items>;

    /// One line for `explain`: kind, place, whether it can be replayed.
    fn describe(&self) -> String;

    /// Whether a restore can seek it. Output of a job whose source cannot is at-least-once at best, and `explain` says so.
    fn replayable(&self) -> bool {
        true
    }

    /// The same source held to this many records per second over all shards, open loop: what it fell behind it makes up.
    ///
    /// # Panics
    /// When the rate is not a positive number.
    fn rate(self, records_per_second: f64) -> Rated<Self>
    where
        Self: Sized,
    {
        Rated::new(self, records_per_second)
    }

    /// Lists the splits at their starts, in an order that every run repeats. Called when a job starts with no snapshot.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) when the input is missing or cannot be read: names it and says why.
    fn splits(&self, shards: u32) -> Result<Vec<Split>>;

    /// After a restore: checks the input against `known`, all splits of the snapshot, and lists those that are new since.
    ///
    /// # Errors
    /// As [`splits`](Self::splits), and when input that `known` still has to read is gone or not what it was.
    fn new_splits(&self, shards: u32, known: &[Split]) -> Result<Vec<Split>> {
        let known: HashSet<&str> = known.iter().map(|split| &*split.id).collect();
        let mut splits = self.splits(shards)?;
        splits.retain(|split| !known.contains(&*split.id));
        Ok(splits)
    }

    /// Makes the reader of one shard, with the splits dealt to it, each at its position. `readers` counts the shards that
    /// were dealt a split which has not ended: they share what holds for the source as a whole, such as a rate.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) when a position is no position of this source.
    fn open(&self, shard: u32, readers: u32, splits: Vec<Split>) -> Result<Self::Reader>;
}

/// The part of a source that lives on one shard.
pub trait Reader: 'static {
    /// What it produces.
    type Items: Items;

    /// Hands at most `max` records to `push`.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when input cannot be read any more; the job stops at its last
    /// complete epoch.
    fn poll(
        &mut self,
        cx: &mut ReadContext<'_>,
        max: usize,
        push: &mut impl FnMut(<Self::Items as Items>::Of<'_>),
    ) -> Result<Polled>;

    /// Appends the splits of this reader with their positions as they are now, ended ones included.
    fn splits(&self, out: &mut Vec<Split>);

    /// Where the record handed out last came from, for messages: `logs/a.txt at byte 1204`.
    fn place(&self) -> String;

    /// Bytes or records left to read, if known: for progress.
    fn remaining(&self) -> Option<u64> {
        None
    }
}

/// Reads a position that is a little-endian `u64`.
pub(crate) fn position_u64(split: &Split) -> Result<u64> {
    split.position.to_u64().ok_or_else(|| {
        Error::invalid(format_args!(
            "split {}: its position has {} bytes, this source's have 8; the snapshot is from another source",
            split.id,
            split.position.as_bytes().len()
        ))
    })
}
