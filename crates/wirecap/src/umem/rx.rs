//! The rx ring of one AF_XDP socket: filled cells are captured from it as chunks, and return
//! through the fill ring. The kernel's side is a socket or the simulated kernel.

#![allow(unsafe_code)]

mod audit;
mod in_place;
mod sift;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock, atomic};

use crate::error::CaptureError;
use crate::kernel_ring::{BrokenRing, Consumer, Gauge};
use crate::ledger::{Account, Drops, HandedOut, Tally};
use crate::sieve::{Check, Sieve, UserFilter};
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering, lock, try_lock};
use crate::sys::xdp::Descriptor;
use crate::umem::chunk::records::Stamps;
use crate::umem::chunk::{CellOwner, Chunk, RingIdentity};
use crate::umem::fill::{FillRing, Kernel, KernelDrops};
use crate::umem::fragments::{self, refuse, unfinished};
use crate::umem::pool::{Cells, Pool};
use crate::umem::recycle::CellList;
use crate::umem::ring::{Abilities, Counters, Help, Posting, Ring, RingSize};

/// Source of timestamps: where the program writes them, and how to read them.
pub(crate) trait StampSource: Send + Sync + fmt::Debug {
    /// How to read the timestamps of packets captured now.
    fn stamps(&self) -> Stamps;
}

/// A receive ring whose cells are in a UMEM.
#[derive(Debug)]
pub(crate) struct RxRing {
    identity: Arc<RingIdentity>,
    /// R x M.
    capacity: u32,
    fill_ring: Arc<FillRing>,
    stamps: Arc<dyn StampSource>,
    filled: Gauge<Descriptor>,
    /// Filled cells of a packet at the head of the rx ring that was incomplete at the last look.
    unfinished: AtomicU32,
    /// Filled cells left from the previous ring, which this one replaced.
    kept: AtomicU32,
    published: Published,
    rx: Mutex<RxSide>,
}

/// Copies of the rx side's counters, which a signal handler may read while the interrupted thread
/// holds the lock of the rx ring.
#[derive(Debug)]
struct Published {
    delivered: atomic::AtomicU64,
    /// Including drops of the previous rings, which this one replaced.
    other: atomic::AtomicU64,
    /// None once the ring is closed; only closing writes it.
    kernel: RwLock<Option<Arc<dyn Kernel>>>,
}

impl Published {
    fn publish(&self, side: &RxSide) {
        self.delivered.store(side.handed_out.packets, Ordering::Relaxed);
        let before = side.drops.no_cell + side.drops.ring_full;
        self.other.store(side.other + before, Ordering::Relaxed);
    }
}

/// The data protected by the lock of the rx ring.
#[derive(Debug)]
struct RxSide {
    /// None once the ring is closed.
    open: Option<OpenRx>,
    handed_out: HandedOut,
    /// Complete packets left on the previous ring: they are delivered first.
    kept: VecDeque<Descriptor>,
    /// Total number of cells taken from the ring.
    cells_taken: u64,
    /// The packet at the head of the rx ring has more cells than a chunk; its cells so far were
    /// posted again.
    overlong: bool,
    /// Invalid packets, packets that do not fit a chunk, and packets left at the close.
    other: u64,
    /// Packets whose own header states a greater length than the driver.
    cut: u64,
    /// Packets that the kernel had dropped until the close, and on previous rings.
    drops: KernelDrops,
    /// Packets that the kernel had rejected until the close.
    filtered: u64,
    sieve: Sieve,
}

/// Maximum number of filtering rounds without an accepted packet before the caller gets no chunk.
const VAIN_ROUNDS_MAX: u32 = 64;

#[derive(Debug)]
struct OpenRx {
    ring: Consumer<Descriptor>,
    kernel: Arc<dyn Kernel>,
    is_zero_copy: bool,
}

impl OpenRx {
    fn new(ring: Consumer<Descriptor>, kernel: Arc<dyn Kernel>) -> Self {
        let is_zero_copy = kernel.is_zero_copy();
        Self { ring, kernel, is_zero_copy }
    }
}

