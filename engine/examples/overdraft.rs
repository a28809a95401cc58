//! Reports overdrawn accounts: the code of docs/EMBEDDING.md.

use millstream::items::Lines;
use millstream::prelude::*;
use millstream::{ErrorKind, JobReport};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A line of the input, such as `7 -250`.
#[derive(Record)]
struct Payment {
    account: u64,
    cents: i64,
}

/// An account below its limit, and the payment that put it there.
#[derive(Clone, Record, State)]
struct Overdrawn {
    account: u64,
    balance_cents: i64,
    payment_cents: i64,
}

fn parse(line: &str) -> Result<Payment, String> {
    let (account, cents) = line.split_once(' ').ok_or("a payment is an account, a space and cents")?;
    let account = account.parse().map_err(|error| format!("account {account:?}: {error}"))?;
    let cents = cents.parse().map_err(|error| format!("cents {cents:?}: {error}"))?;
    Ok(Payment { account, cents })
}

/// The balance of each account.
const BALANCE: ValueState<i64> = ValueState::named("balance");

#[derive(Clone)]
struct Watch {
    limit_cents: i64,
}

impl KeyedProcess<u64, Payment> for Watch {
    type Handles = ValueHandle<u64, i64>;
    type Out = Overdrawn;

    fn open(&self, states: &mut ProcessState<'_, u64>) -> Self::Handles {
        states.value(BALANCE)
    }

    fn on_record(
        &self,
        payment: Payment,
        balance: &Self::Handles,
        key: &mut KeyContext<'_, u64>,
        out: &mut impl Collector<Overdrawn>,
    ) {
        let balance_cents = key.update(balance, |cents| {
            *cents += payment.cents;
            *cents
        });
        if balance_cents < -self.limit_cents {
            out.push(Overdrawn { account: key.key(), balance_cents, payment_cents: payment.cents });
        }
    }
}

fn job(payments: impl Source<Items = Lines>, output: &str) -> Job {
    Job::named("overdraft")
        .source(payments)
        .try_map(OnError::SkipAndCount, parse)
        .key_by(|payment: &Payment| payment.account)
        .process("watch", Watch { limit_cents: 10_000 })
        .key_by(|overdrawn: &Overdrawn| overdrawn.account)
        .reduce("lowest", Emit::AtEnd, |lowest, overdrawn| {
            if overdrawn.balance_cents < lowest.balance_cents {
                *lowest = overdrawn;
            }
        })
        .sink(FileSink::lines(output, |(account, lowest): (u64, Overdrawn), line| {
            write!(line, "{account}\t{}\t{}", lowest.balance_cents, lowest.payment_cents)
        }))
}

fn run(config: EngineConfig, job: Job) -> millstream::Result<JobReport> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset and sets it, the second finds it set and kills.
        flag::register_conditional_default(signal, Arc::clone(&asked))
            .and_then(|_| flag::register(signal, Arc::clone(&asked)))
            .map_err(millstream::Error::unavailable)?;
    }
    let running = Engine::start(config, job)?;
    running.warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
    let mut is_stopping = false;
    while !running.is_ended() {
        if asked.load(Ordering::Relaxed) && !is_stopping {
            is_stopping = true;
            running.stop(Stop::AtNextEpoch);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    running.join()
}

/// The exit codes of the command `millstream`.
fn exit_code(result: &millstream::Result<JobReport>) -> u8 {
    match result {
        Ok(report) if report.outcome == Outcome::Finished => 0,
        Ok(_) => 130,
        Err(error) => match error.kind() {
            ErrorKind::Invalid => 2,
            ErrorKind::Corrupt => 3,
            ErrorKind::Exhausted => 5,
            ErrorKind::Locked => 6,
            ErrorKind::UserCode => 7,
            ErrorKind::Uncommitted => 8,
            // Unavailable, and kinds that do not exist yet.
            _ => 4,
        },
    }
}

fn main() -> ExitCode {
    let result = EngineConfig::from_env()
        .and_then(|config| run(config, job(FileSource::lines("payments/*.txt"), "out/overdrawn")));
    match &result {
        Ok(report) => println!("{:?}, {} lines skipped", report.outcome, report.skipped_records),
        Err(error) => eprintln!("error: {error}"),
    }
    ExitCode::from(exit_code(&result))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;
    use std::sync::{Mutex, PoisonError};

    /// A signal reaches every job of the process, so they run one after another.
    static ALONE: Mutex<()> = Mutex::new(());

    /// The lines of all files in `dir`, sorted.
    fn lines(dir: &Path) -> Vec<String> {
        let parts = fs::read_dir(dir).unwrap().map(|part| fs::read_to_string(part.unwrap().path()).unwrap());
        let mut lines: Vec<String> =
            parts.flat_map(|part| part.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        lines.sort();
        lines
    }

    fn config() -> EngineConfig {
        EngineConfig::new().cores("2".parse().unwrap()).state_memory_bytes_per_core(32 << 20)
    }

    fn run_on(input: &str, output: &Path, config: EngineConfig) -> millstream::Result<JobReport> {
        run(config, job(FileSource::lines(input), output.to_str().unwrap()))
    }

    #[test]
    fn the_example_reports_the_lowest_balances_and_leaves_bad_lines_out() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let (input, output) = (dir.path().join("monday.txt"), dir.path().join("out"));
        fs::write(&input, "7 5000\n7 -20000\n7 -100\n8 -12000\n8 oops\n8 11000\n").unwrap();
        let result = run_on(input.to_str().unwrap(), &output, config());
        assert_eq!(exit_code(&result), 0);
        assert_eq!(result.unwrap().skipped_records, 1);
        assert_eq!(lines(&output), ["7\t-15100\t-100", "8\t-12000\t-12000"]);

        let missing = run_on("no/such/file", &output, config());
        assert_eq!(exit_code(&missing), 2, "{missing:?}");
    }

    #[test]
    fn an_interrupt_stops_the_example_at_an_epoch_and_the_next_start_goes_on() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let payments = (0..100_000).map(|n: i64| format!("{} {}\n", n % 97, n * 7919 % 20_011 - 10_050));
        fs::write(at("payments.txt"), payments.collect::<String>()).unwrap();
        let input = at("payments.txt").to_str().unwrap().to_owned();
        run_on(&input, &at("expected"), config()).unwrap();

        let durable = || config().state_dir(at("state")).epoch_interval(Duration::from_millis(20));
        let epoch = at("state/epoch-00000000000000000001.manifest");
        let interrupt = std::thread::spawn(move || {
            // By the first epoch the signals are handled; the job has some seconds to go.
            for _ in 0..60_000 {
                if epoch.exists() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            signal_hook::low_level::raise(SIGINT).unwrap();
        });
        let slowly = FileSource::lines(&input).rate(20_000.0);
        let stopped = run(durable(), job(slowly, at("out").to_str().unwrap()));
        interrupt.join().unwrap();
        assert_eq!(exit_code(&stopped), 130, "{stopped:?}");

        assert_eq!(run_on(&input, &at("out"), durable()).unwrap().outcome, Outcome::Finished);
        let (out, expected) = (lines(&at("out")), lines(&at("expected")));
        assert!(!expected.is_empty() && out == expected, "{} lines, {} expected", out.len(), expected.len());
    }
}
