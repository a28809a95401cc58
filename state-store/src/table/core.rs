//! One table without its types: index, open page, and what happens to a record's bytes.
//!
//! Invariants
//! * I1. Every key has at most one entry in the index, and it points to the newest version of its record.
//! * I2. A record with a frozen page is never written; an update copies it to the open page first.
//! * I3. In a table with removal, a superseded or removed version that is not frozen is marked dead in place, so of one
//!   epoch's versions of a key at most one is not.
//! * I4. A removal of a key that was ever below a cut leaves a tombstone, and so does its re-insertion and removal.

use super::layout::{BELOW_CUT, DEAD, Layout, TOMBSTONE};
use crate::epoch::Epoch;
use crate::error::{Error, Result};
use crate::index::Index;
use crate::log::{Address, BLOCK_BYTES, Full, PageId, Pages, Prefault, TableRef};

/// A table, whatever its types.
pub(crate) struct TableCore {
    pub(crate) name: Box<str>,
    pub(crate) layout: Layout,
    pub(crate) itself: TableRef,
    pub(crate) domain: u16,
    /// Whether a [`Table`](super::Table) has been handed out; a restored table waits for it.
    pub(crate) is_open: bool,
    pub(crate) index: Index,
    open: PageId,
    open_epoch: Epoch,
    next: Address,
    end: Address,
    order: u8,
    /// Bytes appended in the epoch of the open page.
    epoch_bytes: u64,
    /// Keys that are there.
    pub(crate) keys: u64,
    /// Tombstones that the index points at.
    pub(crate) tombstones: u64,
}

/// A layout that is known when the program is compiled.
pub(crate) trait Shape {
    const LAYOUT: Layout;
}

/// Where a record is, and whether it was made just now.
#[derive(Clone, Copy)]
pub(crate) struct Settled {
    pub(crate) address: Address,
    pub(crate) is_first: bool,
}

impl TableCore {
    pub(crate) fn new(itself: TableRef, domain: u16, name: &str, layout: Layout, prefault: &Prefault) -> Self {
        Self {
            name: name.into(),
            layout,
            itself,
            domain,
            is_open: false,
            index: Index::new(prefault),
            open: PageId::NONE,
            open_epoch: Epoch::ZERO,
            next: Address::NONE,
            end: Address::NONE,
            order: 0,
            epoch_bytes: 0,
            keys: 0,
            tombstones: 0,
        }
    }

    /// The newest version of the record of a key; it may be a tombstone.
    #[inline(always)]
    pub(crate) fn find(&self, pages: &Pages, layout: Layout, hash: u64, key: &[u8]) -> Option<Address> {
        self.index.find(hash, |address| layout.key(record(pages, layout, address)) == key)
    }

    /// Makes room for a record in the open page, opening another when it must.
    #[inline(always)]
    pub(crate) fn append(&mut self, pages: &mut Pages, bytes: usize) -> Result<Address> {
        let (at, after) = (self.next, self.next.after(bytes));
        if after > self.end || self.open_epoch != pages.epochs.running(self.domain) {
            return self.append_to_new_page(pages, bytes);
        }
        self.next = after;
        pages.append(self.open, bytes);
        Ok(at)
    }

    #[cold]
    fn append_to_new_page(&mut self, pages: &mut Pages, bytes: usize) -> Result<Address> {
        let running = pages.epochs.running(self.domain);
        let order = if self.open_epoch == running {
            self.order.saturating_add(1)
        } else {
            // A quarter of what the last epoch appended: pages of a busy table are large at once, of a quiet one small.
            let blocks = self.epoch_bytes / (4 * BLOCK_BYTES as u64);
            blocks.checked_ilog2().unwrap_or(0) as u8
        };
        let page =
            pages.open(self.itself, self.domain, order.min(6), bytes).map_err(|full| self.out_of_memory(full))?;
        self.close(pages);
        if self.open_epoch != running {
            self.epoch_bytes = 0;
        }
        self.order = order.min(6);
        self.open = page;
        self.open_epoch = running;
        self.next = pages.page(page).first_record().after(bytes);
        self.end = pages.page(page).end();
        pages.append(page, bytes);
        Ok(pages.page(page).first_record())
    }

    /// Bytes of records appended to the open page.
    pub(crate) fn open_bytes(&self, pages: &Pages) -> u64 {
        if self.open == PageId::NONE { 0 } else { u64::from(pages.page(self.open).record_bytes()) }
    }

    /// Ends appending to the open page.
    fn close(&mut self, pages: &mut Pages) {
        if self.open == PageId::NONE {
            return;
        }
        self.epoch_bytes += u64::from(pages.page(self.open).record_bytes());
        pages.close(self.open);
        self.open = PageId::NONE;
        (self.next, self.end) = (Address::NONE, Address::NONE);
    }

