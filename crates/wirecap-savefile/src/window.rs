//! The part of a savefile in memory: filled at the end, consumed from the front.

use std::io::{self, Read};
use std::ops::Range;

use crate::ReadError;

/// Large enough for few system calls, small enough for a core's own cache.
const WINDOW_BYTES: usize = 256 << 10;
/// The size at the beginning, which doubles with each further filling: a search reads only the
/// beginning of many parts of a file, and must not decompress more.
const FIRST_BYTES: usize = 16 << 10;

pub(crate) struct Window {
    source: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// The offset of `start` in the file; for a compressed file, in its decompressed contents.
    offset: u64,
    /// An error of the source, which later calls return again: some decompressors do not report it
    /// a second time.
    failure: Option<(io::ErrorKind, String)>,
}

impl Window {
    pub(crate) fn new(source: Box<dyn Read + Send>) -> Self {
        Self { source, buffer: vec![0; FIRST_BYTES], start: 0, end: 0, offset: 0, failure: None }
    }

    /// The offset in the file of the bytes that [`need`](Self::need) returns.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next `len` bytes; `None` if the file has no more bytes.
    ///
    /// The window grows to `len` if the file has that many bytes, so the caller must limit `len`.
    pub(crate) fn need(
        &mut self,
        len: usize,
        what: &'static str,
    ) -> Result<Option<&[u8]>, ReadError> {
        if self.end - self.start < len {
            self.fill(len).map_err(|source| ReadError::Source { offset: self.offset, source })?;
        }
        match self.end - self.start {
            0 => Ok(None),
            present if present < len => {
                Err(ReadError::Truncated { offset: self.offset, what, expected: len, present })
            }
            _ => Ok(Some(&self.buffer[self.start..self.start + len])),
        }
    }

    /// Skips the next `len` bytes, which `need` has returned. Returns their range, valid until the
    /// next `need`.
    pub(crate) fn consume(&mut self, len: usize) -> Range<usize> {
        let consumed = self.start..self.start + len;
        self.start += len;
        self.offset += len as u64;
        consumed
    }

    /// The bytes at a range that [`consume`](Self::consume) returned.
    pub(crate) fn bytes(&self, place: Range<usize>) -> &[u8] {
        &self.buffer[place]
    }

    /// Reads until the window has `len` bytes, or the source ends.
    #[cold]
    fn fill(&mut self, len: usize) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;

        if self.offset > 0 && self.buffer.len() < WINDOW_BYTES {
            self.buffer.resize(2 * self.buffer.len(), 0);
        }

        while self.end < len {
            if self.end == self.buffer.len() {
                // The window grows only with bytes actually read: `len` is an unverified number
                // from the file.
                self.buffer.resize(len.min(2 * self.end), 0);
            }
            match self.read()? {
                0 => break,
                count => self.end += count,
            }
        }

        Ok(())
    }

    fn read(&mut self) -> io::Result<usize> {
        if let Some((kind, text)) = &self.failure {
            return Err(io::Error::new(*kind, text.clone()));
        }
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                Err(error) => {
                    self.failure = Some((error.kind(), error.to_string()));
                    return Err(error);
                }
                Ok(count) => return Ok(count),
            }
        }
    }
}
