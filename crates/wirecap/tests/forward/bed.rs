//! The test bed of forwarding: three namespaces in a row, connected by two cables.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use wirecap::{
    Capture, CaptureBuilder, CaptureError, Chunk, Engine, Ledger, OpenError, Port, PortAccount,
};
use wirecap_testbed::{AfXdpSender, Counters, Namespace, PacketReceiver, Stamp, Traffic, VethPair};

/// Time limit on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A - wirecap - B: `a1` and `b0` are in the middle.
pub(crate) struct Bed {
    pub(crate) middle: Namespace,
    pub(crate) a: VethPair,
    pub(crate) b: VethPair,
}

impl Bed {
    pub(crate) fn new(queue_count: u32) -> Self {
        Self::with_mtu(queue_count, 1500)
    }

    pub(crate) fn with_mtu(queue_count: u32, mtu: u32) -> Self {
        Self::with_mtus(queue_count, mtu, mtu)
    }

    /// With a separate MTU for each cable.
    pub(crate) fn with_mtus(queue_count: u32, mtu: u32, other_mtu: u32) -> Self {
        let [near, middle, far] = std::array::from_fn(|_| Namespace::new().unwrap());
        let a = VethPair::new((&near, "a0"), (&middle, "a1"), queue_count, mtu)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        let b = VethPair::new((&middle, "b0"), (&far, "b1"), queue_count, other_mtu)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        Self { middle, a, b }
    }

    /// Runs `work` in wirecap's namespace.
    pub(crate) fn at_middle<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.middle.run_in(work).unwrap()
    }

    pub(crate) fn open(&self, builder: CaptureBuilder) -> Capture {
        self.at_middle(|| builder.open()).unwrap()
    }

    pub(crate) fn close(&self, capture: Capture) -> Ledger {
        self.at_middle(|| capture.close())
    }

    pub(crate) fn refusal(&self, builder: CaptureBuilder) -> OpenError {
        self.at_middle(|| builder.open()).expect_err("the capture opened")
    }

    pub(crate) fn ip(&self, arguments: &[&str]) {
        ip(&self.middle, arguments);
    }

    /// A sender at A, on this queue.
    pub(crate) fn sender(&self, queue: u32) -> AfXdpSender {
        AfXdpSender::on(&self.a.sender, queue).unwrap()
    }

    /// The frames that B receives.
    pub(crate) fn receiver(&self) -> PacketReceiver {
        PacketReceiver::on(&self.b.receiver).unwrap()
    }

    /// One-flow traffic for B.
    pub(crate) fn traffic(&self) -> Traffic {
        Traffic::to(&self.b.receiver)
    }

    /// Sends `frames` frames from A's queue `queue`, as fast as they go.
    pub(crate) fn send(&self, queue: u16, frames: u64) {
        let mut sender = self.sender(queue.into());
        let traffic = self.traffic();
        (0..frames)
            .for_each(|sequence| sender.send(&traffic.frame(Stamp { queue, sequence })).unwrap());
        sender.flush().unwrap();
    }

    /// The number of packets at B by its own count, after the last one has arrived.
    pub(crate) fn arrived(&self, counters: &mut Counters) -> u64 {
        settled(|| counters.since_start().unwrap().rx_packets)
    }

    /// The number of packets that left A and reached the middle, by the sender's interface.
    pub(crate) fn counters(&self) -> (Counters, Counters) {
        (Counters::of(&self.a.sender).unwrap(), Counters::of(&self.b.receiver).unwrap())
    }
}

/// The value of a count when it no longer changes.
pub(crate) fn settled(count: impl FnMut() -> u64) -> u64 {
    let mut count = count;
    let mut last = count();
    loop {
        thread::sleep(Duration::from_millis(30));
        let now = count();
        if now == last {
            return now;
        }
        last = now;
    }
}

/// From `a1` to `b0` and back, with pools of 16,384 cells.
pub(crate) fn both() -> CaptureBuilder {
    Capture::on("a1").and("b0").engine(Engine::Xdp).forwarding().chunk(64).pool(256)
}

/// From `a1` to `b0` only.
pub(crate) fn one_way() -> CaptureBuilder {
    Capture::on("a1").engine(Engine::Xdp).transmit_on("b0").chunk(64).pool(256)
}

/// Sends a chunk as it is.
pub(crate) fn pass_on(chunk: &mut Chunk, port: &mut Port) {
    port.send_all(chunk.drain());
    port.flush();
}

/// Runs `forward` in each worker with the ports to B and to A while `send` sends; stops when all
/// arrived packets were captured, and closes.
pub(crate) fn forwarding<T>(
    bed: &Bed,
    builder: CaptureBuilder,
    forward: impl Fn(&mut Chunk, &mut [Port]) + Sync,
    send: impl FnOnce(&Capture) -> T,
) -> (T, Ledger) {
    let capture = bed.open(builder);
    let ports: Vec<String> = capture.ports().map(str::to_owned).collect();
    let result = thread::scope(|scope| {
        for mut worker in capture.workers() {
            let mut ports: Vec<Port> =
                ports.iter().map(|port| capture.port(port).unwrap()).collect();
            let forward = &forward;
            scope.spawn(move || -> Result<(), CaptureError> {
                while let Some(mut chunk) = worker.next_chunk()? {
                    forward(&mut chunk, &mut ports);
                }
                Ok(())
            });
        }
        // Also when `send` panics: the workers wait for it.
        let _stop = Stop(bed, &capture);
        send(&capture)
    });
    (result, bed.close(capture))
}

/// Stops a capture at the end.
struct Stop<'a>(&'a Bed, &'a Capture);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.at_middle(|| self.1.stop());
    }
}

/// The account of the port to B.
pub(crate) fn to_b(ledger: &Ledger) -> PortAccount {
    let page = ledger.ports.iter().find(|port| port.name == "b0").expect("there is a port to B");
    let account = page.account;
    assert_eq!(
        account.taken,
        account.sent + account.dropped.total() + account.waiting,
        "{ledger:#?}"
    );
    account
}

/// Checks that `sent` packets were captured or counted as dropped, and forwarded to B or counted as
/// dropped.
pub(crate) fn balanced(ledger: &Ledger, sent: u64, arrived: u64) {
    assert_eq!(ledger.total.offered, sent, "{ledger}");
    let port = to_b(ledger);
    assert_eq!(port.taken, ledger.total.delivered, "{ledger:#?}");
    assert_eq!((port.sent, port.waiting), (arrived, 0), "{ledger:#?}");
    assert_eq!(sent, arrived + ledger.total.dropped.total() + port.dropped.total(), "{ledger:#?}");
}

pub(crate) fn ip(namespace: &Namespace, arguments: &[&str]) {
    let status = namespace.run_in(|| Command::new("ip").args(arguments).status());
    assert!(status.unwrap().unwrap().success(), "ip {arguments:?} failed");
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}
