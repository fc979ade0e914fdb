//! Both directions at once, several workers for a ring, the engine `packet`, and unsupported
//! options.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use wirecap::{Capture, CaptureBuilder, Direction, Engine, OpenError, Source, Timestamps};
use wirecap_testbed::{
    AfXdpSender, Counters, Stamp, Traffic, VethPair, loss_lock, pass_program, privileged,
};

use crate::bed::{
    Bed, PATIENCE, balanced, both, forwarding, one_way, pass_on, settled, to_b, until,
};

/// The paper's Figure 14: two groups in one capture, each forwards through the other's interface.
#[test]
fn two_groups_forward_through_each_others_interface_at_once() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    for builder in
        [both().group_per_interface(), both().group_per_interface().advanced(0.1).workers(4)]
    {
        let bed = Bed::new(2);
        let mut counters =
            [&bed.a.sender, &bed.b.receiver].map(|interface| Counters::of(interface).unwrap());
        let foreign = AtomicU64::new(0);
        let per_queue = 20_000;
        let ((), ledger) = forwarding(
            &bed,
            builder,
            |chunk, ports| {
                let from = chunk.interface_index();
                foreign.fetch_add(
                    u64::from(chunk.ring().interface != ["a1", "b0"][from]),
                    Ordering::Relaxed,
                );
                pass_on(chunk, &mut ports[1 - from]);
            },
            |_| {
                thread::scope(|scope| {
                    for (end, queue) in [(&bed.a, 0), (&bed.a, 1), (&bed.b, 0), (&bed.b, 1)] {
                        let outside =
                            if end.sender.name == "a0" { &end.sender } else { &end.receiver };
                        let traffic = Traffic::to(&bed.b.receiver);
                        let sender = AfXdpSender::on(outside, queue).unwrap();
                        scope.spawn(move || send(sender, &traffic, per_queue));
                    }
                });
            },
        );
        let sent = counters.each_mut().map(|end| end.since_start().unwrap());
        assert!(sent.iter().all(|end| end.handed_over() == 2 * per_queue), "{sent:#?}");
        assert_eq!(foreign.into_inner(), 0);
        for (to, from, index) in [("a1", "b0", 0), ("b0", "a1", 1)] {
            let received = settled(|| counters[index].since_start().unwrap().rx_packets);
            let rings = ledger.rings.iter().filter(|ring| ring.name.starts_with(from));
            let delivered: u64 = rings.map(|ring| ring.account.delivered).sum();
            let port = ledger.ports[index].account;
            assert_eq!(ledger.ports[index].name, to);
            assert_eq!((port.taken, port.sent), (delivered, received), "{ledger:#?}");
            assert_eq!(port.taken, port.sent + port.dropped.total(), "{ledger:#?}");
        }
    }
    let bed = Bed::new(1);
    let error = bed.refusal(both().group_per_interface().workers(1)).to_string();
    assert!(error.contains("2 or more: one for each interface's group"), "{error}");
}

fn send(mut sender: AfXdpSender, traffic: &Traffic, frames: u64) {
    (0..frames)
        .for_each(|sequence| sender.send(&traffic.frame(Stamp { queue: 0, sequence })).unwrap());
    sender.flush().unwrap();
}

/// All traffic arrives on one ring, and two workers need different times for its chunks: the frames
/// leave in the ring's order, unless `unordered` is set.
#[test]
fn offloaded_packets_leave_in_the_order_of_their_ring() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    const FRAMES: u64 = 3000;
    let disorder = |builder: CaptureBuilder| {
        let bed = Bed::new(2);
        let far = bed.b.receiver.namespace.clone();
        let judge = || Capture::on("b1").engine(Engine::Xdp).chunk(64).pool(128).open();
        let judge = far.run_in(judge).unwrap().unwrap();
        let ((), ledger) = forwarding(
            &bed,
            builder.advanced(0.0).chunk(16).pool(256),
            |chunk, ports| {
                // A chunk that takes longer delays the chunks after it.
                thread::sleep(Duration::from_micros(if chunk.sequence() % 3 == 0 {
                    3000
                } else {
                    300
                }));
                pass_on(chunk, &mut ports[1]);
            },
            |_| bed.send(0, FRAMES),
        );
        assert_eq!(ledger.total.dropped.total(), 0, "{ledger}");
        let account = to_b(&ledger);
        assert_eq!(
            (account.taken, account.sent, account.waiting),
            (FRAMES, FRAMES, 0),
            "{account:#?}"
        );
        assert!(ledger.total.offloaded_chunks > 10, "{ledger}");
        let mut seen = 0;
        let mut last = None;
        let mut earlier = 0;
        let mut workers = judge.workers();
        while seen < FRAMES {
            for worker in &mut workers {
                let Some(chunk) = worker.next_chunk_timeout(Duration::from_millis(5)).unwrap()
                else {
                    continue;
                };
                for packet in &chunk {
                    let number = Stamp::of(packet.data()).unwrap().sequence;
                    earlier += u64::from(last > Some(number));
                    (seen, last) = (seen + 1, Some(number));
                }
            }
        }
        drop(workers);
        far.run_in(|| judge.close()).unwrap();
        (earlier, account.late)
    };
    let in_order = disorder(one_way().order_wait(Duration::from_secs(5)));
    assert_eq!(in_order, (0, 0), "frames leave in the order of their ring");
    let (earlier, late) = disorder(one_way().unordered());
    assert!(earlier > 0 && late == 0, "{earlier} {late}");
}

