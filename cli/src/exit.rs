//! How the command ends: one exit code per thing to do about it. `millstream --help` prints this table.

use millstream::{Error, ErrorKind};
use std::fmt;

/// Done.
pub(crate) const OK: u8 = 0;
/// `doctor`: a job cannot run here. `bench quick`: the output is wrong.
pub(crate) const CHECK_FAILED: u8 = 1;
/// Bad usage, settings, job or input, or a host that does not give what is needed. As clap uses it.
pub(crate) const INVALID: u8 = 2;
/// A snapshot has bad bytes.
pub(crate) const CORRUPT: u8 = 3;
/// Disk or host failed.
pub(crate) const UNAVAILABLE: u8 = 4;
/// A limit was reached.
pub(crate) const EXHAUSTED: u8 = 5;
/// Another process owns the state directory.
pub(crate) const LOCKED: u8 = 6;
/// User code failed.
pub(crate) const USER_CODE: u8 = 7;
/// The final epoch is not committed.
pub(crate) const UNCOMMITTED: u8 = 8;
/// Stopped by Ctrl-C or SIGTERM at a complete epoch, before the input had ended. As shells report an interrupt, so that
/// what follows in a script does not take the output for whole.
pub(crate) const STOPPED: u8 = 130;

/// For `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
    0  done
    1  doctor: a job cannot run here; bench quick: the output is wrong
    2  usage, settings, job, input or the host's set-up are wrong: nothing was started, nothing modified
    3  a snapshot has bad bytes: restore another one
    4  disk or host failed: the job stopped at its last complete epoch; run it again
    5  a limit was reached: raise what the message names, then run it again
    6  another process owns the state directory
    7  user code failed: the message names operator and source position
    8  the final epoch could not be committed: mend the cause, then run it again
  130  stopped by Ctrl-C or SIGTERM at a complete epoch: run it again to go on";

/// Why a command did not do what it was asked for.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

/// Result of a command: its exit code.
pub(crate) type Result<T = u8> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: u8, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string() }
    }

    /// The kind in one word, for JSON.
    pub(crate) fn kind(&self) -> &'static str {
        match self.code {
            CHECK_FAILED => "check-failed",
            INVALID => "invalid",
            CORRUPT => "corrupt",
            EXHAUSTED => "exhausted",
            LOCKED => "locked",
            USER_CODE => "user-code",
            UNCOMMITTED => "uncommitted",
            STOPPED => "stopped",
            _ => "unavailable",
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Invalid => INVALID,
            ErrorKind::Corrupt => CORRUPT,
            ErrorKind::Exhausted => EXHAUSTED,
            ErrorKind::Locked => LOCKED,
            ErrorKind::UserCode => USER_CODE,
            ErrorKind::Uncommitted => UNCOMMITTED,
            // Unavailable, and kinds that do not exist yet.
            _ => UNAVAILABLE,
        };
        Self::new(code, error.message())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_its_own_and_stands_in_the_help() {
        let codes =
            [OK, CHECK_FAILED, INVALID, CORRUPT, UNAVAILABLE, EXHAUSTED, LOCKED, USER_CODE, UNCOMMITTED, STOPPED];
        let documented: Vec<u8> =
            HELP.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().next()?.parse().ok()).collect();
        assert_eq!(documented, codes);
    }

    #[test]
    fn the_readme_has_the_same_table() {
        let squeezed = |line: &str| line.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        let readme = include_str!("../../README.md").lines().filter_map(|line| {
            let (code, what) = line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")?;
            code.trim().parse::<u8>().is_ok().then(|| squeezed(&format!("{code} {what}")).replace('`', ""))
        });
        assert_eq!(readme.collect::<Vec<_>>(), HELP.lines().skip(1).map(squeezed).collect::<Vec<_>>());
    }

    #[test]
    fn an_error_keeps_its_kind_and_its_message() {
        let failure = Failure::from(Error::new(ErrorKind::Locked, "owned by process 7"));
        assert_eq!((failure.code, failure.kind(), failure.message.as_str()), (LOCKED, "locked", "owned by process 7"));
    }
}
