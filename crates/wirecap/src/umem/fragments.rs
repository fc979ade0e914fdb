//! Packets of several cells (multi-buffer, `networking/af_xdp.rst`): a frame longer than a cell
//! arrives as a run of descriptors; all but the last have the flag that the packet continues.
//!
//! Such packets stay where the kernel put them. When a caller needs one in one piece, it and all
//! others of its chunk are copied, into memory that circulates with the chunks' lists of cells, so
//! nothing is allocated once enough lists have some.

use std::mem;
use std::ops::Range;
use std::slice;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::sys::xdp::Descriptor;

/// Number of packets that end in `cells`.
pub(crate) fn packets_in(cells: &[Descriptor]) -> u64 {
    cells.iter().filter(|cell| !cell.is_continued()).count() as u64
}

/// Number of cells at the end of `cells` that belong to an incomplete packet.
pub(crate) fn unfinished(cells: &[Descriptor]) -> usize {
    cells.iter().rev().take_while(|cell| cell.is_continued()).count()
}

/// Complete packets that were taken out of a list because some of their cells were bad.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    /// How many.
    pub(crate) packets: u64,
    /// Their good cells.
    pub(crate) good: Vec<Descriptor>,
    /// Their bad ones.
    pub(crate) bad: Vec<Descriptor>,
}

/// Takes every packet with a bad cell out of `cells`, which contain complete packets. `is_bad` gets
/// each cell, and whether a packet begins in it.
pub(crate) fn refuse(
    cells: &mut Vec<Descriptor>,
    mut is_bad: impl FnMut(&Descriptor, bool) -> bool,
) -> Refused {
    let mut refused = Refused::default();
    let mut kept = 0;
    let mut begin = 0;

    while begin < cells.len() {
        let end = begin + 1 + cells[begin..].iter().take_while(|cell| cell.is_continued()).count();
        let mut is_whole = true;

        for (index, cell) in cells[begin..end].iter().enumerate() {
            if !is_bad(cell, index == 0) {
                refused.good.extend((!is_whole).then_some(cell));
                continue;
            }

            if is_whole {
                refused.packets += 1;
                refused.good.extend_from_slice(&cells[begin..begin + index]);
            }

            is_whole = false;
            refused.bad.push(*cell);
        }

        if is_whole {
            cells.copy_within(begin..end, kept);
            kept += end - begin;
        }

        begin = end;
    }

    cells.truncate(kept);
    refused
}

/// Information about the packets in a list of cells if some packets have several cells. Empty if
/// each cell is a packet, which is nearly always the case.
#[derive(Debug, Default)]
pub(crate) struct Fragmented {
    /// The packets, each described by its first cell's address and the length of the whole. Packets
    /// that must be assembled have the number of their [chain](Descriptor::chain).
    packets: Vec<Descriptor>,
    chains: Vec<Chain>,
    assembly: Assembly,
}

/// The cells of one packet, and the place where it is assembled.
#[derive(Debug)]
struct Chain {
    cells: Range<usize>,
    start: usize,
}

/// Memory in which packets are assembled: filled at the first use, kept for the next chunk.
#[derive(Debug, Default)]
struct Assembly {
    filled: OnceLock<Vec<u8>>,
    spare: Mutex<Vec<u8>>,
}

impl Fragmented {
    /// The packets; none when each cell is one.
    pub(crate) fn packets(&self) -> &[Descriptor] {
        &self.packets
    }

    /// Finds the packets in `cells`, all of them complete. A packet whose first `snap_len` bytes
    /// are in its first cell need not be assembled.
    pub(crate) fn find(&mut self, cells: &[Descriptor], snap_len: u32) {
        let mut start = 0;
        let mut begin = 0;

        for packet in cells.split_inclusive(|cell| !cell.is_continued()) {
            let first = packet[0];
            let len: u32 = packet.iter().map(|cell| cell.len).sum();
            let mut whole = Descriptor { address: first.address, len, options: 0 };

            if first.len < len.min(snap_len) {
                whole = Descriptor::of_chain(first.address, len, self.chains.len());
                self.chains.push(Chain { cells: begin..begin + packet.len(), start });
                start += len.min(snap_len) as usize;
            }

            self.packets.push(whole);
            begin += packet.len();
        }
    }

