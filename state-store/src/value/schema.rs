//! What stored bytes mean: enough to decode them without the program that wrote them, and to compare two versions.
//!
//! Invariants
//! * I1. [`Schema::fixed_size`] of a type's schema is the type's `FIXED_SIZE`.
//! * I2. The fingerprint is a function of the schema's JSON only (golden-tested): the JSON form never changes, it grows.

use super::difference;
use super::parts::{Layout, enum_size};
use crate::hash::hash_bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What sizes of nested arrays are cut off at, so that no schema, however wrong, makes them overflow.
const SIZE_MAX: usize = 1 << 40;

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
    /// A Unicode scalar value in four bytes, little-endian.
    Char,
    /// UTF-8 text.
    Text,
    /// Any bytes.
    Bytes,
    /// Either nothing or a value.
    Optional(Box<Schema>),
    /// Any number of values.
    List(Box<Schema>),
    /// This many values.
    Array(Box<Schema>, u32),
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
        /// In the order of their tags; each variant is a [`Schema::Struct`].
        variants: Vec<Field>,
    },
    /// Bytes that only the type itself can read: they are shown as they are, and kept while all of this is the same.
    Opaque {
        /// Who laid the bytes out, with the version of the layout.
        encoding: String,
        /// Name of the type.
        name: String,
        /// Bytes of the root: the part of fixed size that every value has.
        size: u32,
    },
}

/// One field of a [`Schema::Struct`] or variant of a [`Schema::Enum`].
#[derive(Clone, Eq, Debug, Serialize, Deserialize)]
pub struct Field {
    /// Identity across versions: declared, or made from the name.
    pub id: u32,
    /// Name in the source.
    pub name: String,
    /// What its bytes mean.
    pub schema: Schema,
    /// What an older value that lacks the field is given, encoded. Says nothing about stored bytes: no part of the
    /// manifest, of equality or of the fingerprint.
    #[serde(skip)]
    pub default: Option<Vec<u8>>,
}

impl Field {
    /// A field with a declared identity.
    pub fn new(id: u32, name: &str, schema: Schema) -> Self {
        Self { id, name: name.into(), schema, default: None }
    }

    /// A field known by its name.
    pub fn named(name: &str, schema: Schema) -> Self {
        Self::new(Self::id_of(name), name, schema)
    }

    /// The same with a value for those who lack it.
    #[must_use]
    pub fn or(self, default: Vec<u8>) -> Self {
        Self { default: Some(default), ..self }
    }

    /// The identity of a field without a declared one.
    #[expect(clippy::cast_possible_truncation, reason = "the low half of the hash")]
    pub fn id_of(name: &str) -> u32 {
        hash_bytes(name.as_bytes()) as u32
    }
}

impl PartialEq for Field {
    fn eq(&self, other: &Self) -> bool {
        (self.id, &self.name, &self.schema) == (other.id, &other.name, &other.schema)
    }
}

impl Schema {
    /// A struct.
    ///
    /// # Panics
    /// When two fields have one id.
    pub fn structure(name: &str, fields: Vec<Field>) -> Self {
        expect_distinct_ids(name, &fields);
        Self::Struct { name: name.into(), fields }
    }

    /// An enum.
    ///
    /// # Panics
    /// When two variants have one id.
    pub fn enumeration(name: &str, variants: Vec<Field>) -> Self {
        expect_distinct_ids(name, &variants);
        Self::Enum { name: name.into(), variants }
    }

    /// A number that is the same exactly when the schemas are (but for hash collisions).
    pub fn fingerprint(&self) -> u64 {
        hash_bytes(&serde_json::to_vec(self).expect("a schema is plain data"))
    }

    /// A short readable form: `Payment {account: u64, note: text}`.
    pub fn describe(&self) -> String {
        self.to_string()
    }

    /// Where `new` is not `old`: names the first field that differs, and both types. `None` when they are the same, which is
    /// what a stored state must be for its values to be read. Whether a value of the one can be turned into one of the
    /// other, [`Migration::plan`](super::Migration::plan) says.
    pub fn difference(old: &Self, new: &Self) -> Option<String> {
        difference::first("", old, new)
    }

