//! The coordinator: when epochs begin, when they are complete, and what happens then. A state machine; its runtime gives
//! it the time and the shards' reports, and carries its commands to them.
//!
//! Each [`turn`](Coordinator::turn) makes at most a few small blocking calls on files, so that the simulator can stop the
//! world between any two.
//!
//! Invariants
//! * I1. At most two epochs are in flight; an interval that comes due meanwhile is skipped, not queued.
//! * I2. An epoch is complete when its manifest has its final name and its directory is synced; then, and only then, its
//!   output is committed. Completing an epoch supersedes every earlier one.
//! * I3. Prepared output is listed by every manifest from the one of its epoch on until its commit has succeeded.
//! * I4. Once an epoch's output is committed, the state directory is told, and no later start asks for it again: it is its
//!   reader's.
//! * I5. A failed periodic epoch never fails the job. The final one is tried again until it is complete or the patience
//!   that the settings give is at its end.

mod complaints;
mod in_flight;
mod stats;

pub use stats::EpochStats;

use crate::shard::{Command, EpochFlag, Prepared, Report, ShardCut};
use crate::sink::Committer;
use crate::{Error, ErrorKind, Result};
use complaints::Complaints;
use in_flight::InFlight;
use millstream_state::format::{Blob, ChannelLog, Manifest, PreparedOutput, TableEntry};
use millstream_state::io::Files;
use millstream_state::snapshot::{Publish, Published, StateDir};
use millstream_state::{Epoch, KeyGroupCount, Schema};
use std::collections::VecDeque;
use std::mem;

/// Most epochs in flight.
const IN_FLIGHT_MAX: usize = 2;

/// Time between two tries of something that failed on disk.
const RETRY_NS: u64 = 200_000_000;

/// When epochs begin and end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Schedule {
    pub interval_ns: u64,
    pub timeout_ns: u64,
    /// For how long the final epoch, and the last commits, are tried again.
    pub patience_ns: u64,
}

/// What a coordinator needs to know of its job.
pub(crate) struct Plan {
    pub job: String,
    pub run: u32,
    pub shards: u32,
    pub key_groups: KeyGroupCount,
    /// Name and record type of every channel, by the store's number of its edge.
    pub channels: Vec<(String, Schema)>,
    pub schedule: Schedule,
    pub committers: Vec<(String, Box<dyn Committer>)>,
    /// Output in the restored manifest whose commit has not been repeated yet.
    pub unconfirmed: Vec<PreparedOutput>,
    /// The epoch that the job goes on from.
    pub restored: Epoch,
    /// The first epoch to begin.
    pub next_epoch: Epoch,
    /// The restored epoch says that all input had ended: there is nothing to run, only output to commit.
    pub already_ended: bool,
}

/// What happens between the restore of every shard and the first record, one blocking call at a time: only now is
/// anything modified, so a restore that is refused leaves everything as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Opening {
    /// This many shards have not restored their state yet.
    Restoring(u32),
    /// The state directory is claimed for this run.
    Claim,
    /// This sink is opened.
    Open(usize),
    /// Output that the restored manifest lists is committed, again or for the first time.
    Commit,
    /// What earlier runs left behind in this sink is removed.
    Clean(usize),
    /// The shards run.
    Done,
}

/// Why no more epochs will follow the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// Every input has ended.
    Finished,
    /// The job was told to stop at the next epoch; it can be resumed.
    Stopped,
}

/// How a job ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All input was processed and all output is committed.
    Finished,
    /// It was stopped at a complete epoch and can be resumed.
    Stopped,
}

