//! Updates of many keys at once: the record path of keyed operators.
//!
//! A batch is worked on in pieces of up to [`PIECE`] keys: prefetch all buckets, find all candidates and prefetch their
//! records, then apply in order. A candidate is taken as it is when it lies in an open page and has the key; everything
//! else (a first record, a frozen one, a rare equal hash) goes the long way through the index.
//!
//! Invariants
//! * I1. A candidate in an open page that has the key is the newest version: fixed-size values never move within an epoch.

use super::{Log, Table, TableCore, check_key, live_value, record};
use crate::error::Result;
use crate::log::{Address, Pages};
use crate::table::layout::TOMBSTONE;
use crate::value::{Key, State};

/// Keys whose cache misses overlap.
const PIECE: usize = 64;

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
            Self::update_fixed::<true>(core, pages, hashes, key, initial, change)
        } else {
            Self::update_fixed::<false>(core, pages, hashes, key, initial, change)
        }
    }

    /// Brings what is stored under many keys closer, for calls one by one: they find it in the cache.
    #[inline]
    pub fn prefetch(&self, log: &Log, hashes: &[u64]) {
        let core = self.core(log);
        for piece in hashes.chunks(PIECE) {
            piece.iter().for_each(|hash| core.index.prefetch(*hash));
            piece.iter().for_each(|hash| log.pages.prefetch(core.index.candidate(*hash)));
        }
    }

    /// Returns the value under a key, decoded.
    pub fn load(&self, log: &Log, hash: u64, key: &[u8]) -> Option<V> {
        let core = self.core(log);
        let layout = if core.layout.removal { const { Self::layout(true) } } else { const { Self::layout(false) } };
        let address = core.find(&log.pages, layout, hash, key)?;
        live_value(&log.pages, layout, address).map(V::decode)
    }

    #[inline(always)]
    fn update_fixed<'k, const REMOVAL: bool>(
        core: &mut TableCore,
        pages: &mut Pages,
        hashes: &[u64],
        key: impl Fn(usize) -> &'k [u8],
        mut initial: impl FnMut(usize) -> V,
        mut change: impl FnMut(usize, &mut V, bool),
    ) -> Result<()> {
        let layout = const { Self::layout(REMOVAL) };
        let place = const { value_place(Self::layout(REMOVAL).head_of_fixed(), V::FIXED_SIZE) };
        let running = pages.epochs.running(core.domain).0 as u32;
        let mut candidates = [Address::NONE; PIECE];
        for (piece, hashes) in hashes.chunks(PIECE).enumerate() {
            for hash in hashes {
                core.index.prefetch(*hash);
            }
            for (candidate, hash) in candidates.iter_mut().zip(hashes) {
                *candidate = core.index.candidate(*hash);
                pages.prefetch(*candidate);
            }
            for (at, (candidate, hash)) in candidates.iter().zip(hashes).enumerate() {
                let i = piece * PIECE + at;
                let key = key(i);
                let mut address = *candidate;
                let mut is_first = false;
                let is_at_hand = address != Address::NONE && pages.is_open(address, running) && {
                    let bytes = record(pages, layout, address);
                    layout.key(bytes) == key && (!REMOVAL || layout.flags(bytes) & TOMBSTONE == 0)
                };
                if !is_at_hand {
                    check_key(core, key)?;
                    let settled = core.settle::<REMOVAL>(pages, layout, *hash, key)?;
                    (address, is_first) = (settled.address, settled.is_first);
                }
                let bytes = &mut pages.bytes_mut(address, place.1)[place.0..];
                let mut value = if is_first { initial(i) } else { V::decode(bytes) };
                change(i, &mut value, is_first);
                value.encode_fixed(bytes);
            }
        }
        Ok(())
    }
}

const fn value_place(head: usize, size: Option<usize>) -> (usize, usize) {
    match size {
        Some(size) => (head, head + size),
        None => (head, head),
    }
}
