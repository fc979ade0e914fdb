//! The senders in user space: any bytes, on a chosen queue, counted.

use std::time::Duration;

use wirecap_testbed::{
    AfXdpSender, Counters, Namespace, Pacer, PacketReceiver, PacketSender, SendError, Stamp,
    Traffic, VethPair, drop_program, frames_of_several_cells, pass_program, privileged,
};

fn pair(queue_count: u32, mtu_bytes: u32) -> VethPair {
    let here = Namespace::new().expect("a namespace");
    let there = Namespace::new().expect("a namespace");
    VethPair::new((&here, "a0"), (&there, "a1"), queue_count, mtu_bytes).expect("a pair")
}

/// The next frame that arrives.
fn next_frame(judge: &mut PacketReceiver) -> &[u8] {
    judge.receive(Duration::from_secs(60)).expect("it is up").expect("a frame")
}

/// A frame of a private Ethernet type, so that no stack answers it.
fn frame(bytes: usize) -> Vec<u8> {
    let mut frame = vec![0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x88, 0xb5];
    frame.extend((frame.len()..bytes).map(|place| place as u8 ^ (place >> 8) as u8));
    frame
}

#[test]
fn af_xdp_frames_arrive_on_the_queue_they_were_sent_on() {
    if !privileged() {
        return;
    }
    let pair = pair(4, 1500);
    let _dropping = drop_program(&pair.receiver).expect("a program");
    let mut out = Counters::of(&pair.sender).expect("counters");
    let mut back = Counters::of(&pair.receiver).expect("counters");
    let traffic = Traffic::to(&pair.receiver);
    for queue in 0..4_u16 {
        let mut sender = AfXdpSender::on(&pair.sender, queue.into()).expect("a sender");
        let mut pacer = Pacer::new(500_000);
        let frames = 5_000 + u64::from(queue);
        for sequence in 0..frames {
            pacer.wait();
            sender.send(&traffic.frame(Stamp { queue, sequence })).expect("sent");
        }
        sender.flush().expect("flushed");
        assert_eq!(sender.sent(), frames);
        let sent = out.since_start().expect("counters");
        let received = back.since_start().expect("counters");
        assert_eq!(sent.handed_over(), frames);
        assert_eq!(received.rx_queues[usize::from(queue)].xdp_packets + sent.tx_dropped, frames);
        assert_eq!(received.rx_packets + sent.tx_dropped, frames, "and on no other queue");
        out.restart().expect("counters");
        back.restart().expect("counters");
    }
}

#[test]
fn af_xdp_sends_short_and_jumbo_frames_as_they_are() {
    if !privileged() || !frames_of_several_cells() {
        return;
    }
    let pair = pair(2, 9000);
    let mut judge = PacketReceiver::on(&pair.receiver).expect("a receiver");
    let mut sender = AfXdpSender::on(&pair.sender, 1).expect("a sender");
    for bytes in [14, 60, 1514, 4096, 4097, 8192, 9014] {
        sender.send(&frame(bytes)).expect("sent");
        sender.flush().expect("flushed");
        assert_eq!(next_frame(&mut judge), frame(bytes), "{bytes} bytes");
    }
    let error = sender.send(&frame(9019)).expect_err("too long");
    assert!(matches!(error, SendError::Socket { frame_bytes: 9019, .. }), "{error}");
    let error = sender.send(&[]).expect_err("empty");
    assert!(matches!(error, SendError::Socket { frame_bytes: 0, .. }), "{error}");
    assert_eq!(sender.sent(), 7);
}

#[test]
fn a_closed_senders_queue_can_be_opened_again_at_once() {
    if !privileged() {
        return;
    }
    let pair = pair(1, 1500);
    for _ in 0..5 {
        let mut sender = AfXdpSender::on(&pair.sender, 0).expect("a sender");
        sender.send(&frame(100)).expect("sent");
        sender.flush().expect("flushed");
    }
    assert!(AfXdpSender::on(&pair.sender, 1).is_err(), "there is no queue 1");
}

#[test]
fn an_interface_that_goes_down_ends_the_sending_with_an_error() {
    if !privileged() {
        return;
    }
    let pair = pair(1, 1500);
    let mut sender = AfXdpSender::on(&pair.sender, 0).expect("a sender");
    let set_down = || std::process::Command::new("ip").args(["link", "set", "a0", "down"]).status();
    let status = pair.sender.namespace.run_in(set_down).expect("in the namespace").expect("ip");
    assert!(status.success());
    sender.send(&frame(100)).expect("taken");
    let error = sender.flush().expect_err("it is down");
    assert!(matches!(error, SendError::Socket { .. }), "{error}");
}

#[test]
fn packet_sockets_frames_are_counted_and_arrive_as_they_are() {
    if !privileged() {
        return;
    }
    let pair = pair(2, 1500);
    let _passing = pass_program(&pair.receiver).expect("a program");
    let mut judge = PacketReceiver::on(&pair.receiver).expect("a receiver");
    let mut out = Counters::of(&pair.sender).expect("counters");
    let mut sender = PacketSender::on(&pair.sender).expect("a sender");
    for bytes in [14, 60, 61, 1000, 1514] {
        sender.send(&frame(bytes)).expect("sent");
        assert_eq!(next_frame(&mut judge), frame(bytes), "{bytes} bytes");
    }
    let error = sender.send(&frame(2000)).expect_err("too long");
    assert!(matches!(error, SendError::Socket { frame_bytes: 2000, .. }), "{error}");
    assert_eq!(sender.sent(), 5);
    assert_eq!(out.since_start().expect("counters").handed_over(), 5);
}
