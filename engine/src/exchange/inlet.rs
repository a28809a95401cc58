//! The receiving end of one edge from one other shard.

use super::local::Chunk;
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
    /// Epochs this shard has cut and whose barrier has not come here yet, oldest first.
    logging: Vec<Epoch>,
    end: Option<u64>,
}

impl Inlet {
    pub(super) fn new(records: Consumer<u8>, signals: Consumer<Placed>) -> Self {
        Self { records, signals, taken: 0, visible: 0, barrier: None, logging: Vec::with_capacity(2), end: None }
    }

    /// Looks at what has come in; returns the newest barrier ever seen here.
    ///
    /// A barrier that this shard is logging for ends its log: the records up to it are handed to `log` now.
    pub(super) fn observe(&mut self, mut log: impl FnMut(Epoch, &[u8])) -> Option<Epoch> {
        self.visible = self.records.slots();
        if planted!(SignalsBeforeRecords) && self.visible > 0 && self.taken.is_multiple_of(2) {
            // As if the signals had been read before these records were published.
            return self.barrier.map(|(epoch, _)| epoch);
        }
        while let Ok(Placed { signal, position }) = self.signals.pop() {
            match signal {
                Signal::Barrier { epoch, .. } => {
                    self.barrier = Some((epoch, position));
                    let logged = self.logging.iter().take_while(|&&logging| logging <= epoch).count();
                    for ended in self.logging.drain(..logged) {
                        if !planted!(OvertakenNotLogged) {
                            visit_front(&mut self.records, self.taken, position, |records| log(ended, records));
                        }
                    }
                }
                Signal::End => self.end = Some(position),
            }
        }
        self.barrier.map(|(epoch, _)| epoch)
    }

    /// This shard's cut of `epoch`. `unread` is the rest of what was taken from here and is not processed yet.
    pub(super) fn cut(&mut self, epoch: Epoch, unread: &[u8], mut log: impl FnMut(Epoch, &[u8])) {
        if !unread.is_empty() {
            log(epoch, unread);
        }
        match self.barrier {
            Some((seen, position)) if seen >= epoch => {
                if !planted!(OvertakenNotLogged) {
                    visit_front(&mut self.records, self.taken, position, |records| log(epoch, records));
                }
            }
            _ => self.logging.push(epoch),
        }
    }

    /// Stops logging for an epoch that was given up, and for all before it.
    pub(super) fn forget(&mut self, epoch: Epoch) {
        self.logging.retain(|&logging| logging > epoch);
    }

    /// Whether the barrier of `epoch`, which this shard has cut, has come.
    pub(super) fn has_barrier(&self, epoch: Epoch) -> bool {
        !self.logging.contains(&epoch)
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
        self.taken += bytes as u64;
        for &epoch in &self.logging {
            if !planted!(OvertakenNotLogged) {
                log(epoch, chunk.records());
            }
        }
        true
    }

    /// Whether everything that will ever come was taken.
    pub(super) fn ended(&self) -> bool {
        self.end == Some(self.taken)
    }
}

/// Shows the bytes of a ring from `taken` up to `position` without taking them, as whole records.
fn visit_front(ring: &mut Consumer<u8>, taken: u64, position: u64, mut visit: impl FnMut(&[u8])) {
    let bytes = match position.checked_sub(taken) {
        Some(bytes) => bytes,
        None if planted!(SignalsBeforeRecords) => 0,
        None => panic!("a byte behind a barrier was taken before it was seen (I1)"),
    };
    let bytes = usize::try_from(bytes).expect("below the ring's capacity");
    let chunk = ring.read_chunk(bytes).expect("published before the barrier (I2)");
    match chunk.as_slices() {
        ([], []) => {}
        (front, []) => visit(front),
        // A record may lie across the end of the ring.
        (front, back) => visit(&[front, back].concat()),
    }
}
