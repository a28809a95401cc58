//! Records that a barrier has overtaken: per epoch and channel a run of bytes, written with the epoch's snapshot.
//!
//! Invariants
//! * I1. The bytes of a channel come back from a restore in the order in which they were appended.
//! * I2. A log belongs to one epoch only; it is dropped when that epoch is durable, has failed or was given up.

//!
//! Cost: a copy. Buffers go round and are touched before they are needed: a cut appends up to a ring of bytes, and fresh
//! memory would cost it a microsecond for every 4 KiB.

use crate::epoch::Epoch;
use std::collections::{BTreeMap, VecDeque};

/// A channel: an edge of the job and the shard that sends on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChannelId {
    /// Number of the edge.
    pub edge: u32,
    /// The sending shard.
    pub from: u32,
}

/// Bytes of one extent, to be written.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) channel: ChannelId,
    /// Position of the first byte in its channel's log.
    pub(super) position: u64,
    pub(super) bytes: Vec<u8>,
}

/// Size at which a chunk is ready to be written.
const CHUNK_BYTES: usize = 128 << 10;
/// Buffers made at the start, and most that are kept.
const SPARE_BUFFERS: usize = 4;

#[derive(Default)]
struct EpochLog {
    growing: BTreeMap<ChannelId, Chunk>,
    ready: VecDeque<Chunk>,
    is_sealed: bool,
}

/// The channel logs of the epochs in flight.
pub(super) struct ChannelLogs {
    epochs: BTreeMap<Epoch, EpochLog>,
    /// Empty buffers of [`CHUNK_BYTES`].
    spare: Vec<Vec<u8>>,
}

impl Default for ChannelLogs {
    fn default() -> Self {
        let touched = || {
            let mut buffer = vec![0xff; CHUNK_BYTES];
            buffer.clear();
            buffer
        };
        Self { epochs: BTreeMap::new(), spare: (0..SPARE_BUFFERS).map(|_| touched()).collect() }
    }
}

impl ChannelLogs {
    /// Appends to the log of a channel; returns the bytes that this takes in memory.
    pub(super) fn append(&mut self, epoch: Epoch, channel: ChannelId, bytes: &[u8]) {
        let Self { epochs, spare } = self;
        let log = epochs.entry(epoch).or_default();
        assert!(!log.is_sealed, "channel logs of epoch {epoch} are sealed");
        let mut buffer = || spare.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK_BYTES));
        let mut rest = bytes;
        while !rest.is_empty() {
            let chunk = log.growing.entry(channel).or_insert_with(|| Chunk { channel, position: 0, bytes: buffer() });
            let (now, later) = rest.split_at(rest.len().min(CHUNK_BYTES - chunk.bytes.len()));
            chunk.bytes.extend_from_slice(now);
            rest = later;
            if chunk.bytes.len() == CHUNK_BYTES {
                let next = Chunk { channel, position: chunk.position + CHUNK_BYTES as u64, bytes: buffer() };
                log.ready.push_back(std::mem::replace(chunk, next));
            }
        }
    }

    /// Nothing more will be appended to the logs of `epoch`.
    pub(super) fn seal(&mut self, epoch: Epoch) {
        let log = self.epochs.entry(epoch).or_default();
        assert!(!log.is_sealed, "channel logs of epoch {epoch} are sealed twice");
        log.is_sealed = true;
        log.ready.extend(std::mem::take(&mut log.growing).into_values().filter(|chunk| !chunk.bytes.is_empty()));
    }

    pub(super) fn is_sealed(&self, epoch: Epoch) -> bool {
        self.epochs.get(&epoch).is_some_and(|log| log.is_sealed)
    }

    /// The next chunk to write.
    pub(super) fn front(&self, epoch: Epoch) -> Option<&Chunk> {
        self.epochs.get(&epoch)?.ready.front()
    }

    /// Forgets the chunk that [`ChannelLogs::front`] returned.
    pub(super) fn pop(&mut self, epoch: Epoch) {
        let log = self.epochs.get_mut(&epoch).expect("a chunk was at the front");
        let Chunk { mut bytes, .. } = log.ready.pop_front().expect("a chunk was at the front");
        if self.spare.len() < SPARE_BUFFERS {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// Forgets the logs of an epoch.
    pub(super) fn drop_epoch(&mut self, epoch: Epoch) {
        self.epochs.remove(&epoch);
    }

    /// Forgets the logs of every epoch up to this one.
    pub(super) fn drop_through(&mut self, epoch: Epoch) {
        self.epochs = self.epochs.split_off(&epoch.next());
    }

    /// Bytes of logs held in memory; empty buffers are not counted.
    pub(super) fn bytes(&self) -> u64 {
        let logs = self.epochs.values();
        let chunks = logs.flat_map(|log| log.growing.values().chain(&log.ready));
        chunks.map(|chunk| chunk.bytes.capacity() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chunks_of_a_channel_are_its_bytes_in_order() {
        let mut logs = ChannelLogs::default();
        let channels = [ChannelId { edge: 1, from: 0 }, ChannelId { edge: 1, from: 3 }];
        let mut expected: BTreeMap<ChannelId, Vec<u8>> = BTreeMap::new();
        for n in 0..300usize {
            let channel = channels[n % 2];
            let bytes = vec![n as u8; n * 7 % 5_000];
            logs.append(Epoch(4), channel, &bytes);
            expected.entry(channel).or_default().extend(bytes);
        }
        logs.append(Epoch(5), channels[0], b"of another epoch");
        logs.seal(Epoch(4));
        assert!(logs.is_sealed(Epoch(4)) && !logs.is_sealed(Epoch(5)));
        let mut found: BTreeMap<ChannelId, Vec<u8>> = BTreeMap::new();
        while let Some(chunk) = logs.front(Epoch(4)) {
            let bytes = found.entry(chunk.channel).or_default();
            assert_eq!(bytes.len() as u64, chunk.position);
            bytes.extend_from_slice(&chunk.bytes);
            logs.pop(Epoch(4));
        }
        assert!(found == expected);
        logs.drop_through(Epoch(4));
        assert!(logs.bytes() > 0 && logs.front(Epoch(4)).is_none());
        logs.drop_epoch(Epoch(5));
        assert_eq!(logs.bytes(), 0);
    }
}
