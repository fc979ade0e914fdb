//! A search finds the same packets as tcpdump, for hundreds of expressions and traces of other
//! programs.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice::from_ref;

use wirecap_filter::Filter;
use wirecap_index::{Ensured, Row, build, ensure, load, write};
use wirecap_savefile::{Interface, LinkType, Reader};
use wirecap_testbed::{own_traces, traces};

use crate::files::{Packet, find, head, packets_of, query, write_segment};

/// Traces in which all packets have this link type.
fn traces_of(link_type: LinkType) -> Vec<PathBuf> {
    let is_one = |path: &PathBuf| {
        let Ok(mut reader) = Reader::open(path) else { return false };
        while let Ok(Some(_)) = reader.next_record() {}
        reader.interfaces().iter().all(|interface: &Interface| interface.link_type == link_type)
    };
    traces().into_iter().filter(is_one).collect()
}

/// The packets of a file that `tcpdump -r` selects.
fn tcpdump(file: &Path, expression: &str, into: &Path) -> Vec<Packet> {
    let output = Command::new("tcpdump")
        .args(["--nano", "-r"])
        .arg(file)
        .arg("-w")
        .arg(into)
        .arg(expression)
        .output()
        .expect("tcpdump is installed");
    assert!(output.status.success() || into.exists(), "{expression}: {output:?}");
    packets_of(into)
}

/// An expression, and whether the columns of the index suffice to decide it.
struct Asked {
    kind: usize,
    text: String,
    is_of_columns: bool,
}

/// This many different expressions about the packets in the segments. Most are about flows, and
/// some about data that no index has.
fn expressions(segments: &[PathBuf], count: usize) -> Vec<Asked> {
    let rows: Vec<Row> =
        segments.iter().flat_map(|segment| load(segment).unwrap().rows().to_vec()).collect();
    let flows: Vec<_> = rows
        .iter()
        .filter_map(|Row { flow, .. }| Some((flow.source?, flow.destination?, flow.ports?)))
        .collect();
    let mut state = 1_u64;
    let mut below = |limit: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let mut expressions: Vec<Asked> = Vec::new();
    while expressions.len() < count {
        // Addresses and a port of one flow, and an address and a port of another.
        let (a, b, (port, _)) = flows[below(flows.len())];
        let (c, _, (_, other)) = flows[below(flows.len())];
        let net = match a {
            IpAddr::V4(address) => {
                format!("{}.{}.0.0/16", address.octets()[0], address.octets()[1])
            }
            IpAddr::V6(address) => format!("{:x}::/16", address.segments()[0]),
        };
        let kind = below(39);
        let text = match kind {
            0 => format!("host {a}"),
            1 => format!("src host {a}"),
            2 => format!("dst host {a} and port {port}"),
            3 => format!("port {port}"),
            4 => format!("udp port {port}"),
            5 => format!("tcp dst port {port} or host {c}"),
            6 => format!("host {a} and not port {port}"),
            7 => format!("net {net}"),
            8 => format!("src net {net} and tcp"),
            9 => format!("portrange {}-{}", port.min(other), port.max(other)),
            10 => format!("not host {a} and not host {c} and udp"),
            11 => format!("host {a} and host {b}"),
            12 => format!("src host {a} and dst host {b} and src port {port}"),
            13 => format!("(host {a} and port {port}) or (host {c} and port {other})"),
            14 => format!("host {a} and (port {port} or port {other}) and not host {c}"),
            15 => format!("net {net} and not tcp port {other}"),
            16 => {
                format!("dst net {net} and dst portrange {}-{}", port.min(other), port.max(other))
            }
            17 => "arp".to_owned(),
            18 => format!("arp and host {c}"),
            19 => ["icmp", "icmp6", "icmp or icmp6", "sctp", "igmp"][below(5)].to_owned(),
            20 => ["ip6 and not tcp", "ip6", "not ip and not ip6", "ip6 and udp", "rarp or arp"]
                [below(5)]
            .to_owned(),
            21 => "vlan".to_owned(),
            22 => format!("vlan and host {a}"),
            23 => format!("port {port} or vlan {}", below(200)),
            24 => ["ip[6:2] & 0x3fff != 0", "ip[6:2] & 0x1fff != 0", "ip6[6] = 44"][below(3)]
                .to_owned(),
            25 => format!("ip proto {}", [1, 2, 6, 17, 47, 50, 89, 132][below(8)]),
            26 => format!("ip6 proto {}", [6, 17, 58, 0, 44][below(5)]),
            27 => format!("tcp[tcpflags] & (tcp-syn|tcp-fin) != 0 and port {port}"),
            28 => "tcp[tcpflags] == tcp-syn".to_owned(),
            29 => format!("tcp[tcpflags] & tcp-rst != 0 and net {net}"),
            30 => format!("greater {}", 60 + below(1400)),
            31 => format!("less {} and host {a}", 60 + below(200)),
            32 => ["ip multicast", "ip broadcast or ip multicast", "ip6 multicast"][below(3)]
                .to_owned(),
            33 => format!("ether[{}] = {}", below(60), below(256)),
            34 => format!("ip and ip[8] < {}", below(128)),
            35 => ["ether multicast or ether broadcast", "ether multicast", "ether broadcast"]
                [below(3)]
            .to_owned(),
            36 => format!(
                "udp[8:2] = {} or tcp[((tcp[12] & 0xf0) >> 2):1] = {}",
                below(65536),
                below(256)
            ),
            37 => format!("host {a} and ip[2:2] > {}", below(1500)),
            // After `vlan`, libpcap adds four to all offsets, also for packets without a tag, so no
            // column applies.
            _ => format!("vlan {} or port {port}", below(200)),
        };
        let is_new = expressions.iter().all(|known| known.text != text);
        // libpcap rejects expressions that no packet can match.
        if is_new && Filter::compile(&text, LinkType::ETHERNET, 0).is_ok() {
            expressions.push(Asked { kind, text, is_of_columns: kind < 33 });
        }
    }
    expressions
}

