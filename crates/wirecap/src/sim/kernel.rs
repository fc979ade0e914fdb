//! The kernel's half of one ring, played: it fills cells and publishes them, or fails to.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::kernel_ring::{Consumer, HeapRing, Producer};
use crate::pool::{Descriptor, Pool};
use crate::refill::{Kernel, KernelDrops};
use crate::sim::{HEADROOM_BYTES, SimSettings};
use crate::sync::{Mutex, lock};
use crate::time::Timestamp;

/// What became of a packet that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It was put on the rx ring.
    Received,
    /// It was dropped for want of a free cell.
    NoCell,
    /// It was dropped for want of room on the rx ring.
    RingFull,
}

/// A descriptor that no sane kernel publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The packet is said to be longer than its cell.
    BadLength,
    /// The packet is said to lie outside the pool. The cell that should have held it is lost.
    StrayAddress,
    /// The packet, an empty one, is published twice. The kernel never writes to its cell again.
    RepeatedCell,
}

/// Something on the fill ring that should not be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// The address is not that of a cell.
    NotACell {
        /// The address: bytes from the start of the pool.
        address: u64,
    },
    /// The kernel has this cell already.
    PostedTwice {
        /// The cell's number in the pool.
        cell: usize,
    },
}

/// The kernel behind one ring: the driver's descriptors, and its halves of the fill and rx rings.
#[derive(Debug)]
pub struct SimKernel {
    pool: Arc<Pool>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    fill: Consumer<u64>,
    rx: Producer<Descriptor>,
    /// Free cells that the driver holds ready for packets.
    descriptors: VecDeque<u64>,
    descriptor_count: usize,
    fetched: Vec<u64>,
    places: Vec<Place>,
    sleeps: bool,
    asleep: bool,
    stalled: bool,
    calls: u64,
    published: u64,
    lost_cells: usize,
    drops: KernelDrops,
    violations: Vec<Violation>,
}

/// Where a cell is, as far as a kernel knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Not posted yet, or given to the application.
    Away,
    /// In the driver's hands.
    Here,
    /// Out of use: never to be written to again.
    Lost,
}

impl SimKernel {
    /// A kernel over the cells of `pool`, and the application's halves of its rings.
    pub(super) fn new(
        pool: Arc<Pool>,
        settings: &SimSettings,
    ) -> (Self, Consumer<Descriptor>, Producer<u64>) {
        let slots = pool.geometry().cells().next_power_of_two();
        let (fill_producer, fill) = HeapRing::pair(slots, settings.first_index);
        let (rx, rx_consumer) = HeapRing::pair(settings.rx_slots.unwrap_or(slots), settings.first_index);
        let state = State {
            fill,
            rx,
            descriptors: VecDeque::new(),
            descriptor_count: settings.descriptors.max(1) as usize,
            fetched: Vec::new(),
            places: vec![Place::Away; pool.geometry().cells() as usize],
            sleeps: settings.drivers_sleep,
            asleep: false,
            stalled: false,
            calls: 0,
            published: 0,
            lost_cells: 0,
            drops: KernelDrops::default(),
            violations: Vec::new(),
        };
        (Self { pool, state: Mutex::new(state) }, rx_consumer, fill_producer)
    }

    /// Receives `packet`, which arrives at `time`.
    ///
    /// # Panics
    ///
    /// If the packet does not fit a cell.
    pub fn receive(&self, packet: &[u8], time: Timestamp) -> Fate {
        let room = self.pool.geometry().cell_bytes - HEADROOM_BYTES;
        assert!(packet.len() <= room as usize, "a packet of {} bytes in {room}", packet.len());
        let mut state = lock(&self.state);
        let cell = match state.next_cell(&self.pool) {
            Ok(cell) => cell,
            Err(fate) => return fate,
        };
        state.places[self.pool.index_of(cell)] = Place::Away;
        // SAFETY: the application posted the cell, so it does not touch it until it is published.
        unsafe { self.write(cell, packet, time) };
        state.publish(Descriptor {
            address: cell + u64::from(HEADROOM_BYTES),
            len: packet.len() as u32,
            options: 0,
        });
        Fate::Received
    }

    /// Receives a packet and publishes it wrongly.
    pub fn receive_badly(&self, fault: Fault) -> Fate {
        let mut state = lock(&self.state);
        let cell = match state.next_cell(&self.pool) {
            Ok(cell) => cell,
            Err(fate) => return fate,
        };
        let geometry = self.pool.geometry();
        let good = Descriptor { address: cell + u64::from(HEADROOM_BYTES), len: 0, options: 0 };
        let place = match fault {
            Fault::BadLength => {
                state.publish(Descriptor { len: geometry.cell_bytes, ..good });
                Place::Away
            }
            Fault::StrayAddress => {
                state.publish(Descriptor { address: good.address + geometry.pool_bytes() as u64, ..good });
                state.lost_cells += 1;
                Place::Lost
            }
            Fault::RepeatedCell => {
                state.publish(good);
                if !state.rx_is_full() {
                    state.publish(good);
                }
                Place::Lost
            }
        };
        state.places[self.pool.index_of(cell)] = place;
        Fate::Received
    }

