//! Random schedules of a forwarding capture: whatever the kernel does, a cell is in one place, and
//! a packet leaves from the cell in which it arrived.

use std::collections::VecDeque;

use super::tests::for_each_seed;
use super::*;
use crate::forward::{DetachedPacket, OutPacket};
use crate::time::Timestamp;

const RUNS: u64 = if cfg!(miri) { 2 } else { 2000 };
const STEPS: u64 = if cfg!(miri) { 60 } else { 400 };
/// Packets of a large batch.
const BATCH: u32 = if cfg!(miri) { 64 } else { 256 };
const CELL_BYTES: u64 = 64;
const CELL_ROOM: u64 = CELL_BYTES - HEADROOM_BYTES as u64;

fn settings(random: &mut Random) -> SimSettings {
    let rings = random.between(1, 3) as usize;
    SimSettings {
        rings,
        workers: random.between(1, rings as u64) as usize,
        geometry: Geometry {
            chunk_cells: random.between(1, 6) as u32,
            chunks: random.between(1, 6) as u32,
            cell_bytes: CELL_BYTES as u32,
        },
        mode: if random.once_in(2) { Mode::Basic } else { Mode::Advanced(random.unit()) },
        descriptors: random.between(1, 8) as u32,
        first_index: if random.once_in(2) { 0 } else { u32::MAX - random.below(100) as u32 },
        warm: random.once_in(2).then(|| random.between(1, 36) as u32),
        forwards: true,
        ..SimSettings::default()
    }
}

/// A packet that was passed to a port: the address of its bytes, and the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Given {
    cells: Vec<(usize, Vec<u8>)>,
    /// Its number, if it belongs to the order of its ring.
    number: Option<u64>,
}

impl Given {
    fn of<'a>(fragments: impl Iterator<Item = &'a [u8]>, number: Option<u64>) -> Self {
        Self {
            cells: fragments.map(|bytes| (bytes.as_ptr().addr(), bytes.to_vec())).collect(),
            number,
        }
    }
}

struct Schedule {
    random: Random,
    settings: SimSettings,
    capture: SimCapture,
    workers: Vec<SimWorker>,
    port: Port,
    held: Vec<Chunk>,
    kept: Vec<DetachedPacket>,
    /// Cells of kept packets.
    kept_cells: usize,
    /// By tx queue, in the order in which they were passed.
    given: Vec<VecDeque<Given>>,
    /// The last number that left, by ring.
    last_number: Vec<Option<u64>>,
    taken: u64,
    sent: u64,
    refused: u64,
    next_number: u64,
    received: u64,
    /// Tx rings publish the kernel's consumer index late.
    shows_late: bool,
    /// The interface of a tx ring was removed.
    gone: bool,
}

impl Schedule {
    fn new(mut random: Random) -> Self {
        let settings = settings(&mut random);
        let capture = SimCapture::new(&settings);
        Self {
            workers: (0..settings.workers).map(|index| capture.worker(index)).collect(),
            port: capture.port().expect("the capture forwards"),
            given: vec![VecDeque::new(); settings.rings],
            last_number: vec![None; settings.rings],
            held: Vec::new(),
            kept: Vec::new(),
            kept_cells: 0,
            taken: 0,
            sent: 0,
            refused: 0,
            next_number: 0,
            received: 0,
            shows_late: random.once_in(3),
            gone: false,
            random,
            settings,
            capture,
        }
    }

    fn run(mut self) {
        for ring in 0..self.settings.rings {
            self.capture.transmitter(ring).set_shows_late(self.shows_late);
        }
        for _ in 0..STEPS {
            self.step();
            self.check_sent();
            self.check_cells();
        }
        self.finish();
    }

    fn step(&mut self) {
        let ring = self.random.below(self.settings.rings as u64) as usize;
        let transmitter = Arc::clone(self.capture.transmitter(ring));

        match self.random.below(20) {
            0..5 => self.receive(ring),
            5..9 => self.ask(),
            9..12 => self.drain(),
            12 => drop(self.random.take(&mut self.held)),
            13 => self.send_kept(),
            14 => self.build(),
            15 => self.flush(),
            16 => self.capture.tend(),
            17 => {
                let states = [LinkState::Up, LinkState::Up, LinkState::Stalled, LinkState::Down];
                let vanishes = self.random.once_in(30);
                self.gone |= vanishes;
                let state =
                    if vanishes { LinkState::Gone } else { states[self.random.below(4) as usize] };
                transmitter.set_link(state);
            }
            18 => {
                let refused = self.random.below(4);
                self.refused += refused;
                transmitter.refuse(refused as usize);
            }
            _ => {
                transmitter.set_late(self.random.once_in(2));
                let random = &mut self.random;
                transmitter.complete(random.below(20) as usize, |among| {
                    random.below(among as u64) as usize
                });
            }
        }
    }

