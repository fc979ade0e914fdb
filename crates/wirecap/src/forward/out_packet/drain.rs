//! Packets taken out of a chunk one by one.

use std::cell::Cell;

use super::OutPacket;
use crate::chunk::Origin;
use crate::umem::pool::Descriptor;

/// The packets of a chunk, to be sent or dropped one by one; from [`Chunk::drain`](crate::Chunk::drain). What is not
/// asked for is recycled with the chunk.
#[derive(Debug)]
pub struct Drain<'a> {
    cells: &'a [Cell<Descriptor>],
    packets: usize,
    fragmented: bool,
    origin: &'a Origin,
    cell_bytes: Option<u64>,
}

impl<'a> Drain<'a> {
    /// The `packets` packets in `cells`, whole ones of a chunk of this origin.
    pub(crate) fn new(
        cells: &'a [Cell<Descriptor>],
        packets: usize,
        fragmented: bool,
        origin: &'a Origin,
    ) -> Self {
        let cell_bytes = origin.home.cell_bytes().map(u64::from);
        Self { cells, packets, fragmented, origin, cell_bytes }
    }

    /// The cells of what is left, if each is a packet by itself and may come home by itself, and where they come from.
    pub(in crate::forward) fn plain(&self) -> Option<(&'a [Cell<Descriptor>], &'a Origin)> {
        (!self.fragmented && self.cell_bytes.is_some()).then_some((self.cells, self.origin))
    }
}

impl<'a> Iterator for Drain<'a> {
    type Item = OutPacket<'a>;

    #[inline]
    fn next(&mut self) -> Option<OutPacket<'a>> {
        if self.cells.is_empty() {
            return None;
        }
        let more = if self.fragmented {
            self.cells.iter().take_while(|cell| cell.get().is_continued()).count()
        } else {
            0
        };
        let (cells, rest) = self.cells.split_at(more + 1);
        self.cells = rest;
        self.packets -= 1;
        Some(OutPacket::lent(cells, self.origin, self.cell_bytes, self.fragmented))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.packets, Some(self.packets))
    }
}

impl ExactSizeIterator for Drain<'_> {}
