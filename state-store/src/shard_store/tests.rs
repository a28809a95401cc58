//! Whole stores, several shards of them, over the simulated disk: random work, cuts, failing writes, lost power, restores
//! into other numbers of shards. What a restore finds must be what was there at the cut.

use super::*;
use crate::ErrorKind;
use crate::format::{Manifest, SegmentId};
use crate::hash::hash_u64;
use crate::io::Files;
use crate::io::sim::{SimConfig, SimDisk};
use crate::table::ScanCursor;
use std::collections::{BTreeMap, BTreeSet};

const DIRECTORY: &str = "/state";

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

/// Which of the three tables, and the key.
type Place = (u8, u64);
type Contents = BTreeMap<Place, String>;

/// One shard with three tables in two domains.
struct Shard {
    store: ShardStore,
    disk: SimDisk,
    domains: [Domain; 2],
    counts: Table<u64, u64>,
    plain: Table<u64, String>,
    texts: Table<u64, String>,
    /// Epochs that each domain has still to cut, in order.
    to_cut: [Vec<Epoch>; 2],
    /// Bytes put into channel logs, by epoch.
    logged: BTreeMap<Epoch, Vec<u8>>,
    /// Epochs cut everywhere whose logs still grow, in order.
    to_seal: Vec<Epoch>,
}

/// The domain of a table.
fn domain_of(table: u8) -> usize {
    usize::from(table == 2)
}

impl Shard {
    fn new(mut store: ShardStore, disk: SimDisk) -> Self {
        let domains = [store.domain(), store.domain()];
        let removal = TableOptions { removal: true };
        Self {
            counts: store.open_table("counts", domains[0], removal).unwrap(),
            plain: store.open_table("plain", domains[0], TableOptions::default()).unwrap(),
            texts: store.open_table("texts", domains[1], removal).unwrap(),
            domains,
            store,
            disk,
            to_cut: Default::default(),
            logged: BTreeMap::new(),
            to_seal: Vec::new(),
        }
    }

    fn put(&mut self, (table, key): Place, value: &str) {
        let (hash, bytes) = (hash_u64(key), key.to_le_bytes());
        let log = self.store.log_mut();
        match table {
            0 => {
                let value: u64 = value.parse().unwrap();
                self.counts.update_batch(log, &[hash], |_| &bytes, |_| 0, |_, old, _| *old = value).unwrap();
            }
            1 => self.plain.put(log, hash, &bytes, &value.to_owned()).unwrap(),
            _ => self.texts.put(log, hash, &bytes, &value.to_owned()).unwrap(),
        }
    }

    fn remove(&mut self, (table, key): Place) -> bool {
        let (hash, bytes) = (hash_u64(key), key.to_le_bytes());
        match table {
            0 => self.counts.remove(self.store.log_mut(), hash, &bytes).unwrap(),
            1 => false,
            _ => self.texts.remove(self.store.log_mut(), hash, &bytes).unwrap(),
        }
    }

    fn contents(&self) -> Contents {
        let mut contents = Contents::new();
        let log = self.store.log();
        let mut add = |table, key: &[u8], value: String| {
            let key = u64::from_le_bytes(key.try_into().unwrap());
            assert!(contents.insert((table, key), value).is_none(), "a key is visited twice");
        };
        let everything = usize::MAX;
        self.counts.scan(log, ScanCursor::START, everything, |_, key, value| add(0, key, value.to_string()));
        self.plain.scan(log, ScanCursor::START, everything, |_, key, value| add(1, key, value.to_string()));
        self.texts.scan(log, ScanCursor::START, everything, |_, key, value| add(2, key, value.to_string()));
        contents
    }
}

/// What should be there after a restore of an epoch.
#[derive(Clone, Default)]
struct Expected {
    contents: Contents,
    logs: BTreeMap<u32, Vec<u8>>,
}

struct Pending {
    expected: Expected,
    parts: BTreeMap<u32, ShardExtents>,
}

