//! Programs that are detached, or replaced.

use std::time::Duration;

use wirecap::bpf::links;
use wirecap::{CaptureError, Engine};
use wirecap_testbed::privileged;

use crate::bed::{Bed, run, small, take_all};

/// Detaches the program from the receiver, as its administrator might.
fn detach(bed: &Bed) {
    let id = bed.at_receiver(|| {
        let device = wirecap::device::Device::find("a1").unwrap();
        let attached = device.attached_xdp[0].program_id;
        let links = links().unwrap();
        links.into_iter().find(|(_, info)| info.program_id == attached).map(|(_, info)| info.id).unwrap()
    });
    run(&bed.receiver, "bpftool", &["link", "detach", "id", &id.to_string()]);
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
    detach(&bed);
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
