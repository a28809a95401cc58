//! How far an emission over all keys has come: state, so that a restore neither repeats nor skips a key.
//!
//! Keys are emitted in the order of a table scan, which is an order of their hashes and therefore the same in every table
//! that holds them. After a restore with another number of shards a shard may own ranges that had come to different
//! points; it emits each key that lies behind the point of its own range.

use crate::{Error, Result};
use millstream_state::table::ScanCursor;
use millstream_state::{KeyGroupCount, KeyGroupRange};
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EndProgress {
    key_groups: KeyGroupCount,
    /// Where the emission of each range of key groups stands.
    ranges: Vec<(KeyGroupRange, ScanCursor)>,
    /// Where the scan of this shard stands.
    cursor: ScanCursor,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    ranges: Vec<(KeyGroupRange, u64)>,
}

impl EndProgress {
    /// Progress of a shard that owns `owned`, from what the shards of the snapshot saved.
    pub(crate) fn restore(key_groups: KeyGroupCount, owned: KeyGroupRange, saved: &[Vec<u8>]) -> Result<Self> {
        let mut ranges = Vec::new();
        for bytes in saved.iter().filter(|bytes| !bytes.is_empty()) {
            let saved: Saved = serde_json::from_slice(bytes)
                .map_err(|error| Error::corrupt(format_args!("progress of an emission cannot be read: {error}")))?;
            ranges.extend(saved.ranges.into_iter().filter_map(|(range, cursor)| {
                let range = range.intersect(owned);
                (!range.is_empty()).then_some((range, ScanCursor::from_bits(cursor)))
            }));
        }
        if ranges.is_empty() {
            ranges.push((owned, ScanCursor::START));
        }
        let cursor = ranges.iter().map(|&(_, cursor)| cursor).min().expect("at least one range");
        Ok(Self { key_groups, ranges, cursor })
    }

    /// Where to go on scanning.
    pub(crate) fn cursor(&self) -> ScanCursor {
        self.cursor
    }

    /// Whether the key with this hash was emitted before the restore.
    #[inline]
    pub(crate) fn emitted(&self, hash: u64) -> bool {
        let group = self.key_groups.group_of(hash);
        self.ranges.iter().any(|&(range, cursor)| range.contains(group) && ScanCursor::of_hash(hash) < cursor)
    }

    /// Notes how far the scan has come.
    pub(crate) fn advance(&mut self, cursor: ScanCursor) {
        self.cursor = cursor;
        for (_, reached) in &mut self.ranges {
            *reached = (*reached).max(cursor);
        }
    }

    /// Whether every key was emitted.
    pub(crate) fn is_done(&self) -> bool {
        self.cursor == ScanCursor::END
    }

    /// For a snapshot.
    pub(crate) fn save(&self) -> Vec<u8> {
        let ranges = self.ranges.iter().map(|&(range, cursor)| (range, cursor.to_bits())).collect();
        serde_json::to_vec(&Saved { ranges }).expect("ranges are plain data")
    }
}
