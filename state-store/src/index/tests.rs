//! The index against a map, its invariants checked while it grows and shrinks.

use super::*;
use std::collections::BTreeMap;

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    crate::hash::hash_u64(*state)
}

/// Checks every invariant of `index` against what it should hold.
fn check(index: &Index, model: &BTreeMap<u64, u64>) {
    assert_eq!(index.len(), model.len() as u64);
    for (address, hash) in model {
        assert!(index.points_at(*hash, Address(*address)), "entry {address} of {hash:#x} is missing");
    }
    let mut seen = Vec::new();
    let mut cursor = ScanCursor::START;
    while cursor < ScanCursor::END {
        let next = index.scan_bucket(cursor, |address| seen.push(address.0));
        assert!(next > cursor);
        cursor = next;
    }
    seen.sort_unstable();
    assert!(seen.iter().eq(model.keys()), "a scan visits every entry once");
    let chained: u64 = (0..index.home.count()).map(|at| chain_length(index, at)).sum();
    assert_eq!(chained, index.overflow_buckets(), "I3: overflow buckets are in chains or free");
}

fn chain_length(index: &Index, home: usize) -> u64 {
    let mut bucket = index.home.get(home);
    let mut length = 0;
    while let Some(next) = bucket.link() {
        bucket = index.pool.get(next as usize);
        assert_ne!(bucket.taken(), 0, "I3: no empty overflow bucket in a chain");
        length += 1;
    }
    length
}

#[test]
fn random_changes_agree_with_a_map_through_growth_and_shrinking() {
    for seed in 0..6 {
        let mut state = seed;
        let mut index = Index::new(&Prefault::None);
        let mut model = BTreeMap::new();
        // Few distinct hashes in odd seeds, so that chains are long and equal hashes common.
        let mask = if seed % 2 == 0 { u64::MAX } else { 0xff00_00ff };
        for phase in 0..6 {
            let growing = phase % 2 == 0;
            for step in 0..8_000u64 {
                let draw = random(&mut state);
                let fresh = phase * 100_000 + step + 1;
                match draw % 10 {
                    0..=1 if !model.is_empty() => {
                        let (&old, &hash) = model
                            .range(draw % (phase * 100_000 + 8_000)..)
                            .next()
                            .unwrap_or(model.first_key_value().unwrap());
                        index.swing(hash, Address(old), Address(fresh));
                        model.remove(&old);
                        model.insert(fresh, hash);
                    }
                    2..=3 if growing => {}
                    2..=9 if !growing => {
                        if let Some((&old, &hash)) = model.first_key_value() {
                            index.remove(hash, Address(old));
                            model.remove(&old);
                        }
                    }
                    _ => {
                        let hash = random(&mut state) & mask;
                        index.insert(hash, Address(fresh));
                        model.insert(fresh, hash);
                    }
                }
            }
            check(&index, &model);
        }
        while let Some((address, hash)) = model.pop_first() {
            index.remove(hash, Address(address));
        }
        check(&index, &model);
        assert!(index.bytes() <= 8 * 64, "an emptied index is small again: {} bytes", index.bytes());
    }
}

#[test]
fn an_index_grows_from_one_bucket_into_mapped_memory_and_past_its_first_reservation() {
    let mut index = Index::new(&Prefault::None);
    assert_eq!(index.bytes(), 64);
    let count = 2_000_000u64;
    for n in 1..=count {
        index.insert(crate::hash::hash_u64(n), Address(n));
    }
    assert!(index.home.is_mapped());
    for n in 1..=count {
        assert!(index.points_at(crate::hash::hash_u64(n), Address(n)), "entry {n}");
    }
    let load = index.len() as f64 / index.home.count() as f64;
    assert!((2.0..=5.5).contains(&load), "load {load}");
}

#[test]
fn a_tiny_table_has_a_tiny_index() {
    let mut index = Index::new(&Prefault::None);
    (1..=20).for_each(|n| index.insert(crate::hash::hash_u64(n), Address(n)));
    assert!(index.bytes() <= 512, "{} bytes", index.bytes());
}

#[test]
fn reserving_makes_filling_move_nothing() {
    let mut index = Index::new(&Prefault::None);
    index.reserve(100_000);
    let buckets = index.home.count();
    (1..=100_000).for_each(|n| index.insert(crate::hash::hash_u64(n), Address(n)));
    assert_eq!((index.home.count(), index.motion), (buckets, Motion::Steady));
}

#[test]
fn a_scan_that_spans_growth_and_shrinking_visits_what_stays_exactly_once() {
    for seed in 0..20 {
        let mut state = seed;
        let mut index = Index::new(&Prefault::None);
        let staying: Vec<u64> = (1..=3_000).map(|_| random(&mut state)).collect();
        staying.iter().zip(1..).for_each(|(hash, n)| index.insert(*hash, Address(n)));
        let mut passing: Vec<(u64, Address)> = Vec::new();
        let mut visits = vec![0; staying.len() + 1];
        let mut cursor = ScanCursor::START;
        let mut step = 0;
        while cursor < ScanCursor::END {
            let before = cursor;
            cursor = index.scan_bucket(cursor, |address| {
                if let Some(count) = visits.get_mut(address.0 as usize) {
                    *count += 1;
                    let position = ScanCursor::of_hash(staying[address.0 as usize - 1]);
                    assert!(before <= position, "seed {seed}");
                }
            });
            step += 1;
            if step % 400 < 200 {
                for _ in 0..40 {
                    let entry = (random(&mut state), Address(100_000 + passing.len() as u64));
                    index.insert(entry.0, entry.1);
                    passing.push(entry);
                }
            } else {
                for (hash, address) in passing.split_off(passing.len().saturating_sub(80)) {
                    index.remove(hash, address);
                }
            }
        }
        assert!(visits[1..].iter().all(|count| *count == 1), "seed {seed}");
    }
}
