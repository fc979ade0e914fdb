//! The IP packets in frames whose headers have no fixed length: PPP, Wi-Fi, and packets of
//! firewalls' logs. The index has no columns for these headers, so a search reads their packets.

use wirecap_savefile::LinkType;

const PPP: LinkType = LinkType(9);
const PPP_HDLC: LinkType = LinkType(50);
const PPPOE: LinkType = LinkType(51);
const CISCO_HDLC: LinkType = LinkType(104);
const IEEE802_11: LinkType = LinkType(105);
const PFLOG: LinkType = LinkType(117);
const PRISM: LinkType = LinkType(119);
const RADIOTAP: LinkType = LinkType(127);
const AVS: LinkType = LinkType(163);
const PPI: LinkType = LinkType(192);
const NFLOG: LinkType = LinkType(239);

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Whether [`ip_packet`] knows the headers of this link type.
pub(crate) fn is_known(link_type: LinkType) -> bool {
    matches!(
        link_type,
        PPP | PPP_HDLC
            | PPPOE
            | CISCO_HDLC
            | IEEE802_11
            | PFLOG
            | PRISM
            | RADIOTAP
            | AVS
            | PPI
            | NFLOG
    )
}

/// The IP packet in a frame; `None` if there is none, if it is encrypted, or if the link type is
/// not known.
pub(crate) fn ip_packet(link_type: LinkType, frame: &[u8]) -> Option<&[u8]> {
    match link_type {
        PPP | PPP_HDLC => ppp(frame),
        PPPOE => ppp(frame.get(6..)?),
        CISCO_HDLC => of_ether_type(be16(frame, 2)?, frame.get(4..)?),
        IEEE802_11 => ieee802_11(frame, false),
        PFLOG => frame.get(usize::from(*frame.first()?).next_multiple_of(4)..),
        PRISM => prism(frame),
        RADIOTAP => {
            let (header, frame) = frame.split_at_checked(le16(frame, 2)?.into())?;
            ieee802_11(frame, radiotap_is_padded(header).unwrap_or(false))
        }
        AVS => avs(frame),
        PPI => {
            let inner = LinkType(le16(frame, 4)?);
            let frame = frame.get(usize::from(le16(frame, 2)?)..)?;
            match inner {
                LinkType::ETHERNET => of_ether_type(be16(frame, 12)?, frame.get(14..)?),
                PPI => None,
                inner => ip_packet(inner, frame),
            }
        }
        NFLOG => nflog(frame),
        _ => None,
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}

fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    be16(bytes, at).map(u16::swap_bytes)
}

fn of_ether_type(ether_type: u16, packet: &[u8]) -> Option<&[u8]> {
    [IPV4, IPV6].contains(&ether_type).then_some(packet)
}

/// Address, control and the first byte of the protocol may have been left out.
fn ppp(frame: &[u8]) -> Option<&[u8]> {
    let frame = frame.strip_prefix(&[0xff, 3]).unwrap_or(frame);
    let frame = frame.strip_prefix(&[0]).unwrap_or(frame);
    frame.strip_prefix(&[0x21]).or_else(|| frame.strip_prefix(&[0x57]))
}

/// A data frame that is not encrypted; `is_padded`: the header was padded to four bytes.
fn ieee802_11(frame: &[u8], is_padded: bool) -> Option<&[u8]> {
    const TYPE: u8 = 0x0c;
    const DATA: u8 = 0x08;
    const NO_DATA: u8 = 0x40;
    const QOS: u8 = 0x80;
    const BOTH_DISTRIBUTION: u8 = 3;
    const PROTECTED: u8 = 0x40;
    const ORDER: u8 = 0x80;
    const AGGREGATED: u8 = 0x80;
    const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];

    let [kind, flags, ..] = *frame else { return None };
    if kind & TYPE != DATA || kind & NO_DATA != 0 || flags & PROTECTED != 0 {
        return None;
    }

    let mut len = if flags & BOTH_DISTRIBUTION == BOTH_DISTRIBUTION { 30 } else { 24 };
    let mut is_aggregated = false;

    if kind & QOS != 0 {
        is_aggregated = frame.get(len)? & AGGREGATED != 0;
        len += if flags & ORDER == 0 { 2 } else { 6 };
    }

    if is_padded {
        len = len.next_multiple_of(4);
    }
    if is_aggregated {
        // The first of several packets, after its addresses and its length.
        len += 14;
    }

    let payload = frame.get(len..)?.strip_prefix(&SNAP)?;
    of_ether_type(be16(payload, 0)?, payload.get(2..)?)
}

