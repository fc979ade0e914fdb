//! Frames of flows: IPv4 and IPv6, TCP and UDP, with VLAN tags or without, in both directions.

use std::net::IpAddr;

use proptest::prelude::*;

/// A flow from the point of view of its opener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) source: (IpAddr, u16),
    pub(crate) destination: (IpAddr, u16),
    pub(crate) is_tcp: bool,
    /// VLAN tags, the outer one first, each with its protocol.
    pub(crate) tags: Vec<(u16, u16)>,
    /// Flow labels by direction; IPv6 only.
    pub(crate) labels: [u32; 2],
}

/// Random flows, some of them in VLANs.
pub(crate) fn flows() -> impl Strategy<Value = Flow> {
    let addresses = prop_oneof![
        any::<[[u8; 4]; 2]>().prop_map(|pair| pair.map(IpAddr::from)),
        any::<[[u8; 16]; 2]>().prop_map(|pair| pair.map(IpAddr::from)),
    ];
    let tag = (prop::sample::select(vec![0x8100, 0x88a8]), 1..4095u16);
    let tags = prop::collection::vec(tag, 0..=2);
    let labels = any::<[bool; 2]>().prop_map(|has| has.map(|has| if has { 0xabcde } else { 0 }));
    (addresses, any::<[u16; 2]>(), any::<bool>(), tags, labels).prop_map(
        |([source, destination], ports, is_tcp, tags, labels)| Flow {
            source: (source, ports[0]),
            destination: (destination, ports[1]),
            is_tcp,
            tags,
            labels,
        },
    )
}

/// A part of a datagram: the number of bytes before it, and whether more follow.
type Fragment = (u16, bool);

const ESP: u8 = 50;
const IPV6_FRAGMENT: u8 = 44;

impl Flow {
    /// A frame from the opener (forth) or to it (back), with `payload` after the transport header.
    pub(crate) fn frame(&self, forth: bool, payload: &[u8]) -> Vec<u8> {
        let transport = self.transport(forth, payload);
        self.datagram(forth, self.protocol(), None, &transport)
    }

    /// A datagram in three fragments, each of which ends in `payload`. Only the first has the
    /// ports.
    pub(crate) fn fragments(&self, forth: bool, payload: &[u8]) -> [Vec<u8>; 3] {
        let pad = |bytes: &[u8]| {
            [bytes, &vec![0; 7 - (bytes.len() + payload.len() - 1) % 8], payload].concat()
        };
        let first = pad(&self.transport(forth, &[]));
        let other = pad(&[]);
        let second = first.len() as u16;
        let third = (first.len() + other.len()) as u16;
        [(&first, (0, true)), (&other, (second, true)), (&other, (third, false))]
            .map(|(body, fragment)| self.datagram(forth, self.protocol(), Some(fragment), body))
    }

    /// An encrypted packet, whose ports are not visible. Each direction has a separate security
    /// parameter index (SPI).
    pub(crate) fn encrypted(&self, forth: bool, payload: &[u8]) -> Vec<u8> {
        let spi = if forth { self.source.1 } else { self.destination.1 };
        self.datagram(
            forth,
            ESP,
            None,
            &[&[1, 1], &spi.to_be_bytes()[..], &[0; 20], payload].concat(),
        )
    }

    fn datagram(
        &self,
        forth: bool,
        protocol: u8,
        fragment: Option<Fragment>,
        body: &[u8],
    ) -> Vec<u8> {
        let (from, to, label) = match forth {
            true => (self.source.0, self.destination.0, self.labels[0]),
            false => (self.destination.0, self.source.0, self.labels[1]),
        };
        let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
        let mut frame = [macs[usize::from(forth)], macs[usize::from(!forth)]].concat();
        for (protocol, tag) in &self.tags {
            frame.extend(protocol.to_be_bytes());
            frame.extend(tag.to_be_bytes());
        }
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let (offset, more) = fragment.unwrap_or_default();
                frame.extend([0x08, 0x00, 0x45, 0]);
                frame.extend((20 + body.len() as u16).to_be_bytes());
                frame.extend([0, 0]);
                frame.extend(((u16::from(more) << 13) | (offset / 8)).to_be_bytes());
                frame.extend([64, protocol, 0, 0]);
                frame.extend(from.octets().into_iter().chain(to.octets()));
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let mut extension = Vec::new();
                if let Some((offset, more)) = fragment {
                    extension.extend([protocol, 0]);
                    extension.extend((offset | u16::from(more)).to_be_bytes());
                    extension.extend([0; 4]);
                }
                frame.extend([0x86, 0xdd]);
                frame.extend((6 << 28 | label).to_be_bytes());
                frame.extend(((extension.len() + body.len()) as u16).to_be_bytes());
                frame.extend([if fragment.is_some() { IPV6_FRAGMENT } else { protocol }, 64]);
                frame.extend(from.octets().into_iter().chain(to.octets()));
                frame.extend(extension);
            }
            _ => unreachable!("both ends have addresses of one kind"),
        }
        frame.extend(body);
        frame
    }

    fn protocol(&self) -> u8 {
        if self.is_tcp { 6 } else { 17 }
    }

    fn transport(&self, forth: bool, payload: &[u8]) -> Vec<u8> {
        let mut from = self.source.1;
        let mut to = self.destination.1;
        if !forth {
            std::mem::swap(&mut from, &mut to);
        }
        let mut bytes = [from.to_be_bytes(), to.to_be_bytes()].concat();
        if self.is_tcp {
            bytes.extend([0; 8]);
            bytes.extend([0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        } else {
            bytes.extend((8 + payload.len() as u16).to_be_bytes());
            bytes.extend([0, 0]);
        }
        bytes.extend(payload);
        bytes
    }
}
