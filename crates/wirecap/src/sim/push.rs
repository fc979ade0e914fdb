//! Load sharing as in the paper: capture threads push chunks into workers' queues.
//!
//! Neither pushing nor pulling loses packets under any imbalance that the group can process. Pull
//! leaves more of a ring's chunks with its own worker and loses nothing to a worker that ends.
//! While the whole group is overloaded, pushed chunks fill all pools, whereas helpers that pull let
//! their own pools fill up to T. So pull loses at most (1 - T) (W - 1) R M packets more than push,
//! once, however long the overload lasts. With M = R = 100, T = 60 % and four rings, loads of 2.0,
//! 0.8, 0.8 and 0.8 workers for 20 s lose 55,728 packets pulled and 55,873 pushed; loads of 1.6,
//! 1.2, 1.0 and 0.4 lose 14,991 and 12,597.

use std::collections::VecDeque;

use crate::ledger::Mode;
use crate::sim::{Answer, SimSettings};
use crate::umem::chunk::Chunk;

/// The capture queues of a buddy group.
#[derive(Debug)]
pub(super) struct Push {
    queues: Vec<Queue>,
    /// Length of a queue from which on other workers get the next chunk; `None` in basic mode.
    threshold: Option<f64>,
    /// Number of packets of each ring in the queues.
    waiting: Vec<u32>,
}

#[derive(Debug, Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    is_abandoned: bool,
}

impl Push {
    pub(super) fn new(settings: &SimSettings) -> Self {
        let threshold = match settings.mode {
            Mode::Basic => None,
            Mode::Advanced(share) => Some(share * f64::from(settings.geometry.chunks)),
        };
        let queues = (0..settings.workers).map(|_| Queue::default()).collect();
        Self { queues, threshold, waiting: vec![0; settings.rings] }
    }

    /// Puts `chunk`, of a ring of worker `home`, into a queue, and returns that queue's worker.
    pub(super) fn place(&mut self, chunk: Chunk, home: usize) -> usize {
        let worker = if self.is_busy(home) { self.least_busy().unwrap_or(home) } else { home };
        self.waiting[chunk.ring_index()] += chunk.len() as u32;
        self.queues[worker].chunks.push_back(chunk);
        worker
    }

    fn is_busy(&self, worker: usize) -> bool {
        let queue = &self.queues[worker];
        let above = |threshold| queue.is_abandoned || queue.chunks.len() as f64 > threshold;
        self.threshold.is_some_and(above)
    }

    fn least_busy(&self) -> Option<usize> {
        let present = (0..self.queues.len()).filter(|&worker| !self.queues[worker].is_abandoned);
        present.min_by_key(|&worker| self.queues[worker].chunks.len())
    }

    /// The answer to a request of `worker`. If `drained`, no further chunks will be pushed.
    pub(super) fn next_chunk(&mut self, worker: usize, drained: bool) -> Answer {
        match self.queues[worker].chunks.pop_front() {
            Some(chunk) => {
                self.waiting[chunk.ring_index()] -= chunk.len() as u32;
                Answer::Chunk { chunk, wake: Vec::new() }
            }
            None if drained => Answer::Ended,
            None => Answer::Nothing,
        }
    }

    /// Removes `worker`. Chunks in its queue stay there, because the paper has no way to take them
    /// back.
    pub(super) fn abandon(&mut self, worker: usize) {
        self.queues[worker].is_abandoned = true;
    }

    /// Number of packets of `ring` in the queues.
    pub(super) fn waiting(&self, ring: usize) -> u32 {
        self.waiting[ring]
    }

    /// Takes out the chunks that will not be processed.
    pub(super) fn discard(&mut self) -> impl Iterator<Item = Chunk> {
        self.queues.iter_mut().flat_map(|queue| queue.chunks.drain(..))
    }
}
