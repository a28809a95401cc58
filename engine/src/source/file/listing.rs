//! Which files a source reads: found by a glob at start, or given.

use crate::{Error, Result};
use std::fmt;
use std::path::{Path, PathBuf};

/// See the module.
pub(super) enum Listing {
    Glob(String),
    Files(Vec<(PathBuf, u64)>),
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Glob(pattern) => f.write_str(pattern),
            Self::Files(files) => write!(f, "{} files", files.len()),
        }
    }
}

impl Listing {
    /// All files with their lengths, sorted by name, each once.
    pub(super) fn files(&self) -> Result<Vec<(PathBuf, u64)>> {
        let files = self.files_or_none()?;
        if files.is_empty() {
            return Err(Error::invalid(format_args!("no file matches {self}")));
        }
        Ok(files)
    }

    /// The same, where finding nothing is no error.
    pub(super) fn files_or_none(&self) -> Result<Vec<(PathBuf, u64)>> {
        let mut files = match self {
            Self::Files(files) => files.clone(),
            Self::Glob(pattern) => find(pattern)?,
        };
        files.sort();
        files.dedup_by(|a, b| a.0 == b.0);
        Ok(files)
    }
}

fn find(pattern: &str) -> Result<Vec<(PathBuf, u64)>> {
    if pattern.is_empty() {
        return Err(Error::invalid("the pattern of the input files is empty: name them, such as 'logs/*.txt'"));
    }
    let paths = glob::glob(pattern)
        .map_err(|error| Error::invalid(format_args!("{pattern} is no pattern of files: {error}")))?;
    let is_pattern = pattern.contains(['*', '?', '[']);
    let mut files = Vec::new();
    for path in paths {
        let path = path.map_err(|error| {
            Error::invalid(format_args!("{} cannot be searched: {}", error.path().display(), error.error()))
        })?;
        let cannot = |error| Error::invalid(format_args!("{} cannot be read: {error}", path.display()));
        let metadata = path.metadata().map_err(cannot)?;
        if metadata.is_dir() {
            if is_pattern {
                continue;
            }
            return Err(directory(&path));
        }
        if !metadata.is_file() {
            return Err(Error::invalid(format_args!("{} is no regular file", path.display())));
        }
        std::fs::File::open(&path).map_err(cannot)?;
        files.push((path.canonicalize().map_err(cannot)?, metadata.len()));
    }
    Ok(files)
}

fn directory(path: &Path) -> Error {
    Error::invalid(format_args!("{} is a directory: name its files, such as {}/*", path.display(), path.display()))
}
