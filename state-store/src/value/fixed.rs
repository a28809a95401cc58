//! Numbers, `bool`, `char`, `()` and `Duration`: fixed-size records, states and (floats and durations apart) keys.
//!
//! A number is its little-endian bytes, so an 8-byte one hashes like the integer it is. `bool` is 0 or 1, `char` its
//! scalar value in four bytes; other bytes are refused by `check`, which keeps the encodings canonical (I1).

use super::parts::expect_size;
use super::*;
use crate::hash::{hash_bytes, hash_u64};
use std::time::Duration;

macro_rules! number {
    ($($type:ty => $schema:expr),+ $(,)?) => {$(
        impl Record for $type {
            const FIXED_SIZE: Option<usize> = Some(size_of::<$type>());
            type View<'a> = $type;
            fn schema() -> Schema { $schema }
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) { out.extend_from_slice(&self.to_le_bytes()) }
            #[inline(always)]
            fn encode_fixed(&self, out: &mut [u8]) { out.copy_from_slice(&self.to_le_bytes()) }
            fn check(bytes: &[u8]) -> Result<(), BadBytes> {
                expect_size(bytes, size_of::<$type>(), stringify!($type))
            }
            #[inline(always)]
            fn view(bytes: &[u8]) -> $type { Self::decode(bytes) }
            #[inline(always)]
            fn decode(bytes: &[u8]) -> Self { Self::from_le_bytes(bytes.try_into().expect("checked size")) }
        }
        impl State for $type {}
    )+};
}

number! {
    u8 => Schema::Unsigned(1), u16 => Schema::Unsigned(2), u32 => Schema::Unsigned(4), u64 => Schema::Unsigned(8),
    u128 => Schema::Unsigned(16), i8 => Schema::Signed(1), i16 => Schema::Signed(2), i32 => Schema::Signed(4),
    i64 => Schema::Signed(8), i128 => Schema::Signed(16), f32 => Schema::Float(4), f64 => Schema::Float(8),
}

/// Keys that are their own borrowed form and have the encoding they have as records.
macro_rules! plain_key {
    ($($type:ty: $key:ident => $hash:expr),+ $(,)?) => {$(
        impl Key for $type {
            const FIXED_SIZE: Option<usize> = <$type as Record>::FIXED_SIZE;
            type Ref<'a> = $type;
            fn schema() -> Schema { <$type as Record>::schema() }
            #[inline]
            fn encode_ref(key: $type, out: &mut Vec<u8>) { Record::encode(&key, out) }
            #[inline(always)]
            fn encode_ref_fixed(key: $type, out: &mut [u8]) { Record::encode_fixed(&key, out) }
            #[inline(always)]
            fn hash_ref($key: $type) -> u64 { $hash }
            fn check(bytes: &[u8]) -> Result<(), BadBytes> { <$type as Record>::check(bytes) }
            #[inline(always)]
            fn view(bytes: &[u8]) -> $type { Record::decode(bytes) }
            #[inline(always)]
            fn to_ref(&self) -> $type { *self }
        }
    )+};
}

plain_key! {
    u8: key => hash_bytes(&[key]), i8: key => hash_bytes(&key.to_le_bytes()),
    u16: key => hash_bytes(&key.to_le_bytes()), i16: key => hash_bytes(&key.to_le_bytes()),
    u32: key => hash_bytes(&key.to_le_bytes()), i32: key => hash_bytes(&key.to_le_bytes()),
    u64: key => hash_u64(key), i64: key => hash_u64(key.cast_unsigned()),
    u128: key => hash_bytes(&key.to_le_bytes()), i128: key => hash_bytes(&key.to_le_bytes()),
    bool: key => hash_bytes(&[u8::from(key)]),
    char: key => hash_bytes(&u32::from(key).to_le_bytes()),
    (): _key => hash_bytes(&[]),
}

