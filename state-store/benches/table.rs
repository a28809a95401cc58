//! Read-modify-write of a `u64` count under a `u64` key: a table in batches against hashbrown with its default hasher,
//! in one process, alternating. `cargo bench -p millstream-state --bench table [-- keys...]`, on a quiet pinned core.
//!
//! Both hash inside the measured loop: the table's keys with the stable hash, hashbrown's with foldhash. `after cut` is
//! the table's figure for the first 250,000 updates after a cut, most of which copy their record.

use hashbrown::HashMap;
use millstream_state::hash::hash_u64;
use millstream_state::log::Populator;
use millstream_state::table::TableOptions;
use millstream_state::{Epoch, Log, Table, log::Prefault};
use std::hint::black_box;
use std::time::Instant;

const OPERATIONS: usize = 10_000_000;
/// Draws in one timed piece: short enough that many pieces are not disturbed.
const PIECE: usize = 250_000;
const ROUNDS: usize = 5;

fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Uniform draws below `keys`, made once so that both sides read the same memory in the same order.
fn draws(keys: u64) -> Vec<u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    (0..OPERATIONS).map(|_| ((u128::from(xorshift(&mut state)) * u128::from(keys)) >> 64) as u64).collect()
}

#[inline(never)]
fn run_table(table: &Table<u64, u64>, log: &mut Log, draws: &[u64], batch: usize) -> f64 {
    let start = Instant::now();
    let mut hashes = vec![0u64; batch];
    let mut sum = 0;
    for keys in draws.chunks(batch) {
        let hashes = &mut hashes[..keys.len()];
        hashes.iter_mut().zip(keys).for_each(|(hash, key)| *hash = hash_u64(*key));
        let bytes: &[[u8; 8]] = as_bytes(keys);
        table
            .update_batch(
                log,
                hashes,
                |i| &bytes[i],
                |_| 0,
                |_, count, _| {
                    *count += 1;
                    sum += *count;
                },
            )
            .unwrap();
    }
    black_box(sum);
    start.elapsed().as_secs_f64() * 1e9 / draws.len() as f64
}

/// The little-endian bytes of the keys: what a chunk of an exchange holds.
#[expect(unsafe_code, reason = "integers seen as their bytes, without a copy in the measured loop")]
fn as_bytes(keys: &[u64]) -> &[[u8; 8]] {
    const { assert!(cfg!(target_endian = "little")) };
    // SAFETY: eight bytes each, any byte is fine, alignment of bytes is one.
    unsafe { std::slice::from_raw_parts(keys.as_ptr().cast(), keys.len()) }
}

#[inline(never)]
fn run_map(map: &mut HashMap<u64, u64>, draws: &[u64]) -> f64 {
    let start = Instant::now();
    let mut sum = 0;
    for key in draws {
        let count = map.entry(*key).or_insert(0);
        *count += 1;
        sum += *count;
    }
    black_box(sum);
    start.elapsed().as_secs_f64() * 1e9 / draws.len() as f64
}

/// The lower tenth: what the machine does when nobody disturbs it.
fn quiet(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 10]
}

fn measure(keys: u64, populator: &Populator) {
    let count = usize::try_from(keys).expect("fits into memory");
    let draws = draws(keys);
    let mut log = Log::new((count * 64).max(64 << 20) * 6, &Prefault::Ahead(populator.clone()), Epoch(1)).unwrap();
    let domain = log.add_domain();
    let table: Table<u64, u64> = log.open_table("counts", domain, TableOptions::default()).unwrap();
    let mut map: HashMap<u64, u64> = HashMap::with_capacity(count);
    for key in 0..keys {
        let key = hash_u64(key) % keys; // an order of insertion that says nothing about the order of keys
        table.put(&mut log, hash_u64(key), &key.to_le_bytes(), &0).unwrap();
        map.insert(key, 0);
    }
    for key in 0..keys {
        table.update(&mut log, hash_u64(key), &key.to_le_bytes(), || 0, |_, _| ()).unwrap();
        map.entry(key).or_insert(0);
    }
    let mut times: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        for piece in draws.chunks(PIECE) {
            times[0].push(run_map(&mut map, piece));
            times[1].push(run_table(&table, &mut log, piece, 64));
            times[2].push(run_table(&table, &mut log, piece, 256));
        }
    }
    for piece in draws.chunks(PIECE) {
        let epoch = log.running(domain);
        log.cut(domain, epoch);
        log.end_epoch_for_benches(epoch);
        times[3].push(run_table(&table, &mut log, piece, 256));
    }
    let total: u64 = map.values().sum();
    let mut counted = 0;
    let mut cursor = millstream_state::ScanCursor::START;
    while cursor < millstream_state::ScanCursor::END {
        cursor = table.scan(&log, cursor, 1000, |_, _, count| counted += count);
    }
    assert_eq!(counted, total * 2 + OPERATIONS as u64);
    let [map, batch, long, after_cut] = times.map(quiet);
    println!("{keys:>11} {map:>10.2} {batch:>10.2} {long:>10.2} {after_cut:>10.2} {:>7.2}", long / map);
}

fn main() {
    let mut keys: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    if keys.is_empty() {
        keys = vec![100_000, 1_000_000, 10_000_000];
    }
    let populator = Populator::start().unwrap();
    println!("ns per update, lower tenth of {ROUNDS} x {} pieces of {PIECE} uniform draws", OPERATIONS / PIECE);
    println!(
        "{:>11} {:>10} {:>10} {:>10} {:>10} {:>7}",
        "keys", "hashbrown", "batch 64", "batch 256", "after cut", "ratio"
    );
    keys.iter().for_each(|keys| measure(*keys, &populator));
}
