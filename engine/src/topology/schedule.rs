//! What the kernel's scheduler and the hypervisor took from a thread or a core.
//!
//! A thread that stands still although it wants to run is either waiting for a core (its *run delay*, nanoseconds, from
//! schedstat) or runs on a virtual core that is stopped (*steal*, ticks of mostly 10 ms, from `/proc/stat`; a guest also
//! sees it as run delay of the thread that ran there).
//!
//! Cost: one `pread` of a file kept open, about 1 us.

use super::cores::CoreId;
use millstream_state::{Error, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// A thread of this process, as the kernel numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadId(i32);

impl ThreadId {
    /// The calling thread.
    pub fn current() -> Self {
        Self(rustix::thread::gettid().as_raw_nonzero().get())
    }
}

/// The run delay of one thread, for reading it again and again from any thread of the process.
#[derive(Debug)]
pub struct RunDelay {
    file: File,
    path: String,
}

impl RunDelay {
    /// Opens the counters of `thread`.
    ///
    /// # Errors
    /// [`Unavailable`](millstream_state::ErrorKind::Unavailable) when the thread has ended or the kernel has no schedstat.
    pub fn of(thread: ThreadId) -> Result<Self> {
        let path = format!("/proc/self/task/{}/schedstat", thread.0);
        let file = File::open(&path).map_err(|why| Error::unavailable(format_args!("{path}: {why}")))?;
        Ok(Self { file, path })
    }

    /// Nanoseconds the thread has waited for a core since it began.
    ///
    /// # Errors
    /// [`Unavailable`](millstream_state::ErrorKind::Unavailable) when the thread has ended.
    pub fn nanoseconds(&self) -> Result<u64> {
        // Time on a core, run delay, time slices: three numbers of at most 20 digits.
        let mut text = [0; 64];
        let read = self.file.read_at(&mut text, 0);
        let length = read.map_err(|why| Error::unavailable(format_args!("{}: {why}", self.path)))?;
        std::str::from_utf8(&text[..length])
            .ok()
            .and_then(|text| text.split_ascii_whitespace().nth(1)?.parse().ok())
            .ok_or_else(|| Error::unavailable(format_args!("{}: not schedstat counters", self.path)))
    }
}

/// Nanoseconds `thread` has waited for a core since it began; [`RunDelay`] for more than one look.
///
/// # Errors
/// [`Unavailable`](millstream_state::ErrorKind::Unavailable) when the thread has ended or the kernel has no schedstat.
pub fn run_delay(thread: ThreadId) -> Result<u64> {
    RunDelay::of(thread)?.nanoseconds()
}

/// Time the hypervisor kept from all cores together since the host began, in steps of a tick (mostly 10 ms).
///
/// # Errors
/// [`Unavailable`](millstream_state::ErrorKind::Unavailable) when `/proc/stat` cannot be read.
pub fn steal() -> Result<Duration> {
    read_steal("cpu")
}

/// Time the hypervisor kept from one core since the host began, in steps of a tick (mostly 10 ms).
///
/// # Errors
/// [`Unavailable`](millstream_state::ErrorKind::Unavailable) when `/proc/stat` cannot be read or has no such core.
pub fn steal_of_core(core: CoreId) -> Result<Duration> {
    read_steal(&format!("cpu{core}"))
}

fn read_steal(line: &str) -> Result<Duration> {
    let path = "/proc/stat";
    let text = std::fs::read_to_string(path).map_err(|why| Error::unavailable(format_args!("{path}: {why}")))?;
    let ticks = steal_ticks(&text, line)
        .ok_or_else(|| Error::unavailable(format_args!("{path}: no steal time in the line `{line}`")))?;
    Ok(Duration::from_millis(ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1)))
}

/// The eighth counter of the line that begins with `name`.
fn steal_ticks(stat: &str, name: &str) -> Option<u64> {
    let line = stat.lines().find(|line| line.split_ascii_whitespace().next() == Some(name))?;
    line.split_ascii_whitespace().nth(8)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_delay_of_a_living_thread_can_be_read_from_another() {
        let here = ThreadId::current();
        let there = std::thread::spawn(move || {
            let delay = RunDelay::of(here).unwrap();
            (delay.nanoseconds().unwrap(), delay.nanoseconds().unwrap())
        });
        let (first, second) = there.join().unwrap();
        assert!(first <= second);
        assert!(run_delay(here).unwrap() >= second);
    }

    #[test]
    fn a_thread_that_is_not_there_is_an_error() {
        let error = run_delay(ThreadId(i32::MAX)).unwrap_err();
        assert_eq!(error.kind(), millstream_state::ErrorKind::Unavailable);
    }

    #[test]
    fn steal_is_the_eighth_counter_of_its_line() {
        let stat = "cpu  35324 0 4582 164970 475 0 32 25 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\ncpu10 1 2 3 4 5 6 7 80 9 10\n";
        assert_eq!(steal_ticks(stat, "cpu"), Some(25));
        assert_eq!(steal_ticks(stat, "cpu0"), Some(8));
        assert_eq!(steal_ticks(stat, "cpu10"), Some(80));
        assert_eq!(steal_ticks(stat, "cpu1"), None);
        assert_eq!(steal_ticks("cpu 1 2 3", "cpu"), None);
    }

    #[test]
    fn the_steal_of_this_host_can_be_read() {
        assert!(steal().is_ok());
        assert!(steal_of_core(CoreId(u32::MAX)).is_err());
    }
}