/// The properties of a chunk's cells.
#[derive(Debug)]
struct Checked {
    bytes: u64,
    /// Some packets may have several cells.
    fragmented: bool,
}

// SAFETY: the pool keeps its memory mapped while the `FillRing` lives. `RxRing::capture_from` is
// the only one to make chunks with this owner: it checks every descriptor, and the cells have no
// other user from the moment the kernel put them on the rx ring until `recycle` posts them.
unsafe impl CellOwner for FillRing {
    fn base(&self) -> NonNull<u8> {
        self.pool().memory().base()
    }

    fn recycle(&self, list: Box<CellList>) {
        FillRing::recycle(self, list);
    }

    fn cell_bytes(&self) -> Option<u32> {
        Some(self.pool().geometry().cell_bytes)
    }
}

impl RxRing {
    /// A ring over the application's half of a new rx ring. Its cells come from `fill_ring`, whose
    /// pool may be shared with other rings. It holds `capacity` packets.
    pub(crate) fn new(
        identity: RingIdentity,
        capacity: u32,
        fill_ring: Arc<FillRing>,
        rx: Consumer<Descriptor>,
        kernel: Arc<dyn Kernel>,
        stamps: Arc<dyn StampSource>,
    ) -> Self {
        let filled = rx.gauge();
        fill_ring.serve(filled.clone());

        let published = Published {
            delivered: atomic::AtomicU64::new(0),
            other: atomic::AtomicU64::new(0),
            kernel: RwLock::new(Some(Arc::clone(&kernel))),
        };
        let side = RxSide {
            open: Some(OpenRx::new(rx, kernel)),
            handed_out: HandedOut::default(),
            kept: VecDeque::new(),
            cells_taken: 0,
            overlong: false,
            other: 0,
            cut: 0,
            drops: KernelDrops::default(),
            filtered: 0,
            sieve: Sieve::default(),
        };

        let unfinished = AtomicU32::new(0);
        let kept = AtomicU32::new(0);
        let identity = Arc::new(identity);
        let rx = Mutex::new(side);
        Self { identity, capacity, fill_ring, stamps, filled, unfinished, kept, published, rx }
    }

    /// From now on `filter` checks all captured packets, until [`settle`](Self::settle).
    pub(crate) fn begin_change(&self, filter: UserFilter) {
        lock(&self.rx).sieve.begin_change(filter);
    }

    /// Packets that arrive from now on were filtered by the kernel as far as possible; user space
    /// applies `check` to them.
    pub(crate) fn settle(&self, check: Check) {
        let mut side = lock(&self.rx);
        // A ring with invalid indices has no packets that can be delivered.
        let waiting = side.open.as_mut().map_or(0, |open| open.ring.available().unwrap_or(0));
        let kept = side.kept.len() as u64;
        side.sieve.settle(check, kept + u64::from(waiting));
    }

    /// M: the maximum number of cells of a chunk.
    pub(crate) fn chunk_cells(&self) -> u32 {
        self.pool().geometry().chunk_cells
    }

    fn pool(&self) -> &Pool {
        self.fill_ring.pool()
    }

