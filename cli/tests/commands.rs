//! What the command does when something is wrong: its exit code says what to do, its message what and where, and nothing
//! is lost.

mod common;

use common::*;
use millstream::operator::Emit;
use std::path::Path;
use std::process::{Command, Stdio};

/// Every file below `dir` with its bytes: what must not change.
fn contents(dir: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut files: Vec<_> = dir
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn a_run_counts_shows_its_snapshots_and_has_nothing_to_do_the_second_time() {
    let sandbox = Sandbox::small();
    let first = check_succeeds(&mut sandbox.word_count(&["--json", "--cores", "2"]));
    let summary: serde_json::Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!((summary["outcome"].as_str(), summary["records"].as_u64()), (Some("finished"), Some(12)));
    sandbox.check_output(Emit::AtEnd);
    let second = check_succeeds(&mut sandbox.word_count(&[]));
    assert!(text(&second.stdout).contains("nothing to do"), "{}", text(&second.stdout));
    sandbox.check_output(Emit::AtEnd);

    let snapshot = |what: &str| {
        let output = check_succeeds(millstream(&["snapshot", what]).arg(sandbox.path("state")));
        text(&output.stdout)
    };
    assert!(snapshot("list").contains("job word-count") && snapshot("list").contains("ended"));
    assert!(snapshot("show").contains("state \"counts\": bytes -> u64"), "{}", snapshot("show"));
    assert!(
        snapshot("verify").contains("good  epoch") && !snapshot("verify").contains("BAD"),
        "{}",
        snapshot("verify")
    );
}

#[test]
fn more_input_is_counted_on_top_when_that_is_asked_for() {
    let mut sandbox = Sandbox::small();
    check_succeeds(&mut sandbox.word_count(&["--emit", "updates"]));
    let before = contents(&sandbox.path("out"));
    check_succeeds(&mut sandbox.word_count(&["--emit", "updates", "--resume-ended"]));
    std::fs::write(sandbox.path("in/c.txt"), "more mill").unwrap();
    check_fails(&mut sandbox.word_count(&["--emit", "updates"]), 2, &["in/c.txt", "not read", "--resume-ended"]);
    assert!(contents(&sandbox.path("out")) == before);
    check_succeeds(&mut sandbox.word_count(&["--emit", "updates", "--resume-ended"]));
    sandbox.expected += millstream_bench::word_count::count_text(b"more mill");
    sandbox.check_output(Emit::Updates);
}

#[test]
fn without_new_input_an_ended_job_writes_nothing_again() {
    let sandbox = Sandbox::small();
    check_succeeds(&mut sandbox.word_count(&[]));
    let before = contents(&sandbox.path("out"));
    let again = check_succeeds(&mut sandbox.word_count(&["--resume-ended"]));
    assert!(text(&again.stdout).contains("nothing to do"), "{}", text(&again.stdout));
    assert!(contents(&sandbox.path("out")) == before);
}

#[test]
fn bad_settings_are_named_with_what_would_be_right() {
    let sandbox = Sandbox::small();
    let rows: [(&[&str], &[&str]); 11] = [
        (&["--cores", "0"], &["--cores", "between 1 and"]),
        (&["--cores", "4000-4001"], &["--cores 4000-4001", "not there or not online", "allowed: "]),
        (&["--epoch-interval", "soon"], &["--epoch-interval"]),
        (&["--epoch-interval", "0s"], &["--epoch-interval (epoch_interval_ms) is 0", "milliseconds"]),
        (&["--final-epoch-patience", "0s"], &["--final-epoch-patience", "is 0"]),
        (&["--input", ""], &["pattern of the input files is empty"]),
        (&["--rate", "0"], &["--rate", "above zero"]),
        (&["--restore", "yesterday"], &["latest, none"]),
        (&["--key-groups", "3"], &["power of two"]),
        (&["--state-memory", "1KiB"], &["--state-memory (state_memory_bytes_per_core) is 1024"]),
        (&["--split-size", "0"], &["--split-size"]),
    ];
    for (args, message) in rows {
        let mut command = millstream(&["run", "word-count"]);
        command.arg("--input").arg(sandbox.input()).arg("--output").arg(sandbox.path("out")).args(args);
        check_fails(&mut command, 2, message);
        assert!(!sandbox.path("out").exists(), "{args:?}");
    }
    let mut command = sandbox.word_count(&[]);
    check_fails(command.env("MILLSTREAM_RETAINED_EPOCHS", "many"), 2, &["MILLSTREAM_RETAINED_EPOCHS=many"]);
    let mut command = sandbox.word_count(&[]);
    let output = check_succeeds(command.env("MILLSTREAM_RETAIN_EPOCHS", "3"));
    let said = text(&output.stderr);
    assert!(
        said.contains("MILLSTREAM_RETAIN_EPOCHS") && said.contains("did you mean MILLSTREAM_RETAINED_EPOCHS?"),
        "{said}"
    );
}

#[test]
fn missing_and_unreadable_input_is_refused_before_anything_is_made() {
    let sandbox = Sandbox::small();
    let check = |input: &str, message: &str| {
        let mut command = millstream(&["run", "word-count", "--json"]);
        command.arg("--input").arg(sandbox.path(input)).arg("--output").arg(sandbox.path("out"));
        command.arg("--state-dir").arg(sandbox.path("state"));
        let output = check_fails(&mut command, 2, &[message, input]);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((json["ok"].as_bool(), json["error"]["kind"].as_str()), (Some(false), Some("invalid")));
        assert!(!sandbox.path("out").exists() && !sandbox.path("state").exists());
    };
    check("nowhere/*.txt", "no file matches");
    check("in", "is a directory");
    // A link to itself cannot be read by anybody, root included.
    std::os::unix::fs::symlink(sandbox.path("loop.txt"), sandbox.path("loop.txt")).unwrap();
    check("loop.txt", "cannot be read");
}

#[test]
fn a_file_in_the_way_of_a_directory_is_named() {
    let sandbox = Sandbox::small();
    std::fs::write(sandbox.path("out"), "mine").unwrap();
    check_fails(&mut sandbox.word_count(&[]), 2, &["out", "is a file"]);
    assert_eq!(std::fs::read(sandbox.path("out")).unwrap(), b"mine");
    std::fs::remove_file(sandbox.path("out")).unwrap();
    // What was made for the job that was refused does not stand in the way of the next.
    check_succeeds(&mut sandbox.word_count(&[]));
    sandbox.check_output(Emit::AtEnd);

    let other = Sandbox::small();
    std::fs::write(other.path("state"), "mine").unwrap();
    check_fails(&mut other.word_count(&[]), 2, &["state"]);
    assert_eq!(std::fs::read(other.path("state")).unwrap(), b"mine");
    assert!(!other.path("out").exists());
}

#[test]
fn a_state_directory_has_one_owner_and_readers() {
    let sandbox = Sandbox::lines(60_000);
    let mut first = Started::new(&mut sandbox.word_count(&["--rate", "20k", "--progress", "plain"]));
    assert!(first.wait_for("started"));
    let state = sandbox.path("state");
    check_fails(&mut sandbox.word_count(&[]), 6, &[state.to_str().unwrap(), "another process owns", "stop it first"]);
    sandbox.wait_for_epoch(1);
    sandbox.snapshots();
    assert!(first.kill());
    check_succeeds(&mut sandbox.word_count(&[]));
    sandbox.check_output(Emit::AtEnd);
}

#[test]
fn a_state_directory_of_another_job_is_refused() {
    let sandbox = Sandbox::small();
    check_succeeds(&mut sandbox.word_count(&[]));
    let before = contents(&sandbox.path("state"));
    check_fails(&mut sandbox.word_count(&["--emit", "updates"]), 2, &["word-count"]);
    assert!(contents(&sandbox.path("state")) == before);

    let foreign = Sandbox::small();
    std::fs::create_dir(foreign.path("state")).unwrap();
    std::fs::write(foreign.path("state/holiday.jpg"), "not ours").unwrap();
    let output = foreign.word_count(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert_eq!(contents(&foreign.path("state")), [(foreign.path("state/holiday.jpg"), b"not ours".to_vec())]);
}

/// A job that was stopped half way: output committed, input left.
fn stopped_job(signal: &str, args: &[&str]) -> Sandbox {
    let sandbox = Sandbox::lines(60_000);
    let mut args = args.to_vec();
    args.extend(["--rate", "20k", "--progress", "plain", "--cores", "2"]);
    let mut job = Started::new(&mut sandbox.word_count(&args));
    assert!(job.wait_for("started"));
    sandbox.wait_for_epoch(2);
    job.signal(signal);
    let (status, said) = job.wait();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("the same command goes on from there"), "{said}");
    sandbox
}

#[test]
fn an_interrupted_job_commits_and_goes_on_where_it_stopped() {
    for signal in ["INT", "TERM"] {
        let sandbox = stopped_job(signal, &["--emit", "updates"]);
        let epoch = sandbox.newest_epoch();
        let output = check_succeeds(&mut sandbox.word_count(&["--emit", "updates", "--cores", "3", "--json"]));
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(summary["restored_epoch"].as_u64(), Some(epoch));
        sandbox.check_output(Emit::Updates);
    }
}

#[test]
fn committed_files_may_be_taken_away_before_the_job_goes_on_and_after_its_end() {
    let sandbox = stopped_job("TERM", &["--emit", "updates"]);
    std::fs::create_dir(sandbox.path("taken")).unwrap();
    let take_away = || {
        for (path, _) in contents(&sandbox.path("out")) {
            std::fs::rename(&path, sandbox.path("taken").join(path.file_name().unwrap())).unwrap();
        }
    };
    take_away();
    check_succeeds(&mut sandbox.word_count(&["--emit", "updates"]));
    take_away();
    check_succeeds(&mut sandbox.word_count(&["--emit", "updates"]));
    assert!(contents(&sandbox.path("out")).is_empty());
    if let Err(what) = sandbox.expected.compare(&sandbox.path("taken"), Emit::Updates) {
        panic!("{what}");
    }
}

#[test]
fn an_output_directory_takes_the_files_of_one_state() {
    let sandbox = Sandbox::lines(60_000);
    let other = |args: &[&str]| {
        let mut command = millstream(&["run", "word-count", "--input", &sandbox.input()]);
        command.arg("--output").arg(sandbox.path("out")).arg("--state-dir").arg(sandbox.path("other")).args(args);
        command
    };
    let mut first = Started::new(&mut sandbox.word_count(&["--rate", "20k", "--progress", "plain"]));
    assert!(first.wait_for("started"));
    let out = sandbox.path("out");
    let out = out.to_str().unwrap();
    check_fails(&mut other(&[]), 6, &[out, "another job", "choose another directory"]);
    sandbox.wait_for_epoch(1);
    first.signal("TERM");
    assert_eq!(first.wait().0.code(), Some(130));
    // Nothing is there yet: it may have the directory, and then the first one may not.
    check_succeeds(&mut other(&[]));
    check_fails(&mut sandbox.word_count(&[]), 2, &[out, "another job or state directory has written"]);
    sandbox.check_output(Emit::AtEnd);
}

#[test]
fn a_second_interrupt_leaves_at_once_and_nothing_is_lost() {
    let sandbox = Sandbox::lines(60_000);
    let args = ["--rate", "20k", "--progress", "plain", "--epoch-interval", "200ms"];
    let mut job = Started::new(&mut sandbox.word_count(&args));
    assert!(job.wait_for("started"));
    job.signal("INT");
    job.signal("INT");
    let (status, said) = job.wait();
    // Killed by the second, unless the first was done by then.
    assert!(status.code().is_none_or(|code| code == 130), "{status}: {said}");
    check_succeeds(&mut sandbox.word_count(&[]));
    sandbox.check_output(Emit::AtEnd);
}

#[test]
fn an_epoch_that_is_not_there_or_would_repeat_output_is_not_restored() {
    let sandbox = stopped_job("INT", &["--retain", "3"]);
    let newest = sandbox.newest_epoch();
    let before = contents(&sandbox.path("state"));
    check_fails(&mut sandbox.word_count(&["--restore", "999"]), 2, &["999"]);
    check_fails(&mut sandbox.word_count(&["--restore", "none"]), 2, &["holds epoch"]);
    let older = (newest - 1).to_string();
    check_fails(&mut sandbox.word_count(&["--restore", &older]), 2, &["allow"]);
    assert!(contents(&sandbox.path("state")) == before);
    check_succeeds(&mut sandbox.word_count(&["--restore", &newest.to_string()]));
    sandbox.check_output(Emit::AtEnd);
}

#[test]
fn a_damaged_snapshot_is_found_refused_and_left_alone() {
    let sandbox = stopped_job("INT", &[]);
    let newest = sandbox.newest_epoch();
    let state = sandbox.path("state");
    let show = check_succeeds(millstream(&["snapshot", "show", "--json"]).arg(&state));
    let show: serde_json::Value = serde_json::from_slice(&show.stdout).unwrap();
    let extent = &show["extents"][0];
    let id = &extent["segment"];
    let segment = std::fs::read_dir(&state)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let numbers = ["run", "shard", "number"].map(|field| id[field].as_u64().unwrap_or(0));
            name == format!("segment-{:010}-{:05}-{:010}", numbers[0], numbers[1], numbers[2])
        })
        .unwrap_or_else(|| panic!("{id}"));
    let manifest = state.join(format!("epoch-{newest:020}.manifest"));
    let at = usize::try_from(extent["offset"].as_u64().unwrap() + 100).unwrap();
    let check = |path: &Path, damage: &dyn Fn(&mut Vec<u8>)| {
        let whole = std::fs::read(path).unwrap();
        let mut bad = whole.clone();
        damage(&mut bad);
        std::fs::write(path, &bad).unwrap();
        let before = contents(&state);
        let name = path.file_name().unwrap().to_str().unwrap();
        check_fails(&mut sandbox.word_count(&[]), 3, &[&newest.to_string()]);
        let mut verify = millstream(&["snapshot", "verify"]);
        let output = check_fails(verify.arg(&state), 3, &[]);
        let verdict = text(&output.stdout);
        assert!(verdict.contains("BAD") && verdict.contains(name), "{verdict}");
        assert!(contents(&state) == before, "{name} was changed");
        std::fs::write(path, whole).unwrap();
    };
    check(&manifest, &|bytes| bytes[40] ^= 1);
    check(&manifest, &|bytes| bytes.truncate(bytes.len() - 1));
    check(&manifest, &Vec::clear);
    check(&segment, &|bytes| bytes[at] ^= 0x80);
    check(&segment, &|bytes| bytes.truncate(at));
    // Whole again, it is as good as before.
    check_succeeds(&mut sandbox.word_count(&[]));
    sandbox.check_output(Emit::AtEnd);
}

