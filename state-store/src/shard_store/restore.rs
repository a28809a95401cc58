//! Builds a store from the extents of a snapshot, whatever number of shards wrote it.
//!
//! Extents are applied **newest first**: the first version of a key that is met is the one that counts, so nothing is ever
//! superseded while records are being placed, and a sparse extent can be copied out at once.
//!
//! Invariants
//! * I1. Order is (epoch born, then sequence within one run and shard), newest first, and from last to first within an
//!   extent. One key is in extents of two shards only if those belong to different epochs.
//! * I2. Of an extent only key groups that its entry is authoritative for and that this shard owns are taken.
//! * I3. Every byte is checked before it is used: the CRC, the header against the manifest, then each record's lengths.
//! * I4. An extent that is mostly ours stays one: its page keeps its birth and its place on disk, and the next snapshot
//!   names it again. Of one that is mostly others' the records are copied into pages of the running epoch.
//!
//! Cost: one sequential read of what is needed, a hash and an insertion per record.

use super::channel_log::ChannelId;
use super::{ShardStore, StoreConfig};
use crate::epoch::Epoch;
use crate::error::{Error, Result};
use crate::format::{ExtentEntry, ExtentHeader, Manifest, SegmentId, TableEntry, segment_file};
use crate::hash::hash_bytes;
use crate::io::{ALIGNMENT_BYTES, Buffer, Disk, Done, FileId, REQUEST_BYTES_MAX, Request, Token};
use crate::key_group::{KeyGroupCount, KeyGroupRange};
use crate::log::{Epochs, PAGE_HEADER_BYTES};
use crate::table::{BELOW_CUT, DEAD, Layout, TOMBSTONE, schema_fingerprint};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;

/// Reads under way at once.
const DEPTH: usize = 4;
/// Files open at once.
const FILES_MAX: usize = 32;
/// Records whose look-ups overlap.
const PIECE: usize = 64;
/// A read that moves nothing this often in a row is an error.
const STALLS_MAX: u32 = 16;

/// What a shard restores: its part of a manifest.
#[derive(Clone, Debug, Default)]
pub struct RestoreInput {
    /// Where the segment files are.
    pub directory: PathBuf,
    /// The epoch restored.
    pub epoch: Epoch,
    /// The states of the manifest.
    pub tables: Vec<TableEntry>,
    /// Extents of tables that may hold keys of this shard; of any former shard.
    pub extents: Vec<ExtentEntry>,
    /// Channel logs to be read, each named as the caller likes.
    pub channel_logs: Vec<(ChannelId, Vec<ExtentEntry>)>,
}

impl RestoreInput {
    /// The extents and states that shard `shard` of `shards` needs of `manifest`. Which channel logs it reads is the
    /// caller's choice.
    pub fn of(manifest: &Manifest, directory: PathBuf, shard: u32, shards: u32) -> Self {
        let own = manifest.key_groups.range_of(shard, shards);
        let is_needed = |extent: &&ExtentEntry| !extent.header.groups.intersect(own).is_empty();
        Self {
            directory,
            epoch: manifest.epoch,
            tables: manifest.tables.clone(),
            extents: manifest.shards.iter().flatten().filter(is_needed).copied().collect(),
            channel_logs: Vec::new(),
        }
    }
}

/// A restored store and what else was in the snapshot for it.
pub struct Restored {
    /// The store; its tables wait to be [opened](ShardStore::open_table).
    pub store: ShardStore,
    /// The bytes of each channel log asked for.
    pub channel_logs: Vec<(ChannelId, Vec<u8>)>,
    /// What it took.
    pub stats: RestoreStats,
}

/// What a restore took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RestoreStats {
    /// Bytes read.
    pub bytes_read: u64,
    /// Extents applied.
    pub extents: u64,
    /// Records taken over, tombstones included.
    pub records: u64,
    /// Of those, records copied out of extents that mostly belong to other shards.
    pub records_copied: u64,
}

/// One request, for extents that lie next to each other.
struct Read {
    segment: SegmentId,
    offset: u64,
    bytes: usize,
    extents: Vec<ExtentEntry>,
    token: Option<Token>,
    buffer: Option<Buffer>,
    /// Bytes of the front that have arrived.
    filled: usize,
    stalls: u32,
}

/// A restore under way: call [`turn`](Restore::turn) until it returns the store.
pub struct Restore {
    store: Option<ShardStore>,
    directory: PathBuf,
    epoch: Epoch,
    key_groups: KeyGroupCount,
    own: KeyGroupRange,
    entries: BTreeMap<u32, TableEntry>,
    tables: BTreeMap<u32, u32>,
    reads: VecDeque<Read>,
    opening: Option<(SegmentId, Token)>,
    files: BTreeMap<SegmentId, FileId>,
    closing: Vec<Token>,
    channels: Vec<(ChannelId, Vec<u8>)>,
    channel_of: BTreeMap<(SegmentId, u64), usize>,
    stats: RestoreStats,
}

