//! Converts a savefile to another one with selected packets. From pcapng to pcapng it copies block
//! by block, so nothing else of the file is lost. Otherwise it counts the items that the copy
//! cannot store.

use std::fmt;

use crate::contents::{Packet, Step};
use crate::fields::{ByteOrder, Fields};
use crate::pcapng::{
    DECRYPTION_SECRETS, ENHANCED_PACKET, INTERFACE_DESCRIPTION, INTERFACE_STATISTICS,
    NAME_RESOLUTION, OBSOLETE_PACKET, SECTION_HEADER, SIMPLE_PACKET, option, padded,
};
use crate::{Format, Interface, ReadError, Reader, Record, Section, Sink, WriteError, Writer};

/// Copies a savefile, optionally in the other format.
///
/// ```
/// # use wirecap_savefile::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mut writer = Writer::new(StreamSink::new(Vec::new(), "memory"), Format::Pcapng, &Section::default());
/// # writer.add_interface(&Interface::default())?;
/// # writer.write(&Record { wire_len: 60, data: &[1; 60], ..Record::default() })?;
/// # let file = std::io::Cursor::new(writer.finish()?.into_inner());
/// let sink = StreamSink::new(Vec::new(), "memory");
/// let mut conversion = Conversion::new(Reader::from_start(file)?, sink, Format::Pcapng, 0);
/// while conversion.step(|record, _interfaces| record.wire_len > 100)? != Converted::End {}
/// let (writer, left_out) = conversion.finish()?;
/// assert_eq!((writer.packets(), left_out.to_string()), (0, String::new()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Conversion<S: Sink> {
    reader: Reader,
    writer: Writer<S>,
    format: Format,
    /// Packets are truncated to this many bytes; 0 for no limit.
    snap_len: u32,
    /// Number of the source's interfaces that the copy has, unless it is made block by block.
    interfaces: usize,
    left_out: LeftOut,
    /// Buffer for a modified pcapng block.
    changed: Vec<u8>,
}

/// The result of one step of a [`Conversion`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Converted {
    /// A packet was copied.
    Packet,
    /// A packet was not selected.
    Other,
    /// A block that is not a packet was processed.
    Block,
    /// The source has ended.
    End,
}

/// Why a [`Conversion`] failed.
#[derive(Debug, thiserror::Error)]
pub enum ConversionError {
    /// The source cannot be read any further.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The copy cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Numbers of the items that the copy cannot store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Comments of packets, interfaces and sections.
    pub comments: u64,
    /// Flags, queues, identifiers and other options of packets.
    pub packet_options: u64,
    /// Names, descriptions, filters and other options of interfaces and sections.
    pub descriptions: u64,
    /// Name resolution blocks.
    pub name_resolutions: u64,
    /// Decryption secrets blocks.
    pub decryption_secrets: u64,
    /// Interface statistics blocks.
    pub statistics: u64,
    /// Blocks of other kinds.
    pub other_blocks: u64,
}

impl fmt::Display for LeftOut {
    /// `3 comments, 1 block of decryption secrets`; empty if everything was copied.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.comments, "comment", "comments"),
            (self.packet_options, "option of a packet", "options of packets"),
            (
                self.descriptions,
                "description of an interface or section",
                "descriptions of interfaces and sections",
            ),
            (self.name_resolutions, "block of name resolution", "blocks of name resolution"),
            (
                self.decryption_secrets,
                "block of decryption secrets",
                "blocks of decryption secrets",
            ),
            (self.statistics, "block of statistics", "blocks of statistics"),
            (self.other_blocks, "block of another kind", "blocks of other kinds"),
        ];
        let there = counts.into_iter().filter(|(count, ..)| *count > 0);
        for (index, (count, one, several)) in there.enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{count} {}", if count == 1 { one } else { several })?;
        }

        Ok(())
    }
}

impl<S: Sink> Conversion<S> {
    /// Copies the contents of `reader`, which must be [at its start](Reader::from_start). Packets
    /// are truncated to `snap_len` bytes; 0 for no limit.
    pub fn new(reader: Reader, sink: S, format: Format, snap_len: u32) -> Self {
        let writer = match (reader.format(), format) {
            (Format::Pcapng, Format::Pcapng) => Writer::of_blocks(sink),
            _ => Writer::new(sink, format, &Section::default()),
        };
        let left_out = LeftOut::default();
        let changed = Vec::new();
        Self { reader, writer, format, snap_len, interfaces: 0, left_out, changed }
    }

