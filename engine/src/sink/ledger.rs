//! Which epoch each piece of output belongs to, from the writing of it to its answer: the same for every sink that commits.
//!
//! A piece belongs to no epoch until a cut; then to that one; and if that epoch fails, to the next one answered.
//!
//! Invariants
//! * I1. Epochs are answered in order: never one while an earlier one is pending.
//! * I2. A piece is in exactly one of: the pieces, an answered epoch, the past.
//! * I3. An answered epoch is remembered as long as it can still fail: while it and those after it are no more than may be
//!   in flight.

use crate::{Error, Result};
use millstream_state::Epoch;
use std::collections::VecDeque;

/// Epochs that may be prepared and not yet complete.
const EPOCHS_IN_FLIGHT_MAX: usize = 2;

struct Pending {
    epoch: Epoch,
    error: Option<Error>,
}

/// Pieces of output by epoch.
pub(super) struct Ledger<P> {
    pieces: VecDeque<(Option<Epoch>, P)>,
    pending: VecDeque<Pending>,
    answered: VecDeque<(Epoch, Vec<P>)>,
}

impl<P> Ledger<P> {
    pub(super) fn new() -> Self {
        Self { pieces: VecDeque::new(), pending: VecDeque::new(), answered: VecDeque::new() }
    }

    /// Adds a piece that belongs to no epoch yet.
    pub(super) fn push(&mut self, piece: P) {
        self.pieces.push_back((None, piece));
    }

    /// The piece added last, unless it has been answered.
    pub(super) fn last(&self) -> Option<&P> {
        self.pieces.back().map(|(_, piece)| piece)
    }

    /// The same, to be changed.
    pub(super) fn last_mut(&mut self) -> Option<&mut P> {
        self.pieces.back_mut().map(|(_, piece)| piece)
    }

    /// All pieces not answered, in order, each with its epoch.
    pub(super) fn pieces_mut(&mut self) -> impl Iterator<Item = (Option<Epoch>, &mut P)> {
        self.pieces.iter_mut().map(|(epoch, piece)| (*epoch, piece))
    }

    /// The cut: all pieces that belong to no epoch belong to `epoch`; returns them.
    pub(super) fn prepare(&mut self, epoch: Epoch) -> impl Iterator<Item = &mut P> {
        self.pending.push_back(Pending { epoch, error: None });
        while self.answered.len() + self.pending.len() > EPOCHS_IN_FLIGHT_MAX && self.answered.pop_front().is_some() {}
        self.pieces.iter_mut().filter(|(of, _)| of.is_none()).map(move |(of, piece)| {
            *of = Some(epoch);
            piece
        })
    }

    /// A piece of `epoch` could not be made durable: the epoch fails, if it is pending.
    pub(super) fn fail(&mut self, epoch: Option<Epoch>, error: impl FnOnce() -> Error) {
        if let Some(pending) = self.pending.iter_mut().find(|pending| Some(pending.epoch) == epoch) {
            pending.error.get_or_insert_with(error);
        }
    }

