//! One shard's stream of extents into preallocated segment files, as a state machine over a [`Disk`].
//!
//! ```text
//! append* -> seal -> turn until Sealed   every extent appended is durable; publish may name them (once the directory is synced)
//!                              or Failed every extent appended since the last Sealed is void: append it again
//! ```
//!
//! Invariants
//! * I1. One request is submitted per turn at most, and [`SegmentConfig::depth`] blocks are under way at most.
//! * I2. A block is written when its count is its whole length; of a short one the rest is submitted again.
//! * I3. A file with a failed create, write or sync is *given up*: never written, synced or recycled again, only removed once
//!   nothing names it. What the epoch has appended to other files is void too, but those files stay in use.
//! * I4. A file is [freed](SegmentWriter::take_freed) when the last of its extents was released and nothing is under way
//!   on it. Extents of an epoch that is being written or not yet complete must not be released.
//!
//! Extents lie at multiples of 64 bytes inside blocks, blocks at multiples of 4096; an extent never spans two blocks.
//! Cost of an append: one copy (by the caller's closure) and one CRC-32 over the extent; nothing is allocated in steady state.

use crate::error::Error;
use crate::format::{EXTENT_ALIGNMENT_BYTES, ExtentEntry, ExtentHeader, SegmentId, segment_file};
use crate::io::{ALIGNMENT_BYTES, Buffer, Disk, Done, FileId, REQUEST_BYTES_MAX, Request, Token};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;

/// Where and how a shard writes its segments.
#[derive(Clone, Debug)]
pub struct SegmentConfig {
    /// The state directory.
    pub directory: PathBuf,
    /// Fencing token of this run.
    pub run: u32,
    /// The shard.
    pub shard: u32,
    /// Bytes of the first file. Each new one is twice as long as the one before it, so that a small state stays small.
    pub segment_bytes_min: u64,
    /// Bytes of the longest file.
    pub segment_bytes_max: u64,
    /// Bytes of one write, but for longer extents and for what a seal has left.
    pub block_bytes: usize,
    /// Most blocks under way at once.
    pub depth: usize,
    /// Most freed files kept for reuse.
    pub spares_max: usize,
}

impl SegmentConfig {
    /// 4 to 64 MiB per file, blocks of 512 KiB, four of them under way, two spare files.
    pub fn new(directory: PathBuf, run: u32, shard: u32) -> Self {
        Self {
            directory,
            run,
            shard,
            segment_bytes_min: 4 << 20,
            segment_bytes_max: 64 << 20,
            block_bytes: 512 << 10,
            depth: 4,
            spares_max: 2,
        }
    }
}

/// A file that this writer has finished with: for the coordinator, which recycles or removes it once no manifest and no
/// pin names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreedSegment {
    /// Which.
    pub id: SegmentId,
    /// Its length.
    pub bytes: u64,
    /// Whether it may be written again; a file with a failed write or sync may not.
    pub recyclable: bool,
}

/// What a turn has led to.
#[derive(Debug)]
pub enum Turn {
    /// There is nothing to do until something is appended, sealed or recycled.
    Idle,
    /// Something is under way or waits to be submitted.
    Busy,
    /// Everything appended before the seal is durable. Said once per seal.
    Sealed,
    /// An I/O error: everything appended since the last `Sealed` is void, and so is the seal. Said once.
    Failed(Error),
}

/// Writes one shard's extents.
#[derive(Debug)]
pub struct SegmentWriter {
    config: SegmentConfig,
    /// Number of the next file made.
    next_number: u32,
    next_bytes: u64,
    /// Files that are open or being opened. The last one takes the appends unless it is full.
    segments: Vec<Segment>,
    /// The block being filled, always of the last segment.
    block: Option<Block>,
    /// Blocks to be submitted, in order; the rest of a short one in front.
    waiting: VecDeque<Block>,
    writing: Vec<Writing>,
    sealing: bool,
    /// What failed, until a turn has said so.
    failure: Option<Error>,
    references: BTreeMap<SegmentId, References>,
    /// Extents appended per file since the last `Sealed`.
    unsealed: Vec<(SegmentId, u64)>,
    spares: VecDeque<(SegmentId, u64)>,
    freed: Vec<FreedSegment>,
    submitted_bytes: u64,
}

