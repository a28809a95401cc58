//! In which epoch each domain is, and which epochs have been cut and not ended.
//!
//! Invariants
//! * I1. The running epoch of a domain only grows, and is above every epoch it was cut at.
//! * I2. An epoch is pending from the first domain's cut until it is complete, superseded or abandoned.

use crate::epoch::Epoch;

/// The epochs of one shard.
pub(crate) struct Epochs {
    /// Running epoch of every domain.
    running: Vec<Epoch>,
    /// In order; at most a handful.
    pending: Vec<Epoch>,
}

impl Epochs {
    /// The domain that is always there: of restored tables that nobody has opened yet. It is cut with the first other.
    pub(crate) const UNOPENED: u16 = 0;

    pub(crate) fn new(running: Epoch) -> Self {
        Self { running: vec![running], pending: Vec::with_capacity(4) }
    }

    /// Adds a domain that starts in the newest epoch any domain is in.
    pub(crate) fn add_domain(&mut self) -> u16 {
        self.running.push(self.newest());
        u16::try_from(self.running.len() - 1).expect("a job has fewer than 65,536 stages")
    }

    #[inline(always)]
    pub(crate) fn running(&self, domain: u16) -> Epoch {
        self.running[usize::from(domain)]
    }

    pub(crate) fn newest(&self) -> Epoch {
        self.running.iter().copied().max().expect("there is a first domain")
    }

    /// The epoch that every domain has at least reached.
    pub(crate) fn oldest(&self) -> Epoch {
        self.running.iter().copied().min().expect("there is a first domain")
    }

    /// Ends the running epoch of `domain` as `epoch`, which may skip numbers.
    ///
    /// # Panics
    /// When the domain is beyond `epoch` already.
    pub(crate) fn cut(&mut self, domain: u16, epoch: Epoch) {
        let running = &mut self.running[usize::from(domain)];
        assert!(epoch >= *running, "I1: a cut at epoch {epoch} in running epoch {running}");
        *running = epoch.next();
        self.running[usize::from(Self::UNOPENED)] = self.newest();
        self.add_pending(epoch);
    }

    /// Cuts every domain that has not been cut at `epoch` yet.
    pub(crate) fn cut_all(&mut self, epoch: Epoch) {
        self.running.iter_mut().filter(|running| **running <= epoch).for_each(|running| *running = epoch.next());
        self.add_pending(epoch);
    }

    fn add_pending(&mut self, epoch: Epoch) {
        if let Err(at) = self.pending.binary_search(&epoch) {
            self.pending.insert(at, epoch);
        }
    }

    /// Ends `epoch` and every earlier one: a manifest has them, or a later one.
    pub(crate) fn complete(&mut self, epoch: Epoch) {
        self.pending.retain(|pending| *pending > epoch);
    }

    /// Ends `epoch` alone: it will have no manifest.
    pub(crate) fn abandon(&mut self, epoch: Epoch) {
        self.pending.retain(|pending| *pending != epoch);
    }

    pub(crate) fn pending(&self) -> &[Epoch] {
        &self.pending
    }

    /// Says whether a pending epoch contains what lived from `born` until `died`.
    #[inline]
    pub(crate) fn holds(&self, born: Epoch, died: Epoch) -> bool {
        self.pending.iter().any(|epoch| born <= *epoch && *epoch < died)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_holds_what_was_alive_at_its_cut_until_it_ends() {
        let mut epochs = Epochs::new(Epoch(5));
        let (a, b) = (epochs.add_domain(), epochs.add_domain());
        epochs.cut(a, Epoch(7));
        assert_eq!((epochs.running(a), epochs.running(b)), (Epoch(8), Epoch(5)));
        assert_eq!((epochs.oldest(), epochs.newest()), (Epoch(5), Epoch(8)));
        assert!(
            epochs.holds(Epoch(7), Epoch(8)) && !epochs.holds(Epoch(8), Epoch(9)) && !epochs.holds(Epoch(5), Epoch(7))
        );
        epochs.cut(b, Epoch(7));
        epochs.cut(a, Epoch(8));
        assert_eq!(epochs.pending(), [Epoch(7), Epoch(8)]);
        epochs.abandon(Epoch(7));
        assert!(!epochs.holds(Epoch(7), Epoch(8)) && epochs.holds(Epoch(7), Epoch(9)));
        epochs.complete(Epoch(9));
        assert!(epochs.pending().is_empty());
    }

    #[test]
    #[should_panic(expected = "I1")]
    fn an_epoch_is_cut_once() {
        let mut epochs = Epochs::new(Epoch(1));
        let domain = epochs.add_domain();
        epochs.cut(domain, Epoch(3));
        epochs.cut(domain, Epoch(3));
    }
}
