//! What a shard sends to itself: chunks handed over without a copy.

use std::cell::RefCell;
use std::collections::VecDeque;
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
    bytes: usize,
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
        let mut spare = std::mem::replace(used, chunk);
        spare.filled = 0;
        inner.spare.push(spare);
        true
    }

    /// Bytes under way.
    pub(super) fn bytes(&self) -> usize {
        self.0.borrow().bytes
    }

    /// Hands every chunk under way to `visit`, oldest first, and leaves them there.
    pub(super) fn visit(&self, mut visit: impl FnMut(&[u8])) {
        self.0.borrow().chunks.iter().for_each(|chunk| visit(chunk.records()));
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
