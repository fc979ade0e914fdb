//! The contents of a file, step by step, whatever its format.

use std::ops::Range;

use crate::{Direction, Interface, LinkType, PACKET_BYTES_MAX, Section, Statistics, Timestamp};

/// No block may be longer: a file's own claim must not decide how much memory its reader takes.
pub(crate) const BLOCK_BYTES_MAX: u32 = 16 << 20;

/// The longest packet that is believed of a link type: as libpcap, which gives USB and D-Bus more.
pub(crate) fn data_bytes_max(link_type: LinkType) -> u32 {
    match link_type.0 {
        186 | 189 | 220 | 231 | 249 | 266 => BLOCK_BYTES_MAX,
        _ => PACKET_BYTES_MAX,
    }
}

/// The contents of a file read so far, besides its packets.
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
    /// The place of all that the file has of it, its header included.
    pub(crate) block: Range<usize>,
}

/// What one step through a file has found.
pub(crate) enum Step {
    Packet(Packet),
    /// A block that is not a packet, and its place in the window.
    Other(Range<usize>),
    End,
}
