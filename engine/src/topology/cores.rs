//! Which cores a job asks for: `2`, `0-1`, `0,2-3` or `auto`.
//!
//! A bare number is a count; a list has a dash or a comma. The single core 3 is written `3-3`.

use millstream_state::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The most shards a job may have.
pub const SHARDS_MAX: u32 = 1024;

/// The highest core number Linux knows (`CONFIG_NR_CPUS` is at most 8192).
const CORE_ID_MAX: u32 = 8191;

/// Number of a logical core, as Linux counts them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CoreId(pub u32);

impl fmt::Display for CoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which cores a job asks for; [`Topology::plan`](super::Topology::plan) says which it gets.
///
/// ```
/// use millstream::topology::Cores;
///
/// assert_eq!("2".parse::<Cores>()?, Cores::count(2));
/// assert_eq!("0,2-3".parse::<Cores>()?, Cores::list("0,2-3")?);
/// assert_eq!(Cores::default(), "auto".parse()?);
/// # Ok::<(), millstream_state::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub struct Cores(Wish);

/// What was asked for. Private, so that [`Wish::Named`] is never empty and names no core twice.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum Wish {
    #[default]
    Auto,
    Count(u32),
    Named(Vec<CoreId>),
}

impl Cores {
    /// As many shards as the machine, the cpuset and the CPU quota have room for.
    pub const fn auto() -> Self {
        Self(Wish::Auto)
    }

    /// This many shards, on the best cores there are. Between 1 and [`SHARDS_MAX`], or the plan is an error.
    pub const fn count(shards: u32) -> Self {
        Self(Wish::Count(shards))
    }

    /// One shard on each core of a list such as `0,2-3`, in the order written. A single number is a core here.
    ///
    /// # Errors
    /// [`Invalid`](millstream_state::ErrorKind::Invalid) when it is not a list, or names a core twice.
    pub fn list(list: &str) -> Result<Self> {
        let cores = parse_list(list)?;
        if cores.len() > SHARDS_MAX as usize {
            return Err(Error::invalid(format_args!(
                "cores `{list}`: {} cores, a job has at most {SHARDS_MAX} shards",
                cores.len()
            )));
        }
        for (i, core) in cores.iter().enumerate() {
            if cores[..i].contains(core) {
                return Err(Error::invalid(format_args!("cores `{list}`: core {core} is named twice")));
            }
        }
        Ok(Self(Wish::Named(cores)))
    }

    pub(super) const fn wish(&self) -> &Wish {
        &self.0
    }
}

impl FromStr for Cores {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        if text == "auto" {
            return Ok(Self::auto());
        }
        if !text.bytes().all(|byte| byte.is_ascii_digit()) || text.is_empty() {
            return Self::list(text);
        }
        match text.parse::<u32>() {
            Ok(count @ 1..=SHARDS_MAX) => Ok(Self::count(count)),
            _ => Err(Error::invalid(format_args!(
                "cores `{text}`: a count is between 1 and {SHARDS_MAX}; the single core {text} is written `{text}-{text}`"
            ))),
        }
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Wish::Auto => f.write_str("auto"),
            Wish::Count(count) => count.fmt(f),
            Wish::Named(cores) => f.write_str(&format_list(cores)),
        }
    }
}

impl From<Cores> for String {
    fn from(cores: Cores) -> Self {
        cores.to_string()
    }
}

/// How a configuration file may write it: `cores = 2` or `cores = "0-1"`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Count(u32),
    Text(String),
}

impl TryFrom<Written> for Cores {
    type Error = Error;

    fn try_from(written: Written) -> Result<Self> {
        match written {
            Written::Count(count) => count.to_string().parse(),
            Written::Text(text) => text.parse(),
        }
    }
}

