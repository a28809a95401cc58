//! The hash log of one shard together with the tables whose records lie in it.

use super::{Domain, Layout, Table, TableCore, TableOptions};
use crate::epoch::Epoch;
use crate::error::{Error, Result};
use crate::log::{Pages, Prefault};
use crate::value::{Key, Schema, State};
use std::collections::BTreeMap;

/// All state of one shard that is in memory. Usually part of a [`ShardStore`](crate::ShardStore).
pub struct Log {
    pub(crate) pages: Pages,
    pub(crate) tables: Vec<Option<TableCore>>,
    names: BTreeMap<Box<str>, u32>,
    free_ids: Vec<u32>,
    prefault: Prefault,
    scratch: Vec<u8>,
}

impl Log {
    /// Reserves memory for at most `bytes_max` bytes of state, indexes and buffers included; `running` is the first epoch.
    ///
    /// # Errors
    /// [`Exhausted`](crate::ErrorKind::Exhausted) when the system does not give that much.
    pub fn new(bytes_max: usize, prefault: &Prefault, running: Epoch) -> Result<Self> {
        let pages = Pages::new(bytes_max, prefault, running)?;
        Ok(Self {
            pages,
            tables: Vec::new(),
            names: BTreeMap::new(),
            free_ids: Vec::new(),
            prefault: prefault.clone(),
            scratch: Vec::new(),
        })
    }

    /// Adds a group of tables that are cut together.
    pub fn add_domain(&mut self) -> Domain {
        Domain(self.pages.epochs.add_domain())
    }

    /// The epoch that `domain` is in.
    pub fn running(&self, domain: Domain) -> Epoch {
        self.pages.epochs.running(domain.0)
    }

    /// Ends the running epoch of `domain` as `epoch`: one addition, however many tables and records there are.
    ///
    /// # Panics
    /// When the domain is beyond `epoch` already.
    pub fn cut(&mut self, domain: Domain, epoch: Epoch) {
        self.pages.epochs.cut(domain.0, epoch);
    }

    /// Cuts every domain that has not been cut at `epoch` yet.
    pub(crate) fn cut_all(&mut self, epoch: Epoch) {
        let epochs = &mut self.pages.epochs;
        for domain in 0..epochs.domains() {
            if epochs.running(domain) <= epoch {
                epochs.cut(domain, epoch);
            }
        }
        if epochs.domains() == 0 {
            epochs.cut_nothing(epoch);
        }
    }

    /// Ends `epoch` as if a manifest of it were durable, for programs that measure a log without its store.
    #[doc(hidden)]
    pub fn end_epoch_for_benches(&mut self, epoch: Epoch) {
        self.pages.epochs.complete(epoch);
        self.pages.sweep_from_start();
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
        let layout = Layout::new(K::FIXED_SIZE, V::FIXED_SIZE, options.removal);
        let (key_schema, value_schema) = (K::schema(), V::schema());
        if let Some(core) = self.names.get(name).and_then(|id| self.tables[*id as usize].as_mut()) {
            if core.is_open {
                return Err(Error::invalid(format_args!("two states are named `{name}`: give one another name")));
            }
            same_schema(name, "keys", &core.key_schema, &key_schema)?;
            same_schema(name, "values", &core.value_schema, &value_schema)?;
            if core.layout != layout {
                return Err(Error::invalid(format_args!(
                    "state `{name}` was stored as {:?} and is opened as {layout:?}: removal must stay as it was",
                    core.layout
                )));
            }
            core.is_open = true;
            let (id, old) = (core.id, core.domain);
            self.move_to_domain(id, old, domain.0);
            return Ok(Table::of(id));
        }
        let id = self.add_table(domain.0, name, (key_schema, value_schema), layout);
        self.table_mut(id).is_open = true;
        Ok(Table::of(id))
    }

    pub(crate) fn add_table(&mut self, domain: u16, name: &str, schemas: (Schema, Schema), layout: Layout) -> u32 {
        let id = self.free_ids.pop().unwrap_or_else(|| {
            self.tables.push(None);
            u32::try_from(self.tables.len() - 1).expect("fewer than 2^32 tables")
        });
        let core = TableCore::new(id, domain, name, schemas, layout, &self.prefault);
        self.pages.other_bytes += core.index.bytes();
        self.tables[id as usize] = Some(core);
        self.names.insert(name.into(), id);
        id
    }

    fn move_to_domain(&mut self, table: u32, old: u16, new: u16) {
        self.table_mut(table).domain = new;
        if old != new {
            self.pages.move_to_domain(table, new);
        }
    }

    /// Removes a state with everything in it, at once: its pages end with the running epoch.
    pub fn drop_table<K: Key + ?Sized, V: State>(&mut self, table: Table<K, V>) {
        self.drop_table_id(table.id);
    }

    pub(crate) fn drop_table_id(&mut self, id: u32) {
        if let Some(core) = self.tables[id as usize].take() {
            self.pages.other_bytes -= core.index.bytes();
            self.pages.die_all_of(id);
            self.names.remove(&core.name);
            self.free_ids.push(id);
        }
    }

    #[inline(always)]
    pub(crate) fn table(&self, id: u32) -> &TableCore {
        self.tables[id as usize].as_ref().expect("a table lives as long as its handle")
    }

    #[inline(always)]
    pub(crate) fn table_mut(&mut self, id: u32) -> &mut TableCore {
        self.tables[id as usize].as_mut().expect("a table lives as long as its handle")
    }

    /// A table, the pages, and a buffer to encode into.
    #[inline(always)]
    pub(crate) fn split(&mut self, id: u32) -> (&mut TableCore, &mut Pages, &mut Vec<u8>) {
        let core = self.tables[id as usize].as_mut().expect("a table lives as long as its handle");
        (core, &mut self.pages, &mut self.scratch)
    }
}

fn same_schema(state: &str, what: &str, stored: &Schema, opened: &Schema) -> Result<()> {
    if stored == opened {
        return Ok(());
    }
    Err(Error::invalid(format_args!(
        "state `{state}`: its {what} were stored as {stored:?}, but the job keeps {opened:?}"
    )))
}
