//! The writer of one shard: lines into blocks, blocks into parts, parts into epochs.
//!
//! Invariants
//! * I1. `line` holds the lines behind the last full block of the unsealed part.
//! * I2. Only the last part of the ledger may be unsealed, and then it belongs to no epoch.

use super::part::{Part, PartTurn};
use super::{Limits, Names};
use crate::items::Items;
use crate::sink::format::{Format, Line};
use crate::sink::ledger::Ledger;
use crate::sink::{SinkActivity, SinkWriter};
use crate::{Error, ErrorKind, Result};
use millstream_state::Epoch;
use millstream_state::io::{ALIGNMENT_BYTES, Disk, REQUEST_BYTES_MAX, Token};
use std::marker::PhantomData;

/// Bytes of a full block, and so of most writes.
pub(super) const BLOCK_BYTES: usize = 512 << 10;
const _: () = assert!(BLOCK_BYTES.is_multiple_of(ALIGNMENT_BYTES) && BLOCK_BYTES <= REQUEST_BYTES_MAX);

/// Room behind a full block for the line that fills it.
const LINE_BYTES_USUAL: usize = 16 << 10;

/// Writes submitted in one turn: each copies a block, so each costs about 50 us.
const WRITES_PER_TURN: usize = 2;

/// What a file is allocated when nothing is known yet.
const ALLOCATE_BYTES_MIN: u64 = 1 << 20;

/// Writes parts of a [`FileSink`](super::FileSink).
pub struct FileWriter<I, F> {
    names: Names,
    format: F,
    limits: Limits,
    shard: u32,
    run: u64,
    /// Lines of the block being filled.
    line: Line,
    /// At this many bytes, the block is closed.
    close_at: usize,
    parts: Ledger<Part>,
    spare: Vec<Vec<u8>>,
    /// Bytes of the parts' blocks.
    block_bytes_held: usize,
    staged_count: u64,
    allocate_bytes: u64,
    closing: Vec<Token>,
    failure: Option<Error>,
    items: PhantomData<fn(I)>,
}

impl<I: Items, F: Format<I>> FileWriter<I, F> {
    pub(super) fn new(names: Names, format: F, limits: Limits, shard: u32, run: u64) -> Self {
        let mut writer = Self {
            names,
            format,
            limits,
            shard,
            run,
            line: Line::default(),
            close_at: 0,
            parts: Ledger::new(),
            spare: Vec::new(),
            block_bytes_held: 0,
            staged_count: 0,
            allocate_bytes: ALLOCATE_BYTES_MIN,
            closing: Vec::new(),
            failure: None,
            items: PhantomData,
        };
        writer.line.0 = writer.new_block();
        writer.set_close_at();
        writer
    }

    fn new_block(&mut self) -> Vec<u8> {
        self.spare.pop().map_or_else(
            || Vec::with_capacity(self.limits.block_bytes + LINE_BYTES_USUAL),
            |mut block| {
                debug_assert!(block.capacity() >= self.limits.block_bytes, "a block of {} bytes", block.capacity());
                block.clear();
                block
            },
        )
    }

    fn unsealed(&self) -> Option<&Part> {
        self.parts.last().filter(|part| !part.is_sealed())
    }

    fn open_part(&mut self) -> &mut Part {
        if self.unsealed().is_none() {
            self.parts.push(Part::new(self.limits.block_bytes));
        }
        self.parts.last_mut().expect("just there")
    }

    fn set_close_at(&mut self) {
        let written = self.unsealed().map_or(0, Part::length);
        let left = (self.limits.part_bytes_max as u64).saturating_sub(written);
        self.close_at = usize::try_from(left).unwrap_or(usize::MAX).clamp(1, self.limits.block_bytes);
    }

    /// The block at hand is full, or the part is.
    #[cold]
    fn close_blocks(&mut self) {
        let block_bytes = self.limits.block_bytes;
        while self.line.0.len() >= block_bytes {
            let mut next = self.new_block();
            next.extend_from_slice(&self.line.0[block_bytes..]);
            let mut full = std::mem::replace(&mut self.line.0, next);
            full.truncate(block_bytes);
            self.block_bytes_held += full.len();
            self.open_part().push(full);
        }
        let length = self.unsealed().map_or(0, Part::length) + self.line.0.len() as u64;
        if length >= self.limits.part_bytes_max as u64 {
            self.seal();
        }
        self.set_close_at();
    }

