//! Makes snapshots durable, a step per turn: writes the pages that no file holds yet, then names all that are in the cut.
//!
//! ```text
//! Writing -> Sealing -> Listing -> a result
//!    |          | write or sync failed: the pages go back among the unwritten, the epoch's result is the error
//! ```
//!
//! Invariants
//! * I1. Epochs are flushed one after another, in order; of epoch `n` only once every domain is cut at it.
//! * I2. Epoch `n` is reported durable only when every page in it has an extent whose file was synced after the write.
//! * I3. A page whose write failed is written again by the next flush, to another file.
//! * I4. The pages of `n` cannot change or go while it is flushed: they are frozen, and held because `n` is pending.
//!
//! Cost: a turn copies and checksums at most 256 KiB or one large record, about 15 us.

use super::StoreActivity;
use super::channel_log::{ChannelId, ChannelLogs};
use super::pace::Pace;
use crate::epoch::Epoch;
use crate::error::Result;
use crate::format::{ExtentEntry, ExtentHeader, ExtentKind, SegmentId, TableEntry};
use crate::io::Disk;
use crate::key_group::KeyGroupRange;
use crate::log::{PAGE_HEADER_BYTES, PageId, PageRef};
use crate::snapshot::{SegmentConfig, SegmentWriter, Turn};
use crate::table::Log;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes copied into blocks in one turn.
const TURN_BYTES: usize = 256 << 10;
/// Extents appended in one turn.
const TURN_EXTENTS: usize = 64;
/// Page numbers looked at in one turn of listing.
const TURN_PAGES: u32 = 256;

/// A snapshot as one shard sees it: durable, or why not.
#[derive(Debug)]
pub struct ShardSnapshot {
    /// The epoch.
    pub epoch: Epoch,
    /// What the manifest must name for this shard, all of it durable; or the error for which the epoch failed here.
    pub result: Result<ShardExtents>,
    /// What it took.
    pub stats: FlushStats,
}

/// Everything of one shard that belongs to a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardExtents {
    /// The states that the extents belong to. The same state has the same entry on every shard.
    pub tables: Vec<TableEntry>,
    /// Pages of tables.
    pub extents: Vec<ExtentEntry>,
    /// Records that barriers have overtaken.
    pub channel_logs: Vec<(ChannelId, Vec<ExtentEntry>)>,
}

/// What a flush took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlushStats {
    /// When its first turn was, on the clock given to the turns.
    pub started_ns: u64,
    /// When it was durable.
    pub ended_ns: u64,
    /// Extents written for this epoch.
    pub extents_written: u64,
    /// Bytes of those.
    pub bytes_written: u64,
}

enum Stage {
    /// Appending pages, then what the channel logs hold.
    Writing,
    /// Waiting for the last write and the sync.
    Sealing,
    /// Going through all pages for those in the snapshot; the next page number.
    Listing(u32),
}

struct Active {
    epoch: Epoch,
    stage: Stage,
    pages: VecDeque<PageRef>,
    written: Vec<(PageRef, ExtentEntry)>,
    channels: BTreeMap<ChannelId, Vec<ExtentEntry>>,
    listed: Vec<ExtentEntry>,
    tables: BTreeSet<u32>,
    /// Nobody waits for the result any more; what was written is still of use.
    is_abandoned: bool,
    stats: FlushStats,
}

/// The flushing half of a store.
pub(super) struct Flusher {
    writer: SegmentWriter,
    pace: Pace,
    run: u32,
    shard: u32,
    groups: KeyGroupRange,
    pub(super) channel_logs: ChannelLogs,
    active: Option<Active>,
    /// The newest epoch whose flush has begun.
    begun: Epoch,
    /// Whether the writer has been sealed and has not said how that ended.
    is_sealing: bool,
    results: VecDeque<ShardSnapshot>,
    /// Files of channel-log extents, until their epoch ends.
    channel_extents: BTreeMap<Epoch, Vec<SegmentId>>,
    channel_sequence: u64,
    /// Totals.
    pub(super) bytes_written: u64,
}

impl Flusher {
    pub(super) fn new(config: SegmentConfig, bytes_per_second: u64, groups: KeyGroupRange, restored: Epoch) -> Self {
        Self {
            run: config.run,
            shard: config.shard,
            writer: SegmentWriter::new(config),
            pace: Pace::new(bytes_per_second),
            groups,
            channel_logs: ChannelLogs::default(),
            active: None,
            begun: restored,
            is_sealing: false,
            results: VecDeque::new(),
            channel_extents: BTreeMap::new(),
            channel_sequence: 0,
            bytes_written: 0,
        }
    }

    pub(super) fn writer(&mut self) -> &mut SegmentWriter {
        &mut self.writer
    }

