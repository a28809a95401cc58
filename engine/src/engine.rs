//! Starting jobs, and the handle of a running one.

use crate::Result;
use crate::config::EngineConfig;
use crate::coordinator::{EpochStats, Outcome};
use crate::job::Job;
use crate::launch::{self, Tuning};
use crate::metrics::{GapHistogram, ShardMetrics};
use crate::runtime::{Ended, LiveMetrics, Threads, ToCoordinator};
use crate::time::MonotonicClock;
use crate::topology::{ThreadId, Topology, check_ring, raise_open_files};
use millstream_state::io::{Files, RealFiles};
use millstream_state::log::{Populator, Prefault};
use millstream_state::{Epoch, StateId};
use std::hash::{BuildHasher, Hasher, RandomState};

/// Starts jobs.
pub struct Engine;

impl Engine {
    /// Starts `job` on the cores that `config` names and returns at once. Raises the soft limit of open files of this process
    /// to what the job wants, as far as the hard one lets it.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) when job, settings, cores or input are wrong, when the host does not give what
    /// is needed (io_uring, locked memory, open files), or when the snapshot does not fit the job; [`Corrupt`](crate::ErrorKind::Corrupt) when a manifest is bad; [`Locked`](crate::ErrorKind::Locked) while
    /// another process owns the state directory. Nothing was modified.
    pub fn start(config: EngineConfig, job: Job) -> Result<Running> {
        let job = job.finish()?;
        let topology = Topology::read()?;
        let placement = topology.plan(&config.cores)?;
        topology.check_memlock()?;
        let shards = u32::try_from(placement.shards.len()).expect("a plan has few shards");
        raise_open_files(shards)?;
        check_ring()?;
        let clock = MonotonicClock::start();
        let files = || Box::new(RealFiles) as Box<dyn Files>;
        let populator = Populator::start()?;
        let prefault = if config.prefault_all { Prefault::All(populator) } else { Prefault::Ahead(populator) };
        let launch = launch::prepare(&config, job, shards, &files, &Tuning::new(prefault, draw_state_id()), 0)?;
        let (restored, warnings) = (launch.restored, placement.warnings.clone());
        let already_ended = launch.seeds.is_empty();
        let threads = Threads::start(launch, &placement, clock, config.busy_poll)?;
        Ok(Running { threads, shards, restored, already_ended, warnings })
    }
}

/// Random: the standard library seeds its hashers from the operating system.
fn draw_state_id() -> StateId {
    let bits = RandomState::new().build_hasher().finish();
    StateId((bits >> 32) as u32 ^ (bits & 0xffff_ffff) as u32)
}

/// A running job. Dropping the handle leaves it running; [`join`](Self::join) waits for its end.
pub struct Running {
    threads: Threads,
    shards: u32,
    restored: Epoch,
    already_ended: bool,
    warnings: Vec<String>,
}

/// How to stop a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// At the next epoch: everything up to it is committed, and the job can be resumed from there.
    AtNextEpoch,
    /// The input ends here: what is under way is processed, ends are emitted, everything is committed. Resuming with more
    /// input has to be asked for.
    Drain,
}

impl Running {
    /// How many shards there are.
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// The epoch that the job went on from; zero when it began with nothing.
    pub fn restored(&self) -> Epoch {
        self.restored
    }

    /// Whether the restored epoch says that all input was processed before: there is nothing to run.
    pub fn already_ended(&self) -> bool {
        self.already_ended
    }

    /// What is not as good as it could be on this host, and what to do about it.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Counters as of now.
    pub fn metrics(&self) -> LiveMetrics {
        self.threads.live()
    }

    /// Threads of the shards that have begun, in shard order.
    pub fn shard_threads(&self) -> Vec<ThreadId> {
        self.threads.shard_threads()
    }

    /// The job's clock in nanoseconds, the one that gaps are measured by.
    pub fn now_ns(&self) -> u64 {
        self.threads.now_ns()
    }

    /// Forgets what was counted so far: at the end of a warm-up.
    pub fn reset_metrics(&self) {
        self.threads.send(ToCoordinator::ResetMetrics);
    }

    /// Asks the job to stop; [`join`](Self::join) tells how it ended.
    pub fn stop(&self, how: Stop) {
        self.threads.send(match how {
            Stop::AtNextEpoch => ToCoordinator::Stop,
            Stop::Drain => ToCoordinator::Drain,
        });
    }

    /// Whether the job has ended: [`join`](Self::join) returns at once.
    pub fn is_ended(&self) -> bool {
        self.threads.is_ended()
    }

    /// Waits for the end of the job.
    ///
    /// # Errors
    /// What stopped it: [`UserCode`](crate::ErrorKind::UserCode), [`Unavailable`](crate::ErrorKind::Unavailable),
    /// [`Exhausted`](crate::ErrorKind::Exhausted) or [`Corrupt`](crate::ErrorKind::Corrupt) stopped it at its last complete
    /// epoch; [`Uncommitted`](crate::ErrorKind::Uncommitted) says that its last epoch could not be completed.
    pub fn join(self) -> Result<JobReport> {
        let Ended { outcome, epochs, shards } = self.threads.join()?;
        let outcome = outcome?;
        let mut metrics = ShardMetrics::default();
        shards.iter().for_each(|shard| metrics.merge(shard));
        Ok(JobReport {
            outcome,
            records_in: metrics.records_in,
            records_keyed: metrics.records_keyed,
            skipped_records: metrics.skipped_records,
            epochs,
            gaps: shards.into_iter().map(|shard| shard.gaps).collect(),
        })
    }
}

/// What a job did, from its start or the last [`Running::reset_metrics`] to its end.
pub struct JobReport {
    /// How it ended.
    pub outcome: Outcome,
    /// Records that sources handed out.
    pub records_in: u64,
    /// Records that keyed operators applied.
    pub records_keyed: u64,
    /// Records left out because user code failed on them.
    pub skipped_records: u64,
    /// Epochs.
    pub epochs: EpochStats,
    /// Gaps between batches, by shard.
    pub gaps: Vec<GapHistogram>,
}

impl JobReport {
    /// Gaps of all shards together.
    pub fn all_gaps(&self) -> GapHistogram {
        let mut all = GapHistogram::default();
        self.gaps.iter().for_each(|gaps| all.merge(gaps));
        all
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Running({} shards, {:?})", self.shards, self.metrics())
    }
}

impl std::fmt::Debug for JobReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { outcome, records_in, epochs, .. } = self;
        write!(f, "JobReport({outcome:?}, {records_in} records in, {} epochs)", epochs.completed)
    }
}
