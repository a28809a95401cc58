//! Bytes of version 1 as they are (golden files), and decoders that accept no others.

use super::*;
use crate::StateId;
use crate::epoch::Epoch;
use crate::key_group::{KeyGroupCount, KeyGroupRange};
use crate::value::{Field, Schema};
use proptest::prelude::*;

fn header(kind: ExtentKind, table: u32, payload_bytes: u32) -> ExtentHeader {
    ExtentHeader {
        kind,
        payload_bytes,
        table,
        shard: 1,
        run: 3,
        groups: KeyGroupRange { start: 8, end: 16 },
        born: Epoch(7),
        sequence: 11,
        schema: 0x0123_4567_89ab_cdef,
        address: 0xfedc_ba98_7654_3210,
    }
}

fn extent(payload: &[u8]) -> Vec<u8> {
    let header = header(ExtentKind::Pages, 5, u32::try_from(payload.len()).unwrap());
    let mut bytes = [&[0; ExtentHeader::SIZE], payload].concat();
    header.seal(&mut bytes);
    bytes
}

fn entry(kind: ExtentKind, table: u32, offset: u64) -> ExtentEntry {
    let segment = SegmentId { run: 3, shard: 1, number: 2 };
    ExtentEntry { segment, offset, crc32: 0xdead_beef, header: header(kind, table, 192) }
}

fn manifest() -> Manifest {
    let word = Schema::Struct {
        name: "Word".to_owned(),
        fields: vec![Field::new(9, "text", Schema::Optional(Box::new(Schema::Text)))],
    };
    let mut manifest = Manifest {
        job: "word-count".to_owned(),
        run: 4,
        epoch: Epoch(9),
        key_groups: KeyGroupCount::new(16).unwrap(),
        ended: true,
        tables: vec![
            TableEntry {
                id: 5,
                name: "counts".to_owned(),
                key: Schema::Text,
                value: Schema::Unsigned(8),
                clock_ms: None,
            },
            TableEntry {
                id: 6,
                name: "seen".to_owned(),
                key: Schema::Signed(4),
                value: word.clone(),
                clock_ms: Some(-1),
            },
        ],
        shards: vec![vec![entry(ExtentKind::Pages, 5, 0), entry(ExtentKind::Pages, 6, 256)], vec![]],
        channel_logs: vec![ChannelLog {
            id: 2,
            edge: "split-to-count".to_owned(),
            from: 0,
            to: 1,
            record: word,
            extents: vec![entry(ExtentKind::ChannelLog, 2, 512)],
        }],
        blobs: vec![Blob { name: "source".to_owned(), shard: 1, bytes: vec![1, 2, 3] }],
        outputs: vec![PreparedOutput { sink: "files".to_owned(), epoch: Epoch(8), shard: 0, bytes: vec![4, 5] }],
        segments: vec![],
    };
    manifest.list_segments();
    manifest
}

fn golden(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/format/golden").join(name)
}

/// Compares with the bytes in the repository. `MILLSTREAM_WRITE_GOLDEN=1` writes them, for a new version only.
fn check_golden(name: &str, bytes: &[u8]) {
    let path = golden(name);
    if std::env::var_os("MILLSTREAM_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, bytes).unwrap();
    }
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "{name}: the bytes of version 1 have changed");
}

#[test]
fn the_bytes_of_version_1_are_those_in_the_repository() {
    check_golden("manifest-1.bin", &manifest().encode());
    check_golden("extent-1.bin", &extent(b"sixteen bytes ok"));
    check_golden(
        "FORMAT-1",
        &FormatMarker { version: 1, job: "word-count".to_owned(), state: StateId(0x3f9a_2c71) }.encode(),
    );
    check_golden("RUN-1", &RunMarker { run: 4 }.encode());
    check_golden("COMMITTED-1", &CommittedMarker { epoch: Epoch(12) }.encode());
}

