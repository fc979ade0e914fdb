//! Programs that are detached, or replaced.

use std::time::{Duration, SystemTime};

use wirecap::bpf::asm::{Assembler, Reg};
use wirecap::bpf::{LoadOptions, Program, ProgramKind, XDP_PASS, links};
use wirecap::device::Device;
use wirecap::filter::FilterRequest;
use wirecap::{CaptureError, Engine, UnseenReason};
use wirecap_testbed::{Counters, pass_program, privileged, wait_until};

use crate::bed::{Bed, PATIENCE, keep_events, obstacles, run, small, take_all};

/// Detaches the program from the receiver, as an administrator might; false if there is none.
pub(crate) fn detach(bed: &Bed, name: &str) -> bool {
    let id = bed.at_receiver(|| {
        let attached = Device::find(name).unwrap().attached_xdp.first()?.program_id;
        let links = links().unwrap();
        links.into_iter().find(|(_, info)| info.program_id == attached).map(|(_, info)| info.id)
    });
    let Some(id) = id else { return false };
    run(&bed.receiver, "bpftool", &["link", "detach", "id", &id.to_string()]);
    true
}

#[test]
fn a_program_that_was_detached_is_attached_again() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small(Engine::Xdp));
    let mut worker = capture.workers().pop().unwrap();
    let mut counters = Counters::of(&bed.pair.receiver).unwrap();
    bed.send(0, 500);
    assert!(detach(&bed, "a1"));
    bed.send(0, 500);
    std::thread::sleep(Duration::from_secs(1));
    bed.send(0, 500);
    let taken = take_all(&mut worker).unwrap();
    let ledger = bed.close(capture);
    assert!(!ledger.is_lossless(), "{ledger}");
    assert!(!ledger.verdict().contains("yes"), "{ledger}");
    let redirected = counters.since_start().unwrap().redirected();
    assert_eq!((ledger.total.offered, taken), (redirected, redirected), "{ledger}");
    assert!((1_000..=1_500).contains(&taken), "the program was not attached again: {ledger}");
}

#[test]
fn a_program_whose_place_is_taken_meanwhile_is_attached_again_when_it_is_free() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let (builder, events) = keep_events(small(Engine::Xdp));
    let capture = bed.open(builder);
    let mut workers = capture.workers();
    (0..2).for_each(|queue| bed.send(queue, 500));
    let mut program = None;
    wait_until("another program is attached", || {
        detach(&bed, "a1");
        // Fails if the capture was faster.
        program = pass_program(&bed.pair.receiver).ok();
        program.is_some()
    });
    wait_until("an attempt has failed", || !obstacles(&events).is_empty());
    // More attempts.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(obstacles(&events).len(), 1, "{:?}", obstacles(&events));
    drop(program);
    bed.wait_until_captured_again(&capture);
    (0..2).for_each(|queue| bed.send(queue, 500));
    let taken: u64 = workers.iter_mut().map(|worker| take_all(worker).unwrap()).sum();
    let ledger = bed.close(capture);
    assert_eq!((ledger.total.offered, taken), (2_000, 2_000), "{ledger}");
    assert!(!ledger.is_lossless(), "{ledger}");
}

/// Makes the capture's own link run another program, which passes every packet to the host.
fn replace(bed: &Bed) {
    bed.at_receiver(|| {
        let attached = Device::find("a1").unwrap().attached_xdp[0].program_id;
        let (link, _) =
            links().unwrap().into_iter().find(|(_, info)| info.program_id == attached).unwrap();
        let mut asm = Assembler::new();
        asm.mov(Reg::R0, XDP_PASS).exit();
        let program =
            Program::load(ProgramKind::Xdp, "pass", &asm.finish().unwrap(), LoadOptions::default())
                .unwrap();
        link.update(&program).unwrap();
    });
}

#[test]
fn a_program_that_was_replaced_is_attached_again() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small(Engine::Xdp));
    let mut worker = capture.workers().pop().unwrap();
    let mut counters = Counters::of(&bed.pair.receiver).unwrap();
    bed.send(0, 500);
    assert_eq!(take_all(&mut worker).unwrap(), 500);
    let before = SystemTime::now();
    replace(&bed);
    // The watcher may have checked meanwhile and found everything in order.
    let replaced = SystemTime::now();
    bed.send(0, 500);
    wait_until("the program is back", || !bed.at_receiver(|| capture.ledger()).unseen.is_empty());
    let after = SystemTime::now();
    bed.send(0, 500);
    let taken = 500 + take_all(&mut worker).unwrap();
    let ledger = bed.close(capture);
    let redirected = counters.since_start().unwrap().redirected();
    assert_eq!((ledger.total.offered, taken), (redirected, redirected), "{ledger}");
    // On a busy machine the program may be back before the packets in between are sent.
    assert!((1_000..=1_500).contains(&taken), "{ledger}");
    let [gap] = &ledger.unseen[..] else { panic!("{ledger}") };
    assert_eq!(gap.reason, UnseenReason::Detached);
    assert!(
        gap.from <= replaced && gap.to.is_some_and(|to| before < to && to <= after),
        "{ledger}"
    );
    assert!(!ledger.is_lossless(), "{ledger}");
}

#[test]
fn a_replaced_program_ends_a_capture_without_reattaching() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small(Engine::Xdp).attach_again(false));
    let mut worker = capture.workers().pop().unwrap();
    replace(&bed);
    let error = worker.next_chunk_timeout(PATIENCE).map(drop).unwrap_err();
    assert!(matches!(error, CaptureError::Detached { .. }), "{error}");
    assert!(!bed.close(capture).is_lossless());
}

#[test]
fn a_filter_that_is_set_while_the_program_is_detached_holds_when_it_is_back() {
    if !privileged() {
        return;
    }
    for round in 0..5 {
        let bed = Bed::new(1);
        let capture = bed.open(small(Engine::Xdp));
        let mut worker = capture.workers().pop().unwrap();
        assert!(detach(&bed, "a1"));
        // The watcher may have been faster.
        bed.at_receiver(|| capture.set_filter(FilterRequest::from("tcp"))).unwrap();
        wait_until("the program is back", || {
            !bed.at_receiver(|| capture.ledger()).unseen.is_empty()
        });
        bed.send(0, 500);
        assert_eq!(take_all(&mut worker).unwrap(), 0, "round {round}");
        bed.at_receiver(|| capture.set_filter(FilterRequest::from("udp"))).unwrap();
        bed.send(0, 500);
        assert_eq!(take_all(&mut worker).unwrap(), 500, "round {round}");
        let ledger = bed.close(capture);
        assert_eq!((ledger.total.offered, ledger.total.filtered), (500, Some(500)), "{ledger}");
    }
}

#[test]
fn a_detached_program_ends_a_capture_without_reattaching() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small(Engine::Xdp).attach_again(false));
    let mut worker = capture.workers().pop().unwrap();
    bed.send(0, 500);
    assert!(detach(&bed, "a1"));
    let mut taken = 0;
    let error = loop {
        match worker.next_chunk() {
            Ok(Some(chunk)) => taken += chunk.len(),
            Ok(None) => panic!("the capture ended without an error"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, CaptureError::Detached { .. }), "{error}");
    assert_eq!(taken, 500, "what had arrived was delivered first");
    bed.at_receiver(|| capture.stop());
    assert!(worker.next_chunk().unwrap().is_none(), "it is told once");
    let ledger = bed.close(capture);
    assert_eq!(ledger.total.offered, 500, "{ledger}");
    assert!(!ledger.is_lossless(), "{ledger}");
}
