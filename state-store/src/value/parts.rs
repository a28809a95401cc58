//! How several values stand in one: the layout behind tuples, arrays, structs, enums and options.
//!
//! ```text
//! [fixed-size fields, in order][end of each variable field but the last: u32][variable fields, in order]
//! ```
//!
//! Ends count from the first variable field; the last one ends where the bytes do.
//!
//! Invariants
//! * I1. The offset of a fixed-size field is known at compile time; that of a variable one takes one or two loads.
//! * I2. The bytes are a function of the fields' bytes, so they are canonical when those are.
//! * I3. After [`Layout::check`] no call of [`Reader::next`] panics.
//!
//! Public for `#[derive(Record, Key)]`, which writes calls of what is here.

use super::{BadBytes, Key, Record};
use crate::hash::hash_bytes;
use std::cell::Cell;

/// Fixed-size keys up to this many bytes are hashed from the stack.
const HASHED_ON_STACK_MAX: usize = 64;

/// Where the fields of a composite stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    fixed: usize,
    variable_count: usize,
}

impl Layout {
    /// The layout of fields of these fixed sizes.
    pub const fn of(sizes: &[Option<usize>]) -> Self {
        let mut layout = Self { fixed: 0, variable_count: 0 };
        let mut i = 0;
        while i < sizes.len() {
            match sizes[i] {
                Some(size) => layout.fixed += size,
                None => layout.variable_count += 1,
            }
            i += 1;
        }
        layout
    }

    /// The layout of `count` fields of the same fixed size.
    pub const fn repeat(size: Option<usize>, count: usize) -> Self {
        match size {
            Some(size) => Self { fixed: size * count, variable_count: 0 },
            None => Self { fixed: 0, variable_count: count },
        }
    }

    /// Size of the whole when it is the same for all values.
    pub const fn fixed_size(self) -> Option<usize> {
        if self.variable_count == 0 { Some(self.fixed) } else { None }
    }

    /// Bytes in front of the variable fields.
    #[inline(always)]
    const fn head(self) -> usize {
        self.fixed + 4 * self.variable_count.saturating_sub(1)
    }

    /// Says whether `bytes` can be cut into the fields; the fields themselves are not looked at.
    ///
    /// # Errors
    /// When they are too short or too long, or when the ends are not in order.
    pub fn check(self, bytes: &[u8]) -> Result<(), BadBytes> {
        if self.variable_count == 0 {
            return expect_size(bytes, self.fixed, "fields");
        }
        let Some((head, tail)) = bytes.split_at_checked(self.head()) else {
            return Err(BadBytes(format!("{} bytes end within the first {}", bytes.len(), self.head())));
        };
        check_ends(&head[self.fixed..], tail.len())
    }

    /// Cuts `bytes` into the fields.
    ///
    /// # Errors
    /// As those of [`Layout::check`].
    pub fn check_and_read(self, bytes: &[u8]) -> Result<Reader<'_>, BadBytes> {
        self.check(bytes)?;
        Ok(self.read(bytes))
    }

    /// Cuts `bytes` into the fields.
    ///
    /// # Panics
    /// When they are too short.
    #[inline(always)]
    pub fn read(self, bytes: &[u8]) -> Reader<'_> {
        let (fixed, rest) = bytes.split_at(self.fixed);
        let (ends, tail) = rest.split_at(4 * self.variable_count.saturating_sub(1));
        Reader { fixed, ends, tail, at: 0 }
    }

    /// Starts to append a composite to `out`; the fields follow in order.
    #[inline(always)]
    pub fn write(self, out: &mut Vec<u8>) -> Writer<'_> {
        let start = out.len();
        let tail = start + self.head();
        out.resize(tail, 0);
        Writer { out, fixed_at: start, end_at: start + self.fixed, tail }
    }
}

/// Says whether `ends` (u32 each) grow and stay within `size`.
pub(super) fn check_ends(ends: &[u8], size: usize) -> Result<(), BadBytes> {
    let mut last = 0;
    for end in ends.chunks_exact(4).map(u32::decode) {
        if end < last || end as usize > size {
            return Err(BadBytes(format!("a part ends at {end}, not within {last}..={size}")));
        }
        last = end;
    }
    Ok(())
}

