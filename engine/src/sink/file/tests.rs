//! Files as a sink under a failing disk and repeated starts: every line is committed once, and nothing is left behind.

use super::*;
use crate::items::Own;
use crate::sink::{OWNER, SinkActivity, SinkWriter};
use crate::source::Random;
use crate::{Error, ErrorKind};
use millstream_state::Epoch;
use millstream_state::io::sim::{SimConfig, SimDisk};
use millstream_state::io::{BlockingDisk, Disk, Files, RealFiles};
use std::collections::BTreeMap;
use std::path::Path;

type Numbers = Own<u64>;
type Writer = FileWriter<Numbers, ByClosure<fn(u64, &mut Line) -> io::Result<()>>>;
type TestSink = FileSink<Numbers, ByClosure<fn(u64, &mut Line) -> io::Result<()>>>;

fn format(n: u64, line: &mut Line) -> io::Result<()> {
    write!(line, "{n}")
}

/// Pages of 4096 bytes, parts of three and a bit.
fn sink() -> TestSink {
    FileSink::lines("out", format as fn(u64, &mut Line) -> io::Result<()>)
        .block_bytes(4096)
        .unwritten_bytes_max(64 << 10)
        .part_bytes_max(14_000)
}

fn open(sink: &TestSink, shard: u32, run: u64) -> Writer {
    Sink::<Numbers>::open(sink, OWNER, shard, run).unwrap()
}

fn committer(sink: &TestSink) -> Box<dyn Committer> {
    Sink::<Numbers>::committer(sink, OWNER).unwrap().expect("a file sink commits")
}

/// Turns until the epoch is answered.
fn answer(writer: &mut Writer, disk: &mut dyn Disk, epoch: u64, now_ns: &mut u64) -> Result<Vec<Vec<u8>>> {
    for _ in 0..1_000_000 {
        *now_ns += 1_000_000;
        writer.turn(disk, *now_ns).unwrap();
        if let Some(answer) = writer.take_prepared(Epoch(epoch)) {
            return answer;
        }
    }
    panic!("epoch {epoch} is never answered");
}

/// The lock of [`sink`] while its job runs.
const LOCK: &str = ".millstream~lock~part";

/// All lines under final names, sorted, and the names of everything else but the lock.
fn visible(files: &dyn Files, dir: &str) -> (Vec<u64>, Vec<String>) {
    let (mut lines, mut others) = (Vec::new(), Vec::new());
    for entry in files.list(Path::new(dir)).unwrap() {
        if entry.name.starts_with("part-") {
            let text = String::from_utf8(files.read(&Path::new(dir).join(&entry.name)).unwrap()).unwrap();
            assert!(text.ends_with('\n'), "{} ends within a line", entry.name);
            lines.extend(text.lines().map(|line| line.parse::<u64>().unwrap()));
        } else if entry.name != LOCK {
            others.push(entry.name);
        }
    }
    lines.sort_unstable();
    (lines, others)
}

/// A small job: one writer, a committer, a disk.
struct Rig {
    disk: SimDisk,
    sink: TestSink,
    writer: Writer,
    committer: Box<dyn Committer>,
    prepared: BTreeMap<u64, Vec<Vec<u8>>>,
    now_ns: u64,
    run: u64,
}

impl Rig {
    fn new(config: SimConfig) -> Self {
        let (disk, sink) = (SimDisk::new(7, SimConfig::default()), sink());
        let mut committer = committer(&sink);
        committer.open(&disk, Epoch::ZERO).unwrap();
        committer.clean(&disk).unwrap();
        disk.configure(|now| *now = config);
        let writer = open(&sink, 0, 1);
        Self { disk, sink, writer, committer, prepared: BTreeMap::new(), now_ns: 0, run: 1 }
    }

