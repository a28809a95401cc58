//! Which faults a simulated disk has, and how many it has had.

/// What a [`SimDisk`](super::SimDisk) does wrong. Probabilities are per request or call; the default disk has no faults.
#[derive(Clone, Debug, PartialEq)]
pub struct SimConfig {
    /// Most ticks between a request's submission and its end. Each submit and take is a tick, so is [`SimDisk::advance`](super::SimDisk::advance).
    pub delay_ticks_max: u32,
    /// A write ends well after fewer bytes than asked, a multiple of 512.
    pub short_write: f64,
    /// A read ends well after fewer bytes than asked.
    pub short_read: f64,
    /// A write fails; any part of it may have happened.
    pub failed_write: f64,
    /// A read fails.
    pub failed_read: f64,
    /// A sync fails; some of what it should have made durable is, the rest never will be.
    pub failed_sync: f64,
    /// A create, open or close fails.
    pub failed_open: f64,
    /// A rename fails, done or not.
    pub failed_rename: f64,
    /// Syncing a directory fails; some of its names are durable.
    pub failed_dir_sync: f64,
    /// A create or a write finds no space.
    pub no_space: f64,
    /// A write says it ended well and only its first part happened. Only a checksum finds this.
    pub torn_write: f64,
    /// A write says it ended well and did not happen. Only a checksum finds this.
    pub lost_write: f64,
    /// A write says it ended well and went to another offset of its file. Only a checksum finds this.
    pub misdirected_write: f64,
    /// At power loss, each sector not synced survives with this probability.
    pub keep_unsynced: f64,
    /// At power loss, each name not synced survives with this probability.
    pub keep_names: f64,
    /// Unit in which a power loss tears writes: 512 or 4096.
    pub sector_bytes: usize,
    /// Bytes that the disk can hold.
    pub capacity_bytes: u64,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            delay_ticks_max: 8,
            short_write: 0.0,
            short_read: 0.0,
            failed_write: 0.0,
            failed_read: 0.0,
            failed_sync: 0.0,
            failed_open: 0.0,
            failed_rename: 0.0,
            failed_dir_sync: 0.0,
            no_space: 0.0,
            torn_write: 0.0,
            lost_write: 0.0,
            misdirected_write: 0.0,
            keep_unsynced: 0.5,
            keep_names: 0.5,
            sector_bytes: 4096,
            capacity_bytes: u64::MAX,
        }
    }
}

impl SimConfig {
    /// A disk that fails often but never lies: a correct store loses nothing that it called durable.
    pub fn failing() -> Self {
        Self {
            short_write: 0.1,
            short_read: 0.1,
            failed_write: 0.02,
            failed_sync: 0.05,
            failed_open: 0.02,
            failed_rename: 0.05,
            failed_dir_sync: 0.05,
            no_space: 0.02,
            sector_bytes: 512,
            ..Self::default()
        }
    }

    /// A disk that lies now and then: a correct store finds out and refuses, it never returns wrong state.
    pub fn lying() -> Self {
        Self { torn_write: 0.02, lost_write: 0.02, misdirected_write: 0.02, ..Self::default() }
    }
}

/// How many faults a [`SimDisk`](super::SimDisk) has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Requests and calls that returned an error of the simulator's making.
    pub failed: u64,
    /// Reads and writes that moved fewer bytes than asked.
    pub short: u64,
    /// Writes that were torn, lost or misdirected and said nothing: what they wrote may be refused later.
    pub silent: u64,
    /// Losses of power.
    pub power_losses: u64,
}
