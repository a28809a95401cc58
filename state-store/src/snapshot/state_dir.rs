//! The state directory of one job, as its owner sees it: made, opened, claimed, added to, and kept small.
//!
//! ```text
//! open (or make) -> read, restore -> claim -> publish, collect, publish, collect, ...
//! ```
//!
//! Invariants
//! * I1. One process owns a directory, from [`StateDir::open`] to the end of the value: it holds the lock.
//! * I2. Nothing in the directory is changed before [`StateDir::claim`], so a refused restore leaves every byte as it was.
//!   Making a directory, and leftovers of an unfinished making, are the exception.
//! * I3. A directory is complete once `FORMAT` has its name: it is made last, after manifest 0 is durable.
//! * I4. Manifests go first, then their directory is synced, and only then do the files go that no manifest names.
//! * I5. An epoch in doubt counts as one that is there (nothing it names is removed) and as one that is not (it does
//!   not make an older one superfluous).
//! * I6. Epochs and runs exceed every one that is found on disk.

use super::catalog::{
    Catalog, check_epoch, load_manifest, load_own_manifest, read_committed, read_format, read_run, unavailable,
};
use super::publish::Publish;
use super::segment::FreedSegment;
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    COMMITTED_FILE, COMMITTED_TEMPORARY_FILE, CommittedMarker, FORMAT_FILE, FORMAT_VERSION, FormatMarker, LOCK_FILE,
    Manifest, RUN_FILE, RUN_TEMPORARY_FILE, RunMarker, SegmentId, check_name, format_temporary_file, manifest_file,
    manifest_temporary_file, segment_file,
};
use crate::io::{FileLock, Files};
use crate::key_group::KeyGroupCount;
use crate::state_id::StateId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a state directory is opened for.
#[derive(Clone, Debug)]
pub struct StateDirOptions {
    /// Name of the job; the one that made the directory.
    pub job: String,
    /// The id of a state that begins now: drawn at random.
    pub new_state: StateId,
    /// How many key groups a directory made now has.
    pub key_groups: KeyGroupCount,
    /// How many shards the empty state of a directory made now has.
    pub shards: u32,
    /// How many complete epochs are kept; at least one.
    pub retain_count: usize,
    /// Which epoch is to be restored.
    pub restore: RestorePoint,
}

/// Which epoch a job starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestorePoint {
    /// The newest complete one. Any bad manifest is an error.
    Newest,
    /// This one, asked for explicitly: output committed since then will be written again. Other manifests may be bad.
    Epoch(Epoch),
}

/// A state directory, owned.
pub struct StateDir {
    pub(super) files: Box<dyn Files>,
    pub(super) path: PathBuf,
    job: String,
    state: StateId,
    retain_count: usize,
    restore: Epoch,
    committed: Epoch,
    run: u32,
    claimed: bool,
    epoch_max: Epoch,
    /// Complete epochs, and what each names.
    complete: BTreeMap<Epoch, Vec<SegmentId>>,
    in_doubt: BTreeMap<Epoch, Vec<SegmentId>>,
    /// Manifests that cannot be read; nobody knows what they name.
    unreadable: BTreeSet<Epoch>,
    /// Names known to be durable.
    durable_names: BTreeSet<SegmentId>,
    /// Files of earlier runs, removed once no manifest names them.
    foreign: BTreeSet<SegmentId>,
    /// Files that their shard has finished with.
    freed: Vec<FreedSegment>,
    temporaries: Vec<String>,
    /// Whether epochs may go: this run has one of its own, or will never have one.
    may_collect: bool,
    /// A manifest was removed and its directory not synced since.
    removal_unsynced: bool,
    pins: Arc<Mutex<BTreeMap<Epoch, u32>>>,
    _lock: FileLock,
}

impl fmt::Debug for StateDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateDir({}, run {}, epochs {:?})", self.path.display(), self.run, self.complete.keys())
    }
}

/// Keeps an epoch, its manifest and every file it names, until it is dropped.
#[derive(Debug)]
pub struct Pin {
    epoch: Epoch,
    pins: Arc<Mutex<BTreeMap<Epoch, u32>>>,
}

impl Pin {
    /// The epoch that is kept.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = locked(&self.pins);
        if let Some(count) = pins.get_mut(&self.epoch) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.epoch);
            }
        }
    }
}

