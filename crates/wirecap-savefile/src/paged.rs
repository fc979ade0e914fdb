//! A Zstandard frame whose pages can be read separately.
//!
//! A compressed file is one frame, because Wireshark 4.0 ends at the end of the first frame, and
//! 4.4 calls a file with bytes after its last frame damaged. Random access needs parts that do not
//! depend on each other, so the blocks of a page refer to no byte, table or offset of an earlier
//! page. After each page comes a *mark*: four blocks of zero bytes, which decompressors accept and
//! ignore. Each has a byte of the page's checksum.
//!
//! ```text
//! head (6 bytes) │ blocks of a page │ mark (16) │ blocks of a page │ mark (16) │ … │ end (7)
//! ```
//!
//! A reader of a page decompresses a frame with its own head and these blocks.
//! `docs/design/recorder.md` has the numbers.

use std::hash::Hasher;
use std::io::{self, Read};

use twox_hash::XxHash64;
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

/// The first bytes of a frame: the magic number, a checksum at the end, a window of 1 MiB.
pub const HEAD: [u8; 6] = [0x28, 0xb5, 0x2f, 0xfd, 1 << 2, 10 << 3];
/// Bytes of the window: no byte of a page refers to one that is farther away.
pub const WINDOW_LOG: u32 = 20;
/// Bytes of a mark.
pub const MARK_BYTES: usize = 16;
/// Bytes of the end of a frame.
pub const END_BYTES: usize = 7;
/// Maximum number of bytes of a block, compressed and decompressed.
pub const BLOCK_BYTES_MAX: usize = 128 << 10;

/// The head of a frame that consists of some pages of another one, which has no checksum.
const HEAD_OF_PAGES: [u8; 6] = [HEAD[0], HEAD[1], HEAD[2], HEAD[3], 0, HEAD[5]];
const BLOCK_HEADER_BYTES: usize = 3;
const RAW: u32 = 0;
/// A block of one byte, repeated.
const REPEATED: u32 = 1;
const COMPRESSED: u32 = 2;
/// A repeated byte, zero times: its header. The byte follows.
const MARK_BLOCK: [u8; 3] = [2, 0, 0];
const LAST_BLOCK: [u8; 3] = [1, 0, 0];

/// The mark after a page with these contents.
#[must_use]
pub fn mark(page: &[u8]) -> [u8; MARK_BYTES] {
    let mut hash = XxHash64::with_seed(0);
    hash.write(page);
    mark_of(&hash)
}

fn mark_of(hash: &XxHash64) -> [u8; MARK_BYTES] {
    let mut mark = [0; MARK_BYTES];
    for (block, byte) in mark.chunks_exact_mut(4).zip((hash.finish() as u32).to_le_bytes()) {
        block[..3].copy_from_slice(&MARK_BLOCK);
        block[3] = byte;
    }
    mark
}

/// Whether these bytes look like a mark. Compressed bytes do with a probability of 2⁻⁹⁶.
#[must_use]
pub fn is_like_mark(bytes: &[u8]) -> bool {
    bytes.len() == MARK_BYTES && bytes.chunks_exact(4).all(|block| block[..3] == MARK_BLOCK)
}

/// The header of a block whose bytes are stored without compression.
#[must_use]
pub fn stored_block(byte_count: usize) -> [u8; 3] {
    let [a, b, c, _] = ((byte_count as u32) << 3 | RAW << 1).to_le_bytes();
    [a, b, c]
}

/// The checksum of a frame's contents.
#[derive(Debug, Clone, Default)]
pub struct Checksum(XxHash64);

impl Checksum {
    /// Adds the contents of a page.
    pub fn add(&mut self, page: &[u8]) {
        self.0.write(page);
    }

    /// The end of a frame with the pages so far: an empty last block, and the checksum.
    #[must_use]
    pub fn end(&self) -> [u8; END_BYTES] {
        let mut end = [0; END_BYTES];
        end[..BLOCK_HEADER_BYTES].copy_from_slice(&LAST_BLOCK);
        end[BLOCK_HEADER_BYTES..].copy_from_slice(&(self.0.finish() as u32).to_le_bytes());
        end
    }
}

/// What [`Pages::next_block`] has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A block of the page.
    Block,
    /// The mark of a page, whose checksum is right.
    EndOfPage,
    /// The end of the frame.
    EndOfFrame,
    /// The end of the source, after a mark.
    EndOfSource,
}

