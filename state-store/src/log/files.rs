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
    length: u64,
    /// Extents given up since the last call of [`Files::take_released`]: the file of each.
    released: Vec<SegmentId>,
    replaced: Vec<(Epoch, SegmentId)>,
}

impl Files {
    pub(super) fn add(&mut self, extent: &ExtentEntry) {
        let file = self.uses.entry(extent.segment).or_default();
        file.used += extent.bytes() as u64;
        self.used += extent.bytes() as u64;
        let end = extent.offset + extent.bytes() as u64;
        self.length += end.saturating_sub(file.length);
        file.length = file.length.max(end);
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
            self.length -= file.length;
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

    /// Bytes of files, as far as they have been written, and of the extents in them that are of use.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.length, self.used)
    }

    /// The file with the smallest share of its bytes in use, but for the newest, which is being written.
    pub(crate) fn sparsest(&self) -> Option<SegmentId> {
        let newest = *self.uses.last_key_value()?.0;
        let older = self.uses.iter().filter(|(id, _)| **id != newest);
        older
            .min_by_key(|(_, file)| u128::from(file.used) * 1_000_000 / u128::from(file.length.max(1)))
            .map(|(id, _)| *id)
    }
}
