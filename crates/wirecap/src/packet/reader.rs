//! Blocks read in place, for the only reader of a ring.
//!
//! A chunk can be sent to another thread, outlives its capture and is accounted for separately. A
//! reader that needs none of this, and wakes up for a few packets at a time, pays for it with every
//! wake-up: most of the code and data for making a chunk have left the processor's caches since the
//! last one. Here a packet's header is read once, where the kernel wrote it.

use std::ops::Range;
use std::sync::Arc;

use crate::packet::blocks::{Blocks, OpenBlock};
use crate::packet::ring::PacketRing;
use crate::umem::chunk::Head;
use crate::umem::reader::NextBlock;

/// Reads the blocks of the only ring of a capture in place, together with the ring's worker, which
/// makes chunks of the packets that this reader leaves.
#[derive(Debug)]
pub struct BlockReader {
    ring: Arc<PacketRing>,
    blocks: Arc<Blocks>,
    block: Option<OpenBlock>,
    /// The packets of the block before this one are in the ring's account with their bytes.
    accounted: u32,
}

impl BlockReader {
    /// A reader of this ring, if it has blocks that can be read in place.
    pub(crate) fn new(ring: Arc<PacketRing>) -> Option<Self> {
        let blocks = ring.blocks()?;
        Some(Self { ring, blocks, block: None, accounted: 0 })
    }

    /// Takes the next block, if the kernel has handed one over. The rest of the current block is
    /// lost to the reader; [`put_back`](Self::put_back) returns it to the worker instead.
    #[inline]
    pub fn open_next(&mut self) -> NextBlock {
        let next = self.blocks.next_filled();
        if next.is_none() && !self.ring.has_chunks() {
            return NextBlock::Nothing;
        }

        self.put_back(u32::MAX);

        match self.ring.open_for_reader(&self.blocks, next) {
            Ok(Some(block)) => {
                let packets = block.left();
                (self.block, self.accounted) = (Some(block), 0);
                NextBlock::Packets(packets)
            }
            Ok(None) => NextBlock::Nothing,
            Err(()) => NextBlock::Chunks,
        }
    }

    /// Number of packets of the current block, including read ones; 0 without a block.
    #[inline]
    pub fn len(&self) -> u32 {
        self.block.as_ref().map_or(0, OpenBlock::packets)
    }

    /// Whether there is no current block.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.block.is_none()
    }

    /// Calls `each` with the packets in `range` of the current block, starting at 0. Returns where
    /// it stopped: before the end of the range if the block has fewer packets, or if the kernel's
    /// offsets lead outside the block. The worker reports the fault when the rest was
    /// [put back](Self::put_back).
    #[inline]
    pub fn for_each_head(&mut self, range: Range<u32>, each: impl FnMut(Head<'_>)) -> u32 {
        let Some(block) = &mut self.block else { return range.start };
        let end = self.ring.read_heads(block, range, self.accounted, each);
        self.accounted = self.accounted.max(end);
        end
    }

    /// Returns the current block to the kernel, or to the worker if packets from index `next` on
    /// were not read.
    #[inline]
    pub fn put_back(&mut self, next: u32) {
        match self.block.take() {
            Some(block) if next < block.packets() => {
                self.ring.take_back(block, next, self.accounted);
            }
            block => drop(block),
        }
    }
}
