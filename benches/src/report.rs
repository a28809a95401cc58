//! How results are kept and shown: one JSON file per run, tables on the terminal.
//!
//! A file says what ran, when, on which machine and what came out; it is written whole or not at all. What a run measured
//! stands at the top level beside `machine`, so that `jq .records_per_second` finds it (`results/README.md`).

use crate::machine::Machine;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use millstream::{Error, Result};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Where results go unless told otherwise: ignored by git, below the current directory.
pub const LOCAL_RESULTS: &str = "results/local";

/// Version of the layout of result files.
const FORMAT: u32 = 1;

/// A result file.
#[derive(Clone, Debug, Serialize)]
pub struct ResultFile<T> {
    format: u32,
    /// Name of the benchmark, such as `keyed-count`.
    pub benchmark: String,
    /// When it began, in UTC: `2026-12-03T10:15:00Z`.
    pub started_at: String,
    /// The command line that ran it.
    pub command: Vec<String>,
    /// What was measured. A structure, or this cannot be written.
    #[serde(flatten)]
    pub result: T,
    /// What it ran on.
    pub machine: Machine,
}

impl<T: Serialize> ResultFile<T> {
    /// The result of a benchmark of this process, which began at `started`.
    pub fn new(benchmark: &str, started: SystemTime, machine: Machine, result: T) -> Self {
        Self {
            format: FORMAT,
            benchmark: benchmark.to_owned(),
            started_at: humantime::format_rfc3339_seconds(started).to_string(),
            // The program by its name: where it was built is nobody's business.
            command: std::env::args()
                .enumerate()
                .map(|(i, word)| if i == 0 { base_name(&word) } else { word })
                .collect(),
            result,
            machine,
        }
    }

    /// The file as JSON, indented, with a line end.
    ///
    /// # Panics
    /// If the result is not a structure with names as keys.
    pub fn to_json(&self) -> String {
        let json = serde_json::to_string_pretty(self).expect("results are structures of plain values");
        json + "\n"
    }

    /// Writes the file and returns where: `path`, or a new file in [`LOCAL_RESULTS`] named after time and benchmark.
    ///
    /// # Errors
    /// [`Unavailable`](millstream::ErrorKind::Unavailable) when it cannot be written.
    pub fn write(&self, path: Option<&Path>) -> Result<PathBuf> {
        let json = self.to_json();
        match path {
            Some(path) => write_whole(path, &json, true).map(|()| path.to_owned()),
            None => self.write_new(Path::new(LOCAL_RESULTS), &json),
        }
    }

    fn write_new(&self, directory: &Path, json: &str) -> Result<PathBuf> {
        let time = self.started_at.replace(':', "");
        for number in 0u32.. {
            let again = if number == 0 { String::new() } else { format!("-{number}") };
            let path = directory.join(format!("{time}-{}{again}.json", self.benchmark));
            if !path.exists() {
                return write_whole(&path, json, false).map(|()| path);
            }
        }
        unreachable!("there are fewer than 2^32 results")
    }
}

/// Checks that a result can be written to `path` (without one, to [`LOCAL_RESULTS`]), so that nothing is measured in vain.
/// Leaves nothing behind.
///
/// # Errors
/// [`Invalid`](millstream::ErrorKind::Invalid) when it cannot.
pub fn check_writable(path: Option<&Path>) -> Result<()> {
    let shown = path.unwrap_or(Path::new(LOCAL_RESULTS));
    let failed = |why: &dyn fmt::Display| {
        let what =
            format_args!("the result cannot be written to {}: {why}; name another file with --out", shown.display());
        Error::invalid(what)
    };
    if path.is_some_and(|path| path.is_dir() || path.file_name().is_none()) {
        return Err(failed(&"it is a directory"));
    }
    let directory = path.map_or(Some(shown), Path::parent);
    let mut above = directory.into_iter().flat_map(Path::ancestors);
    let nearest = above.find(|directory| directory.symlink_metadata().is_ok()).unwrap_or(Path::new("."));
    tempfile::tempfile_in(nearest).map(drop).map_err(|why| failed(&why))
}

fn base_name(path: &str) -> String {
    Path::new(path).file_name().map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Writes beside `path` and renames, so that the file is whole whenever it is there.
fn write_whole(path: &Path, text: &str, replace: bool) -> Result<()> {
    let failed = |why: std::io::Error| Error::unavailable(format_args!("{}: {why}", path.display()));
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory).map_err(failed)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let part = directory.join(name);
    std::fs::write(&part, text).map_err(failed)?;
    let done = if replace { std::fs::rename(&part, path) } else { std::fs::hard_link(&part, path) };
    if !replace || done.is_err() {
        // A leftover is untidy, not wrong.
        let _ = std::fs::remove_file(&part);
    }
    done.map_err(failed)
}

