//! Gaps: how long a shard went from the start of one batch to the start of the next, and how much of it the host took.
//!
//! Three parties, no shared lock:
//! * the *shard* knows its gaps ([`GapHistogram`]): a histogram of all, and each one above 100 us with its two moments;
//! * a [`Watch`] thread, unpinned, reads the run delay of every shard thread each millisecond (and the steal time of its
//!   core each ten) and keeps what has changed, with the moments;
//! * [`GapReport`] brings both together afterwards. Nothing is classified while the shards run.
//!
//! Invariants
//! * I1. A moment is nanoseconds of one clock, the same for gaps and delays.
//! * I2. The host's part of a gap never exceeds the gap, nor the delay that can have fallen into it.
//! * I3. A long gap that nobody saw a delay for is ours.
//!
//! The kernel books a run delay when the thread gets its core back. So a delay of `g` first seen in the sample interval
//! `(a, b]` lies somewhere in `(a - g, b]`, and what of that overlaps a gap may be the host's, up to `g`.
//!
//! Cost: the shard pays a clock reading and a histogram increment per batch; the watch 2 us per shard and millisecond.

use hdrhistogram::Histogram;
use millstream::metrics::{GapHistogram, LONG_GAP_NS, LongGap};
use millstream::topology::{CoreId, RunDelay, ThreadId, steal_of_core};
use millstream::{Error, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const WATCH_INTERVAL: Duration = Duration::from_millis(1);
/// Steal time is read once in so many samples: it moves in steps of 10 ms, and reading it costs more.
const SAMPLES_PER_STEAL: u32 = 10;
const fn length_ns(gap: LongGap) -> u64 {
    gap.end_ns.saturating_sub(gap.start_ns)
}

/// When something that only grows (nanoseconds of delay) was seen to grow.
#[derive(Clone, Default, Debug)]
pub struct DelayLog {
    steps: Vec<Step>,
    last: Option<(u64, u64)>,
}

/// Growth by `grown_ns`, seen after the sample at `after_ns` and no later than `until_ns`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Step {
    after_ns: u64,
    until_ns: u64,
    grown_ns: u64,
}

impl DelayLog {
    /// Adds a sample: at `now_ns` the counter stood at `total_ns`. Samples come in order; a step costs 24 bytes, a sample
    /// without growth nothing.
    pub fn sample(&mut self, now_ns: u64, total_ns: u64) {
        if let Some((after_ns, before_ns)) = self.last.replace((now_ns, total_ns))
            && total_ns > before_ns
        {
            self.steps.push(Step { after_ns, until_ns: now_ns, grown_ns: total_ns - before_ns });
        }
    }

    /// All growth seen.
    pub fn total_ns(&self) -> u64 {
        self.steps.iter().map(|step| step.grown_ns).sum()
    }

    /// The most of this gap that the growth seen can account for.
    fn part_of(&self, gap: LongGap) -> u64 {
        // Steps are in order of `until_ns`; one that begins after the gap may still reach back into it by its growth.
        let first = self.steps.partition_point(|step| step.until_ns <= gap.start_ns);
        let parts = self.steps[first..].iter().map(|step| {
            let from = step.after_ns.saturating_sub(step.grown_ns).max(gap.start_ns);
            step.until_ns.min(gap.end_ns).saturating_sub(from).min(step.grown_ns)
        });
        parts.sum::<u64>().min(length_ns(gap))
    }
}

/// What the host took from one shard: waiting for a core, and steal time of the core it is pinned to.
#[derive(Clone, Default, Debug)]
pub struct HostDelays {
    /// Run delay of the thread.
    pub run_delay: DelayLog,
    /// Steal time of its core; stays empty when it is not pinned.
    pub steal: DelayLog,
}

impl HostDelays {
    /// The host's part of a gap. The kernel may book one stop as both, so the larger counts and not the sum.
    pub fn part_of(&self, gap: LongGap) -> u64 {
        self.run_delay.part_of(gap).max(self.steal.part_of(gap))
    }
}

/// A thread that watches what the host takes from shard threads.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<HostDelays>>,
}

