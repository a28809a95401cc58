//! [`Disk`] over a shard's io_uring: direct I/O through glommio, nothing blocks.
//!
//! Every request is a small task on the shard's own executor; its completion waits in a table for
//! [`take`](Disk::take). Requests start and end while the shard's loop yields to the executor, and only then.
//!
//! Invariants
//! * I1. Lives on one executor: making a [`DmaDisk`] elsewhere panics.
//! * I2. In steady state (write, sync, read) the only system call is `io_uring_enter`. Opening also asks what stands at the
//!   path, and once per device what lies under the file; closing with a new length uses a helper thread.
//! * I3. A file is closed when its last request has ended.
//!
//! Cost: one task and one table entry per request, about 0.2 us, against tens of microseconds for its 256 KiB or more.

use super::real::irregular;
use super::{ALIGNMENT_BYTES, Buffer, Disk, Done, FileId, REQUEST_BYTES_MAX, Request, Token};
use glommio::GlommioError;
use glommio::io::{DmaBuffer, DmaFile, OpenOptions};
use rustix::fs::{Mode, OFlags};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Most bytes of one read on the ring: a longer [`Request::Read`] is several at once. Below what every block device
/// takes in one piece, because glommio does not split.
const READ_BYTES_MAX: usize = 128 << 10;

/// Buffers kept for reuse; beyond them the one unused for longest goes.
const SPARES_MAX: usize = 12;

/// What is left of a buffer that was cut is copied when it is no longer than this: cutting the ring's memory is for good,
/// and a large buffer is dearer to make than a small one to copy.
const COPY_BYTES_MAX: usize = 64 << 10;

/// The disks of this machine, for one shard.
pub struct DmaDisk {
    shared: Rc<RefCell<Shared>>,
    spares: VecDeque<DmaBuffer>,
    submitted_count: u64,
}

#[derive(Default)]
struct Shared {
    /// Directories whose device has been probed.
    probed: BTreeSet<PathBuf>,
    files: BTreeMap<u32, Rc<DmaFile>>,
    opened_count: u32,
    /// `None` while the request is under way.
    requests: BTreeMap<u64, Option<io::Result<Done>>>,
    ended_count: u64,
    /// Who waits in [`DmaDisk::ended`].
    waiting: Option<Waker>,
}

impl DmaDisk {
    /// A disk for the calling shard.
    ///
    /// # Panics
    /// When not called on a glommio executor.
    pub fn new() -> Self {
        assert!(glommio::executor().id() > 0, "a DmaDisk is made on its shard's executor");
        Self { shared: Rc::default(), spares: VecDeque::new(), submitted_count: 0 }
    }

    /// Waits until a request ends that had not when this was called: what a shard with nothing else to do sleeps on. One
    /// waits at a time; a later call takes an earlier one's place.
    pub fn ended(&self) -> impl Future<Output = ()> + use<> {
        let shared = Rc::clone(&self.shared);
        let before = shared.borrow().ended_count;
        poll_fn(move |cx| {
            let mut shared = shared.borrow_mut();
            if shared.ended_count != before {
                return Poll::Ready(());
            }
            shared.waiting = Some(cx.waker().clone());
            Poll::Pending
        })
    }

    fn aligned(&mut self, bytes: usize) -> DmaBuffer {
        let spare = self.spares.iter().position(|spare| spare.len() == bytes);
        spare.and_then(|index| self.spares.remove(index)).unwrap_or_else(|| {
            let mut buffer = glommio::allocate_dma_buffer(bytes);
            buffer.as_bytes_mut().fill(0);
            buffer
        })
    }

    fn keep(&mut self, buffer: DmaBuffer) {
        if self.spares.len() == SPARES_MAX {
            self.spares.pop_front();
        }
        self.spares.push_back(buffer);
    }