    fn receive(&mut self, ring: usize) {
        for _ in 0..self.random.between(1, 6) {
            let cells = if self.random.once_in(2) { 1 } else { self.random.between(1, 4) };
            let len = self.random.between((cells - 1) * CELL_ROOM + 20, cells * CELL_ROOM) as usize;
            let mut packet = self.next_number.to_ne_bytes().to_vec();
            packet.resize(len, self.next_number as u8);
            let time = Timestamp::from_unix_nanos(self.next_number);
            if self.capture.kernel(ring).receive(&packet, time) == Fate::Received {
                self.received += 1;
            }
            self.next_number += 1;
        }
    }

    fn ask(&mut self) {
        let turn = self.random.below(self.workers.len() as u64) as usize;
        if let Answer::Chunk { chunk, .. } = self.workers[turn].ask(Duration::ZERO).unwrap() {
            self.held.push(chunk);
        }
    }

    /// Sends some packets of a chunk, keeps some, and drops the others.
    fn drain(&mut self) {
        let Some(mut chunk) = self.random.take(&mut self.held) else { return };
        let lane = chunk.ring_index();
        let mut rest = Vec::new();
        let keeps = self.random.once_in(3);

        // The packets up to here one by one, the rest together.
        let apart = if self.random.once_in(2) { usize::MAX } else { self.random.below(4) as usize };
        for packet in chunk.iter().skip(apart) {
            let number = u64::from_ne_bytes(*packet.data().first_chunk().unwrap());
            rest.push(Given::of(packet.fragments(), Some(number)));
        }

        let mut packets = chunk.drain();
        for mut packet in packets.by_ref().take(apart) {
            let number = u64::from_ne_bytes(*packet.data().first_chunk().unwrap());
            assert_eq!(packet.timestamp(), Some(Timestamp::from_unix_nanos(number)));

            let cells = packet.fragments().count();

            match self.random.below(8) {
                0 => {}
                1 if keeps => {
                    self.kept.push(packet.detach());
                    self.kept_cells += cells;
                }
                2 => {
                    // Overwrites its timestamp.
                    packet.grow_head(HEADROOM_BYTES as usize).unwrap().fill(7);
                    assert_eq!(packet.timestamp(), Some(Timestamp::from_unix_nanos(number)));
                    self.taken += 1;
                    self.given[lane].push_back(Given::of(packet.fragments(), Some(number)));
                    self.port.send(packet);
                }
                _ => {
                    self.taken += 1;
                    self.given[lane].push_back(Given::of(packet.fragments(), Some(number)));
                    self.port.send(packet);
                }
            }
        }

        self.taken += rest.len() as u64;
        self.given[lane].extend(rest);
        self.port.send_all(packets);

        // The chunk is dropped before or after the flush, or kept.
        match self.random.below(3) {
            0 => drop(chunk),
            1 => self.held.push(chunk),
            _ => {
                self.flush();
                drop(chunk);
            }
        }
    }

    fn send(&mut self, lane: usize, packet: OutPacket<'_>) {
        self.given[lane].push_back(Given::of(packet.fragments(), None));
        self.taken += 1;
        self.port.send(packet);
    }

    fn send_kept(&mut self) {
        let Some(packet) = self.random.take(&mut self.kept) else { return };
        let packet = packet.into_packet();
        self.kept_cells -= packet.fragments().count();
        let lane = packet.ring().expect("it was captured").queue as usize;
        if self.random.once_in(4) {
            return;
        }
        self.send(lane, packet);
    }

    fn build(&mut self) {
        let len = self.random.between(20, CELL_ROOM) as usize;
        if let Some(mut packet) = self.port.build(len) {
            packet.data_mut().fill(9);
            if !self.random.once_in(4) {
                self.send(0, packet);
            }
        }
    }

    fn flush(&mut self) {
        self.port.flush();
    }

