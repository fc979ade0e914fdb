//! The `xdp` engine on real veth pairs. Every test ends with the books balanced: the sender's own count
//! against the ledger.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wirecap::{Capture, CaptureBuilder, CaptureError, Chunk, Ledger, OpenError, Worker};
use wirecap_testbed::{
    AfXdpSender, Counters, Generator, Load, Namespace, PacketSender, Stamp, Traffic, VethPair, loss_lock,
    pass_program, privileged,
};

/// What a worker that has got everything waits for at the most.
const PATIENCE: Duration = Duration::from_secs(10);

/// Two namespaces and the cable between them; captures happen at `a1`.
struct Bed {
    sender: Namespace,
    receiver: Namespace,
    pair: VethPair,
}

impl Bed {
    fn new(queue_count: u32) -> Self {
        Self::with_mtu(queue_count, 1500)
    }

    fn with_mtu(queue_count: u32, mtu: u32) -> Self {
        let (sender, receiver) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let pair = VethPair::new((&sender, "a0"), (&receiver, "a1"), queue_count, mtu).unwrap();
        Self { sender, receiver, pair }
    }

    fn traffic(&self) -> Traffic {
        Traffic::to(&self.pair.receiver)
    }

    fn generator(&self) -> Generator {
        Generator::new(&self.pair.sender, &self.traffic()).unwrap()
    }

    /// Runs `work` where the receiver is.
    fn at_receiver<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.receiver.run_in(work).unwrap()
    }

    fn open(&self, builder: CaptureBuilder) -> Capture {
        self.at_receiver(|| builder.open()).unwrap()
    }

    fn close(&self, capture: Capture) -> Ledger {
        self.at_receiver(|| capture.close())
    }

    /// The error of a capture that cannot be opened, with its causes.
    fn refusal(&self, builder: CaptureBuilder) -> (OpenError, String) {
        let error = self.at_receiver(|| builder.open()).expect_err("the capture opened");
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(source) = cause {
            text += &format!(": {source}");
            cause = source.source();
        }
        (error, text)
    }
}

/// A pool of 16,384 cells: deep enough for the tests that send fewer packets than that.
fn small() -> CaptureBuilder {
    Capture::on("a1").chunk(64).pool(256)
}

/// Takes chunks until `packets` packets were delivered.
fn take(worker: &mut Worker, packets: u64, mut each: impl FnMut(&Chunk)) {
    let mut taken = 0;
    while taken < packets {
        let chunk = worker.next_chunk_timeout(PATIENCE).unwrap();
        let chunk = chunk.unwrap_or_else(|| panic!("only {taken} of {packets} packets came"));
        taken += chunk.len() as u64;
        each(&chunk);
    }
    assert_eq!(taken, packets);
}

fn balanced(ledger: &Ledger, sent: u64) {
    assert_eq!(ledger.total.offered, sent, "{ledger}");
    assert_eq!(ledger.total.offered, ledger.total.delivered + ledger.total.dropped.total(), "{ledger}");
    let rings: u64 = ledger.rings.iter().map(|ring| ring.account.delivered).sum();
    assert_eq!(rings, ledger.total.delivered, "{ledger}");
}

fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

#[test]
fn packets_arrive_whole_in_order_and_with_their_times() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small().timestamps(true));
    let mut worker = capture.workers().pop().unwrap();
    let begin = unix_nanos();
    let sent = bed.generator().send(&[Load::new(0, 10_000)]).unwrap()[0].frames;
    let (mut next, mut last_time, mut next_chunk) = (0, begin, 0);
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
            assert!(time >= last_time, "packet {next} is {} ns before its predecessor", last_time - time);
            (next, last_time) = (next + 1, time);
        }
    });
    assert!(last_time <= unix_nanos(), "packets from the future");
    let ledger = bed.close(capture);
    balanced(&ledger, sent);
    assert!(ledger.is_lossless() && ledger.total.bytes == sent * 60, "{ledger}");
}

#[test]
fn without_timestamps_packets_have_none() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small());
    let mut worker = capture.workers().pop().unwrap();
    let sent = bed.generator().send(&[Load::new(0, 100)]).unwrap()[0].frames;
    take(&mut worker, sent, |chunk| assert!(chunk.iter().all(|packet| packet.timestamp().is_none())));
    balanced(&bed.close(capture), sent);
}

#[test]
fn a_snap_length_cuts_what_is_kept_and_not_what_is_recorded() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small().snap_len(20));
    let mut worker = capture.workers().pop().unwrap();
    let sent = bed.generator().send(&[Load::new(0, 100)]).unwrap()[0].frames;
    take(&mut worker, sent, |chunk| {
        assert!(chunk.iter().all(|packet| packet.data().len() == 20 && packet.wire_len() == 60));
    });
    balanced(&bed.close(capture), sent);
}

