//! Bugs that a test may plant, to show that the tests would find them. In a build without the feature `planted-bugs`
//! every question here is answered `false` by the compiler.

/// A bug to plant.
#[cfg(feature = "planted-bugs")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// A snapshot is reported durable before its last write and sync have completed.
    AckBeforeWrite,
    /// Removing a key leaves no tombstone, though older extents hold the key.
    DroppedTombstone,
    /// A dead page is reused when the epoch that was writing it has failed, though another epoch still needs it.
    PageReusedEarly,
}

/// Which bugs are planted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    #[cfg(feature = "planted-bugs")]
    planted: Vec<Fault>,
}

macro_rules! questions {
    ($($(#[$doc:meta])* $name:ident => $fault:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name(&self) -> bool {
            #[cfg(feature = "planted-bugs")]
            return self.planted.contains(&Fault::$fault);
            #[cfg(not(feature = "planted-bugs"))]
            false
        }
    )+};
}

impl Faults {
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn plant(&mut self, fault: Fault) {
        self.planted.push(fault);
    }

    questions! {
        ack_before_write => AckBeforeWrite,
        dropped_tombstone => DroppedTombstone,
        page_reused_early => PageReusedEarly,
    }
}
