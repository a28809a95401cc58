//! What is known of a page beside its bytes.

use super::{Address, BLOCK_BYTES, PAGE_HEADER_BYTES};
use crate::epoch::Epoch;

/// Number of a page in the side table. Recycled: a [`PageRef`] tells one use from the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageId(pub(crate) u32);

impl PageId {
    pub(crate) const NONE: Self = Self(u32::MAX);

    #[inline(always)]
    pub(crate) fn at(self) -> usize {
        self.0 as usize
    }
}

/// A page and its sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageRef {
    pub(crate) id: PageId,
    pub(crate) sequence: u64,
}

/// A table: its place among those of this run, recycled, and its number in extents, which stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TableRef {
    pub(crate) id: u32,
    pub(crate) number: u32,
}

/// A page of the log.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// First block.
    pub(crate) start: u32,
    /// How many blocks it has.
    pub(crate) blocks: u32,
    /// The table whose records it holds.
    pub(crate) table: TableRef,
    /// The domain of that table.
    pub(crate) domain: u16,
    /// Bytes used, header room included.
    pub(crate) used: u32,
    /// Bytes of records that the index points at.
    pub(crate) live: u32,
    /// The epoch in which it was opened.
    pub(crate) born: Epoch,
    /// The first epoch that does without it.
    pub(crate) died: Epoch,
    /// Number of its opening; never used twice in a run.
    pub(crate) sequence: u64,
    /// The living pages of its table before and after it, in the order of their births.
    pub(super) before: PageId,
    pub(super) after: PageId,
}

/// `died` of a page that has not.
const ALIVE: Epoch = Epoch(u64::MAX);

impl Page {
    /// What stands under a number that belongs to no page: in no snapshot, alive never.
    pub(crate) const NOTHING: Self = Self {
        start: 0,
        blocks: 0,
        table: TableRef { id: u32::MAX, number: 0 },
        domain: 0,
        used: 0,
        live: 0,
        born: Epoch::ZERO,
        died: Epoch::ZERO,
        sequence: 0,
        before: PageId::NONE,
        after: PageId::NONE,
    };

    pub(crate) fn new(start: u32, blocks: u32, table: TableRef, domain: u16, born: Epoch, sequence: u64) -> Self {
        let used = PAGE_HEADER_BYTES as u32;
        Self { start, blocks, table, domain, used, born, died: ALIVE, sequence, ..Self::NOTHING }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.died == ALIVE
    }

    /// Says whether snapshot `n` contains the page.
    pub(crate) fn is_in(&self, n: Epoch) -> bool {
        self.born <= n && n < self.died
    }

    /// Address of its first byte, where the header is.
    pub(crate) fn start_address(&self) -> Address {
        Address(u64::from(self.start) * (BLOCK_BYTES / 8) as u64)
    }

    /// Address of its first record.
    pub(crate) fn first_record(&self) -> Address {
        self.start_address().after(PAGE_HEADER_BYTES)
    }

    /// Address behind its last block.
    pub(crate) fn end(&self) -> Address {
        Address(u64::from(self.start + self.blocks) * (BLOCK_BYTES / 8) as u64)
    }

    /// Bytes of memory that it takes.
    pub(crate) fn block_bytes(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES as u64
    }

    /// Bytes of records, live or not.
    pub(crate) fn record_bytes(&self) -> u32 {
        self.used - PAGE_HEADER_BYTES as u32
    }
}
