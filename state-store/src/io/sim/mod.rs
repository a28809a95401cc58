//! A disk in memory with faults and losses of power, the same for the same seed.
//!
//! [`SimDisk`] is a handle: its clones share one disk, each being a client of its own as a [`Disk`]. Time is counted in
//! ticks: every submit and every take is one, so a client that polls gets its completions, in an order drawn at random.
//! All clients must run in one thread for a run to be repeatable.
//!
//! Invariants
//! * I1. A request has no effect before its end; a sync covers only writes that had ended when it was submitted.
//! * I2. After [`SimDisk::crash`] no request submitted before it has any effect, and taking it returns an error.

mod config;
mod random;
mod world;

pub use config::{FaultCounts, SimConfig};

use super::buffer::HeapBuffer;
use super::{Buffer, Disk, Done, Entry, EntryKind, FileId, FileLock, Files, Request, Token};
use random::Random;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use world::{Ino, World};

/// A simulated disk: both a [`Disk`] and [`Files`].
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    client: u32,
}

struct State {
    config: SimConfig,
    random: Random,
    world: World,
    now: u64,
    powered: bool,
    steps_to_power_loss: Option<u64>,
    power_loss_count: u64,
    client_count: u32,
    opened: BTreeMap<u32, Opened>,
    opened_count: u32,
    next_token: u64,
    first_token_since_crash: u64,
    write_sequence: u64,
    /// By the tick at which each ends.
    queue: BTreeMap<(u64, u64), Queued>,
    ended: BTreeMap<u64, (u32, io::Result<Ended>)>,
    locks: BTreeMap<Ino, u64>,
    lock_count: u64,
    spare: Vec<HeapBuffer>,
    faults: FaultCounts,
}

struct Opened {
    ino: Ino,
    writable: bool,
}

struct Queued {
    client: u32,
    request: Plain,
}

/// A [`Request`] whose buffer may change threads.
enum Plain {
    OpenRead(PathBuf),
    OpenWrite(PathBuf),
    Create {
        path: PathBuf,
        bytes: u64,
    },
    Read {
        file: FileId,
        offset: u64,
        bytes: usize,
    },
    Close {
        file: FileId,
        length: Option<u64>,
    },
    Write {
        file: FileId,
        offset: u64,
        heap: HeapBuffer,
    },
    /// What had been written when the sync was submitted.
    Sync {
        file: FileId,
        written: u64,
    },
}

/// A [`Done`] whose buffer may change threads.
enum Ended {
    Opened(FileId, u64),
    Read(HeapBuffer, usize),
    Written(HeapBuffer, usize),
    Synced,
    Closed,
}

fn error(kind: io::ErrorKind, what: &str) -> io::Error {
    io::Error::new(kind, format!("simulated: {what}"))
}

impl State {
    fn fault<T>(&mut self, kind: io::ErrorKind, what: &str) -> io::Result<T> {
        self.faults.failed += 1;
        Err(error(kind, what))
    }

    /// Counts one step towards the planned loss of power.
    fn step(&mut self) -> io::Result<()> {
        if let Some(steps) = &mut self.steps_to_power_loss {
            if *steps == 0 {
                self.powered = false;
            }
            *steps = steps.saturating_sub(1);
        }
        if self.powered { Ok(()) } else { Err(error(io::ErrorKind::Other, "power lost")) }
    }

    fn space_for(&mut self, bytes: u64) -> io::Result<()> {
        if self.random.chance(self.config.no_space)
            || self.world.used_bytes().saturating_add(bytes) > self.config.capacity_bytes
        {
            return self.fault(io::ErrorKind::StorageFull, "no space left");
        }
        Ok(())
    }

    fn open_file(&self, file: FileId) -> io::Result<&Opened> {
        self.opened.get(&file.0).ok_or_else(|| error(io::ErrorKind::NotFound, &format!("{file:?} is not open")))
    }

    fn writable(&self, file: FileId) -> io::Result<Ino> {
        let opened = self.open_file(file)?;
        if opened.writable { Ok(opened.ino) } else { Err(error(io::ErrorKind::PermissionDenied, "opened for reading")) }
    }

    fn keep_open(&mut self, ino: Ino, writable: bool) -> io::Result<Ended> {
        self.world.opened(ino)?;
        self.opened_count += 1;
        self.opened.insert(self.opened_count, Opened { ino, writable });
        Ok(Ended::Opened(FileId(self.opened_count), self.world.file(ino)?.length()))
    }

    fn tick(&mut self, ticks: u64) {
        self.now += ticks;
        while let Some(entry) = self.queue.first_entry() {
            let (due, token) = *entry.key();
            if due > self.now {
                break;
            }
            let Queued { client, request } = entry.remove();
            let ended = self.step().and_then(|()| self.run(request));
            self.ended.insert(token, (client, ended));
        }
    }

