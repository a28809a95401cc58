//! Bugs planted on purpose, so that the simulator can prove that it would find them.
//!
//! Only with the feature `planted-bugs`, which nothing but the tests switches on; without it `planted!` is `false` at
//! compile time.

/// A bug that a naive engine has.
#[cfg(feature = "planted-bugs")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlantedBug {
    /// The receiver reads signals before records: a record of epoch n+1 ends up in snapshot n.
    SignalsBeforeRecords,
    /// Records that a barrier overtook are missing from the channel log.
    OvertakenNotLogged,
    /// Records that a full ring held back at the sender's cut are in no log.
    HeldBackNotLogged,
    /// Records on their way from a shard to itself are in no log.
    OwnQueueNotLogged,
    /// Nothing is made durable before a manifest relies on it.
    ManifestBeforeSync,
    /// A shard acknowledges before its last write and sync have completed.
    AckBeforeWrite,
    /// Removing a key leaves no tombstone, though older extents hold the key.
    DroppedTombstone,
    /// A page is reused though a failed epoch, or the one after it, still needs it.
    PageReusedEarly,
    /// Lines that a file sink holds in its buffer at the cut are in no epoch's output.
    StagedLinesLost,
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedBug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug on this thread, or none.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<PlantedBug>) {
    PLANTED.set(bug);
}

/// Whether `bug` is planted on this thread.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: PlantedBug) -> bool {
    PLANTED.get() == Some(bug)
}

#[cfg(feature = "planted-bugs")]
macro_rules! planted {
    ($bug:ident) => {
        crate::planted::is_planted(crate::planted::PlantedBug::$bug)
    };
}

#[cfg(not(feature = "planted-bugs"))]
macro_rules! planted {
    ($bug:ident) => {
        false
    };
}
