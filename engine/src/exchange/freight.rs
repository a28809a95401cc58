//! What a record looks like on the wire.
//!
//! Fixed-size: hash (8 bytes), payload. Others: hash (8), payload length (4), payload. Little-endian, no padding.
//! The hash was computed once by the sender and serves routing, the table's index and, after a restore, routing again.

use crate::{Error, Result};
use millstream_state::table::KEY_BYTES_MAX;
use millstream_state::{BadBytes, Key, Record, Schema};
use std::marker::PhantomData;

/// Records that an operator takes at once: hashed, prefetched, then applied in order.
pub(crate) const BATCH_RECORDS: usize = 512;

const HASH_BYTES: usize = 8;
const LENGTH_BYTES: usize = 4;
/// What a record of no fixed size has in front of its payload.
pub(super) const HEAD_BYTES: usize = HASH_BYTES + LENGTH_BYTES;

/// What crosses an exchange: only a key, or a whole record.
pub trait Freight: 'static {
    /// What is handed to the exchange.
    type Load: ?Sized;
    /// Payload bytes, when all have the same count.
    const FIXED_SIZE: Option<usize>;
    /// Most payload bytes that the receiver has a use for, when there is such a limit.
    const PAYLOAD_BYTES_MAX: Option<usize>;
    /// What the payload means.
    fn schema() -> Schema;
    /// Appends the payload.
    fn encode(load: &Self::Load, out: &mut Vec<u8>);
    /// Writes a fixed-size payload.
    fn encode_fixed(load: &Self::Load, out: &mut [u8]);
    /// Says whether `payload` is whole.
    ///
    /// # Errors
    /// [`BadBytes`] says what is wrong.
    fn check(payload: &[u8]) -> Result<(), BadBytes>;
}

/// Only the key crosses: all that a count needs.
pub struct KeyFreight<K: ?Sized>(PhantomData<fn(&K)>);

impl<K: Key + ?Sized> Freight for KeyFreight<K> {
    type Load = K;
    const FIXED_SIZE: Option<usize> = K::FIXED_SIZE;
    const PAYLOAD_BYTES_MAX: Option<usize> = Some(KEY_BYTES_MAX);
    fn schema() -> Schema {
        K::schema()
    }
    #[inline(always)]
    fn encode(load: &K, out: &mut Vec<u8>) {
        load.encode(out);
    }
    #[inline(always)]
    fn encode_fixed(load: &K, out: &mut [u8]) {
        load.encode_fixed(out);
    }
    fn check(payload: &[u8]) -> Result<(), BadBytes> {
        K::check(payload)
    }
}

/// The whole record crosses.
pub struct RecordFreight<R>(PhantomData<fn() -> R>);

impl<R: Record> Freight for RecordFreight<R> {
    type Load = R;
    const FIXED_SIZE: Option<usize> = R::FIXED_SIZE;
    const PAYLOAD_BYTES_MAX: Option<usize> = None;
    fn schema() -> Schema {
        R::schema()
    }
    #[inline(always)]
    fn encode(load: &R, out: &mut Vec<u8>) {
        load.encode(out);
    }
    #[inline(always)]
    fn encode_fixed(load: &R, out: &mut [u8]) {
        load.encode_fixed(out);
    }
    fn check(payload: &[u8]) -> Result<(), BadBytes> {
        R::check(payload)
    }
}

/// Bytes of a fixed-size record of `W` on the wire.
pub(super) const fn fixed_bytes<W: Freight>() -> Option<usize> {
    match W::FIXED_SIZE {
        Some(payload) => Some(HASH_BYTES + payload),
        None => None,
    }
}

/// Writes a fixed-size record into exactly its bytes.
#[inline(always)]
pub(super) fn write_fixed<W: Freight>(hash: u64, load: &W::Load, out: &mut [u8]) {
    let (head, payload) = out.split_at_mut(HASH_BYTES);
    head.copy_from_slice(&hash.to_le_bytes());
    W::encode_fixed(load, payload);
}

/// Replaces `out` by a record of any size.
#[inline]
pub(super) fn write_any<W: Freight>(hash: u64, load: &W::Load, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&hash.to_le_bytes());
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    W::encode(load, out);
    // A record above 4 GiB is above every ring, and refused there by its real length.
    let payload = u32::try_from(out.len() - HASH_BYTES - LENGTH_BYTES).unwrap_or(u32::MAX);
    out[HASH_BYTES..HASH_BYTES + LENGTH_BYTES].copy_from_slice(&payload.to_le_bytes());
}

