//! Stored bytes as JSON, by their schema alone: for tools that look into snapshots without the program that wrote them.
//!
//! Numbers beyond 64 bits and floats that are no numbers become strings; bytes become text where they are UTF-8 and
//! `{"hex": ".."}` elsewhere, opaque ones always the latter; structs whose fields have no names, and tuples, become
//! arrays; a variant becomes its name, or `{name: fields}`.
//!
//! Never panics and never allocates more than a small multiple of the bytes, whatever the bytes and the schema are.

use super::parts::{check_variant, unknown_tag};
use super::*;
use serde_json::{Map, Value, json};

/// Most values of no bytes that are listed: nothing else bounds their number.
const EMPTY_VALUES_MAX: usize = 1 << 16;

impl Schema {
    /// Decodes a value of this schema.
    ///
    /// ```
    /// use millstream_state::Record;
    ///
    /// let mut bytes = Vec::new();
    /// (7u32, Some(String::from("seven"))).encode(&mut bytes);
    /// let value = <(u32, Option<String>)>::schema().to_json(&bytes).unwrap();
    /// assert_eq!(value.to_string(), r#"[7,"seven"]"#);
    /// ```
    ///
    /// # Errors
    /// [`BadBytes`] says which part is wrong and how.
    pub fn to_json(&self, bytes: &[u8]) -> Result<Value, BadBytes> {
        match self {
            Self::Unsigned(1) => number::<u8>(bytes, Value::from),
            Self::Unsigned(2) => number::<u16>(bytes, Value::from),
            Self::Unsigned(4) => number::<u32>(bytes, Value::from),
            Self::Unsigned(8) => number::<u64>(bytes, Value::from),
            Self::Unsigned(16) => number::<u128>(bytes, |n| n.to_string().into()),
            Self::Signed(1) => number::<i8>(bytes, Value::from),
            Self::Signed(2) => number::<i16>(bytes, Value::from),
            Self::Signed(4) => number::<i32>(bytes, Value::from),
            Self::Signed(8) => number::<i64>(bytes, Value::from),
            Self::Signed(16) => number::<i128>(bytes, |n| n.to_string().into()),
            // By way of its shortest decimal form: 0.1f32 is 0.1, not 0.10000000149011612.
            Self::Float(4) => number::<f32>(bytes, |n| float(n.to_string().parse().unwrap_or(f64::from(n)))),
            Self::Float(8) => number::<f64>(bytes, float),
            Self::Unsigned(_) | Self::Signed(_) | Self::Float(_) => Err(BadBytes(format!("no type is called {self}"))),
            Self::Bool => number::<bool>(bytes, Value::from),
            Self::Char => number::<char>(bytes, |c| c.to_string().into()),
            Self::Text => {
                <String as Record>::check(bytes)?;
                Ok(<String as Record>::view(bytes).into())
            }
            Self::Bytes => Ok(std::str::from_utf8(bytes).map_or_else(|_| json!({ "hex": hex(bytes) }), Value::from)),
            Self::Opaque { .. } => Ok(json!({ "hex": hex(bytes) })),
            Self::Optional(value) => optional(self, value, bytes),
            Self::List(item) => list(item, bytes),
            Self::Array(item, count) => {
                let count = *count as usize;
                if item.fixed_size() == Some(0) && count > EMPTY_VALUES_MAX {
                    return Err(BadBytes(format!("{count} values of no bytes")));
                }
                let mut reader = self.cut(bytes)?;
                let values = (0..count).map(|i| part(item, reader.next(item.fixed_size()), &i));
                values.collect::<Result<Vec<_>, _>>().map(Value::from)
            }
            Self::Tuple(parts) => {
                let mut reader = self.cut(bytes)?;
                let values = parts.iter().enumerate().map(|(i, item)| part(item, reader.next(item.fixed_size()), &i));
                values.collect::<Result<Vec<_>, _>>().map(Value::from)
            }
            Self::Struct { fields, .. } => structure(fields, self.cut(bytes)?),
            Self::Enum { variants, .. } => {
                let variant = bytes.first().and_then(|&tag| variants.get(usize::from(tag)));
                let variant = variant.ok_or_else(|| unknown_tag(bytes, variants.len()))?;
                let Self::Struct { fields, .. } = &variant.schema else {
                    return Err(BadBytes(format!("variant `{}` is no struct", variant.name)));
                };
                let layout = variant.schema.layout().expect("a struct has a layout");
                let reader = check_variant(bytes, self.fixed_size(), layout)?;
                if fields.is_empty() {
                    return Ok(variant.name.clone().into());
                }
                let value = structure(fields, reader).map_err(|error| error.inside(&variant.name))?;
                Ok(Map::from_iter([(variant.name.clone(), value)]).into())
            }
        }
    }

    /// The bytes of a composite, ready to be read part by part.
    fn cut<'a>(&self, bytes: &'a [u8]) -> Result<parts::Reader<'a>, BadBytes> {
        self.layout().expect("a composite has a layout").check_and_read(bytes)
    }
}

fn number<'a, T: Record>(bytes: &'a [u8], value: impl FnOnce(T::View<'a>) -> Value) -> Result<Value, BadBytes> {
    T::check(bytes)?;
    Ok(value(T::view(bytes)))
}

fn float(n: f64) -> Value {
    serde_json::Number::from_f64(n).map_or_else(|| n.to_string().into(), Value::from)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn part(schema: &Schema, bytes: &[u8], name: &dyn fmt::Display) -> Result<Value, BadBytes> {
    schema.to_json(bytes).map_err(|error| error.inside(name))
}

fn optional(whole: &Schema, value: &Schema, bytes: &[u8]) -> Result<Value, BadBytes> {
    match (bytes, whole.fixed_size()) {
        ([0], None) => Ok(Value::Null),
        ([0, ..], Some(_)) => check_variant(bytes, whole.fixed_size(), parts::Layout::of(&[])).map(|_| Value::Null),
        ([1, some @ ..], _) => part(value, some, &"some"),
        _ => Err(unknown_tag(bytes, 2)),
    }
}

fn list(item: &Schema, bytes: &[u8]) -> Result<Value, BadBytes> {
    let items = list::items(item.fixed_size(), bytes)?;
    let values = items.into_iter().enumerate().map(|(i, bytes)| part(item, bytes, &i));
    values.collect::<Result<Vec<_>, _>>().map(Value::from)
}

fn structure(fields: &[Field], mut reader: parts::Reader<'_>) -> Result<Value, BadBytes> {
    let mut values = Vec::new();
    for field in fields {
        values.push(part(&field.schema, reader.next(field.schema.fixed_size()), &field.name)?);
    }
    let unnamed = fields.iter().enumerate().all(|(i, field)| field.name == i.to_string());
    Ok(match values.len() {
        1 if unnamed => values.remove(0),
        _ if unnamed => values.into(),
        _ => fields.iter().map(|field| field.name.clone()).zip(values).collect::<Map<_, _>>().into(),
    })
}
