//! The hash log of one shard: an arena of pages that remember in which epoch they were opened.
//!
//! Invariants
//! * I1. An `Address` is a position in the arena in granules of 8 bytes. Addresses are recycled with their pages, so
//!   they mean something only while a record there is reachable, and never stand in a record.
//! * I2. A page belongs to one table and was opened in one epoch (`born`). A record is **frozen** iff its page was not
//!   opened in the epoch that its domain is in now; frozen bytes never change.
//! * I3. A page is in snapshot `n` iff `born <= n < died`.
//! * I4. The blocks of a page are reused only when it has died and no pending epoch `n` has `born <= n < died`.
//! * I5. Pages of one table and one epoch are opened in the order of their `sequence`; records follow each other in a page.
//!   Of several versions of a record the one latest in (born, sequence, offset) is the newest.
//!
//! Cost: a cut is one addition per domain. Whether a record is frozen is one load from a dense array. Opening a page is
//! some hundred nanoseconds for at least 4 KiB of records.

#![allow(clippy::cast_possible_truncation, reason = "blocks, pages and offsets in a page are all below 2^32")]

mod bit_tree;
mod epochs;
mod fault;
mod files;
pub(crate) mod mapping;
mod page;
mod populate;
mod space;

#[cfg(feature = "planted-bugs")]
pub use fault::Fault;
pub use populate::{Populator, Prefault};

pub(crate) use epochs::Epochs;
pub(crate) use fault::Faults;
pub(crate) use files::Files;
pub(crate) use page::{Page, PageId, PageRef, TableRef};
pub(crate) use populate::Frontier;

use crate::epoch::Epoch;
use crate::error::Result;
use crate::format::{EXTENT_BYTES_MAX, ExtentEntry, ExtentHeader};
use mapping::Owner;
use space::{FRAME_ORDER, Space};
use std::collections::VecDeque;

/// The unit in which the arena is handed out, and the size of the smallest page.
pub(crate) const BLOCK_BYTES: usize = 4 << 10;
/// The largest ordinary page; one with a larger record takes several frames in a row.
pub(crate) const FRAME_BYTES: usize = 256 << 10;
/// Every page leaves this much room in front for the header of its extent, so that it is written as it stands.
pub(crate) const PAGE_HEADER_BYTES: usize = ExtentHeader::SIZE;
/// Most bytes in one record, header and key included: a page is one extent.
pub const RECORD_BYTES_MAX: usize = EXTENT_BYTES_MAX - PAGE_HEADER_BYTES;
/// How far memory is touched ahead of the highest page in use.
const POPULATE_AHEAD_BYTES: usize = 64 << 20;

/// Most memory kept back for cleaning.
const RESERVE_BYTES_MAX: u64 = 1 << 20;

const GRANULE_BYTES: usize = 8;
const BLOCK_GRANULES_LOG2: u32 = (BLOCK_BYTES / GRANULE_BYTES).trailing_zeros();
const _: () = assert!(PAGE_HEADER_BYTES.is_multiple_of(GRANULE_BYTES) && FRAME_BYTES.is_multiple_of(BLOCK_BYTES));

/// Position of a record in the arena, in granules of 8 bytes; 40 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Address(pub(crate) u64);

impl Address {
    /// No record: every page begins with room for a header, so none is at the very front.
    pub(crate) const NONE: Self = Self(0);
    /// Bits in an address.
    pub(crate) const BITS: u32 = 40;

    #[inline(always)]
    fn byte(self) -> usize {
        self.0 as usize * GRANULE_BYTES
    }

    #[inline(always)]
    fn block(self) -> usize {
        (self.0 >> BLOCK_GRANULES_LOG2) as usize
    }

    /// The address `bytes` (a multiple of 8) further on.
    #[inline(always)]
    pub(crate) fn after(self, bytes: usize) -> Self {
        debug_assert!(bytes.is_multiple_of(GRANULE_BYTES));
        Self(self.0 + (bytes / GRANULE_BYTES) as u64)
    }
}

