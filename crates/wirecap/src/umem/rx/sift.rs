//! Packets that user space filters out of a ring; their cells are posted again at once.

use std::slice;

use super::{RxRing, RxSide};
use crate::error::CaptureError;
use crate::sieve::Sifted;
use crate::sys::xdp::Descriptor;
use crate::umem::recycle::CellList;

impl RxRing {
    /// Takes non-matching packets out of `list`, which was checked.
    #[cold]
    pub(super) fn sift(&self, side: &mut RxSide, list: &mut CellList) -> Result<(), CaptureError> {
        let room = self.fill_ring.empty_list(list.cells.len());
        let mut unwanted = room.map_err(|broken| self.broken_fill(&broken))?;
        let mut whole = Vec::new();
        let mut kept = 0;
        let mut begin = 0;

        while begin < list.cells.len() {
            let end = begin
                + 1
                + list.cells[begin..].iter().take_while(|cell| cell.is_continued()).count();
            let data = self.in_one_piece(&list.cells[begin..end], &mut whole);
            let wire_len = data.len() as u32;
            let packet = Sifted { data, wire_len, tagged: true, packet_type: None };

            if side.sieve.accepts((end - begin) as u64, &packet) {
                list.cells.copy_within(begin..end, kept);
                kept += end - begin;
            } else {
                // Not as packets: each cell is posted separately.
                let cells = list.cells[begin..end].iter();
                unwanted.cells.extend(cells.map(|&cell| Descriptor { options: 0, ..cell }));
            }

            begin = end;
        }

        list.cells.truncate(kept);
        self.fill_ring.recycle(unwanted);

        Ok(())
    }

    /// Number of non-matching packets in `cells`, which were taken at the close. The cells were not
    /// checked; packets that could not have been delivered count as matching.
    #[cold]
    pub(super) fn unwanted_in(&self, cells: &[Descriptor], side: &mut RxSide) -> u64 {
        let chunk_cells = self.pool().geometry().chunk_cells as usize;
        let mut whole = Vec::new();
        let mut unwanted = 0;
        let mut packets = cells.split_inclusive(|cell| !cell.is_continued());

        if side.overlong {
            packets.next();
        }

        for cells in packets {
            let is_whole = cells.last().is_some_and(|cell| !cell.is_continued());
            let is_good =
                cells.len() <= chunk_cells && cells.iter().all(|cell| self.pool().holds(cell, 0));
            if is_whole && is_good {
                let data = self.in_one_piece(cells, &mut whole);
                let wire_len = data.len() as u32;
                let packet = Sifted { data, wire_len, tagged: true, packet_type: None };
                unwanted += u64::from(!side.sieve.accepts(cells.len() as u64, &packet));
            }
        }

        unwanted
    }

    /// The bytes of the packet in `cells`, in `whole` if there are several.
    fn in_one_piece<'a>(&'a self, cells: &[Descriptor], whole: &'a mut Vec<u8>) -> &'a [u8] {
        let bytes = |cell: &Descriptor| {
            // SAFETY: the callers checked that the cell's bytes are in the pool, which lives as
            // long as the ring; the kernel delivered the cell, and no chunk has it yet.
            unsafe {
                let start = self.pool().memory().base().add(cell.address as usize);
                slice::from_raw_parts(start.as_ptr(), cell.len as usize)
            }
        };
        if let [cell] = cells {
            return bytes(cell);
        }

        whole.clear();
        cells.iter().for_each(|cell| whole.extend_from_slice(bytes(cell)));

        whole
    }
}
