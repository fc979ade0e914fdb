//! pcapng: numbers and encoding of its blocks and options.
//!
//! A block is a type, its total length, a body of whole 32-bit words, and the total length again.
//! An option is a 16-bit code, a 16-bit length and a value padded to a whole word.

use crate::{Direction, Interface, PACKET_BYTES_MAX, Record, Section, Statistics};

pub(crate) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
pub(crate) const INTERFACE_DESCRIPTION: u32 = 1;
/// The packet block of pcapng's first draft, with a 16-bit interface number.
pub(crate) const OBSOLETE_PACKET: u32 = 2;
/// A packet of the section's first interface, without a time.
pub(crate) const SIMPLE_PACKET: u32 = 3;
pub(crate) const NAME_RESOLUTION: u32 = 4;
pub(crate) const INTERFACE_STATISTICS: u32 = 5;
/// An entry of the systemd journal.
pub(crate) const JOURNAL: u32 = 9;
pub(crate) const DECRYPTION_SECRETS: u32 = 10;
/// Contents of an organization, which copies keep.
pub(crate) const CUSTOM: u32 = 0x0000_0bad;
/// Contents of an organization that refer to the whole file. Like a copy block by block, all copies
/// keep them.
pub(crate) const CUSTOM_NOT_COPIED: u32 = 0x4000_0bad;
pub(crate) const ENHANCED_PACKET: u32 = 6;

pub(crate) const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

/// The meaning of an option's code depends on its block.
pub(crate) mod option {
    pub(crate) const END: u16 = 0;
    pub(crate) const COMMENT: u16 = 1;

    pub(crate) const SHB_HARDWARE: u16 = 2;
    pub(crate) const SHB_OS: u16 = 3;
    pub(crate) const SHB_USERAPPL: u16 = 4;

    pub(crate) const IF_NAME: u16 = 2;
    pub(crate) const IF_DESCRIPTION: u16 = 3;
    pub(crate) const IF_SPEED: u16 = 8;
    pub(crate) const IF_TSRESOL: u16 = 9;
    pub(crate) const IF_TZONE: u16 = 10;
    pub(crate) const IF_FILTER: u16 = 11;
    pub(crate) const IF_OS: u16 = 12;
    pub(crate) const IF_FCSLEN: u16 = 13;
    pub(crate) const IF_TSOFFSET: u16 = 14;
    pub(crate) const IF_HARDWARE: u16 = 15;
    pub(crate) const IF_TXSPEED: u16 = 16;
    pub(crate) const IF_RXSPEED: u16 = 17;

    pub(crate) const EPB_FLAGS: u16 = 2;
    pub(crate) const EPB_DROP_COUNT: u16 = 4;
    pub(crate) const EPB_PACKET_ID: u16 = 5;
    pub(crate) const EPB_QUEUE: u16 = 6;

    pub(crate) const ISB_STARTTIME: u16 = 2;
    pub(crate) const ISB_ENDTIME: u16 = 3;
    pub(crate) const ISB_IFRECV: u16 = 4;
    pub(crate) const ISB_IFDROP: u16 = 5;
    pub(crate) const ISB_FILTERACCEPT: u16 = 6;
    pub(crate) const ISB_OSDROP: u16 = 7;
    pub(crate) const ISB_USRDELIV: u16 = 8;
}

/// Prefix of the comment that names an interface's clock.
pub(crate) const TIME_SOURCE_PREFIX: &str = "packet times: ";
/// The comment's clock name if there was no clock.
pub(crate) const TIME_SOURCE_NONE: &str = "none";

/// The first byte of a filter option with an expression instead of BPF code.
pub(crate) const FILTER_IS_TEXT: u8 = 0;

/// `if_tsresol` for nanoseconds: ten to the power of minus nine.
const TSRESOL_NANOSECONDS: u8 = 9;

/// The next multiple of four, to which every part of a block is padded.
pub(crate) const fn padded(byte_count: usize) -> usize {
    byte_count.next_multiple_of(4)
}

/// The block that begins a file.
pub(crate) fn section_header(section: &Section) -> Vec<u8> {
    let mut block = Block::begin(SECTION_HEADER);
    block.put(&BYTE_ORDER_MAGIC.to_le_bytes());
    block.put(&[1, 0, 0, 0]); // Version 1.0.
    block.put(&u64::MAX.to_le_bytes()); // Section length: unknown.
    block.text(option::COMMENT, section.comment.as_deref());
    block.text(option::SHB_HARDWARE, section.hardware.as_deref());
    block.text(option::SHB_OS, section.os.as_deref());
    block.text(option::SHB_USERAPPL, section.application.as_deref());
    block.finish()
}

