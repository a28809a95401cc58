//! One cache line of the index, and arrays of them.
//!
//! Invariants
//! * I1. A bucket of zeros is empty, so fresh memory is an array of empty buckets.
//! * I2. Word 0 holds seven tags (byte `i` belongs to entry `i`) and in byte 7 the control byte: bit `i` says that entry
//!   `i` is taken, bit 7 that entry 6 is not an entry but the link to an overflow bucket.
//! * I3. `base .. base + capacity` are buckets in memory that the array owns; `2^bits + split <= capacity`.
#![expect(unsafe_code, reason = "buckets in mapped memory, tag match by SSE2, no bounds check for the home bucket")]

use crate::error::Result;
use crate::log::Address;
use crate::log::mapping::{Owner, prefetch};

/// Entries in a bucket.
pub(crate) const ENTRIES: usize = 7;
const LINKED: u8 = 0x80;
const TAKEN_ALL: u32 = 0x7f;

/// Bits of the hash in an entry, above the address.
pub(crate) const ENTRY_HASH_BITS: u32 = 24;
const _: () = assert!(Address::BITS + ENTRY_HASH_BITS == 64);

/// An address and the low 24 bits of its key's hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry(pub(crate) u64);

impl Entry {
    #[inline(always)]
    pub(crate) fn new(hash: u64, address: Address) -> Self {
        debug_assert!(address.0 >> Address::BITS == 0);
        Self(hash << Address::BITS | address.0)
    }

    #[inline(always)]
    pub(crate) fn address(self) -> Address {
        Address(self.0 & ((1 << Address::BITS) - 1))
    }

    /// The low 32 bits of the hash, of which the tag holds the upper eight.
    #[inline(always)]
    pub(crate) fn low_hash(self, tag: u8) -> u32 {
        (self.0 >> Address::BITS) as u32 | u32::from(tag) << ENTRY_HASH_BITS
    }

    #[inline(always)]
    fn agrees_with(self, hash: u64) -> bool {
        (self.0 ^ hash << Address::BITS) >> Address::BITS == 0
    }
}

/// The tag of a hash: its bits 24..32.
#[inline(always)]
pub(crate) fn tag_of(hash: u64) -> u8 {
    (hash >> ENTRY_HASH_BITS) as u8
}

/// Seven entries and their tags: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Bucket {
    words: [u64; 8],
}

const _: () = assert!(size_of::<Bucket>() == 64);

impl Bucket {
    pub(crate) const EMPTY: Self = Self { words: [0; 8] };

    #[inline(always)]
    fn control(&self) -> u8 {
        (self.words[0] >> 56) as u8
    }

    /// Bit `i` is set iff entry `i` is taken and has this tag.
    #[inline(always)]
    pub(crate) fn matches(&self, tag: u8) -> u32 {
        tag_mask(self.words[0], tag) & u32::from(self.control()) & TAKEN_ALL
    }

    /// Bit `i` is set iff entry `i` is taken.
    #[inline(always)]
    pub(crate) fn taken(&self) -> u32 {
        u32::from(self.control()) & TAKEN_ALL
    }

    #[inline(always)]
    pub(crate) fn entry(&self, slot: u32) -> Entry {
        Entry(self.words[(slot as usize + 1) & 7])
    }

    #[inline(always)]
    pub(crate) fn tag(&self, slot: u32) -> u8 {
        (self.words[0] >> (8 * slot)) as u8
    }

    /// The first entry of this bucket alone that agrees with `hash` in 32 bits.
    #[inline(always)]
    pub(crate) fn first_match(&self, hash: u64) -> Option<Entry> {
        let mut matches = self.matches(tag_of(hash));
        while matches != 0 {
            let entry = self.entry(matches.trailing_zeros());
            if entry.agrees_with(hash) {
                return Some(entry);
            }
            matches &= matches - 1;
        }
        None
    }