/// A worker that keeps a chunk longer than the maximum wait.
#[test]
fn the_wait_for_an_earlier_chunk_is_bounded() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let (_, mut arrived) = bed.counters();
    // Long enough for all chunks but the first to be forwarded meanwhile.
    let builder = one_way().advanced(0.0).order_wait(Duration::from_secs(1));
    let capture = bed.open(builder.chunk(16).pool(64));
    let mut worker = capture.workers().pop().unwrap();
    let mut port = capture.port("b0").unwrap();
    bed.send(0, 160);
    let mut next = || worker.next_chunk_timeout(PATIENCE).unwrap().expect("packets wait");
    let mut chunks: Vec<_> = (0..10).map(|_| next()).collect();
    let mut first = chunks.remove(0);
    chunks.iter_mut().for_each(|chunk| pass_on(chunk, &mut port));
    drop(chunks);
    let account = port.account();
    assert_eq!((account.taken, account.sent, account.waiting), (144, 0, 144), "{account:#?}");
    // A request for a chunk sends them.
    until("the first chunk is given up", || {
        assert!(worker.next_chunk_timeout(Duration::from_millis(10)).unwrap().is_none());
        port.account().waiting == 0
    });
    let account = port.account();
    assert_eq!((account.sent, account.late), (144, 0), "{account:#?}");
    pass_on(&mut first, &mut port);
    drop(first);
    let account = port.account();
    assert_eq!((account.sent, account.late), (160, 16), "{account:#?}");
    assert_eq!(bed.arrived(&mut arrived), 160);
    drop((worker, port));
    balanced(&bed.close(capture), 160, 160);
}

/// Packets wait for a chunk that is not dropped yet when the capture is closed.
#[test]
fn a_close_releases_packets_that_wait_for_earlier_chunks() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let (_, mut arrived) = bed.counters();
    let builder = one_way().advanced(0.0).order_wait(Duration::from_secs(60));
    let capture = bed.open(builder.chunk(16).pool(64));
    let mut worker = capture.workers().pop().unwrap();
    let mut port = capture.port("b0").unwrap();
    bed.send(0, 32);
    let mut next = || worker.next_chunk_timeout(PATIENCE).unwrap().expect("packets wait");
    let first = next();
    let mut second = next();
    pass_on(&mut second, &mut port);
    assert_eq!(port.account().waiting, 16);
    drop((worker, port));
    let ledger = bed.close(capture);
    drop((first, second));
    assert_eq!((to_b(&ledger).sent, to_b(&ledger).waiting), (16, 0), "{ledger:#?}");
    assert_eq!(bed.arrived(&mut arrived), 16);
}

