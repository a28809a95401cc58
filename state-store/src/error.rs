//! The one error type of the engine and its store: a kind that says what to do, and a message that says what and where.

use std::fmt;

/// What the caller can do about an [`Error`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The job, its configuration or its input is wrong: fix it. Nothing was started, nothing was modified.
    Invalid,
    /// Bytes on disk are not what was written: restore another snapshot. Nothing was modified.
    Corrupt,
    /// Disk, network or host failed: the job stopped at its last complete epoch, and a restart resumes there.
    Unavailable,
    /// A limit was reached: raise the setting that the message names. The job stopped at a complete epoch.
    Exhausted,
    /// Another process owns this state directory: stop it first.
    Locked,
    /// User code failed or panicked: the message names operator, key group and source position.
    UserCode,
    /// The final epoch could not be made durable: output up to the last complete epoch is committed, the rest is not.
    Uncommitted,
}

/// Error of every fallible call of Millstream. One word wide.
pub struct Error(Box<(ErrorKind, String)>);

/// Result of every fallible call of Millstream.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an error of `kind`; `what` says what happened, where, and what to do.
    pub fn new(kind: ErrorKind, what: impl fmt::Display) -> Self {
        Self(Box::new((kind, what.to_string())))
    }

    /// [`ErrorKind::Invalid`].
    pub fn invalid(what: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Invalid, what)
    }

    /// [`ErrorKind::Corrupt`].
    pub fn corrupt(what: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Corrupt, what)
    }

    /// [`ErrorKind::Unavailable`].
    pub fn unavailable(what: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Unavailable, what)
    }

    /// [`ErrorKind::Exhausted`].
    pub fn exhausted(what: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Exhausted, what)
    }

    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.0
    }

    /// The message alone, without the kind.
    pub fn message(&self) -> &str {
        &self.0.1
    }

    /// The same error with a place in front of its message: `error.within("shard 3")`.
    #[must_use]
    pub fn within(mut self, place: impl fmt::Display) -> Self {
        self.0.1 = format!("{place}: {}", self.0.1);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.1)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.0, self.0.1)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_word_wide() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }

    #[test]
    fn a_place_goes_in_front_of_the_message() {
        let error = Error::corrupt("crc 1, header says 2").within("segment 7");
        assert_eq!(error.to_string(), "segment 7: crc 1, header says 2");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}
