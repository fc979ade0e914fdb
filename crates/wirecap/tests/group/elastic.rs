//! Elastic pools, on the test bed.

use wirecap::{Capture, Ledger, OpenError, Worker};
use wirecap_testbed::{
    AfXdpSender, Generator, Interface, Load, Namespace, Stamp, Traffic, VethPair, loss_lock,
    privileged, repeat_if_disturbed,
};

use crate::bed::{Bed, PATIENCE, send_evenly};

const RINGS: u16 = 4;
/// R x M: the cells of a ring with a separate pool.
const CELLS: u64 = 128 * 64;
/// Its reserved cells.
const QUARTER: u64 = CELLS / 4;

/// A sender for each queue.
struct Senders(Vec<AfXdpSender>, Traffic);

impl Senders {
    fn new(bed: &Bed) -> Self {
        let sender = |queue: u16| AfXdpSender::on(&bed.pair.sender, queue.into()).unwrap();
        Self((0..RINGS).map(sender).collect(), Traffic::to(&bed.pair.receiver))
    }

    /// Sends `frames` frames to `queue`, evenly spaced.
    fn send(&mut self, queue: u16, frames: u64, per_second: u64) {
        let Self(senders, traffic) = self;
        send_evenly(&mut senders[usize::from(queue)], traffic, queue, frames, per_second);
    }
}

fn take_all(workers: &mut [Worker], expected: &[u64]) {
    for (worker, &expected) in workers.iter_mut().zip(expected) {
        let mut taken = 0;
        while taken < expected {
            let chunk = worker.next_chunk_timeout(PATIENCE).unwrap().expect("packets wait");
            assert!(chunk.iter().all(|packet| Stamp::of(packet.data()).is_some()));
            taken += chunk.len() as u64;
        }
        assert_eq!(taken, expected);
    }
}

fn lossless(ledger: &Ledger, sent: u64) {
    assert_eq!(ledger.total.offered, sent, "{ledger}");
    assert!(ledger.is_lossless(), "{ledger}");
}

/// No worker takes packets while one ring gets the packets of three pools, and the others get their
/// reserved number.
#[test]
fn a_burst_on_one_of_four_rings_is_absorbed_up_to_three_pools_and_the_others_keep_their_quarter() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(RINGS);
    let capture = bed.open(Capture::on("a1").chunk(64).pool(128).elastic());
    let mut workers = capture.workers();
    let mut senders = Senders::new(&bed);
    let ledger = || bed.receiver.run_in(|| capture.ledger()).unwrap();
    for (turn, busy) in [(1, 2), (2, 0)] {
        let sent: [u64; 4] =
            std::array::from_fn(|ring| if ring == busy { 3 * CELLS } else { QUARTER });
        // At this rate the keeper may be late by 0.4 s.
        senders.send(busy as u16, 3 * CELLS, 5000);
        (0..4)
            .filter(|ring| *ring != busy)
            .for_each(|ring| senders.send(ring as u16, QUARTER, 50_000));
        let waiting: Vec<u64> = capture.backlogs().into_iter().map(u64::from).collect();
        assert_eq!(waiting, sent);
        take_all(&mut workers, &sent);
        lossless(&ledger(), turn * sent.iter().sum::<u64>());
    }
    // More packets than cells cannot be kept: the ledger counts the loss.
    senders.send(1, 3 * CELLS + QUARTER + 1000, 20_000);
    let ledger = ledger();
    let lost = ledger.rings[1].account.dropped.no_cell;
    assert!(lost >= 1000 && ledger.total.dropped.total() == lost, "{ledger}");
    drop(workers);
    let ledger = bed.receiver.run_in(|| capture.close()).unwrap();
    assert_eq!(
        ledger.total.offered,
        2 * (3 * CELLS + 3 * QUARTER) + 3 * CELLS + QUARTER + 1000,
        "{ledger}"
    );
}

/// The purpose of elastic pools: the same memory and the same burst as above, with a separate pool
/// for each ring.
#[test]
fn the_same_burst_overruns_separate_pools_of_the_same_memory() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(RINGS);
    let capture = bed.open(Capture::on("a1").chunk(64).pool(128));
    Senders::new(&bed).send(2, 3 * CELLS, 5000);
    let ledger = bed.receiver.run_in(|| capture.close()).unwrap();
    let burst = &ledger.rings[2].account;
    assert_eq!(ledger.total.offered, 3 * CELLS, "{ledger}");
    assert_eq!(burst.dropped.no_cell, 2 * CELLS, "{ledger}");
}

/// The rings of two interfaces can also share a pool.
#[test]
fn a_pool_may_stretch_over_interfaces() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    // The generator keeps a processor to itself, and the keeper must not come 0.4 s late.
    repeat_if_disturbed("a pool of two interfaces", |_| stretch_over_interfaces());
}

fn stretch_over_interfaces() -> Result<(), String> {
    let bed = Bed::new(1);
    let other = Namespace::new().unwrap();
    let second = VethPair::new((&other, "b0"), (&bed.receiver, "b1"), 1, 1500)
        .and_then(wirecap_testbed::dedicated)
        .unwrap();
    let capture = bed.open(Capture::on("a1").and("b1").chunk(64).pool(128).elastic());
    let mut workers = capture.workers();
    let generator =
        |from: &Interface, to: &Interface| Generator::new(from, &Traffic::to(to)).unwrap();
    let mut generators = [
        generator(&bed.pair.sender, &bed.pair.receiver),
        generator(&second.sender, &second.receiver),
    ];
    for (turn, sent) in [(1, [CELLS + CELLS / 2, QUARTER]), (2, [QUARTER, CELLS + CELLS / 2])] {
        for (generator, &frames) in generators.iter_mut().zip(&sent) {
            generator.send(&[Load::new(0, frames).per_second(5000)]).unwrap();
        }
        let waiting = capture.backlogs();
        if waiting != sent.map(|frames| frames as u32) {
            let ledger = bed.receiver.run_in(|| capture.ledger()).unwrap();
            let lost = ledger.total.dropped.no_cell;
            let waiting: u64 = waiting.into_iter().map(u64::from).sum();
            assert_eq!(waiting + lost, sent.iter().sum(), "{ledger}");
            return Err(format!("of {sent:?} packets {lost} found no cell"));
        }
        take_all(&mut workers, &sent);
        lossless(&bed.receiver.run_in(|| capture.ledger()).unwrap(), turn * (sent[0] + sent[1]));
    }
    drop(workers);
    bed.receiver.run_in(|| capture.close()).unwrap();
    Ok(())
}

#[test]
fn rings_that_share_a_queue_have_no_elastic_pool() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let opened = bed.receiver.run_in(|| Capture::on("a1").workers(2).elastic().open()).unwrap();
    let error = opened.unwrap_err();
    assert!(matches!(error, OpenError::BadParameter { value: 2, .. }), "{error}");
}
