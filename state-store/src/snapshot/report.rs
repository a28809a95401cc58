//! What `snapshot list`, `show` and `verify` report: read without the lock, also while a job runs.
//!
//! An epoch that its job removes while it is being read is left out, not reported as bad.

use super::catalog::{
    BadPlace, Catalog, load_manifest, load_own_manifest, read_committed, read_format, read_run, verify_manifest,
};
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{Blob, ExtentKind, FormatMarker, Manifest, SegmentId, manifest_file};
use crate::io::Files;
use crate::state_id::StateId;
use crate::value::Schema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The epochs of a state directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListReport {
    /// The directory.
    pub path: PathBuf,
    /// Name of the job.
    pub job: String,
    /// What tells this state from others of the same job.
    pub state: StateId,
    /// Version of the format.
    pub format: u16,
    /// All output prepared in this epoch and before is known to be committed.
    pub committed: Epoch,
    /// Oldest first.
    pub epochs: Vec<EpochReport>,
    /// How many segment files there are.
    pub segment_count: usize,
    /// What they take on disk, with the room allocated in advance.
    pub segment_bytes: u64,
    /// Epochs whose manifest is bad.
    pub bad: Vec<BadEpoch>,
}

/// An epoch whose manifest is bad.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadEpoch {
    /// The epoch.
    pub epoch: Epoch,
    /// File, offset, and what is wrong there.
    pub what: String,
}

/// One epoch in a few numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EpochReport {
    /// The epoch.
    pub epoch: Epoch,
    /// The run that completed it.
    pub run: u32,
    /// Whether its input had ended.
    pub ended: bool,
    /// How many shards wrote it.
    pub shards: usize,
    /// How many extents it consists of.
    pub extents: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes in extents that no earlier listed epoch names: what this epoch has added.
    pub bytes_added: u64,
    /// Bytes in channel logs.
    pub channel_bytes: u64,
    /// Bytes of prepared output not yet confirmed.
    pub prepared_outputs: usize,
}

/// One epoch in full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShowReport {
    /// Name of the job.
    pub job: String,
    /// In numbers.
    pub summary: EpochReport,
    /// Number of key groups.
    pub key_groups: u32,
    /// The tables.
    pub tables: Vec<TableReport>,
    /// Records that were on their way between shards.
    pub channel_logs: Vec<ChannelLogReport>,
    /// Positions and progress of stages.
    pub blobs: Vec<BlobReport>,
    /// Output that was prepared and, when the epoch was taken, not yet confirmed.
    pub outputs: Vec<OutputReport>,
    /// Segment files that the epoch needs.
    pub segments: Vec<SegmentReport>,
    /// Every extent of every shard.
    pub extents: Vec<ExtentReport>,
}

/// Records of one channel that the epoch's cut has overtaken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChannelLogReport {
    /// The edge they were on.
    pub edge: String,
    /// The shard that sent them.
    pub from: u32,
    /// The shard they are for.
    pub to: u32,
    /// How many extents hold them.
    pub extents: usize,
}

/// What one stage of one shard has saved of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlobReport {
    /// The stage.
    pub stage: String,
    /// The shard.
    pub shard: u32,
    /// Its length.
    pub bytes: usize,
}

/// Output of one shard that an epoch has prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OutputReport {
    /// The sink.
    pub sink: String,
    /// The epoch it was prepared for.
    pub epoch: Epoch,
    /// The shard.
    pub shard: u32,
    /// Length of its description.
    pub bytes: usize,
    /// Whether it is known to be committed by now.
    pub is_committed: bool,
}

/// A segment file that an epoch needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentReport {
    /// Its identity.
    pub segment: SegmentId,
    /// How many of its first bytes the epoch may need.
    pub bytes: u64,
}

/// One table of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableReport {
    /// Its number within the epoch.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// What its keys mean.
    pub key: Schema,
    /// What its values mean.
    pub value: Schema,
    /// How many extents it has.
    pub extents: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// One extent of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExtentReport {
    /// The shard it is listed under.
    pub shard: usize,
    /// Number of its table.
    pub table: u32,
    /// What it holds.
    pub kind: ExtentKind,
    /// Its file.
    pub segment: SegmentId,
    /// Where in it.
    pub offset: u64,
    /// Its length.
    pub bytes: usize,
    /// The epoch its first record was written in.
    pub born: Epoch,
    /// Who wrote it.
    pub origin: OriginReport,
    /// The key groups it is authoritative for.
    pub groups: KeyGroupsReport,
}

