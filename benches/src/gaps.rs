//! Gaps: how long a shard went from the start of one batch to the start of the next, and how much of it the host took.
//!
//! Three parties, no shared lock:
//! * the *shard* knows its gaps ([`GapHistogram`]): a histogram of all, and each one above 100 us with its two moments;
//! * a [`Watch`] thread, unpinned, compares the CPU clock of every shard thread with the wall each millisecond, and keeps
//!   what was taken from the thread, with the moments;
//! * [`GapReport`] brings both together afterwards. Nothing is classified while the shards run.
//!
//! Invariants
//! * I1. A moment is nanoseconds of one clock, the same for gaps and delays.
//! * I2. The host's part of a gap never exceeds the gap, nor what was taken between the looks that it overlaps.
//! * I3. Time in which the thread slept is ours, but for its run delay and for what the watch itself lost in its own sleep at
//!   the same time: a host that stops all cores makes both wake late. So is a long gap of which nobody saw anything taken.
//!
//! Cost: the shard pays a clock reading and a histogram increment per batch; the watch 2 us per shard and millisecond.

use hdrhistogram::Histogram;
use millstream::metrics::{GapHistogram, LONG_GAP_NS, LongGap};
use millstream::topology::{CoreId, ThreadId, ThreadTimes};
use millstream::{Error, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const WATCH_INTERVAL: Duration = Duration::from_millis(1);
/// Once in so many looks the thread's sleeps are counted even if nothing seems to be taken.
const LOOKS_PER_COUNT: u32 = 16;
/// The kernel's slack for timers, and the way through the scheduler.
const WAKE_UP: Duration = Duration::from_micros(100);
/// What a look at a running thread may be wrong by; below this nothing was taken.
const NOISE_NS: u64 = 20_000;

const fn length_ns(gap: LongGap) -> u64 {
    gap.end_ns.saturating_sub(gap.start_ns)
}

/// What the host took from one thread, and when.
#[derive(Clone, Default, Debug)]
pub struct HostTime {
    /// In order.
    takings: Vec<Taking>,
}

/// `taken_ns` of the time from `after_ns` until `until_ns`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Taking {
    after_ns: u64,
    until_ns: u64,
    taken_ns: u64,
}

impl HostTime {
    /// Notes that of the time from `after_ns` until `until_ns`, later than all noted before, `taken_ns` were taken. Costs 24
    /// bytes.
    pub fn note(&mut self, after_ns: u64, until_ns: u64, taken_ns: u64) {
        if taken_ns >= NOISE_NS {
            self.takings.push(Taking { after_ns, until_ns, taken_ns });
        }
    }

    /// All that was taken.
    pub fn total_ns(&self) -> u64 {
        self.takings.iter().map(|taking| taking.taken_ns).sum()
    }

    /// The most of this gap that can have been taken.
    fn part_of(&self, gap: LongGap) -> u64 {
        let first = self.takings.partition_point(|taking| taking.until_ns <= gap.start_ns);
        let within = self.takings[first..].iter().take_while(|taking| taking.after_ns < gap.end_ns);
        let parts = within.map(|taking| {
            let overlap_ns = taking.until_ns.min(gap.end_ns) - taking.after_ns.max(gap.start_ns);
            overlap_ns.min(taking.taken_ns)
        });
        parts.sum::<u64>().min(length_ns(gap))
    }
}

/// Part of `time` that the host took from its threads, on average; zero to one.
pub fn host_share(threads: &[HostTime], time: Duration) -> f64 {
    let whole = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(threads.len() as u64);
    share(threads.iter().map(HostTime::total_ns).sum(), whole).min(1.0)
}

/// A thread as it was last looked at.
struct Watched {
    times: ThreadTimes,
    /// The moment of the look, the CPU clock and the run delay then.
    last: Option<(u64, u64, u64)>,
    sleeps: u64,
    host: HostTime,
}

impl Watched {
    fn of(thread: ThreadId) -> Result<Self> {
        let times = ThreadTimes::of(thread)?;
        let sleeps = times.sleeps()?;
        Ok(Self { times, last: None, sleeps, host: HostTime::default() })
    }

