//! The verdict of a ledger and its unseen periods, as a C program reads them.

mod common;

use std::thread;
use std::time::Duration;

use common::{Bed, Example};
use wirecap_testbed::{PacketSender, Sizes, Stamp, Traffic, privileged};

/// Longer than the interval in which the interface is looked at.
const A_WHILE: Duration = Duration::from_millis(800);

/// What the program prints after frames have arrived, and meanwhile `happens`.
fn verdict(happens: impl FnOnce(&Bed)) -> String {
    let bed = Bed::new(1);
    let program = Example::start(&bed.receiver, "tests/verdict.c", &["a1"], "ready").unwrap();
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    let mut send = |bytes| {
        let traffic = Traffic { sizes: Sizes::fixed(bytes), ..Traffic::to(&bed.pair.receiver) };
        sender.send(&traffic.frame(Stamp { queue: 0, sequence: 0 })).unwrap();
    };
    send(200);
    happens(&bed);
    send(60);
    program.wait()
}

#[test]
fn a_c_program_gets_the_verdict_of_the_table() {
    if !privileged() {
        return;
    }
    let text = verdict(|_| ());
    assert!(text.starts_with("answer 0 lost 0\nlossless: yes"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn a_c_program_learns_of_unseen_periods() {
    if !privileged() {
        return;
    }
    let text = verdict(|bed| {
        thread::sleep(A_WHILE);
        bed.pair.receiver.set_up(false).unwrap();
        thread::sleep(A_WHILE);
        bed.pair.receiver.set_up(true).unwrap();
        bed.pair.receiver.wait_until_running().unwrap();
        thread::sleep(A_WHILE);
    });
    assert!(text.starts_with("answer 2 lost 0\nlossless: not known (1 unseen period"), "{text}");
    assert!(text.ends_with("\na1: it was down, a period\n"), "{text}");
}
