//! The flow of a packet according to its headers (by etherparse), and the knowledge about the
//! packets of a flow.

use std::fmt;
use std::hash::Hasher;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use etherparse::{
    EtherType, IpFragOffset, IpNumber, Ipv6ExtensionSlice, Ipv6FragmentHeaderSlice, LaxIpv6Slice,
    LaxLinkExtSlice, LaxNetSlice, LaxSlicedPacket, LinkSlice,
};
use twox_hash::XxHash64;
use wirecap_filter::Sketch;
use wirecap_savefile::LinkType;

use crate::carried;

/// An EtherType below this is the length of an 802.3 frame.
const ETHER_TYPE_MIN: u16 = 0x600;
/// The value of [`Flow::ether_type`] for an 802.3 frame, which has a length in place of the
/// EtherType.
pub const LENGTH: u16 = 0;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const RARP: u16 = 0x8035;
/// Raw IP in the numbers of several BSDs, and of one version.
const RAW_OF_BSD: LinkType = LinkType(12);
const RAW_OF_OPENBSD: LinkType = LinkType(14);
const IPV4_ONLY: LinkType = LinkType(228);
const IPV6_ONLY: LinkType = LinkType(229);
/// The fragment header of IPv6, which has 8 bytes.
const FRAGMENT_HEADER: u8 = 44;
/// The offset of the flags in a TCP header.
const TCP_FLAGS: usize = 13;

/// A VLAN tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vlan {
    /// Its protocol identifier: 0x8100, 0x88a8.
    pub tpid: u16,
    /// The VLAN.
    pub id: u16,
}

/// Whether a packet is a fragment of an IPv4 packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub enum Fragment {
    /// It is not a fragment, or this is unknown.
    #[default]
    None,
    /// The fragment with the transport header.
    First,
    /// A fragment without the transport header.
    Later,
}

/// The common properties of the packets in a row of an index: one direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flow {
    /// Link type of the packets.
    pub link_type: LinkType,
    /// Their VLAN tags, the outer one first; tags after the second are ignored.
    pub vlans: [Option<Vlan>; 2],
    /// The EtherType after the tags; [`LENGTH`] for a frame of 802.3.
    pub ether_type: Option<u16>,
    /// The source address, of IPv4, IPv6 or ARP.
    pub source: Option<IpAddr>,
    /// The destination address.
    pub destination: Option<IpAddr>,
    /// The protocol of the IPv4 header; of IPv6 the one after its extension headers, or after the
    /// fragment header of a later fragment.
    pub protocol: Option<u8>,
    /// The next header field of the fixed IPv6 header: an extension header, or the protocol.
    pub next_header: Option<u8>,
    /// Whether they are fragments.
    pub fragment: Fragment,
    /// The offset of the transport header from the packet's first byte.
    pub transport_offset: Option<u16>,
    /// Source and destination port of TCP, UDP and SCTP, not of later fragments.
    pub ports: Option<(u16, u16)>,
}

/// The contents of a packet's headers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Headers {
    /// The flow of the packet.
    pub flow: Flow,
    /// The flags of TCP.
    pub tcp_flags: Option<u8>,
}

impl Headers {
    /// The headers of a packet with these captured bytes.
    pub fn of(link_type: LinkType, data: &[u8]) -> Self {
        let mut headers = Self { flow: Flow::unknown(link_type), tcp_flags: None };
        headers.read(slices(link_type, data).as_ref(), data);
        headers
    }

