//! Whatever the bytes and the splits, the lines of a file are those that the standard library finds, each in one split.

use super::*;
use crate::source::{Polled, Position, ReadContext, Reader};
use millstream_state::io::sim::{SimConfig, SimDisk};
use millstream_state::io::{BlockingDisk, Disk, Files};
use proptest::prelude::*;

/// What a whole file holds, by the standard library's words.
fn lines_of(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> = bytes.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    let last = lines.pop().expect("a split has a last part");
    for line in &mut lines {
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    }
    if !last.is_empty() {
        lines.push(last);
    }
    lines
}

fn disk_with(files: &[(&str, &[u8])], config: SimConfig, seed: u64) -> (SimDisk, Vec<(PathBuf, u64)>) {
    let disk = SimDisk::new(seed, SimConfig::default());
    let mut listed = Vec::new();
    for (name, bytes) in files {
        disk.write_durable(Path::new(name), bytes).unwrap();
        listed.push((PathBuf::from(name), bytes.len() as u64));
    }
    disk.configure(|now| *now = config);
    (disk, listed)
}

fn source(listed: &[(PathBuf, u64)], split_bytes: u64) -> FileSource<ByteLines> {
    FileSource::listed(listed.to_vec()).split_bytes(split_bytes).block_bytes(4096)
}