    /// Number of filled cells on the rx ring, including those of an incomplete packet.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn filled_cells(&self) -> u32 {
        self.filled.filled()
    }

    pub(crate) fn fill_ring(&self) -> &FillRing {
        &self.fill_ring
    }

    /// The next chunk, if there is one. Otherwise `unwanted` states whether there were packets, all
    /// of which were rejected.
    fn capture_from(
        &self,
        mut guard: MutexGuard<'_, RxSide>,
        help: Option<Help>,
        unwanted: &mut bool,
    ) -> Result<Option<Chunk>, CaptureError> {
        *unwanted = false;
        let side = &mut *guard;
        let Some(open) = &mut side.open else { return Ok(None) };
        let waiting = open.ring.available().map_err(|broken| self.broken(&broken))?;
        let waiting = waiting + side.kept.len() as u32;

        // Checked under the lock: the backlog that a buddy saw may have been captured since.
        if waiting <= help.map_or(0, |help| help.limit) {
            drop(guard);
            self.fill_ring.flush_if_free();
            return Ok(None);
        }

        let most = help.map_or(u32::MAX, |help| help.most).min(self.chunk_cells());
        let count = waiting.min(most) as usize;
        let mut list =
            self.fill_ring.empty_list(count).map_err(|broken| self.broken_fill(&broken))?;
        let stamps = self.stamps.stamps();

        if side.kept.is_empty() {
            open.ring.take_into(&mut list.cells, count).map_err(|broken| self.broken(&broken))?;
        }

        let whole = if !side.kept.is_empty() {
            self.take_kept(side, &mut list)
        } else if list.cells.last().is_some_and(Descriptor::is_continued) || side.overlong {
            self.keep_packets_whole(side, &mut list)
        } else {
            open.ring.release();
            self.unfinished.store(0, Ordering::Relaxed);
            Ok(())
        };
        side.cells_taken += list.cells.len() as u64;

        // In any case no invalid entry stays in the list.
        let checked = whole.and(self.check(&mut list, stamps, &mut side.other));
        side.other += self.fill_ring.captured(&mut list);

        let is_zero_copy = side.open.as_ref().is_some_and(|open| open.is_zero_copy);
        if is_zero_copy && checked.is_ok() {
            side.cut += self.cut_packets(&list.cells);
            #[cfg(sabotage)]
            if crate::sabotage::is("cut-uncounted") {
                side.cut = 0;
            }
        }

        let sifting = checked.is_ok() && !side.sieve.is_idle();
        let checked =
            if sifting { self.sift(side, &mut list).map(|()| total(&list)) } else { checked };
        if checked.is_err() || list.cells.is_empty() {
            side.other += packets_in(&list.cells);
            self.published.publish(side);
            drop(guard);
            self.fill_ring.recycle(list);
            *unwanted = sifting;
            return checked.map(|_| None);
        }

        let Checked { bytes, fragmented } = checked?;
        list.wire_bytes = bytes;
        list.left_behind = Some(waiting.saturating_sub(count as u32));

        let packets = if fragmented {
            list.fragmented.find(&list.cells, self.identity.snap_len);
            list.fragmented.packets().len() as u64
        } else {
            list.cells.len() as u64
        };
        let is_abandoned = help.is_some_and(|help| help.abandoned);
        let sequence = side.handed_out.count(packets, bytes, help.is_some(), is_abandoned);

        self.published.publish(side);
        drop(guard);

        let owner: Arc<dyn CellOwner> = self.fill_ring.clone();

        // SAFETY: the kernel delivered these cells, from this pool, and `check` checked each of
        // them.
        let chunk = unsafe {
            Chunk::new(list, owner, Arc::clone(&self.identity), stamps, sequence, help.is_some())
        };
        Ok(Some(chunk))
    }

    /// Releases the cells of `list`, which were just taken from the rx ring, except cells of an
    /// incomplete packet at the end, which the next chunk gets. A packet that has more cells than a
    /// chunk can hold is taken out and counted.
    #[cold]
    fn keep_packets_whole(
        &self,
        side: &mut RxSide,
        list: &mut CellList,
    ) -> Result<(), CaptureError> {
        let open = side.open.as_mut().expect("cells were just taken from it");
        let chunk_cells = self.pool().geometry().chunk_cells as usize;
        let mut unwanted = Vec::new();

        if side.overlong {
            let ended = list.cells.iter().position(|cell| !cell.is_continued());
            unwanted.extend(list.cells.drain(..ended.map_or(list.cells.len(), |end| end + 1)));
            side.overlong = ended.is_none();
        }

        let mut unfinished = unfinished(&list.cells);
        if unfinished == chunk_cells {
            unwanted.append(&mut list.cells);
            unfinished = 0;
            side.overlong = true;
            side.other += 1;
        }

        list.cells.truncate(list.cells.len() - unfinished);
        open.ring.put_back(unfinished as u32);
        open.ring.release();

        // Only a packet at the head of the ring waits for its end; after other packets it waits for
        // its turn.
        let waiting_for_its_end = if list.cells.is_empty() { unfinished } else { 0 };
        self.unfinished.store(waiting_for_its_end as u32, Ordering::Relaxed);
        side.cells_taken += unwanted.len() as u64;

        self.post_again(unwanted)
    }

    /// Removes invalid packets from `list`, counts them in `other`, and determines the properties
    /// of the rest. A cell with a bad length is posted again; an address outside the pool means
    /// that a cell is lost, and breaks the ring.
    fn check(
        &self,
        list: &mut CellList,
        stamps: Stamps,
        other: &mut u64,
    ) -> Result<Checked, CaptureError> {
        let pool = self.pool();
        let room = stamps.record_bytes();
        if let Some(bytes) = pool.bytes_of_plain(&list.cells, room) {
            return Ok(Checked { bytes, fragmented: false });
        }

        let refused = refuse(&mut list.cells, |cell, begins| {
            !pool.holds(cell, if begins { room } else { 0 })
        });
        *other += refused.packets;
        self.post_again([refused.good, refused.bad].concat())?;

        Ok(total(list))
    }

    /// Posts cells of packets that cannot be delivered.
    fn post_again(&self, mut cells: Vec<Descriptor>) -> Result<(), CaptureError> {
        let stray = cells.extract_if(.., |cell| !self.pool().contains(cell.address)).last();

        if !cells.is_empty() {
            let mut list = self
                .fill_ring
                .empty_list(cells.len())
                .map_err(|broken| self.broken_fill(&broken))?;
            // Not as packets: each cell must be checked separately.
            list.cells.extend(cells.into_iter().map(|cell| Descriptor { options: 0, ..cell }));
            self.fill_ring.captured(&mut list);
            self.fill_ring.recycle(list);
        }

        match stray {
            Some(stray) => {
                Err(self
                    .broken(&format_args!("a packet at {:#x}, outside the pool", stray.address)))
            }
            None => Ok(()),
        }
    }

    /// Number of matching packets left on `ring`; a packet that was already counted may end there.
    fn packets_left(&self, ring: &mut Consumer<Descriptor>, side: &mut RxSide) -> u64 {
        let mut cells: Vec<Descriptor> = side.kept.drain(..).collect();
        let kept = cells.len();
        self.kept.store(0, Ordering::Relaxed);
        // A ring with invalid indices has no packets that can be counted.
        let _ = ring.take_into(&mut cells, usize::MAX);
        let ends_there = side.overlong && cells.len() > kept;
        let left = packets_in(&cells) - u64::from(ends_there);
        if side.sieve.is_idle() { left } else { left - self.unwanted_in(&cells, side) }
    }

    /// Takes packets that were left on the previous ring into `list`, which is empty.
    #[cold]
    fn take_kept(&self, side: &mut RxSide, list: &mut CellList) -> Result<(), CaptureError> {
        let chunk_cells = self.pool().geometry().chunk_cells as usize;
        let mut unwanted = Vec::new();
        let next = chunk_cells.min(side.kept.len());
        let whole =
            side.kept.range(..next).rposition(|cell| !cell.is_continued()).map(|last| last + 1);

        match whole {
            Some(whole) => list.cells.extend(side.kept.drain(..whole)),
            None => {
                let end = side.kept.iter().position(|cell| !cell.is_continued());
                unwanted.extend(side.kept.drain(..end.map_or(side.kept.len(), |last| last + 1)));
                side.other += 1;
            }
        }

        self.kept.store(side.kept.len() as u32, Ordering::Relaxed);
        side.cells_taken += unwanted.len() as u64;

        self.post_again(unwanted)
    }

    /// Continues with `kernel`, whose rx ring `remake` maps in place of the current one, which gets
    /// no more packets. Packets left on it are delivered first.
    pub(crate) fn move_to(
        &self,
        kernel: Arc<dyn Kernel>,
        remake: impl FnOnce(&mut Consumer<Descriptor>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut guard = lock(&self.rx);
        let side = &mut *guard;
        let Some(open) = &mut side.open else { return Err(io::ErrorKind::NotConnected.into()) };
        let broken = |broken: BrokenRing| io::Error::other(broken.to_string());
        let mut cells = Vec::new();
        open.ring.take_into(&mut cells, usize::MAX).map_err(broken)?;
        open.ring.release();

        let mut unwanted = Vec::new();

        if std::mem::take(&mut side.overlong) {
            let ended = cells.iter().position(|cell| !cell.is_continued());
            unwanted.extend(cells.drain(..ended.map_or(cells.len(), |end| end + 1)));
        }

        // The end of an incomplete packet will never arrive.
        let cut = cells.len() - unfinished(&cells);
        side.other += u64::from(cut < cells.len());
        unwanted.extend(cells.drain(cut..));
        side.kept.extend(cells);
        self.kept.store(side.kept.len() as u32, Ordering::Relaxed);
        self.unfinished.store(0, Ordering::Relaxed);
        side.cells_taken += unwanted.len() as u64;

        let before = open.kernel.drops().unwrap_or_default();
        let remade = remake(&mut open.ring);
        if remade.is_ok() {
            side.drops = side.drops + before;
            let published = Some(Arc::clone(&kernel));
            *self.published.kernel.write().unwrap_or_else(PoisonError::into_inner) = published;
            open.kernel = kernel;
            self.published.publish(side);
        }

        drop(guard);
        self.post_again(unwanted).map_err(|error| io::Error::other(error.to_string()))?;

        remade
    }

    /// Queries the kernel again for its receive mode, which is known when the queue is bound.
    pub(crate) fn learn_rung(&self) {
        if let Some(open) = &mut lock(&self.rx).open {
            open.is_zero_copy = open.kernel.is_zero_copy();
        }
    }

    /// Holds the ring: no packets are captured from it until the value is dropped.
    pub(crate) fn hold(&self) -> Held<'_> {
        Held(lock(&self.rx))
    }

    fn broken_fill(&self, broken: &BrokenRing) -> CaptureError {
        self.broken(&format_args!("fill ring: {broken}"))
    }

    fn broken(&self, detail: &dyn fmt::Display) -> CaptureError {
        CaptureError::BrokenRing { ring: self.identity.name.clone(), detail: detail.to_string() }
    }
}

