//! The record before each packet in a chunk's memory, by engine: a timestamp of the XDP program,
//! the record of a savefile, or the kernel's AF_PACKET header.

#![allow(unsafe_code)]

use std::mem::offset_of;
use std::ptr::NonNull;

use libc::tpacket3_hdr;

use crate::filter::{PacketType, VlanTag};
use crate::time::Timestamp;

/// The place of the arrival times of a chunk's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stamps {
    /// Not asked for.
    None,
    /// The eight bytes before the packet hold CLOCK_TAI in nanoseconds, written by the XDP program.
    Tai {
        /// How far CLOCK_TAI is ahead of UTC.
        ahead_of_utc_nanos: u64,
    },
    /// The eight bytes before the packet contain the time of the device's clock, written by the XDP
    /// program; 0 if the device provided none.
    Device,
    /// All of the chunk's packets count as arrived when the chunk was captured.
    AtCapture(Timestamp),
    /// A [`FileRecord`] precedes the packet.
    InFile,
    /// The kernel's packet header precedes it, at the distance in [`Descriptor::header_distance`].
    /// It has the length on the wire, and UTC.
    Header {
        /// Whether timestamps were requested.
        told: bool,
        /// Whether the ring's number is that of a receive queue.
        by_queue: bool,
        /// Whether the address behind the header has the number of the packet's interface, among
        /// those of a capture of all interfaces.
        numbered: bool,
    },
}

impl Stamps {
    /// Number of bytes required before each packet.
    pub(crate) fn record_bytes(self) -> u32 {
        match self {
            Self::Tai { .. } | Self::Device => size_of::<u64>() as u32,
            Self::InFile => FileRecord::BYTES as u32,
            Self::None | Self::AtCapture(_) | Self::Header { .. } => 0,
        }
    }

    /// The arrival time of the packet at `start`; its header, if it has one, is at this distance
    /// before it.
    ///
    /// # Safety
    ///
    /// The packet must belong to a chunk with these stamps, and the bytes before it must be
    /// unchanged.
    #[inline]
    pub(crate) unsafe fn time_of(
        self,
        start: NonNull<u8>,
        header_distance: u32,
    ) -> Option<Timestamp> {
        match self {
            Self::None | Self::Header { told: false, .. } => None,
            Self::AtCapture(time) => Some(time),
            // SAFETY: packets of a file stand behind their records.
            Self::InFile => Some(unsafe { FileRecord::before(start) }.unix_nanos)
                .filter(|nanos| *nanos != FileRecord::NO_TIME)
                .map(Timestamp::from_unix_nanos),
            // SAFETY: the distance was checked when the packet was captured.
            Self::Header { told: true, .. } => unsafe {
                Some(timestamp(start.sub(header_distance as usize)))
            },
            Self::Tai { ahead_of_utc_nanos } => {
                // SAFETY: the program wrote it.
                let tai = unsafe { program_stamp(start) };
                Some(Timestamp::from_unix_nanos(tai.saturating_sub(ahead_of_utc_nanos)))
            }
            // SAFETY: the program wrote it.
            Self::Device => Some(unsafe { program_stamp(start) })
                .filter(|nanos| *nanos != 0)
                .map(Timestamp::from_unix_nanos),
        }
    }

    /// The length on the wire of the packet with `len` bytes at `start`.
    ///
    /// # Safety
    ///
    /// As for [`time_of`](Self::time_of).
    #[inline]
    pub(crate) unsafe fn wire_len_of(
        self,
        start: NonNull<u8>,
        len: u32,
        header_distance: u32,
    ) -> u32 {
        match self {
            // SAFETY: packets of a file stand behind their records.
            Self::InFile => unsafe { FileRecord::before(start) }.wire_len,
            // SAFETY: the distance was checked when the packet was captured.
            Self::Header { .. } => unsafe { wire_len(start.sub(header_distance as usize)) },
            Self::None | Self::Tai { .. } | Self::Device | Self::AtCapture(_) => len,
        }
    }
}

/// The value that the XDP program wrote before the packet at `start`.
///
/// # Safety
///
/// The program must have written it, and the bytes before the packet must be unchanged.
#[inline]
pub(super) unsafe fn program_stamp(start: NonNull<u8>) -> u64 {
    // SAFETY: the room before the packet was checked when it was captured; it belongs to the
    // packet, and the program filled it before the packet was published.
    unsafe { start.sub(size_of::<u64>()).cast::<u64>().read_unaligned() }
}

/// The record of a savefile's packet, which precedes the packet in a chunk's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileRecord {
    pub(crate) unix_nanos: u64,
    pub(crate) wire_len: u32,
    pub(crate) queue: u32,
}

impl FileRecord {
    pub(crate) const BYTES: usize = 16;
    pub(crate) const NO_TIME: u64 = u64::MAX;
    pub(crate) const NO_QUEUE: u32 = u32::MAX;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.unix_nanos.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.wire_len.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.queue.to_ne_bytes());
        bytes
    }

    /// The record of the packet at `start`.
    ///
    /// # Safety
    ///
    /// It must have one.
    pub(super) unsafe fn before(start: NonNull<u8>) -> Self {
        // SAFETY: the caller's promise.
        Self::from_bytes(unsafe { start.sub(Self::BYTES).cast::<[u8; Self::BYTES]>().read() })
    }

    fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let (unix_nanos, rest) = bytes.split_first_chunk().expect("sixteen bytes hold eight");
        let (wire_len, queue) = rest.split_first_chunk().expect("eight bytes hold four");
        Self {
            unix_nanos: u64::from_ne_bytes(*unix_nanos),
            wire_len: u32::from_ne_bytes(*wire_len),
            queue: u32::from_ne_bytes(queue.try_into().expect("four bytes are left")),
        }
    }
}

