//! wirecap's files, read by common programs.

use std::fs;
use std::io::Cursor;
use std::path::Path;
use std::process::{Command, Output};

use wirecap_savefile::Timestamp;
use wirecap_savefile::{
    Direction, FileSink, Format, Interface, LinkType, Reader, Section, Statistics, StreamSink,
    Writer,
};

use crate::order::{Big, Little};
use crate::packet::{Packet, read_whole};

pub(crate) use crate::skip::skip;

/// Whether a program is installed; if not, the test is skipped.
pub(crate) fn has(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        skip(&format!("{program} is not installed"));
    }
    there
}

fn output(program: &str, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } =
        Command::new(program).args(arguments).output().expect("the program is installed");
    assert!(status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("tools write text")
}

/// The packets that libpcap reads from a file, and whether it reached the end. Times that libpcap
/// computes incorrectly are `None`.
///
/// tcpdump copies the packets to a pcap file, which is parsed here without the crate's reader.
pub(crate) fn tcpdump(path: &Path) -> (Vec<Packet>, bool) {
    let copy = Command::new("tcpdump")
        .arg("-r")
        .arg(path)
        .args(["--time-stamp-precision=nano", "-w", "-"])
        .output()
        .expect("tcpdump is installed");
    let mut rest = copy.stdout.get(24..).unwrap_or_default();
    let mut packets = Vec::new();
    while let Some((header, after)) = rest.split_at_checked(16) {
        let word =
            |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let (data, after) = after.split_at(word(8) as usize);
        // libpcap multiplies invalid microseconds in 32 bits, and returns invalid nanoseconds.
        let nanos = (word(4) < 1_000_000_000)
            .then(|| u64::from(word(0)) * 1_000_000_000 + u64::from(word(4)));
        packets.push(Packet { nanos, wire_len: word(12), ..Packet::plain(0, data) });
        rest = after;
    }
    (packets, copy.status.success())
}

const START_NS: u64 = 1_700_000_000_123_456_789;

/// Packets of all lengths that differ in padding, some truncated, with and without queue and
/// direction.
fn samples(interfaces: u32) -> Vec<Packet> {
    (0..200_u32)
        .map(|index| Packet {
            interface: index % interfaces,
            nanos: Some(START_NS + u64::from(index) * 1_000_000_007),
            queue: (index % 3 != 0).then_some(index),
            direction: [None, Some(Direction::Inbound), Some(Direction::Outbound)]
                [index as usize % 3],
            wire_len: 60 + index * (1 + index % 2),
            data: vec![index as u8; 60 + index as usize],
        })
        .collect()
}

fn ethernet(name: &str) -> Interface {
    Interface {
        name: Some(name.into()),
        description: Some("a veth pair".into()),
        filter: Some("udp and net 131.225.2.0/24".into()),
        hardware: Some("none".into()),
        os: Some("Linux".into()),
        time_source: Some("software clock".into()),
        ..Interface::default()
    }
}

fn section() -> Section {
    Section {
        application: Some("wirecap test".into()),
        os: Some("Linux 6.12".into()),
        hardware: Some("x86_64".into()),
        comment: Some("made for tcpdump and tshark".into()),
    }
}

/// A file with these packets and with statistics of its last interface.
fn sample_file(path: &Path, format: Format, interfaces: &[Interface], packets: &[Packet]) {
    let sink = FileSink::replace(path).expect("the folder can be written to");
    let mut writer = Writer::with_buffer(sink, format, &section(), 4096);
    for (index, interface) in interfaces.iter().enumerate() {
        assert_eq!(writer.add_interface(interface).expect("it fits"), index as u32);
    }
    for packet in packets {
        writer.write(&packet.record()).expect("it fits");
    }
    let statistics = Statistics {
        interface: interfaces.len() as u32 - 1,
        start: Some(Timestamp::from_unix_nanos(START_NS)),
        end: Some(Timestamp::from_unix_nanos(START_NS + 1_000_000_000_000)),
        received: Some(1000),
        dropped_by_interface: Some(10),
        accepted_by_filter: Some(900),
        dropped_by_os: Some(7),
        delivered: Some(883),
    };
    writer.statistics(&statistics).expect("the interface is there");
    let bytes = writer.file_bytes();
    let count = writer.packets();
    writer.finish().expect("the disk has room");
    assert_eq!(fs::metadata(path).expect("the file is there").len(), bytes);
    assert_eq!(count, packets.len() as u64);
}

#[test]
fn tcpdump_reads_the_written_files() {
    if !has("tcpdump") {
        return;
    }
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    for (format, interfaces) in [
        (Format::Pcap, vec![ethernet("eth0")]),
        (Format::Pcapng, vec![ethernet("eth0"), ethernet("eth1")]),
    ] {
        let path = folder.path().join("file");
        let packets = samples(interfaces.len() as u32);
        sample_file(&path, format, &interfaces, &packets);
        let expected: Vec<Packet> = packets
            .into_iter()
            .map(|packet| Packet { interface: 0, queue: None, direction: None, ..packet })
            .collect();
        assert_eq!(tcpdump(&path), (expected, true), "{format:?}");
    }
}

