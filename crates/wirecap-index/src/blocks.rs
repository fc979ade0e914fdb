//! The bytes of an index file, checked as far as they are read.
//!
//! The footer has checksums of itself and of the blocks of the file before it. So a search that
//! reads a small part of an index detects damage in this part, and does not read the others.

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use twox_hash::XxHash64;

/// The placeholder for the footer's checksum while the checksum is computed.
pub(crate) const NO_CHECKSUM: &str = "xxh64:0000000000000000";
const PREFIX: &str = "xxh64:";
/// Hexadecimal digits of a checksum.
const DIGITS: usize = 16;
/// The maximum number of blocks of a file.
const BLOCKS_MAX: usize = 128;
/// The minimum size of a block, except the last one.
const BLOCK_BYTES_MIN: u64 = 4096;
/// The end of a footer: its length and `PAR1`.
const END: usize = 8;
/// Bytes read at once from the end of a file, where most footers fit.
const END_BYTES: u64 = 24 << 10;

/// Bytes read at once of a page's header, which is shorter.
const HEADER_BYTES: usize = 256;

/// The reason why an index file is invalid.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Damaged(pub(crate) String);

impl Damaged {
    pub(crate) fn new(problem: &str) -> Self {
        Self(problem.to_owned())
    }
}

impl From<ParquetError> for Damaged {
    fn from(error: ParquetError) -> Self {
        Self(error.to_string())
    }
}

/// The placeholder for the blocks' checksums while they are computed.
pub(crate) fn no_blocks() -> String {
    "0".repeat(BLOCKS_MAX * DIGITS)
}

fn block_bytes(body: u64) -> u64 {
    body.div_ceil(BLOCKS_MAX as u64).max(BLOCK_BYTES_MIN)
}

fn hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = XxHash64::with_seed(0);
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

/// The hash of a footer with zeros in place of the digits at `place`.
fn hash_of_footer(footer: &[u8], place: usize) -> u64 {
    hash(&[&footer[..place], &[b'0'; DIGITS], &footer[place + DIGITS..]])
}

/// The offset of the last occurrence of `text`, which is near the end.
fn find_last(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).rposition(|window| window == text)
}

/// The offset of the digits of the footer's checksum.
fn checksum_place(footer: &[u8]) -> Option<usize> {
    let place = find_last(footer, PREFIX.as_bytes())? + PREFIX.len();
    (place + DIGITS <= footer.len()).then_some(place)
}

/// Sets the checksums of a file, which has [`NO_CHECKSUM`] and [`no_blocks`] in their places.
pub(crate) fn seal(file: &mut [u8]) -> Option<()> {
    let (body, footer) = file.split_at_mut(file.len().checked_sub(footer_bytes(file)?)?);
    let blocks = find_last(footer, no_blocks().as_bytes())?;
    let block_bytes = usize::try_from(block_bytes(body.len() as u64)).ok()?;
    for (block, digits) in body.chunks(block_bytes).zip(footer[blocks..].chunks_mut(DIGITS)) {
        digits.copy_from_slice(format!("{:016x}", hash(&[block])).as_bytes());
    }
    let place = checksum_place(footer)?;
    let digits = format!("{:016x}", hash_of_footer(footer, place));
    footer[place..place + DIGITS].copy_from_slice(digits.as_bytes());
    Some(())
}

/// The size of a footer, by the last bytes of the file.
fn footer_bytes(end: &[u8]) -> Option<usize> {
    let [.., a, b, c, d, b'P', b'A', b'R', b'1'] = *end else { return None };
    (u32::from_le_bytes([a, b, c, d]) as usize).checked_add(END)
}

/// An index file, on the disk or in memory.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    OnDisk { file: Arc<File>, bytes: u64 },
    InMemory(Bytes),
}

impl Content {
    fn bytes(&self) -> u64 {
        match self {
            Self::OnDisk { bytes, .. } => *bytes,
            Self::InMemory(content) => content.len() as u64,
        }
    }

    fn read(&self, from: u64, to: u64) -> io::Result<Bytes> {
        if from > to || to > self.bytes() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match self {
            Self::OnDisk { file, .. } => {
                let mut read = vec![0; (to - from) as usize];
                file.read_exact_at(&mut read, from)?;
                Ok(read.into())
            }
            Self::InMemory(content) => Ok(content.slice(from as usize..to as usize)),
        }
    }

