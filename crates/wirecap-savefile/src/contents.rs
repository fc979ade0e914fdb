//! The contents of a file, step by step, in any format.

use std::ops::Range;

use crate::{Direction, Interface, LinkType, PACKET_BYTES_MAX, Section, Statistics, Timestamp};

/// Maximum length of a block. A length field in a file must not make the reader allocate more
/// memory than this.
pub(crate) const BLOCK_BYTES_MAX: u32 = 16 << 20;

/// The maximum packet length accepted for a link type. As in libpcap, it is larger for USB and
/// D-Bus.
pub(crate) fn data_bytes_max(link_type: LinkType) -> u32 {
    match link_type.0 {
        186 | 189 | 220 | 231 | 249 | 266 => BLOCK_BYTES_MAX,
        _ => PACKET_BYTES_MAX,
    }
}

/// What was read from a file so far, except packets.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) section: Section,
    pub(crate) interfaces: Vec<Interface>,
    /// One entry per interface.
    pub(crate) statistics: Vec<Option<Statistics>>,
}

impl Contents {
    pub(crate) fn add_interface(&mut self, interface: Interface) {
        self.interfaces.push(interface);
        self.statistics.push(None);
    }
}

/// A record whose data are still in the window.
#[derive(Default)]
pub(crate) struct Packet {
    pub(crate) interface: u32,
    pub(crate) timestamp: Option<Timestamp>,
    pub(crate) is_time_out_of_range: bool,
    pub(crate) queue: Option<u32>,
    pub(crate) direction: Option<Direction>,
    pub(crate) wire_len: u32,
    /// The range of the data in the window.
    pub(crate) data: Range<usize>,
    /// The range of the packet's block in the window, including its header.
    pub(crate) block: Range<usize>,
}

/// The result of one step through a file.
pub(crate) enum Step {
    Packet(Packet),
    /// A block that is not a packet, and its range in the window.
    Other(Range<usize>),
    End,
}
