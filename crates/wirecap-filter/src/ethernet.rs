//! An Ethernet frame as the kernel's network stack sees it, which looks behind the outer VLAN tag.

use super::insn::Width;
use super::interpreter::read;

/// Where a frame's type stands.
pub(super) const TYPE_OFFSET: u32 = 12;
/// Where the payload of a frame without tag begins.
pub(super) const HEADER_BYTES: u32 = 14;
pub(super) const TAG_BYTES: u32 = 4;
/// The types that say that a VLAN tag follows, and which the kernel takes off.
pub(super) const TAG_TYPES: [u32; 2] = [0x8100, 0x88a8];
/// Types below are lengths, of frames as IEEE 802.3 had them first.
pub(super) const TYPE_MIN: u32 = 0x600;
/// What the kernel calls the protocol of a frame with a length, and an LLC header or (Novell) none.
pub(super) const PROTOCOL_802_2: u32 = 4;
pub(super) const PROTOCOL_802_3: u32 = 1;
/// How a Novell frame without LLC header begins.
pub(super) const NOVELL: u32 = 0xffff;

/// Where the kernel sees the network header. A frame whose tag was taken off already keeps its next one.
pub(super) fn network_offset(frame: &[u8], untagged: bool) -> Option<u32> {
    let tagged = TAG_TYPES.contains(&read(frame, Width::Half, TYPE_OFFSET)?);
    Some(if tagged && !untagged { HEADER_BYTES + TAG_BYTES } else { HEADER_BYTES })
}

/// What the kernel takes for the frame's protocol.
pub(super) fn protocol(frame: &[u8], network_offset: u32) -> Option<u32> {
    let protocol = read(frame, Width::Half, network_offset - 2)?;
    if protocol >= TYPE_MIN {
        return Some(protocol);
    }
    let novell = read(frame, Width::Half, network_offset)? == NOVELL;
    Some(if novell { PROTOCOL_802_3 } else { PROTOCOL_802_2 })
}
