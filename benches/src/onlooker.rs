//! Somebody who watches a measurement while it runs: sees how far it is, and may end it.
//!
//! Looks are taken between the sleeps of the thread that measures, which no shard runs on.

use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What an onlooker sees.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sight {
    /// What is under way, in a word or two.
    pub what: &'static str,
    /// Which of the rounds it belongs to, from 1 on.
    pub round: u32,
    /// How many there are.
    pub rounds: u32,
    /// Records counted per second since it is under way.
    pub records_per_second: f64,
}

/// An onlooker: says whether to go on.
pub type Look<'a> = dyn FnMut(Sight) -> bool + 'a;

/// Lets `time` pass while `what` is under way, of which `counted` records are done in all; returns early when it has
/// `ended` by itself. False when the onlooker wants no more.
pub(crate) fn pass(
    time: Duration,
    what: &'static str,
    look: &mut Look<'_>,
    counted: &dyn Fn() -> u64,
    ended: &dyn Fn() -> bool,
) -> bool {
    let (begun, before) = (Instant::now(), counted());
    loop {
        let passed = begun.elapsed();
        if passed >= time || ended() {
            return true;
        }
        #[expect(clippy::cast_precision_loss, reason = "a run counts less than 2^53 records")]
        let records_per_second = (counted() - before) as f64 / passed.as_secs_f64().max(1e-9);
        if !look(Sight { what, round: 1, rounds: 1, records_per_second }) {
            return false;
        }
        std::thread::sleep(LOOK_EVERY.min(time.saturating_sub(passed)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_until_it_is_over_the_work_has_ended_or_the_onlooker_has_seen_enough() {
        let check = |time_ms: u64, looks: u32, ended: bool, expected: bool| {
            let mut seen = 0;
            let mut look = |sight: Sight| {
                assert_eq!((sight.what, sight.round), ("work", 1));
                seen += 1;
                seen < looks
            };
            let begun = Instant::now();
            assert_eq!(pass(Duration::from_millis(time_ms), "work", &mut look, &|| 7, &|| ended), expected);
            begun.elapsed()
        };
        assert!(check(20, u32::MAX, false, true) >= Duration::from_millis(20));
        assert!(check(60_000, 2, false, false) < Duration::from_secs(50));
        assert!(check(60_000, u32::MAX, true, true) < Duration::from_secs(50));
    }
}
