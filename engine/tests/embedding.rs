//! The engine as a library: small jobs on real threads, what they say of themselves, and how they fail.

use millstream::prelude::*;
use millstream::{ErrorKind, Result};
use millstream_state::io::RealFiles;
use millstream_state::snapshot::show_snapshot;
use std::path::Path;
use std::time::Duration;

fn config() -> EngineConfig {
    EngineConfig::new().cores("2".parse().unwrap()).state_memory_bytes_per_core(32 << 20)
}

fn durable(dir: &Path) -> EngineConfig {
    config().state_dir(dir).epoch_interval(Duration::from_millis(10))
}

fn sorted<T: Ord + Clone + Send + 'static>(collected: &Collected<T>) -> Vec<T> {
    let mut items = collected.to_vec();
    items.sort();
    items
}

#[test]
fn a_job_without_a_state_directory_commits_at_its_end() {
    let (collected, sink) = collect::<(u64, u64)>();
    let job = Job::named("squares")
        .source(iter(|| 0..1000u64))
        .filter(|n| n % 2 == 0)
        .key_by(|n: &u64| n % 10)
        .count_emitting("counts", Emit::AtEnd)
        .map(|(key, n)| (key, n))
        .sink(sink);
    let report = Engine::start(config(), job).unwrap().join().unwrap();
    assert_eq!(report.records_in, 1000);
    assert_eq!(sorted(&collected), [(0, 100), (2, 100), (4, 100), (6, 100), (8, 100)]);
}

#[derive(Clone, Debug, PartialEq, Record, State)]
struct Payment {
    account: u64,
    cents: i64,
    memo: String,
}

const BALANCE: ValueState<i64> = ValueState::named("balance");
const LARGEST: ValueState<Payment> = ValueState::named("largest");

#[derive(Clone)]
struct Overdraft {
    limit_cents: i64,
}

struct OverdraftStates {
    balance: ValueHandle<u64, i64>,
    largest: ValueHandle<u64, Payment>,
}

impl KeyedProcess<u64, Payment> for Overdraft {
    type Handles = OverdraftStates;
    type Out = (u64, i64, String);

    fn open(&self, states: &mut ProcessState<'_, u64>) -> OverdraftStates {
        OverdraftStates { balance: states.value(BALANCE), largest: states.value(LARGEST) }
    }

    fn on_record(
        &self,
        payment: Payment,
        states: &OverdraftStates,
        key: &mut KeyContext<'_, u64>,
        out: &mut impl Collector<Self::Out>,
    ) {
        let balance = key.update(&states.balance, |cents| {
            *cents += payment.cents;
            *cents
        });
        if key.get(&states.largest).is_none_or(|largest| largest.cents < payment.cents) {
            key.set(&states.largest, &payment);
        }
        if balance < -self.limit_cents {
            let memo = key.get(&states.largest).map_or_else(String::new, |largest| largest.memo);
            out.push((key.key(), balance, memo));
            key.clear(&states.balance);
        }
    }
}

fn payments() -> Vec<Payment> {
    let payment = |n: u64| Payment {
        account: n % 3,
        cents: if n.is_multiple_of(4) { 10 } else { -30 },
        memo: format!("payment {n} with a memo longer than any inline text"),
    };
    (0..40).map(payment).collect()
}

#[test]
fn several_states_of_one_operator_live_under_one_key() {
    let dir = tempfile::tempdir().unwrap();
    let (collected, sink) = collect::<(u64, i64, String)>();
    let job = Job::named("overdraft")
        .source(iter(payments))
        .key_by(|payment: &Payment| payment.account)
        .process("overdraft", Overdraft { limit_cents: 100 })
        .sink(sink);
    Engine::start(durable(dir.path()), job).unwrap().join().unwrap();

    let (mut balances, mut largest, mut expected) = ([0; 3], [const { None::<Payment> }; 3], Vec::new());
    for payment in payments() {
        let at = usize::try_from(payment.account).unwrap();
        balances[at] += payment.cents;
        if largest[at].as_ref().is_none_or(|largest| largest.cents < payment.cents) {
            largest[at] = Some(payment.clone());
        }
        if balances[at] < -100 {
            expected.push((payment.account, balances[at], largest[at].clone().unwrap().memo));
            balances[at] = 0;
        }
    }
    expected.sort();
    assert!(!expected.is_empty());
    assert_eq!(sorted(&collected), expected);
}

