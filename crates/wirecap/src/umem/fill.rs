//! Recycling: free cells are posted on the fill ring, and the kernel fills them again.
//!
//! A thread that drops a chunk posts its cells at once if it gets the lock of the fill ring, which
//! is nearly always free. The cells are then still in that core's cache. Otherwise the list of
//! cells goes into the recycle queue, and the holder of the lock, or the next capture, posts it.
//! Recycling never waits. If not all cells are posted, the others are kept on a stack beside the
//! fill ring ([`Supply`]).

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::ops::Add;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::kernel_ring::{BrokenRing, Gauge, Producer};
use crate::sync::{Mutex, Ordering, fence, lock, try_lock};
use crate::sys::xdp::Descriptor;
use crate::umem::cell_check::CellCheck;
use crate::umem::fragments::refuse;
use crate::umem::pool::{Cells, Pool};
use crate::umem::recycle::{CellList, RecycleQueue};
use crate::umem::starvation::{Level, Starvation};
use crate::umem::supply::Supply;

/// The kernel behind a pair of rings: a socket, or the simulated one.
pub(crate) trait Kernel: Send + Sync + fmt::Debug {
    /// Wakes a sleeping driver, which then looks at the rings.
    fn wake(&self);
    /// The packets that the kernel dropped since the rings were created.
    fn drops(&self) -> io::Result<KernelDrops>;
    /// Readable while the rx ring has packets.
    fn pollable(&self) -> Option<BorrowedFd<'_>>;
    /// Whether the interface was removed, so that no packets can arrive.
    fn is_gone(&self) -> bool;
    /// Whether the device writes into the cells itself.
    fn is_zero_copy(&self) -> bool {
        false
    }
    /// Number of packets for these rings that a program in the kernel rejected; 0 without a filter.
    fn filtered(&self) -> u64 {
        0
    }
}

/// Packets that reached a socket and were not put on its rx ring, since the socket was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct KernelDrops {
    /// For lack of a free cell (`rx_dropped`; `rx_fill_ring_empty_descs` counts the same packets).
    /// 0 with zero-copy, for which the kernel counts none.
    pub(crate) no_cell: u64,
    /// For lack of room on the rx ring (`rx_ring_full`).
    pub(crate) ring_full: u64,
    /// Zero-copy: times that the driver found no cell on the fill ring.
    pub(crate) starved: u64,
}

impl Add for KernelDrops {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            no_cell: self.no_cell + other.no_cell,
            ring_full: self.ring_full + other.ring_full,
            starved: self.starved + other.starved,
        }
    }
}

/// The fill ring of one queue, and the cells that return to it.
#[derive(Debug)]
pub(crate) struct FillRing {
    pool: Arc<Pool>,
    supply: Supply,
    side: Mutex<FillSide>,
    recycled: RecycleQueue,
}

/// The data protected by the lock of the fill ring.
#[derive(Debug)]
struct FillSide {
    /// None once the capture is closed or the ring broke: cells that return later are not posted.
    port: Option<Port>,
    /// How the ring broke.
    broken: Option<BrokenRing>,
    /// Lists without cells, each with room for a whole chunk.
    #[expect(
        clippy::vec_box,
        reason = "a list keeps its place in memory, which the recycle queue links"
    )]
    spares: Vec<Box<CellList>>,
    /// Lists with room for a whole chunk that are in use.
    lists_out: usize,
    /// The addresses of free cells that are not posted, the latest last. It has room for the whole
    /// pool if not all cells are posted.
    idle: Vec<u64>,
    /// Total number of cells that have returned.
    returned: u64,
    /// Cells whose place is not yet known.
    missing: Option<Missing>,
    starvation: Starvation,
    /// The rx rings on which the filled cells arrive.
    served: Vec<Gauge<Descriptor>>,
}

#[derive(Debug)]
struct Port {
    ring: Producer<u64>,
    kernel: Arc<dyn Kernel>,
}

