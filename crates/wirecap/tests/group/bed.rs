//! Where buddy groups are tested, and workers that wait a fixed time per packet: they stand for slow cores,
//! so that two cores can play many.

use std::thread;
use std::time::Duration;

use wirecap::{Capture, CaptureBuilder, Chunk, Ledger};
use wirecap_testbed::{AfXdpSender, Namespace, Pacer, Stamp, Traffic, VethPair};

/// What a worker needs for one packet: it can do 10,000 a second.
pub(crate) const COST: Duration = Duration::from_micros(100);
pub(crate) const WORKER_RATE: f64 = 10_000.0;
/// How long anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Packets of a full chunk.
const CHUNK: f64 = 64.0;
/// How long the load lasts.
pub(crate) const SECONDS: f64 = 3.0;

/// Two namespaces and the cable between them; captures happen at `a1`.
pub(crate) struct Bed {
    _sender: Namespace,
    pub(crate) receiver: Namespace,
    pub(crate) pair: VethPair,
}

impl Bed {
    pub(crate) fn new(queue_count: u32) -> Self {
        let (sender, receiver) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let pair = VethPair::new((&sender, "a0"), (&receiver, "a1"), queue_count, 1500).unwrap();
        Self { _sender: sender, receiver, pair }
    }

    pub(crate) fn open(&self, builder: CaptureBuilder) -> Capture {
        self.receiver.run_in(|| builder.open()).unwrap().unwrap()
    }

    /// Captures with a waiting worker per ring while `send` sends, until everything that was kept has
    /// been processed. `see` gets every chunk with the number of its worker.
    pub(crate) fn process(
        &self,
        builder: CaptureBuilder,
        see: impl Fn(usize, &Chunk) + Sync,
        send: impl FnOnce(&Self) -> u64,
    ) -> (u64, Ledger) {
        let capture = self.open(builder);
        let sent = thread::scope(|scope| {
            for mut worker in capture.workers() {
                let see = &see;
                scope.spawn(move || {
                    while let Some(chunk) = worker.next_chunk().unwrap() {
                        see(worker.index(), &chunk);
                        thread::sleep(COST * chunk.len() as u32);
                    }
                });
            }
            let sent = send(self);
            // From another thread, in the interface's namespace.
            self.receiver.run_in(|| capture.stop()).unwrap();
            sent
        });
        let ledger = self.receiver.run_in(|| capture.close()).unwrap();
        assert_eq!(ledger.total.offered, sent, "{ledger}");
        assert_eq!(ledger.total.offered, ledger.total.delivered + ledger.total.dropped.total(), "{ledger}");
        (sent, ledger)
    }

    /// Sends to each queue at its share of what one worker can do.
    pub(crate) fn load(&self, shares: &[f64]) -> u64 {
        self.load_of(WORKER_RATE, shares)
    }

    /// Sends to each queue at its share of `per_second`, which is what a worker can do.
    pub(crate) fn load_of(&self, per_second: f64, shares: &[f64]) -> u64 {
        let traffic = Traffic::to(&self.pair.receiver);
        thread::scope(|scope| {
            let send = |(queue, &share): (usize, &f64)| {
                let traffic = &traffic;
                scope.spawn(move || self.send(traffic, queue as u16, per_second, share))
            };
            let senders: Vec<_> = shares.iter().enumerate().map(send).collect();
            senders.into_iter().map(|sender| sender.join().unwrap()).sum()
        })
    }

    /// Waits as the workers do, and makes up for nothing: what else a machine has to do makes all of them slower, so
    /// that this stays the share of what a worker can do.
    fn send(&self, traffic: &Traffic, queue: u16, per_second: f64, share: f64) -> u64 {
        let frames = (share * per_second * SECONDS) as u64;
        let mut sender = AfXdpSender::on(&self.pair.sender, queue.into()).unwrap();
        let (mut sent, mut due) = (0, 0.0);
        while sent < frames {
            due += CHUNK * share;
            for sequence in sent..frames.min(due as u64) {
                sender.send(&traffic.frame(Stamp { queue, sequence })).unwrap();
            }
            sender.flush().unwrap();
            sent = frames.min(due as u64);
            thread::sleep(Duration::from_secs_f64(CHUNK / per_second));
        }
        frames
    }
}

/// Sends `frames` frames to `queue`, evenly spaced.
pub(crate) fn send_evenly(
    sender: &mut AfXdpSender,
    traffic: &Traffic,
    queue: u16,
    frames: u64,
    per_second: u64,
) {
    let mut pacer = Pacer::new(per_second.div_ceil(10));
    for sequence in 0..frames {
        if sequence % 10 == 0 {
            sender.flush().unwrap();
            pacer.wait();
        }
        sender.send(&traffic.frame(Stamp { queue, sequence })).unwrap();
    }
    sender.flush().unwrap();
}
