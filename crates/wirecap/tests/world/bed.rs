//! The test bed of captures whose interfaces change: two namespaces, a cable between them, and a
//! sender that records its packets with their times.

use std::ops::Range;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wirecap::{Capture, CaptureBuilder, CaptureError, Engine, Event, Ledger, Worker};
use wirecap_testbed::{AfXdpSender, Namespace, Stamp, Traffic, VethPair, wait_until};

/// Time limit on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Waiting time for packets that must not arrive.
pub(crate) const A_WHILE: Duration = Duration::from_millis(300);

/// Two namespaces and the cable between them; captures happen at `a1`.
pub(crate) struct Bed {
    pub(crate) sender: Namespace,
    pub(crate) receiver: Namespace,
    pub(crate) pair: VethPair,
}

impl Bed {
    pub(crate) fn new(queue_count: u32) -> Self {
        let sender = Namespace::new().unwrap();
        let receiver = Namespace::new().unwrap();
        let pair = VethPair::new((&sender, "a0"), (&receiver, "a1"), queue_count, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        Self { sender, receiver, pair }
    }

    /// A bed with this many queues in use, and more possible.
    pub(crate) fn with_queues(in_use: u32, most: u32) -> Self {
        let bed = Self::new(most);
        bed.set_sender_queues(in_use);
        bed.set_receiver_queues(in_use);
        bed
    }

    pub(crate) fn set_sender_queues(&self, count: u32) {
        let count = count.to_string();
        run(&self.sender, "ethtool", &["-L", "a0", "tx", &count]);
    }

    pub(crate) fn set_receiver_queues(&self, count: u32) {
        let count = count.to_string();
        run(&self.receiver, "ethtool", &["-L", "a1", "rx", &count]);
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

    /// Waits until an unseen period has ended, and none has begun since.
    pub(crate) fn wait_until_captured_again(&self, capture: &Capture) {
        wait_until("it is captured again", || {
            self.at_receiver(|| capture.ledger())
                .unseen
                .last()
                .is_some_and(|unseen| unseen.to.is_some())
        });
    }

    /// Sends this many packets to a receive queue.
    pub(crate) fn send(&self, queue: u32, packets: u64) {
        send(&self.pair, queue, packets);
    }
}

/// Sends this many packets from the pair's first end to a receive queue of the second one; none may
/// be rejected.
pub(crate) fn send(pair: &VethPair, queue: u32, packets: u64) {
    send_numbered(pair, queue, 0..packets);
}

/// As [`send`], with these numbers.
pub(crate) fn send_numbered(pair: &VethPair, queue: u32, numbers: Range<u64>) {
    pair.sender.wait_until_running().unwrap();
    let mut sender = AfXdpSender::on(&pair.sender, queue).unwrap();
    let traffic = Traffic::to(&pair.receiver);
    for sequence in numbers {
        sender.send(&traffic.frame(Stamp { queue: queue as u16, sequence })).unwrap();
        if sequence % 32 == 31 {
            sender.flush().unwrap();
        }
    }
    sender.flush().unwrap();
}

/// A pool of 16,384 cells: deep enough for the tests that send fewer packets than that.
pub(crate) fn small(engine: Engine) -> CaptureBuilder {
    small_on("a1", engine)
}

/// The same on some of its queues.
pub(crate) fn small_on(device: &str, engine: Engine) -> CaptureBuilder {
    Capture::on(device).engine(engine).chunk(64).pool(256)
}

/// What a capture told.
pub(crate) type Events = Arc<Mutex<Vec<Event>>>;

/// The same builder, whose capture's events are kept.
pub(crate) fn keep_events(builder: CaptureBuilder) -> (CaptureBuilder, Events) {
    let events = Events::default();
    let told = Arc::clone(&events);
    (builder.on_event(move |event| told.lock().unwrap().push(event.clone())), events)
}

/// What prevented a capture from continuing.
pub(crate) fn obstacles(events: &Events) -> Vec<String> {
    let obstacle = |event: &Event| match event {
        Event::Lost { obstacle, .. } => obstacle.clone(),
        _ => None,
    };
    events.lock().unwrap().iter().filter_map(obstacle).collect()
}

/// Takes chunks until no packets have arrived for a while.
pub(crate) fn take_all(worker: &mut Worker) -> Result<u64, CaptureError> {
    let mut taken = 0;
    while let Some(chunk) = worker.next_chunk_timeout(A_WHILE)? {
        taken += chunk.len() as u64;
    }
    Ok(taken)
}

pub(crate) fn ip(namespace: &Namespace, arguments: &[&str]) {
    run(namespace, "ip", arguments);
}

pub(crate) fn run(namespace: &Namespace, tool: &str, arguments: &[&str]) {
    let output = namespace.run_in(|| Command::new(tool).args(arguments).output()).unwrap().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {arguments:?} failed: {message}");
}
