//! Two hundred questions about real traffic: the packets that `sql` and `find` select are those that tshark and tcpdump
//! select, on one machine and on a cluster. The traces are those of `wirecap_testbed::traces`.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use wirecap_filter::Filter;
use wirecap_index::{Ensured, ensure};
use wirecap_recorder::{CompressedSink, Compression};
use wirecap_savefile::{
    FileSink, Format, Interface, LinkType, Reader, Record, Section, StreamSink, Timestamp, Writer,
};
use wirecap_testbed::{skip, traces};

use crate::cluster::Cluster;
use crate::recordings::{Random, run};

/// Questions of each kind.
const QUESTIONS: usize = 100;
/// Choices of two packets, of which many are no basis of a new question.
const ATTEMPTS_MAX: u32 = 100_000;
/// Packets of each trace: its first ones, so that each application has its share.
const PACKETS_OF_TRACE: usize = 60;
const SEGMENTS: usize = 6;

/// A packet of the traces.
struct Packet {
    nanos: u64,
    length: u32,
    data: Vec<u8>,
}

/// A packet as tshark dissects it: the first occurrence of each field, that is, the outer headers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Dissected {
    length: u32,
    captured: u32,
    macs: [String; 2],
    vlan: Option<u16>,
    addresses: [Option<String>; 2],
    protocol: Option<u8>,
    ports: Option<[u16; 2]>,
    flags: Option<u8>,
}

/// An archive of the traces' packets, and the same packets in one plain file.
struct Archive {
    folder: TempDir,
    packets: Vec<Packet>,
    /// Each question is asked twice, and the answers must be equal.
    cluster: Cluster,
}

