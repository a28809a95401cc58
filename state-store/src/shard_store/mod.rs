//! All keyed state of one shard: its log, its tables, its epochs, and how they become durable.
//!
//! The store does no I/O of its own: [`ShardStore::turn`] is given a disk and the time, and does one small step.
//!
//! ```text
//! cut(n) -> (append_channel_log, seal)(n) -> turn* -> take_result() = n -> complete(n) or abandon(n)
//! ```
//!
//! Invariants
//! * I1. Every domain is cut at an epoch before the epoch is flushed.
//! * I2. What a result names is durable, and stays until a later epoch is complete or the epoch is given up.
//! * I3. A page is reused only when every epoch whose cut holds it is complete or given up.
//! * I4. All memory counts against one limit: pages, indexes, channel logs.

#![allow(clippy::cast_possible_truncation, reason = "offsets and lengths within an extent are below 2^20")]

mod channel_log;
mod clean;
mod flush;
mod pace;
mod restore;
mod rewrite;

#[cfg(feature = "planted-bugs")]
pub use crate::log::Fault;
pub use channel_log::ChannelId;
pub use flush::{FlushStats, ShardExtents, ShardSnapshot};
pub use restore::{Restore, RestoreInput, RestoreStats, Restored};

use crate::epoch::Epoch;
use crate::error::{Error, Result};
use crate::io::Disk;
use crate::key_group::{KeyGroupCount, KeyGroupRange};
use crate::log::Prefault;
use crate::snapshot::{FreedSegment, SegmentConfig};
use crate::table::{Domain, Log, Table, TableOptions};
use crate::value::{Key, State};
use clean::Cleaner;
use flush::Flusher;
use rewrite::Rewriter;
use std::path::PathBuf;

/// Held pages looked at in one turn.
const TURN_SWEEP: usize = 256;

/// Settings of a [`ShardStore`].
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// This shard.
    pub shard: u32,
    /// Shards of the job.
    pub shards: u32,
    /// Key groups of the job.
    pub key_groups: KeyGroupCount,
    /// The first epoch: above every epoch found on disk.
    pub running: Epoch,
    /// Most bytes of state memory: pages, indexes and channel logs.
    pub memory_bytes_max: usize,
    /// When memory is made present.
    pub prefault: Prefault,
    /// Most bytes a second that snapshots write; zero for as fast as the disk takes them.
    pub flush_bytes_per_second: u64,
    /// Pages may take this many times the bytes that live in them before sparse ones are cleaned, and files once more than
    /// that before sparse ones are emptied. Less memory costs more
    /// writing: at 1.5 uniform churn writes 1.7 times the changed bytes, at 2.0 1.26 times, at 2.5 1.12 times.
    pub space_factor: f64,
    /// Where and how segment files are written.
    pub segments: SegmentConfig,
}

impl StoreConfig {
    /// Settings for shard `shard` of `shards`, in the `run` of a job (its fencing token) that starts with epoch `running`.
    ///
    /// 1 GiB of memory, touched as it is used; flushing at most 400 MB a second.
    pub fn new(directory: PathBuf, run: u32, shard: u32, shards: u32, running: Epoch) -> Self {
        Self {
            shard,
            shards,
            key_groups: KeyGroupCount::DEFAULT,
            running,
            memory_bytes_max: 1 << 30,
            prefault: Prefault::None,
            flush_bytes_per_second: 400_000_000,
            space_factor: 2.0,
            segments: SegmentConfig::new(directory, run, shard),
        }
    }

    /// The key groups that the shard owns.
    pub fn own_groups(&self) -> KeyGroupRange {
        self.key_groups.range_of(self.shard, self.shards)
    }
}

/// Whether a store has something to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreActivity {
    /// Nothing until the next cut, seal or end of an epoch.
    Idle,
    /// Waits: for the disk, for its pace, or for [`ShardStore::seal`].
    Waiting,
    /// Another turn does something at once.
    Busy,
}