    pub(super) fn take_result(&mut self) -> Option<ShardSnapshot> {
        self.results.pop_front()
    }

    /// `epoch` is complete: logs of it and of earlier epochs are not needed any more.
    pub(super) fn complete(&mut self, epoch: Epoch) {
        let later = self.channel_extents.split_off(&epoch.next());
        for segment in std::mem::replace(&mut self.channel_extents, later).into_values().flatten() {
            self.writer.release(segment);
        }
        self.channel_logs.drop_through(epoch);
        self.results.retain(|result| result.epoch > epoch);
        if let Some(active) = self.active.as_mut().filter(|active| active.epoch <= epoch) {
            active.is_abandoned = true;
        }
    }

    /// `epoch` is given up.
    pub(super) fn abandon(&mut self, epoch: Epoch) {
        for segment in self.channel_extents.remove(&epoch).into_iter().flatten() {
            self.writer.release(segment);
        }
        self.channel_logs.drop_epoch(epoch);
        self.results.retain(|result| result.epoch != epoch);
        if let Some(active) = self.active.as_mut().filter(|active| active.epoch == epoch) {
            active.is_abandoned = true;
        }
    }

    /// One step.
    pub(super) fn turn(&mut self, log: &mut Log, disk: &mut dyn Disk, now_ns: u64) -> StoreActivity {
        self.begin(log, now_ns);
        let appended = self.append(log, disk);
        let before = self.writer.submitted_bytes();
        let may_write = self.pace.may_write(now_ns);
        let turn = self.writer.turn(disk, may_write);
        self.bytes_written = self.writer.submitted_bytes();
        let written = self.bytes_written - before;
        self.pace.spend(written);
        let (ended, is_writing) = match turn {
            Turn::Idle => (false, false),
            Turn::Busy => (false, true),
            Turn::Sealed => {
                self.is_sealing = false;
                self.sealed(log);
                (true, false)
            }
            Turn::Failed(error) => {
                self.is_sealing = false;
                self.failed(log, error, now_ns);
                (true, false)
            }
        };
        let listed = self.list(log, now_ns);
        if appended || listed || ended || written > 0 {
            StoreActivity::Busy
        } else if is_writing || self.active.is_some() {
            StoreActivity::Waiting
        } else {
            StoreActivity::Idle
        }
    }

    /// Begins with the oldest epoch that was cut everywhere and not flushed yet (I1).
    fn begin(&mut self, log: &mut Log, now_ns: u64) {
        if self.active.is_some() || self.is_sealing {
            return;
        }
        let epochs = &log.pages.epochs;
        let oldest = epochs.oldest();
        let next = epochs.pending().iter().copied().find(|epoch| *epoch > self.begun);
        let Some(epoch) = next.filter(|epoch| *epoch < oldest) else { return };
        self.begun = epoch;
        self.active = Some(Active {
            epoch,
            stage: Stage::Writing,
            pages: log.pages.take_unwritten(epoch),
            written: Vec::new(),
            channels: BTreeMap::new(),
            listed: Vec::new(),
            tables: BTreeSet::new(),
            is_abandoned: false,
            stats: FlushStats { started_ns: now_ns, ..FlushStats::default() },
        });
    }

