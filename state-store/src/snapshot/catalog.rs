//! What a state directory holds, read without owning or changing it: names, manifests, and whether their bytes are good.
//!
//! Invariants
//! * I1. Nothing here writes.
//! * I2. Bad bytes are [`Corrupt`](crate::ErrorKind::Corrupt) and name file, offset and epoch; a disk that does not answer is
//!   [`Unavailable`](crate::ErrorKind::Unavailable).
//! * I3. What has one of our names and is no regular file counts as a file whose bytes are bad: a link, a pipe, a directory.

use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    BadFormat, COMMITTED_FILE, CommittedMarker, ExtentEntry, FileName, FormatMarker, Manifest, RunMarker, SegmentId,
    manifest_file, segment_file,
};
use crate::io::{EntryKind, Files};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// The names in a state directory.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    pub(super) manifests: BTreeSet<Epoch>,
    pub(super) segments: BTreeMap<SegmentId, u64>,
    /// Those of them that are no regular files.
    irregular: BTreeSet<SegmentId>,
    /// Files without a final name.
    pub(super) temporaries: Vec<String>,
    /// The highest epoch that any name mentions.
    pub(super) epoch_max: Epoch,
    pub(super) has_format: bool,
    pub(super) has_run: bool,
    pub(super) has_committed: bool,
    /// Names that are none of ours.
    pub(super) foreign: Vec<String>,
}

impl Catalog {
    pub(super) fn scan(files: &dyn Files, path: &Path) -> Result<Self> {
        let mut catalog = Self::default();
        for entry in files.list(path).map_err(|error| unreadable(path, &error))? {
            match FileName::parse(&entry.name) {
                Some(FileName::Manifest(epoch)) => {
                    catalog.epoch_max = catalog.epoch_max.max(epoch);
                    catalog.manifests.insert(epoch);
                }
                Some(FileName::Segment(id)) => {
                    catalog.segments.insert(id, entry.bytes);
                    if entry.kind != EntryKind::File {
                        catalog.irregular.insert(id);
                    }
                }
                Some(FileName::ManifestTemporary(epoch)) => {
                    catalog.epoch_max = catalog.epoch_max.max(epoch);
                    catalog.temporaries.push(entry.name);
                }
                Some(FileName::Temporary) => catalog.temporaries.push(entry.name),
                Some(FileName::Format) => catalog.has_format = true,
                Some(FileName::Run) => catalog.has_run = true,
                Some(FileName::Committed) => catalog.has_committed = true,
                Some(FileName::Lock) => {}
                // Every new file system has one.
                None if entry.kind == EntryKind::Directory && entry.name == "lost+found" => {}
                None => catalog.foreign.push(entry.name),
            }
        }
        Ok(catalog)
    }

