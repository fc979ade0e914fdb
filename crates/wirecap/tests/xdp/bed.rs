//! The test bed of captures: two namespaces and a cable between them.

use std::process::Command;
use std::time::Duration;

use wirecap::{Capture, CaptureBuilder, Chunk, Engine, Ledger, OpenError, Worker};
use wirecap_testbed::{Namespace, Traffic, VethPair};

/// Time limit on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Two namespaces and the cable between them; captures happen at `a1`.
pub(crate) struct Bed {
    pub(crate) receiver: Namespace,
    pub(crate) pair: VethPair,
}

impl Bed {
    pub(crate) fn new(queue_count: u32) -> Self {
        Self::with_mtu(queue_count, 1500)
    }

    pub(crate) fn with_mtu(queue_count: u32, mtu: u32) -> Self {
        let sender = Namespace::new().unwrap();
        let receiver = Namespace::new().unwrap();
        let pair = VethPair::new((&sender, "a0"), (&receiver, "a1"), queue_count, mtu)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        Self { receiver, pair }
    }

    /// One-flow traffic to the receiver.
    pub(crate) fn traffic(&self) -> Traffic {
        Traffic::to(&self.pair.receiver)
    }

    /// Runs `work` in the receiver's namespace.
    pub(crate) fn at_receiver<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.receiver.run_in(work).unwrap()
    }

    pub(crate) fn open(&self, builder: CaptureBuilder) -> Capture {
        self.at_receiver(|| builder.open()).unwrap()
    }

    pub(crate) fn close(&self, capture: Capture) -> Ledger {
        self.at_receiver(|| capture.close())
    }

    /// The error of a capture that cannot be opened, with its causes.
    pub(crate) fn refusal(&self, builder: CaptureBuilder) -> (OpenError, String) {
        let error = self.at_receiver(|| builder.open()).expect_err("the capture opened");
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(source) = cause {
            text += &format!(": {source}");
            cause = source.source();
        }
        (error, text)
    }
}

/// A pool of 16,384 cells: deep enough for the tests that send fewer packets than that.
pub(crate) fn small() -> CaptureBuilder {
    small_on("a1")
}

pub(crate) fn small_on(device: &str) -> CaptureBuilder {
    Capture::on(device).engine(Engine::Xdp).chunk(64).pool(256)
}

/// Takes chunks until `packets` packets were delivered.
pub(crate) fn take(worker: &mut Worker, packets: u64, mut each: impl FnMut(&Chunk)) {
    let mut taken = 0;
    while taken < packets {
        let chunk = worker.next_chunk_timeout(PATIENCE).unwrap();
        let chunk = chunk.unwrap_or_else(|| panic!("only {taken} of {packets} packets came"));
        taken += chunk.len() as u64;
        each(&chunk);
    }
    assert_eq!(taken, packets);
}

pub(crate) fn balanced(ledger: &Ledger, sent: u64) {
    assert_eq!(ledger.total.offered, sent, "{ledger}");
    assert_eq!(ledger.total.delivered + ledger.total.dropped.total(), sent, "{ledger}");
    let rings: u64 = ledger.rings.iter().map(|ring| ring.account.delivered).sum();
    assert_eq!(rings, ledger.total.delivered, "{ledger}");
}

pub(crate) fn ip(namespace: &Namespace, arguments: &[&str]) {
    let status = namespace.run_in(|| Command::new("ip").args(arguments).status());
    assert!(status.unwrap().unwrap().success(), "ip {arguments:?} failed");
}
