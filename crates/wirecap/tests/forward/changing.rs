//! Packets that are changed while being forwarded, and new ones.

use std::collections::VecDeque;
use std::thread;

use wirecap::{Capture, DetachedPacket, Engine, NoRoom, Port, Timestamps};
use wirecap_testbed::{Stamp, frames_of_several_cells, loss_lock, privileged};

use crate::bed::{Bed, PATIENCE, balanced, both, forwarding, one_way, pass_on, to_b};

/// Forwards 200 frames changed by `change`, and returns the frames that A sent and B received.
fn changed(
    bed: &Bed,
    change: impl Fn(&mut wirecap::OutPacket<'_>) + Sync,
    frame: impl Fn(u64) -> Vec<u8>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    // B captures with XDP, because the stack removes VLAN tags before a packet socket sees them.
    let far = bed.b.receiver.namespace.clone();
    let open = || Capture::on("b1").engine(Engine::Xdp).chunk(64).pool(64).open();
    let judge = far.run_in(open).unwrap().unwrap();
    let mut judges = judge.workers();
    let mut pairs = Vec::new();
    let ((), ledger) = forwarding(
        bed,
        both().timestamps(Timestamps::Packet),
        |chunk, ports| {
            for mut packet in chunk.drain() {
                change(&mut packet);
                ports[1].send(packet);
            }
            ports[1].flush();
        },
        |_| {
            let mut sender = bed.sender(0);
            let frames: Vec<Vec<u8>> = (0..200).map(&frame).collect();
            frames.iter().for_each(|frame| sender.send(frame).unwrap());
            sender.flush().unwrap();
            let mut sent = frames.into_iter();
            while pairs.len() < 200 {
                let chunk =
                    judges[0].next_chunk_timeout(PATIENCE).unwrap().expect("frames are forwarded");
                pairs.extend(
                    chunk.iter().map(|packet| (sent.next().unwrap(), packet.data().to_vec())),
                );
            }
        },
    );
    balanced(&ledger, 200, 200);
    assert_eq!(to_b(&ledger).copied, 0);
    far.run_in(|| judge.close()).unwrap();
    pairs
}

fn numbered(bed: &Bed, sequence: u64) -> Vec<u8> {
    bed.traffic().frame(Stamp { queue: 0, sequence })
}

#[test]
fn vlan_tags_are_pushed_and_popped() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let tag =
        |frame: &[u8], tags: &[[u8; 4]]| [&frame[..12], &tags.concat(), &frame[12..]].concat();
    let push = |packet: &mut wirecap::OutPacket<'_>| {
        packet.push_vlan(7).unwrap();
        packet.push_vlan(0x2000 | 100).unwrap();
    };
    for (sent, received) in changed(&bed, push, |n| numbered(&bed, n)) {
        assert_eq!(received, tag(&sent, &[[0x81, 0, 0x20, 100], [0x81, 0, 0, 7]]));
    }
    let pop = |packet: &mut wirecap::OutPacket<'_>| {
        assert_eq!(packet.pop_vlan(), Some(0x2000 | 5));
        assert_eq!(packet.pop_vlan(), None);
    };
    let tagged = |n| tag(&numbered(&bed, n), &[[0x88, 0xa8, 0x20, 5]]);
    for (sent, received) in changed(&bed, pop, tagged) {
        assert_eq!(received, [&sent[..12], &sent[16..]].concat());
    }
}

#[test]
fn packets_grow_and_shrink_at_both_ends_within_their_cell() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let tunnel = |packet: &mut wirecap::OutPacket<'_>| {
        let time = packet.timestamp();
        assert!(time.is_some());
        assert_eq!(
            (packet.headroom(), packet.tailroom(), packet.len()),
            (256, 2048 - 256 - 60, 60)
        );
        assert_eq!(packet.grow_head(257).unwrap_err(), NoRoom { asked: 257, room: 256 });
        packet.grow_head(256).unwrap().fill(0xaa);
        assert_eq!(packet.timestamp(), time, "the head grew over it");
        packet.shrink_head(156).unwrap();
        packet.data_mut()[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
        let room = packet.tailroom();
        assert!(packet.grow_tail(room + 1).is_err());
        packet.grow_tail(room).unwrap().fill(0xbb);
        packet.shrink_tail(room - 10).unwrap();
        assert!(packet.shrink_head(1000).is_err() && packet.shrink_tail(1000).is_err());
        assert_eq!(packet.timestamp(), time);
    };
    for (sent, received) in changed(&bed, tunnel, |n| numbered(&bed, n)) {
        let header = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
        assert_eq!(received, [&header[..], &[0xaa; 86], &sent, &[0xbb; 10]].concat());
    }
}

