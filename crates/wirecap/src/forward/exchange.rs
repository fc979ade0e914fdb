//! All ports of a forwarding capture, and the return of cells from them.
//!
//! Completions are processed by every thread that sends, captures or recycles, and by the keeper,
//! on all ports, up to 64 at a time. The thread reads them under the lock of the queue, releases
//! that lock, and returns the cells under the lock of their owner. A burst therefore finds all R x
//! M cells except those that are being sent or were completed after a thread last read the
//! completions.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::forward::Sequence;
use crate::forward::outlet::Outlet;
use crate::ledger::{PortAccount, PortLedger};
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
use crate::umem::owners::Owners;

/// All ports of a capture.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// The owners of cells; `None` if all packets are copied.
    pub(super) owners: Option<Arc<Owners>>,
    pub(super) ports: Vec<PortShared>,
    /// The sequences that keep rings in order, if order is kept.
    orders: Vec<Arc<Sequence>>,
    /// Number of packets that a port collects before it hands them over.
    pub(super) batch_packets: usize,
}

/// The state that the handles on one port share.
#[derive(Debug)]
pub(crate) struct PortShared {
    pub(crate) name: String,
    /// Its transmit queues, as many as outlets.
    pub(crate) queues: Vec<u32>,
    pub(crate) outlets: Vec<Arc<dyn Outlet>>,
    /// Bytes of the shortest frame.
    shortest: usize,
    /// Bytes of the longest frame, which changes with the MTU.
    longest: AtomicUsize,
    pub(super) bad_length: AtomicU64,
    pub(super) no_cell: AtomicU64,
    pub(super) copied: AtomicU64,
}

impl PortShared {
    pub(crate) fn new(
        name: String,
        queues: Vec<u32>,
        outlets: Vec<Arc<dyn Outlet>>,
        lens: RangeInclusive<usize>,
    ) -> Self {
        let bad_length = AtomicU64::new(0);
        let no_cell = AtomicU64::new(0);
        let copied = AtomicU64::new(0);
        let shortest = *lens.start();
        let longest = AtomicUsize::new(*lens.end());
        Self { name, queues, outlets, shortest, longest, bad_length, no_cell, copied }
    }

    /// Bytes that frames may have.
    pub(super) fn lens(&self) -> RangeInclusive<usize> {
        self.shortest..=self.longest.load(Ordering::Relaxed)
    }

    /// The index of `queue`, or of its substitute, among the transmit queues.
    pub(super) fn lane_of(&self, queue: u32) -> usize {
        let place = queue as usize;
        // In most cases all queues from 0 on exist.
        if self.queues.get(place) == Some(&queue) {
            return place;
        }
        self.queues.iter().position(|own| *own == queue).unwrap_or(place % self.queues.len())
    }

    pub(super) fn account(&self) -> PortAccount {
        let [bad_length, no_cell, copied] = [&self.bad_length, &self.no_cell, &self.copied]
            .map(|count| count.load(Ordering::Relaxed));
        let mut sum = PortAccount { taken: bad_length + no_cell, copied, ..PortAccount::default() };
        sum.dropped.bad_length = bad_length;
        sum.dropped.no_cell = no_cell;
        self.outlets.iter().for_each(|outlet| sum.add(&outlet.account()));
        sum
    }
}

impl Exchange {
    pub(crate) fn new(
        owners: Option<Arc<Owners>>,
        ports: Vec<PortShared>,
        orders: Vec<Arc<Sequence>>,
        batch_packets: usize,
    ) -> Self {
        Self { owners, ports, orders, batch_packets }
    }

    /// The interfaces of the ports.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.ports.iter().map(|port| port.name.as_str())
    }

    /// Sets the maximum length of frames on the port at `index`.
    pub(crate) fn set_longest(&self, index: usize, bytes: usize) {
        if let Some(port) = self.ports.get(index) {
            port.longest.store(bytes, Ordering::Relaxed);
        }
    }

    fn outlets(&self) -> impl Iterator<Item = &Arc<dyn Outlet>> {
        self.ports.iter().flat_map(|port| &port.outlets)
    }

    /// The owners of the cells.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn owners(&self) -> &Arc<Owners> {
        self.owners.as_ref().expect("there are cells")
    }

    /// Number of free cells for new packets.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn new_cells(&self) -> usize {
        self.owners.as_ref().map_or(0, |owners| owners.new_cells())
    }

    /// Cells of packets that wait for earlier chunks.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn parked_cells(&self) -> usize {
        self.orders.iter().map(|order| order.parked_cells()).sum()
    }

    /// Takes back the cells that the kernel has sent.
    pub(crate) fn collect(&self) {
        self.outlets().for_each(|outlet| outlet.collect());
    }

    /// Completes pending work of ports that are not sending at the moment.
    // Not inlined, so that it takes no space in the code of captures that do not forward.
    #[inline(never)]
    pub(crate) fn tend(&self) {
        for outlet in self.outlets() {
            outlet.collect();
            outlet.push_on();
        }
        self.orders.iter().for_each(|order| order.tend());
    }

    /// Whether packets wait that only [`tend`](Self::tend) can send.
    pub(crate) fn is_busy(&self) -> bool {
        self.outlets().any(|outlet| outlet.is_lagging())
            || self.orders.iter().any(|order| order.is_blocked())
    }

    /// The ports' parts of the ledger.
    pub(crate) fn ledgers(&self) -> Vec<PortLedger> {
        let page =
            |port: &PortShared| PortLedger { name: port.name.clone(), account: port.account() };
        self.ports.iter().map(page).collect()
    }

    /// Sends the waiting packets as far as possible, and none afterwards.
    pub(crate) fn close(&self) {
        self.orders.iter().for_each(|order| order.close());
        self.outlets().for_each(|outlet| outlet.close());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_a_port_lacks_has_a_substitute() {
        let lanes = |queues: &[u32]| {
            let port = PortShared::new(String::new(), queues.to_vec(), Vec::new(), 0..=0);
            [0, 1, 2, 3].map(|queue| port.lane_of(queue))
        };
        assert_eq!(lanes(&[0, 1, 2, 3]), [0, 1, 2, 3]);
        assert_eq!(lanes(&[0, 1]), [0, 1, 0, 1]);
        assert_eq!(lanes(&[1, 3]), [0, 0, 0, 1]);
        assert_eq!(lanes(&[2]), [0, 0, 0, 0]);
    }
}
