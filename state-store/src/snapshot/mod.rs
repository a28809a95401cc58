//! Snapshots on disk: how a shard writes its extents, and the directory in which manifests make them complete epochs.

mod segment;

pub use segment::{FreedSegment, SegmentConfig, SegmentWriter, Turn};
