//! A packet in a block: its header by the kernel, and its VLAN tag put back.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use libc::tpacket3_hdr;

use crate::sys::xdp::Descriptor;
use crate::umem::chunk::records::{HEADER_BYTES, TAG_PUT_BACK};

/// Bytes of a VLAN tag.
const TAG_BYTES: usize = 4;
/// Bytes before the tag: two Ethernet addresses.
const ADDRESS_BYTES: usize = 12;
/// The default type of a VLAN tag.
const TPID_8021Q: u16 = 0x8100;

/// An invalid header of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadFrame {
    /// Its offset in the ring.
    offset: usize,
    /// The packet's offset from the header, and its length, as stated in the header.
    mac: u16,
    len: u32,
}

impl fmt::Display for BadFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, mac, len } = self;
        write!(
            f,
            "a packet header at {offset} (for {len} bytes from {mac} on) that leads outside it"
        )
    }
}

/// A parsed packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The place of its bytes; the descriptor has the distance to its header.
    pub(crate) descriptor: Descriptor,
    pub(crate) wire_len: u32,
    /// Where its bytes end.
    pub(crate) end: usize,
    /// Where the next packet's header is.
    pub(crate) next: usize,
    /// Whether it had a tag that was put back.
    pub(crate) tagged: bool,
}

/// Parses the packet whose header is at `offset`, within `room`, and puts back the VLAN tag that
/// the kernel removed. Offsets count from `base`.
///
/// # Safety
///
/// The room must be mapped from `base` on, and must have no other user.
#[inline]
pub(crate) unsafe fn read(
    base: NonNull<u8>,
    room: &Range<usize>,
    offset: usize,
) -> Result<Frame, BadFrame> {
    let bad = |mac, len| BadFrame { offset, mac, len };
    if offset < room.start || offset > room.end.saturating_sub(HEADER_BYTES) {
        return Err(bad(0, 0));
    }

    // SAFETY: the header lies in the room, as was just checked.
    let place = unsafe { base.add(offset) };

    // SAFETY: as above; the struct consists of integers.
    let header = unsafe { place.cast::<tpacket3_hdr>().read_unaligned() };

    // 64 bits hold the sum of any offset and length without overflow.
    let end = offset as u64 + u64::from(header.tp_mac) + u64::from(header.tp_snaplen);

    // Between header and packet there must be room for a tag. The kernel leaves the link-layer
    // address of the sender and some padding there.
    if usize::from(header.tp_mac) < HEADER_BYTES + TAG_BYTES || end > room.end as u64 {
        return Err(bad(header.tp_mac, header.tp_snaplen));
    }
    if header.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return Ok(Frame::of(&header, offset, false));
    }
    #[cfg(sabotage)]
    if crate::sabotage::is("tag-not-put-back") {
        return Ok(Frame::of(&header, offset, false));
    }

    // SAFETY: the packet and the bytes before it are in the room.
    let header = unsafe { put_tag_back(place) };
    Ok(Frame::of(&header, offset, true))
}

impl Frame {
    /// The packet whose checked header is at `offset`.
    #[inline]
    fn of(header: &tpacket3_hdr, offset: usize, tagged: bool) -> Self {
        let address = offset + usize::from(header.tp_mac);
        Self {
            descriptor: Descriptor::behind_header(
                address as u64,
                header.tp_snaplen,
                header.tp_mac.into(),
            ),
            wire_len: header.tp_len,
            end: address + header.tp_snaplen as usize,
            // If this wraps around, the address is before the room.
            next: offset.wrapping_add(header.tp_next_offset as usize),
            tagged,
        }
    }
}

