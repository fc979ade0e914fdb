//! An interface that packets leave by goes down, comes back, or is removed.

use std::thread;
use std::time::Duration;

use wirecap_testbed::{Generator, Load, Traffic, privileged};

use crate::bed::{Bed, ENGINES, at, port};
use crate::unchanged::frame;

fn frames(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|index| frame(index, index as u64, 100)).collect()
}

#[test]
fn what_should_leave_by_an_interface_that_is_down_is_counted_and_all_is_well_when_it_is_up_again() {
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
        // The cable's carrier comes back a moment later.
        thread::sleep(Duration::from_millis(300));
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
    // A veth without NAPI loses XDP frames uncounted, but what is sent by an AF_XDP socket are none.
    thread::scope(|scope| {
        let sending = scope.spawn(|| generator.send(&[Load::new(0, 60_000).per_second(30_000)]).unwrap());
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
fn while_one_direction_is_shut_the_other_one_goes_on() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(1, 1500);
    let forwarder = bed.forward("--engine xdp -R 16");
    // The right host's end is down: nothing can be sent to it, and its port is up without a carrier.
    bed.inline.right.interface.set_up(false).unwrap();
    bed.send(&frames(2000));
    thread::sleep(Duration::from_millis(300));
    bed.inline.right.interface.set_up(true).unwrap();
    thread::sleep(Duration::from_millis(300));
    let mut back = wirecap_testbed::PacketSender::on(&bed.inline.right.interface).unwrap();
    frames(100).iter().for_each(|frame| back.send(frame).unwrap());
    bed.send(&frames(100));
    let before = bed.arrived();
    bed.wait_for_arrivals(before.max(100));
    let ledger = bed.finish(forwarder);
    assert_eq!(at(port(&ledger, "left"), "/sent"), 100, "{ledger:#}");
    assert_eq!(at(port(&ledger, "right"), "/taken"), 2100, "{ledger:#}");
}

#[test]
fn an_interface_that_is_removed_ends_the_command_with_its_name() {
    if !privileged() {
        return;
    }
    for (engine, options) in [("xdp", ""), ("xdp", "--one-way"), ("packet", ""), ("packet", "--one-way")] {
        let bed = Bed::new(1, 1500);
        let forwarder = bed.forward(&format!("--engine {engine} -R 16 {options}"));
        bed.send(&frames(10));
        bed.inline.right.port.delete().unwrap();
        let finished = forwarder.finish();
        finished.refused(1, &["right"]);
        assert!(finished.stderr.contains("removed") || finished.stderr.contains("gone"), "{finished:#?}");
    }
}
