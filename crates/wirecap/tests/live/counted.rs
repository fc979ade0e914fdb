//! The device's own receive count against what the capture saw.

use std::time::Duration;

use wirecap::{Answer, Capture, Engine, Ledger, Worker};
use wirecap_testbed::{
    AfXdpSender, Generator, Load, PacketSender, Stamp, drop_program, privileged,
};

use crate::bed::{Bed, balanced, ip, take};

const ENGINES: [Engine; 2] = [Engine::Xdp, Engine::Packet];

/// Sends this many frames to each queue.
fn send(bed: &Bed, queues: u16, frames: u64) {
    for queue in 0..queues {
        let mut sender = AfXdpSender::on(&bed.pair.sender, queue.into()).unwrap();
        for sequence in 0..frames {
            sender.send(&bed.traffic().frame(Stamp { queue, sequence })).unwrap();
        }
        sender.flush().unwrap();
    }
}

fn open(bed: &Bed) -> (Capture, Worker) {
    let capture = bed.open(bed.small().workers(1));
    let worker = capture.workers().pop().unwrap();
    (capture, worker)
}

/// What the devices counted, and the seen packets, at least and at most.
fn sums(ledger: &Ledger) -> (u64, u64, u64) {
    let counted = ledger.counted.iter();
    counted.fold((0, 0, 0), |sum, one| (sum.0 + one.device, sum.1 + one.seen.0, sum.2 + one.seen.1))
}

#[test]
fn the_devices_count_is_that_of_the_sender_and_the_capture() {
    if !privileged() {
        return;
    }
    for engine in ENGINES {
        let bed = Bed::new(engine, 3);
        let (capture, mut worker) = open(&bed);
        send(&bed, 3, 500);
        take(&mut worker, 1500, |_| {});
        let ledger = bed.close(capture);
        balanced(&ledger, 1500);
        assert_eq!(sums(&ledger), (1500, 1500, 1500), "{ledger}");
        assert_eq!(ledger.judge().answer, Answer::Yes, "{ledger}");
        assert!(
            ledger.to_string().contains("\na1: device counted 1,500, seen 1,500\n"),
            "{ledger}"
        );
        let places: Vec<&str> = ledger.counted.iter().map(|counted| &*counted.place).collect();
        match engine {
            Engine::Xdp => assert_eq!(places, ["a1@0", "a1@1", "a1@2"]),
            _ => assert_eq!(places, ["a1"]),
        }
    }
}

#[test]
fn dropped_and_filtered_packets_are_seen_packets() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(Engine::Xdp, 1);
    let capture = bed.open(bed.small().chunk(16).pool(2).filter("ether[55] & 1 = 1"));
    send(&bed, 1, 1000);
    let ledger = bed.close(capture);
    assert_eq!((ledger.total.seen, ledger.total.filtered), (Some(1000), Some(500)), "{ledger}");
    assert!(ledger.total.dropped.no_cell > 0, "{ledger}");
    assert_eq!(sums(&ledger).0, 1000, "{ledger}");
    assert!(
        ledger.counted.iter().all(|counted| counted.missing() == 0 && !counted.was_reset()),
        "{ledger}"
    );
}

#[test]
fn a_capture_under_full_traffic_agrees_within_its_bracket() {
    if !privileged() {
        return;
    }
    for engine in ENGINES {
        let bed = Bed::new(engine, 2);
        let mut generator = Generator::new(&bed.pair.sender, &bed.traffic()).unwrap();
        let loads = [Load::endless(0).per_second(100_000), Load::endless(1).per_second(100_000)];
        let run = generator.start(&loads).unwrap();
        let (capture, mut worker) = open(&bed);
        take(&mut worker, 64, |_| {});
        let end = std::time::Instant::now() + Duration::from_millis(500);
        while std::time::Instant::now() < end {
            let _ = worker.next_chunk_timeout(Duration::from_millis(10)).unwrap();
        }
        let ledger = bed.close(capture);
        run.stop().unwrap();
        assert!(!ledger.counted.is_empty(), "{ledger}");
        let in_order =
            ledger.counted.iter().all(|counted| counted.missing() == 0 && !counted.was_reset());
        assert!(in_order, "{ledger}");
    }
}

/// A veth pair on which only the host's stack and packet sockets receive.
fn bed_without_program() -> Bed {
    let sender = wirecap_testbed::Namespace::new().unwrap();
    let receiver = wirecap_testbed::Namespace::new().unwrap();
    let pair = wirecap_testbed::VethPair::new((&sender, "a0"), (&receiver, "a1"), 1, 1500).unwrap();
    Bed::of(Engine::Packet, pair)
}

#[test]
fn packets_that_another_program_takes_before_a_packet_socket_forbid_lossless() {
    if !privileged() {
        return;
    }
    let bed = bed_without_program();
    let (capture, mut worker) = open(&bed);
    let traffic = bed.traffic();
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    let frame = |sequence| traffic.frame(Stamp { queue: 0, sequence });
    (0..100).for_each(|sequence| sender.send_now(&frame(sequence)).unwrap());
    take(&mut worker, 100, |_| {});
    let program = drop_program(&bed.pair.receiver).unwrap();
    (100..140).for_each(|sequence| sender.send_now(&frame(sequence)).unwrap());
    drop(program);
    let ledger = bed.close(capture);
    assert_eq!((sender.sent(), ledger.total.delivered), (140, 100), "{ledger}");
    let missing: u64 = ledger.counted.iter().map(wirecap::Counted::missing).sum();
    assert_eq!((missing, ledger.judge().answer), (40, Answer::NotKnown), "{ledger}");
    assert!(
        ledger.verdict().contains("a1: its device counted 40 packets that the capture did not see")
    );
}

#[test]
fn merged_packets_are_not_compared_and_no_alarm() {
    if !privileged() {
        return;
    }
    let bed = bed_without_program();
    bed.pair.receiver.set_feature("gro", true).unwrap();
    let (capture, mut worker) = open(&bed);
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    (0..100).for_each(|sequence| {
        sender.send_now(&bed.traffic().frame(Stamp { queue: 0, sequence })).unwrap();
    });
    take(&mut worker, 100, |_| {});
    let ledger = bed.close(capture);
    balanced(&ledger, 100);
    assert!(ledger.counted[0].not_compared.as_ref().unwrap().contains("GRO"), "{ledger}");
    assert!(!ledger.judge().is_alarm(), "{ledger}");
}

#[test]
fn sent_packets_that_a_packet_socket_sees_agree_with_the_sum() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(Engine::Packet, 1);
    ip(&bed.receiver, &["address", "add", "10.9.0.1/24", "dev", "a1"]);
    ip(&bed.sender, &["address", "add", "10.9.0.2/24", "dev", "a0"]);
    let capture = bed.open(bed.small());
    let ping = bed.at_receiver(|| {
        std::process::Command::new("ping").args(["-c3", "-i0.2", "-W2", "10.9.0.2"]).output()
    });
    if ping.is_err() {
        return;
    }
    let ledger = bed.close(capture);
    let (device, least, most) = sums(&ledger);
    assert!((least..=most).contains(&device) && device >= 6, "{ledger}");
    assert_eq!(
        ledger.judge().losses.iter().filter(|(_, reason)| reason != "other").count(),
        0,
        "{ledger}"
    );
}
