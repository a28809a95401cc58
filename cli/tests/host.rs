//! A host that does not give what a job needs: io_uring forbidden, too little memory to lock, files of somebody else.
//!
//! Root may do nearly everything, so where these tests run as root the command runs as nobody. A filter of system calls is
//! set on a thread of its own and is passed on to what it starts.

mod common;

use common::*;
use millstream::operator::Emit;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Bad usage or set-up: nothing was started.
const INVALID: i32 = 2;
/// `doctor`: a job cannot run here.
const CHECK_FAILED: i32 = 1;

/// The same number on every architecture.
const IO_URING_SETUP: i64 = 425;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// Does something where setting up a ring fails with `errno`.
fn without_io_uring(errno: u32, what: impl FnOnce() + Send) {
    let rules = [(IO_URING_SETUP, Vec::new())].into_iter().collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno), arch).unwrap();
    let filter: BpfProgram = filter.try_into().unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            apply_filter(&filter).unwrap();
            what();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// What `doctor --json` says to one check: what it found, and the fix.
#[track_caller]
fn doctor(command: &mut Command, check: &str) -> (String, String) {
    let output = check_fails(command.arg("--json"), CHECK_FAILED, &[]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let finding = findings.iter().find(|finding| finding["check"] == check).unwrap();
    assert_eq!(finding["level"], "problem", "{finding}");
    let text = |field: &str| finding[field].as_str().unwrap().to_owned();
    (text("found"), text("fix"))
}

#[test]
fn io_uring_forbidden_is_explained_with_the_fix_before_anything_is_made() {
    for (errno, cause) in [(EPERM, "forbidden"), (ENOSYS, "not there")] {
        let sandbox = Sandbox::small();
        without_io_uring(errno, || {
            let (found, fix) = doctor(&mut millstream(&["doctor"]), "io_uring");
            assert!(found.contains(cause) && found.contains("seccomp filter"), "{found}");
            assert!(fix.contains("--security-opt seccomp=unconfined"), "{fix}");
            let output = check_fails(&mut sandbox.word_count(&[]), INVALID, &["io_uring is", &found, &fix]);
            assert_eq!(text(&output.stderr).lines().count(), 1, "{}", text(&output.stderr));
            assert!(!sandbox.path("out").exists() && !sandbox.path("state").exists());
            check_fails(&mut millstream(&["bench", "keyed-count", "--cores", "1"]), INVALID, &[&fix]);
        });
        // Without the filter all is well; and what was counted can be looked at behind one.
        check_succeeds(&mut sandbox.word_count(&[]));
        sandbox.check_output(Emit::AtEnd);
        without_io_uring(errno, || {
            check_succeeds(millstream(&["snapshot", "verify"]).arg(sandbox.path("state")));
        });
    }
}

/// The command as a user without privileges, with these words for a shell before it.
///
/// `None`, and a word why, where that user cannot even reach the command.
fn as_nobody(sandbox: &Sandbox, first: &str, command: &Command) -> Option<Command> {
    const NOBODY: u32 = 65534;
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{first}exec \"$0\" \"$@\"")]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    if rustix::process::geteuid().is_root() {
        let root = sandbox.path("");
        chown(&root, Some(NOBODY), Some(NOBODY)).unwrap();
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut reach = Command::new("sh");
        reach.args(["-c", "cd \"$0\" && test -x \"$1\""]).arg(&root).arg(command.get_program());
        if !reach.uid(NOBODY).gid(NOBODY).status().unwrap().success() {
            println!("skipped: {} and the command are out of reach for others than root", root.display());
            return None;
        }
        shell.uid(NOBODY).gid(NOBODY);
    }
    Some(shell)
}

#[test]
fn too_little_lockable_memory_is_explained_with_the_fix_before_anything_is_made() {
    let sandbox = Sandbox::small();
    let limited = |command: &Command| as_nobody(&sandbox, "ulimit -l 64; ", command);
    let Some(mut job) = limited(&sandbox.word_count(&["--cores", "2"])) else { return };
    let Some(mut look) = limited(&millstream(&["doctor", "--cores", "2", "--state-dir"])) else { return };
    let (found, fix) = doctor(look.arg(sandbox.path("")), "memlock");
    assert!(found.contains("64 KiB") && fix.contains("ulimit -l unlimited"), "{found}: {fix}");
    check_fails(&mut job, INVALID, &["memlock", "64 KiB", "512 KiB per shard", &fix]);
    assert!(!sandbox.path("out").exists() && !sandbox.path("state").exists());
    // The limit is one of the executor's own, so it holds for root as well.
    let mut job = Command::new("sh");
    let program = sandbox.word_count(&["--cores", "2"]);
    job.args(["-c", "ulimit -l 64; exec \"$0\" \"$@\""]).arg(program.get_program()).args(program.get_args());
    check_fails(&mut job, INVALID, &["memlock", "64 KiB", &fix]);
}

#[test]
fn too_few_open_files_are_explained_before_anything_is_made_and_a_soft_limit_is_raised() {
    let sandbox = Sandbox::small();
    let limited = |limit: &str, program: &Command| {
        let mut job = Command::new("sh");
        let script = format!("ulimit {limit} -n 16; exec \"$0\" \"$@\"");
        job.args(["-c", &script]).arg(program.get_program()).args(program.get_args());
        job
    };
    let job = sandbox.word_count(&["--cores", "2"]);
    check_fails(&mut limited("", &job), INVALID, &["16 files open", "2 shards needs 64", "ulimit -n 65536"]);
    assert!(!sandbox.path("state").exists() && !sandbox.path("out").exists());
    let output = limited("-S", &job).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn lockable_memory_for_one_shard_of_two_is_a_warning_and_the_count_is_right() {
    let sandbox = Sandbox::small();
    let Some(mut job) = as_nobody(&sandbox, "ulimit -l 512; ", &sandbox.word_count(&["--cores", "2"])) else { return };
    let output = check_succeeds(&mut job);
    let said = text(&output.stderr);
    assert!(said.contains("warning") && said.contains("memlock limit of 512 KiB"), "{said}");
    sandbox.check_output(Emit::AtEnd);
}

#[test]
fn what_belongs_to_somebody_else_is_named_and_left_alone() {
    let sandbox = Sandbox::small();
    let close = |path: &Path, mode: u32| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    let check = |message: &[&str]| {
        let Some(mut job) = as_nobody(&sandbox, "", &sandbox.word_count(&[])) else { return };
        check_fails(&mut job, INVALID, message);
    };
    // An input file among others.
    close(&sandbox.path("in/b.txt"), 0o000);
    check(&["b.txt", "cannot be read", "Permission denied"]);
    assert!(!sandbox.path("out").exists() && !sandbox.path("state").exists());
    close(&sandbox.path("in/b.txt"), 0o644);
    for dir in ["state", "out"] {
        std::fs::create_dir(sandbox.path(dir)).unwrap();
        close(&sandbox.path(dir), 0o555);
        check(&[dir, "Permission denied", if dir == "out" { "cannot be written" } else { "must be writable" }]);
        assert_eq!(sandbox.path(dir).read_dir().unwrap().count(), 0, "{dir}");
        close(&sandbox.path(dir), 0o000);
        check(&[dir, "Permission denied"]);
        close(&sandbox.path(dir), 0o777);
    }
    let Some(mut job) = as_nobody(&sandbox, "", &sandbox.word_count(&[])) else { return };
    check_succeeds(&mut job);
    // A state directory of another user, whose files may not be read.
    close(&sandbox.path("state/FORMAT"), 0o000);
    check(&["FORMAT", "must be readable", "Permission denied"]);
}