impl FillRing {
    /// A fill ring that posts as many of `cells`, which belong to `pool`, as `supply` requires.
    pub(crate) fn new(
        pool: Arc<Pool>,
        cells: impl IntoIterator<Item = u64>,
        supply: Supply,
        ring: Producer<u64>,
        kernel: Arc<dyn Kernel>,
    ) -> Result<Self, BrokenRing> {
        let room = if supply.posts_all() { 0 } else { pool.geometry().cells() as usize };
        let port = Some(Port { ring, kernel });
        let spares = Vec::new();
        let idle = Vec::with_capacity(room);
        let starvation = Starvation::default();

        let side = FillSide {
            port,
            broken: None,
            spares,
            lists_out: 0,
            idle,
            returned: 0,
            missing: None,
            starvation,
            served: Vec::new(),
        };
        let side = Mutex::new(side);
        let recycled = RecycleQueue::new();
        let fill_ring = Self { pool, supply, side, recycled };
        let cell = |address| Descriptor { address, ..Descriptor::default() };
        let cells: Vec<Descriptor> = cells.into_iter().map(cell).collect();
        let mut side = lock(&fill_ring.side);
        side.place(&fill_ring, &cells);

        if let Some(broken) = side.broken {
            return Err(broken);
        }

        side.begin_to_starve();
        drop(side);

        Ok(fill_ring)
    }

    /// Sets the number of descriptors of the device's ring, if it is known.
    pub(crate) fn know_descriptors(&self, descriptors: Option<u32>) {
        lock(&self.side).starvation.know_descriptors(descriptors);
    }

    /// Adds `served`, a ring on which its cells arrive.
    pub(crate) fn serve(&self, served: Gauge<Descriptor>) {
        lock(&self.side).served.push(served);
    }

    /// Times that a zero-copy driver found no cell.
    pub(crate) fn starved(&self) -> u64 {
        let mut side = lock(&self.side);
        side.look_for_starvation();
        side.starvation.vain()
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Whether every returned cell is posted.
    pub(crate) fn posts_all(&self) -> bool {
        self.supply.posts_all()
    }

    /// The places of this ring's cells, at most `capacity`. `waiting` cells are on the rx ring, and
    /// `taken` is the total number taken from it.
    pub(crate) fn cells(&self, capacity: u32, waiting: u32, taken: u64) -> Cells {
        let mut side = lock(&self.side);
        let captured = taken.saturating_sub(side.returned).min(capacity.into()) as u32;
        let left = capacity.saturating_sub(waiting).saturating_sub(captured);
        // The kernel has all other cells, of which some may be on no ring.
        let posted = if self.supply.posts_all() { left } else { side.level().left.min(left) };
        drop(side);
        self.flush_if_free();
        Cells { posted, waiting, captured, free: left - posted }
    }

    /// Takes back free cells of this ring that were sent, or could not be sent.
    pub(crate) fn take_back(&self, cells: &[Descriptor]) {
        lock(&self.side).bring_back(self, cells);
        self.flush_if_free();
    }

    /// Number of packets that the kernel can take before the fill ring needs [`tend`](Self::tend).
    pub(crate) fn posted(&self) -> u32 {
        self.supply.posted
    }

    /// Posts as many of the free cells as are required.
    pub(crate) fn tend(&self) {
        if self.supply.posts_all() {
            return;
        }
        let mut side = lock(&self.side);
        side.flush(self);
        side.top_up(self);
        side.give_up_excess(self);
        drop(side);
        self.flush_if_free();
    }

    /// Takes the cells of `list` back. Never fails, blocks or allocates.
    pub(crate) fn recycle(&self, list: Box<CellList>) {
        #[cfg(sabotage)]
        let list = {
            let mut list = list;
            if crate::sabotage::is("a-cell-is-lost") {
                list.cells.pop();
            }
            list
        };

        match try_lock(&self.side) {
            Some(mut side) => side.take_back(self, list),
            None => self.recycled.push(list),
        }

        // Either we held the lock, and others may have queued lists meanwhile; or we queued ours,
        // and the holder may have checked the queue before. Both cases end with a thread that finds
        // the queue empty, or the lock held by a thread that will check the queue afterwards.
        self.flush_if_free();
    }

    /// Posts the cells in the recycle queue, unless another thread does so.
    pub(crate) fn flush_if_free(&self) {
        loop {
            // Between our push and our try at the lock, and between our unlocking and our look at
            // the queue: with a full fence in both places, one of two racing threads sees the
            // other.
            fence(Ordering::SeqCst);
            if self.recycled.is_empty() {
                return;
            }
            let Some(mut side) = try_lock(&self.side) else { return };
            side.flush(self);
        }
    }

    /// An empty list with room for a chunk of `cells` cells, after posting the cells in the recycle
    /// queue.
    ///
    /// At most R lists with room for a whole chunk (M) are kept and reused. If more are needed,
    /// because many partly filled chunks are held, lists are allocated in the exact size, so the
    /// memory for lists stays proportional to the pool.
    ///
    /// # Errors
    ///
    /// If the fill ring broke. The error is returned here, because holders of cells need not know.
    pub(crate) fn empty_list(&self, cells: usize) -> Result<Box<CellList>, BrokenRing> {
        let mut side = lock(&self.side);
        side.flush(self);
        side.top_up(self);

        if let Some(broken) = side.broken {
            return Err(broken);
        }

        let geometry = self.pool.geometry();
        let list = side.spares.pop().unwrap_or_else(|| {
            let whole = side.lists_out < geometry.chunks as usize;
            CellList::with_capacity(if whole { geometry.chunk_cells as usize } else { cells })
        });
        if list.cells.capacity() >= geometry.chunk_cells as usize {
            side.lists_out += 1;
            // Room for the returning list, so that recycling allocates nothing.
            let coming = side.lists_out;
            side.spares.reserve(coming);
        }

        drop(side);
        self.flush_if_free();

        Ok(list)
    }

    /// Records that the kernel delivered these cells, which belong to complete packets. Debug
    /// builds remove packets with cells that the kernel did not have, and return their number.
    pub(crate) fn captured(&self, list: &mut CellList) -> u64 {
        if !CellCheck::ENABLED {
            return 0;
        }
        let pool = &self.pool;
        let refused =
            refuse(&mut list.cells, |cell, _| !pool.check().capture(pool.index_of(cell.address)));
        lock(&self.side).bring_back(self, &refused.good);
        self.flush_if_free();
        refused.packets
    }

    /// Runs `act` while the fill ring's lock is held, as by another thread.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn while_locked(&self, act: impl FnOnce()) {
        let side = lock(&self.side);
        act();
        drop(side);
        self.flush_if_free();
    }

