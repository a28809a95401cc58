//! Keeps memory in proportion to what lives: moves the live records of sparse pages to the tail, a little per turn.
//!
//! Invariants
//! * I1. Only frozen pages are cleaned. What is moved belongs to the running epoch like any update; the page that it came
//!   from stays in the snapshots that hold it.
//! * I2. A tombstone is dropped only when no living page of its table was born before its own page: then no extent of a
//!   snapshot to come has an older version of the key.
//! * I3. A step is bounded whatever the debt; the work per turn follows what was appended since the last one.
//!
//! A page is worth cleaning when at most half of it lives and its table has another page. Of a table that consists to a
//! quarter of tombstones the oldest page is cleaned whatever lives in it: each pass over the table ends them all.

use crate::hash::hash_bytes;
use crate::log::{Address, PageId, PageRef, Pages};
use crate::table::Log;

/// Records whose look-ups overlap.
const PIECE: usize = 32;
/// Least and most bytes of records looked at in one turn.
const TURN_BYTES: std::ops::Range<u64> = 8 << 10..64 << 10;
/// Most bytes of work that appending may leave behind.
const CREDIT_MAX: u64 = 4 << 20;
/// Pages looked at to find a sparse one.
const SAMPLE: u32 = 64;
/// Memory that a store may waste before cleaning begins, and again for each table.
const SLACK_BYTES: u64 = 256 << 10;
const SLACK_BYTES_PER_TABLE: u64 = 8 << 10;
/// Tombstones that are not worth a pass.
const TOMBSTONES_MIN: u64 = 256;

/// The cleaning half of a store.
pub(super) struct Cleaner {
    /// Pages may take this many times the bytes that live in them.
    factor: f64,
    victim: Option<PageRef>,
    next: Address,
    cursor: u32,
    table_cursor: usize,
    appended: u64,
    /// Bytes to look at for what was appended.
    credit: u64,
    pub(super) moved_bytes: u64,
}

impl Cleaner {
    pub(super) fn new(factor: f64) -> Self {
        assert!(factor > 1.0, "a space factor of {factor}: must be above 1");
        Self {
            factor,
            victim: None,
            next: Address::NONE,
            cursor: 0,
            table_cursor: 0,
            appended: 0,
            credit: 0,
            moved_bytes: 0,
        }
    }

    /// Bytes of memory above what the factor allows.
    pub(super) fn debt_bytes(&self, log: &Log) -> u64 {
        let pages = &log.pages;
        let living = pages.page_bytes() - pages.held_bytes();
        let slack = SLACK_BYTES.min(pages.full().bytes_max / 64) + SLACK_BYTES_PER_TABLE * log.tables.len() as u64;
        living.saturating_sub((pages.live_bytes() as f64 * self.factor) as u64 + slack)
    }

    /// One step. Says whether it found something to do.
    pub(super) fn turn(&mut self, log: &mut Log) -> bool {
        let appended = log.pages.appended_bytes() - std::mem::replace(&mut self.appended, log.pages.appended_bytes());
        self.credit = (self.credit + 2 * appended).min(CREDIT_MAX);
        if self.victim.is_none_or(|victim| log.pages.resolve(victim).is_none_or(|page| !page.is_alive())) {
            self.victim = self.choose(log);
            let Some(victim) = self.victim else { return false };
            self.next = log.pages.page(victim.id).first_record();
        }
        let budget = self.credit.clamp(TURN_BYTES.start, TURN_BYTES.end);
        log.pages.may_use_reserve = true;
        let moved = self.clean(log, budget);
        log.pages.may_use_reserve = false;
        self.moved_bytes += moved;
        // What cleaning appends is no reason to clean more.
        self.credit = self.credit.saturating_sub(budget + 2 * moved);
        true
    }

    fn choose(&mut self, log: &Log) -> Option<PageRef> {
        self.choose_for_tombstones(log).or_else(|| self.choose_sparse(log))
    }

    fn choose_for_tombstones(&mut self, log: &Log) -> Option<PageRef> {
        for _ in 0..log.tables.len().min(SAMPLE as usize) {
            self.table_cursor = (self.table_cursor + 1) % log.tables.len();
            let Some(core) = &log.tables[self.table_cursor] else { continue };
            if core.tombstones < TOMBSTONES_MIN || core.tombstones * 4 < core.keys {
                continue;
            }
            let (oldest, _) = log.pages.chain(core.itself.id);
            if oldest != PageId::NONE && log.pages.is_frozen(log.pages.page(oldest)) {
                return Some(log.pages.reference(oldest));
            }
        }
        None
    }

    fn choose_sparse(&mut self, log: &Log) -> Option<PageRef> {
        if self.debt_bytes(log) == 0 {
            return None;
        }
        let pages = &log.pages;
        let mut best: Option<(u64, PageId)> = None;
        for _ in 0..SAMPLE.min(pages.ids()) {
            self.cursor = (self.cursor + 1) % pages.ids();
            let id = PageId(self.cursor);
            if let Some(share) = live_share(pages, id)
                && best.is_none_or(|(least, _)| share < least)
            {
                best = Some((share, id));
            }
        }
        best.map(|(_, id)| pages.reference(id))
    }

    /// Looks at `budget` bytes of the victim's records; returns how many were moved.
    fn clean(&mut self, log: &mut Log, budget: u64) -> u64 {
        let victim = self.victim.expect("chosen");
        let (mut seen, mut moved) = (0, 0);
        while seen < budget {
            let Some(page) = log.pages.resolve(victim).filter(|page| page.is_alive()) else { break };
            let (id, born, end) = (page.table.id, page.born, page.start_address().after(aligned_used(page.used)));
            let (core, pages, _) = log.split(id);
            let layout = core.layout;
            let mut found = [(0, Address::NONE); PIECE];
            let mut count = 0;
            while count < PIECE && self.next < end {
                let bytes = crate::table::record(pages, layout, self.next);
                let hash = hash_bytes(layout.key(bytes));
                core.index.prefetch(hash);
                found[count] = (hash, self.next);
                let size = layout.size(bytes);
                self.next = self.next.after(size);
                seen += size as u64;
                count += 1;
            }
            if count == 0 {
                // Walked through: whatever still lives in it was put there since, which a frozen page does not allow.
                debug_assert!(false, "a page lives after it was cleaned");
                self.victim = None;
                return moved;
            }
            let may_drop = pages.oldest_born(id) >= born;
            for (hash, address) in &found[..count] {
                let Ok(bytes) = core.clean(pages, *hash, *address, may_drop) else {
                    // Not even the reserve is left: what is held must go first.
                    self.victim = None;
                    return moved;
                };
                moved += bytes as u64;
                if pages.resolve(victim).is_none_or(|page| !page.is_alive()) {
                    break;
                }
            }
        }
        if log.pages.resolve(victim).is_none_or(|page| !page.is_alive()) {
            self.victim = None;
        }
        moved
    }
}

fn aligned_used(used: u32) -> usize {
    crate::log::aligned(used as usize)
}

/// How much of a page lives, in 1/1024 of its memory; `None` when cleaning it would gain nothing.
fn live_share(pages: &Pages, id: PageId) -> Option<u64> {
    let page = pages.page(id);
    if !page.is_alive() || !pages.is_frozen(page) {
        return None;
    }
    let (oldest, newest) = pages.chain(page.table.id);
    let share = u64::from(page.live) * 1024 / page.block_bytes();
    (oldest != newest && share <= 512).then_some(share)
}
