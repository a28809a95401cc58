//! Saying that something fails without filling a log while it goes on failing.

/// Time between two complaints about what has not been well in between.
const AGAIN_NS: u64 = 60_000_000_000;

/// Complaints about one thing.
#[derive(Default)]
pub(super) struct Complaints {
    said_ns: Option<u64>,
    unsaid: u64,
}

impl Complaints {
    /// It has failed: whether to say so, and how often it went unsaid since the last time.
    pub(super) fn worth_saying(&mut self, now_ns: u64) -> Option<u64> {
        if self.said_ns.is_some_and(|said_ns| now_ns.saturating_sub(said_ns) < AGAIN_NS) {
            self.unsaid += 1;
            return None;
        }
        self.said_ns = Some(now_ns);
        Some(std::mem::take(&mut self.unsaid))
    }

    /// It went well: the next failure is news.
    pub(super) fn over(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_failing_is_said_once_a_minute_with_how_often() {
        let mut complaints = Complaints::default();
        let second = 1_000_000_000;
        let said: Vec<u64> = (0..=120).filter_map(|n| complaints.worth_saying(n * second)).collect();
        assert_eq!(said, [0, 59, 59]);
        complaints.over();
        assert_eq!(complaints.worth_saying(121 * second), Some(0));
    }
}
