//! The `millstream` command: runs jobs, looks at snapshots, checks hosts, measures.
//!
//! Results go to standard output, everything else to standard error; with `--json` standard output is one JSON object,
//! also when the command fails.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use clap::{Parser, Subcommand};
use exit::Failure;
use std::process::ExitCode;

mod bench;
mod doctor;
mod exit;
mod file_limit;
mod out;
mod progress;
mod run;
mod snapshot;
mod stop;
mod summary;
mod values;

/// Stateful stream processing on every core of one Linux host: exactly once, through crashes.
#[derive(Parser)]
#[command(name = "millstream", version, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a job that comes with millstream
    #[command(subcommand)]
    Run(run::RunCommand),
    /// Looks at the snapshots of a state directory, also while its job runs
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    Doctor(doctor::DoctorArgs),
    /// Measures this machine
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

const EXAMPLES: &str = "\
Examples:
  millstream doctor                                  can a job run here? what is to be repaired?
  millstream run word-count --input 'docs/*.md' --output counts --state-dir state
  millstream snapshot list state                     what a restart would go on from
  millstream bench quick                             all of it in under a minute";

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && std::env::args_os().any(|arg| arg == "--json") => {
            let text = error.to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
            return finish(true, Err(Failure::new(exit::INVALID, text)));
        }
        Err(error) => error.exit(),
    };
    if let Err(failure) = file_limit::take_signal() {
        return finish(false, Err(failure));
    }
    match cli.command {
        Command::Doctor(args) => finish(args.json, doctor::run(&args)),
        Command::Run(run) => finish(run.json(), run.run()),
        Command::Snapshot(snapshot) => finish(snapshot.json(), snapshot.run()),
        Command::Bench(bench) => finish(bench.json(), bench.run()),
    }
}

/// Turns how a command ended into an exit code, and says why it failed.
fn finish(json: bool, result: exit::Result) -> ExitCode {
    let code = result.unwrap_or_else(|failure| {
        let Failure { code, message } = &failure;
        if json {
            let error = serde_json::json!({ "kind": failure.kind(), "message": message, "exit_code": code });
            // It has failed already: a second failure to say so changes nothing.
            let _ = out::result(format_args!("{}\n", serde_json::json!({ "ok": false, "error": error })));
        }
        out::say(format_args!("error: {message}"));
        *code
    });
    ExitCode::from(code)
}
