//! Tests of the engine `packet` only.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use rustix::time::{ClockId, clock_gettime};
use wirecap::savefile::Reader;
use wirecap::{
    Capture, CaptureBuilder, Chunk, Direction, Engine, NextBlock, OpenError, Reception, Timestamps,
    Warning, Worker,
};
use wirecap_testbed::{
    AfXdpSender, Counters, Load, Namespace, PacketSender, Sizes, Stamp, Traffic, VethPair,
    loss_lock, privileged, wait_until,
};

use crate::bed::{Bed, PATIENCE, balanced, ip, take};
use crate::every_engine::come_by_flow;
use crate::frames::{Flow, flows};

fn bed(queue_count: u32) -> Option<Bed> {
    privileged().then(|| Bed::new(Engine::Packet, queue_count))
}

/// The packets that arrive until none has arrived for a while.
fn all(worker: &mut Worker) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while let Some(chunk) = worker.next_chunk_timeout(Duration::from_millis(300)).unwrap() {
        packets.extend(chunk.iter().map(|packet| packet.data().to_vec()));
    }
    packets
}

/// Frames with up to three tags, of any length and any content.
fn assorted_frames(count: usize) -> Vec<Vec<u8>> {
    let tag = prop_oneof![Just([0x81, 0x00]), Just([0x88, 0xa8])]
        .prop_flat_map(|protocol| any::<[u8; 2]>().prop_map(move |tag| [protocol, tag].concat()));
    let tags = prop::collection::vec(tag, 0..=3).prop_map(|tags| tags.concat());
    let protocol = prop_oneof![
        Just(vec![8, 0]),
        Just(vec![0x86, 0xdd]),
        Just(vec![8, 6]),
        Just(vec![0x12, 0x34])
    ];
    let payload = prop::collection::vec(any::<u8>(), 0..1400);
    let frame = (any::<[u8; 11]>(), tags, protocol, payload).prop_map(
        |(addresses, tags, protocol, payload)| {
            [&[2], &addresses[..], &tags[..], &protocol[..], &payload[..]].concat()
        },
    );
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| frame.new_tree(&mut runner).unwrap().current()).collect()
}

/// The packets of a savefile that may still be written to: bytes, length on the wire, nanoseconds.
fn records(path: &Path) -> Vec<(Vec<u8>, u32, u64)> {
    let mut records = Vec::new();
    let Ok(mut reader) = Reader::open(path) else { return records };
    while let Ok(Some(record)) = reader.next_record() {
        records.push((
            record.data.to_vec(),
            record.wire_len,
            record.timestamp.unwrap().unix_nanos(),
        ));
    }
    records
}

