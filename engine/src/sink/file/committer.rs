//! Gives prepared parts their final names.

use super::Names;
use crate::sink::Committer;
use crate::{Error, ErrorKind, Result};
use millstream_state::Epoch;
use millstream_state::io::{FileLock, Files};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

/// A part as a manifest lists it. Names within the sink's directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Prepared {
    pub(super) staged: String,
    pub(super) part: String,
    pub(super) bytes: u64,
}

impl Prepared {
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data")
    }

    fn decode(bytes: &[u8], names: &Names) -> Result<Self> {
        let prepared: Self = serde_json::from_slice(bytes)
            .map_err(|error| Error::corrupt(format_args!("output prepared by a file sink cannot be read: {error}")))?;
        let plain = |name: &str| !name.is_empty() && !name.contains(['/', '\0']);
        if !prepared.staged.starts_with(&names.staged_prefix())
            || !plain(&prepared.staged)
            || !plain(&prepared.part)
            || names.part_of(&prepared.part).is_none_or(|(state, _)| state != names.state)
        {
            return Err(Error::corrupt(format_args!(
                "prepared output {} and {} are no names of the sink in {}",
                prepared.staged,
                prepared.part,
                names.dir.display()
            )));
        }
        Ok(prepared)
    }
}

/// How many commits are remembered.
const COMMITTED_MAX: usize = 1024;

/// See the module.
pub(super) struct FileCommitter {
    names: Names,
    /// Keeps others out, from [`open`](Committer::open) on.
    lock: Option<FileLock>,
    /// Staged names committed last. An epoch that was given back may be listed twice, and by the second time a consumer
    /// may have taken the file away.
    committed: VecDeque<String>,
}

impl FileCommitter {
    pub(super) fn new(names: Names) -> Self {
        Self { names, lock: None, committed: VecDeque::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.names.dir.join(name)
    }

    fn sync(&self, files: &dyn Files) -> Result<()> {
        files.sync_dir(&self.names.dir).map_err(|error| self.unavailable("make names durable in", &error))
    }

    fn unavailable(&self, what: &str, error: &io::Error) -> Error {
        Error::unavailable(format_args!("cannot {what} output directory {}: {error}", self.names.dir.display()))
    }

    /// Refuses a part that this state has not written up to `restored`.
    fn refuse_foreign(&self, name: &str, restored: Epoch) -> Result<()> {
        let (dir, own) = (self.names.dir.display(), self.names.state);
        match self.names.part_of(name) {
            Some((state, _)) if state != own => Err(Error::invalid(format_args!(
                "output directory {dir} already holds {name}, which another job or state directory has written (state {state}, \
                 this is {own}): choose another directory, or move such files away"
            ))),
            Some((_, epoch)) if epoch > restored => Err(Error::invalid(format_args!(
                "output directory {dir} already holds {name}, and this job goes on from epoch {restored}: what follows would be \
                 written a second time; move such files away, or choose another directory"
            ))),
            _ => Ok(()),
        }
    }

    fn lock(&self, files: &dyn Files) -> Result<FileLock> {
        files.lock(&self.names.lock()).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Error::new(
                ErrorKind::Locked,
                format_args!(
                    "output directory {}: another job, or another sink of this one, writes files named {}-* there; stop it \
                     first, or choose another directory or prefix",
                    self.names.dir.display(),
                    self.names.prefix
                ),
            ),
            _ => self.refused("cannot be written", &error),
        })
    }

    /// What stands in the way at start: to be mended, or to be tried again.
    fn refused(&self, what: &str, error: &io::Error) -> Error {
        use io::ErrorKind::{IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
        let kind = match error.kind() {
            IsADirectory | NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem => ErrorKind::Invalid,
            _ => ErrorKind::Unavailable,
        };
        Error::new(kind, format_args!("output directory {} {what}: {error}", self.names.dir.display()))
    }
}

/// Whether the file has exactly this many bytes (at least one).
fn has_length(files: &dyn Files, path: &Path, bytes: u64) -> Result<bool> {
    match files.read_at(path, bytes - 1, 2) {
        Ok(read) => Ok(read.len() == 1),
        Err(error) => Err(Error::unavailable(format_args!("{}: cannot be read: {error}", path.display()))),
    }
}

