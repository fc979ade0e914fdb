//! Rings that are added and closed while a capture runs, and interfaces that are replaced.

use std::time::Duration;

use super::*;
use crate::time::Timestamp;

/// Rounds of a random test.
const ROUNDS: usize = if cfg!(miri) { 2 } else { 60 };
const STEPS: usize = if cfg!(miri) { 60 } else { 600 };

/// A packet with this number in this many cells.
fn packet(number: u64, cells: usize, settings: &SimSettings) -> Vec<u8> {
    let room = (settings.geometry.cell_bytes - HEADROOM_BYTES) as usize;
    let mut bytes = vec![0; 8 + room * (cells - 1)];
    bytes[..8].copy_from_slice(&number.to_ne_bytes());
    bytes
}

/// The packets that a ring received, and those that it delivered.
#[derive(Debug, Default, Clone)]
struct Book {
    sent: u64,
    delivered: u64,
    last: Option<u64>,
    sequence: Option<u64>,
    closed: bool,
}

/// A capture whose packets the test counts independently.
struct Bench {
    settings: SimSettings,
    capture: SimCapture,
    books: Vec<Book>,
    workers: Vec<SimWorker>,
    held: Vec<Chunk>,
    random: Random,
}

impl Bench {
    fn new(settings: SimSettings, seed: u64) -> Self {
        let capture = SimCapture::new(&settings);
        Self {
            books: vec![Book::default(); settings.rings],
            workers: (0..settings.workers).map(|worker| capture.worker(worker)).collect(),
            held: Vec::new(),
            random: Random::new(seed),
            capture,
            settings,
        }
    }

    fn receive(&mut self, ring: usize) {
        let book = &mut self.books[ring];
        book.sent += 1;
        let cells = if self.random.below(8) == 0 { 1 + self.random.below(3) as usize } else { 1 };
        let packet = packet(book.sent, cells, &self.settings);
        let now = if self.random.below(4) == 0 { 1 } else { usize::MAX };
        self.capture.kernel(ring).receive_in_parts(&packet, Timestamp::default(), now);
    }

    /// Lets a worker request a chunk, and keeps or drops the chunk.
    fn ask(&mut self, worker: usize) -> bool {
        let answer = self.workers[worker].ask(Duration::ZERO).unwrap();
        let Answer::Chunk { chunk, .. } = answer else { return false };
        let book = &mut self.books[chunk.ring_index()];
        assert!(book.sequence.is_none_or(|last| last < chunk.sequence()), "{book:?}");
        book.sequence = Some(chunk.sequence());

        for packet in &chunk {
            let number = u64::from_ne_bytes(packet.data()[..8].try_into().unwrap());
            assert!(book.last.is_none_or(|last| last < number), "packet {number} after {book:?}");
            book.last = Some(number);
            book.delivered += 1;
        }

        if self.random.below(2) == 0 {
            self.held.push(chunk);
        }

        true
    }

    fn drop_some(&mut self) {
        let count = self.random.below(self.held.len() as u64 + 1) as usize;
        self.held.drain(..count);
    }

    /// Takes all chunks, recycles them, and compares the counts.
    fn settle(&mut self) {
        while (0..self.workers.len()).any(|worker| self.ask(worker)) {
            self.held.clear();
        }

        self.held.clear();
        self.capture.tend();

        for ring in 0..self.books.len() {
            let kernel = self.capture.kernel(ring);
            assert_eq!(kernel.violations(), [], "ring {ring}");

            if !self.books[ring].closed {
                kernel.look();
                while (0..self.workers.len()).any(|worker| self.ask(worker)) {}
                self.held.clear();
                let home = self.capture.kernel(ring).free_cells() + self.capture.idle_cells(ring);
                assert_eq!(home, self.settings.geometry.cells() as usize, "cells of ring {ring}");
            }
        }

        let ledger = self.capture.ledger(Duration::ZERO);
        for (book, page) in self.books.iter().zip(&ledger.rings) {
            let account = &page.account;
            assert_eq!(
                (account.offered, account.delivered),
                (book.sent, book.delivered),
                "{ledger}"
            );
        }

        let sent: u64 = self.books.iter().map(|book| book.sent).sum();
        assert_eq!(ledger.total.offered, sent, "{ledger}");
    }
}

