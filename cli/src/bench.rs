//! `millstream bench`: what this machine can do, and how much of it the engine reaches.
//!
//! A table goes to standard output (or one JSON object with `--json`), and the JSON file always to `results/local`, or
//! where `--out` says. Whether that can be written is found out before anything is measured.

mod progress;
mod quick;

use crate::exit::{self, Result};
use crate::out;
use crate::stop::StopFlag;
use crate::values;
use clap::{Args, Subcommand};
use millstream::topology::{Cores, Topology};
use millstream_bench::ceiling::Ceiling;
use millstream_bench::keyed_count::KeyedCount;
use millstream_bench::keys::Distribution;
use millstream_bench::machine::Machine;
use millstream_bench::report::{ResultFile, check_writable, rate, table};
use progress::Progress;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

#[derive(Subcommand, Clone, Debug)]
pub(crate) enum BenchCommand {
    /// Shows everything once, in under a minute
    ///
    /// Word count over the repository's sample text is killed with SIGKILL in the middle, resumed, and its output checked
    /// against an independent count; then keys are counted with durable epochs, beside the bare loop that is this
    /// machine's limit.
    Quick(quick::QuickArgs),
    /// The bare loop that a keyed count is measured against: no epochs, no state that outlives it
    Ceiling(CeilingArgs),
    /// A count of every key with durable epochs on disk: the engine's figure to compare
    ///
    /// Keys from a generator on every shard cross an exchange to the shard that owns them and are counted there; every
    /// update goes to a sink that counts. Gaps between batches are told apart into the host's and the engine's.
    KeyedCount(KeyedCountArgs),
}

/// Where results go.
#[derive(Args, Clone, Debug)]
pub(crate) struct OutArgs {
    /// Print the result file instead of a table
    #[arg(long)]
    pub(crate) json: bool,

    /// Write the result here instead of to a new file in results/local
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// What is counted, and where.
#[derive(Args, Clone, Debug)]
pub(crate) struct CountArgs {
    /// Cores to run on, a shard each: a count (2), a list (0-1, or 3-3 for one) or auto
    #[arg(long, value_name = "CORES", default_value = "auto")]
    pub(crate) cores: Cores,

    /// How many different keys
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(crate) keys: u64,

    /// How often each occurs: uniform, or zipf:THETA such as zipf:0.99
    #[arg(long, value_name = "SHAPE", default_value = "uniform")]
    pub(crate) distribution: Distribution,

    /// Time measured
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "10s")]
    pub(crate) duration: Duration,

    /// Time before that
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "2s")]
    pub(crate) warm_up: Duration,

    /// The same seed counts the same keys
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub(crate) seed: u64,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct CeilingArgs {
    #[command(flatten)]
    count: CountArgs,

    #[command(flatten)]
    out: OutArgs,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct KeyedCountArgs {
    #[command(flatten)]
    count: CountArgs,

    /// From one epoch to the next
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "1s")]
    epoch_interval: Duration,

    /// Records per second, open loop: latencies run from when a record was due. Without, as fast as it goes
    #[arg(long, value_name = "R", value_parser = values::rate)]
    rate: Option<f64>,

    /// Run the bare loop in turn with the engine, and tell the ratio of their medians
    #[arg(long)]
    with_ceiling: bool,

    /// How often they take turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Where the state directory is made, and removed afterwards; by default a place for temporary files on a disk
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// Most megabytes per second that a shard writes for snapshots; 0 for no limit
    #[arg(long, value_name = "MB", default_value_t = 400)]
    flush_mbps: u32,

    /// Never park an idle shard
    #[arg(long)]
    busy_poll: bool,

    #[command(flatten)]
    out: OutArgs,
}

impl BenchCommand {
    /// Whether results and errors are wanted as JSON.
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::Quick(args) => args.out.json,
            Self::Ceiling(args) => args.out.json,
            Self::KeyedCount(args) => args.out.json,
        }
    }

    /// Measures, shows and keeps the result.
    pub(crate) fn run(&self) -> Result {
        match self {
            Self::Quick(args) => quick::run(args),
            Self::Ceiling(args) => ceiling(args),
            Self::KeyedCount(args) => keyed_count(args),
        }
    }
}

fn ceiling(args: &CeilingArgs) -> Result {
    let started = SystemTime::now();
    let CountArgs { cores, keys, distribution, duration, warm_up, seed } = args.count.clone();
    check_writable(args.out.out.as_deref())?;
    let stop = StopFlag::install()?;
    let topology = Topology::read()?;
    let placement = topology.plan(&cores)?;
    placement.warnings.iter().for_each(|warning| out::say(format_args!("warning: {warning}")));
    let keys = distribution.over(keys)?;
    let ceiling = Ceiling { placement, keys, warm_up, duration, seed };
    let report = Progress::of(warm_up + duration).watch(&stop, |look| ceiling.run_before(look))?;
    let row = [
        report.keys.to_string(),
        report.cores.len().to_string(),
        format!("{:.1} s", report.seconds),
        rate(report.records_per_second),
    ];
    let shown = table(["counted", "shards", "for", "records"], [row]);
    keep("ceiling", started, &topology, None, report, &shown, &args.out)
}

fn keyed_count(args: &KeyedCountArgs) -> Result {
    let started = SystemTime::now();
    let CountArgs { cores, keys, distribution, duration, warm_up, seed } = args.count.clone();
    let rate = args.rate;
    if let Some(rate) = rate.filter(|rate| !(rate.is_finite() && *rate > 0.0)) {
        return Err(millstream::Error::invalid(format_args!(
            "a rate of {rate} records per second: must be above zero"
        ))
        .into());
    }
    check_writable(args.out.out.as_deref())?;
    let stop = StopFlag::install()?;
    let topology = Topology::read()?;
    let run = KeyedCount {
        cores,
        keys: distribution.over(keys)?,
        duration,
        warm_up,
        epoch_interval: args.epoch_interval,
        rate,
        with_ceiling: args.with_ceiling,
        rounds: args.rounds,
        state_dir: args.state_dir.clone(),
        flush_mbps: args.flush_mbps,
        busy_poll: args.busy_poll,
        seed,
    };
    let directory = run.directory()?;
    let report = Progress::of(run.planned()).watch(&stop, |look| run.run_before(look))?;
    report.warnings.iter().for_each(|warning| out::say(format_args!("warning: {warning}")));
    let shown = report.table();
    keep("keyed-count", started, &topology, Some(&directory), report, &shown, &args.out)
}

/// Writes the result file, and shows the result.
pub(crate) fn keep<T: Serialize>(
    benchmark: &str,
    started: SystemTime,
    topology: &Topology,
    state_dir: Option<&Path>,
    result: T,
    shown: &str,
    out: &OutArgs,
) -> Result {
    let file = ResultFile::new(benchmark, started, Machine::read(topology, state_dir), result);
    if file.machine.debug_build {
        out::say("warning: built without optimization; the figures mean nothing (cargo run --release)");
    }
    let path = file.write(out.out.as_deref())?;
    if out.json {
        out::result(file.to_json())?;
    } else {
        out::result(format_args!("{shown}\n\nresult in {}\n", path.display()))?;
    }
    Ok(exit::OK)
}
