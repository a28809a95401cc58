//! `str` and `[u8]` as keys.

use super::*;

impl Key for str {
    const FIXED_SIZE: Option<usize> = None;
    type Ref<'a> = &'a str;
    fn schema() -> Schema {
        Schema::Text
    }
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }
    fn encode_fixed(&self, _: &mut [u8]) {
        unreachable!("text has no fixed size")
    }
    #[inline]
    fn stable_hash(&self) -> u64 {
        hash_bytes(self.as_bytes())
    }
    fn check(bytes: &[u8]) -> Result<(), BadBytes> {
        std::str::from_utf8(bytes).map(drop).map_err(|error| BadBytes(error.to_string()))
    }
    #[inline]
    fn view(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).expect("checked text")
    }
    #[inline(always)]
    fn to_ref(&self) -> &str {
        self
    }
}

impl Key for [u8] {
    const FIXED_SIZE: Option<usize> = None;
    type Ref<'a> = &'a [u8];
    fn schema() -> Schema {
        Schema::Bytes
    }
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn encode_fixed(&self, _: &mut [u8]) {
        unreachable!("bytes have no fixed size")
    }
    #[inline]
    fn stable_hash(&self) -> u64 {
        hash_bytes(self)
    }
    fn check(_: &[u8]) -> Result<(), BadBytes> {
        Ok(())
    }
    #[inline(always)]
    fn view(bytes: &[u8]) -> &[u8] {
        bytes
    }
    #[inline(always)]
    fn to_ref(&self) -> &[u8] {
        self
    }
}
