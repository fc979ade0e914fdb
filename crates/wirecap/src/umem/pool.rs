//! The ring buffer pool: the R x M cells that serve one receive ring (WireCAP, section 3.2.1).

#![allow(unsafe_code)]

use std::io;

use crate::sys::memory::{Memory, Pages, prefetch};
use crate::sys::xdp::Descriptor;
use crate::umem::cell_check::CellCheck;

/// The sizes of a pool: **R** chunks of **M** cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// M: cells per chunk.
    pub chunk_cells: u32,
    /// R: chunks per pool.
    pub chunks: u32,
    /// Bytes of one cell; 2,048 or 4,096.
    pub cell_bytes: u32,
}

impl Geometry {
    /// R x M: the number of packets that a pool can hold.
    pub fn cells(&self) -> u32 {
        self.chunks * self.chunk_cells
    }

    /// Bytes of the pool's cells.
    pub fn pool_bytes(&self) -> usize {
        self.cells() as usize * self.cell_bytes as usize
    }
}

/// The places of the cells of a ring's pool: a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Cells {
    /// The kernel has them, for future packets.
    pub posted: u32,
    /// Filled, in the ring: they wait to be captured.
    pub waiting: u32,
    /// In chunks that were captured and not recycled yet, or on a port's tx ring.
    pub captured: u32,
    /// Free and not posted, if not all cells are posted.
    pub free: u32,
}

/// The memory of one ring's cells.
#[derive(Debug)]
pub(crate) struct Pool {
    memory: Memory,
    geometry: Geometry,
    check: CellCheck,
}

impl Pool {
    /// Maps the cells; this number of threads clear them.
    pub(crate) fn new(geometry: Geometry, threads: usize) -> io::Result<Self> {
        let memory = Memory::map(geometry.pool_bytes())?;
        memory.populate(threads);
        Ok(Self::of(memory, geometry))
    }