#[test]
fn a_directory_without_snapshots_is_said_to_be_none() {
    let sandbox = Sandbox::small();
    for what in ["list", "show", "verify"] {
        check_fails(millstream(&["snapshot", what]).arg(sandbox.path("in")), 2, &["in"]);
        check_fails(millstream(&["snapshot", what]).arg(sandbox.path("nowhere")), 2, &["nowhere"]);
    }
}

#[test]
fn a_key_above_the_limit_stops_the_job_at_a_complete_epoch_and_says_so() {
    let words = "The mill grinds.\n".repeat(1000);
    let check = |word_bytes: usize, cores: &str, message: &[&str]| {
        let long = "x".repeat(word_bytes);
        let sandbox = Sandbox::with(&[("a.txt", words.as_bytes()), ("b.txt", long.as_bytes())]);
        for _ in 0..2 {
            let output = check_fails(&mut sandbox.word_count(&["--cores", cores]), 5, message);
            assert!(!text(&output.stderr).contains("panic"), "{}", text(&output.stderr));
            check_succeeds(millstream(&["snapshot", "verify"]).arg(sandbox.path("state")));
        }
    };
    let key = ["state `counts`: a key of 70000 bytes", "above the limit of 65536"];
    check(70_000, "1", &key);
    check(70_000, "2", &key);
    // Refused where it is sent, and by the limit that no setting raises.
    check(300_000, "2", &["a key of 300000 bytes", "above the limit of 65536", "no setting raises", "b.txt at byte 0"]);
}

