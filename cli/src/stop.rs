//! Ctrl-C and SIGTERM: the first asks, the second kills.
//!
//! The kernel hands a signal to any thread; the handlers only set a flag, so nothing is cut short.

use crate::exit::{Failure, Result, UNAVAILABLE};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether somebody asked to stop.
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Takes over both signals, for the rest of the process.
    pub(crate) fn install() -> Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag unset and sets it, the second finds it set and kills.
            flag::register_conditional_default(signal, Arc::clone(&asked))
                .and_then(|_| flag::register(signal, Arc::clone(&asked)))
                .map_err(|error| Failure::new(UNAVAILABLE, format_args!("signals cannot be handled: {error}")))?;
        }
        Ok(Self(asked))
    }

    /// Whether somebody has.
    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
