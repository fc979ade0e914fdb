//! An Ethernet frame as the kernel's network stack sees it after it has removed the outer VLAN tag.

use crate::insn::Width;

/// Offset of a frame's type.
pub(crate) const TYPE_OFFSET: u32 = 12;
/// Offset of the payload of an untagged frame.
pub(crate) const HEADER_BYTES: u32 = 14;
pub(crate) const TAG_BYTES: u32 = 4;
/// The types of VLAN tags that the kernel removes.
pub(crate) const TAG_TYPES: [u32; 2] = [0x8100, 0x88a8];
/// Smaller values are lengths, as in frames of the original IEEE 802.3.
pub(crate) const TYPE_MIN: u32 = 0x600;
/// The kernel's protocol numbers for frames with a length: with an LLC header, or without one
/// (Novell).
pub(crate) const PROTOCOL_802_2: u32 = 4;
pub(crate) const PROTOCOL_802_3: u32 = 1;
/// The first payload bytes of a Novell frame without an LLC header.
pub(crate) const NOVELL: u32 = 0xffff;

/// The kernel's offset of the network header. If `untagged`, a tag was already removed, and the
/// kernel does not remove another.
pub(crate) fn network_offset(frame: &[u8], untagged: bool) -> Option<u32> {
    let tagged = TAG_TYPES.contains(&Width::Half.read(frame, TYPE_OFFSET)?);
    Some(if tagged && !untagged { HEADER_BYTES + TAG_BYTES } else { HEADER_BYTES })
}

/// The kernel's protocol number of the frame.
pub(crate) fn protocol(frame: &[u8], network_offset: u32) -> Option<u32> {
    let protocol = Width::Half.read(frame, network_offset - 2)?;
    if protocol >= TYPE_MIN {
        return Some(protocol);
    }
    let novell = Width::Half.read(frame, network_offset)? == NOVELL;
    Some(if novell { PROTOCOL_802_3 } else { PROTOCOL_802_2 })
}