impl Record for bool {
    const FIXED_SIZE: Option<usize> = Some(1);
    type View<'a> = bool;
    fn schema() -> Schema {
        Schema::Bool
    }
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    #[inline(always)]
    fn encode_fixed(&self, out: &mut [u8]) {
        Record::encode_fixed(&u8::from(*self), out);
    }
    fn check(bytes: &[u8]) -> Result<(), BadBytes> {
        match bytes {
            [0 | 1] => Ok(()),
            [other] => Err(BadBytes(format!("bool {other} is neither 0 nor 1"))),
            _ => expect_size(bytes, 1, "bool"),
        }
    }
    #[inline(always)]
    fn view(bytes: &[u8]) -> bool {
        Self::decode(bytes)
    }
    #[inline(always)]
    fn decode(bytes: &[u8]) -> Self {
        u8::decode(bytes) != 0
    }
}

impl State for bool {}

impl Record for char {
    const FIXED_SIZE: Option<usize> = Some(4);
    type View<'a> = char;
    fn schema() -> Schema {
        Schema::Char
    }
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        Record::encode(&u32::from(*self), out);
    }
    #[inline(always)]
    fn encode_fixed(&self, out: &mut [u8]) {
        Record::encode_fixed(&u32::from(*self), out);
    }
    fn check(bytes: &[u8]) -> Result<(), BadBytes> {
        expect_size(bytes, 4, "char")?;
        let scalar = u32::decode(bytes);
        char::from_u32(scalar).map(drop).ok_or_else(|| BadBytes(format!("{scalar:#x} is no char")))
    }
    #[inline(always)]
    fn view(bytes: &[u8]) -> char {
        Self::decode(bytes)
    }
    #[inline(always)]
    fn decode(bytes: &[u8]) -> Self {
        char::from_u32(u32::decode(bytes)).expect("checked char")
    }
}

impl State for char {}

impl Record for () {
    const FIXED_SIZE: Option<usize> = Some(0);
    type View<'a> = ();
    fn schema() -> Schema {
        Schema::Tuple(Vec::new())
    }
    fn encode(&self, _: &mut Vec<u8>) {}
    fn encode_fixed(&self, _: &mut [u8]) {}
    fn check(bytes: &[u8]) -> Result<(), BadBytes> {
        expect_size(bytes, 0, "()")
    }
    fn view(_: &[u8]) {}
    fn decode(_: &[u8]) -> Self {}
}

impl State for () {}

/// Whole seconds (u64) and nanoseconds (u32, below 10^9).
impl Record for Duration {
    const FIXED_SIZE: Option<usize> = Some(12);
    type View<'a> = Duration;
    fn schema() -> Schema {
        let fields =
            vec![Field::named("seconds", Schema::Unsigned(8)), Field::named("nanoseconds", Schema::Unsigned(4))];
        Schema::Struct { name: "Duration".into(), fields }
    }
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        Record::encode(&(self.as_secs(), self.subsec_nanos()), out);
    }
    #[inline(always)]
    fn encode_fixed(&self, out: &mut [u8]) {
        Record::encode_fixed(&(self.as_secs(), self.subsec_nanos()), out);
    }
    fn check(bytes: &[u8]) -> Result<(), BadBytes> {
        <(u64, u32) as Record>::check(bytes)?;
        match <(u64, u32) as Record>::decode(bytes) {
            (_, nanoseconds @ 1_000_000_000..) => Err(BadBytes(format!("{nanoseconds} nanoseconds are over a second"))),
            _ => Ok(()),
        }
    }
    #[inline(always)]
    fn view(bytes: &[u8]) -> Duration {
        Self::decode(bytes)
    }
    #[inline(always)]
    fn decode(bytes: &[u8]) -> Self {
        let (seconds, nanoseconds) = <(u64, u32) as Record>::decode(bytes);
        Self::new(seconds, nanoseconds)
    }
}

impl State for Duration {}
