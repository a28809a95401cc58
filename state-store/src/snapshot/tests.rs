//! The whole disk side of the store at work: a writer, a state directory, a disk that fails.

use super::*;
use crate::epoch::Epoch;
use crate::error::{ErrorKind, Result};
use crate::format::*;
use crate::io::sim::{SimConfig, SimDisk};
use crate::io::{BlockingDisk, Disk, Files, RealFiles};
use crate::key_group::{KeyGroupCount, KeyGroupRange};
use crate::state_id::StateId;
use crate::value::Schema;
use std::collections::BTreeMap;
use std::path::Path;

fn path() -> &'static Path {
    Path::new("/data/job")
}

fn options() -> StateDirOptions {
    StateDirOptions {
        job: "words".to_owned(),
        new_state: StateId(1),
        key_groups: KeyGroupCount::new(16).unwrap(),
        shards: 1,
        retain_count: 2,
        restore: RestorePoint::Newest,
    }
}

fn sim(seed: u64, config: SimConfig) -> SimDisk {
    let disk = SimDisk::new(seed, config);
    disk.create_dir_all(Path::new("/data")).unwrap();
    while disk.sync_dir(Path::new("/")).is_err() {}
    disk
}

fn open(disk: &SimDisk) -> Result<StateDir> {
    StateDir::open(Box::new(disk.clone()), path(), &options())
}

/// A job of one shard: every epoch appends extents, and the older half of what is live dies.
struct Job<D: Disk> {
    dir: StateDir,
    disk: D,
    writer: SegmentWriter,
    live: Vec<ExtentEntry>,
    sequence: u64,
    extents_per_epoch: usize,
}

impl<D: Disk> Job<D> {
    fn start(mut dir: StateDir, disk: D) -> Result<Self> {
        let manifest = dir.load(dir.restore_epoch())?;
        dir.claim()?;
        let config = SegmentConfig {
            segment_bytes_min: 8 << 10,
            segment_bytes_max: 8 << 10,
            block_bytes: 4 << 10,
            spares_max: 1,
            ..SegmentConfig::new(dir.path().to_owned(), dir.run(), 0)
        };
        let sequence = manifest.extents().map(|extent| extent.header.sequence).max().unwrap_or(0);
        let live = manifest.shards[0].clone();
        Ok(Self { dir, disk, writer: SegmentWriter::new(config), live, sequence, extents_per_epoch: 3 })
    }

    fn turn(&mut self) -> Result<bool> {
        match self.writer.turn(&mut self.disk, true) {
            Turn::Failed(error) => Err(error),
            Turn::Sealed => Ok(true),
            Turn::Idle | Turn::Busy => Ok(false),
        }
    }

    fn write(&mut self, epoch: Epoch) -> Result<Vec<ExtentEntry>> {
        let mut entries = Vec::new();
        for _ in 0..self.extents_per_epoch {
            self.sequence += 1;
            let header = ExtentHeader {
                kind: ExtentKind::Pages,
                payload_bytes: u32::try_from(300 + self.sequence % 7 * 10).unwrap(),
                table: 1,
                shard: 0,
                run: self.dir.run(),
                groups: KeyGroupRange { start: 0, end: 16 },
                born: epoch,
                sequence: self.sequence,
                schema: 1,
                address: 0,
            };
            let fill = |payload: &mut [u8]| payload.fill(u8::try_from(header.sequence % 251).unwrap());
            loop {
                if let Some(entry) = self.writer.append(&mut self.disk, &header, fill) {
                    entries.push(entry);
                    break;
                }
                self.turn()?;
            }
        }
        self.writer.seal();
        while !self.turn()? {}
        Ok(entries)
    }

