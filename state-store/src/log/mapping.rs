//! Reserved address space: memory that is promised at once and becomes real as it is touched.
//!
//! Invariants
//! * I1. `base .. base + bytes` is one private anonymous mapping, readable and writable, zero where never written.
//! * I2. References into it are only handed out by its [`Owner`], under the usual borrow rules; everybody else who holds
//!   the [`Mapping`] can only ask the kernel to make pages present, which changes no byte.
//! * I3. The base moves only in [`Owner::grow`], which holds the lock that [`Mapping::populate`] takes.
//!
//! Cost: reserving is one system call, whatever the size. Touching a cold huge page costs up to a millisecond, so a
//! [`Populator`](super::Populator) touches it first.
#![expect(unsafe_code, reason = "mmap, madvise and reading mapped memory")]

use crate::error::{Error, Result};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap};
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// Size of a huge page, and the step in which memory is made present.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The shared half of a mapping: keeps it alive and can make its pages present.
pub(crate) struct Mapping {
    base: Mutex<usize>,
    bytes: AtomicUsize,
}

impl Mapping {
    /// Makes the memory of `range` present, ahead of its use. What cannot be made present is left alone.
    ///
    /// # Errors
    /// As the kernel says: no memory, or a kernel before 5.14.
    pub(crate) fn populate(&self, range: Range<usize>) -> io::Result<()> {
        let base = self.base.lock().unwrap_or_else(PoisonError::into_inner);
        let end = range.end.min(self.bytes.load(Ordering::Relaxed));
        if range.start >= end {
            return Ok(());
        }
        let start = ptr::with_exposed_provenance_mut::<c_void>(*base + range.start);
        // SAFETY: I1: the range lies in the mapping, which cannot move (I3) or go while the lock and `self` are held, and
        // populating changes no byte of it.
        unsafe { madvise(start, end - range.start, Advice::LinuxPopulateWrite) }?;
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let base = *self.base.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: I1, and the last holder of the mapping is gone, so no reference into it is left (I2).
        let unmapped = unsafe { munmap(ptr::with_exposed_provenance_mut(base), *self.bytes.get_mut()) };
        debug_assert!(unmapped.is_ok(), "I1: {unmapped:?}");
    }
}

/// The one owner of a mapping's bytes.
pub(crate) struct Owner {
    base: *mut u8,
    bytes: usize,
    shared: Arc<Mapping>,
}

// SAFETY: an `Owner` is a plain owner of bytes like a `Box<[u8]>` (I2); nothing in it is tied to a thread.
unsafe impl Send for Owner {}
// SAFETY: a shared `Owner` hands out shared references only.
unsafe impl Sync for Owner {}

