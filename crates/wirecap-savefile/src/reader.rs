//! The reader: detects the format of a file, and returns its packets in turn.

use std::fmt;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::ops::Range;
use std::path::Path;

use crate::contents::{Contents, Packet, Step};
use crate::element::{Block, Element, PacketOptions};
use crate::fields::{ByteOrder, Fields};
use crate::pcap_reader::PcapReader;
use crate::pcapng::{SIMPLE_PACKET, padded};
use crate::pcapng_reader::PcapngReader;
use crate::pseudo_header;
use crate::window::Window;
use crate::{Format, Interface, ReadError, Record, Section, Statistics};

/// Reads packets from a pcapng or pcap file, uncompressed or compressed by gzip or Zstandard.
///
/// On an error, the reader has returned everything before the error. Another call returns the same
/// error unless the file has grown.
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
    /// The data of the last packet, if its header was converted.
    converted: Option<Vec<u8>>,
}

/// An element of a file after its pcap file header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// A packet.
    Packet(Record<'a>),
    /// All bytes of a pcapng block that is not a packet.
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
        let file =
            File::open(path).map_err(|source| ReadError::Open { path: path.to_owned(), source })?;
        Self::new(file)
    }

    /// Reads the savefile in `source` up to its first interface.
    ///
    /// # Errors
    ///
    /// [`ReadError::UnknownFormat`] if it is not a savefile, and those of
    /// [`next_record`](Self::next_record).
    pub fn new(source: impl Read + Send + 'static) -> Result<Self, ReadError> {
        let mut reader = Self::from_start(source)?;
        // A packet before the first interface causes an error, so this loop ends.
        while reader.contents.interfaces.is_empty() && !matches!(reader.step()?, Step::End) {}
        Ok(reader)
    }

    /// Like [`new`](Self::new), but does not read ahead to a pcapng file's first interface; for a
    /// [`Conversion`](crate::Conversion).
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn from_start(source: impl Read + Send + 'static) -> Result<Self, ReadError> {
        let source = decompressed(Box::new(source))
            .map_err(|source| ReadError::Source { offset: 0, source })?;
        let mut window = Window::new(source);
        let mut contents = Contents::default();
        let magic = magic(&mut window)?;
        let blocks = if PcapngReader::is_magic(magic) {
            Blocks::Pcapng(PcapngReader::default())
        } else {
            Blocks::Pcap(PcapReader::begin(magic, &mut window, &mut contents)?)
        };
        Ok(Self { window, blocks, contents, converted: None })
    }

    /// Returns the next packet, or `None` after the last.
    ///
    /// # Errors
    ///
    /// [`ReadError::Truncated`], [`ReadError::Malformed`] or [`ReadError::Source`].
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        let Some(packet) = self.next_packet()? else { return Ok(None) };
        Ok(Some(self.record(&packet)))
    }

    /// Returns the next packet and its interface, or `None` after the last packet.
    ///
    /// # Errors
    ///
    /// As [`next_record`](Self::next_record).
    pub fn next_with_interface(&mut self) -> Result<Option<(Record<'_>, &Interface)>, ReadError> {
        let Some(packet) = self.next_packet()? else { return Ok(None) };
        Ok(Some((self.record(&packet), &self.contents.interfaces[packet.interface as usize])))
    }

    fn next_packet(&mut self) -> Result<Option<Packet>, ReadError> {
        loop {
            match self.step()? {
                Step::Packet(packet) => return Ok(Some(packet)),
                Step::Other(_) => {}
                Step::End => return Ok(None),
            }
        }
    }

    /// Returns the next packet or other block, or `None` at the end. It begins at the
    /// [`offset`](Self::offset) before the call.
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

    /// Returns the next packet with its interface and options, or the next other block, or `None`
    /// at the end. It begins at the [`offset`](Self::offset) before the call.
    ///
    /// # Errors
    ///
    /// As [`next_record`](Self::next_record).
    pub fn next_element(&mut self) -> Result<Option<Element<'_>>, ReadError> {
        let step = self.step()?;
        let order = self.byte_order();

        Ok(match step {
            Step::Packet(packet) => {
                let options = self.options(&packet);
                let interface = &self.contents.interfaces[packet.interface as usize];
                Some(Element::Packet(
                    self.record(&packet),
                    interface,
                    PacketOptions::new(options, order),
                ))
            }
            Step::Other(place) => {
                let block = self.window.bytes(place);
                Some(Element::Block(Block::new(block, order, self.statistics_in(block))))
            }
            Step::End => None,
        })
    }

    /// The bytes of a packet's options.
    fn options(&self, packet: &Packet) -> &[u8] {
        let block = self.window.bytes(packet.block.clone());
        let block_type = Fields::new(block, 0, self.byte_order()).u32();
        if self.format() == Format::Pcap || block_type == Some(SIMPLE_PACKET) {
            return &[];
        }
        let start = packet.data.start - packet.block.start + padded(packet.data.len());
        block.get(start..block.len() - 4).unwrap_or_default()
    }

    fn statistics_in(&self, block: &[u8]) -> Option<(&Statistics, &Interface)> {
        let Blocks::Pcapng(pcapng) = &self.blocks else { return None };
        let index = pcapng.statistics_of(block, &self.contents)?;
        Some((self.contents.statistics[index].as_ref()?, &self.contents.interfaces[index]))
    }

    /// Continues with another part of the same file: `source` begins with a packet or another
    /// block. All interfaces and the section of the parts read so far are known;
    /// [`offset`](Self::offset) starts at 0.
    pub fn continue_with(&mut self, source: impl Read + Send + 'static) {
        self.window = Window::new(Box::new(source));
        self.converted = None;
    }

    /// The file's format.
    pub fn format(&self) -> Format {
        match self.blocks {
            Blocks::Pcap(_) => Format::Pcap,
            Blocks::Pcapng(_) => Format::Pcapng,
        }
    }

    /// The section of the most recently read packets.
    pub fn section(&self) -> &Section {
        &self.contents.section
    }

    /// The interfaces read so far, of all sections; [`Record::interface`] is an index into them.
    ///
    /// A file may describe an interface anywhere before its first packet. A pcap file has one
    /// interface, with only a link type and a `snap_len`.
    pub fn interfaces(&self) -> &[Interface] {
        &self.contents.interfaces
    }

    /// The counters of an interface: the latest ones read so far.
    pub fn statistics(&self, interface: u32) -> Option<&Statistics> {
        self.contents.statistics.get(interface as usize)?.as_ref()
    }

    /// The number of bytes read of the file; for a compressed file, of its decompressed contents.
    pub fn offset(&self) -> u64 {
        self.window.offset()
    }

    pub(crate) fn step(&mut self) -> Result<Step, ReadError> {
        let step = match &mut self.blocks {
            Blocks::Pcap(pcap) => pcap.step(&mut self.window),
            Blocks::Pcapng(pcapng) => pcapng.step(&mut self.window, &mut self.contents),
        }?;
        self.converted = None;
        if let Step::Packet(packet) = &step
            && self.byte_order() == ByteOrder::Big
        {
            self.convert(packet);
        }
        Ok(step)
    }

    /// Converts a packet's header that is in the byte order of a big-endian system.
    #[cold]
    fn convert(&mut self, packet: &Packet) {
        let link_type = self.contents.interfaces[packet.interface as usize].link_type;
        if pseudo_header::is_in_order_of_writer(link_type) {
            let mut data = self.window.bytes(packet.data.clone()).to_vec();
            pseudo_header::to_little_endian(link_type, &mut data);
            self.converted = Some(data);
        }
    }

    /// The byte order of the last packet or block.
    pub(crate) fn byte_order(&self) -> ByteOrder {
        match &self.blocks {
            Blocks::Pcap(pcap) => pcap.order(),
            Blocks::Pcapng(pcapng) => pcapng.order(),
        }
    }

    /// The bytes at a range that the last step returned.
    pub(crate) fn bytes(&self, place: Range<usize>) -> &[u8] {
        self.window.bytes(place)
    }

    /// The packet of the last step.
    pub(crate) fn record(&self, packet: &Packet) -> Record<'_> {
        Record {
            interface: packet.interface,
            timestamp: packet.timestamp,
            is_time_out_of_range: packet.is_time_out_of_range,
            queue: packet.queue,
            direction: packet.direction,
            wire_len: packet.wire_len,
            data: match &self.converted {
                Some(data) => data,
                None => self.window.bytes(packet.data.clone()),
            },
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
    let is_gzip = head.starts_with(&GZIP);
    let is_zstandard = head.starts_with(&ZSTANDARD);
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
        let text = format!(
            "compressed by {compressor}: build wirecap-savefile with its feature `compressed`"
        );
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }

    pub(super) fn gzip(_source: impl Read) -> io::Result<Box<dyn Read + Send>> {
        refusal("gzip")
    }

    pub(super) fn zstandard(_source: impl Read) -> io::Result<Box<dyn Read + Send>> {
        refusal("Zstandard")
    }
}

#[cfg(test)]
mod tests {
    #[cfg(not(feature = "compressed"))]
    use std::error::Error as _;

    use super::*;

    #[cfg(not(feature = "compressed"))]
    #[test]
    fn a_compressed_file_is_rejected_by_its_name() {
        for (head, name) in [(&GZIP[..], "gzip"), (&ZSTANDARD[..], "Zstandard")] {
            let error = Reader::new(head).expect_err("nothing decompresses it");
            assert!(matches!(error, ReadError::Source { offset: 0, .. }), "{error:?}");
            let cause = error.source().expect("a source's failure has a cause").to_string();
            assert!(cause.starts_with(&format!("compressed by {name}: ")), "{cause}");
        }
    }

    #[test]
    fn a_step_locates_the_bytes_of_its_block() {
        let words =
            |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let section = words(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28]);
        let block = words(&[0xbad, 16, 0x0403_0201, 16]);
        let file = [&section[..], &block].concat();
        let mut reader = Reader::from_start(Cursor::new(file)).unwrap();
        let mut blocks = Vec::new();
        while let Step::Other(place) = reader.step().unwrap() {
            blocks.push(reader.bytes(place).to_vec());
        }
        assert_eq!(blocks.last(), Some(&block), "{blocks:?}");
    }
}