    /// The bytes of `buffer` and no others, in memory that the ring can write from.
    fn in_ring_memory(&mut self, buffer: Buffer) -> DmaBuffer {
        let copy = |disk: &mut Self, bytes: &[u8]| {
            let mut copy = disk.aligned(bytes.len());
            copy.as_bytes_mut().copy_from_slice(bytes);
            copy
        };
        match buffer.into_dma() {
            Err(heap) => copy(self, &heap),
            Ok((whole, length)) if length == whole.len() => whole,
            Ok((cut, length)) if length <= COPY_BYTES_MAX => {
                let rest = copy(self, &cut.as_bytes()[..length]);
                self.keep(cut);
                rest
            }
            Ok((mut cut, length)) => {
                cut.trim_to_size(length);
                cut
            }
        }
    }
}

impl Default for DmaDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for DmaDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = self.shared.borrow();
        write!(f, "DmaDisk({} files, {} requests)", shared.files.len(), shared.requests.len())
    }
}

impl Shared {
    fn file(&self, id: FileId) -> io::Result<Rc<DmaFile>> {
        let not_open = || io::Error::new(io::ErrorKind::NotFound, format!("{id:?} is not open"));
        self.files.get(&id.0).cloned().ok_or_else(not_open)
    }
}

async fn run(shared: &RefCell<Shared>, request: Plain) -> glommio::Result<Done, ()> {
    match request {
        Plain::Open(path, bytes) => {
            // Opening a pipe would wait for its other end; with `O_NONBLOCK` every later read would be one that must not wait.
            if let Some(error) = irregular(&path.0).filter(|_| bytes.is_none()) {
                return Err(error.into());
            }
            probe(shared, path.0.parent().unwrap_or(Path::new("."))).await;
            let mut options = OpenOptions::new();
            // Also files for writing are readable: glommio probes a new device with a read.
            options.read(true).write(bytes.is_some() || path.1).mode(0o600).create_new(bytes.is_some());
            options.custom_flags(i32::try_from(OFlags::NOFOLLOW.bits()).expect("a flag of open(2)"));
            let file = options.dma_open(&path.0).await.map_err(|error| open_error(&path.0, error))?;
            if let Some(bytes) = bytes.filter(|&bytes| bytes > 0) {
                // Mode 0: the length grows too. Appending to blocks that are not allocated goes through kernel threads.
                if let Err(error) = file.pre_allocate(bytes, false).await.map_err(plain) {
                    if error.kind() != io::ErrorKind::Unsupported {
                        return Err(error.into());
                    }
                    // A file system that cannot allocate in advance: slower, and as safe.
                    file.truncate(bytes).await?;
                }
            }
            let length = file.file_size().await?;
            let mut shared = shared.borrow_mut();
            shared.opened_count += 1;
            let id = shared.opened_count;
            shared.files.insert(id, Rc::new(file));
            Ok(Done::Opened(FileId(id), length))
        }
        Plain::Read(file, offset, buffer) => {
            let file = shared.borrow().file(file)?;
            read(file, offset, buffer).await
        }
        Plain::Write(file, offset, buffer) => {
            let file = shared.borrow().file(file)?;
            let buffer = Rc::new(buffer);
            let count = file.write_rc_at(Rc::clone(&buffer), offset).await?;
            let buffer = Rc::try_unwrap(buffer).map_or_else(
                |shared| {
                    let mut copy = Buffer::heap(shared.len());
                    copy.copy_from_slice(shared.as_bytes());
                    copy
                },
                Buffer::from,
            );
            Ok(Done::Written(buffer, count))
        }
        Plain::Sync(file) => {
            let file = shared.borrow().file(file)?;
            file.fdatasync().await?;
            Ok(Done::Synced)
        }
        Plain::Close(id, length) => {
            let file = shared.borrow().file(id)?;
            shared.borrow_mut().files.remove(&id.0);
            if let Some(length) = length {
                file.truncate(length).await?;
            }
            file.close_rc().await?;
            Ok(Done::Closed)
        }
    }
}