/// What a store holds, in bytes unless said otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreStats {
    /// Records that are reachable.
    pub live_bytes: u64,
    /// Pages, with what is dead or unused in them.
    pub page_bytes: u64,
    /// Indexes.
    pub index_bytes: u64,
    /// Dead pages that epochs in flight hold.
    pub held_bytes: u64,
    /// Records ever appended, copies after a cut included.
    pub appended_bytes: u64,
    /// The limit.
    pub memory_bytes_max: u64,
    /// Keys in all tables.
    pub keys: u64,
    /// Number of tables.
    pub tables: u64,
    /// Overflow buckets of indexes: many for the number of keys mean longer look-ups.
    pub overflow_buckets: u64,
    /// Tombstones kept for older extents.
    pub tombstones: u64,
    /// Channel logs in memory.
    pub channel_log_bytes: u64,
    /// Bytes that snapshots have written.
    pub written_bytes: u64,
    /// Segment files as far as they have been written, and of that what is of use.
    pub file_bytes: u64,
    /// Extents in those files that the next snapshot would name.
    pub file_bytes_used: u64,
    /// Pages written again to empty sparse files.
    pub rewritten_pages: u64,
    /// Memory above what [`StoreConfig::space_factor`] allows, which cleaning is working off.
    pub debt_bytes: u64,
    /// Bytes of records that cleaning has moved.
    pub moved_bytes: u64,
}

/// All keyed state of one shard.
///
/// ```
/// use millstream_state::io::sim::{SimConfig, SimDisk};
/// use millstream_state::shard_store::{ShardStore, StoreConfig};
/// use millstream_state::{Epoch, Table, hash::hash_u64, table::TableOptions};
///
/// let mut disk = SimDisk::new(1, SimConfig::default());
/// # use millstream_state::io::Files;
/// # disk.create_dir_all("/state".as_ref()).unwrap();
/// let config = StoreConfig { memory_bytes_max: 16 << 20, ..StoreConfig::new("/state".into(), 1, 0, 1, Epoch(1)) };
/// let mut store = ShardStore::new(config)?;
/// let domain = store.domain();
/// let counts: Table<u64, u64> = store.open_table("counts", domain, TableOptions::default())?;
/// counts.put(store.log_mut(), hash_u64(7), &7u64.to_le_bytes(), &1)?;
///
/// store.cut(Epoch(1));
/// store.seal(Epoch(1));
/// let mut now_ns = 0;
/// let snapshot = loop {
///     store.turn(&mut disk, now_ns);
///     now_ns += 10_000;
///     if let Some(snapshot) = store.take_result() {
///         break snapshot;
///     }
/// };
/// assert_eq!(snapshot.result?.extents.len(), 1);
/// store.complete(Epoch(1));
/// # Ok::<(), millstream_state::Error>(())
/// ```
pub struct ShardStore {
    config: StoreConfig,
    log: Log,
    flusher: Flusher,
    cleaner: Cleaner,
    rewriter: Rewriter,
    /// Bytes of channel logs that the limit counts already.
    log_bytes: u64,
}

impl ShardStore {
    /// An empty store.
    ///
    /// # Errors
    /// [`Exhausted`](crate::ErrorKind::Exhausted) when the system does not give that much memory.
    pub fn new(config: StoreConfig) -> Result<Self> {
        let log = Log::new(config.memory_bytes_max, &config.prefault, config.running)?;
        let restored = Epoch(config.running.0.saturating_sub(1));
        let rate = config.flush_bytes_per_second;
        let flusher = Flusher::new(config.segments.clone(), rate, config.own_groups(), restored);
        let cleaner = Cleaner::new(config.space_factor);
        let rewriter = Rewriter::new(config.space_factor, config.segments.segment_bytes_min);
        Ok(Self { config, log, flusher, cleaner, rewriter, log_bytes: 0 })
    }