/// Bytes of the kernel's header of a packet.
pub(crate) const HEADER_BYTES: usize = size_of::<tpacket3_hdr>();
const _: () = assert!(HEADER_BYTES == 48);

/// A flag among the kernel's status bits that marks a tag that was put back; the kernel does not
/// use this bit.
pub(crate) const TAG_PUT_BACK: u32 = 1 << 24;

/// Offset of the packet type from the header: it is in the kernel's `struct sockaddr_ll`, which
/// follows the header.
const TYPE_OFFSET: usize = HEADER_BYTES + offset_of!(libc::sockaddr_ll, sll_pkttype);

/// Offset of the interface's index, or number, from the header.
const INTERFACE_OFFSET: usize = HEADER_BYTES + offset_of!(libc::sockaddr_ll, sll_ifindex);
/// Bytes from the header to the end of the address.
pub(crate) const ADDRESS_END: usize = HEADER_BYTES + size_of::<libc::sockaddr_ll>();

/// The index of the interface of the packet with the header at `header`, or its number, if that was
/// [set](set_ifindex).
///
/// # Safety
///
/// As for [`wire_len`], and [`ADDRESS_END`] bytes must be readable.
#[inline]
pub(crate) unsafe fn ifindex(header: NonNull<u8>) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { header.add(INTERFACE_OFFSET).cast::<u32>().read_unaligned() }
}

/// Replaces the index of the interface of the packet with the header at `header`.
///
/// # Safety
///
/// The [`ADDRESS_END`] bytes from the header on must be writable, and have no other user.
pub(crate) unsafe fn set_ifindex(header: NonNull<u8>, number: u32) {
    // SAFETY: the caller's promise.
    unsafe { header.add(INTERFACE_OFFSET).cast::<u32>().write_unaligned(number) }
}

/// The length on the wire of the packet with the header at `header`.
///
/// # Safety
///
/// There must be a header, which is not written to.
#[inline]
pub(crate) unsafe fn wire_len(header: NonNull<u8>) -> u32 {
    let header = header.cast::<tpacket3_hdr>().as_ptr();
    // SAFETY: the caller's promise.
    unsafe { (&raw const (*header).tp_len).read_unaligned() }
}

/// When the packet arrived whose header stands at `header`.
///
/// # Safety
///
/// As for [`wire_len`].
#[inline]
pub(crate) unsafe fn timestamp(header: NonNull<u8>) -> Timestamp {
    // SAFETY: the caller's promise.
    let (seconds, nanos) = unsafe { seconds_and_nanos(header) };
    Timestamp::from_unix_nanos(seconds * 1_000_000_000 + u64::from(nanos))
}

/// The arrival time of the packet with the header at `header`, in the kernel's units.
///
/// # Safety
///
/// As for [`wire_len`].
#[inline]
pub(crate) unsafe fn seconds_and_nanos(header: NonNull<u8>) -> (u64, u32) {
    let header = header.cast::<tpacket3_hdr>().as_ptr();
    // SAFETY: the caller's promise.
    unsafe {
        let seconds = (&raw const (*header).tp_sec).read_unaligned();
        (seconds.into(), (&raw const (*header).tp_nsec).read_unaligned())
    }
}

/// The tag that the kernel had removed from the packet and that was put back.
///
/// # Safety
///
/// As for [`wire_len`].
pub(crate) unsafe fn tag_put_back(header: NonNull<u8>) -> Option<VlanTag> {
    // SAFETY: guaranteed by the caller; the struct consists of integers.
    let header = unsafe { header.cast::<tpacket3_hdr>().read_unaligned() };
    let tag = VlanTag { tpid: header.hv1.tp_vlan_tpid, tci: header.hv1.tp_vlan_tci as u16 };
    (header.tp_status & TAG_PUT_BACK != 0).then_some(tag)
}

/// The type of a packet that begins `mac` bytes after its header, from the link-layer address
/// between the two. `None` if there is no room for an address, and for types that filters cannot
/// name.
///
/// # Safety
///
/// As for [`wire_len`], and the bytes between header and packet must be readable.
pub(crate) unsafe fn packet_type(header: NonNull<u8>, mac: u32) -> Option<PacketType> {
    if mac as usize <= TYPE_OFFSET {
        return None;
    }
    // SAFETY: the field is between the header and the packet.
    match unsafe { header.add(TYPE_OFFSET).read() } {
        libc::PACKET_HOST => Some(PacketType::Host),
        libc::PACKET_BROADCAST => Some(PacketType::Broadcast),
        libc::PACKET_MULTICAST => Some(PacketType::Multicast),
        libc::PACKET_OTHERHOST => Some(PacketType::OtherHost),
        libc::PACKET_OUTGOING => Some(PacketType::Outgoing),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_a_packet_is_read_where_there_is_room_for_one() {
        let told = |mac: usize, value| {
            let mut bytes = vec![0xee_u8; mac];
            bytes.get_mut(TYPE_OFFSET).into_iter().for_each(|place| *place = value);
            // SAFETY: the bytes between the header and the packet exist, with any contents.
            unsafe { packet_type(NonNull::from(&mut bytes[..]).cast(), mac as u32) }
        };
        let known =
            [0, 1, 2, 3, 4].map(|value| told(TYPE_OFFSET + 1, value).map(|known| known as u8));
        assert_eq!(known, [0, 1, 2, 3, 4].map(Some));
        // PACKET_LOOPBACK, PACKET_USER, PACKET_KERNEL.
        assert_eq!([5, 6, 7].map(|value| told(TYPE_OFFSET + 1, value)), [None; 3]);
        assert_eq!(told(TYPE_OFFSET, 0), None);
    }
}
