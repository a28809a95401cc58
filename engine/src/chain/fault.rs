//! What went wrong in user code, and in which operator.
//!
//! A slot per thread: operators put a failure there, the stage takes it after the batch, on the same thread.
//! Cost on the record path: none. The guard that names a panicking operator is forgotten when the call returns; only
//! unwinding runs it.

use super::OperatorId;
use crate::{Error, ErrorKind};
use std::cell::{Cell, RefCell};
use std::fmt::Display;

/// What an operator whose closure returns a `Result` does with an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnError {
    /// The job stops at its last complete epoch with this error.
    Fail,
    /// The record is left out and counted (metric `skipped_records`).
    SkipAndCount,
}

thread_local! {
    static FAILED: RefCell<Option<Error>> = const { RefCell::new(None) };
    static BLAMED: Cell<Option<OperatorId>> = const { Cell::new(None) };
    static BLAMED_HASH: Cell<Option<u64>> = const { Cell::new(None) };
    static SKIPPED: Cell<u64> = const { Cell::new(0) };
}

/// Faults of user code on this thread since they were last taken.
pub(crate) struct Faults;

impl Faults {
    /// Applies a policy to the error of an operator.
    #[cold]
    pub(crate) fn apply(policy: OnError, operator: OperatorId, error: impl Display) {
        match policy {
            OnError::Fail => Self::fail(Error::new(ErrorKind::UserCode, format_args!("{operator}: {error}"))),
            OnError::SkipAndCount => SKIPPED.set(SKIPPED.get() + 1),
        }
    }

    /// Notes a failure, which keeps its kind: a limit that user code ran into is no fault of user code. The first counts.
    #[cold]
    pub(crate) fn fail(error: Error) {
        FAILED.with_borrow_mut(|failed| *failed = failed.take().or(Some(error)));
    }

    /// Takes the first failure.
    pub(crate) fn take() -> Option<Error> {
        FAILED.take()
    }

    /// Takes the operator that was running when user code panicked.
    pub(crate) fn take_blamed() -> Option<OperatorId> {
        BLAMED.take()
    }

    /// Takes the hash of the key whose record was being processed when user code panicked.
    pub(crate) fn take_blamed_hash() -> Option<u64> {
        BLAMED_HASH.take()
    }

    /// Takes how many records were left out.
    pub(crate) fn take_skipped() -> u64 {
        SKIPPED.take()
    }
}

/// Runs user code on behalf of `operator`, so that a panic in it names the operator.
#[inline(always)]
pub(crate) fn blaming<R>(operator: OperatorId, user_code: impl FnOnce() -> R) -> R {
    let guard = Blame(operator);
    let result = user_code();
    std::mem::forget(guard);
    result
}

struct Blame(OperatorId);

impl Drop for Blame {
    #[cold]
    fn drop(&mut self) {
        if BLAMED.get().is_none() {
            BLAMED.set(Some(self.0));
        }
    }
}

/// Runs what is done for the record whose key has this hash, so that a panic in it names the key group.
#[inline(always)]
pub(crate) fn blaming_key<R>(hash: u64, user_code: impl FnOnce() -> R) -> R {
    let guard = BlameKey(hash);
    let result = user_code();
    std::mem::forget(guard);
    result
}

struct BlameKey(u64);

impl Drop for BlameKey {
    #[cold]
    fn drop(&mut self) {
        BLAMED_HASH.set(Some(self.0));
    }
}
