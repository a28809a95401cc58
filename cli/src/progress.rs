//! How a running job is shown: a bar on a terminal, a line a second when asked for, or nothing.

use crate::out;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use millstream::LiveMetrics;
use millstream_bench::report::{bytes, microseconds, rate};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Show {
    /// A bar on a terminal, otherwise nothing
    Auto,
    /// A line every second
    Plain,
    /// Nothing
    None,
}

/// See the module.
pub(crate) struct Progress {
    out: Out,
    began: Instant,
    /// Whether the first records were seen.
    is_started: bool,
    shown: Option<Shown>,
    /// The most input that was ever left: what the bar is measured by.
    input_bytes: u64,
}

enum Out {
    Bar(ProgressBar),
    Lines,
    Nothing,
}

/// What was shown last.
struct Shown {
    at: Instant,
    records: u64,
}

impl Progress {
    /// Nothing is shown yet.
    pub(crate) fn new(show: Show) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let out = match show {
            Show::Auto if is_terminal => {
                let style = ProgressStyle::with_template("{spinner} {bar:24} {percent:>3}%  {msg}");
                Out::Bar(ProgressBar::new(0).with_style(style.expect("a constant template")))
            }
            Show::Plain => Out::Lines,
            Show::Auto | Show::None => Out::Nothing,
        };
        Self { out, began: Instant::now(), is_started: false, shown: None, input_bytes: 0 }
    }

    /// Says something in between.
    pub(crate) fn say(&self, what: &str) {
        match &self.out {
            Out::Bar(bar) => bar.suspend(|| out::say(what)),
            Out::Lines | Out::Nothing => out::say(what),
        }
    }

    /// Shows the counters, unless it is too early for that.
    pub(crate) fn show(&mut self, now: &LiveMetrics) {
        if !self.is_started && now.records_in > 0 && matches!(self.out, Out::Lines) {
            out::say("started: the first lines are read");
            self.is_started = true;
        }
        let every = match self.out {
            Out::Bar(_) => Duration::from_millis(100),
            Out::Lines => Duration::from_secs(1),
            Out::Nothing => return,
        };
        let (last, records) = self.shown.as_ref().map_or((self.began, 0), |shown| (shown.at, shown.records));
        let passed = last.elapsed();
        if passed < every {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
        let per_second = now.records_keyed.saturating_sub(records) as f64 / passed.as_secs_f64();
        let text = line(now, per_second);
        self.shown = Some(Shown { at: Instant::now(), records: now.records_keyed });
        match &self.out {
            Out::Bar(bar) => {
                let left = now.remaining.unwrap_or(0);
                self.input_bytes = self.input_bytes.max(left);
                bar.set_length(self.input_bytes);
                bar.set_position(self.input_bytes - left);
                bar.set_message(text);
                bar.tick();
            }
            Out::Lines => out::say(format_args!("{:6.1} s  {text}", self.began.elapsed().as_secs_f64())),
            Out::Nothing => {}
        }
    }

    /// Clears the bar.
    pub(crate) fn finish(&self) {
        if let Out::Bar(bar) = &self.out {
            bar.finish_and_clear();
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn line(now: &LiveMetrics, per_second: f64) -> String {
    let left = now.remaining.map_or_else(String::new, |left| format!(", {} left", bytes(left)));
    let failed = if now.epochs_failed > 0 { format!(" ({} FAILED)", now.epochs_failed) } else { String::new() };
    let mut text = format!(
        "{}{left}, state {}, epochs {}{failed}",
        rate(per_second),
        bytes(now.state_bytes),
        now.epochs_completed
    );
    if now.epochs_completed > 0 {
        text.push_str(&format!(
            ", cut {}, flush {}",
            microseconds(now.cut_ns_last as f64 / 1000.0),
            microseconds(now.flush_us_last as f64)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_matters_and_failures_loudly() {
        let mut now =
            LiveMetrics { records_keyed: 10, remaining: Some(3 << 20), state_bytes: 1 << 20, ..LiveMetrics::default() };
        assert_eq!(line(&now, 2_500_000.0), "2.50 M/s, 3 MiB left, state 1 MiB, epochs 0");
        (now.epochs_completed, now.epochs_failed) = (3, 1);
        (now.cut_ns_last, now.flush_us_last) = (9500, 1200);
        let text = line(&now, 2_500_000.0);
        assert!(text.ends_with("epochs 3 (1 FAILED), cut 9.50 us, flush 1.20 ms"), "{text}");
    }
}