/// The block that describes the section's next interface.
pub(crate) fn interface_description(interface: &Interface) -> Vec<u8> {
    let time_source = interface.time_source.as_deref().unwrap_or(TIME_SOURCE_NONE);
    let mut block = Block::begin(INTERFACE_DESCRIPTION);
    block.put(&interface.link_type.0.to_le_bytes());
    block.put(&[0; 2]);
    block.put(&interface.snap_len.to_le_bytes());

    // First: some readers, such as scapy 2.5, stop at the first option of another kind, and assume
    // microseconds.
    block.option(option::IF_TSRESOL, &[TSRESOL_NANOSECONDS]);
    block.text(option::COMMENT, Some(&format!("{TIME_SOURCE_PREFIX}{time_source}")));
    block.text(option::IF_NAME, interface.name.as_deref());
    block.text(option::IF_DESCRIPTION, interface.description.as_deref());

    if let Some(filter) = &interface.filter {
        block.option(option::IF_FILTER, &[&[FILTER_IS_TEXT], filter.as_bytes()].concat());
    }

    block.text(option::IF_OS, interface.os.as_deref());
    if let Some(fcs_len) = interface.fcs_len {
        block.option(option::IF_FCSLEN, &[fcs_len]);
    }

    block.text(option::IF_HARDWARE, interface.hardware.as_deref());

    if !interface.other_options.is_empty() {
        block.put(&interface.other_options);
        block.has_options = true;
    }

    block.finish()
}

/// The block with the current counters of an interface.
pub(crate) fn interface_statistics(statistics: &Statistics) -> Vec<u8> {
    let mut block = Block::begin(INTERFACE_STATISTICS);
    block.put(&statistics.interface.to_le_bytes());
    block.put(&timestamp_words(statistics.end.unwrap_or_default().unix_nanos()));

    let times = [(option::ISB_STARTTIME, statistics.start), (option::ISB_ENDTIME, statistics.end)];
    for (code, time) in times {
        if let Some(time) = time {
            block.option(code, &timestamp_words(time.unix_nanos()));
        }
    }

    let counts = [
        (option::ISB_IFRECV, statistics.received),
        (option::ISB_IFDROP, statistics.dropped_by_interface),
        (option::ISB_FILTERACCEPT, statistics.accepted_by_filter),
        (option::ISB_OSDROP, statistics.dropped_by_os),
        (option::ISB_USRDELIV, statistics.delivered),
    ];
    for (code, count) in counts {
        if let Some(count) = count {
            block.option(code, &count.to_le_bytes());
        }
    }

    block.finish()
}

/// A time as two words, the upper one first in either byte order.
fn timestamp_words(nanos: u64) -> [u8; 8] {
    nanos.rotate_left(32).to_le_bytes()
}

/// Type, length, interface, time (two words), captured length and length on the wire.
const ENHANCED_HEADER: usize = 28;
/// An option whose value is one word.
const WORD_OPTION: usize = 8;
const END_OF_OPTIONS: usize = 4;

/// The number of bytes that [`enhanced_packet`] fills for this packet.
#[inline]
pub(crate) fn enhanced_packet_len(record: &Record<'_>) -> usize {
    let option_count =
        usize::from(record.queue.is_some()) + usize::from(record.direction.is_some());
    let end = if option_count == 0 { 0 } else { END_OF_OPTIONS };
    ENHANCED_HEADER
        + padded(record.data.len())
        + option_count * WORD_OPTION
        + end
        + size_of::<u32>()
}

/// Encodes the packet's block into `slot`, which has [`enhanced_packet_len`] bytes of any content.
#[inline]
pub(crate) fn enhanced_packet(slot: &mut [u8], record: &Record<'_>) {
    let block_len = slot.len() as u32;
    let (header, rest) = slot.split_first_chunk_mut().expect("it has room for the header");
    let (data, rest) = rest.split_at_mut(record.data.len());
    *header = enhanced_header(record, block_len);
    data.copy_from_slice(record.data);
    after_data(rest, record, block_len);
}

/// The number of bytes that [`enhanced_packet_with_options`] fills for a packet with these options.
pub(crate) fn enhanced_packet_len_with_options(record: &Record<'_>, options: &[u8]) -> usize {
    ENHANCED_HEADER + padded(record.data.len()) + options.len() + END_OF_OPTIONS + size_of::<u32>()
}

