//! The receiving end of a stage on one shard: one chunk at a time, from each sender in turn.

use super::local::{Chunk, LocalQueue};
use super::{Channel, Inlet, LogOrigin, LogPiece, OpenEdge};
use millstream_state::Epoch;

/// See the module. The senders are every shard on every edge into the stage.
pub(crate) struct Inbox {
    senders: Vec<Sender>,
    chunk: Chunk,
    /// How far the chunk is processed.
    read: usize,
    /// Where the chunk came from.
    source: Channel,
    /// The sender to ask next.
    next: usize,
}

struct Sender {
    channel: Channel,
    way: Way,
}

enum Way {
    Ring(Inlet),
    Local(LocalQueue),
}

impl Inbox {
    /// Takes over the receiving ends of the edges into a stage. `restored` is fed before anything new: the records of the
    /// restored epoch's channel logs that this shard owns.
    ///
    /// # Panics
    /// Without an edge: the stage would have no input.
    pub(crate) fn new(edges: &mut [&mut OpenEdge], restored: Vec<u8>) -> Self {
        let mut senders = Vec::new();
        for ends in &mut *edges {
            let (edge, shard) = (ends.edge, ends.shard);
            let (inlets, queue) = ends.take_senders();
            let channel = |from| Channel { edge, origin: LogOrigin::Received, from };
            senders.push(Sender { channel: channel(shard), way: Way::Local(queue) });
            senders.extend(
                inlets.into_iter().map(|(from, inlet)| Sender { channel: channel(from), way: Way::Ring(inlet) }),
            );
        }
        let first = &edges[0];
        let source = Channel { edge: first.edge, origin: LogOrigin::Restored, from: first.shard };
        let chunk = Chunk { filled: restored.len(), bytes: restored };
        Self { senders, chunk, read: 0, source, next: 0 }
    }

    /// Looks at what has come in, records first, then signals; returns the newest barrier seen on any way.
    pub(crate) fn observe(&mut self, log: &mut LogPiece<'_>) -> Option<Epoch> {
        let mut newest = None;
        for Sender { channel, way } in &mut self.senders {
            if let Way::Ring(inlet) = way {
                newest = newest.max(inlet.observe(|epoch, records| log(epoch, *channel, records)));
            }
        }
        newest
    }

    /// Returns the unprocessed rest of the chunk at hand, or of the next one; empty when nothing has come in.
    #[inline]
    pub(crate) fn records(&mut self, log: &mut LogPiece<'_>) -> &[u8] {
        if self.read == self.chunk.filled {
            self.next_chunk(log);
        }
        &self.chunk.records()[self.read..]
    }

    /// Notes that `bytes` more of the chunk at hand are processed.
    #[inline]
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.read += bytes;
        debug_assert!(self.read <= self.chunk.filled);
    }

    fn next_chunk(&mut self, log: &mut LogPiece<'_>) {
        self.read = 0;
        self.chunk.filled = 0;
        for _ in 0..self.senders.len() {
            let Sender { channel, way } = &mut self.senders[self.next];
            let source = *channel;
            let taken = match way {
                Way::Ring(inlet) => inlet.take(&mut self.chunk, |epoch, records| log(epoch, source, records)),
                Way::Local(queue) => queue.pop(&mut self.chunk),
            };
            if taken {
                // Stays with the shard itself while there is more; a ring was emptied as far as it was visible.
                self.source = source;
                self.next = (self.next + 1) % self.senders.len();
                return;
            }
            self.next = (self.next + 1) % self.senders.len();
        }
    }

    /// The cut of this shard: everything in front of a barrier that has not come, and everything here and unprocessed,
    /// goes to `log` now or when it is seen.
    pub(crate) fn cut(&mut self, epoch: Epoch, log: &mut LogPiece<'_>) {
        let source = self.source;
        let mut unread = &self.chunk.records()[self.read..];
        if source.origin == LogOrigin::Restored && !unread.is_empty() {
            log(epoch, source, unread);
            unread = &[];
        }
        for Sender { channel, way } in &mut self.senders {
            let at_hand = if *channel == source { std::mem::take(&mut unread) } else { &[] };
            match way {
                Way::Ring(inlet) => inlet.cut(epoch, at_hand, |epoch, records| log(epoch, *channel, records)),
                Way::Local(queue) => {
                    if !at_hand.is_empty() {
                        log(epoch, *channel, at_hand);
                    }
                    if !planted!(OwnQueueNotLogged) {
                        queue.visit(|records| log(epoch, *channel, records));
                    }
                }
            }
        }
    }

    /// Stops logging for an epoch that was given up, and for all before it.
    pub(crate) fn forget(&mut self, epoch: Epoch) {
        for sender in &mut self.senders {
            if let Way::Ring(inlet) = &mut sender.way {
                inlet.forget(epoch);
            }
        }
    }

    /// Whether the barrier of `epoch`, which this shard has cut, has come from every sender: its channel log is whole.
    pub(crate) fn has_all_barriers(&self, epoch: Epoch) -> bool {
        self.senders.iter().all(|sender| match &sender.way {
            Way::Ring(inlet) => inlet.has_barrier(epoch),
            Way::Local(_) => true,
        })
    }

    /// Whether every sender has said that no more records come, and all that came are processed.
    pub(crate) fn ended(&self) -> bool {
        self.read == self.chunk.filled
            && self.senders.iter().all(|sender| match &sender.way {
                Way::Ring(inlet) => inlet.ended(),
                Way::Local(queue) => queue.ended() && queue.bytes() == 0,
            })
    }
}
