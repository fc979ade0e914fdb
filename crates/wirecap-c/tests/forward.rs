//! The example `forward.c` between two real interfaces: its counts, and the packets that arrive.

mod common;

use std::time::Duration;

use common::{Example, said};
use wirecap_testbed::{
    AfXdpSender, Namespace, PacketReceiver, Stamp, Traffic, VethPair, privileged,
};

/// A - forward.c - B: `a1` and `b0` are the interfaces in the middle.
struct Bed {
    middle: Namespace,
    a: VethPair,
    b: VethPair,
}

impl Bed {
    fn new(queues: u32) -> Self {
        let [near, middle, far] = std::array::from_fn(|_| Namespace::new().unwrap());
        let a = VethPair::new((&near, "a0"), (&middle, "a1"), queues, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        let b = VethPair::new((&middle, "b0"), (&far, "b1"), queues, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        Self { middle, a, b }
    }

    fn start(&self, arguments: &[&str]) -> Example {
        let outcome = Example::start(
            &self.middle,
            "examples/forward.c",
            arguments,
            "forwarding between a1 and b0",
        );
        outcome.unwrap_or_else(|output| panic!("{}", said(&output)))
    }

    /// Sends this many frames to B, every tenth of them to port 53.
    fn send(&self, frames: u64) {
        let mut sender = AfXdpSender::on(&self.a.sender, 0).unwrap();
        let traffic = Traffic::to(&self.b.receiver);
        let names = Traffic { destination_port: 53, ..traffic.clone() };
        for sequence in 0..frames {
            let traffic = if sequence % 10 == 0 { &names } else { &traffic };
            sender.send(&traffic.frame(Stamp { queue: 0, sequence })).unwrap();
        }
        sender.flush().unwrap();
    }
}

/// Receives frames until `expected` have arrived and no more follow, or the time is up.
fn arrived(receiver: &mut PacketReceiver, expected: u64, mut see: impl FnMut(&[u8])) -> u64 {
    let mut count = 0;
    let patience = |count| Duration::from_millis(if count < expected { 20_000 } else { 100 });
    while let Some(frame) = receiver.receive(patience(count)).unwrap() {
        if Stamp::of(frame).is_some() {
            see(frame);
            count += 1;
        }
    }
    count
}

/// A number of a port: the one after this word.
fn number(text: &str, port: &str, word: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with(&format!("{port}: "))).unwrap();
    let (_, rest) = line.split_once(&format!("{word} ")).unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn forwarded_frames_are_unchanged_and_rejected_frames_are_not_sent() {
    if !privileged() {
        return;
    }
    for (engine, advanced) in [("xdp", None), ("xdp", Some("0.1")), ("packet", None)] {
        let bed = Bed::new(2);
        let mut receiver = PacketReceiver::on(&bed.b.receiver).unwrap();
        let threshold: Vec<&str> =
            advanced.into_iter().flat_map(|threshold| ["-T", threshold]).collect();
        let sizes = ["-e", engine, "-M", "64", "-R", "128", "-d", "53", "-m", "02:00:00:00:00:77"];
        let example = bed.start(&[&sizes, &*threshold, &["a1", "b0"]].concat());
        bed.send(4000);
        let mut last = None;
        let mut is_in_order = true;
        let count = arrived(&mut receiver, 3600, |frame| {
            assert_eq!(frame[..6], [2, 0, 0, 0, 0, 0x77]);
            let sequence = Stamp::of(frame).map(|stamp| stamp.sequence);
            is_in_order &= sequence > last;
            last = sequence;
        });
        let text = example.end();
        // No ring receives more packets than its pool has cells, so all are delivered. Packets that
        // the device then rejects are counted.
        assert!(
            text.starts_with("offered 4000, delivered 4000, unwanted 400\n"),
            "{engine}: {text}"
        );
        let [taken, sent, waiting] =
            ["taken", "sent", "waiting"].map(|word| number(&text, "b0", word));
        let drops = ["ring full", "refused", "down", "bad length", "no cell", "other"];
        let dropped: u64 = drops.iter().map(|word| number(&text, "b0", word)).sum();
        assert_eq!((taken, waiting), (3600, 0), "{engine}: {text}");
        assert_eq!((taken, sent), (sent + dropped, count), "{engine}: {text}");
        assert_eq!(number(&text, "a1", "taken"), 0, "{engine}: {text}");
        // A thread that gets no CPU time for too long is not waited for; the ledger then counts
        // late packets.
        assert!(is_in_order || number(&text, "b0", "late") > 0, "{engine}: {text}");
    }
}

#[test]
fn impossible_forwarding_is_rejected_with_the_reason() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    for (arguments, reason) in [
        (["-R", "0", "a1", "b0"], "invalid R (chunks per pool) 0"),
        (["-T", "0.5", "a1", "c0"], "no interface c0"),
    ] {
        let outcome = Example::start(&bed.middle, "examples/forward.c", &arguments, "forwarding");
        let text = said(&outcome.expect_err("it was taken"));
        assert!(text.contains(reason), "{arguments:?}: {text}");
    }
}
