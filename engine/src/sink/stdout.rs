//! Standard output as a sink, at least once: what a restore replays is written again.
//!
//! A terminal or a pipe may stall for ever, a shard must not: a thread of the writer's own does the writing, fed with
//! whole lines, and the stage is pushed back while more than 4 MiB wait for it. Lines of several shards
//! mix, but never within a line.
//!
//! Invariants
//! * I1. An epoch is answered when every line before its cut was written.
//! * I2. What goes to the thread ends at a line's end.

use super::format::{ByClosure, Format, JsonLines, Line, Tsv};
use super::{Committer, Guarantee, Owner, Sink, SinkActivity, SinkWriter};
use crate::items::Items;
use crate::{Error, ErrorKind, Result};
use millstream_state::Epoch;
use millstream_state::io::Disk;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};

/// Bytes that may wait for the thread of a shard.
const UNWRITTEN_BYTES_MAX: u64 = 4 << 20;

/// Bytes handed to the thread at once, if that many come in one turn.
const CHUNK_BYTES: usize = 64 << 10;

type Target = dyn Fn() -> Box<dyn Write> + Send + Sync;

/// Lines on standard output.
///
/// ```
/// use millstream::items::{Own, Pairs};
/// use millstream::sink::Stdout;
/// let counts = Stdout::<Pairs<str, u64>, _>::lines(|(word, n), line| write!(line, "{word}\t{n}"));
/// let objects = Stdout::<Own<Vec<u64>>, _>::json_lines();
/// ```
pub struct Stdout<I, F> {
    format: F,
    target: Arc<Target>,
    items: PhantomData<fn(I)>,
}

impl<I: Items, F> Stdout<I, ByClosure<F>>
where
    F: for<'a> FnMut(I::Of<'a>, &mut Line) -> io::Result<()> + Clone + Send + Sync + 'static,
{
    /// One line per result, written by `format`; the sink adds the newline.
    pub fn lines(format: F) -> Self {
        Self::new(ByClosure(format))
    }
}

impl<I: Items> Stdout<I, Tsv>
where
    Tsv: Format<I>,
{
    /// One line per result, a tuple's fields between tabs.
    pub fn tsv() -> Self {
        Self::new(Tsv)
    }
}

impl<I: Items> Stdout<I, JsonLines>
where
    JsonLines: Format<I>,
{
    /// One JSON value per line.
    pub fn json_lines() -> Self {
        Self::new(JsonLines)
    }
}

impl<I, F> Stdout<I, F> {
    fn new(format: F) -> Self {
        Self { format, target: Arc::new(|| Box::new(io::stdout())), items: PhantomData }
    }
}

impl<I: Items, F: Format<I>> Sink<I> for Stdout<I, F> {
    type Writer = StdoutWriter<I, F>;

    fn describe(&self) -> String {
        "standard output, at-least-once".into()
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::AtLeastOnce
    }

    fn open(&self, _: Owner<'_>, shard: u32, _: u64) -> Result<Self::Writer> {
        let (sender, chunks) = channel();
        let (give_back, given_back) = channel();
        let progress = Arc::new(Progress::default());
        let (target, shared) = (Arc::clone(&self.target), Arc::clone(&progress));
        std::thread::Builder::new()
            .name(format!("stdout-{shard}"))
            .spawn(move || {
                leave_shard_core();
                if let Err(error) = pump(&mut *target(), &chunks, &give_back, &shared) {
                    // The first error stands; the writer finds it at its next turn.
                    let _ = shared.error.set(error);
                }
            })
            .map_err(|error| Error::unavailable(format_args!("no thread for standard output: {error}")))?;
        Ok(StdoutWriter {
            format: self.format.clone(),
            line: Line::default(),
            sender,
            given_back,
            progress,
            sent: 0,
            pending: VecDeque::new(),
            failure: None,
            items: PhantomData,
        })
    }

    fn committer(&self, _: Owner<'_>) -> Result<Option<Box<dyn Committer>>> {
        Ok(None)
    }
}

