//! Packets on their way to a tx queue, as many as are handed over at once.

use crate::pool::Descriptor;

/// Packets for one tx queue, in their order.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Their cells, where they are sent as they are.
    pub(super) cells: Vec<Descriptor>,
    /// Their bytes, one after the other, where they are copied, and the length of each.
    pub(super) copies: Vec<u8>,
    pub(super) lens: Vec<u32>,
    /// How many packets there are.
    pub(super) packets: u64,
}

impl Batch {
    pub(super) fn with_capacity(cells: usize) -> Self {
        Self { cells: Vec::with_capacity(cells), ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Empties it for its next use.
    pub(super) fn clear(&mut self) {
        self.cells.clear();
        self.copies.clear();
        self.lens.clear();
        self.packets = 0;
    }
}

/// How many packets end in `cells`.
pub(super) fn packets_in(cells: &[Descriptor]) -> u64 {
    cells.iter().filter(|cell| !cell.is_continued()).count() as u64
}
