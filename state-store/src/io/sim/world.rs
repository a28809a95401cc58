//! What a simulated disk holds: files and directories, each as it is now and as it would be after a loss of power.
//!
//! Invariants
//! * I1. Reads see every write that has ended; a power loss keeps what was synced, and of the rest a random subset of sectors.
//! * I2. A write caught by a failed sync is *doomed*: reads see it until power is lost, no later sync makes it durable.
//! * I3. Names survive a power loss as the last sync of their directory left them, changes since then one by one at random.
//!   A rename is one change and happens only where its source is still there, so no file ever has two names.

use super::random::Random;
use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path};

pub(super) type Ino = u64;

/// One write that is not durable.
#[derive(Clone, Debug)]
struct Unsynced {
    sequence: u64,
    offset: u64,
    bytes: Vec<u8>,
    doomed: bool,
}

/// A file's bytes. What was never written reads as zero up to the length, and takes no memory.
#[derive(Clone, Debug, Default)]
pub(super) struct FileData {
    durable: Vec<u8>,
    durable_length: u64,
    length: u64,
    unsynced: Vec<Unsynced>,
    open_count: u32,
}

impl FileData {
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn set_length(&mut self, length: u64) {
        if length < self.length {
            // A truncation and a later extension must not bring old bytes back for readers.
            for write in &mut self.unsynced {
                let keep = length.saturating_sub(write.offset);
                write.bytes.truncate(usize::try_from(keep).unwrap_or(usize::MAX));
            }
            let from = usize::try_from(length).expect("simulated files are small");
            if from < self.durable.len() {
                let zeros = vec![0; self.durable.len() - from];
                self.unsynced.push(Unsynced { sequence: 0, offset: length, bytes: zeros, doomed: false });
            }
        }
        self.length = length;
    }

    pub(super) fn write(&mut self, sequence: u64, offset: u64, bytes: &[u8]) {
        self.length = self.length.max(offset + bytes.len() as u64);
        self.unsynced.push(Unsynced { sequence, offset, bytes: bytes.to_vec(), doomed: false });
    }

    /// Fills `out` from `offset` and returns how many bytes the file has there.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> usize {
        let there = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
        let out = &mut out[..there];
        out.fill(0);
        overlay(out, offset, 0, &self.durable);
        for write in &self.unsynced {
            overlay(out, offset, write.offset, &write.bytes);
        }
        there
    }

    fn make_durable(&mut self, offset: u64, bytes: &[u8]) {
        let start = usize::try_from(offset).expect("simulated files are small");
        let end = start + bytes.len();
        if self.durable.len() < end {
            self.durable.resize(end, 0);
        }
        self.durable[start..end].copy_from_slice(bytes);
    }

    /// Makes durable what was written up to `sequence`.
    pub(super) fn sync(&mut self, sequence: u64) {
        let writes = std::mem::take(&mut self.unsynced);
        for write in writes {
            if write.doomed || write.sequence > sequence {
                self.unsynced.push(write);
            } else {
                self.make_durable(write.offset, &write.bytes);
            }
        }
        self.durable_length = self.length;
    }

    /// A sync that failed: some sectors are durable, no other one ever will be (I2).
    pub(super) fn fail_sync(&mut self, random: &mut Random, keep: f64, sector_bytes: usize) {
        for index in 0..self.unsynced.len() {
            if !self.unsynced[index].doomed {
                let write = self.unsynced[index].clone();
                self.keep_sectors(&write, random, keep, sector_bytes);
                self.unsynced[index].doomed = true;
            }
        }
    }

    fn keep_sectors(&mut self, write: &Unsynced, random: &mut Random, keep: f64, sector_bytes: usize) {
        for (index, sector) in write.bytes.chunks(sector_bytes).enumerate() {
            if random.chance(keep) {
                self.make_durable(write.offset + (index * sector_bytes) as u64, sector);
            }
        }
    }

    /// A loss of power.
    fn crash(&mut self, random: &mut Random, keep: f64, sector_bytes: usize) {
        for write in std::mem::take(&mut self.unsynced) {
            if !write.doomed {
                self.keep_sectors(&write, random, keep, sector_bytes);
            }
        }
        if self.durable_length != self.length && random.chance(keep) {
            self.durable_length = self.length;
        }
        self.length = self.durable_length;
        self.durable.truncate(usize::try_from(self.length).unwrap_or(usize::MAX));
        self.open_count = 0;
    }

    /// Changes the bytes on the disk behind everybody's back.
    pub(super) fn edit(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        self.sync(u64::MAX);
        self.durable.resize(usize::try_from(self.length).expect("simulated files are small"), 0);
        change(&mut self.durable);
        self.length = self.durable.len() as u64;
        self.durable_length = self.length;
    }
}