/// Draws a table. The first column is text and stands left, the others are figures and stand right.
pub fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let aligned = |column: usize, text: String| {
        Cell::new(text).set_alignment(if column == 0 { CellAlignment::Left } else { CellAlignment::Right })
    };
    let line = |cells: [String; N]| -> Vec<Cell> {
        cells.into_iter().enumerate().map(|(column, text)| aligned(column, text)).collect()
    };
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(line(header.map(str::to_owned)));
    table.add_rows(rows.into_iter().map(line));
    table.to_string()
}

/// Writes a count per second with three digits: `219 M/s`.
pub fn rate(per_second: f64) -> String {
    format!("{}/s", scaled(per_second, 1000.0, &["", "k", "M", "G", "T"]))
}

/// Writes a number of bytes with three digits: `7.54 MiB`.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

/// Writes microseconds with three digits in the unit that suits: `9.50 us`, `1.20 ms`.
pub fn microseconds(us: f64) -> String {
    if us < 1.0 { scaled(us * 1000.0, 1000.0, &["ns"]) } else { scaled(us, 1000.0, &["us", "ms", "s"]) }
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = 0;
    // Half a unit early, so that 999.7 becomes 1.00 of the next unit and not 1000 of this one.
    while value.abs() >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = match value.abs() {
        v if v >= 99.95 || v.fract() == 0.0 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {}", units[unit]).trim_end().to_owned()
}

/// The middle value; of an even number of values the mean of the two middle ones. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream::topology::Topology;

    #[derive(Serialize)]
    struct Counted {
        records_per_second: f64,
    }

    fn file(benchmark: &str) -> ResultFile<Counted> {
        let machine = Machine::read(&Topology::read().unwrap(), None);
        let started = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_764_756_900);
        ResultFile::new(benchmark, started, machine, Counted { records_per_second: 5.0 })
    }

    #[test]
    fn what_was_measured_stands_beside_the_machine() {
        let json: serde_json::Value = serde_json::from_str(&file("keyed-count").to_json()).unwrap();
        assert_eq!(json["format"], 1);
        assert_eq!(json["benchmark"], "keyed-count");
        assert_eq!(json["started_at"], "2025-12-03T10:15:00Z");
        assert_eq!(json["records_per_second"], 5.0);
        assert!(json["machine"]["cores_online"].as_u64().unwrap() > 0);
        assert!(!json["command"][0].as_str().unwrap().contains('/'));
    }

    #[test]
    fn a_second_result_of_the_same_second_does_not_replace_the_first() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("results/local");
        let names = [0, 1, 2].map(|_| {
            let path = file("ceiling").write_new(&directory, "{}").unwrap();
            path.file_name().unwrap().to_string_lossy().into_owned()
        });
        let stem = "2025-12-03T101500Z-ceiling";
        assert_eq!(names, [format!("{stem}.json"), format!("{stem}-1.json"), format!("{stem}-2.json")]);
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 3, "no leftovers");
    }

    #[test]
    fn a_given_path_is_written_whole_and_replaced() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("new/result.json");
        for _ in 0..2 {
            assert_eq!(file("ceiling").write(Some(&path)).unwrap(), path);
        }
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("}\n"));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no leftovers");
        let error = file("ceiling").write(Some(&path.join("below-a-file"))).unwrap_err();
        assert_eq!(error.kind(), millstream::ErrorKind::Unavailable);
    }

    #[test]
    fn a_path_that_cannot_be_written_is_found_out_beforehand() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        for path in ["new.json", "a/b/c/new.json", "file"] {
            check_writable(Some(&root.path().join(path))).unwrap();
        }
        check_writable(Some(Path::new("new.json"))).unwrap();
        for path in [file.join("below-a-file"), root.path().to_owned(), PathBuf::from("/proc/new.json")] {
            let error = check_writable(Some(&path)).unwrap_err();
            assert_eq!(error.kind(), millstream::ErrorKind::Invalid);
            assert!(error.message().contains(path.to_str().unwrap()) && error.message().contains("--out"), "{error}");
        }
        assert_eq!(root.path().read_dir().unwrap().count(), 1, "nothing is left");
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(rate(219_400_000.0), "219 M/s");
        assert_eq!(rate(999_700.0), "1.00 M/s");
        assert_eq!(rate(12.0), "12/s");
        assert_eq!(rate(0.0), "0/s");
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(7_906_263), "7.54 MiB");
        assert_eq!(bytes(u64::MAX), "16 EiB");
        assert_eq!(microseconds(9.5), "9.50 us");
        assert_eq!(microseconds(0.07), "70 ns");
        assert_eq!(microseconds(1200.0), "1.20 ms");
        assert_eq!(microseconds(3_000_000.0), "3 s");
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn a_table_has_a_line_per_row() {
        let text = table(["run", "records"], [["a".to_owned(), "1".to_owned()], ["b".to_owned(), "20".to_owned()]]);
        assert!(text.lines().any(|line| line.contains("a ") && line.trim_end().ends_with(" 1")), "{text}");
        assert!(text.contains("records"), "{text}");
    }
}
