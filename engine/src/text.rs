//! Short strings without allocation: [`Text`] (UTF-8) and [`Bytes`] (any bytes), inline up to 23 bytes.
//!
//! Invariants
//! * I1. 24 bytes in size, whatever they hold; the heap is used only beyond [`INLINE_MAX`] bytes.
//! * I2. Inline bytes behind the length are zero, so equal strings are equal in all their bytes.
//! * I3. A [`Text`] holds UTF-8: it is made from `&str` only, and changing the case of ASCII letters keeps it so.
//! * I4. As records and as keys they have the bytes, the schema and the hash of `str` and `[u8]`.
//!
//! Cost: making one of up to 23 bytes takes a few plain loads, and lower-casing it eight bytes at a time without a branch
//! per byte is not to be measured beside that: 6 ns a word, against 13 for a `String`. Reading one is free.

#![expect(unsafe_code, reason = "`Text::as_str` is on the record path, where validating again costs 12 ns a word")]

use millstream_state::{BadBytes, Key, Record, Schema, State};
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// Longest string that needs no heap, in bytes.
pub const INLINE_MAX: usize = 23;

/// A length that leaves 232 values of its byte free, one of which tells that the string is on the heap (I1).
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[rustfmt::skip]
enum Length { L0, L1, L2, L3, L4, L5, L6, L7, L8, L9, L10, L11, L12, L13, L14, L15, L16, L17, L18, L19, L20, L21, L22, L23 }

#[rustfmt::skip]
const LENGTHS: [Length; INLINE_MAX + 1] = {
    use Length::*;
    [L0, L1, L2, L3, L4, L5, L6, L7, L8, L9, L10, L11, L12, L13, L14, L15, L16, L17, L18, L19, L20, L21, L22, L23]
};

#[derive(Clone)]
enum Repr {
    Inline(Length, [u8; INLINE_MAX]),
    Heap(Box<[u8]>),
}

const _: () = assert!(size_of::<Repr>() == 24);

impl Repr {
    #[inline]
    fn new(bytes: &[u8], map: impl Fn(u64) -> u64, map_long: impl Fn(Box<[u8]>) -> Box<[u8]>) -> Self {
        let Some(&length) = LENGTHS.get(bytes.len()) else {
            return Self::Heap(map_long(bytes.into()));
        };
        let words = load(bytes).map(map);
        let mut inline = [0; INLINE_MAX];
        inline[..8].copy_from_slice(&words[0].to_le_bytes());
        inline[8..16].copy_from_slice(&words[1].to_le_bytes());
        inline[16..].copy_from_slice(&words[2].to_le_bytes()[..7]);
        Self::Inline(length, inline)
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Inline(length, bytes) => &bytes[..*length as usize],
            Self::Heap(bytes) => bytes,
        }
    }
}

impl Eq for Repr {}

impl PartialEq for Repr {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Inline(a, x), Self::Inline(b, y)) => a == b && x == y,
            (Self::Heap(x), Self::Heap(y)) => x == y,
            _ => false,
        }
    }
}

/// Up to 23 bytes as little-endian words, zeros behind them; by overlapping loads, so without a loop.
#[inline(always)]
fn load(bytes: &[u8]) -> [u64; 3] {
    debug_assert!(bytes.len() <= INLINE_MAX, "I1");
    let length = bytes.len();
    if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        let (first, last) = (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
        return match bytes.get(8..16) {
            // The last eight bytes overlap those in front of them: shifted, what is new remains.
            None => [first, (last >> 1) >> (8 * (16 - length) - 1), 0],
            Some(second) => {
                let second = u64::from_le_bytes(second.try_into().expect("eight bytes"));
                [first, second, (last >> 1) >> (8 * (24 - length) - 1)]
            }
        };
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let (first, last) = (u64::from(u32::from_le_bytes(*first)), u64::from(u32::from_le_bytes(*last)));
        return [first | last << (8 * (length - 4)), 0, 0];
    }
    let at = |i: usize| u64::from(bytes[i]) << (8 * i);
    [if length == 0 { 0 } else { at(0) | at(length / 2) | at(length - 1) }, 0, 0]
}

/// Turns the bytes `A` to `Z` of a word into `a` to `z`.
#[inline(always)]
const fn lowercase_word(word: u64) -> u64 {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    const fn each(byte: u8) -> u64 {
        0x0101_0101_0101_0101 * byte as u64
    }
    let low = word & !HIGH;
    // In each byte the high bit of a sum says whether the low seven bits reach a bound.
    let from_a = low + each(0x80 - b'A');
    let beyond_z = low + each(0x80 - b'Z' - 1);
    let upper = from_a & !beyond_z & !word & HIGH;
    word | upper >> 2
}

