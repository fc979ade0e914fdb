//! Frames that are longer than a cell.

use std::collections::BTreeSet;
use std::io;
use std::net::UdpSocket;
use std::sync::LazyLock;
use std::thread;

use wirecap::{
    Capture, CaptureBuilder, Engine, OpenError, Packet, ReceiveMode, Reception, Timestamps,
};
use wirecap_testbed::{
    AfXdpSender, Counters, Namespace, PacketSender, frames_of_several_cells, loss_lock, privileged,
};

use crate::bed::{Bed, balanced, ip, small, take};

const MTU: u32 = 9000;
/// The longest frame without a VLAN tag.
const FRAME_BYTES: usize = MTU as usize + 14;
/// Bytes of a frame in a cell of 4 KiB.
const CELL_ROOM: usize = 4096 - 256;

/// A frame of this length with its number, in which no two positions have the same contents.
fn frame(number: u64, len: usize) -> Vec<u8> {
    static PATTERN: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..10_000u32).map(|n| (n * n / 3 + n) as u8).collect());
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
    frame.extend(number.to_be_bytes());
    frame.extend_from_slice(&PATTERN[(number % 509) as usize..][..len - frame.len()]);
    frame
}

fn number_of(data: &[u8]) -> u64 {
    u64::from_be_bytes(data[14..22].try_into().unwrap())
}

/// Lengths on both sides of every border between cells, and others.
fn lengths() -> impl Iterator<Item = usize> {
    let borders =
        [60, 1514, CELL_ROOM, CELL_ROOM + 1, 2 * CELL_ROOM, 2 * CELL_ROOM + 1, FRAME_BYTES, 8000];
    borders.into_iter().cycle()
}

fn pieces(packet: Packet<'_>) -> Vec<usize> {
    packet.fragments().map(<[u8]>::len).collect()
}

#[test]
fn jumbo_frames_are_delivered_whole_in_order_and_with_their_times() {
    if !privileged() || !frames_of_several_cells() {
        return;
    }
    let bed = Bed::with_mtu(1, MTU);
    let capture = bed.open(small().timestamps(Timestamps::Packet));
    assert_eq!(capture.geometry().cell_bytes, 4096);
    let mut worker = capture.workers().pop().unwrap();
    let frames: Vec<Vec<u8>> =
        lengths().take(1000).enumerate().map(|(n, len)| frame(n as u64, len)).collect();
    let mut sender = AfXdpSender::on(&bed.pair.sender, 0).unwrap();
    frames.iter().for_each(|frame| sender.send(frame).unwrap());
    sender.flush().unwrap();
    let mut next = 0;
    let mut last_time = None;
    let mut cell_counts = BTreeSet::new();
    take(&mut worker, 1000, |chunk| {
        assert!(chunk.iter().map(|packet| packet.fragments().count()).sum::<usize>() <= 64);
        for packet in chunk {
            let sent = &frames[next];
            let pieces = pieces(packet);
            assert_eq!(pieces.len(), sent.len().div_ceil(CELL_ROOM));
            assert_eq!(
                packet.fragments().collect::<Vec<_>>().concat(),
                *sent,
                "packet {next} in pieces"
            );
            assert_eq!(packet.data(), sent, "packet {next}");
            assert_eq!(packet.wire_len() as usize, sent.len());
            assert!(packet.timestamp() >= last_time && packet.timestamp().is_some());
            (next, last_time) = (next + 1, packet.timestamp());
            cell_counts.insert(pieces.len());
        }
    });
    assert!(cell_counts.into_iter().eq(1..=3));
    let ledger = bed.close(capture);
    balanced(&ledger, 1000);
    let bytes = frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
    assert!(ledger.is_lossless() && ledger.total.bytes == bytes, "{ledger}");
}

