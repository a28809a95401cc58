//! Millstream: a stateful stream-processing engine for one Linux host.

pub mod items;
pub mod sink;
pub mod source;
pub mod text;
pub mod topology;

pub use millstream_derive::{Key, Record, State};
pub use millstream_state::{Error, ErrorKind, Result};
pub use millstream_state::{Key, Record, State};

/// What derived code calls.
#[doc(hidden)]
pub mod __private {
    pub use millstream_state as state;
}
