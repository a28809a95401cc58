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
    for seed in seeds(1000) {
        let simulated = simulate(seed, &SimOptions::default(), &updates);
        check(seed, &simulated, &expected);
        crashes += simulated.crashes;
        epochs += simulated.epochs_completed;
    }
    println!("{crashes} crashes, {epochs} complete epochs");
}

#[test]
fn a_reader_may_take_away_what_is_committed_and_the_job_goes_on() {
    let (expected, options) = (updates_expected(), SimOptions { read_away: Some("/out"), ..SimOptions::default() });
    let mut files_read_away = 0;
    for seed in seeds(300) {
        let simulated = simulate(seed, &options, &updates);
        check(seed, &simulated, &expected);
        files_read_away += simulated.files_read_away;
    }
    println!("{files_read_away} files read away");
    assert!(files_read_away > 0);
}

/// Counts that come out once, at the end, from an emission that yields.
fn finals() -> Job {
    Job::named("finals")
        .source(Generator::new(3, |index, _: &mut Random| index % 211).count(RECORDS).slices(3))
        .key_by(|key| *key)
        .count_emitting("counts", Emit::AtEnd)
        .sink(FileSink::lines("/out", |(key, n), line| write!(line, "{key}\t{n}")))
}

#[test]
fn an_emission_at_the_end_is_neither_repeated_nor_cut_short() {
    let mut counts = BTreeMap::<u64, u64>::new();
    (0..RECORDS).for_each(|index| *counts.entry(index % 211).or_default() += 1);
    let mut expected: Vec<String> = counts.into_iter().map(|(key, n)| format!("{key}\t{n}")).collect();
    expected.sort();
    for seed in seeds(300) {
        check(seed, &simulate(seed, &SimOptions::default(), &finals), &expected);
    }
}

/// Some records fan out into hundreds of one key: rings fill, and senders hold back.
fn bursts() -> Job {
    Job::named("bursts")
        .source(Generator::new(9, |index, _: &mut Random| index).count(60).slices(3))
        .flat_map(|index: u64, out| (0..index % 7 * 150).for_each(|_| out.push(index % 11)))
        .key_by(|key| *key)
        .count_emitting("counts", Emit::AtEnd)
        .sink(FileSink::lines("/out", |(key, n), line| write!(line, "{key}\t{n}")))
}

fn bursts_expected() -> Vec<String> {
    let mut counts = BTreeMap::<u64, u64>::new();
    (0..60).filter(|index| index % 7 > 0).for_each(|index| *counts.entry(index % 11).or_default() += index % 7 * 150);
    let mut lines: Vec<String> = counts.into_iter().map(|(key, n)| format!("{key}\t{n}")).collect();
    lines.sort();
    lines
}

#[test]
fn what_full_rings_hold_back_is_counted_once() {
    let expected = bursts_expected();
    for seed in seeds(150) {
        check(seed, &simulate(seed, &SimOptions::default(), &bursts), &expected);
    }
}

/// Hundreds of keys of which every second record clears the state: pages die all the time.
fn churn() -> Job {
    Job::named("churn")
        .source(Generator::new(8, |index, _: &mut Random| index % 701).count(5000).slices(3))
        .key_by(|key| *key)
        .process_with("pairs", SEEN, |seen: &mut Option<u64>, key: u64, _, out| {
            *seen = if seen.is_some() { None } else { Some(key) };
            if seen.is_none() {
                out.push(key);
            }
        })
        .sink(FileSink::lines("/out", |key, line| write!(line, "{key}")))
}

fn churn_expected() -> Vec<String> {
    let mut counts = BTreeMap::<u64, u64>::new();
    (0..5000).for_each(|index| *counts.entry(index % 701).or_default() += 1);
    let mut lines: Vec<String> =
        counts.into_iter().flat_map(|(key, n)| (0..n / 2).map(move |_| key.to_string())).collect();
    lines.sort();
    lines
}

#[test]
fn pages_that_die_and_come_back_hold_what_they_should() {
    let expected = churn_expected();
    for seed in seeds(60) {
        check(seed, &simulate(seed, &SimOptions::default(), &churn), &expected);
    }
}

const WIDE: ValueState<[u64; 8]> = ValueState::named("wide");
const WIDE_KEYS: u64 = 20_011;

/// Wide states changed in every epoch: most of the memory in use is versions that epochs under way hold.
fn rewritten() -> Job {
    Job::named("rewritten")
        .source(Generator::new(6, |index, _: &mut Random| index % WIDE_KEYS).count(7 * WIDE_KEYS).slices(3))
        .key_by(|key| *key)
        .process_with("wide", WIDE, |wide: &mut Option<[u64; 8]>, key: u64, _, out| {
            let wide = wide.get_or_insert_default();
            wide[0] += 1;
            if wide[0] == 7 {
                out.push(key);
            }
        })
        .sink(FileSink::lines("/out", |key, line| write!(line, "{key}")))
}

