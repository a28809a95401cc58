//! [`Disk`] over blocking calls: for tools, and for tests that want real files without a ring.
//!
//! Every request has ended when `submit` returns. Not for a shard's loop.

use super::real::open;
use super::{Buffer, Disk, Done, FileId, Request, Token};
use rustix::fs::{FallocateFlags, OFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A disk whose requests block.
#[derive(Debug, Default)]
pub struct BlockingDisk {
    files: BTreeMap<u32, File>,
    opened_count: u32,
    submitted_count: u64,
    ended: BTreeMap<u64, io::Result<Done>>,
}

impl BlockingDisk {
    /// A disk with no file open.
    pub fn new() -> Self {
        Self::default()
    }

    fn keep(&mut self, file: File) -> io::Result<Done> {
        let bytes = file.metadata()?.len();
        self.opened_count += 1;
        self.files.insert(self.opened_count, file);
        Ok(Done::Opened(FileId(self.opened_count), bytes))
    }

    fn file(&self, id: FileId) -> io::Result<&File> {
        self.files.get(&id.0).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{id:?} is not open")))
    }

    fn run(&mut self, request: Request) -> io::Result<Done> {
        match request {
            Request::OpenRead(path) => self.keep(open(&path, OFlags::RDONLY)?),
            Request::OpenWrite(path) => self.keep(open(&path, OFlags::WRONLY)?),
            Request::Create { path, bytes } => {
                let file = open(&path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
                if bytes > 0 {
                    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
                        Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes)?,
                        allocated => allocated?,
                    }
                }
                self.keep(file)
            }
            Request::Read { file, offset, bytes } => {
                let mut buffer = Buffer::heap(bytes);
                let mut filled = 0;
                while filled < bytes {
                    match self.file(file)?.read_at(&mut buffer[filled..], offset + filled as u64) {
                        Ok(0) => break,
                        Ok(count) => filled += count,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(Done::Read(buffer, filled))
            }
            Request::Write { file, offset, buffer } => {
                self.file(file)?.write_all_at(&buffer, offset)?;
                let count = buffer.len();
                Ok(Done::Written(buffer, count))
            }
            Request::Sync(file) => self.file(file)?.sync_data().map(|()| Done::Synced),
            Request::Close { file, length } => {
                if let Some(length) = length {
                    self.file(file)?.set_len(length)?;
                }
                self.files.remove(&file.0);
                Ok(Done::Closed)
            }
        }
    }
}

impl Disk for BlockingDisk {
    fn buffer(&mut self, bytes: usize) -> Buffer {
        Buffer::heap(bytes)
    }

    fn recycle(&mut self, _: Buffer) {}

    fn submit(&mut self, request: Request) -> Token {
        let ended = self.run(request);
        self.submitted_count += 1;
        self.ended.insert(self.submitted_count, ended);
        Token(self.submitted_count)
    }

    fn take(&mut self, token: Token) -> Option<io::Result<Done>> {
        let ended = self.ended.remove(&token.0);
        assert!(ended.is_some(), "{token:?} was taken before or never submitted");
        ended
    }

    fn in_flight(&self) -> usize {
        self.ended.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(disk: &mut BlockingDisk, request: Request) -> io::Result<Done> {
        let token = disk.submit(request);
        disk.take(token).expect("blocking requests end at once")
    }

    #[test]
    fn a_created_file_has_its_allocated_length_and_keeps_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let mut disk = BlockingDisk::new();
        let Done::Opened(file, 1_048_576) =
            run(&mut disk, Request::Create { path: path.clone(), bytes: 1 << 20 }).unwrap()
        else {
            panic!("not opened at its length")
        };
        let mut buffer = disk.buffer(8192);
        buffer.fill(7);
        assert!(matches!(run(&mut disk, Request::Write { file, offset: 4096, buffer }), Ok(Done::Written(_, 8192))));
        assert!(matches!(run(&mut disk, Request::Sync(file)), Ok(Done::Synced)));
        assert!(matches!(run(&mut disk, Request::Close { file, length: Some(12_288) }), Ok(Done::Closed)));
        assert!(run(&mut disk, Request::Create { path: path.clone(), bytes: 0 }).is_err(), "it exists");

        let Done::Opened(file, 12_288) = run(&mut disk, Request::OpenRead(path)).unwrap() else { panic!("not cut") };
        let Done::Read(bytes, 8192) = run(&mut disk, Request::Read { file, offset: 4096, bytes: 16_384 }).unwrap()
        else {
            panic!("a read past the end is not cut")
        };
        assert!(bytes[..8192].iter().all(|&byte| byte == 7));
        assert_eq!(disk.in_flight(), 0);
    }
}
