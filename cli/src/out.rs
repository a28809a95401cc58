//! What the command writes: results to standard output, everything else to standard error.
//!
//! Invariants
//! * I1. Nobody reading does not stop a job: `println!` and `eprintln!` panic when their stream cannot be written, so this
//!   crate denies them.

use crate::exit::{self, Failure};
use serde::Serialize;
use std::fmt;
use std::io::{ErrorKind, Write};

/// Writes a result to standard output. A reader that has gone (`| head -1`) has what it wanted.
///
/// # Errors
/// When the output cannot be written for another reason, such as a full disk.
pub(crate) fn result(text: impl fmt::Display) -> exit::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match write!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::new(
            exit::UNAVAILABLE,
            format_args!("the result cannot be written to standard output: {error}"),
        )),
        _ => Ok(()),
    }
}

/// Writes a report as a result: in JSON, or as `text` says it.
///
/// # Errors
/// As [`result`].
pub(crate) fn report<T: Serialize>(json: bool, report: &T, text: impl FnOnce(&T) -> String) -> exit::Result<()> {
    if json {
        result(format_args!("{}\n", serde_json::to_string_pretty(report).expect("reports are plain data")))
    } else {
        result(text(report))
    }
}

/// Writes a line to standard error, if that can be written.
pub(crate) fn say(line: impl fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