/// Runs a job that must fail in user code; returns what it says.
#[track_caller]
fn failure(job: Job) -> String {
    let dir = tempfile::tempdir().unwrap();
    let error = Engine::start(durable(dir.path()), job).unwrap().join().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UserCode, "{error}");
    error.to_string()
}

#[test]
fn a_panic_in_a_chain_names_stage_operator_and_source_position() {
    let job = Job::named("panics")
        .source_named("numbers", iter(|| 0..100u64))
        .filter(|_| true)
        .map(|n: u64| if n == 77 { panic!("seventy-seven") } else { n })
        .sink(Discard::counting());
    let said = failure(job);
    for part in ["stage numbers", "operator 2 (map)", "panicked: seventy-seven", "source at"] {
        assert!(said.contains(part), "{part:?} not in: {said}");
    }
}

#[test]
fn a_panic_behind_an_exchange_names_operator_and_key_group_and_hangs_nobody() {
    let job = Job::named("panics")
        .source(iter(|| 0..100_000u64))
        .key_by(|n: &u64| n % 100)
        .process_with("checks", BALANCE, |_: &mut Option<i64>, n: u64, _, _: &mut Out<u64>| {
            assert!(n != 5_000, "five thousand");
        })
        .sink(Discard::counting());
    let said = failure(job);
    for part in ["stage checks", "operator process", "key group", "five thousand"] {
        assert!(said.contains(part), "{part:?} not in: {said}");
    }
}

#[test]
fn an_error_stops_the_job_or_skips_the_record_as_asked() {
    let parse = |text: &'static str| text.parse::<u64>();
    let words = || ["1", "2", "three", "4"].into_iter();
    let job = |policy, sink: Collect<u64>| Job::named("parse").source(iter(words)).try_map(policy, parse).sink(sink);

    let (_, sink) = collect();
    let said = failure(job(OnError::Fail, sink));
    assert!(said.contains("operator 1 (try_map): invalid digit found in string"), "{said}");

    let (collected, sink) = collect();
    let report = Engine::start(config(), job(OnError::SkipAndCount, sink)).unwrap().join().unwrap();
    assert_eq!((sorted(&collected), report.skipped_records), (vec![1, 2, 4], 1));
}

/// The record that a state is of, in three versions.
mod versions {
    use millstream::prelude::*;

    #[derive(Clone, Record, State)]
    #[record(rename = "Visit")]
    pub(super) struct First {
        pub page: u64,
    }

    #[derive(Clone, Record, State)]
    #[record(rename = "Visit")]
    pub(super) struct WithDefault {
        pub page: u64,
        #[record(default)]
        pub millis: u32,
    }

    #[derive(Clone, Record, State)]
    #[record(rename = "Visit")]
    pub(super) struct WithoutDefault {
        pub page: u64,
        pub millis: u32,
    }
}

fn last_visits<V: State + Clone>(dir: &Path, visit: fn(u64) -> V) -> Result<Outcome> {
    let job = Job::named("visits")
        .source(iter(|| 0..10u64))
        .key_by(|n: &u64| n % 2)
        .process_with("visits", ValueState::named("last"), move |last: &mut Option<V>, n: u64, _, _: &mut Out<u64>| {
            *last = Some(visit(n));
        })
        .sink(Discard::counting());
    let mut config = durable(dir);
    config.resume_ended = true;
    Ok(Engine::start(config, job)?.join()?.outcome)
}

#[test]
fn a_state_whose_type_has_changed_is_refused_by_name_and_the_old_job_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let first = |page| versions::First { page };
    assert_eq!(last_visits(dir.path(), first).unwrap(), Outcome::Finished);

    let refused = [
        last_visits(dir.path(), |page| versions::WithDefault { page, millis: 0 }),
        last_visits(dir.path(), |page| versions::WithoutDefault { page, millis: 0 }),
    ];
    for error in refused {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let message = error.message();
        assert!(message.starts_with("state visits.last") && message.contains("`millis: u32` is new"), "{error}");
        assert!(!message.contains("default") && !message.contains("stopped at"), "before the start: {error}");
        assert!(message.contains("another name"), "a way out: {error}");
    }
    assert_eq!(last_visits(dir.path(), first).unwrap(), Outcome::Finished);
}

/// Two records of one name and size, their fields in another order.
mod orders {
    use super::*;

    #[derive(Clone, Record)]
    #[record(rename = "Sale")]
    pub(super) struct Before {
        pub account: u64,
        pub cents: u64,
    }

    #[derive(Clone, Record)]
    #[record(rename = "Sale")]
    pub(super) struct After {
        pub cents: u64,
        pub account: u64,
    }
}