    /// Lets the driver take no more free cells, or again.
    pub fn set_stalled(&self, stalled: bool) {
        lock(&self.state).stalled = stalled;
    }

    /// Publishes an index of the rx ring that cannot be; the next packet received mends it.
    pub fn break_rx_index(&self) {
        lock(&self.state).rx.break_index();
    }

    /// Publishes an index of the fill ring that cannot be; the next look at the ring mends it.
    pub fn break_fill_index(&self) {
        lock(&self.state).fill.break_index();
    }

    /// Makes the driver take free cells, as it does by itself when packets arrive.
    pub fn look(&self) {
        lock(&self.state).refill(&self.pool);
    }

    /// How many free cells the kernel has: on the fill ring and in the driver.
    pub fn free_cells(&self) -> usize {
        let state = &mut *lock(&self.state);
        state.descriptors.len() + state.fill.available().map_or(0, |posted| posted as usize)
    }

    /// How many descriptors were published on the rx ring.
    pub fn published(&self) -> u64 {
        lock(&self.state).published
    }

    /// How many cells faults have taken out of use.
    pub fn lost_cells(&self) -> usize {
        lock(&self.state).lost_cells
    }

    /// How often a sleeping driver was called.
    pub fn calls(&self) -> u64 {
        lock(&self.state).calls
    }

    /// What was wrong on the fill ring until now.
    pub fn violations(&self) -> Vec<Violation> {
        lock(&self.state).violations.clone()
    }

    /// # Safety
    ///
    /// `cell` must be the address of a cell that nobody else uses, and `packet` fit behind the headroom.
    unsafe fn write(&self, cell: u64, packet: &[u8], time: Timestamp) {
        // SAFETY: the caller's promise: all of it lies in that one cell.
        unsafe {
            let start = self.pool.memory().base().add(cell as usize);
            start.cast::<u64>().write_unaligned(time.unix_nanos());
            let data = start.add(HEADROOM_BYTES as usize);
            packet.as_ptr().copy_to_nonoverlapping(data.as_ptr(), packet.len());
        }
    }
}

impl State {
    /// A free cell and room on the rx ring, or which of them was missing; that is then counted.
    fn next_cell(&mut self, pool: &Pool) -> Result<u64, Fate> {
        if self.descriptors.is_empty() {
            self.refill(pool);
        }
        // In the kernel's order, too: without a cell it does not look at the rx ring.
        if self.descriptors.is_empty() {
            self.drops.no_cell += 1;
            return Err(Fate::NoCell);
        }
        if self.rx_is_full() {
            self.drops.ring_full += 1;
            return Err(Fate::RingFull);
        }
        Ok(self.descriptors.pop_front().expect("there is one"))
    }

    fn rx_is_full(&mut self) -> bool {
        self.rx.free().expect("the application's half of the rx ring is sound") == 0
    }

    fn publish(&mut self, descriptor: Descriptor) {
        let pushed = self.rx.push_slice(&[descriptor], |descriptor| *descriptor);
        assert_eq!(pushed, Ok(1), "there was room on the rx ring");
        self.rx.submit();
        self.published += 1;
    }

    /// Takes free cells from the fill ring; falls asleep if there are none and the driver is of that kind.
    fn refill(&mut self, pool: &Pool) {
        if self.stalled || self.asleep {
            return;
        }
        self.fetch(pool);
        if self.sleeps && self.descriptors.is_empty() {
            self.fill.set_needs_wakeup(true);
            // What was posted before the flag could be seen came without a call.
            self.fetch(pool);
            self.asleep = self.descriptors.is_empty();
            if !self.asleep {
                self.fill.set_needs_wakeup(false);
            }
        }
    }

    fn fetch(&mut self, pool: &Pool) {
        let wanted = self.descriptor_count.saturating_sub(self.descriptors.len());
        self.fetched.clear();
        self.fill
            .take_into(&mut self.fetched, wanted)
            .expect("the application's half of the fill ring is sound");
        self.fill.release();
        for &address in &self.fetched {
            if address & pool.cell_mask() != address || !pool.contains(address) {
                self.violations.push(Violation::NotACell { address });
                continue;
            }
            let cell = pool.index_of(address);
            match self.places[cell] {
                Place::Away => {
                    self.places[cell] = Place::Here;
                    self.descriptors.push_back(address);
                }
                Place::Here => self.violations.push(Violation::PostedTwice { cell }),
                Place::Lost => self.lost_cells += 1,
            }
        }
    }

    fn wake(&mut self, pool: &Pool) {
        self.calls += 1;
        self.asleep = false;
        self.fill.set_needs_wakeup(false);
        self.refill(pool);
    }
}

impl Kernel for SimKernel {
    fn wake(&self) {
        lock(&self.state).wake(&self.pool);
    }

    fn drops(&self) -> io::Result<KernelDrops> {
        Ok(lock(&self.state).drops)
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_gone(&self) -> bool {
        false
    }
}
