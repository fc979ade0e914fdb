//! The system's tcpdump, with both libraries at the same time.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use common::{Bed, Library, finish, said, signal_to};
use rustix::process::Signal;
use wirecap::savefile::Reader;
use wirecap_testbed::{PacketSender, Sizes, Stamp, Traffic, privileged};

/// Starts tcpdump, and waits until it captures.
fn start(bed: &Bed, library: Library, device: &str, file: &Path, arguments: &[&str]) -> Child {
    let mut command = bed.command("tcpdump", library);
    command.args(["-i", device, "-U", "-Z", "root", "-w"]).arg(file).args(arguments);
    let mut child = bed.spawn(command.stderr(Stdio::piped()));
    // The line is read byte by byte, so that later output is left for `finish`.
    let mut line = String::new();
    let mut said = BufReader::with_capacity(1, child.stderr.take().unwrap());
    while !line.contains("listening on") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "tcpdump ended: {line}");
    }
    child.stderr = Some(said.into_inner());
    child
}

fn stop(child: Child) -> String {
    signal_to(&child, Signal::INT);
    said(&finish(child))
}

/// The packets of a savefile: bytes and length on the wire.
fn packets(file: &Path) -> Vec<(Vec<u8>, u32)> {
    let mut reader = Reader::open(file).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        packets.push((record.data.to_vec(), record.wire_len));
    }
    packets
}

/// Sends frames of several lengths, numbered from `first` on. Every third frame has a VLAN tag,
/// unless it is long.
fn send(bed: &Bed, first: u64, count: u64) {
    let traffic = Traffic { sizes: Sizes::imix(), flows: 16, ..Traffic::to(&bed.pair.receiver) };
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    for sequence in first..first + count {
        let mut frame = traffic.frame(Stamp { queue: 0, sequence });
        if sequence % 3 == 0 && frame.len() < 1500 {
            frame.splice(12..12, [0x81, 0, 0x20, 7]);
        }
        sender.send(&frame).unwrap();
    }
}

/// Sends 3,000 frames to tcpdump with both libraries, and asserts that both record the same
/// `expected` packets.
fn same_packets(device: &str, arguments: &[&str], expected: u64) {
    let bed = Bed::new();
    let folder = tempfile::tempdir().unwrap();
    let files = [folder.path().join("system"), folder.path().join("drop-in")];
    let system = start(&bed, Library::System, "a1", &files[0], arguments);
    let ours = start(&bed, Library::DropIn, device, &files[1], arguments);
    for first in (0..3000).step_by(100) {
        send(&bed, first, 100);
        std::thread::sleep(Duration::from_millis(2));
    }
    // Both deliver the last packets within a second.
    let deadline = std::time::Instant::now() + common::PATIENCE;
    while files.iter().any(|file| (packets(file).len() as u64) < expected) {
        assert!(std::time::Instant::now() < deadline, "packets are missing");
        std::thread::sleep(Duration::from_millis(50));
    }
    let theirs = stop(system);
    let ours = stop(ours);
    let counts = format!(
        "{expected} packets captured\n{expected} packets received by filter\n0 packets dropped by kernel\n"
    );
    assert!(theirs.ends_with(&counts), "{theirs}");
    assert!(ours.ends_with(&counts), "{ours}");
    let theirs = packets(&files[0]);
    let ours = packets(&files[1]);
    assert_eq!(ours.len() as u64, expected);
    let differs = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
    assert_eq!(differs, None, "the first packet that differs");
}

#[test]
fn tcpdump_records_the_same_packets() {
    if privileged() {
        same_packets("a1", &[], 3000);
    }
}

#[test]
fn tcpdump_records_the_same_packets_with_a_filter_and_a_snapshot_length() {
    if privileged() {
        // All frames are UDP. Every third frame is tagged if it is short.
        same_packets(
            "a1",
            &["-s", "50", "vlan", "7", "and", "udp"],
            1000 - (0..1000).filter(|n| is_long(3 * n)).count() as u64,
        );
    }
}

fn is_long(sequence: u64) -> bool {
    Sizes::imix().frame_bytes(sequence) >= 1500
}

#[test]
fn tcpdump_captures_a_receive_queue() {
    if privileged() {
        same_packets("a1@0", &[], 3000);
    }
}

#[test]
fn tcpdump_captures_on_the_engine_xdp() {
    if !privileged() {
        return;
    }
    let bed = Bed::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("xdp");
    let mut command = bed.command("tcpdump", Library::DropIn);
    command.env("WIRECAP_ENGINE", "xdp").env("WIRECAP_M", "64").env("WIRECAP_R", "64");
    command
        .args(["-i", "a1", "-U", "-Z", "root", "-c", "200", "-w"])
        .arg(&file)
        .args(["udp", "and", "not", "vlan"]);
    let mut child = bed.spawn(command.stderr(Stdio::piped()));
    let mut said_first = BufReader::with_capacity(1, child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("listening on") {
        line.clear();
        assert!(said_first.read_line(&mut line).unwrap() > 0, "tcpdump ended: {line}");
    }
    child.stderr = Some(said_first.into_inner());
    send(&bed, 0, 300);
    let text = said(&finish(child));
    assert!(text.contains("200 packets captured"), "{text}");
    let stamps: Vec<u64> =
        packets(&file).iter().map(|(data, _)| Stamp::of(data).unwrap().sequence).collect();
    let expected: Vec<u64> = (0..300).filter(|n| n % 3 != 0 || is_long(*n)).take(200).collect();
    assert_eq!(stamps, expected);
}
