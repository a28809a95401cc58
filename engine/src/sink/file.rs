//! Files as a sink, exactly once: a file appears under its final name, whole, when its epoch is complete.
//!
//! Each shard writes staged files, hidden in the output directory (so a commit is one rename on one file system):
//!
//! ```text
//! .millstream~<job>~<state>~part~<run>-<shard>-<number>   while being written, and until the epoch is complete
//! part-<state>-<epoch>-<shard>-<number>                   from then on: epoch with 10 digits, shard and number with 4
//! .millstream~lock~part                                   while the job runs: others are kept out
//! ```
//!
//! `part` is the sink's prefix. `state` is the id of the job's state: names never meet those of another job or state, and a
//! directory that holds parts of one is refused by every other.
//!
//! A **part** is one such file: closed at a cut, or when it passes [`FileSink::part_bytes_max`], always at the end of a
//! line. Its bytes stay in memory until it is durable, because after a failed sync nothing already written to it can be
//! trusted; so a part is at most half of what a shard may hold ([`FileSink::unwritten_bytes_max`]), and while one is made
//! durable the next is filled.
//!
//! Invariants
//! * I1. A line is in the parts of exactly one epoch, the one that ends at the first cut after it; if that epoch fails,
//!   its parts are listed by the next one answered, under the names they have.
//! * I2. What is prepared names files that are durable at their exact length.
//! * I3. Bytes not durable never pass the budget by more than what is written between two looks at
//!   [`ready`](super::SinkWriter::ready). They are never dropped: while the disk is full or fails, they wait.
//! * I4. A commit renames once. Done again, it finds the final file and does nothing.
//! * I5. Of each prefix, one job writes to a directory at a time.
//!
//! Files have mode 0600 and a directory made here 0700, as all files of a job; loosen them with the directory's default
//! ACL if others are to read them.

mod committer;
mod part;
#[cfg(test)]
mod tests;
mod writer;

pub use writer::FileWriter;

use super::format::{ByClosure, Format, JsonLines, Line, Tsv};
use super::{Committer, Guarantee, Owner, Sink};
use crate::Result;
use crate::items::Items;
use committer::FileCommitter;
use millstream_state::{Epoch, StateId};
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const UNWRITTEN_BYTES_MAX: usize = 64 << 20;

/// Lines of text in files, each file visible when its epoch is complete, each line exactly once.
///
/// ```
/// use millstream::items::{Own, Pairs};
/// use millstream::sink::FileSink;
/// let counts = FileSink::<Pairs<str, u64>, _>::lines("out", |(word, n), line| write!(line, "{word}\t{n}"));
/// let table = FileSink::<Own<(String, u64)>, _>::tsv("out");
/// let objects = FileSink::<Own<Vec<u64>>, _>::json_lines("out");
/// ```
///
/// The types are inferred where the sink is handed to a stream. The directory is created if it is missing. It takes the parts
/// of one job, from one state directory: what another has written under the same [`prefix`](Self::prefix) is refused, as is a
/// second sink or job that writes there at the same time.
pub struct FileSink<I, F> {
    dir: PathBuf,
    prefix: String,
    format: F,
    limits: Limits,
    items: PhantomData<fn(I)>,
}

#[derive(Clone, Copy)]
struct Limits {
    block_bytes: usize,
    part_bytes_max: usize,
    unwritten_bytes_max: usize,
}

/// Names of a sink's files: shared by the writers and the committer.
#[derive(Clone)]
struct Names {
    dir: Arc<Path>,
    prefix: String,
    job: String,
    state: StateId,
}

impl Names {
    fn staged_prefix(&self) -> String {
        // `~` is in no job's name and in no prefix, so no job's files look like another's.
        format!(".millstream~{}~{}~{}~", self.job, self.state, self.prefix)
    }

    fn lock(&self) -> PathBuf {
        self.dir.join(format!(".millstream~lock~{}", self.prefix))
    }

    fn staged(&self, run: u64, shard: u32, number: u64) -> String {
        format!("{}{run}-{shard}-{number}", self.staged_prefix())
    }

    fn part(&self, epoch: Epoch, shard: u32, number: usize) -> String {
        format!("{}-{}-{:010}-{shard:04}-{number:04}", self.prefix, self.state, epoch.0)
    }

