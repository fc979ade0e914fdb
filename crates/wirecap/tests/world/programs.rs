//! Programs that are detached, or replaced.

use std::time::Duration;

use wirecap::bpf::links;
use wirecap::device::Device;
use wirecap::{CaptureError, Engine};
use wirecap_testbed::privileged;

use crate::bed::{Bed, run, small, take_all};

/// Detaches the program from the receiver, as its administrator might; false if there is none.
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
    bed.send(0, 500);
    assert!(detach(&bed, "a1"));
    bed.send(0, 500);
    std::thread::sleep(Duration::from_secs(1));
    bed.send(0, 500);
    let taken = take_all(&mut worker).unwrap();
    let ledger = bed.close(capture);
    assert!(!ledger.is_lossless(), "{ledger}");
    assert!(!ledger.verdict().contains("yes"), "{ledger}");
    assert_eq!(ledger.total.offered, taken, "{ledger}");
    assert!(taken >= 1_000, "the program was not attached again: {ledger}");
}

#[test]
fn a_capture_that_is_not_to_attach_again_ends_with_an_error() {
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
