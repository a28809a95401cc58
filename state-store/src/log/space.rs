//! Which 4 KiB blocks of the arena are free: a buddy allocator that prefers low addresses.
//!
//! Invariants
//! * I1. A block is free in exactly one order, or taken. A free run of order `k` starts at a multiple of `2^k` blocks.
//! * I2. Two free buddies are one free run of the next order.
//!
//! Low addresses first keeps the memory that was ever touched close to what is in use. Cost: a few bit operations.

use super::bit_tree::BitTree;
use super::{BLOCK_BYTES, FRAME_BYTES};

/// Orders of runs: 4 KiB to 256 KiB.
const ORDERS: usize = FRAME_ORDER as usize + 1;
/// The order of a whole frame.
pub(crate) const FRAME_ORDER: u8 = (FRAME_BYTES / BLOCK_BYTES).trailing_zeros() as u8;
const FRAME_BLOCKS: u32 = 1 << FRAME_ORDER;

/// Free blocks of one arena.
pub(crate) struct Space {
    free: [BitTree; ORDERS],
    blocks_free: u32,
}

impl Space {
    /// All `frames` frames free.
    pub(crate) fn new(frames: u32) -> Self {
        let free = std::array::from_fn(|order| BitTree::new((frames as usize) << (ORDERS - 1 - order)));
        let mut space = Self { free, blocks_free: frames << FRAME_ORDER };
        (0..frames as usize).for_each(|frame| space.free[ORDERS - 1].insert(frame));
        space
    }

    pub(crate) fn blocks_free(&self) -> u32 {
        self.blocks_free
    }

    /// Takes `2^order` blocks and returns the first.
    pub(crate) fn take(&mut self, order: u8) -> Option<u32> {
        debug_assert!(order <= FRAME_ORDER);
        let order = usize::from(order);
        let (from, run) = (order..ORDERS).find_map(|from| Some((from, self.free[from].lowest()?)))?;
        self.free[from].remove(run);
        let mut run = run;
        for smaller in (order..from).rev() {
            run *= 2;
            self.free[smaller].insert(run + 1);
        }
        self.blocks_free -= 1 << order;
        Some(as_block(run << order))
    }

    /// Takes `blocks` blocks in a row, more than a frame's, and returns the first.
    pub(crate) fn take_run(&mut self, blocks: u32) -> Option<u32> {
        debug_assert!(blocks > FRAME_BLOCKS);
        let frames = blocks.div_ceil(FRAME_BLOCKS);
        let first = self.free[ORDERS - 1].lowest_run(frames as usize)?;
        (first..first + frames as usize).for_each(|frame| self.free[ORDERS - 1].remove(frame));
        self.blocks_free -= frames * FRAME_BLOCKS;
        let start = as_block(first) * FRAME_BLOCKS;
        self.give_back(start + blocks, frames * FRAME_BLOCKS - blocks);
        Some(start)
    }

    /// Gives `blocks` blocks back, from `start` on.
    pub(crate) fn give_back(&mut self, start: u32, blocks: u32) {
        let (mut at, end) = (start, start + blocks);
        while at < end {
            let fits = (end - at).ilog2().min(at.trailing_zeros()).min(u32::from(FRAME_ORDER));
            self.give_back_run(at, fits as usize);
            at += 1 << fits;
        }
    }

    fn give_back_run(&mut self, start: u32, mut order: usize) {
        self.blocks_free += 1 << order;
        let mut run = start as usize >> order;
        debug_assert!(!self.free[order].contains(run), "I1: blocks from {start} given back twice");
        while order < ORDERS - 1 && self.free[order].contains(run ^ 1) {
            self.free[order].remove(run ^ 1);
            run /= 2;
            order += 1;
        }
        self.free[order].insert(run);
    }
}

fn as_block(block: usize) -> u32 {
    u32::try_from(block).expect("an arena has fewer than 2^32 blocks")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_taking_and_giving_back_never_overlaps_and_ends_whole() {
        const FRAMES: u32 = 40;
        let mut space = Space::new(FRAMES);
        let mut owner = vec![0u32; (FRAMES * FRAME_BLOCKS) as usize];
        let mut held: Vec<(u32, u32)> = Vec::new();
        let mut random = 7u64;
        for step in 1..20_000u32 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let draw = (random >> 33) as u32;
            if draw % 5 < 3 {
                let (taken, blocks) = if draw.is_multiple_of(16) {
                    let blocks = FRAME_BLOCKS + 1 + draw / 16 % 200;
                    (space.take_run(blocks), blocks)
                } else {
                    let order = (draw / 16 % 7) as u8;
                    (space.take(order), 1 << order)
                };
                if let Some(start) = taken {
                    let run = &mut owner[start as usize..(start + blocks) as usize];
                    assert!(run.iter().all(|owner| *owner == 0), "blocks from {start} taken twice");
                    run.fill(step);
                    held.push((start, blocks));
                }
            } else if !held.is_empty() {
                let (start, blocks) = held.swap_remove(draw as usize / 8 % held.len());
                // Now and then only the second half: a page that is cut down to what it uses.
                let kept = if draw.is_multiple_of(7) { blocks / 2 } else { 0 };
                space.give_back(start + kept, blocks - kept);
                owner[(start + kept) as usize..(start + blocks) as usize].fill(0);
                if kept > 0 {
                    held.push((start, kept));
                }
            }
            let free = owner.iter().filter(|owner| **owner == 0).count();
            assert_eq!(space.blocks_free() as usize, free, "step {step}");
        }
        held.drain(..).for_each(|(start, blocks)| space.give_back(start, blocks));
        for frame in 0..FRAMES {
            assert_eq!(space.take(FRAME_ORDER), Some(frame * FRAME_BLOCKS), "I2: everything merged again");
        }
        assert_eq!(space.take(0), None);
    }
}
