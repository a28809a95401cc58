//! The smallest table that counts: 16-byte slots, open addressing, huge pages. The limit that a state store is held to.
//!
//! Invariants
//! * I1. A slot whose `key` is 0 is empty; a key is stored plus one.
//! * I2. At most half the slots are in use, so a search ends.
//! * I3. A key lies in the first group, from its home on, that had room when it came; keys never leave.
//!
//! A group is four slots in one cache line. All four are compared without a branch: at a load of one half a search slot by
//! slot mispredicts once in three records, which costs more than the comparisons.
//!
//! Cost: one cache line per count; 2 ns in cache.

use crate::prefetch::prefetch;
use bytemuck::{Pod, Zeroable};
use memmap2::{Advice, MmapMut};
use millstream::{Error, Result};

const GROUP: usize = 4;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A key (plus one) and how often it came.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Slot {
    key: u64,
    count: u64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Group([Slot; GROUP]);

const _: () = assert!(size_of::<Group>() == 64);

/// A record on its way: the key and its one hash.
#[derive(Clone, Copy, Default)]
pub(crate) struct Hashed {
    pub(crate) key: u64,
    pub(crate) hash: u64,
}

/// Counts per key.
pub(crate) struct Slots {
    memory: MmapMut,
    /// Where the first huge page begins in `memory`.
    offset: usize,
    /// Number of groups, a power of two.
    groups: usize,
}

impl Slots {
    /// Room for `keys` keys at a load of at most one half. Touches all of it, so it belongs to the calling thread's node.
    pub(crate) fn for_keys(keys: usize) -> Result<Self> {
        let groups = (keys.max(1) * 2).next_power_of_two().div_ceil(GROUP);
        let bytes = groups * size_of::<Group>();
        let mapped = MmapMut::map_anon(bytes + HUGE_PAGE_BYTES);
        let mut memory =
            mapped.map_err(|why| Error::unavailable(format_args!("{bytes} bytes for {keys} counts: {why}")))?;
        // Only a hint: without huge pages the loop is slower, not wrong. Doctor says when they are switched off.
        let _ = memory.advise(Advice::HugePage);
        let offset = memory.as_ptr().align_offset(HUGE_PAGE_BYTES);
        memory[offset..offset + bytes].fill(0);
        Ok(Self { memory, offset, groups })
    }

    /// Counts a batch, asking for slots `AHEAD` records before they are needed. Hot: no call, no allocation.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "only the low bits of a hash choose a group")]
    pub(crate) fn count(&mut self, records: &[Hashed]) {
        const AHEAD: usize = 64;
        let groups = self.groups_mut();
        let mask = groups.len() - 1;
        let home = |record: &Hashed| record.hash as usize & mask;
        let (first, _) = records.split_at(records.len().min(AHEAD));
        first.iter().for_each(|record| prefetch(&groups[home(record)]));
        for (i, record) in records.iter().enumerate() {
            if let Some(ahead) = records.get(i + AHEAD) {
                prefetch(&groups[home(ahead)]);
            }
            let stored = record.key + 1;
            let group = &mut groups[home(record)].0;
            let mut at = GROUP;
            for slot in (0..GROUP).rev() {
                at = if group[slot].key == stored { slot } else { at };
            }
            match group.get_mut(at) {
                Some(slot) => slot.count += 1,
                None => insert(groups, stored, home(record)),
            }
        }
    }

    /// How often `key` came.
    #[cfg(test)]
    pub(crate) fn get(&mut self, key: u64) -> u64 {
        let slots = self.groups_mut().iter().flat_map(|group| group.0);
        slots.filter(|slot| slot.key == key + 1).map(|slot| slot.count).sum()
    }

    /// Sum of all counts.
    pub(crate) fn total(&mut self) -> u64 {
        self.groups_mut().iter().flat_map(|group| group.0).map(|slot| slot.count).sum()
    }

    #[inline(always)]
    fn groups_mut(&mut self) -> &mut [Group] {
        let bytes = self.groups * size_of::<Group>();
        bytemuck::cast_slice_mut(&mut self.memory[self.offset..self.offset + bytes])
    }
}

/// The rare case: the key is new, or does not lie in its home group.
#[cold]
#[inline(never)]
fn insert(groups: &mut [Group], stored: u64, home: usize) {
    let mask = groups.len() - 1;
    for step in 0..groups.len() {
        for slot in &mut groups[(home + step) & mask].0 {
            if slot.key == stored || slot.key == 0 {
                slot.key = stored;
                slot.count += 1;
                return;
            }
        }
    }
    unreachable!("I2: a table at most half full has an empty slot");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_records_whatever_the_hashes() {
        for (hashes, keys) in [(1u64, 3u64), (2, 50), (1000, 64), (u64::MAX, 500)] {
            let mut slots = Slots::for_keys(usize::try_from(keys).unwrap()).unwrap();
            let records: Vec<Hashed> = (0..5000u64)
                .map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32)
                .map(|random| random % keys)
                .map(|key| Hashed { key, hash: key.wrapping_mul(0xd6e8_feb8_6659_fd93) % hashes })
                .collect();
            records.chunks(256).for_each(|chunk| slots.count(chunk));
            assert_eq!(slots.total(), 5000);
            for key in 0..keys {
                let expected = records.iter().filter(|record| record.key == key).count() as u64;
                assert_eq!(slots.get(key), expected, "key {key} of {keys}, {hashes} hashes");
            }
        }
    }
}