/// Polls until `stop` lines were seen or the end; returns them and the splits as they are then.
fn read<L: LineItems>(
    reader: &mut FileReader<L>,
    disk: &mut dyn Disk,
    max: usize,
    stop: usize,
    mut take: impl FnMut(L::Of<'_>),
) -> Result<bool> {
    let mut seen = 0;
    let mut idle = 0;
    while seen < stop {
        let mut cx = ReadContext { disk, now_ns: 0 };
        match reader.poll(&mut cx, max.min(stop - seen), &mut |line| take(line))? {
            Polled::Records(count) => {
                seen += count;
                idle = 0;
            }
            Polled::Pending { .. } => {
                idle += 1;
                assert!(idle < 1_000_000, "stuck at {}", reader.place());
            }
            Polled::Ended => return Ok(true),
        }
    }
    Ok(false)
}

fn splits_of<L: LineItems>(reader: &FileReader<L>) -> Vec<Split> {
    let mut splits = Vec::new();
    reader.splits(&mut splits);
    splits
}

fn read_all(source: &FileSource<ByteLines>, splits: Vec<Split>, disk: &mut dyn Disk) -> Vec<Vec<u8>> {
    let mut reader = source.open(0, 1, splits).unwrap();
    let mut lines = Vec::new();
    assert!(read(&mut reader, disk, 7, usize::MAX, |line| lines.push(line.to_vec())).unwrap());
    assert_eq!(reader.remaining(), Some(0));
    assert!(splits_of(&reader).iter().all(|split| split.ended));
    assert_eq!(disk.in_flight(), 0, "everything asked for was taken");
    lines
}

/// Every split size, with all splits on one reader in order, equals the whole file; so does a new reader per split.
#[track_caller]
fn check(bytes: &[u8]) {
    let expected = lines_of(bytes);
    for split_bytes in 1..=bytes.len().max(1) as u64 + 1 {
        let (mut disk, listed) = disk_with(&[("a.txt", bytes)], SimConfig::default(), split_bytes);
        let source = source(&listed, split_bytes);
        let splits = if bytes.is_empty() { Vec::new() } else { source.splits(1).unwrap() };
        assert_eq!(read_all(&source, splits.clone(), &mut disk), expected, "splits of {split_bytes} bytes");
        let apart: Vec<Vec<u8>> =
            splits.into_iter().flat_map(|split| read_all(&source, vec![split], &mut disk)).collect();
        assert_eq!(apart, expected, "splits of {split_bytes} bytes, each alone");
    }
}

#[test]
fn every_cut_gives_every_line_once() {
    check(b"");
    check(b"\n");
    check(b"\n\n\n");
    check(b"a");
    check(b"a\n");
    check(b"a\nb");
    check(b"one\n\ntwo\r\n\r\nthree\r");
    check(b"\r\n");
    check(b"one line that is longer than most of the splits\nand another\nx");
}

#[test]
fn a_reader_resumes_at_every_line() {
    let bytes = b"one\n\ntwo\r\nthree is longer\n\r\nlast";
    let expected = lines_of(bytes);
    for split_bytes in [1, 2, 5, 8, 64] {
        let (mut disk, listed) = disk_with(&[("a.txt", bytes)], SimConfig::default(), 1);
        let source = source(&listed, split_bytes);
        for stop in 0..=expected.len() {
            let mut lines = Vec::new();
            let mut reader = source.open(0, 1, source.splits(1).unwrap()).unwrap();
            read(&mut reader, &mut disk, 3, stop, |line| lines.push(line.to_vec())).unwrap();
            assert_eq!(lines.len(), stop);
            // The reader is gone with what it had under way; its positions are all that is left.
            let mut disk = disk.fork(2);
            lines.extend(read_all(&source, splits_of(&reader), &mut disk));
            assert_eq!(lines, expected, "splits of {split_bytes} bytes, resumed after {stop} lines");
        }
    }
}

#[test]
fn many_files_are_read_in_order_and_the_empty_ones_have_no_split() {
    let texts: Vec<(String, Vec<u8>)> =
        (0..40_usize).map(|n| (format!("{n:02}.txt"), format!("file {n}\n").repeat(n * n).into_bytes())).collect();
    let files: Vec<(&str, &[u8])> = texts.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let (mut disk, listed) = disk_with(&files, SimConfig::default(), 3);
    let source = source(&listed, 5000);
    let splits = source.splits(4).unwrap();
    assert!(splits.iter().all(|split| !split.id.starts_with("00.txt")));
    let expected: Vec<Vec<u8>> = texts.iter().flat_map(|(_, bytes)| lines_of(bytes)).collect();
    assert_eq!(read_all(&source, splits, &mut disk), expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_text_any_split_any_stop_on_a_disk_that_returns_short(
        lengths in prop::collection::vec((0..9000_usize, 0..3_usize), 0..12),
        split_bytes in 64..20_000_u64,
        stop in 0..12_usize,
        seed in 0..u64::MAX,
    ) {
        let mut bytes = Vec::new();
        for (nth, (length, end)) in lengths.into_iter().enumerate() {
            bytes.extend((0..length).map(|at| b'a' + u8::try_from((at + nth) % 26).unwrap()));
            bytes.extend_from_slice([&b"\n"[..], b"\r\n", b"\n\n"][end]);
        }
        bytes.extend_from_slice(b"without an end");
        let expected = lines_of(&bytes);
        let stop = stop.min(expected.len());
        let config = SimConfig { short_read: 0.3, ..SimConfig::default() };
        let (mut disk, listed) = disk_with(&[("a.txt", &bytes)], config, seed);
        let source = source(&listed, split_bytes);
        let mut lines = Vec::new();
        let mut reader = source.open(0, 1, source.splits(1).unwrap()).unwrap();
        read(&mut reader, &mut disk, 5, stop, |line| lines.push(line.to_vec())).unwrap();
        let left = reader.remaining().unwrap();
        prop_assert!(left <= bytes.len() as u64);
        let mut disk = disk.fork(seed);
        lines.extend(read_all(&source, splits_of(&reader), &mut disk));
        prop_assert_eq!(lines, expected);
    }
}

#[track_caller]
fn check_text(policy: InvalidText, bytes: &[u8], expected: &[&str], counted: u64) {
    let (mut disk, listed) = disk_with(&[("a.txt", bytes)], SimConfig::default(), 1);
    let source = FileSource::<Lines>::listed(listed).invalid_text(policy);
    let counter = source.invalid_lines();
    let mut lines = Vec::new();
    let mut reader = source.open(0, 1, source.splits(1).unwrap()).unwrap();
    read(&mut reader, &mut disk, 100, usize::MAX, |line| lines.push(line.to_owned())).unwrap();
    assert_eq!(lines, expected);
    assert_eq!(counter.get(), counted);
}

#[test]
fn text_that_is_not_utf8_follows_the_policy() {
    let bad = b"one\ntw\xffo\nthr\xc3\xa9e\n\xc3\nfour";
    check_text(InvalidText::Fail, "häuser\n\nплюс\r\n".as_bytes(), &["häuser", "", "плюс"], 0);
    check_text(InvalidText::Skip, bad, &["one", "thrée", "four"], 2);
    check_text(InvalidText::Replace, bad, &["one", "tw\u{fffd}o", "thrée", "\u{fffd}", "four"], 2);
}

#[track_caller]
fn check_error<L: LineItems>(source: FileSource<L>, disk: &mut dyn Disk, kind: crate::ErrorKind, parts: &[&str]) {
    let mut reader = source.open(0, 1, source.splits(1).unwrap()).unwrap();
    let error = read(&mut reader, disk, 100, usize::MAX, |_| {}).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.message().contains(part), "{error} does not say {part}");
    }
}