/// At the highest rate the machine makes: conservation, whatever is lost.
#[test]
fn ten_million_frames_at_full_rate_are_all_accounted_for() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let capture = bed.open(Capture::on("a1"));
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
    balanced(&ledger, counters.since_start().unwrap().handed_over_as_xdp());
    assert_eq!(ledger.total.delivered, delivered);
    assert_eq!(ledger.total.offered, 10_000_000);
}

#[test]
fn a_ring_holds_as_many_packets_as_its_pool_has_cells_and_names_the_surplus() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(Capture::on("a1").chunk(256).pool(512));
    let mut worker = capture.workers().pop().unwrap();
    let mut generator = bed.generator();
    generator.send(&[Load::new(0, 100_000).per_second(500_000)]).unwrap();
    take(&mut worker, 100_000, |_| {});
    let ledger = bed.at_receiver(|| capture.ledger());
    balanced(&ledger, 100_000);
    assert!(ledger.is_lossless(), "{ledger}");

    generator.send(&[Load::new(0, 200_000).per_second(500_000)]).unwrap();
    take(&mut worker, 131_072, |_| {});
    let ledger = bed.at_receiver(|| capture.ledger());
    balanced(&ledger, 300_000);
    assert_eq!(ledger.total.dropped.no_cell, 200_000 - 131_072, "{ledger}");
    assert_eq!(ledger.total.dropped.total(), 200_000 - 131_072, "{ledger}");

    generator.send(&[Load::new(0, 50_000).per_second(500_000)]).unwrap();
    take(&mut worker, 50_000, |_| {});
    let ledger = bed.close(capture);
    balanced(&ledger, 350_000);
    assert_eq!(ledger.total.dropped.total(), 200_000 - 131_072, "{ledger}");
}

#[test]
fn a_chunk_outlives_its_worker_and_its_capture() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small());
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
    let again = bed.open(small());
    thread::spawn(move || drop(chunks)).join().unwrap();
    balanced(&bed.close(again), 0);
}

#[test]
fn one_worker_serves_several_rings_and_loses_nothing() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(4);
    let capture = bed.open(small().workers(1));
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

#[test]
fn several_interfaces_are_one_capture() {
    if !privileged() {
        return;
    }
    let (first, second) = (Bed::new(1), Namespace::new().unwrap());
    let other = VethPair::new((&second, "b0"), (&first.receiver, "b1"), 2, 3000).unwrap();
    let capture = first.open(small().and("b1@1").workers(1));
    assert_eq!(capture.geometry().cell_bytes, 4096, "the cells hold the longest frames of all interfaces");
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
    let rings: Vec<_> = ledger.rings.iter().map(|ring| (&*ring.name, ring.account.delivered)).collect();
    assert_eq!(rings, [("a1@0", 100), ("b1@1", 50)]);
}

#[test]
fn a_capture_of_one_queue_leaves_the_others_to_the_host() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let capture = bed.open(Capture::on("a1@1").chunk(64).pool(16));
    let mut worker = capture.workers().pop().unwrap();
    let mut counters = Counters::of(&bed.pair.receiver).unwrap();
    let traffic = bed.traffic();
    for queue in 0..2u16 {
        let mut sender = AfXdpSender::on(&bed.pair.sender, queue.into()).unwrap();
        (0..100).for_each(|sequence| sender.send(&traffic.frame(Stamp { queue, sequence })).unwrap());
        sender.flush().unwrap();
    }
    take(&mut worker, 100, |chunk| {
        assert!(chunk.iter().all(|packet| Stamp::of(packet.data()).unwrap().queue == 1));
    });
    let queues = counters.since_start().unwrap().rx_queues;
    assert_eq!((queues[0].passed(), queues[1].xdp_redirect), (100, 100));
    let ledger = bed.close(capture);
    balanced(&ledger, 100);
    assert_eq!(ledger.rings[0].name, "a1@1");
}

#[test]
fn stopping_from_another_thread_ends_a_waiting_worker_and_frees_the_interface() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small());
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
    // The program is gone while the capture is still open.
    drop(bed.at_receiver(|| pass_program(&bed.pair.receiver)).unwrap());
    balanced(&bed.close(capture), 0);
    balanced(&bed.close(bed.open(small())), 0);
}

#[test]
fn what_waited_when_the_capture_was_stopped_is_still_delivered() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small());
    let mut worker = capture.workers().pop().unwrap();
    bed.generator().send(&[Load::new(0, 1000)]).unwrap();
    bed.at_receiver(|| capture.stop());
    take(&mut worker, 1000, |_| {});
    assert!(worker.next_chunk().unwrap().is_none());
    let ledger = bed.close(capture);
    balanced(&ledger, 1000);
    assert!(ledger.is_lossless());
}