    /// Checks that the files a manifest names are there and long enough: cheap, before anything is read.
    pub(super) fn check_segments(&self, path: &Path, manifest: &Manifest) -> Result<()> {
        for segment in &manifest.segments {
            let file = path.join(segment_file(segment.id));
            match self.segments.get(&segment.id) {
                None => return Err(missing(&file, manifest.epoch)),
                Some(_) if self.irregular.contains(&segment.id) => {
                    return Err(Error::corrupt(format_args!(
                        "{}, offset 0, epoch {}: not a regular file",
                        file.display(),
                        manifest.epoch
                    )));
                }
                Some(&bytes) if bytes < segment.bytes => {
                    return Err(Error::corrupt(format_args!(
                        "{}, offset {bytes}, epoch {}: the file ends here, the manifest names {} bytes",
                        file.display(),
                        manifest.epoch,
                        segment.bytes
                    )));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// The error of what stands at `path`, which the disk does not give (I2, I3).
pub(super) fn unavailable(path: &Path, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::IsADirectory => {
            Error::corrupt(format_args!("{}, offset 0: {error}", path.display()))
        }
        _ => Error::unavailable(format_args!("{}: {error}", path.display())),
    }
}

/// The same where wrong rights are for the user to put right.
fn unreadable(path: &Path, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            Error::invalid(format_args!("{}: the state directory must be readable: {error}", path.display()))
        }
        _ => unavailable(path, error),
    }
}

/// What is wrong with a file of which the disk gives no byte, when that counts as bad bytes (I3).
fn bad_file(error: &io::Error) -> Option<BadFormat> {
    match error.kind() {
        io::ErrorKind::NotFound => Some(BadFormat { offset: 0, what: "the file is missing".to_owned() }),
        io::ErrorKind::InvalidData => Some(BadFormat { offset: 0, what: error.to_string() }),
        _ => None,
    }
}

fn missing(file: &Path, epoch: Epoch) -> Error {
    Error::corrupt(format_args!("{}, offset 0, epoch {epoch}: the file is missing", file.display()))
}

fn read_small<T>(
    files: &dyn Files,
    file: &Path,
    decode: impl FnOnce(&[u8]) -> std::result::Result<T, BadFormat>,
) -> Result<T> {
    let bytes = files.read(file).map_err(|error| unreadable(file, &error))?;
    decode(&bytes).map_err(|bad| Error::corrupt(format_args!("{}, {bad}", file.display())))
}

pub(super) fn read_format(files: &dyn Files, path: &Path) -> Result<FormatMarker> {
    read_small(files, &path.join(crate::format::FORMAT_FILE), FormatMarker::decode)
}

pub(super) fn read_run(files: &dyn Files, path: &Path) -> Result<RunMarker> {
    read_small(files, &path.join(crate::format::RUN_FILE), RunMarker::decode).map_err(|error| match error.kind() {
        ErrorKind::Corrupt => Error::corrupt(format_args!(
            "{error}; remove the file to go on without it: manifests and the names of segment files tell the run as well"
        )),
        _ => error,
    })
}

/// The epoch up to which all output is known to be committed; zero when nothing is known.
pub(super) fn read_committed(files: &dyn Files, path: &Path, catalog: &Catalog) -> Result<Epoch> {
    if !catalog.has_committed {
        return Ok(Epoch::ZERO);
    }
    match read_small(files, &path.join(COMMITTED_FILE), CommittedMarker::decode) {
        Ok(marker) => Ok(marker.epoch),
        Err(error) if error.kind() == ErrorKind::Corrupt => Err(Error::corrupt(format_args!(
            "{error}; remove the file to go on without it: output that the newest epoch lists is then looked for again"
        ))),
        Err(error) => Err(error),
    }
}

/// Reads an epoch's manifest.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) when its bytes are bad, [`Invalid`](crate::ErrorKind::Invalid) when there is no
/// such epoch, [`Unavailable`](crate::ErrorKind::Unavailable) when it cannot be read.
pub fn load_manifest(files: &dyn Files, path: &Path, epoch: Epoch) -> Result<Manifest> {
    try_manifest(files, path, epoch)?.map_err(|place| Error::corrupt(place.describe(epoch)))
}

/// Reads the manifest of an epoch of `job`; what is wrong with its bytes is apart from other errors.
pub(super) fn load_own_manifest(
    files: &dyn Files,
    path: &Path,
    epoch: Epoch,
    job: &str,
) -> Result<std::result::Result<Manifest, BadPlace>> {
    Ok(try_manifest(files, path, epoch)?.and_then(|manifest| match manifest.job == job {
        true => Ok(manifest),
        false => {
            let what = format!("this is a manifest of job {:?}, not of {job:?}", manifest.job);
            Err(BadPlace { file: path.join(manifest_file(epoch)), offset: 0, what })
        }
    }))
}

fn try_manifest(files: &dyn Files, path: &Path, epoch: Epoch) -> Result<std::result::Result<Manifest, BadPlace>> {
    let file = path.join(manifest_file(epoch));
    let bytes = match files.read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Error::invalid(format_args!("{}: there is no epoch {epoch}", path.display())));
        }
        Err(error) => {
            let BadFormat { offset, what } = bad_file(&error).ok_or_else(|| unavailable(&file, &error))?;
            return Ok(Err(BadPlace { file, offset, what }));
        }
    };
    let decoded = Manifest::decode(&bytes).and_then(|manifest| match manifest.epoch == epoch {
        true => Ok(manifest),
        false => Err(BadFormat::at(0, format_args!("this is the manifest of epoch {}", manifest.epoch))),
    });
    Ok(decoded.map_err(|BadFormat { offset, what }| BadPlace { file, offset, what }))
}

