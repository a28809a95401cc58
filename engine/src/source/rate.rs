//! A source held to a rate, open loop: a reader's n-th record is due at `start + n / rate`, however late those before it
//! came. A reader that fell behind catches up at full speed, so the sum over time is the rate.
//!
//! Every reader that has something to read takes an even share. The clock starts with a reader's first poll, also after a
//! restore.

use super::{Polled, ReadContext, Reader, Source, Split};
use crate::Result;
use crate::items::Items;

/// Records per second, of one reader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    ns_per_record: f64,
    start_ns: Option<u64>,
    handed_out: u64,
}

impl Pace {
    /// # Panics
    /// When the rate is not a positive number.
    pub(super) fn new(records_per_second: f64, readers: u32) -> Self {
        check(records_per_second);
        Self { ns_per_record: 1e9 * f64::from(readers.max(1)) / records_per_second, start_ns: None, handed_out: 0 }
    }

    pub(super) fn ns_per_record(&self) -> f64 {
        self.ns_per_record
    }

    /// When the record after those handed out is due.
    #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "2^53 ns are 104 days, then it rounds")]
    #[expect(clippy::cast_possible_truncation, reason = "a float beyond u64 becomes its largest value")]
    pub(super) fn due_ns(&self) -> u64 {
        let start_ns = self.start_ns.unwrap_or(0);
        start_ns.saturating_add((self.handed_out as f64 * self.ns_per_record) as u64)
    }

    /// How many records are due by `now_ns`.
    #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "as above")]
    #[expect(clippy::cast_possible_truncation, reason = "as above")]
    pub(super) fn due(&mut self, now_ns: u64) -> u64 {
        let start_ns = *self.start_ns.get_or_insert(now_ns);
        let due = (now_ns.saturating_sub(start_ns) as f64 / self.ns_per_record) as u64;
        due.saturating_add(1).saturating_sub(self.handed_out)
    }

    pub(super) fn hand_out(&mut self, records: usize) {
        self.handed_out += records as u64;
    }
}

pub(super) fn check(records_per_second: f64) {
    assert!(
        records_per_second.is_finite() && records_per_second > 0.0,
        "a rate of {records_per_second} records per second"
    );
}

/// A source that hands out no more than its rate. Made by [`Source::rate`].
pub struct Rated<S> {
    source: S,
    records_per_second: f64,
}

impl<S> Rated<S> {
    pub(super) fn new(source: S, records_per_second: f64) -> Self {
        check(records_per_second);
        Self { source, records_per_second }
    }
}

impl<S: Source> Source for Rated<S> {
    type Items = S::Items;
    type Reader = RatedReader<S::Reader>;

    fn describe(&self) -> String {
        format!("{}, {} records/s", self.source.describe(), self.records_per_second)
    }

    fn replayable(&self) -> bool {
        self.source.replayable()
    }

    fn splits(&self, shards: u32) -> Result<Vec<Split>> {
        self.source.splits(shards)
    }

    fn new_splits(&self, shards: u32, known: &[Split]) -> Result<Vec<Split>> {
        self.source.new_splits(shards, known)
    }

    fn open(&self, shard: u32, readers: u32, splits: Vec<Split>) -> Result<Self::Reader> {
        let reader = self.source.open(shard, readers, splits)?;
        Ok(RatedReader { reader, pace: Pace::new(self.records_per_second, readers) })
    }
}

/// Reader of a [`Rated`] source.
pub struct RatedReader<R> {
    reader: R,
    pace: Pace,
}

impl<R: Reader> Reader for RatedReader<R> {
    type Items = R::Items;

    fn poll(
        &mut self,
        cx: &mut ReadContext<'_>,
        max: usize,
        push: &mut impl FnMut(<R::Items as Items>::Of<'_>),
    ) -> Result<Polled> {
        let due = self.pace.due(cx.now_ns);
        if due == 0 {
            return Ok(Polled::Pending { due_ns: Some(self.pace.due_ns()) });
        }
        let polled = self.reader.poll(cx, max.min(usize::try_from(due).unwrap_or(usize::MAX)), push)?;
        if let Polled::Records(records) = polled {
            self.pace.hand_out(records);
        }
        Ok(polled)
    }

    fn splits(&self, out: &mut Vec<Split>) {
        self.reader.splits(out);
    }

    fn place(&self) -> String {
        self.reader.place()
    }

    fn remaining(&self) -> Option<u64> {
        self.reader.remaining()
    }
}
