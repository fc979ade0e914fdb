//! The ring buffer pool: the R x M cells that serve one receive ring (WireCAP, section 3.2.1).

#![allow(unsafe_code)]

use std::io;

use crate::sys::memory::{Memory, Pages};

/// Where a packet lies in the pool: the kernel's `struct xdp_desc`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Descriptor {
    /// Bytes from the start of the pool to the packet.
    pub(crate) address: u64,
    /// Bytes of the packet in this cell.
    pub(crate) len: u32,
    /// `XDP_PKT_CONTD`: the packet goes on in the next descriptor.
    pub(crate) options: u32,
}

const _: () = assert!(size_of::<Descriptor>() == 16);
const _: () = assert!(std::mem::offset_of!(Descriptor, len) == 8);
const _: () = assert!(std::mem::offset_of!(Descriptor, options) == 12);

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
    /// R x M: how many packets a pool can hold.
    pub fn cells(&self) -> u32 {
        self.chunks * self.chunk_cells
    }

    /// Bytes of the pool's cells.
    pub fn pool_bytes(&self) -> usize {
        self.cells() as usize * self.cell_bytes as usize
    }
}

/// The memory of one ring's cells.
#[derive(Debug)]
pub(crate) struct Pool {
    memory: Memory,
    geometry: Geometry,
}

impl Pool {
    /// Maps the cells.
    pub(crate) fn new(geometry: Geometry) -> io::Result<Self> {
        assert!(geometry.cell_bytes.is_power_of_two(), "cells are found by masking addresses");
        Ok(Self { memory: Memory::map(geometry.pool_bytes())?, geometry })
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn on_huge_pages(&self) -> bool {
        self.memory.pages() == Pages::Huge
    }

    /// The addresses of all cells, each once.
    pub(crate) fn cell_addresses(&self) -> impl Iterator<Item = u64> + use<> {
        let bytes = u64::from(self.geometry.cell_bytes);
        (0..u64::from(self.geometry.cells())).map(move |index| index * bytes)
    }

    /// What an address has in common with the address of the cell that it lies in.
    pub(crate) fn cell_mask(&self) -> u64 {
        !u64::from(self.geometry.cell_bytes - 1)
    }

    /// The number of the cell that `address` lies in.
    pub(crate) fn index_of(&self, address: u64) -> usize {
        (address / u64::from(self.geometry.cell_bytes)) as usize
    }

    /// Whether `address` lies in one of the pool's cells.
    pub(crate) fn contains(&self, address: u64) -> bool {
        address < self.geometry.pool_bytes() as u64
    }

    /// Whether what the kernel wrote can be a packet: inside the pool, within one cell, and with
    /// `room` bytes in front of it.
    pub(crate) fn holds(&self, descriptor: &Descriptor, room: u32) -> bool {
        let offset = descriptor.address & u64::from(self.geometry.cell_bytes - 1);
        let end = offset + u64::from(descriptor.len);
        self.contains(descriptor.address)
            && end <= u64::from(self.geometry.cell_bytes)
            && offset >= u64::from(room)
    }

    /// Adds up the bytes of a batch of packets if the pool [`holds`](Self::holds) each. May also say
    /// `None` of a batch with a packet of no bytes.
    ///
    /// The same as asking one by one, in 8 instructions per packet instead of 17: without branches or
    /// comparisons, so that the compiler takes several at once.
    pub(crate) fn bytes_if_all_held(&self, batch: &[Descriptor], room: u32) -> Option<u64> {
        let (mut spread, mut seen, mut bytes) = (0, 0, 0);
        for &Descriptor { address, len, .. } in batch {
            let (room, len) = (u64::from(room), u64::from(len));
            // The bits in which the first byte of the room and the last byte of the packet differ: none
            // above those of a cell's size where both lie in one cell.
            spread |= address.wrapping_sub(room) ^ address.wrapping_add(len).wrapping_sub(1);
            seen |= address;
            bytes += len;
        }
        // No address exceeds what all of them add up to, bit by bit; that lies in the pool, too, unless
        // the pool's size is no power of two.
        let in_pool = self.contains(seen) || batch.iter().all(|cell| self.contains(cell.address));
        (spread < u64::from(self.geometry.cell_bytes) && in_pool).then_some(bytes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pool() -> Pool {
        Pool::new(Geometry { chunk_cells: 4, chunks: 3, cell_bytes: 2048 }).unwrap()
    }

    /// Numbers near those where the answer changes.
    fn numbers() -> impl Strategy<Value = u64> {
        let edges = prop::sample::select(vec![0, 1, 8, 2048, 4096, 12 * 2048, 1 << 63, u64::MAX]);
        (edges, -300..300_i64).prop_map(|(edge, near)| edge.wrapping_add_signed(near))
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "miri has no memfd")]
        fn a_batch_is_held_if_each_of_its_packets_is(
            cells in prop::collection::vec((numbers(), numbers()), 0..6),
            room in prop::sample::select(vec![0, 8]),
        ) {
            let pool = pool();
            let batch: Vec<Descriptor> = cells
                .into_iter()
                .map(|(address, len)| Descriptor { address, len: len as u32, options: 0 })
                .collect();
            let all_held = batch.iter().all(|cell| pool.holds(cell, room));
            let bytes: u64 = batch.iter().map(|cell| u64::from(cell.len)).sum();
            match pool.bytes_if_all_held(&batch, room) {
                Some(sum) => prop_assert!(all_held && sum == bytes),
                None => prop_assert!(!all_held || batch.iter().any(|cell| cell.len == 0)),
            }
        }
    }
}
