//! Headers that the capturing system puts before packets in its own byte order. Like libpcap, the
//! reader converts those of big-endian files, so that records are the same whatever system wrote
//! the file. Files are written little-endian.

use crate::LinkType;

const PFLOG: LinkType = LinkType(117);
const USB_LINUX: LinkType = LinkType(189);
const USB_LINUX_MMAPPED: LinkType = LinkType(220);
const NFLOG: LinkType = LinkType(239);

/// Whether packets of the link type begin with numbers in the byte order of the system that
/// captured them.
pub(crate) fn is_in_order_of_writer(link_type: LinkType) -> bool {
    matches!(
        link_type,
        LinkType::NULL
            | LinkType::ENC
            | LinkType::LINUX_SLL
            | LinkType::LINUX_SLL2
            | PFLOG
            | USB_LINUX
            | USB_LINUX_MMAPPED
            | NFLOG
    )
}

/// Converts the numbers from big-endian to little-endian, as far as the captured bytes contain
/// them.
pub(crate) fn to_little_endian(link_type: LinkType, data: &mut [u8]) {
    let mut header = Header(data);
    match link_type {
        LinkType::NULL => header.swap(&[(0, 4)]),
        // Family and flags; the security parameter index between them is in network order.
        LinkType::ENC => header.swap(&[(0, 4), (8, 4)]),
        LinkType::LINUX_SLL => header.swap_can_id(14, 16),
        LinkType::LINUX_SLL2 => header.swap_can_id(0, 20),
        // `uid`, `pid`, `rule_uid` and `rule_pid`; the numbers of the rules are in network order.
        PFLOG => header.swap(&[(44, 4), (48, 4), (52, 4), (56, 4)]),
        USB_LINUX => header.swap_usb(false),
        USB_LINUX_MMAPPED => header.swap_usb(true),
        NFLOG => header.swap_nflog(),
        _ => {}
    }
}

struct Header<'a>(&'a mut [u8]);

