//! The sending end of one edge towards one shard: gathers records into chunks, publishes them, holds back what does not fit.

use super::local::{Chunk, LocalQueue, visit_runs};
use super::owed::{Owed, offset};
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
    /// What epochs that this shard has cut still need of what is held back: it stays until they have it.
    owed: Owed,
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
        Self {
            chunk: Chunk::with_room(CHUNK_BYTES),
            exit,
            held_back: VecDeque::new(),
            held_back_bytes: 0,
            owed: Owed::default(),
        }
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
        while let Some(chunk) = self.held_back.front().filter(|_| self.owed.is_empty()) {
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

    /// The sender's cut: publishes what fits and puts the barrier behind it (I2); the rest is owed to the sender's log.
    pub(super) fn cut(&mut self, epoch: Epoch, mode: BarrierMode) {
        self.publish();
        if let Exit::Ring { published, .. } = self.exit {
            self.owed.begin(epoch, published, Some(published + self.held_back_bytes as u64));
            self.signal(Placed { signal: Signal::Barrier { epoch, mode }, position: published });
        }
    }

    /// Hands up to `bytes_max` of the bytes owed to `log`; returns how many.
    pub(super) fn log_step(&mut self, bytes_max: usize, mut log: impl FnMut(Epoch, &[u8])) -> usize {
        let Exit::Ring { published, .. } = self.exit else { return 0 };
        let held_back_end = published + self.held_back_bytes as u64;
        let Some(step) = self.owed.step(held_back_end, bytes_max) else { return 0 };
        let (runs, bytes) = (self.held_back.iter().map(Vec::as_slice), step.end - step.start);
        visit_runs(published, runs, step, |start, bytes| {
            self.owed.show(start, bytes, |epoch, records| {
                if !planted!(HeldBackNotLogged) {
                    log(epoch, records);
                }
            });
        });
        offset(bytes)
    }

    /// Whether all that was held back at the cut of `epoch` is logged.
    pub(super) fn is_logged(&self, epoch: Epoch) -> bool {
        !self.owed.contains(epoch)
    }

    /// Stops logging for an epoch that was given up, and for all before it.
    pub(super) fn forget(&mut self, epoch: Epoch) {
        self.owed.forget(epoch);
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