#[derive(Debug)]
struct Segment {
    id: SegmentId,
    bytes: u64,
    tail: u64,
    recycled: bool,
    file: Option<FileId>,
    under_way: Option<(Token, Step)>,
    /// Blocks filled, and not yet known to be written.
    blocks: usize,
    /// Written to since its last sync.
    dirty: bool,
    full: bool,
    given_up: bool,
    closed: bool,
}

impl Segment {
    /// Says whether everything ever put into the file is durable, but for a file that was given up.
    fn is_durable(&self) -> bool {
        let syncing = matches!(self.under_way, Some((_, Step::Sync)));
        self.given_up || (self.blocks == 0 && !self.dirty && !syncing)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Open,
    Sync,
    Close,
}

#[derive(Debug)]
struct Block {
    segment: SegmentId,
    offset: u64,
    buffer: Buffer,
    used: usize,
    /// How often a write of it made no progress.
    stalls: u32,
}

#[derive(Debug)]
struct Writing {
    token: Token,
    segment: SegmentId,
    offset: u64,
    stalls: u32,
}

#[derive(Debug, Default)]
struct References {
    count: u64,
    bytes: u64,
    given_up: bool,
    closed: bool,
}

/// A write that moves nothing this often in a row is an error.
const STALLS_MAX: u32 = 16;

impl SegmentWriter {
    /// A writer with no file yet; the first append makes one.
    ///
    /// # Panics
    /// When the configuration makes no sense: sizes not aligned, blocks above [`REQUEST_BYTES_MAX`], no depth.
    pub fn new(config: SegmentConfig) -> Self {
        assert!(config.block_bytes > 0 && config.block_bytes.is_multiple_of(ALIGNMENT_BYTES));
        assert!(config.block_bytes <= REQUEST_BYTES_MAX && config.depth > 0);
        assert!(config.segment_bytes_min.is_multiple_of(ALIGNMENT_BYTES as u64));
        assert!(config.segment_bytes_max.is_multiple_of(ALIGNMENT_BYTES as u64));
        assert!(config.segment_bytes_min <= config.segment_bytes_max);
        Self {
            next_number: 1,
            next_bytes: config.segment_bytes_min,
            config,
            segments: Vec::new(),
            block: None,
            waiting: VecDeque::new(),
            writing: Vec::new(),
            sealing: false,
            failure: None,
            references: BTreeMap::new(),
            unsealed: Vec::new(),
            spares: VecDeque::new(),
            freed: Vec::new(),
            submitted_bytes: 0,
        }
    }

