//! Reading ahead, across files: opens the next few and keeps a few blocks on their way.
//!
//! Invariants
//! * I1. Blocks of one file are delivered in order, each behind the one before, whatever the disk returns short.
//! * I2. A file is closed only when nothing that was asked of it is under way.
//! * I3. The split being read always has a block under way or waiting, unless all it wants was delivered.

use super::split::FileSplit;
use crate::{Error, Result};
use millstream_state::io::{ALIGNMENT_BYTES, Buffer, Disk, Done, FileId, Request, Token};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

/// Files open at once: the one being read, and those behind it. Small files come by the thousand.
const FILES_MAX: usize = 8;

/// Blocks on their way or waiting, and how many bytes they may hold together, in blocks of full size.
const BLOCKS_MAX: usize = 8;
const FULL_BLOCKS_MAX: usize = 4;

/// Reads of one place that may return nothing new before the file counts as cut short.
const EMPTY_READS_MAX: u32 = 16;

/// A split's range of a file, as it is to be read.
pub(super) struct Wanted {
    /// Which of the reader's splits.
    pub(super) split: usize,
    pub(super) path: Arc<Path>,
    /// First byte needed.
    pub(super) from: u64,
    /// Where reading ahead stops unless more is asked for.
    pub(super) until: u64,
    /// The file's length when it was cut.
    pub(super) length: u64,
}

impl Wanted {
    pub(super) fn new(split: usize, file: &FileSplit, from: u64) -> Self {
        // The last line usually ends within one more page.
        let until = align_up(file.end).saturating_add(ALIGNMENT_BYTES as u64).min(file.length);
        Self { split, path: Arc::clone(&file.path), from, until, length: file.length }
    }
}

/// Bytes of a file.
pub(super) struct Block {
    pub(super) buffer: Buffer,
    /// Where the buffer begins in the file.
    pub(super) base: u64,
    /// How many of its bytes are the file's.
    pub(super) filled: usize,
}

enum State {
    Unopened,
    Opening(Token),
    Open(FileId),
}

struct Pending {
    token: Token,
    offset: u64,
    bytes: usize,
}

struct Ahead {
    wanted: Wanted,
    state: State,
    /// Next aligned offset to ask for.
    next: u64,
    /// The first byte not delivered yet.
    delivered: u64,
    blocks: VecDeque<Pending>,
    empty_reads: u32,
}

/// See the module.
pub(super) struct ReadAhead {
    block_bytes: usize,
    files: VecDeque<Ahead>,
    /// Files that nobody reads any more, with reads still under way.
    retiring: Vec<(Option<FileId>, Vec<Token>)>,
}

/// What [`ReadAhead::next_block`] found.
pub(super) enum Next {
    Block(Block),
    /// Not there yet.
    Pending,
    /// Everything asked for was delivered.
    Exhausted,
}

impl ReadAhead {
    pub(super) fn new(block_bytes: usize) -> Self {
        assert!(block_bytes > 0 && block_bytes.is_multiple_of(ALIGNMENT_BYTES), "blocks of {block_bytes} bytes");
        Self { block_bytes, files: VecDeque::new(), retiring: Vec::new() }
    }

    /// Whether another split may be handed to [`Self::want`] now.
    pub(super) fn has_room(&self) -> bool {
        self.files.len() < FILES_MAX
    }

    /// Adds a split to be read after those before it.
    pub(super) fn want(&mut self, wanted: Wanted) {
        let next = align_down(wanted.from);
        let delivered = wanted.from;
        self.files.push_back(Ahead {
            wanted,
            state: State::Unopened,
            next,
            delivered,
            blocks: VecDeque::new(),
            empty_reads: 0,
        });
    }

    /// The split that blocks come from now.
    pub(super) fn split(&self) -> Option<usize> {
        self.files.front().map(|file| file.wanted.split)
    }

    /// Asks for one more block of the current split; `false` at the end of its file.
    pub(super) fn extend(&mut self) -> bool {
        let Some(file) = self.files.front_mut() else { return false };
        let more = file.wanted.until < file.wanted.length;
        file.wanted.until =
            align_up(file.wanted.until + 1).saturating_add(self.block_bytes as u64).min(file.wanted.length);
        more
    }

    /// Drops the current split: it is read.
    pub(super) fn finish(&mut self) {
        let Some(file) = self.files.pop_front() else { return };
        let mut tokens: Vec<Token> = file.blocks.into_iter().map(|pending| pending.token).collect();
        let open = match file.state {
            State::Unopened => None,
            State::Opening(token) => {
                tokens.push(token);
                None
            }
            State::Open(id) => Some(id),
        };
        if open.is_some() || !tokens.is_empty() {
            self.retiring.push((open, tokens));
        }
    }

