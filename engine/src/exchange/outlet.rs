//! The sending end of one edge towards one shard: gathers records into chunks, publishes them, holds back what does not fit.

use super::local::{Chunk, LocalQueue};
use super::{BarrierMode, CHUNK_BYTES, Placed, Signal};
use millstream_state::Epoch;
use rtrb::Producer;
use std::collections::VecDeque;

/// See the module. A chunk is only ever whole records (I4).
pub(crate) struct Outlet {
    chunk: Chunk,
    exit: Exit,
    /// Chunks that did not fit, oldest first; while there are any, newer chunks queue behind them.
    held_back: VecDeque<Vec<u8>>,
    held_back_bytes: usize,
}

enum Exit {
    /// To another shard.
    Ring {
        records: Producer<u8>,
        signals: Producer<Placed>,
        /// Signals that did not fit; nothing is published in front of them (I1).
        waiting: VecDeque<Placed>,
        /// Bytes published so far.
        published: u64,
        /// Whether something was published since [`Outlet::take_published`].
        news: bool,
    },
    /// To this shard.
    Local(LocalQueue),
}

impl Outlet {
    pub(super) fn ring(records: Producer<u8>, signals: Producer<Placed>) -> Self {
        Self::new(Exit::Ring { records, signals, waiting: VecDeque::new(), published: 0, news: false })
    }

    pub(super) fn local(queue: LocalQueue) -> Self {
        Self::new(Exit::Local(queue))
    }

    fn new(exit: Exit) -> Self {
        Self { chunk: Chunk::with_room(CHUNK_BYTES), exit, held_back: VecDeque::new(), held_back_bytes: 0 }
    }

    /// Returns room for one record of `bytes`, publishing first when the chunk is full.
    #[inline(always)]
    pub(super) fn reserve(&mut self, bytes: usize) -> &mut [u8] {
        if self.chunk.filled + bytes > self.chunk.bytes.len() {
            self.make_room(bytes);
        }
        let start = self.chunk.filled;
        self.chunk.filled += bytes;
        &mut self.chunk.bytes[start..start + bytes]
    }

    #[cold]
    #[inline(never)]
    fn make_room(&mut self, bytes: usize) {
        self.publish();
        self.chunk.grow(bytes);
    }

    /// Publishes what was gathered; what does not fit is held back.
    pub(super) fn publish(&mut self) {
        self.drain();
        if self.chunk.filled == 0 {
            return;
        }
        match &mut self.exit {
            Exit::Ring { records, waiting, published, news, .. } => {
                let bytes = self.chunk.filled;
                let in_order = self.held_back.is_empty() && waiting.is_empty();
                if in_order && records.push_entire_slice(self.chunk.records()).is_ok() {
                    *published += bytes as u64;
                    *news = true;
                } else {
                    self.held_back.push_back(self.chunk.records().to_vec());
                    self.held_back_bytes += bytes;
                }
                self.chunk.filled = 0;
            }
            Exit::Local(queue) => {
                self.chunk = queue.push(std::mem::take(&mut self.chunk));
                self.chunk.grow(CHUNK_BYTES);
            }
        }
    }

    /// Publishes what was held back, as far as there is room.
    pub(super) fn drain(&mut self) {
        let Exit::Ring { records, signals, waiting, published, news } = &mut self.exit else { return };
        while let Some(&signal) = waiting.front() {
            if signals.push(signal).is_err() {
                return;
            }
            *news = true;
            waiting.pop_front();
        }
        while let Some(chunk) = self.held_back.front() {
            if records.push_entire_slice(chunk).is_err() {
                return;
            }
            *published += chunk.len() as u64;
            *news = true;
            self.held_back_bytes -= chunk.len();
            self.held_back.pop_front();
        }
    }

    /// Says that no more records come: behind everything handed over so far.
    pub(super) fn end(&mut self) {
        self.publish();
        match &self.exit {
            Exit::Ring { published, .. } => {
                let position = published + self.held_back_bytes as u64;
                self.signal(Placed { signal: Signal::End, position });
            }
            Exit::Local(queue) => queue.end(),
        }
    }

    /// The sender's cut: publishes what fits, hands the rest to `log`, and puts the barrier behind what is published (I2).
    pub(super) fn cut(&mut self, epoch: Epoch, mode: BarrierMode, mut log: impl FnMut(&[u8])) {
        self.publish();
        if let Exit::Ring { published, .. } = self.exit {
            if !planted!(HeldBackNotLogged) {
                self.held_back.iter().for_each(|chunk| log(chunk));
            }
            self.signal(Placed { signal: Signal::Barrier { epoch, mode }, position: published });
        }
    }

    fn signal(&mut self, placed: Placed) {
        let Exit::Ring { signals, waiting, news, .. } = &mut self.exit else { return };
        if !waiting.is_empty() || signals.push(placed).is_err() {
            waiting.push_back(placed);
        }
        *news = true;
    }

    /// Bytes held back or, towards this shard, not taken yet.
    pub(super) fn waiting_bytes(&self) -> usize {
        match &self.exit {
            Exit::Ring { .. } => self.held_back_bytes,
            Exit::Local(queue) => queue.bytes(),
        }
    }

    /// Whether the receiver has something new to look at, since the last call.
    pub(super) fn take_published(&mut self) -> bool {
        match &mut self.exit {
            Exit::Ring { news, .. } => std::mem::take(news),
            Exit::Local(_) => false,
        }
    }

    /// Whether everything handed over has left.
    pub(super) fn is_drained(&self) -> bool {
        let waiting = match &self.exit {
            Exit::Ring { waiting, .. } => waiting.is_empty(),
            Exit::Local(_) => true,
        };
        self.chunk.filled == 0 && self.held_back.is_empty() && waiting
    }
}
