//! Key groups: the unit in which keys are owned by shards and move when the number of shards changes.
//!
//! Invariants
//! * I1. The group of a key is the top bits of its hash; the count of groups is a power of two, fixed for the life of a state.
//! * I2. Shard `i` of `p` owns `[ceil(i*K/p), ceil((i+1)*K/p))`, and `owner(g) = floor(g*p/K)` agrees for every `p <= K`.

#![allow(clippy::cast_possible_truncation, reason = "groups are below 2^15")]

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Number of a key group, below the job's [`KeyGroupCount`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyGroup(pub u16);

/// How many key groups a job has: a power of two up to [`KeyGroupCount::MAX`]. Fixed for the life of its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct KeyGroupCount {
    bits: u8,
}

impl KeyGroupCount {
    /// The most key groups a job may have.
    pub const MAX: u32 = 1 << 15;

    /// 4096 groups: enough to spread over hundreds of shards evenly.
    pub const DEFAULT: Self = Self { bits: 12 };

    /// Checks `count`.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) when it is not a power of two between 1 and [`KeyGroupCount::MAX`].
    pub fn new(count: u32) -> Result<Self> {
        if !count.is_power_of_two() || count > Self::MAX {
            return Err(Error::invalid(format_args!(
                "{count} key groups: must be a power of two between 1 and {}",
                Self::MAX
            )));
        }
        Ok(Self { bits: u8::try_from(count.trailing_zeros()).expect("at most 15") })
    }

    /// The number of groups.
    pub const fn get(self) -> u32 {
        1 << self.bits
    }

    /// Returns the group of a key with this hash.
    #[inline(always)]
    pub const fn group_of(self, hash: u64) -> KeyGroup {
        // Rotating first keeps the shift below 64 when there is only one group.
        KeyGroup((hash.rotate_left(self.bits as u32) & ((1 << self.bits) - 1)) as u16)
    }

    /// Returns which of `shards` owns `group`.
    #[inline(always)]
    pub const fn owner(self, group: KeyGroup, shards: u32) -> u32 {
        (group.0 as u32 * shards) >> self.bits
    }

    /// Returns the groups that shard `shard` of `shards` owns.
    pub const fn range_of(self, shard: u32, shards: u32) -> KeyGroupRange {
        let count = self.get();
        KeyGroupRange {
            start: (shard * count).div_ceil(shards) as u16,
            end: ((shard + 1) * count).div_ceil(shards) as u16,
        }
    }

    /// Every group.
    pub const fn all(self) -> KeyGroupRange {
        KeyGroupRange { start: 0, end: self.get() as u16 }
    }
}

impl TryFrom<u32> for KeyGroupCount {
    type Error = Error;
    fn try_from(count: u32) -> Result<Self> {
        Self::new(count)
    }
}

impl From<KeyGroupCount> for u32 {
    fn from(count: KeyGroupCount) -> Self {
        count.get()
    }
}

/// Key groups `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeyGroupRange {
    /// The first group.
    pub start: u16,
    /// The group after the last.
    pub end: u16,
}

impl KeyGroupRange {
    /// Says whether `group` lies in the range.
    #[inline(always)]
    pub const fn contains(self, group: KeyGroup) -> bool {
        self.start <= group.0 && group.0 < self.end
    }

    /// Returns the groups in both ranges; an empty range when there are none.
    #[must_use]
    pub fn intersect(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self { start, end: self.end.min(other.end).max(start) }
    }

    /// Says whether the range holds no group.
    pub const fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_agrees_with_range_for_every_shard_count() {
        for bits in [0, 1, 4, 7, 12] {
            let count = KeyGroupCount { bits };
            for shards in 1..=count.get().min(200) {
                for shard in 0..shards {
                    let range = count.range_of(shard, shards);
                    for group in range.start..range.end {
                        assert_eq!(
                            count.owner(KeyGroup(group), shards),
                            shard,
                            "group {group} of {count:?}, {shards} shards"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn ranges_of_128_groups_over_three_shards() {
        let count = KeyGroupCount::new(128).unwrap();
        let ranges: Vec<_> = (0..3).map(|shard| count.range_of(shard, 3)).map(|r| (r.start, r.end - 1)).collect();
        assert_eq!(ranges, [(0, 42), (43, 85), (86, 127)]);
    }

    #[test]
    fn the_group_is_the_top_bits() {
        assert_eq!(KeyGroupCount::new(4096).unwrap().group_of(0xabc0_0000_0000_0000), KeyGroup(0xabc));
        assert_eq!(KeyGroupCount::new(1).unwrap().group_of(u64::MAX), KeyGroup(0));
    }

    #[test]
    fn a_count_that_is_no_power_of_two_is_refused() {
        for count in [0, 3, 4095, 1 << 16] {
            assert!(KeyGroupCount::new(count).is_err(), "{count}");
        }
    }
}
