//! The keyed count: a read-modify-write of a `u64` under a `u64` key, with durable epochs, on every core.
//!
//! Keys come from a generator on every shard, cross an exchange to the shard that owns them, are counted there, and every
//! update goes to a sink that counts. With a rate the load is open loop: a record is due at its own time, however late
//! those before it are, and its latency runs from that time until its update has reached the sink.
//!
//! Invariants
//! * I1. What is measured lies between the end of the warm-up and the moment the job is told to stop.
//! * I2. Nothing here runs on a shard's thread but the sink, which costs what a counting sink has to.

use crate::ceiling::{Ceiling, CeilingReport};
use crate::gaps::{GapReport, HostTime, Watch, host_share};
use crate::keys::{KeySampler, Keys};
use crate::latency::{Latencies, LatencySink};
use crate::machine::filesystem;
use crate::onlooker::{Look, Sight, pass};
use crate::report::{self, median, table};
use hdrhistogram::Histogram;
use millstream::prelude::*;
use millstream::topology::Topology;
use millstream::{EpochStats, Error, JobReport, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Seed of the keys unless told otherwise.
const SEED: u64 = 42;

/// Slots of the generator: so many splits share the indices, more than any machine has cores.
const SLICES: u32 = 64;

/// A host that takes more of the time than this disturbs a measurement.
const HOST_SHARE_MAX: f64 = 0.03;
/// Rounds that differ by more than this were disturbed.
const SPREAD_MAX: f64 = 0.15;

/// What to run.
#[derive(Clone, Debug)]
pub struct KeyedCount {
    /// The cores to run on, one shard each.
    pub cores: Cores,
    /// What is counted.
    pub keys: Keys,
    /// Time measured, in each round.
    pub duration: Duration,
    /// Time before each measurement.
    pub warm_up: Duration,
    /// From one epoch to the next.
    pub epoch_interval: Duration,
    /// Records per second over all shards, open loop; `None`: as fast as it goes.
    pub rate: Option<f64>,
    /// Run the bare loop in turn with the engine, several times.
    pub with_ceiling: bool,
    /// How often engine and bare loop take turns.
    pub rounds: u32,
    /// Where the state directory is made (and removed); by default a place for temporary files that is on a disk.
    pub state_dir: Option<PathBuf>,
    /// Most megabytes per second that one shard writes for snapshots; zero for no limit.
    pub flush_mbps: u32,
    /// Never park an idle shard.
    pub busy_poll: bool,
    /// The same seed counts the same keys.
    pub seed: u64,
}

impl Default for KeyedCount {
    fn default() -> Self {
        Self {
            cores: Cores::auto(),
            keys: Keys::Uniform { count: 1_000_000 },
            duration: Duration::from_secs(10),
            warm_up: Duration::from_secs(3),
            epoch_interval: Duration::from_secs(1),
            rate: None,
            with_ceiling: false,
            rounds: 3,
            state_dir: None,
            flush_mbps: EngineConfig::default().flush_mbps,
            busy_poll: false,
            seed: SEED,
        }
    }
}

/// What was measured. Figures of several rounds are medians where they are one number, and of all rounds together where
/// they are a distribution.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyedCountReport {
    /// Records counted per second, all shards together.
    pub records_per_second: f64,
    /// The same, of each round.
    pub rounds: Vec<f64>,
    /// Records counted per second by the bare loop on the same cores.
    pub ceiling_records_per_second: Option<f64>,
    /// The same, of each round.
    pub ceiling_rounds: Vec<f64>,
    /// The engine's part of that: the median of rounds over the median of rounds.
    pub ratio_to_ceiling: Option<f64>,
    /// What has become of the epochs.
    pub epochs: Epochs,
    /// How long a shard stood still for a cut, in microseconds.
    pub cut_us: Quantiles,
    /// From a shard's cut until it was durable, in milliseconds.
    pub flush_ms: Quantiles,
    /// From an epoch's beginning until it was complete, in milliseconds.
    pub complete_ms: Quantiles,
    /// From the start of one batch to the start of the next on a shard that has input, in microseconds.
    pub gap_us: GapReport,
    /// From when a record was due until its update had reached the sink, in microseconds; with a rate only.
    pub latency_us: Option<Quantiles>,
    /// Bytes that the newest epoch consists of, whichever epoch wrote them.
    pub snapshot_bytes: u64,
    /// Bytes written for the newest epoch.
    pub snapshot_bytes_written: u64,
    /// Part of the time measured that the host took from the shards; zero to one.
    #[serde(default)]
    pub host_share: f64,
    /// The same for the bare loop.
    #[serde(default)]
    pub ceiling_host_share: Option<f64>,
    /// Resident memory of the process before the job was told to stop.
    pub rss_bytes: u64,
    /// What was counted.
    pub keys: Keys,
    /// How many shards.
    pub shards: u32,
    /// Seconds measured in each round.
    pub seconds: f64,
    /// Seconds from one epoch to the next.
    pub epoch_interval_seconds: f64,
    /// Records per second that were asked for.
    pub rate: Option<f64>,
    /// What is not as good as it could be on this host, and what makes the figures doubtful.
    pub warnings: Vec<String>,
}

