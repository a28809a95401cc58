//! A disk that runs full under a job, and has room again: the job goes on, in flat memory, and loses nothing.
//!
//! Needs a small filesystem of its own; where none can be mounted the tests say so and pass.

mod common;

use common::*;
use millstream::operator::Emit;
use std::path::Path;

/// A filesystem of its own on a few megabytes of memory or of a file; unmounted when dropped.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(sandbox: &Sandbox, megabytes: u64) -> Result<Self, String> {
        let run = |command: &mut std::process::Command| match command.output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(format!("{command:?}: {}", text(&output.stderr))),
            Err(error) => Err(format!("{command:?}: {error}")),
        };
        let (image, at) = (sandbox.path("disk.img"), sandbox.path("disk"));
        std::fs::create_dir(&at).unwrap();
        std::fs::File::create(&image).unwrap().set_len(megabytes << 20).unwrap();
        run(std::process::Command::new("mkfs.ext4").args(["-q", "-F", "-O", "^has_journal"]).arg(&image))?;
        run(std::process::Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at))?;
        Ok(Self(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

fn rss_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Fills what is left of a disk.
fn fill(disk: &Path) -> std::path::PathBuf {
    let path = disk.join("ballast");
    let mut file = std::fs::File::create(&path).unwrap();
    for block in [1 << 20, 4096, 512] {
        while std::io::Write::write_all(&mut file, &vec![7; block]).is_ok() {}
    }
    let _ = file.sync_all();
    path
}

/// The directory `full` ("out" or "state") lies on a disk that runs full and is given room again.
fn check_full_disk(full: &str) {
    let sandbox = Sandbox::lines(120_000);
    let disk = match SmallDisk::mount(&sandbox, 96) {
        Ok(disk) => disk,
        Err(why) => {
            println!("skipped, no filesystem of its own can be mounted here: {why}");
            return;
        }
    };
    std::os::unix::fs::symlink(disk.0.join(full), sandbox.path(full)).unwrap();
    std::fs::create_dir(disk.0.join(full)).unwrap();
    // The memory for state is faulted in before the first record: what is added later is for want of a disk.
    let args = ["--emit", "updates", "--rate", "15k", "--progress", "plain", "--cores", "2", "--prefault"];
    let mut job = Started::new(&mut sandbox.word_count(&args));
    assert!(job.wait_for("started"), "{:?}", job.wait());
    sandbox.wait_for_epoch(2);
    let ballast = fill(&disk.0);
    assert!(job.wait_for("failed"), "{}", job.wait().1);
    let (stuck, before) = (sandbox.newest_epoch(), rss_kib(job.id()));
    for _ in 0..3 {
        assert!(job.wait_for("FAILED"), "{}", job.wait().1);
    }
    assert!(!job.has_ended());
    let grown = rss_kib(job.id()).saturating_sub(before);
    // Three seconds of output that is not durable are about 5 MB; each shard pushes back at 64 MiB of it.
    assert!(grown < 48 << 10, "{grown} KiB more than when the disk became full");
    std::fs::remove_file(ballast).unwrap();
    sandbox.wait_for_epoch(stuck + 1);
    let (status, said) = job.wait();
    assert!(status.success(), "{said}");
    sandbox.check_output(Emit::Updates);
}

#[test]
fn a_full_disk_under_the_state_fails_epochs_and_not_the_job() {
    check_full_disk("state");
}

#[test]
fn a_full_disk_under_the_output_fails_epochs_and_not_the_job() {
    check_full_disk("out");
}

#[test]
fn a_disk_that_stays_full_to_the_end_leaves_the_job_uncommitted_and_a_later_run_completes_it() {
    let sandbox = Sandbox::lines(30_000);
    let disk = match SmallDisk::mount(&sandbox, 64) {
        Ok(disk) => disk,
        Err(why) => {
            println!("skipped, no filesystem of its own can be mounted here: {why}");
            return;
        }
    };
    std::fs::create_dir(disk.0.join("out")).unwrap();
    std::os::unix::fs::symlink(disk.0.join("out"), sandbox.path("out")).unwrap();
    let args = ["--rate", "15k", "--progress", "plain", "--cores", "2", "--final-epoch-patience", "1s"];
    let mut job = Started::new(&mut sandbox.word_count(&args));
    assert!(job.wait_for("started"), "{:?}", job.wait());
    let ballast = fill(&disk.0);
    let (status, said) = job.wait();
    assert_eq!(status.code(), Some(8), "{said}");
    assert!(said.contains("could not be completed and committed"), "{said}");
    std::fs::remove_file(ballast).unwrap();
    check_succeeds(&mut sandbox.word_count(&[]));
    sandbox.check_output(Emit::AtEnd);
}
