//! Packets in files: pcapng and pcap, written and read.
//!
//! A [`Writer`] gathers blocks in one large buffer and hands them to its [`Sink`] in writes that end on a
//! packet boundary; what it costs per packet is one header, one copy and no system call.
//!
//! Formats: the IETF's drafts *PCAP Now Generic* (pcapng) and *PCAP Capture File Format* (pcap). Both are
//! written little-endian with times in nanoseconds.
//!
//! The crate needs no kernel interface and no privilege, and has no unsafe code. It is the part of the capture engine
//! `wirecap` that reads and writes files; the engine has it as `wirecap::savefile`.
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
//! `compressed`, on by default, reads files that gzip or Zstandard has compressed. Without it the crate depends on the
//! standard library alone, and such a file is [`ReadError::Source`].

mod contents;
mod conversion;
mod encoding;
mod error;
mod fields;
mod pcap;
mod pcap_reader;
mod pcapng;
mod pcapng_reader;
mod reader;
mod shared;
mod sink;
mod time;
mod window;
mod writer;

pub use conversion::{Conversion, ConversionError, Converted, LeftOut};
pub use error::ReadError;
pub use reader::{Part, Reader};
pub use shared::{is_planted, refuse_planted};
pub use sink::{FileSink, Sink, StreamSink};
pub use time::Timestamp;
pub use writer::{WriteError, Writer};

/// The longest packet that a savefile holds, in bytes; tcpdump and Wireshark refuse longer ones.
pub const PACKET_BYTES_MAX: u32 = 262_144;

/// A file format for packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Several interfaces, queues, directions, statistics and comments.
    #[default]
    Pcapng,
    /// Packets of one link type and nothing else, with times in nanoseconds.
    Pcap,
}

/// What kind of header a packet begins with: a number of the LINKTYPE registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// The family of a BSD loopback, in the host's byte order, then an IP packet.
    pub const NULL: Self = Self(0);
    /// Ethernet without preamble and check sequence.
    pub const ETHERNET: Self = Self(1);
    /// An IPv4 or IPv6 packet without any header before it.
    pub const RAW: Self = Self(101);
    /// Linux "cooked" capture: what kind of header there was depends on the interface.
    pub const LINUX_SLL: Self = Self(113);
    /// Linux "cooked" capture, version 2, with the interface's index.
    pub const LINUX_SLL2: Self = Self(276);
}

impl Default for LinkType {
    fn default() -> Self {
        Self::ETHERNET
    }
}

/// Which way a packet went through its interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Received.
    Inbound,
    /// Sent.
    Outbound,
}

/// Where and with what a file was captured. Its texts are stored in pcapng only, each up to 65,535 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Section {
    /// The program that captures, with its version.
    pub application: Option<String>,
    /// The operating system of the capturing host.
    pub os: Option<String>,
    /// The capturing host's hardware.
    pub hardware: Option<String>,
    /// Whatever else a reader should know.
    pub comment: Option<String>,
}

/// One interface of a file. Its texts are stored in pcapng only, each up to 65,534 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interface {
    /// As the system calls it: `eth0`.
    pub name: Option<String>,
    /// As its owner calls it.
    pub description: Option<String>,
    /// The filter expression that chose the packets.
    pub filter: Option<String>,
    /// The network card.
    pub hardware: Option<String>,
    /// The operating system of the host that the interface belongs to.
    pub os: Option<String>,
    /// What kind of header its packets begin with.
    pub link_type: LinkType,
    /// Packets were cut at this many bytes; 0 where they were not cut.
    pub snap_len: u32,
    /// Length of the check sequence (FCS) at the end of packets, if known.
    pub fcs_len: Option<u8>,
    /// The clock of its timestamps, in a comment of the file: `packet times: hardware clock`.
    ///
    /// Without a clock this is `None`, the packets have time 0, and the comment is `packet times: none`.
    pub time_source: Option<String>,
}

/// A packet as a file holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record<'a> {
    /// Which of the file's interfaces it belongs to, counted from 0.
    pub interface: u32,
    /// When it was captured. Only a pcapng simple packet has no time at all; a [`Writer`] writes 0 for `None`.
    pub timestamp: Option<Timestamp>,
    /// The packet's receive queue; stored in pcapng only.
    pub queue: Option<u32>,
    /// Received or sent; stored in pcapng only.
    pub direction: Option<Direction>,
    /// Its length on the wire, in bytes; more than `data` has where the capture cut it.
    pub wire_len: u32,
    /// The captured bytes.
    pub data: &'a [u8],
}

/// An interface's counts, in packets; stored in pcapng only. `None` is "not known".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Which of the file's interfaces it is, counted from 0.
    pub interface: u32,
    /// When the capture began.
    pub start: Option<Timestamp>,
    /// When the capture ended.
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
