//! Text files as a source: a glob, its files in sorted order, large ones cut into splits.
//!
//! Files are read as they were when the job first saw them: each split knows its file's length, and a file whose length
//! has changed, or that is gone before it was read, is an error and never a silent gap or a second reading. Names are
//! made absolute, so that a job started again from another directory finds its files.
//!
//! Invariants
//! * I1. A split owns the lines that **start** in its range of bytes, the last one to its end; so every line belongs to
//!   exactly one split, wherever the cuts fall.
//! * I2. A position is the byte at which the next line starts, or at or behind which it does (at the start of a split).
//!
//! Cost: a line is a slice of the block it was read in; one that straddles two blocks is copied once. Blocks of 512 KiB,
//! a few of them read ahead, across files.

mod ahead;
mod listing;
mod reader;
mod split;
#[cfg(test)]
mod tests;
mod text;

pub use reader::FileReader;
pub use text::LineItems;

use super::{Source, Split};
use crate::items::{ByteLines, Lines};
use crate::{Error, Result};
use listing::Listing;
use split::FileSplit;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Default size of a split.
const SPLIT_BYTES: u64 = 64 << 20;

/// Default limit of a line.
const LINE_BYTES_MAX: usize = 16 << 20;

/// What becomes of a line that is not UTF-8.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum InvalidText {
    /// The job stops with an error that names the file and the byte.
    #[default]
    Fail,
    /// Bad sequences become U+FFFD; the line is counted.
    Replace,
    /// The line is left out and counted.
    Skip,
}

/// Lines of text files. Items are [`Lines`] or [`ByteLines`].
///
/// ```
/// use millstream::source::{FileSource, InvalidText};
/// let logs = FileSource::lines("/var/log/app/*.log").invalid_text(InvalidText::Replace);
/// let raw = FileSource::byte_lines("dump/part-*").split_bytes(16 << 20);
/// ```
///
/// A line ends at `\n` or `\r\n`, neither of which is part of it; the last line of a file needs no end.
pub struct FileSource<L = Lines> {
    listing: Listing,
    split_bytes: u64,
    settings: Settings,
    items: PhantomData<fn() -> L>,
}

/// What a reader needs to know beside its splits.
#[derive(Clone)]
struct Settings {
    block_bytes: usize,
    line_bytes_max: usize,
    invalid_text: InvalidText,
    invalid_lines: Arc<AtomicU64>,
}

impl FileSource<Lines> {
    /// The lines of all files that match `glob`, as text.
    pub fn lines(glob: impl Into<String>) -> Self {
        Self::new(Listing::Glob(glob.into()))
    }

    /// What to do with lines that are not UTF-8.
    #[must_use]
    pub fn invalid_text(mut self, policy: InvalidText) -> Self {
        self.settings.invalid_text = policy;
        self
    }

    /// Counts the lines replaced or skipped so far, by all readers in this process; ask before the source goes into a job.
    pub fn invalid_lines(&self) -> InvalidLines {
        InvalidLines(Arc::clone(&self.settings.invalid_lines))
    }
}

impl FileSource<ByteLines> {
    /// The lines of all files that match `glob`, whatever their bytes.
    pub fn byte_lines(glob: impl Into<String>) -> Self {
        Self::new(Listing::Glob(glob.into()))
    }
}

impl<L: LineItems> FileSource<L> {
    fn new(listing: Listing) -> Self {
        Self {
            listing,
            split_bytes: SPLIT_BYTES,
            settings: Settings {
                block_bytes: reader::BLOCK_BYTES,
                line_bytes_max: LINE_BYTES_MAX,
                invalid_text: InvalidText::Fail,
                invalid_lines: Arc::default(),
            },
            items: PhantomData,
        }
    }

    /// The lines of files given by name and length, taken as they stand: for files that only the engine's disk knows.
    pub fn listed(files: impl IntoIterator<Item = (PathBuf, u64)>) -> Self {
        Self::new(Listing::Files(files.into_iter().collect()))
    }

    /// Cuts files into splits of this many bytes (default 64 MiB): the unit that is dealt to shards.
    ///
    /// # Panics
    /// When `bytes` is zero.
    #[must_use]
    pub fn split_bytes(mut self, bytes: u64) -> Self {
        assert!(bytes > 0, "splits of no bytes");
        self.split_bytes = bytes;
        self
    }

    /// A longer line is an error (default 16 MiB): it would have to be held in memory whole.
    #[must_use]
    pub fn line_bytes_max(mut self, bytes: usize) -> Self {
        self.settings.line_bytes_max = bytes;
        self
    }

    #[cfg(test)]
    fn block_bytes(mut self, bytes: usize) -> Self {
        self.settings.block_bytes = bytes;
        self
    }

    fn cut(&self, path: &Path, length: u64, out: &mut Vec<Split>) {
        let path: Arc<Path> = path.into();
        let mut start = 0;
        while start < length {
            let end = length.min(start.saturating_add(self.split_bytes));
            let split = FileSplit { path: Arc::clone(&path), start, end, length };
            out.push(Split { id: split.to_id().into(), position: start.into(), ended: false });
            start = end;
        }
    }
}

impl<L: LineItems> Source for FileSource<L> {
    type Items = L;
    type Reader = FileReader<L>;

    fn describe(&self) -> String {
        format!("{} of {}, replayable", L::NAME, self.listing)
    }

    fn splits(&self, _: u32) -> Result<Vec<Split>> {
        let mut splits = Vec::new();
        for (path, length) in self.listing.files()? {
            self.cut(&path, length, &mut splits);
        }
        Ok(splits)
    }

    fn new_splits(&self, _: u32, known: &[Split]) -> Result<Vec<Split>> {
        let mut lengths = BTreeMap::new();
        let mut unread = BTreeMap::new();
        for split in known {
            let file = FileSplit::parse(&split.id)?;
            if !split.ended {
                unread.insert(Arc::clone(&file.path), ());
            }
            lengths.insert(file.path, file.length);
        }
        let mut splits = Vec::new();
        for (path, length) in self.listing.files_or_none()? {
            unread.remove(path.as_path());
            match lengths.get(path.as_path()) {
                None => self.cut(&path, length, &mut splits),
                Some(&then) if then == length => {}
                Some(&then) => {
                    return Err(Error::invalid(format_args!(
                        "{}: the file has {length} bytes, it had {then} when the job began to read it; files must not \
                         change under a job: put the old one back, and new input into new files",
                        path.display()
                    )));
                }
            }
        }
        if let Some(path) = unread.into_keys().next() {
            return Err(Error::invalid(format_args!(
                "{}: the file is not read to its end by the snapshot, and is gone or no longer among {}",
                path.display(),
                self.listing
            )));
        }
        Ok(splits)
    }

    fn open(&self, _: u32, _: u32, splits: Vec<Split>) -> Result<FileReader<L>> {
        FileReader::new(self.settings.clone(), splits)
    }
}

/// How many lines were not UTF-8 and were replaced or skipped.
#[derive(Clone, Debug)]
pub struct InvalidLines(Arc<AtomicU64>);

impl InvalidLines {
    /// The count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
