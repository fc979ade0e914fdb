//! Counts of packets by size, protocol, address, port and second.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::IpAddr;

use wirecap::savefile::{LinkType, Timestamp};
use wirecap_index::{Headers, LENGTH};

/// Upper bounds of the classes of sizes, in bytes on the wire.
pub(super) const SIZES: [u32; 7] = [63, 127, 255, 511, 1023, 1518, u32::MAX];
/// Addresses that are counted: more would take more than some 100 MB. A SYN flood has more.
const ADDRESSES_MAX: usize = 1 << 20;
const NANOS: u64 = 1_000_000_000;

/// Packets, and their bytes on the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

impl Count {
    fn add(&mut self, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
    }
}

/// What a packet consists of, as far as its headers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Protocol {
    /// The protocol of an IPv4 header.
    Ipv4(Option<u8>),
    /// The protocol after an IPv6 header and its extensions.
    Ipv6(Option<u8>),
    /// Another EtherType.
    EtherType(u16),
    /// A frame of 802.3, with its length in place of an EtherType.
    Length,
    /// The headers of this link type are not read, or have no room for an EtherType.
    Link(u16),
}

/// TCP, UDP or SCTP, and the lower one of a packet's two ports, which is mostly the service's.
pub(super) type Port = (u8, u16);

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) all: Count,
    /// Packets of which not all bytes were captured.
    pub(super) cut: u64,
    /// Packets without a time.
    pub(super) untimed: u64,
    /// The first and the last time, in nanoseconds since the epoch.
    pub(super) times: Option<(u64, u64)>,
    /// By the classes of [`SIZES`].
    pub(super) sizes: [Count; SIZES.len()],
    pub(super) protocols: BTreeMap<Protocol, Count>,
    pub(super) addresses: HashMap<IpAddr, Count>,
    /// Packets of addresses that are not among those counted, because there are too many.
    pub(super) other_addresses: Count,
    pub(super) ports: HashMap<Port, Count>,
    /// By the second since the epoch; only seconds with packets.
    pub(super) seconds: BTreeMap<u64, Count>,
}

impl Tally {
    pub(super) fn packets(&self) -> u64 {
        self.all.packets
    }

    pub(super) fn add(
        &mut self,
        link_type: LinkType,
        timestamp: Option<Timestamp>,
        wire_len: u32,
        data: &[u8],
    ) {
        self.all.add(wire_len);
        self.cut += u64::from((data.len() as u64) < u64::from(wire_len));

        let class =
            SIZES.iter().position(|max| wire_len <= *max).expect("the last class has no bound");
        self.sizes[class].add(wire_len);

        match timestamp.map(Timestamp::unix_nanos) {
            Some(time) => {
                let (first, last) = self.times.unwrap_or((time, time));
                self.times = Some((first.min(time), last.max(time)));
                self.seconds.entry(time / NANOS).or_default().add(wire_len);
            }
            None => self.untimed += 1,
        }

        let flow = Headers::of(link_type, data).flow;
        let protocol = match (flow.ether_type, flow.source) {
            (None | Some(0x0800), Some(IpAddr::V4(_))) => Protocol::Ipv4(flow.protocol),
            (None | Some(0x86dd), Some(IpAddr::V6(_))) => Protocol::Ipv6(flow.protocol),
            (Some(LENGTH), _) => Protocol::Length,
            (Some(ether_type), _) => Protocol::EtherType(ether_type),
            (None, _) => Protocol::Link(link_type.0),
        };
        self.protocols.entry(protocol).or_default().add(wire_len);

        if let Some(port) =
            flow.protocol.zip(flow.ports.map(|(source, destination)| source.min(destination)))
        {
            self.ports.entry(port).or_default().add(wire_len);
        }

        // A packet from an address to itself counts once for it.
        let to = flow.destination.filter(|to| Some(*to) != flow.source);
        for address in flow.source.into_iter().chain(to) {
            let has_room = self.addresses.len() < ADDRESSES_MAX;
            let count = match self.addresses.get_mut(&address) {
                Some(count) => count,
                None if has_room => self.addresses.entry(address).or_default(),
                None => &mut self.other_addresses,
            };
            count.add(wire_len);
        }
    }

    /// The seconds from the first to the last packet, if they are not the same moment.
    pub(super) fn duration(&self) -> Option<f64> {
        let (first, last) = self.times?;
        (first < last).then(|| (last - first) as f64 / NANOS as f64)
    }

    /// Packets with a time.
    pub(super) fn timed(&self) -> Count {
        self.seconds.values().fold(Count::default(), |sum, count| Count {
            packets: sum.packets + count.packets,
            bytes: sum.bytes + count.bytes,
        })
    }

