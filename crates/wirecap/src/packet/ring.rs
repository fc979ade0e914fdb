//! A receive ring of AF_PACKET: the kernel fills blocks, chunks are parts of them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::netdevice;

use crate::error::CaptureError;
use crate::ledger::{Account, Drops};
use crate::packet::blocks::{BadBlock, Blocks, Labels, OpenBlock};
use crate::packet::steering::{self, Selection};
use crate::ring::{Help, Ring};
use crate::sieve::{Check, Sieve, UserFilter};
use crate::sync::{Mutex, lock, try_lock};
use crate::sys::packet::{PacketSocket, SocketFilter};
use crate::umem::chunk::{Chunk, RingIdentity};
use crate::umem::pool::Geometry;

/// What is the same for all rings of an interface.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traits {
    pub(crate) ifindex: u32,
    pub(crate) geometry: Geometry,
    pub(crate) labels: Labels,
    /// Bytes of the longest frame that the interface carries.
    pub(crate) longest_frame: u32,
}

/// A receive ring whose packets are in blocks that the kernel fills.
#[derive(Debug)]
pub(crate) struct PacketRing {
    identity: Arc<RingIdentity>,
    traits: Traits,
    selection: Selection,
    blocks: Arc<Blocks>,
    /// How many packets are left in the block that is open.
    open_packets: AtomicU32,
    side: Mutex<Side>,
}

/// What the lock of the ring guards.
#[derive(Debug)]
struct Side {
    /// None once the ring is closed.
    socket: Option<PacketSocket>,
    open: Option<OpenBlock>,
    next_sequence: u64,
    delivered: u64,
    bytes: u64,
    super_packets: u64,
    offloaded_chunks: u64,
    abandoned_chunks: u64,
    /// Packets that no free block was there for.
    no_cell: u64,
    /// How often the kernel stood still for want of a block.
    stalls: u64,
    /// Packets that the kernel described badly, and packets left behind at the close.
    other: u64,
    sieve: Sieve,
    /// A socket filter turned packets away, which the kernel does not count.
    uncounted: bool,
}

/// Looks at the ring that found nothing wanted, before whoever asked gets nothing.
const VAIN_ROUNDS_MAX: u32 = 64;

impl PacketRing {
    /// A ring over the blocks of `socket`, which were just made.
    pub(crate) fn new(
        identity: RingIdentity,
        traits: Traits,
        selection: Selection,
        blocks: Blocks,
        socket: PacketSocket,
    ) -> Self {
        let side = Side {
            socket: Some(socket),
            open: None,
            next_sequence: 0,
            delivered: 0,
            bytes: 0,
            super_packets: 0,
            offloaded_chunks: 0,
            abandoned_chunks: 0,
            no_cell: 0,
            stalls: 0,
            other: 0,
            sieve: Sieve::default(),
            uncounted: false,
        };
        Self {
            identity: Arc::new(identity),
            traits,
            selection,
            blocks: Arc::new(blocks),
            open_packets: AtomicU32::new(0),
            side: Mutex::new(side),
        }
    }

    /// Does something to the socket, unless the ring is closed.
    pub(crate) fn with_socket(&self, work: impl FnOnce(&PacketSocket) -> io::Result<()>) -> io::Result<()> {
        lock(&self.side).socket.as_ref().map_or(Ok(()), work)
    }

    /// Runs `program` on the ring's packets from now on. What is in the ring already stays. `filters`: it
    /// turns packets away that were asked for otherwise.
    pub(crate) fn listen(&self, program: &SocketFilter, filters: bool) -> io::Result<()> {
        let mut side = lock(&self.side);
        let Some(socket) = &side.socket else { return Ok(()) };
        socket.attach_filter(&self.selection.then(program))?;
        side.uncounted |= filters;
        Ok(())
    }

    /// From now on `filter` looks at everything that is captured, until [`settle`](Self::settle).
    pub(crate) fn begin_change(&self, filter: UserFilter) {
        lock(&self.side).sieve.begin_change(filter);
    }

    /// What arrives from now on was filtered by the kernel as far as it could: user space looks at it by `check`.
    pub(crate) fn settle(&self, check: Check) {
        let mut side = lock(&self.side);
        let open = side.open.as_ref().map_or(0, OpenBlock::left);
        side.sieve.settle(check, self.blocks.waiting() + u64::from(open));
    }

    /// Receives nothing more, if it succeeds. A packet that is on its way at this moment may still come.
    pub(crate) fn silence(&self) -> io::Result<()> {
        self.with_socket(|socket| socket.attach_filter(&steering::nothing()))
    }

