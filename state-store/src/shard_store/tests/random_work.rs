//! Several shards under seeds: random work, cuts, failing writes, lost power, restores into other numbers of shards. What a
//! restore finds must be what was there at the cut.

use super::*;

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
