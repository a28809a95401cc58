//! The reader of one shard: takes blocks, finds the lines in them, hands them out in batches.
//!
//! Invariants
//! * I1. `position` of a split is where its next line starts, or before its first line a byte at or behind which it does.
//! * I2. `carry` holds the bytes of the line that starts at `position` and lie in blocks already given back.

use super::ahead::{Block, Next, ReadAhead, Wanted};
use super::split::FileSplit;
use super::text::{Batch, EmitSettings};
use super::{LineItems, Settings};
use crate::items::Items;
use crate::source::{Polled, ReadContext, Reader, Split, position_u64};
use crate::{Error, Result};
use memchr::{memchr, memchr_iter};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a read.
pub(super) const BLOCK_BYTES: usize = 512 << 10;

/// Lines found and checked at a time.
const BATCH_LINES: usize = 256;

/// Blocks looked through in one poll: bounds its time where lines are long or left out.
const BLOCKS_PER_POLL: usize = 4;

struct Part {
    file: FileSplit,
    id: Arc<str>,
    position: u64,
    ended: bool,
}

impl Part {
    fn bytes_left(&self) -> u64 {
        if self.ended { 0 } else { self.file.end.saturating_sub(self.position) }
    }
}

/// The block at hand and how far it has been looked through.
struct Current {
    block: Block,
    cursor: usize,
}

/// Reads splits of files, one after another.
pub struct FileReader<L> {
    settings: Settings,
    parts: Vec<Part>,
    /// Splits not handed to `ahead` yet.
    waiting: VecDeque<usize>,
    ahead: ReadAhead,
    current: Option<Current>,
    /// Whether the first line start of the current split has still to be found.
    skipping: bool,
    carry: Vec<u8>,
    lines: Vec<Range<u32>>,
    /// The part and the byte that the last line came from.
    last: (usize, u64),
    items: PhantomData<fn() -> L>,
}

/// What became of the split at hand.
enum Step {
    /// Lines were handed out, or bytes looked through; go on.
    Lines(usize),
    /// The block is used up.
    NeedBlock,
    /// The split has no more lines.
    Finished(usize),
}

impl<L: LineItems> FileReader<L> {
    pub(super) fn new(settings: Settings, splits: Vec<Split>) -> Result<Self> {
        let mut parts = Vec::with_capacity(splits.len());
        for split in splits {
            let file = FileSplit::parse(&split.id)?;
            let position = position_u64(&split)?;
            if position < file.start || position > file.length {
                return Err(Error::invalid(format_args!(
                    "split {}: byte {position} is not in it; the snapshot is from another source",
                    split.id
                )));
            }
            let ended = split.ended || position >= file.end;
            parts.push(Part { file, id: split.id, position, ended });
        }
        let waiting = (0..parts.len()).filter(|&index| !parts[index].ended).collect();
        let ahead = ReadAhead::new(settings.block_bytes);
        let mut reader = Self {
            settings,
            parts,
            waiting,
            ahead,
            current: None,
            skipping: false,
            carry: Vec::new(),
            lines: Vec::with_capacity(BATCH_LINES),
            last: (0, 0),
            items: PhantomData,
        };
        reader.look_ahead();
        reader.begin();
        Ok(reader)
    }

    fn look_ahead(&mut self) {
        while self.ahead.has_room()
            && let Some(index) = self.waiting.pop_front()
        {
            let part = &self.parts[index];
            // The byte before tells whether a line starts here.
            self.ahead.want(Wanted::new(index, &part.file, part.position.saturating_sub(1)));
        }
    }

    /// Starts on the split that `ahead` reads now.
    fn begin(&mut self) {
        debug_assert!(self.carry.is_empty() && self.current.is_none());
        if let Some(index) = self.ahead.split() {
            self.skipping = self.parts[index].position > 0;
        }
    }

    /// The split at hand is read.
    fn finish(&mut self, index: usize, disk: &mut dyn millstream_state::io::Disk) {
        let part = &mut self.parts[index];
        part.ended = true;
        part.position = part.position.max(part.file.end);
        self.carry.clear();
        if let Some(current) = self.current.take() {
            disk.recycle(current.block.buffer);
        }
        self.ahead.finish();
        self.look_ahead();
        self.begin();
    }

    /// Looks for the first line start at or behind the split's position.
    fn skip(&mut self, index: usize) -> Step {
        let part = &mut self.parts[index];
        let Some(current) = &mut self.current else { return Step::NeedBlock };
        let block = &current.block;
        let Some(found) = memchr(b'\n', &block.buffer[current.cursor..block.filled]) else {
            current.cursor = block.filled;
            return if block.base + block.filled as u64 >= part.file.end { Step::Finished(0) } else { Step::NeedBlock };
        };
        current.cursor += found + 1;
        part.position = block.base + current.cursor as u64;
        self.skipping = false;
        if part.position >= part.file.end { Step::Finished(0) } else { Step::Lines(0) }
    }