/// Reads a frame, or some pages of one.
pub struct Pages<R, D = Decoder<'static>> {
    source: R,
    decoder: D,
    /// The contents of the open page.
    hash: XxHash64,
    is_in_page: bool,
    /// The decompressor has read the frame from its beginning, and compares its checksum.
    is_from_head: bool,
    /// The block that was read last, compressed and not.
    compressed: Vec<u8>,
    block: Vec<u8>,
    /// Bytes of `block` that `read` has returned.
    given: usize,
    position: u64,
}

impl<R, D> std::fmt::Debug for Pages<R, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").field("position", &self.position).finish_non_exhaustive()
    }
}

impl<R: Read> Pages<R> {
    /// Reads a frame whose [head](HEAD) `source` has already returned.
    ///
    /// # Errors
    ///
    /// If there is no memory for the decompressor.
    pub fn of_frame(source: R) -> io::Result<Self> {
        Self::new(source, Decoder::new()?, HEAD)
    }
}

impl<R: Read, D: Operation> Pages<R, D> {
    /// Reads pages of a frame, without the frame's head and end, by a decompressor that has just
    /// been made or reset.
    ///
    /// # Errors
    ///
    /// If there is no memory for the decompressor.
    pub fn within(source: R, decoder: D) -> io::Result<Self> {
        Self::new(source, decoder, HEAD_OF_PAGES)
    }

    fn new(source: R, decoder: D, head: [u8; 6]) -> io::Result<Self> {
        let mut pages = Self {
            source,
            decoder,
            hash: XxHash64::with_seed(0),
            is_in_page: false,
            is_from_head: head == HEAD,
            compressed: head.to_vec(),
            block: Vec::with_capacity(BLOCK_BYTES_MAX),
            given: 0,
            position: 0,
        };
        pages.decompress()?;

        Ok(pages)
    }

    /// Bytes of the blocks, marks and ends that were read.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The contents of the block that was read last.
    pub fn block(&self) -> &[u8] {
        &self.block
    }

    /// Copies the next bytes of the block that was read last. Returns their number, 0 at its end.
    pub fn read_block(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.block.len() - self.given);
        into[..count].copy_from_slice(&self.block[self.given..self.given + count]);
        self.given += count;
        count
    }

    /// The source, at the end of what was read.
    pub fn into_source(self) -> R {
        self.source
    }

    /// Reads the next block, or what follows the last one of a page.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::UnexpectedEof`] if the source ends within a page or the end of the frame,
    /// [`io::ErrorKind::InvalidData`] if it is damaged, or not of pages, and errors of the source.
    pub fn next_block(&mut self) -> io::Result<Found> {
        (self.given, self.compressed) = (0, std::mem::take(&mut self.compressed));
        self.block.clear();
        self.compressed.clear();

        if !self.is_in_page && self.source.by_ref().take(1).read_to_end(&mut self.compressed)? == 0
        {
            return Ok(Found::EndOfSource);
        }

        self.read_to(BLOCK_HEADER_BYTES)?;
        let header =
            u32::from_le_bytes([self.compressed[0], self.compressed[1], self.compressed[2], 0]);
        let is_last = header & 1 == 1;
        let block_type = header >> 1 & 3;
        let size = (header >> 3) as usize;

        match (is_last, block_type, size) {
            (true, RAW, 0) if !self.is_in_page => {
                self.read_to(END_BYTES)?;
                if self.is_from_head {
                    self.decompress()?;
                }
                self.position += END_BYTES as u64;
                Ok(Found::EndOfFrame)
            }
            (false, REPEATED, 0) => {
                self.read_to(MARK_BYTES)?;
                self.end_page()
            }
            (false, RAW | COMPRESSED, 1..=BLOCK_BYTES_MAX) => self.take_block(size),
            (false, REPEATED, 1..=BLOCK_BYTES_MAX) => self.take_block(1),
            _ => Err(invalid("not a block of a page")),
        }
    }

    fn take_block(&mut self, byte_count: usize) -> io::Result<Found> {
        self.read_to(BLOCK_HEADER_BYTES + byte_count)?;
        self.decompress()?;
        self.position += self.compressed.len() as u64;
        self.hash.write(&self.block);
        self.is_in_page = true;
        Ok(Found::Block)
    }

    fn end_page(&mut self) -> io::Result<Found> {
        let is_right = self.compressed == mark_of(&self.hash);
        #[cfg(sabotage)]
        let is_right = is_right || crate::sabotage::is("page-checksum-ignored");
        if !is_right {
            return Err(invalid("the checksum of a page is wrong"));
        }
        self.decompress()?;
        self.position += MARK_BYTES as u64;
        (self.hash, self.is_in_page) = (XxHash64::with_seed(0), false);
        Ok(Found::EndOfPage)
    }

    /// Reads until `compressed` has this many bytes.
    fn read_to(&mut self, byte_count: usize) -> io::Result<()> {
        let missing = byte_count.saturating_sub(self.compressed.len());
        match self.source.by_ref().take(missing as u64).read_to_end(&mut self.compressed)? {
            read if read == missing => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends within a page")),
        }
    }

    /// Passes `compressed` to the decompressor, which fills `block`.
    fn decompress(&mut self) -> io::Result<()> {
        let mut input = InBuffer::around(&self.compressed);
        loop {
            let before = (input.pos(), self.block.len());
            self.block.reserve(BLOCK_BYTES_MAX);
            let mut output = OutBuffer::around_pos(&mut self.block, before.1);
            self.decoder
                .run(&mut input, &mut output)
                .map_err(|error| invalid(&error.to_string()))?;
            if input.pos() == self.compressed.len() && before == (input.pos(), self.block.len()) {
                return Ok(());
            }
        }
    }
}