#[test]
fn the_document_tells_sizes_and_hashes_as_they_are() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/FORMAT.md");
    let document = std::fs::read_to_string(path).unwrap();
    let mut hashes = 0;
    for line in document.lines() {
        let cells: Vec<&str> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [_, key, hash, _] = cells[..] else { continue };
        let Ok(hash) = u64::from_str_radix(hash, 16) else { continue };
        let key = key.replace("\\x01", "\x01").replace("\\0", "\0");
        assert_eq!(crate::hash::hash_bytes(key.as_bytes()), hash, "{key:?}");
        hashes += 1;
    }
    assert_eq!(hashes, 10);
    for fact in [
        format!("Header, {} bytes", Manifest::HEADER_BYTES),
        format!("Entry of an extent, {} bytes", ExtentEntry::SIZE),
        format!("a header of {} bytes", ExtentHeader::SIZE),
        format!("At most {} MiB together", EXTENT_BYTES_MAX >> 20),
        format!("Format version {FORMAT_VERSION}."),
        FORMAT_FILE.to_owned(),
    ] {
        assert!(document.contains(&fact), "{fact}");
    }
    for marker in ["FORMAT-1", "RUN-1", "COMMITTED-1"] {
        let text = std::fs::read_to_string(golden(marker)).unwrap();
        text.lines().for_each(|line| assert!(document.contains(line), "{marker}: {line}"));
    }
}

#[test]
fn what_is_encoded_decodes_to_the_same() {
    let manifest = manifest();
    assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
    let bytes = extent(&[7; 100]);
    let (header, crc32) = ExtentHeader::open(&bytes).unwrap();
    assert_eq!((header.payload_bytes, header.born), (100, Epoch(7)));
    let mut hasher = header.crc_seed();
    hasher.update(&bytes[64..]);
    assert_eq!(hasher.finalize(), crc32, "the CRC may be computed in steps");
    assert_eq!(header.encode(crc32), bytes[..64]);
    let empty = Manifest::empty("job", KeyGroupCount::DEFAULT, 3);
    assert_eq!(Manifest::decode(&empty.encode()), Ok(empty));
}

/// Every byte flipped, every bit alone for small ones, and every truncation, is refused.
#[track_caller]
fn check_refused<T: std::fmt::Debug>(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<T, BadFormat>) {
    decode(bytes).expect("the bytes are good before they are changed");
    for at in 0..bytes.len() {
        for flip in [0xff, 1 << (at % 8)] {
            let mut bad = bytes.to_vec();
            bad[at] ^= flip;
            let error = decode(&bad).expect_err(&format!("byte {at} flipped by {flip:#x}"));
            assert!(error.offset <= bytes.len() as u64, "{error}");
        }
        decode(&bytes[..at]).expect_err(&format!("cut to {at} bytes"));
    }
    let longer = [bytes, b"\0"].concat();
    decode(&longer).expect_err("one byte too many");
}

#[test]
fn a_flipped_byte_or_a_truncation_is_refused() {
    check_refused(&manifest().encode(), Manifest::decode);
    check_refused(&extent(b"some records"), ExtentHeader::open);
    check_refused(&FormatMarker { version: 1, job: "a".to_owned(), state: StateId(7) }.encode(), FormatMarker::decode);
    check_refused(&RunMarker { run: 17 }.encode(), RunMarker::decode);
    check_refused(&CommittedMarker { epoch: Epoch(17) }.encode(), CommittedMarker::decode);
}

#[test]
fn an_entry_is_at_odds_with_another_extent_or_another_header() {
    let bytes = extent(b"some records");
    let (header, crc32) = ExtentHeader::open(&bytes).unwrap();
    let good = ExtentEntry { segment: SegmentId { run: 3, shard: 1, number: 2 }, offset: 0, crc32, header };
    good.check(&bytes).unwrap();
    let fewer = KeyGroupRange { start: 9, end: 12 };
    ExtentEntry { header: ExtentHeader { groups: fewer, ..header }, ..good }.check(&bytes).unwrap();
    let more = KeyGroupRange { start: 8, end: 17 };
    for bad in [
        ExtentEntry { crc32: crc32 ^ 1, ..good },
        ExtentEntry { header: ExtentHeader { groups: more, ..header }, ..good },
        ExtentEntry { header: ExtentHeader { born: Epoch(6), ..header }, ..good },
        ExtentEntry { header: ExtentHeader { table: 6, ..header }, ..good },
        ExtentEntry { header: ExtentHeader { run: 4, ..header }, ..good },
    ] {
        bad.check(&bytes).unwrap_err();
    }
}

/// Puts the right length and CRC on a body, so that what refuses it is the decoding of the body.
fn sealed(body: &[u8]) -> Vec<u8> {
    let mut bytes = manifest().encode();
    bytes.truncate(Manifest::HEADER_BYTES);
    bytes[16..24].copy_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(body);
    let crc32 = crc32fast::hash(&bytes[12..]);
    bytes[8..12].copy_from_slice(&crc32.to_le_bytes());
    bytes
}