    /// Number of cells in the recycle queue. Exact only while no other thread recycles.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn queued_cells(&self) -> usize {
        let lists: Vec<_> = self.recycled.take_all().collect();
        let cells = lists.iter().map(|list| list.cells.len()).sum();
        lists.into_iter().rev().for_each(|list| self.recycled.push(list));
        cells
    }

    /// Number of lists kept for reuse.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn spare_lists(&self) -> usize {
        lock(&self.side).spares.len()
    }

    /// Number of free cells that are not posted.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn idle_cells(&self) -> usize {
        lock(&self.side).idle.len()
    }

    /// Releases the fill ring: cells that return from now on stay unused.
    pub(crate) fn close(&self) {
        let mut side = lock(&self.side);
        side.look_for_starvation();
        side.port = None;
    }
}

impl FillRing {
    /// Continues with `kernel` after an interface was removed. `remake` maps its rings in place of
    /// the old ones, and all posted cells are posted again. `waiting` cells are on the rx rings,
    /// and `taken` is the total number taken from them.
    ///
    /// The kernel does not report which cells it had taken from the fill ring and not filled. They
    /// are the cells that are in no other place, which is known when all outstanding cells have
    /// returned.
    pub(crate) fn move_to(
        &self,
        kernel: Arc<dyn Kernel>,
        waiting: &[u64],
        taken: u64,
        remake: impl FnOnce(&mut Producer<u64>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut guard = lock(&self.side);
        guard.flush(self);
        guard.look_for_starvation();

        let side = &mut *guard;
        let Some(port) = &mut side.port else { return Err(io::ErrorKind::NotConnected.into()) };
        let mut left = Vec::new();
        port.ring.not_taken(&mut left).map_err(|broken| io::Error::other(broken.to_string()))?;
        remake(&mut port.ring)?;
        port.kernel = kernel;

        let mask = self.pool.cell_mask();
        let here = left.iter().chain(&side.idle).chain(waiting).map(|address| address & mask);
        let mut nowhere: HashSet<u64> = self.pool.cell_addresses().collect();
        here.for_each(|address| _ = nowhere.remove(&address));

        let out = taken.saturating_sub(side.returned) as usize;
        let kept = nowhere.len().saturating_sub(out);
        side.missing = (kept > 0).then_some(Missing { cells: nowhere, kept });
        side.post_again(self, &left);
        side.find_missing(self);
        side.begin_to_starve();
        drop(guard);
        self.flush_if_free();

        Ok(())
    }
}

/// Cells that are outstanding, or that the old kernel side had taken and kept.
#[derive(Debug)]
struct Missing {
    cells: HashSet<u64>,
    /// Number of those that the old kernel side kept.
    kept: usize,
}

impl FillSide {
    fn level(&mut self) -> Level {
        let Some(port) = &mut self.port else { return Level::default() };
        // A broken ring is reported elsewhere and counts as empty here.
        let left = port.ring.filled().unwrap_or(0);
        Level { taken: port.ring.taken(), left }
    }

