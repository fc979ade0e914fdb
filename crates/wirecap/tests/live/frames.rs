//! Frames of flows: IPv4 and IPv6, TCP and UDP, with VLAN tags or without, in both directions.

use std::net::IpAddr;

use proptest::prelude::*;

/// A flow, as the end that opened it sees it.
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

impl Flow {
    /// A frame from the opener (forth) or to it (back), with `payload` behind the transport header.
    pub(crate) fn frame(&self, forth: bool, payload: &[u8]) -> Vec<u8> {
        let (from, to, label) = match forth {
            true => (self.source, self.destination, self.labels[0]),
            false => (self.destination, self.source, self.labels[1]),
        };
        let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
        let mut frame = [macs[usize::from(forth)], macs[usize::from(!forth)]].concat();
        for (protocol, tag) in &self.tags {
            frame.extend(protocol.to_be_bytes());
            frame.extend(tag.to_be_bytes());
        }
        let transport = self.transport(from.1, to.1, payload);
        match (from.0, to.0) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame.extend([0x08, 0x00, 0x45, 0]);
                frame.extend((20 + transport.len() as u16).to_be_bytes());
                frame.extend([0, 0, 0, 0, 64, self.protocol(), 0, 0]);
                frame.extend(from.octets().into_iter().chain(to.octets()));
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend([0x86, 0xdd]);
                frame.extend((6 << 28 | label).to_be_bytes());
                frame.extend((transport.len() as u16).to_be_bytes());
                frame.extend([self.protocol(), 64]);
                frame.extend(from.octets().into_iter().chain(to.octets()));
            }
            _ => unreachable!("both ends have addresses of one kind"),
        }
        frame.extend(transport);
        frame
    }

    fn protocol(&self) -> u8 {
        if self.is_tcp { 6 } else { 17 }
    }

    fn transport(&self, from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
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
