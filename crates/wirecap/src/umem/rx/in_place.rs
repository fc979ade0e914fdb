//! Packets that [`reader`](crate::umem::reader) takes out of a ring, and returns.

#![allow(unsafe_code, reason = "the section of functions")]

use std::ptr::NonNull;

use super::{RxRing, packets_in};
use crate::sync::{Ordering, lock};
use crate::umem::chunk::heads;
use crate::umem::chunk::records::Stamps;
use crate::umem::recycle::CellList;

impl RxRing {
    /// The start of the memory that cells' addresses are relative to.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.pool().memory().base()
    }

    /// Whether a returned cell is always posted.
    pub(crate) fn posts_all(&self) -> bool {
        self.fill_ring.posts_all()
    }

    /// Takes up to M packets into `list`, which is empty, if each is in one cell, has a timestamp
    /// of the program, and needs no filtering in user space. Returns how far their clock is ahead
    /// of UTC. An error means that the worker must capture.
    #[unsafe(link_section = "wirecap_wakeup")]
    pub(crate) fn take_in_place(&self, list: &mut CellList) -> Result<Option<u64>, ()> {
        let mut guard = lock(&self.rx);
        let side = &mut *guard;
        let is_plain = side.kept.is_empty() && !side.overlong && side.sieve.is_idle();
        let Some(open) = side.open.as_mut().filter(|_| is_plain) else { return Err(()) };
        let waiting = open.ring.available().map_err(drop)?;

        if waiting == 0 {
            drop(guard);
            self.fill_ring.flush_if_free();
            return Ok(None);
        }

        let stamps = self.stamps.stamps();
        let Stamps::Tai { ahead_of_utc_nanos } = stamps else { return Err(()) };
        let count = waiting.min(self.chunk_cells()) as usize;
        open.ring.take_into(&mut list.cells, count + heads::PACKETS_AHEAD).map_err(drop)?;

        // Prefetches the first of these packets while they are checked, and the first of the next
        // ones while these are read.
        let beyond = list.cells.len() - count;
        heads::fetch(self.base(), &list.cells[..count.min(heads::PACKETS_AHEAD)]);
        heads::fetch(self.base(), &list.cells[count..]);
        list.cells.truncate(count);

        let Some(bytes) = self.pool().bytes_of_plain(&list.cells, stamps.record_bytes()) else {
            open.ring.put_back((count + beyond) as u32);
            list.cells.clear();
            return Err(());
        };
        open.ring.put_back(beyond as u32);
        open.ring.release();
        self.unfinished.store(0, Ordering::Relaxed);
        side.cells_taken += count as u64;

        if open.is_zero_copy {
            side.cut += self.cut_packets(&list.cells);
        }

        side.other += self.fill_ring.captured(list);
        side.handed_out.count_in_place(list.cells.len() as u64, bytes, 0);
        self.published.publish(side);

        Ok(Some(ahead_of_utc_nanos))
    }

    /// Takes the cells of `list` back. Packets from index `next` on were not read and are delivered
    /// in chunks, unless the ring was closed.
    #[unsafe(link_section = "wirecap_wakeup")]
    pub(crate) fn put_back_in_place(&self, list: &mut CellList, next: usize) {
        if next < list.cells.len() {
            self.keep_unread(list, next);
        }
        self.fill_ring.take_back(&list.cells);
        list.cells.clear();
    }

    #[cold]
    fn keep_unread(&self, list: &mut CellList, next: usize) {
        let mut side = lock(&self.rx);
        let unread = &list.cells[next..];
        let bytes = unread.iter().map(|cell| u64::from(cell.len)).sum();
        side.handed_out.discount(packets_in(unread), bytes, 0);

        if side.open.is_none() {
            side.other += packets_in(unread);
        } else {
            let check = self.pool().check();

            for cell in unread.iter().rev() {
                // The packet counts as not taken.
                check.come_back(self.pool().index_of(cell.address));
                check.post(self.pool().index_of(cell.address));
                side.kept.push_front(*cell);
            }

            side.cells_taken -= unread.len() as u64;
            self.kept.store(side.kept.len() as u32, Ordering::Relaxed);
            list.cells.truncate(next);
        }

        self.published.publish(&side);
    }
}
