//! Buddy groups on real veth pairs.

mod bed;
mod burst;
mod elastic;
mod skew;

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use wirecap::{Capture, CaptureBuilder, Chunk, Engine, Guarantee};
use wirecap_testbed::{Generator, Load, SlowCore, Stamp, Traffic, loss_lock, privileged};

use bed::{Bed, COST, PATIENCE, WORKER_RATE};

/// 4,096 packets per ring.
fn rings() -> CaptureBuilder {
    Capture::on("a1").chunk(64).pool(64)
}

#[test]
fn a_burst_below_the_threshold_stays_with_its_own_worker() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let seen = Mutex::new(Vec::new());
    let see = |worker, chunk: &Chunk| {
        seen.lock().unwrap().push((worker, chunk.ring_index(), chunk.len()));
    };
    // 60 % of 4,096 is 2,457.
    let ((), ledger) = bed.process(rings().advanced(0.6), COST, see, |bed| {
        let mut generator =
            Generator::new(&bed.pair.sender, &Traffic::to(&bed.pair.receiver)).unwrap();
        let sent = generator.send(&[Load::new(0, 2000)]).unwrap()[0].frames;
        // Until its own worker has taken all packets: at the end of a capture buddies help
        // regardless of T.
        let taken =
            || seen.lock().unwrap().iter().map(|(_, _, packets)| *packets as u64).sum::<u64>();
        let deadline = Instant::now() + PATIENCE;
        while taken() < sent {
            assert!(Instant::now() < deadline, "{} of {sent} were taken", taken());
            thread::sleep(Duration::from_millis(10));
        }
    });
    assert_eq!(ledger.total.offloaded_chunks, 0, "packets below T were offloaded: {ledger}");
    assert!(ledger.is_lossless(), "{ledger}");
    let seen = seen.into_inner().unwrap();
    assert!(seen.iter().all(|(worker, ring, _)| (*worker, *ring) == (0, 0)), "{seen:?}");
}

#[test]
fn the_threshold_is_a_share_of_the_cells_that_the_kernel_fills_without_loss() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    for (engine, usable) in [(Engine::Xdp, 1.0), (Engine::Packet, Guarantee::USABLE_IN_BLOCKS)] {
        let capture = bed.open(rings().engine(engine).advanced(0.6));
        for ring in capture.ring_states() {
            let expected = (0.6 * usable * f64::from(ring.capacity)) as u32;
            assert_eq!((ring.capacity, ring.threshold), (4096, Some(expected)), "{engine:?}");
        }
        assert_eq!(capture.guarantee(COST).unwrap().usable, usable, "{engine:?}");
        drop(capture);

        // T = 100 % is never exceeded.
        let capture = bed.open(rings().engine(engine).advanced(1.0));
        assert!(
            capture.ring_states().iter().all(|ring| ring.threshold == Some(4096)),
            "{engine:?}"
        );
    }
}

#[test]
fn a_stuck_workers_ring_is_drained_to_the_threshold_at_once_and_completely_later() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    // Long enough for the helper to reach the threshold before.
    let capture = bed.open(rings().advanced(0.5).stuck_after(Duration::from_secs(3)));
    let mut workers = capture.workers();
    let mut helper = workers.pop().unwrap();
    let mut stuck = workers.pop().unwrap();
    let mut generator = Generator::new(&bed.pair.sender, &Traffic::to(&bed.pair.receiver)).unwrap();
    // The ring's own worker takes one chunk and makes no more requests.
    generator.send(&[Load::new(0, 64)]).unwrap();
    let held = stuck.next_chunk_timeout(PATIENCE).unwrap().unwrap();
    generator.send(&[Load::new(0, 3000)]).unwrap();
    let begin = Instant::now();
    let mut taken = 0;
    let mut at_once = None;
    while taken < 3064 - held.len() && begin.elapsed() < PATIENCE {
        match helper.next_chunk_timeout(Duration::from_millis(20)).unwrap() {
            Some(chunk) => {
                assert!(chunk.is_offloaded() && chunk.ring_index() == 0);
                taken += chunk.len();
            }
            // The first pause: down to half of 4,096 (a chunk may reach below it).
            None => {
                at_once.get_or_insert(capture.backlogs()[0]);
            }
        }
    }
    let left = at_once.expect("the ring was drained without regard to the threshold");
    assert!((2048 - 64..=2048).contains(&left), "{left} packets were left at first");
    assert_eq!(taken, 3064 - held.len(), "the stuck worker's ring was not drained wholly");
    drop((held, stuck, helper));
    let ledger = bed.receiver.run_in(|| capture.close()).unwrap();
    assert!(ledger.is_lossless() && ledger.total.delivered == 3064, "{ledger}");
}

