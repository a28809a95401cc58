//! What has become of a job's epochs.

use super::in_flight::InFlight;
use hdrhistogram::Histogram;

/// Counts and durations of epochs.
#[derive(Clone)]
pub struct EpochStats {
    /// Epochs that are complete.
    pub completed: u64,
    /// Epochs that failed or were given up; their data went with the next.
    pub failed: u64,
    /// Epochs that a later one overtook.
    pub superseded: u64,
    /// How long each shard stood still for a cut, in nanoseconds.
    pub cut_ns: Histogram<u64>,
    /// How long each shard took from a cut until it was durable, in microseconds.
    pub flush_us: Histogram<u64>,
    /// How long epochs took from their beginning until they were complete, in microseconds.
    pub complete_us: Histogram<u64>,
    /// Longest cut of a shard in the newest complete epoch, in nanoseconds.
    pub cut_ns_last: u64,
    /// Longest time from a cut until it was durable in the newest complete epoch, in microseconds.
    pub flush_us_last: u64,
    /// Bytes written for the newest complete epoch.
    pub snapshot_bytes_last: u64,
    /// Bytes written for all complete epochs.
    pub snapshot_bytes: u64,
    /// Bytes that the newest complete epoch consists of, whichever epoch wrote them.
    pub snapshot_bytes_total: u64,
}

impl Default for EpochStats {
    fn default() -> Self {
        let histogram = || Histogram::new_with_bounds(1, 1_000_000_000_000, 3).expect("constant bounds");
        Self {
            completed: 0,
            failed: 0,
            superseded: 0,
            cut_ns: histogram(),
            flush_us: histogram(),
            complete_us: histogram(),
            cut_ns_last: 0,
            flush_us_last: 0,
            snapshot_bytes_last: 0,
            snapshot_bytes: 0,
            snapshot_bytes_total: 0,
        }
    }
}

impl EpochStats {
    pub(super) fn completed(&mut self, epoch: &InFlight, now_ns: u64) {
        self.completed += 1;
        self.complete_us.saturating_record(now_ns.saturating_sub(epoch.begun_ns) / 1000);
        self.snapshot_bytes_last = epoch.manifest_bytes;
        self.snapshot_bytes_total = epoch.manifest_bytes;
        (self.cut_ns_last, self.flush_us_last) = (0, 0);
        for cut in epoch.cuts() {
            self.cut_ns_last = self.cut_ns_last.max(cut.cut_ns);
            self.flush_us_last = self.flush_us_last.max(cut.durable_ns / 1000);
            self.cut_ns.saturating_record(cut.cut_ns);
            self.flush_us.saturating_record(cut.durable_ns / 1000);
            self.snapshot_bytes_last += cut.flush.bytes_written;
            self.snapshot_bytes_total += cut.extents.extents.iter().map(|extent| extent.bytes() as u64).sum::<u64>();
        }
        self.snapshot_bytes += self.snapshot_bytes_last;
    }
}