/// Encodes the packet's block with these options, which include direction and queue, into `slot`,
/// which has [`enhanced_packet_len_with_options`] bytes of any content.
pub(crate) fn enhanced_packet_with_options(slot: &mut [u8], record: &Record<'_>, options: &[u8]) {
    let block_len = slot.len() as u32;
    let (header, rest) = slot.split_first_chunk_mut().expect("it has room for the header");
    *header = enhanced_header(record, block_len);
    let (data, rest) = rest.split_at_mut(padded(record.data.len()));
    data[..record.data.len()].copy_from_slice(record.data);
    data[record.data.len()..].fill(0);
    let (place, end) = rest.split_at_mut(options.len());
    place.copy_from_slice(options);
    end.copy_from_slice(&(u64::from(block_len) << 32).to_le_bytes());
}

/// Encodes the header with few stores, since a burst of packets fills the processor's store buffer.
#[inline]
fn enhanced_header(record: &Record<'_>, block_len: u32) -> [u8; ENHANCED_HEADER] {
    let nanos = record.timestamp.unwrap_or_default().unix_nanos();
    let words = [
        u64::from(ENHANCED_PACKET) | u64::from(block_len) << 32,
        u64::from(record.interface) | nanos >> 32 << 32,
        nanos & 0xffff_ffff | (record.data.len() as u64) << 32,
    ];
    let mut header = [0; ENHANCED_HEADER];
    for (place, word) in header.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    put(&mut header, 24, record.wire_len.to_le_bytes());
    header
}

/// Encodes the bytes after the data: their padding, the options, and the length again.
#[inline]
fn after_data(slot: &mut [u8], record: &Record<'_>, block_len: u32) {
    let options_len =
        enhanced_packet_len(&Record { data: &[], ..*record }) - ENHANCED_HEADER - size_of::<u32>();
    let mut at = slot.len() - options_len - size_of::<u32>();

    // The padding, of at most three bytes. Options and length overwrite the other bytes.
    put(slot, 0, [0; 4]);

    if let Some(direction) = record.direction {
        put(slot, at, word_option(option::EPB_FLAGS, direction_flags(direction)));
        at += WORD_OPTION;
    }

    if let Some(queue) = record.queue {
        put(slot, at, word_option(option::EPB_QUEUE, queue));
        at += WORD_OPTION;
    }

    if options_len == 0 {
        put(slot, at, block_len.to_le_bytes());
    } else {
        // The end of the options, four zero bytes, and the length.
        put(slot, at, (u64::from(block_len) << 32).to_le_bytes());
    }
}

fn put<const N: usize>(slot: &mut [u8], at: usize, bytes: [u8; N]) {
    slot[at..at + N].copy_from_slice(&bytes);
}

fn word_option(code: u16, value: u32) -> [u8; WORD_OPTION] {
    (u64::from(code) | 4 << 16 | u64::from(value) << 32).to_le_bytes()
}

fn direction_flags(direction: Direction) -> u32 {
    match direction {
        Direction::Inbound => 1,
        Direction::Outbound => 2,
    }
}

/// A block under construction, of any type except packets.
struct Block {
    bytes: Vec<u8>,
    has_options: bool,
}