#[test]
fn the_rings_of_a_worker_that_panicked_or_returned_go_to_its_buddies() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let capture = bed.open(rings().advanced(0.9));
    let mut workers = capture.workers();
    let mut survivor = workers.pop().unwrap();
    let doomed = workers.pop().unwrap();
    let panicked = thread::spawn(move || {
        let _worker = doomed;
        panic!("as planned");
    });
    assert!(panicked.join().is_err());
    let mut generator = Generator::new(&bed.pair.sender, &Traffic::to(&bed.pair.receiver)).unwrap();
    generator.send(&[Load::new(0, 100)]).unwrap();
    let mut taken = 0;
    while taken < 100 {
        let chunk =
            survivor.next_chunk_timeout(PATIENCE).unwrap().expect("the rings were not taken over");
        taken += chunk.len();
    }
    let ledger = bed.receiver.run_in(|| capture.close()).unwrap();
    assert!(ledger.is_lossless() && ledger.total.delivered == 100, "{ledger}");
}

#[test]
fn two_groups_in_one_process_do_not_see_each_other() {
    if !privileged() {
        return;
    }
    let busy = Bed::new(1);
    let idle = Bed::new(1);
    let first = busy.open(rings().advanced(0.1));
    let second = idle.open(rings().advanced(0.1));
    let mut stranger = second.workers().pop().unwrap();
    let mut generator =
        Generator::new(&busy.pair.sender, &Traffic::to(&busy.pair.receiver)).unwrap();
    generator.send(&[Load::new(0, 4000)]).unwrap();
    assert!(stranger.next_chunk_timeout(Duration::from_millis(300)).unwrap().is_none());
    assert_eq!(first.backlogs(), [4000]);
    assert_eq!((first.empty_rings(), second.empty_rings()), (vec![false], vec![true]));
    drop(first);
    let ledger = idle.receiver.run_in(|| second.close()).unwrap();
    assert_eq!(ledger.total.offered, 0);
}

#[test]
fn a_descriptor_becomes_readable_when_a_buddy_needs_help() {
    if !privileged() {
        return;
    }
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::time::Timespec;
    let bed = Bed::new(2);
    let capture = bed.open(rings().advanced(0.1));
    let mut workers = capture.workers();
    let mut helper = workers.pop().unwrap();
    let mut owner = workers.pop().unwrap();
    let wait = |helper: &wirecap::Worker, millis: i64| {
        let timeout = Timespec { tv_sec: 0, tv_nsec: millis * 1_000_000 };
        poll(&mut [PollFd::new(helper, PollFlags::IN)], Some(&timeout)).unwrap()
    };
    assert_eq!(wait(&helper, 0), 0);
    assert!(helper.try_next_chunk().unwrap().is_none());
    let mut generator = Generator::new(&bed.pair.sender, &Traffic::to(&bed.pair.receiver)).unwrap();
    generator.send(&[Load::new(0, 4000)]).unwrap();
    assert_eq!(wait(&helper, 50), 0, "no worker has called yet");
    let own = owner.next_chunk().unwrap().unwrap();
    assert_eq!(wait(&helper, 900), 1, "the owner called");
    let helped = helper.try_next_chunk().unwrap().unwrap();
    assert!(helped.is_offloaded());
    assert_eq!((own.sequence(), helped.sequence()), (0, 1));
    // The descriptor is readable until the backlog is at the threshold; then it is not readable any
    // more.
    while helper.try_next_chunk().unwrap().is_some() {}
    assert_eq!(wait(&helper, 50), 0);
}