/// Says whether there are `size` bytes.
pub fn expect_size(bytes: &[u8], size: usize, what: &str) -> Result<(), BadBytes> {
    if bytes.len() == size { Ok(()) } else { Err(BadBytes(format!("{what} of {} bytes, not {size}", bytes.len()))) }
}

/// The fields of a composite, one after another.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    fixed: &'a [u8],
    ends: &'a [u8],
    tail: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// The bytes of the next field, which is of this fixed size.
    ///
    /// # Panics
    /// On bytes that [`Layout::check`] refuses, or past the last field.
    #[inline(always)]
    pub fn next(&mut self, size: Option<usize>) -> &'a [u8] {
        if let Some(size) = size {
            let (part, rest) = self.fixed.split_at(size);
            self.fixed = rest;
            return part;
        }
        let end = match self.ends.split_first_chunk::<4>() {
            Some((end, rest)) => {
                self.ends = rest;
                u32::from_le_bytes(*end) as usize
            }
            None => self.tail.len(),
        };
        let part = &self.tail[self.at..end];
        self.at = end;
        part
    }

    /// Checks the next field, which is a record called `name`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check_record<T: Record>(&mut self, name: impl std::fmt::Display) -> Result<(), BadBytes> {
        T::check(self.next(T::FIXED_SIZE)).map_err(|error| error.inside(name))
    }

    /// Checks the next field, which is a key called `name`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check_key<K: Key>(&mut self, name: impl std::fmt::Display) -> Result<(), BadBytes> {
        K::check(self.next(K::FIXED_SIZE)).map_err(|error| error.inside(name))
    }

    /// Views the next field.
    #[inline(always)]
    pub fn view<T: Record>(&mut self) -> T::View<'a> {
        T::view(self.next(T::FIXED_SIZE))
    }

    /// Rebuilds the next field.
    #[inline(always)]
    pub fn decode<T: Record>(&mut self) -> T {
        T::decode(self.next(T::FIXED_SIZE))
    }

    /// Reads the next field, which is a key.
    #[inline(always)]
    pub fn key<K: Key>(&mut self) -> K::Ref<'a> {
        K::view(self.next(K::FIXED_SIZE))
    }
}

/// Appends a composite, field by field.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    fixed_at: usize,
    end_at: usize,
    tail: usize,
}

impl Writer<'_> {
    /// Writes the next field.
    #[inline(always)]
    pub fn record<T: Record>(&mut self, value: &T) {
        match T::FIXED_SIZE {
            Some(size) => value.encode_fixed(self.slot(size)),
            None => {
                value.encode(self.out);
                self.end();
            }
        }
    }

    /// Writes the next field, which is a key.
    #[inline(always)]
    pub fn key<K: Key>(&mut self, key: K::Ref<'_>) {
        match K::FIXED_SIZE {
            Some(size) => K::encode_ref_fixed(key, self.slot(size)),
            None => {
                K::encode_ref(key, self.out);
                self.end();
            }
        }
    }

    /// Writes the next field, which is of this fixed size, as it is encoded.
    pub(super) fn encoded(&mut self, size: Option<usize>, bytes: &[u8]) {
        match size {
            Some(size) => self.slot(size).copy_from_slice(bytes),
            None => {
                self.out.extend_from_slice(bytes);
                self.end();
            }
        }
    }

    #[inline(always)]
    fn slot(&mut self, size: usize) -> &mut [u8] {
        let at = self.fixed_at;
        self.fixed_at += size;
        &mut self.out[at..at + size]
    }

    #[inline(always)]
    fn end(&mut self) {
        if self.end_at < self.tail {
            let end = offset(self.out.len() - self.tail);
            self.out[self.end_at..self.end_at + 4].copy_from_slice(&end.to_le_bytes());
            self.end_at += 4;
        }
    }
}

/// An offset as it is stored.
///
/// # Panics
/// Above 4 GiB: the limits on records, keys and values are far below.
#[inline(always)]
pub(super) fn offset(at: usize) -> u32 {
    u32::try_from(at).expect("an encoded value is below 4 GiB")
}

