//! Tests of the engine `xdp` only.

use wirecap::{Capture, Engine, OpenError, Reception, Timestamps};
use wirecap_testbed::{AfXdpSender, Counters, Load, Stamp, loss_lock, pass_program, privileged};

use crate::bed::{Bed, balanced, take, unix_nanos};
use crate::every_engine::come_by_flow;

#[test]
fn a_ring_holds_as_many_packets_as_its_pool_has_cells_and_names_the_surplus() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(Engine::Xdp, 1);
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

/// No worker requests chunks while 100,000 packets arrive, six times the number of posted cells.
#[test]
fn with_warm_cells_the_keeper_posts_cells_while_the_consumer_sleeps() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(Engine::Xdp, 1);
    let capture = bed.open(Capture::on("a1").chunk(256).pool(512).warm(16_384));
    let mut worker = capture.workers().pop().unwrap();
    let mut generator = bed.generator();
    for turn in 1..=2 {
        // The keeper may be late by 0.8 s.
        generator.send(&[Load::new(0, 100_000).per_second(20_000)]).unwrap();
        assert_eq!(capture.backlogs(), [100_000]);
        take(&mut worker, 100_000, |_| {});
        let ledger = bed.at_receiver(|| capture.ledger());
        balanced(&ledger, turn * 100_000);
        assert!(ledger.is_lossless(), "{ledger}");
    }
    // All cells have returned: a burst as long as the number of posted cells needs no keeper.
    generator.send(&[Load::new(0, 16_384)]).unwrap();
    take(&mut worker, 16_384, |_| {});
    let ledger = bed.close(capture);
    balanced(&ledger, 216_384);
    assert!(ledger.is_lossless(), "{ledger}");
}

#[test]
fn a_capture_of_one_queue_leaves_the_others_to_the_host() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(Engine::Xdp, 2);
    let capture = bed.open(Capture::on("a1@1").chunk(64).pool(16));
    let mut worker = capture.workers().pop().unwrap();
    let mut counters = Counters::of(&bed.pair.receiver).unwrap();
    let traffic = bed.traffic();
    for queue in 0..2u16 {
        let mut sender = AfXdpSender::on(&bed.pair.sender, queue.into()).unwrap();
        (0..100)
            .for_each(|sequence| sender.send(&traffic.frame(Stamp { queue, sequence })).unwrap());
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
fn both_directions_of_an_encrypted_flow_use_one_ring() {
    if !privileged() {
        return;
    }
    come_by_flow(Engine::Xdp, 1000, |flow, forth, number| vec![flow.encrypted(forth, number)]);
}

#[test]
fn a_larger_mtu_gets_larger_cells() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_mtu(Engine::Xdp, 1, 3400);
    let capture = bed.open(bed.small());
    assert_eq!(capture.geometry().cell_bytes, 4096);
    balanced(&bed.close(capture), 0);
}

#[test]
fn another_program_on_the_interface_is_named_and_left_alone() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(Engine::Xdp, 2);
    let program = bed.at_receiver(|| pass_program(&bed.pair.receiver)).unwrap();
    let (error, text) = bed.refusal(bed.small());
    assert!(matches!(error, OpenError::OtherProgram { .. }), "{text}");
    assert!(text.contains("testbed_pass, held by process"), "{text}");
    drop(program);

    let capture = bed.open(bed.small());
    let (error, text) = bed.refusal(bed.small());
    assert!(matches!(error, OpenError::QueueTaken { .. }), "{text}");
    balanced(&bed.close(capture), 0);
}

#[test]
fn packets_of_a_batch_share_the_time_of_the_first_of_eight() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(Engine::Xdp, 1);
    let capture = bed.open(bed.small().timestamps(Timestamps::Batch));
    let Reception::Xdp { timestamps, .. } = capture.interfaces()[0].reception else {
        panic!("not xdp")
    };
    assert_eq!(timestamps, Timestamps::Batch);
    let mut worker = capture.workers().pop().unwrap();
    let mut generator = bed.generator();
    generator.send(&[Load::new(0, 10_000)]).unwrap();
    let mut times = Vec::new();
    take(&mut worker, 10_000, |chunk| {
        times.extend(chunk.iter().map(|packet| packet.timestamp().unwrap().unix_nanos()));
    });
    let groups: Vec<usize> = times.chunk_by(|a, b| a == b).map(<[u64]>::len).collect();
    assert!(
        groups.iter().all(|&packets| packets <= 8),
        "one time for {:?} packets",
        groups.iter().max()
    );
    assert!(groups.contains(&8), "the clock was read for every packet");

    // The next batch does not get the timestamp of the last packet of a batch.
    for _ in 0..50 {
        let before = unix_nanos();
        generator.send(&[Load::new(0, 3)]).unwrap();
        take(&mut worker, 3, |chunk| {
            let times = chunk.iter().map(|packet| packet.timestamp().unwrap().unix_nanos());
            times.for_each(|time| {
                assert!((before..=unix_nanos()).contains(&time), "{time} after {before}");
            });
        });
    }
    balanced(&bed.close(capture), 10_150);
}
