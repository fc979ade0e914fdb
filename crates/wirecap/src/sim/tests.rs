//! Random schedules of all events of a capture, in one thread and in several.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::group::GLANCE_EVERY;
use crate::ledger::Tally;
use crate::sieve::{Check, UserFilter};
use crate::time::Timestamp;
use crate::umem::pool::Cells;
use crate::umem::ring::Help;

/// Random schedules per test. Under Miri, three take about half a minute.
const RUNS: u64 = match (cfg!(miri), cfg!(debug_assertions)) {
    (true, _) => 3,
    (_, true) => 1000,
    _ => 3000,
};
/// Bytes of a packet in a cell of 64 bytes.
const CELL_ROOM: u64 = 64 - HEADROOM_BYTES as u64;
const STEPS: u64 = if cfg!(miri) { 50 } else { 300 };

/// Runs `run` for many seeds, or for the seed in WIRECAP_SEED. A panic prints its seed.
pub(super) fn for_each_seed(runs: u64, run: impl Fn(Random)) {
    let chosen = std::env::var("WIRECAP_SEED").ok().map(|seed| seed.parse().expect("a number"));
    for seed in chosen.map_or(0..runs, |seed| seed..seed + 1) {
        let _replay = Replay(seed);
        run(Random::new(seed));
    }
}

struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("to replay: WIRECAP_SEED={}", self.0);
        }
    }
}

/// The packet with number `number`: the number, then bytes derived from it.
fn packet(number: u64, len: usize) -> Vec<u8> {
    let mut data = number.to_ne_bytes().to_vec();
    data.resize(len.max(8), number as u8);
    data
}

/// The number of a packet; its bytes must be those of [`packet`].
fn number_of(data: &[u8]) -> u64 {
    let (number, rest) = data.split_first_chunk().expect("every packet has its number");
    let number = u64::from_ne_bytes(*number);
    assert!(rest.iter().all(|byte| *byte == number as u8), "packet {number} was overwritten");
    number
}

fn settings(random: &mut Random) -> SimSettings {
    let rings = random.between(1, 4) as usize;
    let geometry = Geometry {
        chunk_cells: random.between(1, 6) as u32,
        chunks: random.between(1, 6) as u32,
        cell_bytes: 64,
    };
    let small = (geometry.cells() / 2).next_power_of_two();

    SimSettings {
        rings,
        workers: random.between(1, rings as u64) as usize,
        geometry,
        mode: if random.once_in(2) { Mode::Basic } else { Mode::Advanced(random.unit()) },
        stuck_after: Duration::from_nanos(random.between(1, 100)),
        descriptors: random.between(1, 8) as u32,
        rx_slots: random.once_in(4).then_some(small),
        drivers_sleep: random.once_in(2),
        first_index: if random.once_in(2) { 0 } else { u32::MAX - random.below(100) as u32 },
        warm: random.once_in(2).then(|| random.between(1, 36) as u32),
        elastic: random.once_in(4),
        ..SimSettings::default()
    }
}

/// The expected fate of a packet on an rx ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Packet(u64),
    /// Packets whose boundaries the kernel lost.
    Merged,
    /// Invalid, or too long for a chunk: counted, not delivered.
    Refused,
    /// Rejected by the filter.
    Unwanted,
    /// The last packet of its chunk.
    Stray,
    /// The beginning of a packet that continues in the next entry.
    Truncated,
}

/// A packet on an rx ring.
#[derive(Debug)]
struct Waiting {
    expected: Expected,
    cells: usize,
    /// Number of its cells that have not left the ring.
    left: usize,
}

/// The test's model of one ring.
#[derive(Default)]
struct Model {
    waiting: VecDeque<Waiting>,
    chunk_cells: usize,
    offered: u64,
    filtered: u64,
    delivered: u64,
    next_sequence: u64,
    /// The rx ring's index is invalid until the next packet.
    rx_broken: bool,
    /// The fill ring's index was invalid, and the engine may have seen that.
    fill_broken: bool,
}

struct Schedule {
    random: Random,
    settings: SimSettings,
    capture: SimCapture,
    workers: Vec<SimWorker>,
    /// Time of each worker's last request; `None` if it is gone.
    asked_at: Vec<Option<Duration>>,
    held: Vec<Chunk>,
    models: Vec<Model>,
    now: Duration,
    next_number: u64,
    faulty: bool,
    /// User space rejects every fourth packet.
    filters: bool,
    /// The change that a deliberately broken engine makes to a recycled chunk.
    sabotage: fn(&mut Chunk),
}

