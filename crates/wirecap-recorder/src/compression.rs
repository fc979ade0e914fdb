//! Compression of files. Pages are compressed independently, so the part of a file that is already
//! written can be read, and any page without the others.
//!
//! The level drops with the number of pages that wait for a compressor, from Zstandard's level 3
//! through 1 and -5 to stored blocks, which are not compressed. A slow disk does not change the
//! level: compressed pages that wait for the disk do not count. A Zstandard file is a single
//! [frame of pages](wirecap_savefile::paged), and has its end after each page.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::write::GzEncoder;
use wirecap_savefile::paged::{self, Checksum, Found, Pages};
use wirecap_savefile::{Format, Sink};
use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd::zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, compress_bound, get_error_name};

use crate::page::FRAME_BYTES;

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not compressed.
    #[default]
    None,
    /// gzip, one member per page.
    Gzip,
    /// Zstandard, one [frame of pages](wirecap_savefile::paged).
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

    /// Checks that the extension is not that of another compressor: a file of that name would not
    /// be compressed.
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
}

/// The format selected by a file name's extension, ignoring that of the compression: pcap for
/// `.pcap`, otherwise pcapng.
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

/// The compression level: the more pages wait for a compressor, the lower the level. At the lowest
/// level, pages are stored uncompressed.
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
    zstandard: Option<PageEncoder>,
}

impl Compressor {
    pub(crate) fn new(compression: Compression) -> io::Result<Self> {
        let zstandard = match compression {
            Compression::Zstandard => Some(PageEncoder::new()?),
            _ => None,
        };
        Ok(Self { compression, zstandard })
    }

    /// Returns the compressed bytes, or `None` without compression.
    pub(crate) fn compress(&mut self, bytes: &[u8], effort: Effort) -> io::Result<Option<Vec<u8>>> {
        if let Some(zstandard) = &mut self.zstandard {
            let mut page = match effort {
                Effort::None => stored_blocks(bytes),
                _ => zstandard.blocks(bytes, effort)?,
            };
            page.extend(paged::mark(bytes));

            #[cfg(sabotage)]
            if crate::sabotage::is("frame-per-page") {
                page.splice(..0, paged::HEAD);
                let mut checksum = Checksum::default();
                checksum.add(bytes);
                page.extend(checksum.end());
            }
            return Ok(Some(page));
        }
        Ok(match self.compression {
            Compression::Gzip => {
                let mut encoder =
                    GzEncoder::new(Vec::new(), flate2::Compression::new(effort.gzip()));
                encoder.write_all(bytes)?;
                Some(encoder.finish()?)
            }
            _ => None,
        })
    }
}

/// Compresses pages into blocks that refer to no earlier page.
///
/// This is what the library's threads do with the jobs of a frame, if these have no bytes in
/// common: each job begins without tables, window and repeated offsets. So this is a frame without
/// an end, and each page is a job of it. (A frame per page would have blocks that refer to the
/// offsets that each frame begins with, which are others in the middle of a frame.)
struct PageEncoder {
    context: CCtx<'static>,
    effort: Effort,
}

/// Threads of the library.
const WORKERS: u32 = 2;

impl PageEncoder {
    fn new() -> io::Result<Self> {
        let mut context = CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;

        for parameter in [
            CParameter::CompressionLevel(Effort::Full.zstandard()),
            // One compresses, and the other has returned from the page before: the library does not
            // wait for a thread, it tries again.
            CParameter::NbWorkers(WORKERS),
            CParameter::JobSize(FRAME_BYTES as u32),
            // No overlap of jobs.
            CParameter::OverlapSizeLog(1),
            CParameter::WindowLog(paged::WINDOW_LOG),
        ] {
            context.set_parameter(parameter).map_err(failed)?;
        }

        let mut this = Self { context, effort: Effort::Full };

        // The first job has the frame's head. The others go once round the library's buffer of
        // input, which has room for a window or its threads' jobs, and for two jobs: a recording
        // allocates nothing later.
        let nothing = vec![0; FRAME_BYTES];
        let jobs = (1_usize << paged::WINDOW_LOG).div_ceil(FRAME_BYTES).max(WORKERS as usize) + 2;
        for _ in 0..=jobs {
            this.blocks(&nothing, Effort::Full)?;
        }

        Ok(this)
    }

