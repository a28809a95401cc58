//! A sink that calls a closure on the shard, for embedding. At least once: what a restore replays is handed over again.

use super::{Committer, Guarantee, Owner, Sink, SinkActivity, SinkWriter};
use crate::Result;
use crate::items::Items;
use millstream_state::Epoch;
use millstream_state::io::Disk;
use std::marker::PhantomData;

/// Calls `take` with every result, on the shard that has it; each shard calls its own clone. The closure must not block:
/// while it runs, its shard does nothing else.
///
/// ```
/// use millstream::items::Lines;
/// let (sender, lines) = std::sync::mpsc::channel();
/// let sink = millstream::sink::callback::<Lines, _>(move |line| sender.send(line.to_owned()).expect("it is read"));
/// ```
pub fn callback<I, F>(take: F) -> Callback<I, F>
where
    I: Items,
    F: for<'a> FnMut(I::Of<'a>) + Clone + Send + Sync + 'static,
{
    Callback { take, items: PhantomData }
}

/// See [`callback`].
pub struct Callback<I, F> {
    take: F,
    items: PhantomData<fn(I)>,
}

impl<I, F> Sink<I> for Callback<I, F>
where
    I: Items,
    F: for<'a> FnMut(I::Of<'a>) + Clone + Send + Sync + 'static,
{
    type Writer = CallbackWriter<F>;

    fn describe(&self) -> String {
        "callback, at-least-once".into()
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::AtLeastOnce
    }

    fn open(&self, _: Owner<'_>, _: u32, _: u64) -> Result<Self::Writer> {
        Ok(CallbackWriter(self.take.clone()))
    }

    fn committer(&self, _: Owner<'_>) -> Result<Option<Box<dyn Committer>>> {
        Ok(None)
    }
}

/// Writer of a [`Callback`].
pub struct CallbackWriter<F>(F);

impl<I, F> SinkWriter<I> for CallbackWriter<F>
where
    I: Items,
    F: for<'a> FnMut(I::Of<'a>) + 'static,
{
    #[inline]
    fn write(&mut self, item: I::Of<'_>) {
        (self.0)(item);
    }

    fn turn(&mut self, _: &mut dyn Disk, _: u64) -> Result<SinkActivity> {
        Ok(SinkActivity::Idle)
    }

    fn prepare(&mut self, _: Epoch) {}

    fn take_prepared(&mut self, _: Epoch) -> Option<Result<Vec<Vec<u8>>>> {
        Some(Ok(Vec::new()))
    }

    fn abandon(&mut self, _: Epoch) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::Lines;
    use crate::sink::OWNER;
    use std::sync::{Arc, Mutex};

    #[test]
    fn borrowed_items_are_handed_over_as_they_come() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&seen);
        let sink = callback::<Lines, _>(move |line| shared.lock().unwrap().push(line.len()));
        let mut writer = sink.open(OWNER, 0, 1).unwrap();
        for text in ["", "four", "one"] {
            SinkWriter::<Lines>::write(&mut writer, text);
        }
        assert_eq!(*seen.lock().unwrap(), [0, 4, 3]);
        assert_eq!(sink.guarantee(), Guarantee::AtLeastOnce);
    }
}
