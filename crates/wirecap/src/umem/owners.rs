//! The owners of the cells of a forwarding capture: each ring has a part of the common pool, and
//! the rest is for new packets.

use std::sync::Arc;

use crate::sync::{Mutex, lock};
use crate::sys::xdp::Descriptor;
use crate::umem::fill::FillRing;
use crate::umem::pool::Pool;

/// The owners of all cells of a pool.
#[derive(Debug)]
pub(crate) struct Owners {
    pool: Arc<Pool>,
    /// Bytes before a new packet.
    headroom: u32,
    /// Bytes of the part of each ring.
    ring_bytes: u64,
    /// The fill rings of the rings' queues, in the order of their parts.
    rings: Vec<Arc<FillRing>>,
    /// The addresses of free cells for new packets, with room for all.
    new: Mutex<Vec<u64>>,
}

impl Owners {
    /// Each of `rings` gets the next `ring_cells` cells of `pool`. New packets have `headroom`
    /// bytes before them.
    pub(crate) fn new(
        pool: Arc<Pool>,
        headroom: u32,
        ring_cells: u32,
        rings: Vec<Arc<FillRing>>,
    ) -> Self {
        let taken = ring_cells as usize * rings.len();
        let new: Vec<u64> = pool.cell_addresses().skip(taken).collect();
        let ring_bytes = u64::from(ring_cells) * u64::from(pool.geometry().cell_bytes);
        Self { pool, headroom, ring_bytes, rings, new: Mutex::new(new) }
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Bytes of the longest new packet that one cell holds.
    pub(crate) fn longest_new(&self) -> usize {
        (self.pool.geometry().cell_bytes - self.headroom) as usize
    }

    /// The descriptor of a new packet of `len` bytes in the free cell at `address`.
    pub(crate) fn new_cell(&self, address: u64, len: u32) -> Descriptor {
        self.pool.check().take(self.pool.index_of(address));
        Descriptor { address: address + u64::from(self.headroom), len, options: 0 }
    }

    /// Returns free cells to their owners.
    pub(crate) fn give_back(&self, cells: &[Descriptor]) {
        let mut rest = cells;
        while let Some(first) = rest.first() {
            let owner = (first.address / self.ring_bytes) as usize;
            let start = owner as u64 * self.ring_bytes;
            let is_there = |cell: &&Descriptor| cell.address.wrapping_sub(start) < self.ring_bytes;

            match self.rings.get(owner) {
                Some(ring) => {
                    let (here, others) = rest.split_at(rest.iter().take_while(is_there).count());
                    ring.take_back(here);
                    rest = others;
                }
                None => {
                    self.keep_new(first.address);
                    rest = &rest[1..];
                }
            }
        }
    }

    fn keep_new(&self, address: u64) {
        let address = address & self.pool.cell_mask();
        self.pool.check().come_back(self.pool.index_of(address));
        let mut new = lock(&self.new);
        // There is room for all cells; one too many is a duplicate.
        if new.len() < new.capacity() {
            new.push(address);
        }
    }

    /// Moves up to `count` free cells for new packets to `to`.
    pub(crate) fn take_new(&self, count: usize, to: &mut Vec<u64>) {
        let mut new = lock(&self.new);
        let left = new.len().saturating_sub(count);
        to.extend(new.drain(left..));
    }

    /// Takes back unused cells for new packets.
    pub(crate) fn put_new(&self, addresses: &mut Vec<u64>) {
        lock(&self.new).append(addresses);
    }

    /// Number of free cells for new packets.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn new_cells(&self) -> usize {
        lock(&self.new).len()
    }
}