fn lowercase_long(mut bytes: Box<[u8]>) -> Box<[u8]> {
    bytes.make_ascii_lowercase();
    bytes
}

/// UTF-8 text of 24 bytes in size, inline up to 23 bytes.
///
/// ```
/// use millstream::text::Text;
///
/// let word = Text::lowercased("Straße");
/// assert_eq!(word, "straße");
/// assert_eq!(word.len(), 7);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Text(Repr);

/// Any bytes, 24 bytes in size, inline up to 23 bytes.
///
/// ```
/// use millstream::text::Bytes;
///
/// assert_eq!(*Bytes::lowercased(b"Word\xff"), *b"word\xff");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(Repr);

impl Text {
    /// Copies `text`.
    #[inline]
    pub fn new(text: &str) -> Self {
        Self(Repr::new(text.as_bytes(), |word| word, |long| long))
    }

    /// Copies `text` with `A` to `Z` in lower case; other letters stay as they are.
    #[inline]
    pub fn lowercased(text: &str) -> Self {
        Self(Repr::new(text.as_bytes(), lowercase_word, lowercase_long))
    }

    /// The text.
    #[inline]
    pub fn as_str(&self) -> &str {
        let bytes = self.0.as_bytes();
        debug_assert!(std::str::from_utf8(bytes).is_ok(), "I3");
        // SAFETY: I3: these are the bytes of a `str`, with ASCII letters replaced by ASCII letters.
        unsafe { std::str::from_utf8_unchecked(bytes) }
    }

    /// Its bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl Bytes {
    /// Copies `bytes`.
    #[inline]
    pub fn new(bytes: &[u8]) -> Self {
        Self(Repr::new(bytes, |word| word, |long| long))
    }

    /// Copies `bytes` with `A` to `Z` in lower case.
    #[inline]
    pub fn lowercased(bytes: &[u8]) -> Self {
        Self(Repr::new(bytes, lowercase_word, lowercase_long))
    }

    /// The bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

/// As a byte string: `b"word\xff"`.
impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.as_bytes().escape_ascii())
    }
}

/// As text, with what is not UTF-8 replaced.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(self))
    }
}

macro_rules! string {
    ($owner:ident, $borrowed:ty, $read:ident) => {
        impl Default for $owner {
            fn default() -> Self {
                Self::new(Default::default())
            }
        }

        impl Deref for $owner {
            type Target = $borrowed;
            #[inline]
            fn deref(&self) -> &$borrowed {
                self.$read()
            }
        }

        impl AsRef<$borrowed> for $owner {
            #[inline]
            fn as_ref(&self) -> &$borrowed {
                self.$read()
            }
        }

        /// Equality, order and hash are those of what is borrowed.
        impl Borrow<$borrowed> for $owner {
            #[inline]
            fn borrow(&self) -> &$borrowed {
                self.$read()
            }
        }

        impl From<&$borrowed> for $owner {
            #[inline]
            fn from(borrowed: &$borrowed) -> Self {
                Self::new(borrowed)
            }
        }

        impl PartialEq<$borrowed> for $owner {
            fn eq(&self, other: &$borrowed) -> bool {
                self.$read() == other
            }
        }

        impl PartialEq<&$borrowed> for $owner {
            fn eq(&self, other: &&$borrowed) -> bool {
                self.$read() == *other
            }
        }

        impl Ord for $owner {
            fn cmp(&self, other: &Self) -> Ordering {
                self.$read().cmp(other.$read())
            }
        }

        impl PartialOrd for $owner {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Hash for $owner {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.$read().hash(state);
            }
        }

        impl Record for $owner {
            const FIXED_SIZE: Option<usize> = None;
            type View<'a> = &'a $borrowed;
            fn schema() -> Schema {
                <$borrowed as Key>::schema()
            }
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(self.as_bytes());
            }
            fn encode_fixed(&self, _: &mut [u8]) {
                unreachable!("a string has no fixed size")
            }
            fn check(bytes: &[u8]) -> Result<(), BadBytes> {
                <$borrowed as Key>::check(bytes)
            }
            #[inline]
            fn view(bytes: &[u8]) -> &$borrowed {
                <$borrowed as Key>::view(bytes)
            }
            #[inline]
            fn decode(bytes: &[u8]) -> Self {
                Self::new(<$borrowed as Key>::view(bytes))
            }
        }

        impl State for $owner {}

        /// The same key as what is borrowed.
        impl Key for $owner {
            const FIXED_SIZE: Option<usize> = None;
            type Ref<'a> = &'a $borrowed;
            fn schema() -> Schema {
                <$borrowed as Key>::schema()
            }
            #[inline]
            fn encode_ref(key: &$borrowed, out: &mut Vec<u8>) {
                <$borrowed as Key>::encode_ref(key, out);
            }
            fn encode_ref_fixed(_: &$borrowed, _: &mut [u8]) {
                unreachable!("a string has no fixed size")
            }
            #[inline]
            fn hash_ref(key: &$borrowed) -> u64 {
                <$borrowed as Key>::hash_ref(key)
            }
            fn check(bytes: &[u8]) -> Result<(), BadBytes> {
                <$borrowed as Key>::check(bytes)
            }
            #[inline]
            fn view(bytes: &[u8]) -> &$borrowed {
                <$borrowed as Key>::view(bytes)
            }
            #[inline(always)]
            fn to_ref(&self) -> &$borrowed {
                self.$read()
            }
        }
    };
}

