//! From a job and its settings to shards that can run: what is restored, what goes to which shard, what is refused.
//!
//! Nothing here modifies anything but a new state directory: a job that is refused leaves everything as it was.

use crate::config::{EngineConfig, Restore};
use crate::coordinator::{Coordinator, Plan, Schedule};
use crate::exchange::{Channel, EdgeEnds, OpenEdge, RING_BYTES_MIN, exchange_edge, forward_edge};
use crate::job::{BuildContext, EdgeKey, FinishedJob, RestoredStage};
use crate::metrics::ShardMetrics;
use crate::shard::{Command, NamedStage, Report, Shard, TurnInput, Turned};
use crate::sink::Owner;
use crate::source::Split;
use crate::stage::decode_splits;
use crate::{Error, Result};
use millstream_state::format::Manifest;
use millstream_state::io::Files;
use millstream_state::log::Prefault;
use millstream_state::shard_store::{ChannelId, Restore as StoreRestore, RestoreInput, ShardStore, StoreConfig};
use millstream_state::snapshot::{RestorePoint, StateDir, StateDirOptions};
use millstream_state::table::NOT_MIGRATED;
use millstream_state::{Epoch, KeyGroupCount, Schema, StateId};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// What the runtime sets and no user needs to: the simulator draws it at random.
#[derive(Clone, Debug)]
pub(crate) struct Tuning {
    /// When the memory of the stores becomes real.
    pub prefault: Prefault,
    /// Most records that a stage takes in one call.
    pub records_max: usize,
    /// Smallest ring of an exchange.
    pub ring_bytes_min: usize,
    /// Bytes of a segment file: at first, and at most.
    pub segment_bytes: Option<(u64, u64)>,
    /// Id of a state that begins with this start.
    pub new_state: StateId,
}

impl Tuning {
    /// What a job runs with.
    pub(crate) fn new(prefault: Prefault, new_state: StateId) -> Self {
        Self { prefault, records_max: 1024, ring_bytes_min: RING_BYTES_MIN, segment_bytes: None, new_state }
    }
}

/// A job about to run.
pub(crate) struct Launch {
    pub coordinator: Coordinator,
    /// One for each shard; none when the restored epoch had ended.
    pub seeds: Vec<ShardSeed>,
    pub restored: Epoch,
}

/// Prepares `job` to run on `shards` shards. `files` makes one more handle to the same files.
///
/// # Errors
/// What is wrong with the job, its settings, its state directory or its input; nothing was modified.
pub(crate) fn prepare(
    config: &EngineConfig,
    job: FinishedJob,
    shards: u32,
    files: &dyn Fn() -> Box<dyn Files>,
    tuning: &Tuning,
    now_ns: u64,
) -> Result<Launch> {
    config.validate()?;
    if config.state_dir.as_ref().is_some_and(|path| !files().exists(path)) {
        // A job whose input is missing leaves no directory behind: the input is looked for before one is made.
        deal_splits(&job, shards, &Manifest::empty(&job.name, config.key_groups, shards))?;
    }
    let dir = config
        .state_dir
        .as_ref()
        .map(|path| open_dir(config, &job, shards, files(), path, tuning.new_state))
        .transpose()?;
    let manifest = match &dir {
        Some(dir) => dir.load(dir.restore_epoch())?,
        None => Manifest::empty(&job.name, config.key_groups, shards),
    };
    let restored = manifest.epoch;
    let key_groups = if restored == Epoch::ZERO { config.key_groups } else { manifest.key_groups };
    if shards > key_groups.get() {
        return Err(Error::invalid(format_args!(
            "{shards} shards for {} key groups: each shard needs at least one; use fewer cores, or more key groups in a new state \
             directory",
            key_groups.get()
        )));
    }
    check_states(config, &job, &manifest)?;
    let channels = channels(&job);
    check_channels(&channels, &manifest)?;
    let state = dir.as_ref().map_or(tuning.new_state, StateDir::state);
    let committers = job.committers(state)?;
    let run = dir.as_ref().map_or(1, StateDir::run);
    let next_epoch = dir.as_ref().map_or(Epoch(1), StateDir::next_epoch);
    let mut dealt = deal_splits(&job, shards, &manifest)?;
    let unread = dealt.iter().flat_map(|(_, splits, _)| splits.iter().flatten()).filter(|split| !split.ended);
    let unread: Vec<&str> = unread.map(|split| &*split.id).collect();
    if let [first, ..] = unread[..]
        && manifest.ended
        && !config.resume_ended
    {
        return Err(Error::invalid(format_args!(
            "job {} ended with epoch {restored}, and {} parts of its input are not read, such as {first}: --resume-ended \
             (resume_ended) goes on with them; for a job of its own, give it a state directory of its own",
            job.name,
            unread.len()
        )));
    }
    let already_ended = manifest.ended && unread.is_empty();
    let seeds = if already_ended {
        Vec::new()
    } else {
        let directory = dir.as_ref().map(|dir| dir.path().to_owned());
        let origin = Origin { directory, state, run, next_epoch, key_groups, channels: &channels, tuning };
        seeds(config, &job, shards, &manifest, &mut dealt, &origin)?
    };
    let committed = dir.as_ref().map_or(Epoch::ZERO, StateDir::committed);
    let plan = Plan {
        job: job.name,
        run,
        shards,
        key_groups,
        channels,
        schedule: Schedule {
            interval_ns: config.epoch_interval_ms.saturating_mul(1_000_000),
            timeout_ns: config.epoch_timeout_ms.saturating_mul(1_000_000),
            patience_ns: config.final_epoch_patience_ms.saturating_mul(1_000_000),
        },
        committers,
        unconfirmed: manifest.outputs.into_iter().filter(|output| output.epoch > committed).collect(),
        restored,
        next_epoch,
        already_ended,
    };
    Ok(Launch { coordinator: Coordinator::new(plan, files(), dir, now_ns), seeds, restored })
}

