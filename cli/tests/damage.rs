//! A snapshot with a byte that is not what was written: whatever byte it is, the command refuses it, says in which file and
//! where, ends with the documented code, and changes nothing; or the byte is one that no manifest names, and nothing differs.
//!
//! Every byte is tried, so the loop calls in this process what `snapshot verify` calls, and what `run` calls: for every byte of
//! a manifest and of an extent's header, and for one in `MILLSTREAM_FLIP_STRIDE` (default 16) of the records, which are under
//! one checksum. Some bytes, chosen by `MILLSTREAM_SEED`, are tried through the command itself as well.

mod common;

use common::*;
use millstream::operator::Emit;
use millstream::{Engine, EngineConfig, Error, ErrorKind};
use millstream_bench::word_count::WordCount;
use millstream_state::io::RealFiles;
use millstream_state::snapshot::{BadEpoch, list_snapshots, load_manifest, verify_snapshots};
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

/// Exit code for bad bytes in a snapshot.
const CORRUPT: i32 = 3;

/// A job stopped half way, and every byte of its state directory.
struct Stopped {
    sandbox: Sandbox,
    state: PathBuf,
    manifest: String,
    files: BTreeMap<String, Vec<u8>>,
    /// The bytes of segment files that the manifest names.
    extents: Vec<(String, Range<usize>)>,
}

impl Stopped {
    /// With one epoch, of some kilobytes.
    fn new() -> Self {
        let sandbox = Sandbox::lines(900);
        let args = ["--cores", "1", "--retain", "1", "--rate", "60", "--progress", "plain"];
        let mut job = Started::new(&mut sandbox.word_count(&args));
        assert!(job.wait_for("started"));
        sandbox.wait_for_epoch(4);
        job.signal("INT");
        let (status, said) = job.wait();
        assert_eq!(status.code(), Some(130), "{said}");
        let state = sandbox.path("state");
        let epoch = millstream::Epoch(sandbox.newest_epoch());
        let manifest = load_manifest(&RealFiles, &state, epoch).unwrap();
        let extents = manifest.extents().map(|extent| {
            let start = usize::try_from(extent.offset).unwrap();
            (millstream_state::format::segment_file(extent.segment), start..start + extent.bytes())
        });
        let extents = extents.collect();
        let manifest = millstream_state::format::manifest_file(epoch);
        let mut stopped = Self { sandbox, state, manifest, files: BTreeMap::new(), extents };
        stopped.files = stopped.read();
        assert_eq!(stopped.files.keys().filter(|name| name.ends_with(".manifest")).count(), 1);
        stopped
    }

