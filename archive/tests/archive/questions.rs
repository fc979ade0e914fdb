//! Two hundred questions about real traffic: the packets that `sql` and `find` select are those
//! that tshark and tcpdump select, on one machine and on a cluster. The traces are those of
//! `wirecap_testbed::traces`.

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
use crate::recordings::{Random, run, tcpdump};

/// Questions of each kind.
const QUESTIONS: usize = 100;
/// Maximum number of choices of two packets: many choices do not result in a new question.
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

/// A packet as tshark dissects it: the outer headers.
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

/// The columns of [`Dissected`].
const COLUMNS: &str = "length, captured, src_mac, dst_mac, vlan, src_addr, dst_addr, protocol, src_port, dst_port, tcp_flags";

/// Traces that are not compared with tshark: it shows parts of headers that are cut off, and
/// [`Fields`] reads neither tags of type 0x88a8 nor extension headers of IPv6 in any order.
const NOT_COMPARED: [&str; 3] = ["not-ip-and-short.pcap", "qinq.pcapng", "options.pcap"];

/// An archive of the traces' packets, and the same packets in one plain file.
struct Archive {
    folder: TempDir,
    packets: Vec<Packet>,
    /// Each question is asked twice, and the answers must be equal.
    cluster: Cluster,
}

impl Archive {
    fn new() -> Self {
        let mut packets = Vec::new();
        for trace in
            traces().iter().filter(|trace| !NOT_COMPARED.iter().any(|name| trace.ends_with(name)))
        {
            read_packets(trace, &mut packets);
        }
        let archive =
            Self { folder: tempfile::tempdir().unwrap(), packets, cluster: Cluster::new(3) };
        let part = archive.packets.len().div_ceil(SEGMENTS);
        for (number, packets) in archive.packets.chunks(part).enumerate() {
            let kind = ["pcapng.zst", "pcapng"][number % 2];
            let path = archive.folder.path().join(format!("archive/{number}.{kind}"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            save(&path, packets);
            assert!(matches!(ensure(&path, &mut |_| true).unwrap(), Ensured::Written { .. }));
        }
        save(&archive.plain(), &archive.packets);
        archive
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
        let here = run(&arguments);
        let there = self.cluster.run(&arguments);
        assert!(here.is_success, "{statement}: {}", here.said);
        assert!(there.is_success, "{statement}: {}\n{}", there.said, self.cluster.log());
        assert!(here.output == there.output, "{statement}: one machine and the cluster differ");
        here.text().lines().skip(1).map(str::to_owned).collect()
    }

    /// The packets in the order of the segments, as tshark dissects them.
    fn dissected(&self) -> Option<Vec<Shown>> {
        let output = Command::new("tshark")
            .args(["-n", "-r"])
            .arg(self.plain())
            // Packets, not reassembled datagrams and streams.
            .args(["-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"])
            // The frame of Cisco FabricPath is the outer one, although tshark does not show it as
            // one of Ethernet.
            .args(["--disable-protocol", "cfp"])
            .args(["-T", "fields", "-E", "occurrence=a", "-E", "aggregator=,"])
            .args(FIELDS.iter().flat_map(|field| ["-e", field]))
            .output();
        let Ok(output) = output else {
            skip("tshark is not installed");
            return None;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        Some(text.lines().map(|line| Fields(line.split('\t').collect()).shown()).collect())
    }

    /// The packet as tshark shows it. Values that tshark does not show, see [`Shown::is_complete`],
    /// come from the packet's row; tcpdump confirms that the packet has them.
    fn completed(&self, place: usize, shown: Dissected, row: &Dissected) -> Dissected {
        let mut all = shown.clone();
        let mut terms = Vec::new();
        if shown.length == TSHARK_LENGTH_MAX {
            all.length = row.length;
            terms.push(format!("len = {}", row.length));
        }
        for (side, of) in ["src", "dst"].into_iter().enumerate() {
            if let (None, Some(address)) = (&shown.addresses[side], &row.addresses[side]) {
                all.addresses[side] = Some(address.clone());
                terms.push(format!("{of} host {address}"));
            }
        }
        if let (None, Some(protocol)) = (shown.protocol, row.protocol) {
            all.protocol = Some(protocol);
            terms.push(format!("ip proto {protocol}"));
        }
        if let (None, Some([source, destination])) = (shown.ports, row.ports) {
            all.ports = row.ports;
            terms.push(format!("src port {source} and dst port {destination}"));
        }
        if let (None, Some(flags)) = (shown.flags, row.flags) {
            all.flags = Some(flags);
            terms.push(format!("tcp[tcpflags] = {flags}"));
        }
        let expression = terms.join(" and ");
        let file = self.folder.path().join("one.pcapng");
        save(&file, std::slice::from_ref(&self.packets[place]));
        let count = tcpdump(std::slice::from_ref(&file), &expression);
        fs::remove_file(file).unwrap();
        assert_eq!(
            count, 1,
            "packet {place}: {expression}\n  wirecap {row:?}\n  tshark  {shown:?}"
        );
        all
    }
}

/// The fields of tshark that are read.
const FIELDS: [&str; 27] = [
    "frame.protocols",
    "frame.len",
    "frame.cap_len",
    "eth.src",
    "eth.dst",
    "eth.type",
    "vlan.id",
    "vlan.etype",
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
];

/// The length that tshark shows for all longer packets.
const TSHARK_LENGTH_MAX: u32 = i32::MAX as u32;

/// A packet as tshark shows it.
struct Shown {
    packet: Dissected,
    /// tshark shows no fields of a header that it rejects, such as one of IPv4 with the version 5
    /// or one of TCP with 16 bytes, and no length above [`TSHARK_LENGTH_MAX`]. tcpdump's filters do
    /// not check versions and lengths of headers, and the columns have the values that filters see.
    /// So tcpdump answers this question instead of tshark.
    is_complete: bool,
}

/// All values of each field in a packet, those of inner headers after those of outer ones.
struct Fields<'a>(Vec<&'a str>);

impl<'a> Fields<'a> {
    fn values(&self, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let place = FIELDS.iter().position(|field| *field == name).unwrap();
        self.0[place].split(',').filter(|value| !value.is_empty())
    }

    fn first(&self, name: &str) -> Option<String> {
        self.values(name).next().map(str::to_owned)
    }

    fn numbers(&self, name: &str) -> impl Iterator<Item = u32> + use<'a> {
        self.values(name).map(|value| match value.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).unwrap(),
            None => value.parse().unwrap(),
        })
    }

    fn number(&self, name: &str) -> Option<u32> {
        self.numbers(name).next()
    }

    fn shown(&self) -> Shown {
        let protocols = self.first("frame.protocols").unwrap();
        // Only the outer VLAN tags are read. Further along, `protocols` may list the headers of a
        // tunnelled packet, which may have tags of their own.
        let mut rest = protocols.strip_prefix("eth:ethertype").unwrap_or_default();
        let is_tagged = rest.starts_with(":vlan");
        let mut ether_type = self.number("eth.type");
        let mut of_tags = self.numbers("vlan.etype");
        while let Some(after) = rest.strip_prefix(":vlan:ethertype") {
            (rest, ether_type) = (after, of_tags.next());
        }
        let mut protocol = None;
        let mut addresses = [None, None];
        match ether_type {
            Some(0x0800) => {
                protocol = self.number("ip.proto");
                addresses = [self.first("ip.src"), self.first("ip.dst")];
            }
            Some(0x86dd) => {
                protocol = self.number("ipv6.nxt");
                let extensions = [
                    (0, "ipv6.hopopts.nxt"),
                    (60, "ipv6.dstopts.nxt"),
                    (43, "ipv6.routing.nxt"),
                    (44, "ipv6.fraghdr.nxt"),
                ];
                for (header, next) in extensions {
                    if protocol == Some(header) {
                        protocol = self.number(next);
                    }
                }
                addresses = [self.first("ipv6.src"), self.first("ipv6.dst")];
            }
            Some(0x0806) => {
                addresses = [self.first("arp.src.proto_ipv4"), self.first("arp.dst.proto_ipv4")];
            }
            _ => {}
        }
        let of = match protocol {
            Some(6) => Some(["tcp.srcport", "tcp.dstport"]),
            Some(17) => Some(["udp.srcport", "udp.dstport"]),
            Some(132) => Some(["sctp.srcport", "sctp.dstport"]),
            _ => None,
        };
        let ports = of.and_then(|[source, destination]| {
            Some([self.number(source)? as u16, self.number(destination)? as u16])
        });
        let flags = self.number("tcp.flags").filter(|_| protocol == Some(6));
        let length = self.number("frame.len").unwrap();
        let packet = Dissected {
            length,
            captured: self.number("frame.cap_len").unwrap(),
            macs: [self.first("eth.src"), self.first("eth.dst")].map(Option::unwrap_or_default),
            vlan: self.number("vlan.id").filter(|_| is_tagged).map(|id| id as u16),
            addresses,
            protocol: protocol.map(|protocol| protocol as u8),
            ports,
            flags: flags.map(|flags| flags as u8),
        };
        let is_rejected = ether_type == Some(0x0800) && packet.protocol.is_none()
            || packet.protocol == Some(6) && packet.ports.is_some() && packet.flags.is_none();
        Shown { packet, is_complete: length < TSHARK_LENGTH_MAX && !is_rejected }
    }
}

