//! Puts the packets of several rings into the order of their times, within a bounded window.
//!
//! Each ring delivers in order. A packet may be written when no ring can still deliver an earlier
//! one: a ring whose last captured packet is later cannot, and neither can one that was found empty
//! at a later time. Packets are published some time after their timestamp, so the publication delay
//! is subtracted from the time of "found empty".
//!
//! The times of a chunk's packets are collected in one loop when the chunk arrives, so that the
//! processor's cache misses overlap. The earliest head of all rings is at the root of a tournament
//! tree, in which each emitted packet changes one path.
//!
//! The delay is 2 ms with `xdp`; with `packet` it is the time for which the socket holds packets,
//! plus 50 ms. It follows the engines in use: it grows before an interface is returned to the host
//! and its packet sockets receive. At most as many packets as a quarter of all cells are held back;
//! beyond that, the oldest are written before the window has passed, until half of that number is
//! left. If the clock is set back by more than 10 ms (compared with the monotonic clock), all held
//! packets are written first.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use wirecap::{Chunk, Packet, Timestamp};

/// The clock was set back if it lost more than this compared with a clock that is never set. A
/// slewed clock loses at most 0.5 ms per second.
const STEP_NANOS: i128 = 10_000_000;

/// Of a ring without packets.
const NO_TIME: u64 = u64::MAX;

/// Chunks of several rings on their way to one file.
#[derive(Debug)]
pub(crate) struct Merge {
    rings: Vec<Queue>,
    /// Of each leaf's ring, the time of its next packet.
    heads: Box<[u64]>,
    /// The ring with the earliest head below each node; the root is 1, the leaves are the second
    /// half.
    winners: Box<[u32]>,
    clocks: Clocks,
    held: usize,
    held_max: usize,
    /// Too many packets are held: they are emitted out of order until half of the limit is left.
    is_shedding: bool,
    /// Maximum time from a packet's timestamp until it appears on its ring.
    delay: Duration,
    /// Memory for times.
    spare: Vec<Vec<u64>>,
}

/// A clock that may be set, and one that is not.
#[derive(Debug, Default)]
struct Clocks(Option<(Timestamp, Instant)>);

impl Clocks {
    fn step_back(&mut self, time: Timestamp, now: Instant) -> bool {
        let Some((last_time, last)) = self.0.replace((time, now)) else { return false };
        #[cfg(sabotage)]
        if crate::sabotage::is("clock-step-unnoticed") {
            return false;
        }
        let by_clock = i128::from(time.unix_nanos()) - i128::from(last_time.unix_nanos());
        by_clock + STEP_NANOS < (now - last).as_nanos().cast_signed()
    }
}

#[derive(Debug)]
struct Queue {
    chunks: VecDeque<Held>,
    /// The next packet of the first chunk.
    next: usize,
    /// No later packet of this ring has an earlier time.
    complete_until: Timestamp,
}

#[derive(Debug)]
struct Held {
    chunk: Chunk,
    /// Of its packets, below `NO_TIME`.
    times: Vec<u64>,
}

impl Merge {
    /// For `ring_count` rings, on which packets appear up to `delay` after they were stamped; holds
    /// at most `held_max` packets back, then emits packets out of order.
    pub(crate) fn new(ring_count: usize, held_max: usize, delay: Duration) -> Self {
        let queue =
            || Queue { chunks: VecDeque::new(), next: 0, complete_until: Timestamp::default() };
        let leaves = ring_count.next_power_of_two();
        let winners = (0..2 * leaves).map(|node| node.saturating_sub(leaves) as u32).collect();

        let mut merge = Self {
            rings: (0..ring_count).map(|_| queue()).collect(),
            heads: vec![NO_TIME; leaves].into(),
            winners,
            clocks: Clocks::default(),
            held: 0,
            held_max,
            is_shedding: false,
            delay,
            spare: Vec::new(),
        };
        (0..leaves).for_each(|leaf| replay(&merge.heads, &mut merge.winners, leaf));

        merge
    }

    /// Whether the clock of the packets' times, `time` now, was set back since the last call. Held
    /// packets then precede all later ones although their times do not: they must be
    /// [given out](Self::emit_all).
    pub(crate) fn is_after_step(&mut self, time: Timestamp, now: Instant) -> bool {
        let stepped = self.clocks.step_back(time, now);
        if stepped {
            // By the old time, which the clock will reach again only later.
            self.rings.iter_mut().for_each(|queue| queue.complete_until = Timestamp::default());
        }
        stepped
    }

