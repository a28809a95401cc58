//! A limit on the size of files (`ulimit -f`): the write that meets it fails and is told like any other, instead of the
//! process being killed by a signal that says nothing.

use crate::exit::{Failure, Result, UNAVAILABLE};
use signal_hook::consts::SIGXFSZ;
use signal_hook::flag;
use std::sync::Arc;

/// Takes the signal, for the rest of the process.
pub(crate) fn take_signal() -> Result<()> {
    // Nobody reads the flag: that somebody takes the signal is enough for the write to return with an error.
    let taken = flag::register(SIGXFSZ, Arc::default());
    taken.map(drop).map_err(|error| Failure::new(UNAVAILABLE, format_args!("signals cannot be handled: {error}")))
}
