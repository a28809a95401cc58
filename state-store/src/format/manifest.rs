//! A manifest: everything that one complete epoch consists of, and by its final name the proof that it is complete.
//!
//! Invariants
//! * I1. A manifest needs no other manifest: it names every extent, file, blob and prepared output of its epoch.
//! * I2. One CRC covers everything behind it, one length everything there is: a manifest is whole or it is refused.
//! * I3. What decodes is consistent: tables and segments have one entry each, every extent lies inside a segment that is
//!   listed, belongs to a table that is listed, and to key groups and shards that exist.

use super::bytes::{Reader, put_blob, put_count};
use super::{BadFormat, EXTENT_ALIGNMENT_BYTES, ExtentEntry, ExtentKind, FORMAT_VERSION, SegmentId, check_name};
use crate::epoch::Epoch;
use crate::key_group::KeyGroupCount;
use crate::value::Schema;
use std::collections::{BTreeMap, BTreeSet};

/// One table of the state, in all shards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableEntry {
    /// Its number in this manifest's extents.
    pub id: u32,
    /// Operator and state: its identity across versions of the job.
    pub name: String,
    /// What its keys mean.
    pub key: Schema,
    /// What its values mean.
    pub value: Schema,
    /// The clock that expiry goes by, in milliseconds, at the cut; `None` for a table without expiry.
    pub clock_ms: Option<i64>,
}

/// The records that barriers had overtaken on one edge between two shards, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelLog {
    /// Number of the edge in its extents' `table`.
    pub id: u32,
    /// Name of the edge.
    pub edge: String,
    /// The sending shard.
    pub from: u32,
    /// The receiving shard.
    pub to: u32,
    /// What the records mean.
    pub record: Schema,
    /// Where they are.
    pub extents: Vec<ExtentEntry>,
}

/// Bytes that only their owner understands: positions of a source, the state of an operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blob {
    /// Whose.
    pub name: String,
    /// On which shard.
    pub shard: u32,
    /// What.
    pub bytes: Vec<u8>,
}

/// Output that a sink has prepared and not yet been seen to commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PreparedOutput {
    /// Name of the sink.
    pub sink: String,
    /// The epoch it was prepared for.
    pub epoch: Epoch,
    /// On which shard.
    pub shard: u32,
    /// What the sink needs to commit it.
    pub bytes: Vec<u8>,
}

/// A segment file, and how long it must at least be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentLength {
    /// Which.
    pub id: SegmentId,
    /// Bytes up to the end of the last extent that the manifest names.
    pub bytes: u64,
}

/// One complete epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    /// Name of the job.
    pub job: String,
    /// The fencing token of the run that completed the epoch.
    pub run: u32,
    /// The epoch.
    pub epoch: Epoch,
    /// How many key groups the state has, for its whole life.
    pub key_groups: KeyGroupCount,
    /// Whether the input had ended: nothing is left to do.
    pub ended: bool,
    /// The tables, by number.
    pub tables: Vec<TableEntry>,
    /// The extents of each shard; their count is the count of shards.
    pub shards: Vec<Vec<ExtentEntry>>,
    /// Records overtaken by the barrier.
    pub channel_logs: Vec<ChannelLog>,
    /// Positions of sources and states of operators.
    pub blobs: Vec<Blob>,
    /// Every output prepared and not confirmed, of this epoch and of earlier ones.
    pub outputs: Vec<PreparedOutput>,
    /// The files that the extents lie in, in order of their ids.
    pub segments: Vec<SegmentLength>,
}

impl Manifest {
    const MAGIC: [u8; 8] = *b"MsManif\n";
    /// Magic, CRC-32, version, two reserved bytes, length of the body.
    pub const HEADER_BYTES: usize = 8 + 4 + 2 + 2 + 8;
    /// What the CRC covers begins here.
    const CRC_START: usize = 12;