    fn manifest(&self, epoch: Epoch) -> Manifest {
        let mut manifest = Manifest::empty("words", KeyGroupCount::new(16).unwrap(), 1);
        manifest.run = self.dir.run();
        manifest.epoch = epoch;
        manifest.tables.push(TableEntry {
            id: 1,
            name: "counts".to_owned(),
            key: Schema::Text,
            value: Schema::Unsigned(8),
            clock_ms: None,
        });
        manifest.shards[0] = self.live.clone();
        manifest.blobs.push(Blob { name: "source".to_owned(), shard: 0, bytes: epoch.0.to_le_bytes().to_vec() });
        manifest.list_segments();
        manifest
    }

    /// Writes and publishes one epoch, and collects.
    fn epoch(&mut self) -> Result<Published> {
        let epoch = self.dir.next_epoch();
        let entries = self.write(epoch)?;
        let dead = self.live.len() / 2;
        let mut died: Vec<ExtentEntry> = self.live.drain(..dead).collect();
        self.live.extend(&entries);
        let published = self.dir.publish_now(&self.manifest(epoch));
        if let Published::Complete(_) = published {
            died.drain(..).for_each(|entry| self.writer.release(entry.segment));
            self.writer.take_freed().into_iter().for_each(|freed| self.dir.free(freed));
            let collected = self.dir.collect()?;
            let returned: Vec<_> =
                collected.recyclable.into_iter().filter_map(|freed| self.writer.recycle(freed)).collect();
            self.dir.remove_segments(returned)?;
        }
        Ok(published)
    }

    #[track_caller]
    fn complete(&mut self) -> Epoch {
        match self.epoch().unwrap() {
            Published::Complete(epoch) => epoch,
            other => panic!("{other:?}"),
        }
    }
}

impl Job<SimDisk> {
    #[track_caller]
    fn run_epochs(&mut self, count: u32) {
        for _ in 0..count {
            self.complete();
        }
    }
}

fn job(disk: &SimDisk) -> Job<SimDisk> {
    Job::start(open(disk).unwrap(), disk.clone()).unwrap()
}

fn names(disk: &SimDisk) -> Vec<String> {
    disk.list(path()).unwrap().into_iter().map(|entry| entry.name).collect()
}

#[test]
fn a_new_directory_has_epoch_0_and_a_second_owner_is_refused() {
    let disk = sim(1, SimConfig::default());
    let dir = open(&disk).unwrap();
    assert_eq!((dir.newest(), dir.next_epoch(), dir.run()), (Epoch(0), Epoch(1), 1));
    assert_eq!(dir.load(Epoch(0)).unwrap(), Manifest::empty("words", KeyGroupCount::new(16).unwrap(), 1));
    assert_eq!(open(&disk).unwrap_err().kind(), ErrorKind::Locked);
    drop(dir);
    open(&disk).unwrap();
}

#[test]
fn runs_and_epochs_grow_with_every_start() {
    let disk = sim(1, SimConfig::default());
    for start in 1..5u32 {
        let mut job = job(&disk);
        assert_eq!(job.dir.run(), start);
        assert_eq!(job.complete(), Epoch(u64::from(start)));
    }
    // An attempt that came to nothing uses its number up.
    disk.write_durable(&path().join(manifest_temporary_file(Epoch(40))), b"half").unwrap();
    disk.write_durable(&path().join(segment_file(SegmentId { run: 90, shard: 0, number: 1 })), b"x").unwrap();
    let mut job = job(&disk);
    assert_eq!((job.dir.run(), job.complete()), (91, Epoch(41)));
    assert!(!names(&disk).iter().any(|name| name.ends_with(".tmp") || name.starts_with("segment-0000000090")));
}