fn open_dir(
    config: &EngineConfig,
    job: &FinishedJob,
    shards: u32,
    files: Box<dyn Files>,
    path: &Path,
    new_state: StateId,
) -> Result<StateDir> {
    let restore = match config.restore {
        Restore::Latest | Restore::Nothing => RestorePoint::Newest,
        Restore::Epoch(epoch) => RestorePoint::Epoch(epoch),
    };
    let options = StateDirOptions {
        job: job.name.clone(),
        new_state,
        key_groups: config.key_groups,
        shards,
        retain_count: config.retained_epochs,
        restore,
    };
    let dir = StateDir::open(files, path, &options)?;
    let newest = dir.newest();
    match config.restore {
        Restore::Nothing if newest > Epoch::ZERO => Err(Error::invalid(format_args!(
            "{}: holds epoch {newest}, and nothing was to be restored: give an empty directory, or restore the latest epoch",
            path.display()
        ))),
        Restore::Epoch(epoch) if epoch < newest && !config.allow_going_back => Err(Error::invalid(format_args!(
            "{}: epoch {epoch} lies below {newest}, whose output is committed and would appear again: --allow-going-back (allow_going_back) permits it",
            path.display()
        ))),
        _ => Ok(dir),
    }
}

/// Compares the states of the job with those of the snapshot.
fn check_states(config: &EngineConfig, job: &FinishedJob, manifest: &Manifest) -> Result<()> {
    let states = job.states();
    for table in &manifest.tables {
        let Some(state) = states.iter().find(|state| state.name == table.name) else { continue };
        for (part, stored, now) in [("key", &table.key, &state.key), ("value", &table.value, &state.value)] {
            if let Some(what) = Schema::difference(stored, now) {
                return Err(Error::invalid(format_args!(
                    "state {}: its {part} type differs from that of epoch {}: {what}; {NOT_MIGRATED}",
                    table.name, manifest.epoch
                )));
            }
        }
    }
    let has_stage = |name: &str| job.stages.iter().any(|stage| stage.name == name);
    let dropped_tables = manifest.tables.iter().map(|table| &table.name);
    let dropped_tables = dropped_tables.filter(|name| states.iter().all(|state| state.name != **name));
    let mut dropped: Vec<&str> = dropped_tables.map(String::as_str).collect();
    let mut dropped_stages: Vec<&str> = manifest.blobs.iter().map(|blob| blob.name.as_str()).collect();
    dropped_stages.retain(|name| !has_stage(name));
    dropped.extend(dropped_stages);
    dropped.sort_unstable();
    dropped.dedup();
    if dropped.is_empty() || config.allow_dropped_state {
        return Ok(());
    }
    Err(Error::invalid(format_args!(
        "job {} no longer has what epoch {} holds state of: {}; allow_dropped_state permits to leave it behind",
        job.name,
        manifest.epoch,
        dropped.join(", ")
    )))
}

