//! The tx ring of one queue: cells are sent without copying, and return through the queue's
//! completion ring.
//!
//! In copy mode the kernel sends only during a call, a limited number of frames per call, and
//! reports whether the device rejected the last one. The rest stays on the ring for the next call.
//!
//! A call sends up to 64 cells (before Linux 6.17 up to 32). It returns EAGAIN if there are more,
//! and EBUSY if the device rejected a packet, which is dropped and completed. So a completion
//! returns a cell but does not show whether the packet was sent. The number of sent packets is the
//! number that the kernel took from the ring minus the number that the device rejected.

use std::fmt;
use std::sync::Arc;

use crate::kernel_ring::{BrokenRing, Producer};
use crate::ledger::{PortAccount, PortDrops};
use crate::sync::{AtomicBool, Mutex, Ordering, lock, try_lock};
use crate::sys::xdp::Descriptor;
use crate::umem::completion::CompletionRing;
use crate::umem::fragments::packets_in;
use crate::umem::owners::Owners;

/// The number of cells put on the ring at a time, and so the maximum left there when the interface
/// goes down.
pub(crate) const CELLS_PER_KICK: u32 = 64;
/// The minimum number of frames that a call sends, unless the device accepts no more.
const FRAMES_PER_CALL: u32 = 32;
/// Number of calls without visible progress after which the kernel counts as stuck.
const CALLS_IN_VAIN_MAX: u32 = 8;

/// The kernel's answer to a call to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kicked {
    /// It has sent all frames.
    Done,
    /// More frames wait (EAGAIN); possibly none can be sent at the moment.
    More,
    /// The device rejected a packet (EBUSY), which is dropped and completed.
    Refused,
    /// The interface is down (ENETDOWN).
    Down,
    /// The interface was removed (ENXIO): the kernel will never read the ring again.
    Gone,
}

/// The kernel behind a tx ring.
pub(crate) trait TxKernel: Send + Sync + fmt::Debug {
    /// Makes the kernel send some frames of the ring.
    fn kick(&self) -> Kicked;
    /// Number of invalid descriptors that it skipped.
    fn bad_descriptors(&self) -> u64;
}

/// A tx ring, and the cells that return from it to their owners.
#[derive(Debug)]
pub(crate) struct TxRing {
    owners: Arc<Owners>,
    completions: CompletionRing,
    /// Packets are left on the ring.
    lagging: AtomicBool,
    /// The interface was down at the last try.
    down: AtomicBool,
    tx: Mutex<TxSide>,
}

/// The data protected by the lock of the tx ring.
#[derive(Debug)]
struct TxSide {
    /// None once the ring is closed or broken, or its interface was removed.
    open: Option<OpenTx>,
    /// The interface was down at the last try.
    down: bool,
    /// The interface was removed.
    gone: bool,
    taken: u64,
    /// Packets put on the ring, and their bytes.
    placed: u64,
    bytes: u64,
    late: u64,
    dropped: PortDrops,
    /// Rejected packets at the head of the ring that the kernel has not yet shown as taken.
    refused_unseen: u64,
    /// Cells that the kernel will never take off the ring and that must be returned.
    reclaimed: Vec<Descriptor>,
}

#[derive(Debug)]
struct OpenTx {
    ring: Producer<Descriptor>,
    kernel: Arc<dyn TxKernel>,
}

/// Why packets cannot be put on the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Obstacle {
    Full,
    Down,
    Closed,
}

impl TxRing {
    /// A new tx ring over cells of `owners`.
    pub(crate) fn new(
        owners: Arc<Owners>,
        completions: CompletionRing,
        ring: Producer<Descriptor>,
        kernel: Arc<dyn TxKernel>,
    ) -> Self {
        let side = TxSide {
            open: Some(OpenTx { ring, kernel }),
            down: false,
            gone: false,
            taken: 0,
            placed: 0,
            bytes: 0,
            late: 0,
            dropped: PortDrops::default(),
            refused_unseen: 0,
            reclaimed: Vec::new(),
        };
        Self {
            owners,
            completions,
            lagging: AtomicBool::new(false),
            down: AtomicBool::new(false),
            tx: Mutex::new(side),
        }
    }

