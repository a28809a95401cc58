//! One staged file on its way to being durable at its exact length.
//!
//! ```text
//! Absent -> Creating -> Writing -> Cutting -> Reopening -> Syncing -> Durable
//! ```
//!
//! Blocks are whole pages, so the file is longer than its lines until it is cut; the cut is a close, so the file is opened
//! again to be synced: one sync makes bytes and length durable. What fails is tried again after a pause: a create, a write
//! or an open in the same file; after a failed sync, everything in a new one, and the old one is emptied.
//!
//! Invariants
//! * I1. Blocks are kept until the part is `Durable`.
//! * I2. Blocks of a sealed part take no more memory than they hold, but for the room behind a full one.
//! * I3. A sync covers every write and the cut: both have ended before it is submitted.

use super::committer::Prepared;
use millstream_state::io::{ALIGNMENT_BYTES, Disk, Done, FileId, Request, Token};
use std::io;
use std::path::PathBuf;

/// Writes of one part under way at once.
const WRITES_MAX: usize = 4;

const PAUSE_NS_MIN: u64 = 5_000_000;
const PAUSE_NS_MAX: u64 = 1_000_000_000;

/// Lines, and how far they are written.
struct Block {
    bytes: Vec<u8>,
    /// Whole pages of it that are written.
    written: usize,
    is_under_way: bool,
}

impl Block {
    fn padded(&self) -> usize {
        self.bytes.len().next_multiple_of(ALIGNMENT_BYTES)
    }
}

#[derive(Debug)]
enum Step {
    Absent,
    Creating(Token),
    Writing(FileId),
    Cutting(Token),
    /// Cut; to be opened again.
    Cut,
    Reopening(Token),
    Syncing(FileId, Token),
    /// Emptying a file whose sync failed.
    Emptying(Token),
    Durable,
}

struct Write {
    token: Token,
    block: usize,
    from: usize,
}

/// See the module.
pub(super) struct Part {
    step: Step,
    blocks: Vec<Block>,
    block_bytes: usize,
    writes: Vec<Write>,
    length: u64,
    is_sealed: bool,
    /// The staged file, once it was tried to create.
    staged: Option<Staged>,
    /// Its final name, given with its first epoch.
    pub(super) name: Option<String>,
    retry_at_ns: u64,
    pause_ns: u64,
}

struct Staged {
    name: String,
    path: PathBuf,
    /// Whether to try to open what a create that failed may have left.
    try_open: bool,
}

/// What a part may use in a turn.
pub(super) struct PartTurn<'a> {
    pub(super) disk: &'a mut dyn Disk,
    pub(super) now_ns: u64,
    /// Writes that may still be submitted in this turn.
    pub(super) writes_left: usize,
    /// Bytes to allocate for a file whose length is not known yet.
    pub(super) allocate_bytes: u64,
    /// Makes the name and path of a new staged file.
    pub(super) new_staged: &'a mut dyn FnMut() -> (String, PathBuf),
    /// Files being closed; nobody waits for the outcome.
    pub(super) closing: &'a mut Vec<Token>,
    /// Whether anything was submitted or ended.
    pub(super) moved: bool,
}

impl Part {
    pub(super) fn new(block_bytes: usize) -> Self {
        Self {
            step: Step::Absent,
            blocks: Vec::new(),
            block_bytes,
            writes: Vec::new(),
            length: 0,
            is_sealed: false,
            staged: None,
            name: None,
            retry_at_ns: 0,
            pause_ns: PAUSE_NS_MIN,
        }
    }

    /// Adds a full block.
    pub(super) fn push(&mut self, bytes: Vec<u8>) {
        debug_assert!(!self.is_sealed && bytes.len() == self.block_bytes);
        self.add(bytes);
    }

    /// Adds the last block, which may be short or missing, and takes no more. The part may wait for a disk for long: what
    /// a short block does not hold goes back to the allocator, in place.
    pub(super) fn seal(&mut self, last: Option<Vec<u8>>) {
        debug_assert!(!self.is_sealed);
        if let Some(mut bytes) = last {
            bytes.shrink_to_fit();
            self.add(bytes);
        }
        self.is_sealed = true;
    }