    /// Hands out at most `max` lines of the block at hand.
    fn step(&mut self, index: usize, max: usize, push: &mut impl FnMut(L::Of<'_>)) -> Result<Step> {
        if self.skipping {
            return Ok(self.skip(index));
        }
        let part = &mut self.parts[index];
        let Some(current) = &mut self.current else { return Ok(Step::NeedBlock) };
        let Block { ref buffer, base, filled } = current.block;
        let bytes = &buffer[..filled];
        let emit = EmitSettings { settings: &self.settings, path: &part.file.path };
        let line_bytes_max = self.settings.line_bytes_max;
        self.last.0 = index;

        if !self.carry.is_empty() {
            let end = memchr(b'\n', &bytes[current.cursor..]).map(|found| current.cursor + found);
            self.carry.extend_from_slice(&bytes[current.cursor..end.unwrap_or(filled)]);
            if self.carry.len() > line_bytes_max {
                return Err(too_long(&part.file, part.position, line_bytes_max));
            }
            let is_last = end.is_none() && base + filled as u64 == part.file.length;
            current.cursor = end.map_or(filled, |end| end + 1);
            if end.is_none() && !is_last {
                return Ok(Step::NeedBlock);
            }
            let whole = 0..without_return(&self.carry, 0, self.carry.len(), end.is_some());
            let batch = Batch { bytes: &self.carry, lines: &[whole], base: part.position };
            let count = L::emit(batch, &emit, &mut self.last.1, push)?;
            self.carry.clear();
            part.position = base + current.cursor as u64;
            let over = is_last || part.position >= part.file.end;
            return Ok(if over { Step::Finished(count) } else { Step::Lines(count) });
        }

        self.lines.clear();
        let mut start = current.cursor;
        let mut over = false;
        for found in memchr_iter(b'\n', &bytes[current.cursor..]).take(max.min(BATCH_LINES)) {
            let end = current.cursor + found;
            if end - start > line_bytes_max {
                return Err(too_long(&part.file, base + start as u64, line_bytes_max));
            }
            self.lines.push(offset(start)..without_return(bytes, start, end, true));
            start = end + 1;
            if base + start as u64 >= part.file.end {
                over = true;
                break;
            }
        }
        if self.lines.is_empty() {
            // No end in the rest of the block.
            let rest = &bytes[start..];
            if rest.len() > line_bytes_max {
                return Err(too_long(&part.file, part.position, line_bytes_max));
            }
            if base + (filled as u64) < part.file.length {
                self.carry.extend_from_slice(rest);
                current.cursor = filled;
                return Ok(Step::NeedBlock);
            }
            if rest.is_empty() {
                return Ok(Step::Finished(0));
            }
            self.lines.push(offset(start)..offset(filled));
            start = filled;
            over = true;
        }
        let count = L::emit(Batch { bytes, lines: &self.lines, base }, &emit, &mut self.last.1, push)?;
        current.cursor = start;
        part.position = base + start as u64;
        Ok(if over { Step::Finished(count) } else { Step::Lines(count) })
    }
}

impl<L: LineItems> Reader for FileReader<L> {
    type Items = L;

    fn poll(
        &mut self,
        cx: &mut ReadContext<'_>,
        max: usize,
        push: &mut impl FnMut(<L as Items>::Of<'_>),
    ) -> Result<Polled> {
        self.ahead.turn(cx.disk)?;
        let mut count = 0;
        let mut blocks = 0;
        while count < max {
            let Some(index) = self.ahead.split() else {
                // The end is told once the last file is closed.
                return Ok(match count {
                    0 if self.ahead.is_retiring() => Polled::Pending { due_ns: None },
                    0 => Polled::Ended,
                    count => Polled::Records(count),
                });
            };
            match self.step(index, max - count, push)? {
                Step::Lines(lines) => count += lines,
                Step::Finished(lines) => {
                    count += lines;
                    self.finish(index, cx.disk);
                    self.ahead.turn(cx.disk)?;
                }
                Step::NeedBlock => {
                    if let Some(current) = self.current.take() {
                        cx.disk.recycle(current.block.buffer);
                    }
                    if blocks == BLOCKS_PER_POLL {
                        return Ok(Polled::Records(count));
                    }
                    match self.ahead.next_block(cx.disk)? {
                        Next::Block(block) => {
                            blocks += 1;
                            let part = &self.parts[index];
                            let from = match self.carry.len() as u64 {
                                0 if self.skipping => part.position - 1,
                                carried => part.position + carried,
                            };
                            let cursor = usize::try_from(from.saturating_sub(block.base)).expect("within a block");
                            self.current = Some(Current { cursor, block });
                            self.ahead.turn(cx.disk)?;
                        }
                        Next::Pending if count == 0 => return Ok(Polled::Pending { due_ns: None }),
                        Next::Pending => return Ok(Polled::Records(count)),
                        Next::Exhausted => {
                            let more = self.ahead.extend();
                            debug_assert!(more, "the end of the file was seen");
                            self.ahead.turn(cx.disk)?;
                        }
                    }
                }
            }
        }
        Ok(Polled::Records(count))
    }

    fn splits(&self, out: &mut Vec<Split>) {
        out.extend(self.parts.iter().map(|part| Split {
            id: part.id.clone(),
            position: part.position.into(),
            ended: part.ended,
        }));
    }

    fn place(&self) -> String {
        match self.parts.get(self.last.0) {
            Some(part) => format!("{} at byte {}", part.file.path.display(), self.last.1),
            None => "no input".into(),
        }
    }

    fn remaining(&self) -> Option<u64> {
        Some(self.parts.iter().map(Part::bytes_left).sum())
    }
}

#[inline]
fn offset(at: usize) -> u32 {
    u32::try_from(at).expect("blocks and lines are below 4 GiB")
}

/// Where the line ends whose `\n` is at `end`: before a `\r` there.
#[inline]
fn without_return(bytes: &[u8], start: usize, end: usize, has_end: bool) -> u32 {
    let cut = has_end && end > start && bytes[end - 1] == b'\r';
    offset(end - usize::from(cut))
}

fn too_long(file: &FileSplit, start: u64, line_bytes_max: usize) -> Error {
    Error::exhausted(format_args!(
        "{} at byte {start}: the line has more than {line_bytes_max} bytes; if it is text at all, FileSource::line_bytes_max raises the limit",
        file.path.display()
    ))
}