    /// The manifest that a state directory begins with: no state, sources at their start.
    pub fn empty(job: &str, key_groups: KeyGroupCount, shards: u32) -> Self {
        Self {
            job: job.to_owned(),
            run: 0,
            epoch: Epoch::ZERO,
            key_groups,
            ended: false,
            tables: Vec::new(),
            shards: vec![Vec::new(); shards as usize],
            channel_logs: Vec::new(),
            blobs: Vec::new(),
            outputs: Vec::new(),
            segments: Vec::new(),
        }
    }

    /// Every extent: those of the shards, then those of the channel logs.
    pub fn extents(&self) -> impl Iterator<Item = &ExtentEntry> {
        self.shards.iter().flatten().chain(self.channel_logs.iter().flat_map(|log| &log.extents))
    }

    /// Fills [`Manifest::segments`] with the files that the extents lie in.
    pub fn list_segments(&mut self) {
        let mut lengths: BTreeMap<SegmentId, u64> = BTreeMap::new();
        for extent in self.extents() {
            let end = extent.offset + extent.bytes() as u64;
            lengths.entry(extent.segment).and_modify(|bytes| *bytes = end.max(*bytes)).or_insert(end);
        }
        self.segments = lengths.into_iter().map(|(id, bytes)| SegmentLength { id, bytes }).collect();
    }