    fn write(&mut self, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|n| self.writer.write(n));
    }

    fn prepare(&mut self, epoch: u64) -> Result<()> {
        self.writer.prepare(Epoch(epoch));
        self.answer(epoch)
    }

    fn answer(&mut self, epoch: u64) -> Result<()> {
        let prepared = answer(&mut self.writer, &mut self.disk, epoch, &mut self.now_ns)?;
        self.committer.secure(&self.disk, &prepared)?;
        self.prepared.insert(epoch, prepared);
        Ok(())
    }

    fn commit(&mut self, epoch: u64) {
        self.prepared[&epoch].iter().for_each(|prepared| self.committer.commit(&self.disk, prepared).unwrap());
    }

    /// Loses power and starts again from `epoch`, committing what it and those before had prepared.
    fn restart(&mut self, epoch: u64) {
        self.disk.crash();
        self.run += 1;
        self.committer = committer(&self.sink);
        self.committer.open(&self.disk, Epoch(epoch)).unwrap();
        for (_, prepared) in self.prepared.range(..=epoch) {
            prepared.iter().for_each(|prepared| self.committer.commit(&self.disk, prepared).unwrap());
        }
        self.committer.clean(&self.disk).unwrap();
        self.writer = open(&self.sink, 0, self.run);
    }

    #[track_caller]
    fn check(&self, expected: &[u64]) {
        assert_eq!(visible(&self.disk, "out").0, expected);
    }

    #[track_caller]
    fn check_clean(&self, expected: &[u64]) {
        assert_eq!(visible(&self.disk, "out"), (expected.to_vec(), Vec::new()));
    }
}

#[test]
fn an_epoch_is_visible_from_its_commit_on_and_a_second_commit_does_nothing() {
    let mut rig = Rig::new(SimConfig::default());
    for (epoch, n) in [(0, 42), (1, 43), (2, 44)] {
        rig.write([n]);
        rig.prepare(epoch).unwrap();
    }
    rig.check(&[]);
    rig.commit(0);
    rig.commit(1);
    rig.check(&[42, 43]);
    rig.commit(2);
    rig.commit(1);
    rig.check(&[42, 43, 44]);
}

#[test]
fn output_behind_a_lost_commit_is_committed_by_the_restore_and_what_follows_is_written_again() {
    let mut rig = Rig::new(SimConfig::default());
    rig.write([42]);
    rig.prepare(1).unwrap();
    rig.write([43]);
    rig.prepare(2).unwrap();
    rig.write([44]);
    rig.restart(2);
    rig.check_clean(&[42, 43]);
    rig.write([44]);
    rig.prepare(3).unwrap();
    rig.commit(3);
    rig.check_clean(&[42, 43, 44]);
    rig.committer.finish(&rig.disk).unwrap();
    rig.check_clean(&[42, 43, 44]);
}

#[test]
fn an_epoch_without_output_makes_no_file() {
    let mut rig = Rig::new(SimConfig::default());
    rig.prepare(1).unwrap();
    assert!(rig.prepared[&1].is_empty());
    rig.check_clean(&[]);
}