#[test]
fn state_above_the_memory_limit_stops_the_job_at_a_complete_epoch_and_goes_on_with_more() {
    let words: String = (0..400_000).map(|i| format!("word{i:07}x{i}\n")).collect();
    let sandbox = Sandbox::with(&[("a.txt", words.as_bytes())]);
    let args = ["--cores", "1", "--state-memory", "4MiB", "--rate", "400k"];
    check_fails(&mut sandbox.word_count(&args), 5, &["state memory", "raise --state-memory"]);
    check_succeeds(&mut sandbox.word_count(&["--cores", "1"]));
    sandbox.check_output(Emit::AtEnd);
}

#[test]
fn a_start_with_nothing_to_do_keeps_no_more_epochs_than_it_is_told_to() {
    let sandbox = Sandbox::small();
    let epochs = || sandbox.snapshots()["epochs"].as_array().unwrap().len();
    check_succeeds(&mut sandbox.word_count(&["--retain", "4"]));
    assert!(epochs() >= 2, "the empty one and the last");
    check_succeeds(&mut sandbox.word_count(&["--retain", "1"]));
    assert_eq!(epochs(), 1);
    sandbox.check_output(Emit::AtEnd);
}

#[test]
fn a_bad_flag_is_told_in_json_too() {
    let output = millstream(&["run", "word-count", "--json", "--cores", "many"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["ok"], &told["error"]["exit_code"]), (&false.into(), &2.into()), "{told}");
    let message = told["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("invalid value 'many'"), "{message}");
}

#[test]
fn an_output_that_nobody_reads_or_that_is_full_is_no_panic() {
    use std::fs::OpenOptions;
    let run = |args: &[&str], stdout: Stdio, stderr: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.args(args).stdin(Stdio::null()).stdout(stdout).stderr(stderr).status().unwrap().code()
    };
    // A pipe whose reading end is closed before anything is written.
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    let full = || Stdio::from(OpenOptions::new().write(true).open("/dev/full").unwrap());
    for args in [&["doctor"][..], &["doctor", "--json"]] {
        assert!(matches!(run(args, closed(), Stdio::null()), Some(0 | 1)), "{args:?} into a closed pipe");
        assert_eq!(run(args, full(), Stdio::null()), Some(4), "{args:?} into a full file");
    }
    let directory = tempfile::tempdir().unwrap();
    let (input, output) = (directory.path().join("in.txt"), directory.path().join("out"));
    std::fs::write(&input, "to be or not to be\n").unwrap();
    let paths = [input.to_str().unwrap(), output.to_str().unwrap()];
    let args = ["run", "word-count", "--input", paths[0], "--output", paths[1], "--progress", "plain"];
    assert_eq!(run(&args, closed(), full()), Some(0), "a job whose progress nobody sees");
    assert!(std::fs::read_dir(&output).unwrap().count() > 0, "its output is there");
}

