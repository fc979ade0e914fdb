//! A simulation of the kernel's half of one ring, which fills cells and publishes them, with faults
//! on request.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, PoisonError};

use crate::kernel_ring::{Consumer, HeapRing, Producer};
use crate::sim::{HEADROOM_BYTES, SimSettings};
use crate::sync::{Mutex, lock};
use crate::sys::xdp::CONTINUED;
use crate::sys::xdp::Descriptor;
use crate::time::Timestamp;
use crate::umem::fill::{Kernel, KernelDrops};
use crate::umem::pool::Pool;

/// The fate of an arrived packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It was put on the rx ring.
    Received,
    /// It was dropped: no free cell.
    NoCell,
    /// It was dropped: no room on the rx ring.
    RingFull,
}

/// Invalid data that a faulty kernel publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The packet's length exceeds its cell.
    BadLength,
    /// The packet's address is outside the pool. The cell allocated for it is lost.
    StrayAddress,
    /// An empty packet is published twice. The kernel never writes to its cell again.
    RepeatedCell,
    /// The packet has three cells; the length of the second one exceeds the cell.
    BadFragment,
    /// The packet has three cells; the address of the last one is outside the pool. That cell is
    /// lost.
    StrayFragment,
    /// Two cells of a packet whose last cell is never published: the next packet looks like its
    /// continuation.
    Truncated,
}

impl Fault {
    /// Number of published cells.
    pub fn cells(self) -> usize {
        match self {
            Self::BadLength | Self::StrayAddress => 1,
            Self::RepeatedCell | Self::Truncated => 2,
            Self::BadFragment | Self::StrayFragment => 3,
        }
    }
}

/// An invalid entry on the fill ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// The address is not the address of a cell.
    NotACell {
        /// The address: bytes from the start of the pool.
        address: u64,
    },
    /// The kernel already has this cell.
    PostedTwice {
        /// The cell's number in the pool.
        cell: usize,
    },
    /// This cell is being sent.
    PostedWhileSent {
        /// The cell's number in the pool.
        cell: usize,
    },
}

/// The kernel behind one ring: the driver's descriptors, and its halves of the fill and rx rings.
#[derive(Debug)]
pub struct SimKernel {
    pool: Arc<Pool>,
    states: CellStates,
    state: Mutex<State>,
    is_zero_copy: bool,
}

#[derive(Debug)]
struct State {
    fill: Consumer<u64>,
    rx: Producer<Descriptor>,
    /// Free cells that the driver has taken for packets.
    descriptors: VecDeque<u64>,
    descriptor_count: usize,
    /// The cells of the last packet that are not published yet.
    held_back: Vec<Descriptor>,
    fetched: Vec<u64>,
    sleeps: bool,
    asleep: bool,
    stalled: bool,
    calls: u64,
    published: u64,
    lost_cells: usize,
    drops: KernelDrops,
    violations: Vec<Violation>,
}

/// The place of a cell from the kernel's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CellState {
    /// Not posted yet, or given to the application.
    Away,
    /// Taken by the driver for packets.
    Here,
    /// Taken by a driver that sends it.
    Sending,
    /// Out of use: the kernel never writes to it again.
    Lost,
}

/// The places of a pool's cells from the point of view of all its rings' kernels.
#[derive(Debug, Clone)]
pub(super) struct CellStates(Arc<std::sync::Mutex<Vec<CellState>>>);

impl CellStates {
    pub(super) fn new(pool: &Pool) -> Self {
        let away = vec![CellState::Away; pool.geometry().cells() as usize];
        Self(Arc::new(std::sync::Mutex::new(away)))
    }

    /// Marks a cell as being sent. Returns whether the application owned it.
    pub(super) fn take(&self, cell: usize) -> bool {
        self.put(cell, CellState::Sending) == CellState::Away
    }

    /// Marks a cell as sent.
    pub(super) fn give(&self, cell: usize) {
        self.put(cell, CellState::Away);
    }

    /// Moves a cell to `place` and returns its previous place.
    fn put(&self, cell: usize, place: CellState) -> CellState {
        // Not loom's mutex: each kernel calls this under its own lock, and nothing else happens
        // inside.
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut states[cell], place)
    }
}

