//! Interfaces that are removed and return, and interfaces that change.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use wirecap::{Capture, CaptureError, Engine, Event, UnseenReason, Worker};
use wirecap_testbed::{
    Interface, Namespace, VethPair, privileged, skip_on_this_machine, wait_until,
};

use crate::bed::{
    A_WHILE, Bed, PATIENCE, ip, keep_events, obstacles, send, small, small_on, take_all,
};
use crate::host::kernel_has;

/// The cable is replaced by another one.
fn replace_cable(bed: &mut Bed, away: Duration) {
    bed.pair.receiver.delete().unwrap();
    thread::sleep(away);
    bed.pair = VethPair::new(
        (&bed.sender, "a0"),
        (&bed.receiver, "a1"),
        bed.pair.receiver.queue_count,
        1500,
    )
    .and_then(wirecap_testbed::dedicated)
    .unwrap();
}

#[test]
fn a_removed_interface_is_reported_while_another_is_busy() {
    if !privileged() {
        return;
    }
    for engine in [Engine::Xdp, Engine::Packet] {
        let bed = Bed::new(1);
        let other = Namespace::new().unwrap();
        let quiet = VethPair::new((&other, "b0"), (&bed.receiver, "b1"), 1, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        let capture = bed.open(small(engine).and("b1").workers(1));
        let mut worker = capture.workers().pop().unwrap();
        let done = AtomicBool::new(false);
        let error = thread::scope(|scope| {
            // More packets arrive than are taken: the worker is never idle.
            let sender = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    bed.send(0, 3_200);
                }
            });
            let deadline = Instant::now() + Duration::from_secs(10);
            let take = |worker: &mut Worker| {
                let chunk = worker.next_chunk_timeout(PATIENCE);
                thread::sleep(Duration::from_millis(2));
                chunk
            };
            (0..50).for_each(|_| drop(take(&mut worker).unwrap()));
            quiet.receiver.delete().unwrap();
            let error = loop {
                match take(&mut worker) {
                    Ok(_) if Instant::now() > deadline => break None,
                    Ok(_) => {}
                    Err(error) => break Some(error),
                }
            };
            done.store(true, Ordering::Relaxed);
            sender.join().unwrap();
            error
        });
        let Some(CaptureError::InterfaceGone { interface }) = error else {
            panic!("{engine:?}: {error:?}")
        };
        assert_eq!(interface, "b1");
        drop(worker);
        let ledger = bed.close(capture);
        let is_unseen = ledger.unseen.iter().any(|unseen| unseen.interface == "b1");
        assert!(is_unseen, "the removal is an unseen period: {ledger}");
        assert!(!ledger.is_lossless(), "{ledger}");
    }
}

#[test]
fn an_interface_that_returns_is_captured_again() {
    if !privileged() {
        return;
    }
    // Two rings of the engine `packet` are a group, whose sockets are tied to the interface on
    // which they joined.
    for (engine, device, workers) in [
        (Engine::Xdp, "a1", 2),
        (Engine::Packet, "a1", 1),
        (Engine::Packet, "a1", 2),
        // By queue, and a queue with several rings.
        (Engine::Packet, "a1@0,1", 2),
        (Engine::Packet, "a1@0,1", 3),
    ] {
        let mut bed = Bed::new(2);
        let _pass = (engine == Engine::Packet)
            .then(|| wirecap_testbed::pass_program(&bed.pair.receiver).unwrap());
        let capture = bed.open(small_on(device, engine).workers(workers).reattach(true));
        let mut workers = capture.workers();
        (0..2).for_each(|queue| bed.send(queue, 500));
        // One worker has taken a chunk and keeps it; all other packets wait in the rings.
        let take = |worker: &mut Worker| worker.next_chunk_timeout(A_WHILE).unwrap();
        let held = workers.iter_mut().find_map(take).unwrap();
        let bytes: Vec<Vec<u8>> = held.iter().map(|packet| packet.data().to_vec()).collect();
        let before = SystemTime::now();
        replace_cable(&mut bed, Duration::from_millis(400));
        let _pass = (engine == Engine::Packet)
            .then(|| wirecap_testbed::pass_program(&bed.pair.receiver).unwrap());
        bed.wait_until_captured_again(&capture);
        let after = SystemTime::now();
        (0..2).for_each(|queue| bed.send(queue, 500));
        let mut taken = held.len() as u64;
        let mut sequences = vec![None; workers.len()];
        for worker in &mut workers {
            while let Some(chunk) = worker.next_chunk_timeout(Duration::from_millis(300)).unwrap() {
                let last = &mut sequences[chunk.ring_index()];
                assert!(last.is_none_or(|last| last < chunk.sequence()), "sequence numbers go on");
                *last = Some(chunk.sequence());
                taken += chunk.len() as u64;
            }
        }
        assert!(
            held.iter().map(|packet| packet.data().to_vec()).eq(bytes),
            "the chunk held has changed"
        );
        drop(held);
        let ledger = bed.close(capture);
        assert_eq!((ledger.total.offered, taken), (2_000, 2_000), "{engine:?} {device}: {ledger}");
        assert_eq!(ledger.rings.len(), workers.len(), "{ledger}");
        let [gap] = &ledger.unseen[..] else { panic!("{ledger}") };
        assert_eq!(gap.reason, UnseenReason::Removed);
        assert!(
            gap.from >= before - Duration::from_millis(300) && gap.to.unwrap() <= after,
            "{ledger}"
        );
        assert!(!ledger.is_lossless(), "a capture with an unseen period is not lossless: {ledger}");
        assert!(ledger.to_string().contains("not seen for"), "{ledger}");
    }
}