    /// The new kernel side, whose counts are 0, takes cells from now on.
    fn begin_to_starve(&mut self) {
        let level = self.level();
        self.starvation.begin(level);
    }

    fn look_for_starvation(&mut self) {
        let Some(kernel) = self.port.as_ref().map(|port| Arc::clone(&port.kernel)) else { return };
        if !kernel.is_zero_copy() {
            return;
        }
        let before = self.level();
        let Ok(drops) = kernel.drops() else { return };
        let after = self.level();
        self.starvation.look(before, drops.starved, after, self.received());
    }

    /// Number of cells that the kernel has put on the rx rings so far, modulo 2^32.
    fn received(&self) -> Option<u32> {
        let add = |sum: u32, ring: &Gauge<_>| Some(sum.wrapping_add(ring.produced()?));
        self.served.iter().try_fold(0, add).filter(|_| !self.served.is_empty())
    }

    /// Posts cells that the kernel had and will never fill.
    fn post_again(&mut self, fill_ring: &FillRing, addresses: &[u64]) {
        let pool = &fill_ring.pool;
        for &address in addresses {
            pool.check().capture(pool.index_of(address));
            pool.check().come_back(pool.index_of(address));
        }
        let cell = |&address: &u64| Descriptor { address, ..Descriptor::default() };
        let cells: Vec<Descriptor> = addresses.iter().map(cell).collect();
        self.place(fill_ring, &cells);
    }

    /// Posts the cells that the old kernel side kept, as soon as they are known.
    #[cold]
    fn find_missing(&mut self, fill_ring: &FillRing) {
        if let Some(missing) = self.missing.take_if(|missing| missing.cells.len() <= missing.kept) {
            let addresses: Vec<u64> = missing.cells.into_iter().collect();
            self.post_again(fill_ring, &addresses);
        }
    }

    fn flush(&mut self, fill_ring: &FillRing) {
        if !fill_ring.recycled.is_empty() {
            fill_ring.recycled.take_all().for_each(|list| self.take_back(fill_ring, list));
        }
    }

    fn take_back(&mut self, fill_ring: &FillRing, mut list: Box<CellList>) {
        self.bring_back(fill_ring, &list.cells);
        let chunk_cells = fill_ring.pool.geometry().chunk_cells as usize;
        // Lists of separately kept packets may be as large; there is room for the lists that were
        // handed out.
        if list.cells.capacity() >= chunk_cells && self.spares.len() < self.spares.capacity() {
            list.clear();
            self.lists_out = self.lists_out.saturating_sub(1);
            self.spares.push(list);
        }
    }

    fn bring_back(&mut self, fill_ring: &FillRing, cells: &[Descriptor]) {
        let pool = &fill_ring.pool;
        cells.iter().for_each(|cell| pool.check().come_back(pool.index_of(cell.address)));
        self.returned += cells.len() as u64;
        self.place(fill_ring, cells);
        if let Some(missing) = &mut self.missing {
            let mask = pool.cell_mask();
            cells.iter().for_each(|cell| _ = missing.cells.remove(&(cell.address & mask)));
            self.find_missing(fill_ring);
        }
    }

