//! A sink that measures: how long after its due time each result arrived.
//!
//! Results that arrive in one batch have the same time of arrival, read once when the batch is whole: late rather than
//! early. Each shard has its own histogram, merged when it closes.
//!
//! Cost: one clock reading per batch, one histogram increment per result.

use hdrhistogram::Histogram;
use millstream::items::Own;
use millstream::sink::{Committer, Guarantee, Owner, Sink, SinkActivity, SinkWriter};
use millstream::{Epoch, Result};
use millstream_state::io::Disk;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// Takes the time at which each result's record was due, in nanoseconds of the job's clock.
#[derive(Default)]
pub(crate) struct LatencySink(Arc<Shared>);

/// What the sink's writers have measured.
pub(crate) struct Latencies(Arc<Shared>);

struct Shared {
    /// When measuring began: the same moment by two clocks.
    begun: OnceLock<(Instant, u64)>,
    stopped: AtomicBool,
    total: AtomicU64,
    merged: Mutex<Histogram<u64>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            begun: OnceLock::new(),
            stopped: AtomicBool::new(false),
            total: AtomicU64::new(0),
            merged: Mutex::new(histogram()),
        }
    }
}

/// Three digits from 1 ns to 100 s.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("constant bounds")
}

impl LatencySink {
    pub(crate) fn latencies(&self) -> Latencies {
        Latencies(Arc::clone(&self.0))
    }
}

impl Latencies {
    /// Begins to measure; `now_ns` is the job's clock as of now.
    pub(crate) fn start(&self, now_ns: u64) {
        // The first call counts.
        let _ = self.0.begun.set((Instant::now(), now_ns));
    }

    /// Ends measuring.
    pub(crate) fn stop(&self) {
        self.0.stopped.store(true, Ordering::Relaxed);
    }

    /// Results that have arrived, warm-up included.
    pub(crate) fn total(&self) -> u64 {
        self.0.total.load(Ordering::Relaxed)
    }

    /// What all writers that have closed measured.
    pub(crate) fn histogram(&self) -> Histogram<u64> {
        self.0.merged.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Sink<Own<u64>> for LatencySink {
    type Writer = LatencyWriter;

    fn describe(&self) -> String {
        "measures latencies".to_owned()
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::Volatile
    }

    fn open(&self, _: Owner<'_>, _: u32, _: u64) -> Result<LatencyWriter> {
        Ok(LatencyWriter { batch: Vec::with_capacity(1 << 12), histogram: histogram(), shared: Arc::clone(&self.0) })
    }

    fn committer(&self, _: Owner<'_>) -> Result<Option<Box<dyn Committer>>> {
        Ok(None)
    }
}

/// Writer of a [`LatencySink`].
pub(crate) struct LatencyWriter {
    /// Due times of what has arrived since the last turn.
    batch: Vec<u64>,
    histogram: Histogram<u64>,
    shared: Arc<Shared>,
}

impl SinkWriter<Own<u64>> for LatencyWriter {
    #[inline(always)]
    fn write(&mut self, due_ns: u64) {
        self.batch.push(due_ns);
    }

    fn turn(&mut self, _: &mut dyn Disk, _: u64) -> Result<SinkActivity> {
        let Self { batch, histogram, shared } = self;
        if batch.is_empty() {
            return Ok(SinkActivity::Idle);
        }
        shared.total.fetch_add(batch.len() as u64, Ordering::Relaxed);
        if let Some((begin, begin_ns)) = shared.begun.get()
            && !shared.stopped.load(Ordering::Relaxed)
        {
            let now_ns = begin_ns + u64::try_from(begin.elapsed().as_nanos()).expect("a run is shorter than 500 years");
            let due = batch.iter().filter(|due_ns| *due_ns >= begin_ns);
            due.for_each(|due_ns| histogram.saturating_record(now_ns.saturating_sub(*due_ns)));
        }
        batch.clear();
        Ok(SinkActivity::Idle)
    }

    fn prepare(&mut self, _: Epoch) {}

    fn take_prepared(&mut self, _: Epoch) -> Option<Result<Vec<Vec<u8>>>> {
        Some(Ok(Vec::new()))
    }

    fn abandon(&mut self, _: Epoch) {}
}

impl Drop for LatencyWriter {
    fn drop(&mut self) {
        let mut merged = self.shared.merged.lock().unwrap_or_else(PoisonError::into_inner);
        merged.add(&self.histogram).expect("same bounds");
    }
}