/// The next multiple of the granule.
#[inline(always)]
pub(crate) const fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(GRANULE_BYTES)
}

/// Why no page could be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full {
    /// Bytes of state memory in use, of every kind.
    pub(crate) bytes_used: u64,
    /// The limit.
    pub(crate) bytes_max: u64,
}

/// All pages of a shard, and what their epochs mean.
pub(crate) struct Pages {
    arena: Owner,
    frontier: Frontier,
    space: Space,
    /// Of every block: the epoch in which its page was opened, low 32 bits (two epochs 2^32 apart are never both alive).
    block_born: Vec<u32>,
    /// Of every block: its page. Plain numbers, so that a large arena's table is not touched before it is needed.
    block_page: Vec<u32>,
    pages: Vec<Page>,
    free_ids: Vec<PageId>,
    /// Of every table: its oldest and its newest living page.
    chains: Vec<(PageId, PageId)>,
    /// Of every page: where it is durable.
    extents: Vec<Option<ExtentEntry>>,
    /// The files that those extents lie in.
    pub(crate) files: Files,
    /// Pages that no flush has taken yet, by the epoch they were opened in.
    unwritten: VecDeque<(Epoch, Vec<PageRef>)>,
    pub(crate) epochs: Epochs,
    /// Pages that died while a pending epoch holds them.
    held: Vec<PageId>,
    /// Where the next step of [`Pages::sweep`] goes on in `held`; at its end nothing is left to look at.
    sweep_at: usize,
    /// Bytes of the pages in `held`.
    held_bytes: u64,
    sequence: u64,
    blocks_max: u32,
    bytes_max: u64,
    /// Bytes that only cleaning may use, so that it can go on when everything else is taken.
    reserve_bytes: u64,
    pub(crate) may_use_reserve: bool,
    live_bytes: u64,
    /// Bytes of records in all pages ever closed.
    appended_bytes: u64,
    /// Bytes of indexes, channel logs and buffers: counted against the limit, kept elsewhere.
    pub(crate) other_bytes: u64,
    pub(crate) faults: Faults,
}

impl Pages {
    /// Reserves an arena for `bytes_max` bytes of state; its first epoch is `running`.
    pub(crate) fn new(bytes_max: usize, prefault: &Prefault, running: Epoch) -> Result<Self> {
        let frames = bytes_max.div_ceil(FRAME_BYTES).max(1);
        let frames = u32::try_from(frames).unwrap_or(u32::MAX).min(1 << (Address::BITS + 3 - 18));
        let blocks_max = frames << FRAME_ORDER;
        let arena = Owner::reserve(frames as usize * FRAME_BYTES)?;
        let mut frontier = Frontier::new(prefault, POPULATE_AHEAD_BYTES);
        if matches!(prefault, Prefault::All(_)) {
            arena.shared().populate(0..arena.len()).map_err(|error| {
                let bytes = arena.len();
                let hint = "lower --state-memory or do without --prefault all";
                crate::Error::exhausted(format_args!(
                    "cannot make {bytes} bytes of state memory present: {error}; {hint}"
                ))
            })?;
            frontier.skip_to(arena.len());
        }
        frontier.advance(arena.shared(), 0, arena.len());
        Ok(Self {
            arena,
            frontier,
            space: Space::new(frames),
            block_born: vec![0; blocks_max as usize],
            block_page: vec![0; blocks_max as usize],
            pages: Vec::new(),
            free_ids: Vec::new(),
            chains: Vec::new(),
            extents: Vec::new(),
            files: Files::default(),
            unwritten: VecDeque::new(),
            epochs: Epochs::new(running),
            held: Vec::new(),
            sweep_at: 0,
            held_bytes: 0,
            sequence: 0,
            blocks_max,
            bytes_max: bytes_max as u64,
            reserve_bytes: (bytes_max as u64 / 16).min(RESERVE_BYTES_MAX),
            may_use_reserve: false,
            live_bytes: 0,
            appended_bytes: 0,
            other_bytes: 0,
            faults: Faults::default(),
        })
    }

    // ---- records ----

