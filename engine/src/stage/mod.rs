//! Stages: what runs between two exchanges, fused into one loop on each shard.
//!
//! A stage is a [`Head`] (a source, a keyed operator, a union), a chain of operators without state, and an [`Output`]
//! (an exchange or a sink). All three are one type; the shard sees it as a [`StageTask`], called once per batch.
//!
//! Invariants
//! * I1. Between two calls no record is inside a stage: it is in the inbox, in the outbox, or its effects are complete.
//!   So a cut may be taken between any two calls.
//! * I2. A stage takes no input while its output holds something back.

mod head;
mod keyed_head;
mod output;
mod saved;
mod slice;
mod source_head;
mod union_head;

pub(crate) use head::{Head, HeadActivity};
pub(crate) use keyed_head::KeyedHead;
pub(crate) use output::{ByKey, EdgeOutput, Here, KeyOnly, Load, Output, OutputActivity, SinkOutput, WholeRecord};
pub(crate) use saved::Saved;
pub(crate) use source_head::{SourceHead, decode_splits};
pub(crate) use union_head::UnionHead;

use crate::chain::{Faults, Operator};
use crate::exchange::{BarrierMode, Channel};
use crate::metrics::ShardMetrics;
use crate::time::Clock;
use crate::{Error, ErrorKind, Result};
use millstream_state::io::Disk;
use millstream_state::shard_store::ShardStore;
use millstream_state::{Epoch, KeyGroupCount};
use slice::Slice;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a stage may use while it is called.
pub(crate) struct TurnContext<'a> {
    /// The shard's disk.
    pub disk: &'a mut dyn Disk,
    /// The shard's state.
    pub store: &'a mut ShardStore,
    /// The job's clock.
    pub clock: &'a dyn Clock,
    /// Nanoseconds of the clock at the start of the turn.
    pub now_ns: u64,
    /// Counters of the shard.
    pub metrics: &'a mut ShardMetrics,
    /// Key groups of the job.
    pub key_groups: KeyGroupCount,
    /// Most records to take in one call.
    pub records_max: usize,
    /// Whether sources shall behave as if their input ended here.
    pub draining: bool,
    /// Whether no more input is to be taken: the final cut was taken.
    pub halted: bool,
    /// Whether epochs are written to disk at all.
    pub durable: bool,
    /// Cut epochs whose channel logs did not fit into the memory for state.
    pub log_failures: &'a mut Vec<(Epoch, Error)>,
}

impl TurnContext<'_> {
    /// Whether stages take no input: the final cut was taken, or the store is short of memory and a flush or cleaning is
    /// about to free some. Rings then fill, and the sources of other shards follow.
    fn holds_back(&self) -> bool {
        self.halted || (self.durable && self.store.is_pressed())
    }

    /// What adds records to the channel logs of epochs that this shard has cut.
    pub(crate) fn log_piece(&mut self) -> impl FnMut(Epoch, Channel, &[u8]) + '_ {
        let Self { store, durable, log_failures, .. } = self;
        move |epoch, channel, records| {
            if *durable && let Err(error) = store.append_channel_log(epoch, channel.to_id(), records) {
                log_failures.push((epoch, error));
            }
        }
    }
}

/// What one call of a stage achieved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Activity {
    /// Records moved; call again.
    Busy,
    /// Nothing to do before something comes in, or before this time (nanoseconds of the clock).
    Idle { due_ns: Option<u64> },
    /// Something is under way on the disk; ask again soon.
    Waiting,
    /// The stage has ended and everything it produced has left it.
    Done,
}

/// A stage as its shard sees it.
pub(crate) trait StageTask {
    /// Looks at what has come in; returns the newest barrier seen.
    fn observe(&mut self) -> Option<Epoch>;

