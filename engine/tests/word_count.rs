//! Word count over real files, through the real runtime.

use millstream::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty())
}

fn job(input: &Path, output: &Path, emit: Emit) -> Job {
    Job::named("word-count")
        .source(FileSource::lines(input.join("*.txt").to_str().unwrap()).split_bytes(4096))
        .flat_map(|line, out| words(line).for_each(|word| out.push(Text::lowercased(word))))
        .key_by_ref(|word: &Text| word.as_str())
        .count_emitting("counts", emit)
        .sink(FileSink::lines(output, |(word, n), line| write!(line, "{word}\t{n}")))
}

fn text(lines: u32) -> String {
    (0..lines).map(|i| format!("the quick brown fox {} jumps over {} lazy dogs\n", i % 97, i % 1009)).collect()
}

fn expected(text: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    text.lines().flat_map(words).for_each(|word| *counts.entry(word.to_ascii_lowercase()).or_default() += 1);
    counts
}

fn output(dir: &Path) -> Vec<(String, u64)> {
    let mut pairs = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        assert!(!entry.file_name().to_string_lossy().starts_with('.'), "{entry:?} was left behind");
        for line in std::fs::read_to_string(entry.path()).unwrap().lines() {
            let (word, n) = line.split_once('\t').unwrap();
            pairs.push((word.to_owned(), n.parse().unwrap()));
        }
    }
    pairs.sort();
    pairs
}

fn config(state: &Path, cores: &str) -> EngineConfig {
    let config = EngineConfig::new().cores(cores.parse().unwrap()).state_dir(state);
    config.epoch_interval(Duration::from_millis(20)).state_memory_bytes_per_core(64 << 20)
}

#[track_caller]
fn check(emit: Emit, cores: &str) {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in");
    std::fs::create_dir(&input).unwrap();
    let text = text(20_000);
    std::fs::write(input.join("a.txt"), &text).unwrap();
    let out = dir.path().join("out");
    let running = Engine::start(config(&dir.path().join("state"), cores), job(&input, &out, emit)).unwrap();
    let report = running.join().unwrap();
    assert_eq!(report.outcome, Outcome::Finished);
    let counts = expected(&text);
    let expected: Vec<(String, u64)> = match emit {
        Emit::AtEnd => counts.into_iter().collect(),
        Emit::Updates => counts.into_iter().flat_map(|(word, n)| (1..=n).map(move |n| (word.clone(), n))).collect(),
    };
    assert!(output(&out) == expected, "output differs");
}

#[test]
fn final_counts_are_right_on_one_shard() {
    check(Emit::AtEnd, "1");
}

#[test]
fn final_counts_are_right_on_three_shards() {
    check(Emit::AtEnd, "3");
}

#[test]
fn every_update_stands_in_the_output_once_on_two_shards() {
    check(Emit::Updates, "2");
}
