//! The one stable hash of keys: 64 bits, the same on every machine and in every version.
//!
//! Invariants
//! * I1. The hash of a key is a function of its encoded bytes only; changing it breaks every snapshot (golden-tested).
//! * I2. [`hash_u64`] of `x` equals [`hash_bytes`] of the eight little-endian bytes of `x`.
//!
//! Bits: key group = the top bits, index and tag = the low 32 (see `docs/FORMAT.md`); both ends must be well mixed.
//! Cost: about 1 ns for eight bytes, 2-4 ns for a word of text. Not resistant to keys chosen by an attacker.

#![allow(clippy::cast_possible_truncation, reason = "products and hashes are folded to size")]

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;
const TAIL: u64 = 0xa076_1d64_78bd_642f;

/// 64 x 64 -> 128 bits, folded: every input bit reaches both ends of the result.
#[inline(always)]
const fn fold(a: u64, b: u64) -> u64 {
    let wide = (a as u128) * (b as u128);
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// Returns the hash of the eight little-endian bytes of `x`.
#[inline(always)]
pub const fn hash_u64(x: u64) -> u64 {
    // The length (8) takes part as in `hash_bytes`; the second fold spreads what one multiplication leaves in place.
    fold(fold(x ^ SEED, MULTIPLIER ^ 8) ^ x, TAIL)
}

/// Returns the hash of `bytes`.
#[inline]
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    let length = bytes.len() as u64;
    if let Some(word) = bytes.first_chunk::<8>()
        && bytes.len() == 8
    {
        return hash_u64(u64::from_le_bytes(*word));
    }
    let (first, last) = match bytes.len() {
        0 => (0, 0),
        1..=3 => {
            // First, middle and last byte: all of them for up to three bytes.
            let packed = u64::from(bytes[0]) | u64::from(bytes[bytes.len() / 2]) << 8;
            (packed | u64::from(bytes[bytes.len() - 1]) << 16, 0)
        }
        4..=8 => (word32(bytes, 0), word32(bytes, bytes.len() - 4)),
        9..=16 => (word64(bytes, 0), word64(bytes, bytes.len() - 8)),
        _ => {
            let mut state = SEED ^ length;
            let mut rest = bytes;
            while rest.len() > 16 {
                state = fold(word64(rest, 0) ^ MULTIPLIER ^ state, word64(rest, 8) ^ TAIL ^ state.rotate_left(29));
                rest = &rest[16..];
            }
            (word64(bytes, bytes.len() - 16) ^ state, word64(bytes, bytes.len() - 8) ^ state.rotate_left(31))
        }
    };
    fold(fold(first ^ SEED, last ^ MULTIPLIER ^ length) ^ first ^ last.rotate_left(17), TAIL)
}

#[inline(always)]
fn word32(bytes: &[u8], at: usize) -> u64 {
    let word: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
    u64::from(u32::from_le_bytes(word))
}

#[inline(always)]
fn word64(bytes: &[u8], at: usize) -> u64 {
    let word: [u8; 8] = bytes[at..at + 8].try_into().expect("eight bytes");
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bytes_hash_like_their_integer() {
        for x in [0, 1, 0xff, u64::MAX, 0x0123_4567_89ab_cdef] {
            assert_eq!(hash_bytes(&x.to_le_bytes()), hash_u64(x));
        }
    }

    /// Chi-squared over 1024 cells of a bit field, in standard deviations from what fair throws give.
    fn unevenness(hashes: &[u64], shift: u32) -> f64 {
        let mut cells = [0u32; 1024];
        hashes.iter().for_each(|hash| cells[(hash >> shift) as usize % 1024] += 1);
        let expected = hashes.len() as f64 / 1024.0;
        let chi: f64 = cells.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
        (chi - 1023.0) / (2.0f64 * 1023.0).sqrt()
    }

    #[test]
    fn every_bit_field_in_use_is_even_for_keys_that_people_have() {
        type Keys = (&'static str, Box<dyn Fn(u64) -> u64>);
        let keys: [Keys; 6] = [
            ("counting up", Box::new(hash_u64)),
            ("multiples of 4096", Box::new(|i| hash_u64(i * 4096))),
            ("high half", Box::new(|i| hash_u64(i << 40))),
            ("decimal text", Box::new(|i| hash_bytes(i.to_string().as_bytes()))),
            ("text with a prefix", Box::new(|i| hash_bytes(format!("customer-{i:012}").as_bytes()))),
            ("long text", Box::new(|i| hash_bytes(format!("{i}-{}", "x".repeat(60)).as_bytes()))),
        ];
        for (name, hash) in keys {
            let hashes: Vec<u64> = (0..200_000).map(hash).collect();
            for shift in [0, 8, 16, 24, 32, 40, 48, 54] {
                let sigma = unevenness(&hashes, shift);
                assert!(sigma.abs() < 6.0, "{name}: bits {shift}..{} are {sigma:.1} sigma off", shift + 10);
            }
        }
    }
}
