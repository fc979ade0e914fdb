//! Reads pcap: both byte orders, both resolutions, and the variants supported by libpcap.

use crate::contents::{Contents, Packet, Step, data_bytes_max};
use crate::fields::{ByteOrder, Fields};
use crate::pcap::{self, FILE_HEADER, MAGIC_NANOSECONDS, PACKET_HEADER};
use crate::window::Window;
use crate::{Interface, LinkType, ReadError, Timestamp};

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
/// The magic number of Alexey Kuznetsov's patched tcpdump of the 1990s, which has longer packet
/// headers.
const MAGIC_KUZNETSOV: u32 = 0xa1b2_cd34;
/// These headers end with interface, protocol and packet type.
const PACKET_HEADER_KUZNETSOV: usize = PACKET_HEADER + 8;

/// Undefined bits of the word with the link type. Like libpcap, the reader rejects a file that has
/// one of them set.
const RESERVED_BITS: u32 = 0x03ff_0000;

/// The version number that DG/UX wrote.
const VERSION_DG_UX: (u16, u16) = (543, 0);

/// The order of a packet's two lengths.
#[derive(Debug, Clone, Copy)]
enum Lengths {
    CapturedFirst,
    WireFirst,
    /// Programs wrote version 2.3 in both orders; the captured length is the smaller one.
    SmallerIsCaptured,
}

pub(crate) struct PcapReader {
    order: ByteOrder,
    /// Nanoseconds per unit of a time's second word.
    fraction_ns: u64,
    header_len: usize,
    lengths: Lengths,
    data_bytes_max: u32,
}

impl PcapReader {
    /// Reads the file's header, which begins with `magic`.
    pub(crate) fn begin(
        magic: [u8; 4],
        window: &mut Window,
        contents: &mut Contents,
    ) -> Result<Self, ReadError> {
        let (order, fraction_ns, header_len) =
            variant(magic).ok_or(ReadError::UnknownFormat { magic })?;
        let header = window.need(FILE_HEADER, "file header")?.unwrap_or_default();
        let header =
            FileHeader::read(Fields::new(header, 0, order)).expect("a file header has 24 bytes");

        if header.link_type & RESERVED_BITS != 0 {
            let problem =
                format!("the link type is {:#x}, with reserved bits set", header.link_type);
            return Err(ReadError::Malformed { offset: 0, problem });
        }

        let lengths = header.lengths().ok_or_else(|| ReadError::Malformed {
            offset: 0,
            problem: format!(
                "the file has pcap version {}.{}, not 2.0 to 2.4",
                header.major, header.minor
            ),
        })?;
        window.consume(FILE_HEADER);

        let link_type = LinkType(header.link_type as u16);
        let snap_len = header.snap_len;
        let fcs_len = pcap::fcs_len(header.link_type);
        contents.add_interface(Interface { link_type, snap_len, fcs_len, ..Interface::default() });

        let data_bytes_max = data_bytes_max(link_type);
        Ok(Self { order, fraction_ns, header_len, lengths, data_bytes_max })
    }

    /// The byte order of the file.
    pub(crate) fn order(&self) -> ByteOrder {
        self.order
    }

    /// Reads the next packet.
    #[inline]
    pub(crate) fn step(&mut self, window: &mut Window) -> Result<Step, ReadError> {
        let Some(header) = window.need(self.header_len, "packet header")? else {
            return Ok(Step::End);
        };
        let words = Fields::new(header, 0, self.order).words();
        let [seconds, fraction, first, second] =
            words.expect("a packet header has 16 bytes or more");
        let (captured_len, wire_len) = self.lengths.in_order(first, second);
        #[cfg(sabotage)]
        let captured_len =
            if crate::sabotage::is("pcap-packet-of-any-length") { 0 } else { captured_len };

        if captured_len > self.data_bytes_max {
            return Err(ReadError::Malformed {
                offset: window.offset(),
                problem: format!(
                    "a packet has {captured_len} bytes; the maximum is {}",
                    self.data_bytes_max
                ),
            });
        }

        let len = self.header_len + captured_len as usize;
        window.need(len, "packet")?;

        let place = window.consume(len);
        let nanos = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * self.fraction_ns;

        Ok(Step::Packet(Packet {
            interface: 0,
            timestamp: Some(Timestamp::from_unix_nanos(nanos)),
            is_time_out_of_range: false,
            queue: None,
            direction: None,
            wire_len,
            data: place.start + self.header_len..place.end,
            block: place,
        }))
    }
}

/// Byte order, nanoseconds per unit of a time's second word, and the length of packet headers.
fn variant(magic: [u8; 4]) -> Option<(ByteOrder, u64, usize)> {
    let variants = [
        (MAGIC_MICROSECONDS, 1000, PACKET_HEADER),
        (MAGIC_NANOSECONDS, 1, PACKET_HEADER),
        (MAGIC_KUZNETSOV, 1000, PACKET_HEADER_KUZNETSOV),
    ];
    variants.into_iter().find_map(|(number, fraction_ns, header_len)| {
        Some((ByteOrder::of_magic(magic, number)?, fraction_ns, header_len))
    })
}

struct FileHeader {
    major: u16,
    minor: u16,
    snap_len: u32,
    /// The whole word: link type and, in its upper bits, the length of the frame check sequence.
    link_type: u32,
}

impl FileHeader {
    fn read(mut fields: Fields<'_>) -> Option<Self> {
        let _magic = fields.u32()?;
        let major = fields.u16()?;
        let minor = fields.u16()?;
        let _time_zone_and_accuracy = fields.u64()?;
        let snap_len = fields.u32()?;
        let link_type = fields.u32()?;
        Some(Self { major, minor, snap_len, link_type })
    }

    /// `None` for an unknown version.
    fn lengths(&self) -> Option<Lengths> {
        match (self.major, self.minor) {
            (2, 0..3) | VERSION_DG_UX => Some(Lengths::WireFirst),
            (2, 3) => Some(Lengths::SmallerIsCaptured),
            (2, 4) => Some(Lengths::CapturedFirst),
            _ => None,
        }
    }
}

impl Lengths {
    /// The captured length and the length on the wire.
    #[inline]
    fn in_order(self, first: u32, second: u32) -> (u32, u32) {
        match self {
            Self::CapturedFirst => (first, second),
            Self::WireFirst => (second, first),
            Self::SmallerIsCaptured => (first.min(second), first.max(second)),
        }
    }
}