impl Restore {
    /// Begins a restore. `config.running` must be above the epoch restored.
    ///
    /// # Errors
    /// [`Exhausted`](crate::ErrorKind::Exhausted) when the system does not give the memory; [`Corrupt`](crate::ErrorKind::Corrupt)
    /// when the input contradicts itself.
    pub fn new(config: StoreConfig, input: RestoreInput) -> Result<Self> {
        assert!(config.running > input.epoch, "epoch {} runs after a restore of {}", config.running, input.epoch);
        let own = config.own_groups();
        let key_groups = config.key_groups;
        let mut store = ShardStore::new(config)?;
        input.tables.iter().for_each(|entry| store.log.declare(entry));
        let mut extents = input.extents;
        extents.retain(|extent| !extent.header.groups.intersect(own).is_empty());
        // Newest first (I1).
        extents.sort_by_key(|extent| {
            let ExtentHeader { born, run, shard, sequence, .. } = extent.header;
            std::cmp::Reverse((born, run, shard, sequence))
        });
        let entries: BTreeMap<u32, TableEntry> = input.tables.into_iter().map(|entry| (entry.id, entry)).collect();
        let mut restore = Self {
            store: Some(store),
            directory: input.directory,
            epoch: input.epoch,
            key_groups,
            own,
            entries,
            tables: BTreeMap::new(),
            reads: VecDeque::new(),
            opening: None,
            files: BTreeMap::new(),
            closing: Vec::new(),
            channels: Vec::new(),
            channel_of: BTreeMap::new(),
            stats: RestoreStats::default(),
        };
        restore.make_tables(&extents)?;
        let mut logs = Vec::new();
        for (channel, extents) in input.channel_logs {
            let at = restore.channels.len();
            restore.channels.push((channel, Vec::new()));
            restore.channel_of.extend(extents.iter().map(|extent| ((extent.segment, extent.offset), at)));
            logs.extend(extents);
        }
        restore.reads = plan_reads(extents.into_iter().chain(logs));
        Ok(restore)
    }

    /// Makes the tables of the extents, with room in their indexes.
    fn make_tables(&mut self, extents: &[ExtentEntry]) -> Result<()> {
        let log = &mut self.store.as_mut().expect("not restored yet").log;
        let mut expected: BTreeMap<u32, u64> = BTreeMap::new();
        for extent in extents {
            let header = &extent.header;
            let entry = self.entries.get(&header.table).ok_or_else(|| {
                Error::corrupt(format_args!("{}: table {} is in no list", place(extent), header.table))
            })?;
            let removal = [false, true]
                .into_iter()
                .find(|removal| schema_fingerprint(&entry.key, &entry.value, *removal) == header.schema)
                .ok_or_else(|| {
                    let what = "its records have another schema than the manifest says";
                    Error::corrupt(format_args!("{}: state `{}`: {what}", place(extent), entry.name))
                })?;
            let layout = Layout::new(entry.key.fixed_size(), entry.value.fixed_size(), removal);
            let id = *self
                .tables
                .entry(header.table)
                .or_insert_with(|| log.add_table(Epochs::UNOPENED, entry.clone(), layout));
            if log.table(id).layout != layout {
                let what = "extents with and without removal";
                return Err(Error::corrupt(format_args!("{}: state `{}`: {what}", place(extent), entry.name)));
            }
            let ours = groups_in(header.groups.intersect(self.own));
            let share = u64::from(header.payload_bytes) * ours / groups_in(header.groups).max(1);
            *expected.entry(id).or_default() += share / layout.size_for(8, 16) as u64;
        }
        for (id, records) in expected {
            // Extents hold some superseded versions; an index that turns out too small grows.
            log.reserve_index(id, records * 3 / 4);
        }
        Ok(())
    }

    /// One step: takes what was read, asks for more, applies one read. `None` while there is more to do.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) names file, offset and epoch of the first byte that is not what was written;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the disk fails; [`Exhausted`](crate::ErrorKind::Exhausted)
    /// when the state does not fit into memory. Nothing on disk has been changed.
    pub fn turn(&mut self, disk: &mut dyn Disk) -> Result<Option<Restored>> {
        self.reap(disk)?;
        self.submit(disk);
        if self.reads.front().is_some_and(|read| read.filled == read.bytes) {
            let read = self.reads.pop_front().expect("just looked at");
            self.apply(read, disk)?;
            self.submit(disk);
        }
        self.closing.retain(|token| disk.take(*token).is_none());
        if !self.reads.is_empty() {
            return Ok(None);
        }
        if let Some((_, file)) = self.files.pop_first() {
            self.closing.push(disk.submit(Request::Close { file, length: None }));
        }
        if !self.closing.is_empty() || !self.files.is_empty() {
            return Ok(None);
        }
        let store = self.store.take().expect("a restore returns its store once");
        Ok(Some(Restored { store, channel_logs: std::mem::take(&mut self.channels), stats: self.stats }))
    }

