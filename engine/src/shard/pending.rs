//! A cut that was taken and is not acknowledged yet.

use super::{BarrierMode, NamedStage, Prepared, ShardCut, TurnContext};
use crate::Error;
use crate::stage::Saved;
use millstream_state::Epoch;
use millstream_state::shard_store::{FlushStats, ShardExtents, ShardSnapshot};

/// See the module.
pub(super) struct PendingCut {
    pub epoch: Epoch,
    stages: Vec<(String, Saved)>,
    finished: bool,
    cut_at_ns: u64,
    cut_ns: u64,
    /// Which stages have not said yet how preparing their output ended.
    unprepared: Vec<usize>,
    pub prepared: Vec<Prepared>,
    /// Every channel log is whole, and the store was told so.
    sealed: bool,
    stored: bool,
    extents: ShardExtents,
    flush: FlushStats,
    pub failure: Option<Error>,
    /// The coordinator was told how it ended.
    pub sent: bool,
}

impl PendingCut {
    /// Takes the cut of every stage and of the store.
    pub(super) fn take(epoch: Epoch, stages: &mut [NamedStage], cx: &mut TurnContext<'_>, finished: bool) -> Self {
        let start_ns = cx.clock.now_ns();
        if cx.durable {
            cx.store.cut(epoch);
        }
        // Outputs first: what a shard sends to itself moves over to its inboxes there, and is owed by them.
        for stage in stages.iter_mut() {
            stage.task.cut_output(epoch, BarrierMode::NonBlocking);
        }
        let saved = stages.iter_mut().map(|stage| (stage.name.clone(), stage.task.cut_input(epoch))).collect();
        let end_ns = cx.clock.now_ns();
        Self {
            epoch,
            stages: saved,
            finished,
            cut_at_ns: start_ns,
            cut_ns: end_ns - start_ns,
            unprepared: (0..stages.len()).collect(),
            prepared: Vec::new(),
            sealed: false,
            stored: false,
            extents: ShardExtents::default(),
            flush: FlushStats::default(),
            failure: None,
            sent: false,
        }
    }

    /// Asks the stages how far they are; says once whether every channel log is whole.
    pub(super) fn gather(&mut self, stages: &mut [NamedStage]) -> bool {
        let Self { epoch, unprepared, prepared, failure, .. } = self;
        unprepared.retain(|&at| {
            let NamedStage { name, task } = &mut stages[at];
            match task.take_prepared(*epoch) {
                None => true,
                Some(Ok(outputs)) => {
                    let outputs = outputs.into_iter();
                    prepared.extend(outputs.map(|bytes| Prepared { epoch: *epoch, stage: name.clone(), bytes }));
                    false
                }
                Some(Err(error)) => {
                    failure.get_or_insert(error.within(format_args!("output of stage {name}")));
                    false
                }
            }
        });
        let sealed_now = !self.sealed && stages.iter().all(|stage| stage.task.is_logged(self.epoch));
        self.sealed |= sealed_now;
        sealed_now
    }

    /// Notes how writing the state ended.
    pub(super) fn stored(&mut self, snapshot: ShardSnapshot) {
        self.stored = true;
        self.flush = snapshot.stats;
        match snapshot.result {
            Ok(extents) => self.extents = extents,
            Err(error) => drop(self.failure.get_or_insert(error)),
        }
    }

    /// Whether every stage has said how preparing its output ended.
    pub(super) fn outputs_gathered(&self) -> bool {
        self.unprepared.is_empty()
    }

    /// Whether there is nothing more to wait for.
    pub(super) fn is_settled(&self, durable: bool) -> bool {
        self.outputs_gathered() && self.sealed && (self.stored || !durable)
    }

    /// What the coordinator is told.
    pub(super) fn acknowledge(&mut self, now_ns: u64) -> ShardCut {
        ShardCut {
            epoch: self.epoch,
            extents: std::mem::take(&mut self.extents),
            flush: self.flush,
            stages: std::mem::take(&mut self.stages),
            prepared: std::mem::take(&mut self.prepared),
            finished: self.finished,
            cut_ns: self.cut_ns,
            // The cut may have been taken within the turn that began at `now_ns`.
            durable_ns: now_ns.saturating_sub(self.cut_at_ns),
        }
    }

    /// Gives the cut up; returns output that no acknowledgement carried. What a stage has not prepared yet joins its next
    /// epoch.
    pub(super) fn give_up(self, stages: &mut [NamedStage]) -> Vec<Prepared> {
        self.unprepared.iter().for_each(|&at| stages[at].task.give_up_output(self.epoch));
        self.prepared
    }
}