    fn run(&mut self, request: Plain) -> io::Result<Ended> {
        match request {
            Plain::OpenRead(path) => {
                self.may_fail_open()?;
                let ino = self.world.find(&path)?;
                self.keep_open(ino, false)
            }
            Plain::OpenWrite(path) => {
                self.may_fail_open()?;
                let ino = self.world.find(&path)?;
                self.keep_open(ino, true)
            }
            Plain::Create { path, bytes } => {
                self.may_fail_open()?;
                let ino = self.world.create(&path)?;
                // As on a real disk, a file that found no space is there all the same.
                self.space_for(bytes)?;
                self.world.file(ino)?.set_length(bytes);
                self.keep_open(ino, true)
            }
            Plain::Read { file, offset, bytes } => {
                let ino = self.open_file(file)?.ino;
                if self.random.chance(self.config.failed_read) {
                    return self.fault(io::ErrorKind::Other, "read failed");
                }
                let mut heap = self.spare_buffer(bytes);
                let mut count = self.world.file(ino)?.read(offset, &mut heap);
                if count > 0 && self.random.chance(self.config.short_read) {
                    self.faults.short += 1;
                    count = self.shortened(count);
                }
                Ok(Ended::Read(heap, count))
            }
            Plain::Close { file, length } => {
                let ino = self.open_file(file)?.ino;
                if let Some(length) = length {
                    self.world.file(ino)?.set_length(length);
                }
                self.opened.remove(&file.0);
                self.world.closed(ino);
                if self.random.chance(self.config.failed_open) {
                    return self.fault(io::ErrorKind::Other, "close failed");
                }
                Ok(Ended::Closed)
            }
            Plain::Write { file, offset, heap } => self.run_write(file, offset, heap),
            Plain::Sync { file, written } => {
                let ino = self.writable(file)?;
                if self.random.chance(self.config.failed_sync) {
                    let Config { keep, sector_bytes } = self.keep();
                    self.world.file(ino)?.fail_sync(&mut self.random, keep, sector_bytes);
                    return self.fault(io::ErrorKind::Other, "sync failed");
                }
                self.world.file(ino)?.sync(written);
                Ok(Ended::Synced)
            }
        }
    }

    fn run_write(&mut self, file: FileId, offset: u64, heap: HeapBuffer) -> io::Result<Ended> {
        let ino = self.writable(file)?;
        let beyond = (offset + heap.len() as u64).saturating_sub(self.world.file(ino)?.length());
        self.space_for(beyond)?;
        if self.random.chance(self.config.failed_write) {
            let part = self.shortened(heap.len());
            self.put(ino, offset, &heap[..part])?;
            return self.fault(io::ErrorKind::Other, "write failed");
        }
        let mut count = heap.len();
        if self.random.chance(self.config.short_write) {
            self.faults.short += 1;
            count = self.shortened(count);
        }
        if self.random.chance(self.config.lost_write) {
            self.faults.silent += 1;
        } else if self.random.chance(self.config.torn_write) {
            self.faults.silent += 1;
            let part = self.shortened(count);
            self.put(ino, offset, &heap[..part])?;
        } else if self.random.chance(self.config.misdirected_write) {
            self.faults.silent += 1;
            let blocks = (self.world.file(ino)?.length() / 4096).max(1);
            let elsewhere = self.random.below(blocks) * 4096;
            self.put(ino, elsewhere, &heap[..count])?;
        } else {
            self.put(ino, offset, &heap[..count])?;
        }
        Ok(Ended::Written(heap, count))
    }

    fn put(&mut self, ino: Ino, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_sequence += 1;
        self.world.file(ino)?.write(self.write_sequence, offset, bytes);
        Ok(())
    }

    /// A multiple of 512 below `count`.
    fn shortened(&mut self, count: usize) -> usize {
        let sectors = self.random.below((count / 512) as u64);
        usize::try_from(sectors).expect("below a usize") * 512
    }

    fn may_fail_open(&mut self) -> io::Result<()> {
        if self.random.chance(self.config.failed_open) {
            return self.fault(io::ErrorKind::Other, "open failed");
        }
        Ok(())
    }

    fn keep(&self) -> Config {
        Config { keep: self.config.keep_unsynced, sector_bytes: self.config.sector_bytes }
    }

    fn spare_buffer(&mut self, bytes: usize) -> HeapBuffer {
        match self.spare.iter().position(|heap| heap.capacity() == bytes) {
            Some(index) => self.spare.swap_remove(index),
            None => HeapBuffer::new(bytes),
        }
    }

