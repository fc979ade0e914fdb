//! The reader: finds out what a file is, and gives its packets in turn.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::Timestamp;
use crate::pcap_reader::PcapReader;
use crate::pcapng_reader::PcapngReader;
use crate::window::Window;
use crate::{Direction, Format, Interface, LinkType, PACKET_BYTES_MAX, Record, Section, Statistics};

/// No block may be longer: a file's own claim must not decide how much memory its reader takes.
pub(crate) const BLOCK_BYTES_MAX: u32 = 16 << 20;

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

enum Blocks {
    Pcap(PcapReader),
    Pcapng(PcapngReader),
}

/// What has been read of a file besides its packets.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) section: Section,
    pub(crate) interfaces: Vec<Interface>,
    /// As many as there are interfaces.
    pub(crate) statistics: Vec<Option<Statistics>>,
}

impl Contents {
    pub(crate) fn add_interface(&mut self, interface: Interface) {
        self.interfaces.push(interface);
        self.statistics.push(None);
    }
}

/// A record whose data are still in the window.
pub(crate) struct Packet {
    pub(crate) interface: u32,
    pub(crate) timestamp: Option<Timestamp>,
    pub(crate) queue: Option<u32>,
    pub(crate) direction: Option<Direction>,
    pub(crate) wire_len: u32,
    /// The place of the data in the window.
    pub(crate) data: Range<usize>,
}

/// What one step through a file has found.
pub(crate) enum Step {
    Packet(Packet),
    /// A block that is not a packet.
    Other,
    End,
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

    /// Reads the savefile that `source` gives, as far as its first interface.
    ///
    /// # Errors
    ///
    /// [`ReadError::UnknownFormat`] where it is no savefile, and those of [`next_record`](Self::next_record).
    pub fn new(source: impl Read + Send + 'static) -> Result<Self, ReadError> {
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
        let mut reader = Self { window, blocks, contents };
        // A packet would be an error: it has no interface.
        while reader.contents.interfaces.is_empty() && !matches!(reader.step()?, Step::End) {}
        Ok(reader)
    }

    /// Gives the next packet, or `None` after the last.
    ///
    /// # Errors
    ///
    /// [`ReadError::Truncated`], [`ReadError::Malformed`] or [`ReadError::Source`].
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        loop {
            match self.step()? {
                Step::Packet(packet) => return Ok(Some(self.record(packet))),
                Step::Other => {}
                Step::End => return Ok(None),
            }
        }
    }

    /// What kind of file it is.
    pub fn format(&self) -> Format {
        match self.blocks {
            Blocks::Pcap(_) => Format::Pcap,
            Blocks::Pcapng(_) => Format::Pcapng,
        }
    }

    /// Where and by what the packets read last were captured.
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

    /// What an interface has counted, as far as it has been read: the last of what the file says of it.
    pub fn statistics(&self, interface: u32) -> Option<&Statistics> {
        self.contents.statistics.get(interface as usize)?.as_ref()
    }

    /// How far the file has been read, in bytes; in a compressed file, of what it expands to.
    pub fn offset(&self) -> u64 {
        self.window.offset()
    }

    fn step(&mut self) -> Result<Step, ReadError> {
        match &mut self.blocks {
            Blocks::Pcap(pcap) => pcap.step(&mut self.window),
            Blocks::Pcapng(pcapng) => pcapng.step(&mut self.window, &mut self.contents),
        }
    }

    fn record(&self, packet: Packet) -> Record<'_> {
        Record {
            interface: packet.interface,
            timestamp: packet.timestamp,
            queue: packet.queue,
            direction: packet.direction,
            wire_len: packet.wire_len,
            data: self.window.bytes(packet.data),
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
    let (gzip, zstandard) = (head.starts_with(&GZIP), head.starts_with(&ZSTANDARD));
    let source = Cursor::new(head).chain(source);
    Ok(match () {
        () if gzip => Box::new(flate2::read::MultiGzDecoder::new(source)),
        () if zstandard => Box::new(zstd::Decoder::new(source)?),
        () => Box::new(source),
    })
}

/// The longest packet that is believed of a link type: as libpcap, which gives USB and D-Bus more.
pub(crate) fn data_bytes_max(link_type: LinkType) -> u32 {
    match link_type.0 {
        186 | 189 | 220 | 231 | 249 | 266 => BLOCK_BYTES_MAX,
        _ => PACKET_BYTES_MAX,
    }
}

/// Why a savefile could not be read.
///
/// Offsets are in bytes from the beginning of the file; in a compressed file, of what it expands to.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The file could not be opened.
    Open {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is nothing in the file.
    Empty,
    /// The file is not a savefile.
    UnknownFormat {
        /// The bytes that it begins with.
        magic: [u8; 4],
    },
    /// The source failed, or could not be decompressed.
    Source {
        /// Where the block begins that needs more.
        offset: u64,
        /// What the system or the decompressor said.
        source: io::Error,
    },
    /// The file ends inside a header, block or packet.
    Truncated {
        /// Where that begins.
        offset: u64,
        /// What it is.
        what: &'static str,
        /// How many bytes it has.
        expected: usize,
        /// How many of them are in the file.
        present: usize,
    },
    /// The file contradicts its format.
    Malformed {
        /// Where the offending block or packet begins.
        offset: u64,
        /// What is wrong with it.
        problem: String,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, .. } => write!(f, "cannot open {}", path.display()),
            Self::Empty => write!(f, "the savefile is empty: not even a header is there"),
            Self::UnknownFormat { magic: [a, b, c, d] } => write!(
                f,
                "neither pcapng nor pcap, compressed or not: it begins with {a:02x} {b:02x} {c:02x} {d:02x}"
            ),
            Self::Source { offset, .. } => write!(f, "cannot read on at byte {offset} of the savefile"),
            Self::Truncated { offset, what, expected, present } => write!(
                f,
                "the savefile ends inside a {what} that begins at byte {offset}: \
                 {present} of {expected} bytes are there"
            ),
            Self::Malformed { offset, problem } => {
                write!(f, "malformed savefile: at byte {offset}, {problem}")
            }
        }
    }
}

impl Error for ReadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Open { source, .. } | Self::Source { source, .. } => Some(source),
            _ => None,
        }
    }
}