    /// Says whether the record at `address` lies in a page of the epoch whose low 32 bits are `running`.
    #[inline(always)]
    pub(crate) fn is_open(&self, address: Address, running: u32) -> bool {
        self.block_born[address.block()] == running
    }

    /// The `length` bytes at `address`.
    #[inline(always)]
    pub(crate) fn bytes(&self, address: Address, length: usize) -> &[u8] {
        self.arena.slice(address.byte(), length)
    }

    /// The `length` bytes at `address`, to change. Only the caller knows that they are not frozen (I2).
    #[inline(always)]
    pub(crate) fn bytes_mut(&mut self, address: Address, length: usize) -> &mut [u8] {
        self.arena.slice_mut(address.byte(), length)
    }

    /// Everything from `address` to the end of the arena: for records that say themselves how long they are.
    #[inline(always)]
    pub(crate) fn bytes_from(&self, address: Address) -> &[u8] {
        let at = address.byte();
        self.arena.slice(at, self.arena.len().saturating_sub(at))
    }

    /// Copies `length` bytes within the arena.
    #[inline(always)]
    pub(crate) fn copy(&mut self, from: Address, to: Address, length: usize) {
        let low = from.byte().min(to.byte());
        let distance = from.byte().abs_diff(to.byte());
        debug_assert!(distance >= length, "a record is copied to another place");
        let (head, tail) = self.arena.slice_mut(low, distance + length).split_at_mut(distance);
        if from < to {
            tail[..length].copy_from_slice(&head[..length]);
        } else {
            head[..length].copy_from_slice(&tail[..length]);
        }
    }

    #[inline(always)]
    pub(crate) fn prefetch(&self, address: Address) {
        self.arena.prefetch(address.byte());
    }

    // ---- pages ----

    /// Opens a page of `table` for at least `bytes` bytes of records, in the running epoch of `domain`.
    ///
    /// `order` is the size wished for, as a power of two of blocks; a record that needs more gets more.
    pub(crate) fn open(&mut self, table: TableRef, domain: u16, order: u8, bytes: usize) -> Result<PageId, Full> {
        let born = self.epochs.running(domain);
        let id = self.take_page(table, domain, born, order, bytes)?;
        let (oldest, newest) = self.chain_mut(table.id);
        let before = std::mem::replace(newest, id);
        if before == PageId::NONE {
            *oldest = id
        } else {
            self.pages[before.at()].after = id
        }
        self.pages[id.at()].before = before;
        self.put_back_unwritten(born, [self.reference(id)]);
        Ok(id)
    }

    /// Opens a page for an extent that an earlier epoch wrote, not younger than any page its table has.
    pub(crate) fn open_restored(
        &mut self,
        table: TableRef,
        domain: u16,
        born: Epoch,
        bytes: usize,
    ) -> Result<PageId, Full> {
        let id = self.take_page(table, domain, born, 0, bytes)?;
        let (oldest, newest) = self.chain_mut(table.id);
        let after = std::mem::replace(oldest, id);
        if after == PageId::NONE {
            *newest = id
        } else {
            self.pages[after.at()].before = id
        }
        self.pages[id.at()].after = after;
        debug_assert!(after == PageId::NONE || self.page(after).born >= born, "a chain is in order of births");
        Ok(id)
    }

    fn chain_mut(&mut self, table: u32) -> &mut (PageId, PageId) {
        if self.chains.len() <= table as usize {
            self.chains.resize(table as usize + 1, (PageId::NONE, PageId::NONE));
        }
        &mut self.chains[table as usize]
    }

    fn unchain(&mut self, id: PageId) {
        let Page { before, after, table, .. } = self.pages[id.at()];
        let (oldest, newest) = &mut self.chains[table.id as usize];
        if before == PageId::NONE {
            *oldest = after
        } else {
            self.pages[before.at()].after = after
        }
        if after == PageId::NONE { *newest = before } else { self.pages[after.at()].before = before }
    }

