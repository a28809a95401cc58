//! How long a thread was on a core, how long it waited for one, and how often it slept.
//!
//! A thread that stands still although it wants to run waits for a core (its *run delay*, from schedstat), or its virtual
//! core is stopped by the host (*steal*). Nothing says the second per thread, but the thread's CPU clock leaves out both. So
//! what passed on the wall and not on that clock, while the thread did not sleep, was taken from it. (An idle loop on a host
//! with a CPU quota: gaps of 7.8 ms of which the CPU clock shows 0.1 ms and run delay nothing; `/proc/stat` moves in steps of
//! 10 ms.)
//!
//! Cost: the clock 0.5 us, run delay 1 us, sleeps 10 us; the files are kept open.

use millstream_state::{Error, Result};
use nix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A thread of this process, as the kernel numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadId(i32);

impl ThreadId {
    /// The calling thread.
    pub fn current() -> Self {
        Self(rustix::thread::gettid().as_raw_nonzero().get())
    }
}

/// The times of one thread, for reading them again and again from any thread of the process.
#[derive(Debug)]
pub struct ThreadTimes {
    clock: ClockId,
    schedstat: File,
    status: File,
    path: String,
}

impl ThreadTimes {
    /// Opens the counters of `thread`.
    ///
    /// # Errors
    /// [`Unavailable`](millstream_state::ErrorKind::Unavailable) when the thread has ended or the kernel has no schedstat.
    pub fn of(thread: ThreadId) -> Result<Self> {
        let path = format!("/proc/self/task/{}", thread.0);
        let open = |name: &str| {
            File::open(format!("{path}/{name}")).map_err(|why| Error::unavailable(format_args!("{path}/{name}: {why}")))
        };
        let (schedstat, status) = (open("schedstat")?, open("status")?);
        // The kernel's number of the CPU clock of a thread: its id inverted, and in the low bits "of one thread, by the scheduler".
        let clock = ClockId::from_raw((!thread.0 << 3) | 0b110);
        Ok(Self { clock, schedstat, status, path })
    }

    /// Nanoseconds the thread was on a core since it began; what the host took meanwhile is not among them.
    ///
    /// # Errors
    /// [`Unavailable`](millstream_state::ErrorKind::Unavailable) when the thread has ended.
    pub fn cpu_ns(&self) -> Result<u64> {
        let time = clock_gettime(self.clock).map_err(|why| self.unavailable("its CPU clock", &why))?;
        let (seconds, nanoseconds) = (u64::try_from(time.tv_sec()), u64::try_from(time.tv_nsec()));
        Ok(seconds.unwrap_or(0) * 1_000_000_000 + nanoseconds.unwrap_or(0))
    }

    /// Nanoseconds the thread has waited for a core since it began.
    ///
    /// # Errors
    /// [`Unavailable`](millstream_state::ErrorKind::Unavailable) when the thread has ended.
    pub fn run_delay_ns(&self) -> Result<u64> {
        // Time on a core, run delay, time slices: three numbers of at most 20 digits.
        let mut text = [0; 64];
        let text = self.read("schedstat", &self.schedstat, &mut text)?;
        let run_delay = text.split_ascii_whitespace().nth(1).and_then(|number| number.parse().ok());
        run_delay.ok_or_else(|| self.unavailable("schedstat", &"not three counters"))
    }

    /// How often the thread has given its core away by itself: to sleep, or to wait for something.
    ///
    /// # Errors
    /// [`Unavailable`](millstream_state::ErrorKind::Unavailable) when the thread has ended.
    pub fn sleeps(&self) -> Result<u64> {
        let mut text = [0; 4096];
        let text = self.read("status", &self.status, &mut text)?;
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let sleeps = line.and_then(|number| number.trim().parse().ok());
        sleeps.ok_or_else(|| self.unavailable("status", &"no voluntary_ctxt_switches"))
    }

    fn read<'a>(&self, name: &str, file: &File, text: &'a mut [u8]) -> Result<&'a str> {
        let length = file.read_at(text, 0).map_err(|why| self.unavailable(name, &why))?;
        std::str::from_utf8(&text[..length]).map_err(|why| self.unavailable(name, &why))
    }

    #[cold]
    fn unavailable(&self, what: &str, why: &dyn std::fmt::Display) -> Error {
        Error::unavailable(format_args!("{}, {what}: {why}", self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn the_times_of_a_living_thread_can_be_read_from_another() {
        let here = ThreadId::current();
        let times = std::thread::spawn(move || {
            let times = ThreadTimes::of(here).unwrap();
            assert!(times.run_delay_ns().unwrap() <= times.run_delay_ns().unwrap());
            times
        });
        let times = times.join().unwrap();
        let (cpu_ns, sleeps, started) = (times.cpu_ns().unwrap(), times.sleeps().unwrap(), Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        assert!(times.sleeps().unwrap() > sleeps);
        // Asleep, it was on no core.
        let on_a_core = Duration::from_nanos(times.cpu_ns().unwrap() - cpu_ns);
        assert!(on_a_core < started.elapsed() - Duration::from_millis(10), "{on_a_core:?}");
    }

    #[test]
    fn a_thread_that_is_not_there_is_an_error() {
        let error = ThreadTimes::of(ThreadId(i32::MAX)).unwrap_err();
        assert_eq!(error.kind(), millstream_state::ErrorKind::Unavailable);
    }
}