/// A job without streams: shards, a coordinator, and a model of what everybody should hold.
struct World {
    seed: u64,
    random: Random,
    disk: SimDisk,
    shards: Vec<Shard>,
    model: Contents,
    pending: BTreeMap<Epoch, Pending>,
    /// Retained manifests, the newest last.
    manifests: Vec<(Manifest, Expected)>,
    freed: Vec<(usize, FreedSegment)>,
    run: u32,
    /// The first epoch of each run.
    run_starts: Vec<Epoch>,
    last_epoch: Epoch,
    now_ns: u64,
    completed: u64,
    failed: u64,
    restores: u64,
    moved_bytes: u64,
    rewritten: u64,
    memory_bytes_max: usize,
    plant: fn(&mut ShardStore),
}

impl World {
    fn new(seed: u64, config: SimConfig, memory_bytes_max: usize, plant: fn(&mut ShardStore)) -> Self {
        let disk = SimDisk::new(seed, config);
        disk.configure(|config| config.keep_names = 1.0);
        disk.create_dir_all(DIRECTORY.as_ref()).unwrap();
        let mut world = Self {
            seed,
            random: Random(seed << 20),
            disk,
            shards: Vec::new(),
            model: Contents::new(),
            pending: BTreeMap::new(),
            manifests: Vec::new(),
            freed: Vec::new(),
            run: 0,
            run_starts: Vec::new(),
            last_epoch: Epoch::ZERO,
            now_ns: 0,
            completed: 0,
            failed: 0,
            restores: 0,
            moved_bytes: 0,
            rewritten: 0,
            memory_bytes_max,
            plant,
        };
        world.start(1 + (seed % 3) as u32).unwrap();
        world
    }

    fn config(&self, shard: u32, shards: u32) -> StoreConfig {
        let mut config = StoreConfig::new(DIRECTORY.into(), self.run, shard, shards, self.last_epoch.next());
        config.memory_bytes_max = self.memory_bytes_max;
        config.key_groups = KeyGroupCount::new(64).unwrap();
        config.space_factor = if self.seed.is_multiple_of(3) { 1.1 } else { 2.0 };
        config.flush_bytes_per_second = if self.seed.is_multiple_of(2) { 0 } else { 50_000_000 };
        config.segments.segment_bytes_min = 16 << 10;
        config.segments.segment_bytes_max = 16 << 10;
        config.segments.block_bytes = 8 << 10;
        config
    }

    /// Starts `count` shards from the newest manifest and checks what they find.
    fn start(&mut self, count: u32) -> Result<()> {
        self.run += 1;
        self.run_starts.push(self.last_epoch.next());
        self.restores += 1;
        self.moved_bytes += self.shards.iter().map(|shard| shard.store.stats().moved_bytes).sum::<u64>();
        self.rewritten += self.shards.iter().map(|shard| shard.store.stats().rewritten_pages).sum::<u64>();
        self.shards.clear();
        self.pending.clear();
        self.freed.clear();
        let newest = self.manifests.last().cloned();
        let mut found = Contents::new();
        for shard in 0..count {
            let mut disk = self.disk.clone();
            let config = self.config(shard, count);
            let own = config.own_groups();
            let groups = config.key_groups;
            let mut store = match &newest {
                None => ShardStore::new(config)?,
                Some((manifest, expected)) => {
                    let manifest = Manifest::decode(&manifest.encode()).unwrap();
                    let mut input = RestoreInput::of(&manifest, DIRECTORY.into(), shard, count);
                    // Everybody reads every log here; who feeds what is the engine's business.
                    let logs = manifest.channel_logs.iter();
                    input.channel_logs =
                        logs.map(|log| (ChannelId { edge: log.id, from: log.from }, log.extents.clone())).collect();
                    let mut restore = Restore::new(config, input)?;
                    let restored = loop {
                        if let Some(restored) = restore.turn(&mut disk)? {
                            break restored;
                        }
                    };
                    let logs: BTreeMap<u32, Vec<u8>> =
                        restored.channel_logs.into_iter().map(|(channel, bytes)| (channel.from, bytes)).collect();
                    assert!(logs == expected.logs, "seed {}: channel logs differ", self.seed);
                    restored.store
                }
            };
            (self.plant)(&mut store);
            let shard = Shard::new(store, disk);
            for (place, value) in shard.contents() {
                let group = groups.group_of(hash_u64(place.1));
                assert!(own.contains(group), "seed {}: a key of another shard", self.seed);
                assert!(found.insert(place, value).is_none(), "seed {}: a key on two shards", self.seed);
            }
            self.shards.push(shard);
        }
        let expected = newest.map(|(_, expected)| expected.contents).unwrap_or_default();
        assert_same(self.seed, self.restores, &found, &expected);
        self.model = expected;
        Ok(())
    }

