//! The positions of addresses and ports in a frame.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::traffic::{FiveTuple, Rss};

const ETHERNET_BYTES: usize = 14;
const VLAN_TYPES: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const VLAN_TAGS_MAX: usize = 2;
const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;
/// The maximum number in a datagram that follows the recommendation of RFC 8200, section 4.1.
const EXTENSION_HEADERS_MAX: usize = 6;

/// IP's numbers of protocols and of IPv6's extension headers.
pub(super) mod protocol {
    pub(in crate::recording) const TCP: u8 = 6;
    pub(in crate::recording) const UDP: u8 = 17;
    pub(in crate::recording) const DCCP: u8 = 33;
    pub(in crate::recording) const ICMPV6: u8 = 58;
    pub(in crate::recording) const SCTP: u8 = 132;
    pub(in crate::recording) const UDP_LITE: u8 = 136;
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const AUTHENTICATION: u8 = 51;
    pub(super) const DESTINATION: u8 = 60;
}

/// The headers of an IP packet in an Ethernet frame. Offsets are from the frame's beginning, in
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Headers {
    pub(super) version: Version,
    /// Of the IP header.
    pub(super) network: usize,
    pub(super) protocol: u8,
    /// The protocol's header.
    pub(super) transport: usize,
    pub(super) fragment: Fragment,
    /// A routing header contains the final destination: checksums do not cover the address in the
    /// IP header.
    pub(super) is_routed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Version {
    V4,
    V6,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fragment {
    /// The datagram is whole.
    No,
    First,
    /// A later fragment, which does not begin with a header.
    Later,
}

impl Headers {
    /// The headers of this frame, if it is IP, as far as they are complete.
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        let mut network = ETHERNET_BYTES;
        let mut ether_type = word(frame, network - 2)?;

        for _ in 0..VLAN_TAGS_MAX {
            if VLAN_TYPES.contains(&ether_type) {
                network += 4;
                ether_type = word(frame, network - 2)?;
            }
        }

        match ether_type {
            TYPE_IPV4 => Self::of_ipv4(frame, network),
            TYPE_IPV6 => Self::of_ipv6(frame, network),
            _ => None,
        }
    }

    fn of_ipv4(frame: &[u8], network: usize) -> Option<Self> {
        let header = frame.get(network..network + 20)?;
        let header_bytes = usize::from(header[0] & 0xf) * 4;
        if header[0] >> 4 != 4 || header_bytes < 20 {
            return None;
        }
        let place = word(header, 6)?;
        let fragment = fragment(place & 0x1fff, place & 0x2000 != 0);
        let transport = network + header_bytes;
        let version = Version::V4;
        let protocol = header[9];
        Some(Self { version, network, protocol, transport, fragment, is_routed: false })
    }

    fn of_ipv6(frame: &[u8], network: usize) -> Option<Self> {
        let header = frame.get(network..network + 40)?;
        if header[0] >> 4 != 6 {
            return None;
        }

        let mut headers = Self {
            version: Version::V6,
            network,
            protocol: header[6],
            transport: network + 40,
            fragment: Fragment::No,
            is_routed: false,
        };

        for _ in 0..EXTENSION_HEADERS_MAX {
            if headers.fragment == Fragment::Later || !headers.pass_extension(frame) {
                break;
            }
        }

        Some(headers)
    }

    /// Skips an extension header, if there is one with a complete beginning.
    fn pass_extension(&mut self, frame: &[u8]) -> bool {
        let Some(header) = frame.get(self.transport..self.transport + 8) else { return false };
        let length = usize::from(header[1]);

        let bytes = match self.protocol {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION => (length + 1) * 8,
            protocol::AUTHENTICATION => (length + 2) * 4,
            protocol::FRAGMENT => 8,
            _ => return false,
        };

        match self.protocol {
            protocol::ROUTING => self.is_routed |= header[3] > 0,
            protocol::FRAGMENT => {
                let place = u16::from_be_bytes([header[2], header[3]]);
                self.fragment = fragment(place >> 3, place & 1 != 0);
            }
            _ => {}
        }

        self.protocol = header[0];
        self.transport += bytes;

        true
    }

    /// The range of source and destination address in the frame.
    pub(super) fn addresses(&self) -> (usize, usize) {
        match self.version {
            Version::V4 => (self.network + 12, self.network + 20),
            Version::V6 => (self.network + 8, self.network + 40),
        }
    }

    fn source_and_destination(&self, frame: &[u8]) -> (IpAddr, IpAddr) {
        let (start, end) = self.addresses();
        let (source, destination) = frame[start..end].split_at((end - start) / 2);
        let address = |bytes: &[u8]| match self.version {
            Version::V4 => {
                IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).expect("four bytes")))
            }
            Version::V6 => {
                IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).expect("16 bytes")))
            }
        };
        (address(source), address(destination))
    }

    fn ports(&self, frame: &[u8]) -> Option<(u16, u16)> {
        let has_ports = matches!(self.protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
        if self.fragment != Fragment::No || !has_ports {
            return None;
        }
        Some((word(frame, self.transport)?, word(frame, self.transport + 2)?))
    }
}

fn fragment(offset: u16, more: bool) -> Fragment {
    match (offset, more) {
        (0, false) => Fragment::No,
        (0, true) => Fragment::First,
        _ => Fragment::Later,
    }
}

/// The 16 bits at an offset, if they exist.
pub(super) fn word(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// The queue that a NIC selects for a frame: by addresses and ports, by addresses alone if there
/// are no ports, by hash 0 if it is not IP.
pub fn queue_of(rss: &Rss, frame: &[u8]) -> u32 {
    let Some(headers) = Headers::of(frame) else { return rss.queue_of_hash(0) };
    let (source, destination) = headers.source_and_destination(frame);
    match headers.ports(frame) {
        Some((source_port, destination_port)) => rss.queue_of(&FiveTuple {
            protocol: headers.protocol,
            source,
            destination,
            source_port,
            destination_port,
        }),
        None => rss.queue_of_hash(rss.hash_of_addresses(source, destination)),
    }
}
