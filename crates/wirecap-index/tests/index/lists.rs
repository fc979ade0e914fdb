//! An index contains exactly the packets of its segment: compared with the flows known to the
//! traffic generator.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::slice::from_ref;

use proptest::prelude::*;
use wirecap_filter::{CompiledFilter, Context, Filter};
use wirecap_index::{
    Between, Built, Ends, Headers, Query, SLICE_NANOS, build, index_path, load, write,
};
use wirecap_savefile::LinkType;

use crate::files::{Packet, find, ip_packet, packets_of, query, write_segment};

const NAMES: [&str; 5] = ["s.pcapng", "s.pcap", "s.pcapng.zst", "s.pcapng.frames.zst", "s.pcap.gz"];

/// Sums of a flow in a time slice: packets, bytes, first and last time, TCP flags.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    packets: u64,
    bytes: u64,
    times: Vec<u64>,
    any: u8,
    not_all: u8,
}

/// `--from` is the first nanosecond that is found, `--to` the first one that is not, also in the
/// index.
#[test]
fn a_period_has_its_first_nanosecond_and_not_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let base = 1_700_000_000_000_000_000;
    let packets: Vec<_> =
        (0..10).map(|n| ip_packet(base + n, (1, 1000), (2, 53), None, 8)).collect();
    for name in NAMES {
        let path = folder.path().join(name);
        write_segment(&path, &packets, LinkType::ETHERNET, 20_000);
        let has_nanos = !name.contains("pcap.gz") || packets_of(&path)[1].nanos == base + 1;
        assert!(has_nanos, "{name} has nanoseconds");
        for (from, to) in [(0, 10), (3, 7), (4, 4), (9, 10), (0, 0)] {
            let period = Query::new(None, None, Some(base + from), Some(base + to));
            let found: Vec<u64> =
                find(from_ref(&path), period).0.iter().map(|packet| packet.nanos - base).collect();
            let expected: Vec<u64> = (from..to).collect();
            assert_eq!(found, expected, "{name}: packets from {from} and before {to}");
        }
    }
}

#[test]
fn packets_are_found_by_a_filter_for_their_link_type() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.pcapng");
    let of_host = |host| {
        let packet = ip_packet(1_700_000_000_000_000_000, (host, 1000), (9, 53), None, 8);
        // Without the Ethernet header.
        Packet { wire_len: packet.wire_len - 14, data: packet.data[14..].to_vec(), ..packet }
    };
    let packets = [of_host(1), of_host(2)];
    write_segment(&path, &packets, LinkType::RAW, 20_000);
    let found = find(from_ref(&path), query("udp and src host 10.0.0.2")).0;
    assert_eq!(found, [packets[1].clone()], "packets of raw IP");
}

/// An index has a limited number of rows. Later flows share rows of unknown flow, which may contain
/// any flow.
#[test]
fn flows_beyond_the_rows_of_an_index_are_found() {
    const FLOWS: u64 = (1 << 18) + 300;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.pcapng");
    let packet = |flow: u64| {
        let nanos = 1_700_000_000_000_000_000 + flow;
        ip_packet(nanos, ((flow >> 4) as u16, 2000), (7, 1000 + (flow & 15) as u16), None, 0)
    };
    let packets: Vec<_> = (0..FLOWS).map(packet).collect();
    write_segment(&path, &packets, LinkType::ETHERNET, 20_000);
    let built = build(&path, &mut |_| true).unwrap();
    assert!(built.index.rows().len() < packets.len(), "each flow has a row");
    write(&path, &built.index).unwrap();
    for number in [0, FLOWS as usize - 1] {
        let packet = &packets[number];
        let flow = Headers::of(LinkType::ETHERNET, &packet.data).flow;
        let source = flow.source.unwrap();
        let destination = flow.destination.unwrap();
        let (from, to) = flow.ports.unwrap();
        let between = Between::parse(&format!("{source}.{from}:{destination}.{to}")).unwrap();
        let found = find(from_ref(&path), Query::new(None, Some(between), None, None)).0;
        assert!(found.contains(packet), "flow {number}, {between}, is not found");
    }
}