    fn reap(&mut self, disk: &mut dyn Disk) -> Result<()> {
        if let Some((segment, token)) = self.opening
            && let Some(ended) = disk.take(token)
        {
            self.opening = None;
            match ended {
                Ok(Done::Opened(file, _)) => drop(self.files.insert(segment, file)),
                other => return Err(self.disk_error(segment, "open", other)),
            }
        }
        for at in 0..self.reads.len().min(DEPTH) {
            let read = &mut self.reads[at];
            let Some(token) = read.token else { continue };
            let Some(ended) = disk.take(token) else { continue };
            read.token = None;
            let (segment, wanted) = (read.segment, read.bytes - read.filled);
            match ended {
                Ok(Done::Read(buffer, count)) if count >= wanted || count >= ALIGNMENT_BYTES => {
                    let count = if count >= wanted { wanted } else { count - count % ALIGNMENT_BYTES };
                    read.stalls = 0;
                    match &mut read.buffer {
                        None => read.buffer = Some(buffer),
                        Some(whole) => {
                            whole[read.filled..read.filled + count].copy_from_slice(&buffer[..count]);
                            disk.recycle(buffer);
                        }
                    }
                    read.filled += count;
                    self.stats.bytes_read += count as u64;
                }
                Ok(Done::Read(buffer, _)) if read.stalls < STALLS_MAX => {
                    read.stalls += 1;
                    disk.recycle(buffer);
                }
                Ok(Done::Read(..)) => {
                    let extent = read.extents[0];
                    let what = format_args!("{}: the file ends before it", place(&extent));
                    return Err(self.corrupt(&what));
                }
                other => return Err(self.disk_error(segment, "read", other)),
            }
        }
        Ok(())
    }

    fn submit(&mut self, disk: &mut dyn Disk) {
        for at in 0..self.reads.len().min(DEPTH) {
            let read = &mut self.reads[at];
            if read.token.is_some() || read.filled == read.bytes {
                continue;
            }
            match self.files.get(&read.segment) {
                Some(&file) => {
                    let (offset, bytes) = (read.offset + read.filled as u64, read.bytes - read.filled);
                    read.token = Some(disk.submit(Request::Read { file, offset, bytes }));
                }
                None if self.opening.is_none() => {
                    if self.files.len() >= FILES_MAX {
                        let soon = || self.reads.iter().take(DEPTH).map(|read| read.segment);
                        let idle = self.files.keys().copied().find(|segment| !soon().any(|other| other == *segment));
                        let file = idle.and_then(|segment| self.files.remove(&segment));
                        self.closing.extend(file.map(|file| disk.submit(Request::Close { file, length: None })));
                    }
                    let read = &self.reads[at];
                    let path = self.directory.join(segment_file(read.segment));
                    self.opening = Some((read.segment, disk.submit(Request::OpenRead(path))));
                }
                None => {}
            }
        }
    }

    fn apply(&mut self, mut read: Read, disk: &mut dyn Disk) -> Result<()> {
        let buffer = read.buffer.take().expect("filled");
        for extent in &read.extents {
            let start = (extent.offset - read.offset) as usize;
            let bytes = &buffer[start..start + extent.bytes()];
            extent.check(bytes).map_err(|bad| self.corrupt(&format_args!("{}: {bad}", place(extent))))?;
            if extent.header.born > self.epoch {
                return Err(self.corrupt(&format_args!("{}: born after the epoch", place(extent))));
            }
            match self.channel_of.get(&(extent.segment, extent.offset)) {
                Some(&channel) => self.channels[channel].1.extend_from_slice(&bytes[ExtentHeader::SIZE..]),
                None => self.apply_pages(extent, bytes)?,
            }
            self.stats.extents += 1;
        }
        disk.recycle(buffer);
        Ok(())
    }

