//! Walking over an index in an order that does not depend on its size.
//!
//! Invariants
//! * I1. The order is that of the low 32 bits of the hash, reversed. It is the same in every size of index, so a cursor
//!   keeps its meaning when the table grows, shrinks, or is restored into another number of shards.
//! * I2. A home bucket with `w` bits holds one contiguous piece of that order, `2^(32-w)` positions long.

use super::Index;
use crate::log::Address;

/// How far a scan has come: every key before it has been visited, none after it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ScanCursor(u64);

impl ScanCursor {
    /// Before the first key.
    pub const START: Self = Self(0);
    /// After the last key.
    pub const END: Self = Self(1 << 32);

    /// Where a key with this hash is visited: it has been iff this is below the cursor.
    ///
    /// ```
    /// use millstream_state::table::ScanCursor;
    /// assert_eq!(ScanCursor::of_hash(0), ScanCursor::START);
    /// assert!(ScanCursor::of_hash(u64::MAX) < ScanCursor::END);
    /// ```
    #[must_use]
    pub const fn of_hash(hash: u64) -> Self {
        Self((hash as u32).reverse_bits() as u64)
    }

    /// The cursor as a number, to be stored.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The cursor of a stored number; one that is none counts as the end.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        if bits < Self::END.0 { Self(bits) } else { Self::END }
    }
}

impl Index {
    /// Visits the entries of the bucket at `cursor` that do not lie before it and returns the cursor behind the bucket.
    pub(crate) fn scan_bucket(&self, cursor: ScanCursor, mut visit: impl FnMut(Address)) -> ScanCursor {
        debug_assert!(cursor < ScanCursor::END);
        let hash = u64::from((cursor.0 as u32).reverse_bits());
        let at = self.home.home_of(hash);
        let is_wide = at < self.home.split() || at >= 1 << self.home.bits();
        let width = self.home.bits() + u32::from(is_wide);
        let start = u64::from((at as u32).reverse_bits());
        debug_assert!(start <= cursor.0 && cursor.0 < start + (1 << (32 - width)), "I2");
        let mut bucket = self.home.get(at);
        loop {
            let mut taken = bucket.taken();
            while taken != 0 {
                let slot = taken.trailing_zeros();
                let entry = bucket.entry(slot);
                if ScanCursor::of_hash(u64::from(entry.low_hash(bucket.tag(slot)))) >= cursor {
                    visit(entry.address());
                }
                taken &= taken - 1;
            }
            match bucket.link() {
                Some(next) => bucket = self.pool.get(next as usize),
                None => return ScanCursor(start + (1 << (32 - width))),
            }
        }
    }
}
