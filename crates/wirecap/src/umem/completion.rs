//! The completion ring of one queue: the kernel puts cells there when it has sent them, regardless
//! of their owner.

use crate::kernel_ring::{Consumer, Gauge};
use crate::sync::{AtomicU64, Mutex, Ordering, lock, try_lock};
use crate::sys::xdp::Descriptor;
use crate::umem::owners::Owners;

/// The number of completions taken at a time.
const COMPLETIONS_AT_ONCE: usize = 64;

/// A completion ring, and the number of cells that will be completed on it.
#[derive(Debug)]
pub(crate) struct CompletionRing {
    filled: Gauge<u64>,
    /// Cells that the kernel has, on the tx ring, in the device or on this ring.
    in_flight: AtomicU64,
    side: Mutex<Side>,
}

/// The data protected by the lock of the completion ring.
#[derive(Debug)]
struct Side {
    /// None once it is closed.
    ring: Option<Consumer<u64>>,
    /// Completed addresses that are being returned.
    addresses: Vec<u64>,
}

impl CompletionRing {
    /// A new completion ring.
    pub(crate) fn new(ring: Consumer<u64>) -> Self {
        let filled = ring.gauge();
        let in_flight = AtomicU64::new(0);
        let side = Side { ring: Some(ring), addresses: Vec::with_capacity(COMPLETIONS_AT_ONCE) };
        Self { filled, in_flight, side: Mutex::new(side) }
    }

    /// Announces cells that are about to be put on the tx ring, because the kernel may complete
    /// them at once.
    pub(crate) fn expect(&self, cells: usize) {
        self.in_flight.fetch_add(cells as u64, Ordering::Relaxed);
    }

    /// Returns completed cells to their owners, until there are none or another thread is doing so.
    /// `false` if the kernel completed a cell that it did not have.
    pub(crate) fn collect(&self, owners: &Owners) -> bool {
        self.filled.filled() == 0 || self.collect_some(owners)
    }

    fn collect_some(&self, owners: &Owners) -> bool {
        let mut cells = [Descriptor::default(); COMPLETIONS_AT_ONCE];
        loop {
            let Some(mut side) = try_lock(&self.side) else { return true };
            let Side { ring: Some(ring), addresses } = &mut *side else { return true };
            addresses.clear();

            let Ok(count) = ring.take_into(addresses, COMPLETIONS_AT_ONCE) else { return false };
            ring.release();

            if count == 0 {
                return true;
            }

            let in_flight = self.in_flight.load(Ordering::Relaxed);
            if count as u64 > in_flight {
                return false;
            }

            self.in_flight.fetch_sub(count as u64, Ordering::Relaxed);
            let mut kept = 0;

            for &address in &*addresses {
                if owners.pool().complete(address) {
                    cells[kept] = Descriptor { address, ..Descriptor::default() };
                    kept += 1;
                }
            }

            drop(side);
            owners.give_back(&cells[..kept]);
        }
    }

    /// Returns cells that the kernel will never take off the tx ring, in their order on it.
    #[cold]
    pub(crate) fn give_up(&self, cells: &[Descriptor], owners: &Owners) {
        // The first of them may have been sent and completed although the tx ring does not show it.
        let in_flight = self.in_flight.load(Ordering::Relaxed) as usize;
        let cells = &cells[cells.len().saturating_sub(in_flight)..];
        self.in_flight.fetch_sub(cells.len() as u64, Ordering::Relaxed);
        cells.iter().for_each(|cell| _ = owners.pool().complete(cell.address));
        owners.give_back(cells);
    }

    /// Releases the ring: cells that the kernel completes from now on stay there.
    pub(crate) fn close(&self) {
        lock(&self.side).ring = None;
    }
}