/// Counts of epochs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Epochs {
    /// Epochs that became complete.
    pub completed: u64,
    /// Epochs that failed or were given up.
    pub failed: u64,
}

/// A distribution in short.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Quantiles {
    /// Half are smaller.
    pub p50: f64,
    /// 99 of 100 are smaller.
    pub p99: f64,
    /// 999 of 1000 are smaller.
    pub p999: f64,
    /// The largest.
    pub max: f64,
}

impl Quantiles {
    /// Of a histogram whose unit is `unit` of the ones wanted.
    pub fn of(histogram: &Histogram<u64>, unit: f64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "durations are below 2^53 of their units")]
        let scaled = |value: u64| value as f64 * unit;
        let at = |quantile| scaled(histogram.value_at_quantile(quantile));
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: scaled(histogram.max()) }
    }
}

impl KeyedCount {
    /// Runs all rounds.
    ///
    /// # Errors
    /// [`Invalid`](millstream::ErrorKind::Invalid) for keys or cores out of range, and everything that a job can fail with.
    pub fn run(&self) -> Result<KeyedCountReport> {
        self.run_before(&mut |_| true).map(|report| report.expect("nobody ends it"))
    }

    /// The same before an onlooker; `None` when it was ended.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_before(&self, look: &mut Look<'_>) -> Result<Option<KeyedCountReport>> {
        let sampler = KeySampler::new(self.keys)?;
        let parent = self.directory()?;
        let rounds = self.rounds();
        let (mut ceilings, mut engines) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            let mut look = |sight| look(Sight { round, rounds, ..sight });
            if self.with_ceiling {
                let Some(ceiling) = self.bare_loop()?.run_before(&mut look)? else { return Ok(None) };
                ceilings.push(ceiling);
            }
            let Some(engine) = self.round(&sampler, &parent, &mut look)? else { return Ok(None) };
            engines.push(engine);
        }
        Ok(Some(self.report(engines, &ceilings)))
    }

    /// How long it should take.
    pub fn planned(&self) -> Duration {
        let bare_loop = if self.with_ceiling { self.bare_loop_times() } else { [Duration::ZERO; 2] };
        (bare_loop.iter().sum::<Duration>() + self.warm_up + self.duration) * self.rounds()
    }

    fn rounds(&self) -> u32 {
        if self.with_ceiling { self.rounds.max(1) } else { 1 }
    }

    /// Where state directories are made.
    ///
    /// # Errors
    /// [`Invalid`](millstream::ErrorKind::Invalid) when none was named and every one that comes to mind is in memory.
    pub fn directory(&self) -> Result<PathBuf> {
        self.state_dir.clone().map_or_else(disk_directory, Ok)
    }

    /// Warm-up and duration. It has no epochs to average over: a third of the time shows as much.
    fn bare_loop_times(&self) -> [Duration; 2] {
        let shortest = Duration::from_millis(500);
        [self.warm_up.min(shortest), (self.duration / 3).max(shortest)]
    }

    fn bare_loop(&self) -> Result<Ceiling> {
        let placement = Topology::read()?.plan(&self.cores)?;
        let [warm_up, duration] = self.bare_loop_times();
        Ok(Ceiling { placement, keys: self.keys, warm_up, duration, seed: self.seed })
    }

    /// One run of the engine; `None` when the onlooker has ended it. Its directory goes in any case.
    fn round(&self, sampler: &KeySampler, parent: &Path, look: &mut Look<'_>) -> Result<Option<Round>> {
        let dir = TempDir::with_prefix_in("keyed-count-", parent);
        let dir = dir.map_err(|why| Error::unavailable(format_args!("{}: {why}", parent.display())))?;
        match self.rate {
            None => {
                let sink = Discard::counting();
                let count = sink.count();
                self.measure(self.counting_job(sampler, sink), dir.path(), &|| count.total(), None, look)
            }
            Some(rate) => {
                let sink = LatencySink::default();
                let latencies = sink.latencies();
                let job = self.timed_job(sampler, rate, sink);
                self.measure(job, dir.path(), &|| latencies.total(), Some(&latencies), look)
            }
        }
    }

    fn counting_job(&self, sampler: &KeySampler, sink: Discard) -> Job {
        let job = Job::named("keyed-count");
        // One type for each distribution, so that no record has to ask which.
        match sampler {
            KeySampler::Uniform { count } => {
                let count = *count;
                let make = move |_, random: &mut Random| KeySampler::Uniform { count }.key(random.next_u64());
                job.source(Generator::new(self.seed, make).slices(SLICES)).key_by(|key| *key).count("counts").sink(sink)
            }
            zipf @ KeySampler::Zipf(_) => {
                let zipf = zipf.clone();
                let make = move |_, random: &mut Random| zipf.key(random.next_u64());
                job.source(Generator::new(self.seed, make).slices(SLICES)).key_by(|key| *key).count("counts").sink(sink)
            }
        }
    }

    /// The same count, of records that carry when they were due.
    fn timed_job(&self, sampler: &KeySampler, rate: f64, sink: LatencySink) -> Job {
        let sampler = sampler.clone();
        let make = move |_, random: &mut Random, due_ns| (sampler.key(random.next_u64()), due_ns);
        Job::named("keyed-count")
            .source(Generator::timed(self.seed, make).slices(SLICES).rate(rate))
            .key_by(|record: &(u64, u64)| record.0)
            .process_with("counts", ValueState::<u64>::named("counts"), |count, (_, due_ns), _, out| {
                *count = Some(count.unwrap_or(0) + 1);
                out.push(due_ns);
            })
            .sink(sink)
    }

    fn config(&self, dir: &Path) -> EngineConfig {
        // Live records, their earlier versions of two epochs, the index: room for all of it in every shard.
        let bytes = usize::try_from(self.keys.count()).unwrap_or(usize::MAX).saturating_mul(128).max(256 << 20);
        EngineConfig {
            cores: self.cores.clone(),
            state_dir: Some(dir.join("state")),
            flush_mbps: self.flush_mbps,
            busy_poll: self.busy_poll,
            ..EngineConfig::default()
        }
        .epoch_interval(self.epoch_interval)
        .state_memory_bytes_per_core(bytes.min(1 << 40))
    }

    fn measure(
        &self,
        job: Job,
        dir: &Path,
        counted: &dyn Fn() -> u64,
        latencies: Option<&Latencies>,
        look: &mut Look<'_>,
    ) -> Result<Option<Round>> {
        let running = Engine::start(self.config(dir), job)?;
        let shards = running.shards();
        let ended_early = || running.is_ended();
        if !pass(self.warm_up, "warm-up", look, counted, &ended_early) {
            return give_up(running);
        }
        let watch = match Watch::start(&running.shard_threads(), running.now_ns()) {
            Ok(watch) => watch,
            // The threads of a job that has failed are gone; its own error says why.
            Err(_) if running.is_ended() => {
                running.join()?;
                return Err(Error::unavailable("the job has ended before it could be measured"));
            }
            Err(why) => return Err(why),
        };
        running.reset_metrics();
        if let Some(latencies) = latencies {
            latencies.start(running.now_ns());
        }
        let (begin, before) = (Instant::now(), counted());
        if !pass(self.duration, "engine", look, counted, &ended_early) {
            return give_up(running);
        }
        let (records, seconds) = (counted() - before, begin.elapsed().as_secs_f64());
        if let Some(latencies) = latencies {
            latencies.stop();
        }
        let rss_bytes = resident_bytes();
        let warnings = running.warnings().to_vec();
        running.stop(Stop::AtNextEpoch);
        let report = running.join()?;
        let host = watch.finish();
        #[expect(clippy::cast_precision_loss, reason = "a run counts less than 2^53 records")]
        let records_per_second = records as f64 / seconds;
        Ok(Some(Round {
            records_per_second,
            shards,
            report,
            host,
            rss_bytes,
            latencies: latencies.map(Latencies::histogram),
            warnings,
        }))
    }

    fn report(&self, mut rounds: Vec<Round>, ceilings: &[CeilingReport]) -> KeyedCountReport {
        let rates: Vec<f64> = rounds.iter().map(|round| round.records_per_second).collect();
        let records_per_second = median(&rates).expect("at least one round");
        let ceiling_rounds: Vec<f64> = ceilings.iter().map(|round| round.records_per_second).collect();
        let ceiling = median(&ceiling_rounds);
        let host_shares: Vec<f64> = rounds.iter().map(|round| host_share(&round.host, self.duration)).collect();
        let ceiling_host_shares: Vec<f64> = ceilings.iter().map(|round| round.host_share).collect();
        let gaps: Vec<_> = rounds.iter_mut().flat_map(|round| std::mem::take(&mut round.report.gaps)).collect();
        let host: Vec<_> = rounds.iter_mut().flat_map(|round| std::mem::take(&mut round.host)).collect();
        let last = rounds.last().expect("there is at least one round");
        let (shards, mut warnings) = (last.shards, last.warnings.clone());
        warnings.extend(disturbed("the engine", &host_shares, &rates));
        warnings.extend(disturbed("the bare loop", &ceiling_host_shares, &ceiling_rounds));
        let snapshot_bytes = last.report.epochs.snapshot_bytes_total;
        let snapshot_bytes_written = last.report.epochs.snapshot_bytes_last;
        let all = |of: fn(&EpochStats) -> &Histogram<u64>| {
            let mut all = of(&rounds[0].report.epochs).clone();
            rounds[1..].iter().for_each(|round| all.add(of(&round.report.epochs)).expect("same bounds"));
            all
        };
        let mut latency: Option<Histogram<u64>> = None;
        for round in rounds.iter().filter_map(|round| round.latencies.as_ref()) {
            match &mut latency {
                Some(latency) => latency.add(round).expect("same bounds"),
                None => latency = Some(round.clone()),
            }
        }
        let sum = |of: fn(&EpochStats) -> u64| rounds.iter().map(|round| of(&round.report.epochs)).sum();
        KeyedCountReport {
            records_per_second,
            rounds: rates,
            ceiling_records_per_second: ceiling,
            ceiling_rounds,
            ratio_to_ceiling: ceiling.map(|ceiling| records_per_second / ceiling),
            epochs: Epochs { completed: sum(|epochs| epochs.completed), failed: sum(|epochs| epochs.failed) },
            cut_us: Quantiles::of(&all(|epochs| &epochs.cut_ns), 1e-3),
            flush_ms: Quantiles::of(&all(|epochs| &epochs.flush_us), 1e-3),
            complete_ms: Quantiles::of(&all(|epochs| &epochs.complete_us), 1e-3),
            gap_us: GapReport::of(&gaps, &host),
            latency_us: latency.map(|latency| Quantiles::of(&latency, 1e-3)),
            snapshot_bytes,
            snapshot_bytes_written,
            host_share: largest(&host_shares).expect("at least one round"),
            ceiling_host_share: largest(&ceiling_host_shares),
            rss_bytes: rounds.iter().map(|round| round.rss_bytes).max().unwrap_or(0),
            keys: self.keys,
            shards,
            seconds: self.duration.as_secs_f64(),
            epoch_interval_seconds: self.epoch_interval.as_secs_f64(),
            rate: self.rate,
            warnings,
        }
    }
}

