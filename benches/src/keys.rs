//! Keys of a workload: how many, how skewed, and a fast seeded generator of them.
//!
//! Invariants
//! * I1. A key is below the count; the same seed gives the same keys on every machine.
//! * I2. [`KeySampler::key`] is a function of its 64 random bits alone, so that a source whose position is an index can
//!   make its random bits from that index and be restarted anywhere.
//!
//! Zipf: key `k` has weight `1 / (k + 1)^theta`. The 1024 most frequent keys are exact; the rest lie in bins at most 1/64
//! of their rank wide, each with its exact mass spread evenly, so that no single key is off by more than 1 % (theta up to
//! 1.2). An alias table of 2048 columns (M. Vose, 1991) draws the bin: 32 KiB whatever the count.
//!
//! Cost per key: uniform under 1 ns, zipf 2 ns.

use millstream::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The most keys a workload may have.
pub const KEYS_MAX: u64 = 1 << 32;

/// How often each key occurs.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "distribution", rename_all = "lowercase")]
pub enum Keys {
    /// All equally often.
    Uniform {
        /// How many keys, from 0 on.
        count: u64,
    },
    /// Key `k` in proportion to `1 / (k + 1)^theta`.
    Zipf {
        /// How many keys, from 0 on.
        count: u64,
        /// Skew: 0 is uniform, 0.99 the usual benchmark, 2 nearly one key.
        theta: f64,
    },
}

impl Keys {
    /// How many keys there are.
    pub const fn count(self) -> u64 {
        match self {
            Self::Uniform { count } | Self::Zipf { count, .. } => count,
        }
    }

    /// Checks count and skew.
    ///
    /// # Errors
    /// [`Invalid`](millstream::ErrorKind::Invalid) when the count is not between 1 and [`KEYS_MAX`] or theta not between
    /// 0 and 2.
    pub fn validate(self) -> Result<()> {
        if self.count() == 0 || self.count() > KEYS_MAX {
            return Err(Error::invalid(format_args!("{} keys: must be between 1 and {KEYS_MAX}", self.count())));
        }
        match self {
            Self::Zipf { theta, .. } if !(0.0..=2.0).contains(&theta) => {
                Err(Error::invalid(format_args!("zipf:{theta}: theta must be between 0 and 2")))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform { count } => write!(f, "{count} keys, uniform"),
            Self::Zipf { count, theta } => write!(f, "{count} keys, zipf:{theta}"),
        }
    }
}

/// The shape alone, as a flag names it: `uniform` or `zipf:0.99`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Distribution {
    /// `uniform`
    Uniform,
    /// `zipf:THETA`
    Zipf {
        /// Skew, see [`Keys::Zipf`].
        theta: f64,
    },
}

impl Distribution {
    /// This shape over `count` keys.
    ///
    /// # Errors
    /// Those of [`Keys::validate`].
    pub fn over(self, count: u64) -> Result<Keys> {
        let keys = match self {
            Self::Uniform => Keys::Uniform { count },
            Self::Zipf { theta } => Keys::Zipf { count, theta },
        };
        keys.validate().map(|()| keys)
    }
}

impl FromStr for Distribution {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let distribution = match text.split_once(':') {
            None if text == "uniform" => Some(Self::Uniform),
            None if text == "zipf" => Some(Self::Zipf { theta: 0.99 }),
            Some(("zipf", theta)) => theta.parse().ok().map(|theta| Self::Zipf { theta }),
            _ => None,
        };
        distribution
            .ok_or_else(|| Error::invalid(format_args!("distribution `{text}`: write `uniform` or `zipf:0.99`")))
            .and_then(|distribution| distribution.over(1).map(|_| distribution))
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf { theta } => write!(f, "zipf:{theta}"),
        }
    }
}

/// Turns random bits into keys of one distribution.
#[derive(Clone, Debug)]
pub enum KeySampler {
    /// Every key equally likely.
    Uniform {
        /// Keys are below this.
        count: u64,
    },
    /// Zipf; the table is shared by clones.
    Zipf(std::sync::Arc<ZipfTable>),
}