    /// Looks at the thread; `count` says whether to count its sleeps in any case, `stopped_ns` for how long all cores seem to
    /// have stood since the last look.
    fn look(&mut self, now_ns: impl Fn() -> u64, count: bool, stopped_ns: u64) -> Result<()> {
        let run_delay_ns = self.times.run_delay_ns()?;
        let before_ns = now_ns();
        let cpu_ns = self.times.cpu_ns()?;
        // The watch may lose its own core between two readings: the shorter of the possible times counts.
        let after_ns = now_ns();
        if let Some((last_ns, last_cpu_ns, last_delay_ns)) = self.last.replace((after_ns, cpu_ns, run_delay_ns)) {
            let delay_ns = run_delay_ns.saturating_sub(last_delay_ns);
            let stood_ns = before_ns.saturating_sub(last_ns).saturating_sub(cpu_ns.saturating_sub(last_cpu_ns));
            let mut slept = false;
            if count || stood_ns >= NOISE_NS {
                let sleeps = self.times.sleeps()?;
                slept = std::mem::replace(&mut self.sleeps, sleeps) != sleeps;
            }
            let taken_ns = if slept { stood_ns.min(delay_ns + stopped_ns) } else { stood_ns };
            self.host.note(last_ns, after_ns, taken_ns);
        }
        Ok(())
    }
}

/// The sleep of the watch itself, which tells when no core ran.
struct Nap {
    /// `None` where the thread's own times cannot be read: then nothing is told.
    times: Option<ThreadTimes>,
}

impl Nap {
    /// For the calling thread.
    fn new() -> Self {
        Self { times: ThreadTimes::of(ThreadId::current()).ok() }
    }

    /// Sleeps for [`WATCH_INTERVAL`]; by how much longer it took, without the wait for a core of the guest.
    fn take(&self) -> u64 {
        let run_delay_ns = || self.times.as_ref().and_then(|times| times.run_delay_ns().ok());
        let before_ns = run_delay_ns();
        let asleep = Instant::now();
        std::thread::sleep(WATCH_INTERVAL);
        let late = asleep.elapsed().saturating_sub(WATCH_INTERVAL + WAKE_UP);
        let late_ns = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        match (before_ns, run_delay_ns()) {
            (Some(before_ns), Some(after_ns)) => late_ns.saturating_sub(after_ns - before_ns),
            _ => 0,
        }
    }
}

/// A thread that watches what the host takes from shard threads.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<HostTime>>,
}

impl Watch {
    /// Begins to watch `shards`. `now_ns` is the clock by which they record their gaps, as of now (I1). To be called from a
    /// thread that is not pinned.
    ///
    /// # Errors
    /// [`Unavailable`](millstream::ErrorKind::Unavailable) when a thread has no schedstat or none can be started.
    pub fn start(shards: &[ThreadId], now_ns: u64) -> Result<Self> {
        let origin = Instant::now();
        let mut watched: Vec<Watched> = shards.iter().map(|&thread| Watched::of(thread)).collect::<Result<_>>()?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let watch = move || {
            let now = || now_ns + u64::try_from(origin.elapsed().as_nanos()).expect("a run is shorter than 500 years");
            let nap = Nap::new();
            let mut stopped_ns = 0;
            for look in 0u32.. {
                for thread in &mut watched {
                    // Nothing is taken from a thread that has ended.
                    let _ = thread.look(now, look % LOOKS_PER_COUNT == 0, stopped_ns);
                }
                // After the last look, so that what was taken up to the end of the run is seen.
                if told.load(Ordering::Acquire) {
                    break;
                }
                stopped_ns = nap.take();
            }
            watched.into_iter().map(|thread| thread.host).collect()
        };
        let builder = std::thread::Builder::new().name("gap-watch".to_owned());
        let thread = builder.spawn(watch).map_err(|why| Error::unavailable(format_args!("watch thread: {why}")))?;
        Ok(Self { stop, thread })
    }

