//! Writes and reads packets in pcapng and pcap files.
//!
//! A [`Writer`] collects blocks in one large buffer and passes them to its [`Sink`] in writes that
//! end at a packet boundary. A packet costs one header, one copy and no system call.
//!
//! Formats: the IETF's drafts *PCAP Now Generic* (pcapng) and *PCAP Capture File Format* (pcap).
//! Both are written little-endian with times in nanoseconds.
//!
//! The crate needs no kernel interface and no privileges, and has no unsafe code. It is the file
//! support of the capture engine `wirecap`, which exports it as `wirecap::savefile`.
//!
//! ```
//! use wirecap_savefile::{Format, Interface, Reader, Record, Section, StreamSink, Timestamp, Writer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut writer = Writer::new(StreamSink::new(Vec::new(), "memory"), Format::Pcapng, &Section::default());
//! let eth0 = writer.add_interface(&Interface { name: Some("eth0".into()), ..Interface::default() })?;
//! let timestamp = Some(Timestamp::from_unix_nanos(1_700_000_000_000_000_001));
//! let (queue, data) = (Some(3), &[0; 96]);
//! let record = Record { interface: eth0, timestamp, queue, wire_len: 1500, data, ..Record::default() };
//! writer.write(&record)?;
//! let file = writer.finish()?.into_inner();
//!
//! let mut reader = Reader::new(std::io::Cursor::new(file))?;
//! assert_eq!(reader.next_record()?, Some(record));
//! assert_eq!(reader.next_record()?, None);
//! assert_eq!(reader.interfaces()[0].name.as_deref(), Some("eth0"));
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! `compressed`, on by default, reads files compressed by gzip or Zstandard. Without it the crate
//! depends only on the standard library, and such a file causes [`ReadError::Source`].

mod contents;
mod conversion;
mod element;
mod encoding;
mod error;
mod fields;
#[cfg(feature = "compressed")]
pub mod paged;
mod pcap;
mod pcap_reader;
mod pcapng;
mod pcapng_reader;
mod pseudo_header;
mod reader;
#[cfg(test)]
mod reading_tests;
#[cfg(test)]
mod roundtrip_tests;
#[cfg(sabotage)]
#[path = "../../wirecap-testbed/src/sabotage.rs"]
mod sabotage;
mod shared;
mod sink;
mod time;
mod window;
mod writer;

pub use conversion::{Conversion, ConversionError, Converted, LeftOut};
pub use element::{Block, Element, PacketOptions};
pub use error::ReadError;
pub use reader::{Part, Reader};
pub use shared::{is_planted, refuse_planted};
pub use sink::{FileSink, Sink, StreamSink};
pub use time::Timestamp;
pub use writer::{WriteError, Writer};

/// Maximum length of a packet in a savefile, in bytes; tcpdump and Wireshark reject longer packets.
pub const PACKET_BYTES_MAX: u32 = 262_144;

/// A file format for packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Several interfaces, queues, directions, statistics and comments.
    #[default]
    Pcapng,
    /// Packets of one link type, with times in nanoseconds, and nothing else.
    Pcap,
}

/// The type of header that packets begin with, as a number of the LINKTYPE registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// The family of a BSD loopback, in the byte order of its system, then an IP packet.
    pub const NULL: Self = Self(0);
    /// Ethernet without preamble and frame check sequence.
    pub const ETHERNET: Self = Self(1);
    /// An IPv4 or IPv6 packet without a link-layer header.
    pub const RAW: Self = Self(101);
    /// The family of an OpenBSD loopback, big-endian, then an IP packet.
    pub const LOOP: Self = Self(108);
    /// The family and the security association of an IPsec interface of OpenBSD, then an IP packet.
    pub const ENC: Self = Self(109);
    /// Linux "cooked" capture: the original header depends on the interface.
    pub const LINUX_SLL: Self = Self(113);
    /// Linux "cooked" capture, version 2, with the interface index.
    pub const LINUX_SLL2: Self = Self(276);
}

