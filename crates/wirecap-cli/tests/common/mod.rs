//! Runs the built command in namespaces of the test bed.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod belongings;
mod running;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

use wirecap::{Capture, Ledger};
use wirecap_testbed::{Interface, Namespace, VethPair};

#[allow(unused_imports, reason = "each test file uses a part of it")]
pub(crate) use running::{
    Finished, PATIENCE, Running, run as wirecap, run_unprivileged as wirecap_unprivileged, start,
};

/// The command.
const PROGRAM: &str = env!("CARGO_BIN_EXE_wirecap");

/// Two namespaces connected by a cable: `a0` sends to `a1`.
pub(crate) struct Bed {
    pub(crate) near: Namespace,
    pub(crate) far: Namespace,
    pub(crate) pair: VethPair,
}

impl Bed {
    pub(crate) fn new(queue_count: u32) -> Self {
        let near = Namespace::new().unwrap();
        let far = Namespace::new().unwrap();
        let pair = VethPair::new((&near, "a0"), (&far, "a1"), queue_count, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        Self { near, far, pair }
    }

    pub(crate) fn sender(&self) -> &Interface {
        &self.pair.sender
    }
}

/// Captures the packets that arrive at `a1` during `work`, and returns each packet with its queue.
/// A queue has room for 16,384 packets.
pub(crate) fn arriving(bed: &Bed, work: impl FnOnce() + Send) -> (Vec<(u32, Vec<u8>)>, Ledger) {
    let capture = bed
        .far
        .run_in(|| Capture::on("a1").chunk(64).pool(256).workers(1).open())
        .unwrap()
        .unwrap();
    let mut worker = capture.workers().pop().unwrap();
    let packets = thread::scope(|scope| {
        let taking = scope.spawn(move || {
            let mut packets = Vec::new();
            while let Some(chunk) = worker.next_chunk().unwrap() {
                packets.extend(
                    chunk.iter().map(|packet| (chunk.ring().queue, packet.data().to_vec())),
                );
            }
            packets
        });
        let outcome = catch_unwind(AssertUnwindSafe(work));
        // Also after a failure: the scope waits for the thread.
        bed.far.run_in(|| capture.stop()).unwrap();
        let packets = taking.join().unwrap();
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
        packets
    });
    (packets, bed.far.run_in(|| capture.close()).unwrap())
}
