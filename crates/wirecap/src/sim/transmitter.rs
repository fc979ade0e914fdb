//! A simulation of the kernel's half of one tx ring and its completion ring: it sends cells and
//! returns them, in time, late, or never.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::kernel_ring::{Consumer, HeapRing, Producer};
use crate::sim::SimSettings;
use crate::sim::kernel::CellStates;
use crate::sync::{Mutex, lock};
use crate::sys::xdp::Descriptor;
use crate::umem::pool::Pool;
use crate::umem::tx::{Kicked, TxKernel};

/// Maximum number of cells that a call sends, as in copy mode.
const CELLS_PER_CALL: usize = 32;

/// The state of a simulated interface that sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// It sends.
    Up,
    /// It accepts no packets at the moment.
    Stalled,
    /// It is down: packets on the tx ring stay there.
    Down,
    /// It was removed.
    Gone,
}

/// A packet that a simulated interface has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentPacket {
    /// The address of each of its cells, in bytes from the start of the pool, and the bytes in it.
    pub cells: Vec<(u64, Vec<u8>)>,
}

/// The kernel behind one tx ring: its halves of the tx ring and of the completion ring.
#[derive(Debug)]
pub struct SimTransmitter {
    pool: Arc<Pool>,
    states: CellStates,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tx: Consumer<Descriptor>,
    /// Number of cells on the tx ring that it has seen and not taken. When there are none, it
    /// publishes its consumer index and looks for more.
    seen: u32,
    /// It does not publish its consumer index at the end of a call.
    shows_late: bool,
    completions: Producer<u64>,
    link: LinkState,
    /// It completes cells only on request.
    late: bool,
    /// Number of packets that it will still reject.
    refuses: usize,
    /// The state of the interface after these rejections.
    link_then: Option<LinkState>,
    /// The cells of an incomplete packet.
    begun: Vec<Descriptor>,
    /// Cells that were sent and are not completed.
    in_device: VecDeque<u64>,
    sent: Vec<SentPacket>,
    /// Cells on the tx ring that the application did not own.
    violations: Vec<u64>,
}

impl SimTransmitter {
    /// A kernel that sends cells of `pool`, and the application's halves of its rings.
    pub(super) fn new(
        pool: Arc<Pool>,
        states: CellStates,
        settings: &SimSettings,
    ) -> (Self, Producer<Descriptor>, Consumer<u64>) {
        let (tx_producer, tx) = HeapRing::pair(settings.tx_slots, settings.first_index);
        let (completions, completion_consumer) =
            HeapRing::pair(settings.tx_slots, settings.first_index);

        // In copy mode the kernel sends only when it is called.
        tx.set_needs_wakeup(true);
        let state = State {
            tx,
            seen: 0,
            shows_late: false,
            completions,
            link: LinkState::Up,
            late: false,
            refuses: 0,
            link_then: None,
            begun: Vec::new(),
            in_device: VecDeque::new(),
            sent: Vec::new(),
            violations: Vec::new(),
        };
        (Self { pool, states, state: Mutex::new(state) }, tx_producer, completion_consumer)
    }

    /// Changes the state of the interface: up, down, stalled or removed. A removed interface does
    /// not return, and has completed its cells.
    pub fn set_link(&self, link: LinkState) {
        let mut state = lock(&self.state);
        if link == LinkState::Gone {
            state.complete(self, usize::MAX);
        }
        if state.link != LinkState::Gone {
            state.link = link;
        }
    }

    /// Selects when the kernel publishes its consumer index: at the end of each call, as since
    /// Linux 6.17, or only when it looks for more cells, as before.
    pub fn set_shows_late(&self, late: bool) {
        lock(&self.state).shows_late = late;
    }

    /// Selects whether cells are completed only [on request](Self::complete) or automatically.
    pub fn set_late(&self, late: bool) {
        let mut state = lock(&self.state);
        state.late = late;
        state.complete(self, if late { 0 } else { usize::MAX });
    }

    /// Selects whether it also sends without being called, when the test calls
    /// [`send`](Self::send), as a running driver in zero-copy mode, or only when it is called.
    pub fn set_by_itself(&self, by_itself: bool) {
        lock(&self.state).tx.set_needs_wakeup(!by_itself);
    }

    /// Sends the packets on the tx ring, as long as the completion ring has room for their cells.
    pub fn send(&self) {
        let left = || lock(&self.state).tx.available().expect("the application's half is sound");
        let mut before = left();
        while self.kick() == Kicked::More && left() < before {
            before = left();
        }
    }

    /// Rejects the next `packets` packets: they are dropped and completed.
    pub fn refuse(&self, packets: usize) {
        lock(&self.state).refuses += packets;
    }

    /// Sets the state of the interface after the last rejected packet.
    pub fn set_link_after_refusals(&self, link: LinkState) {
        lock(&self.state).link_then = Some(link);
    }

