//! `millstream run`: starts a job, shows how it goes, stops it when asked to.

use crate::exit::{self, Failure, Result};
use crate::out;
use crate::progress::{Progress, Show};
use crate::stop::StopFlag;
use crate::summary::Summary;
use crate::values;
use clap::{Args, Subcommand, ValueEnum};
use millstream::topology::Cores;
use millstream::{Engine, EngineConfig, Epoch, Job, Outcome, Restore, Stop, operator};
use millstream_bench::word_count::WordCount;
use millstream_state::KeyGroupCount;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time between two looks at a running job.
const LOOK_EVERY: Duration = Duration::from_millis(10);

#[derive(Subcommand, Clone, Debug)]
pub(crate) enum RunCommand {
    /// Counts the words of text files
    ///
    /// A word is a maximal run of ASCII letters, ASCII digits and bytes above 0x7f; only A-Z are lower-cased, and any
    /// file has words, whatever its encoding. The counts are state: with --state-dir they survive a crash, and the output
    /// files hold every result exactly once, however often the job is killed and run again.
    #[command(args_override_self = true, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
    WordCount(Box<WordCountArgs>),
}

const EXAMPLES: &str = "\
Examples:
  Count once, on every core there is:
    millstream run word-count --input 'docs/**/*.md' --output counts

  Survive anything: kill it, run the same line again, and it goes on. Other --cores are fine:
    millstream run word-count --input 'logs/*.txt' --output counts --state-dir state --cores 2

  Leave time for killing it; every 200 ms an epoch is written:
    millstream run word-count --input 'logs/*.txt' --output counts --state-dir state --rate 50k --epoch-interval 200ms

  Look at what it left behind:
    millstream snapshot list state";

#[derive(Args, Clone, Debug)]
pub(crate) struct WordCountArgs {
    /// Pattern of the text files, quoted: 'logs/*.txt', 'src/**/*.rs'
    #[arg(long, value_name = "GLOB")]
    input: String,

    /// Directory for the results, files of `word<TAB>count`; made if missing
    #[arg(long, value_name = "DIR")]
    output: PathBuf,

    /// What to write
    #[arg(long, value_enum, default_value_t = EmitArg::Final)]
    emit: EmitArg,

    /// Read no more than this many lines per second, all shards together (5000, 50k, 1.5M)
    #[arg(long, value_name = "LINES", value_parser = values::rate)]
    rate: Option<f64>,

    /// Cut files into pieces of this size, the unit that is dealt to shards
    #[arg(long, value_name = "BYTES", value_parser = values::bytes, default_value = "16MiB")]
    split_size: u64,

    /// Print the plan of the job and do not run it
    #[arg(long)]
    explain: bool,

    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    report: ReportArgs,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EmitArg {
    /// Every word once with its count, when the input has ended
    Final,
    /// Every occurrence of a word with its number
    Updates,
}

impl From<EmitArg> for operator::Emit {
    fn from(emit: EmitArg) -> Self {
        match emit {
            EmitArg::Final => Self::AtEnd,
            EmitArg::Updates => Self::Updates,
        }
    }
}

/// Settings of the engine. What is not given comes from `MILLSTREAM_*` in the environment, then from the defaults.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Cores to run on, a shard each: a count (2), a list (0-1, or 3-3 for one) or auto [default: auto]
    #[arg(long, value_name = "CORES")]
    cores: Option<Cores>,

    /// Where state and snapshots live; made if missing. Without it nothing survives a crash
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// Time from one epoch to the next [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    epoch_interval: Option<Duration>,

    /// What to go on from: latest, none (the state directory must be new), or the number of an epoch [default: latest]
    #[arg(long, value_name = "EPOCH", value_parser = values::restore)]
    restore: Option<Restore>,

    /// Allow --restore of an epoch whose later output is committed and will appear again
    #[arg(long)]
    allow_going_back: bool,

    /// Go on with new files where the input had ended; without it they are refused. With `--emit final` every word is written again, in the files of the
    /// new epoch: those of the former end are out of date
    #[arg(long)]
    resume_ended: bool,

    /// Complete epochs to keep [default: 2]
    #[arg(long, value_name = "N")]
    retain: Option<usize>,

    /// Most memory for the state of one shard [default: 2GiB]
    #[arg(long, value_name = "BYTES", value_parser = values::size)]
    state_memory: Option<usize>,

    /// Most megabytes per second that one shard writes for snapshots; 0 for no limit [default: 400]
    #[arg(long, value_name = "MBPS")]
    flush_mbps: Option<u32>,

    /// Give an epoch up that is not complete after this time; the job goes on [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    epoch_timeout: Option<Duration>,

    /// Time from the end of the input until the last epoch must be complete, all attempts to write it included; at least
    /// 1ms. After it the job ends with exit code 8 [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    final_epoch_patience: Option<Duration>,

