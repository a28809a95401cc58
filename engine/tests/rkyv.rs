//! Types of rkyv as records across an exchange and as state: simulated jobs with crashes and other shard counts, small
//! jobs on real threads, and what is said when it cannot work.

use millstream::items::Own;
use millstream::prelude::*;
use millstream::rkyv::rancor::Source as ErrorSource;
use millstream::rkyv::{self, ser, validation};
use millstream::sim::{SimOptions, Verdict, simulate};
use millstream::{Error, ErrorKind};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const RECORDS: u64 = 300;

#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, Debug, Default, PartialEq)]
#[rkyv(crate = rkyv, derive(Debug, PartialEq))]
struct Basket {
    customer: u64,
    pieces: BTreeMap<String, u64>,
    last: Option<String>,
}

fn article(index: u64) -> String {
    format!("article number {}", index % 5)
}

fn basket(index: u64) -> Rkyv<Basket> {
    let article = article(index);
    Rkyv(Basket { customer: index % 17, pieces: [(article.clone(), index)].into(), last: Some(article) })
}

fn add(so_far: &mut Basket, more: Basket) {
    more.pieces.into_iter().for_each(|(article, n)| *so_far.pieces.entry(article).or_default() += n);
    so_far.last = more.last;
}

fn line(basket: &Basket) -> String {
    format!("{}\t{:?}\t{:?}", basket.customer, basket.pieces, basket.last)
}

/// One split, so that the baskets of a customer come in their order.
fn baskets() -> impl Source<Items = Own<Rkyv<Basket>>> {
    Generator::new(7, |index, _: &mut Random| basket(index)).count(RECORDS).slices(1)
}

fn reduced() -> Job {
    Job::named("reduced")
        .source(baskets())
        .key_by(|basket: &Rkyv<Basket>| basket.customer)
        .reduce("baskets", Emit::Updates, |so_far, more| add(so_far, more.into_inner()))
        .sink(FileSink::lines("/out", |(_, basket): (u64, Rkyv<Basket>), out| out.write_all(line(&basket).as_bytes())))
}

fn processed(source: impl Source<Items = Own<Rkyv<Basket>>>, sink: impl Sink<Own<String>>) -> Job {
    const BASKET: ValueState<Rkyv<Basket>> = ValueState::named("basket");
    Job::named("processed")
        .source(source)
        .key_by(|basket: &Rkyv<Basket>| basket.customer)
        .process_with("baskets", BASKET, |state, more: Rkyv<Basket>, customer, out| {
            let so_far = state.get_or_insert_default();
            so_far.customer = customer;
            add(so_far, more.into_inner());
            out.push(line(so_far));
        })
        .sink(sink)
}

fn expected() -> Vec<String> {
    let mut baskets = BTreeMap::<u64, Basket>::new();
    let mut lines = Vec::new();
    for more in (0..RECORDS).map(basket).map(Rkyv::into_inner) {
        let so_far = baskets.entry(more.customer).or_default();
        so_far.customer = more.customer;
        add(so_far, more);
        lines.push(line(so_far));
    }
    lines.sort();
    lines
}

#[track_caller]
fn check(job: &dyn Fn() -> Job) {
    let mut crashes = 0;
    for seed in 0..20 {
        let simulated = simulate(seed, &SimOptions::default(), job);
        assert_eq!(simulated.verdict, Verdict::Finished, "seed {seed}");
        assert!(simulated.lines("/out").0 == expected(), "seed {seed}: other lines");
        crashes += simulated.crashes;
    }
    assert!(crashes > 0, "no run was restored");
}

#[test]
fn archived_records_are_reduced_exactly_once() {
    check(&reduced);
}

#[test]
fn archived_state_of_a_process_survives_crashes() {
    check(&|| processed(baskets(), FileSink::lines("/out", |text: String, out| out.write_all(text.as_bytes()))));
}

fn durable(dir: &Path) -> EngineConfig {
    let config = EngineConfig::new().cores("2".parse().unwrap()).state_memory_bytes_per_core(32 << 20);
    config.state_dir(dir).epoch_interval(Duration::from_millis(10))
}

/// Starts a job and stops it at the first epoch after `is_far`.
fn stopped(dir: &Path, job: Job, is_far: impl Fn() -> bool) {
    let running = Engine::start(durable(dir), job).unwrap();
    while !is_far() {
        std::thread::sleep(Duration::from_millis(1));
    }
    running.stop(Stop::AtNextEpoch);
    assert_eq!(running.join().unwrap().outcome, Outcome::Stopped);
}

