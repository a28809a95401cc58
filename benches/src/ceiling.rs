//! The bare loop: what two cores and their caches allow for a keyed count, with nothing of an engine around it.
//!
//! Every shard makes keys (xorshift), hashes each once, scatters them into chunks of 256 by owner, hands the chunks over
//! through single-producer single-consumer rings (its own without one) and counts what arrives in `Slots`. No epochs,
//! no state that outlives the run, no batches of anything else: a keyed count of the engine is measured against this.
//!
//! Invariants
//! * I1. Every key generated is counted exactly once, also when the run is stopped (asserted at the end of every run).
//! * I2. Nobody waits without emptying its own rings, so full rings cannot deadlock.
//!
//! Cost: two server cores of 2025 count about 240 M uniform keys of 1 M a second; under 200 M look for a fault here
//! before believing a ratio.

use crate::gaps::{Watch, host_share};
use crate::keys::{KeyGenerator, KeySampler, Keys};
use crate::onlooker::{Look, pass};
use crate::slots::{Hashed, Slots};
use millstream::topology::{CoreId, Placement, ThreadId};
use millstream::{Error, Result};
use millstream_state::hash::hash_u64;
use rtrb::{Consumer, Producer, RingBuffer};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

/// Records handed over at once.
const CHUNK: usize = 256;
/// Room in the ring of one pair of shards.
const RING_RECORDS: usize = 64 * CHUNK;
/// Most records taken from one ring before new keys are made.
const TAKE_RECORDS: usize = 8 * CHUNK;

/// One run of the bare loop.
#[derive(Clone, Debug)]
pub struct Ceiling {
    /// Where the shards run; see [`Topology::plan`](millstream::topology::Topology::plan).
    pub placement: Placement,
    /// What is counted.
    pub keys: Keys,
    /// Time before the measurement begins.
    pub warm_up: Duration,
    /// Time measured.
    pub duration: Duration,
    /// The same seed counts the same keys.
    pub seed: u64,
}

/// What one run of the bare loop counted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CeilingReport {
    /// Records counted per second, all shards together.
    pub records_per_second: f64,
    /// Records counted in the time measured.
    pub records: u64,
    /// The time measured.
    pub seconds: f64,
    /// What was counted.
    pub keys: Keys,
    /// The core of each shard; `None`: not pinned.
    pub cores: Vec<Option<CoreId>>,
    /// Part of the time measured that the host took from the shards; zero to one.
    #[serde(default)]
    pub host_share: f64,
}

impl Ceiling {
    /// Runs the loop for warm-up and duration and returns what it counted.
    ///
    /// # Errors
    /// [`Invalid`](millstream::ErrorKind::Invalid) for keys out of range,
    /// [`Unavailable`](millstream::ErrorKind::Unavailable) when memory or threads are not to be had.
    ///
    /// # Panics
    /// If a key was lost or counted twice (I1).
    pub fn run(&self) -> Result<CeilingReport> {
        self.run_before(&mut |_| true).map(|report| report.expect("nobody ends it"))
    }

    /// The same before an onlooker; `None` when it was ended.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Panics
    /// As [`run`](Self::run).
    pub fn run_before(&self, look: &mut Look<'_>) -> Result<Option<CeilingReport>> {
        let stop = AtomicBool::new(false);
        let mut measured = None;
        let mut watched = Ok(0.0);
        self.with_shards(Limit::Stop(&stop), |threads, progress| {
            let counted = || progress.iter().map(|progress| progress.0.load(Ordering::Relaxed)).sum::<u64>();
            let goes_on = pass(self.warm_up, "bare loop", look, &counted, &|| false);
            let watch = Watch::start(threads, 0);
            let (begin, before) = (Instant::now(), counted());
            if goes_on && pass(self.duration, "bare loop", look, &counted, &|| false) {
                measured = Some((counted() - before, begin.elapsed()));
            }
            watched = watch.map(|watch| host_share(&watch.finish(), begin.elapsed()));
            stop.store(true, Ordering::Relaxed);
        })?;
        let Some((records, time)) = measured else { return Ok(None) };
        #[expect(clippy::cast_precision_loss, reason = "a run counts less than 2^53 records")]
        let records_per_second = records as f64 / time.as_secs_f64();
        Ok(Some(CeilingReport {
            records_per_second,
            records,
            seconds: time.as_secs_f64(),
            keys: self.keys,
            cores: self.placement.shards.clone(),
            host_share: watched?,
        }))
    }