/// Who wrote an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OriginReport {
    /// The shard.
    pub shard: u32,
    /// Its run.
    pub run: u32,
}

/// A range of key groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KeyGroupsReport {
    /// The first.
    pub start: u16,
    /// The one after the last.
    pub end: u16,
}

/// What `verify` has found in one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// The epoch.
    pub epoch: Epoch,
    /// Extents read.
    pub extents: usize,
    /// Bytes read.
    pub bytes: u64,
    /// Places with bad bytes; none when the epoch verifies.
    pub bad: Vec<BadPlace>,
}

fn summary(manifest: &Manifest, bytes_added: u64) -> EpochReport {
    EpochReport {
        epoch: manifest.epoch,
        run: manifest.run,
        ended: manifest.ended,
        shards: manifest.shards.len(),
        extents: manifest.extents().count(),
        bytes: manifest.extents().map(|extent| extent.bytes() as u64).sum(),
        bytes_added,
        channel_bytes: manifest.channel_logs.iter().flat_map(|log| &log.extents).map(|e| e.bytes() as u64).sum(),
        prepared_outputs: manifest.outputs.len(),
    }
}

/// What all epochs share, checked; also up to which of them output is committed.
fn open(files: &dyn Files, path: &Path) -> Result<(Catalog, FormatMarker, Epoch)> {
    let catalog = Catalog::scan(files, path)?;
    if !catalog.has_format {
        return Err(Error::invalid(format_args!("{}: no state directory", path.display())));
    }
    let marker = read_format(files, path)?;
    if catalog.has_run {
        read_run(files, path)?;
    }
    let committed = read_committed(files, path, &catalog)?;
    Ok((catalog, marker, committed))
}

/// Loads an epoch of this job; `None` when it has gone.
fn load_if_there(
    files: &dyn Files,
    path: &Path,
    epoch: Epoch,
    job: &str,
) -> Result<Option<std::result::Result<Manifest, BadPlace>>> {
    match load_own_manifest(files, path, epoch, job) {
        Err(error) if error.kind() == ErrorKind::Invalid => Ok(None),
        loaded => loaded.map(Some),
    }
}

/// Lists the epochs.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid) when `path` is no state directory, [`Corrupt`](ErrorKind::Corrupt) when its marker is bad.
pub fn list_snapshots(files: &dyn Files, path: &Path) -> Result<ListReport> {
    let (catalog, marker, committed) = open(files, path)?;
    let mut report = ListReport {
        path: path.to_owned(),
        job: marker.job,
        state: marker.state,
        format: marker.version,
        committed,
        epochs: Vec::new(),
        segment_count: catalog.segments.len(),
        segment_bytes: catalog.segments.values().sum(),
        bad: Vec::new(),
    };
    let mut seen = BTreeMap::new();
    for &epoch in &catalog.manifests {
        match load_if_there(files, path, epoch, &report.job) {
            Ok(None) => {}
            Ok(Some(Ok(manifest))) => {
                let added = manifest
                    .extents()
                    .filter(|extent| seen.insert((extent.segment, extent.offset), extent.crc32) != Some(extent.crc32))
                    .map(|extent| extent.bytes() as u64)
                    .sum();
                report.epochs.push(summary(&manifest, added));
            }
            Ok(Some(Err(place))) => report.bad.push(BadEpoch { epoch, what: place.describe(epoch) }),
            Err(error) => report.bad.push(BadEpoch { epoch, what: error.to_string() }),
        }
    }
    Ok(report)
}

fn newest(files: &dyn Files, path: &Path) -> Result<Epoch> {
    let newest = Catalog::scan(files, path)?.manifests.last().copied();
    newest.ok_or_else(|| Error::invalid(format_args!("{}: there is no epoch", path.display())))
}

