//! `millstream bench quick`: the whole promise, shown once.
//!
//! The word count runs in a process of its own, this same program, so that it can be killed with SIGKILL. It is paced
//! until then and runs free when it is resumed. The expected counts are found here, without the engine.

use crate::bench::progress::{Progress, stopped};
use crate::bench::{self, OutArgs};
use crate::exit::{CHECK_FAILED, Failure, OK, Result, UNAVAILABLE};
use crate::out;
use crate::stop::StopFlag;
use clap::Args;
use millstream::operator::Emit;
use millstream::topology::{Cores, Topology};
use millstream_bench::keyed_count::{KeyedCount, KeyedCountReport};
use millstream_bench::report::{LOCAL_RESULTS, bytes, check_writable, microseconds, rate, table};
use millstream_bench::word_count::{Counts, count_text};
use millstream_state::io::RealFiles;
use millstream_state::snapshot::list_snapshots;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// The repository's sample text, part of the program so that it runs from anywhere.
const SAMPLES: [(&str, &[u8]); 3] = [
    ("engine.txt", include_bytes!("../../../examples/text/engine.txt")),
    ("orders.txt", include_bytes!("../../../examples/text/orders.txt")),
    ("store.txt", include_bytes!("../../../examples/text/store.txt")),
];

/// Text to count: the samples as often as they fit.
const TEXT_BYTES: usize = 96 << 20;
/// The paced run would take this long; it is killed in its middle.
const PACED_SECONDS: f64 = 6.0;
/// Complete epochs before it is killed.
const EPOCHS_BEFORE_KILL: u64 = 5;
const EPOCH_INTERVAL: &str = "300ms";
/// Longest time to wait for those.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Args, Clone, Debug)]
pub(crate) struct QuickArgs {
    /// Cores to run on, a shard each: a count (2), a list (0-1, or 3-3 for one) or auto
    #[arg(long, value_name = "CORES", default_value = "auto")]
    cores: Cores,

    #[command(flatten)]
    pub(crate) out: OutArgs,
}

/// The result file.
#[derive(Serialize)]
struct QuickReport {
    word_count: KilledWordCount,
    keyed_count: KeyedCountReport,
}

/// A word count that was killed and resumed.
#[derive(Serialize)]
struct KilledWordCount {
    text_bytes: u64,
    words: u64,
    distinct_words: u64,
    /// The newest complete epoch when it was killed: what it was resumed from.
    killed_after_epoch: u64,
    killed_after_seconds: f64,
    /// Words counted again or for the first time after the kill, and how fast.
    resumed_words: u64,
    resumed_seconds: f64,
    resumed_words_per_second: f64,
    cut_us_max: f64,
    flush_ms_median: f64,
    /// No word lost, none doubled, nothing left behind.
    output_verified: bool,
}

/// Runs it all and shows the table.
pub(crate) fn run(args: &QuickArgs) -> Result {
    let started = SystemTime::now();
    check_writable(args.out.out.as_deref())?;
    let stop = StopFlag::install()?;
    let topology = Topology::read()?;
    topology.plan(&args.cores)?;
    let root = work_dir()?;
    let word_count = word_count(args, root.path(), &stop)?;
    out::say("counting keys, beside the bare loop that is this machine's limit");
    let keyed_count = KeyedCount {
        cores: args.cores.clone(),
        duration: Duration::from_secs(3),
        warm_up: Duration::from_secs(1),
        with_ceiling: true,
        rounds: 2,
        state_dir: Some(root.path().to_owned()),
        ..KeyedCount::default()
    };
    let keyed_count = Progress::of(keyed_count.planned()).watch(&stop, |look| keyed_count.run_before(look))?;
    keyed_count.warnings.iter().for_each(|warning| out::say(format_args!("warning: {warning}")));
    let shown = format!("{}\n\n{}", word_count.table(), keyed_count.table());
    let report = QuickReport { word_count, keyed_count };
    bench::keep("quick", started, &topology, Some(root.path()), report, &shown, &args.out)?;
    Ok(OK)
}

/// A directory beside the results: on a disk, where temporary files often are not.
fn work_dir() -> Result<tempfile::TempDir> {
    let below = Path::new(LOCAL_RESULTS);
    std::fs::create_dir_all(below)
        .and_then(|()| tempfile::Builder::new().prefix(".quick-").tempdir_in(below))
        .map_err(|error| failed(below.display(), &error))
}

fn failed(what: impl fmt::Display, error: &std::io::Error) -> Failure {
    Failure::new(UNAVAILABLE, format_args!("{what}: {error}"))
}

