//! Integers, floats and `bool`: fixed-size records, states and keys.

use super::*;

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
            fn check(bytes: &[u8]) -> Result<(), BadBytes> { sized(bytes, size_of::<$type>(), stringify!($type)) }
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

macro_rules! integer_key {
    ($($type:ty),+) => {$(
        impl Key for $type {
            const FIXED_SIZE: Option<usize> = Some(size_of::<$type>());
            type Ref<'a> = $type;
            fn schema() -> Schema { <$type as Record>::schema() }
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) { Record::encode(self, out) }
            #[inline(always)]
            fn encode_fixed(&self, out: &mut [u8]) { Record::encode_fixed(self, out) }
            #[inline(always)]
            fn stable_hash(&self) -> u64 {
                if size_of::<$type>() == 8 { hash_u64(*self as u64) } else { hash_bytes(&self.to_le_bytes()) }
            }
            fn check(bytes: &[u8]) -> Result<(), BadBytes> { <$type as Record>::check(bytes) }
            #[inline(always)]
            fn view(bytes: &[u8]) -> $type { Record::decode(bytes) }
            #[inline(always)]
            fn to_ref(&self) -> $type { *self }
        }
    )+};
}

integer_key!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);

fn sized(bytes: &[u8], size: usize, what: &str) -> Result<(), BadBytes> {
    if bytes.len() == size { Ok(()) } else { Err(BadBytes(format!("{what} of {} bytes, not {size}", bytes.len()))) }
}