/// Lets glommio find out whether the device under a directory can be polled.
///
/// It does so, once per device and thread, with a read from the first file it opens there, and a read of a file without
/// data succeeds without asking the device: all later reads would fail. So the first file is a nameless one with data. Where
/// there are no nameless files, the first real one has to do.
async fn probe(shared: &RefCell<Shared>, directory: &Path) {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    if !shared.borrow_mut().probed.insert(directory.to_owned()) {
        return;
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(nameless) = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) else { return };
    if rustix::io::write(&nameless, &[1; ALIGNMENT_BYTES]).is_ok_and(|count| count == ALIGNMENT_BYTES) {
        let path = format!("/proc/self/fd/{}", nameless.as_raw_fd());
        if let Ok(file) = OpenOptions::new().read(true).dma_open(path).await {
            // A failure to close a file that is gone harms nobody.
            let _ = file.close().await;
        }
    }
}

/// Reads the parts of a long read at once. The count is up to the first part that came back short.
async fn read(file: Rc<DmaFile>, offset: u64, mut buffer: DmaBuffer) -> glommio::Result<Done, ()> {
    let parts: Vec<_> = (0..buffer.len())
        .step_by(READ_BYTES_MAX)
        .map(|start| {
            let bytes = READ_BYTES_MAX.min(buffer.len() - start);
            let file = Rc::clone(&file);
            (
                start,
                bytes,
                glommio::spawn_local(async move { file.read_at_aligned(offset + start as u64, bytes).await }),
            )
        })
        .collect();
    let (mut count, mut whole) = (0, true);
    for (start, bytes, part) in parts {
        let part = part.await?;
        if whole {
            buffer.as_bytes_mut()[start..start + part.len()].copy_from_slice(&part);
            count += part.len();
            whole = part.len() == bytes;
        }
    }
    Ok(Done::Read(buffer.into(), count))
}

fn open_error(path: &Path, error: GlommioError<()>) -> io::Error {
    let error = plain(error);
    if error.kind() == io::ErrorKind::InvalidInput {
        let what = "the file system does not support O_DIRECT: use ext4, xfs or another that does";
        return io::Error::new(io::ErrorKind::Unsupported, format!("{}: {what}", path.display()));
    }
    error
}

/// The system's own error: glommio's adds its operation and descriptor, which mean nothing to a reader.
fn plain(error: GlommioError<()>) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::from(error), io::Error::from_raw_os_error)
}

/// A [`Request`] with its buffer in the ring's memory.
enum Plain {
    /// Path and whether it is to be written; with bytes to allocate it is made.
    Open((PathBuf, bool), Option<u64>),
    Read(FileId, u64, DmaBuffer),
    Write(FileId, u64, DmaBuffer),
    Sync(FileId),
    Close(FileId, Option<u64>),
}

impl Disk for DmaDisk {
    fn buffer(&mut self, bytes: usize) -> Buffer {
        assert!(bytes.is_multiple_of(ALIGNMENT_BYTES), "buffer of {bytes} bytes is not aligned");
        self.aligned(bytes).into()
    }

    fn recycle(&mut self, buffer: Buffer) {
        if let Ok((buffer, _)) = buffer.into_dma() {
            self.keep(buffer);
        }
    }

    fn submit(&mut self, request: Request) -> Token {
        let request = match request {
            Request::OpenRead(path) => Plain::Open((path, false), None),
            Request::OpenWrite(path) => Plain::Open((path, true), None),
            Request::Create { path, bytes } => Plain::Open((path, true), Some(bytes)),
            Request::Read { file, offset, bytes } => {
                assert!(bytes <= REQUEST_BYTES_MAX, "a read of {bytes} bytes");
                Plain::Read(file, offset, self.aligned(bytes))
            }
            Request::Write { file, offset, buffer } => {
                assert!(buffer.len() <= REQUEST_BYTES_MAX, "a write of {} bytes", buffer.len());
                Plain::Write(file, offset, self.in_ring_memory(buffer))
            }
            Request::Sync(file) => Plain::Sync(file),
            Request::Close { file, length } => Plain::Close(file, length),
        };
        self.submitted_count += 1;
        let token = self.submitted_count;
        self.shared.borrow_mut().requests.insert(token, None);
        let shared = Rc::clone(&self.shared);
        glommio::spawn_local(async move {
            let ended = run(&shared, request).await.map_err(plain);
            let mut shared = shared.borrow_mut();
            shared.requests.insert(token, Some(ended));
            shared.ended_count += 1;
            if let Some(waker) = shared.waiting.take() {
                waker.wake();
            }
        })
        .detach();
        Token(token)
    }

