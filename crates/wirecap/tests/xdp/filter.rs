//! Filters in the XDP program: non-matching packets never use a cell.

use std::ops::Range;
use std::time::Duration;

use wirecap::filter::{ClassicInsn, FilterRequest};
use wirecap::{Capture, Ledger, Warning};
use wirecap_testbed::{
    AfXdpSender, Counters, Interface, PacketReceiver, PacketSender, Stamp, Traffic,
    frames_of_several_cells, privileged,
};

use crate::bed::{Bed, balanced, small, take};

/// Waiting time for a frame that must not arrive.
const SILENCE: Duration = Duration::from_millis(100);

/// Frames with these numbers, sent to queue 0.
fn send(interface: &Interface, traffic: &Traffic, sequences: Range<u64>) {
    send_to(0, interface, traffic, sequences);
}

fn send_to(queue: u16, interface: &Interface, traffic: &Traffic, sequences: Range<u64>) {
    let mut sender = AfXdpSender::on(interface, queue.into()).unwrap();
    for sequence in sequences {
        sender.send(&traffic.frame(Stamp { queue, sequence })).unwrap();
    }
    sender.flush().unwrap();
}

/// The test's frames that the host's stack received.
fn host_frames(receiver: &mut PacketReceiver) -> Vec<u64> {
    let mut sequences = Vec::new();
    while let Some(frame) = receiver.receive(SILENCE).unwrap() {
        sequences.extend(Stamp::of(frame).map(|stamp| stamp.sequence));
    }
    sequences
}

#[test]
fn non_matching_packets_go_to_the_host_and_use_no_cell() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_mtu(1, 1500);
    // A ring for 16 packets: only matching packets may use its cells.
    let capture = bed.open(small().chunk(16).pool(1).filter("udp and ether[55] & 63 = 5"));
    let mut worker = capture.workers().pop().unwrap();
    let mut host = PacketReceiver::on(&bed.pair.receiver).unwrap();
    send(&bed.pair.sender, &Traffic::to(&bed.pair.receiver), 0..1000);
    let mut wanted = Vec::new();
    take(&mut worker, 16, |chunk| {
        wanted.extend(chunk.iter().map(|packet| Stamp::of(packet.data()).unwrap().sequence));
    });
    assert!(wanted.into_iter().eq((0..1000).filter(|sequence| sequence & 63 == 5)));
    assert!(host_frames(&mut host).into_iter().eq((0..1000).filter(|sequence| sequence & 63 != 5)));
    let ledger = bed.close(capture);
    balanced(&ledger, 16);
    assert_eq!((ledger.total.seen, ledger.total.filtered), (Some(1000), Some(984)), "{ledger}");
    assert!(ledger.is_lossless() && other_warnings(&ledger).is_empty(), "{ledger}");
}

#[test]
fn non_matching_packets_are_dropped_on_request() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_mtu(2, 1500);
    let capture = bed.open(small().filter("ether[55] = 9").drop_rejected(true).workers(1));
    let mut worker = capture.workers().pop().unwrap();
    let mut host = PacketReceiver::on(&bed.pair.receiver).unwrap();
    let mut counters = Counters::of(&bed.pair.receiver).unwrap();
    send(&bed.pair.sender, &Traffic::to(&bed.pair.receiver), 0..200);
    take(&mut worker, 1, |_| {});
    assert_eq!(host_frames(&mut host), []);
    assert_eq!(counters.since_start().unwrap().rx_queues[0].xdp_drops, 199);
    let ledger = bed.close(capture);
    balanced(&ledger, 1);
    let filtered: Vec<_> = ledger.rings.iter().map(|ring| ring.account.filtered).collect();
    assert_eq!(filtered, [Some(199), Some(0)], "each queue counts by itself");
}