fn settings(random: &mut Random) -> SimSettings {
    SimSettings {
        rings: 2,
        rings_later: 6,
        workers: 1 + random.below(2) as usize,
        geometry: Geometry { chunk_cells: 4, chunks: 1 + random.below(8) as u32, cell_bytes: 64 },
        mode: if random.below(2) == 0 { Mode::Basic } else { Mode::Advanced(0.5) },
        descriptors: 1 + random.below(8) as u32,
        drivers_sleep: random.below(2) == 0,
        first_index: if random.below(2) == 0 { 0 } else { u32::MAX - 7 },
        warm: (random.below(3) == 0).then_some(3),
        ..SimSettings::default()
    }
}

/// A third of eight possible rings is added while two are in use, and one is closed.
#[test]
fn a_group_with_eight_seats_accepts_a_third_ring_and_closes_one() {
    for seed in 0..ROUNDS as u64 {
        let mut random = Random::new(seed);
        let mut bench = Bench::new(settings(&mut random), seed);

        for step in 0..STEPS {
            match step {
                _ if step == STEPS / 3 => {
                    let worker = bench.capture.seat_ring(&bench.settings);
                    assert_eq!(bench.capture.home_of(2), worker);
                    bench.books.push(Book::default());
                }
                _ if step == 2 * STEPS / 3 => {
                    bench.capture.close_ring(1);
                    bench.books[1].closed = true;
                }
                _ => {}
            }

            let ring = random.below(bench.books.len() as u64) as usize;

            match random.below(4) {
                0 => drop(bench.ask(random.below(bench.workers.len() as u64) as usize)),
                1 => bench.drop_some(),
                _ if !bench.books[ring].closed => bench.receive(ring),
                _ => {}
            }
        }

        bench.settle();
        assert!(bench.books[2].delivered > 0, "seed {seed}");
    }
}

/// All eight rings are added, and no ninth one can be added.
#[test]
fn rings_are_dealt_out_evenly_as_they_come() {
    let settings = SimSettings { rings: 2, rings_later: 6, workers: 2, ..SimSettings::default() };
    let mut bench = Bench::new(settings, 1);
    let workers: Vec<usize> = (2..8).map(|_| bench.capture.seat_ring(&bench.settings)).collect();
    bench.books.resize(8, Book::default());
    assert_eq!(workers, [0, 1, 0, 1, 0, 1]);
    (0..8).for_each(|ring| bench.receive(ring));
    bench.settle();
    assert!(bench.books.iter().all(|book| book.delivered == 1));
}

/// An interface is replaced while the driver has free cells, packets wait and chunks are
/// outstanding: afterwards every cell is in use exactly once, and every packet is counted.
#[test]
fn no_cell_and_no_packet_is_lost_when_interfaces_are_replaced() {
    for seed in 0..ROUNDS as u64 {
        let mut random = Random::new(seed);
        let mut bench = Bench::new(settings(&mut random), seed);

        for _ in 0..STEPS {
            let ring = random.below(2) as usize;
            match random.below(16) {
                0 => {
                    // The unpublished cells belong to a packet that the removal truncated.
                    bench.capture.kernel(ring).look();
                    bench.capture.replace_interface(ring);
                }
                1..4 => drop(bench.ask(random.below(bench.workers.len() as u64) as usize)),
                4..6 => bench.drop_some(),
                _ => bench.receive(ring),
            }
        }
        bench.settle();
    }
}

/// A packet that was incomplete when its interface was removed is counted, and its cells are used
/// again.
#[test]
fn a_packet_that_is_cut_off_by_a_removal_is_counted() {
    let geometry = Geometry { chunk_cells: 4, chunks: 2, cell_bytes: 64 };
    let mut bench = Bench::new(SimSettings { geometry, ..SimSettings::default() }, 1);
    bench.receive(0);
    let long = packet(2, 3, &bench.settings);
    bench.capture.kernel(0).receive_in_parts(&long, Timestamp::default(), 2);
    bench.capture.replace_interface(0);
    bench.books[0].sent += 1;
    bench.receive(0);
    bench.settle();
    assert_eq!(bench.capture.ledger(Duration::ZERO).total.dropped.other, 1);
}
