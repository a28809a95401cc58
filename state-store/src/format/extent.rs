//! An extent: a run of records of one table, or of one channel log, as it lies in a segment file; and its entry in a manifest.
//!
//! Invariants
//! * I1. The CRC of an extent is in its header and in the manifest, over everything behind it: a write that was lost,
//!   torn or went elsewhere is found by one or the other.
//! * I2. Header and entry agree in every field both have, but for the key groups: an entry may claim fewer.
//! * I3. An extent starts at a multiple of [`EXTENT_ALIGNMENT_BYTES`] in its file.

use super::bytes::Reader;
use super::{BadFormat, FORMAT_VERSION};
use crate::epoch::Epoch;
use crate::key_group::KeyGroupRange;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Extents start at a multiple of this in their segment file.
pub const EXTENT_ALIGNMENT_BYTES: usize = 64;

/// Most bytes of one extent, its header included. One block of a segment file holds it whole.
pub const EXTENT_BYTES_MAX: usize = 1 << 20;

const _: () = assert!(ExtentHeader::SIZE.is_multiple_of(EXTENT_ALIGNMENT_BYTES));
const _: () = assert!(EXTENT_BYTES_MAX <= crate::io::REQUEST_BYTES_MAX);

/// Names a segment file for ever: the run that made it, the shard that wrote it, and a number that grows.
///
/// Runs grow with every start of a job, so ids exceed every id that an earlier run has left on disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SegmentId {
    /// The fencing token of the run that made the file.
    pub run: u32,
    /// The shard that wrote it.
    pub shard: u32,
    /// Counts the files of this shard in this run.
    pub number: u32,
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.run, self.shard, self.number)
    }
}

/// What an extent holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum ExtentKind {
    /// Records of a table.
    Pages = 1,
    /// Records that a barrier had overtaken, in the order of their edge.
    ChannelLog = 2,
}

impl ExtentKind {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, BadFormat> {
        let offset = reader.offset();
        match reader.u8()? {
            1 => Ok(Self::Pages),
            2 => Ok(Self::ChannelLog),
            other => Err(BadFormat::at(offset, format_args!("extent kind {other}"))),
        }
    }
}

/// The first 64 bytes of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentHeader {
    /// What the extent holds.
    pub kind: ExtentKind,
    /// Bytes behind the header.
    pub payload_bytes: u32,
    /// Number of the table within its manifest; of the channel log's edge for [`ExtentKind::ChannelLog`].
    pub table: u32,
    /// The shard that wrote it first.
    pub shard: u32,
    /// The run that wrote it first.
    pub run: u32,
    /// The key groups its records may belong to.
    pub groups: KeyGroupRange,
    /// The epoch in which its first record was written: it is in this snapshot and later ones until it dies.
    pub born: Epoch,
    /// Order among the extents of one shard and run: of two records with one key and epoch, the later one counts.
    pub sequence: u64,
    /// Fingerprint of the schema of its records.
    pub schema: u64,
    /// Where it was in the log of the shard that wrote it; for a channel log, the position of its first record.
    pub address: u64,
}

impl ExtentHeader {
    /// Encoded size in bytes. Part of format version 1.
    pub const SIZE: usize = 64;
    const MAGIC: [u8; 4] = *b"MsEx";
    /// What the CRC covers begins here.
    const CRC_START: usize = 8;

    /// Writes the header in front of a payload that already stands in `extent[64..]`, and returns the CRC-32.
    ///
    /// # Panics
    /// When `extent` is not exactly header and payload.
    pub fn seal(&self, extent: &mut [u8]) -> u32 {
        assert_eq!(extent.len(), Self::SIZE + self.payload_bytes as usize, "an extent is its header and its payload");
        assert!(extent.len() <= EXTENT_BYTES_MAX, "an extent of {} bytes", extent.len());
        extent[..Self::SIZE].copy_from_slice(&self.fields());
        let crc32 = crc32fast::hash(&extent[Self::CRC_START..]);
        extent[4..8].copy_from_slice(&crc32.to_le_bytes());
        crc32
    }

    /// Writes the header with a CRC computed elsewhere: over these fields, see [`ExtentHeader::crc_seed`], then the payload.
    pub fn encode(&self, crc32: u32) -> [u8; Self::SIZE] {
        let mut bytes = self.fields();
        bytes[4..8].copy_from_slice(&crc32.to_le_bytes());
        bytes
    }

