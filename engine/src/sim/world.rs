//! One simulated world: a disk that outlives crashes, and the job that runs on it from one crash to the next.

use super::SimOptions;
use super::random::Random;
use crate::config::EngineConfig;
use crate::coordinator::{Coordinator, Outcome};
use crate::job::Job;
use crate::launch::{Launch, ShardActor, Tuning, prepare};
use crate::shard::{Command, EpochFlag, Report, TurnInput, Turned};
use crate::time::{Clock, ManualClock};
use crate::{Error, ErrorKind, Result};
use millstream_state::StateId;
use millstream_state::hash::hash_bytes;
use millstream_state::io::sim::{SimConfig, SimDisk};
use millstream_state::io::{Buffer, Disk, Done, Files, Request, Token};
use millstream_state::log::Prefault;
use millstream_state::snapshot::list_snapshots;
use std::collections::VecDeque;
use std::io;
use std::path::Path;

/// Starts after which a run counts as one that never ends.
const STARTS_MAX: u32 = 60;

/// Steps of one start after which it counts as hanging, once the world is benign.
const STEPS_HANG: u64 = 2_000_000;

/// How a simulated job ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It finished.
    Finished,
    /// A restore was refused because bytes on the disk were bad: what a lying disk must lead to.
    Refused(String),
    /// It did not end, or ended with an error that no crash explains.
    Broken(String),
}

/// What a simulation came to.
pub struct Simulated {
    /// How it ended.
    pub verdict: Verdict,
    /// A hash of every step: the same for the same seed.
    pub trace: u64,
    /// How often the power went.
    pub crashes: u32,
    /// Complete epochs in all.
    pub epochs_completed: u64,
    /// Files that a reader took away before the end.
    pub files_read_away: usize,
    lines_read_away: Vec<String>,
    disk: SimDisk,
}

impl Simulated {
    /// The lines of every file in `directory` of the simulated disk and of those taken away from it, sorted, and the names of
    /// files that are hidden.
    pub fn lines(&self, directory: &str) -> (Vec<String>, Vec<String>) {
        let (mut lines, mut hidden) = (self.lines_read_away.clone(), Vec::new());
        let path = Path::new(directory);
        for entry in self.disk.list(path).expect("a job that has ended leaves its directory") {
            if entry.name.starts_with('.') {
                hidden.push(entry.name);
                continue;
            }
            let bytes = self.disk.read(&path.join(&entry.name)).unwrap_or_default();
            lines.extend(String::from_utf8_lossy(&bytes).lines().map(str::to_owned));
        }
        lines.sort();
        (lines, hidden)
    }

    /// Names in the state directory.
    pub fn state_files(&self) -> Vec<String> {
        self.disk.list(Path::new("/state")).unwrap_or_default().into_iter().map(|entry| entry.name).collect()
    }
}

/// See the module.
pub(super) struct World {
    random: Random,
    config: EngineConfig,
    options: SimOptions,
    disk: SimDisk,
    clock: ManualClock,
    trace: u64,
    crashes: u32,
    epochs_completed: u64,
    files_read_away: usize,
    lines_read_away: Vec<String>,
}

/// A job between two crashes.
struct Life {
    coordinator: Coordinator,
    shards: Vec<Member>,
    reports: VecDeque<(u32, Report)>,
}

struct Member {
    actor: ShardActor,
    disk: ShardDisk,
    commands: VecDeque<Command>,
    flag: EpochFlag,
}

impl World {
    pub(super) fn new(mut random: Random, config: EngineConfig, options: SimOptions) -> Self {
        let mut disk = options.disk.clone();
        disk.delay_ticks_max = random.range(1, 5 * u64::from(options.disk.delay_ticks_max)) as u32;
        let disk = SimDisk::new(random.next(), disk);
        Self {
            random,
            config,
            options,
            disk,
            clock: ManualClock::default(),
            trace: 0,
            crashes: 0,
            epochs_completed: 0,
            files_read_away: 0,
            lines_read_away: Vec::new(),
        }
    }