impl Default for LinkType {
    fn default() -> Self {
        Self::ETHERNET
    }
}

/// The direction of a packet at its interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Received.
    Inbound,
    /// Sent.
    Outbound,
}

/// The program and host that captured a file. The texts are stored in pcapng only, each up to
/// 65,535 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Section {
    /// The capturing program and its version.
    pub application: Option<String>,
    /// The operating system of the capturing host.
    pub os: Option<String>,
    /// The capturing host's hardware.
    pub hardware: Option<String>,
    /// A comment for readers of the file.
    pub comment: Option<String>,
}

/// One interface of a file. The texts are stored in pcapng only, each up to 65,534 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interface {
    /// The system's name for it: `eth0`.
    pub name: Option<String>,
    /// The user's description.
    pub description: Option<String>,
    /// The filter expression of the capture.
    pub filter: Option<String>,
    /// The network card.
    pub hardware: Option<String>,
    /// The operating system of the host that the interface belongs to.
    pub os: Option<String>,
    /// The type of header that its packets begin with.
    pub link_type: LinkType,
    /// Packets are truncated to this many bytes; 0 for no limit.
    pub snap_len: u32,
    /// Length of the frame check sequence (FCS) at the end of packets, if known.
    pub fcs_len: Option<u8>,
    /// The clock of its timestamps, in a comment of the file: `packet times: hardware clock`.
    ///
    /// Without a clock this is `None`, the packets have time 0, and the comment is
    /// `packet times: none`.
    pub time_source: Option<String>,
    /// Other options of pcapng: comments, addresses, speeds. Each has its code, its length and its
    /// value in little-endian order.
    pub other_options: Vec<u8>,
}

/// A packet in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record<'a> {
    /// Index of its interface in the file.
    pub interface: u32,
    /// The time of capture. Only simple packets of pcapng have no time; a [`Writer`] writes 0 for
    /// `None`.
    pub timestamp: Option<Timestamp>,
    /// The packet has a time, but one before 1970 or after 2554, which `timestamp` cannot hold. A
    /// [`Writer`] rejects such a packet.
    pub is_time_out_of_range: bool,
    /// The packet's receive queue; stored in pcapng only.
    pub queue: Option<u32>,
    /// Received or sent; stored in pcapng only.
    pub direction: Option<Direction>,
    /// Its length on the wire, in bytes; greater than the length of `data` if the packet was
    /// truncated.
    pub wire_len: u32,
    /// The captured bytes. Numbers in the byte order of the capturing system, before packets of
    /// some link types, are little-endian.
    pub data: &'a [u8],
}

/// Counters of an interface, in packets; stored in pcapng only. `None` is "not known".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Index of the interface in the file.
    pub interface: u32,
    /// When the capture began.
    pub start: Option<Timestamp>,
    /// When the capture ended; of a file that does not state it, when the block was written.
    pub end: Option<Timestamp>,
    /// Received by the interface since the capture began (`isb_ifrecv`).
    pub received: Option<u64>,
    /// Dropped by the interface for lack of room (`isb_ifdrop`).
    pub dropped_by_interface: Option<u64>,
    /// Accepted by the filter (`isb_filteraccept`).
    pub accepted_by_filter: Option<u64>,
    /// Dropped by the operating system or the capture engine (`isb_osdrop`).
    pub dropped_by_os: Option<u64>,
    /// Delivered to the program that wrote the file (`isb_usrdeliv`).
    pub delivered: Option<u64>,
}

// What the integration tests read and build, by the names that it has there.
#[cfg(test)]
extern crate self as wirecap_savefile;
#[cfg(test)]
#[path = "../tests/savefile/order.rs"]
mod order;
#[cfg(test)]
#[path = "../tests/savefile/packet.rs"]
#[allow(dead_code)] // The unit tests use a part of it.
mod packet;