#[test]
fn a_manifest_at_odds_with_itself_is_refused_although_its_crc_is_right() {
    #[track_caller]
    fn check(change: impl FnOnce(&mut Manifest), expected: &str) {
        let mut bad = manifest();
        change(&mut bad);
        let mut body = Vec::new();
        bad.encode_body_for_tests(&mut body);
        let error = Manifest::decode(&sealed(&body)).unwrap_err();
        assert!(error.what.contains(expected), "{error}");
    }
    check(|m| m.segments.clear(), "not listed");
    check(|m| m.segments[0].bytes -= 1, "beyond its file");
    check(|m| m.shards[0][0].offset = u64::MAX - 63, "beyond its file");
    check(|m| m.shards[0][0].offset += 4, "not aligned");
    check(|m| m.shards[0][0].header.kind = ExtentKind::ChannelLog, "wrong kind");
    check(|m| m.shards[0][0].header.table = 77, "not listed");
    check(|m| m.shards[0][0].header.groups.end = 17, "bad key groups");
    check(|m| m.shards[0][0].header.born = Epoch(10), "after the epoch");
    check(|m| m.tables[1].id = 5, "twice");
    check(|m| m.tables[1].name = "counts".to_owned(), "twice");
    check(|m| m.channel_logs[0].to = 2, "shards");
    check(|m| m.channel_logs[0].id = 3, "listed under");
    check(|m| m.outputs[0].epoch = Epoch(10), "later epoch");
    check(|m| m.job = ".hidden".to_owned(), "dot");
    check(|m| m.segments.push(m.segments[0]), "order");
}

#[test]
fn names_of_files_are_read_back() {
    let segment = SegmentId { run: 12, shard: 3, number: u32::MAX };
    for (name, expected) in [
        (FORMAT_FILE.to_owned(), Some(FileName::Format)),
        (LOCK_FILE.to_owned(), Some(FileName::Lock)),
        (RUN_FILE.to_owned(), Some(FileName::Run)),
        (COMMITTED_FILE.to_owned(), Some(FileName::Committed)),
        (COMMITTED_TEMPORARY_FILE.to_owned(), Some(FileName::Temporary)),
        (RUN_TEMPORARY_FILE.to_owned(), Some(FileName::Temporary)),
        (format_temporary_file(), Some(FileName::Temporary)),
        (manifest_file(Epoch(u64::MAX)), Some(FileName::Manifest(Epoch(u64::MAX)))),
        (manifest_temporary_file(Epoch(3)), Some(FileName::ManifestTemporary(Epoch(3)))),
        (segment_file(segment), Some(FileName::Segment(segment))),
        ("epoch-3.manifest".to_owned(), None),
        ("epoch-00000000000000000003.manifest.bak".to_owned(), None),
        ("segment-1-2-3".to_owned(), None),
        ("segment-".to_owned(), None),
        ("notes.txt".to_owned(), None),
        (String::new(), None),
    ] {
        assert_eq!(FileName::parse(&name), expected, "{name}");
    }
}

#[test]
fn names_of_jobs_and_states_are_plain() {
    for good in ["a", "word-count", "A.b_c-9", &"x".repeat(128)] {
        check_name(good).unwrap();
    }
    for bad in ["", ".", ".a", "a/b", "..", "a b", "ä", "a\n", &"x".repeat(129)] {
        check_name(bad).unwrap_err();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Manifest::decode(&bytes);
        let _ = Manifest::decode(&sealed(&bytes));
        let _ = ExtentHeader::open(&bytes);
        let _ = ExtentHeader::decode(&[b"MsEx".as_slice(), &bytes].concat());
        let _ = FormatMarker::decode(&bytes);
        let _ = CommittedMarker::decode(&bytes);
        let _ = RunMarker::decode(&bytes);
        let _ = FileName::parse(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn a_changed_body_with_a_right_crc_never_panics_and_reads_back_as_it_was(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let good = manifest().encode();
        let mut body = good[Manifest::HEADER_BYTES..].to_vec();
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        let bytes = sealed(&body);
        if let Ok(manifest) = Manifest::decode(&bytes) {
            prop_assert_eq!(manifest.encode(), bytes, "two encodings of one manifest");
        }
    }
}