#[test]
fn packets_that_a_block_reader_leaves_arrive_as_chunks() {
    let Some(bed) = bed(1) else { return };
    let capture = bed.open(bed.small().chunk(64).timestamps(Timestamps::Packet));
    let mut worker = capture.workers().pop().unwrap();
    let mut blocks = worker.block_reader().expect("one worker has one ring of blocks");
    assert_eq!((blocks.open_next(), blocks.len()), (NextBlock::Nothing, 0));
    let frames = assorted_frames(600);
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    let mut read = Vec::new();
    let mut turns = 0;
    for frames in frames.chunks(60) {
        frames.iter().for_each(|frame| sender.send(frame).unwrap());
        let deadline = Instant::now() + PATIENCE;
        let end = read.len() + frames.len();
        while read.len() < end {
            assert!(Instant::now() < deadline, "{} of {end} packets came", read.len());
            let NextBlock::Packets(packets) = blocks.open_next() else {
                // Packets that were put back are delivered as chunks, including the last one.
                while let Some(chunk) = worker.try_next_chunk().unwrap() {
                    read.extend(chunk.iter().map(|packet| packet.data().to_vec()));
                }
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            turns += 1;
            // All packets, or a part, some of them twice.
            let wanted = if turns % 2 == 0 { packets } else { packets / 2 };
            let mut heads = Vec::new();
            assert_eq!(
                blocks.for_each_head(0..packets, |head| heads.push(head.data.to_vec())),
                packets
            );
            let again = packets / 3..wanted.max(packets / 3);
            let mut twice = Vec::new();
            blocks.for_each_head(again.clone(), |head| {
                assert!(head.wire_len as usize >= head.data.len() && head.seconds > 0);
                twice.push(head.data.to_vec());
            });
            assert_eq!(twice, heads[again.start as usize..again.end as usize]);
            read.extend(heads.drain(..wanted as usize));
            blocks.put_back(wanted);
        }
    }
    assert!(read == frames, "other packets");
    drop(blocks);
    let ledger = bed.close(capture);
    balanced(&ledger, frames.len() as u64);
    assert_eq!(ledger.total.delivered, frames.len() as u64, "{ledger}");
    assert_eq!(
        ledger.total.bytes,
        frames.iter().map(|frame| frame.len() as u64).sum::<u64>(),
        "{ledger}"
    );
}

#[test]
fn only_a_lone_reader_of_blocks_gets_them_in_place() {
    let Some(bed) = bed(2) else { return };
    let capture = bed.open(bed.small().workers(2));
    assert!(
        capture.workers().iter().all(|worker| worker.block_reader().is_none()),
        "two have a ring each"
    );
    drop(capture);
    let capture = bed.open(bed.small().workers(1).immediate(65_535));
    assert!(capture.workers()[0].block_reader().is_none(), "a ring of frames has no blocks");
}

#[test]
fn options_of_the_engine_xdp_are_rejected() {
    let Some(bed) = bed(1) else { return };
    let (error, text) = bed.refusal(bed.small().warm(1000));
    assert!(matches!(error, OpenError::XdpOnly { .. }), "{text}");
    assert!(text.contains("warm cells") && text.contains("a1"), "{text}");
    let (error, text) = bed.refusal(bed.small().elastic());
    assert!(matches!(error, OpenError::XdpOnly { .. }), "{text}");
    assert!(text.contains("elastic") && text.contains("--engine xdp"), "{text}");
    bed.assert_untouched();
}

#[test]
fn tcpdump_sees_the_same_packets() {
    let Some(bed) = bed(1) else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tcpdump.pcap");
    let file = path.to_str().unwrap();
    let arguments = ["-i", "a1", "-U", "-B", "32768", "-Z", "root", "-w", file];
    let start = || Command::new("tcpdump").args(arguments).stderr(Stdio::piped()).spawn();
    let mut tcpdump = bed.at_receiver(start).expect("tcpdump is installed (make test installs it)");
    let mut said = BufReader::new(tcpdump.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("listening on") {
        assert!(said.read_line(&mut line).unwrap() > 0, "tcpdump ended: {line}");
    }
    let capture = bed.open(bed.small().timestamps(Timestamps::Packet));
    let mut worker = capture.workers().pop().unwrap();
    let frames = assorted_frames(2000);
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    frames.iter().for_each(|frame| sender.send(frame).unwrap());

    let mut ours = Vec::new();
    while let Some(chunk) = worker.next_chunk_timeout(Duration::from_millis(500)).unwrap() {
        ours.extend(chunk.iter().map(|packet| {
            (packet.data().to_vec(), packet.wire_len(), packet.timestamp().unwrap().unix_nanos())
        }));
    }
    // tcpdump loses packets that it has not written when it ends, so the test waits.
    let deadline = Instant::now() + PATIENCE;
    let mut theirs = records(&path);
    while theirs.len() < ours.len() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(100));
        theirs = records(&path);
    }
    tcpdump.kill().unwrap();
    tcpdump.wait().unwrap();
    assert_eq!(ours.len(), theirs.len());
    for (index, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!((&ours.0, ours.1), (&theirs.0, theirs.1), "packet {index}");
        assert!(
            ours.2.abs_diff(theirs.2) < 100_000_000,
            "packet {index}: {} and {}",
            ours.2,
            theirs.2
        );
    }
    // Before any socket sees them, the kernel drops frames that end within or right behind their
    // first tag.
    let seen: Vec<&Vec<u8>> = ours.iter().map(|(data, ..)| data).collect();
    let whole =
        |frame: &&Vec<u8>| frame.len() >= 20 || !matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8]);
    assert!(seen.into_iter().eq(frames.iter().filter(whole)));
    balanced(&bed.close(capture), ours.len() as u64);
}

#[test]
fn a_snap_length_below_a_tag_still_records_the_tag_and_the_true_length() {
    let Some(bed) = bed(1) else { return };
    for snap_len in [1, 13, 14, 18, 100] {
        let capture = bed.open(bed.small().snap_len(snap_len));
        let mut worker = capture.workers().pop().unwrap();
        let tagged: Vec<u8> = (0..200)
            .map(|n| if (12..16).contains(&n) { [0x81, 0, 0, 5][n - 12] } else { n as u8 & !1 })
            .collect();
        PacketSender::on(&bed.pair.sender).unwrap().send(&tagged).unwrap();
        take(&mut worker, 1, |chunk| {
            let packet = chunk.get(0).unwrap();
            assert_eq!((packet.data(), packet.wire_len()), (&tagged[..snap_len as usize], 200));
        });
        balanced(&bed.close(capture), 1);
    }
}

#[test]
fn each_direction_of_an_encrypted_flow_uses_one_ring() {
    if !privileged() {
        return;
    }
    // The kernel treats the security parameter index as ports, and it differs between the
    // directions.
    come_by_flow(Engine::Packet, 1000, |flow, forth, number| {
        let number = 2 * u32::from_be_bytes(*number) + u32::from(forth);
        vec![flow.encrypted(forth, &number.to_be_bytes())]
    });
}

/// Sends `per_queue` stamped frames to each queue.
fn send_to_queues(bed: &Bed, queues: u16, per_queue: u64) {
    let traffic = bed.traffic();
    for queue in 0..queues {
        let mut sender = AfXdpSender::on(&bed.pair.sender, queue.into()).unwrap();
        (0..per_queue)
            .for_each(|sequence| sender.send(&traffic.frame(Stamp { queue, sequence })).unwrap());
        sender.flush().unwrap();
    }
}

