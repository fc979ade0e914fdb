//! The account of the frames of a live run.

use std::fmt;

use serde::Serialize;

/// What became of the frames of a live run, each counted once. The sender counts sent frames, the
/// interfaces count rejected, lost and passed frames and frames dropped by a program, the capture's
/// ledger counts its drops, and the reader of chunks counts delivered frames.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Book {
    /// Which run.
    pub run: &'static str,
    /// Frames handed to the sending interface.
    pub sent: u64,
    /// Rejected by the receiving interface, which had no receiver.
    pub refused: u64,
    /// Lost because the receiving interface's ring was full.
    pub lost: u64,
    /// Passed to the receiving host.
    pub passed: u64,
    /// Dropped by the program, or before the capture because there was no room.
    pub dropped: u64,
    /// Delivered by the capture.
    pub delivered: u64,
}

impl Book {
    /// Adds another run's counts.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.refused += other.refused;
        self.lost += other.lost;
        self.passed += other.passed;
        self.dropped += other.dropped;
        self.delivered += other.delivered;
    }

    /// Whether each frame is accounted for.
    pub fn balances(&self) -> bool {
        self.sent == self.refused + self.lost + self.passed + self.dropped + self.delivered
    }
}

impl fmt::Display for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, sent, refused, lost, passed, dropped, delivered } = self;
        write!(
            f,
            "{run}: {sent} sent, {refused} refused, {lost} lost, {passed} passed, {dropped} dropped, {delivered} delivered"
        )
    }
}