/// A line of the table `packets`, with [`COLUMNS`].
fn row(line: &str) -> Dissected {
    fn number<T: std::str::FromStr>(field: &str) -> Option<T> {
        (!field.is_empty()).then(|| field.parse().ok().expect("a number"))
    }
    let fields: [&str; 11] = line.split(',').collect::<Vec<_>>().try_into().unwrap();
    let [
        length,
        captured,
        src_mac,
        dst_mac,
        vlan,
        source,
        destination,
        protocol,
        src_port,
        dst_port,
        flags,
    ] = fields;
    let ports = number(src_port).zip(number(dst_port));
    assert_eq!(ports.is_some(), !(src_port.is_empty() && dst_port.is_empty()), "{line}");
    Dissected {
        length: number(length).unwrap(),
        captured: number(captured).unwrap(),
        macs: [src_mac.to_owned(), dst_mac.to_owned()],
        vlan: number(vlan),
        addresses: [source, destination].map(|field| (!field.is_empty()).then(|| field.to_owned())),
        protocol: number(protocol),
        ports: ports.map(|(source, destination)| [source, destination]),
        flags: number(flags),
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

/// Writes packets into a pcapng file, compressed if its extension is that of a compression.
fn save(path: &Path, packets: &[Packet]) {
    fn write<S: wirecap_savefile::Sink>(sink: S, packets: &[Packet]) {
        let mut writer = Writer::new(sink, Format::Pcapng, &Section::default());
        let interface = Interface { snap_len: 262_144, ..Interface::default() };
        let interface = writer.add_interface(&interface).unwrap();
        for Packet { nanos, length, data } in packets {
            let timestamp = Some(Timestamp::from_unix_nanos(*nanos));
            let record = Record {
                interface,
                timestamp,
                wire_len: *length,
                data: &data[..],
                ..Record::default()
            };
            writer.write(&record).unwrap();
        }
        writer.finish().unwrap();
    }
    let file = FileSink::create(path).unwrap().into_file();
    match Compression::of(path) {
        Compression::None => write(StreamSink::new(file, "file"), packets),
        compression => {
            write(CompressedSink::new(file, "file".into(), compression).unwrap(), packets);
        }
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
    let low = a.length.min(b.length);
    let high = a.length.max(b.length);
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
                Box::new(move |packet| {
                    packet.addresses.iter().any(|address| is(address.as_ref(), &source))
                }),
            )
        }
        2 => {
            let source = source?;
            let other = other?;
            (
                format!("src_addr = '{source}' OR dst_addr = '{other}'"),
                Box::new(move |packet| {
                    is(packet.addresses[0].as_ref(), &source)
                        || is(packet.addresses[1].as_ref(), &other)
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
            let port = port?;
            let other = other_port?;
            (
                format!("dst_port IN ({port}, {other}) AND protocol = 17"),
                Box::new(move |packet| {
                    packet.protocol == Some(17)
                        && packet.ports.is_some_and(|[_, to]| to == port || to == other)
                }),
            )
        }
        5 => {
            let port = port?;
            let source = source?;
            (
                format!("src_addr <> '{source}' AND dst_port = {port}"),
                Box::new(move |packet| {
                    packet.addresses[0].as_ref().is_some_and(|address| *address != source)
                        && packet.ports.is_some_and(|[_, to]| to == port)
                }),
            )
        }
        6 => {
            let port = port?;
            let other = other_port?;
            let first = port.min(other);
            let last = port.max(other);
            (
                format!("src_port BETWEEN {first} AND {last} AND NOT (dst_port = {port})"),
                Box::new(move |packet| {
                    packet
                        .ports
                        .is_some_and(|[from, to]| (first..=last).contains(&from) && to != port)
                }),
            )
        }
        7 => {
            let protocol = a.protocol?;
            (
                format!("protocol = {protocol}"),
                Box::new(move |packet| packet.protocol == Some(protocol)),
            )
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
                Some(vlan) => {
                    (format!("vlan = {vlan}"), Box::new(move |packet| packet.vlan == Some(vlan)))
                }
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
            let source = source?;
            let other = other?;
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
    let archive = Archive::new();
    let Some(shown) = archive.dissected() else { return };
    assert_eq!(shown.len(), archive.packets.len());
    // First, each packet separately: a wrong column is reported here.
    let rows = archive.sql(&format!("SELECT {COLUMNS} FROM packets ORDER BY segment, number"));
    assert_eq!(rows.len(), shown.len());
    let mut dissected = Vec::new();
    let mut differences = Vec::new();
    let mut incomplete = 0;
    for (place, (line, shown)) in rows.iter().zip(shown).enumerate() {
        let row = row(line);
        let packet = match shown.is_complete {
            true => shown.packet,
            false => archive.completed(place, shown.packet, &row),
        };
        incomplete += usize::from(!shown.is_complete);
        if row != packet {
            differences.push(format!("packet {place}:\n  wirecap {row:?}\n  tshark  {packet:?}"));
        }
        dissected.push(packet);
    }
    println!("{} packets, {incomplete} of them not completely shown by tshark", dissected.len());
    assert!(
        differences.is_empty(),
        "{} packets differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
    let mut random = Random::new(20);
    let mut asked: Vec<String> = Vec::new();
    let mut with_packets = 0;
    for attempt in 0.. {
        if asked.len() == QUESTIONS {
            break;
        }
        assert!(attempt < ATTEMPTS_MAX, "{} questions of {QUESTIONS} were found", asked.len());
        let mut any = || &dissected[random.below(dissected.len() as u64) as usize];
        let a = any();
        let b = any();
        let Some((condition, is_match)) = condition(asked.len() % 16, a, b) else { continue };
        if asked.contains(&condition) {
            continue;
        }
        let matching: Vec<&Dissected> =
            dissected.iter().filter(|packet| is_match(packet)).collect();
        let bytes: u64 = matching.iter().map(|packet| u64::from(packet.length)).sum();
        let expected = match matching.len() {
            0 => "0,".to_owned(),
            count => format!("{count},{bytes}"),
        };
        let answer =
            archive.sql(&format!("SELECT count(*), sum(length) FROM packets WHERE {condition}"));
        assert_eq!(answer, [expected], "{condition}");
        with_packets += usize::from(!matching.is_empty());
        asked.push(condition);
    }
    assert!(
        with_packets * 10 > QUESTIONS * 9,
        "{with_packets} of {QUESTIONS} questions select packets"
    );
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
    let archive = Archive::new();
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
        let a = any();
        let b = any();
        let Some(expression) = expression(asked.len() % 10, a, b, addresses) else { continue };
        // libpcap refuses some that no packet can match, such as those about an IPv6 address and
        // ip[8].
        if asked.contains(&expression)
            || Filter::compile(&expression, LinkType::ETHERNET, 0).is_err()
        {
            continue;
        }
        let output = Command::new("tcpdump")
            .arg("--nano")
            .arg("-r")
            .arg(archive.plain())
            .args(["-w", "-", &expression])
            .output()
            .expect("tcpdump is installed");
        assert!(
            output.status.success(),
            "{expression}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let mut expected = records(Reader::new(Cursor::new(output.stdout)).unwrap());
        expected.sort_by_key(|(nanos, ..)| *nanos);
        let path = archive.path();
        let arguments =
            ["find", "-a", &path, "--force", "-w", chosen.to_str().unwrap(), &expression];
        let found = run(&arguments);
        assert!(found.is_success, "{expression}: {}", found.said);
        assert!(records(Reader::open(&chosen).unwrap()) == expected, "{expression}");
        let here = fs::read(&chosen).unwrap();
        let found = archive.cluster.run(&arguments);
        assert!(found.is_success, "{expression}: {}\n{}", found.said, archive.cluster.log());
        assert!(
            fs::read(&chosen).unwrap() == here,
            "{expression}: one machine and the cluster differ"
        );
        let bytes: usize = expected.iter().map(|(.., data)| data.len()).sum();
        let count = match expected.len() {
            0 => "0,".to_owned(),
            count => format!("{count},{bytes}"),
        };
        let quoted = expression.replace('\'', "''");
        let answer = archive.sql(&format!(
            "SELECT count(*), sum(captured) FROM packets WHERE pcap_filter('{quoted}')"
        ));
        assert_eq!(answer, [count], "{expression}");
        with_packets += usize::from(!expected.is_empty());
        asked.push(expression);
    }
    assert!(
        with_packets * 10 > QUESTIONS * 7,
        "{with_packets} of {QUESTIONS} questions select packets"
    );
}

/// Time, length and bytes of each packet.
fn records(mut reader: Reader) -> Vec<(u64, u32, Vec<u8>)> {
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        records.push((
            record.timestamp.unwrap().unix_nanos(),
            record.wire_len,
            record.data.to_vec(),
        ));
    }
    records
}
