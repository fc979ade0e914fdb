//! pcap: a file header of 24 bytes; then, for each packet, a header of 16 bytes and the data.

use crate::{Interface, PACKET_BYTES_MAX, Record};

/// The first bytes of a file with times in nanoseconds.
pub(crate) const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;

const FCS_LEN_IS_THERE: u32 = 1 << 26;

pub(crate) const FILE_HEADER: usize = 24;
pub(crate) const PACKET_HEADER: usize = 16;

/// The header of a file with the packets of `interface`.
pub(crate) fn file_header(interface: &Interface) -> [u8; FILE_HEADER] {
    let words = [
        MAGIC_NANOSECONDS,
        2 | 4 << 16, // Version 2.4.
        0,           // Time zone and accuracy, always 0.
        0,
        snap_len(interface),
        link_type(interface),
    ];
    let mut header = [0; FILE_HEADER];
    for (bytes, word) in header.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }

    header
}

/// The link type, with the length of the frame check sequence, in 16-bit words, in the upper bits.
fn link_type(interface: &Interface) -> u32 {
    let fcs = interface.fcs_len.map_or(0, |len| FCS_LEN_IS_THERE | u32::from(len / 2) << 28);
    u32::from(interface.link_type.0) | fcs
}

/// The length of the frame check sequence in bytes, from a word of [`link_type`].
pub(crate) fn fcs_len(link_type: u32) -> Option<u8> {
    (link_type & FCS_LEN_IS_THERE != 0).then_some((link_type >> 28) as u8 * 2)
}

/// The maximum packet length that readers of the file accept: libpcap silently truncates longer
/// ones.
pub(crate) fn snap_len(interface: &Interface) -> u32 {
    match interface.snap_len {
        0 => PACKET_BYTES_MAX,
        snap_len => snap_len.min(PACKET_BYTES_MAX),
    }
}

/// The number of bytes that [`packet`] fills for this packet.
#[inline]
pub(crate) fn packet_len(record: &Record<'_>) -> usize {
    PACKET_HEADER + record.data.len()
}

/// Whether the format can store the time: its seconds have 32 bits and end in 2106.
#[inline]
pub(crate) fn holds_time(record: &Record<'_>) -> bool {
    const END_NANOS: u64 = (1 << 32) * 1_000_000_000;
    record.timestamp.is_none_or(|timestamp| timestamp.unix_nanos() < END_NANOS)
}

/// Encodes the packet into `slot`, which has [`packet_len`] bytes of any content. The packet's time
/// must [fit](holds_time).
#[inline]
pub(crate) fn packet(slot: &mut [u8], record: &Record<'_>) {
    let (header, data) = slot.split_first_chunk_mut().expect("it has room for the header");
    packet_header(header, record);
    data.copy_from_slice(record.data);
}

/// Encodes the header of a packet. The packet's time must [fit](holds_time).
#[inline]
fn packet_header(slot: &mut [u8; PACKET_HEADER], record: &Record<'_>) {
    let timestamp = record.timestamp.unwrap_or_default();
    let time =
        u64::from(timestamp.subsec_nanos()) << 32 | u64::from(timestamp.unix_seconds() as u32);
    let lengths = u64::from(record.wire_len) << 32 | record.data.len() as u64;
    slot[0..8].copy_from_slice(&time.to_le_bytes());
    slot[8..16].copy_from_slice(&lengths.to_le_bytes());
}

/// The length of the packet at the beginning of `bytes`, including its header; only for packets
/// encoded by this module.
pub(crate) fn next_packet_len(bytes: &[u8]) -> usize {
    let data_len = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    PACKET_HEADER + data_len as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinkType;
    use crate::Timestamp;

    #[test]
    fn a_file_header_has_the_nanosecond_magic() {
        let interface =
            Interface { link_type: LinkType::RAW, snap_len: 96, ..Interface::default() };
        let expected =
            [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 96, 0, 0, 0, 101, 0, 0, 0];
        assert_eq!(file_header(&interface), expected);
    }

    #[test]
    fn a_packet_has_time_and_lengths_before_its_data() {
        let record = Record {
            timestamp: Some(Timestamp::from_unix_nanos(3_000_000_004)),
            wire_len: 60,
            data: &[0xaa, 0xbb],
            ..Record::default()
        };
        let mut slot = vec![0xee; packet_len(&record)];
        packet(&mut slot, &record);
        assert_eq!(slot, [3, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 60, 0, 0, 0, 0xaa, 0xbb]);
    }
}
