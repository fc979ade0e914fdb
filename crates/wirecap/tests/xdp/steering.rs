//! Several rings on one receive queue.

use std::thread;
use std::time::Duration;

use wirecap::{Capture, Chunk, Engine, OpenError, Timestamps, Worker};
use wirecap_testbed::{
    AfXdpSender, Counters, Generator, Load, Stamp, Traffic, loss_lock, privileged,
};

use crate::bed::{Bed, balanced, small, small_on, take};

/// Reads to the end, and calls `each` for every chunk.
fn read(mut worker: Worker, mut each: impl FnMut(&Chunk)) {
    while let Some(chunk) = worker.next_chunk().unwrap() {
        each(&chunk);
    }
}

#[test]
fn an_unread_ring_loses_its_own_packets_and_not_its_neighbours() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    // At least 600 packets; a kernel ring has room for 1,024.
    let capture = bed.open(small().chunk(60).pool(10).workers(3));
    let mut workers = capture.workers();
    let stuck = workers.remove(1);
    let traffic = Traffic { flows: 300, ..bed.traffic() };
    let mut generator = Generator::new(&bed.pair.sender, &traffic).unwrap();
    let mut sent = 0;
    // As many at a time as the others have room for, regardless of their share.
    for _ in 0..20 {
        sent += generator.send(&[Load::new(0, 600)]).unwrap()[0].frames;
        for worker in &mut workers {
            while let Some(chunk) = worker.next_chunk_timeout(Duration::from_millis(20)).unwrap() {
                drop(chunk);
            }
        }
    }
    bed.at_receiver(|| capture.stop());
    let mut late = 0;
    read(stuck, |chunk| late += chunk.len());
    assert_eq!(late, 1024, "what it had room for was kept for it");
    workers.into_iter().for_each(|worker| read(worker, |_| panic!("all was taken")));
    let ledger = bed.close(capture);
    balanced(&ledger, sent);
    for (ring, page) in ledger.rings.iter().enumerate() {
        let dropped = &page.account.dropped;
        assert_eq!((dropped.no_cell, dropped.other), (0, 0), "{ledger}");
        assert_eq!(dropped.ring_full > 0, ring == 1, "{ledger}");
        assert!(page.account.offered > sent / 5, "{ledger}");
    }
}

#[test]
fn queues_get_rings_as_evenly_as_they_can() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let capture = bed.open(small().workers(3));
    let names: Vec<String> = capture.rings().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["a1@0.0", "a1@0.1", "a1@1"]);
    let workers = capture.workers();
    let traffic = Traffic { flows: 100, ..bed.traffic() };
    for queue in 0..2u16 {
        let mut sender = AfXdpSender::on(&bed.pair.sender, queue.into()).unwrap();
        (0..1000)
            .for_each(|sequence| sender.send(&traffic.frame(Stamp { queue, sequence })).unwrap());
        sender.flush().unwrap();
    }
    bed.at_receiver(|| capture.stop());
    let mut counts = [0; 3];
    for worker in workers {
        read(worker, |chunk| {
            counts[chunk.ring_index()] += chunk.len();
            let queue_of = |data| u32::from(Stamp::of(data).unwrap().queue);
            assert!(chunk.iter().all(|packet| queue_of(packet.data()) == chunk.ring().queue));
        });
    }
    assert_eq!((counts[0] + counts[1], counts[2]), (1000, 1000));
    assert!(counts[0] > 300 && counts[1] > 300, "{counts:?}");
    balanced(&bed.close(capture), 2000);
}

