//! Packets on their way to a tx queue, as many as are handed over at once.

use crate::sys::xdp::Descriptor;

/// Packets for one tx queue, in their order.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Their cells, where they are sent as they are.
    pub(crate) cells: Vec<Descriptor>,
    /// Their bytes, one after the other, where they are copied, and the length of each.
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

/// How many packets end in `cells`.
pub(crate) fn packets_in(cells: &[Descriptor]) -> u64 {
    cells.iter().filter(|cell| !cell.is_continued()).count() as u64
}
