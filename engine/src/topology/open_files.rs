//! How many files a job may have open: rings, timers, segment files, inputs and outputs of every shard.

use millstream_state::{Error, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The step that gives a process enough descriptors.
pub const OPEN_FILES_FIX: &str = "ulimit -n 65536 (to keep it: scripts/tune-host --apply as root, then log in again; in a \
                                  service unit LimitNOFILE=65536)";

/// Descriptors that a job on so many shards is never short of.
pub const fn open_files_wanted(shards: u64) -> u64 {
    256 + 64 * shards
}

/// Descriptors without which a job on so many shards does not start: about ten a shard were measured.
pub const fn open_files_needed(shards: u64) -> u64 {
    32 + 16 * shards
}

/// Raises the soft limit of this process to what a job wants, as far as the hard one lets it.
///
/// # Errors
/// [`Invalid`](millstream_state::ErrorKind::Invalid) when that is less than a job needs, with the remedy.
pub fn raise_open_files(shards: u32) -> Result<()> {
    let (wanted, needed) = (open_files_wanted(shards.into()), open_files_needed(shards.into()));
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(mut limit) = current.filter(|current| *current < wanted) else { return Ok(()) };
    let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if raised > limit && setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }).is_ok() {
        limit = raised;
    }
    if limit >= needed {
        return Ok(());
    }
    Err(Error::invalid(format_args!(
        "this process may have {limit} files open, a job on {shards} shards needs {needed}; to repair it: {OPEN_FILES_FIX}"
    )))
}