    /// Completes up to `cells` sent cells. `pick` selects the next one, given their number.
    pub fn complete(&self, cells: usize, mut pick: impl FnMut(usize) -> usize) {
        let mut state = lock(&self.state);
        let picks = cells.min(state.in_device.len());
        for place in 0..picks {
            let other = place + pick(state.in_device.len() - place);
            state.in_device.swap(place, other);
        }
        state.complete(self, picks);
    }

    /// Completes a cell that was not sent.
    pub fn complete_wrongly(&self, address: u64) {
        let mut state = lock(&self.state);
        let _ = state.completions.push_slice(&[address], |address| *address);
        state.completions.submit();
    }

    /// Publishes a consumer index beyond the cells on the tx ring, until it sends again.
    pub fn break_tx_index(&self) {
        lock(&self.state).tx.break_index();
    }

    /// Number of the kernel's cells: on the tx ring, being sent, and on the completion ring.
    pub fn cells(&self) -> usize {
        let state = &mut *lock(&self.state);
        let on_ring = state.tx.available().map_or(0, |cells| cells as usize) + state.begun.len();
        let completed = state.completions.filled().map_or(0, |cells| cells as usize);
        on_ring + state.in_device.len() + completed
    }

    /// The packets sent since the last call.
    pub fn take_sent(&self) -> Vec<SentPacket> {
        std::mem::take(&mut lock(&self.state).sent)
    }

    /// The addresses on the tx ring of cells that the application did not own.
    pub fn violations(&self) -> Vec<u64> {
        lock(&self.state).violations.clone()
    }
}

impl State {
    /// Number of cells on the ring that it has seen; if none, it looks for more first.
    fn look(&mut self) -> u32 {
        if self.seen == 0 {
            self.tx.release();
            self.seen = self.tx.available().expect("the application's half is sound");
        }
        self.seen
    }

    /// Takes the next packet off the ring and sends it. Returns whether it was rejected; `None` if
    /// there is no complete packet.
    fn send_next(&mut self, kernel: &SimTransmitter) -> Option<bool> {
        let mut cell = Vec::with_capacity(1);

        loop {
            cell.clear();
            if self.look() == 0 {
                return None;
            }

            self.tx.take_into(&mut cell, 1).expect("the application's half is sound");
            self.seen -= 1;

            let ours = kernel.pool.holds(&cell[0], 0)
                && kernel.states.take(kernel.pool.index_of(cell[0].address));
            if !ours {
                self.violations.push(cell[0].address);
            }

            self.begun.push(cell[0]);
            if !cell[0].is_continued() {
                break;
            }
        }

        let cells = std::mem::take(&mut self.begun);
        self.in_device.extend(cells.iter().map(|cell| cell.address));

        let refused = self.refuses > 0;
        self.refuses -= usize::from(refused);

        if self.refuses == 0 {
            self.link = self.link_then.take().unwrap_or(self.link);
        }

        if !refused {
            let bytes = |cell: &Descriptor| (cell.address, kernel.pool.bytes_of(cell).to_vec());
            self.sent.push(SentPacket { cells: cells.iter().map(bytes).collect() });
        }

        if !self.late {
            self.complete(kernel, usize::MAX);
        }

        Some(refused)
    }

    /// Completes the first `cells` cells in the device.
    fn complete(&mut self, kernel: &SimTransmitter, cells: usize) {
        let free = self.completions.free().expect("the application's half is sound") as usize;
        let done: Vec<u64> =
            self.in_device.drain(..cells.min(self.in_device.len()).min(free)).collect();
        done.iter().for_each(|address| kernel.states.give(kernel.pool.index_of(*address)));
        let pushed = self.completions.push_slice(&done, |address| *address);
        assert_eq!(pushed, Ok(done.len()), "there was room on the completion ring");
        self.completions.submit();
    }

    /// Whether the completion ring has room for `cells` more cells; otherwise the kernel sends
    /// nothing.
    fn may_send(&mut self, cells: usize) -> bool {
        let free = self.completions.free().expect("the application's half is sound") as usize;
        free >= self.in_device.len() + cells
    }
}

impl TxKernel for SimTransmitter {
    fn kick(&self) -> Kicked {
        let state = &mut *lock(&self.state);
        match state.link {
            LinkState::Up => {}
            LinkState::Stalled => return Kicked::More,
            LinkState::Down => return Kicked::Down,
            LinkState::Gone => {
                // The caller takes the remaining cells back.
                let left = state.tx.available().expect("the application's half is sound");
                state.tx.take_into(&mut Vec::new(), left as usize).expect("so many are there");
                return Kicked::Gone;
            }
        }

        let before = state.tx.available().expect("the application's half is sound") as usize;
        let kicked = loop {
            if state.look() == 0 {
                break Kicked::Done;
            }
            let left = state.tx.available().expect("the application's half is sound") as usize;
            if before - left >= CELLS_PER_CALL || !state.may_send(left) {
                break Kicked::More;
            }
            match state.send_next(self) {
                Some(true) => break Kicked::Refused,
                Some(false) => {}
                None => break Kicked::Done,
            }
        };

        if !state.shows_late {
            state.tx.release();
        }

        kicked
    }

    fn bad_descriptors(&self) -> u64 {
        0
    }
}