    fn owner(&self, key: u64) -> usize {
        let groups = KeyGroupCount::new(64).unwrap();
        groups.owner(groups.group_of(hash_u64(key)), self.shards.len() as u32) as usize
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..40 => self.work(),
            40..44 if self.pending.len() < 2 => {
                let epoch = Epoch(self.last_epoch.0 + 1 + self.random.below(2));
                self.last_epoch = epoch;
                self.pending.insert(epoch, Pending { expected: Expected::default(), parts: BTreeMap::new() });
                for shard in &mut self.shards {
                    shard.to_cut.iter_mut().for_each(|epochs| epochs.push(epoch));
                }
            }
            44..60 => {
                let (shard, domain) = (self.random.below(self.shards.len() as u64), self.random.below(2));
                self.cut(shard as usize, domain as usize);
                self.log_or_seal(shard as usize);
            }
            _ => {
                let shard = self.random.below(self.shards.len() as u64) as usize;
                self.turn(shard);
            }
        }
    }

    fn work(&mut self) {
        for _ in 0..1 + self.random.below(20) {
            // Most work is on a few keys, so that most pages of the others stay while those around them go.
            let keys = if self.random.one_in(8) { 300 } else { 12 };
            let place = (self.random.below(3) as u8, self.random.below(keys));
            let owner = self.owner(place.1);
            if self.random.one_in(3) {
                let removed = self.shards[owner].remove(place);
                assert_eq!(removed, place.0 != 1 && self.model.remove(&place).is_some(), "seed {}", self.seed);
            } else {
                let length = if place.0 == 0 { 1 } else { 1 + self.random.below(200) as usize };
                let value = self.random.below(1 << 40).to_string().repeat(length.div_ceil(10));
                self.shards[owner].put(place, &value);
                self.model.insert(place, value);
            }
        }
    }

    fn cut(&mut self, index: usize, domain: usize) {
        let shard = &mut self.shards[index];
        if shard.to_cut[domain].is_empty() {
            return;
        }
        let epoch = shard.to_cut[domain].remove(0);
        shard.store.cut_domain(shard.domains[domain], epoch);
        if let Some(pending) = self.pending.get_mut(&epoch) {
            let owned = self.model.iter().filter(|((table, _), _)| domain_of(*table) == domain);
            let groups = KeyGroupCount::new(64).unwrap();
            let own = shard.store.config().own_groups();
            let owned = owned.filter(|((_, key), _)| own.contains(groups.group_of(hash_u64(*key))));
            pending.expected.contents.extend(owned.map(|(place, value)| (*place, value.clone())));
        }
        if shard.to_cut.iter().all(|epochs| !epochs.contains(&epoch)) {
            shard.to_seal.push(epoch);
        }
        self.append_log(index, epoch);
    }

    fn append_log(&mut self, index: usize, epoch: Epoch) {
        let shard = &mut self.shards[index];
        let log = vec![self.random.below(256) as u8; self.random.below(3_000) as usize];
        let channel = ChannelId { edge: 5, from: index as u32 };
        // The memory of a store under test may be full; then this epoch has less in its log.
        if shard.store.append_channel_log(epoch, channel, &log).is_ok() {
            shard.logged.entry(epoch).or_default().extend(log);
        }
    }

    /// Some more of the oldest log that still grows, or its end.
    fn log_or_seal(&mut self, index: usize) {
        let Some(&epoch) = self.shards[index].to_seal.first() else { return };
        if self.random.one_in(2) {
            return self.append_log(index, epoch);
        }
        let shard = &mut self.shards[index];
        shard.to_seal.remove(0);
        shard.store.seal(epoch);
        let bytes = shard.logged.remove(&epoch).filter(|bytes| !bytes.is_empty());
        if let Some(pending) = self.pending.get_mut(&epoch) {
            pending.expected.logs.extend(bytes.map(|bytes| (index as u32, bytes)));
        }
    }

    fn turn(&mut self, index: usize) {
        self.now_ns += self.random.below(200_000);
        let shard = &mut self.shards[index];
        for _ in 0..1 + self.random.below(4) {
            shard.store.turn(&mut shard.disk, self.now_ns);
        }
        self.freed.extend(shard.store.take_freed().into_iter().map(|freed| (index, freed)));
        self.recycle();
        while let Some(snapshot) = self.shards[index].store.take_result() {
            self.result(index as u32, snapshot);
        }
    }

    fn result(&mut self, shard: u32, snapshot: ShardSnapshot) {
        let epoch = snapshot.epoch;
        let Some(pending) = self.pending.get_mut(&epoch) else { return };
        match snapshot.result {
            Ok(extents) => drop(pending.parts.insert(shard, extents)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "seed {}: {error}", self.seed);
                return self.give_up(epoch);
            }
        }
        if pending.parts.len() == self.shards.len() {
            match self.disk.sync_dir(DIRECTORY.as_ref()) {
                Ok(()) => self.complete(epoch),
                Err(_) => self.give_up(epoch),
            }
        }
    }

    fn give_up(&mut self, epoch: Epoch) {
        self.failed += 1;
        self.pending.remove(&epoch);
        self.shards.iter_mut().for_each(|shard| shard.store.abandon(epoch));
    }

    fn complete(&mut self, epoch: Epoch) {
        self.completed += 1;
        let pending = self.pending.remove(&epoch).unwrap();
        self.pending.retain(|other, _| *other > epoch);
        let mut manifest = Manifest::empty("job", KeyGroupCount::new(64).unwrap(), 0);
        manifest.run = self.run;
        manifest.epoch = epoch;
        let mut tables = BTreeMap::new();
        for (shard, part) in pending.parts {
            tables.extend(part.tables.into_iter().map(|table| (table.id, table)));
            manifest.shards.push(part.extents);
            for (channel, extents) in part.channel_logs {
                manifest.channel_logs.push(crate::format::ChannelLog {
                    id: channel.edge,
                    edge: "edge".into(),
                    from: channel.from,
                    to: shard,
                    record: crate::Schema::Bytes,
                    extents,
                });
            }
        }
        manifest.tables = tables.into_values().collect();
        manifest.list_segments();
        for extent in manifest.shards.iter().flatten() {
            // A page keeps its birth however often it is restored and written again.
            let run = self.run_starts.partition_point(|start| *start <= extent.header.born);
            assert_eq!(extent.header.run as usize, run, "seed {}: {extent:?}", self.seed);
        }
        self.manifests.push((manifest, pending.expected));
        if self.manifests.len() > 2 {
            self.manifests.remove(0);
        }
        self.shards.iter_mut().for_each(|shard| shard.store.complete(epoch));
        self.recycle();
    }

    /// What a coordinator does with freed files: at once, by its manifests alone.
    fn recycle(&mut self) {
        let segments = self.manifests.iter().flat_map(|(manifest, _)| &manifest.segments);
        let named: BTreeSet<SegmentId> = segments.map(|segment| segment.id).collect();
        for (shard, freed) in std::mem::take(&mut self.freed) {
            if named.contains(&freed.id) {
                self.freed.push((shard, freed));
            } else if freed.recyclable {
                self.shards[shard].store.recycle(freed);
            }
        }
    }
}

