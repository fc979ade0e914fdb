//! Compression of files. Pages are compressed independently, so the part of a file that is already written
//! can be read, and any page without the others.
//!
//! The level drops with the number of pages that wait for a compressor, from Zstandard's level 3
//! through 1 and -5 to stored frames, which are not compressed. A slow disk does not change the
//! level: compressed pages that wait for the disk do not count. A Zstandard file ends with the
//! table of the seekable format.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use flate2::write::GzEncoder;
use wirecap_savefile::{Format, Sink};
use zeekstd::SeekTable;

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not compressed.
    #[default]
    None,
    /// gzip, one member per page.
    Gzip,
    /// Zstandard, one frame per page, followed by the seek table of the seekable format.
    Zstandard,
}

impl Compression {
    /// The compression selected by a file name's extension.
    pub fn of(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => Self::Gzip,
            Some("zst") => Self::Zstandard,
            _ => Self::None,
        }
    }

    /// Checks that the extension is not that of another compressor: a file of that name would not be compressed.
    ///
    /// # Errors
    ///
    /// A message with the names that can be used.
    pub fn check(path: &Path) -> Result<(), String> {
        const OTHERS: [&str; 12] =
            ["bz2", "xz", "lzma", "lz4", "lzo", "br", "sz", "Z", "z", "zip", "7z", "zstd"];
        match path.extension().and_then(|extension| extension.to_str()) {
            Some(extension) if OTHERS.contains(&extension) => Err(format!(
                "{}: wirecap does not compress to .{extension}; use the extension .zst or .gz",
                path.display()
            )),
            _ => Ok(()),
        }
    }

    /// The bytes with which each frame begins. A gzip member has no name and no time here.
    pub(crate) fn frame_head(self) -> &'static [u8] {
        match self {
            Self::None => unreachable!("without compression there are no frames"),
            Self::Gzip => &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0],
            Self::Zstandard => &[0x28, 0xb5, 0x2f, 0xfd],
        }
    }
}

/// The format selected by a file name's extension, ignoring that of the compression: pcap for `.pcap`,
/// otherwise pcapng.
pub fn format_of(path: &Path) -> Format {
    let plain = match Compression::of(path) {
        Compression::None => path.to_owned(),
        _ => path.with_extension(""),
    };
    match plain.extension().and_then(|extension| extension.to_str()) {
        Some("pcap") => Format::Pcap,
        _ => Format::Pcapng,
    }
}

/// The compression level: the more pages wait for a compressor, the lower the level. At the lowest level,
/// pages are stored uncompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Effort {
    Full,
    Less,
    Little,
    None,
}

impl Effort {
    /// The level for this number of waiting pages and compressors.
    pub(crate) fn of(pages_waiting: usize, compressors: usize) -> Self {
        match pages_waiting.saturating_sub(compressors) {
            0..=2 => Self::Full,
            3..=5 => Self::Less,
            6..=8 => Self::Little,
            _ => Self::None,
        }
    }

    /// The level for Zstandard.
    fn zstandard(self) -> i32 {
        match self {
            Self::Full => 3,
            Self::Less => 1,
            Self::Little | Self::None => -5,
        }
    }

    /// The level for gzip.
    fn gzip(self) -> u32 {
        match self {
            Self::Full => 6,
            Self::Less => 3,
            Self::Little => 1,
            Self::None => 0,
        }
    }
}

/// Compresses pages, each independently.
pub(crate) struct Compressor {
    compression: Compression,
    zstandard: zstd::bulk::Compressor<'static>,
}

impl Compressor {
    pub(crate) fn new(compression: Compression) -> io::Result<Self> {
        let mut zstandard = zstd::bulk::Compressor::new(Effort::Full.zstandard())?;
        zstandard.include_checksum(true)?;
        Ok(Self { compression, zstandard })
    }

    /// Returns the compressed bytes, or `None` without compression.
    pub(crate) fn compress(&mut self, bytes: &[u8], effort: Effort) -> io::Result<Option<Vec<u8>>> {
        Ok(match self.compression {
            Compression::None => None,
            Compression::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::new(effort.gzip()));
                encoder.write_all(bytes)?;
                Some(encoder.finish()?)
            }
            Compression::Zstandard if effort == Effort::None => Some(stored_frame(bytes)),
            Compression::Zstandard => {
                self.zstandard.set_compression_level(effort.zstandard())?;
                Some(self.zstandard.compress(bytes)?)
            }
        })
    }
}