/// All messages about the new interface, which was down at first, are read after it was found up.
#[test]
fn the_setting_up_of_an_interface_that_returns_is_no_other_gap() {
    if !privileged() {
        return;
    }
    for engine in [Engine::Xdp, Engine::Packet] {
        let mut bed = Bed::new(1);
        let is_replaced = Arc::new(Barrier::new(2));
        let waits = Arc::clone(&is_replaced);
        let has_waited = AtomicBool::new(false);
        let wait = move |event: &Event| {
            if matches!(event, Event::Lost { .. }) && !has_waited.swap(true, Ordering::Relaxed) {
                waits.wait();
            }
        };
        let capture = bed.open(small(engine).workers(1).reattach(true).on_event(wait));
        let mut worker = capture.workers().pop().unwrap();
        replace_cable(&mut bed, Duration::ZERO);
        is_replaced.wait();
        bed.wait_until_captured_again(&capture);
        bed.send(0, 500);
        assert_eq!(take_all(&mut worker).unwrap(), 500, "{engine:?}");
        // The watcher has looked again.
        thread::sleep(Duration::from_millis(500));
        drop(worker);
        let ledger = bed.close(capture);
        assert_eq!(ledger.unseen.len(), 1, "one removal is one gap: {ledger}");
        assert_eq!(ledger.unseen[0].reason, UnseenReason::Removed, "{ledger}");
        assert_eq!(ledger.total.offered, 500, "{ledger}");
    }
}

/// Each attempt to capture it again fails half-way, until one succeeds.
#[test]
fn an_interface_that_returns_with_another_program_is_captured_again_without_it() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(2);
    let (builder, events) = keep_events(small(Engine::Xdp).reattach(true));
    let capture = bed.open(builder);
    let mut workers = capture.workers();
    (0..2).for_each(|queue| bed.send(queue, 500));
    bed.pair.receiver.delete().unwrap();
    let pair = VethPair::new((&bed.sender, "a0"), (&bed.receiver, "b1"), 2, 1500)
        .and_then(wirecap_testbed::dedicated)
        .unwrap();
    let program = wirecap_testbed::pass_program(&pair.receiver).unwrap();
    ip(&bed.receiver, &["link", "set", "b1", "down"]);
    ip(&bed.receiver, &["link", "set", "b1", "name", "a1"]);
    ip(&bed.receiver, &["link", "set", "a1", "up"]);
    bed.pair = VethPair { receiver: Interface::find(&bed.receiver, "a1").unwrap(), ..pair };
    wait_until("an attempt has failed", || !obstacles(&events).is_empty());
    // More attempts.
    thread::sleep(Duration::from_secs(1));
    assert_eq!(obstacles(&events).len(), 1, "{:?}", obstacles(&events));
    drop(program);
    bed.wait_until_captured_again(&capture);
    (0..2).for_each(|queue| bed.send(queue, 500));
    let taken: u64 = workers.iter_mut().map(|worker| take_all(worker).unwrap()).sum();
    let ledger = bed.close(capture);
    assert_eq!((ledger.total.offered, taken), (2_000, 2_000), "{ledger}");
    assert_eq!((ledger.rings.len(), ledger.unseen.len()), (2, 1), "{ledger}");
}