/// Sums so slowly that records wait in the exchange.
fn slow_sales<R: Record>(dir: &Path, sale: fn(u64) -> R, account: fn(&R) -> u64) -> Result<Running> {
    let job = Job::named("sales")
        .source(Generator::new(1, |n, _: &mut Random| n).count(20_000))
        .map(sale)
        .key_by(account)
        .process_with("sums", ValueState::named("sum"), |sum: &mut Option<u64>, _: R, _, _: &mut Out<u64>| {
            std::thread::sleep(Duration::from_micros(200));
            *sum = Some(sum.unwrap_or(0) + 1);
        })
        .sink(Discard::counting());
    Engine::start(durable(dir), job)
}

#[test]
fn records_under_way_are_not_read_as_another_type() {
    let dir = tempfile::tempdir().unwrap();
    let before = |n| orders::Before { account: n, cents: 1 };
    let running = slow_sales(dir.path(), before, |sale| sale.account).unwrap();
    while running.metrics().epochs_completed < 1 {
        std::thread::sleep(Duration::from_millis(5));
    }
    running.stop(Stop::AtNextEpoch);
    assert_eq!(running.join().unwrap().outcome, Outcome::Stopped);
    let epoch = show_snapshot(&RealFiles, dir.path(), None).unwrap();
    assert!(epoch.summary.channel_bytes > 0, "nothing is under way");

    let error =
        slow_sales(dir.path(), |n| orders::After { account: n, cents: 1 }, |sale| sale.account).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.message().contains("on their way") && error.message().contains("drain"), "{error}");
}

#[test]
fn two_operators_of_one_name_do_not_start() {
    let job = Job::named("twice")
        .source(iter(|| 0..10u64))
        .key_by(|n: &u64| *n)
        .count("counts")
        .key_by(|(key, _): &(u64, u64)| *key)
        .count("counts")
        .sink(Discard::counting());
    let error = Engine::start(config(), job).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("two operators are named counts"), "{error}");
}

#[test]
fn explain_names_stages_exchanges_states_and_guarantees() {
    let job = Job::named("explained")
        .source(FileSource::lines("input/*.txt"))
        .flat_map(|line, out| line.split(' ').for_each(|word| out.push(Text::from(word))))
        .key_by_ref(|word: &Text| word.as_str())
        .count("counts")
        .sink(FileSink::lines("out", |(word, n), line| write!(line, "{word}\t{n}")));
    let text = job.explain();
    for part in
        ["job explained", "input/*.txt", "flat_map -> exchange by", "\"counts\"", "state \"counts\"", "exactly-once"]
    {
        assert!(text.contains(part), "{part:?} not in:\n{text}");
    }
    let plan = job.plan();
    let state = &plan.stages[1].states[0];
    assert_eq!(
        (plan.job.as_str(), state.name.as_str(), state.value.to_string()),
        ("explained", "counts", "u64".into())
    );
    assert_eq!(plan.stages.iter().filter_map(|stage| stage.guarantee).collect::<Vec<_>>(), ["exactly-once"]);
}

fn numbers(dir: &Path, rate: f64, sink: Collect<(u64, u64)>) -> Result<Running> {
    let job = Job::named("numbers")
        .source(Generator::new(1, |index, _: &mut Random| index % 7).count(4_000).slices(4).rate(rate))
        .key_by(|key: &u64| *key)
        .count("counts")
        .map(|(key, n)| (key, n))
        .sink(sink);
    Engine::start(durable(dir), job)
}

#[test]
fn a_stopped_job_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (first, sink) = collect();
    let running = numbers(dir.path(), 10_000.0, sink).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    running.stop(Stop::AtNextEpoch);
    assert_eq!(running.join().unwrap().outcome, Outcome::Stopped);

    let (second, sink) = collect();
    let running = numbers(dir.path(), 1e9, sink).unwrap();
    assert_eq!(running.join().unwrap().outcome, Outcome::Finished);
    let mut all = [sorted(&first), sorted(&second)].concat();
    all.sort();
    let mut expected: Vec<(u64, u64)> =
        (0..7).flat_map(|key| (1..=4_000 / 7 + u64::from(key < 4_000 % 7)).map(move |n| (key, n))).collect();
    expected.sort();
    assert!(all == expected, "{} pairs, not {}", all.len(), expected.len());

    let (third, sink) = collect();
    let running = numbers(dir.path(), 1e9, sink).unwrap();
    assert!(running.already_ended());
    running.join().unwrap();
    assert!(third.to_vec().is_empty(), "a job that had ended wrote again");
}

