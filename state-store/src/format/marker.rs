//! The small text files beside the manifests: `FORMAT`, written last when a directory is made, `RUN`, the fencing token, and
//! `COMMITTED`, the epoch up to which all output is known to be committed.
//!
//! They are lines that a person can read, the last one their checksum: `crc32 XXXXXXXX` over all bytes before it.

use super::{BadFormat, FORMAT_VERSION, check_name};
use crate::epoch::Epoch;
use crate::state_id::StateId;
use std::fmt::Display;
use std::str::FromStr;

/// The content of the file `FORMAT`: its presence says that the directory was made completely.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormatMarker {
    /// Version of everything in the directory.
    pub version: u16,
    /// Name of the job that owns it.
    pub job: String,
    /// What tells this state from others of the same job.
    pub state: StateId,
}

/// The content of the file `RUN`: the fencing token of the newest run that owned the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunMarker {
    /// Grows by one with every run, starting at 1.
    pub run: u32,
}

/// The content of the file `COMMITTED`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommittedMarker {
    /// All output prepared in this epoch and before is committed, durably.
    pub epoch: Epoch,
}

const BYTES_MAX: usize = 1024;

fn seal(mut text: String) -> Vec<u8> {
    let crc32 = crc32fast::hash(text.as_bytes());
    text.push_str(&format!("crc32 {crc32:08x}\n"));
    text.into_bytes()
}

/// Checks the checksum and the first line, and returns the lines between them as (word, rest).
fn open<'a>(bytes: &'a [u8], title: &str) -> Result<Vec<(&'a str, &'a str)>, BadFormat> {
    if bytes.len() > BYTES_MAX {
        return Err(BadFormat::at(BYTES_MAX, "the file is too long"));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| BadFormat::at(error.valid_up_to(), "this is no text"))?;
    let body_bytes = text.len().checked_sub("crc32 00000000\n".len()).filter(|&at| text.is_char_boundary(at));
    let Some(body_bytes) = body_bytes else { return Err(BadFormat::at(text.len(), "the checksum is missing")) };
    let (body, sum) = text.split_at(body_bytes);
    if sum != format!("crc32 {:08x}\n", crc32fast::hash(body.as_bytes())) {
        return Err(BadFormat::at(body_bytes, "the checksum does not fit"));
    }
    let mut lines = body.lines();
    if lines.next() != Some(title) {
        return Err(BadFormat::at(0, format_args!("does not begin with \"{title}\"")));
    }
    Ok(lines.filter_map(|line| line.split_once(' ')).collect())
}

/// A file of one number.
fn encode_number(title: &str, word: &str, number: impl Display) -> Vec<u8> {
    seal(format!("{title}\n{word} {number}\n"))
}

fn decode_number<N: FromStr + Display>(bytes: &[u8], title: &str, word: &str) -> Result<N, BadFormat> {
    let number = match open(bytes, title)?[..] {
        [(found, number)] if found == word => number.parse::<N>().ok(),
        _ => None,
    };
    let number =
        number.ok_or_else(|| BadFormat::at(title.len() + 1, format_args!("the number of the {word} expected")))?;
    let is_notation = encode_number(title, word, &number) == bytes;
    if is_notation { Ok(number) } else { Err(BadFormat::at(0, "another notation")) }
}

impl FormatMarker {
    const TITLE: &str = "millstream state directory";

    /// The bytes of the file.
    pub fn encode(&self) -> Vec<u8> {
        seal(format!("{}\nformat {}\njob {}\nstate {}\n", Self::TITLE, self.version, self.job, self.state))
    }

    /// Reads the file.
    ///
    /// # Errors
    /// Says what is wrong; a directory of another version is wrong too.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadFormat> {
        let lines = open(bytes, Self::TITLE)?;
        let [("format", version), ("job", job), ("state", state)] = lines[..] else {
            return Err(BadFormat::at(Self::TITLE.len() + 1, "format, job and state expected"));
        };
        if version != FORMAT_VERSION.to_string() {
            let what = format_args!("directory of format {version}, this is {FORMAT_VERSION}");
            return Err(BadFormat::at(Self::TITLE.len() + 1, what));
        }
        check_name(job).map_err(|what| BadFormat::at(Self::TITLE.len() + 1, what))?;
        let state = StateId::parse(state)
            .ok_or_else(|| BadFormat::at(Self::TITLE.len() + 1, "a state's id of 8 hexadecimal digits expected"))?;
        let marker = Self { version: FORMAT_VERSION, job: job.to_owned(), state };
        if marker.encode() == bytes { Ok(marker) } else { Err(BadFormat::at(0, "another notation")) }
    }
}

impl RunMarker {
    const TITLE: &str = "millstream run";

    /// The bytes of the file.
    pub fn encode(self) -> Vec<u8> {
        encode_number(Self::TITLE, "run", self.run)
    }

    /// Reads the file.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadFormat> {
        Ok(Self { run: decode_number(bytes, Self::TITLE, "run")? })
    }
}

impl CommittedMarker {
    const TITLE: &str = "millstream committed";

    /// The bytes of the file.
    pub fn encode(self) -> Vec<u8> {
        encode_number(Self::TITLE, "epoch", self.epoch.0)
    }

    /// Reads the file.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadFormat> {
        Ok(Self { epoch: Epoch(decode_number(bytes, Self::TITLE, "epoch")?) })
    }
}