    /// Reads the headers. An IP header that etherparse does not accept is read from `data`.
    fn read(&mut self, packet: Option<&LaxSlicedPacket<'_>>, data: &[u8]) {
        let flow = &mut self.flow;

        match packet.and_then(|packet| packet.link.as_ref()) {
            Some(LinkSlice::Ethernet2(header)) => flow.ether_type = Some(header.ether_type().0),
            Some(LinkSlice::EtherPayload(payload)) => flow.ether_type = Some(payload.ether_type.0),
            _ => {}
        }

        for (index, extension) in
            packet.into_iter().flat_map(|packet| &packet.link_exts).enumerate()
        {
            match (extension, flow.vlans.get_mut(index), flow.ether_type) {
                (LaxLinkExtSlice::Vlan(tag), Some(vlan), Some(tpid)) => {
                    *vlan = Some(Vlan { tpid, id: tag.vlan_identifier().value() });
                    flow.ether_type = Some(tag.ether_type().0);
                }
                // Later headers have no columns.
                _ => return,
            }
        }

        flow.ether_type =
            flow.ether_type.map(|number| if number < ETHER_TYPE_MIN { LENGTH } else { number });
        let Some(network) = flow.network_offset() else { return };

        // etherparse uses the version in the header, filters use the EtherType.
        match (packet.and_then(|packet| packet.net.as_ref()), flow.ether_type) {
            (Some(LaxNetSlice::Ipv4(ip)), None | Some(IPV4)) => {
                flow.read_ipv4(ip.header().slice(), network);
            }
            (Some(LaxNetSlice::Ipv6(ip)), None | Some(IPV6)) => {
                flow.read_ipv6(ip.header().slice());
                let later_fragment = later_fragment(ip);
                let (protocol, place) = match &later_fragment {
                    Some(header) => (header.next_header(), header.slice().as_ptr_range().end),
                    None => (ip.payload().ip_number, ip.payload().payload.as_ptr()),
                };
                flow.protocol = Some(protocol.0);

                let offset = place.addr().checked_sub(data.as_ptr().addr());
                flow.transport_offset = offset.and_then(|offset| u16::try_from(offset).ok());

                if later_fragment.is_some() {
                    return;
                }
            }
            _ => {
                let header = data.get(network..).unwrap_or_default();
                match (flow.ether_type, header.first().map(|byte| byte >> 4)) {
                    (Some(IPV4), _) | (None, Some(4)) => flow.read_ipv4(header, network),
                    (Some(IPV6), _) | (None, Some(6)) => flow.read_ipv6(header),
                    (Some(ARP | RARP), _) => flow.read_arp(header),
                    _ => {}
                }
            }
        }

        let (Some(place), Some(protocol)) = (flow.transport_offset.map(usize::from), flow.protocol)
        else {
            return;
        };
        let has_ports =
            matches!(IpNumber(protocol), IpNumber::TCP | IpNumber::UDP | IpNumber::SCTP);
        if has_ports && flow.fragment != Fragment::Later {
            flow.ports = word(data, place).zip(word(data, place + 2));
        }
        if flow.ports.is_some() && IpNumber(protocol) == IpNumber::TCP {
            self.tcp_flags = data.get(place + TCP_FLAGS).copied();
        }
    }
}

impl Flow {
    /// Reads the fields that filters read, at the same offsets, even if other fields of the headers
    /// are wrong.
    fn read_ipv4(&mut self, header: &[u8], network: usize) {
        let Some(header) = header.first_chunk::<20>() else { return };
        let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *header;
        self.source = Some([s0, s1, s2, s3].into());
        self.destination = Some([d0, d1, d2, d3].into());
        self.protocol = Some(header[9]);
        self.fragment = match u16::from_be_bytes([header[6], header[7]]) & 0x3fff {
            0 => Fragment::None,
            0x2000 => Fragment::First,
            _ => Fragment::Later,
        };
        self.transport_offset = Some((network + usize::from(header[0] & 0xf) * 4) as u16);
    }

    fn read_ipv6(&mut self, header: &[u8]) {
        let Some(header) = header.first_chunk::<40>() else { return };
        let address =
            |place: usize| header[place..].first_chunk::<16>().map(|octets| IpAddr::from(*octets));
        (self.source, self.destination) = (address(8), address(24));
        self.next_header = Some(header[6]);
    }

    fn read_arp(&mut self, header: &[u8]) {
        let address = |place: usize| {
            header.get(place..)?.first_chunk::<4>().map(|octets| IpAddr::from(*octets))
        };
        (self.source, self.destination) = (address(14), address(24));
    }
}

/// The fragment header of a fragment that is not the first one: no headers follow, although
/// etherparse reads on.
fn later_fragment<'a>(ip: &LaxIpv6Slice<'a>) -> Option<Ipv6FragmentHeaderSlice<'a>> {
    ip.extensions().clone().into_iter().find_map(|header| match header {
        Ipv6ExtensionSlice::Fragment(header) if header.fragment_offset() != IpFragOffset::ZERO => {
            Some(header)
        }
        _ => None,
    })
}

