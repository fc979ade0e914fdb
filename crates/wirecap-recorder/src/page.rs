//! What goes from the thread that captures to the writer in one piece.

/// Bytes of a page: large writes, and frames large enough to compress well.
pub(crate) const PAGE_BYTES: usize = 1 << 20;

/// Encoded packets, whole ones.
#[derive(Debug)]
pub(crate) struct Page {
    bytes: Box<[u8]>,
    end: usize,
    pub(crate) packets: u64,
}

impl Page {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; PAGE_BYTES].into_boxed_slice(), end: 0, packets: 0 }
    }

    /// The next so many bytes, if they are there.
    #[inline]
    pub(crate) fn reserve(&mut self, byte_count: usize) -> Option<&mut [u8]> {
        let slot = self.bytes.get_mut(self.end..self.end + byte_count)?;
        self.end += byte_count;
        self.packets += 1;
        Some(slot)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.end]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.end == 0
    }

    pub(crate) fn clear(&mut self) {
        (self.end, self.packets) = (0, 0);
    }
}