#[test]
fn a_failed_epoch_joins_the_next_whoever_failed() {
    // The disk fails.
    let mut rig = Rig::new(SimConfig { failed_write: 1.0, ..SimConfig::default() });
    rig.write([1]);
    let error = rig.prepare(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    rig.disk.configure(|now| now.failed_write = 0.0);
    rig.write([2]);
    rig.prepare(2).unwrap();
    rig.commit(2);
    rig.check(&[1, 2]);

    // Another shard fails, with the next epoch prepared already, or not.
    for prepared_before in [false, true] {
        let mut rig = Rig::new(SimConfig::default());
        rig.write([1]);
        rig.prepare(1).unwrap();
        rig.write([2]);
        if prepared_before {
            rig.writer.prepare(Epoch(2));
            rig.writer.abandon(Epoch(1));
        } else {
            rig.writer.abandon(Epoch(1));
            rig.writer.prepare(Epoch(2));
        }
        rig.answer(2).unwrap();
        rig.commit(2);
        rig.check(&[1, 2]);
    }

    // An epoch given up before it was answered.
    let mut rig = Rig::new(SimConfig::default());
    rig.write([1]);
    rig.writer.prepare(Epoch(1));
    rig.write([2]);
    rig.writer.prepare(Epoch(2));
    assert!(rig.writer.take_prepared(Epoch(2)).is_none(), "epochs are answered in order");
    rig.writer.abandon(Epoch(1));
    assert!(rig.writer.take_prepared(Epoch(1)).unwrap().is_err());
    rig.answer(2).unwrap();
    rig.commit(2);
    rig.check(&[1, 2]);
}

#[test]
fn a_long_epoch_is_several_parts_that_end_at_lines() {
    let mut rig = Rig::new(SimConfig::default());
    for n in 0..20_000 {
        rig.write([n]);
        while !rig.writer.ready() {
            rig.now_ns += 1;
            rig.writer.turn(&mut rig.disk, rig.now_ns).unwrap();
        }
        assert!(rig.writer.bytes_held() <= 64 << 10);
    }
    rig.prepare(1).unwrap();
    let names: Vec<String> = rig.disk.list(Path::new("out")).unwrap().into_iter().map(|entry| entry.name).collect();
    assert!(rig.prepared[&1].len() > 5, "{names:?}");
    rig.commit(1);
    rig.check_clean(&(0..20_000).collect::<Vec<_>>());
    assert!(rig.disk.exists(Path::new("out/part-0000000a-0000000001-0000-0005")));
}

#[test]
fn a_line_longer_than_blocks_and_parts_stays_whole() {
    let sink = FileSink::<Own<usize>, _>::lines("out", |n, line| {
        line.push_bytes(&vec![b'x'; n]);
        Ok(())
    })
    .block_bytes(4096)
    .unwritten_bytes_max(16 << 10);
    let mut disk = SimDisk::new(1, SimConfig::default());
    let mut committer = sink.committer(OWNER).unwrap().unwrap();
    committer.open(&disk, Epoch::ZERO).unwrap();
    let mut writer = sink.open(OWNER, 3, 1).unwrap();
    for n in [50_000, 4095, 1, 4096, 0, 8191] {
        writer.write(n);
    }
    writer.prepare(Epoch(1));
    let prepared = loop {
        writer.turn(&mut disk, 0).unwrap();
        if let Some(answer) = writer.take_prepared(Epoch(1)) {
            break answer.unwrap();
        }
    };
    prepared.iter().for_each(|prepared| committer.commit(&disk, prepared).unwrap());
    let parts = disk.list(Path::new("out")).unwrap();
    let all: Vec<u8> = parts.iter().flat_map(|entry| disk.read(&Path::new("out").join(&entry.name)).unwrap()).collect();
    let lengths: Vec<usize> = all.split(|&byte| byte == b'\n').map(<[u8]>::len).collect();
    assert_eq!(lengths, [50_000, 4095, 1, 4096, 0, 8191, 0]);
}

#[test]
fn a_full_disk_holds_the_stage_back_with_flat_memory_and_goes_on_when_there_is_room() {
    let mut rig = Rig::new(SimConfig { capacity_bytes: 20_000, ..SimConfig::default() });
    let mut n = 0;
    let mut failed = 0;
    for epoch in 1..=20 {
        for _ in 0..3000 {
            if rig.writer.ready() {
                rig.write([n]);
                n += 1;
            }
        }
        assert!(rig.writer.bytes_held() <= 64 << 10, "{} bytes held", rig.writer.bytes_held());
        failed += u64::from(rig.prepare(epoch).is_err());
    }
    assert!(!rig.writer.ready());
    assert!(failed > 15, "{failed} of 20 epochs failed");
    assert!(rig.disk.list(Path::new("out")).unwrap().len() < 20, "tries leave few files");
    rig.disk.configure(|now| now.capacity_bytes = u64::MAX);
    while rig.prepare(21).is_err() {}
    rig.prepared.clone().keys().for_each(|&epoch| rig.commit(epoch));
    rig.committer.finish(&rig.disk).unwrap();
    rig.check_clean(&(0..n).collect::<Vec<_>>());
    assert!(rig.writer.ready());
}

#[test]
fn small_parts_that_wait_for_a_disk_take_little_more_memory_than_they_hold() {
    let mut rig = Rig::new(SimConfig { failed_write: 1.0, ..SimConfig::default() });
    for epoch in 1..=200 {
        rig.write([epoch]);
        assert!(rig.prepare(epoch).is_err());
    }
    let (capacity, held) = (rig.writer.capacity(), rig.writer.bytes_held());
    // Beside what is held, the block at hand and no more: each of the 200 parts has but a line.
    assert!(capacity < held + 2 * (4096 + (16 << 10)), "{capacity} bytes of memory for {held}");
    rig.disk.configure(|now| now.failed_write = 0.0);
    while rig.prepare(201).is_err() {}
    rig.commit(201);
    rig.check(&(1..=200).collect::<Vec<_>>());
    // Blocks that were shrunk are not filled again.
    rig.write([201]);
    rig.prepare(202).unwrap();
}

#[test]
fn a_failed_sync_moves_the_output_to_another_file() {
    let mut rig = Rig::new(SimConfig { failed_sync: 1.0, ..SimConfig::default() });
    rig.write([1, 2, 3]);
    assert!(rig.prepare(1).is_err());
    rig.disk.configure(|now| now.failed_sync = 0.0);
    rig.prepare(2).unwrap();
    rig.restart(2);
    rig.check_clean(&[1, 2, 3]);
}

#[test]
fn a_writer_with_nothing_to_do_is_idle() {
    let mut rig = Rig::new(SimConfig::default());
    assert_eq!(rig.writer.turn(&mut rig.disk, 1).unwrap(), SinkActivity::Idle);
    rig.write([1]);
    assert_eq!(rig.writer.turn(&mut rig.disk, 1).unwrap(), SinkActivity::Idle, "a line waits for its block or cut");
    rig.prepare(1).unwrap();
    while rig.writer.turn(&mut rig.disk, 1).unwrap() != SinkActivity::Idle {}
    assert_eq!(rig.disk.in_flight(), 0);
}

#[test]
fn what_is_not_as_prepared_is_refused() {
    let mut rig = Rig::new(SimConfig::default());
    rig.write([1, 2]);
    rig.prepare(1).unwrap();
    let prepared = rig.prepared[&1][0].clone();
    let staged = {
        let (_, others) = visible(&rig.disk, "out");
        Path::new("out").join(&others[0])
    };
    let part = Path::new("out/part-0000000a-0000000001-0000-0000");
    let mut check = |what: &str, kind: ErrorKind, bytes: &[u8], prepare: &dyn Fn(&SimDisk)| {
        let disk = rig.disk.fork(1);
        prepare(&disk);
        let error = rig.committer.commit(&disk, bytes).unwrap_err();
        assert_eq!(error.kind(), kind, "{what}: {error}");
        error
    };
    let gone = check("gone", ErrorKind::Corrupt, &prepared, &|disk| disk.remove(&staged).unwrap());
    assert!(
        gone.message().contains("part-0000000a-0000000001") && gone.message().contains(".millstream~job~"),
        "{gone}"
    );
    check("cut short", ErrorKind::Corrupt, &prepared, &|disk| disk.edit(&staged, |bytes| bytes.truncate(3)).unwrap());
    check("longer", ErrorKind::Corrupt, &prepared, &|disk| disk.edit(&staged, |bytes| bytes.push(b'3')).unwrap());
    check("another's", ErrorKind::Invalid, &prepared, &|disk| disk.write_durable(part, b"1\n").unwrap());
    check("no json", ErrorKind::Corrupt, b"{", &|_| {});
    let text = String::from_utf8(prepared.clone()).unwrap();
    for (from, to) in [(".millstream~job", "../millstream~job"), ("part-", "../part-"), ("part-", "else-")] {
        check(to, ErrorKind::Corrupt, text.replace(from, to).as_bytes(), &|_| {});
    }
    rig.commit(1);
    rig.check(&[1, 2]);
}

#[test]
fn output_of_another_run_and_places_that_cannot_be_written_are_refused_before_anything_starts() {
    let mut rig = Rig::new(SimConfig::default());
    rig.write([1]);
    rig.prepare(5).unwrap();
    rig.commit(5);
    rig.restart(5);
    rig.committer = committer(&rig.sink);
    let error = rig.committer.open(&rig.disk, Epoch(4)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("part-0000000a-0000000005-0000-0000"), "{error}");

    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "x").unwrap();
    for place in ["file", "file/below"] {
        let sink = FileSink::<Numbers, _>::tsv_of(dir.path().join(place));
        let error = sink.committer(OWNER).unwrap().unwrap().open(&RealFiles, Epoch::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("file"), "{error}");
    }
}

