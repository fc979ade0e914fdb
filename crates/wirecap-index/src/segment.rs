//! A segment, which is a savefile of a recording, divided into pieces that can be read separately.
//!
//! Zstandard frames, [pages](wirecap_savefile::paged) of one, and gzip members can be read
//! separately. A piece is the smallest number of them that begins and ends between two packets; in
//! an uncompressed file, a range of bytes that does.

use std::fmt::{self, Debug};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use flate2::bufread::GzDecoder;
use wirecap_savefile::paged::{self, Found, Pages};
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer, WriteBuf};
use zstd::stream::zio;

/// A part of a segment that can be read separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The piece's offset in the file.
    pub offset: u64,
    /// Bytes that it has in the file.
    pub bytes: u64,
    /// Its offset in the decompressed file.
    pub begin: u64,
    /// Bytes that it expands to.
    pub len: u64,
    /// The number of its first packet in the segment, from 0.
    pub first_packet: u64,
    /// Packets that begin in it.
    pub packets: u64,
    /// The earliest time of a packet, in nanoseconds since the epoch; packets without a time count
    /// as 0.
    pub earliest: u64,
    /// The latest time of a packet.
    pub latest: u64,
    /// Whether it has blocks other than packets that later pieces may need.
    pub has_context: bool,
}

/// How a segment is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstandard,
}

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTANDARD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The low four bits of the first byte are free.
const SKIPPABLE: [u8; 4] = [0x50, 0x2a, 0x4d, 0x18];

impl Compression {
    /// By a file's first bytes.
    pub(crate) fn of(head: &[u8]) -> Self {
        match () {
            () if head.starts_with(&GZIP) => Self::Gzip,
            () if head.starts_with(&ZSTANDARD) || is_skippable(head) => Self::Zstandard,
            () => Self::None,
        }
    }
}

fn is_skippable(head: &[u8]) -> bool {
    matches!(head, [first, b, c, d, ..] if first & 0xf0 == SKIPPABLE[0] && [*b, *c, *d] == SKIPPABLE[1..])
}

/// A frame, page or member that was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// The end's offset in the decompressed file.
    pub(crate) end: u64,
}

/// The frames that a [`Frames`] has read completely.
#[derive(Debug, Default)]
pub(crate) struct FrameLog {
    count: AtomicUsize,
    frames: Mutex<Vec<Frame>>,
}

impl FrameLog {
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn get(&self, index: usize) -> Frame {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)[index]
    }

    fn push(&self, frame: Frame) {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner).push(frame);
        self.count.fetch_add(1, Ordering::Release);
    }
}

/// The decompressed contents of a segment, from its beginning, frame by frame.
pub(crate) struct Frames {
    state: State,
    log: Arc<FrameLog>,
    /// The offset of the current frame or page.
    offset: u64,
    /// The offset of the first page of the current frame.
    pages: u64,
    /// Number of decompressed bytes returned so far.
    given: u64,
}

enum State {
    Plain(BufReader<File>),
    Between(Compression, BufReader<File>),
    Gzip(GzDecoder<BufReader<File>>),
    Zstandard(zstd::Decoder<'static, BufReader<File>>),
    Pages(Pages<BufReader<File>>),
    Ended,
}

impl Frames {
    pub(crate) fn open(path: &Path) -> io::Result<(Self, Compression, Arc<FrameLog>)> {
        let mut file = BufReader::with_capacity(256 << 10, File::open(path)?);
        let compression = Compression::of(file.fill_buf()?);
        let log = Arc::new(FrameLog::default());
        let state = match compression {
            Compression::None => State::Plain(file),
            compression => State::Between(compression, file),
        };
        Ok((Self { state, log: Arc::clone(&log), offset: 0, pages: 0, given: 0 }, compression, log))
    }

    /// Records the end of a frame, after it was read.
    fn end_frame(&mut self, compression: Compression, mut file: BufReader<File>) -> io::Result<()> {
        let end = file.stream_position()?;
        self.log.push(Frame { offset: self.offset, bytes: end - self.offset, end: self.given });
        self.state = State::Between(compression, file);
        Ok(())
    }

    /// Reads the next block, and records the end of a page.
    fn next_block(&mut self, mut pages: Pages<BufReader<File>>) -> io::Result<()> {
        self.state = match pages.next_block()? {
            Found::Block => State::Pages(pages),
            Found::EndOfPage => {
                let end = self.pages + pages.position();
                self.log.push(Frame {
                    offset: self.offset,
                    bytes: end - self.offset,
                    end: self.given,
                });
                self.offset = end;
                State::Pages(pages)
            }
            Found::EndOfFrame => State::Between(Compression::Zstandard, pages.into_source()),
            Found::EndOfSource => return Err(io::ErrorKind::UnexpectedEof.into()),
        };
        Ok(())
    }