    pub(crate) fn out_of_memory(&self, full: Full) -> Error {
        Error::exhausted(format_args!(
            "state `{}`: {} of {} bytes of state memory are in use and none can be freed; raise --state-memory",
            self.name, full.bytes_used, full.bytes_max
        ))
    }

    /// Counts a record out: no entry points at it any more.
    #[inline]
    pub(crate) fn release(&mut self, pages: &mut Pages, address: Address, bytes: usize) {
        if let Some(page) = pages.release(address, bytes) {
            self.page_is_empty(pages, page);
        }
    }

    #[cold]
    fn page_is_empty(&mut self, pages: &mut Pages, page: PageId) {
        if page == self.open {
            if self.open_epoch == pages.epochs.running(self.domain) {
                return;
            }
            // Empty and frozen: closing it is its end.
            return self.close(pages);
        }
        pages.die(page);
    }

    /// Adds the entry of a new key.
    pub(crate) fn enter(&mut self, pages: &mut Pages, hash: u64, address: Address) {
        let before = self.index.bytes();
        self.index.insert(hash, address);
        pages.other_bytes = pages.other_bytes + self.index.bytes() - before;
    }

    /// Takes the entry of a key out.
    pub(crate) fn leave(&mut self, pages: &mut Pages, hash: u64, address: Address) {
        let before = self.index.bytes();
        self.index.remove(hash, address);
        pages.other_bytes = pages.other_bytes + self.index.bytes() - before;
    }

    /// Finds or makes the record of a key, in a page that may be written. Its value is fixed-size, and not written yet
    /// when the record is new.
    #[inline(never)]
    pub(crate) fn settle<S: Shape>(&mut self, pages: &mut Pages, hash: u64, key: &[u8]) -> Result<Settled> {
        let layout = S::LAYOUT;
        let Some(address) = self.find(pages, layout, hash, key) else {
            let size = layout.size_for(key.len(), 0);
            let address = self.append(pages, size)?;
            layout.write_head(pages.bytes_mut(address, size), 0, key, 0);
            self.enter(pages, hash, address);
            self.keys += 1;
            return Ok(Settled { address, is_first: true });
        };
        let is_open = pages.is_open(address, pages.epochs.running(self.domain).0 as u32);
        let old = record(pages, layout, address);
        let (size, flags) = (layout.size(old), layout.flags(old));
        let is_first = flags & TOMBSTONE != 0;
        if is_first {
            self.keys += 1;
            self.tombstones -= 1;
        } else if is_open {
            return Ok(Settled { address, is_first });
        }
        let target = if is_open { address } else { self.append(pages, size)? };
        if target != address {
            pages.copy(address, target, size);
            self.index.swing(hash, address, target);
            self.release(pages, address, size);
        }
        if layout.removal {
            layout.set_flags(pages.bytes_mut(target, 1), BELOW_CUT);
        }
        Ok(Settled { address: target, is_first })
    }

    /// Copies a frozen record of the key to the open page: what [`TableCore::settle`] does, without looking for it, when
    /// the index still points at `address` in the usual place. `None` when it does not.
    #[inline(always)]
    pub(crate) fn thaw<S: Shape>(&mut self, pages: &mut Pages, hash: u64, address: Address) -> Result<Option<Address>> {
        let layout = S::LAYOUT;
        let Some(slot) = self.index.home_slot(hash, address) else { return Ok(None) };
        let size = layout.size(record(pages, layout, address));
        let target = self.append(pages, size)?;
        pages.copy(address, target, size);
        if layout.removal {
            layout.set_flags(pages.bytes_mut(target, 1), BELOW_CUT);
        }
        self.index.set(slot, hash, target);
        self.release(pages, address, size);
        Ok(Some(target))
    }

