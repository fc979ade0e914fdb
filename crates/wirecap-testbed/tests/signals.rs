//! The generator under signals. Alone in its process, which is stopped and continued.

use std::process::Command;

use wirecap_testbed::{
    Counters, Generator, Load, Namespace, Traffic, VethPair, drop_program, privileged,
};

/// Stops and continues the parent process, which interrupts its system calls.
const DISTURB: &str = "for i in 1 2 3 4 5 6 7 8 9 10; do
    kill -STOP $PPID; sleep 0.01; kill -CONT $PPID; sleep 0.01
done";

#[test]
fn a_run_that_signals_interrupt_sends_every_frame_once() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new().expect("a namespace");
    let pair = VethPair::new((&namespace, "a0"), (&namespace, "a1"), 1, 1500).expect("a pair");
    let _dropping = drop_program(&pair.receiver).expect("a program");
    let mut counters = Counters::of(&pair.sender).expect("counters");
    for load in [Load::endless(0), Load::endless(0).per_second(200_000)] {
        counters.restart().expect("counters");
        let mut generator =
            Generator::new(&pair.sender, &Traffic::to(&pair.receiver)).expect("a generator");
        let run = generator.start(&[load]).expect("a run");
        let disturbed = Command::new("sh").args(["-c", DISTURB]).status().expect("a shell");
        assert!(disturbed.success());
        let sent = run.stop().expect("sent");
        assert_eq!(sent[0].frames, counters.since_start().expect("counters").handed_over_as_xdp());
    }
}
