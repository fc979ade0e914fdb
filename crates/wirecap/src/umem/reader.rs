//! Cells read in place, for the only reader of a ring; as [`packet::reader`](crate::packet::reader) reads blocks, and for the
//! same reason: a chunk may outlive its capture and go to another thread, and costs a reader that needs neither, and wakes for
//! a few packets, a wake-up's worth of cold code and data.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use crate::umem::chunk::{Head, heads};
use crate::umem::recycle::CellList;
use crate::umem::rx::RxRing;

/// The result of looking for packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextBlock {
    /// So many packets, which are in hand from now on.
    Packets(u32),
    /// Nothing yet.
    Nothing,
    /// Packets that the worker delivers as chunks.
    Chunks,
}

/// Reads the cells of the only ring of a capture in place, up to M at a time, together with the ring's worker, which
/// makes chunks of the packets that this reader leaves.
#[derive(Debug)]
pub struct CellReader {
    ring: Arc<RxRing>,
    /// The cells in hand.
    list: Box<CellList>,
    ahead_of_utc_nanos: u64,
}

impl CellReader {
    /// A reader of this ring, if all its cells are its own and posted.
    pub(crate) fn new(ring: Arc<RxRing>) -> Option<Self> {
        // One more at a time than a chunk has: what is fetched ahead.
        let room = ring.chunk_cells() as usize + heads::PACKETS_AHEAD;
        let list = CellList::with_capacity(room);
        ring.posts_all().then_some(Self { ring, list, ahead_of_utc_nanos: 0 })
    }

    /// Takes the next packets, if some wait. The rest of the current ones is lost to the reader;
    /// [`put_back`](Self::put_back) returns it to the worker instead.
    #[inline]
    pub fn open_next(&mut self) -> NextBlock {
        self.put_back(u32::MAX);
        match self.ring.take_in_place(&mut self.list) {
            Ok(Some(ahead_of_utc_nanos)) => {
                self.ahead_of_utc_nanos = ahead_of_utc_nanos;
                NextBlock::Packets(self.len())
            }
            Ok(None) => NextBlock::Nothing,
            Err(()) => NextBlock::Chunks,
        }
    }

    /// How many packets are in hand, those that were read included.
    #[inline]
    pub fn len(&self) -> u32 {
        self.list.cells.len() as u32
    }

    /// Whether none are in hand.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.cells.is_empty()
    }

    /// Calls `each` with the packets at the places in `range` of those in hand, counted from 0. Returns where it stopped:
    /// before the end of the range if there are fewer.
    #[inline]
    pub fn for_each_head(&mut self, range: Range<u32>, each: impl FnMut(Head<'_>)) -> u32 {
        let end = range.end.min(self.len());
        let range = range.start.min(end) as usize..end as usize;
        let (base, snap_len) = (self.ring.base(), self.ring.identity().snap_len);
        // SAFETY: the ring's pool stays mapped as long as the ring; these packets were found to lie in it in one piece each,
        // with a time in front, and nothing writes to them until they are put back, for which `each` has no means.
        unsafe {
            heads::each_by_program(base, &self.list.cells, range, snap_len, self.ahead_of_utc_nanos, each);
        }
        end
    }

    /// Returns the current cells to the kernel, and packets from index `next` on, which were not read, to the worker.
    #[inline]
    pub fn put_back(&mut self, next: u32) {
        if !self.is_empty() {
            self.ring.put_back_in_place(&mut self.list, next as usize);
        }
    }
}

impl Drop for CellReader {
    fn drop(&mut self) {
        self.put_back(u32::MAX);
    }
}