/// Writes a fixed-size field to the front of `out` and returns what is behind it.
#[inline(always)]
pub fn put_record<'a, T: Record>(value: &T, out: &'a mut [u8]) -> &'a mut [u8] {
    let (slot, rest) = out.split_at_mut(T::FIXED_SIZE.expect("a fixed-size field"));
    value.encode_fixed(slot);
    rest
}

/// Writes a fixed-size field, which is a key, to the front of `out` and returns what is behind it.
#[inline(always)]
pub fn put_key<'a, K: Key>(key: K::Ref<'_>, out: &'a mut [u8]) -> &'a mut [u8] {
    let (slot, rest) = out.split_at_mut(K::FIXED_SIZE.expect("a fixed-size field"));
    K::encode_ref_fixed(key, slot);
    rest
}

/// Writes the tag of a fixed-size enum to the front of `out` and returns what is behind it.
#[inline(always)]
pub fn put_tag(tag: u8, out: &mut [u8]) -> &mut [u8] {
    let (slot, rest) = out.split_first_mut().expect("room for a tag");
    *slot = tag;
    rest
}

/// The bytes of a default.
pub fn encoded<T: Record>(value: T) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.encode(&mut bytes);
    bytes
}

/// Appends what `write` puts into `size` bytes.
#[inline(always)]
pub fn append_fixed(size: usize, out: &mut Vec<u8>, write: impl FnOnce(&mut [u8])) {
    let start = out.len();
    out.resize(start + size, 0);
    write(&mut out[start..]);
}

/// Size of an enum whose variants have these layouts: fixed when all of them are, the largest then rules.
pub const fn enum_size(variants: &[Layout]) -> Option<usize> {
    let (mut largest, mut i) = (0, 0);
    while i < variants.len() {
        match variants[i].fixed_size() {
            Some(size) if size > largest => largest = size,
            Some(_) => {}
            None => return None,
        }
        i += 1;
    }
    Some(1 + largest)
}

/// The fields of the variant with this layout; `enum_size` is the size of the enum if fixed.
#[inline(always)]
pub fn read_variant<'a>(bytes: &'a [u8], enum_size: Option<usize>, layout: Layout) -> Reader<'a> {
    layout.read(match enum_size {
        Some(_) => &bytes[1..1 + layout.fixed],
        None => &bytes[1..],
    })
}

/// Says whether `bytes` can be cut into the fields of the variant with this layout, and returns them.
///
/// # Errors
/// When they cannot, or when what fills a fixed-size enum up is not zero.
pub fn check_variant<'a>(bytes: &'a [u8], enum_size: Option<usize>, layout: Layout) -> Result<Reader<'a>, BadBytes> {
    let fields = bytes.get(1..).ok_or_else(|| BadBytes("a tag is missing".into()))?;
    if let Some(size) = enum_size {
        expect_size(bytes, size, "a tag with fields")?;
        let (fields, padding) = fields.split_at(layout.fixed);
        if padding.iter().any(|&byte| byte != 0) {
            return Err(BadBytes(format!("bytes after the fields of variant {} are not zero", bytes[0])));
        }
        return Ok(layout.read(fields));
    }
    layout.check_and_read(fields)
}

/// What to say of a tag that no variant has.
pub fn unknown_tag(bytes: &[u8], variant_count: usize) -> BadBytes {
    match bytes.first() {
        Some(tag) => BadBytes(format!("tag {tag} is not below {variant_count}")),
        None => BadBytes("a tag is missing".into()),
    }
}

/// Hash of a fixed-size key that `write` puts into `size` bytes.
#[inline(always)]
pub fn hash_fixed(size: usize, write: impl FnOnce(&mut [u8])) -> u64 {
    if size <= HASHED_ON_STACK_MAX {
        let mut bytes = [0; HASHED_ON_STACK_MAX];
        write(&mut bytes[..size]);
        return hash_bytes(&bytes[..size]);
    }
    hash_encoded(|out| append_fixed(size, out, write))
}

/// Hash of a key that `encode` appends. Allocates only when a key is longer than all before it on this thread.
pub fn hash_encoded(encode: impl FnOnce(&mut Vec<u8>)) -> u64 {
    thread_local! { static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) }; }
    let mut bytes = SCRATCH.take();
    bytes.clear();
    encode(&mut bytes);
    let hash = hash_bytes(&bytes);
    SCRATCH.set(bytes);
    hash
}