    /// Closes the part at hand, if there is anything in it.
    fn seal(&mut self) {
        let mut last = None;
        if !self.line.0.is_empty() {
            let next = self.new_block();
            last = Some(std::mem::replace(&mut self.line.0, next));
        }
        if last.is_none() && self.unsealed().is_none() {
            return;
        }
        self.block_bytes_held += last.as_ref().map_or(0, Vec::len);
        let part = self.open_part();
        part.seal(last);
        let length = part.length();
        self.allocate_bytes = length.next_multiple_of(ALLOCATE_BYTES_MIN).max(ALLOCATE_BYTES_MIN);
        self.set_close_at();
    }

    #[cfg(test)]
    pub(super) fn bytes_held(&self) -> usize {
        self.block_bytes_held + self.line.0.len()
    }

    /// Memory taken, whether it holds anything or not.
    #[cfg(test)]
    pub(super) fn capacity(&mut self) -> usize {
        let parts: usize = self.parts.pieces_mut().map(|(_, part)| part.capacity()).sum();
        parts + self.line.0.capacity() + self.spare.iter().map(Vec::capacity).sum::<usize>()
    }
}

impl<I: Items, F: Format<I>> SinkWriter<I> for FileWriter<I, F> {
    #[inline]
    fn write(&mut self, item: I::Of<'_>) {
        if let Err(error) = self.line.add::<I>(item, &mut self.format) {
            let dir = self.names.dir.display();
            let what = format_args!("a result for {dir} could not be made a line: {error}");
            self.failure.get_or_insert_with(|| Error::new(ErrorKind::UserCode, what));
        }
        if self.line.0.len() >= self.close_at {
            self.close_blocks();
        }
    }

    fn ready(&self) -> bool {
        self.block_bytes_held + self.line.0.len() < self.limits.unwritten_bytes_max
    }

    fn turn(&mut self, disk: &mut dyn Disk, now_ns: u64) -> Result<SinkActivity> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        self.closing.retain(|&token| disk.take(token).is_none());
        let (names, run, shard, staged_count) = (&self.names, self.run, self.shard, &mut self.staged_count);
        let mut new_staged = || {
            let name = names.staged(run, shard, *staged_count);
            *staged_count += 1;
            let path = names.dir.join(&name);
            (name, path)
        };
        let mut turn = PartTurn {
            disk,
            now_ns,
            writes_left: WRITES_PER_TURN,
            allocate_bytes: self.allocate_bytes,
            new_staged: &mut new_staged,
            closing: &mut self.closing,
            moved: false,
        };
        let mut waiting = false;
        let mut failed = None;
        for (epoch, part) in self.parts.pieces_mut() {
            let was_durable = part.is_durable();
            if let Err(error) = part.turn(&mut turn, &mut self.spare) {
                failed.get_or_insert((epoch, error));
            }
            if part.is_durable() && !was_durable {
                self.block_bytes_held -= usize::try_from(part.length()).expect("it was in memory");
            }
            waiting |= part.is_waiting();
        }
        let moved = turn.moved;
        if let Some((epoch, error)) = failed {
            self.parts.fail(epoch, || {
                let dir = names.dir.display();
                Error::unavailable(format_args!("output in {dir} cannot be made durable now, and is kept: {error}"))
            });
        }
        // Enough for the next part; the rest goes back to the allocator.
        self.spare.truncate(self.limits.part_bytes_max / self.limits.block_bytes + 2);
        Ok(match (moved, waiting || !self.closing.is_empty()) {
            (true, _) => SinkActivity::Busy,
            (false, true) => SinkActivity::Waiting,
            (false, false) => SinkActivity::Idle,
        })
    }

    fn prepare(&mut self, epoch: Epoch) {
        if planted!(StagedLinesLost) {
            self.line.0.clear();
        }
        self.seal();
        for (number, part) in self.parts.prepare(epoch).filter(|part| part.name.is_none()).enumerate() {
            part.name = Some(self.names.part(epoch, self.shard, number));
        }
    }

    fn take_prepared(&mut self, epoch: Epoch) -> Option<Result<Vec<Vec<u8>>>> {
        let answer = self.parts.take(epoch, Part::is_durable)?;
        Some(answer.map(|parts| parts.iter().map(|part| part.prepared().encode()).collect()))
    }

    fn abandon(&mut self, epoch: Epoch) {
        self.parts.abandon(epoch);
    }
}
