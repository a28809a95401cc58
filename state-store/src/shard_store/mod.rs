//! All keyed state of one shard: its log, its tables, its epochs.
//!
//! Invariants
//! * I1. Every domain is cut at an epoch before the epoch is complete.

use crate::epoch::Epoch;
use crate::error::Result;
use crate::key_group::KeyGroupCount;
#[cfg(feature = "planted-bugs")]
pub use crate::log::Fault;
use crate::log::Prefault;
use crate::table::{Domain, Log, Table, TableOptions};
use crate::value::{Key, State};

/// Settings of a [`ShardStore`].
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// This shard.
    pub shard: u32,
    /// Shards of the job.
    pub shards: u32,
    /// Key groups of the job.
    pub key_groups: KeyGroupCount,
    /// Most bytes of state memory: pages, indexes, channel logs and buffers.
    pub memory_bytes_max: usize,
    /// When memory is made present.
    pub prefault: Prefault,
    /// The first epoch.
    pub running: Epoch,
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
}

/// All keyed state of one shard.
///
/// ```
/// use millstream_state::shard_store::{ShardStore, StoreConfig};
/// use millstream_state::{Epoch, KeyGroupCount, Table, hash::hash_u64, table::TableOptions};
///
/// let mut store = ShardStore::new(StoreConfig {
///     shard: 0,
///     shards: 1,
///     key_groups: KeyGroupCount::DEFAULT,
///     memory_bytes_max: 16 << 20,
///     prefault: Default::default(),
///     running: Epoch(1),
/// })?;
/// let domain = store.domain();
/// let counts: Table<u64, u64> = store.open_table("counts", domain, TableOptions::default())?;
/// counts.put(store.log_mut(), hash_u64(7), &7u64.to_le_bytes(), &1)?;
/// store.cut(Epoch(1));
/// assert_eq!(store.running(domain), Epoch(2));
/// # Ok::<(), millstream_state::Error>(())
/// ```
pub struct ShardStore {
    config: StoreConfig,
    log: Log,
}

impl ShardStore {
    /// An empty store.
    ///
    /// # Errors
    /// [`Exhausted`](crate::ErrorKind::Exhausted) when the system does not give that much memory.
    pub fn new(config: StoreConfig) -> Result<Self> {
        let log = Log::new(config.memory_bytes_max, &config.prefault, config.running)?;
        Ok(Self { config, log })
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
        self.log.cut_all(epoch);
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
        self.log.pages.sweep_from_start();
    }

    /// The coordinator has given `epoch` up: what only it needs is free.
    pub fn abandon(&mut self, epoch: Epoch) {
        self.log.pages.epochs.abandon(epoch);
        self.log.pages.sweep_from_start();
    }

    /// What the store holds now. Cost: one step per table.
    pub fn stats(&self) -> StoreStats {
        let pages = &self.log.pages;
        let tables = || self.log.tables.iter().flatten();
        StoreStats {
            live_bytes: pages.live_bytes(),
            page_bytes: pages.page_bytes(),
            index_bytes: tables().map(|table| table.index.bytes()).sum(),
            held_bytes: pages.held_bytes(),
            appended_bytes: pages.appended_bytes(),
            memory_bytes_max: self.config.memory_bytes_max as u64,
            keys: tables().map(|table| table.keys).sum(),
            tables: tables().count() as u64,
        }
    }

    /// Plants a bug.
    #[cfg(feature = "planted-bugs")]
    pub fn plant(&mut self, fault: Fault) {
        self.log.pages.faults.plant(fault);
    }
}
