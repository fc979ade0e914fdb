//! The reader: detects the format of a file, and returns its packets in turn.

use std::fmt;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::ops::Range;
use std::path::Path;

use crate::contents::{Contents, Packet, Step};
use crate::fields::ByteOrder;
use crate::pcap_reader::PcapReader;
use crate::pcapng_reader::PcapngReader;
use crate::window::Window;
use crate::{Format, Interface, ReadError, Record, Section, Statistics};

/// Reads packets from a pcapng or pcap file, as it is or compressed by gzip or Zstandard.
///
/// An error leaves the reader before what it could not read: all that stands before has been given by then,
/// and another try gives the same error unless the file has grown.
///
/// ```no_run
/// let mut reader = wirecap_savefile::Reader::open("trace.pcapng.zst")?;
/// while let Some(record) = reader.next_record()? {
///     println!("{} bytes on {:?}", record.wire_len, reader.interfaces()[0].name);
/// }
/// # Ok::<(), wirecap_savefile::ReadError>(())
/// ```
pub struct Reader {
    window: Window,
    blocks: Blocks,
    contents: Contents,
}

/// The parts of a file after the header of pcap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// A packet.
    Packet(Record<'a>),
    /// A block of pcapng that is not a packet, all its bytes.
    Block(&'a [u8]),
}

enum Blocks {
    Pcap(PcapReader),
    Pcapng(PcapngReader),
}

impl Reader {
    /// Opens a file.
    ///
    /// # Errors
    ///
    /// [`ReadError::Open`], and those of [`new`](Self::new).
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|source| ReadError::Open { path: path.to_owned(), source })?;
        Self::new(file)
    }

    /// Reads the savefile in `source` up to its first interface.
    ///
    /// # Errors
    ///
    /// [`ReadError::UnknownFormat`] if it is not a savefile, and those of [`next_record`](Self::next_record).
    pub fn new(source: impl Read + Send + 'static) -> Result<Self, ReadError> {
        let mut reader = Self::from_start(source)?;
        // A packet would be an error: it has no interface.
        while reader.contents.interfaces.is_empty() && !matches!(reader.step()?, Step::End) {}
        Ok(reader)
    }

    /// As [`new`](Self::new), but reads nothing of a pcapng file yet, for a [`Conversion`](crate::Conversion).
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn from_start(source: impl Read + Send + 'static) -> Result<Self, ReadError> {
        let source =
            decompressed(Box::new(source)).map_err(|source| ReadError::Source { offset: 0, source })?;
        let mut window = Window::new(source);
        let mut contents = Contents::default();
        let magic = magic(&mut window)?;
        let blocks = if PcapngReader::is_magic(magic) {
            Blocks::Pcapng(PcapngReader::default())
        } else {
            Blocks::Pcap(PcapReader::begin(magic, &mut window, &mut contents)?)
        };
        Ok(Self { window, blocks, contents })
    }

    /// Gives the next packet, or `None` after the last.
    ///
    /// # Errors
    ///
    /// [`ReadError::Truncated`], [`ReadError::Malformed`] or [`ReadError::Source`].
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        loop {
            match self.step()? {
                Step::Packet(packet) => return Ok(Some(self.record(&packet))),
                Step::Other(_) => {}
                Step::End => return Ok(None),
            }
        }
    }

    /// The next part, packet or not, or `None` at the end. [`offset`](Self::offset) before the call is where it begins.
    ///
    /// # Errors
    ///
    /// As [`next_record`](Self::next_record).
    pub fn next_part(&mut self) -> Result<Option<Part<'_>>, ReadError> {
        Ok(match self.step()? {
            Step::Packet(packet) => Some(Part::Packet(self.record(&packet))),
            Step::Other(place) => Some(Part::Block(self.window.bytes(place))),
            Step::End => None,
        })
    }

    /// What kind of file it is.
    pub fn format(&self) -> Format {
        match self.blocks {
            Blocks::Pcap(_) => Format::Pcap,
            Blocks::Pcapng(_) => Format::Pcapng,
        }
    }

    /// Where and with what the most recently read packets were captured.
    pub fn section(&self) -> &Section {
        &self.contents.section
    }

    /// The interfaces known so far, those of all sections; [`Record::interface`] is an index into them.
    ///
    /// A file may describe an interface anywhere before its first packet. A pcap file has one interface,
    /// of which it knows only link type and `snap_len`.
    pub fn interfaces(&self) -> &[Interface] {
        &self.contents.interfaces
    }

    /// The counts of an interface: the latest ones that the file has so far.
    pub fn statistics(&self, interface: u32) -> Option<&Statistics> {
        self.contents.statistics.get(interface as usize)?.as_ref()
    }

    /// How many bytes of the file were read; of a compressed file, of its decompressed contents.
    pub fn offset(&self) -> u64 {
        self.window.offset()
    }

    pub(crate) fn step(&mut self) -> Result<Step, ReadError> {
        match &mut self.blocks {
            Blocks::Pcap(pcap) => pcap.step(&mut self.window),
            Blocks::Pcapng(pcapng) => pcapng.step(&mut self.window, &mut self.contents),
        }
    }

    /// The byte order of the last block, in a pcapng file.
    pub(crate) fn byte_order(&self) -> ByteOrder {
        match &self.blocks {
            Blocks::Pcap(_) => ByteOrder::Little,
            Blocks::Pcapng(pcapng) => pcapng.order(),
        }
    }

    /// The bytes at a place that the last step returned.
    pub(crate) fn bytes(&self, place: Range<usize>) -> &[u8] {
        self.window.bytes(place)
    }

    pub(crate) fn record(&self, packet: &Packet) -> Record<'_> {
        Record {
            interface: packet.interface,
            timestamp: packet.timestamp,
            queue: packet.queue,
            direction: packet.direction,
            wire_len: packet.wire_len,
            data: self.window.bytes(packet.data.clone()),
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("format", &self.format())
            .field("interfaces", &self.interfaces().len())
            .field("offset", &self.offset())
            .finish_non_exhaustive()
    }
}

