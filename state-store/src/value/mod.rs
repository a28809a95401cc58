//! What can be a record, a state or a key: types with a stable encoding and a schema.
//!
//! Invariants
//! * I1. Equal keys have equal encoded bytes, and only they (the encoding of a key is canonical).
//! * I2. `decode(encode(x)) == x`; a type whose [`Record::FIXED_SIZE`] is `Some(n)` always encodes to exactly `n` bytes.
//! * I3. No call here is undefined on any bytes: `check` finds bad ones, `view` and `decode` may panic on them.
//!
//! Fixed-size types are written field by field without padding, so reading one is a few plain loads. Others are
//! encoded by rkyv and read in place as a view.

mod schema;

pub use schema::{Field, Schema};

use crate::hash::{hash_bytes, hash_u64};
use std::fmt;

/// Bytes that are no encoding of the type they were read as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadBytes(pub String);

impl fmt::Display for BadBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A type that can cross an exchange, stand in a channel log and in a snapshot.
///
/// Implemented for integers, floats, `bool`, `String`, `Vec`, `Option` and tuples of records; `#[derive(Record)]` for your own.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no stable encoding, so it cannot cross an exchange or be stored",
    label = "add `#[derive(Record)]` to `{Self}`"
)]
pub trait Record: Sized + Send + 'static {
    /// Size of every encoded value in bytes, when all have the same.
    const FIXED_SIZE: Option<usize>;

    /// How an encoded value is read in place: the value itself where it is fixed-size, a borrowed view elsewhere.
    type View<'a>: Copy;

    /// What the bytes mean; kept in every manifest, compared on restore.
    fn schema() -> Schema;

    /// Appends the encoding of `self`.
    fn encode(&self, out: &mut Vec<u8>);

    /// Writes a fixed-size value; `out` has exactly [`Record::FIXED_SIZE`] bytes.
    ///
    /// # Panics
    /// When the type is not fixed-size.
    fn encode_fixed(&self, out: &mut [u8]);

    /// Says whether `bytes` are a whole encoding; to be called on everything this process did not write.
    ///
    /// # Errors
    /// [`BadBytes`] says which field is wrong and how.
    fn check(bytes: &[u8]) -> Result<(), BadBytes>;

    /// Reads without copying what is variable-size.
    ///
    /// # Panics
    /// May panic on bytes that [`Record::check`] refuses.
    fn view(bytes: &[u8]) -> Self::View<'_>;

    /// Rebuilds the value.
    ///
    /// # Panics
    /// May panic on bytes that [`Record::check`] refuses.
    fn decode(bytes: &[u8]) -> Self;
}

/// A [`Record`] that may be kept as state.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be kept as state",
    label = "add `#[derive(Record, State)]` to `{Self}`"
)]
pub trait State: Record {}

/// A type that a stream can be keyed by: it has a canonical encoding and a stable hash.
///
/// Implemented for integers, `bool`, `str`, `[u8]`, `String` and tuples of keys; `#[derive(Key)]` for your own.
#[diagnostic::on_unimplemented(
    message = "a stream cannot be keyed by `{Self}`",
    label = "add `#[derive(Key)]` to `{Self}`; floats are no keys"
)]
pub trait Key: 'static {
    /// Size of every encoded key in bytes, when all have the same.
    const FIXED_SIZE: Option<usize>;

    /// How a stored key is read: the key itself where it is fixed-size, borrowed elsewhere (`&str` for `str`).
    type Ref<'a>: Copy;

    /// What the bytes mean.
    fn schema() -> Schema;

    /// Appends the canonical encoding (I1).
    fn encode(&self, out: &mut Vec<u8>);

    /// Writes a fixed-size key; `out` has exactly [`Key::FIXED_SIZE`] bytes.
    ///
    /// # Panics
    /// When the type is not fixed-size.
    fn encode_fixed(&self, out: &mut [u8]);

    /// The hash of the encoded bytes: [`hash_bytes`](crate::hash::hash_bytes) of what `encode` appends.
    fn stable_hash(&self) -> u64;

    /// Says whether `bytes` are a whole encoding.
    ///
    /// # Errors
    /// [`BadBytes`] says which field is wrong and how.
    fn check(bytes: &[u8]) -> Result<(), BadBytes>;

    /// Reads a stored key.
    ///
    /// # Panics
    /// May panic on bytes that [`Key::check`] refuses.
    fn view(bytes: &[u8]) -> Self::Ref<'_>;

    /// Reads `self` as a stored key is read.
    fn to_ref(&self) -> Self::Ref<'_>;
}

mod fixed;
mod text;