    /// Posts as many of these cells as are required, and keeps the others.
    fn place(&mut self, fill_ring: &FillRing, cells: &[Descriptor]) {
        if cells.is_empty() {
            return;
        }

        let pool = &fill_ring.pool;
        let supply = &fill_ring.supply;
        let mask = pool.cell_mask();

        if supply.posts_all() {
            return self.post(pool, cells, |cell| cell.address & mask);
        }

        let wanted = self.wanted(supply) as usize;
        let (posted, others) = cells.split_at(wanted.min(cells.len()));
        self.post(pool, posted, |cell| cell.address & mask);

        // There is room for all cells; one too many is a duplicate.
        let room = self.idle.capacity() - self.idle.len();
        self.idle.extend(others.iter().map(|cell| cell.address & mask).take(room));
        self.post_idle(pool, wanted - posted.len());
        self.give_up_excess(fill_ring);
    }

    /// Posts as many idle cells, from here or from the stock, as are required.
    fn top_up(&mut self, fill_ring: &FillRing) {
        if fill_ring.supply.posts_all() {
            return;
        }
        let wanted = self.wanted(&fill_ring.supply) as usize;
        if let Some(stock) = &fill_ring.supply.stock
            && wanted > self.idle.len()
        {
            stock.take(wanted - self.idle.len(), &mut self.idle);
        }
        self.post_idle(&fill_ring.pool, wanted);
    }

    /// Number of cells missing on the fill ring.
    fn wanted(&mut self, supply: &Supply) -> u32 {
        let Some(port) = &mut self.port else { return 0 };
        match port.ring.filled() {
            Ok(filled) => supply.posted.saturating_sub(filled),
            Err(broken) => {
                self.give_up_ring(broken);
                0
            }
        }
    }

    /// Posts up to `count` idle cells, the most recently returned ones first.
    fn post_idle(&mut self, pool: &Pool, count: usize) {
        let left = self.idle.len().saturating_sub(count);
        let mut idle = std::mem::take(&mut self.idle);
        self.post(pool, &idle[left..], |address| *address);
        idle.truncate(left);
        self.idle = idle;
    }

    /// Gives cells beyond its own share to the stock.
    fn give_up_excess(&mut self, fill_ring: &FillRing) {
        // While fewer cells than required are posted, none are idle here, so cells of the stock are
        // added.
        if let Some(stock) = &fill_ring.supply.stock
            && self.idle.len() > fill_ring.supply.kept_idle()
        {
            stock.try_put(&mut self.idle, fill_ring.supply.kept_idle());
        }
    }

    fn post<T>(&mut self, pool: &Pool, cells: &[T], address: impl Fn(&T) -> u64) {
        let Some(port) = &mut self.port else { return };
        if cells.is_empty() {
            return;
        }
        cells.iter().for_each(|cell| pool.check().post(pool.index_of(address(cell))));
        if let Err(broken) = port.post(cells, address) {
            self.give_up_ring(broken);
        }
    }

    /// The kernel never moves its index back; if it did, it gets no more cells.
    fn give_up_ring(&mut self, broken: BrokenRing) {
        (self.port, self.broken) = (None, Some(broken));
    }
}

impl Port {
    fn post<T>(&mut self, cells: &[T], address: impl Fn(&T) -> u64) -> Result<(), BrokenRing> {
        // There is room for every required cell. A cell that does not fit lost its slot to a cell
        // that was returned twice.
        self.ring.push_slice(cells, address)?;
        self.ring.submit();
        if self.ring.needs_wakeup() {
            self.kernel.wake();
        }
        Ok(())
    }
}

#[cfg(all(test, loom))]
#[expect(clippy::vec_box, reason = "chunks hold boxed lists")]
mod model {
    use loom::thread;

    use super::*;
    use crate::kernel_ring::{Consumer, HeapRing};
    use crate::sync::model;
    use crate::umem::pool::Geometry;

    #[derive(Debug)]
    struct AwakeKernel;

    impl Kernel for AwakeKernel {
        fn wake(&self) {
            panic!("the driver does not sleep");
        }

        fn drops(&self) -> io::Result<KernelDrops> {
            Ok(KernelDrops::default())
        }

