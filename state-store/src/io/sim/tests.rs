//! The simulated disk loses, delays and breaks what a real one may, and nothing else.

use super::*;

fn finish(disk: &mut SimDisk, request: Request) -> io::Result<Done> {
    let token = disk.submit(request);
    loop {
        if let Some(ended) = disk.take(token) {
            return ended;
        }
    }
}

fn create(disk: &mut SimDisk, path: &str, bytes: u64) -> FileId {
    match finish(disk, Request::Create { path: PathBuf::from(path), bytes }).unwrap() {
        Done::Opened(file, _) => file,
        other => panic!("{other:?}"),
    }
}

fn write(disk: &mut SimDisk, file: FileId, offset: u64, fill: u8, bytes: usize) -> io::Result<usize> {
    let mut buffer = disk.buffer(bytes);
    buffer.fill(fill);
    finish(disk, Request::Write { file, offset, buffer }).map(|done| match done {
        Done::Written(buffer, count) => {
            disk.recycle(buffer);
            count
        }
        other => panic!("{other:?}"),
    })
}

fn disk_with_dir(seed: u64, config: SimConfig) -> SimDisk {
    let disk = SimDisk::new(seed, config);
    disk.create_dir_all(Path::new("/d")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    disk
}

#[test]
fn what_was_synced_survives_and_what_was_not_survives_at_random() {
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..100 {
        let mut disk = disk_with_dir(seed, SimConfig::default());
        let file = create(&mut disk, "/d/f", 16_384);
        disk.sync_dir(Path::new("/d")).unwrap();
        write(&mut disk, file, 0, 1, 8192).unwrap();
        finish(&mut disk, Request::Sync(file)).unwrap();
        write(&mut disk, file, 4096, 2, 8192).unwrap();
        assert_eq!(disk.read(Path::new("/d/f")).unwrap()[8191], 2);
        disk.crash();
        let bytes = disk.read(Path::new("/d/f")).unwrap();
        assert_eq!(bytes.len(), 16_384);
        assert!(bytes[..4096].iter().all(|&b| b == 1), "seed {seed}: synced bytes are gone");
        for (sector, old) in [(1, 1), (2, 0)] {
            match bytes[sector * 4096] {
                2 => kept += 1,
                other if other == old => lost += 1,
                other => panic!("seed {seed}: byte {other}"),
            }
            assert!(bytes[sector * 4096..][..4096].iter().all(|&b| b == bytes[sector * 4096]), "torn inside a sector");
        }
    }
    assert!(kept > 50 && lost > 50, "{kept} sectors kept, {lost} lost");
}

#[test]
fn a_name_survives_only_once_its_directory_was_synced() {
    let mut gone = 0;
    for seed in 0..50 {
        let disk = disk_with_dir(seed, SimConfig::default());
        disk.write_durable(Path::new("/d/a"), b"a").unwrap();
        disk.sync_dir(Path::new("/d")).unwrap();
        disk.rename(Path::new("/d/a"), Path::new("/d/b")).unwrap();
        disk.rename(Path::new("/d/b"), Path::new("/d/c")).unwrap();
        disk.crash();
        let names: Vec<_> = disk.list(Path::new("/d")).unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(names.len(), 1, "seed {seed}: a file has one name, never none or two: {names:?}");
        gone += usize::from(names[0] != "c");
    }
    assert!(gone > 5);
}

#[test]
fn a_sync_does_not_cover_a_write_that_was_under_way_when_it_was_submitted() {
    let mut lost = 0;
    for seed in 0..200 {
        let mut disk = disk_with_dir(seed, SimConfig { keep_unsynced: 0.0, ..SimConfig::default() });
        let file = create(&mut disk, "/d/f", 4096);
        finish(&mut disk, Request::Sync(file)).unwrap();
        disk.sync_dir(Path::new("/d")).unwrap();
        let mut buffer = disk.buffer(4096);
        buffer.fill(9);
        let written = disk.submit(Request::Write { file, offset: 0, buffer });
        let synced = disk.submit(Request::Sync(file));
        disk.advance(100);
        assert!(disk.take(written).unwrap().is_ok() && disk.take(synced).unwrap().is_ok());
        disk.crash();
        lost += usize::from(disk.read(Path::new("/d/f")).unwrap()[0] == 0);
    }
    assert!(lost > 100, "lost in {lost} of 200 seeds");
}

#[test]
fn after_a_failed_sync_a_second_one_makes_nothing_durable() {
    let mut disk = disk_with_dir(1, SimConfig { keep_unsynced: 0.0, ..SimConfig::default() });
    let file = create(&mut disk, "/d/f", 4096);
    finish(&mut disk, Request::Sync(file)).unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    write(&mut disk, file, 0, 9, 4096).unwrap();
    disk.configure(|config| config.failed_sync = 1.0);
    assert!(finish(&mut disk, Request::Sync(file)).is_err());
    disk.configure(|config| config.failed_sync = 0.0);
    finish(&mut disk, Request::Sync(file)).unwrap();
    assert_eq!(disk.read(Path::new("/d/f")).unwrap()[0], 9, "still in the cache");
    disk.crash();
    assert_eq!(disk.read(Path::new("/d/f")).unwrap()[0], 0, "the kernel had marked the page clean");
}

#[test]
fn requests_end_out_of_order_and_short() {
    let mut disk = disk_with_dir(3, SimConfig { short_write: 0.5, delay_ticks_max: 200, ..SimConfig::default() });
    let file = create(&mut disk, "/d/f", 1 << 20);
    let tokens: Vec<_> = (0..20u64)
        .map(|i| {
            let buffer = disk.buffer(8192);
            disk.submit(Request::Write { file, offset: i * 8192, buffer })
        })
        .collect();
    assert_eq!(disk.in_flight(), 20);
    let (mut order, mut short) = (Vec::new(), 0);
    while order.len() < tokens.len() {
        for (index, token) in tokens.iter().enumerate() {
            if !order.contains(&index)
                && let Some(ended) = disk.take(*token)
            {
                let Done::Written(_, count) = ended.unwrap() else { panic!("not a write") };
                assert!(count.is_multiple_of(512) && count <= 8192);
                short += usize::from(count < 8192);
                order.push(index);
            }
        }
    }
    assert!(!order.is_sorted(), "{order:?}");
    assert!(short > 3, "{short} short");
    assert_eq!(disk.in_flight(), 0);
}

#[test]
fn one_seed_is_one_run() {
    let run = |seed| {
        let mut disk = disk_with_dir(seed, SimConfig { keep_unsynced: 0.5, ..SimConfig::failing() });
        for i in 0..30 {
            let path = PathBuf::from(format!("/d/{i}"));
            if let Ok(Done::Opened(file, _)) = finish(&mut disk, Request::Create { path, bytes: 65_536 }) {
                let _ = write(&mut disk, file, 4096, 5, 16_384);
                let _ = finish(&mut disk, Request::Sync(file));
            }
            let _ = disk.sync_dir(Path::new("/d"));
        }
        disk.crash();
        (disk.fingerprint(), disk.faults())
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
}

#[test]
fn a_planned_loss_of_power_stops_everything_until_the_crash() {
    let disk = disk_with_dir(5, SimConfig::default());
    disk.lose_power_after(1);
    assert!(disk.write_durable(Path::new("/d/f"), b"x").is_err(), "the sync is the second step");
    assert!(disk.list(Path::new("/d")).is_err());
    assert!(!disk.is_powered());
    disk.crash();
    disk.list(Path::new("/d")).unwrap();
}

#[test]
fn a_request_from_before_a_crash_ends_in_an_error() {
    let mut disk = disk_with_dir(5, SimConfig::default());
    let token = disk.submit(Request::OpenRead(PathBuf::from("/d/f")));
    disk.crash();
    assert!(disk.take(token).unwrap().is_err());
}

#[test]
fn a_full_disk_has_room_again_once_files_are_gone() {
    let disk = disk_with_dir(5, SimConfig { capacity_bytes: 10_000, ..SimConfig::default() });
    disk.write_durable(Path::new("/d/a"), &[1; 8000]).unwrap();
    let error = disk.write_durable(Path::new("/d/b"), &[1; 8000]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    disk.remove(Path::new("/d/a")).unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    disk.write_durable(Path::new("/d/b"), &[1; 8000]).unwrap();
}

#[test]
fn a_lock_is_free_after_its_guard_is_dropped_or_the_power_was_lost() {
    let disk = disk_with_dir(5, SimConfig::default());
    let path = Path::new("/d/LOCK");
    let first = disk.lock(path).unwrap();
    assert_eq!(disk.lock(path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop(first);
    disk.sync_dir(Path::new("/d")).unwrap();
    let before = disk.lock(path).unwrap();
    disk.crash();
    let after = disk.lock(path).unwrap();
    drop(before);
    assert!(disk.lock(path).is_err(), "a guard from before the crash frees nothing");
    drop(after);
}