    fn blocks(&mut self, bytes: &[u8], effort: Effort) -> io::Result<Vec<u8>> {
        if effort != self.effort {
            let level = CParameter::CompressionLevel(effort.zstandard());
            self.context.set_parameter(level).map_err(failed)?;
            self.effort = effort;
        }

        let mut blocks = Vec::with_capacity(compress_bound(bytes.len()));
        let mut input = InBuffer::around(bytes);

        loop {
            let len = blocks.len();
            blocks.reserve(paged::BLOCK_BYTES_MAX);

            let mut output = OutBuffer::around_pos(&mut blocks, len);

            // With the page at once: the library does not wait for its thread if more input may
            // follow.
            let flush = ZSTD_EndDirective::ZSTD_e_flush;
            if self.context.compress_stream2(&mut output, &mut input, flush).map_err(failed)? == 0 {
                return Ok(blocks);
            }
        }
    }
}

fn failed(code: usize) -> io::Error {
    io::Error::other(get_error_name(code))
}

/// Blocks of maximum length with the bytes uncompressed.
fn stored_blocks(bytes: &[u8]) -> Vec<u8> {
    let mut blocks = Vec::with_capacity(bytes.len() + 64);
    for block in bytes.chunks(paged::BLOCK_BYTES_MAX) {
        blocks.extend(paged::stored_block(block.len()));
        blocks.extend(block);
    }
    blocks
}

/// The bytes before the first page of a file, and after each one.
#[derive(Debug)]
pub(crate) struct Frame {
    compression: Compression,
    checksum: Checksum,
}

/// The bytes after a page with which the file is complete; they are replaced by the next page.
/// Empty, except for Zstandard.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FrameEnd(Option<[u8; paged::END_BYTES]>);

impl FrameEnd {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |end| &end[..])
    }
}

impl Frame {
    pub(crate) fn new(compression: Compression) -> Self {
        Self { compression, checksum: Checksum::default() }
    }

    /// Begins a file. Returns its first bytes.
    pub(crate) fn begin(&mut self) -> &'static [u8] {
        self.checksum = Checksum::default();
        #[cfg(sabotage)]
        if crate::sabotage::is("frame-per-page") {
            return &[];
        }
        match self.compression {
            Compression::Zstandard => &paged::HEAD,
            _ => &[],
        }
    }

    /// Adds the next page of the file, not compressed. Returns the end of the file after it.
    pub(crate) fn add(&mut self, page: &[u8]) -> FrameEnd {
        if self.compression != Compression::Zstandard {
            return FrameEnd(None);
        }
        self.checksum.add(page);
        #[cfg(sabotage)]
        if crate::sabotage::is("frame-per-page") {
            return FrameEnd(None);
        }
        FrameEnd(Some(self.checksum.end()))
    }

    /// The number of bytes of an end.
    pub(crate) fn end_bytes(&self) -> u64 {
        match self.compression {
            Compression::Zstandard => paged::END_BYTES as u64,
            _ => 0,
        }
    }
}

/// The complete parts of a file that a killed process left.
pub(crate) struct Whole {
    /// Their length.
    pub(crate) bytes: u64,
    /// The bytes that complete a file with these parts.
    pub(crate) end: FrameEnd,
    kind: Kind,
}

/// The parts of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    GzipMembers,
    /// Pages of a single frame.
    Pages,
    /// A frame per page, and a table of them at the end, as earlier versions wrote them.
    Frames,
}

impl Kind {
    /// The bytes with which each part begins, or those with which it ends. A gzip member has no
    /// name and no time here.
    fn is_sign(self, bytes: &[u8]) -> bool {
        match self {
            Self::GzipMembers => bytes.starts_with(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0]),
            Self::Pages => bytes.get(..paged::MARK_BYTES).is_some_and(paged::is_like_mark),
            Self::Frames => bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]),
        }
    }
}