    /// The highest counts of packets and of bytes in one second of the clock.
    pub(super) fn highest(&self) -> Count {
        self.seconds.values().fold(Count::default(), |highest, count| Count {
            packets: highest.packets.max(count.packets),
            bytes: highest.bytes.max(count.bytes),
        })
    }

    /// The highest count of packets in one second, in each of at most `columns` parts of equal
    /// length, and the seconds of a part.
    pub(super) fn columns(&self, columns: u64) -> (Vec<u64>, u64) {
        let (Some(first), Some(last)) =
            (self.seconds.keys().next(), self.seconds.keys().next_back())
        else {
            return (Vec::new(), 0);
        };
        let seconds = last - first + 1;
        let each = seconds.div_ceil(columns);
        let mut highest = vec![0; seconds.div_ceil(each) as usize];

        for (second, count) in &self.seconds {
            let column = &mut highest[((second - first) / each) as usize];
            *column = count.packets.max(*column);
        }

        (highest, each)
    }
}

/// The `most` entries with the most bytes, in order.
pub(super) fn top<K: Copy + Ord + Hash>(
    counts: &HashMap<K, Count>,
    most: usize,
) -> Vec<(K, Count)> {
    let mut sorted: Vec<(K, Count)> = counts.iter().map(|(key, count)| (*key, *count)).collect();
    sorted.sort_by(|(one, a), (other, b)| b.bytes.cmp(&a.bytes).then(one.cmp(other)));
    sorted.truncate(most);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UDP packet from 10.0.0.`from`.
    fn packet(from: u8) -> [u8; 60] {
        let mut data = [0; 60];
        data[12] = 8;
        data[14] = 0x45;
        data[17] = 46;
        data[23] = 17;
        data[26..34].copy_from_slice(&[10, 0, 0, from, 10, 0, 0, 2]);
        data[34..38].copy_from_slice(&[4, 1, 0, 53]);
        data
    }

    fn at(seconds: u64) -> Option<Timestamp> {
        Some(Timestamp::from_unix_nanos(seconds * NANOS))
    }

    #[test]
    fn a_packet_counts_for_its_size_protocol_addresses_port_and_second() {
        let mut tally = Tally::default();
        tally.add(LinkType::ETHERNET, at(100), 60, &packet(1));
        tally.add(LinkType::ETHERNET, at(103), 1514, &packet(2));
        tally.add(LinkType::ETHERNET, None, 64, &[0; 14]);
        assert_eq!(tally.all, Count { packets: 3, bytes: 1638 });
        assert_eq!((tally.cut, tally.untimed), (2, 1));
        assert_eq!(tally.sizes.map(|count| count.packets), [1, 1, 0, 0, 0, 1, 0]);

        let udp = tally.protocols[&Protocol::Ipv4(Some(17))];
        assert_eq!(udp, Count { packets: 2, bytes: 1574 });
        assert_eq!(tally.protocols[&Protocol::Length].packets, 1);

        // The second packet is from 10.0.0.2 to itself.
        let top = top(&tally.addresses, 9);
        assert_eq!(top[0], ([10, 0, 0, 2].into(), Count { packets: 2, bytes: 1574 }));
        assert_eq!(top[1], ([10, 0, 0, 1].into(), Count { packets: 1, bytes: 60 }));
        assert_eq!(tally.ports[&(17, 53)].packets, 2);
        assert_eq!(tally.duration(), Some(3.0));
        assert_eq!(tally.highest(), Count { packets: 1, bytes: 1514 });
        assert_eq!(tally.columns(2), (vec![1, 1], 2));
    }

    #[test]
    fn packets_of_too_many_addresses_are_counted_together() {
        let mut tally = Tally::default();
        for address in 0..ADDRESSES_MAX as u32 + 10 {
            let mut data = packet(1);
            data[26..30].copy_from_slice(&(0x0b00_0000 + address).to_be_bytes());
            tally.add(LinkType::ETHERNET, at(1), 60, &data);
        }
        assert_eq!(tally.addresses.len(), ADDRESSES_MAX);
        // The destination is one of those counted.
        assert_eq!(tally.other_addresses, Count { packets: 11, bytes: 660 });
        let counted: u64 = tally.addresses.values().map(|count| count.packets).sum();
        assert_eq!(counted + tally.other_addresses.packets, 2 * tally.packets());
    }

    #[test]
    fn one_moment_has_no_rate() {
        let mut tally = Tally::default();
        assert_eq!((tally.duration(), tally.columns(8)), (None, (Vec::new(), 0)));
        tally.add(LinkType::ETHERNET, at(1), 60, &packet(1));
        assert_eq!(tally.duration(), None);
        assert_eq!(tally.columns(8), (vec![1], 1));
    }
}