    /// The CRC over the header's own part; continue it over the payload to compute it in steps.
    pub fn crc_seed(&self) -> crc32fast::Hasher {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.fields()[Self::CRC_START..]);
        hasher
    }

    fn fields(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..4].copy_from_slice(&Self::MAGIC);
        bytes[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[10] = self.kind as u8;
        bytes[12..16].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.table.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.shard.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.run.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.groups.start.to_le_bytes());
        bytes[30..32].copy_from_slice(&self.groups.end.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.born.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.schema.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.address.to_le_bytes());
        bytes
    }

    /// Reads the header of an extent, and checks that its CRC and its length fit the bytes given. Returns the CRC too.
    ///
    /// # Errors
    /// Says where and how the bytes differ from an extent.
    pub fn open(extent: &[u8]) -> Result<(Self, u32), BadFormat> {
        let (header, crc32) = Self::decode(extent)?;
        let length = Self::SIZE + header.payload_bytes as usize;
        if extent.len() != length {
            return Err(BadFormat::at(12, format_args!("extent of {length} bytes, {} given", extent.len())));
        }
        let found = crc32fast::hash(&extent[Self::CRC_START..]);
        if found != crc32 {
            return Err(BadFormat::at(4, format_args!("CRC {found:08x}, header says {crc32:08x}")));
        }
        Ok((header, crc32))
    }

    /// Reads a header without looking at what follows it.
    ///
    /// # Errors
    /// Says where and how the bytes differ from a header.
    pub fn decode(bytes: &[u8]) -> Result<(Self, u32), BadFormat> {
        let mut reader = Reader::new(bytes, 0);
        if reader.take(4)? != Self::MAGIC {
            return Err(BadFormat::at(0, "no extent begins here"));
        }
        let crc32 = reader.u32()?;
        let version = reader.u16()?;
        if version != FORMAT_VERSION {
            return Err(BadFormat::at(8, format_args!("extent of format {version}, this is {FORMAT_VERSION}")));
        }
        let kind = ExtentKind::decode(&mut reader)?;
        reader.zeros(1)?;
        let header = Self {
            kind,
            payload_bytes: reader.u32()?,
            table: reader.u32()?,
            shard: reader.u32()?,
            run: reader.u32()?,
            groups: KeyGroupRange { start: reader.u16()?, end: reader.u16()? },
            born: Epoch(reader.u64()?),
            sequence: reader.u64()?,
            schema: reader.u64()?,
            address: reader.u64()?,
        };
        if header.payload_bytes as usize > EXTENT_BYTES_MAX - Self::SIZE {
            return Err(BadFormat::at(12, format_args!("payload of {} bytes", header.payload_bytes)));
        }
        Ok((header, crc32))
    }
}

/// One extent as a manifest names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentEntry {
    /// The file.
    pub segment: SegmentId,
    /// Where it begins there.
    pub offset: u64,
    /// Its CRC-32.
    pub crc32: u32,
    /// Its header, but that `groups` are those for which this entry is authoritative: at most those in the file.
    pub header: ExtentHeader,
}

impl ExtentEntry {
    /// Encoded size in bytes. Part of format version 1.
    pub const SIZE: usize = 80;

    /// Bytes of the extent with its header.
    pub fn bytes(&self) -> usize {
        ExtentHeader::SIZE + self.header.payload_bytes as usize
    }

    /// Checks the bytes read from the file against this entry: their CRC, and their header (I1, I2).
    ///
    /// # Errors
    /// Says where in the extent and how they differ.
    pub fn check(&self, extent: &[u8]) -> Result<(), BadFormat> {
        let (header, crc32) = ExtentHeader::open(extent)?;
        if crc32 != self.crc32 {
            return Err(BadFormat::at(4, format_args!("CRC {crc32:08x}, manifest says {:08x}", self.crc32)));
        }
        let groups = self.header.groups.intersect(header.groups);
        if (ExtentHeader { groups, ..header }) != self.header {
            return Err(BadFormat::at(8, format_args!("{header:?}, manifest says {:?}", self.header)));
        }
        Ok(())
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.segment.run.to_le_bytes());
        out.extend_from_slice(&self.segment.shard.to_le_bytes());
        out.extend_from_slice(&self.segment.number.to_le_bytes());
        out.extend_from_slice(&self.crc32.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.header.payload_bytes.to_le_bytes());
        out.extend_from_slice(&[self.header.kind as u8, 0, 0, 0]);
        out.extend_from_slice(&self.header.fields()[16..]);
        assert_eq!(out.len() - start, Self::SIZE);
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, BadFormat> {
        let segment = SegmentId { run: reader.u32()?, shard: reader.u32()?, number: reader.u32()? };
        let crc32 = reader.u32()?;
        let offset = reader.u64()?;
        let at = reader.offset();
        let payload_bytes = reader.u32()?;
        if payload_bytes as usize > EXTENT_BYTES_MAX - ExtentHeader::SIZE {
            return Err(BadFormat::at(at, format_args!("payload of {payload_bytes} bytes")));
        }
        let kind = ExtentKind::decode(reader)?;
        reader.zeros(3)?;
        let header = ExtentHeader {
            kind,
            payload_bytes,
            table: reader.u32()?,
            shard: reader.u32()?,
            run: reader.u32()?,
            groups: KeyGroupRange { start: reader.u16()?, end: reader.u16()? },
            born: Epoch(reader.u64()?),
            sequence: reader.u64()?,
            schema: reader.u64()?,
            address: reader.u64()?,
        };
        Ok(Self { segment, offset, crc32, header })
    }
}

const _: () = assert!(ExtentEntry::SIZE == 12 + 4 + 8 + 4 + 4 + 48);
