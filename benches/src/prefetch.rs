//! The one instruction that safe Rust lacks: ask for a cache line before it is needed.
//!
//! `unsafe` stands here and nowhere else in this crate. Cost: one instruction; nothing on processors not named below.
#![expect(unsafe_code, reason = "prefetch instructions are intrinsics or inline assembly")]

/// Asks for the cache line of `place`, for reading and writing soon. Changes nothing that a program can observe.
#[inline(always)]
pub(crate) fn prefetch<T>(place: &T) {
    let address = std::ptr::from_ref(place);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address, and SSE is part of every x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast())
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch never faults, whatever the address, and touches neither registers nor flags.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
    };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
