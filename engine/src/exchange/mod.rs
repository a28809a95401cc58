//! The exchange: records re-partitioned by key between shards, and the signals that travel with them.
//!
//! One single-producer single-consumer ring of bytes per (edge, from shard, to shard), written and read in chunks of whole
//! records, and beside it a small ring of `Signal`s. A shard sending to itself takes the same path without the rings.
//!
//! Invariants
//! * I1. A signal stands in its ring before any record behind it is published; the receiver loads the data tail first and
//!   the signals after, so whatever it sees of the data, it has seen every signal in front of it.
//! * I2. Positions count bytes handed to one ring. A barrier stands at the bytes *published* when its sender cut; what
//!   the sender still held back then is in the sender's own channel log, and is published behind the barrier.
//! * I3. A receiver takes its cut before it touches a byte behind a barrier it has seen. Everything between its cut and the
//!   barrier's position goes to its channel log, taken or not: a stalled receiver stalls no epoch.
//! * I4. Bytes are published in whole records, in the order in which they were handed over.
//! * I5. Nothing blocks. What a full ring does not take waits in the sender's overflow, and its stage takes no new input.

mod freight;
mod inbox;
mod inlet;
mod local;
mod outbox;
mod outlet;
mod owed;

pub use freight::{Freight, KeyFreight, RecordFreight};

pub(crate) use freight::{Batch, BatchParts, check_log, parse};
pub(crate) use inbox::Inbox;
pub(crate) use outbox::Outbox;

use inlet::Inlet;
use local::LocalQueue;
use millstream_state::shard_store::ChannelId;
use millstream_state::{Epoch, KeyGroupCount};
use outlet::Outlet;
use rtrb::{Consumer, Producer, RingBuffer};

/// Bytes that a sender gathers for one receiver before it publishes them: 256 records of 16 bytes.
pub(crate) const CHUNK_BYTES: usize = 4096;

/// Least capacity of a ring in bytes; also the largest record that may cross an exchange with the default settings.
pub(crate) const RING_BYTES_MIN: usize = 64 << 10;
const _: () = assert!(RING_BYTES_MIN >= CHUNK_BYTES);

/// Signals that may wait in one ring; a receiver reads them every turn, even when it takes no records.
const RING_SIGNALS: usize = 64;

/// How barriers and records are ordered against each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub(crate) enum BarrierMode {
    /// A barrier acts as soon as it is seen, and what it overtook is logged.
    NonBlocking,
}

/// What travels with the records of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Signal {
    /// The sender took the cut that ends this epoch.
    Barrier { epoch: Epoch, mode: BarrierMode },
    /// The sender will send no more records.
    End,
}

/// A signal and the byte position it stands at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Placed {
    signal: Signal,
    position: u64,
}

/// Where a piece of a channel log comes from; pieces of one edge are fed in this order after a restore.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum LogOrigin {
    /// The unfed rest of a log that was restored.
    Restored = 0,
    /// Overtaken by a barrier, logged by the receiver.
    Received = 1,
    /// Held back by a full ring, logged by the sender.
    HeldBack = 2,
}

/// Which records a piece of a channel log holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Channel {
    /// Number of the edge in the job.
    pub edge: u32,
    /// How the records came into the log.
    pub origin: LogOrigin,
    /// The shard that sent them.
    pub from: u32,
}

impl Channel {
    const ORIGINS: u32 = 3;

    /// The channel as the store numbers it.
    pub(crate) const fn to_id(self) -> ChannelId {
        ChannelId { edge: self.edge * Self::ORIGINS + self.origin as u32, from: self.from }
    }

    /// The channel of a store's number.
    pub(crate) const fn from_id(id: ChannelId) -> Self {
        let origin = match id.edge % Self::ORIGINS {
            0 => LogOrigin::Restored,
            1 => LogOrigin::Received,
            _ => LogOrigin::HeldBack,
        };
        Self { edge: id.edge / Self::ORIGINS, origin, from: id.from }
    }
}

