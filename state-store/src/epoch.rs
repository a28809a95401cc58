//! Epoch numbers: the records between two barriers, and the snapshot taken at the second.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An epoch and the snapshot that ends it. Grows for the life of a state directory, may skip, is never used twice.
///
/// Epoch 0 is the empty state that every state directory begins with; the first records belong to epoch 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The empty state at the beginning of a state directory.
    pub const ZERO: Self = Self(0);

    /// The epoch after this one.
    ///
    /// # Panics
    /// After 2^64 epochs.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
