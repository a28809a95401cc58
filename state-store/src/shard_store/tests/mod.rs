//! Whole stores over the simulated disk.

use super::*;
use crate::ErrorKind;
use crate::format::{Manifest, SegmentId};
use crate::hash::hash_u64;
use crate::io::Files;
use crate::io::sim::{SimConfig, SimDisk};
use crate::table::ScanCursor;
use std::collections::{BTreeMap, BTreeSet};

mod one_store;
mod random_work;

const DIRECTORY: &str = "/state";

/// A source of work that is the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        hash_u64(self.0) % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