    /// Writes a value that has no fixed size under a key; `found` is what [`TableCore::find`] said.
    pub(crate) fn write_value(
        &mut self,
        pages: &mut Pages,
        layout: Layout,
        hash: u64,
        key: &[u8],
        found: Option<Address>,
        value: &[u8],
    ) -> Result<()> {
        if value.len() > layout.value_bytes_max(key.len()) {
            let (bytes, limit) = (value.len(), layout.value_bytes_max(key.len()));
            return Err(Error::exhausted(format_args!(
                "state `{}`: a value of {bytes} bytes is above the limit of {limit} bytes, which no setting raises: keep it in parts, under \
                 several keys",
                self.name
            )));
        }
        let Some(address) = found else {
            let room = room_for(value.len(), 0);
            let address = self.append(pages, layout.size_for(key.len(), room))?;
            let bytes = pages.bytes_mut(address, layout.size_for(key.len(), room));
            layout.write_head(bytes, 0, key, room);
            layout.write_value(bytes, value);
            self.enter(pages, hash, address);
            self.keys += 1;
            return Ok(());
        };
        let is_open = pages.is_open(address, pages.epochs.running(self.domain).0 as u32);
        let old = record(pages, layout, address);
        let (size, flags, old_room) = (layout.size(old), layout.flags(old), layout.value_room(old));
        let is_tombstone = flags & TOMBSTONE != 0;
        let flags = if is_open && !is_tombstone { flags } else { BELOW_CUT };
        let flags = if layout.removal { flags } else { 0 };
        if is_open && value.len() <= old_room {
            let bytes = pages.bytes_mut(address, size);
            layout.set_flags(bytes, flags);
            layout.write_value(bytes, value);
        } else {
            let room = room_for(value.len(), old_room).min(layout.value_bytes_max(key.len()));
            let new_size = layout.size_for(key.len(), room);
            let target = self.append(pages, new_size)?;
            let bytes = pages.bytes_mut(target, new_size);
            layout.write_head(bytes, flags, key, room);
            layout.write_value(bytes, value);
            self.index.swing(hash, address, target);
            self.kill_in_place(pages, layout, address, is_open);
            self.release(pages, address, size);
        }
        if is_tombstone {
            self.keys += 1;
            self.tombstones -= 1;
        }
        Ok(())
    }

    /// Marks a superseded version dead where that is possible and needed (I3).
    pub(crate) fn kill_in_place(&mut self, pages: &mut Pages, layout: Layout, address: Address, is_open: bool) {
        if is_open && layout.removal {
            layout.set_flags(pages.bytes_mut(address, 1), DEAD);
        }
    }

    /// Removes a key. Says whether it was there.
    pub(crate) fn remove(&mut self, pages: &mut Pages, hash: u64, key: &[u8]) -> Result<bool> {
        let layout = self.layout;
        assert!(layout.removal, "state `{}` was opened without removal", self.name);
        let Some(address) = self.find(pages, layout, hash, key) else { return Ok(false) };
        let old = record(pages, layout, address);
        let (size, flags) = (layout.size(old), layout.flags(old));
        if flags & TOMBSTONE != 0 {
            return Ok(false);
        }
        let is_open = pages.is_open(address, pages.epochs.running(self.domain).0 as u32);
        let was_below_cut = !is_open || flags & BELOW_CUT != 0;
        if !was_below_cut || pages.faults.dropped_tombstone() {
            self.kill_in_place(pages, layout, address, is_open);
            self.leave(pages, hash, address);
            self.release(pages, address, size);
        } else if is_open {
            layout.set_flags(pages.bytes_mut(address, 1), TOMBSTONE | BELOW_CUT);
            self.tombstones += 1;
        } else {
            let tombstone_size = layout.size_for(key.len(), 0);
            let target = self.append(pages, tombstone_size)?;
            layout.write_head(pages.bytes_mut(target, tombstone_size), TOMBSTONE | BELOW_CUT, key, 0);
            self.index.swing(hash, address, target);
            self.release(pages, address, size);
            self.tombstones += 1;
        }
        self.keys -= 1;
        Ok(true)
    }
}

impl TableCore {
    /// Moves the record at `address`, in a frozen page, to the open page, if it is live; drops a tombstone instead when
    /// `may_drop` says that nothing older than it is left. Returns how many bytes were moved.
    pub(crate) fn clean(&mut self, pages: &mut Pages, hash: u64, address: Address, may_drop: bool) -> Result<usize> {
        if !self.index.points_at(hash, address) {
            return Ok(0);
        }
        let layout = self.layout;
        let bytes = record(pages, layout, address);
        let (size, flags) = (layout.size(bytes), layout.flags(bytes));
        if flags & TOMBSTONE != 0 && may_drop {
            self.leave(pages, hash, address);
            self.tombstones -= 1;
            self.release(pages, address, size);
            return Ok(0);
        }
        let target = self.append(pages, size)?;
        pages.copy(address, target, size);
        if layout.removal {
            layout.set_flags(pages.bytes_mut(target, 1), flags | BELOW_CUT);
        }
        self.index.swing(hash, address, target);
        self.release(pages, address, size);
        Ok(size)
    }
}

/// The record at `address`: exactly its bytes where all have one size, else everything behind it as well.
#[inline(always)]
pub(crate) fn record(pages: &Pages, layout: Layout, address: Address) -> &[u8] {
    match layout.fixed_size() {
        Some(size) => pages.bytes(address, size),
        None => pages.bytes_from(address),
    }
}

/// Room for a value: what it needs, and where it has outgrown its room, a quarter more for the next time.
fn room_for(value: usize, old_room: usize) -> usize {
    crate::log::aligned(if old_room > 0 && value > old_room { value + value / 4 } else { value })
}