impl KeySampler {
    /// Prepares for `keys`.
    ///
    /// # Errors
    /// Those of [`Keys::validate`].
    pub fn new(keys: Keys) -> Result<Self> {
        keys.validate()?;
        Ok(match keys {
            Keys::Uniform { count } => Self::Uniform { count },
            Keys::Zipf { count, theta } => Self::Zipf(std::sync::Arc::new(ZipfTable::new(count, theta))),
        })
    }

    /// Returns the key that these random bits stand for.
    #[inline]
    pub fn key(&self, random: u64) -> u64 {
        match self {
            Self::Uniform { count } => uniform(random, *count),
            Self::Zipf(table) => table.key(random),
        }
    }
}

/// A stream of keys; each shard makes its own.
#[derive(Clone, Debug)]
pub struct KeyGenerator {
    sampler: KeySampler,
    /// Independent xorshift generators, so that their chains of dependent steps overlap. None is zero.
    lanes: [u64; LANES],
}

const LANES: usize = 8;

impl KeyGenerator {
    /// The stream number `stream` under `seed`; streams of one seed do not overlap in practice.
    pub fn new(sampler: KeySampler, seed: u64, stream: u64) -> Self {
        let mut state = seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95);
        Self { sampler, lanes: std::array::from_fn(|_| split_mix(&mut state) | 1) }
    }

    /// Fills `keys` with the next keys of the stream.
    #[inline]
    pub fn fill(&mut self, keys: &mut [u64]) {
        match &self.sampler {
            KeySampler::Uniform { count } => fill_with(&mut self.lanes, keys, |random| uniform(random, *count)),
            KeySampler::Zipf(table) => fill_with(&mut self.lanes, keys, |random| table.key(random)),
        }
    }
}

#[inline(always)]
fn fill_with(lanes: &mut [u64; LANES], keys: &mut [u64], key: impl Fn(u64) -> u64) {
    for chunk in keys.chunks_mut(LANES) {
        for lane in lanes.iter_mut() {
            *lane ^= *lane << 13;
            *lane ^= *lane >> 7;
            *lane ^= *lane << 17;
        }
        for (slot, &lane) in chunk.iter_mut().zip(lanes.iter()) {
            *slot = key(lane);
        }
    }
}

/// 32 x 32 bits: `count` is at most 2^32, so nothing overflows and the bias is below `count / 2^32`.
#[inline(always)]
const fn uniform(random: u64, count: u64) -> u64 {
    ((random >> 32) * count) >> 32
}

/// Next output of the generator of that name (S. Vigna); turns a poor seed into good ones.
const fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Bits of a random word that choose column, side and place in the bin: 11 + 24 + 29.
const COLUMN_BITS: u32 = 11;
const SIDE_BITS: u32 = 24;
const PLACE_BITS: u32 = 64 - COLUMN_BITS - SIDE_BITS;
const COLUMNS: usize = 1 << COLUMN_BITS;
/// Ranks that have a bin of their own; from here on a bin is `start / BIN_FRACTION` wide.
const HEAD: u64 = 1024;
const BIN_FRACTION: u64 = 64;

/// Alias table over bins of keys.
#[derive(Debug)]
pub struct ZipfTable {
    columns: Box<[Column; COLUMNS]>,
    bins: Box<[Bin; COLUMNS]>,
}

/// Below `threshold` the column's own bin, from it on the bin `alias`.
#[derive(Clone, Copy, Default, Debug)]
struct Column {
    threshold: u32,
    alias: u32,
}

/// Keys `start .. start + width`.
#[derive(Clone, Copy, Default, Debug)]
struct Bin {
    start: u32,
    width: u32,
}

impl ZipfTable {
    fn new(count: u64, theta: f64) -> Self {
        let mut bins = Vec::with_capacity(COLUMNS);
        let mut masses = Vec::with_capacity(COLUMNS);
        let mut start = 0;
        while start < count {
            let width = (start / BIN_FRACTION).clamp(1, count - start);
            let width = if start < HEAD { 1 } else { width };
            bins.push(Bin {
                start: u32::try_from(start).expect("keys are below KEYS_MAX"),
                width: u32::try_from(width).expect("keys are below KEYS_MAX"),
            });
            masses.push(mass(start, width, theta));
            start += width;
        }
        assert!(bins.len() <= COLUMNS, "{} bins for {count} keys", bins.len());
        bins.resize(COLUMNS, Bin::default());
        masses.resize(COLUMNS, 0.0);
        let boxed = |bins: Vec<Bin>| bins.into_boxed_slice().try_into().expect("resized to COLUMNS");
        Self { columns: alias_columns(&masses), bins: boxed(bins) }
    }

