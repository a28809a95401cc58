//! A channel as a source, for embedding: other threads push, one shard reads.
//!
//! Bounded: a sender waits, or is told, when the job is slower. Not replayable: what was taken from the channel and is in
//! no complete epoch is gone with the process, so a restored job has seen each record at most once.
//!
//! Cost: the standard library's channel, tens of nanoseconds per record; while it is empty the shard looks into it every
//! half millisecond.

use super::{Polled, ReadContext, Reader, Source, Split, position_u64};
use crate::items::{Items, Own};
use crate::{Error, Result};
use std::fmt;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};

/// How often an idle shard looks into its channel, in nanoseconds: the most that a record waits for a sleeping shard.
const LOOK_NS: u64 = 500_000;

/// A channel that holds at most `capacity` records between the pushing threads and the job. The input ends when every
/// [`Sender`] is gone.
///
/// ```
/// let (sender, source) = millstream::source::channel::<u64>(1024);
/// std::thread::spawn(move || (0..10).for_each(|n| sender.send(n).expect("the job runs")));
/// ```
pub fn channel<T: Send + 'static>(capacity: usize) -> (Sender<T>, ChannelSource<T>) {
    let (sender, receiver) = sync_channel(capacity.max(1));
    (Sender(sender), ChannelSource(Mutex::new(Some(receiver))))
}

/// Pushes records into a job, from any thread. Clones push into the same channel.
pub struct Sender<T>(SyncSender<T>);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Why a record was not taken; it comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError<T> {
    /// The channel is full: only from [`Sender::try_send`].
    Full(T),
    /// The job has stopped.
    Stopped(T),
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "the channel is full",
            Self::Stopped(_) => "the job has stopped",
        })
    }
}

impl<T: fmt::Debug> std::error::Error for SendError<T> {}

impl<T> Sender<T> {
    /// Pushes a record, waiting while the channel is full.
    ///
    /// # Errors
    /// [`SendError::Stopped`] when nobody reads any more.
    pub fn send(&self, record: T) -> Result<(), SendError<T>> {
        self.0.send(record).map_err(|error| SendError::Stopped(error.0))
    }

    /// Pushes a record if there is room now.
    ///
    /// # Errors
    /// Says why not.
    pub fn try_send(&self, record: T) -> Result<(), SendError<T>> {
        self.0.try_send(record).map_err(|error| match error {
            TrySendError::Full(record) => SendError::Full(record),
            TrySendError::Disconnected(record) => SendError::Stopped(record),
        })
    }
}

/// See [`channel`].
pub struct ChannelSource<T>(Mutex<Option<Receiver<T>>>);

impl<T: Send + 'static> Source for ChannelSource<T> {
    type Items = Own<T>;
    type Reader = ChannelReader<T>;

    fn describe(&self) -> String {
        "channel, not replayable".into()
    }

    fn replayable(&self) -> bool {
        false
    }

    fn splits(&self, _: u32) -> Result<Vec<Split>> {
        Ok(vec![Split { id: "channel".into(), position: 0_u64.into(), ended: false }])
    }

    fn open(&self, _: u32, _: u32, splits: Vec<Split>) -> Result<Self::Reader> {
        let Some(split) = splits.into_iter().next() else {
            return Ok(ChannelReader { receiver: None, split: None, taken: 0 });
        };
        let taken = position_u64(&split)?;
        let receiver = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if receiver.is_none() {
            return Err(Error::invalid("a channel is read once: make a new one for every start of its job"));
        }
        Ok(ChannelReader { receiver: receiver.filter(|_| !split.ended), split: Some(split), taken })
    }
}

/// Reader of a channel.
pub struct ChannelReader<T> {
    receiver: Option<Receiver<T>>,
    split: Option<Split>,
    taken: u64,
}

impl<T: 'static> Reader for ChannelReader<T> {
    type Items = Own<T>;

    fn poll(
        &mut self,
        cx: &mut ReadContext<'_>,
        max: usize,
        push: &mut impl FnMut(<Own<T> as Items>::Of<'_>),
    ) -> Result<Polled> {
        let Some(receiver) = &self.receiver else { return Ok(Polled::Ended) };
        let mut count = 0;
        while count < max {
            match receiver.try_recv() {
                Ok(record) => {
                    push(record);
                    count += 1;
                    self.taken += 1;
                }
                Err(TryRecvError::Empty) if count == 0 => {
                    return Ok(Polled::Pending { due_ns: Some(cx.now_ns.saturating_add(LOOK_NS)) });
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.receiver = None;
                    return Ok(if count == 0 { Polled::Ended } else { Polled::Records(count) });
                }
            }
        }
        Ok(Polled::Records(count))
    }

    fn splits(&self, out: &mut Vec<Split>) {
        out.extend(self.split.iter().map(|split| Split {
            id: split.id.clone(),
            position: self.taken.into(),
            ended: self.receiver.is_none(),
        }));
    }

    fn place(&self) -> String {
        format!("channel, record {}", self.taken)
    }
}