impl Archive {
    /// None if there are no traces.
    fn new() -> Option<Self> {
        let mut packets = Vec::new();
        for trace in traces() {
            read_packets(&trace, &mut packets);
        }
        if packets.is_empty() {
            return None;
        }
        let archive = Self { folder: tempfile::tempdir().unwrap(), packets, cluster: Cluster::new(3) };
        let part = archive.packets.len().div_ceil(SEGMENTS);
        for (number, packets) in archive.packets.chunks(part).enumerate() {
            let kind = ["pcapng.zst", "pcapng"][number % 2];
            let path = archive.folder.path().join(format!("archive/{number}.{kind}"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            save(&path, packets);
            assert!(matches!(ensure(&path, &mut |_| true).unwrap(), Ensured::Written { .. }));
        }
        save(&archive.plain(), &archive.packets);
        Some(archive)
    }

    fn plain(&self) -> PathBuf {
        self.folder.path().join("all.pcapng")
    }

    fn path(&self) -> String {
        self.folder.path().join("archive").to_str().unwrap().to_owned()
    }

    fn sql(&self, statement: &str) -> Vec<String> {
        let path = self.path();
        let arguments = ["sql", "-a", &path, statement, "--format", "csv"];
        let (here, there) = (run(&arguments), self.cluster.run(&arguments));
        assert!(here.is_success, "{statement}: {}", here.said);
        assert!(there.is_success, "{statement}: {}\n{}", there.said, self.cluster.log());
        assert!(here.output == there.output, "{statement}: one machine and the cluster differ");
        here.text().lines().skip(1).map(str::to_owned).collect()
    }

    /// The packets in the order of the segments, as tshark dissects them.
    fn dissected(&self) -> Option<Vec<Dissected>> {
        let fields = [
            "frame.len",
            "frame.cap_len",
            "eth.src",
            "eth.dst",
            "vlan.id",
            "ip.src",
            "ip.dst",
            "ip.proto",
            "ipv6.src",
            "ipv6.dst",
            "ipv6.nxt",
            "ipv6.hopopts.nxt",
            "ipv6.routing.nxt",
            "ipv6.fraghdr.nxt",
            "ipv6.dstopts.nxt",
            "arp.src.proto_ipv4",
            "arp.dst.proto_ipv4",
            "tcp.srcport",
            "tcp.dstport",
            "tcp.flags",
            "udp.srcport",
            "udp.dstport",
            "sctp.srcport",
            "sctp.dstport",
            "eth.type",
            "vlan.etype",
        ];
        let output = Command::new("tshark")
            .args(["-n", "-r"])
            .arg(self.plain())
            // Packets, not reassembled datagrams and streams.
            .args(["-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"])
            .args(["-T", "fields", "-E", "occurrence=f"])
            .args(fields.iter().flat_map(|field| ["-e", field]))
            .output();
        let Ok(output) = output else {
            skip("tshark is not installed");
            return None;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        Some(text.lines().map(dissect).collect())
    }
}

/// A line of tshark's fields.
fn dissect(line: &str) -> Dissected {
    let fields: Vec<Option<&str>> =
        line.split('\t').map(|field| (!field.is_empty()).then_some(field)).collect();
    let text = |place: usize| fields[place].map(str::to_owned);
    let number = |place: usize| {
        let field = fields[place]?;
        match field.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => field.parse().ok(),
        }
    };
    // The header of a tunnelled packet follows the outer one, so the outer network layer is told by the EtherType.
    let ether_type = number(25).or_else(|| number(24));
    let mut of_ip = (None, [None, None]);
    match ether_type {
        Some(0x0800) => of_ip = (number(7), [text(5), text(6)]),
        Some(0x86dd) => {
            let mut protocol = number(10);
            for (header, place) in [(0, 11), (60, 14), (43, 12), (44, 13)] {
                if protocol == Some(header) {
                    protocol = number(place);
                }
            }
            of_ip = (protocol, [text(8), text(9)]);
        }
        Some(0x0806) => of_ip.1 = [text(15), text(16)],
        _ => {}
    }
    let (protocol, addresses) = of_ip;
    let ports = match protocol {
        Some(6) => number(17).zip(number(18)),
        Some(17) => number(20).zip(number(21)),
        Some(132) => number(22).zip(number(23)),
        _ => None,
    };
    Dissected {
        length: number(0).unwrap(),
        captured: number(1).unwrap(),
        macs: [text(2).unwrap_or_default(), text(3).unwrap_or_default()],
        vlan: number(4).map(|id| id as u16),
        addresses,
        protocol: protocol.map(|protocol| protocol as u8),
        ports: ports.map(|(source, destination)| [source as u16, destination as u16]),
        flags: (protocol == Some(6)).then(|| number(19).map(|flags| flags as u8)).flatten(),
    }
}

/// Appends the first packets of a trace, if it is one of Ethernet.
fn read_packets(trace: &Path, packets: &mut Vec<Packet>) {
    let Ok(mut reader) = Reader::open(trace) else { return };
    let before = packets.len();
    while packets.len() - before < PACKETS_OF_TRACE {
        let Ok(Some(record)) = reader.next_record() else { break };
        let Some(nanos) = record.timestamp.map(Timestamp::unix_nanos) else { continue };
        // SQL's times end in 2262.
        if nanos < 4_000_000_000_000_000_000 {
            packets.push(Packet { nanos, length: record.wire_len, data: record.data.to_vec() });
        }
    }
    if reader.interfaces().iter().any(|interface| interface.link_type != LinkType::ETHERNET) {
        packets.truncate(before);
    }
}

/// Writes packets into a pcapng file, compressed if its extension says so.
fn save(path: &Path, packets: &[Packet]) {
    fn write<S: wirecap_savefile::Sink>(sink: S, packets: &[Packet]) {
        let mut writer = Writer::new(sink, Format::Pcapng, &Section::default());
        let interface = Interface { snap_len: 262_144, ..Interface::default() };
        let interface = writer.add_interface(&interface).unwrap();
        for Packet { nanos, length, data } in packets {
            let timestamp = Some(Timestamp::from_unix_nanos(*nanos));
            let record =
                Record { interface, timestamp, wire_len: *length, data: &data[..], ..Record::default() };
            writer.write(&record).unwrap();
        }
        writer.finish().unwrap();
    }
    let file = FileSink::create(path).unwrap().into_file();
    match Compression::of(path) {
        Compression::None => write(StreamSink::new(file, "file"), packets),
        compression => write(CompressedSink::new(file, "file".into(), compression).unwrap(), packets),
    }
}

/// A condition, and whether it is true for a packet.
type Question = (String, Box<dyn Fn(&Dissected) -> bool>);

/// The SQL condition with this number, about the values of two packets.
fn condition(number: usize, a: &Dissected, b: &Dissected) -> Option<Question> {
    let source = a.addresses[0].clone();
    let other = b.addresses[1].clone();
    let port = a.ports.map(|ports| ports[1]);
    let other_port = b.ports.map(|ports| ports[0]);
    let (low, high) = (a.length.min(b.length), a.length.max(b.length));
    let is = |value: Option<&String>, wanted: &String| value == Some(wanted);
    Some(match number {
        0 => {
            let source = source?;
            (
                format!("src_addr = '{source}'"),
                Box::new(move |packet| is(packet.addresses[0].as_ref(), &source)),
            )
        }
        1 => {
            let source = source?;
            (
                format!("'{source}' IN (src_addr, dst_addr)"),
                Box::new(move |packet| packet.addresses.iter().any(|address| is(address.as_ref(), &source))),
            )
        }
        2 => {
            let (source, other) = (source?, other?);
            (
                format!("src_addr = '{source}' OR dst_addr = '{other}'"),
                Box::new(move |packet| {
                    is(packet.addresses[0].as_ref(), &source) || is(packet.addresses[1].as_ref(), &other)
                }),
            )
        }
        3 => {
            let port = port?;
            (
                format!("dst_port = {port}"),
                Box::new(move |packet| packet.ports.is_some_and(|[_, to]| to == port)),
            )
        }
        4 => {
            let (port, other) = (port?, other_port?);
            (
                format!("dst_port IN ({port}, {other}) AND protocol = 17"),
                Box::new(move |packet| {
                    packet.protocol == Some(17)
                        && packet.ports.is_some_and(|[_, to]| to == port || to == other)
                }),
            )
        }
        5 => {
            let (port, source) = (port?, source?);
            (
                format!("src_addr <> '{source}' AND dst_port = {port}"),
                Box::new(move |packet| {
                    packet.addresses[0].as_ref().is_some_and(|address| *address != source)
                        && packet.ports.is_some_and(|[_, to]| to == port)
                }),
            )
        }
        6 => {
            let (port, other) = (port?, other_port?);
            let (first, last) = (port.min(other), port.max(other));
            (
                format!("src_port BETWEEN {first} AND {last} AND NOT (dst_port = {port})"),
                Box::new(move |packet| {
                    packet.ports.is_some_and(|[from, to]| (first..=last).contains(&from) && to != port)
                }),
            )
        }
        7 => {
            let protocol = a.protocol?;
            (format!("protocol = {protocol}"), Box::new(move |packet| packet.protocol == Some(protocol)))
        }
        8 => {
            let flags = a.flags?;
            (format!("tcp_flags = {flags}"), Box::new(move |packet| packet.flags == Some(flags)))
        }
        9 => {
            let flags = a.flags?;
            (
                format!("tcp_flags & {flags} = {flags} AND length > {low}"),
                Box::new(move |packet| {
                    packet.flags.is_some_and(|of| of & flags == flags) && packet.length > low
                }),
            )
        }
        10 => (
            format!("length BETWEEN {low} AND {high}"),
            Box::new(move |packet| (low..=high).contains(&packet.length)),
        ),
        11 => (
            format!("length > {low} AND protocol IS NULL"),
            Box::new(move |packet| packet.length > low && packet.protocol.is_none()),
        ),
        12 => {
            let vlan = a.vlan.or(b.vlan);
            match vlan {
                Some(vlan) => (format!("vlan = {vlan}"), Box::new(move |packet| packet.vlan == Some(vlan))),
                None => (
                    format!("vlan IS NOT NULL AND length <= {high}"),
                    Box::new(move |packet| packet.vlan.is_some() && packet.length <= high),
                ),
            }
        }
        13 => {
            let [source, destination] = [a.macs[0].clone(), b.macs[1].clone()];
            (
                format!("src_mac = '{source}' OR dst_mac = '{destination}'"),
                Box::new(move |packet| packet.macs[0] == source || packet.macs[1] == destination),
            )
        }
        14 => {
            let port = port?;
            (
                format!("{port} IN (src_port, dst_port) AND protocol <> 17"),
                Box::new(move |packet| {
                    packet.ports.is_some_and(|ports| ports.contains(&port))
                        && packet.protocol.is_some_and(|protocol| protocol != 17)
                }),
            )
        }
        _ => {
            let (source, other) = (source?, other?);
            let low = low.max(100);
            (
                format!(
                    "(src_addr = '{source}' AND length < {low}) OR (dst_addr = '{other}' AND src_port IS NULL)"
                ),
                Box::new(move |packet| {
                    is(packet.addresses[0].as_ref(), &source) && packet.length < low
                        || is(packet.addresses[1].as_ref(), &other) && packet.ports.is_none()
                }),
            )
        }
    })
}

#[test]
fn sql_selects_the_packets_that_tshark_shows() {
    let Some(archive) = Archive::new() else { return };
    let Some(dissected) = archive.dissected() else { return };
    assert_eq!(dissected.len(), archive.packets.len());
    // Each packet of its own first: a wrong column is named here.
    let columns = "length, captured, src_mac, dst_mac, vlan, src_addr, dst_addr, protocol, src_port, dst_port, tcp_flags";
    let rows = archive.sql(&format!("SELECT {columns} FROM packets ORDER BY segment, number"));
    assert_eq!(rows.len(), dissected.len());
    let mut differences = Vec::new();
    for (place, (row, packet)) in rows.iter().zip(&dissected).enumerate() {
        let text = |value: Option<String>| value.unwrap_or_default();
        let number = |value: Option<u16>| text(value.map(|value| value.to_string()));
        let [source, destination] = packet.addresses.clone().map(text);
        let [from, to] = packet.ports.map_or([None, None], |ports| ports.map(Some)).map(number);
        let [src_mac, dst_mac] = &packet.macs;
        let expected = format!(
            "{},{},{src_mac},{dst_mac},{},{source},{destination},{},{from},{to},{}",
            packet.length,
            packet.captured,
            number(packet.vlan),
            number(packet.protocol.map(u16::from)),
            number(packet.flags.map(u16::from)),
        );
        if *row != expected {
            differences.push(format!("packet {place}:\n  wirecap {row}\n  tshark  {expected}"));
        }
    }
    assert!(differences.is_empty(), "{} packets differ:\n{}", differences.len(), differences.join("\n"));
    let mut random = Random::new(20);
    let mut asked: Vec<String> = Vec::new();
    let mut with_packets = 0;
    for attempt in 0.. {
        if asked.len() == QUESTIONS {
            break;
        }
        assert!(attempt < ATTEMPTS_MAX, "{} questions of {QUESTIONS} were found", asked.len());
        let mut any = || &dissected[random.below(dissected.len() as u64) as usize];
        let (a, b) = (any(), any());
        let Some((condition, is_match)) = condition(asked.len() % 16, a, b) else { continue };
        if asked.contains(&condition) {
            continue;
        }
        let matching: Vec<&Dissected> = dissected.iter().filter(|packet| is_match(packet)).collect();
        let bytes: u64 = matching.iter().map(|packet| u64::from(packet.length)).sum();
        let expected = match matching.len() {
            0 => "0,".to_owned(),
            count => format!("{count},{bytes}"),
        };
        let answer = archive.sql(&format!("SELECT count(*), sum(length) FROM packets WHERE {condition}"));
        assert_eq!(answer, [expected], "{condition}");
        with_packets += usize::from(!matching.is_empty());
        asked.push(condition);
    }
    assert!(with_packets * 10 > QUESTIONS * 9, "{with_packets} of {QUESTIONS} questions select packets");
}

/// The filter with this number, about the values of two packets.
fn expression(
    number: usize,
    a: &Packet,
    b: &Packet,
    of: impl Fn(&Packet) -> Option<[String; 2]>,
) -> Option<String> {
    let [source, destination] = of(a)?;
    let [other, _] = of(b)?;
    let length = a.length;
    Some(match number {
        0 => format!("host {source}"),
        1 => format!("src host {source} and not dst host {other}"),
        2 => format!("host {source} and host {destination}"),
        3 => format!("(src host {source} and tcp) or (dst host {other} and udp)"),
        4 => format!("host {source} and greater {length}"),
        5 => format!("not host {source} and less {length}"),
        6 => format!("tcp and host {other} and tcp[tcpflags] & (tcp-syn|tcp-fin|tcp-rst) != 0"),
        7 => format!("ip host {source} and ip[8] > 60"),
        8 => format!("vlan and host {source} or arp"),
        _ => format!("host {other} and portrange 1-{}", 1024 + length),
    })
}

#[test]
fn find_and_sql_select_the_packets_that_tcpdump_selects() {
    let Some(archive) = Archive::new() else { return };
    let chosen = archive.folder.path().join("chosen.pcapng");
    let addresses = |packet: &Packet| {
        let flow = wirecap_index::Headers::of(LinkType::ETHERNET, &packet.data).flow;
        Some([flow.source?.to_string(), flow.destination?.to_string()])
    };
    let mut random = Random::new(21);
    let mut asked: Vec<String> = Vec::new();
    let mut with_packets = 0;
    for attempt in 0.. {
        if asked.len() == QUESTIONS {
            break;
        }
        assert!(attempt < ATTEMPTS_MAX, "{} questions of {QUESTIONS} were found", asked.len());
        let mut any = || &archive.packets[random.below(archive.packets.len() as u64) as usize];
        let (a, b) = (any(), any());
        let Some(expression) = expression(asked.len() % 10, a, b, addresses) else { continue };
        // libpcap refuses some that no packet can match, such as those about an IPv6 address and ip[8].
        if asked.contains(&expression) || Filter::compile(&expression, LinkType::ETHERNET, 0).is_err() {
            continue;
        }
        let output = Command::new("tcpdump")
            .arg("--nano")
            .arg("-r")
            .arg(archive.plain())
            .args(["-w", "-", &expression])
            .output()
            .expect("tcpdump is installed");
        assert!(output.status.success(), "{expression}: {}", String::from_utf8_lossy(&output.stderr));
        let mut expected = records(Reader::new(Cursor::new(output.stdout)).unwrap());
        expected.sort_by_key(|(nanos, ..)| *nanos);
        let path = archive.path();
        let arguments = ["find", "-a", &path, "--force", "-w", chosen.to_str().unwrap(), &expression];
        let found = run(&arguments);
        assert!(found.is_success, "{expression}: {}", found.said);
        assert!(records(Reader::open(&chosen).unwrap()) == expected, "{expression}");
        let here = fs::read(&chosen).unwrap();
        let found = archive.cluster.run(&arguments);
        assert!(found.is_success, "{expression}: {}\n{}", found.said, archive.cluster.log());
        assert!(fs::read(&chosen).unwrap() == here, "{expression}: one machine and the cluster differ");
        let bytes: usize = expected.iter().map(|(.., data)| data.len()).sum();
        let count = match expected.len() {
            0 => "0,".to_owned(),
            count => format!("{count},{bytes}"),
        };
        let quoted = expression.replace('\'', "''");
        let answer = archive
            .sql(&format!("SELECT count(*), sum(captured) FROM packets WHERE pcap_filter('{quoted}')"));
        assert_eq!(answer, [count], "{expression}");
        with_packets += usize::from(!expected.is_empty());
        asked.push(expression);
    }
    assert!(with_packets * 10 > QUESTIONS * 7, "{with_packets} of {QUESTIONS} questions select packets");
}

/// Time, length and bytes of each packet.
fn records(mut reader: Reader) -> Vec<(u64, u32, Vec<u8>)> {
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        records.push((record.timestamp.unwrap().unix_nanos(), record.wire_len, record.data.to_vec()));
    }
    records
}