    /// The oldest and the newest living page of a table.
    pub(crate) fn chain(&self, table: u32) -> (PageId, PageId) {
        self.chains.get(table as usize).copied().unwrap_or((PageId::NONE, PageId::NONE))
    }

    /// The living pages of a table, oldest first.
    fn pages_of(&self, table: u32) -> impl Iterator<Item = PageId> {
        let known = |id: PageId| (id != PageId::NONE).then_some(id);
        std::iter::successors(known(self.chain(table).0), move |id| known(self.page(*id).after))
    }

    /// Has pages written by the first flush of an epoch that is not below `epoch`.
    pub(crate) fn put_back_unwritten(&mut self, epoch: Epoch, pages: impl IntoIterator<Item = PageRef>) {
        // The running epochs of a shard's domains are a few, and the newest is the usual one.
        let at = match self.unwritten.iter().rposition(|(other, _)| *other <= epoch) {
            Some(at) if self.unwritten[at].0 == epoch => at,
            before => {
                let at = before.map_or(0, |at| at + 1);
                self.unwritten.insert(at, (epoch, Vec::new()));
                at
            }
        };
        self.unwritten[at].1.extend(pages);
    }

    /// Takes the pages that a flush of `epoch` has to write unless they have died: all that were opened by then.
    pub(crate) fn take_unwritten(&mut self, epoch: Epoch) -> VecDeque<PageRef> {
        let mut pages = VecDeque::new();
        while self.unwritten.front().is_some_and(|(born, _)| *born <= epoch) {
            let (_, batch) = self.unwritten.pop_front().expect("just looked at");
            // The usual case, one batch, moves nothing.
            if pages.is_empty() { pages = VecDeque::from(batch) } else { pages.extend(batch) }
        }
        pages
    }

    fn take_page(
        &mut self,
        table: TableRef,
        domain: u16,
        born: Epoch,
        order: u8,
        bytes: usize,
    ) -> Result<PageId, Full> {
        let needed = blocks_for(bytes + PAGE_HEADER_BYTES);
        let order =
            order.min(FRAME_ORDER).max(needed.next_power_of_two().trailing_zeros().min(FRAME_ORDER as u32) as u8);
        let (start, blocks) = self.take_blocks(order, needed).ok_or_else(|| self.full())?;
        self.sequence += 1;
        let page = Page::new(start, blocks, table, domain, born, self.sequence);
        let id = self.free_ids.pop().unwrap_or_else(|| {
            self.pages.push(Page::NOTHING);
            self.extents.push(None);
            PageId(u32::try_from(self.pages.len() - 1).expect("fewer pages than blocks"))
        });
        self.pages[id.at()] = page;
        let blocks = start as usize..(start + blocks) as usize;
        self.block_born[blocks.clone()].fill(born.0 as u32);
        self.block_page[blocks.clone()].fill(id.0);
        self.frontier.advance(self.arena.shared(), blocks.end * BLOCK_BYTES, self.arena.len());
        Ok(id)
    }

    fn take_blocks(&mut self, order: u8, needed: u32) -> Option<(u32, u32)> {
        self.try_take_blocks(order, needed).or_else(|| {
            // Before giving up: what only waits to be looked at, and a page just as large as it must be.
            self.sweep(usize::MAX);
            let smallest = needed.next_power_of_two().trailing_zeros().min(u32::from(FRAME_ORDER)) as u8;
            self.try_take_blocks(order, needed).or_else(|| self.try_take_blocks(smallest, needed))
        })
    }

    fn try_take_blocks(&mut self, order: u8, needed: u32) -> Option<(u32, u32)> {
        let blocks = needed.max(1 << order);
        let limit = if self.may_use_reserve { self.bytes_max } else { self.bytes_max - self.reserve_bytes };
        if self.bytes_used() + u64::from(blocks) * BLOCK_BYTES as u64 > limit {
            return None;
        }
        let start = if blocks > 1 << FRAME_ORDER { self.space.take_run(blocks) } else { self.space.take(order) };
        start.map(|start| (start, blocks))
    }