    /// Appends one extent: `fill` writes its payload of `header.payload_bytes`, header and CRC are written here. The entry
    /// counts as one reference to its file until [`SegmentWriter::release`].
    ///
    /// Returns `None`, without calling `fill`, when there is no room before the next turn.
    ///
    /// # Panics
    /// When the extent is longer than [`EXTENT_BYTES_MAX`](crate::format::EXTENT_BYTES_MAX), or between
    /// [`SegmentWriter::seal`] and its outcome.
    pub fn append(
        &mut self,
        disk: &mut dyn Disk,
        header: &ExtentHeader,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<ExtentEntry> {
        assert!(!self.sealing, "an extent was appended to a sealed epoch");
        if self.failure.is_some() || !self.make_room(disk, ExtentHeader::SIZE + header.payload_bytes as usize) {
            return None;
        }
        let block = self.block.as_mut().expect("room was made");
        let extent = &mut block.buffer[block.used..][..ExtentHeader::SIZE + header.payload_bytes as usize];
        fill(&mut extent[ExtentHeader::SIZE..]);
        let crc32 = header.seal(extent);
        let entry =
            ExtentEntry { segment: block.segment, offset: block.offset + block.used as u64, crc32, header: *header };
        let end = block.used + extent.len();
        block.used = end.next_multiple_of(EXTENT_ALIGNMENT_BYTES);
        block.buffer[end..block.used].fill(0);
        self.references.get_mut(&entry.segment).expect("made with its file").count += 1;
        match self.unsealed.last_mut() {
            Some((segment, count)) if *segment == entry.segment => *count += 1,
            _ => self.unsealed.push((entry.segment, 1)),
        }
        Some(entry)
    }

    /// Says that the epoch's last extent was appended; turns then write what is left, sync and report.
    pub fn seal(&mut self) {
        assert!(!self.sealing, "sealed twice");
        self.sealing = true;
    }

    /// Gives up every extent appended since the last `Sealed`, as after an error: for an epoch that was cancelled.
    pub fn abandon(&mut self, disk: &mut dyn Disk) {
        self.abort(disk);
        self.failure = None;
    }

    /// Gives up one extent; its file is freed with its last one. Files of other runs are not counted here.
    pub fn release(&mut self, segment: SegmentId) {
        if let Some(references) = self.references.get_mut(&segment) {
            references.count = references.count.checked_sub(1).expect("an extent was released twice");
            self.free(segment);
        }
    }

    /// The files freed since the last call.
    pub fn take_freed(&mut self) -> Vec<FreedSegment> {
        std::mem::take(&mut self.freed)
    }

    /// Gives a freed file back to be written over, once no manifest and no pin names it. Returns it when there are
    /// enough spare ones: then it is to be removed.
    ///
    /// # Panics
    /// When it is not recyclable, or another shard's or another run's.
    pub fn recycle(&mut self, freed: FreedSegment) -> Option<FreedSegment> {
        assert!(freed.recyclable, "segment {} was given up", freed.id);
        assert_eq!((freed.id.run, freed.id.shard), (self.config.run, self.config.shard), "a foreign segment");
        if self.spares.len() >= self.config.spares_max {
            return Some(freed);
        }
        self.spares.push_back((freed.id, freed.bytes));
        None
    }

    /// Bytes submitted so far, for pacing and metrics.
    pub fn submitted_bytes(&self) -> u64 {
        self.submitted_bytes
    }

    /// Takes what has ended and submits at most one request (I1); no block when `may_write` is false.
    pub fn turn(&mut self, disk: &mut dyn Disk, may_write: bool) -> Turn {
        self.reap_writes(disk);
        self.reap_steps(disk);
        if let Some(error) = self.failure.take() {
            self.abort(disk);
            return Turn::Failed(error);
        }
        if self.sealing {
            self.finish_block();
        }
        let submitted = self.submit_step(disk, Step::Open)
            || (may_write && self.submit_block(disk))
            || self.submit_step(disk, Step::Sync)
            || self.submit_step(disk, Step::Close);
        if self.sealing && self.block.is_none() && self.segments.iter().all(Segment::is_durable) {
            self.sealing = false;
            self.unsealed.clear();
            return Turn::Sealed;
        }
        let busy = submitted
            || !self.waiting.is_empty()
            || !self.writing.is_empty()
            || self.segments.iter().any(|segment| segment.under_way.is_some());
        if busy { Turn::Busy } else { Turn::Idle }
    }

    /// Makes the current block hold `bytes` more; false when that must wait for a turn.
    fn make_room(&mut self, disk: &mut dyn Disk, bytes: usize) -> bool {
        if let Some(block) = &self.block {
            if block.used + bytes <= block.buffer.len() {
                return true;
            }
            if !self.waiting.is_empty() {
                return false;
            }
            self.finish_block();
        }
        if !self.waiting.is_empty() && self.writing.len() >= self.config.depth {
            return false;
        }
        let aligned = bytes.next_multiple_of(ALIGNMENT_BYTES);
        let room = self.segments.last().filter(|s| !s.full && !s.given_up).map(|s| s.bytes - s.tail);
        if room.is_none_or(|room| room < aligned as u64) {
            if let Some(last) = self.segments.last_mut() {
                last.full = true;
            }
            self.add_segment(aligned as u64);
        }
        let segment = self.segments.last_mut().expect("there is one now");
        let room = usize::try_from(segment.bytes - segment.tail).unwrap_or(usize::MAX);
        let buffer = disk.buffer(self.config.block_bytes.max(aligned).min(room));
        self.block = Some(Block { segment: segment.id, offset: segment.tail, buffer, used: 0, stalls: 0 });
        segment.blocks += 1;
        segment.dirty = true;
        true
    }

    fn add_segment(&mut self, bytes_min: u64) {
        let (id, bytes, recycled) = match self.spares.pop_front() {
            Some((id, bytes)) if bytes >= bytes_min => (id, bytes, true),
            small => {
                self.freed.extend(small.map(|(id, bytes)| FreedSegment { id, bytes, recyclable: true }));
                let id = SegmentId { run: self.config.run, shard: self.config.shard, number: self.next_number };
                let bytes = self.next_bytes.max(bytes_min.next_multiple_of(ALIGNMENT_BYTES as u64));
                self.next_number += 1;
                self.next_bytes = (self.next_bytes * 2).min(self.config.segment_bytes_max);
                (id, bytes, false)
            }
        };
        self.references.insert(id, References { bytes, ..References::default() });
        self.segments.push(Segment {
            id,
            bytes,
            tail: 0,
            recycled,
            file: None,
            under_way: None,
            blocks: 0,
            dirty: false,
            full: false,
            given_up: false,
            closed: false,
        });
    }

    /// Cuts the current block to what is used of it and lines it up for writing.
    fn finish_block(&mut self) {
        let Some(mut block) = self.block.take() else { return };
        let bytes = block.used.next_multiple_of(ALIGNMENT_BYTES);
        block.buffer[block.used..bytes].fill(0);
        if bytes < block.buffer.len() {
            block.buffer.truncate(bytes);
        }
        let segment = self.segments.last_mut().expect("the block's own");
        assert_eq!(segment.id, block.segment);
        segment.tail = block.offset + bytes as u64;
        self.waiting.push_back(block);
    }

    fn path(&self, id: SegmentId) -> PathBuf {
        self.config.directory.join(segment_file(id))
    }

    fn submit_block(&mut self, disk: &mut dyn Disk) -> bool {
        if self.writing.len() >= self.config.depth {
            return false;
        }
        let Some(front) = self.waiting.front() else { return false };
        let segment = self.segments.iter().find(|segment| segment.id == front.segment).expect("blocks keep it open");
        let Some(file) = segment.file else { return false };
        let Block { segment, offset, buffer, stalls, .. } = self.waiting.pop_front().expect("there is a front");
        assert!(buffer.len() <= REQUEST_BYTES_MAX);
        self.submitted_bytes += buffer.len() as u64;
        let token = disk.submit(Request::Write { file, offset, buffer });
        self.writing.push(Writing { token, segment, offset, stalls });
        true
    }

    /// Submits one open, sync or close that is due.
    fn submit_step(&mut self, disk: &mut dyn Disk, step: Step) -> bool {
        let sealing = self.sealing;
        let due = |segment: &Segment| {
            let idle = segment.under_way.is_none() && segment.blocks == 0;
            match step {
                Step::Open => segment.file.is_none() && segment.under_way.is_none() && !segment.given_up,
                Step::Sync => idle && segment.dirty && !segment.given_up && (segment.full || sealing),
                Step::Close => idle && segment.file.is_some() && (segment.given_up || (segment.full && !segment.dirty)),
            }
        };
        let Some(index) = self.segments.iter().position(due) else { return false };
        let Segment { id, bytes, recycled, file, .. } = self.segments[index];
        let request = match (step, file) {
            (Step::Open, _) if recycled => Request::OpenWrite(self.path(id)),
            (Step::Open, _) => Request::Create { path: self.path(id), bytes },
            (Step::Sync, Some(file)) => Request::Sync(file),
            (Step::Close, Some(file)) => Request::Close { file, length: None },
            (Step::Sync | Step::Close, None) => unreachable!("written only once it is open"),
        };
        if step == Step::Sync {
            // On submission: what a later epoch writes while this sync is under way needs one of its own.
            self.segments[index].dirty = false;
        }
        self.segments[index].under_way = Some((disk.submit(request), step));
        true
    }

    fn reap_writes(&mut self, disk: &mut dyn Disk) {
        let mut index = 0;
        while index < self.writing.len() {
            let Some(ended) = disk.take(self.writing[index].token) else {
                index += 1;
                continue;
            };
            let write = self.writing.swap_remove(index);
            let segment = self.segments.iter_mut().find(|segment| segment.id == write.segment).expect("kept open");
            match ended {
                Ok(Done::Written(buffer, count)) if count == buffer.len() || segment.given_up => {
                    segment.blocks -= 1;
                    disk.recycle(buffer);
                }
                Ok(Done::Written(buffer, count)) if count < buffer.len() => {
                    // Whole aligned parts count, the rest goes again (I2).
                    let written = count - count % ALIGNMENT_BYTES;
                    let stalls = if written == 0 { write.stalls + 1 } else { 0 };
                    if stalls > STALLS_MAX {
                        segment.blocks -= 1;
                        let error = io::Error::new(io::ErrorKind::WriteZero, "the disk takes no more bytes");
                        self.fail(write.segment, "write", &error);
                        continue;
                    }
                    let mut rest = disk.buffer(buffer.len() - written);
                    rest.copy_from_slice(&buffer[written..]);
                    disk.recycle(buffer);
                    let (segment, offset, used) = (write.segment, write.offset + written as u64, rest.len());
                    self.waiting.push_front(Block { segment, offset, buffer: rest, used, stalls });
                }
                ended => {
                    segment.blocks -= 1;
                    // One failure per file is reported; blocks that were under way with the failed one add nothing.
                    if !segment.given_up {
                        self.fail(write.segment, "write", &unexpected(ended));
                    }
                }
            }
        }
    }

    fn reap_steps(&mut self, disk: &mut dyn Disk) {
        for index in 0..self.segments.len() {
            let Some((token, step)) = self.segments[index].under_way else { continue };
            let Some(ended) = disk.take(token) else { continue };
            let segment = &mut self.segments[index];
            segment.under_way = None;
            match (step, ended) {
                (Step::Open, Ok(Done::Opened(file, bytes))) => {
                    segment.file = Some(file);
                    if bytes < segment.bytes {
                        let error = io::Error::other(format!("{bytes} bytes long, not {}", segment.bytes));
                        self.fail(self.segments[index].id, "open", &error);
                    }
                }
                (Step::Sync, Ok(Done::Synced)) => {}
                // What a close has to say comes too late to matter: the sync before it succeeded, or the file was given up.
                (Step::Close, _) => segment.closed = true,
                (Step::Open, ended) => self.fail(self.segments[index].id, "create", &unexpected(ended)),
                (Step::Sync, ended) => self.fail(self.segments[index].id, "sync", &unexpected(ended)),
            }
        }
        self.drop_closed();
    }

    /// Forgets files that are closed, or were given up before they were open.
    fn drop_closed(&mut self) {
        let mut closed = Vec::new();
        self.segments.retain(|segment| {
            let never_open = segment.given_up && segment.file.is_none() && segment.under_way.is_none();
            let gone = segment.closed || (never_open && segment.blocks == 0);
            if gone {
                closed.push((segment.id, segment.given_up));
            }
            !gone
        });
        for (id, given_up) in closed {
            let references = self.references.get_mut(&id).expect("made with its file");
            references.closed = true;
            references.given_up |= given_up;
            self.free(id);
        }
    }

    fn fail(&mut self, segment: SegmentId, what: &str, error: &io::Error) {
        if let Some(segment) = self.segments.iter_mut().find(|other| other.id == segment) {
            segment.given_up = true;
        }
        let path = self.path(segment);
        self.failure.get_or_insert_with(|| Error::unavailable(format_args!("{what} of {}: {error}", path.display())));
    }

    /// Gives up what was appended since the last seal. Blocks under way run on and are forgotten as they end.
    fn abort(&mut self, disk: &mut dyn Disk) {
        self.sealing = false;
        for block in self.block.take().into_iter().chain(self.waiting.drain(..)) {
            let segment = self.segments.iter_mut().find(|segment| segment.id == block.segment).expect("kept open");
            segment.blocks -= 1;
            disk.recycle(block.buffer);
        }
        for (segment, count) in std::mem::take(&mut self.unsealed) {
            self.references.get_mut(&segment).expect("still counted").count -= count;
            self.free(segment);
        }
        self.drop_closed();
    }

    fn free(&mut self, id: SegmentId) {
        if let Some(references) = self.references.get(&id)
            && references.count == 0
            && references.closed
        {
            self.freed.push(FreedSegment { id, bytes: references.bytes, recyclable: !references.given_up });
            self.references.remove(&id);
        }
    }
}

fn unexpected(ended: io::Result<Done>) -> io::Error {
    ended.map_or_else(|error| error, |done| io::Error::other(format!("ended as {done:?}")))
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