#[test]
fn retention_keeps_exactly_as_many_epochs_and_no_file_that_none_of_them_names() {
    let disk = sim(1, SimConfig::default());
    let mut job = job(&disk);
    for _ in 0..30 {
        let newest = job.complete();
        let kept: Vec<Epoch> = job.dir.epochs().collect();
        assert_eq!(kept, [Epoch(newest.0 - 1), newest]);
        let on_disk: Vec<String> = names(&disk).into_iter().filter(|name| name.starts_with("epoch-")).collect();
        assert_eq!(on_disk, kept.iter().map(|&epoch| manifest_file(epoch)).collect::<Vec<_>>());
        kept.iter().for_each(|&epoch| drop(job.dir.verify(epoch).unwrap()));
        let segments = names(&disk).iter().filter(|name| name.starts_with("segment-")).count();
        assert!(segments <= 4, "{segments} segment files for two small epochs and a spare");
    }
    drop(job);
    // What an open writer had in hand belongs to nobody any more.
    let job = self::job(&disk);
    let named = job.dir.load(job.dir.newest()).unwrap().segments.len()
        + job.dir.load(Epoch(job.dir.newest().0 - 1)).unwrap().segments.len();
    assert!(names(&disk).iter().filter(|name| name.starts_with("segment-")).count() <= named);
}

#[test]
fn a_pin_keeps_its_epoch_and_its_files_until_it_is_dropped() {
    let disk = sim(1, SimConfig::default());
    let mut job = job(&disk);
    let first = job.complete();
    let pin = job.dir.pin(first).unwrap();
    assert!(job.dir.pin(Epoch(77)).is_none());
    job.run_epochs(10);
    job.dir.verify(first).unwrap();
    assert_eq!(job.dir.epochs().count(), 3);
    drop(pin);
    job.complete();
    assert_eq!(job.dir.epochs().count(), 2);
    assert_eq!(job.dir.load(first).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn a_state_keeps_its_id_and_what_is_known_to_be_committed() {
    let disk = sim(1, SimConfig::default());
    let dir = open(&disk).unwrap();
    assert_eq!((dir.state(), dir.committed()), (StateId(1), Epoch::ZERO));
    drop(dir);
    let other = StateDirOptions { new_state: StateId(2), ..options() };
    let mut dir = StateDir::open(Box::new(disk.clone()), path(), &other).unwrap();
    dir.claim().unwrap();
    dir.note_committed(Epoch(3)).unwrap();
    dir.note_committed(Epoch(5)).unwrap();
    drop(dir);
    disk.crash();
    let dir = open(&disk).unwrap();
    assert_eq!((dir.state(), dir.committed()), (StateId(1), Epoch(5)));
    let report = list_snapshots(&disk, path()).unwrap();
    assert_eq!((report.state, report.committed), (StateId(1), Epoch(5)));
    drop(dir);

    let mut manifest = Manifest::empty("words", options().key_groups, 1);
    manifest.epoch = Epoch(6);
    manifest.outputs = [5, 6]
        .map(|epoch| PreparedOutput { sink: "files".to_owned(), epoch: Epoch(epoch), shard: 0, bytes: vec![7] })
        .to_vec();
    disk.write_durable(&path().join(manifest_file(Epoch(6))), &manifest.encode()).unwrap();
    let outputs = show_snapshot(&disk, path(), None).unwrap().outputs;
    assert_eq!(outputs.iter().map(|output| output.is_committed).collect::<Vec<_>>(), [true, false]);

    disk.write_durable(&path().join(COMMITTED_FILE), b"epoch 6").unwrap();
    let error = open(&disk).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.message().contains("remove the file"), "{error}");
    disk.remove(&path().join(COMMITTED_FILE)).unwrap();
    assert_eq!(open(&disk).unwrap().committed(), Epoch::ZERO);
}

#[test]
fn another_job_another_directory_and_a_missing_marker_are_refused() {
    let disk = sim(1, SimConfig::default());
    job(&disk).run_epochs(1);
    let other = StateDirOptions { job: "other".to_owned(), ..options() };
    let error = StateDir::open(Box::new(disk.clone()), path(), &other).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");

    disk.create_dir_all(Path::new("/data/home")).unwrap();
    disk.write_durable(Path::new("/data/home/notes.txt"), b"mine").unwrap();
    let before = disk.fingerprint();
    let error = StateDir::open(Box::new(disk.clone()), Path::new("/data/home"), &options()).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("notes.txt"), "{error}");
    assert_eq!(disk.fingerprint(), before, "not even a lock is left in it");

    disk.remove(&path().join(FORMAT_FILE)).unwrap();
    let before = disk.fingerprint();
    let error = open(&disk).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.message().contains("FORMAT is missing"), "{error}");
    assert_eq!(disk.fingerprint(), before);
}