    /// Key groups of a new job: the most shards it can ever have; a power of two [default: 4096]
    #[arg(long, value_name = "N", value_parser = |text: &str| -> std::result::Result<_, String> {
        let count = text.parse().map_err(|_| "write a power of two, such as 4096".to_owned())?;
        KeyGroupCount::new(count).map_err(|error| error.to_string())
    })]
    key_groups: Option<KeyGroupCount>,

    /// Exchange buffers of a shard [default: 512KiB]
    #[arg(long, value_name = "BYTES", value_parser = values::size)]
    exchange_size: Option<usize>,

    /// Never park an idle shard: the lowest latency, at the price of a busy core
    #[arg(long)]
    busy_poll: bool,

    /// Fault the whole memory for state in before the first record
    #[arg(long)]
    prefault: bool,
}

impl EngineArgs {
    fn config(self) -> Result<EngineConfig> {
        fn set<T>(field: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *field = value;
            }
        }
        let millis = |time: Option<Duration>| time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let mut config = EngineConfig::from_env()?;
        set(&mut config.cores, self.cores);
        set(&mut config.state_dir, self.state_dir.map(Some));
        set(&mut config.epoch_interval_ms, millis(self.epoch_interval));
        set(&mut config.restore, self.restore);
        config.allow_going_back |= self.allow_going_back;
        config.resume_ended |= self.resume_ended;
        set(&mut config.retained_epochs, self.retain);
        set(&mut config.state_memory_bytes_per_core, self.state_memory);
        set(&mut config.flush_mbps, self.flush_mbps);
        set(&mut config.epoch_timeout_ms, millis(self.epoch_timeout));
        set(&mut config.final_epoch_patience_ms, millis(self.final_epoch_patience));
        set(&mut config.key_groups, self.key_groups);
        set(&mut config.exchange_bytes_per_shard, self.exchange_size);
        config.busy_poll |= self.busy_poll;
        config.prefault_all |= self.prefault;
        Ok(config)
    }
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Report")]
pub(crate) struct ReportArgs {
    /// How to show what goes on, on standard error
    #[arg(long, value_enum, default_value_t = Show::Auto)]
    progress: Show,

    /// Print one JSON object at the end instead of a summary; with --explain, the plan
    #[arg(long)]
    json: bool,
}

impl RunCommand {
    /// Whether results and errors are wanted as JSON.
    pub(crate) fn json(&self) -> bool {
        let Self::WordCount(args) = self;
        args.report.json
    }

    /// Runs the job to its end.
    pub(crate) fn run(self) -> Result {
        let Self::WordCount(args) = self;
        let WordCountArgs { input, output, emit, rate, split_size, explain, engine, report } = *args;
        if split_size == 0 {
            return Err(Failure::new(exit::INVALID, "--split-size must be above zero"));
        }
        let job = WordCount { input, output, emit: emit.into(), rate, split_bytes: split_size }.job();
        if explain {
            out::report(report.json, &job.plan(), ToString::to_string)?;
            return Ok(exit::OK);
        }
        log_to_stderr();
        run(job, engine.config()?, &report)
    }
}

fn run(job: Job, config: EngineConfig, report: &ReportArgs) -> Result {
    let stop = StopFlag::install()?;
    let durable = config.state_dir.is_some();
    let begun = Instant::now();
    let running = Engine::start(config, job)?;
    for warning in running.warnings() {
        out::say(format_args!("warning: {warning}"));
    }
    let mut summary = Summary::of(&running);
    let mut progress = Progress::new(report.progress);
    if running.restored() > Epoch::ZERO && !running.already_ended() {
        progress.say(&format!("going on from epoch {}", running.restored()));
    }
    let mut stopping = false;
    while !running.is_ended() {
        if stop.is_asked() && !stopping {
            stopping = true;
            progress.say("stopping at the next epoch; once more to leave at once");
            running.stop(Stop::AtNextEpoch);
        }
        progress.show(&running.metrics());
        std::thread::sleep(LOOK_EVERY);
    }
    progress.finish();
    let report_of_job = running.join()?;
    summary.finish(&report_of_job, begun.elapsed());
    out::report(report.json, &summary, Summary::to_text)?;
    if report_of_job.outcome == Outcome::Finished {
        return Ok(exit::OK);
    }
    match durable {
        true => out::say("stopped at a complete epoch: the same command goes on from there"),
        false => out::say("stopped; without --state-dir there is nothing to go on from"),
    }
    Ok(exit::STOPPED)
}

/// Warnings of the engine, such as an epoch that failed, as lines on standard error.
fn log_to_stderr() {
    let log = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        // It would report them on standard error, which is what failed.
        .log_internal_errors(false)
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_target(false)
        .without_time()
        .with_ansi(false);
    // Somebody else's logger does as well.
    let _ = log.try_init();
}
