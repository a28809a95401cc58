//! Keeps files in proportion to what is of use in them: pages of sparse files are written again, as they are.
//!
//! Without this a file would stay for one small page that nobody changes, among megabytes that every epoch replaces; and
//! each start of a job would leave one more, because it begins a file of its own.
//!
//! Invariants
//! * I1. A page that is written again keeps its birth and its sequence: only its place changes.
//! * I2. Per complete epoch one file is emptied, or several that together hold little of use, so that what this adds to a
//!   snapshot is bounded.
//! * I3. A file that is being emptied is not chosen again before it is gone.

use crate::format::SegmentId;
use crate::log::PageId;
use crate::table::Log;

/// Files of the smallest size that may be sparse whatever is in use.
const SLACK_FILES: u64 = 2;
/// Bytes in use after which no further file is emptied for an epoch (I2).
const EPOCH_BYTES: u64 = 1 << 20;
/// Page numbers looked at in one turn.
const TURN_PAGES: u32 = 256;

/// The rewriting half of a store.
pub(super) struct Rewriter {
    /// Files may take this many times the bytes in use.
    factor: f64,
    /// What a file takes on the disk at least.
    allocated_min: u64,
    /// The file being emptied, and the next page number to look at.
    at: Option<(SegmentId, u32)>,
    /// Files whose pages were given to a flush (I3).
    emptied: Vec<SegmentId>,
    /// Bytes in use that may still be written again for this epoch.
    budget_bytes: u64,
    /// Pages given to a flush to be written again.
    pub(super) pages: u64,
}

impl Rewriter {
    /// Files get once more the bytes in use than `space_factor` gives to memory: emptying one costs a write of what it holds.
    pub(super) fn new(space_factor: f64, segment_bytes_min: u64) -> Self {
        Self {
            factor: space_factor + 1.0,
            allocated_min: segment_bytes_min,
            at: None,
            emptied: Vec::new(),
            budget_bytes: EPOCH_BYTES,
            pages: 0,
        }
    }

    /// An epoch is complete: more files may be emptied.
    pub(super) fn epoch_completed(&mut self) {
        self.budget_bytes = EPOCH_BYTES;
    }

    fn choose(&mut self, log: &Log) {
        let files = &log.pages.files;
        self.emptied.retain(|id| files.contains(*id));
        let skip = |id| self.emptied.contains(&id);
        let (taken, used) = files.bytes(self.allocated_min, skip);
        let allowed = (used as f64 * self.factor) as u64 + SLACK_FILES * self.allocated_min;
        match files.sparsest(self.allocated_min, skip) {
            Some((segment, used)) if taken > allowed => {
                self.at = Some((segment, 0));
                self.emptied.push(segment);
                self.budget_bytes = self.budget_bytes.saturating_sub(used.max(1));
            }
            // Nothing to do before the next epoch is complete.
            _ => self.budget_bytes = 0,
        }
    }

    /// One step. Says whether there is more to do at once.
    pub(super) fn turn(&mut self, log: &mut Log) -> bool {
        if self.at.is_none() && self.budget_bytes > 0 {
            self.choose(log);
        }
        let Some((segment, start)) = self.at else { return false };
        let pages = &mut log.pages;
        let end = pages.ids().min(start.saturating_add(TURN_PAGES));
        let next_epoch = pages.epochs.newest();
        for id in (start..end).map(PageId) {
            let is_there = pages.extent(id).is_some_and(|extent| extent.segment == segment);
            if is_there && pages.page(id).is_alive() {
                pages.put_back_unwritten(next_epoch, [pages.reference(id)]);
                self.pages += 1;
            }
        }
        self.at = (end < pages.ids()).then_some((segment, end));
        self.at.is_some() || self.budget_bytes > 0
    }
}