/// See the module.
pub(crate) struct Coordinator {
    plan: Plan,
    files: Box<dyn Files>,
    dir: Option<StateDir>,
    flag: EpochFlag,
    in_flight: Vec<InFlight>,
    opening: Opening,
    publishing: Option<Publish>,
    unconfirmed: Vec<PreparedOutput>,
    /// Everything up to this epoch may be committed.
    complete: Epoch,
    commits_due_ns: Option<u64>,
    /// Output was committed and the state directory not told yet.
    confirm_due_ns: Option<u64>,
    collect_due: bool,
    finished: Vec<bool>,
    ending: Option<Ending>,
    /// When the first final epoch was begun.
    ending_since_ns: Option<u64>,
    final_complete: bool,
    next_begin_ns: u64,
    commands: VecDeque<(Option<u32>, Command)>,
    outcome: Option<Result<Outcome>>,
    stats: EpochStats,
    last_failure: Option<String>,
    epoch_complaints: Complaints,
    commit_complaints: Complaints,
}

impl Coordinator {
    /// A coordinator of shards that are about to run. Without a directory no epoch but the final one is taken, and nothing
    /// survives a crash.
    pub(crate) fn new(mut plan: Plan, files: Box<dyn Files>, dir: Option<StateDir>, now_ns: u64) -> Self {
        let unconfirmed = mem::take(&mut plan.unconfirmed);
        let waiting = if plan.already_ended { 0 } else { plan.shards };
        Self {
            opening: if waiting == 0 { Opening::Claim } else { Opening::Restoring(waiting) },
            files,
            dir,
            flag: EpochFlag { epoch: Epoch::ZERO, is_final: false },
            in_flight: Vec::new(),
            publishing: None,
            commits_due_ns: None,
            confirm_due_ns: None,
            unconfirmed,
            complete: plan.restored,
            collect_due: false,
            finished: vec![false; plan.shards as usize],
            ending: None,
            ending_since_ns: None,
            final_complete: false,
            next_begin_ns: now_ns.saturating_add(plan.schedule.interval_ns),
            commands: VecDeque::new(),
            outcome: None,
            stats: EpochStats::default(),
            last_failure: None,
            epoch_complaints: Complaints::default(),
            commit_complaints: Complaints::default(),
            plan,
        }
    }

    /// The epoch that shards shall cut.
    pub(crate) fn flag(&self) -> EpochFlag {
        self.flag
    }

    /// Takes the next command and the shard it is for; `None` is every shard.
    pub(crate) fn take_command(&mut self) -> Option<(Option<u32>, Command)> {
        self.commands.pop_front()
    }

    /// How the job ended, when it has: every shard was told to leave its loop.
    pub(crate) fn outcome(&self) -> Option<&Result<Outcome>> {
        self.outcome.as_ref()
    }

    /// Takes how the job ended.
    pub(crate) fn take_outcome(&mut self) -> Option<Result<Outcome>> {
        self.outcome.take()
    }

    /// What has become of epochs so far.
    pub(crate) fn stats(&self) -> &EpochStats {
        &self.stats
    }

    /// Forgets what was counted so far, at the end of a warm-up.
    pub(crate) fn reset_stats(&mut self) {
        self.stats = EpochStats::default();
        self.tell_all(Command::ResetMetrics);
    }

    /// Stops the job at its next epoch; it can be resumed.
    pub(crate) fn stop(&mut self) {
        self.ending.get_or_insert(Ending::Stopped);
    }

    /// Ends the input of the job here and lets it finish.
    pub(crate) fn drain(&mut self) {
        self.tell_all(Command::Drain);
    }

    /// Stops the job with an error, at its last complete epoch.
    pub(crate) fn fail(&mut self, error: Error) {
        if self.outcome.is_none() {
            self.end(Err(error));
        }
    }

