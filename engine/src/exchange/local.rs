//! What a shard sends to itself: chunks handed over without a copy.

use super::owed::offset;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

/// Wire bytes of whole records, in a buffer that goes round.
#[derive(Default)]
pub(super) struct Chunk {
    pub bytes: Vec<u8>,
    pub filled: usize,
}

impl Chunk {
    /// A chunk with room for `bytes`.
    pub(super) fn with_room(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes], filled: 0 }
    }

    /// The records in it.
    pub(super) fn records(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    /// Makes room for `bytes` in all, keeping what is filled.
    pub(super) fn grow(&mut self, bytes: usize) {
        if self.bytes.len() < bytes {
            self.bytes.resize(bytes, 0);
        }
    }
}

/// Chunks between two stages of one shard. Shared by the sending and the receiving stage, borrowed once per chunk.
#[derive(Clone, Default)]
pub(super) struct LocalQueue(Rc<RefCell<Inner>>);

#[derive(Default)]
struct Inner {
    chunks: VecDeque<Chunk>,
    /// Bytes in them.
    bytes: usize,
    /// Bytes ever taken.
    taken: u64,
    spare: Vec<Chunk>,
    ended: bool,
}

impl LocalQueue {
    /// Hands over a chunk of whole records; returns an empty one for the next.
    pub(super) fn push(&self, chunk: Chunk) -> Chunk {
        let mut inner = self.0.borrow_mut();
        inner.bytes += chunk.filled;
        inner.chunks.push_back(chunk);
        inner.spare.pop().unwrap_or_default()
    }

    /// Replaces `used` by the oldest chunk, if there is one.
    pub(super) fn pop(&self, used: &mut Chunk) -> bool {
        let mut inner = self.0.borrow_mut();
        let Some(chunk) = inner.chunks.pop_front() else { return false };
        inner.bytes -= chunk.filled;
        inner.taken += chunk.filled as u64;
        let mut spare = std::mem::replace(used, chunk);
        spare.filled = 0;
        inner.spare.push(spare);
        true
    }

    /// Bytes under way.
    pub(super) fn bytes(&self) -> usize {
        self.0.borrow().bytes
    }

    /// Where the bytes under way stand among all that ever were.
    pub(super) fn positions(&self) -> Range<u64> {
        let inner = self.0.borrow();
        inner.taken..inner.taken + inner.bytes as u64
    }

    /// Hands the bytes at `positions`, which are under way, to `visit` and leaves them there.
    pub(super) fn visit(&self, positions: Range<u64>, visit: impl FnMut(u64, &[u8])) {
        let inner = self.0.borrow();
        visit_runs(inner.taken, inner.chunks.iter().map(Chunk::records), positions, visit);
    }

    /// Notes that no more chunks come.
    pub(super) fn end(&self) {
        self.0.borrow_mut().ended = true;
    }

    /// Whether no more chunks come (some may still be under way).
    pub(super) fn ended(&self) -> bool {
        self.0.borrow().ended
    }
}

/// Hands the parts at `positions` of runs of bytes, the first of which begins at `start`, to `visit` with their positions.
pub(super) fn visit_runs<'a>(
    mut start: u64,
    runs: impl Iterator<Item = &'a [u8]>,
    positions: Range<u64>,
    mut visit: impl FnMut(u64, &[u8]),
) {
    for run in runs {
        let end = start + run.len() as u64;
        let part = positions.start.max(start)..positions.end.min(end);
        if !part.is_empty() {
            visit(part.start, &run[offset(part.start - start)..offset(part.end - start)]);
        }
        if end >= positions.end {
            return;
        }
        start = end;
    }
}
