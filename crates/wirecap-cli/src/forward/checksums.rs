//! Senders that leave checksums to hardware that never sees their packets.
//!
//! A host on the same machine, connected by a veth or a tap, does not compute the checksums of TCP
//! and UDP: its packets contain the sum of the pseudo-header, from which the device should
//! continue. Forwarded unchanged, they reach a host that discards them as damaged, so the network
//! seems to be down for everything but ping.
//!
//! The first packet of each chunk is checked. A correct checksum equals the sum of the
//! pseudo-header once in 65,536 times, so the command warns, once for each interface, only if three
//! of 64 such packets have it. Checksums are not corrected, because the sender causes the fault,
//! and every other tap on the path would still see it.

/// Number of packets that are evaluated together.
const WINDOW: u32 = 64;
/// This many of them are not an accident: a correct checksum looks like that once in 65,536 times.
const ENOUGH: u32 = 3;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Checks some packets of one interface.
#[derive(Debug, Default)]
pub(crate) struct ChecksumWatch {
    looked_at: u32,
    unfinished: u32,
}

impl ChecksumWatch {
    /// Checks a packet, and returns whether it is now certain that checksums are left to hardware.
    pub(crate) fn is_certain_with(&mut self, frame: &[u8]) -> bool {
        let Some(unfinished) = is_unfinished(frame) else { return false };
        self.looked_at += 1;
        self.unfinished += u32::from(unfinished);
        let certain = self.unfinished >= ENOUGH;
        if self.looked_at == WINDOW || certain {
            *self = Self::default();
        }
        certain
    }
}

/// Whether the checksum of a TCP or UDP packet is only the pseudo-header's sum; `None` for other
/// packets, and if it cannot be determined.
fn is_unfinished(frame: &[u8]) -> Option<bool> {
    let (kind, packet) = without_tags(frame)?;
    let (addresses, protocol, segment) = match kind {
        0x0800 => ipv4(packet)?,
        0x86dd => ipv6(packet)?,
        _ => return None,
    };
    let place = match protocol {
        TCP => 16,
        UDP => 6,
        _ => return None,
    };
    let checksum = word(segment, place)?;
    if protocol == UDP && checksum == 0 {
        return None;
    }

    let sum = words(addresses) + u64::from(protocol) + segment.len() as u64;
    Some(checksum == folded(sum))
}

/// The EtherType after up to two VLAN tags, and the following bytes.
fn without_tags(frame: &[u8]) -> Option<(u16, &[u8])> {
    let mut offset = 12;
    for _ in 0..2 {
        if matches!(word(frame, offset)?, 0x8100 | 0x88a8) {
            offset += 4;
        }
    }
    Some((word(frame, offset)?, frame.get(offset + 2..)?))
}

/// The addresses, the protocol, and the segment without padding of the frame.
fn ipv4(packet: &[u8]) -> Option<(&[u8], u8, &[u8])> {
    let header_bytes = usize::from(packet.first()? & 0x0f) * 4;
    let total_bytes = usize::from(word(packet, 2)?);
    let is_fragment = word(packet, 6)? & 0x3fff != 0;
    let segment = packet.get(header_bytes..total_bytes)?;
    (!is_fragment).then_some((packet.get(12..20)?, packet[9], segment))
}

/// As `ipv4`; none if there are extension headers.
fn ipv6(packet: &[u8]) -> Option<(&[u8], u8, &[u8])> {
    let payload_bytes = usize::from(word(packet, 4)?);
    Some((packet.get(8..40)?, packet[6], packet.get(40..40 + payload_bytes)?))
}

fn word(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}

fn words(bytes: &[u8]) -> u64 {
    bytes.as_chunks::<2>().0.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum()
}

/// A sum of words as one's complement arithmetic has it.
fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A TCP packet over IPv4 or IPv6, tagged or not, with the pseudo-header's sum as its checksum,
    /// or with the correct one.
    fn packet(six: bool, tagged: bool, finished: bool) -> Vec<u8> {
        let mut segment = vec![0x5a; 33];
        segment[16..18].fill(0);

        let addresses: Vec<u8> = if six { (1..=32).collect() } else { (1..=8).collect() };
        let pseudo = words(&addresses) + u64::from(TCP) + segment.len() as u64;
        let padded = [&segment[..], &[0]].concat();
        let checksum = if finished { !folded(pseudo + words(&padded)) } else { folded(pseudo) };
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());

        let header = if six {
            let mut header = vec![0x60, 0, 0, 0, 0, segment.len() as u8, TCP, 64];
            header.extend(&addresses);
            header
        } else {
            let mut header =
                vec![0x45, 0, 0, 20 + segment.len() as u8, 0, 0, 0x40, 0, 64, TCP, 0, 0];
            header.extend(&addresses);
            header
        };
        let tag: &[u8] = if tagged { &[0x81, 0, 0, 100] } else { &[] };
        let kind: [u8; 2] = if six { [0x86, 0xdd] } else { [8, 0] };

        // What follows is padding, and not part of the sum.
        [&[2; 12], tag, &kind, &header, &segment, &[0xee; 9]].concat()
    }

    #[test]
    fn a_checksum_left_to_hardware_is_distinguished_from_a_correct_one() {
        for (six, tagged) in [(false, false), (false, true), (true, false), (true, true)] {
            assert_eq!(is_unfinished(&packet(six, tagged, false)), Some(true), "{six} {tagged}");
            assert_eq!(is_unfinished(&packet(six, tagged, true)), Some(false), "{six} {tagged}");
        }
    }

    #[test]
    fn packets_without_the_needed_header_are_skipped() {
        let mut fragment = packet(false, false, false);
        fragment[20] = 0x20;
        let mut ping = packet(false, false, false);
        ping[23] = 1;
        let cut = &packet(false, false, false)[..50];
        let mut without = packet(false, false, false);
        without[23] = UDP;
        without[40..42].fill(0);
        for frame in [&fragment[..], &ping, cut, &without, &[], &[0; 14]] {
            assert_eq!(is_unfinished(frame), None, "{frame:x?}");
        }
    }

    #[test]
    fn one_accident_in_a_window_is_none() {
        let good = packet(false, false, true);
        let bad = packet(false, false, false);
        let mut watch = ChecksumWatch::default();
        for _ in 0..10 {
            assert!(!watch.is_certain_with(&bad));
            assert!((1..WINDOW).all(|_| !watch.is_certain_with(&good)));
        }
        assert_eq!([&bad; 3].map(|frame| watch.is_certain_with(frame)), [false, false, true]);
    }
}