    /// Takes a report of a shard.
    pub(crate) fn report(&mut self, shard: u32, report: Report, now_ns: u64) {
        match report {
            Report::Cut(cut) => self.acknowledge(shard, *cut),
            Report::CutFailed(epoch, error) => {
                self.give_up(epoch, &error.within(format_args!("shard {shard}")), now_ns)
            }
            Report::Freed(freed) => {
                if let Some(dir) = &mut self.dir {
                    freed.into_iter().for_each(|freed| dir.free(freed));
                    self.collect_due = true;
                }
            }
            Report::Restored => {
                if let Opening::Restoring(waiting) = self.opening {
                    self.opening = if waiting == 1 { Opening::Claim } else { Opening::Restoring(waiting - 1) };
                }
            }
            Report::Finished => {
                self.finished[shard as usize] = true;
                if self.finished.iter().all(|&finished| finished) {
                    // Whatever was asked for before: there is nothing left to stop.
                    self.ending = Some(Ending::Finished);
                }
            }
            Report::Failed(error) => {
                let error = match &self.dir {
                    Some(dir) if error.kind() == ErrorKind::Corrupt => dir.refuse(&error),
                    _ => error,
                };
                let place = format!("job {} stopped at epoch {}; shard {shard}", self.plan.job, self.complete);
                self.fail(error.within(place));
            }
        }
    }

    fn acknowledge(&mut self, shard: u32, mut cut: ShardCut) {
        // Output is kept whatever becomes of its epoch (I3).
        self.unconfirmed.extend(
            mem::take(&mut cut.prepared).into_iter().map(|Prepared { epoch, stage, bytes }| PreparedOutput {
                sink: stage,
                epoch,
                shard,
                bytes,
            }),
        );
        if let Some(epoch) = self.in_flight.iter_mut().find(|epoch| epoch.epoch == cut.epoch) {
            epoch.acknowledge(shard, cut);
        }
    }

    /// One turn; returns when to call again at the latest, in nanoseconds of the clock.
    pub(crate) fn turn(&mut self, now_ns: u64) -> u64 {
        if self.outcome.is_some() {
            return u64::MAX;
        }
        if self.opening != Opening::Done {
            return self.open_step(now_ns);
        }
        if let Some(publish) = &mut self.publishing {
            let dir = self.dir.as_mut().expect("only a directory publishes");
            if let Some(published) = dir.publish_step(publish) {
                self.publishing = None;
                self.published(published, now_ns);
            }
            return now_ns;
        }
        if self.commits_due_ns.is_some_and(|due| due <= now_ns) && self.commit_one(now_ns) {
            return now_ns;
        }
        if self.commits_due_ns.is_none() && self.confirm_due_ns.is_some_and(|due| due <= now_ns) {
            self.confirm(now_ns);
            return now_ns;
        }
        if mem::take(&mut self.collect_due) {
            self.collect();
            return now_ns;
        }
        if self.begin_publishing(now_ns) {
            return now_ns;
        }
        self.give_up_late(now_ns);
        if self.try_to_end(now_ns) {
            return now_ns;
        }
        self.begin_due(now_ns);
        let timeouts = self.in_flight.iter().map(|epoch| epoch.begun_ns.saturating_add(self.plan.schedule.timeout_ns));
        let begin = if self.may_begin() { self.next_begin_ns } else { u64::MAX };
        timeouts
            .chain([begin, now_ns.saturating_add(RETRY_NS)])
            .chain(self.commits_due_ns)
            .chain(self.confirm_due_ns)
            .min()
            .unwrap_or(now_ns)
    }

    /// Takes one step of opening; an error ends the job before its first record.
    fn open_step(&mut self, now_ns: u64) -> u64 {
        if let Opening::Restoring(_) = self.opening {
            return u64::MAX;
        }
        match self.try_open_step(now_ns) {
            Ok(next) => self.opening = next,
            Err(error) => self.fail(error),
        }
        if self.opening == Opening::Done {
            self.next_begin_ns = now_ns.saturating_add(self.plan.schedule.interval_ns);
            if self.plan.already_ended {
                self.ending = Some(Ending::Finished);
                self.ending_since_ns = Some(now_ns);
                self.final_complete = true;
                if let Some(dir) = &mut self.dir {
                    dir.nothing_follows();
                }
                self.collect();
            } else {
                self.tell_all(Command::Start);
            }
        }
        now_ns
    }

