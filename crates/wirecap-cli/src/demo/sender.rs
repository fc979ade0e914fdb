//! The demo's sender: one thread, four queues, no hurry.

use std::time::{Duration, Instant};

use wirecap_send::{
    AfXdpSender, Counters, Pacer, SendError, SetupError, Snapshot, Stamp, Traffic, VethPair,
};

use crate::shared::signals::Interruption;

/// Frames sent back to back, between two looks at the clock.
const BATCH_FRAMES: u64 = 64;

/// The queues that frames are for, in turn: as uneven as a network card's hash makes it when a few
/// flows are much larger than the others. Nine of sixteen frames are for queue 0.
pub(super) const SKEWED: [u16; 16] = [0, 1, 0, 2, 0, 1, 0, 0, 3, 0, 1, 0, 2, 0, 1, 0];

/// A series of frames.
#[derive(Debug, Clone, Copy)]
pub(super) struct Burst {
    /// The most frames that are sent.
    pub(super) frames: u64,
    /// The longest time that is sent for.
    pub(super) duration: Duration,
    pub(super) per_second: u64,
    /// The queues, in turn.
    pub(super) turns: &'static [u16],
}

/// Sends on the near end of the cable, on any queue, whatever CPUs there are.
#[derive(Debug)]
pub(super) struct Sender {
    queues: Vec<AfXdpSender>,
    traffic: Traffic,
    counters: Counters,
}

impl Sender {
    pub(super) fn on(pair: &VethPair) -> Result<Self, SetupError> {
        let queues = 0..pair.sender.queue_count;
        Ok(Self {
            queues: queues
                .map(|queue| AfXdpSender::on(&pair.sender, queue))
                .collect::<Result<_, _>>()?,
            traffic: Traffic::to(&pair.receiver),
            counters: Counters::of(&pair.sender)?,
        })
    }

    /// Sends the burst, or the beginning of it if a signal comes.
    pub(super) fn send(
        &mut self,
        burst: Burst,
        interruption: &Interruption,
    ) -> Result<(), SendError> {
        let mut pacer = Pacer::new((burst.per_second / BATCH_FRAMES).max(1));
        let mut turns = burst.turns.iter().cycle();
        let started = Instant::now();
        let mut left = burst.frames;

        while left > 0 && started.elapsed() < burst.duration && !interruption.came() {
            pacer.wait();
            let batch = left.min(BATCH_FRAMES);
            turns.by_ref().take(batch as usize).try_for_each(|&queue| self.send_frame(queue))?;
            left -= batch;
        }

        self.queues.iter_mut().try_for_each(AfXdpSender::flush)
    }

    fn send_frame(&mut self, queue: u16) -> Result<(), SendError> {
        let sender = &mut self.queues[usize::from(queue)];
        sender.send(&self.traffic.frame(Stamp { queue, sequence: sender.sent() }))
    }

    /// How many frames the interface has counted, which knows nothing of wirecap.
    pub(super) fn count(&mut self) -> Result<Snapshot, SetupError> {
        self.counters.since_start()
    }

    /// From now on the interface's count begins at 0.
    pub(super) fn restart_count(&mut self) -> Result<(), SetupError> {
        self.counters.restart()
    }
}