/// The error for an extent whose bytes are not what its manifest says; `bad` is what [`ExtentEntry::check`] returned.
pub fn corrupt_extent(directory: &Path, epoch: Epoch, entry: &ExtentEntry, bad: &BadFormat) -> Error {
    Error::corrupt(BadPlace::of_extent(directory, entry, bad).describe(epoch))
}

/// Reads one extent, header included, and checks it.
///
/// # Errors
/// As [`load_manifest`].
pub fn read_extent(files: &dyn Files, directory: &Path, epoch: Epoch, entry: &ExtentEntry) -> Result<Vec<u8>> {
    let file = directory.join(segment_file(entry.segment));
    let bytes = files.read_at(&file, entry.offset, entry.bytes()).map_err(|error| match bad_file(&error) {
        Some(BadFormat { offset, what }) => Error::corrupt(BadPlace { file, offset, what }.describe(epoch)),
        None => unavailable(&file, &error),
    })?;
    entry.check(&bytes).map_err(|bad| corrupt_extent(directory, epoch, entry, &bad))?;
    Ok(bytes)
}

/// A place where bytes on disk are not what was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadPlace {
    /// The file.
    pub file: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

impl BadPlace {
    fn of_extent(directory: &Path, entry: &ExtentEntry, bad: &BadFormat) -> Self {
        Self {
            file: directory.join(segment_file(entry.segment)),
            offset: entry.offset.saturating_add(bad.offset),
            what: bad.what.clone(),
        }
    }

    /// As a message.
    pub(super) fn describe(&self, epoch: Epoch) -> String {
        format!("{}, offset {}, epoch {epoch}: {}", self.file.display(), self.offset, self.what)
    }
}

/// Reads every extent that a manifest names, and returns the places where the bytes are bad.
///
/// # Errors
/// [`Unavailable`](crate::ErrorKind::Unavailable) when a file cannot be read.
pub fn verify_manifest(files: &dyn Files, directory: &Path, manifest: &Manifest) -> Result<Vec<BadPlace>> {
    let mut extents: Vec<&ExtentEntry> = manifest.extents().collect();
    extents.sort_unstable_by_key(|entry| (entry.segment, entry.offset));
    let mut bad_places = Vec::new();
    for entry in extents {
        let file = directory.join(segment_file(entry.segment));
        let bad = match files.read_at(&file, entry.offset, entry.bytes()) {
            Ok(bytes) => entry.check(&bytes).err(),
            Err(error) => Some(bad_file(&error).ok_or_else(|| unavailable(&file, &error))?),
        };
        bad_places.extend(bad.map(|bad| BadPlace::of_extent(directory, entry, &bad)));
    }
    Ok(bad_places)
}

/// The first thing wrong with an epoch of `job`, as an error; `Ok` when every byte of it is good.
pub(super) fn check_epoch(files: &dyn Files, path: &Path, epoch: Epoch, job: &str) -> Result<Manifest> {
    let manifest =
        load_own_manifest(files, path, epoch, job)?.map_err(|place| Error::corrupt(place.describe(epoch)))?;
    match verify_manifest(files, path, &manifest)?.first() {
        None => Ok(manifest),
        Some(place) => Err(Error::corrupt(place.describe(epoch))),
    }
}
