//! An outgoing interface that is down, full, removed or flapping: counted, reported, and recovered.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use wirecap::{Capture, CaptureError, Port, Worker};
use wirecap_testbed::{
    AfXdpSender, Counters, Interface, Jam, Sizes, Stamp, Traffic, loss_lock, privileged,
};

use crate::bed::{Bed, PATIENCE, balanced, both, forwarding, ip, one_way, pass_on, to_b, until};

/// The cells of the pool in these tests.
const CELLS: u64 = 64 * 16;

fn open(bed: &Bed) -> (Capture, Worker, Port) {
    let capture = bed.open(one_way().chunk(64).pool(16));
    let worker = capture.workers().remove(0);
    let port = capture.port("b0").unwrap();
    (capture, worker, port)
}

/// Checks that all cells are available: a burst of the whole pool is kept and forwarded to a port
/// that has taken `taken` packets before.
#[track_caller]
fn burst_of_all_cells(bed: &Bed, cells: u64, worker: &mut Worker, port: &mut Port, taken: u64) {
    bed.send(0, cells);
    while port.account().taken < taken + cells {
        let chunk = worker.next_chunk_timeout(PATIENCE).unwrap().expect("the whole burst was kept");
        pass_on(&mut { chunk }, port);
    }
}

/// Number of packets that can be built in free cells at a time.
fn new_packets(port: &mut Port) -> usize {
    std::iter::from_fn(|| port.build(60)).collect::<Vec<_>>().len()
}

/// Sends from A and forwards until all of it was handed to the port.
fn through(bed: &Bed, frames: u64, worker: &mut Worker, port: &mut Port) {
    let frame = |sequence| bed.traffic().frame(Stamp { queue: 0, sequence });
    pass(&bed.a.sender, frame, frames, worker, port);
}

/// The same from this interface, and with these frames.
fn pass(
    from: &Interface,
    frame: impl Fn(u64) -> Vec<u8>,
    frames: u64,
    worker: &mut Worker,
    port: &mut Port,
) {
    let before = port.account().taken;
    let mut sender = AfXdpSender::on(from, 0).unwrap();
    for sequence in 0..frames {
        sender.send(&frame(sequence)).unwrap();
        // Never more than the pool holds.
        if sequence % 512 == 511 || sequence + 1 == frames {
            sender.flush().unwrap();
            while port.account().taken < before + sequence + 1 {
                let chunk = worker.next_chunk_timeout(PATIENCE).unwrap();
                pass_on(&mut chunk.expect("packets come"), port);
            }
        }
    }
}

#[test]
fn an_interface_that_is_down_loses_packets_but_no_cells_and_continues_when_it_is_up() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let (_, mut arrived) = bed.counters();
    let (capture, mut worker, mut port) = open(&bed);
    through(&bed, 1000, &mut worker, &mut port);
    let mut up = 1000;
    for flap in 1..=3 {
        bed.ip(&["link", "set", "b0", "down"]);
        through(&bed, 5000, &mut worker, &mut port);
        let account = port.account();
        // Packets that were on the ring when this was detected wait there.
        assert!(account.waiting <= 64, "{account:#?}");
        assert_eq!(
            account.dropped.down + account.waiting,
            5000 * flap - (up - 1000 * flap),
            "{account:#?}"
        );
        bed.ip(&["link", "set", "b0", "up"]);
        until("the cable carries again", || is_running(&bed));
        through(&bed, 1000, &mut worker, &mut port);
        let account = port.account();
        up += 1000;
        // The packets that waited are sent now.
        up = account.sent.max(up);
        assert_eq!(account.waiting, 0, "{account:#?}");
        assert_eq!(account.sent + account.dropped.total(), account.taken);
        assert_eq!(account.dropped.total(), account.dropped.down, "{account:#?}");
        assert_eq!(bed.arrived(&mut arrived), account.sent);
    }
    drop((worker, port));
    let sent = 1000 + 3 * 6000;
    let arrived = bed.arrived(&mut arrived);
    balanced(&bed.close(capture), sent, arrived);
}