fn word(data: &[u8], place: usize) -> Option<u16> {
    data.get(place..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn slices(link_type: LinkType, data: &[u8]) -> Option<LaxSlicedPacket<'_>> {
    let ether_type = |at: usize| word(data, at).map(EtherType);
    let network = network_offset(link_type, 0)?;
    match link_type {
        LinkType::ETHERNET => LaxSlicedPacket::from_ethernet(data).ok(),
        LinkType::LINUX_SLL => {
            Some(LaxSlicedPacket::from_ether_type(ether_type(14)?, data.get(network..)?))
        }
        LinkType::LINUX_SLL2 => {
            Some(LaxSlicedPacket::from_ether_type(ether_type(0)?, data.get(network..)?))
        }
        _ => LaxSlicedPacket::from_ip(data.get(network..)?).ok(),
    }
}

/// The offset of the network header after this many tags; `None` for link types that are not
/// dissected.
fn network_offset(link_type: LinkType, tags: usize) -> Option<usize> {
    let offset = match link_type {
        LinkType::ETHERNET => 14,
        LinkType::RAW | RAW_OF_BSD | RAW_OF_OPENBSD | IPV4_ONLY | IPV6_ONLY => 0,
        LinkType::NULL | LinkType::LOOP => 4,
        LinkType::ENC => 12,
        LinkType::LINUX_SLL => 16,
        LinkType::LINUX_SLL2 => 20,
        _ => return None,
    };
    Some(offset + 4 * tags)
}

/// The offsets of fields in the packets of a flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    pub(crate) source: usize,
    pub(crate) destination: usize,
    pub(crate) address_bytes: usize,
    /// The source port; the destination port follows it.
    pub(crate) ports: Option<usize>,
}

impl Flow {
    /// Whether packets of this link type are dissected.
    pub(crate) fn is_in(link_type: LinkType) -> bool {
        network_offset(link_type, 0).is_some() || carried::is_known(link_type)
    }

    /// The flow of a packet, also one whose headers have no columns in the index.
    pub(crate) fn of_packet(link_type: LinkType, data: &[u8]) -> Self {
        match carried::ip_packet(link_type, data) {
            Some(packet) => Self { link_type, ..Headers::of(LinkType::RAW, packet).flow },
            None => Headers::of(link_type, data).flow,
        }
    }

    /// The flow of packets of which only the link type is known.
    pub fn unknown(link_type: LinkType) -> Self {
        Self { link_type, ..Self::default() }
    }

