//! Snapshots on disk: how a shard writes its extents, and the directory in which manifests make them complete epochs.

mod catalog;
mod publish;
mod report;
mod segment;
mod state_dir;

pub use catalog::{BadPlace, corrupt_extent, load_manifest, read_extent, verify_manifest};
pub use publish::{Publish, Published};
pub use report::{
    BadEpoch, BlobReport, ChannelLogReport, EpochReport, ExtentReport, KeyGroupsReport, ListReport, OriginReport,
    OutputReport, SegmentReport, ShowReport, TableReport, VerifyReport, list_snapshots, show_snapshot,
    verify_snapshots,
};
pub use segment::{FreedSegment, SegmentConfig, SegmentWriter, Turn};
pub use state_dir::{Collected, Pin, RestorePoint, StateDir, StateDirOptions};

#[cfg(test)]
mod tests;