/// An interface goes down, and is finally removed, while frames are put on its ring: each frame is
/// counted once, and its cell returns once.
#[test]
fn an_interface_that_goes_under_traffic_keeps_its_books() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let (_, mut arrived) = bed.counters();
    let (capture, mut worker, mut port) = open(&bed);
    for round in 1..=10 {
        let before = port.account().dropped.down;
        let goes = if round == 10 { ["link", "delete", "b0"] } else { ["link", "set", "b0"] };
        let deadline = Instant::now() + PATIENCE;
        std::thread::scope(|scope| {
            scope
                .spawn(|| bed.ip(&[&goes[..], if round == 10 { &[] } else { &["down"] }].concat()));
            while port.account().dropped.down == before && Instant::now() < deadline {
                for _ in 0..64 {
                    let mut packet = port.build(60).expect("cells come back");
                    packet.data_mut().fill(2);
                    port.send(packet);
                }
                port.flush();
            }
        });
        let account = port.account();
        assert!(account.dropped.down > before, "{account:#?}");
        assert_eq!(
            account.sent + account.dropped.total() + account.waiting,
            account.taken,
            "{account:#?}"
        );
        if round < 10 {
            bed.ip(&["link", "set", "b0", "up"]);
            until("the cable carries again", || is_running(&bed));
        }
        until("what waited is sent, or is back", || {
            assert!(worker.try_next_chunk().unwrap().is_none());
            port.account().waiting == 0
        });
        let account = port.account();
        assert_eq!(account.sent + account.dropped.total(), account.taken, "{account:#?}");
        if round < 10 {
            assert_eq!(bed.arrived(&mut arrived), account.sent, "{account:#?}");
        }
    }
    assert_eq!(new_packets(&mut port), 1024, "cells for new packets are missing or doubled");
    drop((worker, port));
    let ledger = bed.close(capture);
    let account = ledger.ports[1].account;
    assert_eq!(account.sent + account.dropped.total(), account.taken, "{account:#?}");
}

fn is_running(bed: &Bed) -> bool {
    let read = || Command::new("ip").args(["-br", "link", "show", "b0"]).output();
    let output = bed.at_middle(read).unwrap();
    String::from_utf8_lossy(&output.stdout).contains(" UP ")
}

/// The device rejects every frame, because its cable is not connected: no cell may be lost.
#[test]
fn no_cell_leaks_in_a_million_rejected_sends() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let (_, mut arrived) = bed.counters();
    let (capture, mut worker, mut port) = open(&bed);
    ip(&bed.b.receiver.namespace, &["link", "set", "b1", "down"]);
    let mut refused = 0;
    // The packets are built here without a sender; the device or the ring rejects each of them.
    while refused < 1_000_000 {
        let mut packet = port.build(60).expect("cells come back");
        packet.data_mut().fill(2);
        port.send(packet);
        refused += 1;
    }
    port.flush();
    through(&bed, 20_000, &mut worker, &mut port);
    let account = port.account();
    assert_eq!((account.taken, account.sent), (1_020_000, 0), "{account:#?}");
    assert_eq!(account.dropped.refused, 1_020_000, "{account:#?}");
    ip(&bed.b.receiver.namespace, &["link", "set", "b1", "up"]);
    until("the cable carries again", || is_running(&bed));
    burst_of_all_cells(&bed, CELLS, &mut worker, &mut port, 1_020_000);
    assert_eq!(bed.arrived(&mut arrived), CELLS);
    assert_eq!(new_packets(&mut port), 1024, "cells for new packets are missing");
    drop((worker, port));
    let ledger = bed.close(capture);
    assert_eq!(
        (ledger.total.offered, ledger.total.dropped.total()),
        (20_000 + CELLS, 0),
        "{ledger}"
    );
}

