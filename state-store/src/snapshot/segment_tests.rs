//! A segment writer on a failing disk: what it reports durable is there after a crash.

use super::*;
use crate::epoch::Epoch;
use crate::format::ExtentKind;
use crate::io::sim::{SimConfig, SimDisk};
use crate::io::{Files, Token};
use crate::key_group::KeyGroupRange;
use std::collections::BTreeSet;
use std::path::Path;

fn header(sequence: u64, payload_bytes: usize) -> ExtentHeader {
    ExtentHeader {
        kind: ExtentKind::Pages,
        payload_bytes: u32::try_from(payload_bytes).unwrap(),
        table: 1,
        shard: 0,
        run: 1,
        groups: KeyGroupRange { start: 0, end: 16 },
        born: Epoch(1),
        sequence,
        schema: 5,
        address: sequence,
    }
}

fn config() -> SegmentConfig {
    SegmentConfig {
        segment_bytes_min: 64 << 10,
        segment_bytes_max: 256 << 10,
        block_bytes: 32 << 10,
        ..SegmentConfig::new(PathBuf::from("/d"), 1, 0)
    }
}

fn disk(seed: u64, config: SimConfig) -> SimDisk {
    let disk = SimDisk::new(seed, config);
    disk.create_dir_all(Path::new("/d")).unwrap();
    while disk.sync_dir(Path::new("/")).is_err() {}
    disk
}

