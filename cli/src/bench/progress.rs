//! How a measurement is shown while it runs: a bar on a terminal, otherwise nothing. Ctrl-C and SIGTERM end it.

use crate::exit::{Failure, Result, STOPPED};
use crate::stop::StopFlag;
use indicatif::{ProgressBar, ProgressStyle};
use millstream_bench::onlooker::Sight;
use millstream_bench::report::rate;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// See the module.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    begun: Instant,
    /// What the bar is measured by, in milliseconds.
    planned_ms: u64,
}

impl Progress {
    /// Of something that should take this long.
    pub(super) fn of(planned: Duration) -> Self {
        let planned_ms = u64::try_from(planned.as_millis()).unwrap_or(u64::MAX);
        let style =
            || ProgressStyle::with_template("{spinner} {bar:24} {percent:>3}%  {msg}").expect("a constant template");
        let bar = std::io::stderr().is_terminal().then(|| ProgressBar::new(planned_ms).with_style(style()));
        Self { bar, begun: Instant::now(), planned_ms }
    }

    /// Runs `measure` with an onlooker that shows what it sees.
    ///
    /// # Errors
    /// Those of `measure`, and that it was stopped.
    pub(super) fn watch<T>(
        self,
        stop: &StopFlag,
        measure: impl FnOnce(&mut millstream_bench::onlooker::Look<'_>) -> millstream::Result<Option<T>>,
    ) -> Result<T> {
        let measured = measure(&mut |sight| {
            self.show(sight);
            !stop.is_asked()
        });
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        measured?.ok_or_else(stopped)
    }

    fn show(&self, sight: Sight) {
        let Some(bar) = &self.bar else { return };
        let passed_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        bar.set_position(passed_ms.min(self.planned_ms));
        bar.set_message(line(sight));
    }
}

/// Why there is no result.
pub(super) fn stopped() -> Failure {
    Failure::new(STOPPED, "stopped before the measurement was over: there is no result, and nothing is left behind")
}

fn line(Sight { what, round, rounds, records_per_second }: Sight) -> String {
    let of_rounds = if rounds > 1 { format!("round {round} of {rounds}, ") } else { String::new() };
    format!("{of_rounds}{what}: {}", rate(records_per_second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_under_way_and_how_fast() {
        let sight = Sight { what: "bare loop", round: 1, rounds: 1, records_per_second: 2_500_000.0 };
        assert_eq!(line(sight), "bare loop: 2.50 M/s");
        assert_eq!(line(Sight { round: 2, rounds: 3, ..sight }), "round 2 of 3, bare loop: 2.50 M/s");
    }
}
