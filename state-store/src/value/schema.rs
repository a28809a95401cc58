//! What stored bytes mean: enough to decode them without the program that wrote them, and to compare two versions.

use crate::hash::hash_bytes;
use serde::{Deserialize, Serialize};

/// The meaning of encoded bytes. Part of the manifest, as JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Schema {
    /// Unsigned integer of this many bytes, little-endian.
    Unsigned(u8),
    /// Signed integer of this many bytes, little-endian.
    Signed(u8),
    /// IEEE float of this many bytes, little-endian.
    Float(u8),
    /// One byte, 0 or 1.
    Bool,
    /// UTF-8 text.
    Text,
    /// Any bytes.
    Bytes,
    /// Either nothing or a value.
    Optional(Box<Schema>),
    /// Any number of values.
    List(Box<Schema>),
    /// Values one after another.
    Tuple(Vec<Schema>),
    /// Named fields.
    Struct {
        /// Name of the type.
        name: String,
        /// In the order in which they are encoded.
        fields: Vec<Field>,
    },
    /// One of several named variants.
    Enum {
        /// Name of the type.
        name: String,
        /// In the order of their tags.
        variants: Vec<Field>,
    },
}

/// One field of a [`Schema::Struct`] or variant of a [`Schema::Enum`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Field {
    /// Identity across versions: declared, or the hash of the name.
    pub id: u32,
    /// Name in the source.
    pub name: String,
    /// What its bytes mean.
    pub schema: Schema,
}

impl Schema {
    /// A number that is the same exactly when the schemas are (but for hash collisions).
    pub fn fingerprint(&self) -> u64 {
        hash_bytes(&serde_json::to_vec(self).expect("a schema is plain data"))
    }
}
