//! An output interface goes down, comes up, stalls, or is removed.

use std::thread;
use std::time::Duration;

use wirecap_testbed::{Generator, Jam, Load, Traffic, privileged};

use crate::bed::{Bed, ENGINES, at, port};
use crate::unchanged::frame;

fn frames(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|index| frame(index, index as u64, 100)).collect()
}

#[test]
fn packets_for_a_down_interface_are_counted_and_forwarding_resumes() {
    if !privileged() {
        return;
    }
    for engine in ENGINES {
        let mut bed = Bed::new(1, 1500);
        let forwarder = bed.forward(&format!("--engine {engine} -R 16"));
        let frames = frames(500);
        bed.send(&frames);
        bed.wait_for_arrivals(500);
        bed.inline.right.port.set_up(false).unwrap();
        forwarder.wait_for("right is down");
        bed.send(&frames);
        thread::sleep(Duration::from_millis(300));
        bed.inline.right.port.set_up(true).unwrap();
        forwarder.wait_for("right is up again");
        let before = bed.arrived();
        assert!(before <= 1000, "{before}");
        bed.inline.right.port.wait_until_running().unwrap();
        bed.send(&frames);
        bed.wait_for_arrivals(before + 500);
        let ledger = bed.finish(forwarder);
        assert_eq!(at(port(&ledger, "right"), "/taken"), 1500, "{ledger:#}");
    }
}

#[test]
fn a_flapping_interface_costs_packets_that_are_all_accounted_for() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(1, 1500);
    let forwarder = bed.forward("--engine xdp -M 64 -R 64");
    let traffic = Traffic::to(&bed.inline.right.interface);
    let mut generator = Generator::new(&bed.inline.left.interface, &traffic).unwrap();
    // A veth without NAPI loses XDP frames without counting them, but frames from an AF_XDP socket
    // are ordinary packets.
    thread::scope(|scope| {
        let sending =
            scope.spawn(|| generator.send(&[Load::new(0, 60_000).per_second(30_000)]).unwrap());
        for _ in 0..6 {
            thread::sleep(Duration::from_millis(150));
            bed.inline.right.port.set_up(false).unwrap();
            thread::sleep(Duration::from_millis(100));
            bed.inline.right.port.set_up(true).unwrap();
        }
        assert_eq!(sending.join().unwrap()[0].frames, 60_000);
    });
    let arrived = bed.arrived();
    bed.send(&frames(10));
    bed.wait_for_arrivals(arrived + 10);
    let ledger = bed.finish(forwarder);
    assert_eq!(at(&ledger, "/offered"), 60_010, "{ledger:#}");
    assert!(at(port(&ledger, "right"), "/sent") > 10, "{ledger:#}");
}

#[test]
fn forwarding_to_a_host_without_carrier_resumes_with_the_carrier() {
    if !privileged() {
        return;
    }
    for engine in ENGINES {
        let mut bed = Bed::new(1, 1500);
        let forwarder = bed.forward(&format!("--engine {engine} -R 16"));
        // The port is up but has no carrier.
        bed.inline.right.interface.set_up(false).unwrap();
        bed.send(&frames(2000));
        bed.inline.right.interface.set_up(true).unwrap();
        bed.inline.right.interface.wait_until_running().unwrap();
        bed.send_back(&frames(100));
        bed.send(&frames(100));
        bed.wait_for_returns(100);
        bed.wait_for_arrivals(100);
        let ledger = bed.finish(forwarder);
        assert_eq!(at(port(&ledger, "left"), "/sent"), 100, "{ledger:#}");
        assert_eq!(at(port(&ledger, "right"), "/taken"), 2100, "{ledger:#}");
    }
}

/// The right host accepts frames but does not complete them.
#[test]
fn while_one_direction_is_stalled_the_other_continues_without_loss() {
    if !privileged() {
        return;
    }
    for engine in ENGINES {
        let mut bed = Bed::new(1, 1500);
        let forwarder = bed.forward(&format!("--engine {engine} --basic -M 64 -R 64"));
        let jam = Jam::behind(&bed.inline.right.interface).unwrap();
        // Frames that no protocol stack answers.
        let frames: Vec<Vec<u8>> = (0..1000).map(|index| frame(0, index, 1000)).collect();
        let mut sent = 0;
        while !forwarder.said().contains("right does not send; ") {
            bed.send(&frames[..100]);
            sent += 100;
            thread::sleep(Duration::from_millis(20));
            assert!(sent < 500_000, "the way was never blocked: {}", forwarder.said());
        }
        let arrived = bed.arrived();
        for part in frames.chunks(100) {
            (0..3).for_each(|_| bed.send(part));
            bed.send_back(part);
            sent += 300;
        }
        bed.wait_for_returns(1000);
        // A jam passes one frame in 80 seconds.
        assert!(
            bed.arrived() < arrived + 10,
            "{} frames arrived in a jam",
            bed.arrived() - arrived
        );

        jam.clear().unwrap();
        // The port is known to be free only after a frame has been sent.
        while !forwarder.said().contains("right sends again") {
            bed.send(&frames[..1]);
            sent += 1;
            thread::sleep(Duration::from_millis(20));
            assert!(sent < 500_000, "nothing goes on: {}", forwarder.said());
        }
        let waited = bed.arrived() - arrived;
        assert!(engine == "packet" || waited >= 2000, "{waited} of the tx ring's frames were sent");
        let arrived = bed.arrived();
        bed.send(&frames);
        bed.wait_for_arrivals(arrived + 1000);
        let ledger = bed.finish(forwarder);
        // The pool has room for all packets from there.
        let left = port(&ledger, "left");
        assert_eq!((at(left, "/taken"), at(left, "/sent")), (1000, 1000), "{ledger:#}");
        let right = port(&ledger, "right");
        let dropped = |reason: &str| at(right, &format!("/dropped/{reason}"));
        assert!(dropped("ring_full") > 0 && dropped("down") + dropped("other") == 0, "{ledger:#}");
    }
}

#[test]
fn an_interface_that_is_removed_ends_the_command_with_its_name() {
    if !privileged() {
        return;
    }
    for (engine, options) in
        [("xdp", ""), ("xdp", "--one-way"), ("packet", ""), ("packet", "--one-way")]
    {
        let bed = Bed::new(1, 1500);
        let forwarder = bed.forward(&format!("--engine {engine} -R 16 {options}"));
        bed.send(&frames(10));
        bed.inline.right.port.delete().unwrap();
        let finished = forwarder.finish();
        finished.refused(1, &["right"]);
        assert!(
            finished.stderr.contains("removed") || finished.stderr.contains("gone"),
            "{finished:#?}"
        );
    }
}