    fn apply_pages(&mut self, extent: &ExtentEntry, bytes: &[u8]) -> Result<()> {
        let groups = extent.header.groups.intersect(self.own);
        let stays = 2 * groups_in(groups) >= groups_in(extent.header.groups);
        let id = self.tables[&extent.header.table];
        let log = &mut self.store.as_mut().expect("not restored yet").log;
        let (core, pages, _) = log.split(id);
        let layout = core.layout;

        let mut offsets = Vec::with_capacity(bytes.len() / layout.size_for(8, 16));
        let mut at = PAGE_HEADER_BYTES;
        while at < bytes.len() {
            let Some(size) = layout.checked_size(&bytes[at..]) else {
                let what = format_args!("{}: no whole record at byte {at}", place(extent));
                return Err(self.corrupt(&what));
            };
            offsets.push(at as u32);
            at += size;
        }

        let first = if stays {
            let id = pages
                .open_restored(core.itself, core.domain, extent.header.born, bytes.len() - PAGE_HEADER_BYTES)
                .map_err(|full| core.out_of_memory(full))?;
            pages.image_mut(id, bytes.len()).copy_from_slice(bytes);
            pages.trim(id);
            Some(id)
        } else {
            None
        };
        for piece in offsets.rchunks(PIECE) {
            let mut hashes = [0; PIECE];
            for (hash, offset) in hashes.iter_mut().zip(piece) {
                *hash = hash_bytes(layout.key(&bytes[*offset as usize..]));
                core.index.prefetch(*hash);
            }
            for (hash, offset) in hashes.iter().zip(piece).rev() {
                let source = &bytes[*offset as usize..];
                let (flags, key, size) = (layout.flags(source), layout.key(source), layout.size(source));
                let is_ours = groups.contains(self.key_groups.group_of(*hash));
                if flags & DEAD != 0 || !is_ours || core.find(pages, layout, *hash, key).is_some() {
                    continue;
                }
                let address = match first {
                    Some(page) => {
                        let address = pages.page(page).start_address().after(*offset as usize);
                        pages.revive(address, size);
                        address
                    }
                    None => {
                        let address = core.append(pages, size)?;
                        let target = pages.bytes_mut(address, size);
                        target.copy_from_slice(&source[..size]);
                        if layout.removal {
                            layout.set_flags(target, flags | BELOW_CUT);
                        }
                        self.stats.records_copied += 1;
                        address
                    }
                };
                core.enter(pages, *hash, address);
                if flags & TOMBSTONE != 0 {
                    core.tombstones += 1
                } else {
                    core.keys += 1
                }
                self.stats.records += 1;
            }
        }
        if let Some(page) = first {
            let header = ExtentHeader { groups, ..extent.header };
            pages.set_extent(pages.reference(page), ExtentEntry { header, ..*extent }, self.epoch);
            if pages.page(page).live == 0 {
                pages.die(page);
            }
        }
        Ok(())
    }

    fn corrupt(&self, what: &dyn std::fmt::Display) -> Error {
        Error::corrupt(format_args!("snapshot of epoch {}: {what}", self.epoch))
    }

    fn disk_error(&self, segment: SegmentId, what: &str, ended: io::Result<Done>) -> Error {
        let path = self.directory.join(segment_file(segment));
        match ended {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.corrupt(&format_args!("{} is missing", path.display()))
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.corrupt(&format_args!("{}, offset 0: {error}", path.display()))
            }
            Err(error) => Error::unavailable(format_args!("{what} of {}: {error}", path.display())),
            Ok(done) => Error::unavailable(format_args!("{what} of {}: ended as {done:?}", path.display())),
        }
    }
}

fn groups_in(range: KeyGroupRange) -> u64 {
    u64::from(range.end) - u64::from(range.start)
}

/// File and offset of an extent.
fn place(extent: &ExtentEntry) -> impl std::fmt::Display {
    format!("{} at offset {}", segment_file(extent.segment), extent.offset)
}

/// Puts extents that are applied after each other and lie close together into one read.
fn plan_reads(extents: impl Iterator<Item = ExtentEntry>) -> VecDeque<Read> {
    let mut reads: VecDeque<Read> = VecDeque::new();
    for extent in extents {
        let start = extent.offset / ALIGNMENT_BYTES as u64 * ALIGNMENT_BYTES as u64;
        let end = (extent.offset + extent.bytes() as u64).next_multiple_of(ALIGNMENT_BYTES as u64);
        if let Some(last) = reads.back_mut().filter(|last| last.segment == extent.segment) {
            let (joint_start, joint_end) = (start.min(last.offset), end.max(last.offset + last.bytes as u64));
            // Gaps of a block or two are read over; what was written together is read together.
            let apart = (joint_end - joint_start).saturating_sub(last.bytes as u64 + (end - start));
            if joint_end - joint_start <= REQUEST_BYTES_MAX as u64 && apart <= 4 * ALIGNMENT_BYTES as u64 {
                (last.offset, last.bytes) = (joint_start, (joint_end - joint_start) as usize);
                last.extents.push(extent);
                continue;
            }
        }
        let (segment, bytes) = (extent.segment, (end - start) as usize);
        let extents = vec![extent];
        reads.push_back(Read {
            segment,
            offset: start,
            bytes,
            extents,
            token: None,
            buffer: None,
            filled: 0,
            stalls: 0,
        });
    }
    reads
}