    /// The reader of the source.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The writer of the copy.
    pub fn writer(&mut self) -> &mut Writer<S> {
        &mut self.writer
    }

    /// Copies the next block, or the next packet if `chooses` accepts it. `chooses` also receives
    /// the file's interfaces.
    ///
    /// # Errors
    ///
    /// [`ConversionError`]; the copy contains everything before the error.
    pub fn step(
        &mut self,
        chooses: impl FnOnce(&Record<'_>, &[Interface]) -> bool,
    ) -> Result<Converted, ConversionError> {
        let step = self.reader.step()?;
        let by_block = self.is_by_block();
        if !by_block {
            self.add_interfaces()?;
        }

        match step {
            Step::End => {
                if !by_block && self.interfaces == 0 {
                    // Other programs reject a file without an interface.
                    self.writer.add_interface(&Interface::default())?;
                    self.interfaces = 1;
                }
                Ok(Converted::End)
            }
            Step::Other(place) => {
                let order = self.reader.byte_order();
                let block = self.reader.bytes(place);

                match by_block {
                    true => {
                        let block = changed_block(block, order, self.snap_len, &mut self.changed);
                        self.writer.block(block)?;
                    }
                    false => self.left_out.add_block(block, order),
                }
                Ok(Converted::Block)
            }
            Step::Packet(packet) => {
                if !chooses(&self.reader.record(&packet), self.reader.interfaces()) {
                    return Ok(Converted::Other);
                }
                self.copy_packet(&packet)?;
                Ok(Converted::Packet)
            }
        }
    }

    /// Passes all buffered bytes to the sink, and returns the writer and the numbers of omitted
    /// items.
    ///
    /// # Errors
    ///
    /// As [`Writer::flush`].
    pub fn finish(mut self) -> Result<(Writer<S>, LeftOut), WriteError> {
        self.writer.flush()?;
        Ok((self.writer, self.left_out))
    }

    fn is_by_block(&self) -> bool {
        (self.reader.format(), self.format) == (Format::Pcapng, Format::Pcapng)
    }

    fn copy_packet(&mut self, packet: &Packet) -> Result<(), WriteError> {
        let mut record = self.reader.record(packet);
        let keep = match self.snap_len {
            0 => record.data.len(),
            snap_len => record.data.len().min(snap_len as usize),
        };

        let block = self.reader.bytes(packet.block.clone());

        if self.is_by_block() {
            if keep == record.data.len() {
                return self.writer.block(block);
            }
            let data = packet.data.start - packet.block.start..packet.data.end - packet.block.start;
            cut(block, data, keep, self.reader.byte_order(), &mut self.changed);
            return self.writer.block(&self.changed);
        }

        record.data = &record.data[..keep];
        if self.reader.format() == Format::Pcapng {
            self.left_out.add_packet(block, self.reader.byte_order());
        }

        self.writer.write(&record)
    }

    /// Adds the interfaces that were read since the last call to the copy.
    fn add_interfaces(&mut self) -> Result<(), WriteError> {
        while let Some(interface) = self.reader.interfaces().get(self.interfaces) {
            let mut interface = interface.clone();
            if self.snap_len != 0 && (interface.snap_len == 0 || interface.snap_len > self.snap_len)
            {
                interface.snap_len = self.snap_len;
            }

            if self.reader.format() == Format::Pcap {
                interface.time_source = Some("as in the pcap file".to_owned());
            }

            match self.interfaces {
                0 if self.reader.format() != self.format => {
                    self.writer.add_adjustable_interface(&interface)?;
                }
                0 => {
                    self.writer.add_interface(&interface)?;
                    // The copy of a pcap file has the same contents.
                    self.writer.accept_longer_packets();
                }
                _ => drop(self.writer.add_interface(&interface)?),
            }

            self.interfaces += 1;
        }
        Ok(())
    }
}

/// The block for the copy: section headers with unknown length, and interfaces with the new
/// `snap_len`.
fn changed_block<'a>(
    block: &'a [u8],
    order: ByteOrder,
    snap_len: u32,
    changed: &'a mut Vec<u8>,
) -> &'a [u8] {
    const SECTION_LENGTH: usize = 16;
    const SNAP_LEN: usize = 12;

    let block_type = Fields::new(block, 0, order).u32().unwrap_or_default();
    let known_snap_len =
        Fields::new(block, SNAP_LEN.min(block.len()), order).u32().unwrap_or_default();
    changed.clear();

    match block_type {
        SECTION_HEADER if block.len() >= SECTION_LENGTH + 12 => {
            changed.extend_from_slice(block);
            changed[SECTION_LENGTH..SECTION_LENGTH + 8].fill(0xff);
        }
        INTERFACE_DESCRIPTION
            if block.len() >= SNAP_LEN + 8
                && snap_len != 0
                && (known_snap_len == 0 || known_snap_len > snap_len) =>
        {
            changed.extend_from_slice(block);
            changed[SNAP_LEN..SNAP_LEN + 4].copy_from_slice(&order.bytes_of_u32(snap_len));
        }
        _ => return block,
    }

    changed
}