impl FileSink<Numbers, ByClosure<fn(u64, &mut Line) -> io::Result<()>>> {
    fn tsv_of(dir: PathBuf) -> Self {
        Self::lines(dir, format as fn(u64, &mut Line) -> io::Result<()>)
    }
}

#[test]
fn one_job_at_a_time_writes_to_a_directory_under_one_prefix() {
    let disk = SimDisk::new(1, SimConfig::default());
    let other = Owner { state: StateId(11), ..OWNER };
    let mut first = committer(&sink());
    first.open(&disk, Epoch::ZERO).unwrap();
    for owner in [OWNER, other] {
        let error = sink().committer(owner).unwrap().unwrap().open(&disk, Epoch::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
        assert!(error.message().contains("out") && error.message().contains("part-*"), "{error}");
    }
    let mut beside = sink().prefix("beside").committer(other).unwrap().unwrap();
    beside.open(&disk, Epoch::ZERO).unwrap();
    for ended in [&mut first, &mut beside] {
        ended.finish(&disk).unwrap();
    }
    assert!(disk.list(Path::new("out")).unwrap().is_empty(), "no lock is left behind");
    sink().committer(other).unwrap().unwrap().open(&disk, Epoch::ZERO).unwrap();
}

#[test]
fn what_another_state_has_written_is_refused_whatever_its_epoch() {
    // Stopped before it has written anything, another job runs to its end, and the first one would go on.
    let mut rig = Rig::new(SimConfig::default());
    rig.prepare(7).unwrap();
    rig.committer.finish(&rig.disk).unwrap();

    let other = Owner { job: "other", state: StateId(11) };
    let mut committer = sink().committer(other).unwrap().unwrap();
    committer.open(&rig.disk, Epoch::ZERO).unwrap();
    let mut writer = Sink::<Numbers>::open(&sink(), other, 0, 1).unwrap();
    writer.write(1);
    writer.prepare(Epoch(3));
    for prepared in answer(&mut writer, &mut rig.disk, 3, &mut rig.now_ns).unwrap() {
        committer.commit(&rig.disk, &prepared).unwrap();
    }
    committer.finish(&rig.disk).unwrap();

    let error = sink().committer(OWNER).unwrap().unwrap().open(&rig.disk, Epoch(7)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("part-0000000b-0000000003-0000-0000"), "{error}");
    rig.check_clean(&[1]);
}

#[test]
fn only_leftovers_of_this_job_and_prefix_are_cleaned() {
    let disk = SimDisk::new(1, SimConfig::default());
    let sink = sink();
    let mut committer = committer(&sink);
    committer.open(&disk, Epoch::ZERO).unwrap();
    let kept = [
        ".millstream~job-b~0000000a~part~1-0-0",
        ".millstream~job~0000000a~counts~1-0-0",
        ".millstream~job~0000000b~part~1-0-0",
        LOCK,
        "notes.txt",
        "part-0000000a-0000000001-0000-0000",
    ];
    for name in kept.iter().chain(&[".millstream~job~0000000a~part~1-0-0", ".millstream~job~0000000a~part~2-3-4"]) {
        disk.write_durable(&Path::new("out").join(name), b"x\n").unwrap();
    }
    committer.clean(&disk).unwrap();
    let left: Vec<String> = disk.list(Path::new("out")).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(left, kept);
}

#[test]
fn an_error_of_the_closure_stops_the_job_and_names_the_place() {
    let sink = FileSink::<Numbers, _>::lines("out", |n, line| {
        line.push_str("half");
        if n == 2 { Err(io::Error::other("no two")) } else { Ok(()) }
    });
    let mut writer = sink.open(OWNER, 0, 1).unwrap();
    let mut disk = SimDisk::new(1, SimConfig::default());
    writer.write(1);
    writer.turn(&mut disk, 0).unwrap();
    writer.write(2);
    let error = writer.turn(&mut disk, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UserCode);
    assert!(error.message().contains("no two") && error.message().contains("out"), "{error}");
}

#[test]
fn real_files_appear_whole_and_nothing_else_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("a/out");
    let sink = FileSink::<Own<(String, u64)>, _>::tsv(&out);
    let mut committer = sink.committer(OWNER).unwrap().unwrap();
    committer.open(&RealFiles, Epoch::ZERO).unwrap();
    let mut writer = sink.open(OWNER, 1, 9).unwrap();
    for n in 0..100_000 {
        writer.write((format!("word{n}"), n));
    }
    writer.prepare(Epoch(3));
    let mut disk = BlockingDisk::new();
    let prepared = loop {
        writer.turn(&mut disk, 0).unwrap();
        if let Some(answer) = writer.take_prepared(Epoch(3)) {
            break answer.unwrap();
        }
    };
    committer.secure(&RealFiles, &prepared).unwrap();
    prepared.iter().for_each(|prepared| committer.commit(&RealFiles, prepared).unwrap());
    committer.finish(&RealFiles).unwrap();
    let names: Vec<String> = RealFiles.list(&out).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["part-0000000a-0000000003-0001-0000"]);
    let text = std::fs::read_to_string(out.join(&names[0])).unwrap();
    assert!(text.lines().enumerate().all(|(n, line)| line == format!("word{n}\t{n}")));
    assert_eq!(text.lines().count(), 100_000);
}

