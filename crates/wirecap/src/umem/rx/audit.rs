//! Detects frames that a device split among its buffers and whose parts the driver treats as
//! packets: zero-copy only.
//!
//! `xdp::sizes` prevents this for the drivers known to do it. This module detects other drivers,
//! and frames longer than the MTU: a part that fills a buffer has a length that is a multiple of 64
//! bytes, at least 1,024, and its IP header shows that the packet is longer.

use std::slice;

use super::RxRing;
use crate::sys::xdp::Descriptor;

/// The size of the smallest buffers in which drivers use a cell, and the unit of buffer sizes.
const BUFFER_BYTES_MIN: u32 = 1024;
const BUFFER_GRANULE_BYTES: u32 = 64;
/// Bytes of an IPv6 header, which its payload's length leaves out.
const IPV6_HEADER_BYTES: usize = 40;

impl RxRing {
    /// Number of packets in `cells` that continue according to their own header, but not according
    /// to the driver. The cells were checked.
    pub(super) fn cut_packets(&self, cells: &[Descriptor]) -> u64 {
        if cells.iter().all(|cell| !may_fill_a_buffer(cell)) {
            0
        } else {
            self.look_for_cut_packets(cells)
        }
    }

    #[cold]
    fn look_for_cut_packets(&self, cells: &[Descriptor]) -> u64 {
        count_cut(cells, |cell| {
            // SAFETY: the caller checked that the cell's bytes are in the pool, which lives as long
            // as the ring; the kernel delivered the cell, and no chunk has it yet.
            unsafe {
                let start = self.pool().memory().base().add(cell.address as usize);
                slice::from_raw_parts(start.as_ptr(), cell.len as usize)
            }
        })
    }
}

/// Number of packets in one cell that fills a buffer, and whose header announces more.
fn count_cut<'a>(cells: &[Descriptor], bytes_of: impl Fn(&Descriptor) -> &'a [u8]) -> u64 {
    let is_cut = |packet: &&[Descriptor]| match packet {
        [cell] if may_fill_a_buffer(cell) => {
            announced_bytes(bytes_of(cell)).is_some_and(|announced| announced > cell.len as usize)
        }
        _ => false,
    };
    cells.split_inclusive(|cell| !cell.is_continued()).filter(is_cut).count() as u64
}

fn may_fill_a_buffer(cell: &Descriptor) -> bool {
    cell.len >= BUFFER_BYTES_MIN && cell.len.is_multiple_of(BUFFER_GRANULE_BYTES)
}

/// The length of a frame according to its IP header, if it has one.
fn announced_bytes(frame: &[u8]) -> Option<usize> {
    let half = |place: usize| Some(u16::from_be_bytes(*frame.get(place..)?.first_chunk()?));
    let mut place = 12;
    while let 0x8100 | 0x88a8 = half(place)? {
        place += 4;
    }
    let ethertype = half(place)?;
    let network = place + 2;
    match ethertype {
        0x0800 => Some(network + usize::from(half(network + 2)?)),
        0x86dd => Some(network + IPV6_HEADER_BYTES + usize::from(half(network + 4)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::xdp::CONTINUED;

    fn frame(headers: &[&[u8]]) -> Vec<u8> {
        [&[[2; 12].as_slice()], headers].concat().concat()
    }

    #[test]
    fn a_frame_is_as_long_as_its_ip_header_says() {
        let ipv4: &[u8] = &[0x45, 0, 0x05, 0xdc];
        assert_eq!(announced_bytes(&frame(&[&[8, 0], ipv4])), Some(1514));
        assert_eq!(announced_bytes(&frame(&[&[0x81, 0, 0, 1, 8, 0], ipv4])), Some(1518));
        assert_eq!(
            announced_bytes(&frame(&[&[0x88, 0xa8, 0, 1, 0x81, 0, 0, 1, 8, 0], ipv4])),
            Some(1522)
        );
        assert_eq!(
            announced_bytes(&frame(&[&[0x86, 0xdd], &[0x60, 0, 0, 0, 0x05, 0xb4]])),
            Some(1514)
        );
        assert_eq!(announced_bytes(&frame(&[&[8, 6], ipv4])), None, "ARP does not say");
        assert_eq!(announced_bytes(&frame(&[&[8, 0], &[0x45]])), None);
        assert_eq!(announced_bytes(&[]), None);
    }

    #[test]
    fn a_packet_is_cut_if_it_fills_a_buffer_and_announces_more() {
        let cut = |announced: u16, lens: &[(u32, u32)]| {
            let total = (announced - 14).to_be_bytes();
            let mut bytes = frame(&[&[8, 0, 0x45, 0], &total]);
            bytes.resize(2048, 0);
            let cells: Vec<Descriptor> = lens
                .iter()
                .map(|&(len, options)| Descriptor { address: 0, len, options })
                .collect();
            count_cut(&cells, |cell| &bytes[..cell.len as usize])
        };

        for (len, count) in
            [(960, 0), (1023, 0), (1024, 1), (1025, 0), (1088, 1), (1472, 1), (1536, 0)]
        {
            assert_eq!(cut(1514, &[(len, 0)]), count, "{len} of 1514 bytes");
        }

        assert_eq!(cut(1024, &[(1024, 0)]), 0, "it is whole");
        assert_eq!(
            cut(1514, &[(1024, CONTINUED), (490, 0)]),
            0,
            "the driver says that it continues"
        );
        assert_eq!(cut(1514, &[(1024, 0), (64, 0), (1088, 0)]), 2);
    }
}