    /// Begins the next frame.
    fn begin_frame(
        &mut self,
        compression: Compression,
        mut file: BufReader<File>,
    ) -> io::Result<()> {
        loop {
            let mut head = [0; 8];
            let present = peek(&mut file, &mut head)?;
            let head = &head[..present];
            let is_gzip = compression == Compression::Gzip;
            if head.is_empty() || is_gzip && !head.starts_with(&GZIP) {
                return Ok(()); // gzip(1) ignores the bytes after the last member, too
            }

            if is_gzip {
                self.offset = file.stream_position()?;
                self.state = State::Gzip(GzDecoder::new(file));
                return Ok(());
            }

            if !is_skippable(head) {
                self.offset = file.stream_position()?;

                if is_of_pages(&mut file)? {
                    self.offset += paged::HEAD.len() as u64;
                    self.pages = self.offset;
                    file.seek_relative(paged::HEAD.len() as i64)?;
                    self.state = State::Pages(Pages::of_frame(file)?);
                    return Ok(());
                }

                self.state = State::Zstandard(zstd::Decoder::with_buffer(file)?.single_frame());
                return Ok(());
            }

            let Some(len) = head.last_chunk().filter(|_| head.len() == 8) else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            file.seek_relative(8 + i64::from(u32::from_le_bytes(*len)))?;
        }
    }
}

/// Whether a frame is of pages, by its first page. Another compressor may write the same head.
fn is_of_pages(file: &mut BufReader<File>) -> io::Result<bool> {
    /// More than a recorder's page has, compressed.
    const PAGE_BYTES_MAX: u64 = 4 << 20;
    let mut head = [0; paged::HEAD.len()];
    if peek(file, &mut head)? < head.len() || head != paged::HEAD {
        return Ok(false);
    }

    let begin = file.stream_position()?;
    file.seek_relative(paged::HEAD.len() as i64)?;

    let mut pages = Pages::of_frame(file.by_ref().take(PAGE_BYTES_MAX))?;
    let found = loop {
        match pages.next_block() {
            Ok(Found::Block) => {}
            found => break found,
        }
    };
    file.seek(SeekFrom::Start(begin))?;

    match found {
        Err(error) if error.raw_os_error().is_some() => Err(error),
        found => Ok(found.is_ok_and(|found| found == Found::EndOfPage)),
    }
}

/// The next bytes, without consuming them; fewer at the end of the file.
fn peek(file: &mut BufReader<File>, into: &mut [u8]) -> io::Result<usize> {
    let buffered = file.fill_buf()?;
    if buffered.len() >= into.len() {
        into.copy_from_slice(&buffered[..into.len()]);
        return Ok(into.len());
    }

    let at = file.stream_position()?;
    let mut present = 0;
    while present < into.len() {
        match file.get_ref().read_at(&mut into[present..], at + present as u64)? {
            0 => break,
            count => present += count,
        }
    }

    Ok(present)
}

impl Read for Frames {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(&mut self.state, State::Ended) {
                State::Plain(mut file) => {
                    let count = file.read(into)?;
                    self.state = State::Plain(file);
                    return Ok(count);
                }
                State::Between(compression, file) => self.begin_frame(compression, file)?,
                State::Gzip(mut member) => match member.read(into)? {
                    0 => self.end_frame(Compression::Gzip, member.into_inner())?,
                    count => {
                        self.given += count as u64;
                        self.state = State::Gzip(member);
                        return Ok(count);
                    }
                },
                State::Zstandard(mut frame) => match frame.read(into)? {
                    0 => self.end_frame(Compression::Zstandard, frame.finish())?,
                    count => {
                        self.given += count as u64;
                        self.state = State::Zstandard(frame);
                        return Ok(count);
                    }
                },
                State::Pages(mut pages) => {
                    let count = pages.read_block(into);
                    self.given += count as u64;
                    if count > 0 || into.is_empty() {
                        self.state = State::Pages(pages);
                        return Ok(count);
                    }
                    self.next_block(pages)?;
                }
                State::Ended => return Ok(0),
            }
        }
    }
}

/// An open segment.
pub trait Source: Debug + Send + Sync {
    /// A reader of a range of it. The reader may end early if the segment does.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    fn read_range(&self, offset: u64, bytes: u64) -> io::Result<Box<dyn Read + Send>>;
}

/// Bytes read at once of a compressed piece. A search often needs only the beginning of a piece.
const READ_BYTES: usize = 32 << 10;