#[test]
fn rings_of_some_queues_get_the_packets_of_those_only() {
    let Some(bed) = bed(4) else { return };
    let capture = bed.open(bed.small_on("a1@1,3").workers(1));
    let names: Vec<String> = capture.rings().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["a1@1", "a1@3"]);
    let mut worker = capture.workers().pop().unwrap();
    let mut expect = |per_queue: u64| {
        send_to_queues(&bed, 4, per_queue);
        take(&mut worker, 2 * per_queue, |chunk| {
            for packet in chunk {
                assert_eq!(packet.queue(), Some(Stamp::of(packet.data()).unwrap().queue.into()));
                assert_eq!(packet.queue(), Some(chunk.ring().queue));
            }
        });
        assert!(worker.next_chunk_timeout(Duration::from_millis(100)).unwrap().is_none());
    };
    expect(100);
    // The kernel takes the sockets out of their group and puts them back.
    ip(&bed.receiver, &["link", "set", "a1", "down"]);
    ip(&bed.receiver, &["link", "set", "a1", "up"]);
    thread::sleep(Duration::from_millis(100));
    expect(50);
    let ledger = bed.close(capture);
    balanced(&ledger, 300);
    assert!(ledger.warnings.is_empty(), "{:?}", ledger.warnings);
}

/// Sends some random flows to each of this many queues, in both directions. The last bytes contain
/// the queue and the flow's number, and the sender's address shows the direction.
fn send_flows_to_queues(bed: &Bed, queues: u8) -> Vec<Vec<u8>> {
    let mut runner = TestRunner::deterministic();
    let flows: Vec<Flow> =
        (0..400).map(|_| flows().new_tree(&mut runner).unwrap().current()).collect();
    let mut sent = Vec::new();
    for queue in 0..queues {
        let mut sender = AfXdpSender::on(&bed.pair.sender, queue.into()).unwrap();
        for forth in [true, false] {
            for (flow, number) in flows.iter().zip(0u16..) {
                let [high, low] = number.to_be_bytes();
                let frame = flow.frame(forth, &[0, queue, high, low]);
                sender.send(&frame).unwrap();
                sent.push(frame);
            }
        }
        sender.flush().unwrap();
    }
    sent
}

/// What [`send_flows_to_queues`] wrote at the end of a frame: queue and number.
fn flow_of(frame: &[u8]) -> [u8; 4] {
    *frame.last_chunk().unwrap()
}

/// The packets in the rings, after checking that each flow is in one ring of its queue.
fn all_by_flow(
    workers: &mut [Worker],
    ring_of_flow: &mut HashMap<[u8; 4], String>,
) -> Vec<Vec<u8>> {
    let mut received = Vec::new();
    for worker in workers {
        while let Some(chunk) = worker.next_chunk_timeout(Duration::from_millis(100)).unwrap() {
            for packet in &chunk {
                let flow = flow_of(packet.data());
                assert_eq!(packet.queue(), Some(flow[1].into()));
                let ring = chunk.ring().to_string();
                let before = ring_of_flow.entry(flow).or_insert_with(|| ring.clone());
                assert_eq!(*before, ring, "flow {flow:?}");
                received.push(packet.data().to_vec());
            }
        }
    }
    received.sort_unstable();
    received
}

/// Captures from some of four queues with more workers than queues: the rings have `names`, share
/// the packets of their queues evenly, and each packet arrives once.
fn queues_are_shared_out(device: &str, queues: &[u8], names: &[&str]) {
    let Some(bed) = bed(4) else { return };
    let capture = bed.open(bed.small_on(device).workers(names.len()));
    let rings: Vec<String> = capture.rings().iter().map(ToString::to_string).collect();
    assert_eq!(rings, names);
    let mut workers = capture.workers();
    assert_eq!(workers.len(), names.len());
    let mut ring_of_flow = HashMap::new();
    let mut total = 0;
    let mut expect = |wanted: &dyn Fn(&[u8]) -> bool| {
        let mut sent = send_flows_to_queues(&bed, 4);
        sent.retain(|frame| queues.contains(&flow_of(frame)[1]) && wanted(frame));
        sent.sort_unstable();
        let received = all_by_flow(&mut workers, &mut ring_of_flow);
        assert!(received == sent, "{} of {} packets, or others", received.len(), sent.len());
        total += sent.len() as u64;
    };
    expect(&|_| true);
    // A filter that is set while the capture runs finds the queue's packets in all of its rings.
    bed.at_receiver(|| capture.set_filter("ether src 02:00:00:00:00:01")).unwrap();
    expect(&|frame| frame[11] == 1);
    bed.at_receiver(|| capture.set_filter("")).unwrap();
    // The kernel takes the sockets out of their group and puts them back.
    ip(&bed.receiver, &["link", "set", "a1", "down"]);
    ip(&bed.receiver, &["link", "set", "a1", "up"]);
    thread::sleep(Duration::from_millis(100));
    expect(&|_| true);
    let ledger = bed.close(capture);
    balanced(&ledger, total);
    assert_eq!(ledger.total.delivered, total, "{ledger}");
    assert!(ledger.warnings.is_empty(), "{:?}", ledger.warnings);
    for (ring, name) in ledger.rings.iter().zip(names) {
        let queue = name.rsplit_once('.').map_or(*name, |(queue, _)| queue);
        let parts = names.iter().filter(|name| name.starts_with(queue)).count();
        let fair = total / (queues.len() * parts) as u64;
        assert!(ring.name == *name && ring.account.delivered > fair / 2, "unfair: {ledger}");
    }
}