fn locked(pins: &Mutex<BTreeMap<Epoch, u32>>) -> MutexGuard<'_, BTreeMap<Epoch, u32>> {
    pins.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What [`StateDir::collect`] has done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Epochs whose manifests were removed.
    pub epochs_removed: Vec<Epoch>,
    /// How many segment files were removed.
    pub segments_removed: usize,
    /// Files that their shard may write over: to be handed to its
    /// [`SegmentWriter::recycle`](super::SegmentWriter::recycle), or else to [`StateDir::remove_segments`].
    pub recyclable: Vec<FreedSegment>,
}

impl StateDir {
    /// Opens the directory at `path`; makes it, with the empty state as epoch 0, when there is none.
    ///
    /// # Errors
    /// [`Locked`](ErrorKind::Locked) while another process owns it; [`Invalid`](ErrorKind::Invalid) when it belongs to another job
    /// or holds other files; [`Corrupt`](ErrorKind::Corrupt) when a manifest or marker is bad, naming file, offset, epoch
    /// and the epochs that are good; [`Unavailable`](ErrorKind::Unavailable) when the disk fails.
    pub fn open(files: Box<dyn Files>, path: &Path, options: &StateDirOptions) -> Result<Self> {
        check_name(&options.job)?;
        if options.retain_count == 0 {
            return Err(Error::invalid("at least one epoch must be kept"));
        }
        files.create_dir_all(path).map_err(|error| unusable(path, &error))?;
        check_own(path, &Catalog::scan(&*files, path)?)?;
        let lock_path = path.join(LOCK_FILE);
        let lock = files.lock(&lock_path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                let what = format_args!("{}: another process owns this state directory; stop it first", path.display());
                Error::new(ErrorKind::Locked, what)
            }
            _ => unusable(&lock_path, &error),
        })?;
        if !Catalog::scan(&*files, path)?.has_format {
            make(&*files, path, options)?;
        }
        // A process that died between a rename and its sync has left a name that only the kernel knows. What is restored
        // and committed from here on must still be there after a loss of power.
        files.sync_dir(path).map_err(|error| unavailable(path, &error))?;

        let marker = read_format(&*files, path)?;
        if marker.job != options.job {
            return Err(Error::invalid(format_args!(
                "{}: this is the state of job {:?}, not of {:?}",
                path.display(),
                marker.job,
                options.job
            )));
        }
        let catalog = Catalog::scan(&*files, path)?;
        let run_before = if catalog.has_run { read_run(&*files, path)?.run } else { 0 };
        let mut dir = Self {
            path: path.to_owned(),
            job: options.job.clone(),
            state: marker.state,
            retain_count: options.retain_count,
            restore: Epoch::ZERO,
            committed: read_committed(&*files, path, &catalog)?,
            run: run_before,
            claimed: false,
            epoch_max: catalog.epoch_max,
            complete: BTreeMap::new(),
            in_doubt: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            durable_names: catalog.segments.keys().copied().collect(),
            foreign: catalog.segments.keys().copied().collect(),
            freed: Vec::new(),
            temporaries: catalog.temporaries.clone(),
            may_collect: false,
            removal_unsynced: false,
            pins: Arc::default(),
            files,
            _lock: lock,
        };
        dir.read_manifests(&catalog, options.restore)?;
        Ok(dir)
    }

    fn read_manifests(&mut self, catalog: &Catalog, restore: RestorePoint) -> Result<()> {
        let wanted = match restore {
            RestorePoint::Newest => catalog.manifests.last().copied(),
            RestorePoint::Epoch(epoch) => Some(epoch),
        };
        let Some(wanted) = wanted else {
            return Err(Error::corrupt(format_args!("{}: every manifest is missing", self.path.display())));
        };
        let mut run_max = catalog.segments.keys().map(|id| id.run).max().unwrap_or(0).max(self.run);
        for &epoch in catalog.manifests.iter().rev() {
            let own = load_own_manifest(&*self.files, &self.path, epoch, &self.job)?;
            let loaded = own.map_err(|place| Error::corrupt(place.describe(epoch))).and_then(|manifest| {
                if epoch == wanted {
                    catalog.check_segments(&self.path, &manifest)?;
                }
                Ok(manifest)
            });
            match loaded {
                Ok(manifest) => {
                    run_max = run_max.max(manifest.run);
                    self.complete.insert(epoch, manifest.segments.iter().map(|segment| segment.id).collect());
                }
                Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
                Err(error) if epoch == wanted => return Err(self.refusal(&error, &catalog.manifests)),
                Err(error) if restore == RestorePoint::Newest => {
                    let way_out = "it is not the newest: remove the file to go on without it";
                    let error = Error::corrupt(format_args!("{error}; {way_out}"));
                    return Err(self.refusal(&error, &catalog.manifests));
                }
                Err(_) => {
                    self.unreadable.insert(epoch);
                }
            }
        }
        if !self.complete.contains_key(&wanted) {
            let what =
                format!("{}: there is no epoch {wanted}; {}", self.path.display(), self.good(&catalog.manifests));
            return Err(Error::invalid(what));
        }
        self.restore = wanted;
        let too_many =
            || Error::new(ErrorKind::Exhausted, "the number of runs of this directory has reached its limit");
        self.run = run_max.checked_add(1).ok_or_else(too_many)?;
        Ok(())
    }

    /// What to say when a restore is refused because of `error`: which epochs could be used instead.
    fn refusal(&self, error: &Error, epochs: &BTreeSet<Epoch>) -> Error {
        Error::corrupt(format_args!("{error}; {}; nothing was modified", self.good(epochs)))
    }

    fn good(&self, epochs: &BTreeSet<Epoch>) -> String {
        let good: Vec<String> = epochs
            .iter()
            .filter(|&&epoch| check_epoch(&*self.files, &self.path, epoch, &self.job).is_ok())
            .map(Epoch::to_string)
            .collect();
        if good.is_empty() {
            "no epoch verifies".to_owned()
        } else {
            format!("epochs that verify: {}", good.join(", "))
        }
    }

    /// The error of a restore that has found bad bytes in an extent: names the epochs that could be used instead.
    /// Reads every one of them whole.
    #[must_use]
    pub fn refuse(&self, error: &Error) -> Error {
        self.refusal(error, &self.complete.keys().copied().collect())
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What tells this state from others of the same job.
    pub fn state(&self) -> StateId {
        self.state
    }

    /// All output prepared in this epoch and before is known to be committed. It may be gone by now: it is its reader's.
    pub fn committed(&self) -> Epoch {
        self.committed
    }

    /// Makes it known that all output prepared in `epoch` and before is committed, durably.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable); may be called again.
    pub fn note_committed(&mut self, epoch: Epoch) -> Result<()> {
        let temporary = self.path.join(COMMITTED_TEMPORARY_FILE);
        let bytes = CommittedMarker { epoch }.encode();
        place(&*self.files, &self.path, &temporary, &self.path.join(COMMITTED_FILE), &bytes)?;
        self.committed = epoch;
        Ok(())
    }

    /// The epoch to restore: the newest, or the one asked for.
    pub fn restore_epoch(&self) -> Epoch {
        self.restore
    }

    /// The complete epochs, oldest first.
    pub fn epochs(&self) -> impl Iterator<Item = Epoch> + '_ {
        self.complete.keys().copied()
    }

    /// The newest complete epoch.
    pub fn newest(&self) -> Epoch {
        *self.complete.keys().next_back().expect("a directory begins with epoch 0 and keeps at least one")
    }

    /// The lowest epoch that may still be started: above every one that a name on disk mentions.
    pub fn next_epoch(&self) -> Epoch {
        self.epoch_max.next()
    }

    /// The fencing token of this run, greater than that of every earlier one. Others see it once it was claimed.
    pub fn run(&self) -> u32 {
        self.run
    }

    /// Reads a complete epoch's manifest.
    ///
    /// # Errors
    /// As [`load_manifest`].
    pub fn load(&self, epoch: Epoch) -> Result<Manifest> {
        load_manifest(&*self.files, &self.path, epoch)
    }

    /// Reads every byte of an epoch and returns its manifest.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) names the first bad file and offset, the epoch, and the epochs that verify.
    pub fn verify(&self, epoch: Epoch) -> Result<Manifest> {
        check_epoch(&*self.files, &self.path, epoch, &self.job)
            .map_err(|error| if error.kind() == ErrorKind::Corrupt { self.refuse(&error) } else { error })
    }

    /// Makes this process's run known and removes what a crash has left: files without a final name, and segment files
    /// that no manifest names. To be called when the restore has read what it needs and before a shard writes.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable); may be called again.
    pub fn claim(&mut self) -> Result<()> {
        let temporary = self.path.join(RUN_TEMPORARY_FILE);
        let bytes = RunMarker { run: self.run }.encode();
        place(&*self.files, &self.path, &temporary, &self.path.join(RUN_FILE), &bytes)?;
        self.claimed = true;
        for name in std::mem::take(&mut self.temporaries) {
            if name != RUN_TEMPORARY_FILE {
                self.remove(&name)?;
            }
        }
        self.collect_foreign().map(drop)
    }

    /// Says that this run publishes no epoch: there was nothing left to do. An earlier run may have died between its last
    /// epoch and removing what that one made superfluous; [`StateDir::collect`] makes up for it.
    pub fn nothing_follows(&mut self) {
        self.may_collect = true;
    }

    /// Keeps a complete epoch until the pin is dropped; `None` when there is no such epoch.
    pub fn pin(&self, epoch: Epoch) -> Option<Pin> {
        self.complete.contains_key(&epoch).then(|| {
            *locked(&self.pins).entry(epoch).or_insert(0) += 1;
            Pin { epoch, pins: Arc::clone(&self.pins) }
        })
    }

    /// Begins to make an epoch complete.
    ///
    /// # Panics
    /// When the directory was not claimed, when the epoch does not exceed every one before it, or when the manifest is not
    /// consistent or not this job's.
    pub fn publish(&mut self, manifest: &Manifest) -> Publish {
        assert!(self.claimed, "a directory is claimed before it is written to");
        assert_eq!((manifest.job.as_str(), manifest.run), (self.job.as_str(), self.run), "a manifest of another run");
        let before = self.complete.keys().chain(self.in_doubt.keys()).max();
        assert!(before.is_none_or(|before| manifest.epoch > *before), "epoch {} is not new", manifest.epoch);
        self.epoch_max = self.epoch_max.max(manifest.epoch);
        Publish::new(manifest)
    }

    pub(super) fn names_are_durable(&self, segments: &[SegmentId]) -> bool {
        segments.iter().all(|id| self.durable_names.contains(id))
    }

    pub(super) fn note_durable_names(&mut self, segments: &[SegmentId]) {
        self.durable_names.extend(segments);
    }

    pub(super) fn note_in_doubt(&mut self, epoch: Epoch, segments: &[SegmentId]) {
        self.in_doubt.insert(epoch, segments.to_vec());
    }

    pub(super) fn note_complete(&mut self, epoch: Epoch, segments: &[SegmentId]) {
        // The sync that completed this epoch covers the names of those in doubt: those that are there are complete.
        for (earlier, segments) in std::mem::take(&mut self.in_doubt) {
            if self.files.exists(&self.path.join(manifest_file(earlier))) {
                self.complete.insert(earlier, segments);
            } else {
                self.temporaries.push(manifest_temporary_file(earlier));
            }
        }
        self.complete.insert(epoch, segments.to_vec());
        self.may_collect = true;
        self.removal_unsynced = false;
    }

    /// Says whether the epoch's manifest may or may not be there.
    pub fn is_in_doubt(&self, epoch: Epoch) -> bool {
        self.in_doubt.contains_key(&epoch)
    }

    /// Takes over a file that its shard has finished with: it goes once no manifest names it.
    pub fn free(&mut self, freed: FreedSegment) {
        self.freed.push(freed);
    }

    /// Removes the epochs beyond those to be kept, then the files that nothing names any more. To be called after each
    /// completed epoch and after [`StateDir::nothing_follows`]; what an error leaves undone is done by a later call.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable).
    pub fn collect(&mut self) -> Result<Collected> {
        let mut collected = Collected::default();
        if !self.may_collect {
            // Until this run has an epoch of its own, what it was restored from is all there is.
            return Ok(collected);
        }
        for epoch in self.superfluous() {
            self.remove(&manifest_file(epoch))?;
            self.removal_unsynced = true;
            self.complete.remove(&epoch);
            self.unreadable.remove(&epoch);
            collected.epochs_removed.push(epoch);
        }
        if self.removal_unsynced {
            // I4: a loss of power must not bring back a manifest whose files are gone.
            self.files.sync_dir(&self.path).map_err(|error| unavailable(&self.path, &error))?;
            self.removal_unsynced = false;
        }
        for name in std::mem::take(&mut self.temporaries) {
            self.remove(&name)?;
        }
        collected.segments_removed += self.collect_foreign()?;
        let named = self.named();
        let (held, free): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.freed).into_iter().partition(|freed| named.contains(&freed.id));
        self.freed = held;
        let (recyclable, dead): (Vec<_>, Vec<_>) = free.into_iter().partition(|freed| freed.recyclable);
        collected.recyclable = recyclable;
        collected.segments_removed += dead.len();
        self.remove_segments(dead)?;
        Ok(collected)
    }

    /// Complete epochs beyond the newest few that no pin holds, and manifests that cannot be read.
    fn superfluous(&self) -> Vec<Epoch> {
        let pins = locked(&self.pins);
        let kept: BTreeSet<Epoch> = self.complete.keys().rev().take(self.retain_count).copied().collect();
        self.complete
            .keys()
            .chain(&self.unreadable)
            .filter(|epoch| !kept.contains(epoch) && !pins.contains_key(epoch))
            .copied()
            .collect()
    }

    fn named(&self) -> BTreeSet<SegmentId> {
        self.complete.values().chain(self.in_doubt.values()).flatten().copied().collect()
    }

    fn collect_foreign(&mut self) -> Result<usize> {
        if !self.unreadable.is_empty() || self.removal_unsynced {
            return Ok(0);
        }
        let named = self.named();
        let dead: Vec<SegmentId> = self.foreign.difference(&named).copied().collect();
        for id in &dead {
            self.remove(&segment_file(*id))?;
            self.foreign.remove(id);
            self.durable_names.remove(id);
        }
        Ok(dead.len())
    }

    /// Removes files that [`StateDir::collect`] has returned and no shard wants.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable); what is left is tried again by the next [`StateDir::collect`].
    pub fn remove_segments(&mut self, freed: Vec<FreedSegment>) -> Result<()> {
        let mut failed = None;
        for freed in freed {
            match self.remove(&segment_file(freed.id)) {
                Ok(()) => {
                    self.durable_names.remove(&freed.id);
                }
                Err(error) => {
                    self.freed.push(FreedSegment { recyclable: false, ..freed });
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        match self.files.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unavailable(&path, &error)),
            _ => Ok(()),
        }
    }
}

