//! Data about a packet, besides its bytes, that a filter may read.

use std::error::Error;
use std::fmt;

use crate::insn::Extension;

/// Data about a packet besides its bytes. Most filters read none of it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Context {
    /// The index of the interface it went through (`ifindex 3`).
    pub ifindex: u32,
    /// Its receive queue.
    pub queue: u32,
    /// For whom it is (`inbound`, `outbound`).
    pub packet_type: PacketType,
    /// The VLAN tag that was removed from its bytes.
    pub vlan: Option<VlanTag>,
}

/// For whom a packet is, in the kernel's numbers (`PACKET_HOST` and so on).
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash, Debug)]
#[repr(u32)]
pub enum PacketType {
    /// For this host.
    #[default]
    Host = 0,
    /// For all.
    Broadcast = 1,
    /// For a group.
    Multicast = 2,
    /// For another host.
    OtherHost = 3,
    /// From this host.
    Outgoing = 4,
}

/// A VLAN tag.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash, Debug)]
pub struct VlanTag {
    /// The tag's protocol identifier, such as 0x8100.
    pub tpid: u16,
    /// The priority in the high three bits, the VLAN in the low twelve.
    pub tci: u16,
}

/// Why a filter cannot run somewhere, though it is sound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unsupported {
    /// The filter asks for something that is not known there.
    Extension {
        /// What it asks for.
        extension: Extension,
        /// Why that is not known.
        reason: &'static str,
    },
    /// The filter counts from the network header, and where that begins is not known for this link type.
    NetworkHeader {
        /// The number of the link type in the LINKTYPE registry.
        link_type: u16,
    },
    /// The program jumps backwards, which the kernel does not take.
    Loop,
    /// The filter looks further into the packet than the kernel lets it.
    Offset {
        /// Where it looks.
        offset: u32,
        /// How far it could.
        most: u32,
    },
    /// The filter decides too often on its way for the kernel's verifier.
    TooManyJumps {
        /// How many conditional jumps there may be on the way of a packet.
        jumps: u32,
        /// How many there could be.
        most: u32,
    },
    /// The kernel's own classic BPF would give another answer than libpcap's.
    Differs {
        /// The difference, in words that follow `the filter`.
        difference: &'static str,
    },
    /// The filter becomes too long.
    TooLong {
        /// How many instructions it has.
        insns: usize,
        /// How many it could have.
        most: usize,
    },
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Extension { extension, reason } => {
                write!(f, "the filter reads [{extension}], but {reason}")
            }
            Self::NetworkHeader { link_type } => write!(
                f,
                "the filter reads relative to the network header, whose offset is unknown for link type {link_type}"
            ),
            Self::Loop => f.write_str("the filter jumps backwards, which the kernel rejects"),
            Self::Offset { offset, most } => {
                write!(f, "the filter reads offset {offset} of the packet; the kernel allows up to {most}")
            }
            Self::TooManyJumps { jumps, most } => {
                write!(f, "the filter makes up to {jumps} decisions per packet; the limit is {most}")
            }
            Self::Differs { difference } => {
                write!(f, "the filter {difference}, which the kernel evaluates differently from libpcap")
            }
            Self::TooLong { insns, most } => {
                write!(f, "the filter translates to {insns} BPF instructions; the limit is {most}")
            }
        }
    }
}

impl Error for Unsupported {}
