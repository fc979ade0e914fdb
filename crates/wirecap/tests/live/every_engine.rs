//! Tests that apply to every engine, with the same body for each.

use std::collections::HashMap;
use std::process::Command;
use std::thread;
use std::time::Duration;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use wirecap::filter::{ClassicInsn, FilterRequest};
use wirecap::{Capture, CaptureBuilder, CaptureError, Engine, OpenError, Source, Timestamps};
use wirecap_testbed::{
    AfXdpSender, Counters, Load, Namespace, PacketSender, Stamp, VethPair, loss_lock, privileged,
};

use crate::bed::{Bed, PATIENCE, balanced, ip, take, unix_nanos};
use crate::frames::{Flow, flows};

/// Makes a test of each body for each engine.
macro_rules! with_every_engine {
    ($($body:ident,)*) => {
        mod xdp {
            $(#[test] fn $body() { super::with(super::Engine::Xdp, super::$body); })*
        }
        mod packet {
            $(#[test] fn $body() { super::with(super::Engine::Packet, super::$body); })*
        }
    };
}

with_every_engine! {
    packets_arrive_whole_in_order_and_with_their_times,
    packets_of_a_batch_arrive_whole_in_order_and_with_their_times,
    without_timestamps_packets_have_none,
    a_snap_length_cuts_what_is_kept_and_not_what_is_recorded,
    ten_million_frames_at_full_rate_are_all_accounted_for,
    a_chunk_outlives_its_worker_and_its_capture,
    one_worker_serves_several_rings_and_loses_nothing,
    several_interfaces_are_one_capture,
    an_interface_may_have_a_snap_length_of_its_own,
    both_directions_of_a_flow_come_in_one_of_many_rings,
    all_fragments_between_two_hosts_come_in_one_ring,
    stopping_from_another_thread_ends_a_waiting_worker_and_frees_the_interface,
    what_waited_when_the_capture_was_stopped_is_still_delivered,
    an_interface_is_left_as_it_was_when_its_capture_ends,
    what_was_not_taken_before_the_close_is_counted_as_other,
    vlan_tags_and_odd_lengths_are_recorded_as_they_were_on_the_wire,
    frames_longer_than_the_usual_ones_are_captured_whole,
    bad_requests_are_named_and_change_nothing,
    an_interface_that_is_down_is_refused,
    an_interface_that_goes_down_and_up_again_is_still_captured,
    an_interface_that_is_removed_ends_the_capture_after_what_had_arrived,
    a_ring_without_a_worker_is_an_error_in_basic_mode,
    a_filter_is_changed_under_load_and_what_both_want_comes_once,
    what_was_not_taken_before_the_close_is_filtered_all_the_same,
}

fn with(engine: Engine, body: fn(Engine)) {
    if privileged() {
        body(engine);
    }
}

fn packets_arrive_whole_in_order_and_with_their_times(engine: Engine) {
    arrive_whole_in_order_with(engine, Timestamps::Packet);
}

fn packets_of_a_batch_arrive_whole_in_order_and_with_their_times(engine: Engine) {
    arrive_whole_in_order_with(engine, Timestamps::Batch);
}

fn arrive_whole_in_order_with(engine: Engine, timestamps: Timestamps) {
    let bed = Bed::new(engine, 1);
    let capture = bed.open(bed.small().timestamps(timestamps));
    let mut worker = capture.workers().pop().unwrap();
    let begin = unix_nanos();
    let sent = bed.generator().send(&[Load::new(0, 10_000)]).unwrap()[0].frames;
    let mut next = 0;
    let mut last_time = begin;
    let mut next_chunk = 0;
    let traffic = bed.traffic();
    take(&mut worker, sent, |chunk| {
        assert_eq!(chunk.sequence(), next_chunk);
        assert_eq!(chunk.ring().to_string(), "a1@0");
        assert!(!chunk.is_offloaded() && chunk.len() <= 64);
        next_chunk += 1;
        for packet in chunk {
            let stamp = Stamp { queue: 0, sequence: next };
            assert_eq!(packet.data(), traffic.frame(stamp), "packet {next}");
            assert_eq!(packet.wire_len(), 60);
            let time = packet.timestamp().unwrap().unix_nanos();
            assert!(
                time >= last_time,
                "packet {next} is {} ns before its predecessor",
                last_time - time
            );
            (next, last_time) = (next + 1, time);
        }
    });
    assert!(last_time <= unix_nanos(), "packets from the future");
    let ledger = bed.close(capture);
    balanced(&ledger, sent);
    assert!(ledger.is_lossless() && ledger.total.bytes == sent * 60, "{ledger}");
}

fn without_timestamps_packets_have_none(engine: Engine) {
    let bed = Bed::new(engine, 1);
    let capture = bed.open(bed.small());
    let mut worker = capture.workers().pop().unwrap();
    let sent = bed.generator().send(&[Load::new(0, 100)]).unwrap()[0].frames;
    take(&mut worker, sent, |chunk| {
        assert!(chunk.iter().all(|packet| packet.timestamp().is_none()));
    });
    balanced(&bed.close(capture), sent);
}

fn a_snap_length_cuts_what_is_kept_and_not_what_is_recorded(engine: Engine) {
    let bed = Bed::new(engine, 1);
    let capture = bed.open(bed.small().snap_len(20));
    let mut worker = capture.workers().pop().unwrap();
    let sent = bed.generator().send(&[Load::new(0, 100)]).unwrap()[0].frames;
    take(&mut worker, sent, |chunk| {
        assert!(chunk.iter().all(|packet| packet.data().len() == 20 && packet.wire_len() == 60));
    });
    balanced(&bed.close(capture), sent);
}

fn ten_million_frames_at_full_rate_are_all_accounted_for(engine: Engine) {
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(engine, 1);
    let capture = bed.open(Capture::on("a1").engine(engine));
    let mut counters = Counters::of(&bed.pair.sender).unwrap();
    let stopper = capture.stopper();
    let delivered = thread::scope(|scope| {
        let mut worker = capture.workers().pop().unwrap();
        let reader = scope.spawn(move || {
            let mut delivered = 0;
            while let Some(chunk) = worker.next_chunk().unwrap() {
                delivered += chunk.len() as u64;
            }
            delivered
        });
        bed.generator().send(&[Load::new(0, 10_000_000)]).unwrap();
        bed.at_receiver(|| stopper.stop());
        reader.join().unwrap()
    });
    let ledger = bed.close(capture);
    let counts = counters.since_start().unwrap();
    assert_eq!(counts.handed_over_as_xdp(), 10_000_000);
    // What overflowed the ring between the two ends is counted if the ledger has the device's
    // drops.
    let arrived: u64 = counts.tx_queues.iter().map(|queue| queue.xdp_xmit).sum();
    balanced(&ledger, if ledger.total.dropped.device.is_some() { 10_000_000 } else { arrived });
    assert_eq!(ledger.total.delivered, delivered);
}

fn a_chunk_outlives_its_worker_and_its_capture(engine: Engine) {
    let bed = Bed::new(engine, 1);
    let capture = bed.open(bed.small());
    let mut worker = capture.workers().pop().unwrap();
    bed.generator().send(&[Load::new(0, 10)]).unwrap();
    let mut chunks = Vec::new();
    let mut taken = 0;
    while taken < 10 {
        let chunk = worker.next_chunk_timeout(PATIENCE).unwrap().unwrap();
        taken += chunk.len();
        chunks.push(chunk);
    }
    drop(worker);
    balanced(&bed.close(capture), 10);
    let sequences: Vec<u64> =
        chunks.iter().flatten().map(|packet| Stamp::of(packet.data()).unwrap().sequence).collect();
    assert!(sequences.into_iter().eq(0..10));
    // The queue is free although its cells are still held.
    let again = bed.open(bed.small());
    thread::spawn(move || drop(chunks)).join().unwrap();
    balanced(&bed.close(again), 0);
}

fn one_worker_serves_several_rings_and_loses_nothing(engine: Engine) {
    let bed = Bed::new(engine, 4);
    let capture = bed.open(bed.small_on("a1@0-3").workers(1));
    assert_eq!(capture.rings().len(), 4);
    let mut worker = capture.workers().pop().unwrap();
    assert!(capture.workers().is_empty(), "workers are handed out once");
    let traffic = bed.traffic();
    for queue in 0..4u16 {
        let mut sender = AfXdpSender::on(&bed.pair.sender, queue.into()).unwrap();
        for sequence in 0..1000 {
            sender.send(&traffic.frame(Stamp { queue, sequence })).unwrap();
        }
        sender.flush().unwrap();
    }
    let mut next = [0; 4];
    take(&mut worker, 4000, |chunk| {
        for packet in chunk {
            let stamp = Stamp::of(packet.data()).unwrap();
            assert_eq!(usize::from(stamp.queue), chunk.ring_index());
            assert_eq!(stamp.sequence, next[chunk.ring_index()]);
            next[chunk.ring_index()] += 1;
        }
    });
    let ledger = bed.close(capture);
    balanced(&ledger, 4000);
    assert!(ledger.rings.iter().all(|ring| ring.account.delivered == 1000), "{ledger}");
}

fn several_interfaces_are_one_capture(engine: Engine) {
    let first = Bed::new(engine, 1);
    let second = Namespace::new().unwrap();
    let other = VethPair::new((&second, "b0"), (&first.receiver, "b1"), 2, 3000)
        .and_then(wirecap_testbed::dedicated)
        .unwrap();
    let capture = first.open(first.small().and("b1@1").workers(1));
    if engine == Engine::Xdp {
        assert_eq!(
            capture.geometry().cell_bytes,
            4096,
            "the cells hold the longest frames of all interfaces"
        );
    }
    let mut worker = capture.workers().pop().unwrap();
    first.generator().send(&[Load::new(0, 100)]).unwrap();
    let mut sender = AfXdpSender::on(&other.sender, 1).unwrap();
    (0..50).for_each(|_| sender.send(&[7; 100]).unwrap());
    sender.flush().unwrap();
    take(&mut worker, 150, |chunk| {
        let interface = &capture.interfaces()[chunk.interface_index()].device.name;
        assert_eq!(&chunk.ring().interface, interface);
        assert_eq!(chunk.ring(), &capture.rings()[chunk.ring_index()]);
    });
    let ledger = first.close(capture);
    balanced(&ledger, 150);
    let rings: Vec<_> =
        ledger.rings.iter().map(|ring| (&*ring.name, ring.account.delivered)).collect();
    assert_eq!(rings, [("a1@0", 100), ("b1@1", 50)]);
}

fn an_interface_may_have_a_snap_length_of_its_own(engine: Engine) {
    let first = Bed::new(engine, 2);
    let second = Namespace::new().unwrap();
    let other = VethPair::new((&second, "b0"), (&first.receiver, "b1"), 1, 1500)
        .and_then(wirecap_testbed::dedicated)
        .unwrap();
    let builder = first.small().snap_len(40).and(Source::new("b1").snap_len(20)).workers(1);
    let capture = first.open(builder);
    assert_eq!(
        capture.interfaces().iter().map(|interface| interface.snap_len).collect::<Vec<_>>(),
        [40, 20]
    );
    let mut worker = capture.workers().pop().unwrap();
    for interface in [&first.pair.sender, &other.sender] {
        PacketSender::on(interface).unwrap().send(&[7; 60]).unwrap();
    }
    take(&mut worker, 2, |chunk| {
        let kept = capture.interfaces()[chunk.interface_index()].snap_len as usize;
        assert!(
            chunk.iter().all(|packet| packet.data() == &[7; 60][..kept] && packet.wire_len() == 60)
        );
    });
    balanced(&first.close(capture), 2);
    let twice = Capture::on(Source::new("a1@0").snap_len(20)).and("a1@1").engine(engine);
    let (error, text) = first.refusal(twice);
    assert!(
        matches!(error, OpenError::SettingsDiffer { .. }) && text.contains("snap length"),
        "{text}"
    );
}

fn both_directions_of_a_flow_come_in_one_of_many_rings(engine: Engine) {
    come_by_flow(engine, 10_000, |flow, forth, payload| vec![flow.frame(forth, payload)]);
}

fn all_fragments_between_two_hosts_come_in_one_ring(engine: Engine) {
    come_by_flow(engine, 1000, |flow, forth, payload| flow.fragments(forth, payload).to_vec());
}

/// Sends the frames that `frames` makes of random flows in both directions, with their numbers at
/// the end, to an interface with one queue and four workers: every frame arrives once, and all
/// frames of one number arrive on one ring.
pub(crate) fn come_by_flow(
    engine: Engine,
    flow_count: u32,
    frames: impl Fn(&Flow, bool, &[u8; 4]) -> Vec<Vec<u8>>,
) {
    const WORKERS: usize = 4;
    let bed = Bed::new(engine, 1);
    let capture = bed.open(bed.small().workers(WORKERS));
    let names: Vec<String> = capture.rings().iter().map(ToString::to_string).collect();
    match engine {
        Engine::Xdp => assert_eq!(names, ["a1@0.0", "a1@0.1", "a1@0.2", "a1@0.3"]),
        _ => assert_eq!(names, ["a1@0", "a1@1", "a1@2", "a1@3"]),
    }
    assert_eq!(capture.interfaces()[0].rings, WORKERS);
    let mut runner = TestRunner::deterministic();
    let flows: Vec<Flow> =
        (0..flow_count).map(|_| flows().new_tree(&mut runner).unwrap().current()).collect();
    // All of one direction, then all of the other.
    let both = [true, false]
        .into_iter()
        .flat_map(|forth| flows.iter().zip(0..).map(move |flow| (forth, flow)));
    let mut sent: Vec<Vec<u8>> = both
        .flat_map(|(forth, (flow, number))| frames(flow, forth, &u32::to_be_bytes(number)))
        .collect();
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    sent.iter().for_each(|frame| sender.send(frame).unwrap());
    bed.at_receiver(|| capture.stop());
    let mut ring_of_flow = HashMap::new();
    let mut received = Vec::new();
    for mut worker in capture.workers() {
        while let Some(chunk) = worker.next_chunk().unwrap() {
            assert_eq!(chunk.ring_index(), worker.index());
            for packet in &chunk {
                let number = u32::from_be_bytes(*packet.data().last_chunk().unwrap());
                let before = ring_of_flow.insert(number, chunk.ring_index());
                assert!(before.is_none_or(|ring| ring == chunk.ring_index()), "flow {number}");
                received.push(packet.data().to_vec());
            }
        }
    }
    let ledger = bed.close(capture);
    balanced(&ledger, sent.len() as u64);
    assert!(ledger.is_lossless(), "{ledger}");
    let least = ledger.rings.iter().map(|ring| ring.account.delivered).min().unwrap();
    assert!(least > (sent.len() / WORKERS / 2) as u64, "unfair: {ledger}");
    sent.sort_unstable();
    received.sort_unstable();
    assert!(sent == received, "each packet comes once, as it was");
}

fn stopping_from_another_thread_ends_a_waiting_worker_and_frees_the_interface(engine: Engine) {
    let bed = Bed::new(engine, 1);
    let capture = bed.open(bed.small());
    let mut worker = capture.workers().pop().unwrap();
    let stopper = capture.stopper();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| worker.next_chunk().unwrap().is_none());
        // Long enough for the worker to poll.
        thread::sleep(Duration::from_millis(50));
        bed.at_receiver(|| stopper.stop());
        assert!(waiting.join().unwrap());
    });
    assert!(worker.is_finished());
    if engine == Engine::Xdp {
        // The host gets its packets again while the capture is still open.
        bed.assert_untouched();
    }
    balanced(&bed.close(capture), 0);
    bed.assert_untouched();
    balanced(&bed.close(bed.open(bed.small())), 0);
}