/// Counts what a writer asks for and checks that it keeps its promises.
struct Watched {
    disk: SimDisk,
    submits_this_turn: usize,
    writes_under_way: BTreeSet<u64>,
    writes_under_way_max: usize,
    syncs: usize,
    creates: usize,
    failed_files: std::collections::HashSet<FileId>,
    requests: BTreeMap<u64, (&'static str, Option<FileId>)>,
}

impl Watched {
    fn new(disk: SimDisk) -> Self {
        Self {
            disk,
            submits_this_turn: 0,
            writes_under_way: BTreeSet::new(),
            writes_under_way_max: 0,
            syncs: 0,
            creates: 0,
            failed_files: Default::default(),
            requests: BTreeMap::new(),
        }
    }
}

impl Disk for Watched {
    fn buffer(&mut self, bytes: usize) -> Buffer {
        self.disk.buffer(bytes)
    }
    fn recycle(&mut self, buffer: Buffer) {
        self.disk.recycle(buffer);
    }
    fn submit(&mut self, request: Request) -> Token {
        self.submits_this_turn += 1;
        let (what, file) = match &request {
            Request::Write { file, .. } => ("write", Some(*file)),
            Request::Sync(file) => ("sync", Some(*file)),
            Request::Create { .. } => ("create", None),
            _ => ("other", None),
        };
        self.syncs += usize::from(what == "sync");
        self.creates += usize::from(what == "create");
        assert!(file.is_none_or(|file| !self.failed_files.contains(&file)), "a {what} on a file that was given up");
        let token = self.disk.submit(request);
        if what == "write" {
            self.writes_under_way.insert(token.0);
            self.writes_under_way_max = self.writes_under_way_max.max(self.writes_under_way.len());
        }
        self.requests.insert(token.0, (what, file));
        token
    }
    fn take(&mut self, token: Token) -> Option<io::Result<Done>> {
        let ended = self.disk.take(token)?;
        self.writes_under_way.remove(&token.0);
        let (_, file) = self.requests.remove(&token.0).expect("submitted here");
        if ended.is_err() {
            self.failed_files.extend(file);
        }
        Some(ended)
    }
    fn in_flight(&self) -> usize {
        self.disk.in_flight()
    }
}

fn turn(writer: &mut SegmentWriter, disk: &mut Watched) -> Turn {
    disk.submits_this_turn = 0;
    let turn = writer.turn(disk, true);
    assert!(disk.submits_this_turn <= 1, "{} requests in one turn", disk.submits_this_turn);
    turn
}

/// The payload of the extent with this sequence number: a function of it, so that any reader can check it.
#[expect(clippy::cast_possible_truncation, reason = "only the low bits are wanted")]
fn payload(sequence: u64, out: &mut [u8]) {
    out.iter_mut().enumerate().for_each(|(at, byte)| *byte = (sequence as usize * 31 + at) as u8);
}

/// Appends extents of these sizes and seals; an error voids the whole epoch.
fn epoch(
    writer: &mut SegmentWriter,
    disk: &mut Watched,
    sequence: &mut u64,
    sizes: &[usize],
) -> std::result::Result<Vec<ExtentEntry>, Error> {
    let mut entries = Vec::new();
    for &bytes in sizes {
        *sequence += 1;
        loop {
            let header = header(*sequence, bytes);
            if let Some(entry) = writer.append(disk, &header, |out| payload(header.sequence, out)) {
                entries.push(entry);
                break;
            }
            if let Turn::Failed(error) = turn(writer, disk) {
                return Err(error);
            }
        }
    }
    writer.seal();
    loop {
        match turn(writer, disk) {
            Turn::Sealed => return Ok(entries),
            Turn::Failed(error) => return Err(error),
            Turn::Busy => {}
            Turn::Idle => panic!("sealing and nothing to wait for"),
        }
    }
}

fn check_readable(disk: &SimDisk, entries: &[ExtentEntry], context: &str) {
    for entry in entries {
        let path = Path::new("/d").join(segment_file(entry.segment));
        let bytes =
            disk.read_at(&path, entry.offset, entry.bytes()).unwrap_or_else(|error| panic!("{context}: {error}"));
        entry.check(&bytes).unwrap_or_else(|bad| panic!("{context}: {} at {}: {bad}", path.display(), entry.offset));
        let mut expected = vec![0; bytes.len() - ExtentHeader::SIZE];
        payload(entry.header.sequence, &mut expected);
        assert_eq!(bytes[ExtentHeader::SIZE..], expected, "{context}");
    }
}

fn sizes(seed: u64, count: usize) -> Vec<usize> {
    (0..count as u64).map(|i| (crate::hash::hash_u64(seed * 1000 + i) % 20_000) as usize).collect()
}

#[test]
fn what_was_sealed_survives_a_loss_of_power_on_any_disk_that_does_not_lie() {
    let (mut sealed_count, mut failed_count) = (0, 0);
    for seed in 0..400 {
        let faults = if seed % 2 == 0 { SimConfig::default() } else { SimConfig::failing() };
        let sim = disk(seed, faults);
        let mut watched = Watched::new(sim.clone());
        let mut writer = SegmentWriter::new(config());
        let (mut sequence, mut sealed) = (0, Vec::new());
        for round in 0..6 {
            match epoch(&mut writer, &mut watched, &mut sequence, &sizes(seed * 10 + round, 12)) {
                Ok(entries) => {
                    sealed_count += 1;
                    sealed.extend(entries);
                    while sim.sync_dir(Path::new("/d")).is_err() {}
                }
                Err(_) => failed_count += 1,
            }
        }
        assert!(watched.writes_under_way_max <= 4);
        sim.crash();
        check_readable(&sim, &sealed, &format!("seed {seed}"));
    }
    assert!(sealed_count > 1000 && failed_count > 200, "{sealed_count} sealed, {failed_count} failed");
}

#[test]
fn an_epoch_with_nothing_in_it_is_sealed_without_a_request() {
    let mut watched = Watched::new(disk(1, SimConfig::default()));
    let mut writer = SegmentWriter::new(config());
    assert!(epoch(&mut writer, &mut watched, &mut 0, &[]).unwrap().is_empty());
    assert_eq!(watched.requests.len() + watched.syncs + watched.creates, 0);
}

#[test]
fn an_epoch_syncs_each_file_once() {
    let mut watched = Watched::new(disk(1, SimConfig::default()));
    let mut writer = SegmentWriter::new(config());
    let mut sequence = 0;
    for round in 0..20 {
        epoch(&mut writer, &mut watched, &mut sequence, &[3000, 3000]).unwrap();
        assert_eq!(watched.syncs, round + 1);
    }
    assert_eq!(watched.creates, 2, "64 and 128 KiB hold twenty small epochs");
}

#[test]
fn extents_do_not_overlap_and_lie_where_the_format_wants_them() {
    let sim = disk(9, SimConfig::default());
    let mut watched = Watched::new(sim.clone());
    let mut writer = SegmentWriter::new(config());
    let mut sizes = sizes(4, 100);
    sizes.extend([0, 1, 63, 64, 65, 100_000, 4032, 4033]);
    let entries = epoch(&mut writer, &mut watched, &mut 0, &sizes).unwrap();
    check_readable(&sim, &entries, "all");
    let mut ranges: Vec<_> = entries.iter().map(|e| (e.segment, e.offset, e.offset + e.bytes() as u64)).collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "{pair:?}");
    }
    assert!(entries.iter().all(|entry| entry.offset % 64 == 0));
}

