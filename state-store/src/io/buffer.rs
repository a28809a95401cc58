//! An aligned block of bytes that a disk can read into and write from.

use super::ALIGNMENT_BYTES;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Aligned bytes, from [`Disk::buffer`](super::Disk::buffer).
pub struct Buffer(Memory);

enum Memory {
    Heap { bytes: Vec<u8>, start: usize, length: usize },
    Dma(glommio::io::DmaBuffer),
}

impl Buffer {
    /// Allocates on the heap, aligned, zeroed.
    ///
    /// # Panics
    /// When `length` is not a multiple of [`ALIGNMENT_BYTES`].
    pub fn heap(length: usize) -> Self {
        assert!(length.is_multiple_of(ALIGNMENT_BYTES), "buffer of {length} bytes is not aligned");
        let bytes = vec![0; length + ALIGNMENT_BYTES];
        let start = bytes.as_ptr().align_offset(ALIGNMENT_BYTES);
        Self(Memory::Heap { bytes, start, length })
    }
}

impl From<glommio::io::DmaBuffer> for Buffer {
    fn from(buffer: glommio::io::DmaBuffer) -> Self {
        Self(Memory::Dma(buffer))
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Heap { bytes, start, length } => &bytes[*start..*start + *length],
            Memory::Dma(buffer) => buffer.as_bytes(),
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Heap { bytes, start, length } => &mut bytes[*start..*start + *length],
            Memory::Dma(buffer) => buffer.as_bytes_mut(),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}