    /// The metadata in the footer, and the footer's offset in the file.
    pub(crate) fn footer(&self) -> Result<(Bytes, u64), Damaged> {
        let failed = |error: io::Error| Damaged::new(&error.to_string());
        let truncated = || Damaged::new("it is truncated, or not an index of wirecap");
        let file_bytes = self.bytes();
        let end = self.read(file_bytes.saturating_sub(END_BYTES), file_bytes).map_err(failed)?;
        let footer_bytes = footer_bytes(&end).ok_or_else(truncated)?;
        let start = file_bytes.checked_sub(footer_bytes as u64).ok_or_else(truncated)?;

        let footer = match end.len().checked_sub(footer_bytes) {
            Some(place) => end.slice(place..),
            None => self.read(start, file_bytes).map_err(failed)?,
        };
        let place = checksum_place(&footer).ok_or_else(truncated)?;
        let digits = std::str::from_utf8(&footer[place..place + DIGITS]).unwrap_or_default();

        match u64::from_str_radix(digits, 16) == Ok(hash_of_footer(&footer, place)) {
            true => Ok((footer.slice(..footer.len() - END), start)),
            false => Err(Damaged::new("its checksum is wrong")),
        }
    }
}

/// An index file before its footer, of which only correct blocks are read.
#[derive(Debug, Clone)]
pub(crate) struct Blocks {
    content: Content,
    /// Where the footer begins.
    body: u64,
    checksums: Arc<str>,
    /// All are correct, and in memory.
    is_checked: bool,
}

impl Blocks {
    /// `checksums` is from the footer, which begins at `body`.
    pub(crate) fn new(content: Content, body: u64, checksums: String) -> Self {
        Self { content, body, checksums: checksums.into(), is_checked: false }
    }

    /// Reads all blocks at once, and checks them: for a reader of most of them, whose parts may be
    /// much smaller than blocks.
    pub(crate) fn checked(&self) -> Result<Self, Damaged> {
        if self.is_checked {
            return Ok(self.clone());
        }
        let file = self
            .content
            .read(0, self.content.bytes())
            .map_err(|error| Damaged::new(&error.to_string()))?;
        let mut blocks = Self { content: Content::InMemory(file), ..self.clone() };
        blocks.read(0, self.body)?;
        blocks.is_checked = true;
        Ok(blocks)
    }

    fn read(&self, from: u64, to: u64) -> Result<Bytes, ParquetError> {
        if from > to || to > self.body {
            return Err(ParquetError::EOF("its parts are beyond its end".to_owned()));
        }
        if self.is_checked {
            return Ok(self.content.read(from, to)?);
        }

        let block_bytes = block_bytes(self.body);
        let first = from / block_bytes;
        let start = first * block_bytes;
        let blocks = self.content.read(start, to.next_multiple_of(block_bytes).min(self.body))?;

        for (number, block) in (first as usize..).zip(blocks.chunks(block_bytes as usize)) {
            let digits = self.checksums.get(number * DIGITS..(number + 1) * DIGITS);
            if digits.and_then(|digits| u64::from_str_radix(digits, 16).ok())
                != Some(hash(&[block]))
            {
                return Err(ParquetError::General(
                    "the checksum of a part of it is wrong".to_owned(),
                ));
            }
        }

        Ok(blocks.slice((from - start) as usize..(to - start) as usize))
    }
}

impl Length for Blocks {
    fn len(&self) -> u64 {
        self.content.bytes()
    }
}

impl ChunkReader for Blocks {
    type T = BufReader<FromHere>;

    /// Only a few bytes are read, for the header of a page.
    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(BufReader::with_capacity(HEADER_BYTES, FromHere { blocks: self.clone(), start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.read(start, start.saturating_add(length as u64))
    }
}

/// The bytes from an offset to the footer, read as they are needed.
#[derive(Debug)]
pub(crate) struct FromHere {
    blocks: Blocks,
    start: u64,
}

impl Read for FromHere {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let to = self.start.saturating_add(bytes.len() as u64).min(self.blocks.body);
        let read = self.blocks.read(self.start, to).map_err(io::Error::other)?;
        bytes[..read.len()].copy_from_slice(&read);
        self.start = to;
        Ok(read.len())
    }
}
