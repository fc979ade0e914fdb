//! Sending by AF_XDP: any queue, from any CPU, one thread per queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use wirecap_send::{AfXdpSender, Pacer, Rate, SendError, Stamp, Traffic};

use super::{Running, SentOnQueue, Share};

/// Frames between two looks at the clock and at whether to stop.
const BATCH_FRAMES_MAX: u64 = 64;
/// Batches per second of paced frames, as far as the rate suffices: none is held back longer than
/// 0.1 ms.
const BATCHES_PER_SECOND: u64 = 10_000;

/// Threads that send.
#[derive(Debug)]
pub(super) struct XdpRun {
    threads: Vec<JoinHandle<Result<SentOnQueue, SendError>>>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    frames: AtomicU64,
}

impl XdpRun {
    /// Starts to send these shares, each through its own socket.
    pub(super) fn start(senders: Vec<AfXdpSender>, traffic: &Traffic, shares: &[Share]) -> Self {
        let shared = Arc::new(Shared::default());
        let spawn = |(sender, share): (AfXdpSender, &Share)| {
            let share = *share;
            let traffic = traffic.clone();
            let shared = Arc::clone(&shared);
            thread::spawn(move || send(sender, &share, &traffic, &shared))
        };
        Self { threads: senders.into_iter().zip(shares).map(spawn).collect(), shared }
    }
}

fn send(
    mut sender: AfXdpSender,
    share: &Share,
    traffic: &Traffic,
    shared: &Shared,
) -> Result<SentOnQueue, SendError> {
    let queue = share.queue;
    let (batch_max, mut pacer) = match share.rate {
        Rate::Top => (BATCH_FRAMES_MAX, None),
        Rate::PerSecond(rate) => {
            ((rate / BATCHES_PER_SECOND).clamp(1, BATCH_FRAMES_MAX), Some(Pacer::new(rate)))
        }
    };

    let started = Instant::now();

    while sender.sent() < share.frames && !shared.stopped.load(Relaxed) {
        for _ in 0..batch_max.min(share.frames - sender.sent()) {
            if let Some(pacer) = &mut pacer {
                pacer.wait();
            }
            let stamp = Stamp { queue: queue as u16, sequence: sender.sent() };
            sender.send(&traffic.frame(stamp))?;
            shared.frames.fetch_add(1, Relaxed);
        }
        if pacer.is_some() {
            sender.flush()?;
        }
    }

    sender.flush()?;
    Ok(SentOnQueue { queue, frames: sender.sent(), duration: started.elapsed() })
}

impl Running for XdpRun {
    fn frames(&self) -> u64 {
        self.shared.frames.load(Relaxed)
    }

    fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    fn stop(&self) {
        self.shared.stopped.store(true, Relaxed);
    }

    fn outcome(self) -> Result<Vec<SentOnQueue>, SendError> {
        // All threads are joined before any error is examined.
        let joined: Vec<_> = self
            .threads
            .into_iter()
            .map(|thread| thread.join().expect("a sending thread"))
            .collect();
        joined.into_iter().collect()
    }
}
