//! Records made from a seed and their index: the same in every run, on any number of shards, from any index on.
//!
//! The indices `0, 1, 2, ..` are dealt to the splits in turn: split `s` of `n` makes `s`, `s + n`, `s + 2n` and so on.
//! A reader takes a batch from each of its splits in turn, so none falls behind.
//!
//! Invariants
//! * I1. What is made at an index depends on seed and index alone.
//! * I2. A split's position is the next index it makes, congruent to the split's number.
//!
//! Cost: about a nanosecond per record beside the closure.

use super::rate::{Pace, check};
use super::{Polled, ReadContext, Reader, Source, Split, position_u64};
use crate::items::{Items, Own};
use crate::{Error, Result};
use std::marker::PhantomData;
use std::sync::Arc;

/// Default count of slices.
const SLICES: u32 = 64;

/// Random numbers for one index of a [`Generator`]: a function of seed and index.
///
/// Each number is one round of mixing (the finalizer of splitmix64) over state that index and draw both change by odd
/// multiples, so neighbours share nothing. Good for test data and load, not for secrets.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    base: u64,
    draws: u64,
}

impl Random {
    /// The numbers that belong to `index` under `seed`.
    #[inline]
    pub fn at(seed: u64, index: u64) -> Self {
        Self { base: mix(seed).wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)), draws: 0 }
    }

    /// Any 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let drawn = mix(self.base ^ self.draws);
        self.draws = self.draws.wrapping_add(0xd1b5_4a32_d192_ed03);
        drawn
    }

    /// A number below `bound`, 0 when that is 0. The bias is below `bound / 2^64`.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the upper half of 128 bits")
    }

    /// A number in `0.0..1.0`, a multiple of 2^-53.
    #[inline]
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Whether something of this probability happens.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A source of made-up records.
///
/// ```
/// use millstream::source::Generator;
/// let payments = Generator::new(7, |index, random| (random.below(1000), index)).count(1_000_000);
/// let load = Generator::timed(7, |index, _, due_ns| (index, due_ns)).rate(50_000.0);
/// ```
pub struct Generator<T, F> {
    seed: u64,
    make: F,
    count: Option<u64>,
    slices: u32,
    records_per_second: Option<f64>,
    items: PhantomData<fn() -> T>,
}

/// Makes a [`Generator`] whose closure is told index and random numbers. A free function because of its type.
fn untimed<T: 'static, M>(mut make: M) -> impl FnMut(u64, &mut Random, u64) -> T + Clone + Send + Sync + 'static
where
    M: FnMut(u64, &mut Random) -> T + Clone + Send + Sync + 'static,
{
    move |index, random, _| make(index, random)
}

impl<T: 'static> Generator<T, ()> {
    /// Records made by `make` from their index and random numbers that belong to it.
    pub fn new<M>(
        seed: u64,
        make: M,
    ) -> Generator<T, impl FnMut(u64, &mut Random, u64) -> T + Clone + Send + Sync + 'static>
    where
        M: FnMut(u64, &mut Random) -> T + Clone + Send + Sync + 'static,
    {
        Self::timed(seed, untimed(make))
    }

    /// The same, where `make` is also told when the record was due, in nanoseconds of the engine's clock: at a rate, when
    /// it should have been sent, also if it is made later; else, now. For measuring latency without omission.
    pub fn timed<M>(seed: u64, make: M) -> Generator<T, M>
    where
        M: FnMut(u64, &mut Random, u64) -> T + Clone + Send + Sync + 'static,
    {
        Generator { seed, make, count: None, slices: SLICES, records_per_second: None, items: PhantomData }
    }
}

impl<T, F> Generator<T, F> {
    /// Ends after `count` records; without, it never does.
    #[must_use]
    pub fn count(mut self, count: u64) -> Self {
        self.count = Some(count);
        self
    }

    /// Into how many splits the indices are dealt (default 64). No more shards than that can take part.
    ///
    /// # Panics
    /// When `slices` is zero.
    #[must_use]
    pub fn slices(mut self, slices: u32) -> Self {
        assert!(slices > 0, "a generator of no slices");
        self.slices = slices;
        self
    }

    /// Open loop: this many records per second over all shards, each due at its own time.
    ///
    /// # Panics
    /// When the rate is not a positive number.
    #[must_use]
    pub fn rate(mut self, records_per_second: f64) -> Self {
        check(records_per_second);
        self.records_per_second = Some(records_per_second);
        self
    }

    fn id(&self, split: u32) -> String {
        format!("seed {}, slice {split} of {}", self.seed, self.slices)
    }

    fn split_of_id(&self, id: &str) -> Result<u32> {
        id.strip_prefix(&format!("seed {}, slice ", self.seed))
            .and_then(|rest| rest.strip_suffix(&format!(" of {}", self.slices)))
            .and_then(|number| number.parse().ok())
            .filter(|&number| number < self.slices)
            .ok_or_else(|| {
                Error::invalid(format_args!(
                    "split \"{id}\" of the snapshot is none of this generator, which has seed {} and {} slices",
                    self.seed, self.slices
                ))
            })
    }
}