    fn lose_power(&mut self) {
        // What was under way may have happened in part.
        for (_, Queued { request, .. }) in std::mem::take(&mut self.queue) {
            if let Plain::Write { file, offset, heap } = request
                && let Ok(ino) = self.writable(file)
            {
                // A write to a file that is gone has no effect either way.
                let _ = self.put(ino, offset, &heap);
            }
        }
        let Config { keep, sector_bytes } = self.keep();
        self.world.crash(&mut self.random, keep, self.config.keep_names, sector_bytes);
        self.ended.clear();
        self.opened.clear();
        self.locks.clear();
        self.first_token_since_crash = self.next_token;
        self.steps_to_power_loss = None;
        self.powered = true;
        self.power_loss_count += 1;
        self.faults.power_losses += 1;
    }
}

struct Config {
    keep: f64,
    sector_bytes: usize,
}

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64, config: SimConfig) -> Self {
        let state = State {
            config,
            random: Random::new(seed),
            world: World::new(),
            now: 0,
            powered: true,
            steps_to_power_loss: None,
            power_loss_count: 0,
            client_count: 1,
            opened: BTreeMap::new(),
            opened_count: 0,
            next_token: 0,
            first_token_since_crash: 0,
            write_sequence: 0,
            queue: BTreeMap::new(),
            ended: BTreeMap::new(),
            locks: BTreeMap::new(),
            lock_count: 0,
            spare: Vec::new(),
            faults: FaultCounts::default(),
        };
        Self { state: Arc::new(Mutex::new(state)), client: 0 }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Loses power and comes back: keeps what was synced and a random part of the rest; every lock, open file and
    /// request under way is gone.
    pub fn crash(&self) {
        self.state().lose_power();
    }

    /// Cuts the power at the `steps`-th step from now (0: the next). A step is one request or one part of a call: a
    /// create, a write, a sync, a rename. From then on everything fails until [`SimDisk::crash`] brings the disk back.
    pub fn lose_power_after(&self, steps: u64) {
        self.state().steps_to_power_loss = Some(steps);
    }

    /// Says whether the power is on.
    pub fn is_powered(&self) -> bool {
        self.state().powered
    }

    /// Lets time pass: requests due within `ticks` end.
    pub fn advance(&self, ticks: u64) {
        self.state().tick(ticks);
    }

    /// Changes which faults the disk has from now on.
    pub fn configure(&self, change: impl FnOnce(&mut SimConfig)) {
        change(&mut self.state().config);
    }

    /// How many faults there have been.
    pub fn faults(&self) -> FaultCounts {
        self.state().faults
    }

    /// Changes the bytes of a file behind everybody's back.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn edit(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut state = self.state();
        let ino = state.world.find(path)?;
        state.world.file(ino)?.edit(change);
        Ok(())
    }

    /// A second disk with the same files, names and unsynced writes, and its own chance from `seed`; nothing is open.
    #[must_use]
    pub fn fork(&self, seed: u64) -> Self {
        let state = self.state();
        let fork = Self::new(seed, state.config.clone());
        fork.state().world = state.world.clone();
        fork.state().write_sequence = state.write_sequence;
        fork
    }

    /// A hash of every file's number, length and bytes: equal for two runs of one seed.
    pub fn fingerprint(&self) -> u64 {
        let state = self.state();
        state.world.files().fold(0, |hash, (ino, length, bytes)| {
            let mut all = Vec::with_capacity(bytes.len() + 24);
            for number in [hash, ino, length] {
                all.extend_from_slice(&number.to_le_bytes());
            }
            all.extend_from_slice(&bytes);
            crate::hash::hash_bytes(&all)
        })
    }
}

impl Clone for SimDisk {
    /// Another client of the same disk.
    fn clone(&self) -> Self {
        let mut state = self.state();
        let client = state.client_count;
        state.client_count += 1;
        drop(state);
        Self { state: Arc::clone(&self.state), client }
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDisk(client {})", self.client)
    }
}

impl Disk for SimDisk {
    fn buffer(&mut self, bytes: usize) -> Buffer {
        self.state().spare_buffer(bytes).into()
    }

    fn recycle(&mut self, buffer: Buffer) {
        let mut heap = buffer.into_heap();
        heap.restore_length();
        let mut state = self.state();
        if state.spare.len() < 16 {
            state.spare.push(heap);
        }
    }

    fn submit(&mut self, request: Request) -> Token {
        let mut guard = self.state();
        let state = &mut *guard;
        state.tick(1);
        let token = state.next_token;
        state.next_token += 1;
        let request = match request {
            Request::Write { file, offset, buffer } => {
                assert!(offset.is_multiple_of(4096) && buffer.len().is_multiple_of(4096), "an unaligned write");
                Plain::Write { file, offset, heap: buffer.into_heap() }
            }
            Request::Sync(file) => Plain::Sync { file, written: state.write_sequence },
            Request::OpenRead(path) => Plain::OpenRead(path),
            Request::OpenWrite(path) => Plain::OpenWrite(path),
            Request::Create { path, bytes } => Plain::Create { path, bytes },
            Request::Read { file, offset, bytes } => Plain::Read { file, offset, bytes },
            Request::Close { file, length } => Plain::Close { file, length },
        };
        let delay = state.random.below(u64::from(state.config.delay_ticks_max) + 1);
        let due = state.now + delay;
        state.queue.insert((due, token), Queued { client: self.client, request });
        Token(token)
    }

