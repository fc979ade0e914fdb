//! Cells read in place, for the only reader of a ring; like
//! [`packet::reader`](crate::packet::reader) for blocks, and for the same reason: a chunk may
//! outlive its capture and move to another thread. A reader that needs neither, and wakes up for a
//! few packets, would pay for this with cold code and data at each wake-up.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use crate::umem::chunk::heads::Grouping;
use crate::umem::chunk::{Head, heads};
use crate::umem::recycle::CellList;
use crate::umem::ring::Ring;
use crate::umem::rx::RxRing;

/// The result of looking for packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextBlock {
    /// This many packets, which the reader now holds.
    Packets(u32),
    /// Nothing yet.
    Nothing,
    /// Packets that the worker delivers as chunks.
    Chunks,
}

/// Reads the cells of the only ring of a capture in place, up to M at a time, together with the
/// ring's worker, which makes chunks of the packets that this reader leaves.
#[derive(Debug)]
pub struct CellReader {
    ring: Arc<RxRing>,
    /// The cells in hand.
    list: Box<CellList>,
    ahead_of_utc_nanos: u64,
    grouping: Grouping,
}

impl CellReader {
    /// A reader of this ring, if all its cells are its own and posted.
    pub(crate) fn new(ring: Arc<RxRing>) -> Option<Self> {
        // One entry more than a chunk has, for prefetching.
        let room = ring.chunk_cells() as usize + heads::PACKETS_AHEAD;
        let list = CellList::with_capacity(room);
        ring.posts_all().then(|| Self {
            ring,
            list,
            ahead_of_utc_nanos: 0,
            grouping: Grouping::default(),
        })
    }

    /// Takes the next packets, if some wait. The reader loses the rest of the current ones;
    /// [`put_back`](Self::put_back) returns them to the worker instead.
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

    /// Number of held packets, including read ones.
    #[inline]
    pub fn len(&self) -> u32 {
        self.list.cells.len() as u32
    }

    /// Whether it holds no packets.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.cells.is_empty()
    }

    /// Calls `each` with the held packets at the indices in `range`. Returns the index at which it
    /// stopped, which is less than the end of the range if there are fewer packets.
    #[inline]
    pub fn for_each_head(&mut self, range: Range<u32>, each: impl FnMut(Head<'_>)) -> u32 {
        let end = range.end.min(self.len());
        let range = range.start.min(end) as usize..end as usize;
        let base = self.ring.base();
        let snap_len = self.ring.identity().snap_len;

        // SAFETY: the ring's pool stays mapped as long as the ring; each of these packets was
        // checked to be in it in one piece, after a timestamp. No thread writes to them until they
        // are put back, which `each` cannot do.
        unsafe {
            let cells = &self.list.cells;
            let ahead_of_utc_nanos = self.ahead_of_utc_nanos;
            heads::each_by_program::<false>(
                base,
                cells,
                range,
                snap_len,
                ahead_of_utc_nanos,
                &mut self.grouping,
                each,
            );
        }

        end
    }

    /// Returns the current cells to the kernel, and packets from index `next` on, which were not
    /// read, to the worker.
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