impl Watch {
    /// Begins to watch `shards` (thread, and core if pinned). `now_ns` is the clock by which they record their gaps, as
    /// of now (I1). To be called from a thread that is not pinned.
    ///
    /// # Errors
    /// [`Unavailable`](millstream::ErrorKind::Unavailable) when a thread has no schedstat or none can be started.
    pub fn start(shards: &[(ThreadId, Option<CoreId>)], now_ns: u64) -> Result<Self> {
        let origin = Instant::now();
        let watched = shards.iter().map(|&(thread, core)| Ok((RunDelay::of(thread)?, core)));
        let watched: Vec<(RunDelay, Option<CoreId>)> = watched.collect::<Result<_>>()?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let watch = move || {
            let mut delays = vec![HostDelays::default(); watched.len()];
            let now = || now_ns + u64::try_from(origin.elapsed().as_nanos()).expect("a run is shorter than 500 years");
            for round in 0u32.. {
                for ((thread, core), delays) in watched.iter().zip(&mut delays) {
                    // A thread that has ended is delayed no more.
                    if let Ok(total_ns) = thread.nanoseconds() {
                        delays.run_delay.sample(now(), total_ns);
                    }
                    if round % SAMPLES_PER_STEAL == 0
                        && let Some(Ok(total)) = core.map(steal_of_core)
                    {
                        delays.steal.sample(now(), u64::try_from(total.as_nanos()).unwrap_or(u64::MAX));
                    }
                }
                // After the last sample, so that a delay up to the end of the run is seen.
                if told.load(Ordering::Acquire) {
                    break;
                }
                std::thread::sleep(WATCH_INTERVAL);
            }
            delays
        };
        let builder = std::thread::Builder::new().name("gap-watch".to_owned());
        let thread = builder.spawn(watch).map_err(|why| Error::unavailable(format_args!("watch thread: {why}")))?;
        Ok(Self { stop, thread })
    }

    /// Ends the watch; what was seen, in the order of the shards.
    ///
    /// # Panics
    /// If the watch thread has panicked.
    pub fn finish(self) -> Vec<HostDelays> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().expect("the watch thread does not panic")
    }
}

/// Gaps of all shards, as result files show them. Microseconds, except where the name says otherwise.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct GapReport {
    /// Half of the gaps are shorter.
    pub p50: f64,
    /// 99 of 100 are shorter.
    pub p99: f64,
    /// 999 of 1000 are shorter.
    pub p999: f64,
    /// The longest.
    pub max: f64,
    /// The longest that is left when the host's part is taken from each.
    pub max_not_host: f64,
    /// Part of all time covered that lies in gaps over one millisecond; zero to one.
    pub share_over_1ms: f64,
    /// The same when the host's part is taken from each gap.
    pub share_over_1ms_not_host: f64,
    /// Gaps of at least 100 us.
    pub long: u64,
    /// Those of them of which the host took more than half.
    pub long_host: u64,
    /// Those of them whose moments were not kept; counted as ours.
    pub long_unclassified: u64,
}

impl GapReport {
    /// Brings together what the shards recorded and what a [`Watch`] saw of them, in the same order. Without a watch
    /// `delays` is empty, and every gap is ours.
    pub fn of(shards: &[GapHistogram], delays: &[HostDelays]) -> Self {
        let mut all = GapHistogram::default().histogram().clone();
        let mut own_ns_max = 0;
        let (mut long, mut long_host, mut kept) = (0, 0, 0);
        let (mut over_ns, mut over_own_ns) = (0, 0);
        for (i, shard) in shards.iter().enumerate() {
            let histogram = shard.histogram();
            all.add(histogram).expect("histograms of gaps have the same bounds");
            let mut over_kept_ns = 0;
            for &gap in shard.long() {
                let host_ns = delays.get(i).map_or(0, |delays| delays.part_of(gap));
                let own_ns = length_ns(gap) - host_ns;
                own_ns_max = own_ns_max.max(own_ns);
                long_host += u64::from(host_ns > own_ns);
                over_kept_ns += if length_ns(gap) > OVER_NS { length_ns(gap) } else { 0 };
                over_own_ns += if own_ns > OVER_NS { own_ns } else { 0 };
            }
            let (long_here, kept_here) = (long_gaps(histogram), shard.long().len() as u64);
            long += long_here;
            kept += kept_here;
            let over_here_ns = sum(histogram, OVER_NS).max(over_kept_ns);
            over_ns += over_here_ns;
            if long_here > kept_here {
                // I3: some were not kept; the longest may be one of them.
                over_own_ns += over_here_ns - over_kept_ns;
                if histogram.max() > longest(shard.long()) + histogram.max() / 500 {
                    own_ns_max = own_ns_max.max(histogram.max());
                }
            }
            own_ns_max = own_ns_max.max(longest_below(histogram, LONG_GAP_NS));
        }
        let covered_ns = sum(&all, 0);
        Self {
            p50: microseconds(all.value_at_quantile(0.5)),
            p99: microseconds(all.value_at_quantile(0.99)),
            p999: microseconds(all.value_at_quantile(0.999)),
            max: microseconds(all.max()),
            max_not_host: microseconds(own_ns_max.min(all.max())),
            share_over_1ms: share(over_ns, covered_ns),
            share_over_1ms_not_host: share(over_own_ns, covered_ns),
            long,
            long_host,
            long_unclassified: long.saturating_sub(kept),
        }
    }
}

