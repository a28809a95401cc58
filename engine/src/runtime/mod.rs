//! Threads: one pinned thread per shard, one for the coordinator; rings and bells between them. The only module of the
//! engine that names glommio.
//!
//! Nothing here decides anything: shards and coordinator are state machines, and this gives them time, disk and each
//! other's messages.

mod bell;
mod live;
mod shard_thread;

pub use live::LiveMetrics;

use crate::coordinator::{Coordinator, EpochStats, Outcome};
use crate::launch::{Launch, ShardSeed};
use crate::metrics::ShardMetrics;
use crate::shard::{Command, Report};
use crate::time::{Clock, MonotonicClock};
use crate::topology::{Placement, ThreadId};
use crate::{Error, Result};
use bell::Bell;
use live::LiveShard;
use rtrb::{Producer, RingBuffer};
use shard_thread::ShardLink;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Commands that may wait for one shard.
const COMMANDS: usize = 1024;

/// Longest sleep of the coordinator.
const COORDINATOR_SLEEP_MAX: Duration = Duration::from_millis(100);

/// A bell for each shard.
type Bells = Arc<[Bell]>;

/// What reaches the coordinator's thread.
pub(crate) enum ToCoordinator {
    /// From a shard.
    Report(u32, Report),
    /// A shard's thread has left its loop.
    Left(u32),
    /// Stop at the next epoch.
    Stop,
    /// End the input here.
    Drain,
    /// Forget what was counted so far.
    ResetMetrics,
}

/// A running job as its threads leave it.
pub(crate) struct Ended {
    pub outcome: Result<Outcome>,
    pub epochs: EpochStats,
    pub shards: Vec<ShardMetrics>,
}

/// The threads of a running job.
pub(crate) struct Threads {
    coordinator: JoinHandle<Ended>,
    to_coordinator: Sender<ToCoordinator>,
    live: Vec<Arc<LiveShard>>,
    epochs: Arc<Mutex<LiveMetrics>>,
    clock: MonotonicClock,
}

impl Threads {
    /// Starts every thread.
    pub(crate) fn start(launch: Launch, placement: &Placement, clock: MonotonicClock, busy_poll: bool) -> Result<Self> {
        let Launch { coordinator, seeds, .. } = launch;
        let (to_coordinator, inbox) = channel();
        let flag = Arc::new(AtomicU64::new(coordinator.flag().to_bits()));
        let bells: Bells = seeds.iter().map(|_| Bell::default()).collect();
        let live: Vec<Arc<LiveShard>> = seeds.iter().map(|_| Arc::default()).collect();
        let epochs = Arc::new(Mutex::new(LiveMetrics::default()));
        let (shards, commands): (Vec<_>, Vec<_>) = seeds
            .into_iter()
            .map(|seed| {
                let shard = seed.shard();
                let (producer, consumer) = RingBuffer::new(COMMANDS);
                let link = ShardLink {
                    shard,
                    core: placement.shards.get(shard as usize).copied().flatten(),
                    flag: flag.clone(),
                    commands: consumer,
                    reports: to_coordinator.clone(),
                    bells: bells.clone(),
                    live: live[shard as usize].clone(),
                    clock,
                    busy_poll,
                };
                ((seed, link), producer)
            })
            .unzip();
        let post = Post { commands, waiting: Vec::new(), flag, bells };
        let shared = epochs.clone();
        let coordinator = std::thread::Builder::new()
            .name("millstream-coord".to_owned())
            .spawn(move || coordinate(coordinator, shards, &inbox, post, clock, &shared))
            .map_err(|error| Error::unavailable(format_args!("the coordinator's thread cannot be started: {error}")))?;
        Ok(Self { coordinator, to_coordinator, live, epochs, clock })
    }

    /// Sends a wish to the coordinator.
    pub(crate) fn send(&self, message: ToCoordinator) {
        // A coordinator that is gone has its outcome already.
        let _ = self.to_coordinator.send(message);
    }

    /// Counters as of now.
    pub(crate) fn live(&self) -> LiveMetrics {
        let mut metrics = *self.epochs.lock().unwrap_or_else(PoisonError::into_inner);
        metrics.remaining = Some(0);
        self.live.iter().for_each(|shard| shard.add_to(&mut metrics));
        metrics
    }