    pub(super) fn run(mut self, job: &dyn Fn() -> Job) -> Simulated {
        let mut verdict = Verdict::Broken(format!("still running after {STARTS_MAX} starts"));
        for _ in 0..STARTS_MAX {
            match self.live(job()) {
                Ok(Some(Outcome::Finished | Outcome::Stopped)) => {
                    verdict = Verdict::Finished;
                    break;
                }
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    verdict = Verdict::Refused(error.to_string());
                    break;
                }
                // The disk failed, or the final epoch could not be completed: start again, as its operator would.
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Uncommitted) => {}
                Err(error) => {
                    verdict = Verdict::Broken(format!("{error:?}"));
                    break;
                }
            }
            if self.crashes >= self.options.crashes_max {
                self.disk.configure(|config| *config = SimConfig::default());
            }
        }
        // Whoever looks at what is left sees what is there.
        self.disk.configure(|config| *config = SimConfig::default());
        self.disk.lose_power_after(u64::MAX);
        let Self { trace, crashes, epochs_completed, files_read_away, lines_read_away, disk, .. } = self;
        let trace = hash_bytes(&[trace.to_le_bytes(), disk.fingerprint().to_le_bytes()].concat());
        Simulated { verdict, trace, crashes, epochs_completed, files_read_away, lines_read_away, disk }
    }

    /// A reader takes some of the output, when all of it is known to be committed.
    fn read_away(&mut self) {
        let Some(directory) = self.options.read_away.map(Path::new) else { return };
        let mut config = SimConfig::default();
        self.disk.configure(|now| std::mem::swap(now, &mut config));
        let is_committed = list_snapshots(&self.disk, Path::new("/state"))
            .is_ok_and(|report| report.epochs.last().is_some_and(|newest| report.committed >= newest.epoch));
        for entry in self.disk.list(directory).unwrap_or_default() {
            let path = directory.join(&entry.name);
            if is_committed
                && !entry.name.starts_with('.')
                && self.random.one_in(2)
                && let Ok(bytes) = self.disk.read(&path)
                && self.disk.remove(&path).is_ok()
            {
                self.files_read_away += 1;
                self.lines_read_away.extend(String::from_utf8_lossy(&bytes).lines().map(str::to_owned));
            }
        }
        // What was removed stays so.
        let _ = self.disk.sync_dir(directory);
        self.disk.configure(|now| *now = config);
    }

    /// Runs the job until it ends, or the power goes (`None`).
    fn live(&mut self, job: Job) -> Result<Option<Outcome>> {
        let shards = self.random.range(1, u64::from(self.options.shards_max)) as u32;
        let tuning = Tuning {
            prefault: Prefault::None,
            records_max: self.random.pick(&[1, 7, 64, 300]),
            ring_bytes_min: self.random.pick(&[4096, 5000, 64 << 10]),
            segment_bytes: Some(self.random.pick(&[(256 << 10, 256 << 10), (1 << 20, 4 << 20)])),
            new_state: StateId(self.random.range(0, u64::from(u32::MAX)) as u32),
        };
        self.config.exchange_bytes_per_shard = 4096;
        let is_benign = self.crashes >= self.options.crashes_max;
        let crash_at = if is_benign { u64::MAX } else { self.random.range(1, self.options.steps_max) };
        // Half of the crashes cut the power inside a call.
        if !is_benign && self.random.one_in(2) {
            let steps = self.random.range(0, 400);
            self.disk.lose_power_after(steps);
        }
        let result = self.live_until(job, shards, &tuning, crash_at);
        if matches!(result, Ok(None)) || !self.disk.is_powered() {
            self.disk.crash();
            self.crashes += 1;
            self.read_away();
            return Ok(None);
        }
        result
    }

    fn live_until(&mut self, job: Job, shards: u32, tuning: &Tuning, crash_at: u64) -> Result<Option<Outcome>> {
        let disk = self.disk.clone();
        let files = move || Box::new(disk.clone()) as Box<dyn Files>;
        let launch = prepare(&self.config, job.finish()?, shards, &files, tuning, self.clock.now_ns())?;
        let Launch { coordinator, seeds, .. } = launch;
        let member = |seed| Member {
            actor: ShardActor::new(seed),
            disk: ShardDisk { disk: self.disk.clone(), skipped: Vec::new() },
            commands: VecDeque::new(),
            flag: EpochFlag::from_bits(0),
        };
        let shards = seeds.into_iter().map(member).collect();
        let mut life = Life { coordinator, shards, reports: VecDeque::new() };
        for step in 0..STEPS_HANG {
            if step == crash_at || !self.disk.is_powered() {
                self.epochs_completed += life.coordinator.stats().completed;
                return Ok(None);
            }
            if let Some(outcome) = life.coordinator.take_outcome() {
                self.epochs_completed += life.coordinator.stats().completed;
                return outcome.map(Some);
            }
            let advance_ns = self.random.pick(&[0, 1_000, 20_000, 300_000]);
            self.clock.advance_ns(advance_ns);
            self.step(&mut life);
        }
        Err(Error::invalid(format_args!("hangs: {STEPS_HANG} steps without an end")))
    }

    /// One step of one actor, drawn at random.
    fn step(&mut self, life: &mut Life) {
        let Self { random, disk, clock, trace, .. } = self;
        let actors = life.shards.len() as u64;
        let actor = random.range(0, actors + 1);
        let mut note = |what: u64| *trace = hash_bytes(&[trace.to_le_bytes(), what.to_le_bytes()].concat());
        note(actor);
        if actor >= actors {
            // The coordinator: one report, or one turn. Messages take their time: they wait until they are drawn.
            match life.reports.pop_front() {
                Some((shard, report)) if random.one_in(2) => {
                    note(hash_bytes(format!("{shard} {report:?}").as_bytes()));
                    life.coordinator.report(shard, report, clock.now_ns());
                }
                Some(waiting) => life.reports.push_front(waiting),
                None => drop(life.coordinator.turn(clock.now_ns())),
            }
            if random.one_in(3) {
                let _ = life.coordinator.turn(clock.now_ns());
            }
            while let Some((shard, command)) = life.coordinator.take_command() {
                match shard {
                    Some(shard) => life.shards[shard as usize].commands.push_back(command),
                    None => life.shards.iter_mut().for_each(|member| member.commands.push_back(command.clone())),
                }
            }
            return;
        }
        let member = &mut life.shards[actor as usize];
        // A shard reads the flag in every turn; what it reads may be old.
        if random.one_in(3) {
            member.flag = life.coordinator.flag();
        }
        if random.one_in(2)
            && let Some(command) = member.commands.pop_front()
        {
            note(hash_bytes(format!("{command:?}").as_bytes()));
            member.actor.command(command);
        }
        let turned = member.actor.turn(&mut TurnInput { disk: &mut member.disk, clock, flag: member.flag });
        note(match turned {
            Turned::Busy => 1,
            Turned::Waiting => 2,
            Turned::Idle { .. } => 3,
            Turned::Halted => 4,
        });
        while let Some(report) = member.actor.take_report() {
            life.reports.push_back((actor as u32, report));
        }
        disk.advance(1);
    }
}

/// A shard's way to the disk; skips syncs when that bug is planted.
struct ShardDisk {
    disk: SimDisk,
    skipped: Vec<Token>,
}

impl Disk for ShardDisk {
    fn buffer(&mut self, bytes: usize) -> Buffer {
        self.disk.buffer(bytes)
    }
    fn recycle(&mut self, buffer: Buffer) {
        self.disk.recycle(buffer);
    }
    fn submit(&mut self, request: Request) -> Token {
        if planted!(ManifestBeforeSync) && matches!(request, Request::Sync(_)) {
            // No disk counts from the top.
            let token = Token(u64::MAX - self.skipped.len() as u64);
            self.skipped.push(token);
            return token;
        }
        self.disk.submit(request)
    }
    fn take(&mut self, token: Token) -> Option<io::Result<Done>> {
        if self.skipped.contains(&token) { Some(Ok(Done::Synced)) } else { self.disk.take(token) }
    }
    fn in_flight(&self) -> usize {
        self.disk.in_flight()
    }
}
