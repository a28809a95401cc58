//! `millstream bench`: what this machine can do, and how much of it the engine reaches.
//!
//! A table goes to standard output (or one JSON object with `--json`), and the JSON file always to `results/local`, or
//! where `--out` says.

use crate::exit::{self, Result};
use crate::quick;
use clap::{Args, Subcommand};
use millstream::topology::{Cores, Topology};
use millstream_bench::ceiling::Ceiling;
use millstream_bench::keys::Distribution;
use millstream_bench::machine::Machine;
use millstream_bench::report::{ResultFile, rate, table};
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

impl BenchCommand {
    /// Whether results and errors are wanted as JSON.
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::Quick(args) => args.out.json,
            Self::Ceiling(args) => args.out.json,
        }
    }

    /// Measures, shows and keeps the result.
    pub(crate) fn run(&self) -> Result {
        match self {
            Self::Quick(args) => quick::run(args),
            Self::Ceiling(args) => ceiling(args),
        }
    }
}

fn ceiling(args: &CeilingArgs) -> Result {
    let started = SystemTime::now();
    let CountArgs { cores, keys, distribution, duration, warm_up, seed } = args.count.clone();
    let topology = Topology::read()?;
    let placement = topology.plan(&cores)?;
    placement.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    let keys = distribution.over(keys)?;
    let report = Ceiling { placement, keys, warm_up, duration, seed }.run()?;
    let row = [
        report.keys.to_string(),
        report.cores.len().to_string(),
        format!("{:.1} s", report.seconds),
        rate(report.records_per_second),
    ];
    let shown = table(["counted", "shards", "for", "records"], [row]);
    keep("ceiling", started, &topology, None, report, &shown, &args.out)
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
        eprintln!("warning: built without optimization; the figures mean nothing (cargo run --release)");
    }
    let path = file.write(out.out.as_deref())?;
    if out.json {
        print!("{}", file.to_json());
    } else {
        println!("{shown}\n\nresult in {}", path.display());
    }
    Ok(exit::OK)
}