/// What opening the newest epoch and reading all of it says.
fn restore(disk: &SimDisk) -> Result<Manifest> {
    let dir = open(disk)?;
    dir.verify(dir.restore_epoch())
}

#[test]
fn every_flipped_byte_is_refused_with_file_offset_and_epoch_or_belongs_to_nothing() {
    let disk = sim(1, SimConfig::default());
    let mut job = job(&disk);
    job.extents_per_epoch = 2;
    job.run_epochs(3);
    let named: Vec<(String, std::ops::Range<u64>)> = job
        .dir
        .load(job.dir.newest())
        .unwrap()
        .extents()
        .map(|extent| (segment_file(extent.segment), extent.offset..extent.offset + extent.bytes() as u64))
        .collect();
    drop(job);
    let good = restore(&disk).unwrap();
    let (mut refused, mut ignored) = (0, 0);
    for name in names(&disk) {
        let file = path().join(&name);
        for at in 0..disk.read(&file).unwrap().len() {
            let flip = |disk: &SimDisk| disk.edit(&file, |bytes| bytes[at] ^= 0x10).unwrap();
            flip(&disk);
            let before = disk.fingerprint();
            let matters = !name.starts_with("segment-")
                || named.iter().any(|(segment, range)| *segment == name && range.contains(&(at as u64)));
            match restore(&disk) {
                Ok(manifest) => {
                    assert!(!matters, "byte {at} of {name} was changed and nobody noticed");
                    assert_eq!(manifest, good);
                    ignored += 1;
                }
                Err(error) => {
                    assert!(matters, "byte {at} of {name}: {error}");
                    let message = error.message();
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{message}");
                    assert!(message.contains(&name) && message.contains("offset"), "{message}");
                    let marker = name == FORMAT_FILE || name == RUN_FILE;
                    assert!(marker || message.contains("epoch 3") || message.contains("epoch 2"), "{message}");
                    assert!(marker || message.contains("verif"), "{message}");
                    refused += 1;
                }
            }
            assert_eq!(disk.fingerprint(), before, "a refusal has changed something");
            flip(&disk);
        }
    }
    assert!(refused > 1000 && ignored > 1000, "{refused} refused, {ignored} ignored");
    assert_eq!(restore(&disk).unwrap(), good);
}

#[test]
fn a_truncated_or_missing_file_is_refused_or_belongs_to_nothing() {
    let disk = sim(1, SimConfig::default());
    let mut job = job(&disk);
    job.run_epochs(3);
    let manifest = job.dir.load(job.dir.newest()).unwrap();
    drop(job);
    for name in names(&disk).into_iter().filter(|name| name != LOCK_FILE) {
        let file = path().join(&name);
        let length = disk.read(&file).unwrap().len();
        for cut in (0..length).step_by(5) {
            let fork = disk.fork(1);
            fork.edit(&file, |bytes| bytes.truncate(cut)).unwrap();
            let needed = manifest.segments.iter().find(|segment| segment_file(segment.id) == name);
            let matters = !name.starts_with("segment-") || needed.is_some_and(|needed| needed.bytes > cut as u64);
            match restore(&fork) {
                Ok(restored) => assert!(!matters && restored == manifest, "{name} cut to {cut}"),
                Err(error) => assert!(matters && error.message().contains(&name), "{name} cut to {cut}: {error}"),
            }
        }
        let fork = disk.fork(1);
        fork.remove(&file).unwrap();
        let needed = manifest.segments.iter().any(|segment| segment_file(segment.id) == name);
        // Without `RUN` the names of the segments tell; without its newest manifest an epoch has never been.
        let matters = needed || name == FORMAT_FILE;
        assert_eq!(restore(&fork).is_err(), matters, "{name} removed");
    }
}