    /// Its blocks.
    pub(crate) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    fn capture_from(&self, side: &mut Side, help: Option<Help>) -> Result<Option<Chunk>, CaptureError> {
        for _ in 0..VAIN_ROUNDS_MAX {
            let Some(block) = side.open.take().or_else(|| self.open_next(side)) else { break };
            if let Some(chunk) = self.chunk_of(block, side, help)? {
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }

    /// A chunk of the next packets in `block`; `None` if none of them is wanted.
    fn chunk_of(
        &self,
        mut block: OpenBlock,
        side: &mut Side,
        help: Option<Help>,
    ) -> Result<Option<Chunk>, CaptureError> {
        let most = help.map_or(u32::MAX, |help| help.most).min(self.chunk_cells());
        let taken = block.take(most, self.traits.longest_frame, &mut side.sieve);
        side.bytes += taken.bytes;
        side.super_packets += taken.super_packets;
        side.delivered += taken.len() as u64;
        let bad = taken.bad;
        let ring = Arc::clone(&self.identity);
        let chunk = taken.into_chunk(ring, self.traits.labels, side.next_sequence, help.is_some());
        side.next_sequence += u64::from(chunk.is_some());
        side.offloaded_chunks += u64::from(help.is_some() && chunk.is_some());
        side.abandoned_chunks += u64::from(help.is_some_and(|help| help.abandoned) && chunk.is_some());
        if bad.is_some() {
            side.other += u64::from(block.left());
            drop(block);
        } else if block.left() > 0 {
            side.open = Some(block);
        }
        self.open_packets.store(side.open.as_ref().map_or(0, OpenBlock::left), Ordering::Relaxed);
        match (chunk, bad) {
            (None, Some(bad)) => Err(self.broken(bad)),
            (chunk, _) => Ok(chunk),
        }
    }

    /// Opens the next block with packets in it, if the kernel has handed one over.
    fn open_next(&self, side: &mut Side) -> Option<OpenBlock> {
        side.socket.as_ref()?;
        loop {
            let block = self.blocks.open_next()?;
            if block.is_losing() {
                side.count_losses();
            }
            if block.left() > 0 {
                return Some(block);
            }
        }
    }

    /// Counts what is left of the blocks that the kernel has handed over, so far as the sieve wants it.
    #[cold]
    fn count_wanted(&self, side: &mut Side) {
        while let Some(mut block) = side.open.take().or_else(|| self.open_next(side)) {
            let taken = block.take(u32::MAX, self.traits.longest_frame, &mut side.sieve);
            let wanted = taken.len() as u64;
            // What cannot be read cannot be unwanted.
            side.other += wanted + u64::from(block.left());
        }
    }

    fn broken(&self, bad: BadBlock) -> CaptureError {
        CaptureError::BrokenRing { ring: self.identity.name.clone(), detail: bad.to_string() }
    }
}

impl Side {
    /// Adds what the kernel dropped since the last time.
    fn count_losses(&mut self) {
        let counts = self.socket.as_ref().and_then(|socket| socket.take_counts().ok()).unwrap_or_default();
        self.no_cell += u64::from(counts.drops);
        self.stalls += u64::from(counts.freezes);
    }
}

impl Ring for PacketRing {
    fn identity(&self) -> &Arc<RingIdentity> {
        &self.identity
    }

    fn capacity(&self) -> u32 {
        self.traits.geometry.cells()
    }

    fn chunk_cells(&self) -> u32 {
        self.traits.geometry.chunk_cells
    }

    fn backlog(&self) -> u32 {
        let block_cells = (self.capacity() / self.blocks.count()).max(1);
        self.blocks.filled().saturating_mul(block_cells)
            + self.open_packets.load(Ordering::Relaxed).min(block_cells)
    }

    fn is_empty(&self) -> bool {
        self.open_packets.load(Ordering::Relaxed) == 0 && !self.blocks.is_next_filled()
    }

    fn capture(&self) -> Result<Option<Chunk>, CaptureError> {
        self.capture_from(&mut lock(&self.side), None)
    }

    fn offload(&self, help: Help) -> Result<Option<Chunk>, CaptureError> {
        let Some(mut side) = try_lock(&self.side) else { return Ok(None) };
        // Looked at under the lock: what a buddy saw may have been captured since.
        if self.backlog() <= help.limit {
            return Ok(None);
        }
        self.capture_from(&mut side, Some(help))
    }

    fn watch(&self, watch: &mut dyn FnMut(BorrowedFd<'_>)) {
        if let Some(socket) = &lock(&self.side).socket {
            watch(socket.as_fd());
        }
    }

    fn arrived(&self) -> u64 {
        let side = lock(&self.side);
        let open = side.open.as_ref().map_or(0, OpenBlock::left);
        side.delivered + u64::from(open) + self.blocks.waiting()
    }

    fn packet_socket(&self) -> Option<io::Result<OwnedFd>> {
        lock(&self.side).socket.as_ref().map(|socket| socket.as_fd().try_clone_to_owned())
    }

    fn is_gone(&self) -> bool {
        lock(&self.side).socket.as_ref().is_some_and(|socket| {
            socket.clear_error();
            netdevice::index_to_name(socket, self.traits.ifindex).is_err()
        })
    }

    fn account(&self) -> Account {
        let mut side = lock(&self.side);
        side.count_losses();
        Account {
            delivered: side.delivered,
            bytes: side.bytes,
            filtered: (!side.uncounted).then_some(side.sieve.filtered()),
            dropped: Drops { no_cell: side.no_cell, ring_full: 0, device: None, other: side.other },
            offloaded_chunks: side.offloaded_chunks,
            abandoned_chunks: side.abandoned_chunks,
            super_packets: side.super_packets,
            stalls: side.stalls,
            ..Account::default()
        }
        .balanced()
    }

    fn close(&self) {
        let mut side = lock(&self.side);
        if side.socket.is_none() {
            return;
        }
        side.count_losses();
        if !side.sieve.is_idle() {
            self.count_wanted(&mut side);
        }
        let open = side.open.take().map_or(0, |block| block.left());
        side.other += self.blocks.waiting() + u64::from(open);
        self.open_packets.store(0, Ordering::Relaxed);
        side.socket = None;
        self.blocks.cut_loose();
    }
}