    /// Calls `found` with every entry that agrees with `hash` in 32 bits until it says `true`.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64, mut found: impl FnMut(Address) -> bool) -> Option<Address> {
        let mut matches = self.matches(tag_of(hash));
        while matches != 0 {
            let entry = self.entry(matches.trailing_zeros());
            if entry.agrees_with(hash) && found(entry.address()) {
                return Some(entry.address());
            }
            matches &= matches - 1;
        }
        None
    }

    /// The slot that holds exactly `entry`.
    #[inline(always)]
    pub(crate) fn slot_of(&self, entry: Entry, tag: u8) -> Option<u32> {
        let mut matches = self.matches(tag);
        while matches != 0 {
            let slot = matches.trailing_zeros();
            if self.entry(slot) == entry {
                return Some(slot);
            }
            matches &= matches - 1;
        }
        None
    }

    /// A slot that an entry can be put into.
    #[inline(always)]
    pub(crate) fn free_slot(&self) -> Option<u32> {
        let usable = if self.link().is_some() { TAKEN_ALL >> 1 } else { TAKEN_ALL };
        let free = !u32::from(self.control()) & usable;
        (free != 0).then(|| free.trailing_zeros())
    }

    #[inline(always)]
    pub(crate) fn put(&mut self, slot: u32, entry: Entry, tag: u8) {
        debug_assert!(self.taken() >> slot & 1 == 0 && (slot as usize) < ENTRIES, "I2: slot {slot} of {self:?}");
        self.words[slot as usize + 1] = entry.0;
        let shift = 8 * slot;
        self.words[0] = self.words[0] & !(0xff << shift) | u64::from(tag) << shift | 1 << (56 + slot);
    }

    #[inline(always)]
    pub(crate) fn set(&mut self, slot: u32, entry: Entry) {
        self.words[slot as usize + 1] = entry.0;
    }

    pub(crate) fn clear(&mut self, slot: u32) {
        self.words[0] &= !(1 << (56 + slot));
    }

    /// The overflow bucket behind this one.
    #[inline(always)]
    pub(crate) fn link(&self) -> Option<u32> {
        (self.control() & LINKED != 0).then_some(self.words[ENTRIES] as u32)
    }

    /// Links an overflow bucket; entry 6 must have been moved out.
    pub(crate) fn set_link(&mut self, overflow: u32) {
        debug_assert!(self.taken() >> 6 & 1 == 0, "I2: the link takes the place of an entry");
        self.words[ENTRIES] = u64::from(overflow);
        self.words[0] |= u64::from(LINKED) << 56;
    }

    pub(crate) fn clear_link(&mut self) {
        self.words[0] &= !(u64::from(LINKED) << 56);
    }
}

/// Bit `i` is set iff byte `i` of `tags` is `tag`.
#[cfg(target_feature = "sse2")]
#[inline(always)]
fn tag_mask(tags: u64, tag: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_cvtsi64_si128, _mm_movemask_epi8, _mm_set1_epi8};
    #[inline]
    #[target_feature(enable = "sse2")]
    fn mask(tags: u64, tag: u8) -> u32 {
        _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_cvtsi64_si128(tags as i64), _mm_set1_epi8(tag as i8))) as u32 & 0xff
    }
    // SAFETY: SSE2 is part of what this was compiled for.
    unsafe { mask(tags, tag) }
}

#[cfg(not(target_feature = "sse2"))]
#[inline(always)]
fn tag_mask(tags: u64, tag: u8) -> u32 {
    tag_mask_portable(tags, tag)
}

