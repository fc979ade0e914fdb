//! Rests of a reader on AF_XDP, whose ring wakes it for the first packet, however few follow.
//!
//! A wake-up costs as much as hundreds of packets. A packet may wait for others until the program's
//! timeout, as in libpcap's blocks, so a reader that has emptied its ring does not look at it for
//! some time.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The share of the ring that may fill during a rest.
const SHARE: f64 = 5.0 / 8.0;
/// The lowest rate, in packets per second, that a rest leaves room for.
const UNSEEN_RATE: f64 = 1e6;
/// The multiple of the recent rate that a rest leaves room for.
const GROWTH: f64 = 4.0;
/// A shorter rest is not worth a separate wake-up: the worker itself sleeps for up to this time.
const SHORTEST: Duration = Duration::from_millis(1);

/// When to rest, and for how long.
#[derive(Debug)]
pub(super) struct Rest {
    /// The longest time that a packet may wait; zero disables rests.
    longest: Duration,
    /// The number of packets that the ring may receive during a rest.
    room: f64,
    /// Packets since the last rest began.
    packets: u64,
    began_nanos: u64,
    /// Packets per second, the recent maximum.
    rate: f64,
}

impl Rest {
    /// For a ring of this many packets.
    pub(super) fn new(longest: Duration, ring_packets: u32) -> Self {
        let room = f64::from(ring_packets) * SHARE;
        Self { longest, room, packets: 0, began_nanos: now_nanos(), rate: 0.0 }
    }

    /// Counts taken packets.
    #[inline]
    pub(super) fn took(&mut self, packets: usize) {
        self.packets += packets as u64;
    }

    /// Whether this reader rests at all.
    #[inline]
    pub(super) fn is_allowed(&self) -> bool {
        !self.longest.is_zero()
    }

    /// Whether no packets have arrived since the last rest began.
    #[inline]
    pub(super) fn is_calm(&self) -> bool {
        self.packets == 0
    }

    /// Begins a rest when the ring is empty, and returns its length. `None` if the reader must wait
    /// for a packet instead: if none have arrived since the last rest, if rests are disabled, or if
    /// the rest would be too short.
    pub(super) fn begin(&mut self) -> Option<Duration> {
        if self.is_calm() || !self.is_allowed() {
            return None;
        }
        let now_nanos = now_nanos();
        let elapsed = (now_nanos - self.began_nanos) as f64 / 1e9;
        let elapsed = elapsed.max(SHORTEST.as_secs_f64());
        self.rate = (std::mem::take(&mut self.packets) as f64 / elapsed).max(self.rate / 2.0);
        self.began_nanos = now_nanos;
        let filled_after = self.room / (self.rate * GROWTH).max(UNSEEN_RATE);
        let rest = self.longest.min(Duration::from_secs_f64(filled_after));
        (rest >= SHORTEST).then_some(rest)
    }
}

/// The monotonic clock, read with the function that the engine uses for its other clocks: after a
/// wake-up, other code is not in the processor's caches.
fn now_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(rest: &mut Rest, packets: usize, elapsed: Duration) -> Option<Duration> {
        rest.took(packets);
        rest.began_nanos = now_nanos() - elapsed.as_nanos() as u64;
        rest.begin()
    }

    #[test]
    fn a_rest_is_as_long_as_packets_may_wait_and_the_ring_holds() {
        let longest = Duration::from_millis(20);
        let second = Duration::from_secs(1);
        let mut rest = Rest::new(longest, 65_536);
        assert_eq!(rest.begin(), None, "nothing has come");
        assert_eq!(after(&mut rest, 10_000, second), Some(longest));
        assert_eq!(rest.begin(), None, "nothing has come since");
        let short = after(&mut rest, 2_000_000, second).unwrap();
        assert!((5_000..5_200).contains(&short.as_micros()), "{short:?}");
        assert!(after(&mut rest, 10, second).unwrap() < longest, "it may grow again");
        assert_eq!(after(&mut rest, 20_000_000, second), None, "too short to be worth it");
        assert_eq!(after(&mut Rest::new(Duration::ZERO, 65_536), 10, second), None);
    }
}