impl Schedule {
    fn new(mut random: Random, faulty: bool) -> Self {
        let settings = settings(&mut random);
        let capture = SimCapture::new(&settings);
        let filters = !faulty && random.once_in(2);

        if filters {
            let every_fourth = UserFilter::parse(EVERY_FOURTH);
            capture
                .rings
                .iter()
                .for_each(|ring| ring.settle(Check::Everything(every_fourth.clone())));
        }

        Self {
            workers: (0..settings.workers).map(|index| capture.worker(index)).collect(),
            asked_at: vec![Some(Duration::ZERO); settings.workers],
            models: (0..settings.rings).map(|_| Model::new(settings.geometry)).collect(),
            held: Vec::new(),
            now: Duration::ZERO,
            next_number: 0,
            random,
            settings,
            capture,
            faulty,
            filters,
            sabotage: |_| (),
        }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            self.step();
            self.check_cells();
        }
        (0..self.settings.rings).for_each(|ring| self.capture.kernel(ring).look());
        self.capture.end();
        while !self.workers.is_empty() {
            self.ask(true);
            self.check_cells();
        }
        self.finish();
    }

    fn step(&mut self) {
        self.now += Duration::from_nanos(self.random.below(20));
        let ring = self.random.below(self.settings.rings as u64) as usize;
        let kernel = Arc::clone(self.capture.kernel(ring));

        match self.random.below(16) {
            0..5 => self.receive(ring),
            5..10 => self.ask(false),
            10..12 => self.drop_chunk(),
            12 => self.drop_while_locked(ring),
            13 if self.random.once_in(2) => kernel.look(),
            13 => self.capture.tend(),
            14 => kernel.set_stalled(self.random.once_in(3)),
            _ if self.faulty => self.inject(ring),
            _ => self.lose_a_worker(),
        }
    }

    fn receive(&mut self, ring: usize) {
        for _ in 0..self.random.between(1, 8) {
            let number = self.next_number;
            self.next_number += 1;

            let cells = if self.random.once_in(2) { 1 } else { self.random.between(1, 7) };
            let len = self.random.between((cells - 1) * CELL_ROOM + 8, cells * CELL_ROOM) as usize;
            let time = Timestamp::from_unix_nanos(number);
            let cells_now =
                if self.random.once_in(4) { self.random.below(cells + 1) } else { cells };
            let kernel = self.capture.kernel(ring);
            let fate = kernel.receive_in_parts(&packet(number, len), time, cells_now as usize);
            let unwanted = self.filters && number.is_multiple_of(4);
            let expected = if unwanted { Expected::Unwanted } else { Expected::Packet(number) };
            self.models[ring].offer(fate, expected, cells as usize);
        }
    }

    fn inject(&mut self, ring: usize) {
        let model = &mut self.models[ring];
        let kernel = self.capture.kernel(ring);

        match self.random.below(8) {
            0 => {
                kernel.break_rx_index();
                model.rx_broken = true;
            }
            1 if self.random.once_in(20) => {
                kernel.break_fill_index();
                model.fill_broken = true;
            }
            2 => model.inject(kernel, Fault::StrayAddress, Expected::Stray),
            3 => model.inject(kernel, Fault::StrayFragment, Expected::Stray),
            4 => model.inject(kernel, Fault::BadFragment, Expected::Refused),
            5 => model.inject(kernel, Fault::Truncated, Expected::Truncated),
            _ => model.inject(kernel, Fault::BadLength, Expected::Refused),
        }
    }

    /// In basic mode this ends the capture for all workers, so it has a separate test.
    fn lose_a_worker(&mut self) {
        if self.settings.mode != Mode::Basic && self.workers.len() > 1 && self.random.once_in(10) {
            let worker = self.random.take(&mut self.workers).expect("there are several");
            self.asked_at[worker.index()] = None;
        }
    }

    fn drop_chunk(&mut self) {
        if let Some(mut chunk) = self.random.take(&mut self.held) {
            (self.sabotage)(&mut chunk);
        }
    }

    /// Chunks are recycled while another thread holds the fill ring's lock.
    fn drop_while_locked(&mut self, ring: usize) {
        let fill_ring = self.capture.rings[ring].fill_ring();
        let held = &mut self.held;
        let random = &mut self.random;
        fill_ring.while_locked(|| {
            let mut queued = 0;
            for _ in 0..random.below(4) {
                let Some(chunk) = random.take(held) else { break };
                queued += if chunk.ring_index() == ring { chunk.cells() } else { 0 };
            }
            assert_eq!(fill_ring.queued_cells(), queued);
        });
    }

    fn ask(&mut self, ending: bool) {
        let turn = self.random.below(self.workers.len() as u64) as usize;
        let backlogs: Vec<u32> =
            (0..self.settings.rings).map(|ring| self.capture.backlog(ring)).collect();
        let index = self.workers[turn].index();
        let answer = self.workers[turn].ask(self.now);

        match answer {
            Ok(Answer::Chunk { chunk, wake }) => {
                assert!(!wake.contains(&index), "a worker is to wake itself");
                self.check_offloading(&chunk, index, &backlogs, ending);
                self.check_chunk(&chunk);
                self.held.push(chunk);
            }
            Ok(Answer::Nothing) => {}
            Ok(Answer::Ended) => {
                assert!(ending, "ended without a cause");
                self.workers.swap_remove(turn);
            }
            Err(error) => {
                if self.check_error(&error) && ending {
                    // No more packets can be captured from it.
                    self.workers.swap_remove(turn);
                }
            }
        }

        if let Some(asked_at) = &mut self.asked_at[index] {
            *asked_at = self.now;
        }
    }

    fn home_of(&self, ring: usize) -> usize {
        ring % self.settings.workers
    }

    /// A buddy gets a chunk only above T, or if the home worker is stuck or gone.
    fn check_offloading(&self, chunk: &Chunk, worker: usize, backlogs: &[u32], ending: bool) {
        let ring = chunk.ring_index();
        assert_eq!(chunk.is_offloaded(), self.home_of(ring) != worker);

        let bytes: u64 = chunk.iter().map(|packet| u64::from(packet.wire_len())).sum();
        assert_eq!(chunk.wire_bytes(), bytes);

        if !chunk.is_offloaded() {
            return;
        }

        let Mode::Advanced(threshold) = self.settings.mode else {
            panic!("offloaded in basic mode")
        };
        let cells = f64::from(self.settings.geometry.cells());
        let above = f64::from(backlogs[ring]) > threshold * cells;
        let away = self.asked_at[self.home_of(ring)]
            .is_none_or(|at| self.now - at > self.settings.stuck_after);
        assert!(above || away || ending, "offloaded at a backlog of {}", backlogs[ring]);
    }

    /// The chunk contains exactly the packets that waited longest in its ring.
    fn check_chunk(&mut self, chunk: &Chunk) {
        assert!(chunk.cells() <= self.settings.geometry.chunk_cells as usize);
        let left = self.capture.cells_waiting(chunk.ring_index());
        let model = &mut self.models[chunk.ring_index()];
        assert_eq!(chunk.sequence(), model.next_sequence);
        model.next_sequence += 1;
        model.delivered += chunk.len() as u64;

        for packet in chunk {
            model.drop_refused();
            let pieces: Vec<&[u8]> = packet.fragments().collect();
            let waiting = model.waiting.pop_front().expect("nothing waited");

            assert_eq!(packet.wire_len() as usize, pieces.concat().len());
            assert_eq!(waiting.left, waiting.cells);

            if waiting.expected == Expected::Merged {
                continue;
            }

            let in_one_piece = self.random.once_in(2);
            let number =
                if in_one_piece { number_of(packet.data()) } else { number_of(&pieces.concat()) };
            assert_eq!((waiting.expected, waiting.cells), (Expected::Packet(number), pieces.len()));
            assert_eq!(packet.timestamp(), Some(Timestamp::from_unix_nanos(number)));
        }

        check_heads(chunk);

        // Rejected packets at the end of the chunk have also left the ring.
        if !model.rx_broken {
            model.drop_refused_beyond(left);
        }
    }

    /// An error names the ring and is caused by a fault. Returns whether it will occur again.
    fn check_error(&mut self, error: &CaptureError) -> bool {
        let CaptureError::BrokenRing { ring, .. } = error else { panic!("{error}") };
        let ring = ring.queue as usize;
        let left = self.capture.cells_waiting(ring);
        let model = &mut self.models[ring];
        if model.rx_broken {
            return true;
        }

        let mut stray = false;

        while model.cells_waiting() > left {
            let waiting = model.waiting.pop_front().expect("cells wait");
            stray |= waiting.expected == Expected::Stray;
        }

        assert!(model.fill_broken || stray, "{error}");
        model.fill_broken
    }

    /// Checks that every cell is in exactly one place, and that the kernel found no invalid entry.
    fn check_cells(&mut self) {
        let mut sum = self.capture.stock_cells();

        for (ring, model) in self.models.iter_mut().enumerate() {
            let kernel = self.capture.kernel(ring);
            assert_eq!(kernel.violations(), []);

            if model.is_broken() {
                continue;
            }

            let left = self.capture.cells_waiting(ring);

            // A worker does not see a chunk of which all packets were rejected.
            model.drop_refused_beyond(left);
            let strays =
                model.waiting.iter().filter(|waiting| waiting.expected == Expected::Stray).count();
            let held: usize =
                self.held.iter().filter(|chunk| chunk.ring_index() == ring).map(Chunk::cells).sum();
            let home =
                self.capture.rings[ring].fill_ring().queued_cells() + self.capture.idle_cells(ring);
            let known = kernel.free_cells() + left - strays + held + home + kernel.lost_cells();
            sum += known;

            if self.settings.elastic {
                let guaranteed = Supply::guaranteed(self.settings.geometry.cells()) as usize;
                assert!(known >= guaranteed, "cells of ring {ring}: {known} of {guaranteed}");
            } else {
                assert_eq!(known, self.settings.geometry.cells() as usize, "cells of ring {ring}");
            }
        }

        if self.settings.elastic && !self.models.iter().any(Model::is_broken) {
            assert_eq!(
                sum,
                self.settings.geometry.cells() as usize * self.models.len(),
                "cells of rings"
            );
        }
    }

    /// Chunks outlive the capture, every cell returns, and the counts balance.
    fn finish(mut self) {
        let capture = self.capture.clone();
        let close_first = self.random.once_in(2);
        if close_first {
            capture.close();
        }

        self.held.iter().flatten().for_each(|packet| _ = number_of(packet.data()));
        self.held.clear();
        capture.tend();

        for (ring, model) in self.models.iter_mut().enumerate() {
            capture.kernel(ring).set_stalled(false);
            // Except if another ring broke: the worker may have ended with that error.
            if !close_first && !model.is_broken() && (model.waiting.is_empty() || !self.faulty) {
                model.check_that_all_came_home(&capture, ring, &self.settings);
            }
        }

        capture.close();
        let ledger = capture.ledger(self.now);
        for (model, ring) in self.models.iter().zip(&ledger.rings) {
            let account = &ring.account;
            assert_eq!(account.delivered, model.delivered);

            if model.rx_broken {
                // The number of packets behind an invalid index is unknown.
                assert!(account.offered <= model.offered);
            } else {
                assert_eq!(
                    (account.offered, account.filtered),
                    (model.offered, Some(model.filtered))
                );
            }
        }
    }
}

