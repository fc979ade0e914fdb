//! What goes from the thread that captures to the writer in one piece.

use std::fmt;
use std::ptr;
use std::sync::Arc;

/// Bytes of a page: large writes, and frames large enough to compress well.
pub(crate) const PAGE_BYTES: usize = 1 << 20;

/// A batch is kept twice if packets of so many others come between two of its own.
const TURNS: usize = 16;

/// Packets that a recording may write from where they are. They are kept until they are written.
pub trait Batch: fmt::Debug + Send + Sync {
    /// The data of the packet at place `index`, always the same.
    fn packet(&self, index: usize) -> &[u8];
}

/// Encoded packets, whole ones: copies, and what stands around the data of packets that were not copied.
#[derive(Debug)]
pub(crate) struct Page {
    bytes: Box<[u8]>,
    end: usize,
    pieces: Vec<Piece>,
    /// The bytes of all pieces.
    piece_bytes: usize,
    batches: Vec<Arc<dyn Batch>>,
    pub(crate) packets: u64,
}

/// The data of a packet, which stand in front of the page's byte `before`.
#[derive(Debug, Clone, Copy)]
struct Piece {
    before: u32,
    batch: u32,
    index: u32,
    len: u32,
}

impl Page {
    /// An empty page. If `is_present`, its memory is there, and not only promised: else each of the kernel's pages takes a page
    /// fault while packets come, 20 ns for a packet of 60 bytes.
    pub(crate) fn new(is_present: bool) -> Self {
        let mut bytes = vec![0; PAGE_BYTES].into_boxed_slice();
        if is_present {
            bytes.fill(1);
        }
        Self { bytes, end: 0, pieces: Vec::new(), piece_bytes: 0, batches: Vec::new(), packets: 0 }
    }

    /// The next so many bytes, if they are there.
    #[inline]
    pub(crate) fn reserve(&mut self, byte_count: usize) -> Option<&mut [u8]> {
        let slot = self.bytes[..PAGE_BYTES - self.piece_bytes].get_mut(self.end..self.end + byte_count)?;
        self.end += byte_count;
        self.packets += 1;
        Some(slot)
    }

    /// The next so many bytes, if they are there, around the data of a packet of which they have the first `header_len` in
    /// front.
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
        // Those of several rings come in turns.
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

    /// Whether so many bytes of a file have room.
    #[inline]
    pub(crate) fn has_room(&self, byte_count: usize) -> bool {
        self.len() + byte_count <= PAGE_BYTES
    }

    /// How many bytes of a file it makes up.
    pub(crate) fn len(&self) -> usize {
        self.end + self.piece_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What was copied, which is all of a page without packets that were not.
    pub(crate) fn copies(&self) -> &[u8] {
        &self.bytes[..self.end]
    }

    /// All of it, in order.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut begin = 0;
        let pieces = self.pieces.iter().flat_map(move |piece| {
            let own = &self.bytes[begin..piece.before as usize];
            begin = piece.before as usize;
            let data = self.batches[piece.batch as usize].packet(piece.index as usize);
            [own, &data[..piece.len as usize]]
        });
        let last = self.pieces.last().map_or(0, |piece| piece.before as usize);
        pieces.chain([&self.bytes[last..self.end]])
    }

    /// Lets go of everything, also of packets that were not copied.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.batches.clear();
        (self.end, self.piece_bytes, self.packets) = (0, 0, 0);
    }
}
