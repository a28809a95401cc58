//! `millstream snapshot`: what lies in a state directory. Reads only, takes no lock: a job may run meanwhile.

use crate::exit::{self, Failure, Result};
use crate::out;
use clap::{Args, Subcommand};
use millstream::Epoch;
use millstream_bench::report::{bytes, table};
use millstream_state::format::segment_file;
use millstream_state::io::RealFiles;
use millstream_state::snapshot::{
    BadEpoch, BlobReport, ChannelLogReport, ListReport, OutputReport, SegmentReport, ShowReport, VerifyReport,
    list_snapshots, show_snapshot, verify_snapshots,
};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;

#[derive(Subcommand, Clone, Debug)]
pub(crate) enum SnapshotCommand {
    /// Lists the complete epochs, oldest first
    List(Which),
    /// Shows one epoch: states and their types, positions, files
    Show(WhichEpoch),
    /// Reads every byte and checks it against its checksum
    ///
    /// Exit code 3 when a byte is bad; what is bad is named with file and offset.
    Verify(WhichEpoch),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Which {
    /// State directory of a job
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct WhichEpoch {
    #[command(flatten)]
    which: Which,

    /// Number of the epoch; without it `show` takes the newest, `verify` all
    #[arg(long, value_name = "N")]
    epoch: Option<u64>,
}

/// What `verify` prints as JSON.
#[derive(Serialize)]
struct Verdict {
    ok: bool,
    epochs: Vec<VerifyReport>,
}

impl SnapshotCommand {
    /// Whether results and errors are wanted as JSON.
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::List(which) => which.json,
            Self::Show(which) | Self::Verify(which) => which.which.json,
        }
    }

    /// Prints what was asked for.
    pub(crate) fn run(&self) -> Result {
        let (Self::List(which) | Self::Show(WhichEpoch { which, .. }) | Self::Verify(WhichEpoch { which, .. })) = self;
        if !which.dir.is_dir() {
            return Err(Failure::new(exit::INVALID, format_args!("{}: no such directory", which.dir.display())));
        }
        match self {
            Self::List(Which { dir, json }) => {
                let report = list_snapshots(&RealFiles, dir)?;
                out::report(*json, &report, list_text)?;
                Ok(if report.bad.is_empty() { exit::OK } else { exit::CORRUPT })
            }
            Self::Show(WhichEpoch { which, epoch }) => {
                let report = show_snapshot(&RealFiles, &which.dir, epoch.map(Epoch))?;
                out::report(which.json, &report, show_text)?;
                Ok(exit::OK)
            }
            Self::Verify(WhichEpoch { which, epoch }) => {
                let reports = verify_snapshots(&RealFiles, &which.dir, epoch.map(Epoch))?;
                let ok = reports.iter().all(|report| report.bad.is_empty());
                let verdict = Verdict { ok, epochs: reports };
                out::report(which.json, &verdict, |verdict| verify_text(&verdict.epochs))?;
                Ok(if ok { exit::OK } else { exit::CORRUPT })
            }
        }
    }
}

fn list_text(report: &ListReport) -> String {
    let ListReport { path, job, state, format, committed, epochs, segment_count, segment_bytes, bad } = report;
    let mut text = format!("{}: job {job}, state {state}, format {format}\n", path.display());
    let rows = epochs.iter().map(|epoch| {
        [
            epoch.epoch.to_string(),
            epoch.run.to_string(),
            epoch.shards.to_string(),
            if epoch.ended { "ended" } else { "" }.to_owned(),
            epoch.extents.to_string(),
            bytes(epoch.bytes),
            bytes(epoch.bytes_added),
            bytes(epoch.channel_bytes),
        ]
    });
    if !epochs.is_empty() {
        let header = ["epoch", "run", "shards", "input", "extents", "bytes", "added", "in channels"];
        let _ = writeln!(text, "{}", table(header, rows));
    }
    let _ = writeln!(text, "{segment_count} segment files, {} on disk", bytes(*segment_bytes));
    if *committed > Epoch(0) {
        let _ = writeln!(text, "output known to be committed up to epoch {committed}");
    }
    for BadEpoch { epoch, what } in bad {
        let _ = writeln!(text, "BAD  epoch {epoch}: {what}");
    }
    text
}

fn show_text(report: &ShowReport) -> String {
    let of = &report.summary;
    let mut text = format!(
        "job {}, epoch {} of run {}{}: {} shards, {} key groups, {} in {} extents, {} of it new\n",
        report.job,
        of.epoch,
        of.run,
        if of.ended { " (input ended)" } else { "" },
        of.shards,
        report.key_groups,
        bytes(of.bytes),
        of.extents,
        bytes(of.bytes_added),
    );
    for state in &report.tables {
        let _ = writeln!(
            text,
            "  state \"{}\": {} -> {}, {} in {} extents",
            state.name,
            state.key,
            state.value,
            bytes(state.bytes),
            state.extents
        );
    }
    for BlobReport { stage, shard, bytes: size } in &report.blobs {
        let _ = writeln!(text, "  stage {stage:?} of shard {shard}: {} of positions and progress", bytes(*size as u64));
    }
    for ChannelLogReport { edge, from, to, extents } in &report.channel_logs {
        let _ = writeln!(text, "  on the way over {edge} from shard {from} to {to}: {extents} extents");
    }
    for OutputReport { sink, epoch, shard, bytes: size, is_committed } in &report.outputs {
        let (size, state) = (bytes(*size as u64), if *is_committed { "committed" } else { "waits for its commit" });
        let _ = writeln!(text, "  output of sink {sink:?} prepared at epoch {epoch} by shard {shard}: {size}, {state}");
    }
    for SegmentReport { segment, bytes: size } in &report.segments {
        let _ = writeln!(text, "  {}: up to {} needed", segment_file(*segment), bytes(*size));
    }
    text
}

fn verify_text(reports: &[VerifyReport]) -> String {
    let mut text = String::new();
    for report in reports {
        let verdict = if report.bad.is_empty() { "good" } else { "BAD " };
        let (size, extents) = (bytes(report.bytes), report.extents);
        let _ = writeln!(text, "{verdict}  epoch {}: {size} in {extents} extents", report.epoch);
        for place in &report.bad {
            let _ = writeln!(text, "      {} at byte {}: {}", place.file.display(), place.offset, place.what);
        }
    }
    text
}