impl Model {
    fn new(geometry: Geometry) -> Self {
        Self { chunk_cells: geometry.chunk_cells as usize, ..Self::default() }
    }

    fn cells_waiting(&self) -> usize {
        self.waiting.iter().map(|waiting| waiting.left).sum()
    }

    fn drop_refused(&mut self) {
        let is_refused =
            |waiting: &Waiting| matches!(waiting.expected, Expected::Refused | Expected::Unwanted);
        while self.waiting.front().is_some_and(is_refused) {
            self.waiting.pop_front();
        }
    }

    /// More cells have left the ring than those of delivered packets: they belonged to rejected
    /// packets, or to a packet that is longer than a chunk.
    fn drop_refused_beyond(&mut self, left: usize) {
        let mut gone = self.cells_waiting().checked_sub(left).expect("cells came from nowhere");
        while gone > 0 {
            let first =
                self.waiting.iter_mut().find(|waiting| waiting.left > 0).expect("cells wait");
            let overlong = first.cells > self.chunk_cells;
            let of_first = gone.min(first.left);

            match first.expected {
                Expected::Refused | Expected::Unwanted => {}
                Expected::Truncated if first.cells >= self.chunk_cells => {}
                Expected::Stray if overlong && of_first < first.left => {}
                _ => panic!("{first:?} has left the ring"),
            }

            first.left -= of_first;
            gone -= of_first;
        }

        self.waiting.retain(|waiting| waiting.left > 0 || waiting.expected == Expected::Truncated);
    }

