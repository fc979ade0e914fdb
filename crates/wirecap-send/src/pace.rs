//! When the next frame is due.

use std::hint;
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How fast frames are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rate {
    /// As fast as possible.
    Top,
    /// At this many frames per second, evenly spaced.
    PerSecond(u64),
}

/// After a stall a sender catches up this much of the lost time and skips the rest; otherwise a
/// paced sender would send a burst at its top rate after each stall.
pub(crate) const CATCH_UP_NS: u64 = 1_000_000;
/// A sleep ends late by up to this much, mostly because of the kernel's timer slack; the rest of a
/// wait is spent spinning.
const SLEEP_SLACK_NS: u64 = 70_000;

/// Spaces events evenly.
#[derive(Clone, Debug)]
pub struct Pacer {
    per_second: u64,
    /// Time of event 0, shifted by the skipped time.
    start_ns: u64,
    events: u64,
}

impl Pacer {
    /// A pacer of `per_second` events whose first is due now.
    ///
    /// # Panics
    ///
    /// If `per_second` is zero.
    pub fn new(per_second: u64) -> Self {
        assert!(per_second > 0, "a rate of zero never sends");
        Self { per_second, start_ns: monotonic_ns(), events: 0 }
    }

    /// Waits until the next event is due, and counts it.
    pub fn wait(&mut self) {
        sleep_until_ns(self.due_ns(monotonic_ns()));
        self.advance(1);
    }

    /// Time of the next event by CLOCK_MONOTONIC, not further in the past than may be caught up.
    pub(crate) fn due_ns(&mut self, now_ns: u64) -> u64 {
        let offset_ns = u128::from(self.events) * 1_000_000_000 / u128::from(self.per_second);
        let due_ns = self.start_ns + offset_ns as u64;
        let lost_ns = now_ns.saturating_sub(due_ns + CATCH_UP_NS);
        self.start_ns += lost_ns;
        due_ns + lost_ns
    }

    /// Counts past events.
    pub(crate) fn advance(&mut self, events: u64) {
        self.events += events;
    }
}

/// Waits until CLOCK_MONOTONIC reaches `due_ns` nanoseconds: sleeps while that is precise enough,
/// then spins.
pub fn sleep_until_ns(due_ns: u64) {
    loop {
        let remaining_ns = due_ns.saturating_sub(monotonic_ns());
        if remaining_ns == 0 {
            return;
        }
        match remaining_ns.checked_sub(SLEEP_SLACK_NS) {
            Some(exact_ns) => thread::sleep(Duration::from_nanos(exact_ns)),
            None => hint::spin_loop(),
        }
    }
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_event_is_early() {
        let mut pacer = Pacer::new(3_000);
        let start_ns = pacer.start_ns;
        for event in 0..30 {
            pacer.wait();
            assert!(monotonic_ns() >= start_ns + event * 1_000_000_000 / 3_000);
        }
    }

    #[test]
    fn fractions_of_a_nanosecond_do_not_add_up() {
        let mut pacer = Pacer::new(3_000_000);
        let start_ns = pacer.start_ns;
        pacer.advance(3_000_000);
        assert_eq!(pacer.due_ns(start_ns), start_ns + 1_000_000_000);
    }

    #[test]
    fn a_stall_is_forgiven_but_for_a_millisecond() {
        let mut pacer = Pacer::new(1_000_000);
        let start_ns = pacer.start_ns;
        let stalled_until_ns = start_ns + 20_000_000;
        assert_eq!(pacer.due_ns(stalled_until_ns), stalled_until_ns - CATCH_UP_NS);
        pacer.advance(500);
        assert_eq!(pacer.due_ns(stalled_until_ns), stalled_until_ns - CATCH_UP_NS + 500_000);
    }
}
