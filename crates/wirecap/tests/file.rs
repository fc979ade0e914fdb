//! Third-party files read by the engine `file`, compared with the reader alone.

use std::path::Path;

use wirecap::savefile::{FileSink, Format, Interface, Reader, Record, Section, Writer};
use wirecap::{Capture, CaptureError, OpenError, Timestamp, Timestamps};
use wirecap_testbed::traces;

/// The properties of a packet that both ways of reading have.
#[derive(Debug, PartialEq, Eq)]
struct Packet {
    interface: u32,
    nanos: Option<u64>,
    queue: Option<u32>,
    wire_len: u32,
    data: Vec<u8>,
}

/// The packets of a file from the reader, and whether the file was read completely.
fn read(path: &Path) -> (Vec<Packet>, bool) {
    let mut packets = Vec::new();
    let Ok(mut reader) = Reader::open(path) else { return (packets, false) };
    loop {
        match reader.next_record() {
            Ok(Some(record)) => packets.push(Packet {
                interface: record.interface,
                nanos: record.timestamp.map(Timestamp::unix_nanos),
                queue: record.queue,
                wire_len: record.wire_len,
                data: record.data.to_vec(),
            }),
            Ok(None) => return (packets, true),
            Err(_) => return (packets, false),
        }
    }
}

/// The packets of a file from the engine `file`, and whether the file was read completely.
fn captured(path: &Path) -> (Vec<Packet>, bool) {
    let builder = Capture::file(path).snap_len(u32::MAX).timestamps(Timestamps::Packet);
    let capture = match builder.open() {
        Ok(capture) => capture,
        Err(OpenError::Savefile { .. }) => return (Vec::new(), false),
        Err(error) => panic!("{}: {error}", path.display()),
    };
    let mut worker = capture.workers().pop().expect("a new capture has its worker");
    let mut packets = Vec::new();
    let whole = loop {
        match worker.next_chunk() {
            Ok(Some(chunk)) => packets.extend(chunk.iter().map(|packet| Packet {
                interface: chunk.interface_index() as u32,
                nanos: packet.timestamp().map(Timestamp::unix_nanos),
                queue: packet.queue(),
                wire_len: packet.wire_len(),
                data: packet.data().to_vec(),
            })),
            Ok(None) => break true,
            Err(CaptureError::Savefile { .. }) => break false,
            Err(error) => panic!("{}: {error}", path.display()),
        }
    };
    let ledger = capture.close();
    assert_eq!(
        (ledger.total.offered, ledger.total.delivered),
        (packets.len() as u64, packets.len() as u64)
    );
    (packets, whole)
}

#[test]
fn every_trace_passes_the_engine_unchanged() {
    for path in traces() {
        let (expected, read_to_end) = read(&path);
        let (packets, whole) = captured(&path);
        assert_eq!((packets.len(), whole), (expected.len(), read_to_end), "{}", path.display());
        for (packet, expected) in packets.into_iter().zip(expected) {
            assert_eq!(packet, expected, "{}", path.display());
        }
    }
}

/// How often this thread has given up its processor to wait.
fn waits() -> u64 {
    let status =
        std::fs::read_to_string("/proc/thread-self/status").expect("the thread has a status");
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok()).expect("the kernel counts them")
}

#[test]
fn reading_a_file_does_not_rest_between_chunks() {
    const PACKETS: u64 = 3000;
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path().join("alternating");
    let sink = FileSink::create(&path).expect("the folder is empty");
    let mut writer = Writer::new(sink, Format::Pcapng, &Section::default());
    for name in ["a", "b"] {
        let interface = Interface { name: Some(name.to_owned()), ..Interface::default() };
        writer.add_interface(&interface).expect("there is room");
    }
    // Each packet is a chunk, because a chunk has packets of one interface.
    for number in 0..PACKETS {
        let interface = (number % 2) as u32;
        let record = Record { interface, wire_len: 60, data: &[0; 60], ..Record::default() };
        writer.write(&record).expect("there is room");
    }
    writer.finish().expect("there is room");
    let before = waits();
    let (packets, whole) = captured(&path);
    let waits = waits() - before;
    assert_eq!((packets.len() as u64, whole), (PACKETS, true));
    assert!(waits < PACKETS / 10, "{waits} waits for {PACKETS} chunks");
}