/// Also if the process lives on.
fn an_interface_is_left_as_it_was_when_its_capture_ends(engine: Engine) {
    let bed = Bed::new(engine, 2);
    let run = |program: &str, arguments: &[&str]| {
        let output = bed.at_receiver(|| Command::new(program).args(arguments).output()).unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let settings = || {
        let link = run("ip", &["-d", "link", "show", "dev", "a1"]);
        (link, run("ethtool", &["-k", "a1"]), run("ethtool", &["-l", "a1"]))
    };
    let before = settings();
    assert!(before.0.contains("promiscuity 0"), "{}", before.0);
    for ends_by_drop in [false, true] {
        let capture = bed.open(bed.small());
        let during = settings();
        assert!(during.0.contains("promiscuity 1"), "{}", during.0);
        assert_eq!((&during.1, &during.2), (&before.1, &before.2), "a capture changes no setting");
        match ends_by_drop {
            true => bed.at_receiver(|| drop(capture)),
            false => _ = bed.close(capture),
        }
        assert_eq!(settings(), before, "the interface is left as it was");
    }
    bed.assert_untouched();
}

fn what_waited_when_the_capture_was_stopped_is_still_delivered(engine: Engine) {
    let bed = Bed::new(engine, 1);
    let capture = bed.open(bed.small());
    let mut worker = capture.workers().pop().unwrap();
    bed.generator().send(&[Load::new(0, 1000)]).unwrap();
    bed.at_receiver(|| capture.stop());
    take(&mut worker, 1000, |_| {});
    assert!(worker.next_chunk().unwrap().is_none());
    let ledger = bed.close(capture);
    balanced(&ledger, 1000);
    assert!(ledger.is_lossless());
}

fn what_was_not_taken_before_the_close_is_counted_as_other(engine: Engine) {
    let bed = Bed::new(engine, 1);
    let capture = bed.open(bed.small());
    bed.generator().send(&[Load::new(0, 1000)]).unwrap();
    let ledger = bed.close(capture);
    balanced(&ledger, 1000);
    assert_eq!((ledger.total.delivered, ledger.total.dropped.other), (0, 1000), "{ledger}");
}

fn vlan_tags_and_odd_lengths_are_recorded_as_they_were_on_the_wire(engine: Engine) {
    let bed = Bed::new(engine, 1);
    let capture = bed.open(bed.small());
    let mut worker = capture.workers().pop().unwrap();
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    let addresses = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    let tags: [&[u8]; 3] = [&[], &[0x81, 0, 0x20, 7], &[0x88, 0xa8, 0xe0, 5, 0x81, 0, 0, 9]];
    let mut frames: Vec<Vec<u8>> = Vec::new();
    for (tag, len) in tags.iter().flat_map(|tag| [22, 23, 60, 61, 1000, 1514].map(|len| (tag, len)))
    {
        let header = addresses.iter().chain(*tag).chain(&[8, 0]).copied();
        frames.push(header.chain((0..).map(|n: usize| n as u8)).take(len).collect());
    }
    frames.push(addresses.iter().copied().chain([8, 0]).collect());
    frames.iter().for_each(|frame| sender.send(frame).unwrap());
    let mut received = Vec::new();
    take(&mut worker, frames.len() as u64, |chunk| {
        received.extend(chunk.iter().map(|packet| packet.data().to_vec()));
    });
    assert_eq!(received, frames);
    balanced(&bed.close(capture), frames.len() as u64);
}

fn frames_longer_than_the_usual_ones_are_captured_whole(engine: Engine) {
    let bed = Bed::with_mtu(engine, 1, 3400);
    let capture = bed.open(bed.small());
    let mut worker = capture.workers().pop().unwrap();
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    let frame = vec![0x55; 3414];
    sender.send(&frame).unwrap();
    take(&mut worker, 1, |chunk| {
        let packet = chunk.get(0).unwrap();
        assert_eq!((packet.data(), packet.wire_len()), (&frame[..], 3414));
    });
    balanced(&bed.close(capture), 1);
}

fn bad_requests_are_named_and_change_nothing(engine: Engine) {
    let bed = Bed::new(engine, 2);
    let refused = |builder: CaptureBuilder, words: &[&str]| {
        let (_, text) = bed.refusal(builder);
        for word in words {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
        bed.assert_untouched();
    };
    refused(bed.small_on("nonesuch"), &["nonesuch", "a1"]);
    refused(bed.small_on("a1@2"), &["a1@2", "0 to 1"]);
    refused(bed.small_on("a1@x"), &["a1@x"]);
    refused(bed.small().chunk(65_536).pool(1024), &["memory", "available"]);
    refused(Capture::on("a1").engine(engine).buffer(1000), &["buffer", "1000"]);
}

fn an_interface_that_is_down_is_refused(engine: Engine) {
    let bed = Bed::new(engine, 1);
    ip(&bed.receiver, &["link", "set", "a1", "down"]);
    let (error, text) = bed.refusal(bed.small());
    assert!(matches!(error, OpenError::InterfaceDown { .. }), "{text}");
    assert!(text.contains("ip link set a1 up"), "{text}");
}

fn an_interface_that_goes_down_and_up_again_is_still_captured(engine: Engine) {
    let bed = Bed::new(engine, 1);
    let capture = bed.open(bed.small());
    let mut worker = capture.workers().pop().unwrap();
    bed.generator().send(&[Load::new(0, 100)]).unwrap();
    take(&mut worker, 100, |_| {});
    ip(&bed.receiver, &["link", "set", "a1", "down"]);
    assert!(worker.next_chunk_timeout(Duration::from_millis(400)).unwrap().is_none());
    ip(&bed.receiver, &["link", "set", "a1", "up"]);
    thread::sleep(Duration::from_millis(100));
    bed.generator().send(&[Load::new(0, 100)]).unwrap();
    take(&mut worker, 100, |_| {});
    balanced(&bed.close(capture), 200);
}

fn an_interface_that_is_removed_ends_the_capture_after_what_had_arrived(engine: Engine) {
    let bed = Bed::new(engine, 1);
    let capture = bed.open(bed.small());
    let mut worker = capture.workers().pop().unwrap();
    bed.generator().send(&[Load::new(0, 500)]).unwrap();
    ip(&bed.sender, &["link", "delete", "a0"]);
    take(&mut worker, 500, |_| {});
    let error = worker.next_chunk().unwrap_err();
    assert!(
        matches!(&error, CaptureError::InterfaceGone { interface } if interface == "a1"),
        "{error}"
    );
    let ledger = bed.close(capture);
    balanced(&ledger, 500);
}

fn a_ring_without_a_worker_is_an_error_in_basic_mode(engine: Engine) {
    let bed = Bed::new(engine, 2);
    let capture = bed.open(bed.small());
    let mut workers = capture.workers();
    assert_eq!(workers.len(), 2);
    drop(workers.pop());
    let error = workers[0].try_next_chunk().unwrap_err();
    assert!(matches!(&error, CaptureError::Orphaned { ring } if ring.queue == 1), "{error}");
    bed.at_receiver(|| capture.stop());
    assert!(workers[0].next_chunk().unwrap().is_none());
    balanced(&bed.close(capture), 0);
}

/// Matches the frames whose sequence number is not 7 modulo 8, and not `left_out` modulo 4. A
/// filter with a loop runs in user space.
fn all_but(left_out: u32, with_loop: bool) -> FilterRequest {
    let insn = |code, jt, jf, k| ClassicInsn { code, jt, jf, k };
    let mut program = Vec::new();
    if with_loop {
        // To the third, back to the second, on to the fourth.
        program.extend([
            insn(0x05, 0, 0, 1),
            insn(0x05, 0, 0, 1),
            insn(0x05, 0, 0, 2_u32.wrapping_neg()),
        ]);
    }
    let low_byte_of_sequence = insn(0x30, 0, 0, 55);
    let modulo = |number: u32| insn(0x54, 0, 0, number - 1);
    program.extend([low_byte_of_sequence, modulo(8), insn(0x15, 3, 0, 7)]);
    program.extend([modulo(4), insn(0x15, 1, 0, left_out)]);
    program.extend([insn(0x06, 0, 0, 1), insn(0x06, 0, 0, 0)]);
    FilterRequest::Program(program)
}

fn a_filter_is_changed_under_load_and_what_both_want_comes_once(engine: Engine) {
    const SENT: u64 = 100_000;
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(engine, 1);
    let capture =
        bed.open(Capture::on("a1").engine(engine).chunk(64).pool(2048).filter(all_but(1, false)));
    let stopper = capture.stopper();
    let (seen, changes) = thread::scope(|scope| {
        let mut worker = capture.workers().pop().unwrap();
        let reader = scope.spawn(move || {
            let mut seen = vec![0_u8; SENT as usize];
            while let Some(chunk) = worker.next_chunk().unwrap() {
                for packet in &chunk {
                    seen[Stamp::of(packet.data()).unwrap().sequence as usize] += 1;
                }
            }
            seen
        });
        let mut generator = bed.generator();
        let run = generator.start(&[Load::new(0, SENT).per_second(50_000)]).unwrap();
        let mut changes = 0;
        while !run.is_finished() {
            changes += 1;
            let filter = all_but(1 + changes % 2, changes % 4 > 1);
            bed.at_receiver(|| capture.set_filter(filter)).unwrap();
        }
        run.wait().unwrap();
        bed.at_receiver(|| stopper.stop());
        (reader.join().unwrap(), changes)
    });
    assert!(changes > 4, "{changes}");
    let ledger = bed.close(capture);
    let mut delivered = 0;
    for (sequence, &times) in seen.iter().enumerate() {
        match sequence % 8 {
            7 => assert_eq!(times, 0, "{sequence}, which matches no filter"),
            1 | 2 | 5 | 6 => assert!(times <= 1, "{sequence} came {times} times"),
            _ => assert_eq!(times, 1, "{sequence} of {changes} changes"),
        }
        delivered += u64::from(times);
    }
    balanced(&ledger, delivered);
    // Where VLAN tags may be lost, as on a veth with `xdp`, what these programs missed is not
    // known.
    assert_eq!(ledger.judge().lost(), 0, "{ledger}");
    if engine == Engine::Xdp {
        assert_eq!(ledger.total.seen, Some(SENT), "{ledger}");
    }
}

fn what_was_not_taken_before_the_close_is_filtered_all_the_same(engine: Engine) {
    let bed = Bed::new(engine, 1);
    for with_loop in [false, true] {
        let capture = bed.open(bed.small().filter(all_but(1, with_loop)));
        bed.generator().send(&[Load::new(0, 1000)]).unwrap();
        let ledger = bed.close(capture);
        // The second, sixth and last of each eight do not match.
        balanced(&ledger, 625);
        assert_eq!((ledger.total.delivered, ledger.total.dropped.other), (0, 625), "{ledger}");
        let is_counted = engine == Engine::Xdp || with_loop;
        assert_eq!(ledger.total.filtered, is_counted.then_some(375), "{ledger}");
    }
}
