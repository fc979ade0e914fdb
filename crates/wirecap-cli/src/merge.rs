//! Puts the packets of several rings into the order of their times, within a bounded window.
//!
//! Each ring delivers in order. A packet may be written when no ring can still deliver an earlier one:
//! a ring whose last captured packet is later cannot, and neither can one that was found empty at a
//! later time. Packets are published some time after they were stamped, so "found empty" counts with
//! the publication delay taken off.

use std::collections::VecDeque;
use std::time::Duration;

use wirecap::{Chunk, Packet, Timestamp};

/// Chunks of several rings on their way to one file.
#[derive(Debug)]
pub(crate) struct Merge {
    rings: Vec<Queue>,
    held: usize,
    held_max: usize,
    /// How long after its stamp a packet may appear on its ring.
    delay: Duration,
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
        Self { rings: (0..ring_count).map(|_| queue()).collect(), held: 0, held_max, delay }
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
