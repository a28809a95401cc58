//! `Vec`: any number of values, read in place as a [`List`].
//!
//! Fixed-size values stand one after another (at least a byte each, so that the count is always known); others behind a
//! count and the end of each, so that any of them is reached in O(1).

use super::parts::{check_ends, offset};
use super::*;
use std::convert::Infallible;
use std::marker::PhantomData;
use std::ops::Deref;

/// Bytes from one fixed-size value to the next.
const fn stride(size: usize) -> usize {
    if size == 0 { 1 } else { size }
}

/// Cuts a list of values of this size into them.
pub(super) fn items(size: Option<usize>, bytes: &[u8]) -> Result<Vec<&[u8]>, BadBytes> {
    match size {
        Some(size) => Ok(split_fixed(size, bytes)?.collect()),
        None => Ok(split(bytes)?.collect()),
    }
}

/// Appends a list of `count` values, each of this size and appended by `item`.
#[inline(always)]
pub(super) fn append<E>(
    size: Option<usize>,
    count: usize,
    out: &mut Vec<u8>,
    mut item: impl FnMut(usize, &mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    if let Some(size) = size {
        let start = out.len();
        for i in 0..count {
            item(i, out)?;
            out.resize(start + (i + 1) * stride(size), 0);
        }
        return Ok(());
    }
    out.extend_from_slice(&offset(count).to_le_bytes());
    let ends = out.len();
    let values = ends + 4 * count;
    out.resize(values, 0);
    for i in 0..count {
        item(i, out)?;
        let end = offset(out.len() - values);
        out[ends + 4 * i..][..4].copy_from_slice(&end.to_le_bytes());
    }
    Ok(())
}

/// Checks the frame of a list of values of `size` bytes and cuts it into them.
fn split_fixed(size: usize, bytes: &[u8]) -> Result<impl Iterator<Item = &[u8]>, BadBytes> {
    let stride = stride(size);
    if !bytes.len().is_multiple_of(stride) {
        return Err(BadBytes(format!("{} bytes are no whole number of {stride}", bytes.len())));
    }
    if size == 0 && bytes.iter().any(|&byte| byte != 0) {
        return Err(BadBytes("a value of no bytes is not written as zero".into()));
    }
    Ok(bytes.chunks_exact(stride).map(move |slot| &slot[..size]))
}

/// Checks the frame of a list of variable-size values and cuts it into them.
fn split(bytes: &[u8]) -> Result<impl Iterator<Item = &[u8]>, BadBytes> {
    let no_room = |count| BadBytes(format!("{} bytes cannot hold {count} values", bytes.len()));
    let (count, rest) = bytes.split_first_chunk().ok_or_else(|| BadBytes("a count is missing".into()))?;
    let count = u32::from_le_bytes(*count) as usize;
    let (ends, values) = rest.split_at_checked(4 * count).ok_or_else(|| no_room(count))?;
    check_ends(ends, values.len())?;
    let last = ends.last_chunk().map_or(0, |end| u32::from_le_bytes(*end) as usize);
    if last != values.len() {
        return Err(BadBytes(format!("{} bytes after the last value", values.len() - last)));
    }
    let starts = std::iter::once(0).chain(ends.chunks_exact(4).map(|end| u32::decode(end) as usize));
    let ends = ends.chunks_exact(4).map(|end| u32::decode(end) as usize);
    Ok(starts.zip(ends).map(|(start, end)| &values[start..end]))
}

impl<T: Record> Record for Vec<T> {
    const FIXED_SIZE: Option<usize> = None;
    type View<'a> = List<'a, T>;

    fn schema() -> Schema {
        match T::schema() {
            Schema::Unsigned(1) => Schema::Bytes,
            item => Schema::List(Box::new(item)),
        }
    }

    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        if let Some(size) = T::FIXED_SIZE {
            let start = out.len();
            out.resize(start + stride(size) * self.len(), 0);
            for (item, slot) in self.iter().zip(out[start..].chunks_exact_mut(stride(size))) {
                item.encode_fixed(&mut slot[..size]);
            }
            return;
        }
        let Ok(()) = append::<Infallible>(None, self.len(), out, |i, out| {
            self[i].encode(out);
            Ok(())
        });
    }

    fn encode_fixed(&self, _: &mut [u8]) {
        unreachable!("a list has no fixed size")
    }

    fn check(bytes: &[u8]) -> Result<(), BadBytes> {
        let check = |(i, value)| T::check(value).map_err(|error| error.inside(i));
        match T::FIXED_SIZE {
            Some(size) => split_fixed(size, bytes)?.enumerate().try_for_each(check),
            None => split(bytes)?.enumerate().try_for_each(check),
        }
    }

    #[inline]
    fn view(bytes: &[u8]) -> List<'_, T> {
        List::new(bytes)
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Self {
        List::new(bytes).to_vec()
    }
}