#[test]
fn a_slow_disk_holds_back_sources_and_does_not_exhaust_the_memory() {
    let mut expected: Vec<String> = (0..WIDE_KEYS).map(|key| key.to_string()).collect();
    expected.sort();
    let disk = SimConfig { delay_ticks_max: 300, ..SimConfig::default() };
    let options = SimOptions { disk, crashes_max: 0, shards_max: 1, memory_bytes: 4 << 20, ..SimOptions::default() };
    for seed in seeds(8) {
        check(seed, &simulate(seed, &options, &rewritten), &expected);
    }
}

const SEEN: ValueState<u64> = ValueState::named("seen");

/// Two sources in one stream; every third record of a key passes and clears its state; what passes is counted again by
/// another key.
fn thirds() -> Job {
    let more = Stream::of(Generator::new(5, |index, _: &mut Random| index % 29).count(RECORDS / 2).slices(2));
    Job::named("thirds")
        .source(Generator::new(4, |index, _: &mut Random| index % 31).count(RECORDS).slices(4))
        .map(|key: u64| key)
        .union(more)
        .key_by(|key| *key)
        .process_with("thirds", SEEN, |seen: &mut Option<u64>, key: u64, _, out| {
            let n = seen.unwrap_or_default() + 1;
            *seen = (n < 3).then_some(n);
            if n == 3 {
                out.push(key);
            }
        })
        .key_by(|key: &u64| key % 5)
        .reduce("sums", Emit::AtEnd, |sum, key| *sum += key)
        .sink(FileSink::lines("/out", |(key, sum), line| write!(line, "{key}\t{sum}")))
}

fn thirds_expected() -> Vec<String> {
    let mut counts = BTreeMap::<u64, u64>::new();
    (0..RECORDS).for_each(|index| *counts.entry(index % 31).or_default() += 1);
    (0..RECORDS / 2).for_each(|index| *counts.entry(index % 29).or_default() += 1);
    let mut sums = BTreeMap::<u64, u64>::new();
    counts.into_iter().for_each(|(key, n)| *sums.entry(key % 5).or_default() += n / 3 * key);
    let mut lines: Vec<String> = sums.into_iter().map(|(key, sum)| format!("{key}\t{sum}")).collect();
    lines.sort();
    lines
}

#[test]
fn state_that_is_set_and_cleared_comes_back_as_it_was() {
    let expected = thirds_expected();
    for seed in seeds(300) {
        check(seed, &simulate(seed, &SimOptions::default(), &thirds), &expected);
    }
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

#[cfg(feature = "planted-bugs")]
mod planted {
    use super::*;
    use millstream::planted::{PlantedBug, plant};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Runs seeds until one shows the bug: a wrong output, a refused restore, a hang or a check that fails.
    #[track_caller]
    fn is_found(bug: PlantedBug, job: fn() -> Job, expected: &[String]) {
        is_found_on(SimConfig::failing(), bug, job, expected);
    }

    #[track_caller]
    fn is_found_on(disk: SimConfig, bug: PlantedBug, job: fn() -> Job, expected: &[String]) {
        let options = SimOptions { disk, ..SimOptions::default() };
        plant(Some(bug));
        let found = (0..400).find(|&seed| {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let simulated = simulate(seed, &options, &job);
                simulated.verdict == Verdict::Finished && simulated.lines("/out").0 == expected
            }));
            !outcome.unwrap_or(false)
        });
        plant(None);
        println!("{bug:?}: seed {}", found.expect("no seed found the planted bug"));
    }

    #[test]
    fn a_record_of_the_next_epoch_in_the_snapshot_is_found() {
        is_found(PlantedBug::SignalsBeforeRecords, updates, &updates_expected());
    }

    #[test]
    fn an_overtaken_record_missing_from_the_log_is_found() {
        is_found(PlantedBug::OvertakenNotLogged, updates, &updates_expected());
    }

    #[test]
    fn a_record_held_back_and_not_logged_is_found() {
        is_found(PlantedBug::HeldBackNotLogged, bursts, &bursts_expected());
    }

    #[test]
    fn a_record_on_its_way_to_the_own_shard_and_not_logged_is_found() {
        is_found(PlantedBug::OwnQueueNotLogged, updates, &updates_expected());
    }

    #[test]
    fn a_staged_line_lost_at_a_cut_is_found() {
        is_found(PlantedBug::StagedLinesLost, updates, &updates_expected());
    }

    #[test]
    fn a_manifest_before_the_sync_is_found() {
        is_found(PlantedBug::ManifestBeforeSync, updates, &updates_expected());
    }

    #[test]
    fn an_acknowledgement_before_the_write_is_found() {
        is_found(PlantedBug::AckBeforeWrite, updates, &updates_expected());
    }

    #[test]
    fn a_dropped_tombstone_is_found() {
        is_found(PlantedBug::DroppedTombstone, thirds, &thirds_expected());
    }

    #[test]
    fn a_page_reused_early_is_found() {
        let disk = SimConfig { delay_ticks_max: 300, failed_sync: 0.3, failed_write: 0.1, ..SimConfig::failing() };
        is_found_on(disk, PlantedBug::PageReusedEarly, churn, &churn_expected());
    }
}
