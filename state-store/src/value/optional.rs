//! `Option`: a tag byte, 0 or 1, then the value; `None` of a fixed-size value is filled up with zeros.

use super::parts::{
    Layout, append_fixed, check_variant, enum_size, hash_encoded, hash_fixed, read_variant, unknown_tag,
};
use super::*;

const fn layout(size: Option<usize>) -> Layout {
    Layout::of(&[size])
}

impl<T: Record> Record for Option<T> {
    const FIXED_SIZE: Option<usize> = enum_size(&[layout(T::FIXED_SIZE)]);
    type View<'a> = Option<T::View<'a>>;

    fn schema() -> Schema {
        Schema::Optional(Box::new(T::schema()))
    }

    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        if let Some(size) = Self::FIXED_SIZE {
            return append_fixed(size, out, |slot| self.encode_fixed(slot));
        }
        out.push(u8::from(self.is_some()));
        if let Some(value) = self {
            value.encode(out);
        }
    }

    #[inline(always)]
    fn encode_fixed(&self, out: &mut [u8]) {
        out[0] = u8::from(self.is_some());
        match self {
            Some(value) => value.encode_fixed(&mut out[1..]),
            None => out[1..].fill(0),
        }
    }

    fn check(bytes: &[u8]) -> Result<(), BadBytes> {
        match bytes.first() {
            Some(0) if Self::FIXED_SIZE.is_none() => parts::expect_size(bytes, 1, "nothing"),
            Some(0) => check_variant(bytes, Self::FIXED_SIZE, Layout::of(&[])).map(drop),
            Some(1) => T::check(&bytes[1..]).map_err(|error| error.inside("some")),
            _ => Err(unknown_tag(bytes, 2)),
        }
    }

    #[inline]
    fn view(bytes: &[u8]) -> Self::View<'_> {
        (bytes[0] != 0).then(|| read_variant(bytes, Self::FIXED_SIZE, layout(T::FIXED_SIZE)).view::<T>())
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Self {
        (bytes[0] != 0).then(|| read_variant(bytes, Self::FIXED_SIZE, layout(T::FIXED_SIZE)).decode::<T>())
    }
}

impl<T: Record> State for Option<T> {}

impl<K: Key + Sized> Key for Option<K> {
    const FIXED_SIZE: Option<usize> = enum_size(&[layout(K::FIXED_SIZE)]);
    type Ref<'a> = Option<K::Ref<'a>>;

    fn schema() -> Schema {
        Schema::Optional(Box::new(K::schema()))
    }

    #[inline]
    fn encode_ref(key: Self::Ref<'_>, out: &mut Vec<u8>) {
        if let Some(size) = Self::FIXED_SIZE {
            return append_fixed(size, out, |slot| Self::encode_ref_fixed(key, slot));
        }
        out.push(u8::from(key.is_some()));
        if let Some(key) = key {
            K::encode_ref(key, out);
        }
    }

    #[inline(always)]
    fn encode_ref_fixed(key: Self::Ref<'_>, out: &mut [u8]) {
        out[0] = u8::from(key.is_some());
        match key {
            Some(key) => K::encode_ref_fixed(key, &mut out[1..]),
            None => out[1..].fill(0),
        }
    }

    #[inline]
    fn hash_ref(key: Self::Ref<'_>) -> u64 {
        match Self::FIXED_SIZE {
            Some(size) => hash_fixed(size, |slot| Self::encode_ref_fixed(key, slot)),
            None => hash_encoded(|out| Self::encode_ref(key, out)),
        }
    }

    fn check(bytes: &[u8]) -> Result<(), BadBytes> {
        match bytes.first() {
            Some(0) if Self::FIXED_SIZE.is_none() => parts::expect_size(bytes, 1, "nothing"),
            Some(0) => check_variant(bytes, Self::FIXED_SIZE, Layout::of(&[])).map(drop),
            Some(1) => K::check(&bytes[1..]).map_err(|error| error.inside("some")),
            _ => Err(unknown_tag(bytes, 2)),
        }
    }

    #[inline]
    fn view(bytes: &[u8]) -> Self::Ref<'_> {
        (bytes[0] != 0).then(|| read_variant(bytes, Self::FIXED_SIZE, layout(K::FIXED_SIZE)).key::<K>())
    }

    #[inline(always)]
    fn to_ref(&self) -> Self::Ref<'_> {
        self.as_ref().map(K::to_ref)
    }
}