    /// Answers `epoch` with its pieces once all of them are done; `None` until then.
    pub(super) fn take(&mut self, epoch: Epoch, is_done: impl Fn(&P) -> bool) -> Option<Result<&[P]>> {
        match self.pending.iter().position(|pending| pending.epoch == epoch) {
            None => return Some(Err(Error::unavailable(format_args!("epoch {epoch} was given up before")))),
            Some(0) => {}
            Some(_) => return None,
        }
        if let Some(error) = self.pending[0].error.take() {
            self.pending.pop_front();
            self.pass_on(epoch);
            return Some(Err(error));
        }
        if self.pieces.iter().any(|(of, piece)| *of == Some(epoch) && !is_done(piece)) {
            return None;
        }
        self.pending.pop_front();
        let (taken, kept): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.pieces).into_iter().partition(|&(of, _)| of == Some(epoch));
        self.pieces = kept;
        self.answered.push_back((epoch, taken.into_iter().map(|(_, piece)| piece).collect()));
        self.answered.back().map(|(_, pieces)| Ok(pieces.as_slice()))
    }

    /// Takes back `epoch` and every earlier one not known complete.
    pub(super) fn abandon(&mut self, epoch: Epoch) {
        self.pending.retain(|pending| pending.epoch > epoch);
        let (given_back, kept): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.answered).into_iter().partition(|&(answered, _)| answered <= epoch);
        self.answered = kept;
        for (of, piece) in
            given_back.into_iter().flat_map(|(of, pieces)| pieces.into_iter().map(move |p| (of, p))).rev()
        {
            self.pieces.push_front((Some(of), piece));
        }
        self.pass_on(epoch);
    }

    /// Pieces of failed epochs go with the next one, if there is one yet.
    fn pass_on(&mut self, failed: Epoch) {
        let next = self.pending.front().map(|pending| pending.epoch);
        for (of, _) in &mut self.pieces {
            if of.is_some_and(|epoch| epoch <= failed) {
                *of = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script of one-letter pieces, `|n` cuts, `!n` failures, `~n` epochs given back, `?n` questions; the answers.
    #[track_caller]
    fn check(script: &str, expected: &str) {
        let mut ledger = Ledger::new();
        let mut answers = Vec::new();
        for word in script.split(' ') {
            let epoch = || Epoch(word[1..].parse().unwrap());
            match &word[..1] {
                "|" => ledger.prepare(epoch()).for_each(drop),
                "!" => ledger.fail(Some(epoch()), || Error::unavailable("full")),
                "~" => ledger.abandon(epoch()),
                "?" => answers.push(match ledger.take(epoch(), |&piece| piece != "x") {
                    None => "wait".into(),
                    Some(Err(_)) => "failed".into(),
                    Some(Ok(pieces)) => format!("[{}]", pieces.concat()),
                }),
                _ => ledger.push(word),
            }
        }
        assert_eq!(answers.join(" "), expected, "{script}");
    }

    #[test]
    fn a_piece_belongs_to_the_first_cut_behind_it() {
        check("a b |1 c |2 ?1 ?2", "[ab] [c]");
        check("|1 ?1 a |2 ?2 ?2", "[] [a] failed");
    }

    #[test]
    fn epochs_are_answered_in_order_when_their_pieces_are_done() {
        check("a |1 b |2 ?2 ?1 ?2", "wait [a] [b]");
        check("x |1 b |2 ?1 ?2", "wait wait");
    }

    #[test]
    fn pieces_of_a_failed_epoch_join_the_next_answered() {
        check("a |1 !1 ?1 b |2 ?2", "failed [ab]");
        check("a |1 b |2 !1 ?1 ?2", "failed [ab]");
        check("a |1 b |2 !1 ?1 !2 ?2 |3 ?3", "failed failed [ab]");
        check("a |1 b |2 ?1 !2 ?2 |3 ?3", "[a] failed [b]");
        check("a !1 |1 ?1", "[a]");
    }

    #[test]
    fn what_is_given_back_joins_the_next_answered() {
        check("a |1 ?1 ~1 b |2 ?2", "[a] [ab]");
        check("a |1 ?1 b |2 ~1 ?2", "[a] [ab]");
        check("a |1 ?1 b |2 ?2 ~2 c |3 ?3", "[a] [b] [abc]");
        check("a |1 ?1 b |2 ?2 ~1 c |3 ?3", "[a] [b] [ac]");
        check("a |1 b |2 ~2 c |3 ?3", "[abc]");
        check("a |1 ~1 ?1", "failed");
    }

    #[test]
    fn an_epoch_that_two_later_ones_followed_is_decided() {
        check("a |1 ?1 b |2 ?2 c |3 ?3 ~3 |4 ?4", "[a] [b] [c] [bc]");
    }
}