/// A shard's thread is pinned and this one was made by it: it may run anywhere instead.
fn leave_shard_core() {
    let mut all = rustix::thread::CpuSet::new();
    (0..rustix::thread::CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    // Where it is not allowed, the thread stays on the shard's core: slower, not wrong.
    let _ = rustix::thread::sched_setaffinity(None, &all);
}

#[derive(Default)]
struct Progress {
    /// Bytes written, counted over the life of the writer.
    written: AtomicU64,
    error: OnceLock<io::Error>,
}

fn pump(
    out: &mut dyn Write,
    chunks: &Receiver<Vec<u8>>,
    give_back: &Sender<Vec<u8>>,
    progress: &Progress,
) -> io::Result<()> {
    let mut unflushed = 0;
    loop {
        let mut chunk = match chunks.try_recv() {
            Ok(chunk) => chunk,
            Err(TryRecvError::Disconnected) => return out.flush(),
            Err(TryRecvError::Empty) => {
                out.flush()?;
                progress.written.fetch_add(std::mem::take(&mut unflushed), Ordering::Release);
                match chunks.recv() {
                    Ok(chunk) => chunk,
                    Err(_) => return Ok(()),
                }
            }
        };
        out.write_all(&chunk)?;
        unflushed += chunk.len() as u64;
        if unflushed >= CHUNK_BYTES as u64 {
            out.flush()?;
            progress.written.fetch_add(std::mem::take(&mut unflushed), Ordering::Release);
        }
        chunk.clear();
        // The writer may be gone; then nobody wants it.
        let _ = give_back.send(chunk);
    }
}

/// Writer of [`Stdout`].
pub struct StdoutWriter<I, F> {
    format: F,
    line: Line,
    sender: Sender<Vec<u8>>,
    given_back: Receiver<Vec<u8>>,
    progress: Arc<Progress>,
    /// Bytes handed to the thread.
    sent: u64,
    /// Epochs not answered, each with what was sent before its cut.
    pending: VecDeque<(Epoch, u64)>,
    failure: Option<Error>,
    items: PhantomData<fn(I)>,
}

impl<I, F> StdoutWriter<I, F> {
    fn send(&mut self) {
        if self.line.0.is_empty() {
            return;
        }
        let next = self.given_back.try_recv().unwrap_or_else(|_| Vec::with_capacity(CHUNK_BYTES));
        let chunk = std::mem::replace(&mut self.line.0, next);
        self.sent += chunk.len() as u64;
        // A thread that is gone has left its error.
        let _ = self.sender.send(chunk);
    }

    fn unwritten(&self) -> u64 {
        self.sent - self.progress.written.load(Ordering::Acquire)
    }

    fn error(&self) -> Option<Error> {
        let error = self.progress.error.get()?;
        Some(Error::unavailable(format_args!("standard output cannot be written: {error}")))
    }
}

impl<I: Items, F: Format<I>> SinkWriter<I> for StdoutWriter<I, F> {
    #[inline]
    fn write(&mut self, item: I::Of<'_>) {
        if let Err(error) = self.line.add::<I>(item, &mut self.format) {
            let what = format_args!("a result for standard output could not be made a line: {error}");
            self.failure.get_or_insert_with(|| Error::new(ErrorKind::UserCode, what));
        }
        if self.line.0.len() >= CHUNK_BYTES {
            self.send();
        }
    }

    fn ready(&self) -> bool {
        self.unwritten() + (self.line.0.len() as u64) < UNWRITTEN_BYTES_MAX
    }

    fn turn(&mut self, _: &mut dyn Disk, _: u64) -> Result<SinkActivity> {
        if let Some(error) = self.failure.take().or_else(|| self.error()) {
            return Err(error);
        }
        // While the thread is busy, lines gather: chunks are few, however short the turns.
        if self.unwritten() == 0 {
            self.send();
        }
        Ok(if self.unwritten() == 0 { SinkActivity::Idle } else { SinkActivity::Waiting })
    }

    fn prepare(&mut self, epoch: Epoch) {
        self.send();
        self.pending.push_back((epoch, self.sent));
    }

    fn take_prepared(&mut self, epoch: Epoch) -> Option<Result<Vec<Vec<u8>>>> {
        if let Some(error) = self.error() {
            return Some(Err(error));
        }
        let sent = self.pending.iter().find(|&&(pending, _)| pending == epoch).map_or(0, |&(_, sent)| sent);
        if self.sent - self.unwritten() < sent {
            return None;
        }
        self.pending.retain(|&(pending, _)| pending != epoch);
        Some(Ok(Vec::new()))
    }

    fn abandon(&mut self, epoch: Epoch) {
        self.pending.retain(|&(pending, _)| pending > epoch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::Lines;
    use crate::sink::OWNER;
    use millstream_state::io::BlockingDisk;
    use std::sync::{Condvar, Mutex};

    /// Holds writes back until it is opened.
    #[derive(Clone, Default)]
    struct Gate(Arc<(Mutex<Passed>, Condvar)>);

    #[derive(Default)]
    struct Passed {
        is_open: bool,
        bytes: Vec<u8>,
    }

    impl Gate {
        fn open(&self) {
            self.0.0.lock().unwrap().is_open = true;
            self.0.1.notify_all();
        }
        fn text(&self) -> String {
            String::from_utf8(self.0.0.lock().unwrap().bytes.clone()).unwrap()
        }
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut passed = self.0.1.wait_while(self.0.0.lock().unwrap(), |passed| !passed.is_open).unwrap();
            passed.bytes.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn echo(text: &str, line: &mut Line) -> io::Result<()> {
        line.push_str(text);
        Ok(())
    }

    type Echo = ByClosure<fn(&str, &mut Line) -> io::Result<()>>;

    fn open(target: impl Write + Clone + Send + Sync + 'static) -> StdoutWriter<Lines, Echo> {
        let target: Arc<Target> = Arc::new(move || Box::new(target.clone()));
        Stdout { format: ByClosure(echo as fn(&str, &mut Line) -> io::Result<()>), target, items: PhantomData }
            .open(OWNER, 0, 1)
            .unwrap()
    }

    #[test]
    fn a_stalled_reader_holds_the_stage_back_and_the_epoch_open_and_loses_nothing() {
        let gate = Gate::default();
        let mut writer = open(gate.clone());
        let mut disk = BlockingDisk::new();
        let mut expected = String::new();
        while writer.ready() {
            let text = format!("line {}", expected.len());
            writer.write(&text);
            expected = expected + &text + "\n";
            writer.turn(&mut disk, 0).unwrap();
            assert!(expected.len() < 5 << 20, "it is never held back");
        }
        writer.prepare(Epoch(1));
        assert!(writer.take_prepared(Epoch(1)).is_none());
        assert_eq!(writer.turn(&mut disk, 0).unwrap(), SinkActivity::Waiting);
        gate.open();
        let prepared = loop {
            match writer.take_prepared(Epoch(1)) {
                Some(answer) => break answer.unwrap(),
                None => std::thread::yield_now(),
            }
        };
        assert!(prepared.is_empty() && writer.ready());
        assert!(gate.text() == expected);
        assert_eq!(writer.turn(&mut disk, 0).unwrap(), SinkActivity::Idle);
    }

    #[test]
    fn a_closed_pipe_is_an_error_that_says_so() {
        #[derive(Clone)]
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut writer = open(Closed);
        writer.write("x");
        writer.prepare(Epoch(1));
        let error = loop {
            match writer.take_prepared(Epoch(1)) {
                Some(answer) => break answer.unwrap_err(),
                None => std::thread::yield_now(),
            }
        };
        assert!(error.message().contains("standard output") && error.message().contains("pipe"), "{error}");
        assert!(writer.turn(&mut BlockingDisk::new(), 0).is_err());
    }

    #[test]
    fn it_says_what_it_promises() {
        let sink = Stdout::<Lines, _>::lines(|text, line| write!(line, "{text}"));
        assert_eq!(sink.guarantee(), Guarantee::AtLeastOnce);
        assert!(sink.describe().contains("at-least-once"));
    }
}