    /// Ends the watch; what was seen, in the order of the shards.
    ///
    /// # Panics
    /// If the watch thread has panicked.
    pub fn finish(self) -> Vec<HostTime> {
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
    /// `host` is empty, and every gap is ours.
    pub fn of(shards: &[GapHistogram], host: &[HostTime]) -> Self {
        let mut all = GapHistogram::default().histogram().clone();
        let mut own_ns_max = 0;
        let (mut long, mut long_host, mut kept) = (0, 0, 0);
        let (mut over_ns, mut over_own_ns) = (0, 0);
        for (i, shard) in shards.iter().enumerate() {
            let histogram = shard.histogram();
            all.add(histogram).expect("histograms of gaps have the same bounds");
            let mut over_kept_ns = 0;
            for &gap in shard.long() {
                let host_ns = host.get(i).map_or(0, |host| host.part_of(gap));
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
    let (here, loops_thread) = std::sync::mpsc::channel();
    let (watched, begin) = std::sync::mpsc::channel::<()>();
    let spin = move || {
        if let Some(core) = core {
            core_affinity::set_for_current(core_affinity::CoreId { id: core.0 as usize });
        }
        let mut gaps = GapHistogram::default();
        // Whoever asked has gone only if the watch could not be started: then there is nothing to be done.
        if here.send(ThreadId::current()).is_err() || begin.recv().is_err() {
            return gaps;
        }
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
    let ended = |_| Error::unavailable("the idle loop has ended before it began");
    let shard = loops_thread.recv().map_err(ended)?;
    let watch = Watch::start(&[shard], now_ns())?;
    // A loop that has ended is told by the join.
    let _ = watched.send(());
    let gaps = thread.join().expect("the loop does not panic");
    Ok(GapReport::of(&[gaps], &watch.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn gap(start_ms: u64, end_ms: u64) -> LongGap {
        LongGap { start_ns: start_ms * MS, end_ns: end_ms * MS }
    }

    /// Takings (after, until, taken) in milliseconds, a gap, and the host's part of it in milliseconds.
    #[track_caller]
    fn check(takings: &[(u64, u64, u64)], gap: LongGap, part_ms: u64) {
        let mut host = HostTime::default();
        takings.iter().for_each(|&(after, until, taken)| host.note(after * MS, until * MS, taken * MS));
        assert_eq!(host.part_of(gap), part_ms * MS, "{takings:?} {gap:?}");
    }

    #[test]
    fn what_was_taken_during_the_gap_is_the_hosts() {
        check(&[(10, 16, 5)], gap(10, 16), 5);
        check(&[(0, 10, 0), (10, 20, 2), (20, 30, 4)], gap(10, 25), 6);
        check(&[(9, 11, 1), (11, 12, 1), (12, 13, 1), (15, 17, 2)], gap(10, 16), 4);
    }

    #[test]
    fn what_was_taken_at_another_time_is_not() {
        check(&[(0, 5, 4), (16, 20, 4)], gap(10, 16), 0);
        check(&[(0, 10, 10)], gap(10, 16), 0);
        check(&[], gap(10, 16), 0);
    }

    #[test]
    fn the_part_is_never_more_than_the_gap_or_what_was_taken() {
        check(&[(0, 30, 25)], gap(10, 16), 6);
        check(&[(0, 30, 4)], gap(10, 16), 4);
        check(&[(8, 12, 4), (12, 14, 2)], gap(10, 13), 3);
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
        let mut host = HostTime::default();
        host.note(4 * MS, 13 * MS, 6 * MS);
        let gaps = [gaps];
        let report = GapReport::of(&gaps, &[host]);
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
        let mut host = HostTime::default();
        host.note(now, now + 9 * MS, 9 * MS);
        gaps.batch_started(now + 9 * MS);
        let report = GapReport::of(&[gaps], &[host]);
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
        let watch = Watch::start(&[ThreadId::current()], 5).unwrap();
        assert_eq!(watch.finish().len(), 1);
        let report = idle_loop(None, Duration::from_millis(3)).unwrap();
        assert!(report.max >= report.p50 && report.max_not_host <= report.max, "{report:?}");
    }

    #[test]
    fn a_sleep_is_not_the_hosts() {
        let mut watched = Watched::of(ThreadId::current()).unwrap();
        let origin = Instant::now();
        let now_ns = || u64::try_from(origin.elapsed().as_nanos()).unwrap();
        watched.look(now_ns, true, 0).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        watched.look(now_ns, false, 0).unwrap();
        // Only the wait for a core after the sleep is.
        let taken_ns = watched.host.total_ns();
        assert!(taken_ns <= watched.times.run_delay_ns().unwrap());
        // And the time in which no core ran.
        std::thread::sleep(Duration::from_millis(20));
        watched.look(now_ns, false, 7 * MS).unwrap();
        assert!(watched.host.total_ns() >= taken_ns + 7 * MS);
    }
}