impl Ring for RxRing {
    fn identity(&self) -> &Arc<RingIdentity> {
        &self.identity
    }

    fn size(&self) -> RingSize {
        RingSize { capacity: self.capacity, usable: self.capacity, chunk_cells: self.chunk_cells() }
    }

    fn cells(&self) -> Cells {
        let mut guard = lock(&self.rx);
        let side = &mut *guard;
        let available = side.open.as_mut().and_then(|open| open.ring.available().ok()).unwrap_or(0);
        let waiting = available + side.kept.len() as u32;
        self.fill_ring.cells(self.capacity, waiting, side.cells_taken)
    }

    fn capture(&self) -> Result<Option<Chunk>, CaptureError> {
        let mut unwanted = false;
        for _ in 1..VAIN_ROUNDS_MAX {
            let captured = self.capture_from(lock(&self.rx), None, &mut unwanted);
            if !unwanted || captured.is_err() {
                return captured;
            }
        }
        self.capture_from(lock(&self.rx), None, &mut unwanted)
    }

    fn offload(&self, help: Help) -> Result<Option<Chunk>, CaptureError> {
        let Some(side) = try_lock(&self.rx) else { return Ok(None) };
        self.capture_from(side, Some(help), &mut false)
    }

    fn watch(&self, watch: &mut dyn FnMut(BorrowedFd<'_>)) {
        if let Some(open) = &lock(&self.rx).open
            && let Some(descriptor) = open.kernel.pollable()
        {
            watch(descriptor);
        }
    }

    fn is_gone(&self) -> bool {
        lock(&self.rx).open.as_ref().is_some_and(|open| open.kernel.is_gone())
    }

    fn close(&self) {
        let mut side = lock(&self.rx);
        let mut closed = side.open.take();
        if let Some(open) = &mut closed {
            side.other += self.packets_left(&mut open.ring, &mut side);
            side.drops = side.drops + open.kernel.drops().unwrap_or_default();
            side.filtered = open.kernel.filtered();
            let dropped = side.other + side.drops.no_cell + side.drops.ring_full;
            self.published.other.store(dropped, Ordering::Relaxed);
            *self.published.kernel.write().unwrap_or_else(PoisonError::into_inner) = None;
        }

        // While the rx ring exists: the last look at the fill ring counts the arrived cells.
        self.fill_ring.close();
        drop(closed);
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities { posting: Some(self), ..Abilities::default() }
    }
}

impl Counters for RxRing {
    fn backlog(&self) -> u32 {
        let filled = self.filled.filled() + self.kept.load(Ordering::Relaxed);
        filled.saturating_sub(self.unfinished.load(Ordering::Relaxed))
    }

