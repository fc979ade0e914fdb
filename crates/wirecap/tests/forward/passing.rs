//! Packets pass unchanged, in order, and all are accounted for.

use wirecap::{Port, TxQueue};
use wirecap_testbed::{Sizes, Stamp, Traffic, loss_lock, privileged};

use crate::bed::{Bed, PATIENCE, balanced, both, forwarding, one_way, pass_on, to_b};

/// The port to B is the last one in either shape of capture.
fn to_the_other(ports: &mut [Port]) -> &mut Port {
    ports.last_mut().unwrap()
}

#[test]
fn frames_pass_unchanged_and_in_order() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    for builder in [both(), one_way()] {
        let bed = Bed::new(1);
        let traffic = Traffic { sizes: Sizes::imix(), flows: 7, ..bed.traffic() };
        let frames: Vec<Vec<u8>> =
            (0..2000).map(|sequence| traffic.frame(Stamp { queue: 0, sequence })).collect();
        let mut receiver = bed.receiver();
        let (mut sent, mut arrived) = bed.counters();
        let ((), ledger) = forwarding(
            &bed,
            builder,
            |chunk, ports| pass_on(chunk, to_the_other(ports)),
            |_| {
                let mut sender = bed.sender(0);
                for (number, frame) in frames.iter().enumerate() {
                    sender.send(frame).unwrap();
                    if number % 50 == 49 {
                        sender.flush().unwrap();
                        for expected in &frames[number - 49..=number] {
                            let received = receiver
                                .receive(PATIENCE)
                                .unwrap()
                                .expect("the frame is forwarded");
                            assert_eq!(received, expected);
                        }
                    }
                }
            },
        );
        assert_eq!(sent.since_start().unwrap().handed_over(), 2000);
        balanced(&ledger, 2000, bed.arrived(&mut arrived));
        let port = to_b(&ledger);
        assert_eq!((port.sent, port.copied, port.dropped.total()), (2000, 0, 0), "{ledger:#?}");
        assert_eq!(port.bytes, frames.iter().map(|frame| frame.len() as u64).sum::<u64>());
    }
}

/// At the machine's highest rate: the ledger counts exactly the frames that B did not receive.
#[test]
fn at_overload_every_frame_is_accounted_for() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(2);
    let (mut sent, mut arrived) = bed.counters();
    let ((), ledger) = forwarding(
        &bed,
        both().chunk(64).pool(8),
        |chunk, ports| pass_on(chunk, to_the_other(ports)),
        |_| {
            std::thread::scope(|scope| {
                let bed = &bed;
                (0..2).for_each(|queue| _ = scope.spawn(move || bed.send(queue, 150_000)));
            });
        },
    );
    let sent = sent.since_start().unwrap();
    assert_eq!(sent.handed_over(), 300_000);
    balanced(&ledger, sent.tx_packets, bed.arrived(&mut arrived));
    println!("{ledger}\n{:#?}", ledger.ports);
}

#[test]
fn queues_are_selected_as_requested() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    for (choice, expected) in [
        (TxQueue::AsReceived, Some([0, 300])),
        (TxQueue::Fixed(0), Some([300, 0])),
        (TxQueue::ByFlow, None),
    ] {
        let bed = Bed::new(2);
        let _program = wirecap_testbed::pass_program(&bed.b.receiver).unwrap();
        let (_, mut arrived) = bed.counters();
        let capture = bed.open(one_way());
        let mut port = capture.port("b0").unwrap().on_queue(choice).unwrap();
        let traffic = Traffic { flows: 64, ..bed.traffic() };
        let mut sender = bed.sender(1);
        (0..300).for_each(|sequence| {
            sender.send(&traffic.frame(Stamp { queue: 1, sequence })).unwrap();
        });
        sender.flush().unwrap();
        let mut workers = capture.workers();
        while port.account().taken < 300 {
            let chunk = workers[1].next_chunk_timeout(PATIENCE).unwrap();
            pass_on(&mut chunk.expect("packets come"), &mut port);
        }
        assert_eq!(bed.arrived(&mut arrived), 300);
        let queues = arrived.since_start().unwrap().rx_queues;
        let counts = [queues[0].xdp_packets, queues[1].xdp_packets];
        match expected {
            Some(expected) => assert_eq!(counts, expected, "{choice:?}"),
            None => assert!(counts.iter().all(|count| *count > 50), "{counts:?}"),
        }
        drop((port, workers));
        balanced(&bed.close(capture), 300, 300);
    }
    let bed = Bed::new(2);
    let capture = bed.open(one_way());
    let error = capture.port("b0").unwrap().on_queue(TxQueue::Fixed(2)).unwrap_err().to_string();
    assert!(error.contains("no transmit queue 2; it has 0, 1"), "{error}");
    let error = capture.port("b1").unwrap_err().to_string();
    assert!(error.contains("the capture sends on a1, b0"), "{error}");
    bed.close(capture);
}