/// A line as tshark prints it.
fn tshark_line(packet: &Packet, names: &[&str]) -> String {
    let time = Timestamp::from_unix_nanos(packet.nanos.unwrap_or_default());
    let captured_len = packet.data.len();
    let queue = packet.queue.map(|queue| queue.to_string());
    let direction = match packet.direction {
        None => "",
        Some(Direction::Inbound) => "0x00000001",
        Some(Direction::Outbound) => "0x00000002",
    };
    let wire_len = packet.wire_len;
    let id = packet.interface;
    let name = names[packet.interface as usize];
    format!(
        "{time}\t{captured_len}\t{wire_len}\t{id}\t{name}\t{}\t{direction}",
        queue.unwrap_or_default()
    )
}

#[test]
fn tshark_reads_interfaces_queues_and_directions() {
    if !has("tshark") {
        return;
    }
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path().join("file.pcapng");
    let raw = Interface { link_type: LinkType::RAW, snap_len: 96, ..ethernet("tun0") };
    let packets = samples(2);
    sample_file(&path, Format::Pcapng, &[ethernet("eth0"), raw], &packets);
    let fields = [
        "frame.time_epoch",
        "frame.cap_len",
        "frame.len",
        "frame.interface_id",
        "frame.interface_name",
        "frame.interface_queue",
        "frame.packet_flags_direction",
    ];
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    let path = path.to_str().expect("its name is ASCII");
    let arguments: Vec<&str> = ["-r", path, "-T", "fields"].into_iter().chain(fields).collect();
    let expected: Vec<String> =
        packets.iter().map(|packet| tshark_line(packet, &["eth0", "tun0"])).collect();
    assert_eq!(output("tshark", &arguments).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn capinfos_reads_texts_and_statistics() {
    if !has("capinfos") {
        return;
    }
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path().join("file.pcapng");
    sample_file(&path, Format::Pcapng, &[ethernet("eth0")], &samples(1));
    let report = output("capinfos", &["-M", path.to_str().expect("its name is ASCII")]);
    for line in [
        "Number of packets:   200",
        "Capture application: wirecap test",
        "Capture oper-sys:    Linux 6.12",
        "Capture hardware:    x86_64",
        "Capture comment:     made for tcpdump and tshark",
        "Name = eth0",
        "Description = a veth pair",
        "Filter string = udp and net 131.225.2.0/24",
        "Hardware = none",
        "Operating system = Linux",
        "Comment = packet times: software clock",
        "Time precision = nanoseconds (9)",
        "Number of stat entries = 1",
    ] {
        assert!(report.contains(line), "no {line:?} in\n{report}");
    }
}

#[test]
fn a_file_and_a_stream_get_the_same_bytes() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path().join("file.pcap");
    let packets = samples(1);
    sample_file(&path, Format::Pcap, &[ethernet("eth0")], &packets);
    let sink = StreamSink::new(Vec::new(), "memory");
    let mut writer = Writer::new(sink, Format::Pcap, &section());
    writer.add_interface(&ethernet("eth0")).expect("it fits");
    for packet in &packets {
        writer.write(&packet.record()).expect("it fits");
    }
    let stream = writer.finish().expect("memory takes everything").into_inner();
    assert_eq!(fs::read(&path).expect("the file is there"), stream);
    assert_eq!(read_whole(&stream).len(), packets.len());
}

#[test]
fn versions_and_reserved_bits_are_accepted_as_by_tcpdump() {
    if !has("tcpdump") {
        return;
    }
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let tcpdump_reads = |file: &[u8]| {
        let path = folder.path().join("file");
        fs::write(&path, file).expect("the folder can be written to");
        let tcpdump = Command::new("tcpdump").arg("-nr").arg(&path).output();
        tcpdump.expect("it is installed").status.success()
    };
    let packet = [Little.words(&[5, 7, 4, 60]), vec![1, 2, 3, 4]].concat();
    for link_type in
        [0, 1 << 16, 1 << 25, 0x03ff_0000, 1 << 26, 1 << 26 | 2 << 28, 1 << 27, 2 << 28]
    {
        let head = [Little.u32(0xa1b2_c3d4), Little.u16(2), Little.u16(4)].concat();
        let file = [head, Little.words(&[0, 0, 65_535, 1 | link_type]), packet.clone()].concat();
        let ours = Reader::new(Cursor::new(file.clone()));
        assert_eq!(ours.is_ok(), tcpdump_reads(&file), "{link_type:#x}: {ours:?}");
        if let Ok(reader) = ours {
            let fcs_len = (link_type & 1 << 26 != 0).then_some((link_type >> 28) as u8 * 2);
            assert_eq!(reader.interfaces()[0].fcs_len, fcs_len, "{link_type:#x}");
        }
    }
    for order in [Little, Big] {
        for (minor, reserved) in [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (0, 0xffff)] {
            let version = [order.u16(1), order.u16(minor)].concat();
            let section = order
                .block(0x0a0d_0d0a, &[order.u32(0x1a2b_3c4d), version, vec![0xff; 8]].concat());
            let interface = [order.u16(1), order.u16(reserved), order.u32(65_535)].concat();
            let file =
                [section, order.block(1, &interface), order.enhanced(5, [1, 2, 3, 4])].concat();
            let ours = Reader::new(Cursor::new(file.clone())).is_ok();
            assert_eq!(ours, tcpdump_reads(&file), "1.{minor}, reserved {reserved:#x}, {order:?}");
        }
    }
}
