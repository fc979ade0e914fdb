//! The example `handler.c`, compiled as a user would, on real interfaces: its ledger and the
//! sender's count.

mod common;

use std::process::Output;

use common::{Bed, Example, said};
use serde_json::Value;
use wirecap_testbed::{AfXdpSender, Stamp, Traffic, privileged};

/// The running example on a test bed.
struct Handler {
    bed: Bed,
    example: Example,
}

impl Handler {
    /// Starts it with these arguments, and waits until it captures.
    fn start(queues: u32, arguments: &[&str]) -> Result<Self, Output> {
        let bed = Bed::new(queues);
        let example =
            Example::start(&bed.receiver, "examples/handler.c", arguments, "capturing from ")?;
        Ok(Self { bed, example })
    }

    /// Sends this many frames to each queue.
    fn send(&self, frames: &[u64]) {
        let traffic = Traffic::to(&self.bed.pair.receiver);
        for (queue, &frames) in frames.iter().enumerate() {
            let mut sender = AfXdpSender::on(&self.bed.pair.sender, queue as u32).unwrap();
            for sequence in 0..frames {
                sender.send(&traffic.frame(Stamp { queue: queue as u16, sequence })).unwrap();
            }
            sender.flush().unwrap();
        }
    }
}

fn started(queues: u32, arguments: &[&str]) -> Handler {
    Handler::start(queues, arguments).unwrap_or_else(|output| panic!("{}", said(&output)))
}

/// The final ledger.
fn ledger(text: &str) -> Value {
    let ledger: Value = serde_json::from_str(text).unwrap();
    let number = |key: &str| ledger[key].as_u64().unwrap();
    let dropped = |key: &str| ledger["dropped"][key].as_u64().unwrap_or(0);
    let drops: u64 = ["no_cell", "ring_full", "device", "other"].into_iter().map(dropped).sum();
    assert_eq!(number("offered"), number("delivered") + drops, "{ledger}");
    ledger
}

#[test]
fn the_ledger_counts_the_packets_sent_to_each_ring() {
    if !privileged() {
        return;
    }
    // No ring receives more packets than its pool has cells, so none can be lost.
    for (engine, mode) in [("xdp", "B-(64,64)"), ("packet", "B-(64,64)")] {
        let handler = started(3, &["-j", "-e", engine, "-M", "64", "-R", "64", "a1@0", "a1@1-2"]);
        handler.send(&[1000, 2500, 7]);
        let ledger = ledger(&handler.example.end());
        assert_eq!((&ledger["engine"], &ledger["mode"]), (&engine.into(), &mode.into()));
        assert_eq!(
            (&ledger["offered"], &ledger["delivered"]),
            (&3507.into(), &3507.into()),
            "{ledger}"
        );
        for (ring, sent) in [1000, 2500, 7].into_iter().enumerate() {
            assert_eq!(ledger["rings"][ring]["name"], format!("a1@{ring}"));
            assert_eq!(ledger["rings"][ring]["delivered"], sent, "{ledger}");
        }
    }
}

#[test]
fn non_matching_packets_count_as_filtered() {
    if !privileged() {
        return;
    }
    let handler = started(2, &["-j", "-e", "xdp", "-f", "udp port 10", "a1"]);
    handler.send(&[300, 200]);
    let ledger = ledger(&handler.example.end());
    assert_eq!((&ledger["filtered"], &ledger["seen"]), (&500.into(), &500.into()), "{ledger}");
    assert_eq!(ledger["delivered"], 0, "{ledger}");
}

#[test]
fn buddies_help_an_overloaded_thread() {
    if !privileged() {
        return;
    }
    let slow = ["-e", "xdp", "-M", "64", "-R", "256", "-T", "0.02", "-x", "300", "a1"];
    let handler = started(3, &slow);
    handler.send(&[15_000]);
    let text = handler.example.end();
    assert!(text.contains("offered 15000, delivered 15000, filtered 0\n"), "{text}");
    assert!(text.contains("\nlossless: yes"), "{text}");
    let words =
        |line: &str| line.split(' ').filter_map(|word| word.parse().ok()).collect::<Vec<u64>>();
    let workers: Vec<_> =
        text.lines().filter(|line| line.starts_with("worker ")).map(words).collect();
    assert_eq!(workers.len(), 3, "{text}");
    assert_eq!(workers.iter().map(|worker| worker[0]).sum::<u64>(), 15_000, "{text}");
    assert_eq!(workers.iter().map(|worker| worker[1]).sum::<u64>(), 15_000 * 60, "{text}");
    let offloaded: u64 = workers.iter().map(|worker| worker[3]).sum();
    assert!(offloaded > 0 && workers[0][3] == 0, "{text}");
}

#[test]
fn impossible_captures_are_rejected_with_the_reason() {
    if !privileged() {
        return;
    }
    for (arguments, reason) in [
        (&["a1@7"][..], "a1@7 does not exist: a1 has one receive queue, 0"),
        (&["nothing"], "no interface nothing in this network namespace"),
        (&["-f", "tcp prot 80", "a1"], "tcp prot 80"),
        (&["-M", "0", "a1"], "invalid M (cells per chunk) 0: expected 1 to 65536"),
        (&["-T", "1.5", "a1"], "invalid T (threshold in percent) 150: expected 0 to 100"),
    ] {
        let Err(output) = Handler::start(1, arguments) else { panic!("{arguments:?} was taken") };
        let text = said(&output);
        assert!(text.starts_with("handler: ") && text.contains(reason), "{arguments:?}: {text}");
        assert_eq!(output.status.code(), Some(1), "{text}");
    }
}