#[track_caller]
fn assert_same(seed: u64, restores: u64, found: &Contents, expected: &Contents) {
    for place in found.keys().chain(expected.keys()) {
        let (found, expected) = (found.get(place), expected.get(place));
        assert_eq!(found, expected, "seed {seed}, restore {restores}: {place:?}");
    }
}

fn nothing_planted(_: &mut ShardStore) {}

/// Runs one seed: work, then lost power and a restore into another number of shards, some times over.
fn run(seed: u64, config: SimConfig, plant: fn(&mut ShardStore)) -> Result<World> {
    let mut world = World::new(seed, config, 2 << 20, plant);
    for round in 0..6 {
        for _ in 0..400 + world.random.below(1_200) {
            world.step();
        }
        // Sometimes the power goes in the middle of something, sometimes everybody comes to rest first.
        match round % 3 {
            0 => {
                world.disk.lose_power_after(world.random.below(60));
                for _ in 0..2_000 {
                    if !world.disk.is_powered() {
                        break;
                    }
                    world.step();
                }
            }
            1 => {
                for _ in 0..4_000 {
                    let shard = world.random.below(world.shards.len() as u64) as usize;
                    world.log_or_seal(shard);
                    world.turn(shard);
                }
            }
            _ => {}
        }
        world.disk.crash();
        let count = 1 + world.random.below(4) as u32;
        // A disk that fails is asked again, as by somebody who starts the job again.
        while let Err(error) = world.start(count) {
            if error.kind() != ErrorKind::Unavailable {
                return Err(error);
            }
        }
    }
    Ok(world)
}

