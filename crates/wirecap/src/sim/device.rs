//! A simulated device: receive queues with counters, in front of the simulated kernels of a
//! capture's rings.

use std::sync::Arc;

use crate::sim::{Fate, SimKernel};
use crate::time::Timestamp;

/// The state of a receive queue of a [`SimDevice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueState {
    /// Its packets reach the capture.
    Works,
    /// The device discards its packets, and its driver counts none.
    Silent,
    /// Its driver counts its packets, and they reach no ring.
    Bypassed,
}

/// What a [`SimDevice`] has counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SimCounts {
    /// Packets of each queue, counted by the driver.
    pub queues: Vec<u64>,
    /// Packets counted by the device before it distributed them.
    pub on_wire: u64,
    /// Packets that the device dropped and counted.
    pub dropped: u64,
}

/// A device with receive queues, each with the ring of a capture. Its driver counts the packets of
/// a queue in batches, as drivers do: see [`count`](Self::count).
#[derive(Debug)]
pub struct SimDevice {
    kernels: Vec<Arc<SimKernel>>,
    states: Vec<QueueState>,
    uncounted: Vec<u64>,
    counts: SimCounts,
    is_dead: bool,
    has_carrier: bool,
}

impl SimDevice {
    /// A device whose queues have the rings of these kernels.
    pub fn new(kernels: Vec<Arc<SimKernel>>) -> Self {
        let queues = kernels.len();
        Self {
            kernels,
            states: vec![QueueState::Works; queues],
            uncounted: vec![0; queues],
            counts: SimCounts { queues: vec![0; queues], ..SimCounts::default() },
            is_dead: false,
            has_carrier: true,
        }
    }

    /// Number of its queues.
    pub fn queues(&self) -> usize {
        self.states.len()
    }

    /// A packet comes to `queue`; `None` if it does not reach the queue's ring.
    pub fn receive(&mut self, queue: usize, packet: &[u8], at: Timestamp) -> Option<Fate> {
        if self.is_dead || !self.has_carrier {
            return None;
        }
        self.counts.on_wire += 1;
        if self.states[queue] == QueueState::Silent {
            return None;
        }
        self.uncounted[queue] += 1;
        // A queue that has appeared has no ring yet.
        let kernel = self.kernels.get(queue).filter(|_| self.states[queue] == QueueState::Works)?;
        Some(kernel.receive(packet, at))
    }

    /// The device has no room for a packet, and counts it.
    pub fn drop_packet(&mut self) {
        if !self.is_dead && self.has_carrier {
            self.counts.on_wire += 1;
            self.counts.dropped += 1;
        }
    }

    /// The driver counts the packets of the batches that are complete.
    pub fn count(&mut self) {
        for (count, more) in self.counts.queues.iter_mut().zip(&mut self.uncounted) {
            *count += std::mem::take(more);
        }
    }

    /// What it has counted.
    pub fn counts(&self) -> &SimCounts {
        &self.counts
    }

    /// Its counters begin again at 0, as when its driver is bound again.
    pub fn reset_counters(&mut self) {
        self.counts = SimCounts { queues: vec![0; self.states.len()], ..SimCounts::default() };
    }

    /// Changes the state of a queue.
    pub fn set_queue(&mut self, queue: usize, state: QueueState) {
        self.states[queue] = state;
    }

    /// It was reset without its driver: it keeps its carrier, receives nothing and counts nothing.
    pub fn die(&mut self) {
        self.is_dead = true;
    }

    /// Its driver starts it again.
    pub fn restart(&mut self) {
        self.is_dead = false;
        self.states.fill(QueueState::Works);
    }

    /// Whether it has a carrier; without one it receives nothing.
    pub fn set_carrier(&mut self, has_carrier: bool) {
        self.has_carrier = has_carrier;
    }

    /// A queue appears. It works when the capture has [given it a ring](Self::seat).
    pub fn add_queue(&mut self) {
        self.states.push(QueueState::Works);
        self.uncounted.push(0);
        self.counts.queues.push(0);
    }

    /// The first queue without a ring gets the one of `kernel`.
    pub fn seat(&mut self, kernel: Arc<SimKernel>) {
        self.kernels.push(kernel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sim::{SimCapture, SimSettings};

    #[test]
    fn each_kind_of_failure_moves_its_own_counters() {
        let capture = SimCapture::new(&SimSettings { rings: 2, ..SimSettings::default() });
        let mut device =
            SimDevice::new((0..2).map(|ring| Arc::clone(capture.kernel(ring))).collect());
        let receive = |device: &mut SimDevice| {
            let fate = device.receive(1, &[7], Timestamp::default());
            device.count();
            fate
        };
        assert_eq!(receive(&mut device), Some(Fate::Received));
        device.set_queue(1, QueueState::Bypassed);
        assert_eq!(receive(&mut device), None);
        assert_eq!(*device.counts(), SimCounts { queues: vec![0, 2], on_wire: 2, dropped: 0 });
        device.set_queue(1, QueueState::Silent);
        receive(&mut device);
        device.drop_packet();
        assert_eq!(*device.counts(), SimCounts { queues: vec![0, 2], on_wire: 4, dropped: 1 });
        device.die();
        receive(&mut device);
        device.drop_packet();
        assert_eq!(device.counts().on_wire, 4);
        device.restart();
        assert_eq!(receive(&mut device), Some(Fate::Received));
        assert_eq!(capture.backlog(1), 2);
        device.reset_counters();
        assert_eq!(*device.counts(), SimCounts { queues: vec![0, 0], on_wire: 0, dropped: 0 });
    }
}