/// The engine `packet` on both sides, and one with each engine.
#[test]
fn packets_are_copied_where_an_interface_is_captured_by_packet_sockets() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let traffic = bed.traffic();
    let (_, mut arrived) = bed.counters();
    let builder = Capture::on("a1")
        .and("b0")
        .engine(Engine::Packet)
        .forwarding()
        .workers(2)
        .chunk(64)
        .pool(64);
    let builder = builder.timestamps(Timestamps::Packet).retire_after(Duration::from_millis(1));
    let mut receiver = bed.receiver();
    let ((), ledger) = forwarding(
        &bed,
        builder,
        |chunk, ports| {
            let from = chunk.interface_index();
            for mut packet in chunk.drain() {
                assert!(
                    packet.headroom() >= 32
                        && packet.tailroom() == 0
                        && packet.timestamp().is_some()
                );
                let time = packet.timestamp();
                packet.push_vlan(3).unwrap();
                assert_eq!((packet.pop_vlan(), packet.timestamp()), (Some(3), time));
                packet.data_mut()[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
                // Every third packet takes a detour, on which it is copied once more.
                let detours = Stamp::of(packet.data()).is_some_and(|stamp| stamp.sequence % 3 == 0);
                let packet = if detours { packet.detach().into_packet() } else { packet };
                ports[1 - from].send(packet);
            }
            ports[1 - from].flush();
        },
        |_| {
            bed.send(0, 1000);
            for sequence in 0..1000 {
                let mut expected = traffic.frame(Stamp { queue: 0, sequence });
                expected[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
                assert_eq!(
                    receiver.receive(PATIENCE).unwrap().expect("the frame is forwarded"),
                    expected
                );
            }
        },
    );
    // No sent packet came back: only received packets are captured.
    balanced(&ledger, 1000, bed.arrived(&mut arrived));
    let port = to_b(&ledger);
    assert_eq!((port.sent, port.copied, port.bytes), (1000, 1000, 60_000), "{ledger:#?}");
}

/// Packets captured by a packet socket are copied into cells of the port. In the other direction,
/// the cell returns to the port as soon as it is copied.
#[test]
fn a_capture_by_packet_sockets_may_send_by_xdp_and_the_other_way_round() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    // The host uses `a1`, so `auto` does not take its packets.
    bed.a.receiver.add_address("10.9.0.1/24").unwrap();
    let capture = bed.open(Capture::on("a1").and("b0").forwarding().chunk(64).pool(64));
    let engines: Vec<_> =
        capture.interfaces().iter().map(|interface| interface.reception.engine()).collect();
    assert_eq!(engines, [Engine::Packet, Engine::Xdp]);
    bed.close(capture);
    let mut counters =
        [&bed.a.sender, &bed.b.receiver].map(|interface| Counters::of(interface).unwrap());
    let builder = Capture::on("a1").and("b0").forwarding().chunk(64).pool(64).filter("udp port 9");
    let ((), ledger) = forwarding(
        &bed,
        builder,
        |chunk, ports| {
            let from = chunk.interface_index();
            pass_on(chunk, &mut ports[1 - from]);
        },
        |capture| {
            bed.send(0, 500);
            send(AfXdpSender::on(&bed.b.receiver, 0).unwrap(), &bed.traffic(), 500);
            let forwarded = |capture: &Capture| {
                capture.ledger().ports.iter().map(|port| port.account.taken).sum::<u64>()
            };
            until("all is forwarded", || bed.at_middle(|| forwarded(capture)) == 1000);
        },
    );
    let accounts: Vec<_> = ledger.ports.iter().map(|port| port.account).collect();
    assert_eq!(
        accounts.iter().map(|port| (port.sent, port.copied)).collect::<Vec<_>>(),
        [(500, 500); 2]
    );
    let received = counters.each_mut().map(|end| settled(|| end.since_start().unwrap().rx_packets));
    // The host's own ARP or the like may be among those at A, which has an address.
    assert!(received[0] >= 500 && received[1] == 500, "{received:?}");
}

/// Not all cells are posted, and there is a keeper.
#[test]
fn warm_cells_go_round_through_the_ports_as_well() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let (mut sent, mut arrived) = bed.counters();
    let ((), ledger) = forwarding(
        &bed,
        both().warm(256),
        |chunk, ports| pass_on(chunk, &mut ports[1]),
        |_| bed.send(0, 50_000),
    );
    let sent = sent.since_start().unwrap();
    assert_eq!(sent.handed_over(), 50_000);
    balanced(&ledger, sent.tx_packets, bed.arrived(&mut arrived));
}

#[test]
fn options_that_forwarding_lacks_are_rejected_by_name() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let on = |source: Source| {
        Capture::on(source).and("b0").engine(Engine::Xdp).forwarding().chunk(64).pool(16)
    };
    let a1 = || on(Source::new("a1"));
    let cases = [
        (a1().elastic(), "elastic pools"),
        (a1().snap_len(96), "a snap length"),
        (on(Source::new("a1").snap_len(96)), "a snap length"),
        (a1().workers(5), "more workers than receive queues"),
        (a1().engine(Engine::Packet).direction(Direction::InOut), "packets that the host sends"),
        (Capture::file("/nowhere").forwarding(), "packets of a savefile"),
    ];
    for (builder, named) in cases {
        let error = bed.refusal(builder);
        assert!(matches!(error, OpenError::NotForwarding { .. }), "{error}");
        assert!(
            error.to_string().starts_with(&format!("forwarding does not support {named}")),
            "{error}"
        );
    }
    let missing = bed.refusal(Capture::on("a1").engine(Engine::Xdp).transmit_on("b7"));
    assert!(matches!(missing, OpenError::Device(_)), "{missing}");
    let idle = VethPair::new((&bed.middle, "c0"), (&bed.middle, "c1"), 1, 1500)
        .and_then(wirecap_testbed::dedicated)
        .unwrap();
    bed.ip(&["link", "set", &idle.sender.name, "down"]);
    let down = bed.refusal(Capture::on("a1").engine(Engine::Xdp).transmit_on("c0")).to_string();
    assert!(down.contains("c0 is down"), "{down}");
    // A transmit-only queue is claimed as well.
    let first = bed.open(one_way());
    let taken = bed.refusal(Capture::on("b0").engine(Engine::Xdp).chunk(64).pool(16));
    assert!(matches!(taken, OpenError::QueueTaken { .. }), "{taken}");
    bed.close(first);
    // A capture that does not forward has no ports.
    let capture = bed.open(Capture::on("a1").engine(Engine::Xdp).chunk(64).pool(16));
    assert_eq!(capture.ports().count(), 0);
    let error = capture.port("a1").unwrap_err().to_string();
    assert!(error.contains("not opened for forwarding"), "{error}");
    let ledger = bed.close(capture);
    assert!(ledger.ports.is_empty());
    let _program = pass_program(&bed.a.receiver);
}
