//! A reader that reads cells in place, together with the ring's worker, which gets the packets that
//! the reader leaves.

use super::*;
use crate::time::Timestamp;
use crate::umem::reader::{CellReader, NextBlock};

const ROUNDS: u64 = if cfg!(miri) { 3 } else { 400 };
const STEPS: usize = if cfg!(miri) { 60 } else { 400 };

/// The packets that came out, by the numbers at their start.
#[derive(Default)]
struct Book {
    /// The time of each packet, by its number.
    times: Vec<u64>,
    received: Vec<u64>,
    delivered: Vec<u64>,
    /// Received packets, and those of them that were delivered.
    bytes: u64,
}

impl Book {
    fn deliver(&mut self, data: &[u8], time: u64) {
        let number = u64::from_ne_bytes(*data.first_chunk().expect("every packet has its number"));
        assert_eq!(time, self.times[number as usize], "the time of another packet");
        self.delivered.push(number);
        self.bytes += data.len() as u64;
    }
}

/// The times of packets of which up to eight share one, as with a clock that is read for some
/// packets of a batch: mostly eight, or any number if the batches are short.
#[derive(Default)]
struct SharedTimes {
    now: u64,
    left: u64,
}

impl SharedTimes {
    fn next(&mut self, random: &mut Random, batches_are_short: bool) -> u64 {
        if self.left == 0 {
            self.left =
                if batches_are_short || random.once_in(20) { random.between(1, 8) } else { 8 };
            self.now += 1;
        }
        self.left -= 1;
        self.now
    }
}

/// A packet that fits a cell, or one that fits a chunk.
fn packet(number: u64, random: &mut Random, geometry: Geometry, some_are_long: bool) -> Vec<u8> {
    let room = u64::from(geometry.cell_bytes - HEADROOM_BYTES);
    let cells = if some_are_long && random.once_in(16) { geometry.chunk_cells.min(3) } else { 1 };
    let len = random.between(8, u64::from(cells) * room);
    let mut bytes = number.to_ne_bytes().to_vec();
    bytes.resize(len as usize, number as u8);
    bytes
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let chunk_cells = random.between(1, 60) as u32;
    let chunks = random.between(1, 6) as u32;
    let some_are_long = random.once_in(2);
    let batches_are_short = random.once_in(2);
    let read_max = if random.once_in(2) { 4 } else { 60 };
    let geometry = Geometry { chunk_cells, chunks, cell_bytes: 128 };
    let settings = SimSettings { rings: 1, workers: 1, geometry, ..SimSettings::default() };
    let kernels = SimCapture::new(&settings);
    let capture = kernels.capture().unwrap();
    let mut worker = capture.workers().pop().unwrap();
    let mut reader = worker.cell_reader().expect("it is alone");
    let mut book = Book::default();
    let mut number = 0;
    let mut times = SharedTimes::default();

    // The position at which reading continues.
    let mut next = 0;

    for _ in 0..STEPS {
        match random.below(6) {
            0 | 1 => {
                for _ in 0..random.between(1, read_max) {
                    let bytes = packet(number, &mut random, geometry, some_are_long);
                    let time = times.next(&mut random, batches_are_short);
                    book.times.push(time);

                    if kernels.kernel(0).receive(&bytes, Timestamp::from_unix_nanos(time))
                        == Fate::Received
                    {
                        book.received.push(number);
                    }

                    number += 1;
                }
            }
            2 => {
                let end = next + random.below(read_max) as u32;
                let stopped = read(&mut reader, next..end, &mut book);
                assert_eq!(stopped, end.min(reader.len()).max(next));
                next = stopped;
            }
            3 if next >= reader.len() => {
                if let NextBlock::Packets(packets) = reader.open_next() {
                    assert!(packets > 0 && packets <= chunk_cells && packets == reader.len());
                }
                next = 0;
            }
            4 => {
                reader.put_back(next);
                next = 0;
                assert!(reader.is_empty());
            }
            5 if reader.is_empty() && random.once_in(3) => {
                if let Some(chunk) = worker.try_next_chunk().unwrap() {
                    for packet in &chunk {
                        book.deliver(packet.data(), packet.timestamp().unwrap().unix_nanos());
                    }
                }
            }
            _ => {}
        }
    }

    let in_hand = u64::from(reader.len().saturating_sub(next));
    let at_close = random.once_in(2);
    if at_close {
        kernels.close();
        // Unread packets are counted.
        reader.put_back(next);
    } else {
        reader.put_back(next);
        while let Some(chunk) = worker.try_next_chunk().unwrap() {
            for packet in &chunk {
                book.deliver(packet.data(), packet.timestamp().unwrap().unix_nanos());
            }
        }
        assert_eq!(book.delivered, book.received);
        assert_eq!(kernels.kernel(0).free_cells(), geometry.cells() as usize, "cells are missing");
    }

    assert!(book.received.starts_with(&book.delivered), "packets in another order");
    let account = kernels.ledger(Duration::ZERO).total;
    assert_eq!(account.delivered, book.delivered.len() as u64, "{in_hand} in hand");
    assert_eq!(account.bytes, book.bytes);

    let lost = book.received.len() - book.delivered.len();
    assert_eq!(account.dropped.other, lost as u64, "{in_hand} in hand");
    assert_eq!(kernels.kernel(0).violations(), []);
}

fn read(reader: &mut CellReader, range: std::ops::Range<u32>, book: &mut Book) -> u32 {
    reader.for_each_head(range, |head| {
        book.deliver(head.data, head.seconds * 1_000_000_000 + u64::from(head.nanos));
    })
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no level-triggered epoll")]
fn a_reader_in_place_and_the_worker_share_a_ring_without_loss() {
    tests::for_each_seed(ROUNDS, |mut random| run(random.below(u64::MAX)));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no level-triggered epoll")]
fn only_a_lone_reader_of_a_plain_pool_gets_cells_in_place() {
    let reader = |settings: &SimSettings| {
        let capture = SimCapture::new(settings).capture().unwrap();
        capture.workers()[0].cell_reader().is_some()
    };
    let alone = SimSettings { rings: 1, workers: 1, ..SimSettings::default() };
    assert!(reader(&alone));
    assert!(!reader(&SimSettings { rings: 2, ..alone.clone() }));
    assert!(!reader(&SimSettings { rings: 2, workers: 2, ..alone.clone() }));
    assert!(!reader(&SimSettings { warm: Some(1), ..alone }));
}