impl<T: 'static, F> Source for Generator<T, F>
where
    F: FnMut(u64, &mut Random, u64) -> T + Clone + Send + Sync + 'static,
{
    type Items = Own<T>;
    type Reader = GeneratorReader<T, F>;

    fn describe(&self) -> String {
        let count = self.count.map_or("without end".into(), |count| format!("{count} records"));
        let rate = self.records_per_second.map_or(String::new(), |rate| format!(", {rate} records/s"));
        format!("generator with seed {}, {count}{rate}, replayable", self.seed)
    }

    fn splits(&self, _: u32) -> Result<Vec<Split>> {
        Ok((0..self.slices)
            .map(|split| Split { id: self.id(split).into(), position: u64::from(split).into(), ended: false })
            .collect())
    }

    fn new_splits(&self, shards: u32, known: &[Split]) -> Result<Vec<Split>> {
        for split in known {
            self.split_of_id(&split.id)?;
        }
        if known.is_empty() { self.splits(shards) } else { Ok(Vec::new()) }
    }

    fn open(&self, _: u32, readers: u32, splits: Vec<Split>) -> Result<Self::Reader> {
        let mut slices = Vec::with_capacity(splits.len());
        for split in splits {
            let (number, next) = (self.split_of_id(&split.id)?, position_u64(&split)?);
            if next % u64::from(self.slices) != u64::from(number) {
                return Err(Error::invalid(format_args!("split {}: index {next} is none of its own", split.id)));
            }
            slices.push(Slice { id: split.id, next, ended: split.ended });
        }
        let live = (0..slices.len()).filter(|&index| !slices[index].ended).collect();
        Ok(GeneratorReader {
            seed: self.seed,
            make: self.make.clone(),
            count: self.count.unwrap_or(u64::MAX),
            bounded: self.count.is_some(),
            step: u64::from(self.slices),
            slices,
            live,
            turn: 0,
            pace: self.records_per_second.map(|rate| Pace::new(rate, readers)),
            last: 0,
            items: PhantomData,
        })
    }
}

struct Slice {
    id: Arc<str>,
    next: u64,
    ended: bool,
}

/// Reader of a [`Generator`].
pub struct GeneratorReader<T, F> {
    seed: u64,
    make: F,
    count: u64,
    bounded: bool,
    step: u64,
    slices: Vec<Slice>,
    /// Slices that have not ended.
    live: Vec<usize>,
    /// Which of them is next.
    turn: usize,
    pace: Option<Pace>,
    last: u64,
    items: PhantomData<fn() -> T>,
}

impl<T: 'static, F> GeneratorReader<T, F>
where
    F: FnMut(u64, &mut Random, u64) -> T + 'static,
{
    /// Makes up to `max` records of one slice; the first is due at `due_ns`, each later one `ns_per_record` after.
    #[inline]
    fn make_slice(
        &mut self,
        slice: usize,
        max: usize,
        due_ns: u64,
        ns_per_record: f64,
        push: &mut impl FnMut(T),
    ) -> usize {
        let next = self.slices[slice].next;
        let left = self.count.saturating_sub(next).div_ceil(self.step);
        let records = usize::try_from(left).unwrap_or(usize::MAX).min(max);
        let mut index = next;
        for nth in 0..records {
            let due_ns = if ns_per_record == 0.0 { due_ns } else { due_ns + offset_ns(nth, ns_per_record) };
            self.last = index;
            push((self.make)(index, &mut Random::at(self.seed, index), due_ns));
            index = index.saturating_add(self.step);
        }
        self.slices[slice].next = index;
        records
    }
}

#[inline]
#[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "a batch is short")]
#[expect(clippy::cast_possible_truncation, reason = "a float beyond u64 becomes its largest value")]
fn offset_ns(nth: usize, ns_per_record: f64) -> u64 {
    (nth as f64 * ns_per_record) as u64
}

impl<T: 'static, F> Reader for GeneratorReader<T, F>
where
    F: FnMut(u64, &mut Random, u64) -> T + 'static,
{
    type Items = Own<T>;

    fn poll(
        &mut self,
        cx: &mut ReadContext<'_>,
        max: usize,
        push: &mut impl FnMut(<Own<T> as Items>::Of<'_>),
    ) -> Result<Polled> {
        let (max, due_ns, ns_per_record) = match &mut self.pace {
            None => (max, cx.now_ns, 0.0),
            Some(pace) => match pace.due(cx.now_ns) {
                0 if self.live.is_empty() => return Ok(Polled::Ended),
                0 => return Ok(Polled::Pending { due_ns: Some(pace.due_ns()) }),
                due => (max.min(usize::try_from(due).unwrap_or(usize::MAX)), pace.due_ns(), pace.ns_per_record()),
            },
        };
        while !self.live.is_empty() {
            self.turn %= self.live.len();
            let slice = self.live[self.turn];
            let records = self.make_slice(slice, max, due_ns, ns_per_record, push);
            if self.slices[slice].next >= self.count {
                self.slices[slice].ended = true;
                self.live.remove(self.turn);
            } else {
                self.turn += 1;
            }
            if records > 0 {
                if let Some(pace) = &mut self.pace {
                    pace.hand_out(records);
                }
                return Ok(Polled::Records(records));
            }
        }
        Ok(Polled::Ended)
    }

    fn splits(&self, out: &mut Vec<Split>) {
        out.extend(self.slices.iter().map(|slice| Split {
            id: slice.id.clone(),
            position: slice.next.into(),
            ended: slice.ended,
        }));
    }

    fn place(&self) -> String {
        format!("generator at index {}", self.last)
    }

    fn remaining(&self) -> Option<u64> {
        let left = |slice: &Slice| self.count.saturating_sub(slice.next).div_ceil(self.step);
        self.bounded.then(|| self.slices.iter().filter(|slice| !slice.ended).map(left).sum())
    }
}