#[test]
fn a_snap_length_cuts_jumbo_frames_wherever_it_falls() {
    if !privileged() || !frames_of_several_cells() {
        return;
    }
    let bed = Bed::with_mtu(1, MTU);
    for (snap_len, in_pieces) in
        [(96, vec![96]), (CELL_ROOM, vec![CELL_ROOM]), (5000, vec![CELL_ROOM, 5000 - CELL_ROOM])]
    {
        let capture = bed.open(small().snap_len(snap_len as u32));
        let mut worker = capture.workers().pop().unwrap();
        let mut sender = AfXdpSender::on(&bed.pair.sender, 0).unwrap();
        let sent = frame(7, FRAME_BYTES);
        (0..20).for_each(|_| sender.send(&sent).unwrap());
        sender.flush().unwrap();
        take(&mut worker, 20, |chunk| {
            for packet in chunk {
                assert_eq!(packet.data(), &sent[..snap_len]);
                assert_eq!(pieces(packet), in_pieces);
                assert_eq!(packet.wire_len() as usize, FRAME_BYTES);
            }
        });
        balanced(&bed.close(capture), 20);
    }
}

#[test]
fn jumbo_frames_from_the_hosts_stack_keep_their_vlan_tags() {
    if !privileged() || !frames_of_several_cells() {
        return;
    }
    let bed = Bed::with_mtu(1, MTU);
    let capture = bed.open(small());
    let mut worker = capture.workers().pop().unwrap();
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    let frames: Vec<Vec<u8>> = lengths()
        .take(40)
        .map(|len| {
            let mut tagged = frame(len as u64, len);
            tagged.splice(12..12, [0x81, 0, 0x20, 7]);
            tagged
        })
        .collect();
    frames.iter().for_each(|frame| sender.send(frame).unwrap());
    let mut received = Vec::new();
    take(&mut worker, 40, |chunk| {
        received.extend(chunk.iter().map(|packet| packet.data().to_vec()));
    });
    assert_eq!(received, frames);
    balanced(&bed.close(capture), 40);
}

#[test]
fn a_pool_that_is_full_drops_jumbo_frames_whole() {
    if !privileged() || !frames_of_several_cells() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::with_mtu(1, MTU);
    // 1,024 cells, of which 341 frames take 1,023.
    let capture = bed.open(Capture::on("a1").engine(Engine::Xdp).chunk(64).pool(16));
    let mut worker = capture.workers().pop().unwrap();
    let mut sender = AfXdpSender::on(&bed.pair.sender, 0).unwrap();
    let mut counters = Counters::of(&bed.pair.sender).unwrap();
    for round in 0..3 {
        (0..500).for_each(|n| sender.send(&frame(500 * round + n, FRAME_BYTES)).unwrap());
        sender.flush().unwrap();
        take(&mut worker, 341, |chunk| {
            for packet in chunk {
                assert_eq!(packet.data(), frame(number_of(packet.data()), FRAME_BYTES));
            }
        });
        assert!(worker.try_next_chunk().unwrap().is_none());
    }
    let ledger = bed.close(capture);
    balanced(&ledger, 1500);
    assert_eq!(
        (ledger.total.delivered, ledger.total.dropped.no_cell),
        (3 * 341, 3 * 159),
        "{ledger}"
    );
    assert_eq!(counters.since_start().unwrap().handed_over(), 1500);
}