/// The complete parts of a file. `None` if it has none.
pub(crate) fn whole_parts(file: &File, compression: Compression) -> io::Result<Option<Whole>> {
    let mut rest = BufReader::new(file);
    rest.rewind()?;

    let kind = match compression {
        Compression::None => return Ok(None),
        Compression::Gzip => Kind::GzipMembers,
        Compression::Zstandard if rest.fill_buf()?.starts_with(&paged::HEAD) => {
            rest.consume(paged::HEAD.len());
            return whole_pages(rest);
        }
        Compression::Zstandard => Kind::Frames,
    };
    let mut bytes = 0;
    let mut contents = Vec::new();
    while let Some(compressed) = next_frame(&mut rest, kind, &mut contents)? {
        bytes += compressed as u64;
    }

    Ok((bytes > 0).then_some(Whole { bytes, end: FrameEnd(None), kind }))
}

fn whole_pages(source: BufReader<&File>) -> io::Result<Option<Whole>> {
    let mut pages = Pages::of_frame(source)?;
    let mut whole = 0;
    let mut checksum = Checksum::default();
    let mut open = Checksum::default();

    loop {
        match pages.next_block() {
            Ok(Found::Block) => open.add(pages.block()),
            Ok(Found::EndOfPage) => {
                whole = pages.position();
                checksum = open.clone();
            }
            // An error of the file, not of the decompressor.
            Err(error) if error.raw_os_error().is_some() => return Err(error),
            Ok(Found::EndOfFrame | Found::EndOfSource) | Err(_) => break,
        }
    }

    let end = FrameEnd(Some(checksum.end()));
    let bytes = paged::HEAD.len() as u64 + whole;
    Ok((whole > 0).then_some(Whole { bytes, end, kind: Kind::Pages }))
}

impl Whole {
    /// Whether the part of the file from its last complete part to `written` is the beginning of
    /// another one or of the bytes at the end, or is empty.
    pub(crate) fn is_torn_after(&self, mut file: &File, written: u64) -> io::Result<bool> {
        let part = self.bytes..written;
        if part.start >= part.end {
            return Ok(true);
        }

        file.seek(SeekFrom::Start(part.start))?;
        let mut rest = BufReader::new(file.take(part.end - part.start));

        if self.kind == Kind::Frames {
            let buffered = rest.fill_buf()?;
            let common = buffered.len().min(TABLE_HEAD.len());
            if buffered[..common] == TABLE_HEAD[..common] {
                return Ok(true);
            }
        }

        let read = match self.kind {
            Kind::GzipMembers => {
                io::copy(&mut flate2::bufread::GzDecoder::new(rest), &mut io::sink())
            }
            Kind::Frames => {
                io::copy(&mut zstd::Decoder::with_buffer(rest)?.single_frame(), &mut io::sink())
            }
            Kind::Pages => return is_torn_page(rest),
        };
        match read {
            Err(error) if error.raw_os_error().is_some() => Err(error),
            Err(error) => Ok(error.kind() == io::ErrorKind::UnexpectedEof),
            Ok(_) => Ok(false),
        }
    }

    /// Whether another part begins or ends in the file after the last complete one, up to
    /// `written`.
    pub(crate) fn is_followed(&self, file: &File, written: u64) -> io::Result<bool> {
        const SIGN_BYTES: usize = paged::MARK_BYTES;
        let mut offset = self.bytes + 1;
        let mut buffer = vec![0; 1 << 20];

        loop {
            let read = read_up_to(file, &mut buffer, offset)?;
            let read = read.min(written.saturating_sub(offset) as usize);
            if (0..read).any(|at| self.kind.is_sign(&buffer[at..read])) {
                return Ok(true);
            }
            if read < buffer.len() {
                return Ok(false);
            }

            // It may begin in this part and end in the next one.
            offset += (read - SIGN_BYTES + 1) as u64;
        }
    }
}