    fn read(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = self.state.read_dir().unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())).collect()
    }

    /// Every byte that must not be bad: file and offset.
    fn places(&self) -> Vec<(String, usize)> {
        let whole = self.files.iter().filter(|(name, _)| !name.starts_with("segment-"));
        let whole = whole.map(|(name, bytes)| (name.clone(), 0..bytes.len()));
        let ranges = whole.chain(self.extents.iter().cloned());
        ranges.flat_map(|(name, range)| range.map(move |at| (name.clone(), at))).collect()
    }

    fn put(&self, name: &str, at: usize, bytes: &[u8]) {
        let file = std::fs::File::options().write(true).open(self.state.join(name)).unwrap();
        file.write_all_at(bytes, at as u64).unwrap();
    }

    /// Does something with one byte of a file turned over.
    fn flipped(&self, name: &str, at: usize, what: impl FnOnce()) {
        let good = self.files[name][at];
        // A single bit is the smallest damage, all of them the greatest.
        self.put(name, at, &[good ^ if at.is_multiple_of(3) { 0xff } else { 1 << (at % 8) }]);
        what();
        self.put(name, at, &[good]);
    }

    /// What `snapshot verify` finds: the file and offset of what is bad.
    fn verify(&self) -> Result<Vec<(String, u64)>, Error> {
        let reports = verify_snapshots(&RealFiles, &self.state, None)?;
        let places = reports.iter().flat_map(|report| &report.bad);
        Ok(places.map(|place| (place.file.file_name().unwrap().to_str().unwrap().to_owned(), place.offset)).collect())
    }

    /// What `run` does, in this process.
    fn run(&self) -> Result<(), Error> {
        let begun = Instant::now();
        loop {
            let job = WordCount {
                input: self.sandbox.input(),
                output: self.sandbox.path("out"),
                emit: Emit::AtEnd,
                rate: None,
                split_bytes: 16 << 20,
            };
            let config = EngineConfig::new().cores("1".parse().unwrap()).state_dir(&self.state);
            let started = Engine::start(config.state_memory_bytes_per_core(16 << 20), job.job());
            match started.and_then(millstream::Running::join) {
                // A process that another test has forked holds copies of this one's locks until it runs its program.
                Err(error) if error.kind() == ErrorKind::Locked && begun.elapsed() < PATIENCE => {
                    std::thread::yield_now()
                }
                ended => return ended.map(drop),
            }
        }
    }

    /// Both refuse the snapshot, and name this file and a place in it.
    #[track_caller]
    fn check_refused(&self, name: &str, run: bool, damage: &str) {
        let check = |error: &Error| {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{damage}: {error}");
            let message = error.message();
            assert!(message.contains(name) && message.contains("offset"), "{damage}: {message}");
        };
        match self.verify() {
            Ok(places) => {
                assert!(!places.is_empty(), "{damage}: verified");
                assert!(places.iter().all(|(file, _)| file == name), "{damage}: {places:?}");
            }
            Err(error) => check(&error),
        }
        if run {
            check(&self.run().expect_err(&format!("{damage}: restored")));
        }
    }

    /// The same through the command.
    #[track_caller]
    fn check_command_refuses(&self, name: &str) {
        check_fails(&mut self.sandbox.word_count(&["--cores", "1"]), CORRUPT, &[name, "offset"]);
        let output = check_fails(millstream(&["snapshot", "verify"]).arg(&self.state), CORRUPT, &[]);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains(name) && (said.contains("at byte") || said.contains("offset")), "{said}");
    }

    #[track_caller]
    fn check_unchanged(&self) {
        assert!(self.read() == self.files, "something was changed");
    }

    /// Whole again, it is as good as before.
    #[track_caller]
    fn check_goes_on(&self) {
        self.check_unchanged();
        assert_eq!(self.verify().unwrap(), []);
        check_succeeds(&mut self.sandbox.word_count(&["--restore", "latest"]));
        self.sandbox.check_output(Emit::AtEnd);
    }
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
}

#[test]
fn every_flipped_byte_is_refused_and_named() {
    let stopped = Stopped::new();
    let places = stopped.places();
    let of = |word: &str| places.iter().filter(|(name, _)| name.contains(word)).count();
    let counts = ["manifest", "segment-", "FORMAT", "RUN"].map(of);
    println!("bytes of manifest, extents, FORMAT and RUN: {counts:?}");
    assert!(counts.into_iter().zip([200, 200, 40, 20]).all(|(count, least)| count > least), "{counts:?}");
    let stride = setting("MILLSTREAM_FLIP_STRIDE", 16);
    for (name, at) in &places {
        let is_record =
            |(segment, range): &(String, Range<usize>)| segment == name && (range.start + 64..range.end).contains(at);
        let run = at.is_multiple_of(stride) || !stopped.extents.iter().any(is_record);
        stopped.flipped(name, *at, || stopped.check_refused(name, run, &format!("byte {at} of {name}")));
    }
    stopped.check_unchanged();
    let mut random = Random::new(setting("MILLSTREAM_SEED", 1) as u64);
    for _ in 0..24 {
        let (name, at) = &places[usize::try_from(random.below(places.len() as u64)).unwrap()];
        println!("byte {at} of {name}");
        stopped.flipped(name, *at, || stopped.check_command_refuses(name));
    }
    stopped.check_goes_on();
}

