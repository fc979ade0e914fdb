//! The sender that copies frames inside the kernel: every frame arrives as it was, in order, once.

use std::time::Duration;

use wirecap_testbed::{
    Counters, KernelSender, Namespace, PacketReceiver, VethPair, drop_program, pass_program,
    privileged,
};

/// Frames of this many lengths; all bytes of a frame identify it.
fn frames(count: usize) -> Vec<Vec<u8>> {
    let length = |number: usize| match number % 5 {
        0 => 60,
        1 => 1514,
        2 => 14 + number % 1501,
        3 => 1514 - number % 1455,
        _ => 61,
    };
    let frame = |number: usize| {
        let mut frame = vec![number as u8 ^ (number >> 8) as u8; length(number)];
        // An Ethernet type that no protocol processes.
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
        frame
    };
    (0..count).map(frame).collect()
}

#[test]
fn frames_arrive_as_they_were_taken_and_in_order() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new().expect("a namespace");
    let pair = VethPair::new((&namespace, "a0"), (&namespace, "a1"), 1, 1500).expect("a pair");
    let _passing = pass_program(&pair.receiver).expect("a program");
    let mut receiver = PacketReceiver::on(&pair.receiver).expect("a receiver");
    let mut counters = Counters::of(&pair.sender).expect("counters");
    let mut sender = KernelSender::on(&pair.sender, 0).expect("a sender");
    // Fewer at a time than the veth's ring holds, and in total more than the pages hold.
    let frames = frames(3_000);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            for part in frames.chunks(200) {
                part.iter().for_each(|frame| sender.send(frame).expect("a frame taken"));
                sender.flush().expect("frames sent");
            }
            sender.sent()
        });
        for (number, frame) in frames.iter().enumerate() {
            let received =
                receiver.receive(Duration::from_secs(60)).expect("a receiver that works");
            assert_eq!(received, Some(&frame[..]), "frame {number}");
        }
        assert_eq!(sending.join().expect("a sender that ends"), 3_000);
    });
    assert_eq!(counters.since_start().expect("counters").handed_over_as_xdp(), 3_000);
}

#[test]
fn more_than_all_pages_hold_is_sent_in_several_runs() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new().expect("a namespace");
    let pair = VethPair::new((&namespace, "a0"), (&namespace, "a1"), 1, 1500).expect("a pair");
    let _dropping = drop_program(&pair.receiver).expect("a program");
    let mut counters = Counters::of(&pair.sender).expect("counters");
    let mut sender = KernelSender::on(&pair.sender, 0).expect("a sender");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for frame in frames(20_000) {
                sender.send(&frame).expect("a frame taken");
            }
            sender.flush().expect("frames sent");
            assert!(sender.send(&[0; 13]).is_err() && sender.send(&[0; 1519]).is_err());
        });
    });
    assert_eq!(sender.sent(), 20_000);
    assert_eq!(counters.since_start().expect("counters").handed_over_as_xdp(), 20_000);
}