impl SimKernel {
    /// A kernel over the cells of `pool`, and the application's halves of its rings.
    pub(super) fn new(
        pool: Arc<Pool>,
        states: CellStates,
        settings: &SimSettings,
    ) -> (Self, Consumer<Descriptor>, Producer<u64>) {
        let slots = pool.geometry().cells().next_power_of_two();
        let (fill_producer, fill) = HeapRing::pair(slots, settings.first_index);
        let (rx, rx_consumer) =
            HeapRing::pair(settings.rx_slots.unwrap_or(slots), settings.first_index);

        let state = State {
            fill,
            rx,
            descriptors: VecDeque::new(),
            descriptor_count: settings.descriptors.max(1) as usize,
            held_back: Vec::new(),
            fetched: Vec::new(),
            sleeps: settings.drivers_sleep,
            asleep: false,
            stalled: false,
            calls: 0,
            published: 0,
            lost_cells: 0,
            drops: KernelDrops::default(),
            violations: Vec::new(),
        };
        let kernel =
            Self { pool, states, state: Mutex::new(state), is_zero_copy: settings.zero_copy };
        (kernel, rx_consumer, fill_producer)
    }

    /// Receives `packet`, which arrives at `time`, into the number of cells that it needs.
    pub fn receive(&self, packet: &[u8], time: Timestamp) -> Fate {
        self.receive_in_parts(packet, time, usize::MAX)
    }

    /// As [`receive`](Self::receive), but publishes at most `cells_now` cells of the packet now.
    /// [`look`](Self::look), or the next packet, publishes the others.
    pub fn receive_in_parts(&self, packet: &[u8], time: Timestamp, cells_now: usize) -> Fate {
        let mut state = lock(&self.state);
        if packet.len() <= self.room() && cells_now > 0 {
            return self.receive_whole(&mut state, packet, time);
        }

        let mut pieces: Vec<&[u8]> = packet.chunks(self.room()).collect();
        if pieces.is_empty() {
            pieces.push(packet);
        }

        let cells = match state.next_cells(self, pieces.len()) {
            Ok(cells) => cells,
            Err(fate) => return fate,
        };
        for (&cell, piece) in cells.iter().zip(&pieces) {
            self.states.put(self.pool.index_of(cell), CellState::Away);
            // SAFETY: the application posted the cell, so it does not touch it until it is
            // published.
            unsafe { self.write(cell, piece, time) };
        }

        let descriptors = chain(&cells, |index| pieces[index].len() as u32);
        let (now, later) = descriptors.split_at(cells_now.min(descriptors.len()));
        state.publish(now);
        state.held_back = later.to_vec();

        Fate::Received
    }

    /// Receives a packet that fits one cell, without allocating lists of cells: nearly all packets
    /// do.
    fn receive_whole(&self, state: &mut State, packet: &[u8], time: Timestamp) -> Fate {
        if let Err(fate) = state.provide(self, 1) {
            return fate;
        }
        let cell = state.descriptors.pop_front().expect("a cell was provided");
        self.states.put(self.pool.index_of(cell), CellState::Away);
        // SAFETY: the application posted the cell, so it does not touch it until it is published.
        unsafe { self.write(cell, packet, time) };
        let address = cell + u64::from(HEADROOM_BYTES);
        state.publish(&[Descriptor { address, len: packet.len() as u32, options: 0 }]);
        Fate::Received
    }

    /// Number of bytes of a packet that fit a cell.
    fn room(&self) -> usize {
        (self.pool.geometry().cell_bytes - HEADROOM_BYTES) as usize
    }