#[test]
fn bytes_that_no_manifest_names_mean_nothing() {
    let stopped = Stopped::new();
    for (name, bytes) in stopped.files.iter().filter(|(name, _)| name.starts_with("segment-")) {
        let mut flipped: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        for (_, range) in stopped.extents.iter().filter(|(segment, _)| segment == name) {
            flipped[range.clone()].copy_from_slice(&bytes[range.clone()]);
        }
        assert!(flipped != *bytes);
        stopped.put(name, 0, &flipped);
    }
    assert_eq!(stopped.verify().unwrap(), []);
    check_succeeds(millstream(&["snapshot", "verify"]).arg(&stopped.state));
    check_succeeds(&mut stopped.sandbox.word_count(&[]));
    stopped.sandbox.check_output(Emit::AtEnd);
}

#[test]
fn a_file_cut_anywhere_is_refused_and_named() {
    let stopped = Stopped::new();
    let mut cuts: Vec<(&str, usize)> = Vec::new();
    for (name, bytes) in stopped.files.iter().filter(|(name, _)| !name.starts_with("segment-")) {
        cuts.extend((0..bytes.len()).map(|length| (name.as_str(), length)));
    }
    for (name, range) in &stopped.extents {
        let inside = [range.start, range.start + 1, range.start + 63, range.start + 64, range.end - 1];
        cuts.extend(inside.map(|length| (name.as_str(), length)));
    }
    let restore = |name: &str| std::fs::write(stopped.state.join(name), &stopped.files[name]).unwrap();
    for (index, &(name, length)) in cuts.iter().enumerate() {
        std::fs::write(stopped.state.join(name), &stopped.files[name][..length]).unwrap();
        stopped.check_refused(name, index.is_multiple_of(8), &format!("{name} cut to {length} bytes"));
        restore(name);
    }
    for at in (0..cuts.len()).step_by(cuts.len() / 12) {
        let (name, length) = cuts[at];
        std::fs::write(stopped.state.join(name), &stopped.files[name][..length]).unwrap();
        stopped.check_command_refuses(name);
        restore(name);
    }
    // Longer than it says is no better.
    std::fs::write(stopped.state.join(&stopped.manifest), [&*stopped.files[&stopped.manifest], &[0]].concat()).unwrap();
    stopped.check_command_refuses(&stopped.manifest);
    restore(&stopped.manifest);
    stopped.check_goes_on();
}

#[test]
fn a_file_of_somebody_else_under_one_of_our_names_is_refused_and_named() {
    let stopped = Stopped::new();
    let other = Stopped::new();
    check_succeeds(&mut other.sandbox.word_count(&["--cores", "1"]));
    let finished = format!("epoch-{:020}.manifest", other.sandbox.newest_epoch());
    let finished = std::fs::read(other.state.join(finished)).unwrap();
    let mut foreign = millstream_state::format::Manifest::decode(&stopped.files[&stopped.manifest]).unwrap();
    foreign.job = "somebody-elses".to_owned();
    let segment = stopped.extents[0].0.as_str();
    let rows: [(&str, &[u8], &str); 6] = [
        (&stopped.manifest, b"\x89PNG\r\n\x1a\n holiday", "this is no manifest"),
        (&stopped.manifest, &finished, "this is the manifest of epoch"),
        (&stopped.manifest, &foreign.encode(), "somebody-elses"),
        (segment, b"\x89PNG\r\n\x1a\n holiday", ""),
        (segment, &vec![0; stopped.files[segment].len()], ""),
        ("FORMAT", &other.files[&other.manifest], ""),
    ];
    for (name, bytes, why) in rows {
        std::fs::write(stopped.state.join(name), bytes).unwrap();
        stopped.check_command_refuses(name);
        check_fails(&mut stopped.sandbox.word_count(&[]), CORRUPT, &[name, why]);
        std::fs::write(stopped.state.join(name), &stopped.files[name]).unwrap();
    }
    // A file under a name that is none of ours is left alone.
    std::fs::write(stopped.state.join("holiday.jpg"), "not ours").unwrap();
    check_succeeds(&mut stopped.sandbox.word_count(&[]));
    stopped.sandbox.check_output(Emit::AtEnd);
    assert_eq!(std::fs::read(stopped.state.join("holiday.jpg")).unwrap(), b"not ours");
}

