//! One store driven by hand, a fact at a time: what cleaning, files, tombstones, epochs and restores cost and refuse.

use super::*;

/// A store on a disk without faults, driven by hand.
struct Alone {
    store: ShardStore,
    disk: SimDisk,
    domain: Domain,
    now_ns: u64,
}

impl Alone {
    fn new(memory_bytes_max: usize) -> Self {
        let disk = SimDisk::new(1, SimConfig::default());
        disk.create_dir_all(DIRECTORY.as_ref()).unwrap();
        let mut config = StoreConfig::new(DIRECTORY.into(), 1, 0, 1, Epoch(1));
        config.memory_bytes_max = memory_bytes_max;
        let mut store = ShardStore::new(config).unwrap();
        let domain = store.domain();
        Self { store, disk, domain, now_ns: 0 }
    }

    fn turn(&mut self) -> StoreActivity {
        self.now_ns += 50_000;
        self.store.turn(&mut self.disk, self.now_ns)
    }

    /// Cuts the running epoch and turns until it is durable.
    fn snapshot(&mut self) -> ShardExtents {
        let epoch = self.store.running(self.domain);
        self.store.cut(epoch);
        self.store.seal(epoch);
        self.finish()
    }

    fn finish(&mut self) -> ShardExtents {
        for _ in 0..100_000 {
            self.turn();
            if let Some(snapshot) = self.store.take_result() {
                return snapshot.result.unwrap();
            }
        }
        panic!("no result after 100,000 turns");
    }

    fn input(&self, epoch: Epoch, extents: &ShardExtents) -> RestoreInput {
        RestoreInput {
            directory: DIRECTORY.into(),
            epoch,
            tables: extents.tables.clone(),
            extents: extents.extents.clone(),
            channel_logs: extents.channel_logs.clone(),
        }
    }
}

fn add_one(store: &mut ShardStore, table: &Table<u64, u64>, key: u64) {
    table.update(store.log_mut(), hash_u64(key), &key.to_le_bytes(), || 0, |count, _| *count += 1).unwrap();
}

#[test]
fn uniform_churn_with_epochs_leaves_memory_in_proportion_to_what_lives() {
    let mut alone = Alone::new(64 << 20);
    let table: Table<u64, u64> = alone.store.open_table("churned", alone.domain, TableOptions::default()).unwrap();
    (0..50_000).for_each(|key| add_one(&mut alone.store, &table, key));
    let mut random = Random(1);
    let mut largest = 0;
    for epoch in 1..200 {
        for _ in 0..5_000 {
            add_one(&mut alone.store, &table, random.below(50_000));
            if random.one_in(100) {
                alone.turn();
            }
        }
        alone.snapshot();
        alone.store.complete(Epoch(epoch));
        largest = largest.max(alone.store.stats().page_bytes);
    }
    let stats = alone.store.stats();
    assert_eq!(stats.live_bytes, 50_000 * 16);
    assert!(largest < 4 * stats.live_bytes, "{largest} bytes of pages for {} that live", stats.live_bytes);
    assert!(stats.moved_bytes < 2 * 200 * 5_000 * 16, "{} bytes moved", stats.moved_bytes);
}

#[test]
fn files_stay_in_proportion_though_each_holds_something_that_nobody_changes() {
    let mut alone = Alone::new(64 << 20);
    alone.store = {
        let mut config = alone.store.config().clone();
        config.segments.segment_bytes_min = 256 << 10;
        config.segments.segment_bytes_max = 256 << 10;
        ShardStore::new(config).unwrap()
    };
    alone.domain = alone.store.domain();
    let hot: Table<u64, u64> = alone.store.open_table("hot", alone.domain, TableOptions::default()).unwrap();
    let cold: Table<u64, u64> = alone.store.open_table("cold", alone.domain, TableOptions::default()).unwrap();
    let mut epoch = Epoch(0);
    for round in 0..300 {
        (0..4_000).for_each(|key| add_one(&mut alone.store, &hot, key));
        (0..100).for_each(|key| add_one(&mut alone.store, &cold, round * 100 + key));
        alone.snapshot();
        epoch = epoch.next();
        alone.store.complete(epoch);
    }
    for _ in 0..100 {
        alone.turn();
    }
    let stats = alone.store.stats();
    assert!(stats.file_bytes < 4 * stats.file_bytes_used + (1 << 20), "{stats:?}");
    let extents = alone.snapshot();
    let mut config = StoreConfig::new(DIRECTORY.into(), 2, 0, 1, Epoch(1_000));
    config.memory_bytes_max = 64 << 20;
    let mut restore = Restore::new(config, alone.input(epoch.next(), &extents)).unwrap();
    let mut restored = loop {
        if let Some(restored) = restore.turn(&mut alone.disk).unwrap() {
            break restored.store;
        }
    };
    let domain = restored.domain();
    let hot: Table<u64, u64> = restored.open_table("hot", domain, TableOptions::default()).unwrap();
    let cold: Table<u64, u64> = restored.open_table("cold", domain, TableOptions::default()).unwrap();
    assert_eq!((hot.len(restored.log()), cold.len(restored.log())), (4_000, 30_000));
    hot.scan(restored.log(), ScanCursor::START, usize::MAX, |_, _, count| assert_eq!(count, 300));
    cold.scan(restored.log(), ScanCursor::START, usize::MAX, |_, _, count| assert_eq!(count, 1));
}