/// The device at B accepts frames and does not complete them, while frames from B to A pass. A
/// million have no room on the tx ring.
#[test]
fn a_stalled_direction_loses_packets_but_no_cells_and_the_other_continues() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    const NEW: u32 = 4096;
    let bed = Bed::new(1);
    let [mut at_a, mut at_b] =
        [&bed.a.sender, &bed.b.receiver].map(|end| Counters::of(end).unwrap());
    let capture = bed.open(both().chunk(64).pool(64).new_packets(NEW));
    let mut workers = capture.workers();
    let mut from_b = workers.pop().unwrap();
    let mut from_a = workers.pop().unwrap();
    let mut to_a = capture.port("a1").unwrap();
    let mut to_b = capture.port("b0").unwrap();
    let jam = Jam::behind(&bed.b.receiver).unwrap();
    // Of an unused protocol, to no host.
    let frame = |_| [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5][..], &[0; 46]].concat();
    // More than the tx ring and the device can hold.
    pass(&bed.a.sender, frame, 4000, &mut from_a, &mut to_b);
    let stalled = to_b.account();
    assert!(stalled.waiting > 1000 && stalled.dropped.ring_full > 100, "{stalled:#?}");
    for _ in 0..1_000_000 {
        let mut packet = to_b.build(60).expect("cells come back");
        packet.data_mut().copy_from_slice(&frame(0));
        to_b.send(packet);
    }
    to_b.flush();
    pass(&bed.b.receiver, frame, 5000, &mut from_b, &mut to_a);
    pass(&bed.a.sender, frame, 5000, &mut from_a, &mut to_b);
    assert_eq!(bed.arrived(&mut at_a), 5000, "{:#?}", to_a.account());
    let account = to_b.account();
    assert!(account.taken == 1_009_000 && account.waiting > 1000, "{account:#?}");
    assert_eq!(account.dropped.total(), account.dropped.ring_full, "{account:#?}");
    assert!(account.dropped.ring_full > 1_004_000, "{account:#?}");

    jam.clear().unwrap();
    until("what waited is sent", || {
        assert!(from_a.try_next_chunk().unwrap().is_none());
        to_b.account().waiting == 0
    });
    // The caller also takes back the cells.
    assert!(from_a.try_next_chunk().unwrap().is_none());
    let cells = 64 * 64;
    let sent = to_b.account().sent;
    burst_of_all_cells(&bed, cells, &mut from_a, &mut to_b, 1_009_000);
    assert_eq!(to_b.account().sent, sent + cells, "{:#?}", to_b.account());
    assert_eq!(bed.arrived(&mut at_b), sent + cells);
    assert_eq!(new_packets(&mut to_b), NEW as usize, "cells for new packets are missing");
    drop((from_a, from_b, to_a, to_b));
    let ledger = bed.close(capture);
    assert_eq!(
        (ledger.total.offered, ledger.total.dropped.total()),
        (14_000 + cells, 0),
        "{ledger}"
    );
}

#[test]
fn an_interface_that_is_removed_costs_packets_and_no_cells() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let (_, mut arrived) = bed.counters();
    let (capture, mut worker, mut port) = open(&bed);
    through(&bed, 1000, &mut worker, &mut port);
    let arrived = bed.arrived(&mut arrived);
    bed.ip(&["link", "set", "b0", "down"]);
    through(&bed, 1000, &mut worker, &mut port);
    bed.ip(&["link", "delete", "b0"]);
    through(&bed, 5000, &mut worker, &mut port);
    let account = port.account();
    assert_eq!(
        (account.sent, account.dropped.down, account.waiting),
        (1000, 6000, 0),
        "{account:#?}"
    );
    burst_of_all_cells(&bed, CELLS, &mut worker, &mut port, 7000);
    drop((worker, port));
    balanced(&bed.close(capture), 7000 + CELLS, arrived);
}

/// Both interfaces are captured: the worker of the removed one gets an error, the other continues.
#[test]
fn the_other_direction_continues_when_an_interface_is_removed() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let capture = bed.open(both().chunk(64).pool(16).group_per_interface());
    let mut workers = capture.workers();
    let mut from_b = workers.pop().unwrap();
    let mut from_a = workers.pop().unwrap();
    let mut port = capture.port("b0").unwrap();
    bed.ip(&["link", "delete", "b0"]);
    let deadline = Instant::now() + PATIENCE;
    let told = loop {
        match from_b.next_chunk_timeout(Duration::from_millis(100)) {
            Err(error) => break error,
            Ok(chunk) => assert!(chunk.is_none() && Instant::now() < deadline),
        }
    };
    assert!(
        matches!(&told, CaptureError::InterfaceGone { interface } if interface == "b0"),
        "{told}"
    );
    through(&bed, 3000, &mut from_a, &mut port);
    drop((from_a, from_b, port));
    balanced(&bed.close(capture), 3000, 0);
}

