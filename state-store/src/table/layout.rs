//! How a record lies in its page.
//!
//! ```text
//! flags u8          only in tables with removal
//! key length u32    only where keys have no fixed size
//! value length u32  only where values have no fixed size
//! value room u32    only where values have no fixed size; a value may grow to this many bytes in place
//! value             where it has a fixed size
//! key
//! value             where it has none, then what is left of its room
//! ```
//!
//! Invariants
//! * I1. Records begin at multiples of 8 bytes and follow each other without gaps; a record says itself how long it is.
//! * I2. The layout follows from the two types and the table's options; it is kept with every extent.
//!
//! Integers are little-endian. An 8-byte count under an 8-byte key takes 16 bytes, with removal 24.

use crate::log::{RECORD_BYTES_MAX, aligned};
use std::ops::Range;

/// Most bytes in an encoded key.
pub const KEY_BYTES_MAX: usize = 64 << 10;

/// The record was superseded or removed in the epoch in which it was written; a restore passes over it.
pub(crate) const DEAD: u8 = 1;
/// The key was removed; the record stands there so that older extents do not bring it back.
pub(crate) const TOMBSTONE: u8 = 2;
/// A version of this key was below a cut: its removal needs a tombstone.
pub(crate) const BELOW_CUT: u8 = 4;

/// Sizes of the parts of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    /// Bytes of every key, if they are all the same.
    pub(crate) key: Option<u32>,
    /// Bytes of every value, if they are all the same.
    pub(crate) value: Option<u32>,
    /// Whether keys can be removed.
    pub(crate) removal: bool,
}

impl Layout {
    pub(crate) const fn new(key: Option<usize>, value: Option<usize>, removal: bool) -> Self {
        Self { key: narrow(key), value: narrow(value), removal }
    }

    #[inline(always)]
    const fn key_length_at(self) -> usize {
        self.removal as usize
    }

    #[inline(always)]
    const fn value_length_at(self) -> usize {
        self.key_length_at() + if self.key.is_none() { 4 } else { 0 }
    }

    /// Bytes in front of fixed value and key.
    #[inline(always)]
    const fn head(self) -> usize {
        self.value_length_at() + if self.value.is_none() { 8 } else { 0 }
    }

    /// Where a fixed-size value begins.
    pub(crate) const fn head_of_fixed(self) -> usize {
        self.head()
    }

    #[inline(always)]
    const fn key_at(self) -> usize {
        self.head() + if let Some(value) = self.value { value as usize } else { 0 }
    }

    /// Size of every record, when all have the same.
    #[inline(always)]
    pub(crate) const fn fixed_size(self) -> Option<usize> {
        match (self.key, self.value) {
            (Some(key), Some(_)) => Some(whole(self.key_at() + key as usize)),
            _ => None,
        }
    }

    /// Size of a record with such a key and such room for a value.
    #[inline(always)]
    pub(crate) const fn size_for(self, key: usize, value_room: usize) -> usize {
        match self.fixed_size() {
            Some(size) => size,
            None => whole(self.key_at() + key + if self.value.is_none() { value_room } else { 0 }),
        }
    }

    /// The most bytes that a value under such a key may have.
    pub(crate) const fn value_bytes_max(self, key: usize) -> usize {
        RECORD_BYTES_MAX - self.key_at() - key - 8
    }

    #[inline(always)]
    fn key_length(self, record: &[u8]) -> usize {
        match self.key {
            Some(length) => length as usize,
            None => word(record, self.key_length_at()),
        }
    }

    /// The encoded key.
    #[inline(always)]
    pub(crate) fn key(self, record: &[u8]) -> &[u8] {
        &record[self.key_at()..self.key_at() + self.key_length(record)]
    }

    /// Where the encoded value lies.
    #[inline(always)]
    pub(crate) fn value(self, record: &[u8]) -> Range<usize> {
        match self.value {
            Some(length) => self.head()..self.head() + length as usize,
            None => {
                let start = self.key_at() + self.key_length(record);
                start..start + word(record, self.value_length_at())
            }
        }
    }

    /// Bytes that the value may take without moving.
    #[inline(always)]
    pub(crate) fn value_room(self, record: &[u8]) -> usize {
        match self.value {
            Some(length) => length as usize,
            None => word(record, self.value_length_at() + 4),
        }
    }

    /// Size of the record.
    #[inline(always)]
    pub(crate) fn size(self, record: &[u8]) -> usize {
        match self.fixed_size() {
            Some(size) => size,
            None => self.size_for(self.key_length(record), self.value_room(record)),
        }
    }