/// One run of the engine.
struct Round {
    records_per_second: f64,
    shards: u32,
    report: JobReport,
    host: Vec<HostTime>,
    rss_bytes: u64,
    latencies: Option<Histogram<u64>>,
    warnings: Vec<String>,
}

impl KeyedCountReport {
    /// The table that the terminal shows.
    pub fn table(&self) -> String {
        let quantiles = |name: &str, of: &Quantiles, unit: f64| {
            let shown = |value: f64| report::microseconds(value * unit);
            [name.to_owned(), shown(of.p50), shown(of.p99), shown(of.p999), shown(of.max)]
        };
        let gaps =
            Quantiles { p50: self.gap_us.p50, p99: self.gap_us.p99, p999: self.gap_us.p999, max: self.gap_us.max };
        let mut rows = vec![
            quantiles("cut", &self.cut_us, 1.0),
            quantiles("durable after", &self.flush_ms, 1000.0),
            quantiles("epoch complete after", &self.complete_ms, 1000.0),
            quantiles("gap between batches", &gaps, 1.0),
        ];
        rows.extend(self.latency_us.iter().map(|latency| quantiles("latency", latency, 1.0)));
        let against =
            self.ceiling_records_per_second.zip(self.ratio_to_ceiling).map_or_else(String::new, |(rate, ratio)| {
                format!(", {ratio:.2} of the bare loop's {}", report::rate(rate))
            });
        let gap = &self.gap_us;
        format!(
            "{} on {} shards: {}{against}\nepochs: {} complete, {} failed, {} each\nlongest gap between batches {}, {} without the \
             host's part; time in gaps over 1 ms {:.3} %, {:.3} % without the host's part\n{}",
            self.keys,
            self.shards,
            report::rate(self.records_per_second),
            self.epochs.completed,
            self.epochs.failed,
            report::bytes(self.snapshot_bytes),
            report::microseconds(gap.max),
            report::microseconds(gap.max_not_host),
            gap.share_over_1ms * 100.0,
            gap.share_over_1ms_not_host * 100.0,
            table(["", "p50", "p99", "p99.9", "max"], rows),
        )
    }
}

