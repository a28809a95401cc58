//! Word count, killed with SIGKILL again and again, and right all the same.
//!
//! `MILLSTREAM_KILLS` says how often (default 8), `MILLSTREAM_SEED` replays a run. Kills before a job has read its first
//! line (start-up kills) come on top and are counted apart.

mod common;

use common::{Random, Sandbox, Started, check_nothing_temporary, check_succeeds};
use millstream::operator::Emit;
use std::time::Duration;

const EPOCH_MS: u64 = 50;
const CORES: [&str; 4] = ["1", "2", "3", "4"];

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
}

#[track_caller]
fn check(emit: Emit, word: &str) {
    let kills = setting("MILLSTREAM_KILLS", 8);
    let seed = setting("MILLSTREAM_SEED", 1);
    let mut random = Random::new(seed ^ u64::from(emit == Emit::Updates) << 32);
    // Enough lines that all kills together, each after 1.5 epochs in the mean, meet a job that has not ended.
    let per_epoch = 1500;
    let sandbox = Sandbox::lines(kills * 3 * per_epoch);
    let rate = (per_epoch * 1000 / EPOCH_MS).to_string();
    let retained = 2;
    let start = |paced: bool, random: &mut Random| {
        let cores = CORES[usize::try_from(random.below(4)).unwrap()];
        let retain = retained.to_string();
        let mut args = vec!["--emit", word, "--cores", cores, "--retain", &retain, "--progress", "plain"];
        args.extend(["--split-size", "256KiB"]);
        if paced {
            args.extend(["--rate", &rate]);
        }
        Started::new(&mut sandbox.word_count(&args))
    };
    let (mut killed, mut at_start, mut at_end) = (0, 0, 0);
    while killed < kills {
        let mut job = start(true, &mut random);
        if random.below(5) == 0 {
            std::thread::sleep(Duration::from_micros(random.below(60_000)));
            at_start += u64::from(job.kill());
            continue;
        }
        if !job.wait_for("started") {
            let (status, said) = job.wait();
            assert!(status.success(), "seed {seed}, after {killed} kills: {status}: {said}");
            break;
        }
        std::thread::sleep(Duration::from_micros(random.below(3 * EPOCH_MS * 1000)));
        killed += u64::from(job.kill());
    }
    assert_eq!(killed, kills, "seed {seed}: the job ended before it was killed often enough");
    let reached = sandbox.newest_epoch();
    // At the very end: from the first staged or final file of the last epochs on, at full speed.
    for _ in 0..3 {
        let mut job = start(false, &mut random);
        if job.wait_for("started") {
            std::thread::sleep(Duration::from_micros(random.below(300_000)));
        }
        at_end += u64::from(job.kill());
    }
    let mut job = start(false, &mut random);
    let (status, said) = job.wait();
    assert!(status.success(), "seed {seed}: {status}: {said}");
    println!(
        "seed {seed}, {word}: {killed} kills, {at_start} at start-up, {at_end} near the end; epoch {reached} before the last runs"
    );
    sandbox.check_output(emit);
    check_nothing_temporary(&sandbox.path("state"));
    let list = sandbox.snapshots();
    let epochs = list["epochs"].as_array().unwrap();
    assert!(epochs.len() <= retained, "{list:#}");
    assert!(epochs.last().unwrap()["ended"].as_bool().unwrap(), "{list:#}");
    assert!(list["segment_count"].as_u64().unwrap() <= 32, "{list:#}");
    // Once more: there is nothing to do, and nothing changes.
    check_succeeds(&mut sandbox.word_count(&["--emit", word]));
    sandbox.check_output(emit);
}

#[test]
fn a_word_count_that_is_killed_again_and_again_counts_every_word_once() {
    check(Emit::AtEnd, "final");
}

#[test]
fn every_update_of_a_killed_word_count_stands_in_the_output_once() {
    check(Emit::Updates, "updates");
}