impl Header<'_> {
    /// Swaps the numbers at these offsets, of these lengths.
    fn swap(&mut self, numbers: &[(usize, usize)]) {
        for &(at, len) in numbers {
            if let Some(bytes) = self.0.get_mut(at..at + len) {
                bytes.reverse();
            }
        }
    }

    /// The number at this offset, after it was swapped.
    fn number<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    /// In a "cooked" capture, only the identifier of a CAN frame is in the byte order of the
    /// system.
    fn swap_can_id(&mut self, protocol_at: usize, payload_at: usize) {
        const CAN: [u8; 2] = [0x00, 0x0c];
        const CAN_FD: [u8; 2] = [0x00, 0x0d];
        if self.number(protocol_at).is_some_and(|protocol| [CAN, CAN_FD].contains(&protocol)) {
            self.swap(&[(payload_at, 4)]);
        }
    }

    /// The header of usbmon: `struct mon_bin_hdr` of Linux, of 48 bytes, or 64 if it was read from
    /// mapped memory.
    fn swap_usb(&mut self, is_mapped: bool) {
        const TRANSFER_TYPE: usize = 9;
        const ISOCHRONOUS: u8 = 0;
        const DESCRIPTORS: usize = 60;
        const DESCRIPTOR: usize = 16;
        self.swap(&[(0, 8), (12, 2), (16, 8), (24, 4), (28, 4), (32, 4), (36, 4)]);

        let is_isochronous = self.0.get(TRANSFER_TYPE) == Some(&ISOCHRONOUS);
        if is_isochronous {
            self.swap(&[(40, 4), (44, 4)]);
        }
        if !is_mapped {
            return;
        }

        self.swap(&[(48, 4), (52, 4), (56, 4), (DESCRIPTORS, 4)]);
        let descriptors = self.number(DESCRIPTORS).map_or(0, u32::from_le_bytes);

        if is_isochronous {
            for at in (64..self.0.len()).step_by(DESCRIPTOR).take(descriptors as usize) {
                self.swap(&[(at, 4), (at + 4, 4), (at + 8, 4)]);
            }
        }
    }

    /// Each element has a length and a type, and is padded to four bytes.
    fn swap_nflog(&mut self) {
        const VERSION: usize = 1;
        const ELEMENTS: usize = 4;

        if self.0.get(VERSION) != Some(&0) {
            return;
        }

        let mut at = ELEMENTS;
        while self.0.len() >= at + 4 {
            self.swap(&[(at, 2), (at + 2, 2)]);
            let len = self.number(at).map_or(0, u16::from_le_bytes);
            if len < 4 {
                return;
            }
            at += usize::from(len).next_multiple_of(4);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets of each link type as a big-endian and as a little-endian system writes them. The
    /// fields are those of libpcap's `swap_pseudo_headers`, and the families of BSD loopbacks and
    /// IPsec interfaces, which libpcap's filters swap.
    #[test]
    fn headers_of_big_endian_systems_become_those_of_little_endian_ones() {
        let usb = |big: bool, mapped: bool| -> Vec<u8> {
            let order = |bytes: &[u8]| {
                let mut bytes = bytes.to_vec();
                if !big {
                    bytes.reverse();
                }
                bytes
            };
            let mut packet = order(&[1, 2, 3, 4, 5, 6, 7, 8]);
            packet.extend([b'S', 0, 0x81, 3]);
            packet.extend(order(&[0, 9]));
            packet.extend([0, 0]);
            packet.extend(order(&[0, 0, 0, 0, 1, 2, 3, 4]));
            for number in 1..=4 {
                packet.extend(order(&[0, 0, 0, number]));
            }

            packet.extend([order(&[0, 0, 0, 5]), order(&[0, 0, 0, 6])].concat());

            if mapped {
                for number in [7, 8, 9, 1] {
                    packet.extend(order(&[0, 0, 0, number]));
                }
                packet.extend(
                    [order(&[0, 0, 0, 1]), order(&[0, 0, 0, 2]), order(&[0, 0, 0, 3])].concat(),
                );
                packet.extend([0xaa; 4]);
            }

            packet.extend([0xbb; 8]);
            packet
        };
        let pflog = |numbers: [u8; 4]| {
            let mut packet = vec![0x11; 44];
            (0..4).for_each(|_| packet.extend(numbers));
            packet.extend([1, 0, 0, 0, 0x45, 0]);
            packet
        };

        let can = |header: usize, protocol_at: usize, protocol: u8, id: [u8; 4]| {
            let mut packet = vec![0; header];
            packet[protocol_at + 1] = protocol;
            packet.extend(id);
            packet.extend([1, 2, 3, 4]);
            packet
        };
        let nflog_big =
            [2, 0, 0, 7, 0, 6, 0, 10, 1, 2, 0, 0, 0, 5, 0, 9, 0x45, 0xee, 0xee, 0xee, 0, 4, 0, 3];
        let nflog_little =
            [2, 0, 0, 7, 6, 0, 10, 0, 1, 2, 0, 0, 5, 0, 9, 0, 0x45, 0xee, 0xee, 0xee, 4, 0, 3, 0];
        let cases = [
            (LinkType::NULL, vec![0, 0, 0, 30, 0x60, 1], vec![30, 0, 0, 0, 0x60, 1]),
            (
                LinkType::ENC,
                vec![0, 0, 0, 2, 1, 2, 3, 4, 0, 0, 8, 0, 0x45],
                vec![2, 0, 0, 0, 1, 2, 3, 4, 0, 8, 0, 0, 0x45],
            ),
            (LinkType::LINUX_SLL, can(16, 14, 0x0c, [1, 2, 3, 4]), can(16, 14, 0x0c, [4, 3, 2, 1])),
            (LinkType::LINUX_SLL, can(16, 14, 0x0d, [1, 2, 3, 4]), can(16, 14, 0x0d, [4, 3, 2, 1])),
            (LinkType::LINUX_SLL, can(16, 14, 0x11, [1, 2, 3, 4]), can(16, 14, 0x11, [1, 2, 3, 4])),
            (LinkType::LINUX_SLL2, can(20, 0, 0x0c, [1, 2, 3, 4]), can(20, 0, 0x0c, [4, 3, 2, 1])),
            (PFLOG, pflog([1, 2, 3, 4]), pflog([4, 3, 2, 1])),
            (USB_LINUX, usb(true, false), usb(false, false)),
            (USB_LINUX_MMAPPED, usb(true, true), usb(false, true)),
            (NFLOG, nflog_big.to_vec(), nflog_little.to_vec()),
            (LinkType::ETHERNET, vec![1, 2, 3, 4], vec![1, 2, 3, 4]),
        ];

        for (link_type, big, little) in cases {
            let mut data = big.clone();
            to_little_endian(link_type, &mut data);
            assert_eq!(data, little, "{link_type:?}");
            assert!(is_in_order_of_writer(link_type) || big == little);
            // No length in a packet leads outside of it.
            for len in 0..big.len() {
                to_little_endian(link_type, &mut big[..len].to_vec());
            }
        }
    }
}