    /// Whether only the link type is known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::unknown(self.link_type)
    }

    pub(crate) fn network_offset(&self) -> Option<usize> {
        network_offset(self.link_type, self.vlans.iter().flatten().count())
    }

    /// The offsets of addresses and ports, if the flow has them.
    pub(crate) fn places(&self) -> Option<Places> {
        let network = self.network_offset()?;
        let (source, destination, address_bytes) = match self.source.or(self.destination)? {
            _ if self.is_arp() => (network + 14, network + 24, 4),
            IpAddr::V4(_) => (network + 12, network + 16, 4),
            IpAddr::V6(_) => (network + 8, network + 24, 16),
        };
        let ports = self.transport_offset.map(usize::from);
        Some(Places { source, destination, address_bytes, ports })
    }

    fn is_arp(&self) -> bool {
        matches!(self.ether_type, Some(ARP | RARP))
    }

    /// The knowledge about all packets of the flow, of which the longest has this many captured
    /// bytes. `tcp_flags` are those set in at least one packet, and those set in all.
    pub(crate) fn sketch(
        &self,
        captured_max: u32,
        wire_len: RangeInclusive<u32>,
        tcp_flags: Option<(u8, u8)>,
    ) -> Sketch {
        let mut sketch = self.layout_sketch(captured_max, wire_len);
        let (Some(network), Some(places)) = (self.network_offset(), self.places()) else {
            return sketch;
        };
        for (address, place) in
            [(self.source, places.source), (self.destination, places.destination)]
        {
            match address {
                Some(IpAddr::V4(address)) => sketch.know(place, &address.octets()),
                Some(IpAddr::V6(address)) => sketch.know(place, &address.octets()),
                None => {}
            }
        }

        match (self.source, self.protocol) {
            (Some(IpAddr::V4(_)), Some(protocol)) => sketch.know(network + 9, &[protocol]),
            (Some(IpAddr::V6(_)), Some(protocol))
                if self.next_header == Some(FRAGMENT_HEADER)
                    && self.transport_offset.map(usize::from) == Some(network + 48) =>
            {
                sketch.know(network + 40, &[protocol]);
            }
            _ => {}
        }

        if let Some(next_header) = self.next_header {
            sketch.know(network + 6, &[next_header]);
        }

        if let (Some((source, destination)), Some(place)) = (self.ports, places.ports) {
            sketch.know(place, &source.to_be_bytes());
            sketch.know(place + 2, &destination.to_be_bytes());
            if let Some((any, all)) = tcp_flags {
                sketch.know_bits(place + TCP_FLAGS, all | !any, all);
            }
        }

        sketch
    }

    /// The knowledge without addresses, protocol and ports.
    pub(crate) fn layout_sketch(&self, captured_max: u32, wire_len: RangeInclusive<u32>) -> Sketch {
        let mut sketch = Sketch::new(captured_max, wire_len);
        let mut type_at = match self.link_type {
            LinkType::ETHERNET => 12,
            LinkType::LINUX_SLL => 14,
            LinkType::LINUX_SLL2 => 0,
            _ => usize::MAX,
        };

        // After the header of SLL2, tags are not next to the type.
        if self.ether_type.is_some()
            && (self.link_type == LinkType::ETHERNET || self.vlans == [None; 2])
        {
            for Vlan { tpid, id } in self.vlans.iter().flatten() {
                let [high, low] = id.to_be_bytes();
                sketch.know(type_at, &tpid.to_be_bytes());
                sketch.know_bits(type_at + 2, 0x0f, high);
                sketch.know(type_at + 3, &[low]);
                type_at += 4;
            }
            match self.ether_type {
                // All lengths are below 0x600, and all types that filters compare with have one of
                // these bits.
                Some(LENGTH) => sketch.know_bits(type_at, 0xf8, 0),
                Some(number) => sketch.know(type_at, &number.to_be_bytes()),
                None => {}
            }
        }

        let Some(network) = self.network_offset() else { return sketch };

        // After an EtherType, filters do not check the version, which may differ.
        let version_mask = if self.ether_type.is_some() { 0 } else { 0xf0 };

        match self.source {
            Some(IpAddr::V4(_)) if !self.is_arp() => {
                let words = usize::from(self.transport_offset.unwrap_or_default())
                    .saturating_sub(network)
                    / 4;
                sketch.know_bits(network, 0x0f | version_mask, 0x40 | words as u8);

                match self.fragment {
                    Fragment::None => {
                        sketch.know_bits(network + 6, 0x3f, 0);
                        sketch.know(network + 7, &[0]);
                    }
                    Fragment::First => {
                        sketch.know_bits(network + 6, 0x3f, 0x20);
                        sketch.know(network + 7, &[0]);
                    }
                    Fragment::Later => {}
                }
            }
            Some(IpAddr::V6(_)) => sketch.know_bits(network, version_mask, 0x60),
            _ => {}
        }

        sketch
    }

    /// The position of the fragment offset, if all packets are later fragments.
    pub(crate) fn later_fragment(&self) -> Option<usize> {
        Some(self.network_offset()? + 6).filter(|_| self.fragment == Fragment::Later)
    }

    /// The flow with zeros in all fields that differ between flows of the same layout.
    pub(crate) fn layout(&self) -> Self {
        let unspecified = |address: IpAddr| match address {
            IpAddr::V4(_) => IpAddr::from([0; 4]),
            IpAddr::V6(_) => IpAddr::from([0; 16]),
        };
        Self {
            source: self.source.map(unspecified),
            destination: self.destination.map(unspecified),
            protocol: None,
            next_header: None,
            ports: self.ports.map(|_| (0, 0)),
            ..*self
        }
    }

    /// The number of the connection, the same in both directions: the column `flow`.
    ///
    /// xxHash64 with seed 0 of: the protocol (0xff if there is none), the lower of the two ends,
    /// the other one. An end is its address in network order, then its port in network order if it
    /// has one; ends compare as these bytes. Without addresses it is that of the EtherType in
    /// network order, or of nothing.
    pub fn number(&self) -> u64 {
        let mut hasher = XxHash64::with_seed(0);

        match (self.source, self.destination) {
            (None, None) => {
                if let Some(number) = self.ether_type {
                    hasher.write(&number.to_be_bytes());
                }
            }
            (source, destination) => {
                let ports = self.ports.map_or((None, None), |(source, destination)| {
                    (Some(source), Some(destination))
                });
                let a = end(source, ports.0);
                let b = end(destination, ports.1);

                hasher.write(&[self.protocol.unwrap_or(0xff)]);
                let (low, high) = if a <= b { (a, b) } else { (b, a) };
                hasher.write(&low);
                hasher.write(&high);
            }
        }
        hasher.finish()
    }
}