impl Block {
    fn begin(block_type: u32) -> Self {
        let mut bytes = block_type.to_le_bytes().to_vec();
        bytes.extend([0; 4]); // Placeholder for the length.
        Self { bytes, has_options: false }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn text(&mut self, code: u16, text: Option<&str>) {
        if let Some(text) = text {
            self.option(code, text.as_bytes());
        }
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        let value = &value[..option_value_len(value)];
        self.put(&code.to_le_bytes());
        self.put(&(value.len() as u16).to_le_bytes());
        self.put(value);
        self.bytes.resize(padded(self.bytes.len()), 0);
        self.has_options = true;
    }

    fn finish(mut self) -> Vec<u8> {
        if self.has_options {
            self.put(&[0; END_OF_OPTIONS]);
        }
        let block_len = (self.bytes.len() as u32 + 4).to_le_bytes();
        self.put(&block_len);
        self.bytes[4..8].copy_from_slice(&block_len);
        self.bytes
    }
}

/// The maximum prefix of an option's value that a 16-bit length can describe, without splitting a
/// UTF-8 character.
fn option_value_len(value: &[u8]) -> usize {
    let mut len = value.len().min(usize::from(u16::MAX));
    while len < value.len() && value[len] & 0xc0 == 0x80 {
        len -= 1;
    }
    len
}

/// The length of the block at the beginning of `bytes`, in either byte order, and whether it is a
/// packet.
pub(crate) fn next_block(bytes: &[u8]) -> (usize, bool) {
    let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    let ours = u32::from_le_bytes(word(4)) as usize;
    let is_ours = ours >= 12 && ours <= bytes.len() && word(ours - 4) == word(4);
    let number = if is_ours { u32::from_le_bytes } else { u32::from_be_bytes };
    (
        number(word(4)) as usize,
        matches!(number(word(0)), OBSOLETE_PACKET | SIMPLE_PACKET | ENHANCED_PACKET),
    )
}

// The length of the largest packet block must fit 32 bits.
const _: () = assert!(PACKET_BYTES_MAX < u32::MAX / 2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinkType;
    use crate::Timestamp;

    fn packet_block(record: &Record<'_>) -> Vec<u8> {
        let mut slot = vec![0xee; enhanced_packet_len(record)]; // Bytes left by an earlier packet.
        enhanced_packet(&mut slot, record);
        slot
    }

    #[test]
    fn a_section_header_names_the_program() {
        let section = Section { application: Some("wirecap".into()), ..Section::default() };
        #[rustfmt::skip]
        let expected = [
            0x0a, 0x0d, 0x0d, 0x0a, 44, 0, 0, 0,
            0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0,
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            4, 0, 7, 0, b'w', b'i', b'r', b'e', b'c', b'a', b'p', 0,
            0, 0, 0, 0, 44, 0, 0, 0,
        ];
        assert_eq!(section_header(&section), expected);
    }

    #[test]
    fn a_section_header_without_texts_has_no_options() {
        assert_eq!(section_header(&Section::default()).len(), 28);
    }

    #[test]
    fn an_interface_description_has_name_filter_and_resolution() {
        let interface = Interface {
            name: Some("eth0".into()),
            filter: Some("udp".into()),
            link_type: LinkType::RAW,
            snap_len: 96,
            ..Interface::default()
        };
        #[rustfmt::skip]
        let expected = [
            1, 0, 0, 0, 72, 0, 0, 0,
            101, 0, 0, 0, 96, 0, 0, 0,
            9, 0, 1, 0, 9, 0, 0, 0,
            1, 0, 18, 0, b'p', b'a', b'c', b'k', b'e', b't', b' ', b't', b'i', b'm', b'e', b's',
            b':', b' ', b'n', b'o', b'n', b'e', 0, 0,
            2, 0, 4, 0, b'e', b't', b'h', b'0',
            11, 0, 4, 0, 0, b'u', b'd', b'p',
            0, 0, 0, 0, 72, 0, 0, 0,
        ];

        let block = interface_description(&interface);
        assert_eq!(block[..], expected[..]);
    }

    #[test]
    fn an_enhanced_packet_has_queue_and_direction() {
        let record = Record {
            interface: 2,
            timestamp: Some(Timestamp::from_unix_nanos(0x0102_0304_0506_0708)),
            queue: Some(7),
            direction: Some(Direction::Outbound),
            wire_len: 64,
            data: &[1, 2, 3, 4, 5],
            ..Record::default()
        };
        #[rustfmt::skip]
        let expected = [
            6, 0, 0, 0, 60, 0, 0, 0,
            2, 0, 0, 0, 4, 3, 2, 1, 8, 7, 6, 5,
            5, 0, 0, 0, 64, 0, 0, 0,
            1, 2, 3, 4, 5, 0, 0, 0,
            2, 0, 4, 0, 2, 0, 0, 0,
            6, 0, 4, 0, 7, 0, 0, 0,
            0, 0, 0, 0, 60, 0, 0, 0,
        ];
        assert_eq!(packet_block(&record), expected);
    }

    #[test]
    fn an_enhanced_packet_may_be_empty() {
        #[rustfmt::skip]
        let expected = [
            6, 0, 0, 0, 32, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 9, 0, 0, 0, 32, 0, 0, 0,
        ];
        assert_eq!(packet_block(&Record { wire_len: 9, ..Record::default() }), expected);
    }

    #[test]
    fn interface_statistics_have_only_known_numbers() {
        let statistics = Statistics {
            interface: 1,
            end: Some(Timestamp::from_unix_nanos(1 << 32 | 2)),
            dropped_by_os: Some(3),
            ..Statistics::default()
        };
        #[rustfmt::skip]
        let expected = [
            5, 0, 0, 0, 52, 0, 0, 0,
            1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0,
            3, 0, 8, 0, 1, 0, 0, 0, 2, 0, 0, 0,
            7, 0, 8, 0, 3, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 52, 0, 0, 0,
        ];
        assert_eq!(interface_statistics(&statistics), expected);
    }

    #[test]
    fn a_text_too_long_for_an_option_is_cut_between_characters() {
        let long = "ü".repeat(40_000); // 80,000 bytes, and 65,535 is odd
        assert_eq!(option_value_len(long.as_bytes()), 65_534);
        assert_eq!(option_value_len(b"short"), 5);
    }
}
