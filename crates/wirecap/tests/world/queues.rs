//! Receive queues that appear.

use std::sync::mpsc;
use std::thread;

use wirecap::{Capture, Engine};
use wirecap_testbed::{Counters, privileged, wait_until};

use crate::bed::{Bed, small, take_all};

#[test]
fn packets_of_a_queue_that_appears_are_captured_or_counted() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_queues(2, 8);
    let capture = bed.open(small(Engine::Xdp));
    let mut workers = capture.workers();
    assert_eq!(workers.len(), 2);
    let mut counters = Counters::of(&bed.pair.receiver).unwrap();
    (0..2).for_each(|queue| bed.send(queue, 500));
    bed.set_receiver_queues(4);
    bed.set_sender_queues(4);
    // At once, before the change can be detected, and later.
    (0..4).for_each(|queue| bed.send(queue, 500));
    std::thread::sleep(std::time::Duration::from_secs(1));
    (0..4).for_each(|queue| bed.send(queue, 500));
    let taken: u64 = workers.iter_mut().map(|worker| take_all(worker).unwrap()).sum();
    let ledger = bed.close(capture);
    assert_eq!(ledger.total.delivered, taken, "{ledger}");
    // A veth runs the program on a new queue only after it is attached again: earlier packets were
    // neither seen nor counted.
    assert!(ledger.total.offered <= 5_000, "{ledger}");
    assert!(
        ledger.is_lossless() == (ledger.total.delivered == 5_000 && ledger.unseen.is_empty()),
        "{ledger}"
    );
    assert!(!ledger.verdict().contains("yes"), "{ledger}");
    assert_eq!(ledger.total.offered, counters.since_start().unwrap().redirected(), "{ledger}");
    assert!(ledger.total.delivered >= 4_000, "the rings came too late: {ledger}");
}

#[test]
fn packets_of_a_queue_without_a_ring_are_counted_and_forbid_lossless() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_queues(2, 2);
    let capture = bed.open(small(Engine::Xdp));
    let mut workers = capture.workers();
    (0..2).for_each(|queue| bed.send(queue, 100));
    let taken: u64 = workers.iter_mut().map(|worker| take_all(worker).unwrap()).sum();
    capture.close_ring(1).unwrap();
    bed.send(1, 50);
    let ledger = bed.close(capture);
    assert_eq!(
        (taken, ledger.total.dropped.no_ring, ledger.total.offered),
        (200, 50, 250),
        "{ledger}"
    );
    assert!(!ledger.is_lossless(), "{ledger}");
    assert!(ledger.verdict().contains("50 queue without a ring"), "{ledger}");
}

#[test]
fn the_ledger_can_be_read_while_rings_are_added() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_queues(1, 8);
    let capture = bed.open(small(Engine::Xdp));
    let mut worker = capture.workers().pop().unwrap();
    bed.send(0, 500);
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let rings = || bed.at_receiver(|| capture.ledger()).rings.len();
            wait_until("all rings are in the ledger", || rings() == 8);
        });
        bed.set_receiver_queues(8);
        asking.join().expect("it may be asked for at any time");
    });
    assert_eq!(take_all(&mut worker).unwrap(), 500);
    let ledger = bed.close(capture);
    assert_eq!((ledger.total.offered, ledger.rings.len()), (500, 8), "{ledger}");
}

#[test]
fn a_ring_is_taken_at_run_time_and_given_up_again() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_queues(2, 8);
    let capture = bed.open(small(Engine::Xdp));
    assert_eq!((capture.rings().len(), capture.most_rings() >= 8), (2, true));
    let mut workers = capture.workers();
    let mut take = |packets| {
        let mut taken = 0;
        wait_until("all were taken", || {
            taken += workers.iter_mut().map(|worker| take_all(worker).unwrap()).sum::<u64>();
            taken >= packets
        });
        assert_eq!(taken, packets);
    };
    bed.set_receiver_queues(3);
    wait_until("the third ring is there", || capture.rings().len() == 3);
    wait_until("it gets packets", || {
        bed.at_receiver(|| capture.ledger()).unseen.iter().all(|gap| gap.to.is_some())
    });
    bed.set_sender_queues(3);
    (0..3).for_each(|queue| bed.send(queue, 400));
    take(1_200);
    // The kernel does not remove a queue that has a socket.
    let two = ["-L", "a1", "rx", "2"];
    let try_two =
        || std::process::Command::new("ethtool").args(two).output().unwrap().status.success();
    bed.set_sender_queues(2);
    assert!(!bed.receiver.run_in(try_two).unwrap());
    capture.close_ring(2).unwrap();
    wait_until("the queue is free", || bed.receiver.run_in(try_two).unwrap());
    (0..2).for_each(|queue| bed.send(queue, 400));
    take(800);
    // It returns in a new seat.
    bed.set_receiver_queues(3);
    wait_until("there is a ring for it", || capture.rings().len() == 4);
    wait_until("it gets packets", || {
        bed.at_receiver(|| capture.ledger()).unseen.iter().all(|gap| gap.to.is_some())
    });
    bed.set_sender_queues(3);
    (0..3).for_each(|queue| bed.send(queue, 400));
    take(1_200);
    let ledger = bed.close(capture);
    let delivered: Vec<u64> = ledger.rings.iter().map(|ring| ring.account.delivered).collect();
    assert_eq!(delivered, [1_200, 1_200, 400, 400], "{ledger}");
    assert_eq!((ledger.total.offered, ledger.total.dropped.total()), (3_200, 0), "{ledger}");
}

#[test]
fn named_queues_stay_those_that_were_named() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_queues(2, 4);
    let (told, events) = mpsc::channel();
    let builder = Capture::on("a1@0-1").engine(Engine::Xdp).chunk(64).pool(256);
    let capture = bed.open(builder.on_event(move |event| told.send(event.to_string()).unwrap()));
    let mut workers = capture.workers();
    bed.set_receiver_queues(3);
    bed.set_sender_queues(3);
    std::thread::sleep(std::time::Duration::from_millis(600));
    (0..3).for_each(|queue| bed.send(queue, 300));
    let mut taken = 0;
    wait_until("the packets of two queues were taken", || {
        taken += workers.iter_mut().map(|worker| take_all(worker).unwrap()).sum::<u64>();
        taken >= 600
    });
    let ledger = bed.close(capture);
    assert_eq!((taken, ledger.total.offered, ledger.rings.len()), (600, 600, 2), "{ledger}");
    assert!(ledger.is_lossless(), "{ledger}");
    let expected = "a1@2: new receive queue, not captured: it is not one of the named queues";
    assert_eq!(events.try_iter().collect::<Vec<_>>(), [expected]);
}