#[test]
fn an_older_epoch_is_restored_only_when_asked_for_and_supersedes_the_bad_ones_when_published_anew() {
    let disk = sim(1, SimConfig::default());
    let mut job = job(&disk);
    job.run_epochs(4);
    drop(job);
    disk.edit(&path().join(manifest_file(Epoch(4))), |bytes| bytes[30] ^= 1).unwrap();
    let error = open(&disk).unwrap_err();
    assert!(error.message().contains("epochs that verify: 3; nothing was modified"), "{error}");

    let older = StateDirOptions { restore: RestorePoint::Epoch(Epoch(3)), ..options() };
    let dir = StateDir::open(Box::new(disk.clone()), path(), &older).unwrap();
    assert_eq!((dir.restore_epoch(), dir.next_epoch()), (Epoch(3), Epoch(5)));
    let mut job = Job::start(dir, disk.clone()).unwrap();
    assert_eq!(job.complete(), Epoch(5));
    let kept: Vec<Epoch> = job.dir.epochs().collect();
    assert_eq!(kept, [Epoch(3), Epoch(5)]);
    drop(job);
    assert_eq!(restore(&disk).unwrap().epoch, Epoch(5));

    let missing = StateDirOptions { restore: RestorePoint::Epoch(Epoch(2)), ..options() };
    let error = StateDir::open(Box::new(disk.clone()), path(), &missing).unwrap_err();
    assert!(error.message().contains("no epoch 2; epochs that verify: 3, 5"), "{error}");
}

#[test]
fn power_lost_at_any_step_of_making_a_directory_leaves_a_fresh_start_or_a_made_one() {
    for seed in 0..40 {
        let mut steps = 0;
        loop {
            let disk = sim(seed, SimConfig::default());
            disk.lose_power_after(steps);
            let made = open(&disk).is_ok();
            disk.crash();
            let mut job = job(&disk);
            assert_eq!(job.dir.newest(), Epoch(0), "seed {seed}, step {steps}");
            job.complete();
            if made {
                break;
            }
            steps += 1;
        }
        assert!(steps > 10, "{steps} steps");
    }
}

#[test]
fn power_lost_at_any_step_of_an_epoch_leaves_the_one_before_or_this_one_whole() {
    let (mut before, mut after) = (0, 0);
    for seed in 0..30 {
        let disk = sim(seed, SimConfig::default());
        let mut job = job(&disk);
        job.run_epochs(3);
        drop(job);
        let mut steps = 0;
        loop {
            let fork = disk.fork(seed * 1000 + steps);
            fork.lose_power_after(steps);
            let published = open(&fork).and_then(|dir| Job::start(dir, fork.clone())).and_then(|mut job| job.epoch());
            let done = fork.is_powered();
            let complete = matches!(published, Ok(Published::Complete(_)));
            fork.crash();
            let restored = restore(&fork).unwrap_or_else(|error| panic!("seed {seed}, step {steps}: {error}")).epoch;
            assert!(
                restored == Epoch(4) || (restored == Epoch(3) && !complete),
                "seed {seed}, step {steps}: {restored}"
            );
            if restored == Epoch(3) {
                before += 1
            } else {
                after += 1
            }
            if done {
                break;
            }
            steps += 1;
        }
    }
    assert!(before > 100 && after > 50, "{before} before, {after} after");
}

