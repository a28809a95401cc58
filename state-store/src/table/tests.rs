//! Tables against a map with versions: what is there now, and what every pending snapshot contains.

use super::*;
use crate::epoch::Epoch;
use crate::hash::hash_u64;
use crate::log::{PageId, Prefault};
use crate::value::{BadBytes, Record, Schema};
use std::collections::BTreeMap;

/// Bytes of any length as a state: stands for every encoded type.
#[derive(Clone, PartialEq, Debug)]
struct Blob(Vec<u8>);

impl Record for Blob {
    const FIXED_SIZE: Option<usize> = None;
    type View<'a> = &'a [u8];
    fn schema() -> Schema {
        Schema::Bytes
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
    fn encode_fixed(&self, _: &mut [u8]) {
        unreachable!("no fixed size")
    }
    fn check(_: &[u8]) -> Result<(), BadBytes> {
        Ok(())
    }
    fn view(bytes: &[u8]) -> &[u8] {
        bytes
    }
    fn decode(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}
impl State for Blob {}

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a restore of snapshot `n` would find: its pages, oldest first, each later version replacing an earlier one.
fn snapshot_contents(log: &Log, table: u32, n: Epoch) -> Contents {
    let layout = log.table(table).layout;
    let mut pages: Vec<_> = (0..log.pages.ids()).map(|id| (PageId(id), log.pages.page(PageId(id)))).collect();
    pages.retain(|(_, page)| page.table.id == table && page.is_in(n));
    pages.sort_by_key(|(_, page)| (page.born, page.sequence));
    let mut contents = Contents::new();
    for (id, page) in pages {
        let image = log.pages.image(id);
        let mut at = crate::log::PAGE_HEADER_BYTES;
        while at < page.used as usize {
            let record = &image[at..];
            let size = layout.checked_size(record).expect("a whole record");
            let (flags, key) = (layout.flags(record), layout.key(record).to_vec());
            if flags & TOMBSTONE != 0 {
                contents.remove(&key);
            } else if flags & DEAD == 0 {
                contents.insert(key, record[layout.value(record)].to_vec());
            }
            at += size;
        }
    }
    contents
}

fn contents(log: &Log, table: u32) -> Contents {
    let table: Table<[u8], Blob> = Table::of(table);
    let mut contents = Contents::new();
    let mut cursor = ScanCursor::START;
    while cursor < ScanCursor::END {
        cursor = table.scan(log, cursor, 10, |hash, key, value| {
            assert_eq!(hash, hash_bytes(key));
            assert!(contents.insert(key.to_vec(), value.to_vec()).is_none(), "visited twice: {key:?}");
        });
    }
    contents
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        hash_u64(self.0) % bound
    }
}

/// Plays random operations, cuts and ends of epochs against one table; `value` makes a value of the table's type.
fn play<K: Key + ?Sized, V: State>(seed: u64, removal: bool, value: impl Fn(&mut Random) -> V) {
    let random = &mut Random(seed << 32);
    let mut log = Log::new(3 << 20, &Prefault::None, Epoch(1)).unwrap();
    let other_domain = log.add_domain();
    let domain = log.add_domain();
    let bystander: Table<u64, u64> = log.open_table("bystander", other_domain, TableOptions::default()).unwrap();
    let table: Table<K, V> = log.open_table("played", domain, TableOptions { removal }).unwrap();
    let mut model = Contents::new();
    let mut snapshots: BTreeMap<Epoch, Contents> = BTreeMap::new();
    let keys = 1 + random.below(400);
    let encode = |value: &V| {
        let mut bytes = Vec::new();
        value.encode(&mut bytes);
        bytes
    };
    for step in 0..3_000 {
        let key = random.below(keys).to_le_bytes();
        let hash = hash_bytes(&key);
        match random.below(100) {
            0..30 => {
                let new = value(random);
                let bytes = encode(&new);
                let was_there = model.contains_key(&key[..]);
                let mut old = None;
                table
                    .update(
                        &mut log,
                        hash,
                        &key,
                        || value(&mut Random(0)),
                        |value, is_first| {
                            assert_eq!(is_first, !was_there, "seed {seed} step {step}");
                            old = Some(encode(value));
                            *value = new;
                        },
                    )
                    .unwrap();
                if was_there {
                    assert_eq!(old.as_ref(), model.get(&key[..]), "seed {seed} step {step}");
                }
                model.insert(key.to_vec(), bytes);
            }
            30..50 => {
                let new = value(random);
                table.put(&mut log, hash, &key, &new).unwrap();
                model.insert(key.to_vec(), encode(&new));
            }
            50..60 => {
                let batch: Vec<[u8; 8]> = (0..random.below(150)).map(|_| random.below(keys).to_le_bytes()).collect();
                let hashes: Vec<u64> = batch.iter().map(|key| hash_bytes(key)).collect();
                let mut values = Vec::new();
                (0..batch.len()).for_each(|_| values.push(Some(value(random))));
                let expected: Vec<_> = values.iter().flatten().map(encode).collect();
                let change = |i: usize, value: &mut V, is_first: bool| {
                    assert_eq!(is_first, !model.contains_key(&batch[i][..]), "seed {seed} step {step}");
                    *value = values[i].take().expect("once per key");
                    model.insert(batch[i].to_vec(), expected[i].clone());
                };
                table.update_batch(&mut log, &hashes, |i| &batch[i], |_| value(&mut Random(0)), change).unwrap();
            }
            60..90 if removal => {
                let was_there = table.remove(&mut log, hash, &key).unwrap();
                assert_eq!(was_there, model.remove(&key[..]).is_some(), "seed {seed} step {step}");
            }
            90..93 if snapshots.len() < 2 => {
                let epoch = Epoch(log.running(domain).0 + random.below(2));
                log.cut(domain, epoch);
                log.cut(other_domain, epoch);
                snapshots.insert(epoch, model.clone());
            }
            93 => {
                // An epoch ends, not always the older one; completing one supersedes what is below it.
                let which = random.below(2) as usize;
                if let Some(&epoch) = snapshots.keys().nth(which) {
                    if random.below(2) == 0 {
                        log.pages.epochs.complete(epoch);
                        snapshots.retain(|pending, _| *pending > epoch);
                    } else {
                        log.pages.epochs.abandon(epoch);
                        snapshots.remove(&epoch);
                    }
                    log.pages.sweep_from_start();
                    while log.pages.sweep(3) {}
                }
            }
            _ => bystander.put(&mut log, hash, &key, &step).unwrap(),
        }
        let id = table.id;
        if step % 50 == 0 {
            assert_eq!(contents(&log, id), model, "seed {seed} step {step}");
            assert_eq!(table.len(&log), model.len() as u64);
            for (epoch, expected) in &snapshots {
                assert_eq!(&snapshot_contents(&log, id, *epoch), expected, "seed {seed} step {step} epoch {epoch}");
            }
            check_pages(&log);
        }
        assert_eq!(table.get(&log, hash, &key).is_some(), model.contains_key(&key[..]));
    }
}

/// Live bytes of every page are those that the indexes point at, and no block has two pages.
fn check_pages(log: &Log) {
    let mut live: BTreeMap<u32, usize> = BTreeMap::new();
    for core in log.tables.iter().flatten() {
        let mut cursor = ScanCursor::START;
        while cursor < ScanCursor::END {
            cursor = core.index.scan_bucket(cursor, |address| {
                let bytes = record(&log.pages, core.layout, address);
                *live.entry(log.pages.page_of(address).0).or_default() += core.layout.size(bytes);
            });
        }
    }
    let mut blocks = 0;
    for id in 0..log.pages.ids() {
        let page = log.pages.page(PageId(id));
        blocks += page.blocks as u64;
        assert_eq!(page.live as usize, live.get(&id).copied().unwrap_or(0), "page {id}: {page:?}");
    }
    assert_eq!(log.pages.page_bytes(), blocks * 4096);
    assert_eq!(log.pages.live_bytes(), live.values().map(|bytes| *bytes as u64).sum::<u64>());
}

#[test]
fn random_operations_on_fixed_values_agree_with_a_map_and_its_snapshots() {
    for seed in 0..20 {
        play::<u64, u64>(seed, seed % 2 == 0, |random| random.below(u64::MAX));
        play::<[u8], u64>(seed, seed % 2 == 1, |random| random.below(u64::MAX));
    }
}

#[test]
fn random_operations_on_growing_values_agree_with_a_map_and_its_snapshots() {
    for seed in 0..20 {
        let value = |random: &mut Random| Blob(vec![random.below(256) as u8; random.below(60) as usize]);
        play::<u64, Blob>(seed, seed % 2 == 0, value);
        play::<[u8], Blob>(seed, seed % 2 == 1, value);
    }
}

fn one_table<K: Key + ?Sized, V: State>(bytes_max: usize, removal: bool) -> (Log, Domain, Table<K, V>) {
    let mut log = Log::new(bytes_max, &Prefault::None, Epoch(1)).unwrap();
    let domain = log.add_domain();
    let table = log.open_table("one", domain, TableOptions { removal }).unwrap();
    (log, domain, table)
}

fn add(log: &mut Log, table: &Table<u64, u64>, key: u64) {
    table.update(log, hash_u64(key), &key.to_le_bytes(), || 0, |count, _| *count += 1).unwrap();
}

#[test]
fn keys_that_differ_only_above_the_low_32_bits_of_their_hash_are_told_apart() {
    // Hashes are given from outside, so equal ones can be made at will.
    let (mut log, _, table) = one_table::<u64, u64>(1 << 20, true);
    for key in 0..100u64 {
        table.put(&mut log, 0xabcd_ef01, &key.to_le_bytes(), &(key * 2)).unwrap();
    }
    for key in (0..100u64).step_by(3) {
        assert!(table.remove(&mut log, 0xabcd_ef01, &key.to_le_bytes()).unwrap());
    }
    for key in 0..100u64 {
        let expected = (key % 3 != 0).then_some(key * 2);
        assert_eq!(table.get(&log, 0xabcd_ef01, &key.to_le_bytes()), expected);
    }
}

#[test]
fn an_update_after_a_cut_copies_the_record_once() {
    let (mut log, domain, table) = one_table::<u64, u64>(1 << 20, false);
    (0..100).for_each(|key| add(&mut log, &table, key));
    assert_eq!(log.appended_bytes(), 1_600);
    log.cut(domain, Epoch(1));
    (0..3).for_each(|_| (0..100).for_each(|key| add(&mut log, &table, key)));
    assert_eq!(log.appended_bytes(), 3_200);
    assert_eq!(table.get(&log, hash_u64(7), &7u64.to_le_bytes()), Some(4));
}

#[test]
fn a_page_is_reused_only_when_no_pending_epoch_holds_it() {
    let (mut log, domain, table) = one_table::<u64, u64>(1 << 20, false);
    let held = |log: &Log| log.pages.held_bytes();
    (0..100).for_each(|key| add(&mut log, &table, key));
    log.cut(domain, Epoch(1));
    log.cut(domain, Epoch(2));
    (0..100).for_each(|key| add(&mut log, &table, key));
    assert_eq!(held(&log), 4096, "epochs 1 and 2 hold the first page");
    log.pages.epochs.abandon(Epoch(1));
    log.pages.sweep_from_start();
    log.pages.sweep(10);
    assert_eq!(held(&log), 4096, "epoch 2 still holds it");
    log.pages.epochs.complete(Epoch(2));
    log.pages.sweep_from_start();
    log.pages.sweep(10);
    assert_eq!((held(&log), log.pages.page_bytes()), (0, 4096));
}

#[test]
fn page_numbers_and_addresses_are_recycled_for_ever() {
    let (mut log, domain, table) = one_table::<u64, u64>(64 << 10, false);
    for epoch in 1..20_000 {
        (0..200).for_each(|key| add(&mut log, &table, key));
        log.cut(domain, Epoch(epoch));
        log.pages.epochs.complete(Epoch(epoch));
        log.pages.sweep_from_start();
    }
    assert!(log.pages.ids() <= 16, "{} page numbers", log.pages.ids());
    assert_eq!(table.get(&log, hash_u64(7), &7u64.to_le_bytes()), Some(19_999));
}

#[test]
fn full_memory_is_an_error_that_names_state_bytes_and_flag_and_loses_nothing() {
    let (mut log, _, table) = one_table::<u64, u64>(16 << 10, false);
    let failed = (0..10_000u64).find_map(|key| {
        let result = table.put(&mut log, hash_u64(key), &key.to_le_bytes(), &key);
        result.err().map(|error| (key, error))
    });
    let (key, error) = failed.unwrap();
    assert_eq!(error.kind(), crate::ErrorKind::Exhausted);
    for part in ["state `one`", "of 16384 bytes", "--state-memory"] {
        assert!(error.message().contains(part), "{error}");
    }
    assert_eq!(table.len(&log), key);
    (0..key).for_each(|key| assert_eq!(table.get(&log, hash_u64(key), &key.to_le_bytes()), Some(key)));
}

#[test]
fn values_and_keys_up_to_their_limit_fit_and_one_byte_more_is_refused() {
    let (mut log, domain, table) = one_table::<[u8], Blob>(16 << 20, true);
    let limit = log.table(table.id).layout.value_bytes_max(3);
    let large = Blob(vec![7; limit]);
    table.put(&mut log, 1, b"key", &large).unwrap();
    log.cut(domain, Epoch(1));
    table.put(&mut log, 1, b"key", &large).unwrap();
    assert_eq!(table.get(&log, 1, b"key"), Some(&large.0[..]));
    let error = table.put(&mut log, 1, b"key", &Blob(vec![7; limit + 1])).unwrap_err();
    assert!(error.message().contains("state `one`") && error.message().contains(&limit.to_string()), "{error}");
    let key = vec![1; KEY_BYTES_MAX];
    table.put(&mut log, 2, &key, &Blob(vec![3])).unwrap();
    assert_eq!(table.get(&log, 2, &key), Some(&[3][..]));
    assert!(table.put(&mut log, 2, &[1; KEY_BYTES_MAX + 1], &Blob(vec![3])).is_err());
}

#[test]
fn a_removal_leaves_a_tombstone_only_if_a_version_was_below_a_cut() {
    let key = 5u64.to_le_bytes();
    let hash = hash_u64(5);
    // Steps: p put, r remove, c cut. What the next snapshot holds of the key, and how many tombstones there are.
    #[track_caller]
    fn check(key: [u8; 8], hash: u64, steps: &str, tombstones: u64) {
        let (mut log, domain, table) = one_table::<u64, u64>(1 << 20, true);
        for step in steps.chars() {
            let running = log.running(domain);
            match step {
                'p' => table.put(&mut log, hash, &key, &running.0).unwrap(),
                'r' => assert!(table.remove(&mut log, hash, &key).unwrap(), "{steps}"),
                _ => log.cut(domain, running),
            }
        }
        assert_eq!(log.table(table.id).tombstones, tombstones, "{steps}");
        let last = log.running(domain);
        log.cut(domain, last);
        let expected = if steps.ends_with('p') { 1 } else { 0 };
        assert_eq!(snapshot_contents(&log, table.id, last).len(), expected, "{steps}");
        assert_eq!(table.get(&log, hash, &key).is_some(), expected == 1, "{steps}");
    }
    check(key, hash, "pr", 0);
    check(key, hash, "prpr", 0);
    check(key, hash, "pcr", 1);
    check(key, hash, "pcpr", 1);
    check(key, hash, "pcrpr", 1);
    check(key, hash, "pcrp", 0);
    check(key, hash, "pcrcp", 0);
    check(key, hash, "pcrcpr", 1);
    check(key, hash, "pcpcrcpr", 1);
}

#[test]
fn a_dropped_table_is_gone_from_later_snapshots_and_stays_in_earlier_ones() {
    let (mut log, domain, table) = one_table::<u64, u64>(1 << 20, false);
    (0..50).for_each(|key| add(&mut log, &table, key));
    let id = table.id;
    let layout = log.table(id).layout;
    log.cut(domain, Epoch(1));
    log.drop_table(table);
    let again: Table<u64, u64> = log.open_table("one", domain, TableOptions::default()).unwrap();
    assert!(again.is_empty(&log));
    assert_eq!(log.table(id).layout, layout, "the number is used again, for the same layout here");
    assert_eq!(snapshot_contents(&log, id, Epoch(1)).len(), 50);
    log.cut(domain, Epoch(2));
    assert_eq!(snapshot_contents(&log, id, Epoch(2)).len(), 0);
    log.pages.epochs.complete(Epoch(2));
    log.pages.sweep_from_start();
    log.pages.sweep(10);
    assert_eq!(log.pages.page_bytes(), 0);
}

#[test]
fn two_states_with_one_name_are_refused() {
    let (mut log, domain, _table) = one_table::<u64, u64>(1 << 20, false);
    let error = log.open_table::<u64, u64>("one", domain, TableOptions::default()).unwrap_err();
    assert!(error.message().contains("`one`"), "{error}");
}

#[test]
fn ten_thousand_tiny_tables_cost_little_and_a_cut_nothing() {
    let mut log = Log::new(256 << 20, &Prefault::None, Epoch(1)).unwrap();
    let domain = log.add_domain();
    let tables: Vec<Table<u64, u64>> =
        (0..10_000).map(|n| log.open_table(&format!("pane-{n}"), domain, TableOptions::default()).unwrap()).collect();
    for (n, table) in tables.iter().enumerate() {
        (0..10).for_each(|key| add(&mut log, table, n as u64 * 10 + key));
    }
    let index_bytes = log.pages.other_bytes / 10_000;
    assert!(index_bytes <= 512, "{index_bytes} bytes of index each");
    let appended = log.appended_bytes();
    log.cut(domain, Epoch(1));
    assert_eq!(log.appended_bytes(), appended);
    assert_eq!(snapshot_contents(&log, tables[77].id, Epoch(1)).len(), 10);
}