fn end(address: Option<IpAddr>, port: Option<u16>) -> Vec<u8> {
    let mut bytes = match address {
        Some(IpAddr::V4(address)) => address.octets().to_vec(),
        Some(IpAddr::V6(address)) => address.octets().to_vec(),
        None => Vec::new(),
    };
    bytes.extend(port.into_iter().flat_map(u16::to_be_bytes));
    bytes
}

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Its address.
    pub address: IpAddr,
    /// Its port, or any.
    pub port: Option<u16>,
}

/// The two ends of a connection; packets match in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Between(pub End, pub End);

impl Between {
    /// The flows between these ends, in both directions.
    pub fn flows(&self) -> [Ends; 2] {
        [(self.0, self.1), (self.1, self.0)].map(|(source, destination)| Ends {
            source: Some(source.address),
            destination: Some(destination.address),
            source_port: source.port,
            destination_port: destination.port,
        })
    }

    /// Parses `A:B`. Each end is an address as tcpdump prints it, with or without a port after a
    /// dot: `10.0.0.1.80`. An IPv6 address is in brackets: `[fe80::1].80`.
    ///
    /// # Errors
    ///
    /// A message about the invalid text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "invalid flow {text:?}: expected two addresses, A:B, with or without ports: 10.0.0.1.80:10.0.0.2, [fe80::1]:[fe80::2].53"
            )
        };
        let split = match text.starts_with('[') {
            true => {
                text.find(']').and_then(|close| text[close..].find(':').map(|colon| close + colon))
            }
            false => text.find(':'),
        };
        let (a, b) = text.split_at(split.ok_or_else(expected)?);

        let end = |text: &str| -> Option<End> {
            let (address, port) = match text.strip_prefix('[') {
                Some(rest) => rest.split_once(']')?,
                None => match text.match_indices('.').nth(3) {
                    Some((dot, _)) => text.split_at(dot),
                    None => (text, ""),
                },
            };
            let port = match port {
                "" => None,
                port => Some(port.strip_prefix('.')?.parse().ok()?),
            };
            Some(End { address: address.parse().ok()?, port })
        };
        match (end(a), end(&b[1..])) {
            (Some(a), Some(b)) => Ok(Self(a, b)),
            _ => Err(expected()),
        }
    }
}

/// Addresses and ports of flows, each `None` if it may be any or none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ends {
    /// The source address.
    pub source: Option<IpAddr>,
    /// The destination address.
    pub destination: Option<IpAddr>,
    /// The source port.
    pub source_port: Option<u16>,
    /// The destination port.
    pub destination_port: Option<u16>,
}

impl Ends {
    /// Whether a flow has them.
    pub fn has(&self, flow: &Flow) -> bool {
        fn is<T: PartialEq>(wanted: Option<T>, of_flow: Option<T>) -> bool {
            wanted.is_none() || wanted == of_flow
        }
        let (source_port, destination_port) = flow.ports.unzip();
        is(self.source, flow.source)
            && is(self.destination, flow.destination)
            && is(self.source_port, source_port)
            && is(self.destination_port, destination_port)
    }