/// A whole life under a seed: shards, epochs, failures, losses of power and restarts at other shard counts; the stream is
/// the numbers from 0, and the position of an epoch how many were written before its cut.
struct Life {
    random: Random,
    disk: SimDisk,
    sink: TestSink,
    committer: Box<dyn Committer>,
    writers: Vec<Writer>,
    run: u64,
    now_ns: u64,
    next: u64,
    last_epoch: u64,
    in_flight: Vec<InFlight>,
    /// The newest manifest: epoch, position, prepared output not confirmed.
    manifest: (u64, u64, Vec<Vec<u8>>),
    /// Prepared output that no manifest lists yet, of epochs that failed.
    carried: Vec<Vec<u8>>,
}

struct InFlight {
    epoch: u64,
    position: u64,
    answers: Vec<Option<Result<Vec<Vec<u8>>>>>,
}

impl Life {
    fn new(seed: u64, sink: TestSink) -> Self {
        let random = Random::at(seed, 0);
        let disk = SimDisk::new(seed, SimConfig::failing());
        let committer = committer(&sink);
        let manifest = (0, 0, Vec::new());
        let mut life = Self {
            random,
            disk,
            sink,
            committer,
            writers: Vec::new(),
            run: 0,
            now_ns: 0,
            next: 0,
            last_epoch: 0,
            in_flight: Vec::new(),
            manifest,
            carried: Vec::new(),
        };
        life.start();
        life
    }