#[test]
fn packets_of_several_fragments_are_filtered_by_their_true_bytes_and_length() {
    if !privileged() || !frames_of_several_cells() {
        return;
    }
    let bed = Bed::with_mtu(1, 9000);
    let frame = |len: usize, mark: u8| {
        let mut frame = vec![2; len];
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        *frame.last_mut().unwrap() = mark;
        frame
    };
    let frames: Vec<Vec<u8>> = [60, 1514, 3840, 3841, 5000, 9000, 9014]
        .into_iter()
        .flat_map(|len| [frame(len, 1), frame(len, 2)])
        .collect();
    let filters = [
        "ether[4999] = 2",
        "len > 3840 and len < 9014",
        "ether[len - 1] = 1",
        "ether[9010:4] = 0x02020201",
    ];
    let wanted: [fn(&[u8]) -> bool; 4] = [
        |frame| frame.get(4999) == Some(&2),
        |frame| (3841..9014).contains(&frame.len()),
        |frame| frame.last() == Some(&1),
        |frame| frame.len() == 9014 && frame.ends_with(&[1]),
    ];
    let capture = bed.open(small().filter("ip"));
    let mut worker = capture.workers().pop().unwrap();
    let mut delivered = 0;
    for (filter, wanted) in filters.into_iter().zip(wanted) {
        bed.at_receiver(|| capture.set_filter(filter)).unwrap();
        let mut sender = AfXdpSender::on(&bed.pair.sender, 0).unwrap();
        frames.iter().for_each(|frame| sender.send(frame).unwrap());
        sender.flush().unwrap();
        let expected: Vec<&Vec<u8>> = frames.iter().filter(|frame| wanted(frame)).collect();
        let mut packets = Vec::new();
        take(&mut worker, expected.len() as u64, |chunk| {
            packets.extend(chunk.iter().map(|packet| packet.data().to_vec()));
        });
        assert!(packets.iter().eq(expected.iter().copied()), "{filter}");
        delivered += packets.len() as u64;
    }
    let ledger = bed.close(capture);
    balanced(&ledger, delivered);
    assert_eq!(
        ledger.total.filtered,
        Some((filters.len() * frames.len()) as u64 - delivered),
        "{ledger}"
    );
    assert!(other_warnings(&ledger).is_empty(), "{:?}", ledger.warnings);
}

/// All warnings but the one about tags, which every bed has.
fn other_warnings(ledger: &Ledger) -> Vec<Warning> {
    let others =
        ledger.warnings.iter().filter(|warning| !matches!(warning, Warning::TagsBeside { .. }));
    others.cloned().collect()
}

/// A program that compares the last byte of the sequence number with `value` after this many other
/// comparisons.
fn long_program(comparisons: usize, value: u32) -> FilterRequest {
    let insn = |code, jt, jf, k| ClassicInsn { code, jt, jf, k };
    let mut program = Vec::new();
    for _ in 0..comparisons {
        program.extend([insn(0x30, 0, 0, 55), insn(0x15, 0, 0, 1)]);
    }
    program.extend([
        insn(0x30, 0, 0, 55),
        insn(0x15, 0, 1, value),
        insn(0x06, 0, 0, 1),
        insn(0x06, 0, 0, 0),
    ]);
    FilterRequest::Program(program)
}

#[test]
fn filters_too_long_for_the_kernel_run_in_user_space_with_a_warning_and_correct_counts() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_mtu(1, 1500);
    let capture = bed.open(small().filter(long_program(3000, 7)));
    let mut worker = capture.workers().pop().unwrap();
    let mut host = PacketReceiver::on(&bed.pair.receiver).unwrap();
    send(&bed.pair.sender, &Traffic::to(&bed.pair.receiver), 0..1000);
    take(&mut worker, 4, |chunk| assert!(chunk.iter().all(|packet| packet.data()[55] == 7)));
    assert_eq!(host_frames(&mut host), []);
    let warnings = other_warnings(&bed.at_receiver(|| capture.ledger()));
    assert!(
        matches!(&warnings[..], [Warning::FilteredInUserSpace { interface, taken: true, .. }] if interface == "a1"),
        "{warnings:?}"
    );
    // From user space into the program, and back.
    for (filter, value) in [(long_program(10, 8), 8), (long_program(3000, 9), 9)] {
        bed.at_receiver(|| capture.set_filter(filter)).unwrap();
        send(&bed.pair.sender, &Traffic::to(&bed.pair.receiver), 0..1000);
        take(&mut worker, 4, |chunk| {
            assert!(chunk.iter().all(|packet| packet.data()[55] == value));
        });
    }
    assert!(worker.next_chunk_timeout(SILENCE).unwrap().is_none());
    let ledger = bed.close(capture);
    balanced(&ledger, 12);
    assert_eq!(ledger.total.filtered, Some(3000 - 12), "{ledger}");
}

