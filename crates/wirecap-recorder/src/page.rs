//! The unit that the capture thread passes to the writer.
//!
//! A recording has 16 circulating pages of 2 MiB (1 MiB with compression: a page becomes one
//! frame). The memory of a page is a huge page of the processor, if the kernel has one: the disk
//! then reads one piece of memory instead of 512, and the copies miss the TLB less often. The page
//! that came back last is used next. The memory of four pages is present from the beginning: one is
//! filled, one is written, and two are enough for the next chunk. The first use of another page
//! causes page faults while packets arrive.
//!
//! A page is passed to the writer when it is full, even if the writer is idle before: to pass a
//! page on takes 14 µs of CPU time, and pages of 256 KiB would be passed on eight times as often. A
//! page that is not full follows once a second, when the ring is empty and the writer is idle.

use std::io;

use memmap2::{Advice, MmapMut};

use crate::direct::BLOCK_BYTES;
use crate::stream;

/// Maximum number of bytes of a page. With the block in which it begins, a page takes 2 MiB, a huge
/// page of most processors: the disk then reads it as one piece.
pub(crate) const PAGE_BYTES: usize = (2 << 20) - BLOCK_BYTES;

/// Maximum number of bytes of a page that is compressed: enough for good compression, and few
/// enough for a reader that needs a single packet.
pub(crate) const FRAME_BYTES: usize = 1 << 20;

/// Bytes of a page that the capture thread both fills and writes: few enough to stay in the
/// processor's second-level cache.
pub(crate) const CACHED_BYTES: usize = 256 << 10;

/// Bytes of encoded packets that are collected in the first-level cache before they go past the
/// caches into a page.
const STAGE_BYTES: usize = 16 << 10;

/// Whole encoded packets.
#[derive(Debug)]
pub(crate) struct Page {
    bytes: MmapMut,
    /// Where the packets begin in `bytes`, which begin with a block: as far from a block's
    /// beginning as in the file.
    begin: usize,
    end: usize,
    /// Maximum number of bytes.
    room: usize,
    /// The last packets of a page that is filled past the caches, which are not in `bytes` yet.
    /// Empty for other pages.
    stage: Vec<u8>,
    /// Where in `bytes` the packets of the stage belong.
    staged_at: usize,
    pub(crate) packets: u64,
}

impl Page {
    /// An empty page of at most `room` bytes, for the beginning of a block. If `is_present`, its
    /// memory is allocated now; otherwise the first use of each memory page takes a page fault,
    /// which costs 20 ns for a packet of 60 bytes.
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
        Ok(Self { bytes, begin: 0, end: 0, room, stage: Vec::new(), staged_at: 0, packets: 0 })
    }

    /// Makes packets go past the caches into this empty page, which the disk reads, if the
    /// processor can do so. Stores to memory whose last contents are in the cache of another core,
    /// which copied them for the disk, can take four times as long.
    pub(crate) fn bypass_caches(&mut self) {
        if stream::BYPASSES_CACHES {
            self.stage = vec![0; STAGE_BYTES];
        }
    }

    /// Sets the `offset` of an empty page in the file, so that blocks of the file are aligned in
    /// memory too, and its `room`, the number of bytes after which it is full: at most that of
    /// [`new`](Self::new).
    pub(crate) fn start_at(&mut self, offset: u64, room: usize) {
        self.begin = (offset % BLOCK_BYTES as u64) as usize;
        (self.end, self.staged_at) = (self.begin, self.begin);
        self.room = room;
    }

    /// Reserves the next `byte_count` bytes, if they fit.
    #[inline]
    pub(crate) fn reserve(&mut self, byte_count: usize) -> Option<&mut [u8]> {
        let place = self.end;
        let end = self.end + byte_count;
        if end > self.begin + self.room {
            return None;
        }

        self.end = end;
        self.packets += 1;

        if end - self.staged_at <= self.stage.len() {
            return Some(&mut self.stage[place - self.staged_at..end - self.staged_at]);
        }
        if self.stage.is_empty() {
            return Some(&mut self.bytes[place..end]);
        }

        self.unstage(place);

        if byte_count > self.stage.len() {
            self.staged_at = end;
            return Some(&mut self.bytes[place..end]);
        }

        Some(&mut self.stage[..byte_count])
    }

    /// Ends the filling, before another thread reads the page.
    pub(crate) fn complete(&mut self) {
        if !self.stage.is_empty() {
            self.unstage(self.end);
            stream::fence();
        }
    }

    /// Moves the packets of the stage, which end at `end`, to their place.
    fn unstage(&mut self, end: usize) {
        let staged = &self.stage[..end - self.staged_at];
        stream::copy(&mut self.bytes[self.staged_at..end], staged);
        self.staged_at = end;
    }

    /// The number of bytes that the page will take in a file.
    pub(crate) fn len(&self) -> usize {
        self.end - self.begin
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The encoded packets of a [complete](Self::complete) page.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    /// Empties the page.
    pub(crate) fn clear(&mut self) {
        (self.end, self.staged_at, self.packets) = (self.begin, self.begin, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Packets shorter and longer than the stage, in a page that is used again.
        #[test]
        fn a_page_has_the_bytes_of_its_packets_however_it_is_filled(
            bypasses_caches in any::<bool>(),
            uses in vec(
                (0..9000_u64, vec(prop_oneof![8 => 1..300_usize, 2 => 1..40_000_usize], 1..60)),
                1..4,
            ),
        ) {
            const ROOM: usize = 300_000;
            let mut page = Page::new(ROOM, true).unwrap();

            if bypasses_caches {
                page.bypass_caches();
            }

            for (offset, lens) in uses {
                page.start_at(offset, ROOM);
                let mut expected: Vec<u8> = Vec::new();

                for (number, len) in lens.iter().enumerate() {
                    let Some(slot) = page.reserve(*len) else {
                        prop_assert!(expected.len() + len > ROOM);
                        continue;
                    };
                    prop_assert_eq!(slot.len(), *len);
                    slot.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 3 + number) as u8);
                    expected.extend_from_slice(slot);
                }

                page.complete();
                prop_assert!(page.bytes() == expected);
                page.clear();
                prop_assert!(page.is_empty());
            }
        }
    }
}