    /// Receives a packet and publishes it with this fault.
    pub fn receive_badly(&self, fault: Fault) -> Fate {
        let mut state = lock(&self.state);
        let cell_count = if fault == Fault::RepeatedCell { 1 } else { fault.cells() };
        let cells = match state.next_cells(self, cell_count) {
            Ok(cells) => cells,
            Err(fate) => return fate,
        };

        let geometry = self.pool.geometry();
        let mut descriptors = chain(&cells, |_| 0);
        let mut lost = None;

        match fault {
            Fault::BadLength => descriptors[0].len = geometry.cell_bytes,
            Fault::BadFragment => descriptors[1].len = geometry.cell_bytes,
            Fault::StrayAddress | Fault::StrayFragment => {
                descriptors[cell_count - 1].address += geometry.pool_bytes() as u64;
                lost = cells.last();
                state.lost_cells += 1;
            }
            Fault::Truncated => descriptors[1].options = CONTINUED,
            Fault::RepeatedCell => {
                lost = cells.last();
                if state.rx_free() > 1 {
                    descriptors.push(descriptors[0]);
                }
            }
        }

        for cell in &cells {
            let place = if lost == Some(cell) { CellState::Lost } else { CellState::Away };
            self.states.put(self.pool.index_of(*cell), place);
        }

        state.publish(&descriptors);
        Fate::Received
    }

    /// Stops the driver from taking free cells, or lets it continue.
    pub fn set_stalled(&self, stalled: bool) {
        lock(&self.state).stalled = stalled;
    }

    /// Publishes an invalid index of the rx ring; the next received packet restores it.
    pub fn break_rx_index(&self) {
        let mut state = lock(&self.state);
        state.publish_rest();
        state.rx.break_index();
    }

    /// Publishes an invalid index of the fill ring; the next access to the ring restores it.
    pub fn break_fill_index(&self) {
        lock(&self.state).fill.break_index();
    }

    /// Makes the driver take free cells, as it does by itself when packets arrive, and publish the
    /// cells that it has held back.
    pub fn look(&self) {
        let mut state = lock(&self.state);
        state.publish_rest();
        let wanted = state.descriptor_count;
        state.fill_ring(self, wanted);
    }

    /// Removes the interface: unpublished cells are never published, and the drop counts of the
    /// next interface start at 0.
    pub(super) fn forget_filled(&self) {
        let mut state = lock(&self.state);
        state.held_back.clear();
        state.drops = KernelDrops::default();
    }

    /// Removes the interface: the driver has no free cells, and no cell is posted.
    pub(super) fn forget_posted(&self) {
        let state = &mut *lock(&self.state);
        for cell in state.descriptors.drain(..) {
            self.states.put(self.pool.index_of(cell), CellState::Away);
        }
        state.fetched.clear();
        // The invalid indices belonged to the removed ring.
        let _ = state.fill.take_into(&mut state.fetched, usize::MAX);
        state.fetched.clear();
        state.fill.release();
    }

    /// Number of the kernel's free cells: on the fill ring and in the driver.
    pub fn free_cells(&self) -> usize {
        let state = &mut *lock(&self.state);
        state.descriptors.len() + state.fill.available().map_or(0, |posted| posted as usize)
    }

    /// Number of filled cells that the kernel has not published yet.
    pub fn held_back(&self) -> usize {
        lock(&self.state).held_back.len()
    }

    /// Number of descriptors published on the rx ring.
    pub fn published(&self) -> u64 {
        lock(&self.state).published
    }

    /// Number of cells that faults have taken out of use.
    pub fn lost_cells(&self) -> usize {
        lock(&self.state).lost_cells
    }

    /// Number of times that a sleeping driver was woken.
    pub fn calls(&self) -> u64 {
        lock(&self.state).calls
    }

    /// The invalid entries found on the fill ring so far.
    pub fn violations(&self) -> Vec<Violation> {
        lock(&self.state).violations.clone()
    }

    /// # Safety
    /// `cell` must be the address of a cell without another user, and `packet` must fit after the
    /// headroom.
    unsafe fn write(&self, cell: u64, packet: &[u8], time: Timestamp) {
        // SAFETY: the caller guarantees that all bytes are in that one cell.
        unsafe {
            let start = self.pool.memory().base().add(cell as usize);
            start.cast::<u64>().write_unaligned(time.unix_nanos());
            let data = start.add(HEADROOM_BYTES as usize);
            packet.as_ptr().copy_to_nonoverlapping(data.as_ptr(), packet.len());
        }
    }
}