/// Shows one epoch; the newest when none is given.
///
/// # Errors
/// As [`load_manifest`].
pub fn show_snapshot(files: &dyn Files, path: &Path, epoch: Option<Epoch>) -> Result<ShowReport> {
    let epoch = epoch.map_or_else(|| newest(files, path), Ok)?;
    let manifest = load_manifest(files, path, epoch)?;
    let committed = read_committed(files, path, &Catalog::scan(files, path)?)?;
    let of_table = |id: u32| manifest.shards.iter().flatten().filter(move |extent| extent.header.table == id);
    let tables = manifest.tables.iter().map(|table| TableReport {
        id: table.id,
        name: table.name.clone(),
        key: table.key.clone(),
        value: table.value.clone(),
        extents: of_table(table.id).count(),
        bytes: of_table(table.id).map(|extent| extent.bytes() as u64).sum(),
    });
    let added =
        manifest.extents().filter(|extent| extent.header.born == epoch).map(|extent| extent.bytes() as u64).sum();
    let extents = manifest.shards.iter().enumerate().flat_map(|(shard, extents)| {
        extents.iter().map(move |extent| ExtentReport {
            shard,
            table: extent.header.table,
            kind: extent.header.kind,
            segment: extent.segment,
            offset: extent.offset,
            bytes: extent.bytes(),
            born: extent.header.born,
            origin: OriginReport { shard: extent.header.shard, run: extent.header.run },
            groups: KeyGroupsReport { start: extent.header.groups.start, end: extent.header.groups.end },
        })
    });
    let logs = manifest.channel_logs.iter().map(|log| ChannelLogReport {
        edge: log.edge.clone(),
        from: log.from,
        to: log.to,
        extents: log.extents.len(),
    });
    let blob = |blob: &Blob| BlobReport { stage: blob.name.clone(), shard: blob.shard, bytes: blob.bytes.len() };
    let outputs = manifest.outputs.iter().map(|output| OutputReport {
        sink: output.sink.clone(),
        epoch: output.epoch,
        shard: output.shard,
        bytes: output.bytes.len(),
        is_committed: output.epoch <= committed,
    });
    let segments = manifest.segments.iter();
    Ok(ShowReport {
        job: manifest.job.clone(),
        summary: summary(&manifest, added),
        key_groups: manifest.key_groups.get(),
        tables: tables.collect(),
        channel_logs: logs.collect(),
        blobs: manifest.blobs.iter().map(blob).collect(),
        outputs: outputs.collect(),
        segments: segments.map(|segment| SegmentReport { segment: segment.id, bytes: segment.bytes }).collect(),
        extents: extents.collect(),
    })
}

/// Reads every byte of one epoch, or of all, and says which are bad.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) when the disk fails, [`Invalid`](ErrorKind::Invalid) when `path` is no state directory
/// or there is no such epoch, [`Corrupt`](ErrorKind::Corrupt) when a marker is bad.
pub fn verify_snapshots(files: &dyn Files, path: &Path, epoch: Option<Epoch>) -> Result<Vec<VerifyReport>> {
    let (catalog, marker, _) = open(files, path)?;
    let epochs = epoch.map_or_else(|| catalog.manifests.into_iter().collect(), |epoch| vec![epoch]);
    let mut reports = Vec::new();
    for current in epochs {
        let manifest = match load_if_there(files, path, current, &marker.job)? {
            None if epoch.is_none() => continue,
            None => return Err(Error::invalid(format_args!("{}: there is no epoch {current}", path.display()))),
            Some(Ok(manifest)) => manifest,
            Some(Err(place)) => {
                reports.push(VerifyReport { epoch: current, extents: 0, bytes: 0, bad: vec![place] });
                continue;
            }
        };
        let bad = verify_manifest(files, path, &manifest)?;
        if !bad.is_empty() && !files.exists(&path.join(manifest_file(current))) {
            // Its job has retired it meanwhile, and its files with it.
            continue;
        }
        reports.push(VerifyReport {
            epoch: current,
            extents: manifest.extents().count(),
            bytes: manifest.extents().map(|extent| extent.bytes() as u64).sum(),
            bad,
        });
    }
    Ok(reports)
}
