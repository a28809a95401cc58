//! The simulator: a whole job on several shards in one thread, under a seed.
//!
//! The same shards, coordinator, stores and sinks as in a real run, on a [`ManualClock`] and a [`SimDisk`]. The seed draws
//! the configuration, who takes the next step, how long messages take, what the disk does wrong, and when the power goes.
//! After a crash the job is started again on what the disk kept, mostly with another number of shards, until it ends.
//!
//! Invariants
//! * I1. One seed, one run: the same trace, to the byte on the disk.
//! * I2. After a few crashes the world becomes benign, so every run ends.
//!
//! [`ManualClock`]: crate::time::ManualClock
//! [`SimDisk`]: millstream_state::io::sim::SimDisk

#![expect(clippy::cast_possible_truncation, reason = "what is drawn lies between the bounds it is drawn from")]

mod random;
mod world;

pub use world::{Simulated, Verdict};

use crate::config::EngineConfig;
use crate::job::Job;
use millstream_state::io::sim::SimConfig;
use random::Random;
use std::time::Duration;
use world::World;

/// What a simulation may do to a job.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// How the disk misbehaves.
    pub disk: SimConfig,
    /// Most crashes in one run.
    pub crashes_max: u32,
    /// Most shards.
    pub shards_max: u32,
    /// Most steps between two crashes.
    pub steps_max: u64,
    /// Memory for the state of one shard.
    pub memory_bytes: usize,
    /// After a crash a reader may take files away from this directory, if all output is known to be committed.
    pub read_away: Option<&'static str>,
}

impl Default for SimOptions {
    /// A disk that fails but never lies, up to four crashes, up to four shards.
    fn default() -> Self {
        Self {
            disk: SimConfig::failing(),
            crashes_max: 4,
            shards_max: 4,
            steps_max: 3000,
            memory_bytes: 16 << 20,
            read_away: None,
        }
    }
}

/// Runs the jobs that `job` makes, all alike, under `seed` until one ends; returns what it left on the simulated disk.
///
/// `job` gets nothing that differs between runs; its sources and sinks must use the disk that they are given, and no
/// other, or none. The state directory is `/state`.
pub fn simulate(seed: u64, options: &SimOptions, job: &dyn Fn() -> Job) -> Simulated {
    let mut random = Random::new(seed);
    let config = EngineConfig::new()
        .state_dir("/state")
        .epoch_interval(Duration::from_millis(random.range(1, 20)))
        .retained_epochs(random.range(1, 3) as usize)
        .state_memory_bytes_per_core(options.memory_bytes)
        .flush_mbps(0);
    World::new(random, config, options.clone()).run(job)
}