/// Truncates the data of a packet's block, which are at `data`, to `keep` bytes.
fn cut(
    block: &[u8],
    data: std::ops::Range<usize>,
    keep: usize,
    order: ByteOrder,
    into: &mut Vec<u8>,
) {
    const CAPTURED_LEN: usize = 20;
    let block_type = Fields::new(block, 0, order).u32().unwrap_or_default();
    let end = block.len() - 4;
    let options = (data.start + padded(data.len())).min(end);

    into.clear();
    into.extend_from_slice(&block[..data.start + keep]);
    into.resize(padded(into.len()), 0);
    into.extend_from_slice(&block[options..end]);

    let len = order.bytes_of_u32(into.len() as u32 + 4);
    into.extend_from_slice(&len);
    into[4..8].copy_from_slice(&len);

    // A simple packet has no captured length; it follows from the interface's `snap_len`.
    if block_type != SIMPLE_PACKET {
        into[CAPTURED_LEN..CAPTURED_LEN + 4].copy_from_slice(&order.bytes_of_u32(keep as u32));
    }
}

impl LeftOut {
    fn add_packet(&mut self, block: &[u8], order: ByteOrder) {
        const DATA: usize = 28;
        let mut fields = Fields::new(&block[..block.len() - 4], 0, order);
        let Some([block_type, _, _, _, _, captured_len, _]) = fields.words() else { return };
        if matches!(block_type, ENHANCED_PACKET | OBSOLETE_PACKET) {
            let (comments, others) = options(block, DATA + padded(captured_len as usize), order);
            self.comments += comments;
            self.packet_options += others;
        }
    }

    fn add_block(&mut self, block: &[u8], order: ByteOrder) {
        const SECTION_OPTIONS: usize = 24;
        const INTERFACE_OPTIONS: usize = 16;

        let Some(block_type) = Fields::new(block, 0, order).u32() else { return };
        match block_type {
            SECTION_HEADER | INTERFACE_DESCRIPTION => {
                let start =
                    if block_type == SECTION_HEADER { SECTION_OPTIONS } else { INTERFACE_OPTIONS };
                let (comments, others) = options(block, start, order);
                self.comments += comments;
                self.descriptions += others;
            }
            NAME_RESOLUTION => self.name_resolutions += 1,
            DECRYPTION_SECRETS => self.decryption_secrets += 1,
            INTERFACE_STATISTICS => self.statistics += 1,
            _ => self.other_blocks += 1,
        }
    }
}

/// The numbers of comments and of other options of a block from `start` on. Options needed to read
/// an interface's packets (`if_tsresol`, `if_tsoffset`, `if_fcslen`) are not counted.
fn options(block: &[u8], start: usize, order: ByteOrder) -> (u64, u64) {
    let mut comments = 0;
    let mut others = 0;
    let block_type = Fields::new(block, 0, order).u32();
    let mut fields = Fields::new(&block[..block.len() - 4], start, order);

    while let (Some(code), Some(len)) = (fields.u16(), fields.u16()) {
        match code {
            option::END => break,
            option::COMMENT => comments += 1,
            option::IF_TSRESOL | option::IF_TSOFFSET | option::IF_FCSLEN
                if block_type == Some(INTERFACE_DESCRIPTION) => {}
            _ => others += 1,
        }
        if fields.bytes(padded(len.into())).is_none() {
            break;
        }
    }

    (comments, others)
}