    /// The settings.
    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// What the calls of a [`Table`] work on.
    #[inline(always)]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// What the calls of a [`Table`] work on.
    #[inline(always)]
    pub fn log_mut(&mut self) -> &mut Log {
        &mut self.log
    }

    /// Adds a group of tables that are cut together: one per stage.
    pub fn domain(&mut self) -> Domain {
        self.log.add_domain()
    }

    /// Opens the state `name`: one that was restored, or a new one.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) when a restored state has other types or options, or the name is taken.
    pub fn open_table<K: Key + ?Sized, V: State>(
        &mut self,
        name: &str,
        domain: Domain,
        options: TableOptions,
    ) -> Result<Table<K, V>> {
        self.log.open_table(name, domain, options)
    }

    /// Removes a state with everything in it; later snapshots do without it.
    pub fn drop_table<K: Key + ?Sized, V: State>(&mut self, table: Table<K, V>) {
        self.log.drop_table(table);
    }

    /// The epoch that `domain` is in.
    pub fn running(&self, domain: Domain) -> Epoch {
        self.log.running(domain)
    }

    /// Cuts every domain that has not been cut at `epoch` yet: what was written so far is snapshot `epoch`, what is
    /// written from now on belongs to the next. Cost: one addition per domain.
    pub fn cut(&mut self, epoch: Epoch) {
        self.log.pages.epochs.cut_all(epoch);
    }

    /// Cuts one domain at `epoch`; the snapshot waits for the others.
    ///
    /// # Panics
    /// When the domain is beyond `epoch` already.
    pub fn cut_domain(&mut self, domain: Domain, epoch: Epoch) {
        self.log.cut(domain, epoch);
    }

    /// The coordinator has a durable manifest of `epoch`: it and every earlier one need nothing any more.
    pub fn complete(&mut self, epoch: Epoch) {
        self.log.pages.epochs.complete(epoch);
        self.flusher.complete(epoch);
        self.rewriter.epoch_completed();
        self.epoch_ended();
    }

    /// The coordinator has given `epoch` up: what only it needs is free.
    pub fn abandon(&mut self, epoch: Epoch) {
        self.log.pages.epochs.abandon(epoch);
        self.flusher.abandon(epoch);
        self.epoch_ended();
    }

    fn epoch_ended(&mut self) {
        self.log.pages.sweep_from_start();
        let oldest = self.log.pages.epochs.pending().first().copied();
        self.log.pages.files.epoch_ended(oldest);
        self.log.forget_dropped();
        self.count_logs();
    }

    fn count_logs(&mut self) {
        let now = self.flusher.channel_logs.bytes();
        let before = std::mem::replace(&mut self.log_bytes, now);
        self.log.pages.other_bytes = self.log.pages.other_bytes + now - before;
    }

    /// Appends records that barrier `epoch` has overtaken on a channel, as the bytes that a restore gives back.
    ///
    /// # Errors
    /// [`Exhausted`](crate::ErrorKind::Exhausted) when the state memory is full; nothing was appended.
    ///
    /// # Panics
    /// When the logs of the epoch are sealed already.
    pub fn append_channel_log(&mut self, epoch: Epoch, channel: ChannelId, bytes: &[u8]) -> Result<()> {
        let full = self.log.pages.full();
        if full.bytes_used + bytes.len() as u64 > full.bytes_max {
            return Err(Error::exhausted(format_args!(
                "channel log of epoch {epoch}: {} of {} bytes of state memory are in use; raise --state-memory",
                full.bytes_used, full.bytes_max
            )));
        }
        self.flusher.channel_logs.append(epoch, channel, bytes);
        self.count_logs();
        Ok(())
    }

    /// Says that all channel logs of `epoch` are in: from here on its snapshot can become durable.
    ///
    /// # Panics
    /// When called twice for an epoch.
    pub fn seal(&mut self, epoch: Epoch) {
        self.flusher.channel_logs.seal(epoch);
    }