    fn try_open_step(&mut self, now_ns: u64) -> Result<Opening> {
        let Self { opening, plan, files, dir, unconfirmed, confirm_due_ns, .. } = self;
        let committers = &mut plan.committers;
        Ok(match *opening {
            Opening::Claim => {
                if let Some(dir) = dir {
                    dir.claim()?;
                }
                Opening::Open(0)
            }
            Opening::Open(at) => match committers.get_mut(at) {
                None => Opening::Commit,
                Some((_, committer)) => {
                    committer.open(&**files, plan.restored)?;
                    Opening::Open(at + 1)
                }
            },
            Opening::Commit => match unconfirmed.pop() {
                None => Opening::Clean(0),
                Some(output) => {
                    if let Some((_, committer)) = committers.iter_mut().find(|(sink, _)| *sink == output.sink) {
                        committer.commit(&**files, &output.bytes)?;
                    }
                    *confirm_due_ns = dir.as_ref().map(|_| now_ns);
                    Opening::Commit
                }
            },
            Opening::Clean(at) => match committers.get_mut(at) {
                None => Opening::Done,
                Some((_, committer)) => {
                    committer.clean(&**files)?;
                    Opening::Clean(at + 1)
                }
            },
            Opening::Restoring(_) | Opening::Done => *opening,
        })
    }

    fn may_begin(&self) -> bool {
        !self.final_complete
            && self.in_flight.iter().filter(|epoch| !epoch.in_doubt).count() < IN_FLIGHT_MAX
            && (self.dir.is_some() || self.ending.is_some())
            && !self.in_flight.iter().any(|epoch| epoch.is_final)
    }

    fn begin_due(&mut self, now_ns: u64) {
        let is_final = self.ending.is_some();
        let first_final = is_final && self.ending_since_ns.is_none();
        if !self.may_begin() || (now_ns < self.next_begin_ns && !first_final) {
            return;
        }
        if is_final {
            self.ending_since_ns.get_or_insert(now_ns);
        }
        let epoch = self.plan.next_epoch;
        self.plan.next_epoch = epoch.next();
        self.in_flight.push(InFlight::begin(epoch, is_final, now_ns, self.plan.shards));
        self.flag = EpochFlag { epoch, is_final };
        let pause_ns = if is_final { RETRY_NS } else { self.plan.schedule.interval_ns };
        self.next_begin_ns = now_ns.saturating_add(pause_ns);
    }

    /// Publishes the newest epoch that every shard has acknowledged.
    fn begin_publishing(&mut self, now_ns: u64) -> bool {
        let Some(at) = self.in_flight.iter().rposition(|epoch| epoch.is_acknowledged() && !epoch.in_doubt) else {
            return false;
        };
        let epoch = self.in_flight[at].epoch;
        if self.dir.is_none() {
            self.published(Published::Complete(epoch), now_ns);
            return true;
        }
        if let Err(error) = self.secure(epoch) {
            self.give_up(epoch, &error, now_ns);
            return true;
        }
        let manifest = self.manifest(at);
        let dir = self.dir.as_mut().expect("checked");
        let publish = dir.publish(&manifest);
        self.in_flight[at].manifest_bytes = publish.manifest_bytes();
        self.publishing = Some(publish);
        true
    }

    /// Makes the names durable that the output of `epoch` and before relies on.
    fn secure(&mut self, epoch: Epoch) -> Result<()> {
        for (sink, committer) in &mut self.plan.committers {
            let own = self.unconfirmed.iter().filter(|output| output.sink == *sink && output.epoch <= epoch);
            let prepared: Vec<Vec<u8>> = own.map(|output| output.bytes.clone()).collect();
            if !prepared.is_empty() {
                committer.secure(&*self.files, &prepared)?;
            }
        }
        Ok(())
    }

