//! One named state of one shard: get, update, remove, scan, over the hash log.
//!
//! A [`Table`] is a typed handle; everything it stands for lies in the [`Log`] of its shard and is passed to each call.
//! Keys come as their canonical encoded bytes together with their 64-bit hash: whoever routed the record has both.
//!
//! Invariants
//! * I1. The layout of a table follows from its two types and its options, checked when it is opened; so the calls below
//!   work with constants and read fixed-size values by plain loads.
//! * I2. No call here leaves a record half written: what fails, fails before the index points at anything new.
//!
//! Cost: an update in place reads two cache lines; batches of 32-64 overlap those misses. The first update of a key after
//! a cut copies its record as well.

#![allow(
    clippy::cast_possible_truncation,
    reason = "sizes of records are below 2^20; epochs are compared by their low 32 bits"
)]

mod batch;
mod core;
mod layout;
mod log;

pub use crate::index::ScanCursor;
pub use crate::log::RECORD_BYTES_MAX;
pub use layout::KEY_BYTES_MAX;
pub use log::{Log, NOT_MIGRATED};

pub(crate) use self::core::{Shape, TableCore, record};
pub(crate) use layout::{BELOW_CUT, DEAD, Layout, TOMBSTONE};
pub(crate) use log::schema_fingerprint;

use crate::error::{Error, Result};
use crate::hash::hash_bytes;
use crate::log::Address;
use crate::value::{Key, State};
use std::fmt;
use std::marker::PhantomData;

/// Values checked between two looks at whether one was bad.
const CHECK_BUDGET: usize = 4096;

/// Tables that are cut together: one per stage of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Domain(pub(crate) u16);

/// What a table can do beside its types.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableOptions {
    /// Whether keys can be removed; costs up to 8 bytes a record.
    pub removal: bool,
}

/// A state under keys of type `K`, in the log of one shard.
///
/// ```
/// use millstream_state::{Epoch, Key, Log, Table, table::TableOptions};
///
/// let mut log = Log::new(16 << 20, &Default::default(), Epoch(1))?;
/// let domain = log.add_domain();
/// let counts: Table<str, u64> = log.open_table("counts", domain, TableOptions::default())?;
/// for word in ["to", "be", "or", "not", "to", "be"] {
///     counts.update(&mut log, word.stable_hash(), word.as_bytes(), || 0, |count, _| *count += 1)?;
/// }
/// assert_eq!(counts.get(&log, "be".stable_hash(), b"be"), Some(2));
/// assert_eq!(counts.len(&log), 4);
/// # Ok::<(), millstream_state::Error>(())
/// ```
pub struct Table<K: ?Sized, V> {
    id: u32,
    types: PhantomData<fn(&K) -> V>,
}

/// The layout of a table, as a type.
pub(crate) struct ShapeOf<K: ?Sized, V, const REMOVAL: bool>(PhantomData<fn(&K) -> V>);

impl<K: Key + ?Sized, V: State, const REMOVAL: bool> Shape for ShapeOf<K, V, REMOVAL> {
    const LAYOUT: Layout = Layout::new(K::FIXED_SIZE, V::FIXED_SIZE, REMOVAL);
}

impl<K: Key + ?Sized, V: State> Table<K, V> {
    fn of(id: u32) -> Self {
        Self { id, types: PhantomData }
    }

    /// One of two constants: whoever inlines this has two bodies with one branch.
    #[inline(always)]
    fn layout(removal: bool) -> Layout {
        if removal { ShapeOf::<K, V, true>::LAYOUT } else { ShapeOf::<K, V, false>::LAYOUT }
    }