/// Takes pieces of channel logs. All pieces of a channel together are whole records as they stand on the wire.
pub(crate) type LogPiece<'a> = dyn FnMut(Epoch, Channel, &[u8]) + 'a;

/// The ends of one edge that one shard owns, on their way to its thread.
pub(crate) struct EdgeEnds {
    edge: u32,
    shard: u32,
    shards: u32,
    ring_bytes: usize,
    /// Towards each receiving shard; nothing towards the shard itself. Empty on an edge that does not re-partition.
    outlets: Vec<Option<(Producer<u8>, Producer<Placed>)>>,
    /// From each other shard.
    inlets: Vec<(u32, Consumer<u8>, Consumer<Placed>)>,
}

/// Makes an edge that re-partitions between `shards` shards, with rings of `ring_bytes`; one part for each shard.
pub(crate) fn exchange_edge(edge: u32, shards: u32, ring_bytes: usize) -> Vec<EdgeEnds> {
    let mut parts = forward_edge(edge, shards, ring_bytes);
    for from in 0..shards {
        for to in 0..shards {
            if from == to {
                parts[from as usize].outlets.push(None);
            } else {
                let (records, records_out) = RingBuffer::new(ring_bytes);
                let (signals, signals_out) = RingBuffer::new(RING_SIGNALS);
                parts[from as usize].outlets.push(Some((records, signals)));
                parts[to as usize].inlets.push((from, records_out, signals_out));
            }
        }
    }
    parts
}

/// Makes an edge on which every record stays on its shard; one part for each shard.
pub(crate) fn forward_edge(edge: u32, shards: u32, ring_bytes: usize) -> Vec<EdgeEnds> {
    let part = |shard| EdgeEnds { edge, shard, shards, ring_bytes, outlets: Vec::new(), inlets: Vec::new() };
    (0..shards).map(part).collect()
}

/// The ends of one edge on their shard's thread, until the two stages that they belong to take them.
pub(crate) struct OpenEdge {
    edge: u32,
    shard: u32,
    shards: u32,
    ring_bytes: usize,
    outlets: Vec<Outlet>,
    /// Which of the outlets leads to this shard itself.
    own: usize,
    inlets: Vec<(u32, Inlet)>,
    /// From the shard to itself.
    queue: LocalQueue,
}

impl EdgeEnds {
    /// Connects the shard to itself, on its own thread.
    pub(crate) fn open(self) -> OpenEdge {
        let queue = LocalQueue::default();
        let local = || Outlet::local(queue.clone());
        let re_partitions = !self.outlets.is_empty();
        let outlets = if re_partitions {
            let ways = self.outlets.into_iter();
            ways.map(|way| way.map_or_else(local, |(records, signals)| Outlet::ring(records, signals))).collect()
        } else {
            vec![local()]
        };
        let inlets = self.inlets.into_iter();
        OpenEdge {
            edge: self.edge,
            shard: self.shard,
            shards: self.shards,
            ring_bytes: self.ring_bytes,
            outlets,
            own: if re_partitions { self.shard as usize } else { 0 },
            inlets: inlets.map(|(from, records, signals)| (from, Inlet::new(records, signals))).collect(),
            queue,
        }
    }
}

impl OpenEdge {
    /// Takes the sending end.
    pub(crate) fn take_outbox(&mut self, key_groups: KeyGroupCount) -> Outbox {
        Outbox::new(std::mem::take(&mut self.outlets), self, key_groups)
    }

    /// Bytes that one end copies to channel logs in a turn: a microsecond or two, so that a cut makes no long gap afterwards
    /// either.
    fn log_step_bytes(&self) -> usize {
        self.ring_bytes / 16
    }

    /// Takes the receiving end: every sender with its way.
    fn take_senders(&mut self) -> (Vec<(u32, Inlet)>, LocalQueue) {
        (std::mem::take(&mut self.inlets), self.queue.clone())
    }
}