#[test]
fn archived_state_on_two_shards_goes_on_after_a_restore() {
    let dir = tempfile::tempdir().unwrap();
    let slow = || Generator::new(7, |index, _: &mut Random| basket(index)).count(RECORDS).slices(1).rate(100.0);
    let (first, sink) = collect::<String>();
    stopped(dir.path(), processed(slow(), sink), || first.to_vec().len() >= 20);

    let (second, sink) = collect::<String>();
    let running = Engine::start(durable(dir.path()), processed(slow().rate(1e9), sink)).unwrap();
    assert_eq!(running.join().unwrap().outcome, Outcome::Finished);
    assert!(first.to_vec().len() < expected().len(), "nothing was left for the second run");
    let mut all = [first.to_vec(), second.to_vec()].concat();
    all.sort();
    assert!(all == expected(), "{} lines, not {}", all.len(), expected().len());
}

/// Two versions of a type that rkyv gives the same name and size.
mod before {
    use super::rkyv;
    #[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, Debug, PartialEq)]
    #[rkyv(crate = rkyv, derive(Debug, PartialEq))]
    pub struct Note(pub u32);
}
mod after {
    use super::rkyv;
    #[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, Debug, PartialEq)]
    #[rkyv(crate = rkyv, derive(Debug, PartialEq))]
    pub struct Note(pub char);
}

/// An archived value as a part of a derived one.
#[derive(Clone, Debug, PartialEq, Record, State)]
struct Noted<N: State> {
    times: u64,
    note: N,
}

fn notes<V: State>(count: u64, sink: Collect<u64>, value: impl Fn(u64) -> V + Clone + Send + Sync + 'static) -> Job {
    let last = ValueState::<V>::named("last");
    Job::named("notes")
        .source(Generator::new(1, |index, _: &mut Random| index).count(count).slices(1).rate(1000.0))
        .key_by(|n: &u64| n % 3)
        .process_with("notes", last, move |last, n, _, out| {
            *last = Some(value(n));
            out.push(n);
        })
        .sink(sink)
}

/// Keeps values of one type, and says what a job that keeps those of another is told when it is started on them.
#[track_caller]
fn refused<Old: State, New: State>(
    old: impl Fn(u64) -> Old + Clone + Send + Sync + 'static,
    new: impl Fn(u64) -> New + Clone + Send + Sync + 'static,
) -> Error {
    let dir = tempfile::tempdir().unwrap();
    let (kept, sink) = collect();
    stopped(dir.path(), notes(1_000_000, sink, old), || !kept.to_vec().is_empty());
    let (_, sink) = collect();
    Engine::start(durable(dir.path()), notes(1_000_000, sink, new)).and_then(Running::join).unwrap_err()
}

#[track_caller]
fn says(error: &Error, kind: ErrorKind, parts: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    parts.iter().for_each(|part| assert!(error.message().contains(part), "{part:?} not in: {error}"));
}

#[test]
fn stored_bytes_that_are_none_of_the_type_are_refused_by_name() {
    let old = |_| Rkyv(before::Note(u32::MAX));
    let new = |_| Rkyv(after::Note('n'));
    let parts = ["state `notes.last`: the value under", "no Note of rkyv 0.8: ", "needs another name"];
    says(&refused(old, new), ErrorKind::Invalid, &parts);
    let noted = refused(move |n| Noted { times: n, note: old(n) }, move |n| Noted { times: n, note: new(n) });
    says(&noted, ErrorKind::Invalid, &[&parts[..], &["note: no Note"]].concat());
}

#[test]
fn another_type_is_refused_before_a_value_is_read() {
    let error = refused(|_| Rkyv(before::Note(7)), |_| Rkyv(7u64));
    says(&error, ErrorKind::Invalid, &["Note (rkyv 0.8, root of 4 bytes) and is now u64 (rkyv 0.8, root of 8 bytes)"]);
}

/// A list by pointers, as deep as it is long.
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, Debug, PartialEq)]
#[rkyv(
    crate = rkyv,
    derive(Debug, PartialEq),
    serialize_bounds(__S: ser::Writer + ser::Allocator, __S::Error: ErrorSource),
    deserialize_bounds(__D::Error: ErrorSource),
    bytecheck(bounds(__C: validation::ArchiveContext, __C::Error: ErrorSource))
)]
struct Chain(#[rkyv(omit_bounds)] Option<Box<Chain>>);

#[test]
fn a_value_nested_too_deep_to_be_read_stops_the_job_before_it_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let chain = |links: u64| Rkyv((0..links).fold(Chain(None), |chain, _| Chain(Some(Box::new(chain)))));
    let (_, sink) = collect();
    let job = notes(2, sink, move |n| chain(500 * n));
    let error = Engine::start(durable(dir.path()), job).unwrap().join().unwrap_err();
    says(&error, ErrorKind::UserCode, &["operator process", "key group", "Chain", "nested over 256 deep"]);
}