fn restore_alone(alone: &mut Alone, run: u32, epoch: Epoch, extents: &ShardExtents) -> ShardStore {
    let mut config = StoreConfig::new(DIRECTORY.into(), run, 0, 1, Epoch(epoch.0 + 1_000));
    config.memory_bytes_max = 64 << 20;
    let mut restore = Restore::new(config, alone.input(epoch, extents)).unwrap();
    loop {
        if let Some(restored) = restore.turn(&mut alone.disk).unwrap() {
            return restored.store;
        }
    }
}

#[test]
fn a_page_that_two_cuts_hold_outlives_the_failed_sync_of_the_first() {
    let mut alone = Alone::new(16 << 20);
    let table: Table<u64, u64> = alone.store.open_table("held", alone.domain, TableOptions::default()).unwrap();
    (0..1_000).for_each(|key| add_one(&mut alone.store, &table, key));
    alone.store.cut(Epoch(1));
    alone.store.cut(Epoch(2));
    // The page dies while both hold it, and is written for the first, whose sync fails.
    (0..1_000).for_each(|key| add_one(&mut alone.store, &table, key));
    alone.disk.configure(|config| config.failed_sync = 1.0);
    alone.store.seal(Epoch(1));
    let failed = loop {
        alone.turn();
        if let Some(snapshot) = alone.store.take_result() {
            break snapshot;
        }
    };
    assert_eq!((failed.epoch, failed.result.is_err()), (Epoch(1), true));
    alone.store.abandon(Epoch(1));
    alone.disk.configure(|config| config.failed_sync = 0.0);
    // Whatever can be reused is.
    (1_000..3_000).for_each(|key| add_one(&mut alone.store, &table, key));
    alone.store.seal(Epoch(2));
    let extents = alone.finish();
    let freed = alone.store.take_freed();
    assert!(extents.extents.iter().all(|extent| freed.iter().all(|freed| freed.id != extent.segment)));
    assert!(freed.iter().all(|freed| !freed.recyclable), "the file whose sync failed is never written again");
    let mut restored = restore_alone(&mut alone, 2, Epoch(2), &extents);
    let domain = restored.domain();
    let table: Table<u64, u64> = restored.open_table("held", domain, TableOptions::default()).unwrap();
    assert_eq!(table.len(restored.log()), 1_000);
    table.scan(restored.log(), ScanCursor::START, usize::MAX, |_, _, count| assert_eq!(count, 1));
}

#[test]
fn a_restore_opens_few_files_at_once() {
    let mut alone = Alone::new(64 << 20);
    let mut config = alone.store.config().clone();
    config.segments.segment_bytes_min = 64 << 10;
    config.segments.segment_bytes_max = 64 << 10;
    config.segments.block_bytes = 64 << 10;
    alone.store = ShardStore::new(config).unwrap();
    alone.domain = alone.store.domain();
    let table: Table<u64, u64> = alone.store.open_table("wide", alone.domain, TableOptions::default()).unwrap();
    (0..300_000).for_each(|key| add_one(&mut alone.store, &table, key));
    let extents = alone.snapshot();
    let files: BTreeSet<SegmentId> = extents.extents.iter().map(|extent| extent.segment).collect();
    assert!(files.len() > 20, "{} files", files.len());
    let mut restored = restore_alone(&mut alone, 2, Epoch(1), &extents);
    let domain = restored.domain();
    let table: Table<u64, u64> = restored.open_table("wide", domain, TableOptions::default()).unwrap();
    assert_eq!(table.len(restored.log()), 300_000);
}

