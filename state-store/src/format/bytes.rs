//! Reading and writing plain fields: the only place where lengths that come from a file are used.

use super::BadFormat;

/// Reads fields from the front of some bytes.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    /// Reads `bytes` from their `offset` on.
    pub(super) fn new(bytes: &'a [u8], offset: usize) -> Self {
        Self { bytes, offset }
    }

    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    pub(super) fn bad<T>(&self, what: impl std::fmt::Display) -> Result<T, BadFormat> {
        Err(BadFormat::at(self.offset, what))
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.offset)
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], BadFormat> {
        let taken = self.offset.checked_add(count).and_then(|end| self.bytes.get(self.offset..end));
        let Some(taken) = taken else {
            return self.bad(format_args!("{count} bytes expected, {} left", self.remaining()));
        };
        self.offset += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadFormat> {
        Ok(self.take(N)?.try_into().expect("took as many"))
    }

    pub(super) fn u8(&mut self) -> Result<u8, BadFormat> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, BadFormat> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, BadFormat> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, BadFormat> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, BadFormat> {
        self.array().map(i64::from_le_bytes)
    }

    /// A u32 length and as many bytes.
    pub(super) fn blob(&mut self) -> Result<&'a [u8], BadFormat> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    /// A u32 length and as many bytes of UTF-8.
    pub(super) fn text(&mut self) -> Result<&'a str, BadFormat> {
        let start = self.offset;
        std::str::from_utf8(self.blob()?).map_err(|error| BadFormat::at(start, error))
    }

    /// A u32 count of items of at least `bytes_min` bytes each, then the items. Refuses a count that cannot fit.
    pub(super) fn list<T>(
        &mut self,
        bytes_min: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, BadFormat>,
    ) -> Result<Vec<T>, BadFormat> {
        let count = self.u32()? as usize;
        if count > self.remaining() / bytes_min {
            return self.bad(format_args!("{count} items cannot fit in {} bytes", self.remaining()));
        }
        (0..count).map(|_| item(self)).collect()
    }

    pub(super) fn zeros(&mut self, count: usize) -> Result<(), BadFormat> {
        let start = self.offset;
        match self.take(count)?.iter().position(|&byte| byte != 0) {
            Some(at) => Err(BadFormat::at(start + at, "a reserved byte is not zero")),
            None => Ok(()),
        }
    }

    /// Refuses bytes behind the last field.
    pub(super) fn end(self) -> Result<(), BadFormat> {
        if self.remaining() == 0 { Ok(()) } else { self.bad(format_args!("{} bytes too many", self.remaining())) }
    }
}

/// Appends a u32 length and the bytes.
///
/// # Panics
/// When there are 4 GiB or more: limits far below that are checked where such bytes are made.
pub(super) fn put_blob(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends a u32 count.
///
/// # Panics
/// As [`put_blob`].
pub(super) fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u32::try_from(count).expect("counts and lengths fit in 32 bits").to_le_bytes());
}