/// With offloading two workers hold chunks of one ring at once. Sequence numbers restore the ring's
/// order, which includes the order of each flow.
#[test]
fn sequence_numbers_restore_the_order_of_every_flow() {
    if !privileged() {
        return;
    }
    const FLOWS: u64 = 200_000;
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(2);
    let capture = bed.open(Capture::on("a1").chunk(64).pool(512).advanced(0.01));
    let done = Mutex::new(Vec::new());
    let sent: u64 = thread::scope(|scope| {
        for mut worker in capture.workers() {
            let done = &done;
            scope.spawn(move || {
                let mut core = SlowCore::default();
                while let Some(chunk) = worker.next_chunk().unwrap() {
                    let stamps: Vec<Stamp> =
                        chunk.iter().map(|packet| Stamp::of(packet.data()).unwrap()).collect();
                    // Ten times as fast as in the other tests, so that many packets are of each
                    // flow.
                    core.work(COST / 10 * chunk.len() as u32);
                    done.lock().unwrap().push((chunk.ring_index(), chunk.sequence(), stamps));
                }
            });
        }
        let rates = [1.6, 0.2].map(|share| share * 10.0 * WORKER_RATE);
        let (sent, _) = bed.send(60, &rates, Duration::from_secs(3));
        bed.receiver.run_in(|| capture.stop()).unwrap();
        sent
    });
    let mut done = done.into_inner().unwrap();
    assert!(
        !done.is_sorted_by_key(|(ring, sequence, _)| (*ring, *sequence)),
        "nothing was out of order"
    );
    done.sort_unstable_by_key(|(ring, sequence, _)| (*ring, *sequence));
    for of_ring in done.chunk_by(|(ring, ..), (next, ..)| ring == next) {
        let sequences = of_ring.iter().map(|(_, sequence, _)| *sequence);
        assert!(
            sequences.eq(0..of_ring.len() as u64),
            "a sequence number is missing or there twice"
        );
    }
    let in_order: Vec<Stamp> = done.into_iter().flat_map(|(.., stamps)| stamps).collect();
    let mut last_of_flow = std::collections::HashMap::new();
    for stamp in &in_order {
        let flow = (stamp.queue, stamp.sequence % FLOWS);
        let last = last_of_flow.insert(flow, stamp.sequence);
        assert!(
            last.is_none_or(|last| last < stamp.sequence),
            "flow {flow:?}: {last:?}, then {stamp:?}"
        );
    }
    let ledger = bed.receiver.run_in(|| capture.close()).unwrap();
    assert_eq!(ledger.total.delivered, in_order.len() as u64);
    assert_eq!(ledger.total.offered, sent, "{ledger}");
    assert!(ledger.total.offloaded_chunks > 0, "{ledger}");
}

#[test]
fn workers_run_on_the_cpus_that_they_were_given() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let capture = bed.open(rings().pin(wirecap::Pin::List(vec![1, 0])));
    let seen: Vec<String> = thread::scope(|scope| {
        let run = |mut worker: wirecap::Worker| {
            scope.spawn(move || {
                assert!(worker.try_next_chunk().unwrap().is_none());
                let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
                let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
                (line.unwrap().trim().to_owned(), worker)
            })
        };
        let threads: Vec<_> = capture.workers().into_iter().map(run).collect();
        // Both workers exist until both have made requests; otherwise the absence of one would be
        // an error.
        let (seen, _workers): (Vec<_>, Vec<_>) =
            threads.into_iter().map(|thread| thread.join().unwrap()).unzip();
        seen
    });
    assert_eq!(seen, ["1", "0"]);
    let refused =
        bed.receiver.run_in(|| rings().pin(wirecap::Pin::List(vec![4000])).open()).unwrap();
    assert!(refused.unwrap_err().to_string().contains("CPU"));
    // A veth has no interrupts: this is reported, and the worker is not pinned.
    drop(capture);
    let capture = bed.open(rings().pin(wirecap::Pin::Auto));
    assert!(capture.placements().iter().all(|placement| placement.cpu.is_none()));
    assert!(capture.placements()[0].to_string().contains("no interrupt"));
}