/// Moves the addresses down by the length of a tag, and writes the tag after them, unless the
/// packet was truncated before their end. The header then describes the packet with its tag.
///
/// # Safety
///
/// At `place` there must be a header, with room for a tag, and the packet at the header's offset.
#[cold]
unsafe fn put_tag_back(place: NonNull<u8>) -> tpacket3_hdr {
    // SAFETY: guaranteed by the caller; the struct consists of integers.
    let mut header = unsafe { place.cast::<tpacket3_hdr>().read_unaligned() };
    if (header.tp_snaplen as usize) < ADDRESS_BYTES {
        return header;
    }

    let tpid = match header.tp_status & libc::TP_STATUS_VLAN_TPID_VALID {
        0 => TPID_8021Q,
        _ => header.hv1.tp_vlan_tpid,
    };
    let [a, b] = tpid.to_be_bytes();
    let [c, d] = (header.hv1.tp_vlan_tci as u16).to_be_bytes();

    header.tp_status = header.tp_status & !libc::TP_STATUS_VLAN_VALID | TAG_PUT_BACK;
    header.hv1.tp_vlan_tpid = tpid;
    header.tp_mac -= TAG_BYTES as u16;
    header.tp_snaplen += TAG_BYTES as u32;
    header.tp_len += TAG_BYTES as u32;

    // SAFETY: the caller guarantees the room.
    unsafe {
        let start = place.add(header.tp_mac.into());
        start.copy_from(start.add(TAG_BYTES), ADDRESS_BYTES);
        start.add(ADDRESS_BYTES).cast::<[u8; TAG_BYTES]>().write([a, b, c, d]);
        place.cast::<tpacket3_hdr>().write_unaligned(header);
    }

    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;
    use crate::umem::chunk::records::{timestamp, wire_len};

    /// A packet of `len` bytes, `mac` bytes after its header.
    fn packet(mac: u16, len: u32, tag: Option<(u16, u32)>) -> Vec<u8> {
        // SAFETY: integers, of which 0 is a value.
        let mut header: tpacket3_hdr = unsafe { std::mem::zeroed() };
        (header.tp_mac, header.tp_snaplen, header.tp_len) = (mac, len, len + 5);
        (header.tp_sec, header.tp_nsec) = (3, 4);

        if let Some((tpid, tci)) = tag {
            header.tp_status = libc::TP_STATUS_VLAN_VALID;
            header.tp_status |= if tpid == 0 { 0 } else { libc::TP_STATUS_VLAN_TPID_VALID };
            (header.hv1.tp_vlan_tpid, header.hv1.tp_vlan_tci) = (tpid, tci);
        }

        let mut bytes = vec![0xee; usize::from(mac)];

        // SAFETY: the header's bytes; it has no padding.
        bytes[..HEADER_BYTES].copy_from_slice(&unsafe {
            std::mem::transmute::<tpacket3_hdr, [u8; HEADER_BYTES]>(header)
        });
        bytes.extend((0..len).map(|n| n as u8));

        bytes
    }

    fn read_in(bytes: &mut [u8]) -> Result<Frame, BadFrame> {
        // SAFETY: the room is the slice, which has no other user.
        unsafe { read(NonNull::from(&mut *bytes).cast(), &(0..bytes.len()), 0) }
    }

    #[test]
    fn a_tag_is_put_back_once_with_minimal_room() {
        for (tpid, expected) in [(0, 0x8100), (0x88a8, 0x88a8)] {
            let mut bytes = packet(52, 60, Some((tpid, 0x6abc)));
            let frame = read_in(&mut bytes).unwrap();
            assert_eq!(
                (frame.wire_len, frame.descriptor.len, frame.descriptor.address),
                (69, 64, 48)
            );

            let plain: Vec<u8> = (0..60).collect();
            let [a, b] = u16::to_be_bytes(expected);
            assert_eq!(bytes[48..], [&plain[..12], &[a, b, 0x6a, 0xbc], &plain[12..]].concat());

            let again = read_in(&mut bytes);
            assert!(again.is_err(), "there is no more room, and nothing is put back twice");
        }
    }

    #[test]
    fn length_and_time_are_read_from_the_header() {
        let mut bytes = packet(82, 20, Some((0, 1)));
        read_in(&mut bytes).unwrap();
        let header = NonNull::from(&mut bytes[..]).cast();
        // SAFETY: the header stands there.
        let (wire_len, time) = unsafe { (wire_len(header), timestamp(header)) };
        assert_eq!((wire_len, time), (29, Timestamp::from_unix_nanos(3_000_000_004)));
    }

    #[test]
    fn a_packet_cut_before_its_tag_is_unchanged() {
        let mut bytes = packet(82, 11, Some((0, 1)));
        let frame = read_in(&mut bytes).unwrap();
        assert_eq!((frame.descriptor.address, frame.descriptor.len, frame.wire_len), (82, 11, 16));
    }
}
