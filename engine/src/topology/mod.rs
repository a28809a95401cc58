//! What this process may run on, and which shard goes to which core.
//!
//! Reading and deciding are apart: [`Topology::read`] looks at the host once, before any thread is pinned (afterwards a
//! thread sees only its own core); [`Topology::plan`] is a pure function of that value, which tests make by hand.
//!
//! Invariants
//! * I1. A plan never fails for want of cores or quota: shards that have no core run unpinned, with a warning. It fails
//!   only for cores that the caller named and does not have.
//! * I2. No core carries two pinned shards.
//! * I3. A core that the caller did not name is used only if the process is allowed on it and the scheduler balances it
//!   (it is not isolated).
//!
//! ```
//! use millstream::topology::{Cores, Topology};
//!
//! let cores: Cores = "2".parse()?;               // two shards, on the best two cores
//! let placement = Topology::read()?.plan(&cores)?;
//! assert_eq!(placement.shards.len(), 2);
//! # Ok::<(), millstream_state::Error>(())
//! ```

mod cgroup;
mod cores;
mod host;
mod open_files;
mod placement;
mod ring;
mod schedule;

pub use cgroup::CpuQuota;
pub use cores::{CoreId, Cores, SHARDS_MAX};
pub use host::{Core, KernelVersion, MEMLOCK_PER_SHARD_BYTES, Topology};
pub use open_files::{OPEN_FILES_FIX, open_files_needed, open_files_wanted, raise_open_files};
pub use placement::Placement;
pub use ring::{MEMLOCK_FIX, RingRefusal, check_ring, try_ring};
pub use schedule::{ThreadId, ThreadTimes};