    /// Checks that the sent packets are those passed to the port, from the same cells: in basic
    /// mode in the order in which they were passed, in advanced mode in the order of the ring.
    fn check_sent(&mut self) {
        for ring in 0..self.settings.rings {
            let base = self.capture.rings[ring].fill_ring().pool().memory().base().addr().get();
            for packet in self.capture.transmitter(ring).take_sent() {
                let place = |(address, bytes): (u64, Vec<u8>)| (base + address as usize, bytes);
                let cells: Vec<_> = packet.cells.into_iter().map(place).collect();
                let given = &mut self.given[ring];
                let place = given.iter().position(|given| given.cells == cells);
                let place = place.unwrap_or_else(|| panic!("{cells:?} was sent and not given"));
                let number = given[place].number;

                match self.settings.mode {
                    // Packets passed before it that have not left by now were dropped.
                    Mode::Basic => drop(given.drain(..=place)),
                    Mode::Advanced(_) => {
                        given.remove(place);
                        let last = &mut self.last_number[ring];
                        assert!(
                            number.is_none() || *last < number,
                            "{number:?} left after {last:?}"
                        );
                        *last = number.or(*last);
                    }
                }

                self.sent += 1;
            }
        }
    }

    /// Checks that every cell is in exactly one place, and that no kernel found an invalid entry.
    fn check_cells(&mut self) {
        let held: usize = self.held.iter().map(Chunk::cells).sum();
        let mut sum =
            held + self.kept_cells + self.port.cells() + self.capture.cells_on_their_way();
        for ring in 0..self.settings.rings {
            let kernel = self.capture.kernel(ring);
            let transmitter = self.capture.transmitter(ring);
            assert_eq!((kernel.violations(), transmitter.violations()), (vec![], vec![]));
            sum += kernel.free_cells() + self.capture.cells_waiting(ring);
            sum +=
                self.capture.rings[ring].fill_ring().queued_cells() + self.capture.idle_cells(ring);
        }
        assert_eq!(sum, self.capture.cells());
    }

    /// Checks that all cells return, and that the counts balance.
    fn finish(mut self) {
        let rings = 0..self.settings.rings;
        for ring in rings.clone() {
            self.capture.transmitter(ring).set_link(LinkState::Up);
            self.capture.transmitter(ring).set_late(false);
        }

        self.kept.clear();
        self.held.clear();
        self.port.flush();
        self.check_sent();

        let Self { capture, port, settings, .. } = self;
        drop(port);

        let exchange = capture.exchange.as_ref().unwrap();
        (0..3).for_each(|_| exchange.tend());

        let mut sent = self.sent;

        for ring in rings {
            sent += capture.transmitter(ring).take_sent().len() as u64;
            let home = capture.kernel(ring).free_cells() + capture.idle_cells(ring);
            let waiting = capture.cells_waiting(ring);
            assert_eq!(home + waiting, settings.geometry.cells() as usize, "cells of ring {ring}");
            assert_eq!(capture.transmitter(ring).cells(), 0);
        }

        assert_eq!(capture.new_cells(), settings.geometry.chunk_cells as usize);
        capture.close();

        let account = capture.ledger(Duration::ZERO).ports[0].account;
        assert_eq!((account.taken, account.waiting), (self.taken, 0), "{account:?}");

        // Packets whose sending was not published before the interface was removed count as
        // dropped.
        let shown = account.sent == sent || self.shows_late && self.gone && account.sent < sent;
        assert!(shown, "{sent} were sent: {account:?}");
        assert_eq!(account.taken, account.sent + account.dropped.total(), "{account:?}");
        assert!(
            account.dropped.refused <= self.refused && account.dropped.other == 0,
            "{account:?}"
        );
    }
}

#[test]
fn cells_are_conserved_through_the_tx_and_completion_rings_in_random_schedules() {
    for_each_seed(RUNS, |random| Schedule::new(random).run());
}

fn one_ring() -> (SimCapture, SimWorker, Port) {
    let geometry = Geometry { chunk_cells: 4, chunks: 2, cell_bytes: 64 };
    let capture =
        SimCapture::new(&SimSettings { geometry, forwards: true, ..SimSettings::default() });
    let worker = capture.worker(0);
    let port = capture.port().unwrap();
    (capture, worker, port)
}

fn receive(capture: &SimCapture, packets: u64) {
    for number in 0..packets {
        let mut packet = number.to_ne_bytes().to_vec();
        packet.resize(20, 0);
        assert_eq!(capture.kernel(0).receive(&packet, Timestamp::default()), Fate::Received);
    }
}

fn pass_on(worker: &mut SimWorker, port: &mut Port) {
    while let Answer::Chunk { mut chunk, .. } = worker.ask(Duration::ZERO).unwrap() {
        port.send_all(chunk.drain());
        port.flush();
    }
}

