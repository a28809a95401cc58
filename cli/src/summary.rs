//! What a run came to, for people and for programs.

use hdrhistogram::Histogram;
use millstream::{JobReport, Outcome, Running};
use millstream_bench::report::{bytes, microseconds, rate};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

/// Everything of interest about a run. The field names are those of `--json`.
#[derive(Clone, Default, Debug, Serialize)]
pub(crate) struct Summary {
    ok: bool,
    /// `finished` or `stopped`.
    outcome: &'static str,
    /// The epoch it went on from; 0: it began with nothing.
    restored_epoch: u64,
    /// There was nothing left to do: all input had been processed before.
    already_ended: bool,
    shards: u32,
    seconds: f64,
    /// Records that came out of the sources, here lines.
    records_in: u64,
    /// Records that keyed operators applied, here words.
    records: u64,
    records_per_second: f64,
    skipped_records: u64,
    epochs: Epochs,
    cut_us: Quantiles,
    flush_ms: Quantiles,
    /// Time from the beginning of an epoch until it was complete.
    epoch_ms: Quantiles,
    /// Written for the newest complete epoch.
    snapshot_bytes_last: u64,
    /// What the newest complete epoch consists of.
    snapshot_bytes: u64,
    /// Written for all epochs of this run.
    snapshot_bytes_written: u64,
    warnings: Vec<String>,
}

#[derive(Clone, Copy, Default, Debug, Serialize)]
struct Epochs {
    completed: u64,
    failed: u64,
    superseded: u64,
}

#[derive(Clone, Copy, Default, Debug, Serialize)]
struct Quantiles {
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Quantiles {
    /// In units of `divisor` recorded values.
    #[expect(clippy::cast_precision_loss, reason = "durations below 2^53")]
    fn of(histogram: &Histogram<u64>, divisor: f64) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / divisor;
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: histogram.max() as f64 / divisor }
    }
}

impl Summary {
    /// What is known when the job has started.
    pub(crate) fn of(running: &Running) -> Self {
        Self {
            restored_epoch: running.restored().0,
            already_ended: running.already_ended(),
            shards: running.shards(),
            warnings: running.warnings().to_vec(),
            ..Self::default()
        }
    }

    /// What is known when it has ended.
    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 records")]
    pub(crate) fn finish(&mut self, report: &JobReport, elapsed: Duration) {
        self.ok = true;
        self.outcome = match report.outcome {
            Outcome::Finished => "finished",
            Outcome::Stopped => "stopped",
        };
        self.seconds = elapsed.as_secs_f64();
        self.records_in = report.records_in;
        self.records = report.records_keyed;
        self.records_per_second = report.records_keyed as f64 / self.seconds;
        self.skipped_records = report.skipped_records;
        let epochs = &report.epochs;
        self.epochs = Epochs { completed: epochs.completed, failed: epochs.failed, superseded: epochs.superseded };
        self.cut_us = Quantiles::of(&epochs.cut_ns, 1000.0);
        self.flush_ms = Quantiles::of(&epochs.flush_us, 1000.0);
        self.epoch_ms = Quantiles::of(&epochs.complete_us, 1000.0);
        self.snapshot_bytes_last = epochs.snapshot_bytes_last;
        self.snapshot_bytes = epochs.snapshot_bytes_total;
        self.snapshot_bytes_written = epochs.snapshot_bytes;
    }

    pub(crate) fn to_text(&self) -> String {
        if self.already_ended {
            return format!(
                "nothing to do: all input was processed by epoch {}, and its output is committed (--resume-ended goes on \
                 with new files)\n",
                self.restored_epoch
            );
        }
        let mut text = format!(
            "{}: {} words of {} lines in {:.2} s, {} on {}\n",
            self.outcome,
            self.records,
            self.records_in,
            self.seconds,
            rate(self.records_per_second),
            if self.shards == 1 { "1 shard".to_owned() } else { format!("{} shards", self.shards) },
        );
        let Epochs { completed, failed, superseded } = self.epochs;
        let _ = write!(text, "epochs: {completed} completed");
        for (count, what) in [(failed, "failed"), (superseded, "superseded")] {
            if count > 0 {
                let _ = write!(text, ", {count} {what}");
            }
        }
        if completed > 0 {
            let _ = write!(
                text,
                "; cut {} median, {} max; flush {} median, {} max; snapshot {}",
                microseconds(self.cut_us.p50),
                microseconds(self.cut_us.max),
                microseconds(self.flush_ms.p50 * 1000.0),
                microseconds(self.flush_ms.max * 1000.0),
                bytes(self.snapshot_bytes),
            );
        }
        text.push('\n');
        text
    }
}