#[cfg(any(test, not(target_feature = "sse2")))]
fn tag_mask_portable(tags: u64, tag: u8) -> u32 {
    const LOW_SEVEN: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let difference = tags ^ (u64::from(tag) * 0x0101_0101_0101_0101);
    // The high bit of a byte is set iff the byte is not zero; the product gathers them in the top byte.
    let equal = !(((difference & LOW_SEVEN) + LOW_SEVEN) | difference) & !LOW_SEVEN;
    ((equal >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
}

enum Memory {
    Heap(#[expect(dead_code, reason = "keeps the memory that `base` points into")] Vec<Bucket>),
    Mapped(Owner),
}

/// An array of buckets of which the first `2^bits + split` are in use as home buckets.
pub(crate) struct Buckets {
    base: *mut Bucket,
    capacity: usize,
    /// `2^(bits + 1) - 1`.
    mask: usize,
    /// `2^bits + split`.
    count: usize,
    bits: u32,
    memory: Memory,
}

// SAFETY: the array owns its memory (I3); the pointer is into it.
unsafe impl Send for Buckets {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buckets {}

impl Buckets {
    /// `2^bits` empty buckets on the heap.
    pub(crate) fn heap(bits: u32) -> Self {
        let mut memory = vec![Bucket::EMPTY; 1 << bits];
        let (base, capacity) = (memory.as_mut_ptr(), memory.len());
        Self { base, capacity, mask: (2 << bits) - 1, count: 1 << bits, bits, memory: Memory::Heap(memory) }
    }

    /// `2^bits` empty buckets in address space for `capacity`.
    pub(crate) fn mapped(bits: u32, capacity: usize) -> Result<Self> {
        let owner = Owner::reserve(capacity.max(1 << bits) * size_of::<Bucket>())?;
        let (base, capacity) = (owner.base().cast(), owner.len() / size_of::<Bucket>());
        Ok(Self { base, capacity, mask: (2 << bits) - 1, count: 1 << bits, bits, memory: Memory::Mapped(owner) })
    }

    /// Takes over the buckets and the shape of another array.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        assert!(other.count() <= self.capacity, "I3: {} buckets into {}", other.count(), self.capacity);
        // SAFETY: I3 on both sides and the assertion; two arrays never overlap.
        unsafe { self.base.copy_from_nonoverlapping(other.base, other.count()) };
        (self.mask, self.count, self.bits) = (other.mask, other.count, other.bits);
    }

    /// Makes address space for `capacity` buckets; `false` when that cannot be done now.
    pub(crate) fn grow(&mut self, capacity: usize) -> bool {
        if capacity <= self.capacity {
            return true;
        }
        match &mut self.memory {
            Memory::Heap(_) => false,
            Memory::Mapped(owner) => {
                let grown = owner.grow(capacity * size_of::<Bucket>());
                self.base = owner.base().cast();
                self.capacity = owner.len() / size_of::<Bucket>();
                grown
            }
        }
    }

    /// The mapping, when there is one.
    pub(crate) fn owner(&mut self) -> Option<&mut Owner> {
        match &mut self.memory {
            Memory::Heap(_) => None,
            Memory::Mapped(owner) => Some(owner),
        }
    }

    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self.memory, Memory::Mapped(_))
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Home buckets in use.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn bits(&self) -> u32 {
        self.bits
    }

    /// How many of the `2^bits` buckets have been split into two.
    pub(crate) fn split(&self) -> usize {
        self.count - (1 << self.bits)
    }

    /// Uses one home bucket more.
    pub(crate) fn extend(&mut self) {
        assert!(self.count() < self.capacity, "I3: no room for another bucket");
        self.count += 1;
        if self.count > self.mask {
            self.set_bits(self.bits + 1);
        }
    }

    /// Uses one home bucket less.
    pub(crate) fn retract(&mut self) {
        assert!(self.count() > 1, "the last bucket stays");
        self.count -= 1;
        if self.count < 1 << self.bits {
            self.set_bits(self.bits - 1);
        }
    }

    fn set_bits(&mut self, bits: u32) {
        self.bits = bits;
        self.mask = (2 << bits) - 1;
    }

    /// Number of the home bucket of a hash.
    #[inline(always)]
    pub(crate) fn home_of(&self, hash: u64) -> usize {
        let wide = hash as u32 as usize & self.mask;
        if wide < self.count { wide } else { wide & (self.mask >> 1) }
    }

    /// The home bucket of a hash.
    #[inline(always)]
    pub(crate) fn home(&self, hash: u64) -> &Bucket {
        let at = self.home_of(hash);
        debug_assert!(at < self.count() && self.count() <= self.capacity, "I3");
        // SAFETY: `home_of` is below `count`, so by I3 a bucket of ours.
        unsafe { &*self.base.wrapping_add(at) }
    }

    /// Asks the processor to fetch the home bucket of a hash.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(self.base.wrapping_add(self.home_of(hash)));
    }

    /// Asks the processor to fetch bucket `at`.
    #[inline(always)]
    pub(crate) fn prefetch_at(&self, at: usize) {
        prefetch(self.base.wrapping_add(at));
    }

    /// Bucket `at`, if there is room for that many.
    #[inline(always)]
    pub(crate) fn try_get(&self, at: usize) -> Option<&Bucket> {
        (at < self.capacity).then(|| self.get(at))
    }

    #[inline(always)]
    pub(crate) fn get(&self, at: usize) -> &Bucket {
        assert!(at < self.capacity, "I3: bucket {at} of {}", self.capacity);
        // SAFETY: I3 and the assertion.
        unsafe { &*self.base.wrapping_add(at) }
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut Bucket {
        assert!(at < self.capacity, "I3: bucket {at} of {}", self.capacity);
        // SAFETY: I3, the assertion, and `&mut self`.
        unsafe { &mut *self.base.wrapping_add(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_match_tags_agree() {
        let mut random = 3u64;
        for _ in 0..100_000 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let tags = (random.rotate_left(23) & 0x0303_8003_0180_ff03) | (random >> 60);
            for tag in [0, 1, 2, 3, 0x80, 0xff, (random >> 50) as u8] {
                let expected =
                    (0..8).filter(|byte| (tags >> (8 * byte)) as u8 == tag).fold(0, |mask, byte| mask | 1 << byte);
                assert_eq!(tag_mask(tags, tag), expected, "{tags:#x} {tag:#x}");
                assert_eq!(tag_mask_portable(tags, tag), expected, "{tags:#x} {tag:#x}");
            }
        }
    }

    #[test]
    fn a_bucket_holds_seven_entries_or_six_and_a_link() {
        let mut bucket = Bucket::EMPTY;
        for n in 0..7 {
            let slot = bucket.free_slot().unwrap();
            bucket.put(slot, Entry::new(0xab00_0001 + n, Address(n + 1)), 0xab);
        }
        assert_eq!(bucket.free_slot(), None);
        assert_eq!(bucket.first_match(0xab00_0004).unwrap().address(), Address(4));
        assert_eq!(bucket.first_match(0xac00_0004), None, "another tag");
        let last = bucket.entry(6);
        assert_eq!(last.low_hash(bucket.tag(6)), 0xab00_0007);
        bucket.clear(6);
        bucket.set_link(9);
        assert_eq!((bucket.free_slot(), bucket.link(), bucket.taken()), (None, Some(9), 0x3f));
        bucket.clear(2);
        assert_eq!(bucket.free_slot(), Some(2));
        bucket.clear_link();
        assert_eq!(bucket.link(), None);
    }

    #[test]
    fn home_buckets_follow_the_split() {
        let mut buckets = Buckets::heap(4);
        (0..8).for_each(|_| buckets.retract());
        assert_eq!(buckets.home_of(0x1f), 7);
        (0..3).for_each(|_| buckets.extend());
        assert_eq!([0x8, 0x9, 0xa, 0xb, 0x3].map(|hash| buckets.home_of(hash)), [8, 9, 10, 3, 3]);
        buckets.retract();
        assert_eq!(buckets.home_of(0xa), 2);
    }
}