/// Whether the flags in the header state that the frame's header was padded.
fn radiotap_is_padded(header: &[u8]) -> Option<bool> {
    const TIME: u32 = 1;
    const FLAGS: u32 = 2;
    const MORE_WORDS: u32 = 1 << 31;
    const DATA_PAD: u8 = 0x20;

    let word = |at: usize| header.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
    let present = word(4)?;
    let mut at = 8;
    let mut last = present;

    while last & MORE_WORDS != 0 {
        last = word(at)?;
        at += 4;
    }

    if present & TIME != 0 {
        at = at.next_multiple_of(8) + 8;
    }

    Some(present & FLAGS != 0 && header.get(at)? & DATA_PAD != 0)
}

/// The header of the Prism driver has 144 bytes. Some drivers write that of AVS instead.
fn prism(frame: &[u8]) -> Option<&[u8]> {
    match frame {
        [0x80, 0x21, 0x10, ..] => avs(frame),
        _ => ieee802_11(frame.get(144..)?, false),
    }
}

fn avs(frame: &[u8]) -> Option<&[u8]> {
    let len = u32::from_be_bytes(*frame.get(4..)?.first_chunk()?);
    ieee802_11(frame.get(len as usize..)?, false)
}

/// Elements of a length and a type, in the byte order of a little-endian system; the packet is one
/// of them.
fn nflog(frame: &[u8]) -> Option<&[u8]> {
    const PAYLOAD: u16 = 9;
    let mut at = 4;

    loop {
        let len = usize::from(le16(frame, at)?);
        let element = le16(frame, at + 2)?;

        if len < 4 {
            return None;
        }
        if element == PAYLOAD {
            return frame.get(at + 4..(at + len).min(frame.len()));
        }

        at += len.next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: [u8; 20] = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];

    fn wifi(header: &[u8], len: usize, ether_type: u16) -> Vec<u8> {
        let mut frame = header.to_vec();
        frame.resize(len, 0);
        frame.extend([0xaa, 0xaa, 3, 0, 0, 0]);
        frame.extend(ether_type.to_be_bytes());
        frame.extend(IP);
        frame
    }

    #[test]
    fn ip_packets_are_found_after_headers_of_any_length() {
        let plain = wifi(&[0x08, 1], 24, IPV4);
        let quality = wifi(&[0x88, 2], 26, IPV4);
        let radiotap = |header: &[u8], frame: &[u8]| [header, frame].concat();
        let frames = [
            (PPP, [&[0xff, 3, 0, 0x21], &IP[..]].concat()),
            (PPP, [&[0x21], &IP[..]].concat()),
            (PPP_HDLC, [&[0, 0x57], &IP[..]].concat()),
            (PPPOE, [&[0x11, 0, 0, 1, 0, 22, 0, 0x21], &IP[..]].concat()),
            (CISCO_HDLC, [&[0x0f, 0, 8, 0], &IP[..]].concat()),
            (IEEE802_11, plain.clone()),
            (IEEE802_11, quality.clone()),
            (IEEE802_11, wifi(&[0x08, 3], 30, IPV6)),
            (IEEE802_11, wifi(&[0x88, 0x80], 30, IPV4)),
            (RADIOTAP, radiotap(&[0, 0, 8, 0, 0, 0, 0, 0], &plain)),
            // The time, flags that state padding, and a header of 26 bytes that was padded to 28.
            (
                RADIOTAP,
                radiotap(
                    &[0, 0, 17, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20],
                    &wifi(&[0x88, 2], 28, IPV4),
                ),
            ),
            (AVS, radiotap(&[0x80, 0x21, 0x10, 1, 0, 0, 0, 8], &plain)),
            (PRISM, radiotap(&[0; 144], &plain)),
            (PRISM, radiotap(&[0x80, 0x21, 0x10, 1, 0, 0, 0, 8], &plain)),
            (PPI, radiotap(&[0, 0, 8, 0, 105, 0, 0, 0], &plain)),
            (PPI, [&[0, 0, 8, 0, 1, 0, 0, 0], &[0; 12][..], &[8, 0], &IP].concat()),
            (PFLOG, radiotap(&[[61].as_slice(), &[0; 63]].concat(), &IP)),
            (NFLOG, [&[2, 0, 0, 0, 6, 0, 1, 0, 1, 2, 0, 0, 24, 0, 9, 0], &IP[..]].concat()),
        ];

        for (link_type, frame) in &frames {
            assert_eq!(ip_packet(*link_type, frame), Some(&IP[..]), "{link_type:?} {frame:02x?}");
            assert!(is_known(*link_type));
            // No length in a frame leads outside of it.
            for len in 0..frame.len() {
                let _ = ip_packet(*link_type, &frame[..len]);
            }
        }

        let without = [
            wifi(&[0x08, 0x41], 24, IPV4),
            wifi(&[0x48, 1], 24, IPV4),
            wifi(&[0x80, 0], 24, IPV4),
            wifi(&[0x08, 1], 24, 0x0806),
        ];
        for frame in &without {
            assert_eq!(ip_packet(IEEE802_11, frame), None, "{frame:02x?}");
        }

        assert!(!is_known(LinkType(189)));
    }
}