/// The peer accepts no packets for a while: packets without room are dropped and counted, and the
/// rest is sent afterwards.
#[test]
fn a_stall_in_one_direction_drops_only_excess_packets() {
    let (capture, mut worker, mut port) = one_ring();
    capture.transmitter(0).set_link(LinkState::Stalled);

    for _ in 0..5 {
        receive(&capture, 4);
        pass_on(&mut worker, &mut port);
        if port.account().waiting == 8 {
            break;
        }
    }

    assert_eq!(capture.kernel(0).free_cells(), 0);

    for _ in 0..4 {
        let mut packet = port.build(20).unwrap();
        packet.data_mut().fill(1);
        port.send(packet);
    }

    port.flush();
    let account = port.account();
    assert_eq!((account.taken, account.sent, account.waiting), (12, 0, 8), "{account:?}");
    assert_eq!((account.dropped.ring_full, account.dropped.total()), (4, 4), "{account:?}");
    capture.transmitter(0).set_link(LinkState::Up);

    // A request for a chunk sends the rest.
    assert!(matches!(worker.ask(Duration::ZERO), Ok(Answer::Nothing)));
    assert!(matches!(worker.ask(Duration::ZERO), Ok(Answer::Nothing)));

    let account = port.account();
    assert_eq!((account.sent, account.waiting), (8, 0), "{account:?}");
    assert_eq!((capture.kernel(0).free_cells(), capture.new_cells()), (8, 4));
}

/// Packets for which the device had no room are sent by the next flush that finds room, even if the
/// capture is closed.
#[test]
fn a_flush_sends_packets_that_an_earlier_flush_could_not() {
    let (capture, _, mut port) = one_ring();
    capture.transmitter(0).set_link(LinkState::Stalled);
    let packet = port.build(20).unwrap();
    port.send(packet);
    port.flush();
    assert_eq!(port.account().waiting, 1);
    capture.transmitter(0).set_link(LinkState::Up);
    port.flush();
    let account = port.account();
    assert_eq!((account.sent, account.waiting), (1, 0), "{account:?}");
}

/// With chunks of one cell, the list in which a kept packet returns is as large as a chunk's.
#[test]
fn packets_that_are_kept_leave_no_lists_behind() {
    let geometry = Geometry { chunk_cells: 1, chunks: 4, cell_bytes: 64 };
    let capture =
        SimCapture::new(&SimSettings { geometry, forwards: true, ..SimSettings::default() });
    let mut worker = capture.worker(0);

    for _ in 0..100 {
        receive(&capture, 1);
        let Answer::Chunk { mut chunk, .. } = worker.ask(Duration::ZERO).unwrap() else {
            panic!("it came")
        };
        let kept: Vec<_> = chunk.drain().map(OutPacket::detach).collect();
        drop((chunk, kept));
    }

    assert_eq!(capture.kernel(0).free_cells(), 4);
    let lists = capture.rings[0].fill_ring().spare_lists();
    assert!(lists <= 2 * geometry.chunks as usize, "{lists} lists");
}

/// The test's own accounting must be able to detect an error.
#[test]
#[should_panic(expected = "comes back twice")]
#[cfg_attr(not(debug_assertions), ignore = "only debug builds know where cells are")]
fn an_engine_that_returns_a_cell_twice_is_detected() {
    let (capture, mut worker, mut port) = one_ring();
    receive(&capture, 1);
    pass_on(&mut worker, &mut port);
    let owners = capture.exchange.as_ref().unwrap().owners();
    owners.give_back(&[Descriptor::default()]);
}

/// The kernel is called for each part of a large batch, so earlier parts leave the ring.
#[test]
fn a_batch_that_is_larger_than_the_ring_is_sent_in_parts() {
    let geometry = Geometry { chunk_cells: BATCH, chunks: 2, cell_bytes: 64 };
    let settings =
        SimSettings { geometry, forwards: true, tx_slots: BATCH / 2, ..SimSettings::default() };
    let capture = SimCapture::new(&settings);
    let mut worker = capture.worker(0);
    let mut port = capture.port().unwrap();

    receive(&capture, BATCH.into());
    pass_on(&mut worker, &mut port);

    let account = port.account();
    assert_eq!(
        (account.dropped.total(), capture.transmitter(0).take_sent().len()),
        (0, BATCH as usize),
        "{account:?}"
    );
}