#[test]
fn tombstones_end_when_nothing_older_is_left_and_memory_returns_to_nothing() {
    let mut alone = Alone::new(16 << 20);
    let options = TableOptions { removal: true };
    let table: Table<u64, u64> = alone.store.open_table("emptied", alone.domain, options).unwrap();
    for key in 0..20_000u64 {
        table.put(alone.store.log_mut(), hash_u64(key), &key.to_le_bytes(), &key).unwrap();
    }
    alone.snapshot();
    alone.store.complete(Epoch(1));
    for key in 0..20_000u64 {
        assert!(table.remove(alone.store.log_mut(), hash_u64(key), &key.to_le_bytes()).unwrap());
    }
    assert_eq!(alone.store.stats().tombstones, 20_000);
    for epoch in 2..5 {
        alone.snapshot();
        alone.store.complete(Epoch(epoch));
        (0..1_000).for_each(|_| assert_ne!(alone.turn(), StoreActivity::Waiting));
    }
    let stats = alone.store.stats();
    assert_eq!((stats.tombstones, stats.live_bytes), (0, 0));
    assert!(stats.page_bytes <= 4096 && stats.index_bytes < 4096, "{stats:?}");
    let last = alone.snapshot();
    assert!(last.extents.is_empty(), "{} extents", last.extents.len());
}

#[test]
fn a_state_dropped_and_opened_again_is_described_as_long_as_a_snapshot_has_it() {
    let mut alone = Alone::new(16 << 20);
    let open = |alone: &mut Alone| -> Table<u64, u64> {
        alone.store.open_table("pane", alone.domain, TableOptions::default()).unwrap()
    };
    for round in 1..=3 {
        let table = open(&mut alone);
        (0..100).for_each(|key| add_one(&mut alone.store, &table, key));
        alone.store.cut(Epoch(round));
        alone.store.drop_table(table);
    }
    for round in 1..=3 {
        alone.store.seal(Epoch(round));
        let extents = alone.finish();
        assert_eq!((extents.tables.len(), extents.extents.len()), (1, 1), "epoch {round}");
        alone.store.complete(Epoch(round));
    }
    let last = alone.snapshot();
    assert!(last.tables.is_empty() && last.extents.is_empty());
}

#[test]
fn an_idle_epoch_writes_nothing() {
    let mut alone = Alone::new(16 << 20);
    let table: Table<u64, u64> = alone.store.open_table("idle", alone.domain, TableOptions::default()).unwrap();
    (0..1_000).for_each(|key| add_one(&mut alone.store, &table, key));
    let first = alone.snapshot();
    alone.store.complete(Epoch(1));
    let written = alone.store.stats().written_bytes;
    assert_eq!(alone.snapshot(), first, "the same extents in the same place");
    assert_eq!(alone.store.stats().written_bytes, written);
    alone.store.complete(Epoch(2));
    assert_eq!(alone.turn(), StoreActivity::Idle);
}

#[test]
fn a_snapshot_writes_only_what_changed() {
    let mut alone = Alone::new(64 << 20);
    let table: Table<u64, u64> = alone.store.open_table("large", alone.domain, TableOptions::default()).unwrap();
    (0..200_000).for_each(|key| add_one(&mut alone.store, &table, key));
    alone.snapshot();
    alone.store.complete(Epoch(1));
    let before = alone.store.stats().written_bytes;
    (0..1_000).for_each(|key| add_one(&mut alone.store, &table, key));
    alone.snapshot();
    let written = alone.store.stats().written_bytes - before;
    assert!(written <= 32 << 10, "{written} bytes for 16,000 changed");
}

#[test]
fn a_cut_does_not_wait_for_data_and_a_second_epoch_may_be_cut_before_the_first_is_written() {
    let mut alone = Alone::new(64 << 20);
    let table: Table<u64, u64> = alone.store.open_table("busy", alone.domain, TableOptions::default()).unwrap();
    (0..100_000).for_each(|key| add_one(&mut alone.store, &table, key));
    alone.store.cut(Epoch(1));
    (0..100_000).for_each(|key| add_one(&mut alone.store, &table, key));
    alone.store.cut(Epoch(2));
    (0..100_000).for_each(|key| add_one(&mut alone.store, &table, key));
    alone.store.seal(Epoch(1));
    alone.store.seal(Epoch(2));
    for epoch in [Epoch(1), Epoch(2)] {
        let extents = alone.finish();
        let mut config = StoreConfig::new(DIRECTORY.into(), 2, 0, 1, Epoch(3));
        config.memory_bytes_max = 64 << 20;
        let mut restore = Restore::new(config, alone.input(epoch, &extents)).unwrap();
        let mut restored = loop {
            if let Some(restored) = restore.turn(&mut alone.disk).unwrap() {
                break restored.store;
            }
        };
        let domain = restored.domain();
        let table: Table<u64, u64> = restored.open_table("busy", domain, TableOptions::default()).unwrap();
        assert_eq!(table.len(restored.log()), 100_000);
        table.scan(restored.log(), ScanCursor::START, usize::MAX, |_, _, count| assert_eq!(count, epoch.0));
    }
}

