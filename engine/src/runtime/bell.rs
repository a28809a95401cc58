//! A bell between threads: wakes a shard that has declared itself asleep, and costs a ringer ten nanoseconds when it has not.
//!
//! Invariants
//! * I1. Whoever rings after giving a shard something to do either sees it asleep and wakes it, or the shard sees what it
//!   was given before it sleeps: both sides store, fence, then load.

use atomic_waker::AtomicWaker;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::Poll;

/// See the module.
#[derive(Default)]
pub(super) struct Bell {
    asleep: AtomicBool,
    waker: AtomicWaker,
}

impl Bell {
    /// Wakes the shard if it sleeps.
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// Declares the shard asleep. It must look once more for something to do before it waits (I1).
    pub(super) fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Declares the shard awake.
    pub(super) fn get_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Waits until the bell is rung after [`fall_asleep`](Self::fall_asleep).
    pub(super) async fn wait(&self) {
        poll_fn(|cx| {
            self.waker.register(cx.waker());
            if self.asleep.load(Ordering::Acquire) { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }
}