/// At the machine's highest rate: every delivered packet is complete, and all are counted.
#[test]
fn jumbo_frames_at_full_rate_are_all_accounted_for() {
    if !privileged() || !frames_of_several_cells() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::with_mtu(2, MTU);
    let capture = bed.open(Capture::on("a1").engine(Engine::Xdp).chunk(100).pool(20));
    let mut counters = Counters::of(&bed.pair.sender).unwrap();
    let stopper = capture.stopper();
    let delivered: u64 = thread::scope(|scope| {
        let read = |mut worker: wirecap::Worker| {
            let mut delivered = 0;
            let mut last = None;
            while let Some(chunk) = worker.next_chunk().unwrap() {
                for packet in &chunk {
                    let number = number_of(packet.data());
                    assert!(last < Some(number), "{number} after {last:?}");
                    assert_eq!(
                        packet.wire_len() as usize,
                        22 + number as usize % (FRAME_BYTES - 21)
                    );
                    assert_eq!(packet.data(), frame(number, packet.wire_len() as usize));
                    (delivered, last) = (delivered + 1, Some(number));
                }
            }
            delivered
        };
        let readers: Vec<_> =
            capture.workers().into_iter().map(|worker| scope.spawn(move || read(worker))).collect();
        for queue in 0..2 {
            let mut sender = AfXdpSender::on(&bed.pair.sender, queue).unwrap();
            for number in (0..20_000u64).map(|n| n * 1733) {
                sender.send(&frame(number, 22 + number as usize % (FRAME_BYTES - 21))).unwrap();
            }
            sender.flush().unwrap();
        }
        bed.at_receiver(|| stopper.stop());
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    let ledger = bed.close(capture);
    // Frames for which the veth's ring had no room never reached the receiver.
    let lost_on_the_wire = counters.since_start().unwrap().tx_dropped;
    balanced(&ledger, 40_000 - lost_on_the_wire);
    assert_eq!(ledger.total.delivered, delivered);
}

#[test]
fn a_chunk_must_hold_the_longest_frame() {
    if !privileged() || !frames_of_several_cells() {
        return;
    }
    let bed = Bed::with_mtu(1, MTU);
    let (error, text) = bed.refusal(Capture::on("a1").engine(Engine::Xdp).chunk(2).pool(64));
    assert!(matches!(error, OpenError::BadParameter { value: 2, .. }), "{text}");
    assert!(text.contains("3 or more on a1"), "{text}");
    let capture = bed.open(Capture::on("a1").engine(Engine::Xdp).chunk(3).pool(64));
    let mut worker = capture.workers().pop().unwrap();
    let mut sender = AfXdpSender::on(&bed.pair.sender, 0).unwrap();
    let sent = frame(1, FRAME_BYTES);
    (0..5).for_each(|_| sender.send(&sent).unwrap());
    sender.flush().unwrap();
    take(&mut worker, 5, |chunk| assert_eq!(chunk.get(0).unwrap().data(), sent));
    balanced(&bed.close(capture), 5);
}

/// On the loopback interface, whose packets are up to 64 KiB long and arrive unsegmented.
#[test]
fn packets_of_64_kib_arrive_through_the_stacks_hook() {
    if !privileged() || !frames_of_several_cells() {
        return;
    }
    let namespace = Namespace::new().unwrap();
    ip(&namespace, &["link", "set", "lo", "up"]);
    let on_loopback =
        |builder: CaptureBuilder| namespace.run_in(|| builder.open()).unwrap().unwrap();
    let capture = on_loopback(Capture::on("lo").engine(Engine::Xdp).take(true).chunk(64).pool(64));
    let reception = &capture.interfaces()[0].reception;
    assert!(
        matches!(reception, Reception::Xdp { receive_mode: ReceiveMode::Generic, .. }),
        "{reception:?}"
    );
    let mut worker = capture.workers().pop().unwrap();
    let lengths = [1, 1472, 9000, 20_000, 65_507];
    let send = || -> io::Result<()> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        for len in lengths {
            let payload: Vec<u8> = (0..len).map(|n: usize| (n * 7) as u8).collect();
            socket.send_to(&payload, "127.0.0.1:9")?;
        }
        Ok(())
    };
    namespace.run_in(send).unwrap().unwrap();
    let mut received = Vec::new();
    take(&mut worker, lengths.len() as u64, |chunk| {
        for packet in chunk {
            let payload = &packet.data()[14 + 20 + 8..];
            assert!(payload.iter().enumerate().all(|(n, byte)| *byte == (n * 7) as u8));
            assert_eq!(packet.data().len(), packet.wire_len() as usize);
            received.push(payload.len());
        }
    });
    assert_eq!(received, lengths);
    let ledger = namespace.run_in(|| capture.close()).unwrap();
    balanced(&ledger, lengths.len() as u64);
}
