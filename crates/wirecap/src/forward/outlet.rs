//! Outlets, which send packets: a tx ring, or a packet socket; and batches of packets that are
//! handed over together.

use std::fmt;

use crate::ledger::PortAccount;
use crate::sync::{AtomicU64, Ordering};
use crate::sys::xdp::Descriptor;
use crate::umem::tx::TxRing;

/// Packets for one tx queue, in their order.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Their cells, if they are sent without copying.
    pub(crate) cells: Vec<Descriptor>,
    /// Their bytes, one after the other, if they are copied, and the length of each.
    pub(crate) copies: Vec<u8>,
    pub(crate) lens: Vec<u32>,
    /// How many packets there are.
    pub(crate) packets: u64,
}

impl Batch {
    pub(crate) fn with_capacity(cells: usize) -> Self {
        Self { cells: Vec::with_capacity(cells), ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Empties it for its next use.
    pub(crate) fn clear(&mut self) {
        self.cells.clear();
        self.copies.clear();
        self.lens.clear();
        self.packets = 0;
    }
}

/// One transmit queue of an interface, shared by all threads that send on it.
pub(crate) trait Outlet: Send + Sync + fmt::Debug {
    /// Whether packets are sent from copies, not from their cells.
    fn copies(&self) -> bool;
    /// Hands the packets of `batch` to the kernel as far as it accepts them, counts the others as
    /// dropped, and returns their cells. `late`: they are out of their ring's order. Leaves the
    /// batch empty.
    fn submit(&self, batch: &mut Batch, late: bool);
    /// Adds to and subtracts from the number of packets that wait for their turn.
    fn count_parked(&self, coming: u64, going: u64);
    /// Takes back the cells that the kernel has completed.
    fn collect(&self);
    /// Makes the kernel continue with the packets on its ring.
    fn push_on(&self);
    /// Whether its ring has packets that the kernel may soon take.
    fn is_lagging(&self) -> bool;
    /// The account so far.
    fn account(&self) -> PortAccount;
    /// Counts the remaining packets as dropped and releases the kernel's side.
    fn close(&self);
}

/// A tx ring, whose packets are sent from their cells.
#[derive(Debug)]
pub(crate) struct TxOutlet {
    ring: TxRing,
    /// Packets that wait for their turn.
    parked: AtomicU64,
}

impl TxOutlet {
    pub(crate) fn new(ring: TxRing) -> Self {
        Self { ring, parked: AtomicU64::new(0) }
    }
}

impl Outlet for TxOutlet {
    fn copies(&self) -> bool {
        false
    }

    fn submit(&self, batch: &mut Batch, late: bool) {
        self.ring.submit(&batch.cells, batch.packets, late);
        batch.clear();
    }

    fn count_parked(&self, coming: u64, going: u64) {
        self.parked.fetch_add(coming, Ordering::Relaxed);
        self.parked.fetch_sub(going, Ordering::Relaxed);
    }

    fn collect(&self) {
        self.ring.collect();
    }

    fn push_on(&self) {
        self.ring.push_on();
    }

    fn is_lagging(&self) -> bool {
        self.ring.is_lagging()
    }

    fn account(&self) -> PortAccount {
        let parked = self.parked.load(Ordering::Relaxed);
        let account = self.ring.account();
        PortAccount { taken: account.taken + parked, waiting: account.waiting + parked, ..account }
    }

    fn close(&self) {
        self.ring.close();
    }
}