    /// Allocates the cells on the heap, for a simulated kernel.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn on_heap(geometry: Geometry) -> Self {
        Self::of(Memory::on_heap(geometry.pool_bytes()), geometry)
    }

    fn of(memory: Memory, geometry: Geometry) -> Self {
        assert!(geometry.cell_bytes.is_power_of_two(), "cells are found by masking addresses");
        Self { memory, geometry, check: CellCheck::new(geometry.cells()) }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The place of each cell, in debug builds.
    pub(crate) fn check(&self) -> &CellCheck {
        &self.check
    }

    pub(crate) fn on_huge_pages(&self) -> bool {
        self.memory.pages() == Pages::Huge
    }

    /// The addresses of all cells, each once.
    pub(crate) fn cell_addresses(&self) -> impl Iterator<Item = u64> + use<> {
        let bytes = u64::from(self.geometry.cell_bytes);
        (0..u64::from(self.geometry.cells())).map(move |index| index * bytes)
    }

    /// The mask that converts an address to the address of its cell.
    pub(crate) fn cell_mask(&self) -> u64 {
        !u64::from(self.geometry.cell_bytes - 1)
    }

    /// The bytes that a simulated kernel sends.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn bytes_of(&self, cell: &Descriptor) -> &[u8] {
        if !self.holds(cell, 0) {
            return &[];
        }
        // SAFETY: they are in the pool, and the thread that put the cell on a tx ring does not
        // access it until it returns.
        unsafe {
            let start = self.memory.base().add(cell.address as usize);
            std::slice::from_raw_parts(start.as_ptr(), cell.len as usize)
        }
    }

    /// Prefetches the bytes of `cells` into this core's cache. A thread that reads cells one by one
    /// waits for each cell that another core received or that is in no cache; the prefetches run in
    /// parallel.
    pub(crate) fn fetch(&self, cells: &[Descriptor]) {
        for cell in cells {
            let end = cell.address + u64::from(cell.len);
            for address in (cell.address & !(LINE_BYTES - 1)..end).step_by(LINE_BYTES as usize) {
                prefetch(self.memory.base().as_ptr().wrapping_add(address as usize));
            }
        }
    }

    /// The number of the cell that contains `address`.
    pub(crate) fn index_of(&self, address: u64) -> usize {
        (address / u64::from(self.geometry.cell_bytes)) as usize
    }

    /// Whether the kernel, which reports that it has sent the packet at `address`, had that cell to
    /// send; only debug builds know.
    pub(crate) fn complete(&self, address: u64) -> bool {
        self.contains(address) && self.check.complete(self.index_of(address))
    }

    /// Whether `address` is in one of the pool's cells.
    pub(crate) fn contains(&self, address: u64) -> bool {
        address < self.geometry.pool_bytes() as u64
    }

    /// Whether a descriptor from the kernel is valid for a packet or one cell of it: inside the
    /// pool, within one cell, and with `room` bytes before it.
    pub(crate) fn holds(&self, descriptor: &Descriptor, room: u32) -> bool {
        let offset = descriptor.address & u64::from(self.geometry.cell_bytes - 1);
        let end = offset + u64::from(descriptor.len);
        self.contains(descriptor.address)
            && end <= u64::from(self.geometry.cell_bytes)
            && offset >= u64::from(room)
    }

    /// The bytes of `cells` if the pool [`holds`](Self::holds) each of them, and each is a packet
    /// by itself, without options; `None` also if one has no bytes.
    ///
    /// The same as checking one by one, in half of the instructions: it has no branches or
    /// comparisons, so the compiler can vectorise it.
    pub(crate) fn bytes_of_plain(&self, cells: &[Descriptor], room: u32) -> Option<u64> {
        let mut spread = 0;
        let mut signs = 0;
        let mut seen = 0;
        let mut bytes = 0_u64;

        for &Descriptor { address, len, options } in cells {
            let len_and_options = u64::from(len) | u64::from(options) << 32;
            let start = address.wrapping_sub(room.into());

            // The bits in which the first byte of the room and the last byte of the packet differ:
            // if both are in one cell, none above those of a cell's size. Options look like a
            // longer length.
            let last = len_and_options.wrapping_sub(1);
            spread |= start ^ address.wrapping_add(last);

            // The top bit is set if the room begins before the pool, by an empty packet, which has
            // no last byte, and by the highest option.
            signs |= start | last;
            seen |= address;
            bytes = bytes.wrapping_add(len_and_options);
        }

        // No address exceeds the bitwise OR of all of them. That is in the pool as well, unless the
        // pool's size is not a power of two.
        let in_pool = self.contains(seen) || cells.iter().all(|cell| self.contains(cell.address));
        let in_cells = spread < u64::from(self.geometry.cell_bytes) && signs >> 63 == 0;
        (in_pool && in_cells).then_some(bytes)
    }
}

/// Bytes of a line of the processor's cache.
const LINE_BYTES: u64 = 64;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_check_of_many_cells_agrees_with_the_check_of_each() {
        let pool = Pool::on_heap(Geometry { chunk_cells: 3, chunks: 1, cell_bytes: 2048 });
        let addresses = [0, 7, 8, 2047, 2048, 4096 + 256, 6143, 6144, 1 << 32, 1 << 63, u64::MAX];
        let lens = [0, 1, 1792, 1793, 2040, 2041, 2048, 2049, 1 << 31, u32::MAX];
        let options = [0, 1, 2, 1 << 30, 1 << 31, u32::MAX];
        let good = Descriptor { address: 256, len: 60, options: 0 };

        for address in addresses {
            for len in lens {
                for options in options {
                    let cell = Descriptor { address, len, options };
                    let expected =
                        (options == 0 && pool.holds(&cell, 8)).then(|| u64::from(len) + 60);
                    for cells in [[good, cell], [cell, good]] {
                        let quick = pool.bytes_of_plain(&cells, 8);
                        assert_eq!(quick, expected.filter(|_| len > 0), "{cell:?}");
                    }
                }
            }
        }
    }
}
