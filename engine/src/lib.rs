//! Millstream: a stateful stream-processing engine for one Linux host.

pub mod items;
pub mod sink;
pub mod source;
pub mod text;
pub mod topology;

pub use millstream_state::{Error, ErrorKind, Result};
