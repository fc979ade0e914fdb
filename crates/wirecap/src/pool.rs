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

    /// Takes the cells from the heap: for a kernel that is simulated.
    pub(crate) fn on_heap(geometry: Geometry) -> Self {
        assert!(geometry.cell_bytes.is_power_of_two(), "cells are found by masking addresses");
        Self { memory: Memory::on_heap(geometry.pool_bytes()), geometry }
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

    /// The address of the cell that `address` lies in.
    pub(crate) fn cell_of(&self, address: u64) -> u64 {
        address & !u64::from(self.geometry.cell_bytes - 1)
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
        // Written without branches, so that the check over a batch of descriptors is vectorised.
        self.contains(descriptor.address)
            & (end <= u64::from(self.geometry.cell_bytes))
            & (offset >= u64::from(room))
    }
}