    /// The state and the epoch of a final name under this prefix; `None` for names that are none.
    fn part_of(&self, name: &str) -> Option<(StateId, Epoch)> {
        let mut rest = name.strip_prefix(&self.prefix)?.strip_prefix('-')?.split('-');
        let state = StateId::parse(rest.next()?)?;
        let mut numbers = rest.map(|digits| {
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>().ok()).flatten()
        });
        let (epoch, _, _) = (numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some((state, Epoch(epoch)))
    }
}

impl<I: Items, F> FileSink<I, ByClosure<F>>
where
    F: for<'a> FnMut(I::Of<'a>, &mut Line) -> io::Result<()> + Clone + Send + Sync + 'static,
{
    /// Files in `dir` with one line per result, written by `format`; the sink adds the newline.
    pub fn lines(dir: impl Into<PathBuf>, format: F) -> Self {
        Self::new(dir.into(), ByClosure(format))
    }
}

impl<I: Items> FileSink<I, Tsv>
where
    Tsv: Format<I>,
{
    /// Files in `dir` with one line per result, a tuple's fields between tabs; see [`Tsv`] for what is escaped.
    pub fn tsv(dir: impl Into<PathBuf>) -> Self {
        Self::new(dir.into(), Tsv)
    }
}

impl<I: Items> FileSink<I, JsonLines>
where
    JsonLines: Format<I>,
{
    /// Files in `dir` with one JSON value per line.
    pub fn json_lines(dir: impl Into<PathBuf>) -> Self {
        Self::new(dir.into(), JsonLines)
    }
}

impl<I, F> FileSink<I, F> {
    fn new(dir: PathBuf, format: F) -> Self {
        let limits = Limits {
            block_bytes: writer::BLOCK_BYTES,
            part_bytes_max: UNWRITTEN_BYTES_MAX / 2,
            unwritten_bytes_max: UNWRITTEN_BYTES_MAX,
        };
        Self { dir, prefix: "part".into(), format, limits, items: PhantomData }
    }

    /// What file names begin with, instead of `part`.
    ///
    /// # Panics
    /// When it is empty, begins with a dot, or has anything but letters, digits, `.`, `_` and `-`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let sound = !self.prefix.is_empty() && !self.prefix.starts_with('.') && self.prefix.bytes().all(is_name);
        assert!(sound, "\"{}\" is no beginning of a file name", self.prefix);
        self
    }

    /// A file that passes this many bytes is closed and the epoch goes on in another (default 32 MiB). No more than half of
    /// what a shard may hold.
    #[must_use]
    pub fn part_bytes_max(mut self, bytes: usize) -> Self {
        self.limits.part_bytes_max = bytes.clamp(1, self.limits.unwritten_bytes_max / 2);
        self
    }

    /// How many bytes not yet durable a shard holds before it pushes back (default 64 MiB).
    #[must_use]
    pub fn unwritten_bytes_max(mut self, bytes: usize) -> Self {
        self.limits.unwritten_bytes_max = bytes.max(2);
        let part_bytes_max = self.limits.part_bytes_max;
        self.part_bytes_max(part_bytes_max)
    }

    #[cfg(test)]
    fn block_bytes(mut self, bytes: usize) -> Self {
        self.limits.block_bytes = bytes;
        self
    }

    fn names(&self, owner: Owner<'_>) -> Names {
        let Owner { job, state } = owner;
        Names { dir: self.dir.as_path().into(), prefix: self.prefix.clone(), job: job.into(), state }
    }
}

impl<I: Items, F: Format<I>> Sink<I> for FileSink<I, F> {
    type Writer = FileWriter<I, F>;

    fn describe(&self) -> String {
        format!("files {}, exactly once", self.dir.join(format!("{}-*", self.prefix)).display())
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::ExactlyOnce
    }

    fn open(&self, owner: Owner<'_>, shard: u32, run: u64) -> Result<Self::Writer> {
        Ok(FileWriter::new(self.names(owner), self.format.clone(), self.limits, shard, run))
    }

    fn committer(&self, owner: Owner<'_>) -> Result<Option<Box<dyn Committer>>> {
        Ok(Some(Box::new(FileCommitter::new(self.names(owner)))))
    }
}
