//! A restore against what it cannot beat by much: reading the same files from end to end and building a hashbrown map of
//! the same records. `cargo bench -p millstream-state --bench restore [-- keys directory]`.

use hashbrown::HashMap;
use millstream_state::hash::hash_u64;
use millstream_state::io::BlockingDisk;
use millstream_state::log::{Populator, Prefault};
use millstream_state::shard_store::{Restore, RestoreInput, ShardExtents, ShardStore, StoreConfig};
use millstream_state::table::TableOptions;
use millstream_state::{Epoch, Table};
use std::io::Read;
use std::path::Path;
use std::time::Instant;

fn config(directory: &Path, run: u32, keys: usize, populator: &Populator) -> StoreConfig {
    let mut config = StoreConfig::new(directory.to_owned(), run, 0, 1, Epoch(u64::from(run)));
    config.memory_bytes_max = (keys * 100).max(64 << 20);
    config.flush_bytes_per_second = 0;
    config.prefault = Prefault::Ahead(populator.clone());
    config
}

fn snapshot(store: &mut ShardStore, disk: &mut BlockingDisk) -> ShardExtents {
    store.cut(Epoch(1));
    store.seal(Epoch(1));
    loop {
        store.turn(disk, 0);
        if let Some(snapshot) = store.take_result() {
            return snapshot.result.expect("the disk works");
        }
    }
}

/// Reads every segment file and builds a map of its first `keys` 16-byte pieces: the least that any restore does.
fn read_and_build(directory: &Path, keys: usize) -> f64 {
    let start = Instant::now();
    let mut map: HashMap<u64, u64> = HashMap::with_capacity(keys);
    let mut block = vec![0; 1 << 20];
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let mut file = std::fs::File::open(entry.expect("an entry").path()).expect("a file");
        loop {
            let count = file.read(&mut block).expect("readable");
            if count == 0 {
                break;
            }
            for record in block[..count].chunks_exact(16).take(keys - map.len()) {
                let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes"));
                map.insert(word(8), word(0));
            }
        }
    }
    start.elapsed().as_secs_f64()
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let keys: usize = arguments.next().map_or(4_000_000, |keys| keys.parse().expect("a number of keys"));
    let root = arguments.next().map_or_else(std::env::temp_dir, Into::into);
    let directory = tempfile::tempdir_in(root).expect("a directory");
    let populator = Populator::start().expect("a thread");
    let mut disk = BlockingDisk::new();

    let mut store = ShardStore::new(config(directory.path(), 1, keys, &populator)).expect("memory");
    let domain = store.domain();
    let table: Table<u64, u64> = store.open_table("counts", domain, TableOptions::default()).expect("a new name");
    for key in 0..keys as u64 {
        table.put(store.log_mut(), hash_u64(key), &key.to_le_bytes(), &key).expect("room");
    }
    let start = Instant::now();
    let extents = snapshot(&mut store, &mut disk);
    let flush = start.elapsed().as_secs_f64();
    let bytes: usize = extents.extents.iter().map(|extent| extent.bytes()).sum();
    println!("{keys} keys, {} MB; flush {flush:.2} s", bytes / 1_000_000);
    drop(store);

    for _ in 0..3 {
        let build = read_and_build(directory.path(), keys);
        let input = RestoreInput {
            directory: directory.path().to_owned(),
            epoch: Epoch(1),
            tables: extents.tables.clone(),
            extents: extents.extents.clone(),
            channel_logs: Vec::new(),
        };
        let start = Instant::now();
        let mut restore = Restore::new(config(directory.path(), 2, keys, &populator), input).expect("memory");
        let restored = loop {
            if let Some(restored) = restore.turn(&mut disk).expect("what was written") {
                break restored;
            }
        };
        let time = start.elapsed().as_secs_f64();
        assert_eq!(restored.stats.records, keys as u64);
        println!("restore {time:.2} s; read and build a map {build:.2} s; {:.2} of it", time / build);
    }
}
