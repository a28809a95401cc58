//! The receiving end of a stage on one shard: one chunk at a time, from each sender in turn.

use super::local::{Chunk, LocalQueue};
use super::owed::{Owed, offset};
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
    /// What epochs that were cut still need of the chunk.
    owed: Owed,
    /// The sender to ask next.
    next: usize,
    log_step_bytes: usize,
}

struct Sender {
    channel: Channel,
    way: Way,
}

enum Way {
    Ring(Inlet),
    Local { queue: LocalQueue, owed: Owed },
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
            senders.push(Sender { channel: channel(shard), way: Way::Local { queue, owed: Owed::default() } });
            senders.extend(
                inlets.into_iter().map(|(from, inlet)| Sender { channel: channel(from), way: Way::Ring(inlet) }),
            );
        }
        let first = &edges[0];
        let log_step_bytes = first.log_step_bytes();
        let source = Channel { edge: first.edge, origin: LogOrigin::Restored, from: first.shard };
        let chunk = Chunk { filled: restored.len(), bytes: restored };
        Self { senders, chunk, read: 0, source, owed: Owed::default(), next: 0, log_step_bytes }
    }

    /// Looks at what has come in, records first, then signals; returns the newest barrier seen on any way.
    pub(crate) fn observe(&mut self) -> Option<Epoch> {
        let mut newest = None;
        for sender in &mut self.senders {
            if let Way::Ring(inlet) = &mut sender.way {
                newest = newest.max(inlet.observe());
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
        let used = self.source;
        self.owed.show(0, self.chunk.records(), |epoch, records| log(epoch, used, records));
        self.read = 0;
        self.chunk.filled = 0;
        for _ in 0..self.senders.len() {
            let Sender { channel, way } = &mut self.senders[self.next];
            let source = *channel;
            let taken = match way {
                Way::Ring(inlet) => inlet.take(&mut self.chunk, |epoch, records| log(epoch, source, records)),
                Way::Local { queue, owed } => {
                    let start = queue.positions().start;
                    let popped = queue.pop(&mut self.chunk);
                    owed.show(start, self.chunk.records(), |epoch, records| log_own(log, epoch, source, records));
                    popped
                }
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

    /// The cut of this shard: everything in front of a barrier that has not come, and everything here and unprocessed, is
    /// owed to the log of `epoch`.
    pub(crate) fn cut(&mut self, epoch: Epoch) {
        self.owed.begin(epoch, self.read as u64, Some(self.chunk.filled as u64));
        for sender in &mut self.senders {
            match &mut sender.way {
                Way::Ring(inlet) => inlet.cut(epoch),
                Way::Local { queue, owed } => {
                    let positions = queue.positions();
                    owed.begin(epoch, positions.start, Some(positions.end));
                }
            }
        }
    }

    /// Hands a step of what cuts have overtaken here to `log`; says whether there was any.
    pub(crate) fn log_overtaken(&mut self, log: &mut LogPiece<'_>) -> bool {
        let mut left = self.log_step_bytes;
        // The rest of the chunk came in front of what its sender sent later.
        if let Some(step) = self.owed.step(self.chunk.filled as u64, left) {
            let bytes = &self.chunk.records()[offset(step.start)..offset(step.end)];
            left -= bytes.len();
            let source = self.source;
            self.owed.show(step.start, bytes, |epoch, records| log(epoch, source, records));
        }
        if !self.owed.is_empty() {
            return true;
        }
        for Sender { channel, way } in &mut self.senders {
            left -= match way {
                Way::Ring(inlet) => inlet.log_step(left, |epoch, records| log(epoch, *channel, records)),
                Way::Local { queue, owed } => {
                    let Some(step) = owed.step(queue.positions().end, left) else { continue };
                    let bytes = offset(step.end - step.start);
                    queue.visit(step, |start, bytes| {
                        owed.show(start, bytes, |epoch, records| log_own(log, epoch, *channel, records));
                    });
                    bytes
                }
            };
        }
        left < self.log_step_bytes
    }

    /// Stops logging for an epoch that was given up, and for all before it.
    pub(crate) fn forget(&mut self, epoch: Epoch) {
        self.owed.forget(epoch);
        for sender in &mut self.senders {
            match &mut sender.way {
                Way::Ring(inlet) => inlet.forget(epoch),
                Way::Local { owed, .. } => owed.forget(epoch),
            }
        }
    }

    /// Whether the barrier of `epoch`, which this shard has cut, has come from every sender, and its channel log is whole.
    pub(crate) fn is_logged(&self, epoch: Epoch) -> bool {
        let sender_is_logged = |sender: &Sender| match &sender.way {
            Way::Ring(inlet) => inlet.is_logged(epoch),
            Way::Local { owed, .. } => !owed.contains(epoch),
        };
        !self.owed.contains(epoch) && self.senders.iter().all(sender_is_logged)
    }

    /// Whether every sender has said that no more records come, and all that came are processed.
    pub(crate) fn ended(&self) -> bool {
        self.read == self.chunk.filled
            && self.senders.iter().all(|sender| match &sender.way {
                Way::Ring(inlet) => inlet.ended(),
                Way::Local { queue, .. } => queue.ended() && queue.bytes() == 0,
            })
    }
}

/// Logs what was on its way from the shard to itself.
fn log_own(log: &mut LogPiece<'_>, epoch: Epoch, channel: Channel, records: &[u8]) {
    if !planted!(OwnQueueNotLogged) {
        log(epoch, channel, records);
    }
}
