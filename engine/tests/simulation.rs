//! Whole jobs under seeds: crashes, a failing disk, random scheduling, random configuration, another number of shards at
//! every start. Committed output must be that of a run without failures.
//!
//! `MILLSTREAM_SEEDS` sets how many seeds each job runs under, `MILLSTREAM_SEED` runs one alone.

use millstream::prelude::*;
use millstream::sim::{SimOptions, Simulated, Verdict, simulate};
use millstream_state::io::sim::SimConfig;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    match number("MILLSTREAM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("MILLSTREAM_SEEDS").unwrap_or(default),
    }
}

const RECORDS: u64 = 400;

fn key(index: u64) -> u64 {
    index.wrapping_mul(2_654_435_761) % 23
}

/// Every record fans out into a few of one key; every count is emitted.
fn updates() -> Job {
    Job::named("updates")
        .source(Generator::new(7, |index, _: &mut Random| index).count(RECORDS).slices(5))
        .flat_map(|index: u64, out| (0..index % 3 + 1).for_each(|_| out.push(key(index))))
        .key_by(|key| *key)
        .count("counts")
        .sink(FileSink::lines("/out", |(key, n), line| write!(line, "{key}\t{n}")))
}

fn updates_expected() -> Vec<String> {
    let mut counts = BTreeMap::<u64, u64>::new();
    (0..RECORDS).for_each(|index| *counts.entry(key(index)).or_default() += index % 3 + 1);
    let mut lines: Vec<String> =
        counts.into_iter().flat_map(|(key, n)| (1..=n).map(move |n| format!("{key}\t{n}"))).collect();
    lines.sort();
    lines
}

#[track_caller]
fn check(seed: u64, simulated: &Simulated, expected: &[String]) {
    assert_eq!(simulated.verdict, Verdict::Finished, "MILLSTREAM_SEED={seed}");
    let (lines, hidden) = simulated.lines("/out");
    assert!(hidden.is_empty(), "MILLSTREAM_SEED={seed}: left behind {hidden:?}");
    if lines != expected {
        let missing: Vec<_> = expected.iter().filter(|line| lines.binary_search(line).is_err()).take(5).collect();
        let mut extra: Vec<_> = lines.iter().filter(|line| expected.binary_search(line).is_err()).take(5).collect();
        extra.extend(lines.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| &pair[0]).take(5));
        panic!(
            "MILLSTREAM_SEED={seed}: {} lines, not {}; missing {missing:?}, extra {extra:?}",
            lines.len(),
            expected.len()
        );
    }
}

#[test]
fn every_update_is_committed_exactly_once() {
    let expected = updates_expected();
    let (mut crashes, mut epochs) = (0, 0);
    for seed in seeds(300) {
        let simulated = simulate(seed, &SimOptions::default(), &updates);
        check(seed, &simulated, &expected);
        crashes += simulated.crashes;
        epochs += simulated.epochs_completed;
    }
    println!("{crashes} crashes, {epochs} complete epochs");
}

#[test]
fn one_seed_is_one_run() {
    for seed in seeds(20) {
        let [first, second] = [0; 2].map(|_| simulate(seed, &SimOptions::default(), &updates).trace);
        assert_eq!(first, second, "MILLSTREAM_SEED={seed}");
    }
}

/// The same counts, handed to the program: output that no disk can damage.
fn called_back(seen: &Arc<Mutex<BTreeSet<(u64, u64)>>>) -> Job {
    let seen = Arc::clone(seen);
    Job::named("called-back")
        .source(Generator::new(7, |index, _: &mut Random| index).count(RECORDS).slices(5))
        .flat_map(|index: u64, out| (0..index % 3 + 1).for_each(|_| out.push(key(index))))
        .key_by(|key| *key)
        .count("counts")
        .sink(callback(move |(key, n): (u64, u64)| {
            seen.lock().unwrap().insert((key, n));
        }))
}

#[test]
fn a_disk_that_lies_leads_to_a_refusal_or_to_the_right_counts() {
    let expected = updates_expected();
    let options = SimOptions { disk: SimConfig::lying(), ..SimOptions::default() };
    let mut refused = 0;
    for seed in seeds(200) {
        let seen = Arc::default();
        let simulated = simulate(seed, &options, &|| called_back(&seen));
        if let Verdict::Refused(_) = &simulated.verdict {
            refused += 1;
            continue;
        }
        assert_eq!(simulated.verdict, Verdict::Finished, "MILLSTREAM_SEED={seed}");
        // A lost state counts from a lower number and never reaches the highest; a doubled one passes it.
        let mut lines: Vec<String> = seen.lock().unwrap().iter().map(|(key, n)| format!("{key}\t{n}")).collect();
        lines.sort();
        assert!(lines == expected, "MILLSTREAM_SEED={seed}: a wrong state");
    }
    println!("{refused} refused");
}