#[test]
fn one_queue_of_many_can_be_split_and_the_others_pass() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(4);
    let capture = bed.open(small_on("a1@2").pool(16).workers(2).timestamps(Timestamps::Packet));
    let mut counters = Counters::of(&bed.pair.receiver).unwrap();
    let traffic = Traffic { flows: 100, ..bed.traffic() };
    for queue in [1u16, 2, 3] {
        let mut sender = AfXdpSender::on(&bed.pair.sender, queue.into()).unwrap();
        (0..500)
            .for_each(|sequence| sender.send(&traffic.frame(Stamp { queue, sequence })).unwrap());
        sender.flush().unwrap();
    }
    let mut counts = Vec::new();
    for worker in &mut capture.workers() {
        let mut count = 0;
        while let Some(chunk) = worker.next_chunk_timeout(Duration::from_millis(50)).unwrap() {
            assert!(chunk.iter().all(|packet| packet.timestamp().is_some()));
            count += chunk.len() as u64;
        }
        counts.push(count);
    }
    assert_eq!(counts.iter().sum::<u64>(), 500);
    let queues = counters.since_start().unwrap().rx_queues;
    assert_eq!([queues[1].passed(), queues[2].passed(), queues[3].passed()], [500, 0, 500]);
    let ledger = bed.close(capture);
    balanced(&ledger, 500);
    assert!(ledger.rings.iter().zip(counts).all(|(ring, count)| ring.account.delivered == count));
}

#[test]
fn buddies_drain_the_software_ring_of_a_stuck_worker() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let builder = small().pool(64).workers(2).advanced(0.6);
    let capture = bed.open(builder.stuck_after(Duration::from_millis(100)));
    let mut workers = capture.workers();
    let stuck = workers.pop().unwrap();
    let traffic = Traffic { flows: 100, ..bed.traffic() };
    let sent =
        Generator::new(&bed.pair.sender, &traffic).unwrap().send(&[Load::new(0, 3000)]).unwrap();
    take(&mut workers[0], sent[0].frames, |_| {});
    drop(stuck);
    let ledger = bed.close(capture);
    balanced(&ledger, 3000);
    assert!(ledger.is_lossless() && ledger.rings[1].account.offloaded_chunks > 0, "{ledger}");
}

/// At the machine's highest rate: conservation over all rings, regardless of losses.
#[test]
fn software_rings_at_full_rate_account_for_every_packet() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let capture = bed.open(small().chunk(256).pool(16).workers(4));
    let mut counters = Counters::of(&bed.pair.sender).unwrap();
    let stopper = capture.stopper();
    let traffic = Traffic { flows: 1000, ..bed.traffic() };
    let delivered: u64 = thread::scope(|scope| {
        let count = |worker| {
            let mut count = 0;
            read(worker, |chunk| count += chunk.len() as u64);
            count
        };
        let readers: Vec<_> = capture
            .workers()
            .into_iter()
            .map(|worker| scope.spawn(move || count(worker)))
            .collect();
        let mut generator = Generator::new(&bed.pair.sender, &traffic).unwrap();
        generator.send(&[Load::new(0, 4_000_000)]).unwrap();
        bed.at_receiver(|| stopper.stop());
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    let ledger = bed.close(capture);
    balanced(&ledger, counters.since_start().unwrap().handed_over_as_xdp());
    assert_eq!((ledger.total.offered, ledger.total.delivered), (4_000_000, delivered));
}

#[test]
fn rings_are_created_only_for_requested_workers() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small().at_most_workers(4));
    assert_eq!((capture.rings().len(), capture.workers().len()), (1, 1));
    assert_eq!(capture.rings()[0].to_string(), "a1@0");
    balanced(&bed.close(capture), 0);
    let (error, text) = bed.refusal(small().chunk(65_536).pool(1024).workers(1000));
    assert!(matches!(error, OpenError::BadParameter { .. }), "{text}");
    assert!(text.contains("R x M x rings"), "{text}");
    // A pool of the default size keeps to its share of the memory, regardless of how it is divided.
    let one = bed.open(Capture::on("a1").engine(Engine::Xdp).buffer(48 << 20));
    let one_bytes = one.interfaces()[0].pool_bytes;
    bed.close(one);
    let several = bed.open(Capture::on("a1").engine(Engine::Xdp).buffer(48 << 20).workers(3));
    let interface = &several.interfaces()[0];
    assert!(one_bytes <= 48 << 20 && interface.pool_bytes <= 48 << 20);
    assert!(u64::from(several.geometry().cells()) * 3 * 2048 <= interface.pool_bytes);
    assert!(several.workers()[0].next_chunk_timeout(Duration::from_millis(100)).unwrap().is_none());
    balanced(&bed.close(several), 0);
}