#[test]
fn the_packets_of_one_queue_are_shared_out_to_all_workers_by_flow() {
    queues_are_shared_out("a1@2", &[2], &["a1@2.0", "a1@2.1", "a1@2.2", "a1@2.3"]);
}

#[test]
fn queues_with_several_rings_can_be_combined_with_queues_with_one() {
    let names = ["a1@0.0", "a1@0.1", "a1@1.0", "a1@1.1", "a1@3"];
    queues_are_shared_out("a1@0,1,3", &[0, 1, 3], &names);
}

#[test]
fn the_only_queue_of_an_interface_is_shared_out_like_any_other() {
    let Some(bed) = bed(1) else { return };
    let capture = bed.open(bed.small_on("a1@0").workers(3));
    let names: Vec<String> = capture.rings().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["a1@0.0", "a1@0.1", "a1@0.2"]);
    let mut sent = send_flows_to_queues(&bed, 1);
    sent.sort_unstable();
    assert!(all_by_flow(&mut capture.workers(), &mut HashMap::new()) == sent);
    let ledger = bed.close(capture);
    balanced(&ledger, sent.len() as u64);
    assert!(
        ledger.rings.iter().all(|ring| ring.account.delivered > sent.len() as u64 / 6),
        "{ledger}"
    );
}

#[test]
fn a_direction_is_captured_alone() {
    let Some(bed) = bed(1) else { return };
    let cases = [
        (Direction::In, vec![1, 3]),
        (Direction::Out, vec![2, 4]),
        (Direction::InOut, vec![1, 2, 3, 4]),
    ];
    for (direction, expected) in cases {
        for workers in [1, 2] {
            let capture = bed.open(bed.small().direction(direction).workers(workers));
            let mut to = PacketSender::on(&bed.pair.sender).unwrap();
            let mut from = PacketSender::on(&bed.pair.receiver).unwrap();
            for number in 1..=4 {
                let sender = if number % 2 == 1 { &mut to } else { &mut from };
                sender.send(&[number; 60]).unwrap();
            }
            let mut numbers: Vec<u8> =
                capture.workers().iter_mut().flat_map(all).map(|packet| packet[0]).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, expected, "{direction:?} with {workers} workers");
            balanced(&bed.close(capture), expected.len() as u64);
        }
    }
    let (error, text) = bed.refusal(bed.small_on("a1@0").direction(Direction::Out));
    assert!(matches!(error, OpenError::ReceivedOnly { .. }), "{text}");
    let (error, text) = bed.refusal(bed.small().engine(Engine::Xdp).direction(Direction::InOut));
    assert!(matches!(error, OpenError::ReceivedOnly { .. }), "{text}");
}

#[test]
fn the_loopback_interface_shows_each_packet_once() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new().unwrap();
    ip(&namespace, &["link", "set", "lo", "up"]);
    for direction in [Direction::In, Direction::Out, Direction::InOut] {
        namespace
            .run_in(|| {
                let capture =
                    Capture::on("lo").chunk(64).pool(16).direction(direction).open().unwrap();
                assert_eq!(
                    capture.interfaces()[0].why.as_deref(),
                    Some("it is the loopback interface")
                );
                assert_eq!(capture.interfaces()[0].reception.engine(), Engine::Packet);
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                (0..10u8).for_each(|n| assert_eq!(socket.send_to(&[n], "127.0.0.1:9").unwrap(), 1));
                let mut worker = capture.workers().pop().unwrap();
                let udp: Vec<u8> = all(&mut worker)
                    .iter()
                    .filter(|packet| packet[23] == 17)
                    .map(|packet| packet[42])
                    .collect();
                assert!(udp.into_iter().eq(0..10), "{direction:?}");
            })
            .unwrap();
    }
}

/// The number of blocks of a ring, and the bytes of each.
fn blocks(capture: &Capture) -> (u32, u32) {
    let Reception::Packet { blocks, block_bytes, .. } = capture.interfaces()[0].reception else {
        panic!()
    };
    (blocks, block_bytes)
}

#[test]
fn a_ring_holds_as_many_full_frames_as_its_pool_has_cells() {
    let Some(bed) = bed(1) else { return };
    let _lock = loss_lock().unwrap();
    // A block that a timer closes is not full, and may cost the packet that arrives at that moment
    // (docs/design/packet.md).
    let when_full = Capture::on("a1").engine(Engine::Packet).retire_after(PATIENCE / 10);
    let capture = bed.open(when_full.chunk(64).pool(128));
    assert_eq!(blocks(&capture), (128, 64 * 2048));
    let mut worker = capture.workers().pop().unwrap();
    let traffic = Traffic { sizes: Sizes::fixed(1514), ..bed.traffic() };
    let mut generator = wirecap_testbed::Generator::new(&bed.pair.sender, &traffic).unwrap();
    let sent = generator.send(&[Load::new(0, 64 * 128).per_second(200_000)]).unwrap()[0].frames;
    take(&mut worker, sent, |chunk| assert!(chunk.len() <= 64));
    let ledger = bed.close(capture);
    balanced(&ledger, sent);
    assert!(ledger.is_lossless(), "{ledger}");
}