    /// Hands pages, then channel logs, to the writer. Says whether any was.
    fn append(&mut self, log: &mut Log, disk: &mut dyn Disk) -> bool {
        let Some(active) = &mut self.active else { return false };
        if !matches!(active.stage, Stage::Writing) {
            return false;
        }
        if active.is_abandoned {
            log.pages.put_back_unwritten(active.epoch, active.pages.drain(..));
        }
        let (mut bytes, mut extents) = (0, 0);
        while bytes < TURN_BYTES && extents < TURN_EXTENTS {
            let Some(&page) = active.pages.front() else { break };
            match log.pages.resolve(page) {
                // Gone already, or dead before this cut: no snapshot to come contains it.
                None => {}
                Some(known) if !known.is_in(active.epoch) => {}
                Some(known) => {
                    // One that is durable elsewhere keeps its header: only its place changes.
                    let durable = log.pages.extent(page.id).map(|extent| extent.header);
                    let header = durable.unwrap_or_else(|| ExtentHeader {
                        kind: ExtentKind::Pages,
                        payload_bytes: known.record_bytes(),
                        table: known.table.number,
                        shard: self.shard,
                        run: self.run,
                        groups: self.groups,
                        born: known.born,
                        sequence: known.sequence,
                        schema: log.known(known.table.number).schema,
                        address: u64::from(known.start),
                    });
                    let image = &log.pages.image(page.id)[PAGE_HEADER_BYTES..];
                    let fill = |payload: &mut [u8]| payload.copy_from_slice(image);
                    let Some(entry) = self.writer.append(disk, &header, fill) else { return bytes > 0 };
                    active.written.push((page, entry));
                    active.stats.extents_written += 1;
                    active.stats.bytes_written += entry.bytes() as u64;
                    bytes += entry.bytes();
                    extents += 1;
                }
            }
            active.pages.pop_front();
        }
        if !active.pages.is_empty() {
            return true;
        }
        while !active.is_abandoned && bytes < TURN_BYTES {
            let Some(chunk) = self.channel_logs.front(active.epoch) else { break };
            let header = ExtentHeader {
                kind: ExtentKind::ChannelLog,
                payload_bytes: chunk.bytes.len() as u32,
                table: chunk.channel.edge,
                shard: self.shard,
                run: self.run,
                groups: self.groups,
                born: active.epoch,
                sequence: self.channel_sequence,
                schema: 0,
                address: chunk.position,
            };
            let fill = |payload: &mut [u8]| payload.copy_from_slice(&chunk.bytes);
            let Some(entry) = self.writer.append(disk, &header, fill) else { return bytes > 0 };
            active.channels.entry(chunk.channel).or_default().push(entry);
            active.stats.extents_written += 1;
            active.stats.bytes_written += entry.bytes() as u64;
            bytes += entry.bytes();
            self.channel_sequence += 1;
            self.channel_logs.pop(active.epoch);
        }
        let has_logs = self.channel_logs.is_sealed(active.epoch) && self.channel_logs.front(active.epoch).is_none();
        if has_logs || active.is_abandoned {
            self.writer.seal();
            self.is_sealing = true;
            active.stage = Stage::Sealing;
            if log.pages.faults.ack_before_write() {
                active.written.drain(..).for_each(|(page, extent)| log.pages.set_extent(page, extent, active.epoch));
                active.stage = Stage::Listing(0);
            }
            return true;
        }
        bytes > 0
    }

    /// Everything appended is durable.
    fn sealed(&mut self, log: &mut Log) {
        let Some(active) = self.active.as_mut().filter(|active| matches!(active.stage, Stage::Sealing)) else { return };
        for (page, extent) in active.written.drain(..) {
            log.pages.set_extent(page, extent, active.epoch);
        }
        active.stage = Stage::Listing(0);
    }

    /// Nothing appended since the last seal counts (I3).
    fn failed(&mut self, log: &mut Log, error: crate::Error, now_ns: u64) {
        let Some(mut active) = self.active.take() else { return };
        if log.pages.faults.page_reused_early() {
            active.written.iter().for_each(|(page, _)| log.pages.free_too_early(*page));
        }
        let written = active.written.drain(..).map(|(page, _)| page);
        log.pages.put_back_unwritten(active.epoch, written.chain(active.pages.drain(..)));
        self.channel_logs.drop_epoch(active.epoch);
        if !active.is_abandoned {
            let error = error.within(format_args!("snapshot of epoch {} on shard {}", active.epoch, self.shard));
            active.stats.ended_ns = now_ns;
            self.results.push_back(ShardSnapshot { epoch: active.epoch, result: Err(error), stats: active.stats });
        }
    }

    /// Collects the extents of the snapshot. Says whether there was something to do.
    fn list(&mut self, log: &mut Log, now_ns: u64) -> bool {
        let Some(active) = &mut self.active else { return false };
        let Stage::Listing(start) = active.stage else { return false };
        if active.is_abandoned {
            for extent in std::mem::take(&mut active.channels).into_values().flatten() {
                self.writer.release(extent.segment);
            }
            self.active = None;
            return true;
        }
        let end = log.pages.ids().min(start.saturating_add(TURN_PAGES));
        for id in (start..end).map(PageId) {
            let page = log.pages.page(id);
            if page.is_in(active.epoch) {
                let extent = log.pages.extent(id).expect("I2: every page of the snapshot was written");
                active.listed.push(*extent);
                active.tables.insert(page.table.number);
            }
        }
        active.stage = Stage::Listing(end);
        if end < log.pages.ids() {
            return true;
        }
        let active = self.active.take().expect("just looked at");
        let files = active.channels.values().flatten().map(|extent| extent.segment).collect();
        self.channel_extents.insert(active.epoch, files);
        self.channel_logs.drop_epoch(active.epoch);
        let extents = ShardExtents {
            tables: active.tables.iter().map(|number| log.known(*number).entry.clone()).collect(),
            extents: active.listed,
            channel_logs: active.channels.into_iter().collect(),
        };
        let stats = FlushStats { ended_ns: now_ns, ..active.stats };
        self.results.push_back(ShardSnapshot { epoch: active.epoch, result: Ok(extents), stats });
        true
    }
}