    fn take(&mut self, token: Token) -> Option<io::Result<Done>> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.tick(1);
        if token.0 < state.first_token_since_crash {
            return Some(Err(error(io::ErrorKind::Other, "power lost")));
        }
        let Some((_, ended)) = state.ended.remove(&token.0) else {
            let waits = state.queue.keys().any(|(_, queued)| *queued == token.0);
            assert!(waits, "{token:?} was taken before or never submitted");
            return None;
        };
        Some(ended.map(|ended| match ended {
            Ended::Opened(file, bytes) => Done::Opened(file, bytes),
            Ended::Read(heap, count) => Done::Read(heap.into(), count),
            Ended::Written(heap, count) => Done::Written(heap.into(), count),
            Ended::Synced => Done::Synced,
            Ended::Closed => Done::Closed,
        }))
    }

    fn in_flight(&self) -> usize {
        let state = self.state();
        state.queue.values().filter(|queued| queued.client == self.client).count()
            + state.ended.values().filter(|(client, _)| *client == self.client).count()
    }
}

impl Files for SimDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.step()?;
        state.world.create_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.step()?;
        let entries = state.world.list(path)?;
        let kind = |is_dir| if is_dir { EntryKind::Directory } else { EntryKind::File };
        Ok(entries.into_iter().map(|(name, bytes, is_dir)| Entry { name, bytes, kind: kind(is_dir) }).collect())
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read_at(path, 0, usize::MAX)
    }

    fn read_at(&self, path: &Path, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.step()?;
        if state.random.chance(state.config.failed_read) {
            return state.fault(io::ErrorKind::Other, "read failed");
        }
        let ino = state.world.find(path)?;
        let file = state.world.file(ino)?;
        let there = usize::try_from(file.length().saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut read = vec![0; there.min(bytes)];
        file.read(offset, &mut read);
        Ok(read)
    }

    fn write_durable(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.step()?;
        let ino = match state.world.find(path) {
            Ok(ino) => {
                state.world.file(ino)?.set_length(0);
                ino
            }
            Err(_) => state.world.create(path)?,
        };
        state.space_for(bytes.len() as u64)?;
        state.put(ino, 0, bytes)?;
        state.step()?;
        if state.random.chance(state.config.failed_write) {
            return state.fault(io::ErrorKind::Other, "write failed");
        }
        if state.random.chance(state.config.failed_sync) {
            let Config { keep, sector_bytes } = state.keep();
            let State { world, random, .. } = state;
            world.file(ino)?.fail_sync(random, keep, sector_bytes);
            return state.fault(io::ErrorKind::Other, "sync failed");
        }
        state.world.file(ino)?.sync(u64::MAX);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.step()?;
        if state.random.chance(state.config.failed_rename) {
            if state.random.chance(0.5) {
                state.world.rename(from, to)?;
            }
            return state.fault(io::ErrorKind::Other, "rename failed");
        }
        state.world.rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.step()?;
        if state.random.chance(state.config.failed_dir_sync) {
            let keep = state.config.keep_names;
            let State { world, random, .. } = state;
            world.fail_sync_dir(path, random, keep)?;
            return state.fault(io::ErrorKind::Other, "directory sync failed");
        }
        state.world.sync_dir(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.step()?;
        state.world.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.step()?;
        state.world.remove_dir(path)
    }

    fn exists(&self, path: &Path) -> bool {
        self.state().world.find(path).is_ok()
    }

    fn lock(&self, path: &Path) -> io::Result<FileLock> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.step()?;
        let ino = match state.world.find(path) {
            Ok(ino) => ino,
            Err(_) => state.world.create(path)?,
        };
        if state.locks.contains_key(&ino) {
            return Err(error(io::ErrorKind::WouldBlock, "locked"));
        }
        state.lock_count += 1;
        let id = state.lock_count;
        state.locks.insert(ino, id);
        Ok(FileLock { _owner: Box::new(SimLock { state: Arc::clone(&self.state), ino, id }) })
    }
}

struct SimLock {
    state: Arc<Mutex<State>>,
    ino: Ino,
    id: u64,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // After a loss of power another may own it.
        if state.locks.get(&self.ino) == Some(&self.id) {
            state.locks.remove(&self.ino);
        }
    }
}

#[cfg(test)]
mod tests;