#[test]
fn small_chunks_get_blocks_that_hold_every_packet() {
    let Some(bed) = bed(1) else { return };
    let capture = bed.open(bed.small().chunk(3).pool(5));
    assert_eq!(blocks(&capture), (5, 128 * 1024));
    let mut worker = capture.workers().pop().unwrap();
    bed.generator().send(&[Load::new(0, 1000)]).unwrap();
    take(&mut worker, 1000, |chunk| assert!(chunk.len() <= 3));
    balanced(&bed.close(capture), 1000);
}

#[test]
fn small_blocks_take_the_memory_of_the_pool() {
    let Some(bed) = bed(1) else { return };
    let capture = bed.open(bed.small().chunk(256).pool(4).small_blocks());
    assert_eq!(blocks(&capture), (16, 128 * 1024));
    let mut worker = capture.workers().pop().unwrap();
    bed.generator().send(&[Load::new(0, 1000)]).unwrap();
    take(&mut worker, 1000, |chunk| assert!(chunk.len() <= 256));
    balanced(&bed.close(capture), 1000);
}

#[test]
fn a_chunk_held_for_long_stops_its_ring_and_the_ledger_counts_it() {
    let Some(bed) = bed(1) else { return };
    let capture = bed.open(bed.small().pool(8));
    let mut worker = capture.workers().pop().unwrap();
    let mut generator = bed.generator();
    let mut sequences = Vec::new();
    let note = |chunk: &Chunk, sequences: &mut Vec<u64>| {
        sequences.extend(chunk.iter().map(|packet| Stamp::of(packet.data()).unwrap().sequence));
    };
    generator.send(&[Load::new(0, 10)]).unwrap();
    let held = worker.next_chunk_timeout(PATIENCE).unwrap().unwrap();
    note(&held, &mut sequences);
    // Far more than the other seven blocks hold, although each of them is returned at once.
    generator.send(&[Load::new(0, 20_000).per_second(200_000)]).unwrap();
    while let Some(chunk) = worker.next_chunk_timeout(Duration::from_millis(200)).unwrap() {
        note(&chunk, &mut sequences);
    }
    let ledger = bed.at_receiver(|| capture.ledger());
    balanced(&ledger, 20_010);
    assert!(ledger.total.dropped.no_cell > 10_000, "{ledger}");
    assert_eq!(ledger.total.dropped.no_cell, ledger.total.dropped.total(), "{ledger}");
    assert!(ledger.total.stalls >= 1, "{ledger}");
    let delivered = sequences.len() as u64;
    assert!(sequences.drain(..).eq(0..delivered), "what came before the stall came in order");

    drop(held);
    // The kernel continues at the returned block.
    generator.send(&[Load::new(0, 1000)]).unwrap();
    take(&mut worker, 1000, |chunk| note(chunk, &mut sequences));
    assert!(sequences.into_iter().eq(20_010..21_010));
    let after = bed.close(capture);
    balanced(&after, 21_010);
    assert_eq!(after.total.dropped, ledger.total.dropped);
}

#[test]
fn blocks_of_chunks_returned_in_any_order_are_reused() {
    let Some(bed) = bed(1) else { return };
    let capture = bed.open(bed.small().pool(16));
    let mut worker = capture.workers().pop().unwrap();
    let mut generator = bed.generator();
    let mut next = 0;
    let mut held: Vec<Chunk> = Vec::new();
    for round in 0..100 {
        generator.send(&[Load::new(0, 700)]).unwrap();
        take_into(&mut worker, 700, &mut held);
        let first_new = next;
        let is_new = |frame: &&[u8]| sequence(frame) >= first_new;
        for frame in held.iter().flatten().map(|packet| packet.data()).filter(is_new) {
            assert_eq!(sequence(frame), next);
            next += 1;
        }
        // Some stay for the next round.
        let keep = round % 3;
        held.reverse();
        held.truncate(keep);
        held.reverse();
    }
    assert_eq!(next, 70_000);
    drop(held);
    let ledger = bed.close(capture);
    balanced(&ledger, 70_000);
    assert!(ledger.is_lossless(), "{ledger}");
}

fn sequence(frame: &[u8]) -> u64 {
    Stamp::of(frame).unwrap().sequence
}

fn take_into(worker: &mut Worker, packets: usize, chunks: &mut Vec<Chunk>) {
    let mut taken = 0;
    while taken < packets {
        let chunk = worker.next_chunk_timeout(PATIENCE).unwrap().expect("all packets come");
        taken += chunk.len();
        chunks.push(chunk);
    }
    assert_eq!(taken, packets);
}