    /// Size in bytes of every value, when all have the same.
    pub(crate) fn fixed_size(&self) -> Option<usize> {
        match self {
            Self::Unsigned(size) | Self::Signed(size) | Self::Float(size) => Some(usize::from(*size)),
            Self::Bool => Some(1),
            Self::Char => Some(4),
            Self::Text | Self::Bytes | Self::List(_) | Self::Opaque { .. } => None,
            Self::Optional(value) => enum_size(&[Layout::of(&[value.fixed_size()])]),
            _ => self.layout().map_or_else(
                || enum_size(&self.variants().iter().filter_map(|v| v.schema.layout()).collect::<Vec<_>>()),
                Layout::fixed_size,
            ),
        }
    }

    /// Whether some part is opaque: then equal schemas do not say that old bytes are good ones for the type of today.
    pub(crate) fn is_opaque(&self) -> bool {
        match self {
            Self::Opaque { .. } => true,
            Self::Optional(part) | Self::List(part) | Self::Array(part, _) => part.is_opaque(),
            Self::Tuple(parts) => parts.iter().any(Self::is_opaque),
            Self::Struct { fields, .. } | Self::Enum { variants: fields, .. } => {
                fields.iter().any(|field| field.schema.is_opaque())
            }
            _ => false,
        }
    }

    /// How the parts of a tuple, struct or array stand in its bytes.
    pub(super) fn layout(&self) -> Option<Layout> {
        match self {
            Self::Tuple(parts) => Some(Layout::of(&sizes(parts.iter()))),
            Self::Struct { fields, .. } => Some(Layout::of(&sizes(fields.iter().map(|field| &field.schema)))),
            Self::Array(item, count) => {
                let count = *count as usize;
                let size = item.fixed_size().map(|size| size.min(SIZE_MAX / count.max(1)));
                Some(Layout::repeat(size, count))
            }
            _ => None,
        }
    }

    /// The variants of an enum; no others have any.
    pub(super) fn variants(&self) -> &[Field] {
        match self {
            Self::Enum { variants, .. } => variants,
            _ => &[],
        }
    }
}

fn sizes<'a>(parts: impl Iterator<Item = &'a Schema>) -> Vec<Option<usize>> {
    parts.map(|part| part.fixed_size().map(|size| size.min(SIZE_MAX))).collect()
}

fn expect_distinct_ids(owner: &str, fields: &[Field]) {
    for (i, field) in fields.iter().enumerate() {
        if let Some(twin) = fields[..i].iter().find(|twin| twin.id == field.id) {
            let (id, a, b) = (field.id, &twin.name, &field.name);
            panic!(
                "`{owner}`: `{a}` and `{b}` have the same id {id}; give one of them another by `#[record(id = ..)]`"
            );
        }
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(size) => write!(f, "u{}", 8 * u32::from(*size)),
            Self::Signed(size) => write!(f, "i{}", 8 * u32::from(*size)),
            Self::Float(size) => write!(f, "f{}", 8 * u32::from(*size)),
            Self::Bool => f.write_str("bool"),
            Self::Char => f.write_str("char"),
            Self::Text => f.write_str("text"),
            Self::Bytes => f.write_str("bytes"),
            Self::Optional(value) => write!(f, "optional {value}"),
            Self::List(item) => write!(f, "[{item}]"),
            Self::Array(item, count) => write!(f, "[{item}; {count}]"),
            Self::Tuple(parts) => {
                f.write_str("(")?;
                separated(f, ", ", parts, |f, part| write!(f, "{part}"))?;
                f.write_str(")")
            }
            Self::Struct { name, fields } => {
                f.write_str(name)?;
                if fields.is_empty() {
                    return Ok(());
                }
                f.write_str(" {")?;
                separated(f, ", ", fields, |f, field| write!(f, "{}: {}", field.name, field.schema))?;
                f.write_str("}")
            }
            Self::Enum { name, variants } => {
                write!(f, "{name} {{")?;
                separated(f, " | ", variants, |f, variant| write!(f, "{}", variant.schema))?;
                f.write_str("}")
            }
            Self::Opaque { encoding, name, size } => write!(f, "{name} ({encoding}, root of {size} bytes)"),
        }
    }
}

fn separated<T>(
    f: &mut fmt::Formatter<'_>,
    separator: &str,
    items: &[T],
    mut write: impl FnMut(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            f.write_str(separator)?;
        }
        write(f, item)?;
    }
    Ok(())
}
