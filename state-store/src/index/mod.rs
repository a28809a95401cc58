//! The index of one table: from the hash of a key to where its record lies.
//!
//! Invariants
//! * I1. Of a hash the index uses the low 32 bits only: bits `0..b` choose the bucket, bits `24..32` are the tag, bits
//!   `0..24` stand in the entry. So splitting, merging and scanning never read a record.
//! * I2. One entry per record; two records may agree in all 32 bits, then both have an entry in the same chain.
//! * I3. A chain is a home bucket and the overflow buckets linked behind it; no overflow bucket of a chain is empty.
//! * I4. Home bucket `i` with `w` bits holds exactly the hashes whose low `w` bits are `i`.
//!
//! Growth doubles the home buckets in place over reserved address space, two buckets per insertion, beginning at a mean
//! load of [`GROW_AT`]; shrinking goes back the same way. Cost: a look-up reads one cache line (some percent of keys
//! two); an insertion during growth moves some ten entries more.

#![allow(
    clippy::cast_possible_truncation,
    reason = "bits of a hash are cut to size all over; bucket numbers are below 2^31"
)]

mod bucket;
mod scan;

pub use scan::ScanCursor;

use crate::log::{Address, Frontier, Prefault};
use bucket::{Bucket, Buckets, ENTRIES, Entry, tag_of};

/// Mean entries per home bucket at which growth begins.
const GROW_AT: usize = 5;
/// Buckets split or merged per insertion or removal.
const STEPS: usize = 2;
/// The largest index on the heap, in buckets; larger ones are mapped, so that growth copies nothing.
const HEAP_BUCKETS_MAX: usize = 1 << 10;
/// Address space reserved at first, in multiples of what is in use.
const RESERVE_FACTOR: usize = 16;
/// How far home buckets are touched ahead of the split.
const POPULATE_AHEAD_BYTES: usize = 16 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Motion {
    Steady,
    Growing,
    Shrinking,
}

/// An entry in a home bucket, until the index changes.
#[derive(Clone, Copy)]
pub(crate) struct HomeSlot {
    home: usize,
    slot: u32,
}

/// What the first look at a home bucket says about a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Candidate(u64);

impl Candidate {
    pub(crate) const NONE: Self = Self(0);
    /// With this bit the rest is the number of an overflow bucket.
    const BEHIND: u64 = 1 << 63;

    /// Says whether the key, if it is there, is in an overflow bucket.
    #[inline(always)]
    pub(crate) fn is_behind(self) -> bool {
        self.0 & Self::BEHIND != 0
    }

    /// Where the record is; [`Address::NONE`] when it has to be looked for.
    #[inline(always)]
    pub(crate) fn address(self) -> Address {
        debug_assert!(!self.is_behind());
        Address(self.0)
    }
}

/// Hash to address, for one table.
pub(crate) struct Index {
    home: Buckets,
    pool: Buckets,
    /// Overflow buckets ever taken from the pool.
    pool_used: u32,
    /// Overflow buckets given back, linked through their first word.
    pool_free: Option<u32>,
    pool_free_count: u32,
    entries: u64,
    motion: Motion,
    prefault: Prefault,
    frontier: Frontier,
}

impl Index {
    pub(crate) fn new(prefault: &Prefault) -> Self {
        Self {
            home: Buckets::heap(0),
            pool: Buckets::heap(0),
            pool_used: 0,
            pool_free: None,
            pool_free_count: 0,
            entries: 0,
            motion: Motion::Steady,
            prefault: prefault.clone(),
            frontier: Frontier::default(),
        }
    }

    /// Entries held.
    #[cfg(test)]
    pub(crate) fn len(&self) -> u64 {
        self.entries
    }

    /// Bytes of buckets in use.
    pub(crate) fn bytes(&self) -> u64 {
        ((self.home.count() + self.pool_used as usize) * size_of::<Bucket>()) as u64
    }

    /// Overflow buckets in use.
    pub(crate) fn overflow_buckets(&self) -> u64 {
        u64::from(self.pool_used - self.pool_free_count)
    }

    // ---- look-ups ----

