//! The thread of one shard: pinned, with one glommio executor, in it one task that drives the shard.

use super::live::LiveShard;
use super::{Bells, ToCoordinator};
use crate::launch::{ShardActor, ShardSeed};
use crate::metrics::ShardMetrics;
use crate::shard::{Command, EpochFlag, Report, TurnInput, Turned};
use crate::time::{Clock, MonotonicClock};
use crate::topology::{CoreId, ThreadId};
use crate::{Error, Result};
use futures_lite::future;
use glommio::{LocalExecutorBuilder, Placement};
use millstream_state::io::{Disk, DmaDisk};
use rtrb::Consumer;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

/// The executor's own preemption is out of the way: when its timer fires between arming and the first task, glommio 0.9
/// parks with that task runnable, for ever. The shard decides itself when to poll the ring.
const PREEMPT: Duration = Duration::from_secs(3600);
/// How long a busy shard goes on before it polls the ring, while something is under way on the disk.
const POLL_NS: u64 = 250_000;
/// The same while nothing is.
const POLL_IDLE_DISK_NS: u64 = 5_000_000;
/// How long the executor polls before it parks: the pause of a look at the ring is over by then.
const SPIN_BEFORE_PARK: Duration = Duration::from_micros(20);
/// How long an idle shard spins before it parks.
const SPIN_NS: u64 = 30_000;
/// How long a shard that waits for the disk sleeps.
const DISK_WAIT: Duration = Duration::from_micros(50);
/// Longest sleep of an idle shard.
const PARK_MAX: Duration = Duration::from_millis(100);
/// Turns between two looks at what is slow to find out.
const SLOW_TURNS: u32 = 256;

/// What a shard's thread is connected with.
pub(super) struct ShardLink {
    pub shard: u32,
    pub core: Option<CoreId>,
    pub flag: Arc<AtomicU64>,
    pub commands: Consumer<Command>,
    pub reports: Sender<ToCoordinator>,
    pub bells: Bells,
    pub live: Arc<LiveShard>,
    pub clock: MonotonicClock,
    pub busy_poll: bool,
}

/// Starts the thread.
pub(super) fn spawn(seed: ShardSeed, link: ShardLink) -> Result<JoinHandle<ShardMetrics>> {
    let name = format!("millstream-{}", link.shard);
    std::thread::Builder::new()
        .name(name)
        .spawn(move || run(seed, link))
        .map_err(|error| Error::unavailable(format_args!("a shard's thread cannot be started: {error}")))
}

fn run(seed: ShardSeed, link: ShardLink) -> ShardMetrics {
    let (shard, reports) = (link.shard, link.reports.clone());
    let builder = |placement| {
        let name = format!("millstream-{shard}");
        LocalExecutorBuilder::new(placement)
            .name(&name)
            .preempt_timer(PREEMPT)
            .spin_before_park(SPIN_BEFORE_PARK)
            .make()
    };
    let pinned = link.core.map(|core| builder(Placement::Fixed(core.0 as usize)));
    let executor = match pinned {
        Some(Ok(executor)) => Ok(executor),
        Some(Err(error)) => {
            tracing::warn!(shard, %error, "the shard cannot be pinned and runs unpinned");
            builder(Placement::Unbound)
        }
        None => builder(Placement::Unbound),
    };
    let metrics = match executor {
        // A panic here is a bug of ours (user code is caught in its stage); nobody may wait for a shard that is gone.
        Ok(executor) => catch_unwind(AssertUnwindSafe(|| executor.run(drive(seed, link)))).unwrap_or_else(|_| {
            let error = Error::unavailable("the shard panicked outside of user code: this is a bug of the engine");
            let _ = reports.send(ToCoordinator::Report(shard, Report::Failed(error)));
            ShardMetrics::default()
        }),
        Err(error) => {
            let error = Error::unavailable(format_args!(
                "io_uring cannot be set up ({error}): `millstream doctor` tells what the host lacks (locked memory, io_uring \
                 itself) and how to give it"
            ));
            // A coordinator that is gone has its outcome already.
            let _ = reports.send(ToCoordinator::Report(shard, Report::Failed(error)));
            ShardMetrics::default()
        }
    };
    let _ = reports.send(ToCoordinator::Left(shard));
    metrics
}