/// Copies the part of `bytes`, which lie at `bytes_offset`, that falls into `out`, which lies at `out_offset`.
fn overlay(out: &mut [u8], out_offset: u64, bytes_offset: u64, bytes: &[u8]) {
    let start = out_offset.max(bytes_offset);
    let end = (out_offset + out.len() as u64).min(bytes_offset + bytes.len() as u64);
    if start < end {
        let at = |base: u64| usize::try_from(start - base).expect("inside both");
        let count = usize::try_from(end - start).expect("inside both");
        out[at(out_offset)..][..count].copy_from_slice(&bytes[at(bytes_offset)..][..count]);
    }
}

#[derive(Clone, Debug)]
enum NameChange {
    Add(String, Ino),
    Remove(String, Ino),
    Rename(String, String, Ino),
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, Ino>) {
        match self {
            Self::Add(name, ino) => {
                names.insert(name.clone(), *ino);
            }
            Self::Remove(name, ino) => {
                if names.get(name) == Some(ino) {
                    names.remove(name);
                }
            }
            Self::Rename(from, to, ino) => {
                if names.get(from) == Some(ino) {
                    names.remove(from);
                    names.insert(to.clone(), *ino);
                }
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
struct DirData {
    durable: BTreeMap<String, Ino>,
    current: BTreeMap<String, Ino>,
    changes: Vec<NameChange>,
}

impl DirData {
    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.current);
        self.changes.push(change);
    }
}

#[derive(Clone, Debug)]
enum Inode {
    File(FileData),
    Dir(DirData),
}

/// All files and directories.
#[derive(Clone, Debug)]
pub(super) struct World {
    inodes: BTreeMap<Ino, Inode>,
    next: Ino,
}

const ROOT: Ino = 0;

fn not_found(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no {} on the simulated disk", path.display()))
}

impl World {
    pub(super) fn new() -> Self {
        Self { inodes: BTreeMap::from([(ROOT, Inode::Dir(DirData::default()))]), next: 1 }
    }

    fn names(path: &Path) -> impl Iterator<Item = String> + '_ {
        path.components().filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        })
    }

    pub(super) fn find(&self, path: &Path) -> io::Result<Ino> {
        let mut at = ROOT;
        for name in Self::names(path) {
            let Some(Inode::Dir(dir)) = self.inodes.get(&at) else { return Err(not_found(path)) };
            at = *dir.current.get(&name).ok_or_else(|| not_found(path))?;
        }
        Ok(at)
    }

    fn dir(&mut self, path: &Path) -> io::Result<&mut DirData> {
        let ino = self.find(path)?;
        match self.inodes.get_mut(&ino) {
            Some(Inode::Dir(dir)) => Ok(dir),
            _ => Err(io::Error::new(io::ErrorKind::NotADirectory, format!("{} is a file", path.display()))),
        }
    }

    /// The directory that holds `path`, and its name there.
    fn parent(&mut self, path: &Path) -> io::Result<(&mut DirData, String)> {
        let name = Self::names(path).last().ok_or_else(|| not_found(path))?;
        Ok((self.dir(path.parent().unwrap_or(Path::new("")))?, name))
    }

    pub(super) fn file(&mut self, ino: Ino) -> io::Result<&mut FileData> {
        match self.inodes.get_mut(&ino) {
            Some(Inode::File(file)) => Ok(file),
            Some(Inode::Dir(_)) => Err(io::Error::new(io::ErrorKind::InvalidData, "a directory, not a regular file")),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "the file is gone")),
        }
    }

    fn add(&mut self, path: &Path, inode: Inode) -> io::Result<Ino> {
        let ino = self.next;
        let (dir, name) = self.parent(path)?;
        if dir.current.contains_key(&name) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} exists", path.display())));
        }
        dir.change(NameChange::Add(name, ino));
        self.inodes.insert(ino, inode);
        self.next += 1;
        Ok(ino)
    }

    pub(super) fn create(&mut self, path: &Path) -> io::Result<Ino> {
        self.add(path, Inode::File(FileData::default()))
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let ancestors: Vec<&Path> = path.ancestors().collect();
        for ancestor in ancestors.into_iter().rev().filter(|ancestor| Self::names(ancestor).next().is_some()) {
            if self.find(ancestor).is_err() {
                self.add(ancestor, Inode::Dir(DirData::default()))?;
            }
            self.dir(ancestor)?;
        }
        Ok(())
    }

    /// Name, length and whether it is a directory, of everything in `path`.
    pub(super) fn list(&mut self, path: &Path) -> io::Result<Vec<(String, u64, bool)>> {
        let current = self.dir(path)?.current.clone();
        Ok(current
            .into_iter()
            .map(|(name, ino)| match &self.inodes[&ino] {
                Inode::File(file) => (name, file.length, false),
                Inode::Dir(_) => (name, 0, true),
            })
            .collect())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        if from.parent() != to.parent() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "a rename into another directory is not simulated"));
        }
        let ino = self.find(from)?;
        let (_, to) = self.parent(to)?;
        let (dir, from) = self.parent(from)?;
        dir.change(NameChange::Rename(from, to, ino));
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let ino = self.find(path)?;
        self.file(ino)?;
        let (dir, name) = self.parent(path)?;
        dir.change(NameChange::Remove(name, ino));
        Ok(())
    }

    pub(super) fn remove_dir(&mut self, path: &Path) -> io::Result<()> {
        if !self.dir(path)?.current.is_empty() {
            return Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, format!("{} is not empty", path.display())));
        }
        let ino = self.find(path)?;
        let (dir, name) = self.parent(path)?;
        dir.change(NameChange::Remove(name, ino));
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let dir = self.dir(path)?;
        dir.changes.clear();
        dir.durable.clone_from(&dir.current);
        self.drop_unnamed();
        Ok(())
    }

    /// A sync of a directory that failed: some changes are durable, the others wait for the next sync.
    pub(super) fn fail_sync_dir(&mut self, path: &Path, random: &mut Random, keep: f64) -> io::Result<()> {
        let dir = self.dir(path)?;
        dir.changes.iter().filter(|_| random.chance(keep)).for_each(|change| change.apply(&mut dir.durable));
        Ok(())
    }

    pub(super) fn opened(&mut self, ino: Ino) -> io::Result<()> {
        self.file(ino).map(|file| file.open_count += 1)
    }

    pub(super) fn closed(&mut self, ino: Ino) {
        if let Ok(file) = self.file(ino) {
            file.open_count = file.open_count.saturating_sub(1);
        }
    }

    /// Bytes that the files take.
    pub(super) fn used_bytes(&self) -> u64 {
        self.inodes.values().map(|inode| if let Inode::File(file) = inode { file.length } else { 0 }).sum()
    }

    pub(super) fn crash(&mut self, random: &mut Random, keep_sectors: f64, keep_names: f64, sector_bytes: usize) {
        for inode in self.inodes.values_mut() {
            match inode {
                Inode::File(file) => file.crash(random, keep_sectors, sector_bytes),
                Inode::Dir(dir) => {
                    for change in std::mem::take(&mut dir.changes) {
                        if random.chance(keep_names) {
                            change.apply(&mut dir.durable);
                        }
                    }
                    dir.current.clone_from(&dir.durable);
                }
            }
        }
        self.drop_unnamed();
    }

    /// Forgets what has no name, now or after a power loss, and is not open.
    fn drop_unnamed(&mut self) {
        let mut named = vec![ROOT];
        let mut next = 0;
        while let Some(ino) = named.get(next) {
            if let Some(Inode::Dir(dir)) = self.inodes.get(ino) {
                named.extend(dir.durable.values().chain(dir.current.values()));
                named.extend(dir.changes.iter().map(|change| match change {
                    NameChange::Add(_, ino) | NameChange::Remove(_, ino) | NameChange::Rename(_, _, ino) => *ino,
                }));
            }
            next += 1;
        }
        named.sort_unstable();
        self.inodes.retain(|ino, inode| {
            named.binary_search(ino).is_ok() || matches!(inode, Inode::File(file) if file.open_count > 0)
        });
    }

    /// Every file with its bytes, for comparing two runs.
    pub(super) fn files(&self) -> impl Iterator<Item = (Ino, u64, Vec<u8>)> + '_ {
        self.inodes.iter().filter_map(|(ino, inode)| match inode {
            Inode::File(file) => {
                let mut bytes = vec![0; usize::try_from(file.length).expect("simulated files are small")];
                file.read(0, &mut bytes);
                Some((*ino, file.length, bytes))
            }
            Inode::Dir(_) => None,
        })
    }
}
