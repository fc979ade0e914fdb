//! Where the cells of a capture that forwards belong: each ring has its own part of the one pool, and the rest is for
//! new packets.

use std::sync::Arc;

use crate::sync::{Mutex, lock};
use crate::sys::xdp::Descriptor;
use crate::umem::fill::FillRing;
use crate::umem::pool::Pool;

/// The owners of all cells of a pool.
#[derive(Debug)]
pub(crate) struct Owners {
    pool: Arc<Pool>,
    /// Bytes in front of a new packet.
    headroom: u32,
    /// Bytes of the part of each ring.
    ring_bytes: u64,
    /// The fill rings of the rings' queues, in the order of their parts.
    rings: Vec<Arc<FillRing>>,
    /// The addresses of free cells for new packets, with room for all.
    new: Mutex<Vec<u64>>,
}

impl Owners {
    /// Of `rings` each has the next `ring_cells` cells of `pool`. New packets have `headroom` bytes in front.
    pub(crate) fn new(pool: Arc<Pool>, headroom: u32, ring_cells: u32, rings: Vec<Arc<FillRing>>) -> Self {
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

    /// Gives free cells back to where they belong, whatever packets they held.
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
        // There is room for all cells; one too many is the double of another one.
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

    /// Takes cells for new packets back that were not used.
    pub(crate) fn put_new(&self, addresses: &mut Vec<u64>) {
        lock(&self.new).append(addresses);
    }

    /// How many cells for new packets are free.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn new_cells(&self) -> usize {
        lock(&self.new).len()
    }
}