/// Name and record type of every channel, by the store's number of its edge.
fn channels(job: &FinishedJob) -> Vec<(String, Schema)> {
    let mut channels = Vec::new();
    for edge in 0..job.edges.len() {
        let receiver = job.receiver(edge).expect("every edge leads to a stage");
        let of_stage = receiver.plan.inputs().iter().position(|key| *key == job.edges[edge].0).expect("its own edge");
        let record = receiver.plan.record_schema().expect("a stage behind an edge has a record type");
        for origin in ["restored", "received", "held-back"] {
            channels.push((format!("{}.{of_stage}.{origin}", receiver.name), record.clone()));
        }
    }
    channels
}

fn check_channels(channels: &[(String, Schema)], manifest: &Manifest) -> Result<()> {
    for log in &manifest.channel_logs {
        let Some((_, record)) = channels.iter().find(|(name, _)| *name == log.edge) else {
            return Err(Error::invalid(format_args!(
                "epoch {} holds records on their way over {}, and the job has no such exchange: let the old version end or drain it first",
                manifest.epoch, log.edge
            )));
        };
        if let Some(what) = Schema::difference(&log.record, record) {
            return Err(Error::invalid(format_args!(
                "epoch {} holds records on their way over {} whose type has changed: {what}; let the old version end or drain the job first",
                manifest.epoch, log.edge
            )));
        }
    }
    Ok(())
}

/// What all shards of one start have in common.
struct Origin<'a> {
    directory: Option<PathBuf>,
    state: StateId,
    run: u32,
    next_epoch: Epoch,
    key_groups: KeyGroupCount,
    channels: &'a [(String, Schema)],
    tuning: &'a Tuning,
}

fn seeds(
    config: &EngineConfig,
    job: &FinishedJob,
    shards: u32,
    manifest: &Manifest,
    dealt: &mut [Dealt],
    origin: &Origin<'_>,
) -> Result<Vec<ShardSeed>> {
    let ring_bytes = config.exchange_bytes_per_shard / shards as usize;
    let mut edges: Vec<Vec<EdgeEnds>> = (0..shards).map(|_| Vec::new()).collect();
    for (number, (_, re_partitions)) in (0u32..).zip(&job.edges) {
        let make = if *re_partitions { exchange_edge } else { forward_edge };
        for (ends, part) in edges.iter_mut().zip(make(number, shards, ring_bytes.max(origin.tuning.ring_bytes_min))) {
            ends.push(part);
        }
    }
    // Progress of emissions at the end counts for input that has ended; with more input they begin anew.
    let saved = |stage: &str| {
        let blobs = manifest.blobs.iter().filter(|blob| blob.name == stage && !manifest.ended);
        blobs.map(|blob| blob.bytes.clone()).collect::<Vec<_>>()
    };
    let seed = |(shard, edges): (u32, Vec<EdgeEnds>)| {
        let directory = origin.directory.clone();
        let durable = directory.is_some();
        let directory = directory.unwrap_or_default();
        let mut store = StoreConfig::new(directory.clone(), origin.run, shard, shards, origin.next_epoch);
        store.key_groups = origin.key_groups;
        store.memory_bytes_max = config.state_memory_bytes_per_core;
        store.flush_bytes_per_second = u64::from(config.flush_mbps) * 1_000_000;
        store.prefault = origin.tuning.prefault.clone();
        if let Some((min, max)) = origin.tuning.segment_bytes {
            (store.segments.segment_bytes_min, store.segments.segment_bytes_max) = (min, max);
        }
        let mut input = RestoreInput::of(manifest, directory, shard, shards);
        // In the order in which their records are fed, and named by their place in it.
        let mut logs: Vec<(usize, Channel, &millstream_state::format::ChannelLog)> = Vec::new();
        for log in &manifest.channel_logs {
            let number = origin.channels.iter().position(|(name, _)| *name == log.edge).expect("checked");
            let number = u32::try_from(number).expect("channels are few");
            let channel = Channel::from_id(ChannelId { edge: number, from: log.from });
            let receiver = job.receiver(channel.edge as usize).expect("checked");
            let stage = job.stages.iter().position(|stage| stage.name == receiver.name).expect("its own stage");
            logs.push((stage, channel, log));
        }
        logs.sort_by_key(|(stage, channel, log)| (*stage, channel.origin, channel.edge, channel.from, log.to));
        let named = (0u32..).zip(&logs);
        input.channel_logs =
            named.map(|(at, (_, _, log))| (ChannelId { edge: at, from: log.from }, log.extents.clone())).collect();
        let log_stages = logs.iter().map(|(stage, _, _)| *stage).collect();
        let stages = job.stages.iter().map(|stage| {
            let (splits, readers) = match dealt.iter_mut().find(|(name, _, _)| *name == stage.name) {
                Some((_, splits, readers)) => (std::mem::take(&mut splits[shard as usize]), *readers),
                None => (Vec::new(), 0),
            };
            RestoredStage { splits, readers, saved: saved(&stage.name), records: Vec::new() }
        });
        let stages = stages.collect();
        ShardSeed {
            shard,
            state: origin.state,
            run: origin.run,
            durable,
            job: job.clone_for_shard(),
            edges,
            store,
            input,
            log_stages,
            stages,
            restored: Epoch(origin.next_epoch.0 - 1),
            records_max: origin.tuning.records_max,
        }
    };
    Ok((0u32..).zip(edges).map(seed).collect())
}