#[test]
fn what_nobody_took_before_the_close_is_counted_as_other() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small());
    bed.generator().send(&[Load::new(0, 1000)]).unwrap();
    let ledger = bed.close(capture);
    balanced(&ledger, 1000);
    assert_eq!((ledger.total.delivered, ledger.total.dropped.other), (0, 1000), "{ledger}");
}

#[test]
fn vlan_tags_and_odd_lengths_are_recorded_as_they_were_on_the_wire() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small());
    let mut worker = capture.workers().pop().unwrap();
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    let frames: Vec<Vec<u8>> = [14, 15, 60, 61, 1000, 1514, 1518]
        .into_iter()
        .map(|len| {
            let tagged: &[u8] = &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0x20, 7, 8, 0];
            tagged.iter().copied().chain((0..).map(|n: usize| n as u8)).take(len).collect()
        })
        .collect();
    frames.iter().for_each(|frame| sender.send(frame).unwrap());
    let mut received = Vec::new();
    take(&mut worker, frames.len() as u64, |chunk| {
        received.extend(chunk.iter().map(|packet| packet.data().to_vec()));
    });
    assert_eq!(received, frames);
    balanced(&bed.close(capture), frames.len() as u64);
}

#[test]
fn a_larger_mtu_gets_larger_cells() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_mtu(1, 3400);
    let capture = bed.open(small());
    assert_eq!(capture.geometry().cell_bytes, 4096);
    let mut worker = capture.workers().pop().unwrap();
    let mut sender = AfXdpSender::on(&bed.pair.sender, 0).unwrap();
    let frame = vec![0x55; 3414];
    sender.send(&frame).unwrap();
    sender.flush().unwrap();
    take(&mut worker, 1, |chunk| assert_eq!(chunk.get(0).unwrap().data(), frame));
    balanced(&bed.close(capture), 1);
}

#[test]
fn bad_requests_are_named_and_change_nothing() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let refused = |builder: CaptureBuilder, words: &[&str]| {
        let (_, text) = bed.refusal(builder);
        for word in words {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
        // Nothing stayed behind: the interface takes another program.
        drop(bed.at_receiver(|| pass_program(&bed.pair.receiver)).unwrap());
    };
    refused(Capture::on("nonesuch"), &["nonesuch", "a1"]);
    refused(Capture::on("a1@2"), &["a1@2", "0 to 1"]);
    refused(Capture::on("a1@x"), &["a1@x"]);
    refused(Capture::on("a1").chunk(65_536).pool(1024), &["memory", "available"]);
    refused(Capture::on("a1").buffer(1000), &["buffer", "1000"]);

    let program = bed.at_receiver(|| pass_program(&bed.pair.receiver)).unwrap();
    let (error, text) = bed.refusal(small());
    assert!(matches!(error, OpenError::Program { .. }), "{text}");
    assert!(text.contains("XDP program"), "{text}");
    drop(program);

    let capture = bed.open(small());
    let (error, text) = bed.refusal(small());
    assert!(matches!(error, OpenError::QueueTaken { .. }), "{text}");
    balanced(&bed.close(capture), 0);
}

#[test]
fn an_interface_that_is_down_is_refused() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    ip(&bed.receiver, &["link", "set", "a1", "down"]);
    let (error, text) = bed.refusal(small());
    assert!(matches!(error, OpenError::InterfaceDown { .. }), "{text}");
    assert!(text.contains("ip link set a1 up"), "{text}");
}

#[test]
fn an_interface_that_goes_down_and_up_again_is_still_captured() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small());
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

#[test]
fn an_interface_that_is_removed_ends_the_capture_after_what_had_arrived() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small());
    let mut worker = capture.workers().pop().unwrap();
    bed.generator().send(&[Load::new(0, 500)]).unwrap();
    ip(&bed.sender, &["link", "delete", "a0"]);
    take(&mut worker, 500, |_| {});
    let error = worker.next_chunk().unwrap_err();
    assert!(matches!(&error, CaptureError::InterfaceGone { interface } if interface == "a1"), "{error}");
    let ledger = bed.close(capture);
    balanced(&ledger, 500);
}

#[test]
fn a_ring_without_a_worker_is_an_error_in_basic_mode() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let capture = bed.open(small());
    let mut workers = capture.workers();
    assert_eq!(workers.len(), 2);
    drop(workers.pop());
    let error = workers[0].try_next_chunk().unwrap_err();
    assert!(matches!(&error, CaptureError::Orphaned { ring } if ring.queue == 1), "{error}");
    bed.at_receiver(|| capture.stop());
    assert!(workers[0].next_chunk().unwrap().is_none());
    balanced(&bed.close(capture), 0);
}

fn ip(namespace: &Namespace, arguments: &[&str]) {
    let status = namespace.run_in(|| std::process::Command::new("ip").args(arguments).status());
    assert!(status.unwrap().unwrap().success(), "ip {arguments:?} failed");
}
