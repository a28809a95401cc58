//! The sending end of one edge on one shard: routes each record to the shard that owns its key.

use super::freight::{HEAD_BYTES, fixed_bytes, write_any, write_fixed};
use super::{BarrierMode, CHUNK_BYTES, Channel, Freight, LogOrigin, LogPiece, OpenEdge, Outlet};
use crate::Error;
use crate::chain::Faults;
use millstream_state::table::RECORD_BYTES_MAX;
use millstream_state::{Epoch, KeyGroupCount};

/// See the module.
pub(crate) struct Outbox {
    outlets: Vec<Outlet>,
    /// How many shards the edge leads to: all, or one on an edge that does not re-partition.
    ways: u32,
    /// Which of the outlets leads to this shard itself.
    own: usize,
    key_groups: KeyGroupCount,
    edge: u32,
    shard: u32,
    shards: u32,
    /// Largest record that fits a ring, and most bytes that may wait for this shard itself.
    ring_bytes: usize,
    log_step_bytes: usize,
    scratch: Vec<u8>,
}

impl Outbox {
    pub(super) fn new(outlets: Vec<Outlet>, ends: &OpenEdge, key_groups: KeyGroupCount) -> Self {
        Self {
            ways: u32::try_from(outlets.len()).expect("shards are few"),
            outlets,
            own: ends.own,
            key_groups,
            edge: ends.edge,
            shard: ends.shard,
            shards: ends.shards,
            ring_bytes: ends.ring_bytes,
            log_step_bytes: ends.log_step_bytes(),
            scratch: Vec::with_capacity(CHUNK_BYTES),
        }
    }

    /// Sends a record to the shard that owns the key with this hash.
    #[inline(always)]
    pub(crate) fn send<W: Freight>(&mut self, hash: u64, load: &W::Load) {
        let owner = self.key_groups.owner(self.key_groups.group_of(hash), self.ways);
        let outlet = &mut self.outlets[owner as usize];
        match fixed_bytes::<W>() {
            Some(bytes) => write_fixed::<W>(hash, load, outlet.reserve(bytes)),
            None => {
                write_any::<W>(hash, load, &mut self.scratch);
                if self.scratch.len() > self.ring_bytes {
                    return self.refuse(W::PAYLOAD_BYTES_MAX);
                }
                outlet.reserve(self.scratch.len()).copy_from_slice(&self.scratch);
            }
        }
    }

    /// Names the limit that counts: that of a key, which nothing raises, or that of the exchange.
    #[cold]
    fn refuse(&self, key_bytes_max: Option<usize>) {
        let (record, limit) = (self.scratch.len(), self.ring_bytes);
        let key = record - HEAD_BYTES;
        Faults::fail(match key_bytes_max.filter(|&most| key > most) {
            Some(most) => Error::exhausted(format_args!(
                "a key of {key} bytes is above the limit of {most} bytes, which no setting raises: shorten it"
            )),
            None => {
                let needed = record.saturating_mul(self.shards as usize);
                let beyond = match record > RECORD_BYTES_MAX {
                    true => {
                        format!(" (as a value of a state it is too long all the same: {RECORD_BYTES_MAX} with its key)")
                    }
                    false => String::new(),
                };
                Error::exhausted(format_args!(
                    "a record of {record} encoded bytes is above the limit of {limit} for one record at an exchange; raise \
                     --exchange-size (exchange_bytes_per_shard) to at least {needed}{beyond}"
                ))
            }
        });
    }

    /// Publishes everything gathered.
    pub(crate) fn publish(&mut self) {
        self.outlets.iter_mut().for_each(Outlet::publish);
    }

    /// Moves on what was held back; says whether the stage may take new input.
    pub(crate) fn ready(&mut self) -> bool {
        self.outlets.iter_mut().for_each(Outlet::drain);
        let Self { outlets, own, ring_bytes, .. } = self;
        outlets
            .iter()
            .enumerate()
            .all(|(way, outlet)| outlet.waiting_bytes() <= if way == *own { *ring_bytes } else { 0 })
    }

    /// Says that no more records come.
    pub(crate) fn end(&mut self) {
        self.outlets.iter_mut().for_each(Outlet::end);
    }

    /// Whether everything handed over has left.
    pub(crate) fn is_drained(&self) -> bool {
        self.outlets.iter().all(Outlet::is_drained)
    }

    /// The cut of this shard. To be called before the cut of any inbox of the shard: what goes from the shard to itself
    /// moves over to its inbox here and is logged there.
    pub(crate) fn cut(&mut self, epoch: Epoch, mode: BarrierMode) {
        self.outlets.iter_mut().for_each(|outlet| outlet.cut(epoch, mode));
    }

    /// Hands a step of what cuts have overtaken here to `log`; says whether there was any.
    pub(crate) fn log_overtaken(&mut self, log: &mut LogPiece<'_>) -> bool {
        let channel = Channel { edge: self.edge, origin: LogOrigin::HeldBack, from: self.shard };
        let mut left = self.log_step_bytes;
        for outlet in &mut self.outlets {
            left -= outlet.log_step(left, |epoch, records| log(epoch, channel, records));
        }
        left < self.log_step_bytes
    }

    /// Whether all that was held back at the cut of `epoch` is logged.
    pub(crate) fn is_logged(&self, epoch: Epoch) -> bool {
        self.outlets.iter().all(|outlet| outlet.is_logged(epoch))
    }

    /// Stops logging for an epoch that was given up, and for all before it.
    pub(crate) fn forget(&mut self, epoch: Epoch) {
        self.outlets.iter_mut().for_each(|outlet| outlet.forget(epoch));
    }

    /// Adds to `peers` the shards that have something new to look at since the last call.
    pub(crate) fn take_published(&mut self, peers: &mut Vec<u32>) {
        for (shard, outlet) in (0u32..).zip(&mut self.outlets) {
            if outlet.take_published() && !peers.contains(&shard) {
                peers.push(shard);
            }
        }
    }
}