    /// Asks the processor to fetch the home bucket of `hash`.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        self.home.prefetch(hash);
    }

    /// The first record that may have this hash: its key has still to be compared. Reads the home bucket alone.
    #[inline(always)]
    pub(crate) fn candidate(&self, hash: u64) -> Candidate {
        let home = self.home.home(hash);
        if let Some(entry) = home.first_match(hash) {
            return Candidate(entry.address().0);
        }
        match home.link() {
            None => Candidate::NONE,
            Some(link) => {
                self.pool.prefetch_at(link as usize);
                Candidate(Candidate::BEHIND | u64::from(link))
            }
        }
    }

    /// The candidate in the overflow bucket that [`Index::candidate`] found instead of one, and has asked for. None when
    /// it lies still deeper; the index may have changed in between, then it may be missed too.
    #[inline(always)]
    pub(crate) fn candidate_behind(&self, hash: u64, candidate: Candidate) -> Candidate {
        debug_assert!(candidate.is_behind());
        let at = (candidate.0 & !Candidate::BEHIND) as usize;
        let found = self.pool.try_get(at).and_then(|bucket| bucket.first_match(hash));
        found.map_or(Candidate::NONE, |entry| Candidate(entry.address().0))
    }

    /// The record with this hash for which `is_it` says yes.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(Address) -> bool) -> Option<Address> {
        let mut bucket = self.home.home(hash);
        loop {
            if let Some(address) = bucket.find(hash, &mut is_it) {
                return Some(address);
            }
            bucket = self.pool.get(bucket.link()? as usize);
        }
    }

    /// Says whether the entry for `hash` at `address` is there: the test of liveness.
    pub(crate) fn points_at(&self, hash: u64, address: Address) -> bool {
        self.find(hash, |candidate| candidate == address).is_some()
    }

    // ---- changes ----

    /// Makes room for `entries` in an index that has none yet, so that filling it moves nothing.
    pub(crate) fn reserve(&mut self, entries: u64) {
        let buckets = (entries as usize).div_ceil(GROW_AT).next_power_of_two();
        if self.entries > 0 || buckets <= self.home.count() || buckets > u32::MAX as usize / 2 {
            return;
        }
        let bits = buckets.trailing_zeros();
        if buckets <= HEAP_BUCKETS_MAX {
            self.home = Buckets::heap(bits);
        } else if let (Ok(home), Ok(pool)) = (Buckets::mapped(bits, 2 * buckets), Buckets::mapped(0, 2 * buckets)) {
            (self.home, self.pool) = (home, pool);
            self.frontier = Frontier::new(&self.prefault, POPULATE_AHEAD_BYTES);
        }
    }

    /// Adds an entry. The caller knows that no record of the same key has one.
    pub(crate) fn insert(&mut self, hash: u64, address: Address) {
        let home = self.home.home_of(hash);
        self.place(home, Entry::new(hash, address), tag_of(hash));
        self.entries += 1;
        if self.motion == Motion::Steady && self.entries > (GROW_AT * self.home.count()) as u64 {
            self.start_to_grow();
        }
        self.step();
    }

    /// Where in its home bucket the entry for `hash` at `address` is, if it is there.
    #[inline(always)]
    pub(crate) fn home_slot(&self, hash: u64, address: Address) -> Option<HomeSlot> {
        let slot = self.home.home(hash).slot_of(Entry::new(hash, address), tag_of(hash))?;
        Some(HomeSlot { home: self.home.home_of(hash), slot })
    }

    /// Has an entry that [`Index::home_slot`] has just found point to `new`.
    #[inline(always)]
    pub(crate) fn set(&mut self, at: HomeSlot, hash: u64, new: Address) {
        self.home.get_mut(at.home).set(at.slot, Entry::new(hash, new));
    }

    /// Has the entry for `hash` at `old` point to `new`.
    #[inline]
    pub(crate) fn swing(&mut self, hash: u64, old: Address, new: Address) {
        let (old, new, tag) = (Entry::new(hash, old), Entry::new(hash, new), tag_of(hash));
        let home = self.home.home_of(hash);
        let bucket = self.home.get_mut(home);
        if let Some(slot) = bucket.slot_of(old, tag) {
            bucket.set(slot, new);
            return;
        }
        let mut link = bucket.link();
        while let Some(next) = link {
            let bucket = self.pool.get_mut(next as usize);
            if let Some(slot) = bucket.slot_of(old, tag) {
                bucket.set(slot, new);
                return;
            }
            link = bucket.link();
        }
        unreachable!("I2: no entry for {old:?}");
    }

    /// Takes the entry for `hash` at `address` out.
    pub(crate) fn remove(&mut self, hash: u64, address: Address) {
        let (entry, tag) = (Entry::new(hash, address), tag_of(hash));
        let home = self.home.home_of(hash);
        let bucket = self.home.get_mut(home);
        if let Some(slot) = bucket.slot_of(entry, tag) {
            bucket.clear(slot);
        } else {
            let first = bucket.link();
            self.remove_behind(home, first, entry, tag);
        }
        self.entries -= 1;
        if self.motion == Motion::Steady && self.entries < self.home.count() as u64 && self.home.count() > 4 {
            self.motion = Motion::Shrinking;
        }
        self.step();
    }

    fn remove_behind(&mut self, home: usize, first: Option<u32>, entry: Entry, tag: u8) {
        let mut before = None;
        let mut link = first;
        while let Some(at) = link {
            let bucket = self.pool.get_mut(at as usize);
            link = bucket.link();
            if let Some(slot) = bucket.slot_of(entry, tag) {
                bucket.clear(slot);
                if bucket.taken() == 0 {
                    // I3: an empty overflow bucket leaves its chain.
                    let before = match before {
                        Some(before) => self.pool.get_mut(before as usize),
                        None => self.home.get_mut(home),
                    };
                    match link {
                        Some(next) => before.set_link(next),
                        None => before.clear_link(),
                    }
                    self.give_back(at);
                }
                return;
            }
            before = Some(at);
        }
        unreachable!("I2: no entry for {entry:?}");
    }

    /// Puts an entry into the chain of a home bucket.
    fn place(&mut self, home: usize, entry: Entry, tag: u8) {
        let bucket = self.home.get_mut(home);
        if let Some(slot) = bucket.free_slot() {
            bucket.put(slot, entry, tag);
            return;
        }
        let mut last = None;
        let mut link = bucket.link();
        while let Some(next) = link {
            let bucket = self.pool.get_mut(next as usize);
            if let Some(slot) = bucket.free_slot() {
                bucket.put(slot, entry, tag);
                return;
            }
            (last, link) = (Some(next), bucket.link());
        }
        // Every bucket of the chain is full: the last one's seventh entry makes room for the link.
        let overflow = self.take_from_pool();
        let full = match last {
            Some(last) => self.pool.get_mut(last as usize),
            None => self.home.get_mut(home),
        };
        let slot = ENTRIES as u32 - 1;
        let (moved, moved_tag) = (full.entry(slot), full.tag(slot));
        full.clear(slot);
        full.set_link(overflow);
        let bucket = self.pool.get_mut(overflow as usize);
        *bucket = Bucket::EMPTY;
        bucket.put(0, moved, moved_tag);
        bucket.put(1, entry, tag);
    }

    fn take_from_pool(&mut self) -> u32 {
        if let Some(free) = self.pool_free {
            self.pool_free = self.pool.get(free as usize).link();
            self.pool_free_count -= 1;
            return free;
        }
        let next = self.pool_used as usize;
        if next == self.pool.capacity() && !self.pool.is_mapped() {
            let mut larger = Buckets::heap(self.pool.bits() + 1);
            (0..next).for_each(|at| *larger.get_mut(at) = *self.pool.get(at));
            self.pool = larger;
        } else if next == self.pool.capacity() {
            let grown = self.pool.grow(2 * next);
            assert!(grown, "no address space for {next} overflow buckets");
        }
        self.pool_used += 1;
        self.pool_used - 1
    }

    fn give_back(&mut self, overflow: u32) {
        let bucket = self.pool.get_mut(overflow as usize);
        *bucket = Bucket::EMPTY;
        if let Some(next) = self.pool_free {
            bucket.set_link(next);
        }
        self.pool_free = Some(overflow);
        self.pool_free_count += 1;
    }

    // ---- growing and shrinking ----

    fn start_to_grow(&mut self) {
        let wanted = 2 * self.home.count();
        debug_assert_eq!(self.home.split(), 0);
        if wanted > u32::MAX as usize / 2 {
            return;
        }
        if wanted <= HEAP_BUCKETS_MAX {
            if wanted > self.home.capacity() {
                let mut larger = Buckets::heap(self.home.bits() + 1);
                larger.copy_from(&self.home);
                self.home = larger;
            }
        } else if !self.home.is_mapped() {
            let reserved = RESERVE_FACTOR * wanted;
            // No address space now: the index goes on with longer chains and asks again at the next insertion.
            let (Ok(mut home), Ok(mut pool)) = (Buckets::mapped(0, reserved), Buckets::mapped(0, reserved)) else {
                return;
            };
            home.copy_from(&self.home);
            (0..self.pool_used as usize).for_each(|at| *pool.get_mut(at) = *self.pool.get(at));
            (self.home, self.pool) = (home, pool);
            self.frontier = Frontier::new(&self.prefault, POPULATE_AHEAD_BYTES);
        } else if wanted > self.home.capacity()
            && !(self.home.grow(RESERVE_FACTOR * wanted) && self.pool.grow(RESERVE_FACTOR * wanted))
        {
            return;
        }
        self.motion = Motion::Growing;
    }

    #[inline]
    fn step(&mut self) {
        match self.motion {
            Motion::Steady => {}
            Motion::Growing => self.grow_step(),
            Motion::Shrinking => self.shrink_step(),
        }
    }

    #[cold]
    fn grow_step(&mut self) {
        let limit = (2 << self.home.bits()) * size_of::<Bucket>();
        let tail = (self.home.count() + STEPS) * size_of::<Bucket>();
        if let Some(owner) = self.home.owner() {
            self.frontier.advance(owner.shared(), tail, limit);
        }
        for _ in 0..STEPS {
            let from = self.home.split();
            self.home.extend();
            self.redistribute(from);
            if self.home.split() == 0 {
                self.motion = Motion::Steady;
                return;
            }
        }
    }

    #[cold]
    fn shrink_step(&mut self) {
        for _ in 0..STEPS {
            let from = self.home.count() - 1;
            self.home.retract();
            self.redistribute(from);
            if self.home.split() == 0 {
                self.motion = Motion::Steady;
                self.give_memory_back();
                return;
            }
        }
    }

    /// Puts every entry of the chain of home bucket `from` where it belongs now.
    fn redistribute(&mut self, from: usize) {
        let mut bucket = std::mem::replace(self.home.get_mut(from), Bucket::EMPTY);
        loop {
            let mut taken = bucket.taken();
            while taken != 0 {
                let slot = taken.trailing_zeros();
                let (entry, tag) = (bucket.entry(slot), bucket.tag(slot));
                let home = self.home.home_of(u64::from(entry.low_hash(tag)));
                self.place(home, entry, tag);
                taken &= taken - 1;
            }
            let Some(next) = bucket.link() else { return };
            bucket = *self.pool.get(next as usize);
            self.give_back(next);
        }
    }

    fn give_memory_back(&mut self) {
        let used = self.home.count();
        if let Some(owner) = self.home.owner() {
            let start = (used * size_of::<Bucket>()).next_multiple_of(crate::log::mapping::HUGE_PAGE_BYTES);
            if start < owner.len() {
                let end = owner.len().min(4 * start);
                owner.discard(start..end);
                self.frontier.fall_back_to(start);
            }
        } else if used * 4 <= self.home.capacity() {
            let mut smaller = Buckets::heap(self.home.bits() + 1);
            smaller.copy_from(&self.home);
            self.home = smaller;
        }
        if self.pool_free_count == self.pool_used {
            self.pool_used = 0;
            self.pool_free = None;
            self.pool_free_count = 0;
            if !self.pool.is_mapped() {
                self.pool = Buckets::heap(0);
            }
        }
    }
}

#[cfg(test)]
mod tests;