fn largest(values: &[f64]) -> Option<f64> {
    values.iter().copied().max_by(f64::total_cmp)
}

/// Why the figures of some rounds are doubtful: the host took time from them, or they differ.
fn disturbed(what: &str, host_shares: &[f64], rates: &[f64]) -> Option<String> {
    let taken = largest(host_shares).filter(|taken| *taken > HOST_SHARE_MAX);
    let (most, least) = (largest(rates)?, rates.iter().copied().min_by(f64::total_cmp)?);
    let spread = (most - least) / most;
    let why = match taken {
        Some(taken) => format!("the host took up to {:.0} % of the time from it", taken * 100.0),
        None if spread > SPREAD_MAX => format!("its rounds differ by {:.0} %", spread * 100.0),
        None => return None,
    };
    Some(format!("{what} was disturbed: {why}. Its figures and the ratio say little; measure when nothing else runs"))
}

/// Ends a job of which nothing more is wanted.
fn give_up(running: Running) -> Result<Option<Round>> {
    running.stop(Stop::AtNextEpoch);
    running.join()?;
    Ok(None)
}

/// A directory for temporary files that lies on a disk: on tmpfs a snapshot would cost nothing.
fn disk_directory() -> Result<PathBuf> {
    let places = [std::env::temp_dir(), PathBuf::from("/var/tmp"), PathBuf::from(".")];
    let in_memory = |path: &Path| filesystem(path).is_some_and(|held| ["tmpfs", "ramfs"].contains(&held.kind.as_str()));
    places.into_iter().find(|place| place.is_dir() && !in_memory(place)).ok_or_else(|| {
        Error::invalid("every directory for temporary files is in memory: name one on a disk with --state-dir")
    })
}