/// A model of what a job was told: which epochs are complete, and what each must hold.
#[test]
fn on_any_disk_that_does_not_lie_the_restored_epoch_is_the_newest_that_was_ever_called_complete() {
    let (mut complete_count, mut failed_count, mut in_doubt_count, mut restored_in_doubt) = (0, 0, 0, 0);
    for seed in 0..300 {
        let disk = sim(seed, if seed % 3 == 0 { SimConfig::default() } else { SimConfig::failing() });
        let mut model: BTreeMap<Epoch, Vec<ExtentEntry>> = BTreeMap::new();
        let mut newest_complete = Epoch(0);
        for round in 0..8 {
            // A disk that fails may refuse a start; the next attempt is another throw.
            let started = (0..100).find_map(|_| open(&disk).and_then(|dir| Job::start(dir, disk.clone())).ok());
            let mut job = started.unwrap_or_else(|| panic!("seed {seed}: never starts"));
            let restored = job.dir.restore_epoch();
            assert!(restored >= newest_complete, "seed {seed}: {restored} restored, {newest_complete} was complete");
            restored_in_doubt += u32::from(restored > newest_complete);
            newest_complete = restored;
            if let Some(expected) = model.get(&restored) {
                assert_eq!(&job.live, expected, "seed {seed}, epoch {restored}");
            }
            disk.configure(|config| (config.failed_read, config.short_read) = (0.0, 0.0));
            for epoch in job.dir.epochs() {
                // Also the older ones: a manifest never comes back whose files are gone or written over.
                job.dir.verify(epoch).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }

            disk.lose_power_after((seed * 7 + round * 13) % 120 + 20);
            while disk.is_powered() {
                let published = job.epoch();
                let tried = Epoch(job.dir.next_epoch().0 - 1);
                model.insert(tried, job.live.clone());
                match published {
                    Ok(Published::Complete(epoch)) => {
                        complete_count += 1;
                        newest_complete = epoch;
                    }
                    Ok(Published::InDoubt(..)) => in_doubt_count += 1,
                    Ok(Published::Failed(..)) => failed_count += 1,
                    // The writer had an error, or collecting had, after the epoch was complete.
                    Err(_) if job.dir.newest() > newest_complete => newest_complete = job.dir.newest(),
                    Err(_) => failed_count += 1,
                }
            }
            drop(job);
            disk.crash();
        }
    }
    assert!(
        complete_count > 1000 && failed_count > 300 && in_doubt_count > 30 && restored_in_doubt > 10,
        "{complete_count} complete, {failed_count} failed, {in_doubt_count} in doubt, {restored_in_doubt} came true"
    );
}

#[test]
fn nothing_an_epoch_in_doubt_names_is_removed_and_a_later_complete_one_settles_it() {
    for seed in 0..50 {
        let disk = sim(seed, SimConfig::default());
        let mut job = job(&disk);
        job.run_epochs(3);
        disk.configure(|config| config.failed_dir_sync = 1.0);
        let in_doubt = match job.epoch() {
            Ok(Published::InDoubt(epoch, error)) => {
                assert!(error.message().contains("manifest of epoch 4: /data/job"), "{error}");
                epoch
            }
            // The new segment's name could not be made durable: it has not come to the rename.
            Ok(Published::Failed(..)) => continue,
            other => panic!("{other:?}"),
        };
        assert!(job.dir.is_in_doubt(in_doubt) && job.dir.newest() == Epoch(3));
        assert!(job.dir.collect().is_ok_and(|collected| collected.epochs_removed.is_empty()));
        let fork = disk.fork(seed);
        fork.configure(|config| config.failed_dir_sync = 0.0);
        fork.crash();
        let restored = restore(&fork).unwrap().epoch;
        assert!(restored == Epoch(3) || restored == in_doubt, "{restored}");

        disk.configure(|config| config.failed_dir_sync = 0.0);
        assert_eq!(job.complete(), Epoch(5));
        assert!(!job.dir.is_in_doubt(in_doubt));
        assert_eq!(job.dir.epochs().collect::<Vec<_>>(), [in_doubt, Epoch(5)]);
        job.dir.verify(in_doubt).unwrap();
    }
}