    /// Until it works: a start that fails is tried again, after a loss of power if that was it.
    fn start(&mut self) {
        loop {
            if !self.disk.is_powered() || self.random.chance(0.05) {
                self.disk.crash();
            }
            if self.try_start().is_ok() {
                return;
            }
        }
    }

    /// What a reader of the directory sees, at no risk of power.
    fn visible(&self) -> (Vec<u64>, Vec<String>) {
        let quiet = self.disk.fork(0);
        quiet.configure(|now| *now = SimConfig::default());
        visible(&quiet, "out")
    }

    fn try_start(&mut self) -> Result<()> {
        let (epoch, position, prepared) = self.manifest.clone();
        self.writers.clear();
        self.in_flight.clear();
        self.carried.clear();
        self.committer = committer(&self.sink);
        self.committer.open(&self.disk, Epoch(epoch))?;
        for prepared in &prepared {
            commit(&mut *self.committer, &self.disk, prepared)?;
        }
        self.committer.clean(&self.disk)?;
        assert_eq!(self.visible(), ((0..position).collect(), Vec::new()), "after a start from {epoch}");
        self.run += 1;
        self.next = position;
        let shards = 1 + u32::try_from(self.random.below(3)).unwrap();
        self.writers = (0..shards).map(|shard| open(&self.sink, shard, self.run)).collect();
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        self.now_ns += self.random.below(20_000_000);
        let shard = usize::try_from(self.random.below(self.writers.len() as u64)).unwrap();
        match self.random.below(100) {
            0..45 => self.writers[shard].turn(&mut self.disk, self.now_ns).map(drop),
            45..80 => {
                for _ in 0..self.random.below(400) {
                    if self.writers[shard].ready() {
                        self.writers[shard].write(self.next);
                        self.next += 1;
                    }
                }
                Ok(())
            }
            80..85 if self.in_flight.len() < EPOCHS_IN_FLIGHT => {
                self.last_epoch += 1 + self.random.below(2);
                let epoch = self.last_epoch;
                self.writers.iter_mut().for_each(|writer| writer.prepare(Epoch(epoch)));
                let answers = self.writers.iter().map(|_| None).collect();
                self.in_flight.push(InFlight { epoch, position: self.next, answers });
                Ok(())
            }
            _ => self.collect(),
        }
    }