    fn take(&mut self, token: Token) -> Option<io::Result<Done>> {
        let requests = &mut self.shared.borrow_mut().requests;
        let request = requests.get(&token.0);
        assert!(request.is_some(), "{token:?} was taken before or never submitted");
        request?.as_ref()?;
        requests.remove(&token.0).flatten()
    }

    fn in_flight(&self) -> usize {
        self.shared.borrow().requests.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A directory on a file system that takes O_DIRECT: the build's own.
    fn directory() -> tempfile::TempDir {
        let program = std::env::current_exe().unwrap();
        tempfile::Builder::new().prefix("dma-").tempdir_in(program.parent().unwrap()).unwrap()
    }

    fn on_an_executor(test: impl AsyncFnOnce()) {
        glommio::LocalExecutorBuilder::default().io_memory(4 << 20).make().unwrap().run(test());
    }

    async fn finish(disk: &mut DmaDisk, request: Request) -> io::Result<Done> {
        let token = disk.submit(request);
        loop {
            if let Some(ended) = disk.take(token) {
                return ended;
            }
            glommio::timer::sleep(std::time::Duration::from_micros(50)).await;
        }
    }

    async fn opened(disk: &mut DmaDisk, request: Request) -> (FileId, u64) {
        match finish(disk, request).await.unwrap() {
            Done::Opened(file, bytes) => (file, bytes),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_written_is_read_back_from_a_preallocated_private_file() {
        check_written_and_read_back(directory);
    }

    #[test]
    fn memory_file_systems_work_too_although_not_directly() {
        if Path::new("/dev/shm").is_dir() {
            check_written_and_read_back(|| tempfile::tempdir_in("/dev/shm").unwrap());
        }
    }

    fn check_written_and_read_back(directory: fn() -> tempfile::TempDir) {
        on_an_executor(async || {
            let dir = directory();
            let path = dir.path().join("segment");
            let mut disk = DmaDisk::new();
            let (file, bytes) = opened(&mut disk, Request::Create { path: path.clone(), bytes: 4 << 20 }).await;
            assert_eq!(bytes, 4 << 20);
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            let mut pattern = vec![0u8; 1 << 20];
            pattern.iter_mut().zip((0..251u8).cycle()).for_each(|(byte, value)| *byte = value);
            let mut tokens = Vec::new();
            for block in 0..4u64 {
                let mut buffer = disk.buffer(1 << 20);
                buffer.copy_from_slice(&pattern);
                tokens.push(disk.submit(Request::Write { file, offset: block << 20, buffer }));
            }
            assert_eq!(disk.in_flight(), 4);
            for token in tokens {
                let done = loop {
                    if let Some(done) = disk.take(token) {
                        break done.unwrap();
                    }
                    glommio::timer::sleep(std::time::Duration::from_micros(50)).await;
                };
                let Done::Written(buffer, 1_048_576) = done else { panic!("{done:?}") };
                disk.recycle(buffer);
            }
            assert!(matches!(finish(&mut disk, Request::Sync(file)).await, Ok(Done::Synced)));
            assert!(matches!(
                finish(&mut disk, Request::Close { file, length: Some(2 << 20) }).await,
                Ok(Done::Closed)
            ));

            let (file, bytes) = opened(&mut disk, Request::OpenRead(path.clone())).await;
            assert_eq!(bytes, 2 << 20);
            let read = finish(&mut disk, Request::Read { file, offset: 4096, bytes: 1 << 20 }).await.unwrap();
            let Done::Read(read, 1_048_576) = read else { panic!("{read:?}") };
            assert_eq!(read[..], [&pattern[4096..], &pattern[..4096]].concat());
            let read =
                finish(&mut disk, Request::Read { file, offset: (2 << 20) - 8192, bytes: 1 << 20 }).await.unwrap();
            assert!(matches!(read, Done::Read(_, 8192)), "the file ends there: {read:?}");
            assert_eq!(disk.in_flight(), 0);
        });
    }

    #[test]
    fn who_waits_for_the_disk_is_woken_by_every_request_that_ends_and_by_nothing_else() {
        on_an_executor(async || {
            let dir = directory();
            let mut disk = DmaDisk::new();
            let is_woken_within = async |disk: &DmaDisk, time| {
                let (ended, begun) = (disk.ended(), std::time::Instant::now());
                let timeout = glommio::timer::timeout(time, async {
                    ended.await;
                    Ok::<_, GlommioError<()>>(())
                });
                // A look when the time is over finds the end too.
                timeout.await.is_ok() && begun.elapsed() < time
            };
            let long = std::time::Duration::from_secs(5);
            for path in [dir.path().join("file"), PathBuf::from("/nowhere/at/all")] {
                let token = disk.submit(Request::Create { path, bytes: 4096 });
                assert!(is_woken_within(&disk, long).await);
                assert!(!is_woken_within(&disk, std::time::Duration::from_millis(5)).await, "not taken is no end");
                assert!(disk.take(token).is_some());
            }
        });
    }

    #[test]
    fn a_file_that_exists_a_missing_one_and_what_is_no_regular_file_are_errors() {
        on_an_executor(async || {
            let dir = directory();
            let [path, link, pipe] = ["file", "link", "pipe"].map(|name| dir.path().join(name));
            std::fs::write(&path, [7; 4096]).unwrap();
            std::os::unix::fs::symlink(&path, &link).unwrap();
            rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
            let mut disk = DmaDisk::new();
            use io::ErrorKind::{AlreadyExists, InvalidData, NotFound};
            for (request, kind) in [
                (Request::Create { path: path.clone(), bytes: 0 }, AlreadyExists),
                (Request::OpenRead(PathBuf::from("/nowhere/at/all")), NotFound),
                (Request::OpenWrite(link.clone()), InvalidData),
                (Request::OpenRead(link.clone()), InvalidData),
                (Request::OpenRead(pipe.clone()), InvalidData),
                (Request::OpenWrite(pipe.clone()), InvalidData),
                (Request::OpenRead(dir.path().to_owned()), InvalidData),
                (Request::Sync(FileId(99)), NotFound),
            ] {
                let what = format!("{request:?}");
                let error = finish(&mut disk, request).await.expect_err(&what);
                assert_eq!(error.kind(), kind, "{what}: {error:?}");
                assert!(!error.to_string().contains("op:"), "{what}: {error}");
            }
        });
    }

    #[test]
    fn a_buffer_from_the_heap_and_a_cut_one_are_written_too() {
        on_an_executor(async || {
            let dir = directory();
            let path = dir.path().join("file");
            let mut disk = DmaDisk::new();
            let (file, _) = opened(&mut disk, Request::Create { path: path.clone(), bytes: 0 }).await;
            let mut heap = Buffer::heap(8192);
            heap.fill(1);
            let mut cut = disk.buffer(65_536);
            cut.fill(2);
            cut.truncate(4096);
            for (offset, buffer, bytes) in [(0, heap, 8192), (8192, cut, 4096)] {
                let done = finish(&mut disk, Request::Write { file, offset, buffer }).await.unwrap();
                assert!(matches!(&done, Done::Written(_, count) if *count == bytes), "{done:?}");
            }
            finish(&mut disk, Request::Close { file, length: None }).await.unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), [[1; 4096], [1; 4096], [2; 4096]].concat());
            let spare = disk.spares.iter().map(DmaBuffer::len).collect::<Vec<_>>();
            assert_eq!(spare, [65_536], "the cut one is whole again");
        });
    }
}
