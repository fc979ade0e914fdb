//! A receive ring of AF_XDP: filled cells are captured from the rx ring as chunks and go back on the
//! fill ring. The kernel behind the rings is a socket or the simulated one.

#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::chunk::{Chunk, Home, RingIdentity, Stamps};
use crate::error::CaptureError;
use crate::kernel_ring::{BrokenRing, Consumer, Gauge, Producer};
use crate::ledger::{Account, Drops};
use crate::pool::{Descriptor, Pool};
use crate::recycle::CellList;
use crate::refill::{Kernel, KernelDrops, Refill};
use crate::sync::{Mutex, MutexGuard, lock, try_lock};

/// A receive ring as the group sees it: something that chunks are captured from.
pub(crate) trait Ring: Send + Sync + fmt::Debug {
    /// Its name and place.
    fn identity(&self) -> &Arc<RingIdentity>;
    /// R x M: how many packets it can hold.
    fn capacity(&self) -> u32;
    /// Packets that wait to be captured: a snapshot.
    fn backlog(&self) -> u32;
    /// Takes up to M packets, or nothing when none wait or the ring is closed.
    fn capture(&self) -> Result<Option<Chunk>, CaptureError>;
    /// As [`capture`](Self::capture), for a worker that the ring is not a home ring of: gives nothing
    /// when somebody else is capturing from the ring, or when no more than `limit` packets wait. The
    /// account tells chunks apart that were taken because the ring was `abandoned` by its worker.
    fn offload(&self, limit: u32, abandoned: bool) -> Result<Option<Chunk>, CaptureError>;
    /// Hands a descriptor that is readable while packets wait to `watch`.
    fn watch(&self, watch: &mut dyn FnMut(BorrowedFd<'_>));
    /// Whether its interface is no more, so that no packets will ever come.
    fn is_gone(&self) -> bool;
    /// Whether everything there will ever be was captured: the end of a file.
    fn is_exhausted(&self) -> bool {
        false
    }
    /// The ring's account; `device` drops are not its business.
    fn account(&self) -> Account;
    /// Counts what is left in the ring as dropped and lets go of the kernel's side.
    fn close(&self);
}

/// Where the program puts times, and how to read them.
pub(crate) trait StampSource: Send + Sync + fmt::Debug {
    /// How the times of packets captured now are to be read.
    fn stamps(&self) -> Stamps;
}

/// A receive ring whose cells are in a UMEM.
#[derive(Debug)]
pub(crate) struct UmemRing {
    identity: Arc<RingIdentity>,
    refill: Arc<Refill>,
    stamps: Arc<dyn StampSource>,
    backlog: Gauge<Descriptor>,
    rx: Mutex<RxSide>,
}

/// What the lock of the rx ring guards.
#[derive(Debug)]
struct RxSide {
    /// None once the ring is closed.
    open: Option<OpenRx>,
    next_sequence: u64,
    delivered: u64,
    bytes: u64,
    offloaded_chunks: u64,
    abandoned_chunks: u64,
    /// Descriptors that cannot be packets, and packets left behind at the close.
    other: u64,
    /// What the kernel had dropped at the close.
    drops: KernelDrops,
}

/// How a buddy captures.
#[derive(Debug, Clone, Copy)]
struct Offload {
    limit: u32,
    abandoned: bool,
}

#[derive(Debug)]
struct OpenRx {
    ring: Consumer<Descriptor>,
    kernel: Arc<dyn Kernel>,
}

// SAFETY: the pool keeps its memory mapped while the `Refill` lives. `UmemRing::chunk_of` is the only
// one to make chunks with this home: it checks every descriptor, and the cells are nobody else's from
// the moment the kernel put them on the rx ring until `recycle` posts them.
unsafe impl Home for Refill {
    fn base(&self) -> NonNull<u8> {
        self.pool().memory().base()
    }

    fn recycle(&self, list: Box<CellList>) {
        Refill::recycle(self, list);
    }
}

impl UmemRing {
    /// A ring over our halves of an rx and a fill ring that were just made, posting every cell.
    pub(crate) fn new(
        identity: RingIdentity,
        pool: Arc<Pool>,
        rx: Consumer<Descriptor>,
        fill: Producer<u64>,
        kernel: Arc<dyn Kernel>,
        stamps: Arc<dyn StampSource>,
    ) -> Result<Self, BrokenRing> {
        let refill = Arc::new(Refill::new(pool, fill, Arc::clone(&kernel))?);
        let backlog = rx.gauge();
        let side = RxSide {
            open: Some(OpenRx { ring: rx, kernel }),
            next_sequence: 0,
            delivered: 0,
            bytes: 0,
            offloaded_chunks: 0,
            abandoned_chunks: 0,
            other: 0,
            drops: KernelDrops::default(),
        };
        Ok(Self { identity: Arc::new(identity), refill, stamps, backlog, rx: Mutex::new(side) })
    }

    fn pool(&self) -> &Pool {
        self.refill.pool()
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn refill(&self) -> &Refill {
        &self.refill
    }

    fn capture_from(
        &self,
        mut side: MutexGuard<'_, RxSide>,
        offload: Option<Offload>,
    ) -> Result<Option<Chunk>, CaptureError> {
        let Some(open) = &mut side.open else { return Ok(None) };
        let waiting = open.ring.available().map_err(|broken| self.broken(&broken))?;
        // Looked at under the lock: what a buddy saw may have been captured since.
        if waiting <= offload.map_or(0, |offload| offload.limit) {
            drop(side);
            self.refill.flush_if_free();
            return Ok(None);
        }
        let count = waiting.min(self.pool().geometry().chunk_cells) as usize;
        let mut list = self.refill.empty_list(count).map_err(|broken| self.broken_fill(&broken))?;
        let stamps = self.stamps.stamps();
        open.ring.take_into(&mut list.cells, count).map_err(|broken| self.broken(&broken))?;
        open.ring.release();
        let checked = self.check(&mut list, stamps, &mut side.other);
        side.other += self.refill.captured(&mut list);
        if checked.is_err() || list.cells.is_empty() {
            side.other += list.cells.len() as u64;
            drop(side);
            self.refill.recycle(list);
            return checked.map(|_| None);
        }
        side.bytes += checked?;
        side.delivered += list.cells.len() as u64;
        let sequence = side.next_sequence;
        side.next_sequence += 1;
        side.offloaded_chunks += u64::from(offload.is_some());
        side.abandoned_chunks += u64::from(offload.is_some_and(|offload| offload.abandoned));
        drop(side);
        let home: Arc<dyn Home> = self.refill.clone();
        // SAFETY: the kernel gave these cells to us, from this pool, and `check` looked at each.
        let chunk = unsafe {
            Chunk::new(list, home, Arc::clone(&self.identity), stamps, sequence, offload.is_some())
        };
        Ok(Some(chunk))
    }

    /// Removes from `list` what cannot be a packet, counting it in `other`, and adds up the bytes of
    /// the rest. A cell with a bad length is posted again; an address outside the pool means that a
    /// cell is lost, and the ring with it.
    fn check(&self, list: &mut CellList, stamps: Stamps, other: &mut u64) -> Result<u64, CaptureError> {
        let (pool, room) = (self.pool(), stamps.record_bytes());
        if let Some(bytes) = pool.bytes_if_all_held(&list.cells, room) {
            return Ok(bytes);
        }
        let mut bad: Vec<Descriptor> = list.cells.extract_if(.., |cell| !pool.holds(cell, room)).collect();
        *other += bad.len() as u64;
        let stray = bad.extract_if(.., |cell| !pool.contains(cell.address)).last();
        self.post_again(bad)?;
        match stray {
            Some(stray) => {
                Err(self.broken(&format_args!("a packet at {:#x}, outside the pool", stray.address)))
            }
            None => Ok(list.cells.iter().map(|cell| u64::from(cell.len)).sum()),
        }
    }

    fn post_again(&self, cells: Vec<Descriptor>) -> Result<(), CaptureError> {
        let mut list = self.refill.empty_list(cells.len()).map_err(|broken| self.broken_fill(&broken))?;
        list.cells.extend(cells);
        self.refill.captured(&mut list);
        self.refill.recycle(list);
        Ok(())
    }

    fn broken_fill(&self, broken: &BrokenRing) -> CaptureError {
        self.broken(&format_args!("fill ring: {broken}"))
    }

    fn broken(&self, detail: &dyn fmt::Display) -> CaptureError {
        CaptureError::BrokenRing { ring: self.identity.name.clone(), detail: detail.to_string() }
    }
}

impl Ring for UmemRing {
    fn identity(&self) -> &Arc<RingIdentity> {
        &self.identity
    }

    fn capacity(&self) -> u32 {
        self.pool().geometry().cells()
    }

    fn backlog(&self) -> u32 {
        self.backlog.filled()
    }

    fn capture(&self) -> Result<Option<Chunk>, CaptureError> {
        self.capture_from(lock(&self.rx), None)
    }

    fn offload(&self, limit: u32, abandoned: bool) -> Result<Option<Chunk>, CaptureError> {
        let Some(side) = try_lock(&self.rx) else { return Ok(None) };
        self.capture_from(side, Some(Offload { limit, abandoned }))
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

    fn account(&self) -> Account {
        let side = lock(&self.rx);
        let drops = side.open.as_ref().and_then(|open| open.kernel.drops().ok()).unwrap_or(side.drops);
        let dropped =
            Drops { no_cell: drops.no_cell, ring_full: drops.ring_full, device: None, other: side.other };
        Account {
            delivered: side.delivered,
            bytes: side.bytes,
            filtered: Some(0),
            dropped,
            offloaded_chunks: side.offloaded_chunks,
            abandoned_chunks: side.abandoned_chunks,
            ..Account::default()
        }
        .balanced()
    }

    fn close(&self) {
        let mut side = lock(&self.rx);
        if let Some(mut open) = side.open.take() {
            side.other += open.ring.available().map_or(0, u64::from);
            side.drops = open.kernel.drops().unwrap_or_default();
        }
        self.refill.close();
    }
}