#[test]
fn a_file_is_freed_with_its_last_extent_and_written_again_from_its_start() {
    let sim = disk(2, SimConfig::default());
    let mut watched = Watched::new(sim.clone());
    let mut writer = SegmentWriter::new(config());
    let mut sequence = 0;
    let first = epoch(&mut writer, &mut watched, &mut sequence, &[30_000, 30_000]).unwrap();
    // The second file makes the first one full, hence closed.
    epoch(&mut writer, &mut watched, &mut sequence, &[30_000]).unwrap();
    while !matches!(turn(&mut writer, &mut watched), Turn::Idle) {}
    writer.release(first[0].segment);
    assert!(writer.take_freed().is_empty(), "one extent is left");
    writer.release(first[1].segment);
    let freed = writer.take_freed();
    assert_eq!(freed, [FreedSegment { id: first[0].segment, bytes: 64 << 10, recyclable: true }]);
    assert_eq!(writer.recycle(freed[0]), None);

    let creates = watched.creates;
    let mut entries = Vec::new();
    while !entries.iter().any(|entry: &ExtentEntry| entry.segment == first[0].segment) {
        entries.extend(epoch(&mut writer, &mut watched, &mut sequence, &[30_000]).unwrap());
    }
    assert_eq!((watched.creates, entries.last().unwrap().offset), (creates, 0));
    check_readable(&sim, &entries, "recycled");
}

#[test]
fn a_file_with_a_failed_sync_is_never_synced_again_nor_recycled_and_keeps_what_earlier_epochs_wrote() {
    let sim = disk(3, SimConfig::default());
    let mut watched = Watched::new(sim.clone());
    let mut writer = SegmentWriter::new(config());
    let mut sequence = 0;
    let good = epoch(&mut writer, &mut watched, &mut sequence, &[5000]).unwrap();
    sim.configure(|config| config.failed_sync = 1.0);
    let error = epoch(&mut writer, &mut watched, &mut sequence, &[5000]).unwrap_err();
    assert!(error.message().contains("sync of /d/segment-0000000001-00000-0000000001"), "{error}");
    sim.configure(|config| config.failed_sync = 0.0);

    let again = epoch(&mut writer, &mut watched, &mut sequence, &[5000]).unwrap();
    assert_ne!(again[0].segment, good[0].segment, "the data goes to a new file");
    sim.sync_dir(Path::new("/d")).unwrap();
    sim.crash();
    check_readable(&sim, &good, "before");
    check_readable(&sim, &again, "after");
    while !matches!(writer.turn(&mut watched, true), Turn::Idle) {}
    writer.release(good[0].segment);
    assert_eq!(
        writer.take_freed().iter().map(|f| (f.id, f.recyclable)).collect::<Vec<_>>(),
        [(good[0].segment, false)]
    );
}

#[test]
fn a_full_disk_fails_epochs_until_there_is_room_and_leaves_its_files_to_be_removed() {
    let sim = disk(4, SimConfig { capacity_bytes: 100 << 10, ..SimConfig::default() });
    let mut watched = Watched::new(sim.clone());
    let mut writer = SegmentWriter::new(config());
    let mut sequence = 0;
    let first = epoch(&mut writer, &mut watched, &mut sequence, &[30_000, 30_000]).unwrap();
    for _ in 0..3 {
        let error = epoch(&mut writer, &mut watched, &mut sequence, &[30_000, 30_000]).unwrap_err();
        assert!(error.message().contains("no space"), "{error}");
    }
    for freed in writer.take_freed() {
        assert!(!freed.recyclable && freed.id != first[0].segment);
        sim.remove(&Path::new("/d").join(segment_file(freed.id))).unwrap();
    }
    sim.configure(|config| config.capacity_bytes = 1 << 20);
    let second = epoch(&mut writer, &mut watched, &mut sequence, &[30_000, 30_000]).unwrap();
    check_readable(&sim, &[first, second].concat(), "both");
}

#[test]
fn an_abandoned_epoch_frees_its_files_and_later_ones_are_not_disturbed() {
    let sim = disk(6, SimConfig::default());
    let mut watched = Watched::new(sim.clone());
    let mut writer = SegmentWriter::new(config());
    for sequence in 0..10 {
        let header = header(sequence, 10_000);
        while writer.append(&mut watched, &header, |out| payload(sequence, out)).is_none() {
            turn(&mut writer, &mut watched);
        }
    }
    writer.abandon(&mut watched);
    let entries = epoch(&mut writer, &mut watched, &mut 100, &[10_000; 10]).unwrap();
    while !matches!(turn(&mut writer, &mut watched), Turn::Idle) {}
    check_readable(&sim, &entries, "after");
    let used: BTreeSet<_> = entries.iter().map(|entry| entry.segment).collect();
    assert!(writer.take_freed().iter().all(|freed| freed.recyclable && !used.contains(&freed.id)));
}
