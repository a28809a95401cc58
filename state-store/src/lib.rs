//! The state store of Millstream: one hash log per shard, a table per state, snapshots that cost what changed.
//!
//! Knows nothing about streams. Modules form layers; a module imports only from those named before it:
//! `error epoch state_id hash` < `key_group value io` < `format` < `log index` < `table` < `snapshot` < `shard_store`.

pub mod epoch;
pub mod error;
pub mod format;
pub mod hash;
mod index;
pub mod io;
pub mod key_group;
pub mod log;
pub mod shard_store;
pub mod snapshot;
mod state_id;
pub mod table;
pub mod value;

pub use epoch::Epoch;
pub use error::{Error, ErrorKind, Result};
pub use key_group::{KeyGroup, KeyGroupCount, KeyGroupRange};
pub use rkyv;
pub use shard_store::{ShardStore, StoreConfig};
pub use state_id::StateId;
pub use table::{Log, ScanCursor, Table};
pub use value::{BadBytes, Key, Record, Rkyv, Schema, State};