/// Up to [`BATCH_RECORDS`] records in front of a run of wire bytes.
pub(crate) struct Batch<'a, W> {
    bytes: &'a [u8],
    hashes: &'a [u64],
    spans: &'a [(u32, u32)],
    freight: PhantomData<fn() -> W>,
}

impl<'a, W: Freight> Batch<'a, W> {
    /// Number of records.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Their hashes, in order.
    #[inline(always)]
    pub(crate) fn hashes(&self) -> &'a [u64] {
        self.hashes
    }

    /// The payload of record `index`.
    #[inline(always)]
    pub(crate) fn payload(&self, index: usize) -> &'a [u8] {
        match W::FIXED_SIZE {
            Some(payload) => &self.bytes[index * (HASH_BYTES + payload) + HASH_BYTES..][..payload],
            None => {
                let (start, end) = self.spans[index];
                &self.bytes[start as usize..end as usize]
            }
        }
    }
}

/// Room for the parts of a [`Batch`].
pub(crate) struct BatchParts {
    hashes: [u64; BATCH_RECORDS],
    spans: [(u32, u32); BATCH_RECORDS],
}

impl Default for BatchParts {
    fn default() -> Self {
        Self { hashes: [0; BATCH_RECORDS], spans: [(0, 0); BATCH_RECORDS] }
    }
}

/// Cuts up to `records_max` records off the front of `bytes`; also returns how many bytes they are.
///
/// # Panics
/// When `bytes` is not whole records: it is, by invariant I4 for what came through a ring, and by [`check_log`] for what
/// came from disk.
#[inline]
pub(crate) fn parse<'a, W: Freight>(
    bytes: &'a [u8],
    records_max: usize,
    parts: &'a mut BatchParts,
) -> (Batch<'a, W>, usize) {
    let limit = records_max.min(BATCH_RECORDS);
    let (count, used) = match fixed_bytes::<W>() {
        Some(stride) => {
            let count = (bytes.len() / stride).min(limit);
            for (hash, record) in parts.hashes.iter_mut().zip(bytes.chunks_exact(stride)).take(count) {
                *hash = u64::from_le_bytes(*record.first_chunk().expect("a stride is above eight bytes"));
            }
            (count, count * stride)
        }
        None => {
            let (mut count, mut at) = (0, 0);
            while count < limit && at < bytes.len() {
                let (hash, payload) = header(&bytes[at..]).expect("whole records");
                let start = at + HASH_BYTES + LENGTH_BYTES;
                at = start + payload;
                parts.hashes[count] = hash;
                parts.spans[count] = (span_end(start), span_end(at));
                count += 1;
            }
            (count, at)
        }
    };
    let batch = Batch {
        bytes: &bytes[..used],
        hashes: &parts.hashes[..count],
        spans: &parts.spans[..count],
        freight: PhantomData,
    };
    (batch, used)
}

#[expect(clippy::cast_possible_truncation, reason = "a chunk of wire bytes is far below 4 GiB")]
const fn span_end(at: usize) -> u32 {
    at as u32
}

fn header(bytes: &[u8]) -> Option<(u64, usize)> {
    let (hash, rest) = bytes.split_first_chunk::<HASH_BYTES>()?;
    let length = rest.first_chunk::<LENGTH_BYTES>()?;
    Some((u64::from_le_bytes(*hash), u32::from_le_bytes(*length) as usize))
}

/// Reads a channel log from disk: checks that it is whole, good records and hands each one, with its hash, to `keep`.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) with the byte position of the first bad record.
pub(crate) fn check_log<W: Freight>(bytes: &[u8], mut keep: impl FnMut(u64, &[u8])) -> Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let (hash, start, end) = match W::FIXED_SIZE {
            Some(payload) => {
                let hash = rest.first_chunk().map(|hash| u64::from_le_bytes(*hash));
                (hash, HASH_BYTES, HASH_BYTES + payload)
            }
            None => {
                let head = header(rest);
                let start = HASH_BYTES + LENGTH_BYTES;
                (head.map(|(hash, _)| hash), start, head.map_or(start, |(_, payload)| start + payload))
            }
        };
        let (Some(hash), Some(payload)) = (hash, rest.get(start..end)) else {
            return Err(Error::corrupt(format_args!("channel log ends inside the record at byte {at}")));
        };
        W::check(payload).map_err(|bad| Error::corrupt(format_args!("channel log at byte {at}: {bad}")))?;
        keep(hash, &rest[..end]);
        at += end;
    }
    Ok(())
}