    /// Starts the shards, calls `watch` once all have their memory, and returns their tables when they have ended.
    fn with_shards(&self, limit: Limit<'_>, watch: impl FnOnce(&[ThreadId], &[Progress])) -> Result<Vec<Slots>> {
        let count = self.placement.shards.len();
        let sampler = KeySampler::new(self.keys)?;
        let progress: Vec<Progress> = (0..count).map(|_| Progress::default()).collect();
        let ready = Barrier::new(count + 1);
        let ids: Vec<OnceLock<ThreadId>> = (0..count).map(|_| OnceLock::new()).collect();
        std::thread::scope(|scope| {
            let mut threads = Vec::with_capacity(count);
            for ((me, ends), progress) in rings(count).into_iter().enumerate().zip(&progress) {
                let generator = KeyGenerator::new(sampler.clone(), self.seed, me as u64);
                let (core, ready, id) = (self.placement.shards[me], &ready, &ids[me]);
                // A little more than its share: the hash does not split the keys exactly evenly.
                let keys_share = usize::try_from(self.keys.count()).unwrap_or(usize::MAX) / count;
                let keys = keys_share + keys_share / 32 + 1024;
                let thread = std::thread::Builder::new().name(format!("ceiling-{me}"));
                let started = thread.spawn_scoped(scope, move || {
                    if let Some(core) = core {
                        // Unpinned it is slower, not wrong; the report's cores say what was asked for.
                        core_affinity::set_for_current(core_affinity::CoreId { id: core.0 as usize });
                    }
                    let slots = Slots::for_keys(keys);
                    id.get_or_init(ThreadId::current);
                    ready.wait();
                    Ok(Shard { me, slots: slots?, ends, progress, counted: 0 }.run(generator, limit))
                });
                threads.push(started.expect("threads of a benchmark can be started"));
            }
            ready.wait();
            let ids: Vec<ThreadId> = ids.iter().filter_map(OnceLock::get).copied().collect();
            watch(&ids, &progress);
            let (mut made, mut counted, mut tables) = (0, 0, Vec::with_capacity(count));
            for thread in threads {
                let mut ended: Ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                made += ended.made;
                counted += ended.slots.total();
                tables.push(ended.slots);
            }
            assert_eq!(made, counted, "I1: keys made, keys counted");
            Ok::<_, Error>(tables)
        })
    }
}

/// When a shard makes no more keys.
#[derive(Clone, Copy)]
enum Limit<'a> {
    /// When told to.
    Stop(&'a AtomicBool),
    /// After this many batches.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests count an exact number of keys"))]
    Batches(u64),
}

impl Limit<'_> {
    #[inline(always)]
    fn reached(self, batches: u64) -> bool {
        match self {
            Limit::Stop(stop) => stop.load(Ordering::Relaxed),
            Limit::Batches(limit) => batches >= limit,
        }
    }
}

/// Records a shard has counted, on a cache line pair of its own.
#[derive(Default)]
#[repr(align(128))]
struct Progress(AtomicU64);

/// A shard's ends of the rings: to each other shard (`None` at its own place), and from each other shard.
struct Ends {
    to: Vec<Option<Producer<Hashed>>>,
    from: Vec<Consumer<Hashed>>,
}

fn rings(count: usize) -> Vec<Ends> {
    let mut ends: Vec<Ends> = (0..count).map(|_| Ends { to: Vec::new(), from: Vec::new() }).collect();
    for from in 0..count {
        for to in 0..count {
            let producer = (from != to).then(|| {
                let (producer, consumer) = RingBuffer::new(RING_RECORDS);
                ends[to].from.push(consumer);
                producer
            });
            ends[from].to.push(producer);
        }
    }
    ends
}

struct Shard<'a> {
    me: usize,
    slots: Slots,
    ends: Ends,
    progress: &'a Progress,
    counted: u64,
}

struct Ended {
    slots: Slots,
    made: u64,
}

/// Records for one shard that do not fill a chunk yet.
struct Staged {
    records: [Hashed; CHUNK],
    /// Always below `CHUNK` between two records.
    length: usize,
}