    /// The bytes of the file.
    ///
    /// # Panics
    /// When the manifest is not consistent (I3): whoever made it has a bug, and a file that a restore would refuse must
    /// not be written.
    pub fn encode(&self) -> Vec<u8> {
        self.check_consistent().unwrap_or_else(|what| panic!("manifest of epoch {}: {what}", self.epoch));
        let mut out = Vec::with_capacity(1024 + self.extents().count() * ExtentEntry::SIZE);
        out.extend_from_slice(&Self::MAGIC);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 2 + 8]);
        self.encode_body(&mut out);
        let body_bytes = (out.len() - Self::HEADER_BYTES) as u64;
        out[16..24].copy_from_slice(&body_bytes.to_le_bytes());
        let crc32 = crc32fast::hash(&out[Self::CRC_START..]);
        out[8..12].copy_from_slice(&crc32.to_le_bytes());
        out
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        put_blob(out, self.job.as_bytes());
        out.extend_from_slice(&self.run.to_le_bytes());
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.key_groups.get().to_le_bytes());
        out.extend_from_slice(&[u8::from(self.ended), 0, 0, 0]);
        put_count(out, self.tables.len());
        for table in &self.tables {
            out.extend_from_slice(&table.id.to_le_bytes());
            put_blob(out, table.name.as_bytes());
            put_schema(out, &table.key);
            put_schema(out, &table.value);
            out.push(u8::from(table.clock_ms.is_some()));
            out.extend_from_slice(&table.clock_ms.unwrap_or(0).to_le_bytes());
        }
        put_count(out, self.segments.len());
        for segment in &self.segments {
            for part in [segment.id.run, segment.id.shard, segment.id.number] {
                out.extend_from_slice(&part.to_le_bytes());
            }
            out.extend_from_slice(&segment.bytes.to_le_bytes());
        }
        put_count(out, self.shards.len());
        for extents in &self.shards {
            put_extents(out, extents);
        }
        put_count(out, self.channel_logs.len());
        for log in &self.channel_logs {
            out.extend_from_slice(&log.id.to_le_bytes());
            put_blob(out, log.edge.as_bytes());
            out.extend_from_slice(&log.from.to_le_bytes());
            out.extend_from_slice(&log.to.to_le_bytes());
            put_schema(out, &log.record);
            put_extents(out, &log.extents);
        }
        put_count(out, self.blobs.len());
        for blob in &self.blobs {
            put_blob(out, blob.name.as_bytes());
            out.extend_from_slice(&blob.shard.to_le_bytes());
            put_blob(out, &blob.bytes);
        }
        put_count(out, self.outputs.len());
        for output in &self.outputs {
            put_blob(out, output.sink.as_bytes());
            out.extend_from_slice(&output.epoch.0.to_le_bytes());
            out.extend_from_slice(&output.shard.to_le_bytes());
            put_blob(out, &output.bytes);
        }
    }

    #[cfg(test)]
    pub(super) fn encode_body_for_tests(&self, out: &mut Vec<u8>) {
        self.encode_body(out);
    }

    /// Reads a whole manifest.
    ///
    /// # Errors
    /// Says where and how the bytes differ from a manifest.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadFormat> {
        let mut reader = Reader::new(bytes, 0);
        if reader.take(8)? != Self::MAGIC {
            return Err(BadFormat::at(0, "this is no manifest"));
        }
        let crc32 = reader.u32()?;
        let version = reader.u16()?;
        if version != FORMAT_VERSION {
            return Err(BadFormat::at(12, format_args!("manifest of format {version}, this is {FORMAT_VERSION}")));
        }
        reader.zeros(2)?;
        let body_bytes = reader.u64()?;
        if body_bytes != reader.remaining() as u64 {
            let what = format_args!("body of {body_bytes} bytes, the file has {}", reader.remaining());
            return Err(BadFormat::at(16, what));
        }
        let found = crc32fast::hash(&bytes[Self::CRC_START..]);
        if found != crc32 {
            return Err(BadFormat::at(8, format_args!("CRC {found:08x}, header says {crc32:08x}")));
        }
        let manifest = Self::decode_body(&mut reader)?;
        let body_end = reader.offset();
        reader.end()?;
        manifest.check_consistent().map_err(|what| BadFormat::at(body_end, what))?;
        Ok(manifest)
    }

    fn decode_body(reader: &mut Reader<'_>) -> Result<Self, BadFormat> {
        let job = reader.text()?.to_owned();
        let run = reader.u32()?;
        let epoch = Epoch(reader.u64()?);
        let at = reader.offset();
        let key_groups = KeyGroupCount::new(reader.u32()?).map_err(|error| BadFormat::at(at, error))?;
        let ended = flag(reader)?;
        reader.zeros(3)?;
        let tables = reader.list(4 + 4 + 8 + 9, |reader| {
            Ok(TableEntry {
                id: reader.u32()?,
                name: reader.text()?.to_owned(),
                key: schema(reader)?,
                value: schema(reader)?,
                clock_ms: {
                    let present = flag(reader)?;
                    let at = reader.offset();
                    let clock = reader.i64()?;
                    if !present && clock != 0 {
                        return Err(BadFormat::at(at, "a clock that is absent is not zero"));
                    }
                    present.then_some(clock)
                },
            })
        })?;
        let segments = reader.list(20, |reader| {
            let id = SegmentId { run: reader.u32()?, shard: reader.u32()?, number: reader.u32()? };
            Ok(SegmentLength { id, bytes: reader.u64()? })
        })?;
        let shards = reader.list(4, extents)?;
        let channel_logs = reader.list(4 + 4 + 8 + 4 + 4, |reader| {
            Ok(ChannelLog {
                id: reader.u32()?,
                edge: reader.text()?.to_owned(),
                from: reader.u32()?,
                to: reader.u32()?,
                record: schema(reader)?,
                extents: extents(reader)?,
            })
        })?;
        let blobs = reader.list(4 + 4 + 4, |reader| {
            Ok(Blob { name: reader.text()?.to_owned(), shard: reader.u32()?, bytes: reader.blob()?.to_vec() })
        })?;
        let outputs = reader.list(4 + 8 + 4 + 4, |reader| {
            Ok(PreparedOutput {
                sink: reader.text()?.to_owned(),
                epoch: Epoch(reader.u64()?),
                shard: reader.u32()?,
                bytes: reader.blob()?.to_vec(),
            })
        })?;
        Ok(Self { job, run, epoch, key_groups, ended, tables, shards, channel_logs, blobs, outputs, segments })
    }

    /// Checks I3.
    fn check_consistent(&self) -> Result<(), String> {
        check_name(&self.job).map_err(|error| format!("job: {error}"))?;
        let unique = |what, count: usize, distinct: usize| {
            if count == distinct { Ok(()) } else { Err(format!("a {what} is listed twice")) }
        };
        let tables: BTreeSet<u32> = self.tables.iter().map(|table| table.id).collect();
        unique("table", self.tables.len(), tables.len())?;
        let names: BTreeSet<&str> = self.tables.iter().map(|table| table.name.as_str()).collect();
        unique("table name", self.tables.len(), names.len())?;
        if !self.segments.is_sorted_by(|a, b| a.id < b.id) {
            return Err("segments are not in the order of their ids".to_owned());
        }
        let lengths: BTreeMap<SegmentId, u64> =
            self.segments.iter().map(|segment| (segment.id, segment.bytes)).collect();
        let check = |extent: &ExtentEntry, kind: ExtentKind| {
            let end = extent.offset.checked_add(extent.bytes() as u64);
            let groups = extent.header.groups;
            let what = match lengths.get(&extent.segment) {
                None => "lies in a file that is not listed",
                Some(&length) if end.is_none_or(|end| end > length) => "reaches beyond its file",
                _ if !extent.offset.is_multiple_of(EXTENT_ALIGNMENT_BYTES as u64) => "is not aligned",
                _ if extent.header.kind != kind => "is of the wrong kind",
                _ if groups.start > groups.end || u32::from(groups.end) > self.key_groups.get() => "has bad key groups",
                _ if extent.header.born > self.epoch => "was born after the epoch",
                _ => return Ok(()),
            };
            Err(format!("extent at {} of segment {} {what}", extent.offset, extent.segment))
        };
        for extent in self.shards.iter().flatten() {
            check(extent, ExtentKind::Pages)?;
            if !tables.contains(&extent.header.table) {
                return Err(format!("an extent belongs to table {}, which is not listed", extent.header.table));
            }
        }
        let shards = self.shards.len();
        let exists = |shard: u32| (shard as usize) < shards;
        for log in &self.channel_logs {
            if !exists(log.from) || !exists(log.to) {
                return Err(format!("channel log {} from {} to {} of {shards} shards", log.edge, log.from, log.to));
            }
            for extent in &log.extents {
                check(extent, ExtentKind::ChannelLog)?;
                if extent.header.table != log.id {
                    return Err(format!("an extent of edge {} is listed under {}", extent.header.table, log.id));
                }
            }
        }
        if let Some(output) = self.outputs.iter().find(|output| output.epoch > self.epoch) {
            return Err(format!("output of {} for a later epoch, {}", output.sink, output.epoch));
        }
        Ok(())
    }
}