#[test]
fn a_chunk_held_after_the_close_keeps_its_packets_and_no_kernel_object() {
    let Some(bed) = bed(1) else { return };
    let capture = bed.open(bed.small().workers(2));
    let traffic = Traffic { flows: 64, ..bed.traffic() };
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    let frames: Vec<Vec<u8>> =
        (0..1000).map(|sequence| traffic.frame(Stamp { queue: 0, sequence })).collect();
    frames.iter().for_each(|frame| sender.send(frame).unwrap());
    bed.at_receiver(|| capture.stop());
    let mut chunks = Vec::new();
    for mut worker in capture.workers() {
        while let Some(chunk) = worker.next_chunk().unwrap() {
            chunks.push(chunk);
        }
    }
    assert_eq!(bed.packet_sockets(), 2);
    balanced(&bed.close(capture), 1000);
    assert_eq!(bed.packet_sockets(), 0, "the mapping keeps a socket open");
    let mut packets: Vec<(u64, &[u8])> =
        chunks.iter().flatten().map(|packet| (sequence(packet.data()), packet.data())).collect();
    packets.sort_unstable();
    assert!(packets.into_iter().map(|(_, data)| data).eq(&frames));
    drop(chunks);
}

#[test]
fn holding_the_last_chunk_while_waiting_costs_no_processor_time() {
    let Some(bed) = bed(1) else { return };
    let capture = bed.open(bed.small());
    let mut worker = capture.workers().pop().unwrap();
    bed.generator().send(&[Load::new(0, 10)]).unwrap();
    let held = worker.next_chunk_timeout(PATIENCE).unwrap().unwrap();
    let spent = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let before = spent();
    assert!(worker.next_chunk_timeout(Duration::from_secs(1)).unwrap().is_none());
    let spent = spent() - before;
    assert!(spent < Duration::from_millis(300), "{spent:?} of one second");
    assert_eq!(held.len(), 10);
    balanced(&bed.close(capture), 10);
}

#[test]
fn a_single_packet_is_delivered_after_the_retire_time() {
    let Some(bed) = bed(1) else { return };
    let measure = |builder: CaptureBuilder| {
        let capture = bed.open(builder);
        let mut worker = capture.workers().pop().unwrap();
        let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
        // A machine with other work may be slow, but not in every attempt.
        let mut shortest = Duration::MAX;
        for _ in 0..10 {
            let sent = Instant::now();
            sender.send(&[9; 60]).unwrap();
            take(&mut worker, 1, |_| {});
            shortest = shortest.min(sent.elapsed());
        }
        balanced(&bed.close(capture), 10);
        shortest
    };
    let soon = measure(bed.small());
    // The kernel checks a block at these intervals, regardless of when the packet arrived.
    let late = measure(bed.small().retire_after(Duration::from_millis(300)));
    assert!(soon < late, "{soon:?} {late:?}");
}

#[test]
fn packets_of_an_open_block_are_delivered_when_the_capture_stops() {
    let Some(bed) = bed(1) else { return };
    let capture = bed.open(bed.small().retire_after(Duration::from_secs(60)).workers(2));
    let traffic = Traffic { flows: 10, ..bed.traffic() };
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    (0..100)
        .for_each(|sequence| sender.send(&traffic.frame(Stamp { queue: 0, sequence })).unwrap());
    let stopping = Instant::now();
    bed.at_receiver(|| capture.stop());
    let mut delivered = 0;
    for mut worker in capture.workers() {
        while let Some(chunk) = worker.next_chunk().unwrap() {
            delivered += chunk.len();
        }
    }
    assert_eq!(delivered, 100);
    assert!(stopping.elapsed() < Duration::from_secs(60), "it waited for the block to be full");
    balanced(&bed.close(capture), 100);
}

#[test]
fn buddies_take_chunks_from_the_ring_of_a_stuck_worker_in_order() {
    let Some(bed) = bed(1) else { return };
    let builder = bed.small().advanced(0.9).stuck_after(Duration::from_millis(50)).workers(2);
    let capture = bed.open(builder);
    let mut workers = capture.workers();
    let mut awake = workers.remove(0);
    let _stuck = workers;
    let traffic = Traffic { flows: 64, ..bed.traffic() };
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    (0..5000)
        .for_each(|sequence| sender.send(&traffic.frame(Stamp { queue: 0, sequence })).unwrap());
    let mut last = [None; 2];
    let mut offloaded = 0;
    take(&mut awake, 5000, |chunk| {
        offloaded += u64::from(chunk.is_offloaded());
        for packet in chunk {
            let sequence = sequence(packet.data());
            assert!(
                last[chunk.ring_index()].replace(sequence).is_none_or(|before| before < sequence)
            );
        }
    });
    let ledger = bed.close(capture);
    balanced(&ledger, 5000);
    assert!(offloaded > 0 && ledger.total.offloaded_chunks == offloaded, "{ledger}");
    assert_eq!(ledger.rings[0].account.offloaded_chunks, 0, "{ledger}");
}

#[test]
fn more_rings_than_a_group_supports_are_rejected() {
    let Some(bed) = bed(1) else { return };
    let (error, text) = bed.refusal(bed.small().pool(1).workers(256));
    assert!(matches!(error, OpenError::BadParameter { value: 256, .. }), "{text}");
    balanced(&bed.close(bed.open(bed.small().pool(1).workers(255))), 0);
}

