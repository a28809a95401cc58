//! What of a run of bytes is still to be copied to the channel logs of epochs that were cut.
//!
//! A cut only notes which bytes its barrier overtook. They are copied afterwards, a step in every turn, and at the latest
//! when they leave the place they are in; so a cut takes the same time whatever is under way.
//!
//! Invariants
//! * I1. A log gets each byte that is owed to it once, in order.
//! * I2. What is owed stays in its place, or passes through [`Owed::show`] on its way out.

use millstream_state::Epoch;
use std::ops::Range;

/// See the module. Positions count the bytes that ever came to the place.
#[derive(Default)]
pub(super) struct Owed {
    /// Oldest epoch first.
    logs: Vec<Log>,
}

struct Log {
    epoch: Epoch,
    /// The first position that the log does not have.
    next: u64,
    /// Where the log ends, when the barrier has come.
    end: Option<u64>,
}

impl Owed {
    /// A cut was taken: the bytes from `next` on belong to its log, up to `end` or to a barrier that has not come.
    pub(super) fn begin(&mut self, epoch: Epoch, next: u64, end: Option<u64>) {
        self.logs.push(Log { epoch, next, end });
        self.settle();
    }

    /// The barrier of `epoch` stands at `position`.
    pub(super) fn barrier(&mut self, epoch: Epoch, position: u64) {
        for log in self.logs.iter_mut().filter(|log| log.epoch <= epoch && log.end.is_none()) {
            let in_front = log.next <= position || planted!(SignalsBeforeRecords);
            assert!(in_front, "byte {} was logged in front of a barrier at {position}", log.next);
            log.end = Some(position);
        }
        self.settle();
    }

    /// Hands what is owed of `bytes`, which begin at `start`, to `write`.
    pub(super) fn show(&mut self, start: u64, bytes: &[u8], mut write: impl FnMut(Epoch, &[u8])) {
        if self.logs.is_empty() {
            return;
        }
        let shown_end = start + bytes.len() as u64;
        for log in &mut self.logs {
            let end = log.end.map_or(shown_end, |end| end.min(shown_end));
            if (start..end).contains(&log.next) {
                write(log.epoch, &bytes[offset(log.next - start)..offset(end - start)]);
                log.next = end;
            }
        }
        self.settle();
    }

    /// Which bytes to show next, at most `bytes_max` of those in front of `end`.
    pub(super) fn step(&self, end: u64, bytes_max: usize) -> Option<Range<u64>> {
        let wanted = self.logs.iter().map(|log| log.next..log.end.map_or(end, |log_end| log_end.min(end)));
        let first = wanted.filter(|wanted| !wanted.is_empty()).min_by_key(|wanted| wanted.start)?;
        Some(first.start..first.end.min(first.start + bytes_max as u64))
    }

    /// Forgets an epoch that was given up, and all before it.
    pub(super) fn forget(&mut self, epoch: Epoch) {
        self.logs.retain(|log| log.epoch > epoch);
    }

    /// Whether the log of `epoch` still waits for bytes, or for its barrier.
    pub(super) fn contains(&self, epoch: Epoch) -> bool {
        self.logs.iter().any(|log| log.epoch == epoch)
    }

    /// Whether every log is whole.
    pub(super) fn is_empty(&self) -> bool {
        self.logs.is_empty()
    }

    fn settle(&mut self) {
        self.logs.retain(|log| log.end.is_none_or(|end| log.next < end));
    }
}

/// A distance between two positions of one place.
pub(super) fn offset(distance: u64) -> usize {
    usize::try_from(distance).expect("what is in memory has fewer bytes than a usize counts")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows a run of bytes in steps and pieces, and compares what each log got.
    #[track_caller]
    fn check(steps: &[usize], expected: [&[u8]; 2]) {
        let bytes: Vec<u8> = (0..100).collect();
        let mut owed = Owed::default();
        let mut logs = [Vec::new(), Vec::new()];
        owed.begin(Epoch(1), 10, None);
        owed.begin(Epoch(2), 40, Some(60));
        for &step in steps {
            let Some(range) = owed.step(50, step) else { break };
            let piece = &bytes[offset(range.start)..offset(range.end)];
            assert!(piece.len() <= step);
            owed.show(range.start, piece, |epoch, bytes| logs[offset(epoch.0) - 1].extend_from_slice(bytes));
        }
        owed.barrier(Epoch(1), 70);
        // The rest leaves its place in two pieces, the first of which begins in front of what is owed.
        for (start, end) in [(0, 55), (55, 100)] {
            owed.show(start, &bytes[offset(start)..offset(end)], |epoch, bytes| {
                logs[offset(epoch.0) - 1].extend_from_slice(bytes);
            });
        }
        assert!(owed.is_empty());
        assert_eq!([&logs[0][..], &logs[1][..]], expected);
    }

    #[test]
    fn every_byte_owed_is_logged_once_and_in_order_however_it_leaves() {
        let bytes: Vec<u8> = (0..100).collect();
        let expected = [&bytes[10..70], &bytes[40..60]];
        check(&[], expected);
        check(&[7], expected);
        check(&[30, 5, 5, 1], expected);
        check(&[1; 100], expected);
        check(&[1000; 5], expected);
    }

    #[test]
    fn a_log_is_whole_when_its_bytes_and_its_barrier_have_come() {
        let mut owed = Owed::default();
        owed.begin(Epoch(3), 5, Some(5));
        assert!(!owed.contains(Epoch(3)), "nothing was under way");
        owed.begin(Epoch(4), 5, None);
        owed.begin(Epoch(5), 5, None);
        owed.show(5, b"abc", |_, _| {});
        assert!(owed.contains(Epoch(4)), "the barrier has not come");
        owed.barrier(Epoch(4), 8);
        assert!(!owed.contains(Epoch(4)) && owed.contains(Epoch(5)));
        owed.forget(Epoch(5));
        assert!(owed.is_empty());
    }
}
