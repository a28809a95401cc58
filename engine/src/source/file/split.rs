//! The name of a split: `logs/a.txt@0-67108864/200000000`, a file, the range of bytes in which the split's lines start,
//! and the length of the file when it was cut.
//!
//! A path is any bytes but a name is text: bytes that are not UTF-8 stand as `\xHH`, a backslash as two.

use crate::{Error, Result};
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FileSplit {
    pub(super) path: Arc<Path>,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) length: u64,
}

impl FileSplit {
    pub(super) fn to_id(&self) -> String {
        let mut id = escaped(self.path.as_os_str().as_bytes());
        write!(id, "@{}-{}/{}", self.start, self.end, self.length).expect("a string takes anything");
        id
    }

    pub(super) fn parse(id: &str) -> Result<Self> {
        let parts = || {
            let (path, range) = id.rsplit_once('@')?;
            let (range, length) = range.split_once('/')?;
            let (start, end) = range.split_once('-')?;
            let (start, end, length) = (start.parse().ok()?, end.parse().ok()?, length.parse().ok()?);
            let path = unescaped(path)?;
            (start <= end && end <= length).then(|| Self {
                path: Path::new(OsStr::from_bytes(&path)).into(),
                start,
                end,
                length,
            })
        };
        parts().ok_or_else(|| {
            Error::invalid(format_args!("split {id}: no part of a file; the snapshot is from another source"))
        })
    }
}

fn escaped(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        out.push_str(&chunk.valid().replace('\\', "\\\\"));
        for byte in chunk.invalid() {
            write!(out, "\\x{byte:02x}").expect("a string takes anything");
        }
    }
    out
}

fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.extend_from_slice(before.as_bytes());
        if let Some(after) = after.strip_prefix('\\') {
            out.push(b'\\');
            rest = after;
        } else {
            let hex = after.strip_prefix('x')?;
            out.push(u8::from_str_radix(hex.get(..2)?, 16).ok()?);
            rest = &hex[2..];
        }
    }
    out.extend_from_slice(rest.as_bytes());
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_comes_back_from_its_name() {
        for path in
            [&b"/data/a.txt"[..], b"/odd@3-4/5", b"/back\\slash\\x41", "/größe".as_bytes(), b"/\xff\xfe/x", b"\\"]
        {
            let split = FileSplit { path: Path::new(OsStr::from_bytes(path)).into(), start: 3, end: 17, length: 99 };
            assert_eq!(FileSplit::parse(&split.to_id()).unwrap(), split);
        }
    }

    #[test]
    fn other_names_are_refused() {
        for id in ["", "7 of 64", "a@1-2", "a@2-1/3", "a@0-4/3", "a@0-x/3", "\\@0-1/1", "\\x4@0-1/1", "\\xzz@0-1/1"] {
            assert!(FileSplit::parse(id).is_err(), "{id}");
        }
    }
}