/// A Zstandard frame (RFC 8878) with the bytes uncompressed, in blocks of maximum length.
fn stored_frame(bytes: &[u8]) -> Vec<u8> {
    const MAGIC: u32 = 0xfd2f_b528;
    const BLOCK_BYTES: usize = 128 << 10;
    /// Single segment, content size in four bytes, no checksum.
    const DESCRIPTOR: u8 = 2 << 6 | 1 << 5;
    let mut frame = Vec::with_capacity(bytes.len() + 64);
    frame.extend(MAGIC.to_le_bytes());
    frame.push(DESCRIPTOR);
    frame.extend((bytes.len() as u32).to_le_bytes());
    let last = bytes.len().saturating_sub(1) / BLOCK_BYTES;
    for number in 0..=last {
        let block = &bytes[number * BLOCK_BYTES..bytes.len().min((number + 1) * BLOCK_BYTES)];
        // Type 0: a raw block.
        let header = (block.len() as u32) << 3 | u32::from(number == last);
        frame.extend(&header.to_le_bytes()[..3]);
        frame.extend(block);
    }
    frame
}

/// The bytes after the last frame of a file: the seek table of the seekable format, or none.
#[derive(Debug)]
pub(crate) struct FrameTable {
    compression: Compression,
    frames: SeekTable,
}

impl FrameTable {
    pub(crate) fn new(compression: Compression) -> Self {
        Self { compression, frames: SeekTable::new() }
    }

    /// Adds a frame of this compressed and decompressed length.
    pub(crate) fn add(&mut self, compressed: usize, bytes: usize) -> io::Result<()> {
        if self.compression == Compression::Zstandard {
            let logged = self.frames.log_frame(compressed as u32, bytes as u32);
            logged.map_err(|error| io::Error::other(error.to_string()))?;
        }
        Ok(())
    }

    /// The number of bytes that [`end`](Self::end) would return after one more frame.
    pub(crate) fn end_bytes(&self) -> u64 {
        const HEADER_AND_FOOTER: u64 = 8 + 9;
        const FRAME: u64 = 8;
        match self.compression {
            Compression::Zstandard => HEADER_AND_FOOTER + FRAME * (u64::from(self.frames.num_frames()) + 1),
            _ => 0,
        }
    }

    /// Returns the bytes that end the file, and starts the next file's table.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        let frames = std::mem::take(&mut self.frames);
        if self.compression != Compression::Zstandard {
            return Vec::new();
        }
        let mut table = frames.into_serializer();
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

/// The length of the complete frames of a file that a killed process left, and the bytes that end a file with
/// these frames. `None` if the file has no complete frame.
pub(crate) fn whole_frames(file: &File, compression: Compression) -> io::Result<Option<(u64, Vec<u8>)>> {
    let mut table = FrameTable::new(compression);
    let mut whole = 0;
    let mut rest = BufReader::new(file);
    let mut bytes = Vec::new();
    while let Some(compressed) = next_frame(&mut rest, compression, &mut bytes)? {
        table.add(compressed, bytes.len())?;
        whole += compressed as u64;
    }
    Ok((whole > 0).then(|| (whole, table.end())))
}

/// Whether this part of a file, after its last complete frame, is the beginning of a frame or of the table at the end, or
/// is empty.
pub(crate) fn is_torn_frame(mut file: &File, part: Range<u64>, compression: Compression) -> io::Result<bool> {
    if part.start >= part.end {
        return Ok(true);
    }
    file.seek(SeekFrom::Start(part.start))?;
    let mut rest = BufReader::new(file.take(part.end - part.start));
    if compression == Compression::Zstandard {
        let buffered = rest.fill_buf()?;
        let common = buffered.len().min(TABLE_HEAD.len());
        if buffered[..common] == TABLE_HEAD[..common] {
            return Ok(true);
        }
    }
    let read = match compression {
        Compression::None => return Ok(false),
        Compression::Gzip => io::copy(&mut flate2::bufread::GzDecoder::new(rest), &mut io::sink()),
        Compression::Zstandard => {
            io::copy(&mut zstd::Decoder::with_buffer(rest)?.single_frame(), &mut io::sink())
        }
    };
    match read {
        Err(error) if error.raw_os_error().is_some() => Err(error),
        Err(error) => Ok(error.kind() == io::ErrorKind::UnexpectedEof),
        Ok(_) => Ok(false),
    }
}

/// The magic number of the skippable frame that contains the seek table.
const TABLE_HEAD: [u8; 4] = 0x184d_2a5e_u32.to_le_bytes();

/// Decompresses the next frame into `bytes`. Returns its compressed length, or `None` if the rest does not begin with a
/// complete frame.
fn next_frame(
    file: &mut BufReader<&File>,
    compression: Compression,
    bytes: &mut Vec<u8>,
) -> io::Result<Option<usize>> {
    bytes.clear();
    let begin = file.stream_position()?;
    let limit = FRAME_BYTES_MAX as u64;
    let read = match compression {
        Compression::None => return Ok(None),
        Compression::Gzip => flate2::bufread::GzDecoder::new(&mut *file).take(limit).read_to_end(bytes),
        Compression::Zstandard => {
            zstd::Decoder::with_buffer(&mut *file)?.single_frame().take(limit).read_to_end(bytes)
        }
    };
    let end = file.stream_position()?;
    match read {
        Ok(count) if count > 0 && count < FRAME_BYTES_MAX => Ok(Some((end - begin) as usize)),
        // An error of the file, not of the decompressor.
        Err(error) if error.raw_os_error().is_some() => Err(error),
        _ => Ok(None),
    }
}

/// Limit of a frame's decompressed length. A frame contains a page, or the bytes before or after the packets
/// of a file.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// A file that is compressed as it is written, for a [`Writer`](wirecap_savefile::Writer).
pub struct CompressedSink {
    file: File,
    name: String,
    compressor: Compressor,
    table: FrameTable,
    bytes: u64,
}

impl CompressedSink {
    /// Writes to `file`; error messages call it `name`.
    ///
    /// # Errors
    ///
    /// If the compressor cannot allocate memory.
    pub fn new(file: File, name: String, compression: Compression) -> io::Result<Self> {
        let (compressor, table) = (Compressor::new(compression)?, FrameTable::new(compression));
        Ok(Self { file, name, compressor, table, bytes: 0 })
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
    /// Appends all bytes or none.
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let compressed = self.compressor.compress(bytes, Effort::Full)?;
        let output = compressed.as_deref().unwrap_or(bytes);
        if let Err(error) = self.file.write_all(output) {
            self.file.set_len(self.bytes)?;
            self.file.seek(SeekFrom::Start(self.bytes))?;
            return Err(error);
        }
        self.bytes += output.len() as u64;
        self.table.add(output.len(), bytes.len())?;
        Ok(bytes.len())
    }

