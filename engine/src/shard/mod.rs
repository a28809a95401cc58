//! One shard: its stages, its state, and its part in every epoch. A state machine without clock, threads or I/O of its own.
//!
//! Invariants
//! * I1. All stages of a shard are cut at the same moment, between two calls of any of them: at the first sight of the
//!   epoch, in the coordinator's flag or as a barrier of a peer.
//! * I2. A cut is acknowledged when its state is durable, its channel logs are whole and durable, and its output is
//!   prepared; output of earlier cuts that were not acknowledged goes with it.
//! * I3. After the final cut no input is taken; what the cut needs goes on.

mod pending;

use crate::exchange::BarrierMode;
use crate::metrics::ShardMetrics;
use crate::stage::{Activity, Saved, StageTask, TurnContext};
use crate::time::Clock;
use crate::{Error, Result};
use millstream_state::Epoch;
use millstream_state::io::Disk;
use millstream_state::shard_store::{FlushStats, ShardExtents, ShardStore, StoreActivity};
use millstream_state::snapshot::FreedSegment;
use pending::PendingCut;
use std::collections::VecDeque;

/// A stage with its name.
pub(crate) struct NamedStage {
    pub name: String,
    pub task: Box<dyn StageTask>,
}

/// What the coordinator asks of every shard, by one word that each reads every turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EpochFlag {
    /// The newest epoch to cut.
    pub epoch: Epoch,
    /// Whether no input is to be taken after it.
    pub is_final: bool,
}

impl EpochFlag {
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self { epoch: Epoch(bits >> 1), is_final: bits & 1 == 1 }
    }
    pub(crate) const fn to_bits(self) -> u64 {
        self.epoch.0 << 1 | self.is_final as u64
    }
}

/// What the coordinator tells a shard, rarely.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    /// Every shard has restored its state, and output of the restored epoch is committed: begin.
    Start,
    /// The manifest of this epoch has its final name.
    Completed(Epoch),
    /// This epoch is given up.
    Abandoned(Epoch),
    /// Sources end here.
    Drain,
    /// This segment file is named by no manifest any more: write over it, or hand it back to be removed.
    Recycle(FreedSegment),
    /// Forget what was counted so far.
    ResetMetrics,
    /// Leave the loop.
    Halt,
}

/// What a shard tells the coordinator, rarely.
#[derive(Debug)]
pub(crate) enum Report {
    /// The state of the restored epoch is in memory, every byte of it checked.
    Restored,
    /// A cut is durable.
    Cut(Box<ShardCut>),
    /// A cut failed; the job goes on.
    CutFailed(Epoch, Error),
    /// The store needs these files no more.
    Freed(Vec<FreedSegment>),
    /// Every stage has ended and everything it produced has left it.
    Finished,
    /// The shard cannot go on.
    Failed(Error),
}

/// A shard's part of an epoch.
#[derive(Debug)]
pub(crate) struct ShardCut {
    pub epoch: Epoch,
    /// State and channel logs.
    pub extents: ShardExtents,
    /// What writing them took.
    pub flush: FlushStats,
    /// Own state of each stage.
    pub stages: Vec<(String, Saved)>,
    /// Output to commit once the epoch is complete, with the epoch it was prepared for and its stage.
    pub prepared: Vec<Prepared>,
    /// Whether every stage had ended.
    pub finished: bool,
    /// Nanoseconds that the cut itself took.
    pub cut_ns: u64,
    /// Nanoseconds from the cut until it was durable.
    pub durable_ns: u64,
}

/// Output that waits for its commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Prepared {
    pub epoch: Epoch,
    pub stage: String,
    pub bytes: Vec<u8>,
}

/// What a turn achieved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turned {
    /// There is more to do at once.
    Busy,
    /// Something is under way on the disk; look again soon.
    Waiting,
    /// Nothing to do before something comes in, or before this time (nanoseconds of the clock).
    Idle { due_ns: Option<u64> },
    /// The shard has left its loop.
    Halted,
}