    fn add(&mut self, bytes: Vec<u8>) {
        self.length += bytes.len() as u64;
        self.blocks.push(Block { bytes, written: 0, is_under_way: false });
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Memory of the blocks.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.blocks.iter().map(|block| block.bytes.capacity()).sum()
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    pub(super) fn is_durable(&self) -> bool {
        matches!(self.step, Step::Durable)
    }

    /// Whether it waits for the disk or for the end of a pause, rather than for more lines.
    pub(super) fn is_waiting(&self) -> bool {
        match self.step {
            Step::Durable => false,
            Step::Absent => self.is_sealed || !self.blocks.is_empty(),
            Step::Writing(_) => self.is_sealed || !self.writes.is_empty() || self.next_block().is_some(),
            _ => true,
        }
    }

    /// How a manifest lists it.
    pub(super) fn prepared(&self) -> Prepared {
        debug_assert!(self.is_durable());
        let staged = self.staged.as_ref().map(|staged| staged.name.clone());
        Prepared {
            staged: staged.expect("a durable part is in a file"),
            part: self.name.clone().expect("a part is named when its epoch is cut"),
            bytes: self.length,
        }
    }

    fn next_block(&self) -> Option<usize> {
        self.blocks.iter().position(|block| !block.is_under_way && block.written < block.padded())
    }

    fn pause(&mut self, now_ns: u64) {
        self.retry_at_ns = now_ns.saturating_add(self.pause_ns);
        self.pause_ns = (self.pause_ns * 2).min(PAUSE_NS_MAX);
    }

    /// Goes on as far as it can without waiting. Full blocks given up go to `spare`. An error is one try that failed.
    pub(super) fn turn(&mut self, turn: &mut PartTurn<'_>, spare: &mut Vec<Vec<u8>>) -> io::Result<()> {
        let result = self.advance(turn, spare);
        if result.is_err() {
            turn.moved = true;
            self.pause(turn.now_ns);
        }
        result
    }

    fn advance(&mut self, turn: &mut PartTurn<'_>, spare: &mut Vec<Vec<u8>>) -> io::Result<()> {
        loop {
            let paused = turn.now_ns < self.retry_at_ns;
            match self.step {
                Step::Absent => {
                    if paused || (self.blocks.is_empty() && !self.is_sealed) {
                        return Ok(());
                    }
                    self.create(turn);
                }
                Step::Creating(token) => match turn.disk.take(token) {
                    None => return Ok(()),
                    Some(Ok(Done::Opened(file, _))) => self.step = Step::Writing(file),
                    Some(ended) => {
                        self.step = Step::Absent;
                        let error = failed(ended);
                        let staged = self.staged.as_mut().expect("it was to be created");
                        staged.try_open = !staged.try_open;
                        if !staged.try_open && error.kind() == io::ErrorKind::NotFound {
                            continue;
                        }
                        return Err(error);
                    }
                },
                Step::Writing(file) => {
                    self.reap(turn)?;
                    if !paused {
                        self.submit(turn, file);
                    }
                    let is_written = self.writes.is_empty() && self.next_block().is_none();
                    if !(self.is_sealed && is_written) {
                        return Ok(());
                    }
                    let close = Request::Close { file, length: Some(self.length) };
                    self.step = Step::Cutting(turn.disk.submit(close));
                }
                Step::Cutting(token) => match turn.disk.take(token) {
                    None => return Ok(()),
                    // The length found when it is opened again tells whether a close that failed did cut.
                    Some(_) => self.step = Step::Cut,
                },
                Step::Cut => {
                    if paused {
                        return Ok(());
                    }
                    let path = self.staged.as_ref().expect("it was created").path.clone();
                    self.step = Step::Reopening(turn.disk.submit(Request::OpenWrite(path)));
                }
                Step::Reopening(token) => match turn.disk.take(token) {
                    None => return Ok(()),
                    Some(Ok(Done::Opened(file, length))) if length == self.length => {
                        self.step = Step::Syncing(file, turn.disk.submit(Request::Sync(file)));
                    }
                    Some(Ok(Done::Opened(file, _))) => {
                        let close = Request::Close { file, length: Some(self.length) };
                        self.step = Step::Cutting(turn.disk.submit(close));
                        self.pause(turn.now_ns);
                    }
                    Some(ended) => {
                        self.step = Step::Cut;
                        return Err(failed(ended));
                    }
                },
                Step::Syncing(file, token) => match turn.disk.take(token) {
                    None => return Ok(()),
                    Some(Ok(Done::Synced)) => {
                        turn.closing.push(turn.disk.submit(Request::Close { file, length: None }));
                        turn.moved = true;
                        self.step = Step::Durable;
                        let whole = |block: Block| Some(block.bytes).filter(|it| it.capacity() >= self.block_bytes);
                        spare.extend(self.blocks.drain(..).filter_map(whole));
                        return Ok(());
                    }
                    Some(ended) => {
                        let close = Request::Close { file, length: Some(0) };
                        self.step = Step::Emptying(turn.disk.submit(close));
                        return Err(failed(ended));
                    }
                },
                Step::Emptying(token) => match turn.disk.take(token) {
                    None => return Ok(()),
                    Some(_) => {
                        // Whatever became of it: it is never used again, and removed with the other leftovers.
                        self.staged = None;
                        self.step = Step::Absent;
                        for block in &mut self.blocks {
                            block.written = 0;
                        }
                    }
                },
                Step::Durable => return Ok(()),
            }
            turn.moved = true;
        }
    }

    fn create(&mut self, turn: &mut PartTurn<'_>) {
        let staged = self.staged.get_or_insert_with(|| {
            let (name, path) = (turn.new_staged)();
            Staged { name, path, try_open: false }
        });
        let path = staged.path.clone();
        let request = if staged.try_open {
            Request::OpenWrite(path)
        } else {
            let known = self.length.next_multiple_of(ALIGNMENT_BYTES as u64);
            Request::Create { path, bytes: if self.is_sealed { known } else { known.max(turn.allocate_bytes) } }
        };
        self.step = Step::Creating(turn.disk.submit(request));
    }

    /// Takes writes that have ended.
    fn reap(&mut self, turn: &mut PartTurn<'_>) -> io::Result<()> {
        let mut result = Ok(());
        let blocks = &mut self.blocks;
        let pause_ns = &mut self.pause_ns;
        self.writes.retain(|write| {
            let Some(ended) = turn.disk.take(write.token) else { return true };
            turn.moved = true;
            let block = &mut blocks[write.block];
            block.is_under_way = false;
            match ended {
                Ok(Done::Written(buffer, count)) => {
                    let whole = count - count % ALIGNMENT_BYTES;
                    turn.disk.recycle(buffer);
                    block.written = write.from + whole;
                    if whole == 0 {
                        result = Err(io::Error::new(io::ErrorKind::WriteZero, "the disk took nothing"));
                    } else {
                        *pause_ns = PAUSE_NS_MIN;
                    }
                }
                ended => result = Err(failed(ended)),
            }
            false
        });
        result
    }

    fn submit(&mut self, turn: &mut PartTurn<'_>, file: FileId) {
        while turn.writes_left > 0
            && self.writes.len() < WRITES_MAX
            && let Some(index) = self.next_block()
        {
            let block = &mut self.blocks[index];
            let (from, padded) = (block.written, block.padded());
            let mut buffer = turn.disk.buffer(padded - from);
            let bytes = &block.bytes[from.min(block.bytes.len())..];
            buffer[..bytes.len()].copy_from_slice(bytes);
            buffer[bytes.len()..].fill(0);
            let offset = (index * self.block_bytes + from) as u64;
            let token = turn.disk.submit(Request::Write { file, offset, buffer });
            block.is_under_way = true;
            self.writes.push(Write { token, block: index, from });
            turn.writes_left -= 1;
            turn.moved = true;
        }
    }
}

fn failed(ended: io::Result<Done>) -> io::Error {
    match ended {
        Err(error) => error,
        Ok(done) => unreachable!("a request ended as {done:?}"),
    }
}