    fn arrived(&self) -> u64 {
        // Under the lock, so that no packet is moving between the two. An incomplete packet counts
        // as arrived.
        let side = lock(&self.rx);
        side.handed_out.packets + side.kept.len() as u64 + u64::from(self.filled.filled())
    }

    fn received(&self) -> Option<(u64, u64)> {
        // First: a packet that is taken out meanwhile then counts twice instead of not at all.
        let waiting = lock(&self.rx).kept.len() as u64 + u64::from(self.filled.filled());
        let account = self.account();
        let seen = account.offered + account.filtered.unwrap_or(0);
        Some((seen, seen + waiting))
    }

    fn tally(&self) -> Tally {
        // If the close holds it, the counters are complete, or soon will be.
        let kernel = self.published.kernel.try_read().ok();
        let kernel = kernel.as_ref().and_then(|kernel| kernel.as_ref());
        let drops = kernel.and_then(|kernel| kernel.drops().ok()).unwrap_or_default();
        let delivered = self.published.delivered.load(Ordering::Relaxed);
        Tally {
            delivered,
            arrived: delivered
                + u64::from(self.kept.load(Ordering::Relaxed))
                + u64::from(self.filled.filled()),
            dropped: drops.no_cell + drops.ring_full + self.published.other.load(Ordering::Relaxed),
        }
    }

