//! Data about a packet, besides its bytes, that a filter may read.

use crate::insn::Extension;

/// Data about a packet besides its bytes. Most filters read none of them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Context {
    /// The index of its interface (`ifindex 3`).
    pub ifindex: u32,
    /// Its receive queue.
    pub queue: u32,
    /// Its destination (`inbound`, `outbound`).
    pub packet_type: PacketType,
    /// The VLAN tag that was removed from its bytes.
    pub vlan: Option<VlanTag>,
}

/// The destination of a packet, in the kernel's numbers (`PACKET_HOST` and so on).
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash, Debug)]
#[repr(u32)]
pub enum PacketType {
    /// For this host.
    #[default]
    Host = 0,
    /// Broadcast.
    Broadcast = 1,
    /// Multicast.
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
    /// The priority in the high three bits, the VLAN ID in the low twelve.
    pub tci: u16,
}

/// Why a valid filter cannot be used in this form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// The filter reads an extension that is not available.
    #[error("the filter reads [{extension}], but {reason}")]
    Extension {
        /// The extension.
        extension: Extension,
        /// Why it is not available.
        reason: &'static str,
    },
    /// The filter reads relative to the network header, whose offset is unknown for this link type.
    #[error(
        "the filter reads relative to the network header, whose offset is unknown for link type {link_type}"
    )]
    NetworkHeader {
        /// The number of the link type in the LINKTYPE registry.
        link_type: u16,
    },
    /// The program jumps backwards, which the kernel does not allow.
    #[error("the filter jumps backwards, which the kernel rejects")]
    Loop,
    /// The filter reads beyond the offset that the kernel allows.
    #[error("the filter reads offset {offset} of the packet; the kernel allows up to {most}")]
    Offset {
        /// The offset that it reads.
        offset: u32,
        /// The maximum offset.
        most: u32,
    },
    /// The filter has more conditional jumps in a row than the kernel's verifier allows.
    #[error("the filter makes up to {jumps} decisions per packet; the limit is {most}")]
    TooManyJumps {
        /// Maximum number of conditional jumps on the path of a packet through this filter.
        jumps: u32,
        /// The allowed number.
        most: u32,
    },
    /// The kernel's classic BPF would return another result than libpcap's.
    #[error("the filter {difference}, which the kernel evaluates differently from libpcap")]
    Differs {
        /// The difference, as a phrase that follows `the filter`.
        difference: &'static str,
    },
    /// The program for the filter would be too long.
    #[error("the filter translates to {insns} BPF instructions; the limit is {most}")]
    TooLong {
        /// Its number of instructions.
        insns: usize,
        /// The maximum number.
        most: usize,
    },
}
