//! Receive queues that appear.

use wirecap::{Capture, Engine};
use wirecap_testbed::privileged;

use crate::bed::{Bed, small, take_all, wait_until};

#[test]
fn packets_of_a_queue_that_appears_are_captured_or_counted() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_queues(2, 8);
    let capture = bed.open(small(Engine::Xdp));
    let mut workers = capture.workers();
    assert_eq!(workers.len(), 2);
    (0..2).for_each(|queue| bed.send(queue, 500));
    bed.set_receiver_queues(4);
    bed.set_sender_queues(4);
    // At once, before anything can have noticed, and later.
    (0..4).for_each(|queue| bed.send(queue, 500));
    std::thread::sleep(std::time::Duration::from_secs(1));
    (0..4).for_each(|queue| bed.send(queue, 500));
    let taken: u64 = workers.iter_mut().map(|worker| take_all(worker).unwrap()).sum();
    let ledger = bed.close(capture);
    assert_eq!(ledger.total.delivered, taken, "{ledger}");
    assert_eq!(ledger.total.offered, 5_000, "{ledger}");
    assert_eq!(ledger.total.offered, ledger.total.delivered + ledger.total.dropped.total(), "{ledger}");
    assert!(ledger.total.delivered >= 4_000, "the rings came too late: {ledger}");
}

#[test]
fn named_queues_stay_those_that_were_named() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_queues(2, 4);
    let capture = bed.open(Capture::on("a1@0-1").engine(Engine::Xdp).chunk(64).pool(256));
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
}