/// See the module.
pub(crate) struct Shard {
    stages: Vec<NamedStage>,
    store: ShardStore,
    metrics: ShardMetrics,
    /// The newest epoch cut.
    cut: Epoch,
    pending: VecDeque<PendingCut>,
    /// Output of cuts that failed or were given up: goes with the next.
    carried: Vec<Prepared>,
    reports: VecDeque<Report>,
    draining: bool,
    /// The final cut was taken.
    is_final: bool,
    halted: bool,
    finished: bool,
    /// Whether epochs are written to disk at all.
    durable: bool,
    records_max: usize,
}

/// What a turn gets from outside.
pub(crate) struct TurnInput<'a> {
    pub disk: &'a mut dyn Disk,
    pub clock: &'a dyn Clock,
    /// The epoch flag, read at the start of the turn.
    pub flag: EpochFlag,
}

impl Shard {
    /// A shard that goes on from `restored`. `stages` in the order in which the job lists them.
    pub(crate) fn new(
        mut stages: Vec<NamedStage>,
        store: ShardStore,
        restored: Epoch,
        durable: bool,
        records_max: usize,
    ) -> Self {
        // Consumers before producers: room is made before it is needed.
        stages.reverse();
        Self {
            stages,
            store,
            metrics: ShardMetrics::default(),
            cut: restored,
            pending: VecDeque::new(),
            carried: Vec::new(),
            reports: VecDeque::new(),
            draining: false,
            is_final: false,
            halted: false,
            finished: false,
            durable,
            records_max,
        }
    }

    /// Takes a command.
    pub(crate) fn command(&mut self, command: Command) {
        match command {
            Command::Completed(epoch) => {
                if self.durable {
                    self.store.complete(epoch);
                }
                // Completing an epoch supersedes every earlier one; what they had prepared went with it (I2).
                self.give_up_until(epoch);
            }
            Command::Abandoned(epoch) => {
                if self.durable {
                    self.store.abandon(epoch);
                }
                self.give_up_until(epoch);
            }
            Command::Start => {}
            Command::Drain => self.draining = true,
            Command::Recycle(freed) => {
                if let Some(freed) = self.store.recycle(freed) {
                    self.reports.push_back(Report::Freed(vec![FreedSegment { recyclable: false, ..freed }]));
                }
            }
            Command::ResetMetrics => self.metrics = ShardMetrics::default(),
            Command::Halt => self.halted = true,
        }
    }

    /// Forgets the cuts up to `epoch`: it is complete, or given up.
    fn give_up_until(&mut self, epoch: Epoch) {
        while self.pending.front().is_some_and(|pending| pending.epoch <= epoch) {
            let pending = self.pending.pop_front().expect("just seen");
            self.carried.extend(pending.give_up(&mut self.stages));
        }
        self.stages.iter_mut().for_each(|stage| stage.task.forget(epoch));
    }

    /// One turn of the loop.
    pub(crate) fn turn(&mut self, input: &mut TurnInput<'_>) -> Turned {
        if self.halted {
            return Turned::Halted;
        }
        match self.try_turn(input) {
            Ok(turned) => turned,
            Err(error) => {
                self.reports.push_back(Report::Failed(error));
                self.halted = true;
                Turned::Busy
            }
        }
    }