    /// Threads of the shards that have begun, in shard order.
    pub(crate) fn shard_threads(&self) -> Vec<ThreadId> {
        self.live.iter().filter_map(|shard| shard.thread()).collect()
    }

    /// Nanoseconds of the job's clock.
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Whether the job has ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.coordinator.is_finished()
    }

    /// Waits for the end.
    pub(crate) fn join(self) -> Result<Ended> {
        self.coordinator
            .join()
            .map_err(|_| Error::unavailable("the coordinator panicked: this is a bug; the state directory is whole"))
    }
}

/// The coordinator's way to the shards.
struct Post {
    commands: Vec<Producer<Command>>,
    /// Commands that did not fit, in order.
    waiting: Vec<(usize, Command)>,
    flag: Arc<AtomicU64>,
    bells: Bells,
}

impl Post {
    fn deliver(&mut self, coordinator: &mut Coordinator) {
        let before = self.flag.load(Ordering::Relaxed);
        let flag = coordinator.flag().to_bits();
        if flag != before {
            self.flag.store(flag, Ordering::Release);
        }
        let mut rang = flag != before;
        while let Some((shard, command)) = coordinator.take_command() {
            match shard {
                Some(shard) => self.waiting.push((shard as usize, command)),
                None => self.waiting.extend((0..self.commands.len()).map(|shard| (shard, command.clone()))),
            }
        }
        let mut full = vec![false; self.commands.len()];
        for (shard, command) in std::mem::take(&mut self.waiting) {
            rang = true;
            if full[shard] {
                self.waiting.push((shard, command));
            } else if let Err(rtrb::PushError::Full(command)) = self.commands[shard].push(command) {
                full[shard] = true;
                self.waiting.push((shard, command));
            }
        }
        if rang {
            self.bells.iter().for_each(Bell::ring);
        }
    }
}

fn coordinate(
    mut coordinator: Coordinator,
    shards: Vec<(ShardSeed, ShardLink)>,
    inbox: &Receiver<ToCoordinator>,
    mut post: Post,
    clock: MonotonicClock,
    shared: &Mutex<LiveMetrics>,
) -> Ended {
    let mut threads = Vec::with_capacity(shards.len());
    for (seed, link) in shards {
        match shard_thread::spawn(seed, link) {
            Ok(thread) => threads.push(thread),
            Err(error) => coordinator.fail(error),
        }
    }
    let mut running = threads.len();
    while coordinator.outcome().is_none() || running > 0 {
        let due_ns = coordinator.turn(clock.now_ns());
        post.deliver(&mut coordinator);
        share(coordinator.stats(), shared);
        let pause = Duration::from_nanos(due_ns.saturating_sub(clock.now_ns())).min(COORDINATOR_SLEEP_MAX);
        let mut message = inbox.recv_timeout(pause).ok();
        while let Some(received) = message {
            match received {
                ToCoordinator::Report(shard, report) => coordinator.report(shard, report, clock.now_ns()),
                ToCoordinator::Left(shard) => {
                    running -= 1;
                    // A shard only leaves when told to, or with a report that says why; anything else is a panic.
                    coordinator.fail(Error::unavailable(format_args!("shard {shard} left its loop")));
                }
                ToCoordinator::Stop => coordinator.stop(),
                ToCoordinator::Drain => coordinator.drain(),
                ToCoordinator::ResetMetrics => coordinator.reset_stats(),
            }
            message = inbox.try_recv().ok();
        }
    }
    let outcome = coordinator.take_outcome().expect("just seen");
    let shards = threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect();
    Ended { outcome, epochs: coordinator.stats().clone(), shards }
}

fn share(stats: &EpochStats, shared: &Mutex<LiveMetrics>) {
    let mut metrics = shared.lock().unwrap_or_else(PoisonError::into_inner);
    metrics.epochs_completed = stats.completed;
    metrics.epochs_failed = stats.failed;
    metrics.cut_ns_max = stats.cut_ns.max();
    metrics.cut_ns_last = stats.cut_ns_last;
    metrics.flush_us_last = stats.flush_us_last;
    metrics.flush_us_median = stats.flush_us.value_at_quantile(0.5);
}