/// Reads a list as Linux writes it (`0-3,6`), in the order written.
pub(super) fn parse_list(list: &str) -> Result<Vec<CoreId>> {
    let bad = |why: fmt::Arguments<'_>| {
        Error::invalid(format_args!(
            "cores `{list}`: {why}; write a count (`2`), a list (`0-1`, `0,2-3`, `3-3` for one core) or `auto`"
        ))
    };
    let number = |text: &str| match text.trim().parse::<u32>() {
        Ok(id) if id <= CORE_ID_MAX => Ok(id),
        Ok(id) => Err(bad(format_args!("core {id} is above {CORE_ID_MAX}, the highest there can be"))),
        Err(_) if text.trim().is_empty() => Err(bad(format_args!("a core number is missing"))),
        Err(_) => Err(bad(format_args!("`{}` is not a core number", text.trim()))),
    };
    let mut cores = Vec::new();
    for part in list.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last {
            return Err(bad(format_args!("the range {first}-{last} runs backwards")));
        }
        cores.extend((first..=last).map(CoreId));
    }
    Ok(cores)
}

/// Writes cores so that [`Cores`] reads the same back: one core alone as `3-3`, lest it be taken for a count.
fn format_list(cores: &[CoreId]) -> String {
    match cores {
        [core] => format!("{core}-{core}"),
        _ => show_list(cores),
    }
}

/// Writes cores as Linux does, for people: `0-3,6`.
pub(super) fn show_list(cores: &[CoreId]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for core in cores {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == core.0 => *last = core.0,
            _ => ranges.push((core.0, core.0)),
        }
    }
    let show = |&(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(show).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[u32]) -> Cores {
        Cores(Wish::Named(ids.iter().copied().map(CoreId).collect()))
    }

    #[track_caller]
    fn check(text: &str, expected: Cores) {
        let cores: Cores = text.parse().unwrap();
        assert_eq!(cores, expected, "{text}");
        assert_eq!(cores.to_string().parse::<Cores>().unwrap(), cores, "{text} written as {cores}");
        let json = serde_json::to_string(&cores).unwrap();
        assert_eq!(serde_json::from_str::<Cores>(&json).unwrap(), cores, "{json}");
    }

    #[track_caller]
    fn check_refused(text: &str, why: &str) {
        let error = text.parse::<Cores>().unwrap_err();
        assert_eq!(error.kind(), millstream_state::ErrorKind::Invalid);
        assert!(error.message().contains(why) && error.message().contains(text), "{error}");
    }

    #[test]
    fn every_way_of_writing_cores_is_read_and_written_back() {
        check("auto", Cores::auto());
        check("2", Cores::count(2));
        check("1024", Cores::count(1024));
        check("0-1", ids(&[0, 1]));
        check("0,2-3", ids(&[0, 2, 3]));
        check(" 3-3 ", ids(&[3]));
        check("7,1, 4-5", ids(&[7, 1, 4, 5]));
    }

    #[test]
    fn a_list_may_be_one_number() {
        assert_eq!(Cores::list("3").unwrap(), ids(&[3]));
        assert_eq!(ids(&[3]).to_string(), "3-3");
    }

    #[test]
    fn a_configuration_file_may_write_a_number() {
        assert_eq!(serde_json::from_str::<Cores>("2").unwrap(), Cores::count(2));
        assert!(serde_json::from_str::<Cores>("0").is_err());
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_reason() {
        check_refused("0", "between 1 and 1024");
        check_refused("1025", "between 1 and 1024");
        check_refused("99999999999", "between 1 and 1024");
        check_refused("", "missing");
        check_refused("1,,2", "missing");
        check_refused("-1", "missing");
        check_refused("1-", "missing");
        check_refused("two", "`two` is not a core number");
        check_refused("0-x", "`x` is not a core number");
        check_refused("3-1", "backwards");
        check_refused("0-2,1", "core 1 is named twice");
        check_refused("0-9000", "above 8191");
        check_refused("0-1024", "at most 1024 shards");
        check_refused("1.5", "`1.5` is not a core number");
    }
}
