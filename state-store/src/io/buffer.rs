//! An aligned block of bytes that a disk can read into and write from.
//!
//! Invariants
//! * I1. The first byte lies on a multiple of [`ALIGNMENT_BYTES`]; so does the end, when the length was not cut by a read.
//! * I2. `len()` only shrinks ([`Buffer::truncate`]) until the disk takes the buffer back.

use super::ALIGNMENT_BYTES;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Aligned bytes, from [`Disk::buffer`](super::Disk::buffer).
pub struct Buffer(Memory);

enum Memory {
    Heap(HeapBuffer),
    /// The ring's memory, and how much of it counts.
    Dma(glommio::io::DmaBuffer, usize),
}

/// An aligned part of a vector. Unlike a [`Buffer`] it may change threads.
pub(super) struct HeapBuffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl HeapBuffer {
    /// Allocates zeroed bytes.
    ///
    /// # Panics
    /// When `length` is not a multiple of [`ALIGNMENT_BYTES`].
    pub(super) fn new(length: usize) -> Self {
        assert!(length.is_multiple_of(ALIGNMENT_BYTES), "buffer of {length} bytes is not aligned");
        let bytes = vec![0; length + ALIGNMENT_BYTES];
        let start = bytes.as_ptr().align_offset(ALIGNMENT_BYTES);
        Self { bytes, start, length }
    }

    /// How many bytes it was made with.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.len() - ALIGNMENT_BYTES
    }

    /// Undoes every [`Buffer::truncate`].
    pub(super) fn restore_length(&mut self) {
        self.length = self.capacity();
    }
}

impl Deref for HeapBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

impl DerefMut for HeapBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

impl Buffer {
    /// Allocates on the heap, aligned, zeroed.
    ///
    /// # Panics
    /// When `length` is not a multiple of [`ALIGNMENT_BYTES`].
    pub fn heap(length: usize) -> Self {
        Self(Memory::Heap(HeapBuffer::new(length)))
    }

    /// Shortens the buffer to its first `length` bytes.
    ///
    /// # Panics
    /// When it is shorter than that.
    pub fn truncate(&mut self, length: usize) {
        assert!(length <= self.len(), "a buffer of {} bytes cannot be cut to {length}", self.len());
        match &mut self.0 {
            Memory::Heap(heap) => heap.length = length,
            Memory::Dma(_, counted) => *counted = length,
        }
    }

    /// The heap memory; bytes that lie elsewhere are copied.
    pub(super) fn into_heap(self) -> HeapBuffer {
        match self.0 {
            Memory::Heap(heap) => heap,
            Memory::Dma(buffer, length) => {
                let mut heap = HeapBuffer::new(length.next_multiple_of(ALIGNMENT_BYTES));
                heap.length = length;
                heap.copy_from_slice(&buffer.as_bytes()[..length]);
                heap
            }
        }
    }

    /// The memory a ring can use and how much of it counts, or the buffer back when it lies on the heap.
    pub(super) fn into_dma(self) -> Result<(glommio::io::DmaBuffer, usize), Self> {
        match self.0 {
            Memory::Dma(buffer, length) => Ok((buffer, length)),
            heap @ Memory::Heap(_) => Err(Self(heap)),
        }
    }
}

impl From<HeapBuffer> for Buffer {
    fn from(heap: HeapBuffer) -> Self {
        Self(Memory::Heap(heap))
    }
}

impl From<glommio::io::DmaBuffer> for Buffer {
    fn from(buffer: glommio::io::DmaBuffer) -> Self {
        let length = buffer.len();
        Self(Memory::Dma(buffer, length))
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Heap(heap) => heap,
            Memory::Dma(buffer, length) => &buffer.as_bytes()[..*length],
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Heap(heap) => heap,
            Memory::Dma(buffer, length) => &mut buffer.as_bytes_mut()[..*length],
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_buffer_is_aligned_and_shrinks_from_its_end() {
        let mut buffer = Buffer::heap(8192);
        assert_eq!(buffer.as_ptr().align_offset(ALIGNMENT_BYTES), 0);
        buffer[4095] = 7;
        buffer.truncate(4096);
        assert_eq!((buffer.len(), buffer[4095]), (4096, 7));
        let mut heap = buffer.into_heap();
        heap.restore_length();
        assert_eq!(heap.len(), 8192);
    }
}
