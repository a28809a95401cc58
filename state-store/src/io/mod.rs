//! Disks: what the store, sources and sinks ask of one, as plain requests and completions.
//!
//! [`Disk`] is for shards: nothing blocks, a request is submitted and its completion taken later. [`Files`] is for the
//! coordinator, tools and start-up: small blocking calls on names and directories. Each has a real and a simulated twin.
//!
//! Invariants
//! * I1. At most [`REQUEST_BYTES_MAX`] bytes in one request; a completion reports how many it moved, which may be fewer.
//! * I2. Completed means accepted by the kernel; durable only after a [`Request::Sync`] that succeeded, on the file,
//!   and, for its name, [`Files::sync_dir`] on its directory.
//! * I3. A failed sync says nothing about later ones: the file is given up, never synced again.

mod buffer;
mod dma;
mod file;
mod real;
pub mod sim;

pub use buffer::Buffer;
pub use dma::DmaDisk;
pub use file::BlockingDisk;
pub use real::RealFiles;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Most bytes that one request may move. Linux cuts larger ones without a word.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Offsets, lengths and buffers of reads and writes are multiples of this.
pub const ALIGNMENT_BYTES: usize = 4096;

/// A file opened through a [`Disk`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileId(pub u32);

/// Names a submitted request until its completion is taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(pub u64);

/// What a shard may ask of a disk.
///
/// Opening what is no regular file (a link, a pipe, a directory, a device) fails with
/// [`InvalidData`](io::ErrorKind::InvalidData), and waits for nobody.
#[derive(Debug)]
pub enum Request {
    /// Opens an existing file for reading.
    OpenRead(PathBuf),
    /// Creates a file (which must not exist, mode 0600) and allocates `bytes` so that writes below need no allocation.
    Create {
        /// Where.
        path: PathBuf,
        /// Bytes to allocate; zero for none.
        bytes: u64,
    },
    /// Opens an existing file for writing over its allocated bytes.
    OpenWrite(PathBuf),
    /// Reads up to `bytes` at `offset`, both aligned; fewer at the end of the file.
    Read {
        /// Opened before.
        file: FileId,
        /// Aligned position.
        offset: u64,
        /// Aligned count.
        bytes: usize,
    },
    /// Writes the whole buffer at an aligned offset.
    Write {
        /// Created or opened for writing before.
        file: FileId,
        /// Aligned position.
        offset: u64,
        /// What to write; comes back with the completion.
        buffer: Buffer,
    },
    /// Makes what was written, and the file's length, durable.
    Sync(FileId),
    /// Closes; with `length`, cuts the file to that many bytes first.
    Close {
        /// Opened before.
        file: FileId,
        /// New length in bytes.
        length: Option<u64>,
    },
}

/// How a request ended well.
#[derive(Debug)]
pub enum Done {
    /// Open or create: the file and its length in bytes.
    Opened(FileId, u64),
    /// The buffer, filled to this many bytes.
    Read(Buffer, usize),
    /// The buffer back, and how many of its bytes were written.
    Written(Buffer, usize),
    /// Synced.
    Synced,
    /// Closed.
    Closed,
}

/// A disk that never blocks its shard.
pub trait Disk {
    /// Returns a zeroed or recycled buffer of exactly `bytes` (a multiple of [`ALIGNMENT_BYTES`]).
    fn buffer(&mut self, bytes: usize) -> Buffer;

    /// Gives a buffer back for reuse.
    fn recycle(&mut self, buffer: Buffer);

    /// Starts a request.
    fn submit(&mut self, request: Request) -> Token;

    /// Returns how the request ended, once; `None` while it is under way.
    ///
    /// An error of a write does not return its buffer: the caller still has what it was made from.
    fn take(&mut self, token: Token) -> Option<io::Result<Done>>;

    /// How many requests were submitted and their completions not yet taken.
    fn in_flight(&self) -> usize;
}

/// What a directory holds under one name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Name within the directory.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// What it is.
    pub kind: EntryKind,
}

/// What stands under a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A link, a pipe, a device: nothing that a file can be read from or written to here.
    Other,
}

/// Small blocking calls on names: for the coordinator, tools and start-up, never for a shard's loop.
///
/// No call follows a symbolic link in the last part of a path. Opening what is no regular file fails with
/// [`InvalidData`](io::ErrorKind::InvalidData), and waits for nobody.
pub trait Files: Send {
    /// Creates a directory and its parents, mode 0700.
    ///
    /// # Errors
    /// As the operating system says.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Lists a directory, sorted by name.
    ///
    /// # Errors
    /// As the operating system says.
    fn list(&self, path: &Path) -> io::Result<Vec<Entry>>;
    /// Reads a whole file.
    ///
    /// # Errors
    /// As the operating system says.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Reads `bytes` at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// As the operating system says.
    fn read_at(&self, path: &Path, offset: u64, bytes: usize) -> io::Result<Vec<u8>>;
    /// Creates or replaces a file (mode 0600), writes it whole and makes its content durable; its name not yet.
    ///
    /// # Errors
    /// As the operating system says.
    fn write_durable(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Renames, replacing what is there.
    ///
    /// # Errors
    /// As the operating system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// As the operating system says.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// As the operating system says.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    ///
    /// # Errors
    /// As the operating system says.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Says whether something stands at `path`.
    fn exists(&self, path: &Path) -> bool;
    /// Becomes the only owner of the file at `path` (created when missing, mode 0600) until the guard is dropped.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) while another owns it, or as the operating system says.
    fn lock(&self, path: &Path) -> io::Result<FileLock>;
}

/// Ownership of a file, from [`Files::lock`]; dropping it gives the file up, as does the end of the process.
pub struct FileLock {
    _owner: Box<dyn Send>,
}

impl fmt::Debug for FileLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileLock")
    }
}