string!(Text, str, as_str);
string!(Bytes, [u8], as_bytes);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_string_is_24_bytes_and_has_23_inline() {
        assert_eq!(size_of::<Text>(), 24);
        assert_eq!(size_of::<Option<Bytes>>(), 24);
        let inline = |n: usize| matches!(Text::new(&"x".repeat(n)).0, Repr::Inline(..));
        assert!(inline(0) && inline(23) && !inline(24));
    }

    #[test]
    fn every_length_keeps_its_bytes() {
        let bytes: Vec<u8> = (1..=64).collect();
        for length in 0..=bytes.len() {
            let of_length = Bytes::new(&bytes[..length]);
            assert_eq!(of_length.as_bytes(), &bytes[..length]);
            assert_eq!(of_length, of_length.clone());
            if let Repr::Inline(_, inline) = of_length.0 {
                assert!(inline[length..].iter().all(|&byte| byte == 0), "I2");
            }
        }
    }

    #[test]
    fn only_a_to_z_change_in_lower_case() {
        let all: Vec<u8> = (0..=255).collect();
        for start in 0..all.len() {
            for end in start..all.len().min(start + 26) {
                assert_eq!(*Bytes::lowercased(&all[start..end]), all[start..end].to_ascii_lowercase());
            }
        }
        assert_eq!(Text::lowercased("ÄAZ@[`{z"), "Äaz@[`{z");
    }

    fn encoded<T: Record>(value: &T) -> Vec<u8> {
        let mut out = Vec::new();
        Record::encode(value, &mut out);
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn text_behaves_like_the_str_it_holds(a in "\\PC{0,30}", b in "[aB]{0,2}|\\PC{0,30}") {
            let (x, y) = (Text::from(&*a), Text::from(&*b));
            prop_assert_eq!((x == y, x.cmp(&y)), (a == b, a.cmp(&b)));
            prop_assert_eq!((x.to_string(), format!("{x:?}")), (a.clone(), format!("{a:?}")));
            let lower = Text::lowercased(&a);
            prop_assert_eq!(lower.as_str(), &a.to_ascii_lowercase());
            prop_assert_eq!(encoded(&x), encoded(&a));
            prop_assert_eq!(x.stable_hash(), a.stable_hash());
            prop_assert_eq!(Text::decode(a.as_bytes()), x);
            prop_assert_eq!(<Text as Record>::schema(), <String as Record>::schema());
        }

        #[test]
        fn bytes_behave_like_the_slice_they_hold(a: Vec<u8>, b: Vec<u8>) {
            let (x, y) = (Bytes::from(&a[..]), Bytes::from(&b[..]));
            prop_assert_eq!((x == y, x.cmp(&y)), (a == b, a.cmp(&b)));
            prop_assert_eq!(encoded(&x), encoded(&a));
            prop_assert_eq!(x.stable_hash(), a.stable_hash());
            prop_assert_eq!(<Bytes as Record>::check(&a), Ok(()));
            prop_assert_eq!(<Bytes as Record>::schema(), <Vec<u8> as Record>::schema());
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_refused_as_text() {
        assert!(<Text as Record>::check(b"\xff").is_err());
    }
}