#[test]
fn two_captures_of_an_interface_both_see_everything() {
    let Some(bed) = bed(1) else { return };
    let captures = [bed.open(bed.small().workers(3)), bed.open(bed.small().workers(3))];
    let traffic = Traffic { flows: 100, ..bed.traffic() };
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    (0..1000)
        .for_each(|sequence| sender.send(&traffic.frame(Stamp { queue: 0, sequence })).unwrap());
    for capture in captures {
        bed.at_receiver(|| capture.stop());
        for mut worker in capture.workers() {
            while worker.next_chunk().unwrap().is_some() {}
        }
        let ledger = bed.close(capture);
        balanced(&ledger, 1000);
        assert!(ledger.is_lossless(), "{ledger}");
    }
}

#[test]
fn the_right_to_open_raw_sockets_is_enough_and_its_lack_is_named() {
    let Some(bed) = bed(1) else { return };
    let with = |rights: CapabilitySet| {
        bed.at_receiver(|| {
            // Capabilities belong to the thread, and this thread ends with the closure.
            let sets = CapabilitySets { effective: rights, permitted: rights, inheritable: rights };
            set_capabilities(None, sets).unwrap();
            let capture = bed.small().workers(3).open()?;
            assert_eq!(capture.rings().len(), 3);
            Ok::<_, OpenError>(capture)
        })
    };
    let capture = with(CapabilitySet::NET_RAW).unwrap();
    PacketSender::on(&bed.pair.sender).unwrap().send(&[1; 60]).unwrap();
    balanced(&bed.close(capture), 1);
    let error = with(CapabilitySet::empty()).unwrap_err();
    assert!(matches!(error, OpenError::PacketSocket { .. }), "{error}");
    assert!(error.to_string().ends_with("run as root or grant CAP_NET_RAW"), "{error}");
}

/// Two hosts with an address and a default route each, as in practice.
fn hosts() -> Bed {
    let sender = Namespace::new().unwrap();
    let receiver = Namespace::new().unwrap();
    let pair = VethPair::new((&sender, "a0"), (&receiver, "a1"), 1, 1500)
        .and_then(wirecap_testbed::dedicated)
        .unwrap();
    pair.sender.add_address("10.0.0.1/24").unwrap();
    pair.receiver.add_address("10.0.0.2/24").unwrap();
    ip(&receiver, &["route", "add", "default", "via", "10.0.0.1"]);
    Bed::of(Engine::Auto, pair)
}

#[test]
fn connections_by_the_default_route_continue_and_super_packets_are_counted() {
    const BYTES: usize = 8 << 20;
    if !privileged() {
        return;
    }
    let bed = hosts();
    // Only the default route leads there.
    ip(&bed.sender, &["link", "set", "lo", "up"]);
    ip(&bed.sender, &["address", "add", "192.0.2.1/32", "dev", "lo"]);
    let listener = bed.sender.run_in(|| TcpListener::bind("192.0.2.1:5000")).unwrap().unwrap();
    let ours = bed.at_receiver(|| TcpStream::connect("192.0.2.1:5000")).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    // The connection is older than the capture.
    let capture = bed.open(bed.small().pool(1024));
    let mut counters = Counters::of(&bed.pair.receiver).unwrap();
    let interface = &capture.interfaces()[0];
    assert_eq!(interface.reception.engine(), Engine::Packet);
    assert!(interface.why.as_ref().unwrap().contains("10.0.0.2"), "{:?}", interface.why);
    let sent: Vec<u8> = (0..BYTES).map(|n| (n / 7) as u8).collect();
    let received = thread::scope(|scope| {
        scope.spawn(|| {
            (&theirs).write_all(&sent).and_then(|()| theirs.shutdown(std::net::Shutdown::Write))
        });
        let mut received = Vec::new();
        (&ours).read_to_end(&mut received).unwrap();
        received
    });
    assert!(received == sent, "the connection was disturbed");
    // The last acknowledgement may be delayed.
    let mut count =
        || counters.since_start().map(|count| count.rx_packets + count.tx_packets).unwrap();
    let mut passed = count();
    wait_until("no packet passes", || {
        thread::sleep(Duration::from_millis(300));
        std::mem::replace(&mut passed, count()) == passed
    });
    bed.at_receiver(|| capture.stop());
    let mut worker = capture.workers().pop().unwrap();
    let mut super_packets = 0;
    let mut payload = 0;
    while let Some(chunk) = worker.next_chunk().unwrap() {
        for packet in &chunk {
            assert_eq!(packet.data().len(), packet.wire_len() as usize, "cut");
            super_packets += u64::from(packet.wire_len() > 1514);
            let to_us = packet.data()[12..14] == [8, 0] && packet.data()[30..34] == [10, 0, 0, 2];
            let header = 14 + 20 + usize::from(packet.data()[46] >> 4) * 4;
            payload += if to_us { packet.data().len() - header } else { 0 };
        }
    }
    assert!(payload >= BYTES, "{payload} of {BYTES} bytes were captured");
    assert!(super_packets > 0, "a veth cuts no segments unless told to");
    let ledger = bed.close(capture);
    balanced(&ledger, passed);
    assert_eq!(ledger.total.super_packets, super_packets);
    let expected = Warning::SuperPackets { interface: "a1".to_owned(), packets: super_packets };
    assert_eq!(ledger.warnings, [expected]);
    assert!(ledger.warnings[0].to_string().contains("ethtool -K a1"), "{}", ledger.warnings[0]);
}