    /// Ends appending to a page: counts what was, and gives back the blocks behind it.
    pub(crate) fn close(&mut self, id: PageId) {
        let page = &mut self.pages[id.at()];
        self.appended_bytes += u64::from(page.record_bytes());
        if page.live == 0 {
            self.die(id);
        } else {
            self.trim(id);
        }
    }

    /// Gives back the blocks behind what a page uses: nothing will be appended to it any more.
    pub(crate) fn trim(&mut self, id: PageId) {
        let page = &mut self.pages[id.at()];
        let kept = blocks_for(page.used as usize).max(1);
        if kept < page.blocks {
            self.space.give_back(page.start + kept, page.blocks - kept);
            page.blocks = kept;
        }
    }

    /// Counts `bytes` appended to a page.
    #[inline(always)]
    pub(crate) fn append(&mut self, id: PageId, bytes: usize) {
        let page = &mut self.pages[id.at()];
        page.used += bytes as u32;
        page.live += bytes as u32;
        debug_assert!(page.used as usize <= page.blocks as usize * BLOCK_BYTES, "records beyond the end of their page");
        self.live_bytes += bytes as u64;
    }

    /// Counts `bytes` of a page that no version of a record needs any more; returns the page when nothing in it is live.
    #[inline(always)]
    pub(crate) fn release(&mut self, address: Address, bytes: usize) -> Option<PageId> {
        let id = self.page_of(address);
        let page = &mut self.pages[id.at()];
        debug_assert!(page.live as usize >= bytes, "more released than was live in {page:?}");
        page.live -= bytes as u32;
        self.live_bytes -= bytes as u64;
        (page.live == 0).then_some(id)
    }

    /// Ends the life of a page at the running epoch of its domain. Its blocks are free as soon as no epoch holds it (I4).
    pub(crate) fn die(&mut self, id: PageId) {
        let page = &mut self.pages[id.at()];
        debug_assert!(page.is_alive());
        self.live_bytes -= u64::from(std::mem::take(&mut page.live));
        page.died = self.epochs.running(page.domain);
        let (is_held, bytes) = (self.epochs.holds(page.born, page.died), page.block_bytes());
        self.unchain(id);
        if is_held {
            self.held.push(id);
            self.held_bytes += bytes;
        } else {
            self.free(id);
        }
    }

    fn free(&mut self, id: PageId) {
        let page = std::mem::replace(&mut self.pages[id.at()], Page::NOTHING);
        if let Some(extent) = self.extents[id.at()].take() {
            self.files.give_up(&extent);
        }
        self.space.give_back(page.start, page.blocks);
        self.free_ids.push(id);
    }

    /// Ends the life of every page of a table.
    pub(crate) fn die_all_of(&mut self, table: u32) {
        while let (oldest, _) = self.chain(table)
            && oldest != PageId::NONE
        {
            self.die(oldest);
        }
    }

    /// Puts the pages of a table into another domain, before either has been cut.
    pub(crate) fn move_to_domain(&mut self, table: u32, domain: u16) {
        let pages: Vec<PageId> = self.pages_of(table).collect();
        pages.into_iter().for_each(|id| self.pages[id.at()].domain = domain);
    }

    /// The epoch in which the oldest living page of a table was opened.
    pub(crate) fn oldest_born(&self, table: u32) -> Epoch {
        self.page(self.chain(table).0).born
    }

    /// Says whether nothing can be written to a page any more.
    pub(crate) fn is_frozen(&self, page: &Page) -> bool {
        page.born != self.epochs.running(page.domain)
    }

    /// Looks again at pages that were held, after an epoch ended: at most `count` of them. Says whether more are left.
    pub(crate) fn sweep(&mut self, count: usize) -> bool {
        for _ in 0..count {
            let Some(id) = self.held.get(self.sweep_at) else { return false };
            let page = &self.pages[id.at()];
            if self.epochs.holds(page.born, page.died) {
                self.sweep_at += 1;
            } else {
                self.held_bytes -= page.block_bytes();
                let id = self.held.swap_remove(self.sweep_at);
                self.free(id);
            }
        }
        self.sweep_at < self.held.len()
    }