    #[inline(always)]
    fn core<'l>(&self, log: &'l Log) -> &'l TableCore {
        log.table(self.id)
    }

    /// Keys that are there.
    pub fn len(&self, log: &Log) -> u64 {
        self.core(log).keys
    }

    /// Says whether no key is there.
    pub fn is_empty(&self, log: &Log) -> bool {
        self.len(log) == 0
    }

    /// Name of the state.
    pub fn name<'l>(&self, log: &'l Log) -> &'l str {
        &self.core(log).name
    }

    /// Returns the value under a key, read in place.
    pub fn get<'l>(&self, log: &'l Log, hash: u64, key: &[u8]) -> Option<V::View<'l>> {
        let core = self.core(log);
        let layout = Self::layout(core.layout.removal);
        let address = core.find(&log.pages, layout, hash, key)?;
        live_value(&log.pages, layout, address).map(V::view)
    }

    /// Changes the value under a key, starting from `initial` when there is none; `change` is told whether that was so.
    ///
    /// # Errors
    /// [`Exhausted`](crate::ErrorKind::Exhausted) when the state memory is full, or key or value above its limit.
    pub fn update<R>(
        &self,
        log: &mut Log,
        hash: u64,
        key: &[u8],
        initial: impl FnOnce() -> V,
        change: impl FnOnce(&mut V, bool) -> R,
    ) -> Result<R> {
        if self.core(log).layout.removal {
            self.update_as::<ShapeOf<K, V, true>, R>(log, hash, key, initial, change)
        } else {
            self.update_as::<ShapeOf<K, V, false>, R>(log, hash, key, initial, change)
        }
    }

    #[inline(always)]
    fn update_as<S: Shape, R>(
        &self,
        log: &mut Log,
        hash: u64,
        key: &[u8],
        initial: impl FnOnce() -> V,
        change: impl FnOnce(&mut V, bool) -> R,
    ) -> Result<R> {
        let layout = S::LAYOUT;
        let (core, pages, scratch) = log.split(self.id);
        check_key(core, key)?;
        if V::FIXED_SIZE.is_some() {
            let settled = core.settle::<S>(pages, hash, key)?;
            let place = layout.value(&[]);
            let bytes = &mut pages.bytes_mut(settled.address, place.end)[place.start..];
            let mut value = if settled.is_first { initial() } else { V::decode(bytes) };
            let result = change(&mut value, settled.is_first);
            value.encode_fixed(bytes);
            return Ok(result);
        }
        let found = core.find(pages, layout, hash, key);
        let old = found.and_then(|address| live_value(pages, layout, address));
        let is_first = old.is_none();
        let mut value = old.map_or_else(initial, V::decode);
        let result = change(&mut value, is_first);
        scratch.clear();
        value.encode(scratch);
        core.write_value(pages, layout, hash, key, found, scratch)?;
        Ok(result)
    }

    /// Stores a value under a key.
    ///
    /// # Errors
    /// As [`Table::update`].
    pub fn put(&self, log: &mut Log, hash: u64, key: &[u8], value: &V) -> Result<()> {
        let (core, pages, scratch) = log.split(self.id);
        check_key(core, key)?;
        let layout = core.layout;
        if V::FIXED_SIZE.is_some() {
            let settled = match layout.removal {
                true => core.settle::<ShapeOf<K, V, true>>(pages, hash, key)?,
                false => core.settle::<ShapeOf<K, V, false>>(pages, hash, key)?,
            };
            let place = layout.value(&[]);
            value.encode_fixed(&mut pages.bytes_mut(settled.address, place.end)[place.start..]);
            return Ok(());
        }
        scratch.clear();
        value.encode(scratch);
        let found = core.find(pages, layout, hash, key);
        core.write_value(pages, layout, hash, key, found, scratch)
    }

    /// Removes a key; says whether it was there.
    ///
    /// # Errors
    /// [`Exhausted`](crate::ErrorKind::Exhausted) when the state memory is full: a removal may have to write a tombstone.
    ///
    /// # Panics
    /// When the table was opened without [`TableOptions::removal`].
    pub fn remove(&self, log: &mut Log, hash: u64, key: &[u8]) -> Result<bool> {
        let (core, pages, _) = log.split(self.id);
        core.remove(pages, hash, key)
    }

    /// Visits about `budget` keys from `cursor` on, with their hash, encoded key and value, and returns where to go on.
    ///
    /// A key that is there during the whole scan is visited exactly once, however the table grows or shrinks in between;
    /// whether one that comes or goes meanwhile is visited, [`ScanCursor::of_hash`] tells.
    pub fn scan<'l>(
        &self,
        log: &'l Log,
        cursor: ScanCursor,
        budget: usize,
        mut visit: impl FnMut(u64, &'l [u8], V::View<'l>),
    ) -> ScanCursor {
        self.scan_encoded(log, cursor, budget, |hash, key, value| visit(hash, key, V::view(value)))
    }

    fn scan_encoded<'l>(
        &self,
        log: &'l Log,
        cursor: ScanCursor,
        budget: usize,
        mut visit: impl FnMut(u64, &'l [u8], &'l [u8]),
    ) -> ScanCursor {
        const BATCH: usize = 32;
        let core = self.core(log);
        let (layout, pages) = (core.layout, &log.pages);
        let mut visit = |address: Address| {
            let bytes = record(pages, layout, address);
            if let Some(value) = live_value(pages, layout, address) {
                let key = layout.key(bytes);
                visit(hash_bytes(key), key, value);
            }
        };
        let mut cursor = cursor;
        let mut seen = 0;
        while cursor < ScanCursor::END && seen < budget {
            let mut batch = [Address::NONE; 2 * BATCH];
            let mut count = 0;
            while cursor < ScanCursor::END && seen + count < budget && count < BATCH {
                cursor = core.index.scan_bucket(cursor, |address| {
                    pages.prefetch(address);
                    match batch.get_mut(count) {
                        Some(slot) => *slot = address,
                        None => visit(address),
                    }
                    count += 1;
                });
                // An empty bucket costs as well: a scan over a sparse index must return in time too.
                seen += 1;
            }
            batch.iter().take(count).for_each(|address| visit(*address));
            seen += count;
        }
        cursor
    }

    /// Checks every value of a restored table by its type. Only for types with an opaque part: of all others the equal
    /// schema says it already.
    pub(crate) fn check_values(&self, log: &Log) -> Result<()> {
        let mut bad = None;
        let mut cursor = ScanCursor::START;
        while cursor < ScanCursor::END && bad.is_none() {
            cursor = self.scan_encoded(log, cursor, CHECK_BUDGET, |_, key, value| {
                bad = bad.take().or_else(|| V::check(value).err().map(|what| (key, what)));
            });
        }
        bad.map_or(Ok(()), |(key, what)| {
            let key = K::schema().to_json(key).map_err(|what| Error::corrupt(format_args!("a key: {what}")))?;
            Err(Error::invalid(format_args!(
                "state `{}`: the value under {key} cannot be read: {what}; a type whose fields have changed needs another name",
                self.name(log)
            )))
        })
    }
}

/// The encoded value at `address`, unless a tombstone stands there.
#[inline(always)]
fn live_value(pages: &crate::log::Pages, layout: Layout, address: Address) -> Option<&[u8]> {
    let bytes = record(pages, layout, address);
    (layout.flags(bytes) & TOMBSTONE == 0).then(|| &bytes[layout.value(bytes)])
}

/// Refuses a key that no record can hold.
#[inline(always)]
fn check_key(core: &TableCore, key: &[u8]) -> Result<()> {
    if key.len() > KEY_BYTES_MAX {
        return Err(key_too_long(core, key.len()));
    }
    debug_assert!(core.layout.key.is_none_or(|size| size as usize == key.len()), "a key of another type");
    Ok(())
}

#[cold]
fn key_too_long(core: &TableCore, bytes: usize) -> Error {
    Error::exhausted(format_args!(
        "state `{}`: a key of {bytes} bytes is above the limit of {KEY_BYTES_MAX} bytes, which no setting raises: shorten it",
        core.name
    ))
}

impl<K: ?Sized, V> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table({})", self.id)
    }
}

#[cfg(test)]
mod tests;