#[test]
fn xdp_takes_the_hosts_packets_only_with_take() {
    if !privileged() {
        return;
    }
    let bed = hosts();
    let (error, text) = bed.refusal(bed.small().engine(Engine::Xdp));
    assert!(matches!(error, OpenError::CarriesHostTraffic { .. }), "{text}");
    assert!(text.contains("10.0.0.2") && text.contains("--take"), "{text}");
    let capture = bed.open(bed.small().engine(Engine::Xdp).take(true));
    let warnings = bed.close(capture).warnings;
    let expected =
        matches!(&warnings[..], [Warning::TakenFromHost { .. }, Warning::TagsBeside { .. }]);
    assert!(expected, "{warnings:?}");
    // Without traffic of the host, `--take` is not needed.
    let bed = Bed::new(Engine::Auto, 1);
    let capture = bed.open(bed.small());
    assert_eq!(capture.interfaces()[0].reception.engine(), Engine::Xdp);
    let warnings = bed.close(capture).warnings;
    assert!(matches!(&warnings[..], [Warning::TagsBeside { .. }]), "{warnings:?}");
}

/// The variable that is set for the test below if it runs in a user namespace.
const ROOTLESS: &str = "WIRECAP_TEST_ROOTLESS";

#[test]
fn a_private_user_namespace_is_sufficient() {
    if std::env::var_os(ROOTLESS).is_some() {
        return capture_rootless();
    }
    if !privileged() {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let name = thread::current().name().unwrap().to_owned();
    let output = Command::new("unshare")
        .args(["--user", "--net", "--map-root-user"])
        .arg(this)
        .args([&name, "--exact", "--nocapture"])
        .env(ROOTLESS, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn capture_rootless() {
    for interfaces in ["all", "default"] {
        fs::write(format!("/proc/sys/net/ipv6/conf/{interfaces}/disable_ipv6"), "1").unwrap();
    }
    let here = Namespace::current().unwrap();
    let pair = VethPair::new((&here, "a0"), (&here, "a1"), 2, 1500)
        .and_then(wirecap_testbed::dedicated)
        .unwrap();
    let builder = Capture::on("a1").engine(Engine::Packet).chunk(64).pool(64).workers(2);
    let capture = builder.open().unwrap();
    let traffic = Traffic { flows: 64, ..Traffic::to(&pair.receiver) };
    let mut sender = PacketSender::on(&pair.sender).unwrap();
    (0..1000)
        .for_each(|sequence| sender.send(&traffic.frame(Stamp { queue: 0, sequence })).unwrap());
    capture.stop();
    for mut worker in capture.workers() {
        while worker.next_chunk().unwrap().is_some() {}
    }
    let ledger = capture.close();
    balanced(&ledger, 1000);
    assert!(
        ledger.is_lossless() && ledger.rings.iter().all(|ring| ring.account.delivered > 0),
        "{ledger}"
    );
}

/// How often this thread has waited for something so far.
fn waits() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// The kernel reports an error on the socket of an interface that was set down, until the error is
/// read.
#[test]
fn a_worker_rests_while_its_interface_is_down() {
    let Some(bed) = bed(1) else { return };
    for stays in [true, false] {
        let capture = bed.open(bed.small().reattach(stays));
        let mut worker = capture.workers().pop().unwrap();
        bed.pair.receiver.set_up(false).unwrap();
        let before = waits();
        assert!(worker.next_chunk_timeout(Duration::from_secs(3)).unwrap().is_none());
        let count = waits() - before;
        // At most two looks per second, and the sleeps between them. A worker that the error wakes
        // waits 2,000 times.
        assert!(count < 300, "{count} waits, reattach: {stays}");
        bed.pair.receiver.set_up(true).unwrap();
        for end in [&bed.pair.receiver, &bed.pair.sender] {
            end.wait_until_running().unwrap();
        }
        let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
        sender.send(&bed.traffic().frame(Stamp { queue: 0, sequence: 0 })).unwrap();
        let chunk = worker.next_chunk_timeout(PATIENCE).unwrap();
        assert_eq!(chunk.map(|chunk| chunk.len()), Some(1), "reattach: {stays}");
        drop(worker);
        assert_eq!(bed.close(capture).total.delivered, 1);
    }
}

#[test]
fn a_worker_that_is_polled_outside_rests_while_its_interface_is_down() {
    let Some(bed) = bed(1) else { return };
    let capture = bed.open(bed.small().reattach(true));
    let mut worker = capture.workers().pop().unwrap();
    bed.pair.receiver.set_up(false).unwrap();
    let mut polls = 0;
    let mut last_readable = 0;
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline && polls < 1_000_000 {
        assert!(worker.try_next_chunk().unwrap().is_none());
        let mut descriptors = [rustix::event::PollFd::new(&worker, rustix::event::PollFlags::IN)];
        let second = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
        polls += 1;
        if rustix::event::poll(&mut descriptors, Some(&second)).unwrap() > 0 {
            last_readable = polls;
        }
    }
    // The error is read within a second; after that each poll waits for its whole time.
    assert!(
        polls - last_readable <= 6 && last_readable < polls - 1,
        "readable at {last_readable} of {polls}"
    );
    drop(worker);
    bed.close(capture);
}