    /// One small step: frees what no epoch holds any more, and brings the oldest cut epoch a block closer to the disk.
    ///
    /// `now_ns` is any clock that does not go back; the pace of flushing goes by it. Cost: at most some 20 us.
    pub fn turn(&mut self, disk: &mut dyn Disk, now_ns: u64) -> StoreActivity {
        let sweeping = self.log.pages.sweep(TURN_SWEEP);
        for segment in self.log.pages.files.take_released() {
            self.flusher.writer().release(segment);
        }
        let cleaning = self.cleaner.turn(&mut self.log) | self.rewriter.turn(&mut self.log);
        let flushing = self.flusher.turn(&mut self.log, disk, now_ns);
        self.count_logs();
        if sweeping || cleaning { StoreActivity::Busy } else { flushing }
    }

    /// A snapshot that has become durable here, or has failed; each once, in order.
    pub fn take_result(&mut self) -> Option<ShardSnapshot> {
        self.flusher.take_result()
    }

    /// Segment files that this store needs no more, since the last call: the coordinator recycles or removes each as soon
    /// as no manifest and no pin names it.
    pub fn take_freed(&mut self) -> Vec<FreedSegment> {
        self.flusher.writer().take_freed()
    }

    /// Gives a freed file back to be written over; returns it when there are enough and it is to be removed.
    ///
    /// # Panics
    /// When the file is not recyclable, or not one of this store's.
    pub fn recycle(&mut self, freed: FreedSegment) -> Option<FreedSegment> {
        self.flusher.writer().recycle(freed)
    }

    /// Names of restored states that hold keys or tombstones and that nobody has opened: the job no longer has them.
    pub fn unopened(&self) -> Vec<&str> {
        self.log.unopened().map(|core| &*core.name).collect()
    }

    /// Removes the states that nobody has opened.
    pub fn drop_unopened(&mut self) {
        let ids: Vec<u32> = self.log.unopened().map(|core| core.itself.id).collect();
        ids.into_iter().for_each(|id| self.log.drop_table_id(id));
    }

    /// Says whether memory is short while something is under way that frees some: sources should hold back. When memory
    /// is short and nothing can free any, the next call that needs some returns the error.
    pub fn is_pressed(&self) -> bool {
        let full = self.log.pages.full();
        let is_short = full.bytes_used > full.bytes_max / 8 * 7;
        is_short && (self.log.pages.held_bytes() > 0 || self.cleaner.debt_bytes(&self.log) > 0)
    }

    /// What the store holds now. Cost: one step per table.
    pub fn stats(&self) -> StoreStats {
        let pages = &self.log.pages;
        let tables = || self.log.tables.iter().flatten();
        let (file_bytes, file_bytes_used) = pages.files.bytes(self.config.segments.segment_bytes_min, |_| false);
        StoreStats {
            live_bytes: pages.live_bytes(),
            page_bytes: pages.page_bytes(),
            index_bytes: tables().map(|table| table.index.bytes()).sum(),
            held_bytes: pages.held_bytes(),
            appended_bytes: self.log.appended_bytes(),
            memory_bytes_max: self.config.memory_bytes_max as u64,
            keys: tables().map(|table| table.keys).sum(),
            tables: tables().count() as u64,
            overflow_buckets: tables().map(|table| table.index.overflow_buckets()).sum(),
            tombstones: tables().map(|table| table.tombstones).sum(),
            channel_log_bytes: self.log_bytes,
            written_bytes: self.flusher.bytes_written,
            file_bytes,
            file_bytes_used,
            rewritten_pages: self.rewriter.pages,
            debt_bytes: self.cleaner.debt_bytes(&self.log),
            moved_bytes: self.cleaner.moved_bytes,
        }
    }

    /// Plants a bug.
    #[cfg(feature = "planted-bugs")]
    pub fn plant(&mut self, fault: Fault) {
        self.log.pages.faults.plant(fault);
    }
}

#[cfg(test)]
mod tests;