impl Committer for FileCommitter {
    fn open(&mut self, files: &dyn Files, restored: Epoch) -> Result<()> {
        let dir = &*self.names.dir;
        if !files.exists(dir) {
            files.create_dir_all(dir).map_err(|error| self.refused("cannot be created", &error))?;
        }
        // Also when it was there: a start before this one may have made it and died.
        for above in dir.ancestors().skip(1) {
            let above = if above == Path::new("") { Path::new(".") } else { above };
            match files.sync_dir(above) {
                // Not this user's, so not made here.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                result => result.map_err(|error| self.refused("cannot be made durable", &error))?,
            }
        }
        let entries = files.list(dir).map_err(|error| match error.kind() {
            io::ErrorKind::NotADirectory => Error::invalid(format_args!("output {} is a file", dir.display())),
            _ => self.refused("cannot be read", &error),
        })?;
        for entry in &entries {
            self.refuse_foreign(&entry.name, restored)?;
        }
        self.lock = Some(self.lock(files)?);
        let probe = self.path(&format!("{}probe", self.names.staged_prefix()));
        match files.write_durable(&probe, b"?") {
            Ok(()) => {}
            // A full disk is waited for while the job runs, so also when it starts.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
            Err(error) => return Err(self.refused("cannot be written", &error)),
        }
        if files.exists(&probe) {
            files.remove(&probe).map_err(|error| self.refused("cannot be written", &error))?;
        }
        Ok(())
    }

    fn secure(&mut self, files: &dyn Files, prepared: &[Vec<u8>]) -> Result<()> {
        if prepared.is_empty() { Ok(()) } else { self.sync(files) }
    }

    fn commit(&mut self, files: &dyn Files, prepared: &[u8]) -> Result<()> {
        let prepared = Prepared::decode(prepared, &self.names)?;
        if self.committed.contains(&prepared.staged) {
            return Ok(());
        }
        let (staged, part) = (self.path(&prepared.staged), self.path(&prepared.part));
        let (is_staged, is_there) = (files.exists(&staged), files.exists(&part));
        if is_staged && is_there {
            return Err(Error::invalid(format_args!(
                "{} is to become {}, which another run or sink has written; move that away",
                staged.display(),
                part.display()
            )));
        }
        if !is_staged && !is_there {
            return Err(Error::corrupt(format_args!(
                "prepared output is gone: neither {} nor {} is there ({} bytes), and the run before ended before it was known \
                 to be committed; if a reader has taken the file, put it back as {} until the job runs",
                staged.display(),
                part.display(),
                prepared.bytes,
                part.display()
            )));
        }
        let at = if is_staged { &staged } else { &part };
        if !has_length(files, at, prepared.bytes)? {
            return Err(Error::corrupt(format_args!(
                "{}: prepared output has not the {} bytes that were written",
                at.display(),
                prepared.bytes
            )));
        }
        if is_staged {
            files.rename(&staged, &part).map_err(|error| {
                Error::unavailable(format_args!("{} cannot become {}: {error}", staged.display(), part.display()))
            })?;
        }
        self.sync(files)?;
        self.committed.push_back(prepared.staged);
        if self.committed.len() > COMMITTED_MAX {
            self.committed.pop_front();
        }
        Ok(())
    }

    fn clean(&mut self, files: &dyn Files) -> Result<()> {
        let prefix = self.names.staged_prefix();
        let entries = files.list(&self.names.dir).map_err(|error| self.unavailable("list", &error))?;
        for entry in entries.iter().filter(|entry| entry.name.starts_with(&prefix)) {
            files.remove(&self.path(&entry.name)).map_err(|error| {
                Error::new(
                    ErrorKind::Unavailable,
                    format_args!(
                        "{}: left by an earlier run, cannot be removed: {error}",
                        self.path(&entry.name).display()
                    ),
                )
            })?;
        }
        Ok(())
    }

    fn finish(&mut self, files: &dyn Files) -> Result<()> {
        self.clean(files)?;
        if let Some(lock) = self.lock.take() {
            // Removed while it is owned: who waits for it looks whether it still has its name.
            files.remove(&self.names.lock()).map_err(|error| self.unavailable("remove the lock from", &error))?;
            drop(lock);
        }
        Ok(())
    }
}