        fn pollable(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn is_gone(&self) -> bool {
            false
        }
    }

    /// A pool of `cells` chunks of one cell each, the kernel's half of the fill ring, and all
    /// cells, captured.
    fn all_captured(cells: u32) -> (Arc<FillRing>, Consumer<u64>, Vec<Box<CellList>>) {
        all_captured_of(cells, None)
    }

    fn all_captured_of(
        cells: u32,
        warm: Option<u32>,
    ) -> (Arc<FillRing>, Consumer<u64>, Vec<Box<CellList>>) {
        let pool =
            Arc::new(Pool::on_heap(Geometry { chunk_cells: 1, chunks: cells, cell_bytes: 64 }));
        let (producer, mut kernel) = HeapRing::pair(cells.next_power_of_two(), 0);
        let addresses = pool.cell_addresses();
        let supply = Supply::of(cells, warm);
        let fill_ring =
            FillRing::new(pool, addresses, supply, producer, Arc::new(AwakeKernel)).unwrap();
        let mut addresses = Vec::new();

        while addresses.len() < cells as usize {
            addresses.append(&mut posted(&mut kernel));
            fill_ring.tend();
        }

        let lists = addresses.into_iter().map(|address| {
            let mut list = fill_ring.empty_list(1).unwrap();
            list.cells.push(Descriptor { address, ..Descriptor::default() });
            fill_ring.captured(&mut list);
            list
        });
        let lists = lists.collect();
        (Arc::new(fill_ring), kernel, lists)
    }

    fn posted(kernel: &mut Consumer<u64>) -> Vec<u64> {
        let mut addresses = Vec::new();
        kernel.take_into(&mut addresses, usize::MAX).unwrap();
        kernel.release();
        addresses.sort_unstable();
        addresses
    }

    fn recycle_in_threads(
        fill_ring: &Arc<FillRing>,
        lists: Vec<Box<CellList>>,
    ) -> Vec<thread::JoinHandle<()>> {
        let recycle = |list| {
            let fill_ring = Arc::clone(fill_ring);
            thread::spawn(move || fill_ring.recycle(list))
        };
        lists.into_iter().map(recycle).collect()
    }

    /// Two threads drop chunks while a third captures: in the end every cell is posted exactly
    /// once.
    #[test]
    fn no_cell_is_left_behind_or_posted_twice() {
        model(|| {
            let (fill_ring, mut kernel, lists) = all_captured(2);
            let droppers = recycle_in_threads(&fill_ring, lists);
            let list = fill_ring.empty_list(1).unwrap();
            droppers.into_iter().for_each(|dropper| dropper.join().unwrap());
            assert!(fill_ring.recycled.is_empty(), "cells were left unposted");
            assert_eq!(posted(&mut kernel), [0, 64]);
            drop(list);
        });
    }

    /// Two threads drop chunks while the keeper runs: every cell is posted or idle exactly once,
    /// and the required number is posted.
    #[test]
    fn no_cell_is_lost_between_droppers_and_the_keeper() {
        model(|| {
            let (fill_ring, mut kernel, lists) = all_captured_of(2, Some(1));
            let droppers = recycle_in_threads(&fill_ring, lists);
            fill_ring.tend();
            droppers.into_iter().for_each(|dropper| dropper.join().unwrap());
            assert!(fill_ring.recycled.is_empty(), "cells were left unposted");
            let mut free = posted(&mut kernel);
            assert_eq!(free.len(), 1);
            free.extend(&lock(&fill_ring.side).idle);
            free.sort_unstable();
            assert_eq!(free, [0, 64]);
        });
    }

    /// Three threads drop chunks without a capturing thread.
    #[test]
    fn the_last_dropper_posts_the_remaining_cells() {
        model(|| {
            let (fill_ring, mut kernel, mut lists) = all_captured(3);
            let mine = lists.pop().unwrap();
            let droppers = recycle_in_threads(&fill_ring, lists);
            fill_ring.recycle(mine);
            droppers.into_iter().for_each(|dropper| dropper.join().unwrap());
            assert!(fill_ring.recycled.is_empty(), "cells were left unposted");
            assert_eq!(posted(&mut kernel), [0, 64, 128]);
        });
    }
}