    /// Takes answers; completes or fails the oldest epoch.
    fn collect(&mut self) -> Result<()> {
        for epoch in &mut self.in_flight {
            for (writer, answer) in self.writers.iter_mut().zip(&mut epoch.answers) {
                if answer.is_none() {
                    *answer = writer.take_prepared(Epoch(epoch.epoch));
                }
            }
        }
        let Some(oldest) = self.in_flight.first() else { return Ok(()) };
        let has_failed = oldest.answers.iter().flatten().any(Result::is_err) || self.random.chance(0.02);
        let is_answered = oldest.answers.iter().all(Option::is_some);
        if !has_failed && !is_answered {
            return Ok(());
        }
        let oldest = self.in_flight.remove(0);
        let prepared: Vec<Vec<u8>> =
            oldest.answers.iter().flatten().filter_map(|answer| answer.as_ref().ok()).flatten().cloned().collect();
        let mut listed = self.carried.clone();
        listed.extend(prepared);
        let is_secure = has_failed || self.committer.secure(&self.disk, &listed).is_ok();
        if has_failed || !is_secure {
            self.fail(&oldest);
            return Ok(());
        }
        self.carried.clear();
        listed.splice(0..0, self.manifest.2.drain(..));
        self.manifest = (oldest.epoch, oldest.position, listed);
        self.commit()
    }

    /// Gives the epoch back to shards that have answered no later one, and carries what the others had prepared.
    fn fail(&mut self, failed: &InFlight) {
        for (shard, answer) in failed.answers.iter().enumerate() {
            let later = self.in_flight.iter().any(|epoch| epoch.answers[shard].is_some());
            match answer {
                Some(Ok(prepared)) if later => self.carried.extend(prepared.iter().cloned()),
                _ => self.writers[shard].abandon(Epoch(failed.epoch)),
            }
        }
    }

    fn commit(&mut self) -> Result<()> {
        for prepared in &self.manifest.2 {
            commit(&mut *self.committer, &self.disk, prepared)?;
        }
        let (epoch, position, _) = self.manifest;
        assert_eq!(self.visible().0, (0..position).collect::<Vec<_>>(), "after commit of {epoch}");
        // Confirmed; or the process that knew dies before it can say so.
        if self.random.chance(0.7) {
            self.manifest.2.clear();
        }
        Ok(())
    }