    fn try_turn(&mut self, input: &mut TurnInput<'_>) -> Result<Turned> {
        let now_ns = input.clock.now_ns();
        let mut log_failures = Vec::new();
        let Self { stages, store, metrics, .. } = self;
        let mut cx = TurnContext {
            disk: &mut *input.disk,
            key_groups: store.config().key_groups,
            store,
            clock: input.clock,
            now_ns,
            metrics,
            records_max: self.records_max,
            draining: self.draining,
            halted: self.is_final,
            durable: self.durable,
            log_failures: &mut log_failures,
        };
        let mut newest = Some(input.flag.epoch);
        for stage in stages.iter_mut() {
            newest = newest.max(stage.task.observe());
        }
        if newest > Some(self.cut) {
            let epoch = newest.expect("greater than something");
            // The flag is raised before any shard cuts, so whoever sees a barrier sees the flag that asked for it, or a later one.
            self.is_final |= input.flag.is_final && input.flag.epoch >= epoch;
            self.pending.push_back(PendingCut::take(epoch, stages, &mut cx, self.finished));
            self.cut = epoch;
            cx.halted = self.is_final;
        }
        let (mut busy, mut waiting, mut done, mut due_ns) = (false, false, 0, None::<u64>);
        for stage in stages.iter_mut() {
            match stage.task.turn(&mut cx)? {
                Activity::Busy => busy = true,
                Activity::Waiting => waiting = true,
                Activity::Idle { due_ns: None } => {}
                Activity::Idle { due_ns: Some(due) } => due_ns = Some(due_ns.map_or(due, |at| at.min(due))),
                Activity::Done => done += 1,
            }
        }
        if !self.pending.is_empty() {
            for stage in stages.iter_mut() {
                busy |= stage.task.log_overtaken(&mut cx);
            }
        }
        if !busy {
            cx.metrics.gaps.idle();
        }
        if done == stages.len() && !self.finished {
            self.finished = true;
            self.reports.push_back(Report::Finished);
        }
        if self.durable {
            match self.store.turn(input.disk, now_ns) {
                StoreActivity::Idle => {}
                StoreActivity::Waiting => waiting = true,
                StoreActivity::Busy => busy = true,
            }
        }
        for (epoch, error) in log_failures {
            if let Some(pending) = self.pending.iter_mut().find(|pending| pending.epoch == epoch) {
                pending.failure.get_or_insert(error);
            }
        }
        self.settle(now_ns);
        Ok(match (busy, waiting || !self.pending.is_empty()) {
            (true, _) => Turned::Busy,
            (false, true) => Turned::Waiting,
            (false, false) => Turned::Idle { due_ns },
        })
    }

    /// Moves every pending cut on, and acknowledges those that are durable.
    fn settle(&mut self, now_ns: u64) {
        if self.pending.is_empty() {
            return;
        }
        for pending in &mut self.pending {
            if pending.gather(&mut self.stages) && self.durable {
                self.store.seal(pending.epoch);
            }
        }
        if self.durable {
            while let Some(snapshot) = self.store.take_result() {
                if let Some(pending) = self.pending.iter_mut().find(|pending| pending.epoch == snapshot.epoch) {
                    pending.stored(snapshot);
                }
            }
            let freed = self.store.take_freed();
            if !freed.is_empty() {
                self.reports.push_back(Report::Freed(freed));
            }
        }
        let mut earlier_outputs_gathered = true;
        for at in 0..self.pending.len() {
            let pending = &mut self.pending[at];
            earlier_outputs_gathered &= pending.outputs_gathered();
            if pending.sent || !pending.is_settled(self.durable) || !earlier_outputs_gathered {
                continue;
            }
            pending.sent = true;
            if let Some(error) = pending.failure.take() {
                self.reports.push_back(Report::CutFailed(pending.epoch, error));
                continue;
            }
            let mut cut = pending.acknowledge(now_ns);
            cut.prepared.append(&mut self.carried);
            for earlier in self.pending.range_mut(..at) {
                cut.prepared.append(&mut earlier.prepared);
            }
            self.reports.push_back(Report::Cut(Box::new(cut)));
        }
    }

    /// Takes the next report.
    pub(crate) fn take_report(&mut self) -> Option<Report> {
        self.reports.pop_front()
    }

    /// Adds the shards that have something new to look at since the last call.
    pub(crate) fn take_published(&mut self, peers: &mut Vec<u32>) {
        self.stages.iter_mut().for_each(|stage| stage.task.take_published(peers));
    }

    /// Counters of this shard.
    pub(crate) fn metrics(&mut self) -> &mut ShardMetrics {
        &mut self.metrics
    }

    /// The shard's state.
    pub(crate) fn store(&self) -> &ShardStore {
        &self.store
    }

    /// Bytes or records of input left, if every source knows.
    pub(crate) fn remaining(&self) -> Option<u64> {
        let mut known = self.stages.iter().filter_map(|stage| stage.task.remaining()).peekable();
        known.peek()?;
        Some(known.sum())
    }
}