#[test]
fn every_cell_is_in_use_again_after_a_return() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(1);
    // A pool of 512 cells: if some were not posted again, as many packets would be dropped.
    let capture = bed.open(Capture::on("a1").engine(Engine::Xdp).chunk(32).pool(16).reattach(true));
    let mut worker = capture.workers().pop().unwrap();
    let mut sent = 0;
    for round in 0..4 {
        bed.send(0, 400);
        sent += 400;
        // In each round other cells are outstanding, wait in the ring, or were taken back.
        let held = worker.next_chunk_timeout(PATIENCE).unwrap().unwrap();
        if round % 2 == 0 {
            take_all(&mut worker).unwrap();
        }
        replace_cable(&mut bed, Duration::from_millis(50));
        wait_until("it is captured again", || {
            let unseen = bed.at_receiver(|| capture.ledger()).unseen;
            unseen.len() == round + 1 && unseen.iter().all(|gap| gap.to.is_some())
        });
        take_all(&mut worker).unwrap();
        drop(held);
    }
    // No worker reads: all cells are needed.
    bed.send(0, 512);
    sent += 512;
    take_all(&mut worker).unwrap();
    let ledger = bed.close(capture);
    assert_eq!(ledger.total.delivered, sent, "{ledger}");
    assert_eq!(ledger.total.dropped.total(), 0, "{ledger}");
}

#[test]
fn a_short_down_is_a_gap_and_a_rename_is_not() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small(Engine::Xdp));
    let mut worker = capture.workers().pop().unwrap();
    bed.send(0, 100);
    ip(&bed.receiver, &["link", "property", "add", "dev", "a1", "altname", "alternative"]);
    thread::sleep(Duration::from_millis(400));
    assert!(bed.at_receiver(|| capture.ledger()).is_lossless(), "nothing has happened yet");
    bed.pair.receiver.set_up(false).unwrap();
    bed.pair.receiver.set_up(true).unwrap();
    bed.wait_until_captured_again(&capture);
    send(&bed.pair, 0, 100);
    assert_eq!(take_all(&mut worker).unwrap(), 200);
    let ledger = bed.close(capture);
    assert!(ledger.unseen.iter().all(|gap| gap.reason == UnseenReason::Down), "{ledger}");
    assert!(!ledger.is_lossless(), "{ledger}");
}

/// The bridge reports it with the message for a removed interface.
#[test]
fn a_port_that_leaves_a_bridge_is_captured_without_a_gap() {
    if !privileged() {
        return;
    }
    for engine in [Engine::Packet, Engine::Xdp] {
        let bed = Bed::new(1);
        if !kernel_has(&bed, "bridge") {
            return skip_on_this_machine("this kernel has no bridge; `make vm` boots one that has");
        }
        // With multicast snooping the bridge sends packets of its own.
        ip(&bed.receiver, &["link", "add", "br9", "type", "bridge", "mcast_snooping", "0"]);
        ip(&bed.receiver, &["link", "set", "br9", "up"]);
        ip(&bed.receiver, &["link", "set", "a1", "master", "br9"]);
        let (builder, events) = keep_events(small(engine).take(true));
        let capture = bed.open(builder);
        let mut worker = capture.workers().pop().unwrap();
        bed.send(0, 300);

        ip(&bed.receiver, &["link", "set", "a1", "nomaster"]);
        bed.send(0, 300);
        thread::sleep(A_WHILE);
        bed.send(0, 300);

        let taken = take_all(&mut worker).unwrap();
        let ledger = bed.close(capture);
        assert!(ledger.unseen.is_empty(), "a port that left its bridge was not removed: {ledger}");
        assert_eq!(events.lock().unwrap().len(), 0, "{:?}", events.lock().unwrap());
        assert_eq!((taken, ledger.total.offered), (900, 900), "{engine:?} {ledger}");
        assert!(ledger.is_lossless(), "{engine:?} {ledger}");
    }
}