async fn drive(seed: ShardSeed, mut link: ShardLink) -> ShardMetrics {
    link.live.set_thread(ThreadId::current());
    let mut disk = DmaDisk::new();
    let mut actor = ShardActor::new(seed);
    let mut peers = Vec::new();
    let (mut idle_since_ns, mut polled_ns, mut turns) = (None, 0, 0u32);
    loop {
        while let Ok(command) = link.commands.pop() {
            actor.command(command);
        }
        let flag = EpochFlag::from_bits(link.flag.load(Ordering::Acquire));
        let turned = actor.turn(&mut TurnInput { disk: &mut disk, clock: &link.clock, flag });
        while let Some(report) = actor.take_report() {
            let _ = link.reports.send(ToCoordinator::Report(link.shard, report));
        }
        if let Some(shard) = actor.running() {
            shard.take_published(&mut peers);
            peers.drain(..).for_each(|peer| link.bells[peer as usize].ring());
            let metrics = shard.metrics();
            link.live.store(metrics.records_in, metrics.records_keyed);
            if turns.is_multiple_of(SLOW_TURNS) {
                link.live.store_slow(shard.remaining(), shard.store().stats().live_bytes);
            }
        }
        turns = turns.wrapping_add(1);
        match turned {
            Turned::Busy => {
                idle_since_ns = None;
                let now_ns = link.clock.now_ns();
                if now_ns - polled_ns > poll_pause_ns(&disk) {
                    poll_ring().await;
                    polled_ns = now_ns;
                }
            }
            Turned::Halted => break,
            Turned::Waiting => glommio::timer::sleep(DISK_WAIT).await,
            Turned::Idle { due_ns } => {
                let now_ns = link.clock.now_ns();
                let since_ns = *idle_since_ns.get_or_insert(now_ns);
                let is_due = due_ns.is_some_and(|due| due <= now_ns + SPIN_NS);
                if link.busy_poll || is_due || now_ns - since_ns < SPIN_NS {
                    std::hint::spin_loop();
                    if now_ns - polled_ns > poll_pause_ns(&disk) {
                        poll_ring().await;
                        polled_ns = now_ns;
                    }
                } else {
                    park(&mut link, &mut actor, &mut disk, due_ns, now_ns).await;
                    idle_since_ns = None;
                }
            }
        }
    }
    actor.into_metrics()
}

fn poll_pause_ns(disk: &DmaDisk) -> u64 {
    if disk.in_flight() > 0 { POLL_NS } else { POLL_IDLE_DISK_NS }
}

/// Lets the executor reap completions, submit what waits, and run what that wakes: it does so when nothing is runnable.
///
/// The pause must lie in the future when it is first looked at: a timer that is due at once never leaves the task.
async fn poll_ring() {
    glommio::timer::sleep(Duration::from_micros(1)).await;
}

/// Sleeps until the bell rings, a request of the disk ends, or something is due; looks once more for work after declaring the shard asleep.
async fn park(link: &mut ShardLink, actor: &mut ShardActor, disk: &mut DmaDisk, due_ns: Option<u64>, now_ns: u64) {
    let bell = &link.bells[link.shard as usize];
    bell.fall_asleep();
    let flag = EpochFlag::from_bits(link.flag.load(Ordering::Acquire));
    let turned = actor.turn(&mut TurnInput { disk, clock: &link.clock, flag });
    if matches!(turned, Turned::Idle { .. }) && link.commands.is_empty() {
        let pause = due_ns.map_or(PARK_MAX, |due| Duration::from_nanos(due.saturating_sub(now_ns)).min(PARK_MAX));
        // Requests end while this task is suspended, and only then: none is missed between the look and here.
        let called = future::or(bell.wait(), disk.ended());
        future::or(called, async {
            glommio::timer::sleep(pause).await;
        })
        .await;
    }
    bell.get_up();
}