    fn account(&self) -> Account {
        let side = lock(&self.rx);
        let now = side.open.as_ref().and_then(|open| open.kernel.drops().ok()).unwrap_or_default();
        let drops = side.drops + now;
        let filtered = side.open.as_ref().map_or(side.filtered, |open| open.kernel.filtered());

        let dropped = Drops {
            no_cell: drops.no_cell,
            ring_full: drops.ring_full,
            other: side.other,
            ..Drops::default()
        };
        Account {
            filtered: Some(filtered + side.sieve.filtered()),
            dropped,
            cut: side.cut,
            starved: self.fill_ring.starved(),
            ..side.handed_out.account()
        }
        .balanced()
    }
}

impl Posting for RxRing {
    fn unattended(&self) -> u32 {
        self.fill_ring.posted().min(self.capacity)
    }

    fn tend(&self) {
        self.fill_ring.tend();
    }
}

/// A ring from which nothing is captured while the value exists.
pub(crate) struct Held<'a>(MutexGuard<'a, RxSide>);

impl Held<'_> {
    /// The addresses of cells that wait from the previous ring.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u64> {
        self.0.kept.iter().map(|cell| cell.address)
    }

    /// Total number of cells taken.
    pub(crate) fn taken(&self) -> u64 {
        self.0.cells_taken
    }
}

/// The properties of the packets in `list`.
fn total(list: &CellList) -> Checked {
    Checked {
        bytes: list.cells.iter().map(|cell| u64::from(cell.len)).sum(),
        fragmented: list.cells.iter().any(Descriptor::is_continued),
    }
}

/// Number of packets in `cells`; the last one may be incomplete.
fn packets_in(cells: &[Descriptor]) -> u64 {
    fragments::packets_in(cells) + u64::from(unfinished(cells) > 0)
}
