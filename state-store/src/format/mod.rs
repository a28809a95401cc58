//! The bytes of a state directory: every structure on disk, its encoding beside its decoding. Nothing else knows bytes.
//!
//! `docs/FORMAT.md` is the same in tables. All integers are little-endian.
//!
//! Invariants
//! * I1. `decode(encode(x)) == x`, and `encode(decode(b)) == b` for every `b` that decodes: there is one encoding.
//! * I2. Decoding never panics, never reads past the end, and allocates at most a small multiple of the bytes it was given.
//! * I3. The bytes of version 1 never change (golden files); another layout gets another version.

mod bytes;
mod extent;
mod manifest;
mod marker;
mod names;

pub use extent::{EXTENT_ALIGNMENT_BYTES, EXTENT_BYTES_MAX, ExtentEntry, ExtentHeader, ExtentKind, SegmentId};
pub use manifest::{Blob, ChannelLog, Manifest, PreparedOutput, SegmentLength, TableEntry};
pub use marker::{CommittedMarker, FormatMarker, RunMarker};
pub use names::{
    COMMITTED_FILE, COMMITTED_TEMPORARY_FILE, FORMAT_FILE, FileName, LOCK_FILE, RUN_FILE, RUN_TEMPORARY_FILE,
    check_name, format_temporary_file, manifest_file, manifest_temporary_file, segment_file,
};

use std::fmt;

/// The version of everything in a state directory.
pub const FORMAT_VERSION: u16 = 1;

/// Bytes that are not what this version writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFormat {
    /// Where in the bytes it was noticed.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

impl BadFormat {
    pub(crate) fn at(offset: usize, what: impl fmt::Display) -> Self {
        Self { offset: offset as u64, what: what.to_string() }
    }
}

impl fmt::Display for BadFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offset {}: {}", self.offset, self.what)
    }
}

#[cfg(test)]
mod tests;