    /// Takes a batch of input if there is some and the output has room.
    ///
    /// # Errors
    /// When user code, the source or the sink failed for good.
    fn turn(&mut self, cx: &mut TurnContext<'_>) -> Result<Activity>;

    /// First half of the shard's cut, for every stage before the second half of any.
    fn cut_output(&mut self, epoch: Epoch, mode: BarrierMode);

    /// Second half of the shard's cut; returns the stage's own state (positions, progress).
    fn cut_input(&mut self, epoch: Epoch) -> Saved;

    /// Copies a step of what cuts have overtaken around the stage to channel logs; says whether there was any.
    fn log_overtaken(&mut self, cx: &mut TurnContext<'_>) -> bool;

    /// Whether everything that the cut of `epoch` has overtaken around the stage is in its channel logs.
    fn is_logged(&self, epoch: Epoch) -> bool;

    /// How preparing the output of a cut epoch ended, once.
    fn take_prepared(&mut self, epoch: Epoch) -> Option<Result<Vec<Vec<u8>>>>;

    /// Stops logging for an epoch that is complete or given up, and for all before it.
    fn forget(&mut self, epoch: Epoch);

    /// Lets output that was cut for `epoch` and is not prepared yet join the next epoch.
    fn give_up_output(&mut self, epoch: Epoch);

    /// Adds the shards that have something new to look at.
    fn take_published(&mut self, peers: &mut Vec<u32>);

    /// Bytes or records of input left, if known.
    fn remaining(&self) -> Option<u64>;
}

/// See the module.
pub(crate) struct Stage<H, C, O> {
    name: String,
    head: H,
    chain: C,
    output: O,
    slice: Slice,
    ended: bool,
}

impl<H, C, O> Stage<H, C, O> {
    pub(crate) fn new(name: String, head: H, chain: C, output: O) -> Self {
        Self { name, head, chain, output, slice: Slice::default(), ended: false }
    }
}

impl<H, C, O> StageTask for Stage<H, C, O>
where
    H: Head,
    C: Operator<In = H::Out>,
    O: Output<C::Out>,
{
    fn observe(&mut self) -> Option<Epoch> {
        self.head.observe()
    }

    fn turn(&mut self, cx: &mut TurnContext<'_>) -> Result<Activity> {
        let Self { head, chain, output, slice, ended, .. } = self;
        let mut activity = Activity::Waiting;
        if output.ready() && !*ended && !cx.holds_back() {
            let started_ns = cx.clock.now_ns();
            let records_max = cx.records_max;
            cx.records_max = slice.records(records_max);
            // State and rings stay whole when user code unwinds: the job stops at its last complete epoch, nothing of
            // what this stage holds is used again.
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                head.turn(cx, &mut |item| chain.push(item, &mut |item| output.push(item)))
            }));
            cx.records_max = records_max;
            activity = match outcome {
                Err(panic) => return Err(self.panicked(panic.as_ref(), cx.key_groups)),
                Ok(Err(error)) => return Err(error.within(format_args!("stage {}", self.name))),
                Ok(Ok(HeadActivity::Busy { records })) => {
                    cx.metrics.gaps.batch_started(started_ns);
                    slice.took(records, cx.clock.now_ns() - started_ns);
                    Activity::Busy
                }
                Ok(Ok(HeadActivity::Idle { due_ns })) => Activity::Idle { due_ns },
                Ok(Ok(HeadActivity::Ended)) => {
                    *ended = true;
                    output.end();
                    Activity::Busy
                }
            };
            if let Some(failure) = Faults::take() {
                return Err(self.failed(failure.kind(), failure.message()));
            }
            cx.metrics.skipped_records += Faults::take_skipped();
        }
        let Self { output, ended, name, .. } = self;
        let flushed = output.turn(cx.disk, cx.now_ns).map_err(|error| error.within(format_args!("stage {name}")))?;
        Ok(match (activity, flushed) {
            (Activity::Busy, _) => Activity::Busy,
            (_, OutputActivity::Busy) => Activity::Busy,
            (_, OutputActivity::Waiting) => Activity::Waiting,
            (_, OutputActivity::Idle) if *ended => Activity::Done,
            // The output was not ready and has nothing under way: a peer has to make room first.
            (Activity::Waiting, OutputActivity::Idle) => Activity::Idle { due_ns: None },
            (activity, OutputActivity::Idle) => activity,
        })
    }

    fn cut_output(&mut self, epoch: Epoch, mode: BarrierMode) {
        self.output.cut(epoch, mode);
    }

    fn cut_input(&mut self, epoch: Epoch) -> Saved {
        self.head.cut(epoch)
    }

    fn log_overtaken(&mut self, cx: &mut TurnContext<'_>) -> bool {
        let mut log = cx.log_piece();
        self.head.log_overtaken(&mut log) | self.output.log_overtaken(&mut log)
    }

    fn is_logged(&self, epoch: Epoch) -> bool {
        self.head.is_logged(epoch) && self.output.is_logged(epoch)
    }

    fn take_prepared(&mut self, epoch: Epoch) -> Option<Result<Vec<Vec<u8>>>> {
        self.output.take_prepared(epoch)
    }

    fn forget(&mut self, epoch: Epoch) {
        self.head.forget(epoch);
        self.output.forget(epoch);
    }

    fn give_up_output(&mut self, epoch: Epoch) {
        self.output.give_up(epoch);
    }

    fn take_published(&mut self, peers: &mut Vec<u32>) {
        self.output.take_published(peers);
    }

    fn remaining(&self) -> Option<u64> {
        self.head.remaining()
    }
}

impl<H: Head, C, O> Stage<H, C, O> {
    #[cold]
    fn failed(&self, kind: ErrorKind, failure: &str) -> Error {
        Error::new(kind, format_args!("stage {}, {failure}; {}", self.name, self.head.place()))
    }

    #[cold]
    fn panicked(&self, panic: &(dyn std::any::Any + Send), key_groups: KeyGroupCount) -> Error {
        let message = panic
            .downcast_ref::<&str>()
            .map(|message| (*message).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a message".to_owned());
        let operator = Faults::take_blamed().map_or_else(String::new, |operator| format!("{operator}, "));
        let key = Faults::take_blamed_hash().map_or_else(String::new, |hash| {
            format!("key group {}, key hash {hash:#018x}, ", key_groups.group_of(hash).0)
        });
        self.failed(ErrorKind::UserCode, &format!("{operator}{key}panicked: {message}"))
    }
}