    /// Hands the `packets` packets in `cells` to the kernel as far as it accepts them, counts the
    /// others as dropped, and returns their cells. `late`: they are out of their ring's order.
    pub(crate) fn submit(&self, cells: &[Descriptor], packets: u64, late: bool) {
        self.collect();
        let placed = self.with(|side| {
            side.taken += packets;
            side.late += if late { packets } else { 0 };
            side.place(self, cells)
        });
        self.owners.give_back(&cells[placed..]);
        // In most cases the device has already sent them, and no other thread may check for a
        // while.
        self.collect();
    }

    /// Takes back the cells that the kernel has completed.
    pub(crate) fn collect(&self) {
        if !self.completions.collect(&self.owners) {
            // The kernel's side is not trusted any more, and no more packets are sent.
            self.completions.close();
            self.with(|side| side.let_go(Obstacle::Closed));
        }
    }

    /// Makes the kernel continue with the frames on the ring.
    pub(crate) fn push_on(&self) {
        // The holder of the lock does it.
        if self.lagging.load(Ordering::Relaxed) && try_lock(&self.tx).is_some() {
            self.with(TxSide::kick);
        }
    }

    /// Whether the ring has packets that the kernel may soon take.
    pub(crate) fn is_lagging(&self) -> bool {
        // An interface may be down for long, so it is not checked every millisecond.
        self.lagging.load(Ordering::Relaxed) && !self.down.load(Ordering::Relaxed)
    }

    /// The account so far.
    pub(crate) fn account(&self) -> PortAccount {
        let mut side = lock(&self.tx);
        let (waiting, waiting_bytes) = amount_of(&side.left());
        let bad = side.bad();
        let mut dropped = side.dropped;
        let sent = side.placed.saturating_sub(waiting + dropped.refused + bad);

        dropped.other += bad;
        PortAccount {
            taken: side.taken,
            sent,
            bytes: side.bytes.saturating_sub(waiting_bytes),
            dropped,
            waiting,
            late: side.late,
            copied: 0,
        }
    }

    /// Counts the remaining frames as dropped and releases the kernel's side.
    pub(crate) fn close(&self) {
        self.collect();
        self.with(|side| {
            side.kick();
            side.let_go(if side.down { Obstacle::Down } else { Obstacle::Closed });
        });
        self.collect();
        self.completions.close();
    }

    /// Runs a function under the lock, and then returns cells that will not be sent.
    fn with<T>(&self, work: impl FnOnce(&mut TxSide) -> T) -> T {
        let mut side = lock(&self.tx);
        let result = work(&mut side);
        let reclaimed = std::mem::take(&mut side.reclaimed);
        let lagging = side.open.as_mut().is_some_and(|open| open.ring.filled() != Ok(0));
        self.lagging.store(lagging, Ordering::Relaxed);
        self.down.store(side.down, Ordering::Relaxed);
        drop(side);
        if !reclaimed.is_empty() {
            self.collect();
            self.completions.give_up(&reclaimed, &self.owners);
        }
        result
    }
}

impl TxSide {
    /// Puts as many packets as possible on the ring and calls the kernel. Returns the number of
    /// their cells. The other packets count as dropped.
    fn place(&mut self, ring: &TxRing, cells: &[Descriptor]) -> usize {
        let mut placed = 0;
        if self.down {
            self.kick();
        }

        let pool = ring.owners.pool();
        pool.fetch(begin_of(cells));

        let mut stalled = false;

        while placed < cells.len() {
            let rest = &cells[placed..];
            let fitting = match self.room() {
                Ok(free) => whole_packets(rest, free.min(CELLS_PER_KICK) as usize),
                Err(obstacle) => {
                    self.refuse(obstacle, packets_in(rest));
                    break;
                }
            };
            if fitting == 0 {
                self.refuse(Obstacle::Full, packets_in(rest));
                break;
            }

            self.submit(ring, &rest[..fitting]);
            placed += fitting;

            // While the kernel copies these.
            pool.fetch(begin_of(&cells[placed..]));
            stalled = stalled || !self.kick();
        }

        placed
    }

    /// Number of cells for which the ring has room.
    fn room(&mut self) -> Result<u32, Obstacle> {
        let Some(open) = &mut self.open else {
            return Err(if self.gone { Obstacle::Down } else { Obstacle::Closed });
        };
        if self.down {
            return Err(Obstacle::Down);
        }

        match open.ring.free() {
            Ok(free) => Ok(free),
            Err(BrokenRing { .. }) => {
                // The kernel never moves its index back; if it did, it gets no more cells.
                self.let_go(Obstacle::Closed);
                Err(Obstacle::Closed)
            }
        }
    }