/// Whether these bytes, which follow a page, are the beginning of a page, or the end of the frame
/// or its beginning.
fn is_torn_page(rest: impl Read) -> io::Result<bool> {
    let mut pages = Pages::within(rest, zstd::stream::raw::Decoder::new()?)?;
    loop {
        match pages.next_block() {
            Ok(Found::Block) => {}
            Ok(Found::EndOfFrame) => return Ok(pages.next_block()? == Found::EndOfSource),
            Ok(Found::EndOfPage | Found::EndOfSource) => return Ok(false),
            Err(error) if error.raw_os_error().is_some() => return Err(error),
            Err(error) => return Ok(error.kind() == io::ErrorKind::UnexpectedEof),
        }
    }
}

/// Fills the buffer, or reads to the end of the file.
fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

/// The magic number of the skippable frame with the table of frames.
const TABLE_HEAD: [u8; 4] = 0x184d_2a5e_u32.to_le_bytes();

/// Decompresses the next frame or member into `bytes`. Returns its compressed length, or `None` if
/// the rest does not begin with a complete one.
fn next_frame(
    file: &mut BufReader<&File>,
    kind: Kind,
    bytes: &mut Vec<u8>,
) -> io::Result<Option<usize>> {
    bytes.clear();
    let begin = file.stream_position()?;
    let limit = FRAME_BYTES_MAX as u64;

    let read = match kind {
        Kind::GzipMembers => {
            flate2::bufread::GzDecoder::new(&mut *file).take(limit).read_to_end(bytes)
        }
        Kind::Frames | Kind::Pages => {
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

/// Limit of a frame's decompressed length. A frame contains a page, or the bytes before or after
/// the packets of a file.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// A file that is compressed as it is written, for a [`Writer`](wirecap_savefile::Writer).
pub struct CompressedSink {
    file: File,
    name: String,
    compressor: Compressor,
    frame: Frame,
    end: FrameEnd,
    bytes: u64,
}

impl CompressedSink {
    /// Writes to `file`; error messages call it `name`.
    ///
    /// # Errors
    ///
    /// If the compressor cannot allocate memory.
    pub fn new(file: File, name: String, compression: Compression) -> io::Result<Self> {
        let compressor = Compressor::new(compression)?;
        let frame = Frame::new(compression);
        Ok(Self { file, name, compressor, frame, end: FrameEnd::default(), bytes: 0 })
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
        let head = if self.bytes == 0 { self.frame.begin() } else { &[] };
        if let Err(error) = self.file.write_all(head).and_then(|()| self.file.write_all(output)) {
            self.file.set_len(self.bytes)?;
            self.file.seek(SeekFrom::Start(self.bytes))?;
            return Err(error);
        }
        self.bytes += (head.len() + output.len()) as u64;
        self.end = self.frame.add(bytes);
        Ok(bytes.len())
    }

    fn take_back(&mut self, _byte_count: usize) -> io::Result<bool> {
        Ok(false)
    }

    fn end(&mut self) -> io::Result<()> {
        self.file.write_all(self.end.bytes())
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

                let mut frame = Frame::new(compression);
                let head = frame.begin();
                let ends: Vec<FrameEnd> = pages.iter().map(|(page, _)| frame.add(page)).collect();
                let all = [head, &frames.concat()[..], ends.last().unwrap().bytes()].concat();

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

                let mut whole = head.len();

                for frame in &frames {
                    if whole + frame.len() > kept {
                        break;
                    }
                    whole += frame.len();
                }

                let found = whole_parts(&file, compression).unwrap();
                prop_assert_eq!(found.map_or(head.len() as u64, |whole| whole.bytes), whole as u64);
            }
        }
    }

    #[test]
    fn the_effort_falls_as_the_number_of_waiting_pages_rises() {
        let efforts: Vec<Effort> = (0..16).map(|waiting| Effort::of(waiting, 2)).collect();
        assert!(efforts.is_sorted() && efforts[4] == Effort::Full && efforts[11] == Effort::None);
    }
}