    fn take_back(&mut self, _byte_count: usize) -> io::Result<bool> {
        Ok(false)
    }

    fn end(&mut self) -> io::Result<()> {
        let end = self.table.end();
        self.file.write_all(&end)
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

        #[test]
        fn at_any_level_frames_keep_their_bytes_and_torn_ones_are_detected(
            pages in vec((1..300_000_usize, any::<u8>(), 0..4_usize), 1..4),
            torn in 1..50_usize,
        ) {
            // Bytes that repeat after a short distance, and bytes that hardly repeat.
            let page = |(len, factor, effort): &(usize, u8, usize)| -> (Vec<u8>, usize) {
                ((0..*len).map(|place| (place * usize::from(*factor) / 7) as u8).collect(), *effort)
            };
            let pages: Vec<(Vec<u8>, usize)> = pages.iter().map(page).collect();
            const EFFORTS: [Effort; 4] = [Effort::Full, Effort::Less, Effort::Little, Effort::None];
            for compression in [Compression::Gzip, Compression::Zstandard] {
                let mut compressor = Compressor::new(compression).unwrap();
                let mut frames: Vec<Vec<u8>> = Vec::new();
                for (page, effort) in &pages {
                    frames.push(compressor.compress(page, EFFORTS[*effort]).unwrap().unwrap());
                }
                let all = frames.concat();
                let decoded = match compression {
                    Compression::Zstandard => zstd::decode_all(&all[..]).unwrap(),
                    _ => {
                        let mut decoded = Vec::new();
                        flate2::read::MultiGzDecoder::new(&all[..]).read_to_end(&mut decoded).unwrap();
                        decoded
                    }
                };
                let expected: Vec<u8> = pages.iter().flat_map(|(page, _)| page.clone()).collect();
                prop_assert!(decoded == expected);
                let mut file = tempfile::tempfile().unwrap();
                let kept = all.len().saturating_sub(torn);
                file.write_all(&all[..kept]).unwrap();
                file.rewind().unwrap();
                let mut whole = 0;
                for frame in &frames {
                    if whole + frame.len() > kept {
                        break;
                    }
                    whole += frame.len();
                }
                let found = whole_frames(&file, compression).unwrap();
                prop_assert_eq!(found.map_or(0, |(bytes, _)| bytes), whole as u64);
            }
        }
    }

    #[test]
    fn the_effort_falls_as_the_number_of_waiting_pages_rises() {
        let efforts: Vec<Effort> = (0..16).map(|waiting| Effort::of(waiting, 2)).collect();
        assert!(efforts.is_sorted() && efforts[4] == Effort::Full && efforts[11] == Effort::None);
    }
}