    #[inline(always)]
    fn key(&self, random: u64) -> u64 {
        let own = (random >> (64 - COLUMN_BITS)) as usize;
        let side = (random >> PLACE_BITS) & ((1 << SIDE_BITS) - 1);
        let column = self.columns[own];
        let chosen = if side < u64::from(column.threshold) { own } else { column.alias as usize };
        let bin = self.bins[chosen & (COLUMNS - 1)];
        let place = random & ((1 << PLACE_BITS) - 1);
        u64::from(bin.start) + ((place * u64::from(bin.width)) >> PLACE_BITS)
    }
}

/// Sum of the weights of keys `start .. start + width`: exact for one key, for more the integral around them, whose
/// relative error is below `1 / start^2`.
#[expect(clippy::cast_precision_loss, reason = "keys are below 2^32")]
fn mass(start: u64, width: u64, theta: f64) -> f64 {
    if width == 1 {
        return ((start + 1) as f64).powf(-theta);
    }
    let (from, to) = (start as f64 + 0.5, (start + width) as f64 + 0.5);
    let power = 1.0 - theta;
    if power.abs() < 1e-9 { (to / from).ln() } else { (to.powf(power) - from.powf(power)) / power }
}

/// Vose's method: every column holds its own bin and at most one other, so that one comparison chooses.
#[expect(clippy::cast_precision_loss, reason = "a count of columns")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded between 0 and 2^24")]
fn alias_columns(masses: &[f64]) -> Box<[Column; COLUMNS]> {
    let scale = COLUMNS as f64 / masses.iter().sum::<f64>();
    let mut left: Vec<f64> = masses.iter().map(|mass| mass * scale).collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..COLUMNS).partition(|&i| left[i] < 1.0);
    let threshold = |share: f64| (share * f64::from(1 << SIDE_BITS)).round() as u32;
    let mut columns = Box::new([Column { threshold: 1 << SIDE_BITS, alias: 0 }; COLUMNS]);
    while let (Some(&low), Some(&high)) = (small.last(), large.last()) {
        small.pop();
        columns[low] = Column { threshold: threshold(left[low]), alias: high as u32 };
        left[high] -= 1.0 - left[low];
        if left[high] < 1.0 {
            large.pop();
            small.push(high);
        }
    }
    // What rounding has left over on either side is a full column, unless it never had any mass.
    for i in small {
        if masses[i] == 0.0 {
            columns[i] = Column { threshold: 0, alias: 0 };
        }
    }
    columns
}

