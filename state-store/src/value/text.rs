//! Text and bytes: `str`, `[u8]` and what owns them. The encoding is the bytes themselves, without a length.
//!
//! `Vec<u8>` as a record is a list like any other, which comes to the same bytes.

use super::*;
use crate::hash::hash_bytes;

fn check_text(bytes: &[u8]) -> Result<(), BadBytes> {
    std::str::from_utf8(bytes).map(drop).map_err(|error| BadBytes(format!("no text: {error}")))
}

#[inline]
fn view_text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("checked text")
}

macro_rules! text_record {
    ($($type:ty),+) => {$(
        impl Record for $type {
            const FIXED_SIZE: Option<usize> = None;
            type View<'a> = &'a str;
            fn schema() -> Schema { Schema::Text }
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) { out.extend_from_slice(self.as_bytes()) }
            fn encode_fixed(&self, _: &mut [u8]) { unreachable!("text has no fixed size") }
            fn check(bytes: &[u8]) -> Result<(), BadBytes> { check_text(bytes) }
            #[inline]
            fn view(bytes: &[u8]) -> &str { view_text(bytes) }
            fn decode(bytes: &[u8]) -> Self { view_text(bytes).into() }
        }
        impl State for $type {}
    )+};
}

text_record!(String, Box<str>);

macro_rules! text_key {
    ($($type:ty),+) => {$(
        impl Key for $type {
            const FIXED_SIZE: Option<usize> = None;
            type Ref<'a> = &'a str;
            fn schema() -> Schema { Schema::Text }
            #[inline]
            fn encode_ref(key: &str, out: &mut Vec<u8>) { out.extend_from_slice(key.as_bytes()) }
            fn encode_ref_fixed(_: &str, _: &mut [u8]) { unreachable!("text has no fixed size") }
            #[inline]
            fn hash_ref(key: &str) -> u64 { hash_bytes(key.as_bytes()) }
            fn check(bytes: &[u8]) -> Result<(), BadBytes> { check_text(bytes) }
            #[inline]
            fn view(bytes: &[u8]) -> &str { view_text(bytes) }
            #[inline(always)]
            fn to_ref(&self) -> &str { self }
        }
    )+};
}

text_key!(str, String, Box<str>);

macro_rules! bytes_key {
    ($($type:ty),+) => {$(
        impl Key for $type {
            const FIXED_SIZE: Option<usize> = None;
            type Ref<'a> = &'a [u8];
            fn schema() -> Schema { Schema::Bytes }
            #[inline]
            fn encode_ref(key: &[u8], out: &mut Vec<u8>) { out.extend_from_slice(key) }
            fn encode_ref_fixed(_: &[u8], _: &mut [u8]) { unreachable!("bytes have no fixed size") }
            #[inline]
            fn hash_ref(key: &[u8]) -> u64 { hash_bytes(key) }
            fn check(_: &[u8]) -> Result<(), BadBytes> { Ok(()) }
            #[inline(always)]
            fn view(bytes: &[u8]) -> &[u8] { bytes }
            #[inline(always)]
            fn to_ref(&self) -> &[u8] { self }
        }
    )+};
}

bytes_key!([u8], Vec<u8>);
