//! Making an epoch complete: a manifest gets its final name, one blocking call per step.
//!
//! ```text
//! write under a temporary name, fdatasync -> sync directory (new segment names) -> rename -> sync directory -> complete
//!        an error here: the epoch has failed                             an error from here on: the epoch is in doubt
//! ```
//!
//! Invariants
//! * I1. Before the rename every byte and every name that the manifest relies on is durable.
//! * I2. An epoch in doubt may be complete or not after a restart, so until a later one is complete nothing that it names
//!   is removed, and its output is neither committed nor aborted.

use super::catalog::unavailable;
use super::state_dir::StateDir;
use crate::epoch::Epoch;
use crate::error::Error;
use crate::format::{Manifest, SegmentId, manifest_file, manifest_temporary_file};
use std::io;

/// An epoch on its way to being complete; from [`StateDir::publish`], driven by [`StateDir::publish_step`].
#[derive(Debug)]
pub struct Publish {
    pub(super) epoch: Epoch,
    pub(super) segments: Vec<SegmentId>,
    bytes: Vec<u8>,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Write,
    SyncNames,
    Rename,
    SyncFinalName,
}

/// How publishing an epoch ended.
#[derive(Debug)]
pub enum Published {
    /// The epoch is complete: its manifest is durable under its final name.
    Complete(Epoch),
    /// The epoch has failed: nothing of it is left, its data goes with the next one.
    Failed(Epoch, Error),
    /// Nobody knows until a later epoch is complete or the job starts anew.
    InDoubt(Epoch, Error),
}

impl Publish {
    pub(super) fn new(manifest: &Manifest) -> Self {
        Self {
            epoch: manifest.epoch,
            segments: manifest.segments.iter().map(|segment| segment.id).collect(),
            bytes: manifest.encode(),
            step: Step::Write,
        }
    }

    /// The epoch being published.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Bytes of the manifest.
    pub fn manifest_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

impl StateDir {
    /// Takes the next step; `None` while there are more.
    ///
    /// Must be called until it returns an outcome before another epoch is published.
    pub fn publish_step(&mut self, publish: &mut Publish) -> Option<Published> {
        let epoch = publish.epoch;
        let temporary = self.path.join(manifest_temporary_file(epoch));
        let (what, result): (_, io::Result<()>) = match publish.step {
            Step::Write => (&temporary, self.files.write_durable(&temporary, &publish.bytes)),
            Step::SyncNames | Step::SyncFinalName => (&self.path, self.files.sync_dir(&self.path)),
            Step::Rename => (&temporary, self.files.rename(&temporary, &self.path.join(manifest_file(epoch)))),
        };
        if let Err(error) = result {
            let error = unavailable(what, &error).within(format_args!("manifest of epoch {epoch}"));
            return Some(match publish.step {
                Step::Write | Step::SyncNames => {
                    // A full disk needs the room; what cannot be removed now goes when the directory is next claimed.
                    let _ = self.files.remove(&temporary);
                    Published::Failed(epoch, error)
                }
                Step::Rename | Step::SyncFinalName => {
                    self.note_in_doubt(epoch, &publish.segments);
                    Published::InDoubt(epoch, error)
                }
            });
        }
        publish.step = match publish.step {
            Step::Write if self.names_are_durable(&publish.segments) => Step::Rename,
            Step::Write => Step::SyncNames,
            Step::SyncNames => {
                self.note_durable_names(&publish.segments);
                Step::Rename
            }
            Step::Rename => Step::SyncFinalName,
            Step::SyncFinalName => {
                self.note_complete(epoch, &publish.segments);
                return Some(Published::Complete(epoch));
            }
        };
        None
    }

    /// Publishes a manifest in one go: all steps of [`StateDir::publish_step`].
    ///
    /// # Panics
    /// As [`StateDir::publish`].
    pub fn publish_now(&mut self, manifest: &Manifest) -> Published {
        let mut publish = self.publish(manifest);
        loop {
            if let Some(published) = self.publish_step(&mut publish) {
                return published;
            }
        }
    }
}