    /// Those of flows that have both; `None` if there are no such flows.
    pub fn and(&self, other: &Self) -> Option<Self> {
        fn both<T: PartialEq>(one: Option<T>, other: Option<T>) -> Option<Option<T>> {
            match (one, other) {
                (Some(one), Some(other)) => (one == other).then_some(Some(one)),
                (one, other) => Some(one.or(other)),
            }
        }
        Some(Self {
            source: both(self.source, other.source)?,
            destination: both(self.destination, other.destination)?,
            source_port: both(self.source_port, other.source_port)?,
            destination_port: both(self.destination_port, other.destination_port)?,
        })
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            IpAddr::V4(address) => address.fmt(f)?,
            IpAddr::V6(address) => write!(f, "[{address}]")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ".{port}"))
    }
}

impl fmt::Display for Between {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use wirecap_filter::Filter;

    use super::*;

    #[test]
    fn ends_are_written_as_tcpdump_prints_them() {
        for text in [
            "10.0.0.1:10.0.0.2",
            "10.0.0.1.80:10.0.0.2",
            "[fe80::1]:[fe80::2].53",
            "10.0.0.1.1:[::1].2",
        ] {
            assert_eq!(Between::parse(text).unwrap().to_string(), text);
        }
        for bad in [
            "",
            ":",
            "10.0.0.1",
            "10.0.0.1:",
            "10.0.0.1:10.0.0",
            "10.0.0.1.x:10.0.0.2",
            "fe80::1:fe80::2",
            "[::1]",
        ] {
            assert!(Between::parse(bad).is_err(), "{bad} was taken");
        }
    }

    /// An Ethernet frame with these parts after its addresses.
    fn frame(ether_type: u16, parts: &[&[u8]]) -> Vec<u8> {
        [&[0; 12], &ether_type.to_be_bytes()[..], &parts.concat()].concat()
    }

    fn ipv4(first: u8, protocol: u8) -> Vec<u8> {
        vec![first, 0, 0, 60, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]
    }

    fn ipv6(next_header: u8) -> Vec<u8> {
        let mut header = vec![0x60, 0, 0, 0, 0, 40, next_header, 64];
        header.extend([[0xfd; 16], [0xfe; 16]].concat());
        header
    }