    fn submit(&mut self, ring: &TxRing, cells: &[Descriptor]) {
        let Some(open) = &mut self.open else { return };
        let pool = ring.owners.pool();
        cells.iter().for_each(|cell| pool.check().send(pool.index_of(cell.address)));
        ring.completions.expect(cells.len());
        // Does not read the kernel's index again: `room` has already found room for these cells.
        let pushed = open.ring.push_slice(cells, |cell| *cell);
        debug_assert_eq!(pushed, Ok(cells.len()), "the ring has room");
        open.ring.submit();
        let (packets, bytes) = amount_of(cells);
        (self.placed, self.bytes) = (self.placed + packets, self.bytes + bytes);
    }

    /// Calls the kernel until the ring is empty or the kernel continues by itself; `false` if it
    /// makes no progress.
    ///
    /// It publishes its consumer index at the end of a call; before Linux 6.17 only when it has
    /// sent all cells that it has seen and looks for more, possibly some calls later.
    fn kick(&mut self) -> bool {
        let mut in_vain = 0;
        loop {
            let Some(open) = &mut self.open else { return false };
            let Ok(left) = open.ring.filled() else {
                self.let_go(Obstacle::Closed);
                return false;
            };
            if !self.down && (left == 0 || !open.ring.needs_wakeup()) {
                return true;
            }

            let kicked = open.kernel.kick();
            let left_now = open.ring.filled().unwrap_or(left);
            self.down = kicked == Kicked::Down;
            in_vain += 1;

            if left_now < left {
                (in_vain, self.refused_unseen) = (0, 0);
            }

            match kicked {
                // Each rejection takes a packet off the ring.
                Kicked::Refused if in_vain > left => return false,
                Kicked::Refused => {
                    self.dropped.refused += 1;
                    self.refused_unseen += u64::from(in_vain > 0);
                }
                Kicked::Done | Kicked::More if left_now == 0 => return true,
                Kicked::Done if in_vain > 0 => return false,
                Kicked::More if in_vain > (left / FRAMES_PER_CALL).min(CALLS_IN_VAIN_MAX) => {
                    return false;
                }
                Kicked::Done | Kicked::More => {}
                Kicked::Down => return false,
                Kicked::Gone => {
                    self.gone = true;
                    self.reclaimed = self.let_go(Obstacle::Down);
                    return false;
                }
            }
        }
    }

    /// Releases the ring. Packets that the kernel has not taken count as dropped; returns their
    /// cells.
    #[cold]
    fn let_go(&mut self, obstacle: Obstacle) -> Vec<Descriptor> {
        let left = self.left();
        let bad = self.bad();
        let (packets, bytes) = amount_of(&left);
        self.placed = self.placed.saturating_sub(packets + bad);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.dropped.other += bad;
        self.refuse(obstacle, packets);
        self.open = None;
        left
    }

    fn refuse(&mut self, obstacle: Obstacle, packets: u64) {
        match obstacle {
            Obstacle::Full => self.dropped.ring_full += packets,
            Obstacle::Down => self.dropped.down += packets,
            Obstacle::Closed => self.dropped.other += packets,
        }
    }

    /// Cells on the ring that the kernel has not taken.
    fn left(&mut self) -> Vec<Descriptor> {
        let mut cells = Vec::new();
        if let Some(open) = &mut self.open {
            // The packets on a ring with invalid indices are unknown.
            let _ = open.ring.not_taken(&mut cells);
        }
        let packets = cells.split_inclusive(|cell| !cell.is_continued());
        let refused = packets.take(self.refused_unseen as usize).map(<[_]>::len).sum();
        cells.split_off(refused)
    }

    /// Packets that the kernel took and found invalid.
    fn bad(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.kernel.bad_descriptors())
    }
}

/// Number of packets in `cells`, and of their bytes.
fn amount_of(cells: &[Descriptor]) -> (u64, u64) {
    (packets_in(cells), cells.iter().map(|cell| u64::from(cell.len)).sum())
}

/// The cells that are put on the ring next.
fn begin_of(cells: &[Descriptor]) -> &[Descriptor] {
    &cells[..cells.len().min(CELLS_PER_KICK as usize)]
}

/// Number of cells of the complete packets at the beginning of `cells` that fit `room` cells.
fn whole_packets(cells: &[Descriptor], room: usize) -> usize {
    let room = room.min(cells.len());
    cells[..room].iter().rposition(|cell| !cell.is_continued()).map_or(0, |last| last + 1)
}
