//! The own state of a stage as of a cut: taken on the shard in a moment, written down by whoever makes the manifest.
//!
//! Cost on the shard: a copy; a source with many splits would take longer to write them down than a cut may last.

use crate::source::Split;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Saved {
    /// The progress of an operator, written down already; empty when there is none.
    Progress(Vec<u8>),
    /// The splits of a source with their positions.
    Splits(Vec<Split>),
}

impl Saved {
    /// Whether there is nothing to keep.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Progress(bytes) if bytes.is_empty())
    }

    /// What a manifest keeps.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Progress(bytes) => bytes.clone(),
            Self::Splits(splits) => serde_json::to_vec(splits).expect("splits are plain data"),
        }
    }
}