    fn manifest(&mut self, at: usize) -> Manifest {
        let Self { plan, in_flight, unconfirmed, .. } = self;
        let in_flight = &mut in_flight[at];
        let mut manifest = Manifest::empty(&plan.job, plan.key_groups, plan.shards);
        manifest.run = plan.run;
        manifest.epoch = in_flight.epoch;
        manifest.ended = true;
        for (shard, cut) in (0u32..).zip(in_flight.cuts()) {
            manifest.ended &= cut.finished;
            for table in &cut.extents.tables {
                add_table(&mut manifest.tables, table);
            }
            manifest.shards[shard as usize] = cut.extents.extents.clone();
            for (channel, extents) in &cut.extents.channel_logs {
                let (edge, record) = &plan.channels[channel.edge as usize];
                manifest.channel_logs.push(ChannelLog {
                    id: channel.edge,
                    edge: edge.clone(),
                    from: channel.from,
                    to: shard,
                    record: record.clone(),
                    extents: extents.clone(),
                });
            }
            let blobs = cut.stages.iter().filter(|(_, saved)| !saved.is_empty());
            manifest.blobs.extend(blobs.map(|(name, saved)| Blob { name: name.clone(), shard, bytes: saved.encode() }));
        }
        manifest.outputs = unconfirmed.iter().filter(|output| output.epoch <= manifest.epoch).cloned().collect();
        manifest.tables.sort_by_key(|table| table.id);
        manifest.list_segments();
        manifest
    }

    fn published(&mut self, published: Published, now_ns: u64) {
        match published {
            Published::Complete(epoch) => {
                self.complete = epoch;
                self.epoch_complaints.over();
                self.commits_due_ns = Some(now_ns);
                self.collect_due = self.dir.is_some();
                for done in self.in_flight.extract_if(.., |done| done.epoch <= epoch) {
                    if done.epoch == epoch {
                        self.final_complete = done.is_final;
                        self.stats.completed(&done, now_ns);
                    } else {
                        self.stats.superseded += 1;
                    }
                }
                self.tell_all(Command::Completed(epoch));
            }
            Published::Failed(epoch, error) => self.give_up(epoch, &error, now_ns),
            Published::InDoubt(epoch, error) => {
                // Neither complete nor given up: the next manifest that is durable decides. What began before it comes too
                // late for a manifest of its own.
                self.note_failure(epoch, &error, now_ns);
                while let Some(earlier) =
                    self.in_flight.iter().find(|earlier| earlier.epoch < epoch && !earlier.in_doubt)
                {
                    let late = Error::unavailable(format_args!("epoch {epoch} was ready first and is in doubt"));
                    self.give_up(earlier.epoch, &late, now_ns);
                }
                if let Some(epoch) = self.in_flight.iter_mut().find(|in_flight| in_flight.epoch == epoch) {
                    epoch.in_doubt = true;
                    epoch.is_final = false;
                }
                self.next_begin_ns = self.next_begin_ns.min(now_ns.saturating_add(RETRY_NS));
            }
        }
    }

    fn give_up(&mut self, epoch: Epoch, error: &Error, now_ns: u64) {
        let Some(at) = self.in_flight.iter().position(|in_flight| in_flight.epoch == epoch) else { return };
        self.in_flight.remove(at);
        self.note_failure(epoch, error, now_ns);
        self.tell_all(Command::Abandoned(epoch));
        if self.ending.is_some() {
            self.next_begin_ns = now_ns.saturating_add(RETRY_NS);
        }
    }

    fn note_failure(&mut self, epoch: Epoch, error: &Error, now_ns: u64) {
        if let Some(unsaid) = self.epoch_complaints.worth_saying(now_ns) {
            tracing::warn!(%epoch, %error, unsaid, "epoch failed; its data goes with the next one");
        }
        self.stats.failed += 1;
        self.last_failure = Some(format!("epoch {epoch}: {error}"));
    }

    fn give_up_late(&mut self, now_ns: u64) {
        let timeout_ns = self.plan.schedule.timeout_ns;
        let late =
            self.in_flight.iter().find(|epoch| !epoch.in_doubt && now_ns.saturating_sub(epoch.begun_ns) > timeout_ns);
        if let Some(late) = late {
            let waiting: Vec<String> = late.missing().map(|shard| shard.to_string()).collect();
            let error = Error::unavailable(format_args!(
                "not complete after {} ms; waited for shard {}",
                timeout_ns / 1_000_000,
                waiting.join(", ")
            ));
            self.give_up(late.epoch, &error, now_ns);
        }
    }

