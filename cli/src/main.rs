//! The `millstream` command.

use clap::{Parser, Subcommand};
use std::process::ExitCode;

mod doctor;

/// Stateful stream processing on pinned cores, exactly once.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Doctor(doctor::DoctorArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Doctor(args) => doctor::run(&args),
    }
}
