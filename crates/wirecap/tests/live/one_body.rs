//! One body for all sources of packets: the engines `xdp`, `packet` and `file`, and the simulated
//! ring.

use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use wirecap::savefile::{FileSink, Format, Interface, Record, Section, Writer};
use wirecap::sim::{Answer, Fate, SimCapture, SimSettings};
use wirecap::{Capture, Chunk, Engine, Geometry, Ledger, Timestamp, Timestamps};
use wirecap_testbed::{PacketSender, privileged};

use crate::bed::{Bed, PATIENCE, heads_agree, unix_nanos};
use crate::frames::flows;

const CHUNK: u32 = 64;

/// Packets of IPv4 and IPv6, of many lengths, some of them in VLANs or in VLANs in VLANs.
fn packets() -> Vec<Vec<u8>> {
    let payload = prop::collection::vec(any::<u8>(), 18..1400);
    let packet = (flows(), any::<bool>(), payload)
        .prop_map(|(flow, forth, payload)| flow.frame(forth, &payload));
    let mut runner = TestRunner::deterministic();
    (0..1000).map(|_| packet.new_tree(&mut runner).unwrap().current()).collect()
}

/// Checks that `next` returns and `close` accounts for `packets`: each once, complete, in order,
/// with its length and a time from `earliest` on, in chunks with increasing numbers.
fn check(
    packets: &[Vec<u8>],
    earliest: u64,
    mut next: impl FnMut() -> Option<Chunk>,
    close: impl FnOnce() -> Ledger,
) {
    let mut expected = packets.iter();
    let mut sequence = 0;
    let mut last_time = earliest;
    while expected.len() > 0 {
        let chunk = next().unwrap_or_else(|| panic!("{} packets did not come", expected.len()));
        assert_eq!(
            (chunk.sequence(), chunk.ring_index(), chunk.interface_index()),
            (sequence, 0, 0)
        );
        assert!((1..=CHUNK as usize).contains(&chunk.len()) && !chunk.is_offloaded());
        assert_eq!(
            chunk.wire_bytes(),
            chunk.iter().map(|packet| u64::from(packet.wire_len())).sum::<u64>()
        );
        sequence += 1;
        heads_agree(&chunk);
        for packet in &chunk {
            let sent = expected.next().expect("no more packets come than were sent");
            assert_eq!((packet.data(), packet.wire_len() as usize), (&sent[..], sent.len()));
            let time = packet.timestamp().expect("times were asked for").unix_nanos();
            assert!(time >= last_time, "{} ns too early", last_time - time);
            last_time = time;
        }
    }
    assert!(last_time <= unix_nanos(), "packets from the future");
    let ledger = close();
    let total = &ledger.total;
    let count = packets.len() as u64;
    assert_eq!(
        (total.offered, total.delivered, total.filtered),
        (count, count, Some(0)),
        "{ledger}"
    );
    assert_eq!(
        total.bytes,
        packets.iter().map(|packet| packet.len() as u64).sum::<u64>(),
        "{ledger}"
    );
    assert!(ledger.is_lossless() && total.offloaded_chunks == 0, "{ledger}");
    let [ring] = &ledger.rings[..] else { panic!("one ring: {ledger}") };
    assert_eq!((ring.account.offered, ring.account.delivered), (count, count), "{ledger}");
}

fn check_live(engine: Engine) {
    if !privileged() {
        return;
    }
    let bed = Bed::new(engine, 1);
    let packets = packets();
    let capture = bed.open(bed.small().chunk(CHUNK).timestamps(Timestamps::Packet));
    let mut worker = capture.workers().pop().unwrap();
    let earliest = unix_nanos();
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    packets.iter().for_each(|packet| sender.send(packet).unwrap());
    check(
        &packets,
        earliest,
        || worker.next_chunk_timeout(PATIENCE).unwrap(),
        || bed.close(capture),
    );
}

#[test]
fn xdp() {
    check_live(Engine::Xdp);
}

#[test]
fn packet() {
    check_live(Engine::Packet);
}

#[test]
fn file() {
    let folder = tempfile::tempdir().unwrap();
    let packets = packets();
    let earliest = unix_nanos() - 1_000_000;
    for (format, name) in [(Format::Pcapng, "pcapng"), (Format::Pcap, "pcap")] {
        let path = folder.path().join(name);
        let mut writer = Writer::new(FileSink::create(&path).unwrap(), format, &Section::default());
        writer.add_interface(&Interface::default()).unwrap();
        for (packet, time) in packets.iter().zip(earliest..) {
            let timestamp = Some(Timestamp::from_unix_nanos(time));
            let wire_len = packet.len() as u32;
            let record = Record {
                interface: 0,
                timestamp,
                queue: None,
                direction: None,
                wire_len,
                data: packet,
                ..Record::default()
            };
            writer.write(&record).unwrap();
        }
        writer.finish().unwrap();
        let capture =
            Capture::file(&path).chunk(CHUNK).timestamps(Timestamps::Packet).open().unwrap();
        let mut worker = capture.workers().pop().unwrap();
        check(&packets, earliest, || worker.next_chunk().unwrap(), || capture.close());
    }
}

#[test]
fn sim() {
    let packets = packets();
    let earliest = unix_nanos() - 1_000_000;
    let geometry = Geometry { chunk_cells: CHUNK, chunks: 256, cell_bytes: 2048 };
    let capture = SimCapture::new(&SimSettings { geometry, ..SimSettings::default() });
    for (packet, time) in packets.iter().zip(earliest..) {
        let fate = capture.kernel(0).receive(packet, Timestamp::from_unix_nanos(time));
        assert_eq!(fate, Fate::Received);
    }
    let mut worker = capture.worker(0);
    let next = || match worker.ask(Duration::ZERO).unwrap() {
        Answer::Chunk { chunk, .. } => Some(chunk),
        _ => None,
    };
    let close = || {
        capture.close();
        capture.ledger(Duration::from_secs(1))
    };
    check(&packets, earliest, next, close);
}
