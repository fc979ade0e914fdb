//! The unit that the capture thread passes to the writer.

use std::io;

use memmap2::{Advice, MmapMut};

use crate::direct::BLOCK_BYTES;

/// Maximum number of bytes of a page. With the block in which it begins, a page takes 2 MiB, a huge page of most
/// processors: the disk then reads it as one piece.
pub(crate) const PAGE_BYTES: usize = (2 << 20) - BLOCK_BYTES;

/// Maximum number of bytes of a page that is compressed: enough for good compression, and few enough for a reader
/// that needs a single packet.
pub(crate) const FRAME_BYTES: usize = 1 << 20;

/// Bytes of a page that the capture thread both fills and writes: few enough to stay in the processor's
/// second-level cache.
pub(crate) const CACHED_BYTES: usize = 256 << 10;

/// Whole encoded packets.
#[derive(Debug)]
pub(crate) struct Page {
    bytes: MmapMut,
    /// Where the packets begin in `bytes`, which begin with a block: as far from a block's beginning as in the file.
    begin: usize,
    end: usize,
    /// Maximum number of bytes.
    room: usize,
    pub(crate) packets: u64,
}

impl Page {
    /// An empty page of at most `room` bytes, for the beginning of a block. If `is_present`, its memory is allocated
    /// now; otherwise the first use of each memory page takes a page fault, which costs 20 ns for a packet of
    /// 60 bytes.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    pub(crate) fn new(room: usize, is_present: bool) -> io::Result<Self> {
        let mut bytes = MmapMut::map_anon(BLOCK_BYTES + room)?;
        // Fails if the kernel has no huge pages.
        let _ = bytes.advise(Advice::HugePage);
        if is_present {
            bytes.fill(1);
        }
        Ok(Self { bytes, begin: 0, end: 0, room, packets: 0 })
    }

    /// Sets the `offset` of an empty page in the file, so that blocks of the file are aligned in memory too,
    /// and its `room`, the number of bytes after which it is full: at most that of [`new`](Self::new).
    pub(crate) fn start_at(&mut self, offset: u64, room: usize) {
        self.begin = (offset % BLOCK_BYTES as u64) as usize;
        self.end = self.begin;
        self.room = room;
    }

    /// Reserves the next `byte_count` bytes, if they fit.
    #[inline]
    pub(crate) fn reserve(&mut self, byte_count: usize) -> Option<&mut [u8]> {
        let slot = self.bytes[..self.begin + self.room].get_mut(self.end..self.end + byte_count)?;
        self.end += byte_count;
        self.packets += 1;
        Some(slot)
    }

    /// The number of bytes that the page will take in a file.
    pub(crate) fn len(&self) -> usize {
        self.end - self.begin
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The encoded packets.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    /// Empties the page.
    pub(crate) fn clear(&mut self) {
        (self.end, self.packets) = (self.begin, 0);
    }
}