#[test]
fn every_packet_of_every_trace_is_listed_and_found() {
    let folder = tempfile::tempdir().unwrap();
    let mut copies = Vec::new();
    let mut all = Vec::new();
    for (number, trace) in traces().iter().enumerate() {
        let copy = folder
            .path()
            .join(format!("{number:04}.{}", trace.extension().unwrap().to_str().unwrap()));
        fs::copy(trace, &copy).unwrap();
        let Ok(built) = build(&copy, &mut |_| true) else { continue };
        let packets = packets_of(&copy);
        assert_eq!(built.index.packets(), packets.len() as u64, "{}", trace.display());
        let rows = built.index.rows();
        assert_eq!(rows.iter().map(|row| row.packets).sum::<u64>(), packets.len() as u64);
        assert_eq!(
            rows.iter().map(|row| row.bytes).sum::<u64>(),
            packets.iter().map(|packet| u64::from(packet.wire_len)).sum::<u64>()
        );
        if built.fault.is_none() {
            write(&copy, &built.index).unwrap();
            assert_eq!(load(&copy).unwrap(), built.index);
        }
        // The order of a search's result: by time, then by file, then by position.
        all.extend(
            packets
                .into_iter()
                .enumerate()
                .map(|(place, packet)| (packet.nanos, copies.len(), place, packet)),
        );
        copies.push(copy);
    }
    all.sort_by_key(|(nanos, file, place, _)| (*nanos, *file, *place));
    let (found, ..) = find(&copies, query(""));
    assert_eq!(found.len(), all.len());
    assert!(found.into_iter().eq(all.into_iter().map(|(.., packet)| packet)));
}