/// The splits of each source by shard, and how many shards have one to read.
type Dealt = (String, Vec<Vec<Split>>, u32);

fn deal_splits(job: &FinishedJob, shards: u32, manifest: &Manifest) -> Result<Vec<Dealt>> {
    let mut all = Vec::new();
    for source in job.sources() {
        let mut splits = Vec::new();
        let mut is_known = false;
        for blob in manifest.blobs.iter().filter(|blob| blob.name == source.name) {
            is_known = true;
            splits.extend(decode_splits(&blob.bytes)?);
        }
        let listed = source.plan.splits(shards, is_known.then_some(splits.as_slice()));
        let listed = listed.expect("a source lists its splits");
        splits.extend(listed.map_err(|error| error.within(format_args!("source {}", source.name)))?);
        splits.sort_by(|a, b| a.id.cmp(&b.id));
        let mut dealt: Vec<Vec<Split>> = (0..shards).map(|_| Vec::new()).collect();
        let (ended, open): (Vec<_>, Vec<_>) = splits.into_iter().partition(|split| split.ended);
        let readers = u32::try_from(open.len()).unwrap_or(u32::MAX).min(shards);
        for (at, split) in open.into_iter().chain(ended).enumerate() {
            dealt[at % shards as usize].push(split);
        }
        all.push((source.name.clone(), dealt, readers));
    }
    Ok(all)
}

/// All that a shard is made from, on its way to its thread.
pub(crate) struct ShardSeed {
    shard: u32,
    state: StateId,
    run: u32,
    durable: bool,
    job: FinishedJob,
    edges: Vec<EdgeEnds>,
    store: StoreConfig,
    input: RestoreInput,
    /// The stage that each channel log is for.
    log_stages: Vec<usize>,
    stages: Vec<RestoredStage>,
    /// Every epoch up to this one is past.
    restored: Epoch,
    records_max: usize,
}

/// A shard with all its life: it restores its state, waits for the others, runs.
pub(crate) struct ShardActor {
    life: Life,
    reports: VecDeque<Report>,
    /// What the shard had counted when it left.
    metrics: ShardMetrics,
}

enum Life {
    Restoring(Box<ShardSeed>, Box<StoreRestore>),
    /// Restored; waits for the start.
    Waiting(Box<ShardSeed>, Box<ShardStore>),
    Running(Box<Shard>),
    Halted,
}

impl ShardActor {
    /// Begins to restore, on the shard's own thread.
    pub(crate) fn new(seed: ShardSeed) -> Self {
        let mut seed = Box::new(seed);
        let input = std::mem::take(&mut seed.input);
        match StoreRestore::new(seed.store.clone(), input) {
            Ok(restore) => Self::with(Life::Restoring(seed, Box::new(restore)), None),
            Err(error) => Self::with(Life::Halted, Some(Report::Failed(error))),
        }
    }

    fn with(life: Life, report: Option<Report>) -> Self {
        Self { life, reports: report.into_iter().collect(), metrics: ShardMetrics::default() }
    }

    /// Takes a command.
    pub(crate) fn command(&mut self, command: Command) {
        match (&mut self.life, command) {
            (Life::Running(shard), Command::Halt) => {
                self.metrics = std::mem::take(shard.metrics());
                self.life = Life::Halted;
            }
            (_, Command::Halt) => self.life = Life::Halted,
            (Life::Running(shard), command) => shard.command(command),
            (Life::Waiting(..), Command::Start) => {
                let Life::Waiting(seed, store) = std::mem::replace(&mut self.life, Life::Halted) else { return };
                match seed.start(*store) {
                    Ok(shard) => self.life = Life::Running(Box::new(shard)),
                    Err(error) => self.reports.push_back(Report::Failed(error)),
                }
            }
            _ => {}
        }
    }