    /// Size of the record at the front of `bytes`, which nobody vouches for; `None` when it does not fit into them.
    pub(crate) fn checked_size(self, bytes: &[u8]) -> Option<usize> {
        if bytes.len() < self.key_at() {
            return None;
        }
        let (key, room) = (self.key_length(bytes), self.value_room(bytes));
        let size = self.key_at().checked_add(key)?.checked_add(if self.value.is_none() { room } else { 0 })?;
        let value_fits = self.value.is_some() || word(bytes, self.value_length_at()) <= room;
        (key <= KEY_BYTES_MAX && value_fits && whole(size) <= bytes.len()).then_some(whole(size))
    }

    #[inline(always)]
    pub(crate) fn flags(self, record: &[u8]) -> u8 {
        if self.removal { record[0] } else { 0 }
    }

    #[inline(always)]
    pub(crate) fn set_flags(self, record: &mut [u8], flags: u8) {
        debug_assert!(self.removal || flags == 0);
        if self.removal {
            record[0] = flags;
        }
    }

    /// Writes everything but the value's bytes.
    #[inline(always)]
    pub(crate) fn write_head(self, record: &mut [u8], flags: u8, key: &[u8], value_room: usize) {
        self.set_flags(record, flags);
        if self.key.is_none() {
            put_word(record, self.key_length_at(), key.len());
        }
        if self.value.is_none() {
            put_word(record, self.value_length_at(), 0);
            put_word(record, self.value_length_at() + 4, value_room);
        }
        let key_length = match self.key {
            Some(length) => length as usize,
            None => key.len(),
        };
        record[self.key_at()..self.key_at() + key_length].copy_from_slice(&key[..key_length]);
    }

    /// Writes a value that has no fixed size and fits into its room.
    #[inline(always)]
    pub(crate) fn write_value(self, record: &mut [u8], value: &[u8]) {
        debug_assert!(self.value.is_none() && value.len() <= self.value_room(record));
        put_word(record, self.value_length_at(), value.len());
        let start = self.key_at() + self.key_length(record);
        record[start..start + value.len()].copy_from_slice(value);
    }
}

const fn narrow(size: Option<usize>) -> Option<u32> {
    match size {
        Some(size) => {
            assert!(size <= KEY_BYTES_MAX, "a fixed size is at most 64 KiB");
            Some(size as u32)
        }
        None => None,
    }
}

/// A record takes whole granules, and at least one.
#[inline(always)]
const fn whole(bytes: usize) -> usize {
    if bytes == 0 { 8 } else { aligned(bytes) }
}

#[inline(always)]
fn word(record: &[u8], at: usize) -> usize {
    let bytes: [u8; 4] = record[at..at + 4].try_into().expect("four bytes");
    u32::from_le_bytes(bytes) as usize
}

#[inline(always)]
fn put_word(record: &mut [u8], at: usize, word: usize) {
    record[at..at + 4].copy_from_slice(&(word as u32).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_under_a_number_takes_sixteen_bytes_and_with_removal_one_granule_more() {
        assert_eq!(Layout::new(Some(8), Some(8), false).fixed_size(), Some(16));
        assert_eq!(Layout::new(Some(8), Some(8), true).fixed_size(), Some(24));
        assert_eq!(Layout::new(Some(0), Some(0), false).fixed_size(), Some(8));
        assert_eq!(Layout::new(None, Some(8), false).size_for(3, 8), 16);
    }

    #[test]
    fn what_is_written_is_read_back_in_every_layout() {
        for (key, value) in [(None, None), (Some(5), None), (None, Some(7)), (Some(5), Some(7))] {
            for removal in [false, true] {
                let layout = Layout::new(key, value, removal);
                let mut record = vec![0xee; layout.size_for(5, 10)];
                let flags = if removal { BELOW_CUT } else { 0 };
                layout.write_head(&mut record, flags, b"hello", 10);
                match value {
                    None => layout.write_value(&mut record, b"value.."),
                    Some(_) => record[layout.value(&[])].copy_from_slice(b"value.."),
                }
                assert_eq!(layout.key(&record), b"hello", "{layout:?}");
                assert_eq!(&record[layout.value(&record)], b"value..", "{layout:?}");
                assert_eq!(layout.flags(&record), flags);
                assert_eq!(layout.size(&record), record.len());
                assert_eq!(layout.checked_size(&record), Some(record.len()));
                for cut in 0..record.len() {
                    assert_eq!(layout.checked_size(&record[..cut]), None, "{layout:?} cut to {cut} bytes");
                }
            }
        }
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let layout = Layout::new(None, None, true);
        let mut record = vec![0; layout.size_for(5, 10)];
        layout.write_head(&mut record, 0, b"hello", 10);
        for at in 1..13 {
            let mut bad = record.clone();
            bad[at] = 0xff;
            assert_eq!(layout.checked_size(&bad), None, "byte {at}");
        }
    }
}
