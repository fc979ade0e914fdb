//! Third-party files read by the engine `file`, compared with the reader alone.

use std::path::Path;

use wirecap::savefile::Reader;
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
    assert_eq!((ledger.total.offered, ledger.total.delivered), (packets.len() as u64, packets.len() as u64));
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