    /// Submits what may be submitted and takes what it must. Returns whether anything moved.
    pub(super) fn turn(&mut self, disk: &mut dyn Disk) -> Result<()> {
        self.retire(disk);
        let mut blocks: usize = self.files.iter().map(|file| file.blocks.len()).sum();
        let mut bytes: usize = self.files.iter().flat_map(|file| &file.blocks).map(|pending| pending.bytes).sum();
        for (nth, file) in self.files.iter_mut().enumerate() {
            let id = match file.state {
                State::Unopened => {
                    file.state = State::Opening(disk.submit(Request::OpenRead(file.wanted.path.to_path_buf())));
                    continue;
                }
                State::Opening(token) => match disk.take(token) {
                    None => continue,
                    Some(Ok(Done::Opened(id, length))) => {
                        file.state = State::Open(id);
                        if length != file.wanted.length {
                            return Err(changed(&file.wanted, length));
                        }
                        id
                    }
                    Some(Ok(done)) => unreachable!("an open ended as {done:?}"),
                    Some(Err(error)) => {
                        file.state = State::Unopened;
                        return Err(cannot_read(&file.wanted.path, file.wanted.from, &error));
                    }
                },
                State::Open(id) => id,
            };
            // I3: what is read now gets a block even if those behind it hold all there are.
            let mut entitled = nth == 0 && file.blocks.is_empty();
            while file.next < file.wanted.until
                && (entitled || (blocks < BLOCKS_MAX && bytes < FULL_BLOCKS_MAX * self.block_bytes))
            {
                entitled = false;
                let left = align_up(file.wanted.until) - file.next;
                let count = usize::try_from(left).unwrap_or(usize::MAX).min(self.block_bytes);
                let token = disk.submit(Request::Read { file: id, offset: file.next, bytes: count });
                file.blocks.push_back(Pending { token, offset: file.next, bytes: count });
                file.next += count as u64;
                blocks += 1;
                bytes += count;
            }
        }
        Ok(())
    }

    fn retire(&mut self, disk: &mut dyn Disk) {
        self.retiring.retain_mut(|(open, tokens)| {
            tokens.retain(|&token| match disk.take(token) {
                None => true,
                Some(Ok(Done::Read(buffer, _))) => {
                    disk.recycle(buffer);
                    false
                }
                Some(Ok(Done::Opened(id, _))) => {
                    *open = Some(id);
                    false
                }
                // A read or a close that failed here concerns nobody any more.
                Some(_) => false,
            });
            if !tokens.is_empty() {
                return true;
            }
            match open.take() {
                Some(id) => {
                    tokens.push(disk.submit(Request::Close { file: id, length: None }));
                    true
                }
                None => false,
            }
        });
    }

    /// Whether closed files are still being given back.
    pub(super) fn is_retiring(&self) -> bool {
        !self.retiring.is_empty()
    }

    /// Takes the current split's next block, if it is there.
    pub(super) fn next_block(&mut self, disk: &mut dyn Disk) -> Result<Next> {
        let Some(file) = self.files.front_mut() else { return Ok(Next::Exhausted) };
        let Some(pending) = file.blocks.front() else {
            return Ok(if file.next < file.wanted.until { Next::Pending } else { Next::Exhausted });
        };
        let (token, offset, bytes) = (pending.token, pending.offset, pending.bytes);
        let (buffer, count) = match disk.take(token) {
            None => return Ok(Next::Pending),
            Some(Ok(Done::Read(buffer, count))) => (buffer, count),
            Some(Ok(done)) => unreachable!("a read ended as {done:?}"),
            Some(Err(error)) => {
                file.blocks.pop_front();
                return Err(cannot_read(&file.wanted.path, file.delivered, &error));
            }
        };
        file.blocks.pop_front();
        let expected = bytes.min(usize::try_from(file.wanted.length - offset).unwrap_or(usize::MAX));
        let filled = count.min(expected);
        if filled < expected {
            // Short: the rest is asked for again, from the last page that came whole.
            file.empty_reads = if offset + filled as u64 > file.delivered { 0 } else { file.empty_reads + 1 };
            if file.empty_reads == EMPTY_READS_MAX {
                return Err(changed(&file.wanted, offset + filled as u64));
            }
            let State::Open(id) = file.state else { unreachable!("read before it was open") };
            let again = align_down(offset + filled as u64);
            let rest = bytes - usize::try_from(again - offset).expect("within one block");
            let token = disk.submit(Request::Read { file: id, offset: again, bytes: rest });
            file.blocks.push_front(Pending { token, offset: again, bytes: rest });
        } else {
            file.empty_reads = 0;
        }
        if offset + filled as u64 <= file.delivered {
            disk.recycle(buffer);
            return Ok(Next::Pending);
        }
        file.delivered = offset + filled as u64;
        Ok(Next::Block(Block { buffer, base: offset, filled }))
    }
}

fn align_down(offset: u64) -> u64 {
    offset - offset % ALIGNMENT_BYTES as u64
}

pub(super) fn align_up(offset: u64) -> u64 {
    offset.next_multiple_of(ALIGNMENT_BYTES as u64)
}

fn cannot_read(path: &Path, offset: u64, error: &std::io::Error) -> Error {
    Error::unavailable(format_args!("{} at byte {offset}: cannot be read: {error}", path.display()))
}

fn changed(wanted: &Wanted, length: u64) -> Error {
    Error::unavailable(format_args!(
        "{}: the file ends at byte {length}, it had {} bytes when the job began to read it; files must not change under a job",
        wanted.path.display(),
        wanted.length
    ))
}