    fn is_broken(&self) -> bool {
        self.rx_broken || self.fill_broken
    }

    /// Checks that the kernel has all remaining cells, or the required number, and that a sleeping
    /// driver was woken.
    fn check_that_all_came_home(
        &mut self,
        capture: &SimCapture,
        ring: usize,
        settings: &SimSettings,
    ) {
        let kernel = capture.kernel(ring);
        let left = settings.geometry.cells() as usize - kernel.lost_cells();
        let free = kernel.free_cells();

        if !settings.elastic {
            assert_eq!(free + capture.idle_cells(ring), left);
            assert!(free >= left.min(settings.warm.map_or(left, |warm| warm as usize)));
        }

        // Not a fourth packet, which the filter would reject.
        let fate = kernel.receive(&packet(1, 8), Timestamp::default());
        assert_eq!(fate, if free > 0 { Fate::Received } else { Fate::NoCell });
        self.offer(fate, Expected::Packet(1), 1);
    }

    fn inject(&mut self, kernel: &SimKernel, fault: Fault, expected: Expected) {
        self.offer(kernel.receive_badly(fault), expected, fault.cells());
    }

    fn offer(&mut self, fate: Fate, expected: Expected, cells: usize) {
        self.offered += 1;
        if fate != Fate::Received {
            return;
        }

        self.rx_broken = false;
        let is_begun =
            self.waiting.back().is_some_and(|waiting| waiting.expected == Expected::Truncated);
        let begun = if is_begun { self.waiting.pop_back() } else { None };
        self.offered -= u64::from(begun.is_some());

        let left = cells + begun.as_ref().map_or(0, |begun| begun.left);
        let cells = cells + begun.as_ref().map_or(0, |begun| begun.cells);

        let expected = match expected {
            Expected::Packet(_) | Expected::Unwanted if cells > self.chunk_cells => {
                Expected::Refused
            }
            Expected::Unwanted => {
                self.offered -= 1;
                self.filtered += 1;
                Expected::Unwanted
            }
            Expected::Packet(_) if begun.is_some() => Expected::Merged,
            other => other,
        };
        self.waiting.push_back(Waiting { expected, cells, left });
    }
}

#[test]
fn cells_and_packets_are_conserved_in_random_schedules() {
    for_each_seed(RUNS, |random| Schedule::new(random, false).run());
}

#[test]
fn invalid_data_from_the_kernel_is_an_error_or_counted() {
    for_each_seed(RUNS, |random| Schedule::new(random, true).run());
}

#[test]
#[should_panic(expected = "cells of ring")]
fn an_engine_that_loses_a_cell_is_detected() {
    let forget: fn(&mut Chunk) = |chunk| chunk.tamper(|cells| _ = cells.pop());
    Schedule { sabotage: forget, ..Schedule::new(Random::new(1), false) }.run();
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "comes back twice"))]
#[cfg_attr(not(debug_assertions), should_panic(expected = "cells of ring"))]
fn an_engine_that_posts_a_cell_twice_is_detected() {
    let double: fn(&mut Chunk) = |chunk| chunk.tamper(|cells| cells.push(cells[0]));
    Schedule { sabotage: double, ..Schedule::new(Random::new(1), false) }.run();
}