impl Shard<'_> {
    fn run(mut self, mut generator: KeyGenerator, limit: Limit<'_>) -> Ended {
        let shards = self.ends.to.len();
        let empty = || Staged { records: [Hashed::default(); CHUNK], length: 0 };
        let mut staged: Vec<Staged> = (0..shards).map(|_| empty()).collect();
        let mut keys = [0; CHUNK];
        let mut batches = 0;
        while !limit.reached(batches) {
            generator.fill(&mut keys);
            batches += 1;
            for &key in &keys {
                let hash = hash_u64(key);
                // The owner comes from the top bits, the slot from the bottom ones.
                let owner = (((hash >> 32) * shards as u64) >> 32) as usize;
                let chunk = &mut staged[owner];
                chunk.records[chunk.length % CHUNK] = Hashed { key, hash };
                chunk.length += 1;
                if chunk.length == CHUNK {
                    chunk.length = 0;
                    self.hand_over(owner, &chunk.records);
                }
            }
            self.take();
        }
        for (owner, chunk) in staged.iter().enumerate() {
            self.hand_over(owner, &chunk.records[..chunk.length]);
        }
        // Dropping a producer tells the consumer that no more comes.
        self.ends.to.clear();
        while !self.ends.from.iter().all(|ring| ring.is_abandoned() && ring.is_empty()) {
            self.take();
        }
        Ended { slots: self.slots, made: batches * CHUNK as u64 }
    }

    /// Counts a chunk here or passes it on; while the other's ring is full, empties the own ones (I2).
    #[inline(always)]
    fn hand_over(&mut self, owner: usize, records: &[Hashed]) {
        if owner == self.me {
            self.slots.count(records);
            self.counted += records.len() as u64;
            return;
        }
        while let Some(ring) = &mut self.ends.to[owner]
            && ring.push_entire_slice(records).is_err()
        {
            if ring.is_abandoned() {
                // That shard never started; its error is what the run returns.
                return;
            }
            self.take();
            std::hint::spin_loop();
        }
    }

    /// Counts what other shards have handed over.
    #[inline(always)]
    fn take(&mut self) {
        for ring in &mut self.ends.from {
            let available = ring.slots().min(TAKE_RECORDS);
            if let Ok(chunk) = ring.read_chunk(available) {
                let (first, second) = chunk.as_slices();
                self.slots.count(first);
                self.slots.count(second);
                chunk.commit_all();
                self.counted += available as u64;
            }
        }
        self.progress.0.store(self.counted, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceiling(shards: usize, keys: Keys) -> Ceiling {
        let placement = Placement { shards: vec![None; shards], spare: Vec::new(), warnings: Vec::new() };
        Ceiling { placement, keys, warm_up: Duration::ZERO, duration: Duration::from_millis(1), seed: 1 }
    }

    #[track_caller]
    fn check(shards: usize, keys: Keys) {
        let batches = 40;
        let ceiling = ceiling(shards, keys);
        let mut tables = ceiling.with_shards(Limit::Batches(batches), |_, _| {}).unwrap();
        let mut expected = vec![0u64; usize::try_from(keys.count()).unwrap()];
        for shard in 0..shards {
            let mut generator = KeyGenerator::new(KeySampler::new(keys).unwrap(), 1, shard as u64);
            let mut made = [0; CHUNK];
            for _ in 0..batches {
                generator.fill(&mut made);
                made.iter().for_each(|&key| expected[usize::try_from(key).unwrap()] += 1);
            }
        }
        for (key, &expected) in expected.iter().enumerate() {
            let found: u64 = tables.iter_mut().map(|table| table.get(key as u64)).sum();
            assert_eq!(found, expected, "key {key}");
        }
    }

    #[test]
    fn every_key_is_counted_once_on_any_number_of_shards() {
        check(1, Keys::Uniform { count: 100 });
        check(2, Keys::Uniform { count: 300 });
        check(3, Keys::Zipf { count: 300, theta: 0.99 });
        check(5, Keys::Uniform { count: 1 });
    }

    #[test]
    fn a_run_that_is_stopped_says_what_it_counted() {
        let report = ceiling(2, Keys::Uniform { count: 1000 }).run().unwrap();
        assert!(report.seconds >= 0.001);
        assert_eq!(report.cores, [None, None]);
    }

    #[test]
    fn keys_out_of_range_are_refused_before_a_thread_starts() {
        assert!(ceiling(2, Keys::Uniform { count: 0 }).run().is_err());
    }
}