impl State {
    /// Takes free cells for a packet of `count` cells; see [`provide`](Self::provide).
    fn next_cells(&mut self, kernel: &SimKernel, count: usize) -> Result<Vec<u64>, Fate> {
        self.provide(kernel, count)?;
        Ok(self.descriptors.drain(..count).collect())
    }

    /// Ensures that there are free cells and room on the rx ring for a packet of `count` cells.
    /// Otherwise counts and returns which of them was missing.
    fn provide(&mut self, kernel: &SimKernel, count: usize) -> Result<(), Fate> {
        self.publish_rest();
        if self.descriptors.len() < count {
            self.fill_ring(kernel, count.max(self.descriptor_count));
        }

        // In the kernel's order: without cells it does not check the rx ring.
        if self.descriptors.len() < count {
            self.drops.no_cell += 1;
            return Err(Fate::NoCell);
        }

        if (self.rx_free() as usize) < count {
            self.drops.ring_full += 1;
            return Err(Fate::RingFull);
        }

        Ok(())
    }

    fn rx_free(&mut self) -> u32 {
        self.rx.free().expect("the application's half of the rx ring is valid")
    }

    fn publish(&mut self, descriptors: &[Descriptor]) {
        let pushed = self.rx.push_slice(descriptors, |descriptor| *descriptor);
        assert_eq!(pushed, Ok(descriptors.len()), "there was room on the rx ring");
        self.rx.submit();
        self.published += descriptors.len() as u64;
    }

    fn publish_rest(&mut self) {
        let rest = std::mem::take(&mut self.held_back);
        if !rest.is_empty() {
            self.publish(&rest);
        }
    }

    /// Takes free cells from the fill ring until there are `wanted`. If there are none, a driver
    /// that can sleep sets its flag.
    fn fill_ring(&mut self, kernel: &SimKernel, wanted: usize) {
        if self.stalled || self.asleep {
            return;
        }

        self.fetch(kernel, wanted);

        if self.sleeps && self.descriptors.is_empty() {
            self.fill.set_needs_wakeup(true);
            // Cells posted before the flag was visible arrive without a wake-up call.
            self.fetch(kernel, wanted);
            self.asleep = self.descriptors.is_empty();
            if !self.asleep {
                self.fill.set_needs_wakeup(false);
            }
        }
    }

    fn fetch(&mut self, kernel: &SimKernel, wanted: usize) {
        let SimKernel { pool, states, .. } = kernel;
        let wanted = wanted.saturating_sub(self.descriptors.len());
        self.fetched.clear();
        self.fill
            .take_into(&mut self.fetched, wanted)
            .expect("the application's half of the fill ring is valid");
        self.fill.release();

        for &address in &self.fetched {
            if address & pool.cell_mask() != address || !pool.contains(address) {
                self.violations.push(Violation::NotACell { address });
                continue;
            }

            let cell = pool.index_of(address);
            match states.put(cell, CellState::Here) {
                CellState::Away => self.descriptors.push_back(address),
                CellState::Here => self.violations.push(Violation::PostedTwice { cell }),
                CellState::Sending => self.violations.push(Violation::PostedWhileSent { cell }),
                CellState::Lost => {
                    states.put(cell, CellState::Lost);
                    self.lost_cells += 1;
                }
            }
        }
    }

    fn wake(&mut self, kernel: &SimKernel) {
        self.calls += 1;
        self.asleep = false;
        self.fill.set_needs_wakeup(false);
        self.fill_ring(kernel, self.descriptor_count);
    }
}

/// The descriptors of a packet in `cells`; `len` returns the number of bytes in each cell.
fn chain(cells: &[u64], len: impl Fn(usize) -> u32) -> Vec<Descriptor> {
    let descriptor = |(index, cell): (usize, &u64)| Descriptor {
        address: cell + u64::from(HEADROOM_BYTES),
        len: len(index),
        options: if index + 1 < cells.len() { CONTINUED } else { 0 },
    };
    cells.iter().enumerate().map(descriptor).collect()
}

impl Kernel for SimKernel {
    fn wake(&self) {
        lock(&self.state).wake(self);
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

    fn is_zero_copy(&self) -> bool {
        self.is_zero_copy
    }
}