/// A program of 100 instructions with more ways through it than the verifier follows: each bit of
/// the first address adds to X or does not, and X is needed at the end. It matches what
/// `long_program` matches.
fn branching_program(value: u32) -> FilterRequest {
    let insn = |code, jt, jf, k| ClassicInsn { code, jt, jf, k };
    let mut program = vec![insn(0x20, 0, 0, 26), insn(0x02, 0, 0, 0), insn(0x01, 0, 0, 0)];
    for bit in 0..24 {
        let load = insn(0x60, 0, 0, 0);
        let add = insn(0x04, 0, 0, 1 << bit);
        program.extend([
            load,
            insn(0x45, 0, 3, 1 << bit),
            insn(0x87, 0, 0, 0),
            add,
            insn(0x07, 0, 0, 0),
        ]);
    }
    program.extend([insn(0x87, 0, 0, 0), insn(0x15, 3, 0, u32::MAX)]);
    program.extend([
        insn(0x30, 0, 0, 55),
        insn(0x15, 0, 1, value),
        insn(0x06, 0, 0, 1),
        insn(0x06, 0, 0, 0),
    ]);
    FilterRequest::Program(program)
}

#[test]
fn filters_that_the_verifier_rejects_run_in_user_space_with_the_reason_and_correct_counts() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_mtu(1, 1500);
    let capture = bed.open(small().filter(branching_program(7)));
    let mut worker = capture.workers().pop().unwrap();
    send(&bed.pair.sender, &Traffic::to(&bed.pair.receiver), 0..1000);
    take(&mut worker, 4, |chunk| assert!(chunk.iter().all(|packet| packet.data()[55] == 7)));
    let warnings = other_warnings(&bed.at_receiver(|| capture.ledger()));
    assert!(
        matches!(&warnings[..], [Warning::FilteredInUserSpace { reason, .. }] if reason.contains("verifier")),
        "{warnings:?}"
    );
    println!("{}", warnings[0]);
    let ledger = bed.close(capture);
    balanced(&ledger, 4);
    assert_eq!(ledger.total.filtered, Some(1000 - 4), "{ledger}");
}

#[test]
fn the_cells_of_packets_rejected_in_user_space_are_posted_again() {
    if !privileged() || !frames_of_several_cells() {
        return;
    }
    // Cells for 32 packets, in bursts of 8, and frames of up to three cells.
    let bed = Bed::with_mtu(1, 9000);
    let capture = bed.open(small().chunk(32).pool(1).filter(long_program(3000, 7)));
    let mut worker = capture.workers().pop().unwrap();
    let traffic = Traffic::to(&bed.pair.receiver);
    let mut sender = AfXdpSender::on(&bed.pair.sender, 0).unwrap();
    let mut delivered = 0;
    for burst in 0..200 {
        for sequence in 0..8 {
            let mut frame = traffic.frame(Stamp { queue: 0, sequence });
            frame.resize([60, 3000, 5000, 9000][(burst % 4) as usize], 0);
            sender.send(&frame).unwrap();
        }
        sender.flush().unwrap();
        take(&mut worker, 1, |chunk| assert_eq!(chunk.get(0).unwrap().data()[55], 7));
        delivered += 1;
    }
    let ledger = bed.close(capture);
    balanced(&ledger, delivered);
    assert_eq!(ledger.judge().lost(), 0, "{ledger}");
    assert_eq!(ledger.total.filtered, Some(7 * delivered), "{ledger}");
}