/// More flows than a page of the index has rows; each ninth is to one of a few hosts.
#[test]
fn the_rows_of_many_flows_are_selected_by_addresses_and_ports() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.pcapng.zst");
    let packet = |number: u64| {
        let flow = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51;
        let destination =
            if flow.is_multiple_of(9) { (flow % 5) as u16 } else { 100 + (flow % 2000) as u16 };
        let flags = flow.is_multiple_of(3).then_some(0x10);
        let nanos = 1_700_000_000_000_000_000 + number * 10_000_000;
        ip_packet(
            nanos,
            (3000 + (flow / 4) as u16, 5000 + flow as u16),
            (destination, 53),
            flags,
            20,
        )
    };
    let packets: Vec<_> = (0..30_000).map(packet).collect();
    write_segment(&path, &packets, LinkType::ETHERNET, 20_000);
    let built = build(&path, &mut |_| true).unwrap();
    assert!(built.index.rows().len() > 8000, "{} rows", built.index.rows().len());
    write(&path, &built.index).unwrap();
    assert_eq!(load(&path).unwrap(), built.index);
    let from = 1_700_000_000_000_000_000 + 20_000 * 10_000_000;
    for expression in [
        "host 10.0.0.4",
        "src host 10.0.11.200",
        "port 5100 or host 10.0.12.1",
        "tcp and dst host 10.0.0.1",
        "udp src port 9000",
        "net 10.0.12.0/24 and tcp",
        "host 10.0.255.255",
        "ether host 2:0:0:0:0:1",
    ] {
        let filter = Filter::compile(expression, LinkType::ETHERNET, 0).unwrap();
        let program = CompiledFilter::new(&filter).unwrap();
        let is_match = |packet: &&Packet| {
            program.matches(&packet.data, packet.wire_len, &Context::default()) > 0
        };
        let expected: Vec<&Packet> = packets.iter().filter(is_match).collect();
        let found = find(from_ref(&path), query(expression)).0;
        assert!(found.iter().eq(expected.iter().copied()), "{expression}: {}", found.len());
        let late = Query::new(Some(expression.into()), None, Some(from), None);
        let found = find(from_ref(&path), late).0;
        assert!(
            found.iter().eq(expected.into_iter().filter(|packet| packet.nanos >= from)),
            "{expression}"
        );
    }
    for packet in packets.iter().step_by(3000) {
        let flow = Headers::of(LinkType::ETHERNET, &packet.data).flow;
        let source = flow.source.unwrap();
        let destination = flow.destination.unwrap();
        let between = Between::parse(&format!("{destination}:{source}")).unwrap();
        let found = find(from_ref(&path), Query::new(None, Some(between), None, None)).0;
        let is_between = |packet: &&Packet| {
            let flow = Headers::of(LinkType::ETHERNET, &packet.data).flow;
            let ends = [flow.source, flow.destination];
            ends == [Some(source), Some(destination)] || ends == [Some(destination), Some(source)]
        };
        assert!(found.iter().eq(packets.iter().filter(is_between)), "{between}");
        // The same flows in one direction, by two conditions, each with an alternative that no flow
        // has.
        let ports = flow.ports.unwrap();
        let from = Ends { source: Some(source), ..Ends::default() };
        let to = Ends {
            destination: Some(destination),
            destination_port: Some(ports.1),
            ..Ends::default()
        };
        let other = Ends { source: Some(Ipv4Addr::BROADCAST.into()), ..Ends::default() };
        let both =
            Query::new(None, None, None, None).with_ends([vec![from, other], vec![other, to]]);
        let found = find(from_ref(&path), both).0;
        let is_one = |packet: &&Packet| {
            let flow = Headers::of(LinkType::ETHERNET, &packet.data).flow;
            (flow.source, flow.destination) == (Some(source), Some(destination))
                && flow.ports.is_some_and(|(_, port)| port == ports.1)
        };
        assert!(found.iter().eq(packets.iter().filter(is_one)), "{from:?} {to:?}");
        assert!(!found.is_empty(), "{from:?} {to:?}");
        let neither = Query::new(None, None, None, None).with_ends([vec![from], vec![other]]);
        assert!(find(from_ref(&path), neither).0.is_empty(), "{from:?} {other:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn rows_are_the_flows_of_the_packets(
        name in 0..NAMES.len(),
        page_bytes in 200_usize..20_000,
        plan in proptest::collection::vec(
            (0_u16..6, 0_u16..3, 0_u16..6, 0_u16..3, proptest::option::of(0_u8..64), 0_usize..600, 0_u64..SLICE_NANOS / 20),
            0..400,
        ),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAMES[name]);
        let mut nanos = 1_700_000_000_000_000_000;
        let mut expected: BTreeMap<_, Sums> = BTreeMap::new();
        let mut packets = Vec::new();
        for (a, port_a, b, port_b, flags, payload, pause) in plan {
            nanos += pause;
            let packet = ip_packet(nanos, (a, 5000 + port_a), (b, 53 + port_b), flags, payload);
            let protocol = if flags.is_some() { 6 } else { 17 };
            let sums = expected.entry((a, 5000 + port_a, b, 53 + port_b, protocol, nanos / SLICE_NANOS)).or_default();
            sums.packets += 1;
            sums.bytes += u64::from(packet.wire_len);
            sums.times.push(nanos);
            sums.any |= flags.unwrap_or(0);
            sums.not_all |= !flags.unwrap_or(0xff);
            packets.push(packet);
        }
        write_segment(&path, &packets, LinkType::ETHERNET, page_bytes);
        let Built { index, fault } = build(&path, &mut |_| true).unwrap();
        prop_assert!(fault.is_none(), "{:?}", fault);
        prop_assert_eq!(index.packets(), packets.len() as u64);
        prop_assert_eq!(index.rows().len(), expected.len());
        prop_assert!(index.rows().is_sorted_by_key(|row| (row.flow.number(), row.first)));
        let host = |address: Option<IpAddr>| match address {
            Some(IpAddr::V4(address)) => u16::from_be_bytes([address.octets()[2], address.octets()[3]]),
            other => panic!("{other:?}"),
        };
        let mut in_pieces = vec![0; index.pieces().len()];
        for row in index.rows() {
            let (flow, ports) = (row.flow, row.flow.ports.unwrap());
            let key = (
                host(flow.source),
                ports.0,
                host(flow.destination),
                ports.1,
                flow.protocol.unwrap(),
                row.first / SLICE_NANOS,
            );
            let sums = expected.remove(&key);
            prop_assert!(sums.is_some(), "{:?} is there twice, or is not there", key);
            let sums = sums.unwrap();
            prop_assert_eq!((row.packets, row.bytes), (sums.packets, sums.bytes));
            prop_assert_eq!((row.first, row.last), (sums.times[0], *sums.times.last().unwrap()));
            let flags = (flow.protocol == Some(6)).then_some((sums.any, !sums.not_all));
            prop_assert_eq!(row.tcp_flags, flags);
            for part in &row.parts {
                in_pieces[part.piece as usize] += u64::from(part.packets);
            }
        }
        let counted: Vec<u64> = index.pieces().iter().map(|piece| piece.packets).collect();
        prop_assert_eq!(in_pieces, counted);
        write(&path, &index).unwrap();
        prop_assert_eq!(&load(&path).unwrap(), &index);
        // A search with the index returns the packets of the file.
        let (found, plan, outcome) = find(from_ref(&path), query(""));
        prop_assert!(plan.segments[0].without.is_none());
        prop_assert_eq!(&found, &packets);
        prop_assert_eq!(outcome.packets, packets.len() as u64);
        let (found, _, outcome) = find(from_ref(&path), query("udp and src host 10.0.0.1 and dst port 53"));
        let is_one = |data: &[u8]| data[23] == 17 && data[29] == 1 && data[26..29] == [10, 0, 0] && data[36..38] == [0, 53];
        let expected: Vec<_> = packets.iter().filter(|packet| is_one(&packet.data)).cloned().collect();
        prop_assert_eq!(found, expected);
        let head = index.pieces()[0].bytes;
        prop_assert!(outcome.read_bytes <= outcome.matching_bytes + head * outcome.pieces);
        prop_assert!(index_path(&path).exists());
    }
}
