//! What a word costs the allocator: nothing, up to 23 bytes; a longer one is allocated once and freed.
//!
//! Every record is watched on its own thread: from the source to the exchange, and from one result to the next.

#![expect(unsafe_code, reason = "an allocator is unsafe to implement; this one counts and passes on")]

mod common;

use common::Sandbox;
use millstream::items::Items;
use millstream::operator::Emit;
use millstream::sink::{Committer, Guarantee, Owner, Sink, SinkActivity, SinkWriter};
use millstream::source::{Polled, ReadContext, Reader, Source, Split};
use millstream::{Engine, EngineConfig, Epoch};
use millstream_bench::word_count::WordCount;
use millstream_state::io::Disk;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn note() {
    ALLOCATIONS.with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of this thread so far. Other threads, and the executor between two batches, allocate as time goes by.
fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// What was seen around single records.
#[derive(Default)]
struct Seen {
    /// Lines pushed through splitting, lower-casing, keying and the exchange.
    lines: AtomicU64,
    /// Allocations while they were.
    in_lines: AtomicU64,
    /// Results written.
    results: AtomicU64,
    /// Those before which nothing was allocated since the result before, on the same shard.
    results_free: AtomicU64,
}

/// A source whose every record is watched on its way to the exchange.
struct Watched<S>(S, Arc<Seen>);

impl<S: Source> Source for Watched<S> {
    type Items = S::Items;
    type Reader = Watched<S::Reader>;

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn splits(&self, shards: u32) -> millstream::Result<Vec<Split>> {
        self.0.splits(shards)
    }

    fn new_splits(&self, shards: u32, known: &[Split]) -> millstream::Result<Vec<Split>> {
        self.0.new_splits(shards, known)
    }

    fn open(&self, shard: u32, readers: u32, splits: Vec<Split>) -> millstream::Result<Self::Reader> {
        Ok(Watched(self.0.open(shard, readers, splits)?, self.1.clone()))
    }
}

impl<R: Reader> Reader for Watched<R> {
    type Items = R::Items;

    fn poll(
        &mut self,
        cx: &mut ReadContext<'_>,
        max: usize,
        push: &mut impl FnMut(<R::Items as Items>::Of<'_>),
    ) -> millstream::Result<Polled> {
        let Self(reader, seen) = self;
        reader.poll(cx, max, &mut |item| {
            let before = allocations();
            push(item);
            seen.lines.fetch_add(1, Ordering::Relaxed);
            seen.in_lines.fetch_add(allocations() - before, Ordering::Relaxed);
        })
    }

    fn splits(&self, out: &mut Vec<Split>) {
        self.0.splits(out);
    }

    fn place(&self) -> String {
        self.0.place()
    }

    fn remaining(&self) -> Option<u64> {
        self.0.remaining()
    }
}

impl<I: Items, S: Sink<I>> Sink<I> for Watched<S> {
    type Writer = WatchedWriter<S::Writer>;

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn guarantee(&self) -> Guarantee {
        self.0.guarantee()
    }

    fn open(&self, owner: Owner<'_>, shard: u32, run: u64) -> millstream::Result<Self::Writer> {
        Ok(WatchedWriter { writer: self.0.open(owner, shard, run)?, seen: self.1.clone(), last: 0 })
    }

    fn committer(&self, owner: Owner<'_>) -> millstream::Result<Option<Box<dyn Committer>>> {
        self.0.committer(owner)
    }
}

struct WatchedWriter<W> {
    writer: W,
    seen: Arc<Seen>,
    /// Allocations when the last result had been written.
    last: u64,
}

impl<I: Items, W: SinkWriter<I>> SinkWriter<I> for WatchedWriter<W> {
    fn write(&mut self, item: I::Of<'_>) {
        self.writer.write(item);
        let now = allocations();
        self.seen.results.fetch_add(1, Ordering::Relaxed);
        self.seen.results_free.fetch_add(u64::from(now == self.last), Ordering::Relaxed);
        self.last = now;
    }

    fn ready(&self) -> bool {
        self.writer.ready()
    }

    fn turn(&mut self, disk: &mut dyn Disk, now_ns: u64) -> millstream::Result<SinkActivity> {
        self.writer.turn(disk, now_ns)
    }

    fn prepare(&mut self, epoch: Epoch) {
        self.writer.prepare(epoch);
    }

    fn take_prepared(&mut self, epoch: Epoch) -> Option<millstream::Result<Vec<Vec<u8>>>> {
        self.writer.take_prepared(epoch)
    }

    fn abandon(&mut self, epoch: Epoch) {
        self.writer.abandon(epoch);
    }
}

/// Runs a word count of `line`, repeated, on two shards, and returns what was seen.
fn run(line: &str, times: usize) -> Arc<Seen> {
    let text = line.repeat(times);
    let sandbox = Sandbox::with(&[("a.txt", text.as_bytes()), ("b.txt", text.as_bytes())]);
    let emit = Emit::Updates;
    let word_count =
        WordCount { input: sandbox.input(), output: sandbox.path("out"), emit, rate: None, split_bytes: 1 << 40 };
    let config = EngineConfig::new().cores("2".parse().unwrap()).state_memory_bytes_per_core(64 << 20);
    let seen = Arc::new(Seen::default());
    let source = Watched(word_count.source(), seen.clone());
    let job = word_count.between(source, Watched(word_count.sink(), seen.clone()));
    Engine::start(config, job).unwrap().join().unwrap();
    sandbox.check_output(emit);
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!(
        "{} lines with {} allocations; {} of {} results without any before them",
        of(&seen.lines),
        of(&seen.in_lines),
        of(&seen.results_free),
        of(&seen.results)
    );
    seen
}

const LINE: &str = "The quick brown fox jumps over 12 lazy dogs of CafÉs, twentythreebyteslongwrd\n";

#[test]
fn splitting_keying_and_sending_a_word_allocates_nothing() {
    let seen = run(LINE, 20_000);
    assert_eq!(seen.lines.load(Ordering::Relaxed), 40_000);
    // What is left is for buffers, not for records: not one in a hundred lines, in a thousand words.
    let allocations = seen.in_lines.load(Ordering::Relaxed);
    assert!(allocations < 400, "{allocations}");
}

#[test]
fn counting_and_writing_a_word_allocates_nothing() {
    let seen = run(LINE, 20_000);
    let (free, results) = (seen.results_free.load(Ordering::Relaxed), seen.results.load(Ordering::Relaxed));
    assert_eq!(results, 40_000 * 12);
    // The rest are firsts of a batch: between two batches the executor looks at its ring.
    assert!(free * 100 > results * 90, "only {free} of {results}");
}

#[test]
fn a_word_above_23_bytes_costs_one_allocation() {
    let seen = run("pneumonoultramicroscopicsilicovolcanoconiosis\n", 20_000);
    let cost = seen.in_lines.load(Ordering::Relaxed);
    assert!((40_000..40_400).contains(&cost), "{cost}");
}