const _: () = assert!(HEAD / BIN_FRACTION >= 1, "a bin is at least one key wide");
const _: () = assert!(PLACE_BITS >= 26, "the widest bin has KEYS_MAX / BIN_FRACTION keys");

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(keys: Keys, seed: u64, records: usize) -> Vec<u64> {
        let mut generator = KeyGenerator::new(KeySampler::new(keys).unwrap(), seed, 3);
        let mut sample = vec![0; records];
        generator.fill(&mut sample);
        assert!(sample.iter().all(|&key| key < keys.count()), "I1");
        sample
    }

    /// Chi-squared of the sample over `cells` (upper bounds), each with its expected share; in standard deviations.
    fn deviation(sample: &[u64], cells: &[(u64, f64)]) -> f64 {
        let mut found = vec![0u64; cells.len()];
        for &key in sample {
            found[cells.partition_point(|&(bound, _)| bound <= key)] += 1;
        }
        let total: f64 = cells.iter().map(|cell| cell.1).sum();
        let chi: f64 = found
            .iter()
            .zip(cells)
            .map(|(&found, &(_, share))| {
                let expected = share / total * sample.len() as f64;
                (found as f64 - expected).powi(2) / expected
            })
            .sum();
        let freedom = cells.len() as f64 - 1.0;
        (chi - freedom) / (2.0 * freedom).sqrt()
    }

    #[track_caller]
    fn check_zipf(count: u64, theta: f64, seed: u64) {
        let exact = |key: u64| ((key + 1) as f64).powf(-theta);
        // Single keys first, then ranges that are not those of the bins.
        let mut bounds: Vec<u64> = (1..=200).collect();
        while let Some(&last) = bounds.last().filter(|&&last| last < count) {
            bounds.push((last + last / 10 + 1).min(count));
        }
        bounds.retain(|&bound| bound <= count);
        let mut from = 0;
        let cells: Vec<(u64, f64)> = bounds
            .into_iter()
            .map(|bound| {
                let share = (from..bound).map(exact).sum();
                from = bound;
                (bound, share)
            })
            .collect();
        let off = deviation(&sample(Keys::Zipf { count, theta }, seed, 2_000_000), &cells);
        assert!(off < 5.0, "{count} keys, theta {theta}, seed {seed}: {off} standard deviations");
    }

    #[test]
    fn zipf_keys_occur_as_often_as_they_should() {
        for (count, theta) in [(1, 0.99), (2, 0.99), (1000, 0.99), (1024, 0.5), (1_000_000, 0.99), (300_000, 1.2)] {
            check_zipf(count.max(2), theta, 7);
        }
        check_zipf(1_000_000, 1.0, 8);
        check_zipf(100_000, 0.0, 9);
    }

    #[test]
    fn a_wrong_skew_is_seen_by_the_check() {
        let exact = |key: u64| ((key + 1) as f64).powf(-0.97);
        let cells: Vec<(u64, f64)> = (0..1000).map(|key| (key + 1, exact(key))).collect();
        assert!(deviation(&sample(Keys::Zipf { count: 1000, theta: 0.99 }, 7, 2_000_000), &cells) > 50.0);
    }

    #[test]
    fn uniform_keys_are_uniform() {
        for count in [2, 1000, 1 << 20, KEYS_MAX] {
            let cells: Vec<(u64, f64)> = (1..=count.min(1000)).map(|i| (count * i / count.min(1000), 1.0)).collect();
            let off = deviation(&sample(Keys::Uniform { count }, 5, 2_000_000), &cells);
            assert!(off.abs() < 5.0, "{count} keys: {off} standard deviations");
        }
    }

    #[test]
    fn the_tail_of_a_huge_zipf_is_reached() {
        let top = sample(Keys::Zipf { count: KEYS_MAX, theta: 0.5 }, 1, 100_000).into_iter().max().unwrap();
        assert!(top > KEYS_MAX / 4 * 3, "{top}");
    }

    #[test]
    fn the_same_seed_gives_the_same_keys_and_another_stream_gives_others() {
        let keys = Keys::Zipf { count: 1000, theta: 0.99 };
        assert_eq!(sample(keys, 1, 1000), sample(keys, 1, 1000));
        assert_ne!(sample(keys, 1, 1000), sample(keys, 2, 1000));
        let sampler = KeySampler::new(Keys::Uniform { count: KEYS_MAX }).unwrap();
        let [mut a, mut b] = [0, 1].map(|stream| KeyGenerator::new(sampler.clone(), 1, stream));
        let (mut first, mut second) = ([0; 8], [0; 8]);
        a.fill(&mut first);
        b.fill(&mut second);
        assert_ne!(first, second);
    }

    #[test]
    fn filling_in_pieces_of_whole_lanes_is_filling_at_once() {
        let sampler = KeySampler::new(Keys::Uniform { count: 1 << 20 }).unwrap();
        let [mut a, mut b] = [0; 2].map(|_| KeyGenerator::new(sampler.clone(), 9, 0));
        let (mut whole, mut pieces) = ([0; 64], [0; 64]);
        a.fill(&mut whole);
        pieces.chunks_mut(2 * LANES).for_each(|piece| b.fill(piece));
        assert_eq!(whole, pieces);
    }

    #[test]
    fn the_flag_names_a_shape() {
        assert_eq!("uniform".parse::<Distribution>().unwrap(), Distribution::Uniform);
        assert_eq!("zipf:0.99".parse::<Distribution>().unwrap(), Distribution::Zipf { theta: 0.99 });
        for bad in ["", "zip", "zipf:", "zipf:x", "zipf:-1", "zipf:2.5", "zipf:nan", "uniform:1"] {
            assert!(bad.parse::<Distribution>().is_err(), "{bad}");
        }
        assert!(Distribution::Uniform.over(0).is_err());
        assert!(Distribution::Uniform.over(KEYS_MAX + 1).is_err());
    }
}
