//! Reads the fields of a header or block in sequence, in the byte order of the program that wrote
//! them.

use std::array;
use std::mem;
use std::ops::Range;

/// The byte order of the machine that wrote a file or section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    /// The byte order in which `bytes` are `magic`.
    pub(crate) fn of_magic(bytes: [u8; 4], magic: u32) -> Option<Self> {
        [Self::Little, Self::Big].into_iter().find(|order| order.u32(bytes) == magic)
    }

    fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    pub(crate) fn bytes_of_u32(self, number: u32) -> [u8; 4] {
        match self {
            Self::Little => number.to_le_bytes(),
            Self::Big => number.to_be_bytes(),
        }
    }

    fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }
}

/// A header or block, read from its beginning. Methods return `None` if too few bytes are left.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
    order: ByteOrder,
}

impl<'a> Fields<'a> {
    /// Reads `bytes` from `at` on.
    pub(crate) fn new(bytes: &'a [u8], at: usize, order: ByteOrder) -> Self {
        Self { bytes, at, order }
    }

    pub(crate) fn order(&self) -> ByteOrder {
        self.order
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// Skips `len` bytes and returns their range in the whole block.
    #[inline]
    pub(crate) fn place(&mut self, len: usize) -> Option<Range<usize>> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len())?;
        Some(mem::replace(&mut self.at, end)..end)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        self.place(len).map(|place| &self.bytes[place])
    }

    /// The next `len` bytes as separate fields.
    pub(crate) fn part(&mut self, len: usize) -> Option<Self> {
        self.bytes(len).map(|bytes| Self::new(bytes, 0, self.order))
    }

    /// The remaining bytes.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(|bytes| self.order.u16(bytes))
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(|bytes| self.order.u32(bytes))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(|bytes| self.order.u64(bytes))
    }

    /// The next `N` words, with a single bounds check.
    #[inline]
    pub(crate) fn words<const N: usize>(&mut self) -> Option<[u32; N]> {
        let (words, _) = self.bytes(N * size_of::<u32>())?.as_chunks();
        Some(array::from_fn(|index| self.order.u32(words[index])))
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = self.bytes.get(self.at..)?.first_chunk()?;
        self.at += N;
        Some(*bytes)
    }
}