/// The contents of the pages.
impl<R: Read, D: Operation> Read for Pages<R, D> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.given == self.block.len() && !into.is_empty() {
            if matches!(self.next_block()?, Found::EndOfFrame | Found::EndOfSource) {
                return Ok(0);
            }
        }
        Ok(self.read_block(into))
    }
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of these pages, without compression.
    fn frame(pages: &[&[u8]]) -> Vec<u8> {
        let mut frame = HEAD.to_vec();
        let mut checksum = Checksum::default();
        for page in pages {
            frame.extend(
                page.chunks(BLOCK_BYTES_MAX)
                    .flat_map(|block| [&stored_block(block.len())[..], block].concat()),
            );
            frame.extend(mark(page));
            checksum.add(page);
        }
        frame.extend(checksum.end());
        frame
    }

    fn read(frame: &[u8]) -> io::Result<Vec<u8>> {
        let mut contents = Vec::new();
        Pages::of_frame(&frame[HEAD.len()..])?.read_to_end(&mut contents)?;
        Ok(contents)
    }

    #[test]
    fn a_frame_of_pages_is_a_frame_for_other_decompressors() {
        let pages: [&[u8]; 3] = [b"head", &[7; 300_000], &[9; 1 << 17]];
        let frame = frame(&pages);
        assert!(zstd::decode_all(&frame[..]).unwrap() == pages.concat());
        assert!(read(&frame).unwrap() == pages.concat());
    }

    #[test]
    fn a_page_is_read_without_the_others() {
        let frame = frame(&[b"head", &[7; 300_000], b"tail"]);
        let begin = HEAD.len() + 3 + 4 + MARK_BYTES;
        let end = frame.len() - END_BYTES - (3 + 4 + MARK_BYTES);
        let mut pages = Pages::within(&frame[begin..end], Decoder::new().unwrap()).unwrap();
        let mut page = Vec::new();
        pages.read_to_end(&mut page).unwrap();
        assert!(page == [7; 300_000] && pages.position() == (end - begin) as u64);
    }

    #[test]
    fn a_frame_that_ends_early_or_has_another_byte_is_not_read_as_complete() {
        let pages: [&[u8]; 2] = [b"a page of a few bytes", b"and another one"];
        let whole = frame(&pages);
        let ends_of_pages = [HEAD.len(), HEAD.len() + 3 + 21 + MARK_BYTES, whole.len() - END_BYTES];

        for end in HEAD.len()..whole.len() {
            let error = read(&whole[..end]).err().map(|error| error.kind());
            let expected = (!ends_of_pages.contains(&end)).then_some(io::ErrorKind::UnexpectedEof);
            assert_eq!(error, expected, "{end} of {} bytes", whole.len());
        }

        for at in HEAD.len()..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x20;
            assert!(read(&damaged).is_err(), "byte {at}");
        }
    }
}