impl<T: Record> State for Vec<T> {}

/// A stored `Vec<T>`, read in place.
///
/// ```
/// use millstream_state::Record;
///
/// let mut bytes = Vec::new();
/// vec![String::from("a"), String::from("bc")].encode(&mut bytes);
/// let list = Vec::<String>::view(&bytes);
/// assert_eq!(list.get(1), Some("bc"));
/// assert_eq!(list.iter().map(str::len).sum::<usize>(), 3);
/// ```
pub struct List<'a, T> {
    bytes: &'a [u8],
    of: PhantomData<fn() -> T>,
}

impl<'a, T: Record> List<'a, T> {
    #[inline(always)]
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, of: PhantomData }
    }

    /// How many values there are.
    #[inline]
    pub fn len(self) -> usize {
        match T::FIXED_SIZE {
            Some(size) => self.bytes.len() / stride(size),
            None => u32::decode(&self.bytes[..4]) as usize,
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The value at `index`, in O(1).
    #[inline]
    pub fn get(self, index: usize) -> Option<T::View<'a>> {
        (index < self.len()).then(|| T::view(self.bytes_at(index)))
    }

    /// All values in order.
    #[inline]
    pub fn iter(self) -> Iter<'a, T> {
        Iter { list: self, next: 0, end: self.len() }
    }

    /// Rebuilds the values.
    pub fn to_vec(self) -> Vec<T> {
        (0..self.len()).map(|i| T::decode(self.bytes_at(i))).collect()
    }

    /// The bytes of value `index`, which is below the count.
    #[inline]
    fn bytes_at(self, index: usize) -> &'a [u8] {
        if let Some(size) = T::FIXED_SIZE {
            return &self.bytes[stride(size) * index..][..size];
        }
        let (ends, values) = self.bytes[4..].split_at(4 * self.len());
        let end = |i: usize| u32::decode(&ends[4 * i..][..4]) as usize;
        let start = if index == 0 { 0 } else { end(index - 1) };
        &values[start..end(index)]
    }
}

/// Bytes are a slice as they stand.
impl Deref for List<'_, u8> {
    type Target = [u8];
    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl<'a> List<'a, u8> {
    /// The bytes themselves.
    #[inline(always)]
    pub fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }
}

impl<T> Clone for List<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for List<'_, T> {}

impl<T: Record> fmt::Debug for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: Record> PartialEq for List<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && (0..self.len()).all(|i| self.get(i) == other.get(i))
    }
}

impl<'a, T: Record> IntoIterator for List<'a, T> {
    type Item = T::View<'a>;
    type IntoIter = Iter<'a, T>;
    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

/// The values of a [`List`].
pub struct Iter<'a, T> {
    list: List<'a, T>,
    next: usize,
    end: usize,
}

impl<'a, T: Record> Iterator for Iter<'a, T> {
    type Item = T::View<'a>;

    #[inline]
    fn next(&mut self) -> Option<T::View<'a>> {
        if self.next == self.end {
            return None;
        }
        self.next += 1;
        Some(T::view(self.list.bytes_at(self.next - 1)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.next, Some(self.end - self.next))
    }
}

impl<T: Record> ExactSizeIterator for Iter<'_, T> {}

impl<T: Record> fmt::Debug for Iter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Iter({} of {:?})", self.end - self.next, self.list)
    }
}
