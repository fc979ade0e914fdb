//! Frames one after the other in one buffer.

/// Maximum number of frames of a batch.
const FRAMES_MAX: usize = 256;

/// Frames with their times and queues.
#[derive(Clone, Default, Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    frames: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    due_ns: u64,
    queue: u32,
    /// The end of its bytes, which begin at the end of the previous frame.
    end: usize,
}

/// A frame of a [`Batch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchFrame<'a> {
    /// Its time, in nanoseconds from the start.
    pub due_ns: u64,
    /// The outlet's queue that sends it.
    pub queue: u32,
    /// Its bytes, Ethernet header included, without checksum.
    pub bytes: &'a [u8],
}

impl Batch {
    /// Adds a frame.
    pub fn push(&mut self, frame: &[u8], due_ns: u64, queue: u32) {
        self.bytes.extend_from_slice(frame);
        self.frames.push(Entry { due_ns, queue, end: self.bytes.len() });
    }

    /// Adds a frame made of several pieces. `finish` may change it, and returns its queue.
    pub fn push_pieces(
        &mut self,
        pieces: &[&[u8]],
        due_ns: u64,
        finish: impl FnOnce(&mut [u8]) -> u32,
    ) {
        let start = self.bytes.len();
        pieces.iter().for_each(|piece| self.bytes.extend_from_slice(piece));
        let queue = finish(&mut self.bytes[start..]);
        self.frames.push(Entry { due_ns, queue, end: self.bytes.len() });
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether it is full enough to be sent.
    pub fn is_full(&self) -> bool {
        self.frames.len() >= FRAMES_MAX
    }

    /// Takes all frames out.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.frames.clear();
    }

    /// The frames in order.
    pub fn iter(&self) -> impl Iterator<Item = BatchFrame<'_>> {
        let mut start = 0;
        self.frames.iter().map(move |place| {
            let bytes = &self.bytes[start..place.end];
            start = place.end;
            BatchFrame { due_ns: place.due_ns, queue: place.queue, bytes }
        })
    }
}
