//! Where a stage puts what comes out of its chain: an exchange, a union or a sink.

use crate::Result;
use crate::exchange::{BarrierMode, Freight, KeyFreight, LogPiece, Outbox, RecordFreight};
use crate::items::{Items, Own};
use crate::key_of::KeyOf;
use crate::sink::{SinkActivity, SinkWriter};
use millstream_state::io::Disk;
use millstream_state::{Epoch, Key, Record};
use std::marker::PhantomData;

/// Whether an output has something under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OutputActivity {
    /// Nothing held, nothing under way.
    Idle,
    /// Something is under way; ask again soon.
    Waiting,
    /// Work was done.
    Busy,
}

/// See the module.
pub(crate) trait Output<I: Items>: 'static {
    /// Takes one item.
    fn push(&mut self, item: I::Of<'_>);

    /// Moves on what is held back; says whether the stage may take new input.
    fn ready(&mut self) -> bool;

    /// Publishes or writes what was taken, without blocking.
    fn turn(&mut self, disk: &mut dyn Disk, now_ns: u64) -> Result<OutputActivity>;

    /// Says that no more items come.
    fn end(&mut self);

    /// The shard's cut.
    fn cut(&mut self, epoch: Epoch, mode: BarrierMode);

    /// Hands a step of what cuts have overtaken behind the stage to `log`; says whether there was any.
    fn log_overtaken(&mut self, _log: &mut LogPiece<'_>) -> bool {
        false
    }

    /// Whether everything that was held back at the cut of `epoch` is in its channel log.
    fn is_logged(&self, _epoch: Epoch) -> bool {
        true
    }

    /// Stops logging for an epoch that is complete or given up, and for all before it.
    fn forget(&mut self, _epoch: Epoch) {}

    /// How preparing a cut epoch ended, once.
    fn take_prepared(&mut self, epoch: Epoch) -> Option<Result<Vec<Vec<u8>>>>;

    /// Lets what was cut for `epoch` and is not prepared yet join the next epoch.
    fn give_up(&mut self, _epoch: Epoch) {}

    /// Adds the shards that have something new to look at.
    fn take_published(&mut self, peers: &mut Vec<u32>);
}

/// What an item is on the wire of an exchange: only its key, or all of it.
pub(crate) trait Load<I: Items, K: ?Sized>: 'static {
    type Freight: Freight;
    fn load<'a>(item: &'a I::Of<'_>, key: &'a K) -> &'a <Self::Freight as Freight>::Load;
}

/// Only the key crosses.
pub(crate) struct KeyOnly;

impl<I: Items, K: Key + ?Sized> Load<I, K> for KeyOnly {
    type Freight = KeyFreight<K>;
    #[inline(always)]
    fn load<'a>(_: &'a I::Of<'_>, key: &'a K) -> &'a K {
        key
    }
}

/// The whole record crosses.
pub(crate) struct WholeRecord;

impl<R: Record, K: ?Sized> Load<Own<R>, K> for WholeRecord {
    type Freight = RecordFreight<R>;
    #[inline(always)]
    fn load<'a>(item: &'a R, _: &'a K) -> &'a R {
        item
    }
}

/// How an item finds its way out of a stage.
pub(crate) trait Route<I: Items>: 'static {
    /// Hands the item to the outbox.
    fn send(&mut self, item: I::Of<'_>, outbox: &mut Outbox);
}

/// To the shard that owns its key.
pub(crate) struct ByKey<N, L> {
    key_of: N,
    load: PhantomData<fn() -> L>,
}

impl<N, L> ByKey<N, L> {
    pub(crate) fn new(key_of: N) -> Self {
        Self { key_of, load: PhantomData }
    }
}

impl<I: Items, N: KeyOf<I>, L: Load<I, N::Key>> Route<I> for ByKey<N, L> {
    #[inline(always)]
    fn send(&mut self, item: I::Of<'_>, outbox: &mut Outbox) {
        self.key_of.with_key(&item, |key| outbox.send::<L::Freight>(key.stable_hash(), L::load(&item, key)));
    }
}

/// To the same shard.
pub(crate) struct Here;

impl<R: Record> Route<Own<R>> for Here {
    #[inline(always)]
    fn send(&mut self, item: R, outbox: &mut Outbox) {
        outbox.send::<RecordFreight<R>>(0, &item);
    }
}

/// Into the edge to another stage.
pub(crate) struct EdgeOutput<T> {
    outbox: Outbox,
    route: T,
}

impl<T> EdgeOutput<T> {
    pub(crate) fn new(outbox: Outbox, route: T) -> Self {
        Self { outbox, route }
    }
}

impl<I: Items, T: Route<I>> Output<I> for EdgeOutput<T> {
    #[inline(always)]
    fn push(&mut self, item: I::Of<'_>) {
        self.route.send(item, &mut self.outbox);
    }
    fn ready(&mut self) -> bool {
        self.outbox.ready()
    }
    fn turn(&mut self, _: &mut dyn Disk, _: u64) -> Result<OutputActivity> {
        self.outbox.publish();
        Ok(if self.outbox.is_drained() { OutputActivity::Idle } else { OutputActivity::Waiting })
    }
    fn end(&mut self) {
        self.outbox.end();
    }
    fn cut(&mut self, epoch: Epoch, mode: BarrierMode) {
        self.outbox.cut(epoch, mode);
    }
    fn log_overtaken(&mut self, log: &mut LogPiece<'_>) -> bool {
        self.outbox.log_overtaken(log)
    }
    fn is_logged(&self, epoch: Epoch) -> bool {
        self.outbox.is_logged(epoch)
    }
    fn forget(&mut self, epoch: Epoch) {
        self.outbox.forget(epoch);
    }
    fn take_prepared(&mut self, _: Epoch) -> Option<Result<Vec<Vec<u8>>>> {
        Some(Ok(Vec::new()))
    }
    fn take_published(&mut self, peers: &mut Vec<u32>) {
        self.outbox.take_published(peers);
    }
}

/// A sink.
pub(crate) struct SinkOutput<W> {
    writer: W,
}

impl<W> SinkOutput<W> {
    pub(crate) fn new(writer: W) -> Self {
        Self { writer }
    }
}

impl<I: Items, W: SinkWriter<I>> Output<I> for SinkOutput<W> {
    #[inline(always)]
    fn push(&mut self, item: I::Of<'_>) {
        self.writer.write(item);
    }
    fn ready(&mut self) -> bool {
        self.writer.ready()
    }
    fn turn(&mut self, disk: &mut dyn Disk, now_ns: u64) -> Result<OutputActivity> {
        Ok(match self.writer.turn(disk, now_ns)? {
            SinkActivity::Idle => OutputActivity::Idle,
            SinkActivity::Waiting => OutputActivity::Waiting,
            SinkActivity::Busy => OutputActivity::Busy,
        })
    }
    fn end(&mut self) {}
    fn cut(&mut self, epoch: Epoch, _: BarrierMode) {
        self.writer.prepare(epoch);
    }
    fn take_prepared(&mut self, epoch: Epoch) -> Option<Result<Vec<Vec<u8>>>> {
        self.writer.take_prepared(epoch)
    }
    fn give_up(&mut self, epoch: Epoch) {
        self.writer.abandon(epoch);
    }
    fn take_published(&mut self, _: &mut Vec<u32>) {}
}
