//! A thread that touches memory before a shard does, so that a shard never waits for the kernel to clear a page.
//!
//! Start it before any shard pins itself: it inherits the processor mask of the thread that starts it. One serves all
//! shards. It ends when the last [`Populator`] is gone.

use super::mapping::{HUGE_PAGE_BYTES, Mapping};
use crate::error::{Error, Result};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::thread;

/// When the memory of a store becomes real.
#[derive(Clone, Debug, Default)]
pub enum Prefault {
    /// At the first touch: for tests and tools.
    #[default]
    None,
    /// Ahead of the tail, by a helper thread.
    Ahead(Populator),
    /// All of it before the store is handed out; what grows later, ahead of its use.
    All(Populator),
}

impl Prefault {
    pub(crate) fn populator(&self) -> Option<&Populator> {
        match self {
            Self::None => None,
            Self::Ahead(populator) | Self::All(populator) => Some(populator),
        }
    }
}

/// Handle on the populating thread.
#[derive(Clone)]
pub struct Populator {
    requests: mpsc::Sender<(Arc<Mapping>, Range<usize>)>,
}

impl Populator {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the system has no thread left.
    pub fn start() -> Result<Self> {
        let (requests, inbox) = mpsc::channel::<(Arc<Mapping>, Range<usize>)>();
        let work = move || {
            for (mapping, range) in inbox {
                for start in range.clone().step_by(HUGE_PAGE_BYTES) {
                    let end = (start + HUGE_PAGE_BYTES).min(range.end);
                    // Memory that cannot be made present now is made so at first touch: slower, not wrong.
                    let _ = mapping.populate(start..end);
                }
            }
        };
        thread::Builder::new()
            .name("populate".into())
            .spawn(work)
            .map_err(|error| Error::unavailable(format_args!("cannot start a helper thread: {error}")))?;
        Ok(Self { requests })
    }

    pub(crate) fn request(&self, mapping: &Arc<Mapping>, range: Range<usize>) {
        // The thread lives as long as any sender, so this cannot fail; if it ever did, memory is touched later.
        let _ = self.requests.send((Arc::clone(mapping), range));
    }
}

impl fmt::Debug for Populator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Populator")
    }
}

/// How far the memory of one mapping has been asked for.
#[derive(Default)]
pub(crate) struct Frontier {
    populator: Option<Populator>,
    asked: usize,
    ahead: usize,
}

impl Frontier {
    pub(crate) fn new(prefault: &Prefault, ahead: usize) -> Self {
        Self { populator: prefault.populator().cloned(), asked: 0, ahead }
    }

    /// Notes that everything below `end` is real already.
    pub(crate) fn skip_to(&mut self, end: usize) {
        self.asked = self.asked.max(end);
    }

    /// Notes that memory above `end` was given back.
    pub(crate) fn fall_back_to(&mut self, end: usize) {
        self.asked = self.asked.min(end);
    }

    /// Asks for what lies less than `ahead` above `tail` and was not asked for yet, half of `ahead` at a time.
    pub(crate) fn advance(&mut self, mapping: &Arc<Mapping>, tail: usize, limit: usize) {
        let Some(populator) = &self.populator else { return };
        let goal = (tail + self.ahead).min(limit);
        if self.asked < tail + self.ahead / 2 && self.asked < goal {
            populator.request(mapping, self.asked..goal);
            self.asked = goal;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mapping::Owner;
    use super::*;

    #[test]
    fn the_thread_ends_with_its_last_handle_and_leaves_the_bytes_alone() {
        let mut owner = Owner::reserve(16 << 20).unwrap();
        owner.slice_mut(3 << 20, 1)[0] = 7;
        let weak = {
            let populator = Populator::start().unwrap();
            let prefault = Prefault::Ahead(populator);
            let mut frontier = Frontier::new(&prefault, 8 << 20);
            frontier.advance(owner.shared(), 0, 16 << 20);
            assert_eq!(frontier.asked, 8 << 20);
            frontier.advance(owner.shared(), 1 << 20, 16 << 20);
            assert_eq!(frontier.asked, 8 << 20);
            frontier.advance(owner.shared(), 12 << 20, 16 << 20);
            assert_eq!(frontier.asked, 16 << 20);
            Arc::downgrade(owner.shared())
        };
        while weak.strong_count() > 1 {
            thread::yield_now();
        }
        assert_eq!(owner.slice(3 << 20, 1), [7]);
    }
}