/// Frames of several cells, in both directions, changed in the first and the last cell.
#[test]
fn jumbo_frames_are_forwarded_whole() {
    if !privileged() || !frames_of_several_cells() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::with_mtu(1, 9000);
    let lengths = [60, 1514, 3840, 3841, 7680, 7681, 9000, 9010];
    let frame = |number: u64| {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
        frame.extend(
            (14..lengths[number as usize % 8]).map(|n: usize| (n * n / 3 + number as usize) as u8),
        );
        frame
    };
    let change = |packet: &mut wirecap::OutPacket<'_>| {
        assert_eq!(packet.is_fragmented(), packet.len() > 3840);
        let mut pieces = packet.fragments_mut().collect::<VecDeque<_>>();
        pieces.pop_back().unwrap().last_mut().map(|byte| *byte ^= 0xff).unwrap();
        packet.push_vlan(9).unwrap();
    };
    for (mut sent, received) in changed(&bed, change, frame) {
        *sent.last_mut().unwrap() ^= 0xff;
        assert_eq!(received, [&sent[..12], &[0x81, 0, 0, 9], &sent[12..]].concat());
    }
}

#[test]
fn new_packets_are_sent_while_cells_are_free_and_the_cells_return() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let (_, mut arrived) = bed.counters();
    let mut receiver = bed.receiver();
    let capture = bed.open(one_way().new_packets(100));
    let mut port = capture.port("b0").unwrap();
    assert_eq!(port.longest_new_packet(), 1522);
    assert!(port.build(2048).is_none());
    // While they are held, cells are missing; after they are dropped, the cells are available
    // again.
    for _ in 0..3 {
        let held: Vec<_> = std::iter::from_fn(|| port.build(60)).collect();
        assert_eq!(held.len(), 128, "rounded up to whole chunks");
    }
    for number in 0..10_000u64 {
        let mut packet = port.build(60).expect("cells come back from the device");
        assert!(packet.timestamp().is_none() && packet.ring().is_none());
        packet.data_mut().copy_from_slice(&numbered(&bed, number));
        port.send(packet);
        if number % 20 == 19 {
            port.flush();
        }
        if number < 100 && number % 20 == 19 {
            for number in number - 19..=number {
                assert_eq!(receiver.receive(PATIENCE).unwrap().unwrap(), numbered(&bed, number));
            }
        }
    }
    assert_eq!(bed.arrived(&mut arrived), 10_000);
    drop(port);
    let ledger = bed.close(capture);
    let port = to_b(&ledger);
    assert_eq!((port.taken, port.sent, port.copied, ledger.total.offered), (10_000, 10_000, 0, 0));
}

/// A shaper: packets are kept, moved to another thread, and sent later.
#[test]
fn packets_can_be_kept_and_sent_by_another_thread_after_their_chunk_is_dropped() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let (_, mut arrived) = bed.counters();
    let capture = bed.open(one_way().chunk(64).pool(16));
    let mut worker = capture.workers().remove(0);
    for round in 0..3 {
        bed.send(0, 1000);
        let mut kept: Vec<DetachedPacket> = Vec::new();
        while kept.len() < 1000 {
            let mut chunk = worker.next_chunk_timeout(PATIENCE).unwrap().expect("packets come");
            kept.extend(chunk.drain().map(wirecap::OutPacket::detach));
            assert!(chunk.drain().next().is_none() && chunk.len() == 0);
        }
        let mut port: Port = capture.port("b0").unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                for (number, packet) in kept.into_iter().enumerate() {
                    let packet = packet.into_packet();
                    assert_eq!(Stamp::of(packet.data()).unwrap().sequence, number as u64);
                    // Every third is dropped.
                    if number % 3 > 0 {
                        port.send(packet);
                    }
                }
            });
        });
        assert_eq!(bed.arrived(&mut arrived), 666 * (round + 1));
        // A request for a chunk takes back sent cells, so the whole pool is available for the next
        // round.
        assert!(worker.try_next_chunk().unwrap().is_none());
    }
    drop(worker);
    let ledger = bed.close(capture);
    assert_eq!((ledger.total.delivered, ledger.total.dropped.total()), (3000, 0), "{ledger}");
    let port = to_b(&ledger);
    assert_eq!((port.taken, port.sent, port.copied), (1998, 1998, 0));
}