/// Resident memory of this process; zero where the host does not tell.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> KeyedCount {
        KeyedCount {
            cores: Cores::count(2),
            keys: Keys::Zipf { count: 1000, theta: 0.99 },
            duration: Duration::from_millis(300),
            warm_up: Duration::from_millis(50),
            epoch_interval: Duration::from_millis(20),
            ..KeyedCount::default()
        }
    }

    #[test]
    fn a_run_beside_the_bare_loop_tells_all_that_a_result_needs() {
        let report = KeyedCount { with_ceiling: true, rounds: 2, ..small() }.run().unwrap();
        assert!(report.records_per_second > 0.0 && report.epochs.completed > 0, "{report:?}");
        assert_eq!((report.rounds.len(), report.ceiling_rounds.len()), (2, 2));
        let json = serde_json::to_value(&report).unwrap();
        for field in ["cut_us", "flush_ms", "gap_us"] {
            for quantile in ["p50", "p99", "p999", "max"] {
                assert!(json[field][quantile].is_f64(), "{field}.{quantile} of {json}");
            }
        }
        assert!(json["gap_us"]["max_not_host"].is_f64() && json["gap_us"]["share_over_1ms"].is_f64());
        assert!(json["ratio_to_ceiling"].is_f64() && json["snapshot_bytes"].as_u64() > Some(0), "{json}");
    }

    #[test]
    fn a_disturbed_measurement_says_so_and_why() {
        let check = |shares: &[f64], rates: &[f64], why: Option<&str>| {
            let said = disturbed("it", shares, rates);
            assert_eq!(said.is_some(), why.is_some(), "{said:?}");
            assert!(why.is_none_or(|why| said.as_ref().is_some_and(|said| said.contains(why))), "{said:?}");
        };
        check(&[0.01, 0.0], &[100.0, 95.0], None);
        check(&[0.01, 0.2], &[100.0, 95.0], Some("up to 20 % of the time"));
        check(&[0.01, 0.0], &[100.0, 70.0], Some("its rounds differ by 30 %"));
        check(&[], &[], None);
    }

    #[test]
    fn under_a_rate_every_record_has_a_latency() {
        let report = KeyedCount { rate: Some(20_000.0), ..small() }.run().unwrap();
        let latency = report.latency_us.expect("asked for a rate");
        assert!(latency.p50 > 0.0 && latency.max >= latency.p99, "{report:?}");
        assert!(report.records_per_second > 0.0, "{report:?}");
    }

    #[test]
    fn an_onlooker_who_has_seen_enough_ends_it_and_nothing_is_left() {
        let parent = tempfile::tempdir().unwrap();
        let state_dir = Some(parent.path().to_owned());
        for last in ["bare loop", "warm-up", "engine"] {
            let run = KeyedCount { with_ceiling: true, state_dir: state_dir.clone(), ..small() };
            let report = run.run_before(&mut |sight| sight.what != last).unwrap();
            assert!(report.is_none(), "{last}");
            assert_eq!(parent.path().read_dir().unwrap().count(), 0, "{last}");
        }
    }
}