    /// Has the next [`Pages::sweep`] look at every held page again.
    pub(crate) fn sweep_from_start(&mut self) {
        self.sweep_at = 0;
    }

    #[inline(always)]
    pub(crate) fn page_of(&self, address: Address) -> PageId {
        PageId(self.block_page[address.block()])
    }

    #[inline(always)]
    pub(crate) fn page(&self, id: PageId) -> &Page {
        &self.pages[id.at()]
    }

    /// Names a page so that a later look-up can tell whether it is still the same.
    pub(crate) fn reference(&self, id: PageId) -> PageRef {
        PageRef { id, sequence: self.page(id).sequence }
    }

    /// The page of a reference, unless its number has been given to another.
    pub(crate) fn resolve(&self, reference: PageRef) -> Option<&Page> {
        self.pages.get(reference.id.at()).filter(|page| page.sequence == reference.sequence)
    }

    /// The page itself with its header room, as far as it is used.
    pub(crate) fn image(&self, id: PageId) -> &[u8] {
        let page = self.page(id);
        self.arena.slice(page.start as usize * BLOCK_BYTES, page.used as usize)
    }

    /// The page itself with its header room, to be filled by a restore.
    pub(crate) fn image_mut(&mut self, id: PageId, used: usize) -> &mut [u8] {
        let page = &mut self.pages[id.at()];
        assert!(used <= page.blocks as usize * BLOCK_BYTES, "{used} bytes do not fit into {page:?}");
        page.used = used as u32;
        self.arena.slice_mut(page.start as usize * BLOCK_BYTES, used)
    }

    /// Counts `bytes` of a restored page as live.
    pub(crate) fn revive(&mut self, address: Address, bytes: usize) {
        let id = self.page_of(address);
        self.pages[id.at()].live += bytes as u32;
        self.live_bytes += bytes as u64;
    }

    /// Every page number there is or was; those of no page are [`Page::NOTHING`].
    pub(crate) fn ids(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Where a page is durable.
    pub(crate) fn extent(&self, id: PageId) -> Option<&ExtentEntry> {
        self.extents[id.at()].as_ref()
    }

    /// Notes where a page is durable, as the flush of `epoch` or a restore has found; one that is gone already gives its
    /// extent up at once. Where it was before is given up when no earlier epoch can name it any more.
    pub(crate) fn set_extent(&mut self, page: PageRef, extent: ExtentEntry, epoch: Epoch) {
        self.files.add(&extent);
        if self.resolve(page).is_none() {
            self.files.give_up(&extent);
        } else if let Some(before) = self.extents[page.id.at()].replace(extent) {
            self.files.give_up_after(&before, epoch);
        }
    }

    /// Plants a bug: a page is free though an epoch may hold it.
    pub(crate) fn free_too_early(&mut self, page: PageRef) {
        if self.resolve(page).is_some_and(|page| !page.is_alive())
            && let Some(at) = self.held.iter().position(|id| *id == page.id)
        {
            self.held.swap_remove(at);
            self.held_bytes -= self.page(page.id).block_bytes();
            self.free(page.id);
        }
    }

    // ---- figures ----

    pub(crate) fn full(&self) -> Full {
        Full { bytes_used: self.bytes_used(), bytes_max: self.bytes_max }
    }

    /// Bytes counted against the limit.
    pub(crate) fn bytes_used(&self) -> u64 {
        self.page_bytes() + self.other_bytes
    }

    /// Bytes of blocks that pages have.
    pub(crate) fn page_bytes(&self) -> u64 {
        u64::from(self.blocks_max - self.space.blocks_free()) * BLOCK_BYTES as u64
    }

    /// Bytes of records that are reachable.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Bytes of records ever appended to pages that were closed since. Those of open pages are not counted per record.
    pub(crate) fn appended_bytes(&self) -> u64 {
        self.appended_bytes
    }

    /// Bytes of dead pages that pending epochs hold.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }
}

fn blocks_for(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BLOCK_BYTES)).expect("a record is smaller than 1 MiB")
}
