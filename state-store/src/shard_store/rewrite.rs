//! Keeps files in proportion to what is of use in them: pages of sparse files are written again, as they are.
//!
//! Without this a file would stay for one small page that nobody changes, among megabytes that every epoch replaces.
//!
//! Invariants
//! * I1. A page that is written again keeps its birth and its sequence: only its place changes.
//! * I2. At most one file is emptied per complete epoch, so that what this adds to a snapshot is bounded.

use crate::format::SegmentId;
use crate::log::PageId;
use crate::table::Log;

/// Files that may be sparse whatever is in use.
const SLACK_FILES: u64 = 2;
/// Page numbers looked at in one turn.
const TURN_PAGES: u32 = 256;

/// The rewriting half of a store.
pub(super) struct Rewriter {
    /// Files may take this many times the bytes in use.
    factor: f64,
    slack_bytes: u64,
    /// The file being emptied, and the next page number to look at.
    at: Option<(SegmentId, u32)>,
    is_armed: bool,
    /// Pages given to a flush to be written again.
    pub(super) pages: u64,
}

impl Rewriter {
    /// Files get once more the bytes in use than `space_factor` gives to memory: emptying one costs a write of what it holds.
    pub(super) fn new(space_factor: f64, segment_bytes_max: u64) -> Self {
        Self {
            factor: space_factor + 1.0,
            slack_bytes: SLACK_FILES * segment_bytes_max,
            at: None,
            is_armed: true,
            pages: 0,
        }
    }

    /// An epoch is complete: another file may be emptied.
    pub(super) fn epoch_completed(&mut self) {
        self.is_armed = true;
    }

    /// One step. Says whether there is more to do at once.
    pub(super) fn turn(&mut self, log: &mut Log) -> bool {
        if self.at.is_none() && self.is_armed {
            self.is_armed = false;
            let (length, used) = log.pages.files.bytes();
            if length > (used as f64 * self.factor) as u64 + self.slack_bytes {
                self.at = log.pages.files.sparsest().map(|segment| (segment, 0));
            }
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
        self.at.is_some()
    }
}