#[test]
fn the_version_is_that_of_millstream() {
    let output = check_succeeds(&mut millstream(&["--version"]));
    assert_eq!(text(&output.stdout), format!("millstream {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_plan_is_told_in_json_too() {
    let sandbox = Sandbox::small();
    let output = check_succeeds(&mut sandbox.word_count(&["--explain", "--json"]));
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&plan["job"], &plan["stages"][1]["states"][0]["name"]),
        (&"word-count".into(), &"counts".into()),
        "{plan}"
    );
    let output = check_succeeds(&mut sandbox.word_count(&["--explain"]));
    assert!(text(&output.stdout).starts_with("job word-count\n"));
    assert!(!sandbox.path("state").exists(), "nothing ran");
}

#[test]
fn every_part_of_a_snapshot_has_named_fields_in_json() {
    let sandbox = stopped_job("INT", &["--emit", "updates"]);
    let snapshot = |what: &str| -> serde_json::Value {
        let output = check_succeeds(millstream(&["snapshot", what, "--json"]).arg(sandbox.path("state")));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let show = snapshot("show");
    let parts = show.as_object().unwrap().values().filter_map(|part| part.as_array()).flatten();
    assert!(parts.clone().count() > 3);
    for part in parts {
        let fields = part.as_object().unwrap_or_else(|| panic!("{part} of {show}"));
        assert!(fields.iter().all(|(name, value)| !value.is_array() || name == "value"), "{part}");
    }
    let verdict = snapshot("verify");
    assert_eq!(verdict["ok"], true, "{verdict}");
    assert!(verdict["epochs"][0]["extents"].is_u64(), "{verdict}");
}

#[test]
fn the_directory_of_the_state_may_be_written_both_ways_for_doctor() {
    let sandbox = Sandbox::small();
    let directory = sandbox.path("in");
    let directory = directory.to_str().unwrap();
    let report = |args: &[&str]| {
        let output = millstream(&["doctor", "--json"]).args(args).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        report["findings"].as_array().map(Vec::len)
    };
    assert!(report(&[directory]).is_some() && report(&[directory]) == report(&["--state-dir", directory]));
    check_fails(&mut millstream(&["doctor", directory, "--state-dir", directory]), 2, &["--state-dir"]);
}

#[test]
fn a_measurement_that_is_stopped_leaves_nothing_behind() {
    let sandbox = Sandbox::small();
    let directory = sandbox.path("bench");
    for signal in ["INT", "TERM"] {
        std::fs::create_dir_all(&directory).unwrap();
        let args = ["bench", "keyed-count", "--cores", "1", "--keys", "1000", "--duration", "1h"];
        let mut command = millstream(&args);
        let result = sandbox.path("result.json");
        let mut bench = Started::new(command.arg("--state-dir").arg(&directory).arg("--out").arg(&result));
        wait_until(|| directory.read_dir().unwrap().count() > 0);
        bench.signal(signal);
        let (status, said) = bench.wait();
        assert_eq!(status.code(), Some(130), "{said}");
        assert!(said.contains("stopped before the measurement was over"), "{said}");
        assert_eq!(directory.read_dir().unwrap().count(), 0, "{signal}");
        assert!(!result.exists());
    }
}

#[test]
fn a_result_that_cannot_be_written_is_found_out_before_anything_is_measured() {
    let sandbox = Sandbox::small();
    let below_a_file = sandbox.path("in/a.txt/result.json");
    for what in [&["ceiling", "--duration", "1h"][..], &["keyed-count", "--duration", "1h"], &["quick"]] {
        let mut command = millstream(&["bench"]);
        command.args(what).arg("--out").arg(&below_a_file).current_dir(sandbox.path("in"));
        check_fails(&mut command, 2, &[below_a_file.to_str().unwrap(), "--out"]);
    }
    assert_eq!(sandbox.path("in").read_dir().unwrap().count(), 2, "nothing was made");
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_that_is_told_and_no_kill() {
    let sandbox = Sandbox::small();
    let limited = |command: &Command, blocks: u32| {
        let mut limited = Command::new("sh");
        limited
            .args(["-c", &format!("ulimit -f {blocks}; exec \"$0\" \"$@\"")])
            .arg(command.get_program())
            .args(command.get_args());
        limited
    };
    let mut run = sandbox.word_count(&["--cores", "1", "--final-epoch-patience", "300ms"]);
    // Not even a manifest fits; a manifest does, and no segment file.
    check_fails(&mut limited(&run, 0), 4, &["manifest", "File too large"]);
    check_fails(&mut limited(&run, 64), 8, &["File too large"]);
    check_succeeds(&mut run);
    sandbox.check_output(Emit::AtEnd);
}
