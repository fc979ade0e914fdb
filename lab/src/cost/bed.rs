//! The live bed: a veth pair, an in-kernel sender, and the account of its frames.
//!
//! On a veth the sender's core also receives: a run measures the time of a frame on this core, from
//! its creation until it is dropped, passed on or in a cell.

use std::thread;
use std::time::{Duration, Instant};

use wirecap_testbed::{Counters, Generator, Interface, Load, Namespace, Sent, Traffic, VethPair};

use super::CostError;
use super::book::Book;

/// Maximum time for sent frames to arrive and be delivered.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
const GLANCE: Duration = Duration::from_millis(1);
const MTU_BYTES: u32 = 1500;
/// A run that waited more than this share of its time for a CPU was disturbed.
const DISTURBED_SHARE: f64 = 0.04;

/// The bed.
#[derive(Debug)]
pub(super) struct Bed {
    pub(super) receiver: Interface,
    /// Where the sender's frames arrive.
    pub(super) queue: u32,
    generator: Generator,
    near: Counters,
    far: Counters,
}

/// What sending took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    pub(super) ns_per_frame: f64,
    /// The share of the time that others had the sender's CPU.
    pub(super) waited: f64,
}

impl Pace {
    fn of(sent: &Sent) -> Self {
        let seconds = sent.duration.as_secs_f64();
        Self {
            ns_per_frame: seconds * 1e9 / sent.frames as f64,
            waited: sent.waited.as_secs_f64() / seconds,
        }
    }

    pub(super) fn is_disturbed(&self) -> bool {
        self.waited > DISTURBED_SHARE
    }
}

impl Bed {
    /// A bed whose receiver has this many queues. Frames are sent to the first queue that a CPU
    /// reaches.
    pub(super) fn new(queue_count: u32) -> Result<Self, CostError> {
        let here = Namespace::new()?;
        let there = Namespace::new()?;
        let pair = VethPair::new((&here, "a0"), (&there, "a1"), queue_count, MTU_BYTES)?;
        let generator = Generator::new(&pair.sender, &Traffic::to(&pair.receiver))?;
        Ok(Self {
            queue: (0..queue_count).find(|&queue| generator.reaches(queue)).unwrap_or(0),
            generator,
            near: Counters::of(&pair.sender)?,
            far: Counters::of(&pair.receiver)?,
            receiver: pair.receiver,
        })
    }

    /// Starts a new account.
    pub(super) fn begin(&mut self) -> Result<(), CostError> {
        self.near.restart()?;
        Ok(self.far.restart()?)
    }

    /// Sends this many frames as fast as possible.
    pub(super) fn send(&mut self, frames: u64) -> Result<Pace, CostError> {
        let sent = self.generator.send(&[Load::new(self.queue, frames)])?;
        Ok(Pace::of(&sent[0]))
    }

    /// Waits until the program has processed all frames that the receiving interface accepted.
    pub(super) fn settle(&mut self) -> Result<(), CostError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let taken: u64 =
                self.near.since_start()?.tx_queues.iter().map(|queue| queue.xdp_xmit).sum();
            let met: u64 =
                self.far.since_start()?.rx_queues.iter().map(|queue| queue.xdp_packets).sum();
            if met >= taken || Instant::now() > deadline {
                return Ok(());
            }
            thread::sleep(GLANCE);
        }
    }

    /// The interfaces' counts since the account was started, for a run that sent this many frames.
    pub(super) fn book(&mut self, run: &'static str, sent: u64) -> Result<Book, CostError> {
        let near = self.near.since_start()?;
        let far = self.far.since_start()?;
        Ok(Book {
            run,
            sent,
            refused: sent.saturating_sub(near.handed_over_as_xdp()),
            lost: near.tx_queues.iter().map(|queue| queue.xdp_xmit_errors).sum(),
            passed: far.rx_queues.iter().map(wirecap_testbed::RxQueueCounts::passed).sum(),
            dropped: far.rx_queues.iter().map(|queue| queue.xdp_drops).sum(),
            delivered: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_book_balances_if_every_frame_is_accounted_for_once() {
        let book = Book {
            run: "a run",
            sent: 10,
            lost: 1,
            passed: 2,
            dropped: 3,
            delivered: 4,
            refused: 0,
        };
        assert!(book.balances());
        assert!(!Book { delivered: 5, ..book.clone() }.balances());
        assert!(!Book { lost: 0, ..book }.balances());
    }
}