    /// Each packet, an expression that matches it, and some that do not although the packet's
    /// headers are unusual or wrong.
    #[test]
    fn unusual_and_wrong_headers_are_known_as_far_as_filters_look() {
        let ports = [0, 53, 0x10, 0];
        let payload = [0; 60];
        let no_tcp_options = [0, 80, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 2, 0, 0, 0, 0, 0, 0];
        let fragment = [17, 0, 0, 0, 0, 0, 0, 0];
        let later_fragment = [17, 0, 1, 0, 0, 0, 0, 0];
        let hop_by_hop = [58, 0, 5, 2, 0, 0, 0, 0];

        let rejected = [
            "host 10.0.0.3",
            "src host 10.0.0.2",
            "host fd00::1",
            "port 54",
            "ip proto 89",
            "vlan",
        ];
        let cases: [(Vec<u8>, &str, &[&str]); 12] = [
            // IPv6 in its version; a header shorter than possible; one that is cut; a TCP header
            // shorter than possible.
            (
                frame(0x0800, &[&ipv4(0x65, 17), &ports, &payload]),
                "host 10.0.0.1 and port 53",
                &["tcp"],
            ),
            (
                frame(0x0800, &[&ipv4(0x43, 17), &ports, &payload]),
                "host 10.0.0.1 and udp",
                &["tcp"],
            ),
            (
                frame(0x0800, &[&ipv4(0x45, 6), &[0]]),
                "tcp and dst host 10.0.0.2",
                &["udp", "port 80"],
            ),
            (
                frame(0x0800, &[&ipv4(0x45, 6), &no_tcp_options]),
                "tcp[13] = 2 and port 80",
                &["tcp[13] = 16"],
            ),
            (
                frame(0x0800, &[&ipv4(0x45, 132), &ports, &payload]),
                "sctp port 53",
                &["udp port 53"],
            ),
            (
                frame(0x0800, &[&ipv4(0x45, 51), &ports, &payload]),
                "ip proto 51",
                &["port 53", "tcp"],
            ),
            (frame(0x86dd, &[&ipv6(17), &ports, &payload]), "udp port 53", &["tcp", "icmp6"]),
            (frame(0x86dd, &[&ipv6(132), &ports, &payload]), "sctp port 53", &["udp", "icmp6"]),
            (
                frame(0x86dd, &[&ipv6(0), &hop_by_hop, &payload]),
                "ip6 proto 0",
                &["icmp6", "port 53", "tcp"],
            ),
            (
                frame(0x86dd, &[&ipv6(44), &fragment, &ports, &payload]),
                "udp",
                &["tcp", "icmp6", "port 53"],
            ),
            (
                frame(0x86dd, &[&ipv6(44), &later_fragment, &payload]),
                "udp",
                &["tcp", "icmp6", "port 53"],
            ),
            (
                frame(0x8035, &[&[0; 14], &[10, 0, 0, 1], &[0; 6], &[10, 0, 0, 2]]),
                "rarp host 10.0.0.1",
                &["ip", "arp"],
            ),
        ];
        for (packet, matching, others) in &cases {
            let flow = Headers::of(LinkType::ETHERNET, packet).flow;
            let len = packet.len() as u32;
            let flags =
                Headers::of(LinkType::ETHERNET, packet).tcp_flags.map(|flags| (flags, flags));
            let sketch = flow.sketch(len, len..=len, flags);
            assert!(sketch.agrees_with(packet), "{matching}: {flow:?}");

            let compile =
                |expression: &str| Filter::compile(expression, LinkType::ETHERNET, 0).unwrap();
            assert!(compile(matching).can_match(&sketch), "{matching}: {flow:?}");

            for other in rejected.iter().chain(*others) {
                assert!(
                    !compile(other).can_match(&sketch),
                    "{other} may match where {matching} does: {flow:?}"
                );
            }
        }
    }

    #[test]
    fn the_first_fragment_of_an_ipv6_packet_has_ports_and_later_ones_have_none() {
        let fragment = |next_header: u8, offset: u16, more: u16| {
            let [high, low] = (offset << 3 | more).to_be_bytes();
            [next_header, 0, high, low, 0, 0, 0, 1]
        };

        // The data of a later fragment may look like an extension header.
        let data = [17, 0, 0, 53, 0x10, 0, 0, 0, 0, 60, 0, 61, 0, 0, 0, 0];
        let headers = |next_header: u8, offset: u16, more: u16| {
            let packet = frame(0x86dd, &[&ipv6(44), &fragment(next_header, offset, more), &data]);
            let Flow { protocol, ports, transport_offset, .. } =
                Headers::of(LinkType::ETHERNET, &packet).flow;
            (protocol, ports, transport_offset)
        };
        assert_eq!(headers(17, 0, 1), (Some(17), Some((0x1100, 53)), Some(62)));
        assert_eq!(headers(17, 0, 0), headers(17, 0, 1), "a packet in one fragment");
        assert_eq!(headers(60, 0, 1), (Some(17), Some((60, 61)), Some(70)), "destination options");

        for (offset, more) in [(1, 0), (1, 1), (181, 0)] {
            assert_eq!(headers(17, offset, more), (Some(17), None, Some(62)));
            assert_eq!(headers(60, offset, more), (Some(60), None, Some(62)));
        }
    }

    #[test]
    fn a_connection_has_one_number_in_both_directions() {
        let flow = Flow {
            source: Some(IpAddr::from([10, 0, 0, 1])),
            destination: Some(IpAddr::from([10, 0, 0, 2])),
            protocol: Some(6),
            ports: Some((80, 4000)),
            ..Flow::default()
        };
        let back = Flow {
            source: flow.destination,
            destination: flow.source,
            ports: Some((4000, 80)),
            ..flow
        };
        assert_eq!(flow.number(), back.number());
        assert_ne!(flow.number(), Flow { protocol: Some(17), ..flow }.number());
    }
}
