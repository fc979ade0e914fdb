//! What became of the frames of a live run.

use std::fmt;

use serde::Serialize;

/// What became of the frames of a live run, each counted once. The sender counts what is sent, the interfaces
/// what is refused, lost, passed and dropped by a program, the capture's ledger what it drops, and the reader of
/// its chunks what is delivered.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Book {
    /// Which run.
    pub run: &'static str,
    /// Frames handed to the sending interface.
    pub sent: u64,
    /// Not taken by the receiving interface, which had no receiver.
    pub refused: u64,
    /// Lost where the receiving interface's ring was full.
    pub lost: u64,
    /// Passed to the receiving host.
    pub passed: u64,
    /// Dropped by the program or, for want of room, before the capture.
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
