//! Millstream: a stateful stream-processing engine for one Linux host.
//!
//! A [`Job`] says what is computed: sources, operators, sinks. [`Engine::start`] runs it on pinned cores, each of which
//! owns one shard of the keys with its state. Every so often the state is written to disk as an epoch, without a pause;
//! after a crash the job goes on from the last complete epoch, and its committed output is neither lost nor doubled.
//!
//! Modules form layers; a module imports only from those named before it:
//! `planted items key_of time text metrics topology config` < `chain source sink exchange state` < `operator` < `stage` < `job`
//! < `shard` < `coordinator` < `launch` < `runtime sim` < `engine`.

// What a stage is made of shows in the types of streams and is no business of those who name them.
#![allow(private_bounds, private_interfaces, reason = "the parts of a stage are sealed")]

#[macro_use]
pub mod planted;

pub mod chain;
pub mod config;
mod coordinator;
mod engine;
pub mod exchange;
pub mod items;
pub mod job;
mod key_of;
mod launch;
pub mod metrics;
pub mod operator;
mod runtime;
mod shard;
pub mod sim;
pub mod sink;
pub mod source;
mod stage;
pub mod state;
pub mod text;
pub mod time;
pub mod topology;

pub use config::{EngineConfig, Restore};
pub use coordinator::{EpochStats, Outcome};
pub use engine::{Engine, JobReport, Running, Stop};
pub use job::{Job, KeyedStream, Stream};
pub use millstream_derive::{Key, Record, State};
pub use millstream_state::{Epoch, Error, ErrorKind, Key, Record, Result, Rkyv, State, rkyv};
pub use runtime::LiveMetrics;

/// What generated code names.
#[doc(hidden)]
pub mod __private {
    pub use millstream_state as state;
}

/// All that most jobs need: `use millstream::prelude::*;`.
pub mod prelude {
    pub use crate::chain::{OnError, Out};
    pub use crate::config::{EngineConfig, Restore};
    pub use crate::operator::{Collector, Emit, KeyContext, KeyedProcess, ProcessState, ValueHandle};
    pub use crate::sink::*;
    pub use crate::source::*;
    pub use crate::state::ValueState;
    pub use crate::text::{Bytes, Text};
    pub use crate::topology::Cores;
    pub use crate::{Engine, Job, Key, Outcome, Record, Rkyv, Running, State, Stop, Stream};
    pub use std::io::Write as _;
}

/// The code of the documents compiles.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../README.md")]
    mod readme {}
    #[doc = include_str!("../../docs/EMBEDDING.md")]
    mod embedding {}
}