#[test]
fn an_epoch_restored_after_a_kill_is_still_there_after_a_loss_of_power() {
    let disk = sim(1, SimConfig { keep_names: 0.0, ..SimConfig::default() });
    let mut job = job(&disk);
    job.run_epochs(1);
    let entries = job.write(Epoch(2)).unwrap();
    job.live.extend(entries);
    let mut publish = job.dir.publish(&job.manifest(Epoch(2)));
    while !names(&disk).contains(&manifest_file(Epoch(2))) {
        assert!(job.dir.publish_step(&mut publish).is_none());
    }
    // Killed between the rename and the sync of the directory: the name is there, in the kernel's memory.
    drop(job);
    assert_eq!(restore(&disk).unwrap().epoch, Epoch(2));
    disk.crash();
    assert_eq!(restore(&disk).unwrap().epoch, Epoch(2), "output may have been committed on the strength of it");
}

#[test]
fn an_epoch_that_finds_no_room_for_its_manifest_has_failed_and_leaves_nothing() {
    let disk = sim(1, SimConfig::default());
    let mut job = job(&disk);
    job.run_epochs(2);
    let entries = job.write(Epoch(3)).unwrap();
    job.live.extend(entries);
    let manifest = job.manifest(Epoch(3));
    disk.configure(|config| config.capacity_bytes = 0);
    assert!(matches!(job.dir.publish_now(&manifest), Published::Failed(Epoch(3), _)));
    assert!(!names(&disk).contains(&manifest_temporary_file(Epoch(3))));
    disk.configure(|config| config.capacity_bytes = u64::MAX);
    assert!(matches!(job.dir.publish_now(&manifest), Published::Complete(Epoch(3))), "the same may be tried again");
}

#[test]
fn real_files_hold_what_was_published_and_the_tools_read_it() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("a/state");
    let dir = StateDir::open(Box::new(RealFiles), &path, &options()).unwrap();
    let mut job = Job::start(dir, BlockingDisk::new()).unwrap();
    for _ in 0..3 {
        job.complete();
    }
    assert_eq!(StateDir::open(Box::new(RealFiles), &path, &options()).unwrap_err().kind(), ErrorKind::Locked);
    let (newest, live) = (job.dir.newest(), job.live.clone());

    // The tools need no lock.
    let list = list_snapshots(&RealFiles, &path).unwrap();
    assert_eq!(list.epochs.iter().map(|epoch| epoch.epoch).collect::<Vec<_>>(), [Epoch(2), Epoch(3)]);
    assert_eq!((list.job.as_str(), list.format, list.bad.len()), ("words", 1, 0));
    let show = show_snapshot(&RealFiles, &path, None).unwrap();
    assert_eq!((show.summary.epoch, show.extents.len(), show.tables[0].name.as_str()), (newest, live.len(), "counts"));
    let verified = verify_snapshots(&RealFiles, &path, None).unwrap();
    assert!(verified.len() == 2 && verified.iter().all(|report| report.bad.is_empty() && report.bytes > 0));
    assert!(serde_json::to_string(&(list, show, verified)).unwrap().contains("\"counts\""));

    drop(job);
    let dir = StateDir::open(Box::new(RealFiles), &path, &options()).unwrap();
    assert_eq!(dir.verify(newest).unwrap().shards[0], live);
    drop(dir);
    let segment = path.join(segment_file(live[0].segment));
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[usize::try_from(live[0].offset).unwrap() + 70] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let bad = verify_snapshots(&RealFiles, &path, Some(newest)).unwrap();
    assert_eq!((bad[0].bad.len(), bad[0].bad[0].file.as_path()), (1, segment.as_path()));
    assert_eq!(verify_snapshots(&RealFiles, &path, Some(Epoch(9))).unwrap_err().kind(), ErrorKind::Invalid);
    let error = StateDir::open(Box::new(RealFiles), &segment, &options()).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("a state directory is expected"), "{error}");
}