#[test]
fn a_bad_filter_changes_nothing() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_mtu(1, 1500);
    let (_, text) = bed.refusal(small().filter("tcp andd port 80"));
    assert_eq!(text, "syntax error in the filter \"tcp andd port 80\"; see pcap-filter(7)");
    // The interface is free, and without a program.
    let capture = bed.open(small().filter("ether[55] = 3"));
    let mut worker = capture.workers().pop().unwrap();
    let error = bed.at_receiver(|| capture.set_filter("ether[55] = 4 or port zork")).unwrap_err();
    assert!(error.to_string().starts_with("unknown port 'zork'"), "{error}");
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    let traffic = Traffic::to(&bed.pair.receiver);
    (0..6).for_each(|sequence| sender.send(&traffic.frame(Stamp { queue: 0, sequence })).unwrap());
    take(&mut worker, 1, |chunk| assert_eq!(chunk.get(0).unwrap().data()[55], 3));
    bed.at_receiver(|| capture.stop());
    let error = bed.at_receiver(|| capture.set_filter("udp")).unwrap_err();
    assert!(error.to_string().contains("stopped"), "{error}");
    balanced(&bed.close(capture), 1);
}

#[test]
fn interfaces_have_separate_filters() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_mtu(2, 1500);
    let other = |filter| {
        Capture::on(wirecap::Source::new("a1@0").filter(filter)).engine(wirecap::Engine::Xdp)
    };
    let (_, text) = bed.refusal(other("udp").and("a1@1"));
    assert!(text.contains("different values of filter"), "{text}");
    let capture = bed.open(other("ether[55] = 3").chunk(64).pool(16).filter("tcp"));
    let mut worker = capture.workers().pop().unwrap();
    send(&bed.pair.sender, &Traffic::to(&bed.pair.receiver), 0..10);
    take(&mut worker, 1, |chunk| assert_eq!(chunk.get(0).unwrap().data()[55], 3));
    balanced(&bed.close(capture), 1);
}

#[test]
fn captures_that_share_an_interface_change_their_own_filters() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_mtu(2, 1500);
    let on = |queue: &str| Capture::on(queue).engine(wirecap::Engine::Xdp).chunk(64).pool(16);
    let first = bed.open(on("a1@0").filter("ether[55] = 1"));
    let second = bed.open(on("a1@1").filter("ether[55] = 2"));
    let mut workers = [&first, &second].map(|capture| capture.workers().pop().unwrap());
    let mut expect = |values: [u8; 2]| {
        for (queue, (worker, value)) in workers.iter_mut().zip(values).enumerate() {
            send_to(queue as u16, &bed.pair.sender, &Traffic::to(&bed.pair.receiver), 0..8);
            take(worker, 1, |chunk| assert_eq!(chunk.get(0).unwrap().data()[55], value));
        }
    };
    expect([1, 2]);
    bed.at_receiver(|| first.set_filter("ether[55] = 3")).unwrap();
    expect([3, 2]);
    bed.at_receiver(|| second.set_filter("ether[55] = 4")).unwrap();
    expect([3, 4]);
    let ledger = bed.close(first);
    assert_eq!((ledger.total.delivered, ledger.total.filtered), (3, Some(21)), "{ledger}");
    bed.at_receiver(|| second.set_filter("ether[55] = 5")).unwrap();
    send_to(1, &bed.pair.sender, &Traffic::to(&bed.pair.receiver), 0..8);
    take(&mut workers[1], 1, |chunk| assert_eq!(chunk.get(0).unwrap().data()[55], 5));
    let ledger = bed.close(second);
    assert_eq!((ledger.total.delivered, ledger.total.filtered), (4, Some(28)), "{ledger}");
}