fn magic(window: &mut Window) -> Result<[u8; 4], ReadError> {
    match window.need(4, "magic number")?.and_then(|bytes| bytes.first_chunk()) {
        Some(magic) => Ok(*magic),
        None => Err(ReadError::Empty),
    }
}

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTANDARD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

fn decompressed(mut source: Box<dyn Read + Send>) -> io::Result<Box<dyn Read + Send>> {
    let mut head = Vec::new();
    source.by_ref().take(4).read_to_end(&mut head)?;
    let (is_gzip, is_zstandard) = (head.starts_with(&GZIP), head.starts_with(&ZSTANDARD));
    let source = Cursor::new(head).chain(source);
    match () {
        () if is_gzip => gzip(source),
        () if is_zstandard => zstandard(source),
        () => Ok(Box::new(source)),
    }
}

#[cfg(feature = "compressed")]
fn gzip(source: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    Ok(Box::new(flate2::read::MultiGzDecoder::new(source)))
}

#[cfg(feature = "compressed")]
fn zstandard(source: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    Ok(Box::new(zstd::Decoder::new(source)?))
}

#[cfg(not(feature = "compressed"))]
use unsupported::{gzip, zstandard};

/// The error of a build without the decompressors.
#[cfg(not(feature = "compressed"))]
mod unsupported {
    use std::io::{self, Read};

    fn refusal(compressor: &str) -> io::Result<Box<dyn Read + Send>> {
        let text =
            format!("compressed by {compressor}: build wirecap-savefile with its feature `compressed`");
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }

    pub(super) fn gzip(_source: impl Read) -> io::Result<Box<dyn Read + Send>> {
        refusal("gzip")
    }

    pub(super) fn zstandard(_source: impl Read) -> io::Result<Box<dyn Read + Send>> {
        refusal("Zstandard")
    }
}

#[cfg(all(test, not(feature = "compressed")))]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn a_compressed_file_is_rejected_by_its_name() {
        for (head, name) in [(&GZIP[..], "gzip"), (&ZSTANDARD[..], "Zstandard")] {
            let error = Reader::new(head).expect_err("nothing decompresses it");
            assert!(matches!(error, ReadError::Source { offset: 0, .. }), "{error:?}");
            let cause = error.source().expect("a source's failure has a cause").to_string();
            assert!(cause.starts_with(&format!("compressed by {name}: ")), "{cause}");
        }
    }
}