/// The error of a directory that cannot be taken: a wrong path or wrong rights are for the user to put right.
fn unusable(path: &Path, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Error::invalid(format_args!("{}: the state directory must be writable: {error}", path.display()))
        }
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            Error::invalid(format_args!("{}: a state directory is expected here: {error}", path.display()))
        }
        _ => unavailable(path, error),
    }
}

/// Makes the names on the way to `path` durable: whoever created them may have died before they were.
fn sync_parents(files: &dyn Files, path: &Path) -> Result<()> {
    for parent in path.ancestors().skip(1) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        match files.sync_dir(parent) {
            // A directory that may not be read was not made for this one.
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(unavailable(parent, &error)),
            _ => {}
        }
    }
    Ok(())
}

/// Writes a file under a temporary name, gives it its final one and makes that durable.
fn place(files: &dyn Files, directory: &Path, temporary: &Path, last: &Path, bytes: &[u8]) -> Result<()> {
    files.write_durable(temporary, bytes).map_err(|error| unavailable(temporary, &error))?;
    files.rename(temporary, last).map_err(|error| unavailable(last, &error))?;
    files.sync_dir(directory).map_err(|error| unavailable(directory, &error))
}

/// Refuses a directory that holds something else, before there is anything of ours in it.
fn check_own(path: &Path, catalog: &Catalog) -> Result<()> {
    match catalog.foreign.first() {
        Some(name) if !catalog.has_format => Err(Error::invalid(format_args!(
            "{}: no state directory, and not empty: it holds {name:?}",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Makes a directory with the empty state (I3), or finishes what a crash has interrupted.
fn make(files: &dyn Files, path: &Path, options: &StateDirOptions) -> Result<()> {
    let catalog = Catalog::scan(files, path)?;
    check_own(path, &catalog)?;
    let begun =
        catalog.has_run || catalog.has_committed || !catalog.segments.is_empty() || catalog.epoch_max > Epoch::ZERO;
    if begun {
        return Err(Error::corrupt(format_args!(
            "{}: the file {FORMAT_FILE} is missing, but there is state of epoch {}; nothing was modified",
            path.display(),
            catalog.epoch_max
        )));
    }
    sync_parents(files, path)?;
    let manifest = Manifest::empty(&options.job, options.key_groups, options.shards).encode();
    let (temporary, last) = (path.join(manifest_temporary_file(Epoch::ZERO)), path.join(manifest_file(Epoch::ZERO)));
    place(files, path, &temporary, &last, &manifest)?;
    let marker = FormatMarker { version: FORMAT_VERSION, job: options.job.clone(), state: options.new_state }.encode();
    place(files, path, &path.join(format_temporary_file()), &path.join(FORMAT_FILE), &marker)
}
