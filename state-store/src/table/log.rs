//! The hash log of one shard together with the tables whose records lie in it.
//!
//! Invariants
//! * I1. A state has one number for ever, made from its name: extents of any shard and any run carry it.
//! * I2. Whatever a pending snapshot may contain is described in `known`, also when its table has been dropped since.

use super::{Domain, Layout, Table, TableCore, TableOptions};
use crate::epoch::Epoch;
use crate::error::{Error, Result};
use crate::format::TableEntry;
use crate::hash::{hash_bytes, hash_u64};
use crate::log::{Pages, Prefault, TableRef};
use crate::value::{Key, Schema, State};
use std::collections::BTreeMap;

/// All state of one shard that is in memory. Usually part of a [`ShardStore`](crate::ShardStore).
pub struct Log {
    pub(crate) pages: Pages,
    pub(crate) tables: Vec<Option<TableCore>>,
    names: BTreeMap<Box<str>, u32>,
    free_ids: Vec<u32>,
    known: BTreeMap<u32, Known>,
    /// Numbers of dropped states, and the first epoch without each.
    dropped: Vec<(Epoch, u32)>,
    prefault: Prefault,
    scratch: Vec<u8>,
}

/// A state as manifests describe it.
pub(crate) struct Known {
    pub(crate) entry: TableEntry,
    /// Fingerprint of its two schemas and its options: what extents carry.
    pub(crate) schema: u64,
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
            known: BTreeMap::new(),
            dropped: Vec::new(),
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

    /// Ends `epoch` as if a manifest of it were durable, for programs that measure a log without its store.
    #[doc(hidden)]
    pub fn end_epoch_for_benches(&mut self, epoch: Epoch) {
        self.pages.epochs.complete(epoch);
        self.pages.sweep_from_start();
        self.pages.take_unwritten(epoch);
    }

    /// Opens the state `name`: one that was restored, or a new one.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) when a restored state has other types or options, or the name is taken; also
    /// when the type has an [opaque](crate::Schema::Opaque) part and a restored value is none of that type: for such types
    /// opening reads the whole state.
    pub fn open_table<K: Key + ?Sized, V: State>(
        &mut self,
        name: &str,
        domain: Domain,
        options: TableOptions,
    ) -> Result<Table<K, V>> {
        let layout = Layout::new(K::FIXED_SIZE, V::FIXED_SIZE, options.removal);
        let entry = entry_of(name, K::schema(), V::schema());
        if let Some(known) = self.known.get(&entry.id) {
            same_state(&known.entry, &entry)?;
        }
        if let Some(&id) = self.names.get(name) {
            let core = self.table_mut(id);
            if core.is_open {
                return Err(Error::invalid(format_args!("two states are named `{name}`: give one another name")));
            }
            if core.layout != layout {
                let (stored, opened) = (core.layout.removal, layout.removal);
                return Err(Error::invalid(format_args!(
                    "state `{name}` was stored with removal: {stored}, and is opened with removal: {opened}"
                )));
            }
            if V::schema().is_opaque() {
                Table::<K, V>::of(id).check_values(self)?;
            }
            let core = self.table_mut(id);
            core.is_open = true;
            core.domain = domain.0;
            self.pages.move_to_domain(id, domain.0);
            return Ok(Table::of(id));
        }
        let id = self.add_table(domain.0, entry, layout);
        self.table_mut(id).is_open = true;
        Ok(Table::of(id))
    }

    /// Adds a state that has no table yet.
    pub(crate) fn add_table(&mut self, domain: u16, entry: TableEntry, layout: Layout) -> u32 {
        let id = self.free_ids.pop().unwrap_or_else(|| {
            self.tables.push(None);
            u32::try_from(self.tables.len() - 1).expect("fewer than 2^32 tables")
        });
        let itself = TableRef { id, number: entry.id };
        let core = TableCore::new(itself, domain, &entry.name, layout, &self.prefault);
        self.pages.other_bytes += core.index.bytes();
        self.tables[id as usize] = Some(core);
        self.names.insert(entry.name.as_str().into(), id);
        let schema = schema_fingerprint(&entry.key, &entry.value, layout.removal);
        self.known.insert(entry.id, Known { entry, schema });
        id
    }

