//! The two small text files beside the manifests: `FORMAT`, written last when a directory is made, and `RUN`, the fencing token.
//!
//! Both are lines that a person can read, the last one their checksum: `crc32 XXXXXXXX` over all bytes before it.

use super::{BadFormat, FORMAT_VERSION, check_name};

/// The content of the file `FORMAT`: its presence says that the directory was made completely.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormatMarker {
    /// Version of everything in the directory.
    pub version: u16,
    /// Name of the job that owns it.
    pub job: String,
}

/// The content of the file `RUN`: the fencing token of the newest run that owned the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunMarker {
    /// Grows by one with every run, starting at 1.
    pub run: u32,
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

impl FormatMarker {
    const TITLE: &str = "millstream state directory";

    /// The bytes of the file.
    pub fn encode(&self) -> Vec<u8> {
        seal(format!("{}\nformat {}\njob {}\n", Self::TITLE, self.version, self.job))
    }

    /// Reads the file.
    ///
    /// # Errors
    /// Says what is wrong; a directory of another version is wrong too.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadFormat> {
        let lines = open(bytes, Self::TITLE)?;
        let [("format", version), ("job", job)] = lines[..] else {
            return Err(BadFormat::at(Self::TITLE.len() + 1, "format and job expected"));
        };
        if version != FORMAT_VERSION.to_string() {
            let what = format_args!("directory of format {version}, this is {FORMAT_VERSION}");
            return Err(BadFormat::at(Self::TITLE.len() + 1, what));
        }
        check_name(job).map_err(|what| BadFormat::at(Self::TITLE.len() + 1, what))?;
        let marker = Self { version: FORMAT_VERSION, job: job.to_owned() };
        if marker.encode() == bytes { Ok(marker) } else { Err(BadFormat::at(0, "another notation")) }
    }
}

impl RunMarker {
    const TITLE: &str = "millstream run";

    /// The bytes of the file.
    pub fn encode(self) -> Vec<u8> {
        seal(format!("{}\nrun {}\n", Self::TITLE, self.run))
    }

    /// Reads the file.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadFormat> {
        let lines = open(bytes, Self::TITLE)?;
        let run = match lines[..] {
            [("run", run)] => run.parse().ok(),
            _ => None,
        };
        let Some(run) = run else { return Err(BadFormat::at(Self::TITLE.len() + 1, "a run expected")) };
        let marker = Self { run };
        if marker.encode() == bytes { Ok(marker) } else { Err(BadFormat::at(0, "another notation")) }
    }
}
