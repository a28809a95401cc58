//! The segment files that the extents of living and held pages lie in, and how much of each is still of use.
//!
//! Invariants
//! * I1. `used` of a file is the bytes of the extents that pages of this shard have in it; a file without any is forgotten.
//! * I2. Every extent added is given up once.
//! * I3. An extent that was replaced is given up when no epoch before the replacement is pending: those may name it.

use crate::epoch::Epoch;
use crate::format::{ExtentEntry, SegmentId};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Default)]
struct Use {
    used: u64,
    /// Up to the end of the last extent ever seen in it.
    length: u64,
}

/// Which files hold what this shard needs.
#[derive(Default)]
pub(crate) struct Files {
    uses: BTreeMap<SegmentId, Use>,
    used: u64,
    /// Extents given up since the last call of [`Files::take_released`]: the file of each.
    released: Vec<SegmentId>,
    replaced: Vec<(Epoch, SegmentId)>,
}

impl Files {
    pub(super) fn add(&mut self, extent: &ExtentEntry) {
        let file = self.uses.entry(extent.segment).or_default();
        file.used += extent.bytes() as u64;
        self.used += extent.bytes() as u64;
        file.length = file.length.max(extent.offset + extent.bytes() as u64);
    }

    pub(super) fn give_up(&mut self, extent: &ExtentEntry) {
        self.subtract(extent);
        self.released.push(extent.segment);
    }

    pub(super) fn give_up_after(&mut self, extent: &ExtentEntry, epoch: Epoch) {
        self.subtract(extent);
        self.replaced.push((epoch, extent.segment));
    }

    fn subtract(&mut self, extent: &ExtentEntry) {
        let file = self.uses.get_mut(&extent.segment).expect("I2");
        file.used -= extent.bytes() as u64;
        self.used -= extent.bytes() as u64;
        if file.used == 0 {
            self.uses.remove(&extent.segment);
        }
    }

    /// An epoch has ended; `oldest` is the oldest that is still pending (I3).
    pub(crate) fn epoch_ended(&mut self, oldest: Option<Epoch>) {
        let released = &mut self.released;
        self.replaced.retain(|(epoch, segment)| {
            let may_be_named = oldest.is_some_and(|oldest| oldest < *epoch);
            if !may_be_named {
                released.push(*segment);
            }
            may_be_named
        });
    }

    /// The files of extents that were given up since the last call, one for each.
    pub(crate) fn take_released(&mut self) -> std::vec::Drain<'_, SegmentId> {
        self.released.drain(..)
    }

    /// Bytes that files take on the disk, and of the extents in them that are of use. A file takes `allocated_min` bytes
    /// however little was written to it; those for which `skip` says so count as gone.
    pub(crate) fn bytes(&self, allocated_min: u64, skip: impl Fn(SegmentId) -> bool) -> (u64, u64) {
        let there = self.uses.iter().filter(|(id, _)| !skip(**id));
        (there.map(|(_, file)| file.length.max(allocated_min)).sum(), self.used)
    }

    /// The file with the smallest share of its bytes in use and how many those are; not the newest, which is being written,
    /// nor one for which `skip` says so.
    pub(crate) fn sparsest(&self, allocated_min: u64, skip: impl Fn(SegmentId) -> bool) -> Option<(SegmentId, u64)> {
        let newest = *self.uses.last_key_value()?.0;
        let older = self.uses.iter().filter(|(id, _)| **id != newest && !skip(**id));
        older
            .min_by_key(|(_, file)| u128::from(file.used) * 1_000_000 / u128::from(file.length.max(allocated_min)))
            .map(|(id, file)| (*id, file.used))
    }

    /// Says whether the shard needs anything in a file.
    pub(crate) fn contains(&self, id: SegmentId) -> bool {
        self.uses.contains_key(&id)
    }
}