    /// Describes a state of a manifest that may have no extent for this shard, so that opening it is checked all the same.
    pub(crate) fn declare(&mut self, entry: &TableEntry) {
        let schema = schema_fingerprint(&entry.key, &entry.value, false);
        self.known.entry(entry.id).or_insert_with(|| Known { entry: entry.clone(), schema });
    }

    /// Makes room in the index of a table that is about to be filled.
    pub(crate) fn reserve_index(&mut self, id: u32, records: u64) {
        let (core, pages, _) = self.split(id);
        let before = core.index.bytes();
        core.index.reserve(records);
        pages.other_bytes = pages.other_bytes + core.index.bytes() - before;
    }

    /// The description of a state.
    pub(crate) fn known(&self, number: u32) -> &Known {
        &self.known[&number]
    }

    /// Bytes of records ever appended, copies included. Cost: one step per table.
    pub(crate) fn appended_bytes(&self) -> u64 {
        let open = self.tables.iter().flatten().map(|core| core.open_bytes(&self.pages));
        self.pages.appended_bytes() + open.sum::<u64>()
    }

    /// Names of restored states that hold keys and that nobody has opened.
    pub(crate) fn unopened(&self) -> impl Iterator<Item = &TableCore> {
        self.tables.iter().flatten().filter(|core| !core.is_open)
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
            self.dropped.push((self.pages.epochs.running(core.domain), core.itself.number));
        }
    }

    /// Forgets dropped states that no pending snapshot contains.
    pub(crate) fn forget_dropped(&mut self) {
        let oldest = self.pages.epochs.pending().first().copied();
        let is_needed = |epoch: Epoch| oldest.is_some_and(|oldest| oldest < epoch);
        let ended: Vec<u32> = self.dropped.iter().filter(|(epoch, _)| !is_needed(*epoch)).map(|(_, id)| *id).collect();
        self.dropped.retain(|(epoch, _)| is_needed(*epoch));
        for number in ended {
            // A state of that name may have been opened again, or dropped again since.
            let is_open = self.known.get(&number).is_some_and(|known| self.names.contains_key(&*known.entry.name));
            if !is_open && !self.dropped.iter().any(|(_, other)| *other == number) {
                self.known.remove(&number);
            }
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

/// What extents say of their records: both schemas, and whether the table's records have flags.
pub(crate) fn schema_fingerprint(key: &Schema, value: &Schema, removal: bool) -> u64 {
    hash_u64(key.fingerprint() ^ hash_u64(value.fingerprint() ^ u64::from(removal)))
}

fn entry_of(name: &str, key: Schema, value: Schema) -> TableEntry {
    let number = hash_bytes(name.as_bytes()) as u32;
    TableEntry { id: number, name: name.to_owned(), key, value, clock_ms: None }
}

/// What to do about a state whose type has changed.
pub const NOT_MIGRATED: &str = "stored values are not migrated: keep the old type; or begin again in a new state directory, from \
                                the start of the source; or give the state another name, under which it begins empty";

fn same_state(stored: &TableEntry, opened: &TableEntry) -> Result<()> {
    let name = &opened.name;
    if stored.name != *name {
        return Err(Error::invalid(format_args!(
            "states `{name}` and `{}` have the same number {}: give one of them another name",
            stored.name, stored.id
        )));
    }
    for (what, stored, opened) in [("keys", &stored.key, &opened.key), ("values", &stored.value, &opened.value)] {
        if let Some(difference) = Schema::difference(stored, opened) {
            return Err(Error::invalid(format_args!(
                "state `{name}`: its {what} were stored as {stored}, the job keeps {opened}: {difference}; {NOT_MIGRATED}"
            )));
        }
    }
    Ok(())
}