    /// From now on packets appear up to `delay` after they were stamped, and at most `held_max`
    /// packets are held back.
    pub(crate) fn set_limits(&mut self, held_max: usize, delay: Duration) {
        (self.held_max, self.delay) = (held_max, delay);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Packets that are held.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Takes a chunk, whose packets must have times.
    pub(crate) fn push(&mut self, chunk: Chunk) {
        if chunk.len() == 0 {
            return;
        }

        let ring = chunk.ring_index();
        let mut times = self.spare.pop().unwrap_or_default();
        times.extend(chunk.iter().map(|packet| match packet.timestamp() {
            Some(time) => time.unix_nanos().min(NO_TIME - 1),
            None => 0,
        }));

        let queue = &mut self.rings[ring];
        self.held += times.len();

        let last = times.last().copied().map(Timestamp::from_unix_nanos);
        queue.complete_until = queue.complete_until.max(last.unwrap_or_default());

        let first = times.first().copied();
        queue.chunks.push_back(Held { chunk, times });

        if let (1, Some(first)) = (queue.chunks.len(), first) {
            self.heads[ring] = first;
            replay(&self.heads, &mut self.winners, ring);
        }
    }

    /// Records that a ring was empty at `time`.
    pub(crate) fn found_empty(&mut self, ring: usize, time: Timestamp) {
        let delay = self.delay.as_nanos() as u64;
        let until = Timestamp::from_unix_nanos(time.unix_nanos().saturating_sub(delay));
        let queue = &mut self.rings[ring];
        queue.complete_until = queue.complete_until.max(until);
    }

    /// Emits, in order, the packets that no earlier one can follow, and those held beyond the
    /// limit, but at most `packets_max`. Returns whether there are more of them.
    pub(crate) fn emit<E>(
        &mut self,
        packets_max: usize,
        mut write: impl FnMut(Packet<'_>, &Chunk) -> Result<(), E>,
    ) -> Result<bool, E> {
        const WINDOW: u64 = Duration::from_millis(1).as_nanos() as u64;
        let safe = self
            .rings
            .iter()
            .map(|queue| queue.complete_until.unix_nanos())
            .min()
            .unwrap_or_default();

        let mut left = packets_max;

        loop {
            left -= self.emit_until(safe, left, &mut write)?;
            self.is_shedding &= self.held > self.held_max / 2;
            self.is_shedding |= self.held > self.held_max;

            let first = self.heads[self.winners[1] as usize];
            if left == 0 || first > safe && (!self.is_shedding || first == NO_TIME) {
                return Ok(left == 0);
            }
            if first > safe {
                left -= self.emit_until(first.saturating_add(WINDOW), left, &mut write)?;
            }
        }
    }

    /// Gives out everything.
    pub(crate) fn emit_all<E>(
        &mut self,
        mut write: impl FnMut(Packet<'_>, &Chunk) -> Result<(), E>,
    ) -> Result<(), E> {
        self.emit_until(NO_TIME - 1, usize::MAX, &mut write).map(drop)
    }

    /// Gives out the packets up to a time, at most `packets_max`, and returns their number.
    fn emit_until<E>(
        &mut self,
        until: u64,
        packets_max: usize,
        write: &mut impl FnMut(Packet<'_>, &Chunk) -> Result<(), E>,
    ) -> Result<usize, E> {
        let Self { rings, heads, winners, spare, .. } = self;
        let until = until.min(NO_TIME - 1);
        let mut given = 0;
        let mut outcome = Ok(());

        while given < packets_max && outcome.is_ok() {
            let ring = winners[1] as usize;
            if heads[ring] > until {
                break;
            }

            let queue = &mut rings[ring];
            let front = queue.chunks.front().expect("a ring with a time has a chunk");

            // By index: an iterator would walk over the skipped ones.
            let chunk = &front.chunk;
            chunk.fetch(queue.next + Chunk::PACKETS_AHEAD);

            let packet = chunk.get(queue.next).expect("it has as many packets as times");
            outcome = write(packet, chunk);
            given += 1;
            queue.next += 1;
            heads[ring] = match front.times.get(queue.next) {
                Some(&time) => time,
                None => queue.next_chunk(spare),
            };
            replay(heads, winners, ring);
        }

        self.held -= given;
        outcome.map(|()| given)
    }
}

impl Queue {
    /// Gives the first chunk back, and the time of the next one's first packet.
    fn next_chunk(&mut self, spare: &mut Vec<Vec<u64>>) -> u64 {
        if let Some(Held { mut times, .. }) = self.chunks.pop_front() {
            times.clear();
            spare.push(times);
        }
        self.next = 0;
        self.chunks.front().map_or(NO_TIME, |held| held.times[0])
    }
}

/// Finds the winners again on the way from a leaf whose head has changed.
#[inline]
fn replay(heads: &[u64], winners: &mut [u32], leaf: usize) {
    let mut node = (heads.len() + leaf) / 2;
    while node > 0 {
        let left = winners[2 * node];
        let right = winners[2 * node + 1];
        let is_right = heads[right as usize] < heads[left as usize];
        winners[node] = if is_right { right } else { left };
        node /= 2;
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
    fn a_clock_set_back_is_detected_and_a_clock_slewed_or_set_forward_is_not() {
        let mut clocks = Clocks::default();
        let start = Instant::now();
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

        // Ten seconds back: by the times alone no ring is complete before another ten seconds are
        // over.
        assert!(merge.is_after_step(at(90 * SECOND), after(1)));
        merge.found_empty(0, at(90 * SECOND));
        merge.found_empty(1, at(90 * SECOND));

        let until = merge.rings.iter().map(|queue| queue.complete_until).max().unwrap();
        assert!(until < at(90 * SECOND), "{until:?}");
    }
}