    /// One turn of the loop.
    pub(crate) fn turn(&mut self, input: &mut TurnInput<'_>) -> Turned {
        match &mut self.life {
            Life::Running(shard) => shard.turn(input),
            Life::Waiting(..) => Turned::Idle { due_ns: None },
            Life::Halted => Turned::Halted,
            Life::Restoring(seed, restore) => {
                let restored = restore.turn(input.disk).and_then(|restored| {
                    restored.map(|restored| seed.take_logs(restored.channel_logs).map(|()| restored.store)).transpose()
                });
                match restored {
                    Ok(None) => Turned::Waiting,
                    Ok(Some(store)) => {
                        let Life::Restoring(seed, _) = std::mem::replace(&mut self.life, Life::Halted) else {
                            unreachable!("just matched")
                        };
                        self.life = Life::Waiting(seed, Box::new(store));
                        self.reports.push_back(Report::Restored);
                        Turned::Busy
                    }
                    Err(error) => {
                        self.life = Life::Halted;
                        self.reports.push_back(Report::Failed(error));
                        Turned::Busy
                    }
                }
            }
        }
    }

    /// Takes the next report.
    pub(crate) fn take_report(&mut self) -> Option<Report> {
        self.reports.pop_front().or_else(|| match &mut self.life {
            Life::Running(shard) => shard.take_report(),
            _ => None,
        })
    }

    /// What was counted.
    pub(crate) fn into_metrics(self) -> ShardMetrics {
        self.metrics
    }

    /// The shard, while it runs.
    pub(crate) fn running(&mut self) -> Option<&mut Shard> {
        match &mut self.life {
            Life::Running(shard) => Some(shard),
            _ => None,
        }
    }
}

impl ShardSeed {
    /// Number of the shard.
    pub(crate) fn shard(&self) -> u32 {
        self.shard
    }

    /// Keeps the records of restored channel logs that this shard owns, for the stages they were on their way to.
    fn take_logs(&mut self, logs: Vec<(ChannelId, Vec<u8>)>) -> Result<()> {
        let Self { job, stages, log_stages, store, shard, .. } = self;
        for (channel, bytes) in logs {
            let at = log_stages[channel.edge as usize];
            let records = &mut stages[at].records;
            job.stages[at]
                .plan
                .read_log(&bytes, &mut |hash, record| {
                    if store.key_groups.owner(store.key_groups.group_of(hash), store.shards) == *shard {
                        records.extend_from_slice(record);
                    }
                })
                .map_err(|error| error.within(format_args!("channel log in front of {}", job.stages[at].name)))?;
        }
        Ok(())
    }

    fn start(mut self: Box<Self>, mut store: ShardStore) -> Result<Shard> {
        let mut edges: Vec<OpenEdge> = std::mem::take(&mut self.edges).into_iter().map(EdgeEnds::open).collect();
        let edge_order: Vec<EdgeKey> = self.job.edges.iter().map(|(key, _)| *key).collect();
        let mut stages = Vec::with_capacity(self.job.stages.len());
        for (stage, restored) in self.job.stages.drain(..).zip(&mut self.stages) {
            let mut cx = BuildContext {
                owner: Owner { job: &self.job.name, state: self.state },
                shard: self.shard,
                run: u64::from(self.run),
                key_groups: self.store.key_groups,
                owned: self.store.own_groups(),
                store: &mut store,
                edges: &mut edges,
                edge_order: &edge_order,
                restored,
            };
            let task = stage.plan.build(&stage.name, &mut cx)?;
            stages.push(NamedStage { name: stage.name, task });
        }
        #[cfg(feature = "planted-bugs")]
        plant_in(&mut store);
        // The job no longer has them, and the settings allow to leave them behind.
        store.drop_unopened();
        Ok(Shard::new(stages, store, self.restored, self.durable, self.records_max))
    }
}

/// Plants in the store what is planted on this thread.
#[cfg(feature = "planted-bugs")]
fn plant_in(store: &mut ShardStore) {
    use millstream_state::shard_store::Fault;
    let bugs = [
        (planted!(AckBeforeWrite), Fault::AckBeforeWrite),
        (planted!(DroppedTombstone), Fault::DroppedTombstone),
        (planted!(PageReusedEarly), Fault::PageReusedEarly),
    ];
    bugs.into_iter().filter(|(is_planted, _)| *is_planted).for_each(|(_, fault)| store.plant(fault));
}