/// A segment whose pieces are read.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    source: Arc<dyn Source>,
    compression: Compression,
    /// Bytes of the segment that were read.
    read: Arc<AtomicU64>,
    decoders: Decoders,
}

impl Segment {
    pub(crate) fn open(source: Arc<dyn Source>, read: &Arc<AtomicU64>) -> io::Result<Self> {
        let mut head = Vec::new();
        source.read_range(0, 4)?.read_to_end(&mut head)?;
        let compression = Compression::of(&head);
        Ok(Self { source, compression, read: Arc::clone(read), decoders: Decoders::default() })
    }

    /// The decompressed contents of a piece; an error if their length differs from the piece's.
    pub(crate) fn expand(&self, piece: &Piece) -> io::Result<Box<dyn Read + Send>> {
        let source = self.source.read_range(piece.offset, piece.bytes)?;
        let range = Range { source, read: Arc::clone(&self.read), left: piece.bytes };

        let source: Box<dyn Read + Send> = match self.compression {
            Compression::None => Box::new(range),
            Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(
                BufReader::with_capacity(READ_BYTES, range),
            )),
            Compression::Zstandard => {
                let mut range = BufReader::with_capacity(READ_BYTES, range);
                let mut head = Vec::new();
                range.by_ref().take(ZSTANDARD.len() as u64).read_to_end(&mut head)?;

                let is_frame = Compression::of(&head) == Compression::Zstandard;
                let source = Cursor::new(head).chain(range);
                let decoder = self.decoders.get()?;

                match is_frame {
                    true => Box::new(zio::Reader::new(
                        BufReader::with_capacity(READ_BYTES, source),
                        decoder,
                    )),
                    false => Box::new(Pages::within(source, decoder)?),
                }
            }
        };
        Ok(Box::new(Exactly { source, left: piece.len }))
    }
}

/// Zstandard decoders that are not in use. A decoder has memory for the window of a frame; a new
/// one for each piece would have to allocate it, and the kernel to clear it, for each piece.
#[derive(Clone, Default)]
struct Decoders(Arc<Mutex<Vec<Decoder<'static>>>>);

impl Debug for Decoders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoders").finish_non_exhaustive()
    }
}

impl Decoders {
    fn get(&self) -> io::Result<Lent> {
        let unused = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let decoder = match unused {
            Some(mut decoder) => {
                // The frame before may not have been read to its end.
                decoder.reinit()?;
                decoder
            }
            None => Decoder::new()?,
        };
        Ok(Lent { decoder: Some(decoder), owner: self.clone() })
    }
}

/// A decoder that is in use.
struct Lent {
    /// Present until the drop.
    decoder: Option<Decoder<'static>>,
    owner: Decoders,
}

impl Lent {
    fn decoder(&mut self) -> io::Result<&mut Decoder<'static>> {
        self.decoder.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Operation for Lent {
    fn run<C: WriteBuf + ?Sized>(
        &mut self,
        input: &mut InBuffer<'_>,
        output: &mut OutBuffer<'_, C>,
    ) -> io::Result<usize> {
        self.decoder()?.run(input, output)
    }

    fn flush<C: WriteBuf + ?Sized>(&mut self, output: &mut OutBuffer<'_, C>) -> io::Result<usize> {
        self.decoder()?.flush(output)
    }

    fn reinit(&mut self) -> io::Result<()> {
        self.decoder()?.reinit()
    }

    fn finish<C: WriteBuf + ?Sized>(
        &mut self,
        output: &mut OutBuffer<'_, C>,
        finished_frame: bool,
    ) -> io::Result<usize> {
        self.decoder()?.finish(output, finished_frame)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let decoder = self.decoder.take();
        self.owner.0.lock().unwrap_or_else(PoisonError::into_inner).extend(decoder);
    }
}

/// The final name of a segment that was incomplete.
pub(crate) fn complete_name(path: &Path) -> Option<&Path> {
    path.to_str().and_then(|path| path.strip_suffix(".part")).map(Path::new)
}

/// A range of a segment.
struct Range {
    source: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
    left: u64,
}

impl Read for Range {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(into)?;
        if count == 0 && self.left > 0 && !into.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the segment is shorter than recorded in its index",
            ));
        }
        self.left = self.left.saturating_sub(count as u64);
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// The given number of bytes, or an error.
struct Exactly<R> {
    source: R,
    left: u64,
}

impl<R: Read> Read for Exactly<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }

        let count = self.source.read(into)?;
        let differs = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the length of a piece of the segment differs from its index",
            )
        };

        if count == 0 && self.left > 0 {
            return Err(differs());
        }

        self.left = self.left.checked_sub(count as u64).ok_or_else(differs)?;
        Ok(count)
    }
}