#[test]
fn a_second_process_on_the_state_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_, sink) = collect();
    let running = numbers(dir.path(), 1000.0, sink).unwrap();
    let (_, sink) = collect();
    let error = numbers(dir.path(), 1000.0, sink).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
    running.stop(Stop::AtNextEpoch);
    running.join().unwrap();
}

#[test]
fn state_above_the_memory_limit_stops_the_job_and_names_the_setting() {
    let dir = tempfile::tempdir().unwrap();
    let job = Job::named("large")
        .source(Generator::new(1, |index, _: &mut Random| index).count(3_000_000))
        .key_by(|key: &u64| *key)
        .count_emitting("counts", Emit::AtEnd)
        .sink(Discard::counting());
    is_exhausted(&durable(dir.path()), job, "counts");
    // The same from inside user code, which has no error of its own to return.
    let dir = tempfile::tempdir().unwrap();
    let job = Job::named("large-too")
        .source(Generator::new(1, |index, _: &mut Random| index).count(3_000_000))
        .key_by(|key: &u64| *key)
        .process_with("process", BALANCE, |balance: &mut Option<i64>, _, _, _: &mut Out<u64>| *balance = Some(1))
        .sink(Discard::counting());
    is_exhausted(&durable(dir.path()), job, "process.balance");
}

#[test]
fn a_value_above_the_limit_stops_the_job_at_a_complete_epoch_and_names_state_and_source() {
    const TEXT: ValueState<String> = ValueState::named("text");
    let dir = tempfile::tempdir().unwrap();
    let job = |longest: usize| {
        Job::named("long")
            .source(Generator::new(1, |index, _: &mut Random| index).count(100))
            .key_by(|key: &u64| *key)
            .process_with("process", TEXT, move |text: &mut Option<String>, key: u64, _, _: &mut Out<u64>| {
                *text = Some("x".repeat(if key == 50 { longest } else { 10 }));
            })
            .sink(Discard::counting())
    };
    let error = Engine::start(durable(dir.path()), job(2 << 20)).unwrap().join().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    let message = error.message();
    assert!(message.contains("process.text") && message.contains("a value of 2097"), "{message}");
    assert!(message.contains("above the limit of"), "{message}");
    // Nothing is lost: with values that fit, the same directory goes on to the end.
    assert_eq!(Engine::start(durable(dir.path()), job(100)).unwrap().join().unwrap().records_in, 100);
}

#[test]
fn a_record_too_long_for_an_exchange_names_a_size_that_is_enough() {
    let job = || {
        Job::named("long")
            .source(iter(|| (0..100u64).map(|n| (n, "x".repeat(if n == 50 { 300_000 } else { 10 })))))
            .key_by(|record: &(u64, String)| record.0)
            .process_with("process", ValueState::<u64>::named("lengths"), |_, (_, text), _, out: &mut Out<u64>| {
                out.push(text.len() as u64);
            })
            .sink(Discard::counting())
    };
    let error = Engine::start(config(), job()).unwrap().join().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    let (_, after) = error.message().split_once("(exchange_bytes_per_shard) to at least ").expect("the setting");
    let enough = after.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap();
    let config = EngineConfig { exchange_bytes_per_shard: enough, ..config() };
    assert_eq!(Engine::start(config, job()).unwrap().join().unwrap().records_in, 100);
}

#[track_caller]
fn is_exhausted(config: &EngineConfig, job: Job, state: &str) {
    let config = config.clone().state_memory_bytes_per_core(4 << 20);
    let error = Engine::start(config, job).unwrap().join().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    assert!(error.message().contains(state) && error.message().contains("state-memory"), "{error}");
}

#[test]
fn many_small_files_do_not_each_wait_until_an_idle_shard_looks_again() {
    // On the build's own disk, for O_DIRECT; a memory file system answers before anybody sleeps.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for n in 0..400 {
        std::fs::write(dir.path().join(n.to_string()), "line\n").unwrap();
    }
    let (collected, sink) = collect::<usize>();
    let lines = FileSource::lines(dir.path().join("*").display().to_string());
    let job = Job::named("files").source(lines).map(str::len).sink(sink);
    let begun = std::time::Instant::now();
    Engine::start(config(), job).unwrap().join().unwrap();
    assert_eq!(collected.to_vec(), [4; 400]);
    assert!(begun.elapsed() < Duration::from_secs(3), "took {:?}", begun.elapsed());
}
