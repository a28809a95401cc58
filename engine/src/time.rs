//! Clocks. Everything that needs the time gets it as an argument, so that tests and the simulator can make it.

use std::cell::Cell;
use std::time::Instant;

/// Tells the time.
pub trait Clock {
    /// Nanoseconds since some fixed moment; never goes back.
    fn now_ns(&self) -> u64;
}

/// The machine's monotonic clock, from when it was made.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock(Instant);

impl MonotonicClock {
    /// A clock that begins at zero now.
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for MonotonicClock {
    #[inline]
    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).expect("less than 500 years")
    }
}

/// A clock that stands until it is moved.
#[derive(Default, Debug)]
pub struct ManualClock(Cell<u64>);

impl ManualClock {
    /// Moves the clock on.
    pub fn advance_ns(&self, ns: u64) {
        self.0.set(self.0.get() + ns);
    }
}

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.0.get()
    }
}