fn extents(reader: &mut Reader<'_>) -> Result<Vec<ExtentEntry>, BadFormat> {
    reader.list(ExtentEntry::SIZE, ExtentEntry::decode)
}

fn put_extents(out: &mut Vec<u8>, extents: &[ExtentEntry]) {
    put_count(out, extents.len());
    extents.iter().for_each(|extent| extent.encode(out));
}

fn put_schema(out: &mut Vec<u8>, schema: &Schema) {
    put_blob(out, &serde_json::to_vec(schema).expect("a schema is plain data"));
}

fn schema(reader: &mut Reader<'_>) -> Result<Schema, BadFormat> {
    let at = reader.offset() + 4;
    let bytes = reader.blob()?;
    let schema: Schema = serde_json::from_slice(bytes).map_err(|error| BadFormat::at(at, error))?;
    // One encoding (I1 of the module): JSON with other spaces or order is not what this version writes.
    if serde_json::to_vec(&schema).expect("a schema is plain data") != bytes {
        return Err(BadFormat::at(at, "a schema in another notation"));
    }
    Ok(schema)
}

fn flag(reader: &mut Reader<'_>) -> Result<bool, BadFormat> {
    let at = reader.offset();
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(BadFormat::at(at, format_args!("flag of {other}"))),
    }
}
