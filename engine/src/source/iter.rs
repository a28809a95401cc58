//! An iterator as a source, for embedding: read by one shard, replayed by starting it anew.

use super::{Polled, ReadContext, Reader, Source, Split, position_u64};
use crate::Result;
use crate::items::{Items, Own};
use std::marker::PhantomData;

/// A source over what `make` returns. It is called again after a restore, and must then return the same items: those
/// before the snapshot are passed over. One shard reads it; key the stream to spread the work.
///
/// ```
/// let numbers = millstream::source::iter(|| 0..1000_u64);
/// let words = millstream::source::iter(|| ["a", "b"].map(String::from));
/// ```
pub fn iter<M, I>(make: M) -> IterSource<M, I>
where
    M: Fn() -> I + Send + Sync + 'static,
    I: IntoIterator + 'static,
{
    IterSource { make, items: PhantomData }
}

/// See [`iter`].
pub struct IterSource<M, I> {
    make: M,
    items: PhantomData<fn() -> I>,
}

const ID: &str = "iterator";

impl<M, I> Source for IterSource<M, I>
where
    M: Fn() -> I + Send + Sync + 'static,
    I: IntoIterator + 'static,
    I::Item: 'static,
{
    type Items = Own<I::Item>;
    type Reader = IterReader<I::IntoIter>;

    fn describe(&self) -> String {
        "iterator, replayable if it repeats itself".into()
    }

    fn splits(&self, _: u32) -> Result<Vec<Split>> {
        Ok(vec![Split { id: ID.into(), position: 0_u64.into(), ended: false }])
    }

    fn open(&self, _: u32, _: u32, splits: Vec<Split>) -> Result<Self::Reader> {
        let Some(split) = splits.into_iter().next() else {
            return Ok(IterReader { iter: None, split: None, to_skip: 0, handed_out: 0 });
        };
        let to_skip = position_u64(&split)?;
        let iter = (!split.ended).then(|| (self.make)().into_iter());
        Ok(IterReader { iter, split: Some(split), to_skip, handed_out: to_skip })
    }
}

/// Reader of an iterator.
pub struct IterReader<T> {
    iter: Option<T>,
    split: Option<Split>,
    /// Items before the restored position, passed over a batch at a time.
    to_skip: u64,
    handed_out: u64,
}

impl<T: Iterator + 'static> Reader for IterReader<T>
where
    T::Item: 'static,
{
    type Items = Own<T::Item>;

    fn poll(
        &mut self,
        _: &mut ReadContext<'_>,
        max: usize,
        push: &mut impl FnMut(<Self::Items as Items>::Of<'_>),
    ) -> Result<Polled> {
        let Some(iter) = &mut self.iter else { return Ok(Polled::Ended) };
        if self.to_skip > 0 {
            let skip = max.min(usize::try_from(self.to_skip).unwrap_or(usize::MAX)).max(1);
            let skipped = iter.by_ref().take(skip).count();
            self.to_skip = if skipped < skip { 0 } else { self.to_skip - skip as u64 };
            return Ok(Polled::Records(0));
        }
        let mut count = 0;
        while count < max {
            let Some(item) = iter.next() else {
                self.iter = None;
                return Ok(if count == 0 { Polled::Ended } else { Polled::Records(count) });
            };
            push(item);
            count += 1;
            self.handed_out += 1;
        }
        Ok(Polled::Records(count))
    }

    fn splits(&self, out: &mut Vec<Split>) {
        out.extend(self.split.iter().map(|split| Split {
            id: split.id.clone(),
            position: self.handed_out.into(),
            ended: self.iter.is_none(),
        }));
    }

    fn place(&self) -> String {
        format!("iterator, item {}", self.handed_out)
    }
}
