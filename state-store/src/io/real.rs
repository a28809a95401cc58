//! [`Files`] over the operating system.
//!
//! Invariants
//! * I1. Files are made with mode 0600 and directories with 0700; no symbolic link in the last part of a path is followed,
//!   except to a directory: people link theirs to the disk they want.
//! * I2. Nothing is allocated for a length that the file does not have.

use super::{Entry, EntryKind, FileLock, Files};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::{File, FileType};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt};
use std::path::Path;

/// The files of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFiles;

/// Opens a regular file without following a link. `flags` says how. A pipe or a device in its place is an error: without
/// `NONBLOCK`, which regular files ignore, the other end of a pipe would be waited for.
pub(super) fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(io::Error::from);
    // What the kernel says of a link, of a socket and of a directory opened for writing are three other errors.
    let file = File::from(opened.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => error,
        _ => irregular(path).unwrap_or(error),
    })?);
    match file.metadata()?.file_type() {
        kind if kind.is_file() => Ok(file),
        kind => Err(not_regular(kind)),
    }
}

/// The error of opening what stands at `path` when it is no regular file.
pub(super) fn irregular(path: &Path) -> Option<io::Error> {
    let kind = path.symlink_metadata().ok()?.file_type();
    (!kind.is_file()).then(|| not_regular(kind))
}

fn not_regular(kind: FileType) -> io::Error {
    let what = match kind {
        kind if kind.is_symlink() => "a symbolic link",
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    io::Error::new(io::ErrorKind::InvalidData, format!("{what}, not a regular file"))
}

impl Files for RealFiles {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            // Does not follow links.
            match entry.metadata() {
                Ok(metadata) => entries.push(Entry {
                    name: entry.file_name().to_string_lossy().into_owned(),
                    bytes: metadata.len(),
                    kind: match metadata.file_type() {
                        kind if kind.is_file() => EntryKind::File,
                        kind if kind.is_dir() => EntryKind::Directory,
                        _ => EntryKind::Other,
                    },
                }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        open(path, OFlags::RDONLY)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn read_at(&self, path: &Path, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let file = open(path, OFlags::RDONLY)?;
        let there = file.metadata()?.len().saturating_sub(offset);
        let mut read = vec![0; usize::try_from(there).unwrap_or(usize::MAX).min(bytes)];
        file.read_exact_at(&mut read, offset)?;
        Ok(read)
    }

    fn write_durable(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
        file.write_all(bytes)?;
        file.sync_data()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::from(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
            .sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir(path)
    }

    fn exists(&self, path: &Path) -> bool {
        path.symlink_metadata().is_ok()
    }

    fn lock(&self, path: &Path) -> io::Result<FileLock> {
        loop {
            let file = open(path, OFlags::RDWR | OFlags::CREATE)?;
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            // An owner may remove the file before it gives it up: then this is a file without a name.
            let (locked, named) = (rustix::fs::fstat(&file)?, rustix::fs::lstat(path));
            if named.is_ok_and(|named| (named.st_dev, named.st_ino) == (locked.st_dev, locked.st_ino)) {
                // The kernel holds the lock as long as this description of the file is open.
                return Ok(FileLock { _owner: Box::new(file) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_are_private_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (inner, file, link) = (dir.path().join("a/b"), dir.path().join("a/b/file"), dir.path().join("link"));
        RealFiles.create_dir_all(&inner).unwrap();
        RealFiles.write_durable(&file, b"hello").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();

        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&inner), mode(&file)), (0o700, 0o600));
        assert!(RealFiles.read(&link).is_err());
        assert!(RealFiles.read_at(&link, 0, 1).is_err());
        assert!(RealFiles.write_durable(&link, b"x").is_err());
        assert!(RealFiles.lock(&link).is_err());
        assert_eq!(RealFiles.read(&file).unwrap(), b"hello");
    }

    #[test]
    fn a_link_to_a_directory_is_as_good_as_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        RealFiles.create_dir_all(&link).unwrap();
        RealFiles.write_durable(&link.join("file"), b"hello").unwrap();
        RealFiles.sync_dir(&link).unwrap();
        assert!(RealFiles.list(&link).unwrap().iter().any(|entry| entry.name == "file"));
    }

    #[test]
    fn reading_past_the_end_returns_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        RealFiles.write_durable(&file, b"hello").unwrap();
        for (offset, bytes, expected) in
            [(0, 5, &b"hello"[..]), (1, usize::MAX, b"ello"), (5, 1, b""), (u64::MAX / 2, usize::MAX, b"")]
        {
            assert_eq!(RealFiles.read_at(&file, offset, bytes).unwrap(), expected, "{bytes} bytes at {offset}");
        }
    }

    #[test]
    fn what_is_no_regular_file_is_told_by_what_it_is_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "hello").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for (name, what) in
            [("link", "a symbolic link"), ("directory", "a directory"), ("pipe", "a pipe"), ("socket", "a socket")]
        {
            let path = at(name);
            let refused = [
                RealFiles.read(&path).unwrap_err(),
                RealFiles.read_at(&path, 0, 1).unwrap_err(),
                RealFiles.write_durable(&path, b"x").unwrap_err(),
                RealFiles.lock(&path).map(drop).unwrap_err(),
                open(&path, OFlags::RDONLY).unwrap_err(),
            ];
            for error in refused {
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{name}: {error}");
                assert_eq!(error.to_string(), format!("{what}, not a regular file"));
            }
        }
        let kinds: Vec<_> = RealFiles.list(dir.path()).unwrap().into_iter().map(|entry| entry.kind).collect();
        use EntryKind::{Directory, File, Other};
        assert_eq!(kinds, [Directory, File, Other, Other, Other]);
    }

    #[test]
    fn a_lock_has_one_owner_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("LOCK");
        let first = RealFiles.lock(&path).unwrap();
        assert_eq!(RealFiles.lock(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(first);
        let second = RealFiles.lock(&path).unwrap();
        RealFiles.remove(&path).unwrap();
        let third = RealFiles.lock(&path).unwrap();
        drop(second);
        assert_eq!(RealFiles.lock(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(third);
    }
}
