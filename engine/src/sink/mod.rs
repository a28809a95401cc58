//! Sinks: where results go, epoch by epoch.
//!
//! A transactional sink writes where nobody looks, **prepares** at each cut (what was written since the cut before is
//! closed and made durable), and **commits** once the epoch is complete, from the coordinator's thread. What was prepared
//! stands in every manifest until its commit is confirmed, so a commit is repeated after a crash and must be idempotent.
//!
//! Invariants
//! * I1. A record written before cut `n` and after the cut before is in the prepared output of `n`, in no other.
//! * I2. Output of an epoch that failed stays prepared and is listed by the next; it is dropped only by a restore below it.
//! * I3. `write` never blocks; when a writer's bytes not yet on disk pass its budget, `ready` is false and its stage waits.

mod callback;
mod collect;
mod discard;
mod file;
mod format;
mod ledger;
mod stdout;

pub use callback::{Callback, CallbackWriter, callback};
pub use collect::{Collect, CollectWriter, Collected, collect};
pub use discard::{Discard, DiscardCount, DiscardWriter};
pub use file::{FileSink, FileWriter};
pub use format::{ByClosure, Fields, Format, JsonLines, Line, Tsv};
pub use stdout::{Stdout, StdoutWriter};

use crate::Result;
use crate::items::Items;
use millstream_state::io::{Disk, Files};
use millstream_state::{Epoch, StateId};

/// What a sink promises about records that a restore replays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guarantee {
    /// Every result is visible exactly once.
    ExactlyOnce,
    /// Results of an epoch that is replayed are visible again.
    AtLeastOnce,
    /// Results are counted or handed to the program's own code and leave nothing behind.
    Volatile,
}

/// Whose output it is. Two states of one job are two owners; a job without state directory is a new one at every start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner<'a> {
    /// Name of the job.
    pub job: &'a str,
    /// The state that the output goes with.
    pub state: StateId,
}

/// Whose output tests write.
#[cfg(test)]
const OWNER: Owner<'static> = Owner { job: "job", state: StateId(10) };

/// A sink as it stands in a job.
pub trait Sink<I: Items>: Send + Sync + 'static {
    /// What writes it on one shard. Made on the shard, never moved.
    type Writer: SinkWriter<I>;

    /// One line for `explain`: kind and place.
    fn describe(&self) -> String;

    /// What `explain` says about replayed records.
    fn guarantee(&self) -> Guarantee;

    /// Makes the writer of one shard. `run` grows with every start of the job and is never used twice on its state
    /// directory: names built from the owner, it, the shard and the epoch are new.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) when the place cannot be written: names it and says why.
    fn open(&self, owner: Owner<'_>, shard: u32, run: u64) -> Result<Self::Writer>;

    /// Makes what commits prepared output, for the coordinator; `None` when there is nothing to commit.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) when the place cannot be written: names it and says why.
    fn committer(&self, owner: Owner<'_>) -> Result<Option<Box<dyn Committer>>>;
}

/// The part of a sink that lives on one shard.
pub trait SinkWriter<I: Items>: 'static {
    /// Takes one result into a buffer.
    fn write(&mut self, item: I::Of<'_>);

    /// Whether the stage may go on; `false` pushes back.
    fn ready(&self) -> bool {
        true
    }

    /// Takes steps of input and output that do not block: submits full blocks, reaps completions. A failed write is kept
    /// and tried again (I2); it is no error here.
    ///
    /// # Errors
    /// Only what can never be mended by waiting: the job stops at its last complete epoch.
    fn turn(&mut self, disk: &mut dyn Disk, now_ns: u64) -> Result<SinkActivity>;

    /// The cut: what was written up to here and is in no earlier prepared output belongs to `epoch`.
    fn prepare(&mut self, epoch: Epoch);

    /// Returns how preparing `epoch` ended, once: what to commit (empty when there is nothing), durable now but for names
    /// that [`Committer::secure`] makes so; or why it could not be made so. `None` while it is under way.
    ///
    /// Epochs are answered in order. After an error, the output joins the next epoch that is answered (I2). After a success
    /// it is the caller's: every manifest lists it until it is committed, whatever becomes of its epoch, unless the epoch is
    /// given back by [`abandon`](Self::abandon) before a later one is answered.
    fn take_prepared(&mut self, epoch: Epoch) -> Option<Result<Vec<Vec<u8>>>>;

    /// Gives back `epoch`, which failed elsewhere, and every earlier one not known complete: what they had prepared (or
    /// could not) joins the next epoch answered.
    fn abandon(&mut self, epoch: Epoch);
}

/// Whether a sink has something under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SinkActivity {
    /// Nothing to write or wait for.
    Idle,
    /// Requests are under way; ask again soon.
    Waiting,
    /// Work was done.
    Busy,
}

/// Makes prepared output visible; lives with the coordinator, blocks on small calls.
///
/// The order of calls: `open`; `commit` of everything the restored manifest lists; `clean`; then writers start. For each
/// epoch `secure`, the manifest, `commit`. After the last commit of a run, when no writer is left, `finish`.
pub trait Committer: Send {
    /// Before anything else: takes the place for this job, checks that it can be written, and makes what writers need there. `restored` is the
    /// epoch that the job goes on from, [`Epoch::ZERO`] when it starts with nothing.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) when the place cannot be written, or holds output of another owner or above
    /// `restored`; [`Locked`](crate::ErrorKind::Locked) while another job writes there.
    fn open(&mut self, files: &dyn Files, restored: Epoch) -> Result<()> {
        let _ = (files, restored);
        Ok(())
    }

    /// Makes the names durable that `prepared` speaks of: all prepared output that a manifest is to list for the first time.
    /// Called before that manifest is written, because a shard's [`Disk`] makes contents durable, not directories.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when that failed: the epoch fails.
    fn secure(&mut self, files: &dyn Files, prepared: &[Vec<u8>]) -> Result<()> {
        let _ = (files, prepared);
        Ok(())
    }

    /// Makes one prepared output visible. Doing it again does nothing.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when it can be tried again later (no space, no permission now).
    fn commit(&mut self, files: &dyn Files, prepared: &[u8]) -> Result<()>;

    /// On restore, after everything in the manifest was committed: removes what earlier runs left behind that no manifest
    /// lists; on a start without snapshot, the same.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the place cannot be cleaned.
    fn clean(&mut self, files: &dyn Files) -> Result<()>;

    /// After the last commit of a run that ended well: leaves nothing temporary behind.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the place cannot be cleaned.
    fn finish(&mut self, files: &dyn Files) -> Result<()> {
        self.clean(files)
    }
}