    /// Commits one output; says whether there was one.
    fn commit_one(&mut self, now_ns: u64) -> bool {
        let Some(at) = self.unconfirmed.iter().position(|output| output.epoch <= self.complete) else {
            self.commits_due_ns = None;
            return false;
        };
        let output = &self.unconfirmed[at];
        let committer = self.plan.committers.iter_mut().find(|(sink, _)| *sink == output.sink);
        let committed = match committer {
            Some((_, committer)) => committer.commit(&*self.files, &output.bytes),
            None => Ok(()),
        };
        match committed {
            Ok(()) => {
                self.unconfirmed.remove(at);
                self.commit_complaints.over();
                self.confirm_due_ns = self.dir.as_ref().map(|_| now_ns);
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => self.fail(error),
            Err(error) => {
                if let Some(unsaid) = self.commit_complaints.worth_saying(now_ns) {
                    tracing::warn!(%error, unsaid, "commit failed; it is tried again");
                }
                self.last_failure = Some(format!("commit: {error}"));
                self.commits_due_ns = Some(now_ns.saturating_add(RETRY_NS));
                return false;
            }
        }
        true
    }

    /// Tells the state directory that all output up to the complete epoch is committed (I4).
    fn confirm(&mut self, now_ns: u64) {
        let Some(dir) = &mut self.dir else { return };
        self.confirm_due_ns = match dir.note_committed(self.complete) {
            Ok(()) => None,
            Err(error) => {
                if let Some(unsaid) = self.commit_complaints.worth_saying(now_ns) {
                    tracing::warn!(%error, unsaid, "that output is committed cannot be noted; it is tried again");
                }
                Some(now_ns.saturating_add(RETRY_NS))
            }
        };
    }

    fn collect(&mut self) {
        let Some(dir) = &mut self.dir else { return };
        match dir.collect() {
            Ok(collected) => {
                for freed in collected.recyclable {
                    self.commands.push_back((Some(freed.id.shard), Command::Recycle(freed)));
                }
            }
            // What is left undone is done by a later call.
            Err(error) => tracing::warn!(%error, "old files could not be removed"),
        }
    }

    /// Ends the job when its final epoch is complete and committed, or cannot become so.
    fn try_to_end(&mut self, now_ns: u64) -> bool {
        let Some(since_ns) = self.ending_since_ns else { return false };
        let is_late = now_ns.saturating_sub(since_ns) > self.plan.schedule.patience_ns;
        if self.final_complete && self.commits_due_ns.is_none() && (self.confirm_due_ns.is_none() || is_late) {
            let outcome = self.finish_committers().map(|()| match self.ending {
                Some(Ending::Stopped) => Outcome::Stopped,
                _ => Outcome::Finished,
            });
            self.end(outcome);
            return true;
        }
        if is_late {
            let cause = self.last_failure.as_deref().unwrap_or("it was not acknowledged in time");
            let error = format!(
                "job {}: the final epoch could not be completed and committed within {} ms ({cause}); everything up to epoch {} is \
                 kept: mend the cause and run the job again",
                self.plan.job,
                self.plan.schedule.patience_ns / 1_000_000,
                self.complete
            );
            self.end(Err(Error::new(ErrorKind::Uncommitted, error)));
            return true;
        }
        false
    }

    fn finish_committers(&mut self) -> Result<()> {
        self.plan.committers.iter_mut().try_for_each(|(_, committer)| committer.finish(&*self.files))
    }

    fn end(&mut self, outcome: Result<Outcome>) {
        self.tell_all(Command::Halt);
        self.outcome = Some(outcome);
    }

    fn tell_all(&mut self, command: Command) {
        self.commands.push_back((None, command));
    }
}

fn add_table(tables: &mut Vec<TableEntry>, table: &TableEntry) {
    if tables.iter().all(|known| known.id != table.id) {
        tables.push(table.clone());
    }
}