#[test]
fn what_is_no_regular_file_is_refused_by_every_command_as_bad_bytes_are() {
    let stopped = Stopped::new();
    let segment = stopped.extents[0].0.as_str();
    // The commands that need the file.
    let rows: [(&str, &[&str]); 4] = [
        (&stopped.manifest, &["list", "show", "verify"]),
        (segment, &["verify"]),
        ("FORMAT", &["list", "verify"]),
        ("RUN", &["list", "verify"]),
    ];
    let elsewhere = stopped.sandbox.path("elsewhere");
    for (name, needed_by) in rows {
        let path = stopped.state.join(name);
        for what in ["a symbolic link", "a pipe", "a directory"] {
            std::fs::rename(&path, &elsewhere).unwrap();
            match what {
                "a symbolic link" => std::os::unix::fs::symlink(&elsewhere, &path).unwrap(),
                "a pipe" => assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success()),
                _ => std::fs::create_dir(&path).unwrap(),
            }
            check_fails(&mut stopped.sandbox.word_count(&["--cores", "1"]), CORRUPT, &[name, "not a regular file"]);
            for command in needed_by {
                let output = check_fails(millstream(&["snapshot", command]).arg(&stopped.state), CORRUPT, &[]);
                let said = text(&output.stdout) + &text(&output.stderr);
                assert!(said.contains(name) && said.contains(&format!("{what}, not a regular file")), "{said}");
            }
            if path.is_dir() { std::fs::remove_dir(&path) } else { std::fs::remove_file(&path) }.unwrap();
            std::fs::rename(&elsewhere, &path).unwrap();
        }
    }
    stopped.check_goes_on();
}

#[test]
fn what_is_noted_of_committed_output_is_checked_by_those_who_only_look_too() {
    let sandbox = Sandbox::small();
    let updates = || sandbox.word_count(&["--emit", "updates"]);
    check_succeeds(&mut updates());
    let path = sandbox.path("state/COMMITTED");
    let good = std::fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        std::fs::write(&path, bad).unwrap();
        let refused = list_snapshots(&RealFiles, &sandbox.path("state")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "byte {at}: {refused}");
    }
    for command in ["list", "verify"] {
        check_fails(millstream(&["snapshot", command]).arg(sandbox.path("state")), CORRUPT, &["COMMITTED", "offset"]);
    }
    check_fails(&mut updates(), CORRUPT, &["COMMITTED", "offset"]);
    std::fs::write(&path, good).unwrap();
    check_succeeds(&mut updates());
}

#[test]
fn a_bad_manifest_is_listed_beside_the_good_ones() {
    let stopped = Stopped::new();
    stopped.flipped(&stopped.manifest, 30, || {
        let list = list_snapshots(&RealFiles, &stopped.state).unwrap();
        assert!(list.epochs.is_empty());
        let [BadEpoch { epoch, what }] = &list.bad[..] else { panic!("{list:?}") };
        assert_eq!(stopped.manifest, millstream_state::format::manifest_file(*epoch));
        assert!(what.contains(&stopped.manifest) && what.contains("offset 8"), "{what}");
        check_fails(millstream(&["snapshot", "list"]).arg(&stopped.state), CORRUPT, &[]);
        check_fails(millstream(&["snapshot", "show"]).arg(&stopped.state), CORRUPT, &[&stopped.manifest]);
    });
    stopped.check_goes_on();
}