fn next_chunk(worker: &mut SimWorker) -> Chunk {
    match worker.ask(Duration::ZERO) {
        Ok(Answer::Chunk { chunk, .. }) => chunk,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cell_given_twice_is_counted_or_delivered_twice_and_breaks_nothing() {
    let capture = SimCapture::new(&SimSettings::default());
    let kernel = capture.kernel(0);
    let mut worker = capture.worker(0);

    kernel.receive_badly(Fault::RepeatedCell);
    kernel.receive(&packet(7, 8), Timestamp::default());
    drop(next_chunk(&mut worker));

    let account = capture.ledger(Duration::ZERO).total;

    // Release builds have no bitmap of cells and accept such an entry.
    let refused = u64::from(cfg!(debug_assertions));
    assert_eq!((account.delivered, account.dropped.other), (3 - refused, refused));

    let turns = if cfg!(miri) { 20 } else { 600 };
    for number in 0..turns {
        kernel.receive(&packet(number, 8), Timestamp::default());
        drop(next_chunk(&mut worker));
    }

    // The cell is out of use; its duplicate may have taken the slot of another cell on the fill
    // ring.
    assert!((254..=256).contains(&kernel.free_cells()), "{}", kernel.free_cells());
    assert_eq!(kernel.violations(), []);
}

#[test]
fn the_chunks_of_helpers_are_counted_by_ring_and_worker() {
    let settings =
        SimSettings { rings: 2, workers: 2, mode: Mode::Advanced(0.1), ..SimSettings::default() };
    let capture = SimCapture::new(&settings);
    let mut owner = capture.worker(0);
    let mut helper = capture.worker(1);

    receive_short(capture.kernel(0), 200);
    let chunks = [next_chunk(&mut owner), next_chunk(&mut helper)];
    assert_eq!(
        chunks.map(|chunk| (chunk.ring_index(), chunk.is_offloaded())),
        [(0, false), (0, true)]
    );
    assert_eq!((capture.group.helpers_of(0), capture.group.helpers_of(1)), (vec![(1, 1)], vec![]));
    assert_eq!([0, 1].map(|ring| capture.group.home_of(ring)), [0, 1]);
    assert_eq!(capture.ledger(Duration::ZERO).total.offloaded_chunks, 1);
}

#[test]
fn a_worker_with_packets_in_its_home_ring_checks_each_ring_in_turn() {
    let settings =
        SimSettings { rings: 2, workers: 2, mode: Mode::Advanced(0.1), ..SimSettings::default() };
    let capture = SimCapture::new(&settings);

    // The worker of ring 1 is stuck and notes nothing.
    let mut helper = capture.worker(0);
    let _stuck = capture.worker(1);

    let mut ring_of_request = |request| {
        capture.kernel(0).receive(&packet(request, 8), Timestamp::default());
        next_chunk(&mut helper).ring_index()
    };
    let after_its_glance = GLANCE_EVERY + 1;
    assert!((1..=after_its_glance).all(|request| ring_of_request(request) == 0));
    receive_short(capture.kernel(1), 200);

    let helped = (after_its_glance + 1..100).find(|&request| ring_of_request(request) == 1);

    // In between, it checks its own ring.
    assert_eq!(helped, Some(3 * GLANCE_EVERY));
}

#[test]
fn home_rings_above_t_precede_fuller_ones_of_buddies_unless_the_policy_is_fullest() {
    for (next, expected) in [(Next::Round, 0), (Next::Fullest, 1)] {
        let mode = Mode::Advanced(0.1);
        let policy = Policy { next, ..Policy::default() };

        let capture = SimCapture::new(&SimSettings {
            rings: 2,
            workers: 2,
            mode,
            policy,
            ..SimSettings::default()
        });

        for (ring, packets) in [(0, 100), (1, 200)] {
            receive_short(capture.kernel(ring), packets);
        }

        let (mut worker, _other) = (capture.worker(0), capture.worker(1));

        // The first chunk shows that its ring is above T.
        let rings = [(); 3].map(|()| next_chunk(&mut worker).ring_index());
        assert_eq!(rings, [0, expected, expected], "{next:?}");
    }
}

#[test]
fn an_idle_worker_helps_the_buddy_with_the_fullest_ring() {
    for packets in [[0, 100, 200], [0, 200, 100]] {
        let mode = Mode::Advanced(0.1);
        let capture =
            SimCapture::new(&SimSettings { rings: 3, workers: 3, mode, ..SimSettings::default() });
        for (ring, &packets) in packets.iter().enumerate() {
            receive_short(capture.kernel(ring), packets);
        }
        let mut idle = capture.worker(0);
        let _others = [1, 2].map(|index| capture.worker(index));
        let helped = next_chunk(&mut idle).ring_index();
        assert_eq!(packets[helped], 200);
    }
}

#[test]
fn a_worker_is_needed_while_a_ring_of_its_group_is_above_t_but_never_in_basic_mode() {
    for mode in [Mode::Basic, Mode::Advanced(0.1)] {
        let capture =
            SimCapture::new(&SimSettings { rings: 2, workers: 2, mode, ..SimSettings::default() });
        // T is 25 of 256 cells.
        for (packets, is_above) in [(25, false), (1, true)] {
            receive_short(capture.kernel(1), packets);
            let is_needed = [0, 1].map(|worker| capture.group.is_needed(worker));
            assert_eq!(is_needed, [is_above && mode != Mode::Basic; 2], "{mode:?}");
        }
    }
}

#[test]
fn a_busy_worker_counts_as_stuck_from_its_last_request_and_not_from_its_next_packet() {
    let mode = Mode::Advanced(0.6);
    let settings = SimSettings { rings: 2, workers: 2, mode, ..SimSettings::default() };
    let capture = SimCapture::new(&settings);
    let mut busy = capture.worker(0);
    let mut idle = capture.worker(1);

    receive_short(capture.kernel(0), 1);
    let _in_process = next_chunk(&mut busy);
    for _ in 0..2 {
        assert!(matches!(idle.ask(Duration::ZERO), Ok(Answer::Nothing)));
    }

    receive_short(capture.kernel(0), 1);
    assert!(matches!(idle.ask(settings.stuck_after), Ok(Answer::Nothing)));

    let offloaded = idle.ask(settings.stuck_after + Duration::from_nanos(1));
    assert!(matches!(offloaded, Ok(Answer::Chunk { .. })), "{offloaded:?}");
}

#[test]
fn a_sleeping_driver_is_woken_when_cells_return() {
    let settings = SimSettings { drivers_sleep: true, ..SimSettings::default() };
    let capture = SimCapture::new(&settings);
    let kernel = capture.kernel(0);
    let mut worker = capture.worker(0);

    for number in 0..257 {
        let expected = if number < 256 { Fate::Received } else { Fate::NoCell };
        assert_eq!(kernel.receive(&packet(number, 8), Timestamp::default()), expected);
    }

    assert_eq!(kernel.calls(), 0);
    drop(next_chunk(&mut worker));
    assert_eq!(kernel.calls(), 1);
    assert_eq!(kernel.receive(&packet(257, 8), Timestamp::default()), Fate::Received);
    drop(next_chunk(&mut worker));
    assert_eq!(kernel.calls(), 1, "it is awake");
}

#[test]
fn a_driver_that_stalls_drops_when_its_descriptors_are_used_up() {
    let capture = SimCapture::new(&SimSettings::default());
    let kernel = capture.kernel(0);
    kernel.look();
    kernel.set_stalled(true);
    for number in 0..70 {
        let expected = if number < 64 { Fate::Received } else { Fate::NoCell };
        assert_eq!(kernel.receive(&packet(number, 8), Timestamp::default()), expected);
    }
    capture.close();
    let account = capture.ledger(Duration::ZERO).total;
    assert_eq!((account.offered, account.dropped.no_cell, account.dropped.other), (70, 6, 64));
}

#[test]
fn a_full_rx_ring_is_distinguished_from_a_lack_of_cells() {
    let capture = SimCapture::new(&SimSettings { rx_slots: Some(4), ..SimSettings::default() });
    receive_short(capture.kernel(0), 6);
    let dropped = capture.ledger(Duration::ZERO).total.dropped;
    assert_eq!((dropped.ring_full, dropped.no_cell), (2, 0));
}

#[test]
fn a_packet_that_the_device_cut_is_counted_and_forbids_lossless() {
    let geometry = Geometry { chunk_cells: 4, chunks: 4, cell_bytes: 2048 };
    let settings = SimSettings { geometry, descriptors: 4, ..SimSettings::default() };

    for zero_copy in [true, false] {
        let capture = SimCapture::new(&SimSettings { zero_copy, ..settings.clone() });

        // The IP header announces 1,500 bytes, and the device's buffer ends after 1,024.
        let mut part = [0; 1024];
        part[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0x05, 0xdc]);
        for packet in [&part[..], &part[..490]] {
            assert_eq!(capture.kernel(0).receive(packet, Timestamp::default()), Fate::Received);
        }

        let chunk = capture.take_chunk(0).expect("two packets wait");
        assert_eq!(chunk.len(), 2);

        let ledger = capture.ledger(Duration::ZERO);
        assert_eq!(
            (ledger.total.cut, ledger.is_lossless()),
            if zero_copy { (1, false) } else { (0, true) }
        );

        let is_said =
            ledger.verdict() == "lossless: no (1 packet lost: 1 cut into several by the device)";
        assert_eq!(is_said, zero_copy, "{ledger}");
    }
}

/// The kernel receives this many packets of one cell each.
fn receive_short(kernel: &SimKernel, packets: u64) {
    for number in 0..packets {
        kernel.receive(&packet(number, 8), Timestamp::default());
    }
}

/// A filter that rejects packets whose first byte is a multiple of 4.
const EVERY_FOURTH: &str = "4,48 0 0 0,69 0 1 3,6 0 0 1,6 0 0 0";

/// Checks that the heads of a chunk agree with its packets.
fn check_heads(chunk: &Chunk) {
    let mut packets = chunk.iter();
    chunk.for_each_head(0..chunk.len(), |head| {
        let packet = packets.next().expect("a packet for each head");
        let time = Timestamp::from_unix_nanos(head.seconds * 1_000_000_000 + u64::from(head.nanos));
        assert_eq!((head.data, head.wire_len), (packet.data(), packet.wire_len()));
        assert_eq!(Some(time), packet.timestamp());
    });

    assert!(packets.next().is_none(), "a head for each packet");
    let mut heads = Vec::new();
    let mut whole = Vec::new();

    chunk.for_each_head(0..chunk.len(), |head| heads.push(head));
    chunk.for_each_whole(0..chunk.len(), |head| whole.push(head));
    assert_eq!(heads, whole);
}

/// A ring whose chunks hold four cells.
fn ring_of_small_chunks() -> SimCapture {
    let geometry = Geometry { chunk_cells: 4, chunks: 8, cell_bytes: 64 };
    SimCapture::new(&SimSettings { geometry, ..SimSettings::default() })
}

#[test]
fn a_chunk_ends_where_a_packet_ends() {
    let capture = ring_of_small_chunks();
    let kernel = capture.kernel(0);
    let mut worker = capture.worker(0);
    let len = 2 * CELL_ROOM as usize + 1;
    for number in 0..3 {
        kernel.receive(&packet(number, len), Timestamp::from_unix_nanos(number));
    }

    for number in 0..3 {
        let chunk = next_chunk(&mut worker);
        assert_eq!((chunk.len(), chunk.cells(), chunk.sequence()), (1, 3, number));
        let packet = chunk.get(0).unwrap();
        assert_eq!((number_of(packet.data()), packet.data().len()), (number, len));
        let pieces: Vec<usize> = packet.fragments().map(<[u8]>::len).collect();
        assert_eq!(pieces, [CELL_ROOM as usize, CELL_ROOM as usize, 1]);
        assert_eq!(packet.timestamp(), Some(Timestamp::from_unix_nanos(number)));
    }

    assert_eq!(kernel.free_cells(), 32);
    capture.close();

    let account = capture.ledger(Duration::ZERO).total;
    assert_eq!((account.delivered, account.bytes, account.offered), (3, 3 * len as u64, 3));
}

#[test]
fn counts_read_without_a_lock_equal_those_of_the_ring() {
    let capture = ring_of_small_chunks();
    let kernel = capture.kernel(0);
    let mut worker = capture.worker(0);
    let fates: Vec<Fate> =
        (0..40).map(|number| kernel.receive(&packet(number, 8), Timestamp::default())).collect();
    let dropped = fates.iter().filter(|fate| **fate == Fate::NoCell).count() as u64;
    assert_eq!(dropped, 8, "{fates:?}");

    let tally = || capture.rings[0].tally();
    assert_eq!(tally(), Tally { delivered: 0, arrived: 32, dropped });
    drop(next_chunk(&mut worker));
    assert_eq!(tally(), Tally { delivered: 4, arrived: 32, dropped });
    (0..7).for_each(|_| drop(next_chunk(&mut worker)));
    assert_eq!(tally(), Tally { delivered: 32, arrived: 32, dropped });

    let account = capture.ledger(Duration::ZERO).total;
    assert_eq!((account.delivered, account.offered), (32, 40));
}

#[test]
fn a_ring_takes_as_many_packets_without_its_keeper_as_it_has_warm_cells() {
    let geometry = Geometry { chunk_cells: 4, chunks: 8, cell_bytes: 64 };
    let unattended = |warm| {
        let capture = SimCapture::new(&SimSettings { geometry, warm, ..SimSettings::default() });
        capture.group.unattended()
    };
    assert_eq!([None, Some(32), Some(8)].map(unattended), [None, None, Some(8)]);
}

#[test]
fn every_cell_is_posted_waiting_captured_or_free() {
    let capture = ring_of_small_chunks();
    let kernel = capture.kernel(0);
    let mut worker = capture.worker(0);
    receive_short(kernel, 10);
    let cells = || capture.rings[0].cells();
    assert_eq!(cells(), Cells { posted: 22, waiting: 10, captured: 0, free: 0 });
    let chunk = next_chunk(&mut worker);
    assert_eq!(cells(), Cells { posted: 22, waiting: 6, captured: 4, free: 0 });
    drop(chunk);
    assert_eq!(cells(), Cells { posted: 26, waiting: 6, captured: 0, free: 0 });
}

#[test]
fn rejected_packets_waiting_at_the_close_do_not_count_as_lost() {
    let capture = ring_of_small_chunks();
    let all_but_every_fourth = UserFilter::parse(EVERY_FOURTH);
    capture.rings[0].settle(Check::Everything(all_but_every_fourth));
    let kernel = capture.kernel(0);
    let long = 2 * CELL_ROOM as usize;
    for (number, len) in [(1, 8), (4, 8), (2, 8), (8, long), (3, long)] {
        assert_eq!(kernel.receive(&packet(number, len), Timestamp::default()), Fate::Received);
    }
    capture.close();
    let account = capture.ledger(Duration::ZERO).total;
    assert_eq!((account.offered, account.dropped.other, account.filtered), (3, 3, Some(2)));
}

#[test]
fn the_drop_count_read_without_a_lock_is_complete_after_the_close() {
    let capture = ring_of_small_chunks();
    receive_short(capture.kernel(0), 40);
    capture.close();
    let dropped = capture.ledger(Duration::ZERO).total.dropped;
    assert_eq!((dropped.other, dropped.no_cell), (32, 8));
    assert_eq!(capture.rings[0].tally().dropped, 40);
}

#[test]
fn an_incomplete_packet_waits_for_its_end() {
    let capture = ring_of_small_chunks();
    let kernel = capture.kernel(0);
    let mut worker = capture.worker(0);

    kernel.receive(&packet(1, 8), Timestamp::default());
    kernel.receive_in_parts(&packet(2, 3 * CELL_ROOM as usize), Timestamp::default(), 2);

    let first = next_chunk(&mut worker);
    assert_eq!((first.len(), first.cells()), (1, 1));
    assert_eq!(capture.backlog(0), 2);

    for _ in 0..2 {
        assert!(matches!(worker.ask(Duration::ZERO), Ok(Answer::Nothing)));
        assert_eq!(capture.backlog(0), 0, "there is nothing to do");
        assert!(worker.group.is_quiet(0, || 0));
    }

    kernel.look();
    let second = next_chunk(&mut worker);
    assert_eq!((second.len(), second.cells()), (1, 3));
    assert_eq!(number_of(second.get(0).unwrap().data()), 2);
    drop((first, second));
    assert_eq!(kernel.free_cells(), 32);
}

#[test]
fn a_packet_with_more_cells_than_a_chunk_is_counted_and_its_cells_return() {
    let capture = ring_of_small_chunks();
    let kernel = capture.kernel(0);
    let mut worker = capture.worker(0);
    for cells in [1, 4, 5, 8, 12, 2] {
        kernel.receive(&packet(cells, (cells * CELL_ROOM) as usize), Timestamp::default());
    }

    capture.end();
    let mut received = Vec::new();

    loop {
        match worker.ask(Duration::ZERO).unwrap() {
            Answer::Chunk { chunk, .. } => {
                received.extend(chunk.iter().map(|packet| number_of(packet.data())));
            }
            Answer::Nothing => {}
            Answer::Ended => break,
        }
    }

    assert_eq!(received, [1, 4, 2]);
    assert_eq!(kernel.free_cells(), 32);
    capture.close();

    let account = capture.ledger(Duration::ZERO).total;
    assert_eq!((account.offered, account.delivered, account.dropped.other), (6, 3, 3));
}

#[test]
fn a_packet_without_an_end_is_counted_and_does_not_prevent_the_close() {
    for mode in [Mode::Basic, Mode::Advanced(0.5)] {
        let capture = SimCapture::new(&SimSettings { mode, ..SimSettings::default() });
        let mut worker = capture.worker(0);
        capture.kernel(0).receive_badly(Fault::Truncated);
        capture.end();
        let answers = [worker.ask(Duration::ZERO), worker.ask(Duration::ZERO)];
        assert!(matches!(answers[1], Ok(Answer::Ended)), "{answers:?}");
        capture.close();
        let account = capture.ledger(Duration::ZERO).total;
        assert_eq!((account.offered, account.dropped.other), (1, 1));
    }
}

#[test]
fn in_basic_mode_a_worker_that_is_gone_is_an_error_for_the_others() {
    let settings = SimSettings { rings: 2, workers: 2, ..SimSettings::default() };
    let capture = SimCapture::new(&settings);
    let gone = capture.worker(0);
    let mut left = capture.worker(1);
    drop(gone);
    let error = left.ask(Duration::ZERO).expect_err("the worker that is gone is an error");
    assert!(error.to_string().contains("sim0@0"), "{error}");
    capture.end();
    assert!(matches!(left.ask(Duration::ZERO), Ok(Answer::Ended)));
}

/// Kernels, workers and threads that drop chunks, each in a separate thread.
#[test]
fn cells_and_packets_are_conserved_between_threads() {
    const PACKETS: u64 = if cfg!(miri) { 24 } else { 3000 };
    for_each_seed(RUNS / 60 + 2, |mut random| {
        let settings = settings(&mut random);
        let capture = SimCapture::new(&settings);
        let (sender, receiver) = mpsc::channel::<Chunk>();

        let delivered: u64 = thread::scope(|scope| {
            let dropper = scope.spawn(move || receiver.iter().for_each(drop));
            let workers: Vec<_> = (0..settings.workers)
                .map(|index| (capture.worker(index), sender.clone(), Random::new(random.bits())))
                .map(|(worker, sender, random)| scope.spawn(move || work(worker, &sender, random)))
                .collect();
            drop(sender);

            let kernel = |ring| Arc::clone(capture.kernel(ring));
            let kernels: Vec<_> = (0..settings.rings)
                .map(kernel)
                .map(|kernel| {
                    scope.spawn(move || offer(&kernel, PACKETS, settings.geometry.chunk_cells))
                })
                .collect();
            kernels.into_iter().for_each(|kernel| kernel.join().unwrap());
            capture.end();

            let delivered = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
            dropper.join().unwrap();

            delivered
        });
        let cells = settings.geometry.cells() as usize;
        let home = |ring: usize| capture.kernel(ring).free_cells() + capture.idle_cells(ring);

        for ring in 0..settings.rings {
            assert_eq!(capture.kernel(ring).violations(), []);
            assert!(
                settings.elastic || home(ring) == cells,
                "{} of ring {ring} are home",
                home(ring)
            );
        }

        let all: usize = (0..settings.rings).map(home).sum();
        assert_eq!(all + capture.stock_cells(), cells * settings.rings);

        let account = capture.ledger(Duration::ZERO).total;
        assert_eq!(account.offered, PACKETS * settings.rings as u64);
        assert_eq!(account.delivered, delivered);
        assert_eq!(account.dropped.other, 0);
    });
}

/// Packets of up to three cells, or fewer if a chunk has fewer.
fn offer(kernel: &SimKernel, packets: u64, chunk_cells: u32) {
    let cells = u64::from(chunk_cells).min(3);
    for number in 0..packets {
        let len = 8 + number * 11 % (cells * CELL_ROOM - 8);
        kernel.receive(&packet(number, len as usize), Timestamp::default());
        if number % 8 == 0 {
            thread::yield_now();
        }
    }
}

/// Takes all chunks to the end, checks them, and drops some of them. Returns the number of packets.
fn work(mut worker: SimWorker, dropper: &mpsc::Sender<Chunk>, mut random: Random) -> u64 {
    let mut delivered = 0;
    loop {
        match worker.ask(Duration::ZERO).unwrap() {
            Answer::Chunk { chunk, .. } => {
                let numbers: Vec<u64> =
                    chunk.iter().map(|packet| number_of(packet.data())).collect();
                assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
                delivered += chunk.len() as u64;
                if random.once_in(2) {
                    dropper.send(chunk).unwrap();
                }
            }
            Answer::Nothing => thread::yield_now(),
            Answer::Ended => return delivered,
        }
    }
}

#[test]
fn a_ring_that_was_drained_meanwhile_is_not_offloaded() {
    let capture = SimCapture::new(&SimSettings::default());
    receive_short(capture.kernel(0), 5);
    let ring = &capture.rings[0];
    let help = |limit| Help { limit, most: u32::MAX, abandoned: false };
    assert!(ring.offload(help(5)).unwrap().is_none());
    assert_eq!(ring.offload(help(4)).unwrap().unwrap().len(), 5);
}

#[test]
fn a_packet_that_the_device_cut_is_in_the_ledger_of_its_ring_and_in_the_sum() {
    let geometry = Geometry { chunk_cells: 4, chunks: 8, cell_bytes: 2048 };
    let capture = SimCapture::new(&SimSettings {
        geometry,
        rings: 2,
        zero_copy: true,
        ..SimSettings::default()
    });

    // 1,024 bytes of an Ethernet frame whose IPv4 header announces 1,500.
    let mut frame = vec![0; 1024];
    frame[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0x05, 0xdc]);

    let mut worker = capture.worker(0);
    capture.kernel(0).receive(&frame, Timestamp::default());
    capture.kernel(1).receive(&frame, Timestamp::default());
    capture.kernel(1).receive(&frame, Timestamp::default());

    let delivered: usize = (0..2).map(|_| next_chunk(&mut worker).len()).sum();
    assert_eq!(delivered, 3);

    let ledger = capture.ledger(Duration::ZERO);
    let cut: Vec<u64> = ledger.rings.iter().map(|ring| ring.account.cut).collect();
    assert_eq!(cut, [1, 2], "each ring counts what its device cut");
    assert_eq!(ledger.total.cut, 3, "the sum has what the rings count");
    assert!(!ledger.is_lossless() && ledger.verdict().contains("3 cut into several"), "{ledger}");
}
