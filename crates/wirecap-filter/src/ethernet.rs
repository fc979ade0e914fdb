//! An Ethernet frame as the kernel's network stack sees it, after the outer VLAN tag.

use crate::insn::Width;

/// Where a frame's type stands.
pub(crate) const TYPE_OFFSET: u32 = 12;
/// Where the payload of a frame without tag begins.
pub(crate) const HEADER_BYTES: u32 = 14;
pub(crate) const TAG_BYTES: u32 = 4;
/// The types that say that a VLAN tag follows, and which the kernel takes off.
pub(crate) const TAG_TYPES: [u32; 2] = [0x8100, 0x88a8];
/// Types below are lengths, of frames as IEEE 802.3 had them first.
pub(crate) const TYPE_MIN: u32 = 0x600;
/// What the kernel calls the protocol of a frame with a length, and an LLC header or (Novell) none.
pub(crate) const PROTOCOL_802_2: u32 = 4;
pub(crate) const PROTOCOL_802_3: u32 = 1;
/// How a Novell frame without LLC header begins.
pub(crate) const NOVELL: u32 = 0xffff;

/// Where the kernel sees the network header. A frame whose tag was taken off already keeps its next one.
pub(crate) fn network_offset(frame: &[u8], untagged: bool) -> Option<u32> {
    let tagged = TAG_TYPES.contains(&Width::Half.read(frame, TYPE_OFFSET)?);
    Some(if tagged && !untagged { HEADER_BYTES + TAG_BYTES } else { HEADER_BYTES })
}

/// What the kernel takes for the frame's protocol.
pub(crate) fn protocol(frame: &[u8], network_offset: u32) -> Option<u32> {
    let protocol = Width::Half.read(frame, network_offset - 2)?;
    if protocol >= TYPE_MIN {
        return Some(protocol);
    }
    let novell = Width::Half.read(frame, network_offset)? == NOVELL;
    Some(if novell { PROTOCOL_802_3 } else { PROTOCOL_802_2 })
}
