//! Which ring a worker serves next, how many buddies a busy ring calls, and how much a helper
//! takes: the policies that were compared (`sim::policies_compared`), and the one that workers use.
//!
//! What the comparison found (1.6 and 0.2 of a worker's capacity, M = 64, 50 µs a packet):
//!
//! - The next ring: with the fullest above T and each home ring in turn, a helper's own packets
//!   wait 4.2 ms (p99), with a bound of 8.4 ms. With always the fullest of the group they wait 7.9
//!   ms. With as many packets at home as were taken elsewhere they wait 3.7 ms, and with home rings
//!   first 3.4 ms, both without a bound on the waiting time of the ring above T. So workers take
//!   turns.
//! - The number of buddies called: one at a time or one for each chunk above T have the same loss,
//!   backlog and waiting times, because helpers wake others too. With one for each chunk the bound
//!   on polling does not grow with the number of workers.
//! - The amount: half chunks wait 2.4 ms and quarters 1.3 ms instead of 4.2 ms, with 2 and 4 times
//!   as many hand-overs, and no loss with any of the three. So helpers take whole chunks: the bound
//!   holds, and a flow's packets are split less often.

/// How the workers of a group share its load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Which ring is next.
    pub next: Next,
    /// Maximum number of sleeping buddies that a worker calls when it leaves a ring above T. It
    /// calls one for each chunk above T.
    pub calls_max: usize,
    /// Number of parts into which a helper divides a chunk.
    pub parts: u32,
}

/// Which ring a worker serves next if some are above T. If home rings are above T, the fullest of
/// them precedes those of buddies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The home rings; those of buddies when these are empty. This does not conserve work: a worker
    /// with a packet to serve each time it looks never helps.
    HomeFirst,
    /// Alternates between the fullest ring above T and one home ring.
    Alternate,
    /// Alternates between the fullest ring above T and each home ring once.
    Round,
    /// The fullest ring above T, then home rings until they had as many packets.
    Deficit,
    /// The fullest ring of the whole group, home or not, as long as it is above T.
    Fullest,
}

impl Default for Policy {
    fn default() -> Self {
        Self { next: Next::Round, calls_max: usize::MAX, parts: 1 }
    }
}

/// A worker's position, and the results of its last request besides the chunk.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Turn {
    /// The number of workers to wake for help, if [that many sleep](super::Group::next_sleeper).
    pub(crate) calls: usize,
    /// There are no packets and never will be: the capture was stopped, and its rings are empty.
    pub(crate) has_ended: bool,
    /// The next home ring.
    place: usize,
    /// What it must still serve of its home rings before a ring above T: looks, chunks or packets,
    /// depending on the policy.
    owed: usize,
}

impl Turn {
    /// The home ring whose turn it is, of `homes`.
    #[inline]
    pub(super) fn advance(&mut self, homes: usize) -> usize {
        let place = if self.place < homes { self.place } else { 0 };
        self.place = place + 1;
        place
    }

    /// Whether the home rings got their share since a ring above T was served.
    pub(super) fn is_free(&self) -> bool {
        self.owed == 0
    }

    /// A ring above T was served, `packets` of it.
    pub(super) fn relieved(&mut self, next: Next, homes: usize, packets: usize) {
        self.owed = match next {
            Next::HomeFirst | Next::Fullest => 0,
            Next::Alternate => 1,
            Next::Round => homes,
            Next::Deficit => packets,
        };
    }

    /// A home ring was checked, and served if it had packets.
    #[inline]
    pub(super) fn looked(&mut self, next: Next, packets: usize) {
        if self.owed == 0 {
            return;
        }
        let paid = match next {
            Next::HomeFirst | Next::Fullest => 0,
            Next::Alternate => usize::from(packets > 0),
            Next::Round => 1,
            Next::Deficit => packets,
        };
        self.owed = self.owed.saturating_sub(paid);
    }

    /// The home rings are empty.
    pub(super) fn settle(&mut self) {
        self.owed = 0;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn home_rings_take_turns() {
        let mut turn = Turn::default();
        assert_eq!([3; 7].map(|homes| turn.advance(homes)), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(turn.advance(3), 1);
        assert_eq!(turn.advance(2), 0, "the third ring is gone");
    }

    #[test]
    fn after_a_ring_above_the_threshold_home_rings_get_what_the_policy_says() {
        // What is owed at first, and after looks at home rings with so many packets.
        for (next, owed, after) in [
            (Next::HomeFirst, 0, [0, 0, 0]),
            (Next::Fullest, 0, [0, 0, 0]),
            (Next::Alternate, 1, [1, 0, 0]),
            (Next::Round, 3, [2, 1, 0]),
            (Next::Deficit, 10, [10, 6, 0]),
        ] {
            let mut turn = Turn::default();
            assert!(turn.is_free());
            turn.relieved(next, 3, 10);
            assert_eq!((turn.owed, turn.is_free()), (owed, owed == 0), "{next:?}");
            for (packets, owed) in [0, 4, 8].into_iter().zip(after) {
                turn.looked(next, packets);
                assert_eq!((turn.owed, turn.is_free()), (owed, owed == 0), "{next:?}");
            }
            turn.relieved(next, 3, 10);
            turn.settle();
            assert!(turn.is_free(), "{next:?}");
        }
    }
}
