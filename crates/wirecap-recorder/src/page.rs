//! The unit that the capture thread passes to the writer.

use std::fmt;
use std::io;
use std::ptr;
use std::sync::Arc;

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

/// Number of a page's most recent batches that are searched for the batch of the next packet. A batch is
/// stored twice if packets of this many other batches come between its packets.
const TURNS: usize = 16;

/// Packets that a recording may write without copying them. The recording holds the batch until they are
/// written.
pub trait Batch: fmt::Debug + Send + Sync {
    /// The data of the packet at `index`. Every call must return the same data.
    fn packet(&self, index: usize) -> &[u8];
}

/// Whole encoded packets: copied packets, and the bytes before and after the data of packets that are not
/// copied.
#[derive(Debug)]
pub(crate) struct Page {
    bytes: MmapMut,
    /// Where the packets begin in `bytes`, which begin with a block: as far from a block's beginning as in the file.
    begin: usize,
    end: usize,
    /// Maximum number of bytes, copied ones and those of pieces.
    room: usize,
    pieces: Vec<Piece>,
    /// The total length of all pieces.
    piece_bytes: usize,
    batches: Vec<Arc<dyn Batch>>,
    pub(crate) packets: u64,
}

/// The data of a packet that is not copied. They precede byte `before` of the page's own bytes.
#[derive(Debug, Clone, Copy)]
struct Piece {
    before: u32,
    batch: u32,
    index: u32,
    len: u32,
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
        Ok(Self {
            bytes,
            begin: 0,
            end: 0,
            room,
            pieces: Vec::new(),
            piece_bytes: 0,
            batches: Vec::new(),
            packets: 0,
        })
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
        let slot = self.bytes[..self.begin + self.room - self.piece_bytes]
            .get_mut(self.end..self.end + byte_count)?;
        self.end += byte_count;
        self.packets += 1;
        Some(slot)
    }

    /// Reserves `byte_count` bytes, if they fit, for the encoding of a packet without its data; the first
    /// `header_len` of them precede the data.
    #[inline]
    pub(crate) fn reserve_around<B: Batch + 'static>(
        &mut self,
        byte_count: usize,
        header_len: usize,
        (batch, index): (&Arc<B>, usize),
        len: usize,
    ) -> Option<&mut [u8]> {
        if !self.has_room(byte_count + len) {
            return None;
        }
        let batch = self.place_of(batch);
        let before = (self.end + header_len) as u32;
        self.pieces.push(Piece { before, batch, index: index as u32, len: len as u32 });
        self.piece_bytes += len;
        self.reserve(byte_count)
    }

    #[inline]
    fn place_of<B: Batch + 'static>(&mut self, batch: &Arc<B>) -> u32 {
        let count = self.batches.len();
        // Packets of several rings arrive in turns.
        let looked_at = count.saturating_sub(TURNS)..count;
        let is_it = |other: &Arc<dyn Batch>| ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(batch));
        match self.batches[looked_at.clone()].iter().rposition(is_it) {
            Some(place) => (looked_at.start + place) as u32,
            None => {
                self.batches.push(Arc::<B>::clone(batch));
                count as u32
            }
        }
    }

    /// Whether this many bytes fit.
    #[inline]
    pub(crate) fn has_room(&self, byte_count: usize) -> bool {
        self.len() + byte_count <= self.room
    }

    /// The number of bytes that the page will take in a file.
    pub(crate) fn len(&self) -> usize {
        self.end - self.begin + self.piece_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The copied bytes: the whole page if every packet was copied.
    pub(crate) fn copies(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    /// The bytes of the page in file order.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut begin = self.begin;
        let pieces = self.pieces.iter().flat_map(move |piece| {
            let own = &self.bytes[begin..piece.before as usize];
            begin = piece.before as usize;
            let data = self.batches[piece.batch as usize].packet(piece.index as usize);
            [own, &data[..piece.len as usize]]
        });
        let last = self.pieces.last().map_or(self.begin, |piece| piece.before as usize);
        pieces.chain([&self.bytes[last..self.end]])
    }

    /// Empties the page, and releases the packets that were not copied.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.batches.clear();
        (self.end, self.piece_bytes, self.packets) = (self.begin, 0, 0);
    }
}
