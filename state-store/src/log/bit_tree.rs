//! A set of small numbers that finds its lowest member in a few steps and never allocates after it was made.
//!
//! Invariants
//! * I1. A bit of level `k + 1` is set iff its word of level `k` is not zero; level 0 holds the members.

/// Numbers below a fixed bound.
pub(crate) struct BitTree {
    levels: Vec<Vec<u64>>,
}

impl BitTree {
    /// An empty set of numbers below `bound`.
    pub(crate) fn new(bound: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = bound.div_ceil(64).max(1);
        loop {
            levels.push(vec![0; words]);
            if words == 1 {
                return Self { levels };
            }
            words = words.div_ceil(64);
        }
    }

    pub(crate) fn contains(&self, member: usize) -> bool {
        self.levels[0].get(member / 64).is_some_and(|word| word >> (member % 64) & 1 == 1)
    }

    pub(crate) fn insert(&mut self, mut member: usize) {
        for level in &mut self.levels {
            let word = &mut level[member / 64];
            let was = *word;
            *word |= 1 << (member % 64);
            if was != 0 {
                return;
            }
            member /= 64;
        }
    }

    pub(crate) fn remove(&mut self, mut member: usize) {
        for level in &mut self.levels {
            let word = &mut level[member / 64];
            *word &= !(1 << (member % 64));
            if *word != 0 {
                return;
            }
            member /= 64;
        }
    }

    pub(crate) fn lowest(&self) -> Option<usize> {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            let word = level[at];
            if word == 0 {
                return None;
            }
            at = at * 64 + word.trailing_zeros() as usize;
        }
        Some(at)
    }

    /// Returns the start of the lowest run of `length` members in a row. Cost: one step per 64 numbers of the bound.
    pub(crate) fn lowest_run(&self, length: usize) -> Option<usize> {
        let mut run = 0;
        for (at, word) in self.levels[0].iter().enumerate() {
            if *word == 0 {
                run = 0;
                continue;
            }
            for bit in 0..64 {
                run = if word >> bit & 1 == 1 { run + 1 } else { 0 };
                if run == length {
                    return Some(at * 64 + bit + 1 - length);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn behaves_like_an_ordered_set() {
        let mut tree = BitTree::new(5000);
        let mut model = BTreeSet::new();
        let mut random = 1u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let member = (random >> 40) as usize % 5000;
            if random >> 33 & 1 == 0 {
                tree.insert(member);
                model.insert(member);
            } else {
                tree.remove(member);
                model.remove(&member);
            }
            assert_eq!(tree.lowest(), model.first().copied());
            assert_eq!(tree.contains(member), model.contains(&member));
        }
        for length in 1..8 {
            let expected = (0..5000).find(|start| (*start..start + length).all(|member| model.contains(&member)));
            assert_eq!(tree.lowest_run(length), expected, "run of {length}");
        }
    }
}