#[test]
fn a_restore_finds_what_was_there_at_the_cut_whatever_the_number_of_shards() {
    let (mut completed, mut moved, mut rewritten) = (0, 0, 0);
    for seed in 0..40 {
        let world = run(seed, SimConfig::default(), nothing_planted).unwrap();
        completed += world.completed;
        moved += world.moved_bytes;
        rewritten += world.rewritten;
    }
    assert!(completed > 400, "only {completed} epochs were completed");
    assert!(moved > 1 << 20, "only {moved} bytes were moved by cleaning");
    assert!(rewritten > 100, "only {rewritten} pages were written again");
}

#[test]
fn failing_writes_and_syncs_cost_epochs_and_never_state() {
    let (mut completed, mut failed) = (0, 0);
    for seed in 100..140 {
        let world = run(seed, SimConfig::failing(), nothing_planted).unwrap();
        completed += world.completed;
        failed += world.failed;
    }
    assert!(completed > 100 && failed > 100, "{completed} epochs completed, {failed} failed");
}

#[test]
fn a_disk_that_lies_is_found_out() {
    let mut refused = 0;
    for seed in 200..260 {
        if let Err(error) = run(seed, SimConfig::lying(), nothing_planted) {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "seed {seed}: {error}");
            assert!(error.message().contains("segment-") && error.message().contains("epoch"), "{error}");
            refused += 1;
        }
    }
    assert!(refused > 10, "only {refused} refused");
}

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
fn a_key_group_that_moves_away_and_back_keeps_the_newest_value() {
    let mut world = World::new(7, SimConfig::default(), 16 << 20, nothing_planted);
    let places: Vec<Place> = (0..200).map(|key| (1, key)).collect();
    let mut last = Contents::new();
    for (round, shards) in [1, 3, 1, 2, 1].into_iter().enumerate() {
        world.start(shards).unwrap();
        assert_same(7, round as u64, &world.shards.iter().flat_map(Shard::contents).collect(), &last);
        // Each round leaves some keys as an earlier round wrote them.
        for place in places.iter().skip(round * 20) {
            let owner = world.owner(place.1);
            world.shards[owner].put(*place, &round.to_string());
            world.model.insert(*place, round.to_string());
        }
        last = world.model.clone();
        let epoch = world.last_epoch.next();
        world.last_epoch = epoch;
        world.pending.insert(epoch, Pending { expected: Expected::default(), parts: BTreeMap::new() });
        for index in 0..world.shards.len() {
            world.shards[index].to_cut = [vec![epoch], vec![epoch]];
            world.cut(index, 0);
            world.cut(index, 1);
            while !world.shards[index].to_seal.is_empty() {
                world.log_or_seal(index);
            }
        }
        while world.pending.contains_key(&epoch) {
            (0..world.shards.len()).for_each(|index| world.turn(index));
        }
    }
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

#[cfg(feature = "planted-bugs")]
mod planted {
    use super::*;

    /// Runs seeds until one shows the bug: wrong state, or a check that fails.
    #[track_caller]
    fn is_found(config: fn() -> SimConfig, plant: fn(&mut ShardStore)) {
        let found = (1_000..1_200).find(|seed| {
            let outcome = std::panic::catch_unwind(|| run(*seed, config(), plant).is_err());
            outcome.unwrap_or(true)
        });
        assert!(found.is_some(), "no seed found the planted bug");
    }

    #[test]
    fn an_ack_before_the_write_is_found() {
        is_found(SimConfig::default, |store| store.plant(Fault::AckBeforeWrite));
    }

    #[test]
    fn a_dropped_tombstone_is_found() {
        is_found(SimConfig::default, |store| store.plant(Fault::DroppedTombstone));
    }

    #[test]
    fn a_page_reused_early_is_found() {
        is_found(SimConfig::failing, |store| store.plant(Fault::PageReusedEarly));
    }
}