const OVER_NS: u64 = 1_000_000;

/// Sum of the gaps over `above_ns`, to the histogram's three digits.
fn sum(histogram: &Histogram<u64>, above_ns: u64) -> u64 {
    let recorded = histogram.iter_recorded().filter(|cell| cell.value_iterated_to() > above_ns);
    recorded.map(|cell| cell.value_iterated_to() * cell.count_at_value()).sum()
}

fn long_gaps(histogram: &Histogram<u64>) -> u64 {
    let long = histogram.iter_recorded().filter(|cell| cell.value_iterated_to() >= LONG_GAP_NS);
    long.map(|cell| cell.count_at_value()).sum()
}

fn longest(gaps: &[LongGap]) -> u64 {
    gaps.iter().copied().map(length_ns).max().unwrap_or(0)
}

fn longest_below(histogram: &Histogram<u64>, below_ns: u64) -> u64 {
    let values = histogram.iter_recorded().map(|cell| cell.value_iterated_to());
    values.take_while(|&value| value < below_ns).last().unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "gaps are below 2^53 ns, 100 days")]
fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

#[expect(clippy::cast_precision_loss, reason = "a run is shorter than 2^53 ns, 100 days")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The gaps of a loop that does nothing but read the clock: what this machine does to any thread.
///
/// # Errors
/// [`Unavailable`](millstream::ErrorKind::Unavailable) when the thread cannot be started or watched.
///
/// # Panics
/// If the loop's thread panics.
pub fn idle_loop(core: Option<CoreId>, duration: Duration) -> Result<GapReport> {
    let origin = Instant::now();
    let now_ns = move || u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let end_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let (watched, ready) = std::sync::mpsc::channel();
    let spin = move || {
        if let Some(core) = core {
            core_affinity::set_for_current(core_affinity::CoreId { id: core.0 as usize });
        }
        let mut gaps = GapHistogram::default();
        // Who asked has gone only if the watch could not be started; the loop ends by itself.
        let _ = watched.send(ThreadId::current());
        let mut now = now_ns();
        let until = now.saturating_add(end_ns);
        while now < until {
            gaps.batch_started(now);
            now = now_ns();
        }
        gaps
    };
    let builder = std::thread::Builder::new().name("idle-loop".to_owned());
    let thread = builder.spawn(spin).map_err(|why| Error::unavailable(format_args!("idle loop: {why}")))?;
    let shard = ready.recv().map_err(|_| Error::unavailable("the idle loop has ended before it began"))?;
    let watch = Watch::start(&[(shard, core)], now_ns())?;
    let gaps = thread.join().expect("the loop does not panic");
    let delays = watch.finish();
    Ok(GapReport::of(&[gaps], &delays))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn gap(start_ms: u64, end_ms: u64) -> LongGap {
        LongGap { start_ns: start_ms * MS, end_ns: end_ms * MS }
    }

    /// Samples of (moment, counter) in milliseconds, a gap, and the host's part of it in milliseconds.
    #[track_caller]
    fn check(samples: &[(u64, u64)], gap: LongGap, part_ms: u64) {
        let mut log = DelayLog::default();
        samples.iter().for_each(|&(at, total)| log.sample(at * MS, total * MS));
        assert_eq!(log.part_of(gap), part_ms * MS, "{samples:?} {gap:?}");
    }

    #[test]
    fn a_delay_inside_the_gap_is_the_hosts() {
        check(&[(10, 0), (16, 5), (17, 5)], gap(10, 16), 5);
        check(&[(0, 7), (10, 7), (20, 7), (30, 9)], gap(10, 25), 2);
    }

    #[test]
    fn a_delay_is_booked_at_its_end_and_reaches_back() {
        // Stopped from 10 to 16, seen only between 17 and 18.
        check(&[(9, 0), (17, 0), (18, 6)], gap(10, 16), 5);
        check(&[(9, 0), (17, 0), (18, 8)], gap(10, 16), 6);
    }

    #[test]
    fn a_delay_elsewhere_is_not() {
        check(&[(0, 0), (5, 4), (20, 4)], gap(10, 16), 0);
        check(&[(0, 0), (40, 0), (41, 4)], gap(10, 16), 0);
        check(&[], gap(10, 16), 0);
        check(&[(12, 3)], gap(10, 16), 0);
    }

    #[test]
    fn the_part_is_never_more_than_the_gap_or_the_delay() {
        check(&[(0, 0), (30, 25)], gap(10, 16), 6);
        check(&[(11, 0), (12, 1), (13, 2), (14, 2), (15, 3)], gap(10, 16), 3);
        check(&[(10, 0), (12, 4), (14, 8)], gap(10, 15), 5);
    }

    #[test]
    fn a_report_takes_the_hosts_part_from_each_gap() {
        let mut gaps = GapHistogram::default();
        // Batches every 50 us, except 7 ms that the host took most of and 2 ms that nobody took.
        let mut now = 0;
        for step in 0..1000u64 {
            gaps.batch_started(now);
            now += match step {
                100 => 7 * MS,
                500 => 2 * MS,
                _ => 50_000,
            };
        }
        let mut delays = HostDelays::default();
        for (at, total) in [(0, 0), (4, 0), (12, 0), (13, 6 * MS), (100, 6 * MS)] {
            delays.run_delay.sample(at * MS, total);
        }
        let gaps = [gaps];
        let report = GapReport::of(&gaps, &[delays]);
        let near = |found: f64, expected: f64| (found - expected).abs() <= expected * 0.002;
        assert!(near(report.p50, 50.0) && near(report.p99, 50.0), "{report:?}");
        assert!(near(report.max, 7000.0) && near(report.max_not_host, 2000.0), "{report:?}");
        let covered = 997.0 * 50.0 + 9000.0;
        assert!(near(report.share_over_1ms, 9000.0 / covered), "{report:?}");
        assert!(near(report.share_over_1ms_not_host, 2000.0 / covered), "{report:?}");
        assert_eq!((report.long, report.long_host, report.long_unclassified), (2, 1, 0));

        let unwatched = GapReport::of(&gaps, &[]);
        assert!(near(unwatched.max_not_host, 7000.0) && unwatched.long_host == 0, "{unwatched:?}");
    }

    #[test]
    fn a_long_gap_that_was_not_kept_is_ours() {
        // Batches 200 us apart until no more are kept, then 9 ms, all of it the host's.
        let mut gaps = GapHistogram::default();
        let mut now = 0;
        gaps.batch_started(now);
        while gaps.long().len() as u64 == gaps.histogram().len() {
            now += 200_000;
            gaps.batch_started(now);
        }
        let mut delays = HostDelays::default();
        delays.run_delay.sample(now, 0);
        delays.run_delay.sample(now + 9 * MS, 9 * MS);
        gaps.batch_started(now + 9 * MS);
        let report = GapReport::of(&[gaps], &[delays]);
        assert!(report.max_not_host > 8990.0 && report.long_unclassified == 2, "{report:?}");
        assert!(report.share_over_1ms_not_host > 0.0, "{report:?}");
    }

    #[test]
    fn short_gaps_are_ours_and_no_gaps_are_zero() {
        let mut gaps = GapHistogram::default();
        [0, 10_000, 40_000].into_iter().for_each(|now| gaps.batch_started(now));
        gaps.idle();
        gaps.batch_started(900 * MS);
        let report = GapReport::of(&[gaps], &[]);
        assert!((report.max_not_host - 30.0).abs() < 0.1, "{report:?}");
        assert_eq!(GapReport::of(&[], &[]).max, 0.0);
    }

    #[test]
    fn the_watch_sees_threads_of_this_process() {
        let watch = Watch::start(&[(ThreadId::current(), Some(CoreId(0)))], 5).unwrap();
        assert_eq!(watch.finish().len(), 1);
        let report = idle_loop(None, Duration::from_millis(3)).unwrap();
        assert!(report.max >= report.p50 && report.max_not_host <= report.max, "{report:?}");
    }
}