#[test]
fn a_restored_state_with_other_types_or_options_is_refused_with_both_named() {
    let mut alone = Alone::new(16 << 20);
    let table: Table<u64, u64> = alone.store.open_table("typed", alone.domain, TableOptions::default()).unwrap();
    add_one(&mut alone.store, &table, 1);
    let extents = alone.snapshot();
    let mut config = StoreConfig::new(DIRECTORY.into(), 2, 0, 1, Epoch(2));
    config.memory_bytes_max = 16 << 20;
    let mut restore = Restore::new(config, alone.input(Epoch(1), &extents)).unwrap();
    let mut store = loop {
        if let Some(restored) = restore.turn(&mut alone.disk).unwrap() {
            break restored.store;
        }
    };
    let domain = store.domain();
    assert_eq!(store.unopened(), ["typed"]);
    let other_value = store.open_table::<u64, i32>("typed", domain, TableOptions::default()).unwrap_err();
    let other_key = store.open_table::<str, u64>("typed", domain, TableOptions::default()).unwrap_err();
    let other_option = store.open_table::<u64, u64>("typed", domain, TableOptions { removal: true }).unwrap_err();
    for (error, parts) in
        [(other_value, ["`typed`", "i32"]), (other_key, ["`typed`", "text"]), (other_option, ["`typed`", "removal"])]
    {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(parts.iter().all(|part| error.message().contains(part)), "{error}");
    }
    store.drop_unopened();
    assert!(store.unopened().is_empty());
    assert_eq!(store.stats().live_bytes, 0);
}

#[test]
fn a_flipped_bit_anywhere_in_a_snapshot_is_refused_and_named() {
    let mut alone = Alone::new(16 << 20);
    let options = TableOptions { removal: true };
    let table: Table<u64, String> = alone.store.open_table("small", alone.domain, options).unwrap();
    for key in 0..5u64 {
        table.put(alone.store.log_mut(), hash_u64(key), &key.to_le_bytes(), &"x".repeat(key as usize)).unwrap();
    }
    let extents = alone.snapshot();
    let [extent] = extents.extents[..] else { panic!("one extent, not {}", extents.extents.len()) };
    let path = std::path::Path::new(DIRECTORY).join(crate::format::segment_file(extent.segment));
    for at in 0..extent.bytes() as u64 {
        let mut disk = alone.disk.fork(at);
        disk.edit(&path, |bytes| bytes[(extent.offset + at) as usize] ^= 1 << (at % 8)).unwrap();
        let mut config = StoreConfig::new(DIRECTORY.into(), 2, 0, 1, Epoch(2));
        config.memory_bytes_max = 16 << 20;
        let mut restore = Restore::new(config, alone.input(Epoch(1), &extents)).unwrap();
        let error = loop {
            match restore.turn(&mut disk) {
                Ok(None) => {}
                Ok(Some(_)) => panic!("byte {at} was changed and nobody noticed"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}");
        assert!(error.message().contains("epoch 1") && error.message().contains("segment-"), "{error}");
    }
}

#[test]
fn memory_in_the_limit_counts_channel_logs_and_a_full_one_is_refused() {
    let mut alone = Alone::new(1 << 20);
    alone.store.cut(Epoch(1));
    let channel = ChannelId { edge: 1, from: 0 };
    let error = (0..100).find_map(|_| alone.store.append_channel_log(Epoch(1), channel, &[1; 20_000]).err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().contains("--state-memory") && error.message().contains("epoch 1"), "{error}");
    alone.store.abandon(Epoch(1));
    assert_eq!(alone.store.stats().channel_log_bytes, 0);
    alone.store.cut(Epoch(2));
    alone.store.append_channel_log(Epoch(2), channel, &[1; 20_000]).unwrap();
}

#[test]
fn a_job_with_tiny_memory_and_a_slow_disk_makes_progress() {
    let mut alone = Alone::new(512 << 10);
    alone.disk.configure(|config| config.delay_ticks_max = 200);
    let table: Table<u64, u64> = alone.store.open_table("tiny", alone.domain, TableOptions::default()).unwrap();
    let mut pressed = 0;
    let mut random = Random(3);
    let mut pending = Vec::new();
    for step in 0..40_000u64 {
        add_one(&mut alone.store, &table, random.below(4_000));
        if step % 500 == 0 && pending.len() < 2 {
            let epoch = alone.store.running(alone.domain);
            alone.store.cut(epoch);
            alone.store.seal(epoch);
            pending.push(epoch);
        }
        // What a source does under pressure: it waits.
        while {
            alone.turn();
            if let Some(snapshot) = alone.store.take_result() {
                snapshot.result.unwrap();
                alone.store.complete(snapshot.epoch);
                pending.retain(|epoch| *epoch > snapshot.epoch);
            }
            alone.store.is_pressed()
        } {
            pressed += 1;
            assert!(pressed < 10_000_000, "stuck at {:?}", alone.store.stats());
        }
    }
    assert_eq!(table.len(alone.store.log()), 4_000);
}
