//! How files are compressed: pages on their own, so that what is written of a file can be read, and a part of it without the
//! rest.

use std::fmt;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use flate2::write::GzEncoder;
use wirecap_savefile::Sink;
use zeekstd::SeekTable;

/// A file's compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// None.
    #[default]
    None,
    /// gzip: a member per page.
    Gzip,
    /// Zstandard: a frame per page, and behind them the table of the seekable format.
    Zstandard,
}

impl Compression {
    /// That which a file name's extension says.
    pub fn of(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => Self::Gzip,
            Some("zst") => Self::Zstandard,
            _ => Self::None,
        }
    }
}

/// What Zstandard does while the writer keeps up, and what it does when pages wait.
const LEVELS: [i32; 2] = [3, 1];
const GZIP_LEVELS: [u32; 2] = [6, 1];

/// Compresses the pages of one file after another.
pub(crate) struct Compressor {
    compression: Compression,
    zstandard: zstd::bulk::Compressor<'static>,
    frames: SeekTable,
}

impl Compressor {
    pub(crate) fn new(compression: Compression) -> io::Result<Self> {
        let mut zstandard = zstd::bulk::Compressor::new(LEVELS[0])?;
        zstandard.include_checksum(true)?;
        Ok(Self { compression, zstandard, frames: SeekTable::new() })
    }

    /// A file begins.
    pub(crate) fn begin(&mut self) {
        self.frames = SeekTable::new();
    }

    /// The bytes that stand for these, if not they themselves; less effort is made `in_haste`.
    pub(crate) fn compress(&mut self, bytes: &[u8], in_haste: bool) -> io::Result<Option<Vec<u8>>> {
        Ok(match self.compression {
            Compression::None => None,
            Compression::Gzip => {
                let level = flate2::Compression::new(GZIP_LEVELS[usize::from(in_haste)]);
                let mut encoder = GzEncoder::new(Vec::new(), level);
                encoder.write_all(bytes)?;
                Some(encoder.finish()?)
            }
            Compression::Zstandard => {
                self.zstandard.set_compression_level(LEVELS[usize::from(in_haste)])?;
                Some(self.zstandard.compress(bytes)?)
            }
        })
    }

    /// The frame of so many bytes, made of so many, is in the file.
    pub(crate) fn written(&mut self, compressed: usize, bytes: usize) -> io::Result<()> {
        if self.compression == Compression::Zstandard {
            let logged = self.frames.log_frame(compressed as u32, bytes as u32);
            logged.map_err(|error| io::Error::other(error.to_string()))?;
        }
        Ok(())
    }

    /// How long what [`end`](Self::end) gives would be after one more frame.
    pub(crate) fn end_bytes(&self) -> u64 {
        const HEADER_AND_FOOTER: u64 = 8 + 9;
        const FRAME: u64 = 8;
        match self.compression {
            Compression::Zstandard => HEADER_AND_FOOTER + FRAME * (u64::from(self.frames.num_frames()) + 1),
            _ => 0,
        }
    }

    /// What ends the file.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        if self.compression != Compression::Zstandard {
            return Vec::new();
        }
        let mut table = std::mem::take(&mut self.frames).into_serializer();
        let mut end = vec![0; table.encoded_len()];
        let mut len = 0;
        while len < end.len() {
            match table.write_into(&mut end[len..]) {
                0 => break,
                count => len += count,
            }
        }
        end.truncate(len);
        end
    }
}

/// A file that is compressed as it is written, for a [`Writer`](wirecap_savefile::Writer).
pub struct CompressedSink {
    file: File,
    name: String,
    compressor: Compressor,
    bytes: u64,
}

impl CompressedSink {
    /// Writes to `file`, which error messages call `name`.
    ///
    /// # Errors
    ///
    /// If the compressor has no memory.
    pub fn new(file: File, name: String, compression: Compression) -> io::Result<Self> {
        Ok(Self { file, name, compressor: Compressor::new(compression)?, bytes: 0 })
    }
}

impl fmt::Debug for CompressedSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompressedSink")
            .field("name", &self.name)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Sink for CompressedSink {
    /// All of them or none.
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let compressed = self.compressor.compress(bytes, false)?;
        let output = compressed.as_deref().unwrap_or(bytes);
        if let Err(error) = self.file.write_all(output) {
            self.file.set_len(self.bytes)?;
            self.file.seek(SeekFrom::Start(self.bytes))?;
            return Err(error);
        }
        self.bytes += output.len() as u64;
        self.compressor.written(output.len(), bytes.len())?;
        Ok(bytes.len())
    }

    fn take_back(&mut self, _byte_count: usize) -> io::Result<bool> {
        Ok(false)
    }

    fn end(&mut self) -> io::Result<()> {
        let end = self.compressor.end();
        self.file.write_all(&end)
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