fn word_count(args: &QuickArgs, root: &Path, stop: &StopFlag) -> Result<KilledWordCount> {
    out::say(format_args!("writing {} of sample text", bytes(TEXT_BYTES as u64)));
    let (text_bytes, lines, expected) = write_text(&root.join("text"))?;
    #[expect(clippy::cast_precision_loss, reason = "a few million lines")]
    let paced = lines as f64 / PACED_SECONDS;

    out::say("counting its words, paced, to be killed in the middle");
    let begun = Instant::now();
    let mut child = start(args, root, Some(paced))?;
    let killed_after_epoch = wait_and_kill(&mut child, &root.join("state"), stop)?;
    let killed_after_seconds = begun.elapsed().as_secs_f64();

    out::say(format_args!(
        "killed with SIGKILL after epoch {killed_after_epoch}; the same command again, at full speed"
    ));
    let mut child = start(args, root, None)?;
    while look(&mut child, stop)?.is_none() {}
    let output = child.wait_with_output().map_err(|error| failed("waiting for the job", &error))?;
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if !output.status.success() || summary["outcome"] != "finished" {
        return Err(Failure::new(CHECK_FAILED, format_args!("the resumed job did not finish: {}", output.status)));
    }
    if summary["restored_epoch"].as_u64() < Some(killed_after_epoch) {
        let what = format_args!("resumed from epoch {}, below {killed_after_epoch}", summary["restored_epoch"]);
        return Err(Failure::new(CHECK_FAILED, what));
    }

    out::say("comparing every count with an independent one");
    expected
        .compare(&root.join("counts"), Emit::AtEnd)
        .map_err(|what| Failure::new(CHECK_FAILED, format_args!("the output is wrong: {what}")))?;
    let figure = |name: &str| summary[name].as_f64().unwrap_or(0.0);
    Ok(KilledWordCount {
        text_bytes,
        words: expected.total(),
        distinct_words: expected.distinct() as u64,
        killed_after_epoch,
        killed_after_seconds,
        resumed_words: summary["records"].as_u64().unwrap_or(0),
        resumed_seconds: figure("seconds"),
        resumed_words_per_second: figure("records_per_second"),
        cut_us_max: summary["cut_us"]["max"].as_f64().unwrap_or(0.0),
        flush_ms_median: summary["flush_ms"]["p50"].as_f64().unwrap_or(0.0),
        output_verified: true,
    })
}

/// Writes the samples, each as one file in which it stands many times; returns bytes, lines and what is to be found.
fn write_text(dir: &Path) -> Result<(u64, u64, Counts)> {
    let mut sample = Vec::new();
    SAMPLES.iter().for_each(|(_, text)| sample.extend_from_slice(text));
    let times = TEXT_BYTES / sample.len();
    std::fs::create_dir_all(dir).map_err(|error| failed(dir.display(), &error))?;
    for (name, text) in SAMPLES {
        let path = dir.join(name);
        std::fs::write(&path, text.repeat(times)).map_err(|error| failed(path.display(), &error))?;
    }
    let lines = sample.iter().filter(|&&byte| byte == b'\n').count();
    let mut expected = Counts::default();
    SAMPLES.iter().for_each(|(_, text)| expected += count_text(text));
    let times = times as u64;
    Ok((sample.len() as u64 * times, lines as u64 * times, expected.repeated(times)))
}

fn start(args: &QuickArgs, root: &Path, rate: Option<f64>) -> Result<Child> {
    let program = std::env::current_exe().map_err(|error| failed("this program cannot be found", &error))?;
    let mut command = Command::new(program);
    command.args(["run", "word-count", "--json", "--progress", "none", "--split-size", "4MiB"]);
    command.arg("--input").arg(root.join("text").join("*.txt"));
    command.arg("--output").arg(root.join("counts"));
    command.arg("--state-dir").arg(root.join("state"));
    command.args(["--epoch-interval", EPOCH_INTERVAL, "--cores", &args.cores.to_string()]);
    if let Some(rate) = rate {
        command.args(["--rate", &rate.to_string()]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(|error| failed("starting the job", &error))
}

/// Looks at the job after a short pause: how it has ended, if it has. Somebody who asks to stop stops it as well.
fn look(child: &mut Child, stop: &StopFlag) -> Result<Option<ExitStatus>> {
    std::thread::sleep(Duration::from_millis(5));
    if stop.is_asked() {
        // It may have ended by itself: a terminal tells both.
        let _ = child.kill();
        let _ = child.wait();
        return Err(stopped());
    }
    child.try_wait().map_err(|error| failed("waiting for the job", &error))
}

/// Kills the job once it has completed some epochs; returns the newest.
fn wait_and_kill(child: &mut Child, state_dir: &Path, stop: &StopFlag) -> Result<u64> {
    let begun = Instant::now();
    loop {
        if let Some(status) = look(child, stop)? {
            return Err(Failure::new(CHECK_FAILED, format_args!("the job ended before it could be killed: {status}")));
        }
        // Until the directory is there this is an error, and nothing else to worry about.
        let newest = list_snapshots(&RealFiles, state_dir).ok().and_then(|list| list.epochs.last().map(|e| e.epoch.0));
        let enough = newest.is_some_and(|epoch| epoch >= EPOCHS_BEFORE_KILL);
        if enough || begun.elapsed() > PATIENCE {
            // Somewhere within the next epoch, wherever that happens to be.
            std::thread::sleep(Duration::from_millis(u64::from(std::process::id()) % 300));
            child.kill().and_then(|()| child.wait()).map_err(|error| failed("killing the job", &error))?;
            return match newest {
                Some(epoch) if enough => Ok(epoch),
                _ => Err(Failure::new(CHECK_FAILED, "the job completed too few epochs before it was to be killed")),
            };
        }
    }
}

impl KilledWordCount {
    fn table(&self) -> String {
        let rows = [
            ("text", bytes(self.text_bytes)),
            ("words", self.words.to_string()),
            ("different words", self.distinct_words.to_string()),
            ("killed with SIGKILL after", format!("{:.1} s", self.killed_after_seconds)),
            ("complete epochs by then", self.killed_after_epoch.to_string()),
            ("words counted when resumed", self.resumed_words.to_string()),
            ("time for them", format!("{:.2} s", self.resumed_seconds)),
            ("words per second", rate(self.resumed_words_per_second)),
            ("longest cut", microseconds(self.cut_us_max)),
            ("median flush", microseconds(self.flush_ms_median * 1000.0)),
            ("output", "equal to an independent count".to_owned()),
        ];
        table(["word count", "killed and resumed"], rows.map(|(what, value)| [what.to_owned(), value]))
    }
}
