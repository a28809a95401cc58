//! The receiving end of one edge from one other shard.

use super::local::Chunk;
use super::owed::{Owed, offset};
use super::{Placed, Signal};
use millstream_state::Epoch;
use rtrb::Consumer;

/// See the module.
pub(crate) struct Inlet {
    records: Consumer<u8>,
    signals: Consumer<Placed>,
    /// Bytes taken out of the ring so far.
    taken: u64,
    /// Bytes that may be taken: seen before the signals were read (I1).
    visible: usize,
    /// The newest barrier seen, and where it stands.
    barrier: Option<(Epoch, u64)>,
    /// What epochs that this shard has cut still need of the ring.
    owed: Owed,
    end: Option<u64>,
}

impl Inlet {
    pub(super) fn new(records: Consumer<u8>, signals: Consumer<Placed>) -> Self {
        Self { records, signals, taken: 0, visible: 0, barrier: None, owed: Owed::default(), end: None }
    }

    /// Looks at what has come in; returns the newest barrier ever seen here.
    pub(super) fn observe(&mut self) -> Option<Epoch> {
        self.visible = self.records.slots();
        if planted!(SignalsBeforeRecords) && self.visible > 0 && self.taken.is_multiple_of(2) {
            // As if the signals had been read before these records were published.
            return self.barrier.map(|(epoch, _)| epoch);
        }
        while let Ok(Placed { signal, position }) = self.signals.pop() {
            match signal {
                Signal::Barrier { epoch, .. } => {
                    self.barrier = Some((epoch, position));
                    self.owed.barrier(epoch, position);
                }
                Signal::End => self.end = Some(position),
            }
        }
        self.barrier.map(|(epoch, _)| epoch)
    }

    /// This shard's cut of `epoch`: what is in front of its barrier and was not taken yet is owed to its log.
    pub(super) fn cut(&mut self, epoch: Epoch) {
        let barrier = self.barrier.filter(|(seen, _)| *seen >= epoch);
        self.owed.begin(epoch, self.taken, barrier.map(|(_, position)| position));
    }

    /// Hands up to `bytes_max` of the bytes owed to `log`; returns how many.
    pub(super) fn log_step(&mut self, bytes_max: usize, mut log: impl FnMut(Epoch, &[u8])) -> usize {
        let Some(step) = self.owed.step(self.taken + self.visible as u64, bytes_max) else { return 0 };
        let (front, back) = (offset(step.start - self.taken), offset(step.end - self.taken));
        let chunk = self.records.read_chunk(back).expect("visible");
        let (first, second) = chunk.as_slices();
        let mut show = |start: usize, bytes: &[u8]| {
            self.owed.show(self.taken + start as u64, bytes, |epoch, records| {
                if !planted!(OvertakenNotLogged) {
                    log(epoch, records);
                }
            });
        };
        // A step may lie across the end of the ring.
        show(front.min(first.len()), &first[front.min(first.len())..]);
        show(front.max(first.len()), &second[front.saturating_sub(first.len())..]);
        back - front
    }

    /// Stops logging for an epoch that was given up, and for all before it.
    pub(super) fn forget(&mut self, epoch: Epoch) {
        self.owed.forget(epoch);
    }

    /// Whether the barrier of `epoch`, which this shard has cut, has come, and all in front of it is logged.
    pub(super) fn is_logged(&self, epoch: Epoch) -> bool {
        !self.owed.contains(epoch)
    }

    /// Moves everything visible into `chunk`; says whether there was anything.
    pub(super) fn take(&mut self, chunk: &mut Chunk, mut log: impl FnMut(Epoch, &[u8])) -> bool {
        let bytes = std::mem::take(&mut self.visible);
        if bytes == 0 {
            return false;
        }
        chunk.grow(bytes);
        self.records.pop_entire_slice(&mut chunk.bytes[..bytes]).expect("seen before");
        chunk.filled = bytes;
        self.owed.show(self.taken, chunk.records(), |epoch, records| {
            if !planted!(OvertakenNotLogged) {
                log(epoch, records);
            }
        });
        self.taken += bytes as u64;
        true
    }

    /// Whether everything that will ever come was taken.
    pub(super) fn ended(&self) -> bool {
        self.end == Some(self.taken)
    }
}