/// A kernel that publishes its index late, as before Linux 6.17, is called until it has sent the
/// batch.
#[test]
fn a_batch_is_sent_by_one_flush_whenever_the_ring_shows_it() {
    for shows_late in [false, true] {
        let geometry = Geometry { chunk_cells: BATCH, chunks: 2, cell_bytes: 64 };
        let settings =
            SimSettings { geometry, forwards: true, tx_slots: 2 * BATCH, ..SimSettings::default() };
        let capture = SimCapture::new(&settings);
        let mut worker = capture.worker(0);
        let mut port = capture.port().unwrap();

        capture.transmitter(0).set_shows_late(shows_late);
        receive(&capture, BATCH.into());
        pass_on(&mut worker, &mut port);
        assert_eq!(capture.transmitter(0).take_sent().len(), BATCH as usize);

        let account = port.account();
        assert_eq!(
            (account.taken, account.sent, account.waiting),
            (BATCH.into(), BATCH.into(), 0),
            "{account:?}"
        );
    }
}

/// The peer has no room, and then the interface goes down or is removed: the rejected packets are
/// dropped and completed, even if the ring does not show that they were taken.
#[test]
fn a_packet_rejected_just_before_the_removal_counts_once_and_returns_once() {
    let links = [LinkState::Down, LinkState::Gone];
    for (link, shows_late) in links.into_iter().flat_map(|link| [(link, false), (link, true)]) {
        let (capture, mut worker, mut port) = one_ring();
        capture.transmitter(0).set_shows_late(shows_late);
        receive(&capture, 4);
        capture.transmitter(0).refuse(2);
        capture.transmitter(0).set_link_after_refusals(link);
        pass_on(&mut worker, &mut port);

        let account = port.account();
        let left = if link == LinkState::Down { account.waiting } else { account.dropped.down };
        assert_eq!(
            (account.taken, account.sent, account.dropped.refused, left),
            (4, 0, 2, 2),
            "{account:?}"
        );
        capture.close();

        let account = port.account();
        assert_eq!((account.dropped.refused, account.dropped.down), (2, 2), "{account:?}");
        assert_eq!(account.taken, account.sent + account.dropped.total(), "{account:?}");

        let on_ring = if link == LinkState::Down { 2 } else { 0 };
        assert_eq!(capture.kernel(0).free_cells(), 8 - on_ring, "{link:?}");
    }
}

/// The interface is removed with packets on its ring: their cells return.
#[test]
fn cells_on_the_ring_of_a_removed_interface_return() {
    let (capture, mut worker, mut port) = one_ring();
    capture.transmitter(0).set_link(LinkState::Down);
    receive(&capture, 4);
    pass_on(&mut worker, &mut port);
    assert_eq!((port.account().waiting, capture.kernel(0).free_cells()), (4, 4));
    capture.transmitter(0).set_link(LinkState::Gone);

    for _ in 0..3 {
        receive(&capture, 4);
        pass_on(&mut worker, &mut port);
    }

    let account = port.account();
    assert_eq!((account.taken, account.dropped.down, account.waiting), (16, 16, 0), "{account:?}");
    assert_eq!(capture.kernel(0).free_cells(), 8);
}

/// A kernel that completes a cell that it did not get is not trusted any more.
#[test]
fn a_completion_of_a_cell_that_was_not_sent_closes_the_port_and_duplicates_no_cell() {
    let (capture, mut worker, mut port) = one_ring();
    capture.transmitter(0).complete_wrongly(64);
    receive(&capture, 4);
    pass_on(&mut worker, &mut port);

    let account = port.account();
    assert_eq!((account.taken, account.dropped.other), (4, 4), "{account:?}");
    assert_eq!(capture.kernel(0).free_cells(), 8);
    assert_eq!(capture.kernel(0).violations(), []);

    // The same with an address outside the pool.
    let (capture, mut worker, mut port) = one_ring();
    capture.transmitter(0).set_late(true);
    receive(&capture, 2);
    pass_on(&mut worker, &mut port);
    capture.transmitter(0).complete_wrongly(1 << 40);
    assert!(matches!(worker.ask(Duration::ZERO), Ok(Answer::Nothing)));
    assert_eq!(capture.kernel(0).free_cells(), 6, "the two that were sent are not back");
}

/// A kernel that publishes an invalid index gets no more cells, and the cells that it does not get
/// return.
#[test]
fn a_tx_ring_with_an_invalid_index_gets_no_more_cells() {
    let (capture, mut worker, mut port) = one_ring();
    receive(&capture, 2);
    pass_on(&mut worker, &mut port);
    capture.transmitter(0).break_tx_index();
    receive(&capture, 4);
    pass_on(&mut worker, &mut port);
    let account = port.account();
    assert_eq!((account.taken, account.sent, account.dropped.other), (6, 2, 4), "{account:?}");
    assert_eq!(capture.kernel(0).free_cells(), 8);
}