#[test]
fn input_that_cannot_be_read_is_an_error_that_says_where() {
    use crate::ErrorKind::{Exhausted, Invalid, Unavailable};
    let (mut disk, listed) = disk_with(&[("dir.txt", b"ok\ntw\xffo\n")], SimConfig::default(), 1);
    check_error(FileSource::<Lines>::listed(listed.clone()), &mut disk, Invalid, &["dir.txt", "byte 5", "UTF-8"]);

    for long in [b"ok\n0123456789abcdef\n".to_vec(), [b"ok\n".as_slice(), &[b'x'; 9000]].concat()] {
        let (mut disk, listed) = disk_with(&[("a.txt", &long)], SimConfig::default(), 1);
        let source = source(&listed, 1 << 20).line_bytes_max(15);
        check_error(source, &mut disk, Exhausted, &["a.txt", "byte 3", "15 bytes", "line_bytes_max"]);
    }

    let (mut disk, mut listed) = disk_with(&[("a.txt", b"one\n")], SimConfig::default(), 1);
    listed[0].1 = 9;
    check_error(source(&listed, 64), &mut disk, Unavailable, &["a.txt", "byte 4", "9 bytes"]);
    listed[0].0 = "gone.txt".into();
    check_error(source(&listed, 64), &mut disk, Unavailable, &["gone.txt", "cannot be read"]);
}

#[test]
fn a_line_of_just_the_limit_is_taken() {
    let (mut disk, listed) = disk_with(&[("a.txt", b"0123\n56789\n")], SimConfig::default(), 1);
    let source = source(&listed, 64).line_bytes_max(5);
    assert_eq!(read_all(&source, source.splits(1).unwrap(), &mut disk).len(), 2);
}

#[test]
fn a_glob_finds_files_sorted_and_absolute_and_names_what_it_cannot_take() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [("b.txt", "b\n"), ("a.txt", "a\n"), ("empty.txt", ""), ("c.log", "c\n")] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    std::fs::create_dir(dir.path().join("sub.txt")).unwrap();
    let glob = |pattern: &str| dir.path().join(pattern).display().to_string();

    let source = FileSource::byte_lines(glob("*.txt"));
    let splits = source.splits(2).unwrap();
    let names: Vec<&str> = splits.iter().map(|split| split.id.rsplit('/').nth(1).unwrap()).collect();
    assert_eq!(names, ["a.txt@0-2", "b.txt@0-2"]);
    assert!(splits[0].id.starts_with('/'));
    assert_eq!(read_all(&source, splits, &mut BlockingDisk::new()), [b"a", b"b"]);

    for (pattern, part) in [
        ("*.csv", "no file matches"),
        ("gone.txt", "no file matches"),
        ("sub.txt", "is a directory"),
        ("[", "no pattern"),
    ] {
        let error = FileSource::lines(glob(pattern)).splits(1).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Invalid);
        assert!(error.message().contains(part) && error.message().contains(pattern), "{error}");
    }
}

/// Restores with `known` positions over files as they are now; the new splits or the error, as text.
fn new_splits(known: &[(&str, u64, bool)], now: &[(&str, u64)]) -> String {
    let known: Vec<Split> =
        known.iter().map(|&(id, position, ended)| Split { id: id.into(), position: position.into(), ended }).collect();
    let listed: Vec<(PathBuf, u64)> = now.iter().map(|&(name, bytes)| (name.into(), bytes)).collect();
    match source(&listed, 4).new_splits(1, &known) {
        Ok(splits) => splits.into_iter().map(|split| split.id).collect::<Vec<_>>().join(" "),
        Err(error) => error.to_string(),
    }
}

#[test]
fn after_a_restore_only_files_that_are_new_are_listed_and_changed_ones_refused() {
    assert_eq!(new_splits(&[("a@0-6/6", 3, false)], &[("a", 6)]), "", "also with other splits than now");
    assert_eq!(new_splits(&[("a@0-4/6", 4, true), ("a@4-6/6", 4, false)], &[("a", 6), ("b", 5)]), "b@0-4/5 b@4-5/5");
    assert_eq!(new_splits(&[("a@0-6/6", 6, true)], &[]), "", "what was read may go");
    for (known, now) in [(("a@0-6/6", 3, false), ("a", 5)), (("a@0-6/6", 6, true), ("a", 9))] {
        assert!(new_splits(&[known], &[now]).contains("it had 6 when"));
    }
    assert!(new_splits(&[("a@0-6/6", 3, false)], &[]).contains("a: the file is not read to its end"));
    assert!(new_splits(&[("slice 3", 3, false)], &[]).contains("from another source"));
}

#[test]
fn a_position_outside_its_split_is_refused() {
    for position in [&[1, 2, 3][..], &3_u64.to_le_bytes(), &99_u64.to_le_bytes()] {
        let split = Split { id: "a@4-8/9".into(), position: Position::new(position), ended: false };
        assert!(source(&[], 4).open(0, 1, vec![split]).is_err());
    }
}
