//! Puts the packets of several rings into the order of their times, within a bounded window.
//!
//! Each ring delivers in order. A packet may be written when no ring can still deliver an earlier one:
//! a ring whose last captured packet is later cannot, and neither can one that was found empty at a
//! later time. Packets are published some time after they were stamped, so "found empty" counts with
//! the publication delay taken off.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use wirecap::{Chunk, Packet, Timestamp};

/// The clock was set if it went back by more than this against one that is never set. A clock that is slewed loses 0.5 ms
/// in a second, and more in no system call.
const STEP_NANOS: i128 = 10_000_000;

/// Chunks of several rings on their way to one file.
#[derive(Debug)]
pub(crate) struct Merge {
    rings: Vec<Queue>,
    clocks: Clocks,
    held: usize,
    held_max: usize,
    /// How long after its stamp a packet may appear on its ring.
    delay: Duration,
}

/// A clock that may be set, and one that is not.
#[derive(Debug, Default)]
struct Clocks(Option<(Timestamp, Instant)>);

impl Clocks {
    fn step_back(&mut self, time: Timestamp, now: Instant) -> bool {
        let Some((last_time, last)) = self.0.replace((time, now)) else { return false };
        let by_clock = i128::from(time.unix_nanos()) - i128::from(last_time.unix_nanos());
        by_clock + STEP_NANOS < (now - last).as_nanos().cast_signed()
    }
}

#[derive(Debug)]
struct Queue {
    chunks: VecDeque<Chunk>,
    /// The next packet of the first chunk.
    next: usize,
    /// No packet of this ring that is still to come is earlier.
    complete_until: Timestamp,
}

impl Queue {
    fn head(&self) -> Option<Timestamp> {
        self.chunks.front()?.get(self.next)?.timestamp()
    }
}

impl Merge {
    /// For `ring_count` rings, on which packets appear up to `delay` after they were stamped; holds
    /// `held_max` packets back at most, then gives up order for room.
    pub(crate) fn new(ring_count: usize, held_max: usize, delay: Duration) -> Self {
        let queue = || Queue { chunks: VecDeque::new(), next: 0, complete_until: Timestamp::default() };
        let (rings, clocks) = ((0..ring_count).map(|_| queue()).collect(), Clocks::default());
        Self { rings, clocks, held: 0, held_max, delay }
    }

    /// Whether the clock of the packets' times, `time` now, was set back since the last time it was asked. What is held by
    /// then came before all that is to come, and its times do not say so: it must be [given out](Self::emit_all).
    pub(crate) fn is_after_step(&mut self, time: Timestamp, now: Instant) -> bool {
        let stepped = self.clocks.step_back(time, now);
        if stepped {
            // By the old time, which the clock will reach again only later.
            self.rings.iter_mut().for_each(|queue| queue.complete_until = Timestamp::default());
        }
        stepped
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Takes a chunk, whose packets must have times.
    pub(crate) fn push(&mut self, chunk: Chunk) {
        let queue = &mut self.rings[chunk.ring_index()];
        self.held += chunk.len();
        let last = chunk.get(chunk.len() - 1).and_then(|packet| packet.timestamp());
        queue.complete_until = queue.complete_until.max(last.unwrap_or_default());
        queue.chunks.push_back(chunk);
    }

    /// Notes that a ring was empty at `time`.
    pub(crate) fn found_empty(&mut self, ring: usize, time: Timestamp) {
        let delay = self.delay.as_nanos() as u64;
        let until = Timestamp::from_unix_nanos(time.unix_nanos().saturating_sub(delay));
        let queue = &mut self.rings[ring];
        queue.complete_until = queue.complete_until.max(until);
    }

    /// Gives out, in order, every packet that nothing earlier can follow, and as many more as are held
    /// beyond the limit.
    pub(crate) fn emit<E>(
        &mut self,
        mut write: impl FnMut(&Chunk, Packet<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let safe = self.rings.iter().map(|queue| queue.complete_until).min().unwrap_or_default();
        self.emit_until(safe, &mut write)?;
        if self.held > self.held_max {
            let window = Duration::from_millis(1).as_nanos() as u64;
            while self.held > self.held_max / 2 {
                let Some(first) = self.rings.iter().filter_map(Queue::head).min() else { break };
                let until = Timestamp::from_unix_nanos(first.unix_nanos() + window);
                self.emit_until(until, &mut write)?;
            }
        }
        Ok(())
    }

    /// Gives out everything.
    pub(crate) fn emit_all<E>(
        &mut self,
        mut write: impl FnMut(&Chunk, Packet<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.emit_until(Timestamp::from_unix_nanos(u64::MAX), &mut write)
    }

    fn emit_until<E>(
        &mut self,
        until: Timestamp,
        write: &mut impl FnMut(&Chunk, Packet<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some((first, second)) = self.two_earliest(until) {
            self.run(first, second.min(until), write)?;
        }
        Ok(())
    }

    /// The ring with the earliest packet not after `until`, and the time of the earliest packet of any
    /// other ring.
    fn two_earliest(&self, until: Timestamp) -> Option<(usize, Timestamp)> {
        let heads = self.rings.iter().enumerate().filter_map(|(ring, queue)| Some((queue.head()?, ring)));
        let (earliest, ring) = heads.clone().min()?;
        let others = heads.filter(|(_, other)| *other != ring).map(|(time, _)| time);
        (earliest <= until).then(|| (ring, others.min().unwrap_or(until)))
    }

    /// Gives out the packets of one ring up to `until`, one at least.
    fn run<E>(
        &mut self,
        ring: usize,
        until: Timestamp,
        write: &mut impl FnMut(&Chunk, Packet<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let queue = &mut self.rings[ring];
        while let Some(chunk) = queue.chunks.front() {
            let first = queue.next;
            for packet in chunk.iter().skip(first) {
                if queue.next > first && packet.timestamp().is_some_and(|time| time > until) {
                    return Ok(());
                }
                write(chunk, packet)?;
                queue.next += 1;
                self.held -= 1;
            }
            queue.chunks.pop_front();
            queue.next = 0;
            if queue.head().is_none_or(|time| time > until) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_unix_nanos(nanos)
    }

    #[test]
    fn a_clock_that_is_set_back_is_noticed_and_one_that_is_slewed_or_set_forward_is_not() {
        let (mut clocks, start) = (Clocks::default(), Instant::now());
        let seconds = |seconds| start + Duration::from_secs(seconds);
        assert!(!clocks.step_back(at(100 * SECOND), seconds(0)));
        // Slewed by the most that adjtimex(2) does.
        assert!(!clocks.step_back(at(101 * SECOND - SECOND / 2000), seconds(1)));
        assert!(!clocks.step_back(at(200 * SECOND), seconds(2)), "set forward");
        assert!(clocks.step_back(at(190 * SECOND), seconds(3)), "set back by ten seconds");
        assert!(!clocks.step_back(at(191 * SECOND), seconds(4)));
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_stall_the_merge() {
        let mut merge = Merge::new(2, 1000, Duration::from_millis(2));
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        assert!(!merge.is_after_step(at(100 * SECOND), after(0)));
        merge.found_empty(0, at(100 * SECOND));
        merge.found_empty(1, at(100 * SECOND));
        // Ten seconds back: by the times alone no ring is complete before another ten seconds are over.
        assert!(merge.is_after_step(at(90 * SECOND), after(1)));
        merge.found_empty(0, at(90 * SECOND));
        merge.found_empty(1, at(90 * SECOND));
        let until = merge.rings.iter().map(|queue| queue.complete_until).max().unwrap();
        assert!(until < at(90 * SECOND), "{until:?}");
    }
}