#[test]
fn find_selects_the_same_packets_as_tcpdump() {
    let files = traces_of(LinkType::ETHERNET);
    let count = std::env::var("WIRECAP_EXPRESSIONS").map_or(40, |count| count.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    // A recording of twelve files, written in pages of 32 KiB, so that the compressed files have
    // many pieces.
    let mut packets: Vec<Packet> = files.iter().flat_map(|file| packets_of(file)).collect();
    packets.retain(|packet| packet.nanos < 4_000_000_000_000_000_000);
    let mut segments = Vec::new();
    for (number, part) in packets.chunks(packets.len() / 12 + 1).enumerate() {
        let kind = ["pcapng.zst", "pcap.frames.zst", "pcapng", "pcap.gz"][number % 4];
        let path = folder.path().join(format!("s{number:02}.{kind}"));
        write_segment(&path, part, LinkType::ETHERNET, 32 << 10);
        assert!(matches!(ensure(&path, &mut |_| true).unwrap(), Ensured::Written { .. }));
        segments.push(path);
    }
    packets.sort_by_key(|packet| packet.nanos);
    let all = folder.path().join("all.pcap");
    let chosen = folder.path().join("chosen.pcap");
    write_segment(&all, &packets, LinkType::ETHERNET, usize::MAX);
    assert!(head(wirecap_savefile::Format::Pcap, LinkType::ETHERNET).len() == 24);
    // For all expressions, for those on columns, and for each kind: bytes read, and bytes of pieces
    // with matches.
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut kinds: BTreeMap<usize, (u64, u64, String)> = BTreeMap::new();
    let mut found_packets = 0;
    let mut with_packets = 0;
    let expressions = expressions(&segments, count);
    for asked in &expressions {
        let expected = tcpdump(&all, &asked.text, &chosen);
        let (found, plan, outcome) = find(&segments, query(&asked.text));
        assert!(plan.segments.iter().all(|segment| segment.without.is_none()));
        assert_eq!(found.len(), expected.len(), "{}", asked.text);
        assert!(found == expected, "{}", asked.text);
        found_packets += found.len();
        with_packets += usize::from(!found.is_empty());
        let class = if asked.is_of_columns { "of columns" } else { "others" };
        let (read, matching) = sums.entry(class).or_default();
        (*read, *matching) = (*read + outcome.read_bytes, *matching + outcome.matching_bytes);
        let (read, matching, example) = kinds.entry(asked.kind).or_default();
        (*read, *matching) = (*read + outcome.read_bytes, *matching + outcome.matching_bytes);
        example.clone_from(&asked.text);
    }
    for (read, matching, example) in kinds.values() {
        println!("{:>8.2} {read:>12} {matching:>12}  {example}", *read as f64 / *matching as f64);
    }
    println!(
        "{found_packets} packets of {count} expressions, {with_packets} with packets; read and matching: {sums:?}"
    );
    let (read, matching) = sums["of columns"];
    assert!(read as f64 <= 1.2 * matching as f64, "{read} bytes were read for {matching}");
    assert!(with_packets * 2 > count, "{with_packets} expressions have packets");
}

#[test]
fn each_trace_gives_the_same_matches_as_tcpdump() {
    let folder = tempfile::tempdir().unwrap();
    let chosen = folder.path().join("chosen.pcap");
    let own = own_traces();
    for trace in own.iter().chain(traces()[own.len()..].iter().step_by(7)) {
        for expression in ["udp", "host 192.168.1.1 or tcp port 443", "ip6 or arp", "not tcp"] {
            let _none = fs::remove_file(&chosen);
            let known = Command::new("tcpdump")
                .arg("-r")
                .arg(trace)
                .args(["-d", expression])
                .output()
                .unwrap();
            if !known.status.success() {
                continue;
            }
            let mut expected = tcpdump(trace, expression, &chosen);
            expected.sort_by_key(|packet| packet.nanos);
            let (found, ..) = find(from_ref(trace), query(expression));
            assert_eq!(found.len(), expected.len(), "{}: {expression}", trace.display());
            assert!(found == expected, "{}: {expression}", trace.display());
        }
    }
}