/// No more frames can be sent, and some are on the tx ring: they are counted, and closing does not
/// hang.
#[test]
fn a_capture_is_closed_and_dropped_with_frames_on_the_tx_ring() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    for closed in [true, false] {
        let bed = Bed::new(1);
        let (capture, mut worker, mut port) = open(&bed);
        bed.ip(&["link", "set", "b0", "down"]);
        through(&bed, 100, &mut worker, &mut port);
        assert!((1..=64).contains(&port.account().waiting), "{:#?}", port.account());
        if closed {
            balanced(&bed.close(capture), 100, 0);
        } else {
            bed.at_middle(|| drop(capture));
        }
        // A port and chunks outlive their capture: packets sent then are dropped.
        port.build(60).into_iter().for_each(|packet| port.send(packet));
        port.flush();
        assert_eq!(port.account().dropped.other, 1, "{:#?}", port.account());
        drop((worker, port));
        bed.ip(&["link", "set", "b0", "up"]);
        bed.close(bed.open(both()));
    }
}

/// The process that is killed while it forwards.
#[test]
fn a_killed_forwarder_leaves_nothing() {
    if !privileged() {
        return;
    }
    const ROLE: &str = "WIRECAP_TEST_FORWARDER";
    if std::env::var_os(ROLE).is_some() {
        return forward_for_ever();
    }
    let bed = Bed::new(2);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "trouble::a_killed_forwarder_leaves_nothing", "--nocapture"]);
    command.env(ROLE, "1").stdout(Stdio::null());
    let (_, mut arrived) = bed.counters();
    let mut child = bed.at_middle(|| command.spawn()).unwrap();
    until("the child forwards", || {
        bed.send(0, 100);
        arrived.since_start().unwrap().rx_packets > 0
    });
    bed.send(1, 10_000);
    child.kill().unwrap();
    child.wait().unwrap();
    // The interfaces accept other programs, and their queues other sockets.
    drop(bed.at_middle(|| wirecap_testbed::pass_program(&bed.a.receiver)).unwrap());
    bed.close(bed.open(both()));
}

fn forward_for_ever() {
    let capture = both().open().unwrap();
    std::thread::scope(|scope| {
        for mut worker in capture.workers() {
            let mut port = capture.port("b0").unwrap();
            scope.spawn(move || {
                while let Some(mut chunk) = worker.next_chunk().unwrap() {
                    pass_on(&mut chunk, &mut port);
                }
            });
        }
    });
}

#[test]
fn frames_of_a_raised_mtu_are_forwarded() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let (_, mut far) = bed.counters();
    let ((), ledger) = forwarding(
        &bed,
        both(),
        |chunk, ports| pass_on(chunk, &mut ports[1]),
        |_| {
            for end in [&bed.a.sender, &bed.a.receiver, &bed.b.sender, &bed.b.receiver] {
                ip(&end.namespace, &["link", "set", &end.name, "mtu", "1700"]);
            }
            // A check of the watcher, and some delay.
            thread::sleep(Duration::from_millis(800));
            let near = Interface::find(&bed.a.sender.namespace, &bed.a.sender.name).unwrap();
            let traffic = Traffic { sizes: Sizes::fixed(1600), ..bed.traffic() };
            let mut sender = AfXdpSender::on(&near, 0).unwrap();
            for sequence in 0..200 {
                sender.send(&traffic.frame(Stamp { queue: 0, sequence })).unwrap();
                if sequence % 32 == 31 {
                    sender.flush().unwrap();
                }
            }
            sender.flush().unwrap();
        },
    );
    let arrived = bed.arrived(&mut far);
    balanced(&ledger, 200, arrived);
    assert_eq!((arrived, to_b(&ledger).dropped.bad_length), (200, 0), "{ledger:#?}");
}
