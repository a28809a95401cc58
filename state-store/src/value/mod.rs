//! What can be a record, a state or a key: types with a stable encoding and a schema.
//!
//! Invariants
//! * I1. Equal keys have equal encoded bytes, and only they (the encoding of a key is canonical).
//! * I2. `decode(encode(x)) == x`; a type whose [`Record::FIXED_SIZE`] is `Some(n)` always encodes to exactly `n` bytes.
//! * I3. No call here is undefined on any bytes: `check` finds bad ones, `view` and `decode` may panic on them.
//! * I4. A type that is both a record and a key has the same bytes as both.
//! * I5. The [`Schema`] alone is enough to read the bytes, without the Rust type; those of a [`Rkyv`] it only tells apart.
//!
//! The encodings, all little-endian and without padding:
//!
//! | type | bytes |
//! |---|---|
//! | integers, floats, `bool`, `char` | their 1 to 16 bytes |
//! | text, bytes | themselves, no length |
//! | tuples, structs, arrays | `[fixed fields][ends of the variable fields but the last: u32 each][variable fields]`, see [`parts`] |
//! | `Option`, enums | a tag byte, then the fields; filled up with zeros when every variant is fixed-size, so that they are too |
//! | `Vec` of fixed-size values | the values |
//! | `Vec` of others | `[count: u32][ends: u32 each][values]` |
//! | [`Rkyv`] | what rkyv makes of it |
//!
//! So a struct of fixed-size fields is itself fixed-size and reading a field of it is a plain load at a constant offset, a
//! struct with one text costs not a byte beyond its contents, and any field of any value is reached without reading the
//! others. No part of it stores a pointer, so it can be copied, cut out and nested freely. (Why this is not rkyv's for all
//! types, with numbers: see `docs/DEPENDENCIES.md`.)

mod difference;
mod fixed;
mod json;
mod list;
mod migrate;
mod optional;
#[doc(hidden)]
pub mod parts;
mod rkyv;
mod schema;
mod text;
mod tuple;

pub use self::rkyv::{Archivable, Rkyv};
pub use list::{Iter, List};
pub use migrate::Migration;
pub use schema::{Field, Schema};

use std::fmt;

/// Bytes that are no encoding of the type they were read as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadBytes(pub String);

impl BadBytes {
    /// The same, said of the bytes of a part: `name: what is wrong`.
    #[must_use]
    pub fn inside(self, name: impl fmt::Display) -> Self {
        Self(format!("{name}: {}", self.0))
    }
}

impl fmt::Display for BadBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadBytes {}

/// A type that can cross an exchange, stand in a channel log and in a snapshot.
///
/// Implemented for integers, floats, `bool`, `char`, `String`, `Duration`, and for `Vec`, `Option`, arrays and tuples of
/// records; `#[derive(Record)]` for your own.
///
/// ```
/// use millstream_state::Record;
///
/// let mut bytes = Vec::new();
/// (7u32, String::from("seven")).encode(&mut bytes);
/// assert_eq!(bytes, b"\x07\0\0\0seven");
/// assert_eq!(<(u32, String)>::view(&bytes), (7, "seven"));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no stable encoding, so it cannot cross an exchange or be stored",
    label = "add `#[derive(Record)]` to `{Self}`"
)]
pub trait Record: Sized + Send + 'static {
    /// Size of every encoded value in bytes, when all have the same.
    const FIXED_SIZE: Option<usize>;

    /// How an encoded value is read in place: numbers as themselves, text and lists borrowed, a struct as its fields' views.
    type View<'a>: Copy + fmt::Debug + PartialEq;

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
/// Implemented for integers, `bool`, `char`, `str`, `[u8]`, `String`, `Vec<u8>`, and for `Option`, arrays and tuples of
/// keys; `#[derive(Key)]` for your own. Every key has a borrowed form, [`Key::Ref`], with the same bytes and hash, so
/// that neither looking up nor reading a stored key makes an owned one.
///
/// ```
/// use millstream_state::Key;
///
/// let mut bytes = Vec::new();
/// <(String, u32)>::encode_ref(("lemon", 7), &mut bytes);
/// assert_eq!(<(String, u32)>::view(&bytes), ("lemon", 7));
/// assert_eq!(<(String, u32)>::hash_ref(("lemon", 7)), (String::from("lemon"), 7u32).stable_hash());
/// ```
#[diagnostic::on_unimplemented(
    message = "a stream cannot be keyed by `{Self}`",
    label = "add `#[derive(Key)]` to `{Self}`; floats are no keys"
)]
pub trait Key: 'static {
    /// Size of every encoded key in bytes, when all have the same.
    const FIXED_SIZE: Option<usize>;

    /// The borrowed form: numbers as themselves, `&str` for text, `(&str, u32)` for `(String, u32)`.
    type Ref<'a>: Copy + fmt::Debug + Eq;

    /// What the bytes mean.
    fn schema() -> Schema;

    /// Appends the canonical encoding (I1).
    fn encode_ref(key: Self::Ref<'_>, out: &mut Vec<u8>);

    /// Writes a fixed-size key; `out` has exactly [`Key::FIXED_SIZE`] bytes.
    ///
    /// # Panics
    /// When the type is not fixed-size.
    fn encode_ref_fixed(key: Self::Ref<'_>, out: &mut [u8]);

    /// The hash of the encoded bytes: [`hash_bytes`](crate::hash::hash_bytes) of what `encode_ref` appends.
    fn hash_ref(key: Self::Ref<'_>) -> u64;

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

    /// Appends the canonical encoding (I1).
    #[inline(always)]
    fn encode(&self, out: &mut Vec<u8>) {
        Self::encode_ref(self.to_ref(), out);
    }

    /// Writes a fixed-size key; `out` has exactly [`Key::FIXED_SIZE`] bytes.
    ///
    /// # Panics
    /// When the type is not fixed-size.
    #[inline(always)]
    fn encode_fixed(&self, out: &mut [u8]) {
        Self::encode_ref_fixed(self.to_ref(), out);
    }

    /// The hash of the encoded bytes: [`hash_bytes`](crate::hash::hash_bytes) of what `encode` appends.
    #[inline(always)]
    fn stable_hash(&self) -> u64 {
        Self::hash_ref(self.to_ref())
    }
}

#[cfg(test)]
mod derive_tests;
#[cfg(test)]
mod tests;
