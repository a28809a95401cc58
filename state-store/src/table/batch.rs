//! Updates of many keys at once: the record path of keyed operators.
//!
//! Keys go through three stages, [`DISTANCE`] keys apart: fetch the bucket, find a candidate in it and fetch its record,
//! apply; a candidate in an overflow bucket is found half-way between. So some thirty cache misses are under way at any time, and the next key's never waits for this one's. A candidate
//! is taken as it is when it lies in an open page and has the key; everything else (a first record, a frozen one, a rare
//! equal hash) goes the long way through the index.
//!
//! Invariants
//! * I1. A candidate in an open page that has the key is the newest version: fixed-size values never move within an epoch.
//!   One in a frozen page may have been superseded by a key before it in the batch; the index tells.

use super::{Log, Shape, ShapeOf, Table, TableCore, check_key, live_value, record};
use crate::error::Result;
use crate::index::Candidate;
use crate::log::{Address, Pages};
use crate::table::layout::TOMBSTONE;
use crate::value::{Key, State};

/// Keys between one stage and the next: the time of a cache miss at some ten nanoseconds a key.
const DISTANCE: usize = 16;
/// Candidates kept: those between the second stage and the third.
const RING: usize = DISTANCE.next_power_of_two();

impl<K: Key + ?Sized, V: State> Table<K, V> {
    /// Changes the values under many keys, in order: `key(i)` are the encoded bytes of the `i`-th, `hashes[i]` their hash.
    ///
    /// A key that is not there starts from `initial(i)`; `change(i, value, is_first)` is told so. The same key may come
    /// several times. Best called with 32 to 64 keys or more; fewer are fine.
    ///
    /// ```
    /// # use millstream_state::{Epoch, Log, Table, hash::hash_u64, table::TableOptions};
    /// let mut log = Log::new(16 << 20, &Default::default(), Epoch(1))?;
    /// let domain = log.add_domain();
    /// let counts: Table<u64, u64> = log.open_table("counts", domain, TableOptions::default())?;
    /// let keys = [7u64, 8, 7].map(u64::to_le_bytes);
    /// let hashes = [7u64, 8, 7].map(hash_u64);
    /// counts.update_batch(&mut log, &hashes, |i| &keys[i], |_| 0, |_, count, _| *count += 1)?;
    /// assert_eq!(counts.get(&log, hashes[0], &keys[0]), Some(2));
    /// # Ok::<(), millstream_state::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Table::update`]; keys before the one that failed have been changed.
    #[inline]
    pub fn update_batch<'k>(
        &self,
        log: &mut Log,
        hashes: &[u64],
        key: impl Fn(usize) -> &'k [u8],
        mut initial: impl FnMut(usize) -> V,
        mut change: impl FnMut(usize, &mut V, bool),
    ) -> Result<()> {
        if V::FIXED_SIZE.is_none() {
            for (i, hash) in hashes.iter().enumerate() {
                self.update(log, *hash, key(i), || initial(i), |value, is_first| change(i, value, is_first))?;
            }
            return Ok(());
        }
        let (core, pages, _) = log.split(self.id);
        if core.layout.removal {
            Self::update_fixed::<ShapeOf<K, V, true>>(core, pages, hashes, key, initial, change)
        } else {
            Self::update_fixed::<ShapeOf<K, V, false>>(core, pages, hashes, key, initial, change)
        }
    }

    /// Brings what is stored under many keys closer, for calls one by one: they find it in the cache.
    #[inline]
    pub fn prefetch(&self, log: &Log, hashes: &[u64]) {
        let core = self.core(log);
        for piece in hashes.chunks(2 * DISTANCE) {
            piece.iter().for_each(|hash| core.index.prefetch(*hash));
            for hash in piece {
                let candidate = core.index.candidate(*hash);
                if !candidate.is_behind() {
                    log.pages.prefetch(candidate.address());
                }
            }
        }
    }

    /// Returns the value under a key, decoded.
    pub fn load(&self, log: &Log, hash: u64, key: &[u8]) -> Option<V> {
        let core = self.core(log);
        let layout = Self::layout(core.layout.removal);
        let address = core.find(&log.pages, layout, hash, key)?;
        live_value(&log.pages, layout, address).map(V::decode)
    }

    #[inline(always)]
    fn update_fixed<'k, S: Shape>(
        core: &mut TableCore,
        pages: &mut Pages,
        hashes: &[u64],
        key: impl Fn(usize) -> &'k [u8],
        mut initial: impl FnMut(usize) -> V,
        mut change: impl FnMut(usize, &mut V, bool),
    ) -> Result<()> {
        let layout = S::LAYOUT;
        let place = const { value_place(S::LAYOUT.head_of_fixed(), V::FIXED_SIZE) };
        let running = pages.epochs.running(core.domain).0 as u32;
        let mut candidates = [Candidate::NONE; RING];
        for hash in hashes.iter().take(2 * DISTANCE) {
            core.index.prefetch(*hash);
        }
        for (candidate, hash) in candidates.iter_mut().zip(hashes).take(DISTANCE) {
            *candidate = candidate_of(core, pages, *hash);
        }
        for (candidate, hash) in candidates.iter_mut().zip(hashes).take(DISTANCE / 2) {
            *candidate = candidate_at_last(core, pages, *hash, *candidate);
        }
        for (i, hash) in hashes.iter().enumerate() {
            let mut address = candidates[i % RING].address();
            if let Some(ahead) = hashes.get(i + 2 * DISTANCE) {
                core.index.prefetch(*ahead);
            }
            if let Some(ahead) = hashes.get(i + DISTANCE) {
                candidates[(i + DISTANCE) % RING] = candidate_of(core, pages, *ahead);
            }
            if let Some(ahead) = hashes.get(i + DISTANCE / 2) {
                let candidate = &mut candidates[(i + DISTANCE / 2) % RING];
                *candidate = candidate_at_last(core, pages, *ahead, *candidate);
            }
            let key = key(i);
            let mut is_first = false;
            let is_it = address != Address::NONE && {
                let bytes = record(pages, layout, address);
                layout.key(bytes) == key && layout.flags(bytes) & TOMBSTONE == 0
            };
            if !(is_it && pages.is_open(address, running)) {
                let thawed = if is_it { core.thaw::<S>(pages, *hash, address)? } else { None };
                if let Some(thawed) = thawed {
                    address = thawed;
                } else {
                    check_key(core, key)?;
                    let settled = core.settle::<S>(pages, *hash, key)?;
                    (address, is_first) = (settled.address, settled.is_first);
                }
            }
            let bytes = &mut pages.bytes_mut(address, place.1)[place.0..];
            let mut value = if is_first { initial(i) } else { V::decode(bytes) };
            change(i, &mut value, is_first);
            value.encode_fixed(bytes);
        }
        Ok(())
    }
}

/// The second stage.
#[inline(always)]
fn candidate_of(core: &TableCore, pages: &Pages, hash: u64) -> Candidate {
    let candidate = core.index.candidate(hash);
    if !candidate.is_behind() {
        pages.prefetch(candidate.address());
    }
    candidate
}

/// The second stage of the few keys in overflow buckets.
#[inline(always)]
fn candidate_at_last(core: &TableCore, pages: &Pages, hash: u64, candidate: Candidate) -> Candidate {
    if !candidate.is_behind() {
        return candidate;
    }
    let candidate = core.index.candidate_behind(hash, candidate);
    pages.prefetch(candidate.address());
    candidate
}

const fn value_place(head: usize, size: Option<usize>) -> (usize, usize) {
    match size {
        Some(size) => (head, head + size),
        None => (head, head),
    }
}