    fn run(&mut self) {
        for _ in 0..400 {
            if self.random.chance(0.01) {
                self.disk.lose_power_after(self.random.below(30));
            }
            let result = self.step();
            if !self.disk.is_powered() || result.is_err() || self.random.chance(0.002) {
                self.disk.crash();
                self.start();
            }
        }
        self.end();
    }

    fn end(&mut self) {
        self.disk.configure(|now| *now = SimConfig::default());
        self.disk.crash();
        self.start();
        let end = self.next + 50;
        while self.next < end {
            let shard = usize::try_from(self.next).unwrap() % self.writers.len();
            self.writers[shard].write(self.next);
            self.next += 1;
        }
        self.last_epoch += 1;
        let epoch = self.last_epoch;
        self.writers.iter_mut().for_each(|writer| writer.prepare(Epoch(epoch)));
        let mut listed = self.manifest.2.clone();
        for writer in &mut self.writers {
            listed.extend(answer(writer, &mut self.disk, epoch, &mut self.now_ns).unwrap());
        }
        self.committer.secure(&self.disk, &listed).unwrap();
        self.manifest = (epoch, end, listed);
        self.commit().unwrap();
        self.committer.finish(&self.disk).unwrap();
        self.disk.crash();
        assert_eq!(self.visible(), ((0..end).collect(), Vec::new()));
    }
}

const EPOCHS_IN_FLIGHT: usize = 2;

/// Commits as the coordinator does: what can be tried again is, as long as there is power.
fn commit(committer: &mut dyn Committer, disk: &SimDisk, prepared: &[u8]) -> Result<()> {
    loop {
        match committer.commit(disk, prepared) {
            Err(error) if error.kind() == ErrorKind::Unavailable && disk.is_powered() => {}
            Err(error) if disk.is_powered() => panic!("{error}"),
            other => return other,
        }
    }
}

fn live(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| Life::new(seed, sink()).run());
        if let Err(panic) = outcome {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn every_line_is_visible_once_whatever_fails_and_whenever_power_is_lost() {
    live(0..300);
}

#[cfg(feature = "planted-bugs")]
#[test]
fn a_planted_loss_at_the_cut_is_found_on_the_first_seeds() {
    use crate::planted::{PlantedBug, plant};
    plant(Some(PlantedBug::StagedLinesLost));
    let found = (0..3).any(|seed| std::panic::catch_unwind(|| Life::new(seed, sink()).run()).is_err());
    plant(None);
    assert!(found);
}

#[test]
fn an_error_is_told() {
    // `Error` is what a failed epoch says; it must name the place.
    let mut rig = Rig::new(SimConfig { no_space: 1.0, ..SimConfig::default() });
    rig.write([1]);
    let error: Error = rig.prepare(1).unwrap_err();
    assert!(error.message().contains("out") && error.message().contains("no space"), "{error}");
}

#[test]
fn a_second_listing_of_what_was_committed_does_not_miss_a_file_that_was_taken_away() {
    let mut rig = Rig::new(SimConfig::default());
    rig.write([1]);
    rig.prepare(1).unwrap();
    rig.commit(1);
    rig.disk.remove(Path::new("out/part-0000000a-0000000001-0000-0000")).unwrap();
    rig.commit(1);
}

#[test]
fn a_zombie_commits_nothing_that_a_newer_run_has_not() {
    let mut rig = Rig::new(SimConfig::default());
    let mut zombie = committer(&rig.sink);
    rig.write([1]);
    rig.prepare(1).unwrap();
    rig.write([2]);
    rig.prepare(2).unwrap();
    let of_no_manifest = rig.prepared.remove(&2).unwrap();
    rig.restart(1);
    rig.write([2, 3]);
    rig.prepare(2).unwrap();
    rig.commit(2);
    zombie.commit(&rig.disk, &rig.prepared[&1][0]).unwrap();
    assert_eq!(zombie.commit(&rig.disk, &of_no_manifest[0]).unwrap_err().kind(), ErrorKind::Corrupt);
    rig.check_clean(&[1, 2, 3]);
}