impl Owner {
    /// Reserves `bytes` of zeroed memory; huge pages are asked for where they can help.
    ///
    /// # Errors
    /// [`Exhausted`](crate::ErrorKind::Exhausted) when the address space or its limit does not allow it.
    pub(crate) fn reserve(bytes: usize) -> Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let base = mapped.map_err(|error| {
            let hint = "raise the limit of address space (ulimit -v) or lower --state-memory";
            Error::exhausted(format_args!("cannot reserve {bytes} bytes of address space: {error}; {hint}"))
        })?;
        let shared = Mapping { base: Mutex::new(base.expose_provenance()), bytes: AtomicUsize::new(bytes) };
        let owner = Self { base: base.cast(), bytes, shared: Arc::new(shared) };
        owner.ask_for_huge_pages();
        Ok(owner)
    }

    fn ask_for_huge_pages(&self) {
        if self.bytes >= 2 * HUGE_PAGE_BYTES {
            // SAFETY: I1. The advice changes no byte; that a kernel without huge pages refuses it is of no consequence.
            let _ = unsafe { madvise(self.base.cast(), self.bytes, Advice::LinuxHugepage) };
        }
    }

    /// Enlarges the reservation, moving it if it must: no byte is copied. Says `false`, and has done nothing, when the
    /// populating thread is at work on it or the kernel refuses.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        assert!(bytes >= self.bytes, "a mapping of {} bytes cannot grow to {bytes}", self.bytes);
        let mut base = match self.shared.base.try_lock() {
            Ok(base) => base,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        // SAFETY: I1, I3: `&mut self` says that no reference into the mapping exists, the lock that nobody populates it.
        let moved = unsafe { mremap(self.base.cast(), self.bytes, bytes, MremapFlags::MAYMOVE) };
        let Ok(moved) = moved else { return false };
        *base = moved.expose_provenance();
        self.shared.bytes.store(bytes, Ordering::Relaxed);
        drop(base);
        self.base = moved.cast();
        self.bytes = bytes;
        self.ask_for_huge_pages();
        true
    }

    /// Gives the memory of `range` back; it reads as zero afterwards.
    pub(crate) fn discard(&mut self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {} bytes", self.bytes);
        if range.is_empty() {
            return;
        }
        let start = self.base.wrapping_add(range.start);
        // SAFETY: the range lies in the mapping (asserted) and `&mut self` says that nothing borrows from it.
        let given_back = unsafe { madvise(start.cast(), range.len(), Advice::LinuxDontNeed) };
        debug_assert!(given_back.is_ok(), "I1: {given_back:?}");
    }

    /// The half that may be given to other threads.
    pub(crate) fn shared(&self) -> &Arc<Mapping> {
        &self.shared
    }

    /// Bytes reserved.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Where the mapping begins; good until it [grows](Owner::grow).
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns `length` bytes at `at`.
    #[inline(always)]
    pub(crate) fn slice(&self, at: usize, length: usize) -> &[u8] {
        assert!(at <= self.bytes && length <= self.bytes - at, "bytes outside the mapping");
        // SAFETY: I1 and the assertion: inside one mapping, initialized by the kernel; `&self` keeps writers out (I2).
        unsafe { std::slice::from_raw_parts(self.base.wrapping_add(at), length) }
    }

    /// Returns `length` bytes at `at`, to change.
    #[inline(always)]
    pub(crate) fn slice_mut(&mut self, at: usize, length: usize) -> &mut [u8] {
        assert!(at <= self.bytes && length <= self.bytes - at, "bytes outside the mapping");
        // SAFETY: I1 and the assertion: inside one mapping, initialized by the kernel; `&mut self` is the only access (I2).
        unsafe { std::slice::from_raw_parts_mut(self.base.wrapping_add(at), length) }
    }

    /// Asks the processor to fetch the cache line at `at`, which may be anything.
    #[inline(always)]
    pub(crate) fn prefetch(&self, at: usize) {
        prefetch(self.base.wrapping_add(at));
    }
}

/// Asks the processor to fetch the cache line at `address`. A hint: any address is fine, nothing is read.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_memory_is_zero_keeps_what_is_written_and_is_zero_again_when_discarded() {
        let mut owner = Owner::reserve(8 << 20).unwrap();
        owner.slice_mut(5 << 20, 4).copy_from_slice(b"held");
        assert_eq!(owner.slice(5 << 20, 5), b"held\0");
        owner.discard(4 << 20..6 << 20);
        assert_eq!(owner.slice(5 << 20, 4), [0; 4]);
    }

    #[test]
    fn growing_keeps_the_bytes() {
        let mut owner = Owner::reserve(1 << 20).unwrap();
        owner.slice_mut((1 << 20) - 4, 4).copy_from_slice(b"last");
        assert!(owner.grow(64 << 20));
        assert_eq!(owner.slice((1 << 20) - 4, 4), b"last");
        assert_eq!(owner.slice((64 << 20) - 4, 4), [0; 4]);
        owner.shared().populate(0..usize::MAX).unwrap();
    }

    #[test]
    #[should_panic(expected = "outside the mapping")]
    fn bytes_beyond_the_end_are_refused() {
        Owner::reserve(4096).unwrap().slice(4090, 7);
    }

    #[test]
    fn an_impossible_reservation_says_what_to_do() {
        let error = Owner::reserve(1 << 60).err().unwrap();
        assert!(error.message().contains("--state-memory"), "{error}");
    }
}
