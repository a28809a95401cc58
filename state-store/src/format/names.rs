//! Names of the files in a state directory: what each may be called, and what a name found there is.

use super::SegmentId;
use crate::epoch::Epoch;
use crate::error::{Error, Result};

/// Written last when a directory is made.
pub const FORMAT_FILE: &str = "FORMAT";
/// Locked by the process that owns the directory; empty.
pub const LOCK_FILE: &str = "LOCK";
/// The fencing token.
pub const RUN_FILE: &str = "RUN";
/// The fencing token before it has its final name.
pub const RUN_TEMPORARY_FILE: &str = "RUN.tmp";

/// The epoch up to which all output is committed.
pub const COMMITTED_FILE: &str = "COMMITTED";
/// [`COMMITTED_FILE`] before it has its final name.
pub const COMMITTED_TEMPORARY_FILE: &str = "COMMITTED.tmp";

/// Name of [`FORMAT_FILE`] before it is final.
pub fn format_temporary_file() -> String {
    format!("{FORMAT_FILE}.tmp")
}

/// The final name of an epoch's manifest.
pub fn manifest_file(epoch: Epoch) -> String {
    format!("epoch-{:020}.manifest", epoch.0)
}

/// Name of an epoch's manifest before it is complete.
pub fn manifest_temporary_file(epoch: Epoch) -> String {
    format!("epoch-{:020}.manifest.tmp", epoch.0)
}

/// Name of a segment file.
pub fn segment_file(id: SegmentId) -> String {
    format!("segment-{:010}-{:05}-{:010}", id.run, id.shard, id.number)
}

/// What a name in a state directory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileName {
    /// [`FORMAT_FILE`].
    Format,
    /// [`LOCK_FILE`].
    Lock,
    /// [`RUN_FILE`].
    Run,
    /// [`COMMITTED_FILE`].
    Committed,
    /// A manifest.
    Manifest(Epoch),
    /// A segment file.
    Segment(SegmentId),
    /// A manifest that has not got its final name.
    ManifestTemporary(Epoch),
    /// Another file that has not got its final name.
    Temporary,
}

impl FileName {
    /// Reads a name; `None` when it is none of ours.
    pub fn parse(name: &str) -> Option<Self> {
        let parsed = match name {
            FORMAT_FILE => Self::Format,
            LOCK_FILE => Self::Lock,
            RUN_FILE => Self::Run,
            COMMITTED_FILE => Self::Committed,
            RUN_TEMPORARY_FILE | COMMITTED_TEMPORARY_FILE => Self::Temporary,
            _ if name == format_temporary_file() => Self::Temporary,
            _ => {
                if let Some(epoch) = name.strip_prefix("epoch-").and_then(|rest| rest.strip_suffix(".manifest.tmp")) {
                    let epoch = Epoch(epoch.parse().ok()?);
                    return (manifest_temporary_file(epoch) == name).then_some(Self::ManifestTemporary(epoch));
                }
                if let Some(epoch) = name.strip_prefix("epoch-").and_then(|rest| rest.strip_suffix(".manifest")) {
                    let epoch = Epoch(epoch.parse().ok()?);
                    return (manifest_file(epoch) == name).then_some(Self::Manifest(epoch));
                }
                let mut parts = name.strip_prefix("segment-")?.split('-');
                let id = SegmentId {
                    run: parts.next()?.parse().ok()?,
                    shard: parts.next()?.parse().ok()?,
                    number: parts.next()?.parse().ok()?,
                };
                return (segment_file(id) == name).then_some(Self::Segment(id));
            }
        };
        Some(parsed)
    }
}

/// Checks the name of a job, a state or a savepoint: 1 to 128 of `A-Z a-z 0-9 . _ -`, no dot in front.
///
/// # Errors
/// [`Invalid`](crate::ErrorKind::Invalid).
pub fn check_name(name: &str) -> Result<()> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > 128 || name.starts_with('.') || !name.bytes().all(legal) {
        return Err(Error::invalid(format_args!(
            "name {name:?}: must be 1 to 128 of A-Z a-z 0-9 . _ - and not begin with a dot"
        )));
    }
    Ok(())
}