    /// Removes the packets and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.packets.clear();
        self.chains.clear();
        if let Some(filled) = self.assembly.filled.take() {
            *self.assembly.spare.get_mut().unwrap_or_else(PoisonError::into_inner) = filled;
        }
    }

    /// The cells of `packet`, one of [`packets`](Self::packets) in `cells`.
    pub(crate) fn cells_of<'a>(
        &self,
        packet: &'a Descriptor,
        cells: &'a [Descriptor],
    ) -> &'a [Descriptor] {
        if !packet.is_continued() {
            return slice::from_ref(packet);
        }
        &cells[self.chain(packet).cells.clone()]
    }

    /// The first `len` bytes of `packet`, which has several cells, in one piece. `fill` appends
    /// these bytes of all such packets, in their order; it is called once per chunk.
    pub(crate) fn in_one_piece(
        &self,
        packet: &Descriptor,
        len: usize,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> &[u8] {
        let Assembly { filled, spare } = &self.assembly;
        let filled = filled.get_or_init(|| {
            let mut bytes = mem::take(&mut *spare.lock().unwrap_or_else(PoisonError::into_inner));
            bytes.clear();
            fill(&mut bytes);
            bytes
        });

        let start = self.chain(packet).start;
        &filled[start..start + len]
    }

    fn chain(&self, packet: &Descriptor) -> &Chain {
        &self.chains[packet.chain()]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Cells of these lengths; a packet continues after a negative one.
    fn cells(lens: &[i32]) -> Vec<Descriptor> {
        let cell = |(index, len): (usize, &i32)| Descriptor {
            address: index as u64 * 4096,
            len: len.unsigned_abs(),
            options: u32::from(*len < 0),
        };
        lens.iter().enumerate().map(cell).collect()
    }

    fn lens(cells: &[Descriptor]) -> Vec<u32> {
        cells.iter().map(|cell| cell.len).collect()
    }

    #[test]
    fn a_packet_without_its_end_is_unfinished() {
        let unfinished = |lens: &[i32]| unfinished(&cells(lens));
        assert_eq!(unfinished(&[]), 0);
        assert_eq!(unfinished(&[1, -2, 3]), 0);
        assert_eq!(unfinished(&[1, -2, -3]), 2);
        assert_eq!(unfinished(&[-1]), 1);
    }

    #[test]
    fn packets_are_rejected_completely() {
        let mut list = cells(&[1, -2, -3, 4, 5, -6, 7, -8, 9]);
        let mut begins = Vec::new();
        let refused = refuse(&mut list, |cell, begin| {
            begins.extend(begin.then_some(cell.len));
            [3, 5, 9].contains(&cell.len)
        });
        assert_eq!(begins, [1, 2, 5, 6, 8]);
        assert_eq!(lens(&list), [1, 6, 7]);
        assert_eq!(refused.packets, 3);
        assert_eq!((lens(&refused.good), lens(&refused.bad)), (vec![2, 4, 8], vec![3, 5, 9]));
    }

    #[test]
    fn packets_are_found_with_their_cells_and_their_pieces_put_together_once() {
        let cells = cells(&[10, -40, -40, 5, 20, -40, 8]);
        let mut fragmented = Fragmented::default();

        for _ in 0..2 {
            fragmented.find(&cells, 60);
            let packets = fragmented.packets();
            assert_eq!(lens(packets), [10, 85, 20, 48]);

            let cells_of: Vec<_> =
                packets.iter().map(|packet| lens(fragmented.cells_of(packet, &cells))).collect();
            assert_eq!(cells_of, [vec![10], vec![40, 40, 5], vec![20], vec![40, 8]]);

            let fill =
                |bytes: &mut Vec<u8>| bytes.extend((0..108).map(|n| if n < 60 { 1 } else { 3 }));
            assert_eq!(fragmented.in_one_piece(&packets[3], 48, fill), [3; 48]);
            assert_eq!(fragmented.in_one_piece(&packets[1], 60, |_| panic!("twice")), [1; 60]);
            fragmented.clear();
            assert!(fragmented.packets().is_empty());
        }
    }

    #[test]
    fn the_snap_length_may_need_the_first_cell_only() {
        let cells = cells(&[-40, 40]);
        let mut fragmented = Fragmented::default();
        fragmented.find(&cells, 40);
        assert_eq!(fragmented.packets(), [Descriptor { address: 0, len: 80, options: 0 }]);
    }
}