/// Packets of another capture are copied.
#[test]
fn packets_of_another_capture_are_copied() {
    if !privileged() || !frames_of_several_cells() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::with_mtu(1, 9000);
    let (_, mut arrived) = bed.counters();
    let mut receiver = bed.receiver();
    let other = bed.open(Capture::on("a1").engine(Engine::Xdp).chunk(64).pool(16));
    let forwarder = bed.open(Capture::on("b0").engine(Engine::Xdp).forwarding().chunk(64).pool(16));
    let mut port = forwarder.port("b0").unwrap();
    let mut worker = other.workers().pop().unwrap();
    let frame = |len: usize| -> Vec<u8> {
        let header = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
        header.into_iter().chain((14..len).map(|n| (n * 7 / 3) as u8)).collect()
    };
    let frames = [60, 3840, 3841, 9014].map(frame);
    let mut sender = bed.sender(0);
    frames.iter().for_each(|frame| sender.send(frame).unwrap());
    sender.flush().unwrap();
    while port.account().taken < 4 {
        let mut chunk = worker.next_chunk_timeout(PATIENCE).unwrap().expect("packets come");
        pass_on(&mut chunk, &mut port);
    }
    for frame in &frames {
        assert_eq!(receiver.receive(PATIENCE).unwrap().unwrap(), frame);
    }
    assert_eq!(bed.arrived(&mut arrived), 4);
    drop((port, worker));
    bed.close(other);
    let ledger = bed.close(forwarder);
    assert_eq!((to_b(&ledger).sent, to_b(&ledger).copied), (4, 4), "{:#?}", ledger.ports);
}

/// Packets that are too long to be sent, are too short for a frame, or were truncated by the
/// capture.
#[test]
fn frames_of_an_invalid_length_are_counted_and_their_cells_return() {
    if !privileged() || !frames_of_several_cells() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::with_mtus(1, 9000, 1500);
    let (_, mut arrived) = bed.counters();
    let mut sender = bed.sender(0);
    let frame = |number: u64, len: usize| {
        let mut frame = numbered(&bed, number);
        frame.resize(len, 0);
        frame
    };
    let ((), ledger) = forwarding(
        &bed,
        one_way().chunk(64).pool(16),
        |chunk, ports| {
            if chunk.iter().all(|packet| packet.wire_len() != 100) {
                return pass_on(chunk, &mut ports[1]);
            }
            for mut packet in chunk.drain() {
                if packet.len() == 100 {
                    packet.shrink_tail(87).unwrap();
                }
                ports[1].send(packet);
            }
            ports[1].flush();
        },
        // Far more than the pool holds: no cell may be lost.
        |capture| {
            for round in 0..100 {
                for len in [60, 100, 1514, 1523, 9000] {
                    (0..20).for_each(|number| sender.send(&frame(number, len)).unwrap());
                }
                sender.flush().unwrap();
                let taken = || bed.at_middle(|| capture.ledger().ports[1].account.taken);
                crate::bed::until("all is taken", || taken() == 100 * (round + 1));
            }
        },
    );
    balanced(&ledger, 10_000, bed.arrived(&mut arrived));
    let port = to_b(&ledger);
    assert_eq!((port.sent, port.dropped.bad_length), (4000, 6000), "{ledger:#?}");
}
