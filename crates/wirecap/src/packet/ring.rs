//! A receive ring of AF_PACKET: the kernel fills blocks, chunks are parts of them; or frames, which
//! chunks collect.

#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::net::netdevice;

use crate::error::CaptureError;
use crate::ledger::{Account, Drops, HandedOut, Tally};
use crate::packet::blocks::{BadBlock, Blocks, Filled, Labels, OpenBlock};
use crate::packet::frames::Frames;
use crate::packet::roster::Roster;
use crate::packet::steering::{self, Selection};
use crate::sieve::{Check, Sieve, UserFilter};
use crate::sync::{Mutex, lock, try_lock};
use crate::sys::packet::{PacketCounts, PacketSocket, SocketFilter};
use crate::umem::chunk::{Chunk, Head, RingIdentity};
use crate::umem::pool::{Cells, Geometry};
use crate::umem::ring::{
    Abilities, Counters, Help, OnPacketSocket, Ring, RingSize, USABLE_IN_BLOCKS,
};

/// Properties common to all rings of an interface.
#[derive(Debug, Clone)]
pub(crate) struct Traits {
    pub(crate) ifindex: u32,
    pub(crate) geometry: Geometry,
    pub(crate) labels: Labels,
    /// Bytes of the longest frame that the interface carries.
    pub(crate) longest_frame: u32,
    /// The interfaces, if the sockets are bound to none.
    pub(crate) roster: Option<Arc<Roster>>,
}

/// A receive ring whose packets are in blocks that the kernel fills.
///
/// What a reader uses at each wake-up comes first, in few cache lines: the others have left the
/// caches since the last one.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct PacketRing {
    /// Number of packets left in the open block.
    open_packets: AtomicU32,
    /// Its packets are not read in place: its store has been replaced, or it is closed.
    only_chunks: AtomicBool,
    /// The identity's, and the traits'.
    snap_len: u32,
    longest_frame: u32,
    counts: Counts,
    side: Mutex<Side>,
    traits: Traits,
    /// Only the close and a move write it, so readers need not wait for the ring's lock.
    kernel: RwLock<Kernel>,
    identity: Arc<RingIdentity>,
    /// The interface that it is on now.
    ifindex: AtomicU32,
}

/// The socket, and the memory that it shares with the kernel.
#[derive(Debug)]
struct Kernel {
    /// None once the ring is closed.
    socket: Option<PacketSocket>,
    selection: Selection,
    store: Store,
    /// Packets of sockets on removed interfaces that were not taken yet, the oldest first.
    former: Vec<Arc<Blocks>>,
    /// Packets that arrived on those sockets, taken or not.
    arrived_before: u64,
}

impl Kernel {
    /// Packets that were not taken yet.
    fn waiting(&self) -> u64 {
        self.former.iter().map(|blocks| blocks.waiting()).sum::<u64>() + self.store.waiting()
    }

    /// Packets in the ring, taken or not.
    fn arrived(&self) -> u64 {
        self.arrived_before + self.store.arrived()
    }
}

/// Where the kernel puts packets.
#[derive(Debug, Clone)]
pub(crate) enum Store {
    /// Into blocks, which are handed over when they are full or after a fixed time.
    Blocks(Arc<Blocks>),
    /// Into a frame each, which is handed over at once.
    Frames(Arc<Frames>),
}

impl Store {
    /// Packets that were not taken yet.
    fn waiting(&self) -> u64 {
        match self {
            Self::Blocks(blocks) => blocks.waiting(),
            Self::Frames(frames) => frames.filled().into(),
        }
    }

    /// Packets in the ring, taken or not.
    fn arrived(&self) -> u64 {
        match self {
            Self::Blocks(blocks) => blocks.arrived(),
            Self::Frames(frames) => frames.arrived(),
        }
    }
}

/// Counters that a signal handler may read while the thread that it interrupts holds the lock of
/// the ring.
#[derive(Debug, Default)]
#[repr(C)]
struct Counts {
    delivered: AtomicU64,
    /// Packets in the ring, taken or not, at the last query.
    arrived: AtomicU64,
    /// Packets that matched the socket's filter, dropped or not.
    received: AtomicU64,
    /// Packets for which there was no free block.
    no_cell: AtomicU64,
    /// Times that the kernel waited for a block.
    stalls: AtomicU64,
    /// Packets with an invalid header, packets left at the close, and packets that the kernel
    /// dropped although blocks were free.
    other: AtomicU64,
}

impl Counts {
    /// Adds what the kernel dropped. The kernel records a freeze before the first packet lost
    /// because of a full ring, so a ring of blocks that never froze was never full. The packets
    /// were dropped because less than a quarter of the ring was free and another processor had
    /// closed a block and not yet opened the next one (`__tpacket_v3_has_room` checks without the
    /// lock, since Linux 5.3).
    fn add_losses(&self, taken: PacketCounts, in_blocks: bool) {
        let stalls = self.stalls.fetch_add(taken.freezes.into(), Ordering::Relaxed)
            + u64::from(taken.freezes);
        self.received.fetch_add(taken.packets.into(), Ordering::Relaxed);
        let reason = if in_blocks && stalls == 0 { &self.other } else { &self.no_cell };
        #[cfg(sabotage)]
        let reason =
            if crate::sabotage::is("every-loss-is-no-cell") { &self.no_cell } else { reason };
        reason.fetch_add(taken.drops.into(), Ordering::Relaxed);
    }
}

/// The data protected by the lock of the ring.
#[derive(Debug)]
#[repr(C)]
struct Side {
    handed_out: HandedOut,
    sieve: Sieve,
    open: Option<OpenBlock>,
    /// A socket filter rejected packets, which the kernel does not count.
    uncounted: bool,
}

/// Maximum number of looks at the ring without an accepted packet before the caller gets no chunk.
const VAIN_ROUNDS_MAX: u32 = 64;

impl PacketRing {
    /// A ring over the memory of `socket`, which is new.
    pub(crate) fn new(
        identity: RingIdentity,
        traits: Traits,
        selection: Selection,
        store: Store,
        socket: PacketSocket,
    ) -> Self {
        let side = Side {
            open: None,
            handed_out: HandedOut::default(),
            sieve: Sieve::default(),
            uncounted: false,
        };
        Self {
            snap_len: identity.snap_len,
            longest_frame: traits.longest_frame,
            identity: Arc::new(identity),
            ifindex: AtomicU32::new(traits.ifindex),
            traits,
            open_packets: AtomicU32::new(0),
            only_chunks: AtomicBool::new(false),
            kernel: RwLock::new(Kernel {
                socket: Some(socket),
                selection,
                store,
                former: Vec::new(),
                arrived_before: 0,
            }),
            counts: Counts::default(),
            side: Mutex::new(side),
        }
    }

    #[inline]
    fn kernel(&self) -> RwLockReadGuard<'_, Kernel> {
        self.kernel.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn kernel_mut(&self) -> RwLockWriteGuard<'_, Kernel> {
        self.kernel.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function with the socket, unless the ring is closed.
    pub(crate) fn with_socket(
        &self,
        work: impl FnOnce(&PacketSocket) -> io::Result<()>,
    ) -> io::Result<()> {
        self.kernel().socket.as_ref().map_or(Ok(()), work)
    }

    /// Receives from interface `ifindex`, which replaces a removed one.
    pub(crate) fn move_to(&self, ifindex: u32) -> io::Result<()> {
        self.with_socket(|socket| {
            socket.clear_error();
            socket.bind(ifindex)
        })?;
        self.ifindex.store(ifindex, Ordering::Relaxed);
        Ok(())
    }

    /// From now on receives with `socket` on interface `ifindex`, into `store`. Earlier packets are
    /// captured first.
    ///
    /// # Safety
    ///
    /// The kernel must have written its last packet into the previous ring.
    pub(crate) unsafe fn exchange(
        &self,
        ifindex: u32,
        selection: Selection,
        socket: PacketSocket,
        store: Store,
    ) {
        // SAFETY: the caller's promise.
        unsafe { self.end() };
        let _side = lock(&self.side);
        let mut kernel = self.kernel_mut();
        if kernel.socket.is_none() {
            return;
        }
        #[cfg(sabotage)]
        if crate::sabotage::is("drops-forgotten-at-exchange") {
            let _ = kernel.socket.as_ref().map(PacketSocket::take_counts);
        }

        self.count_losses(&kernel);
        kernel.socket = Some(socket);
        kernel.selection = selection;
        kernel.arrived_before += kernel.store.arrived();

        if let Store::Blocks(blocks) = std::mem::replace(&mut kernel.store, store) {
            kernel.former.push(blocks);
        }

        self.ifindex.store(ifindex, Ordering::Relaxed);
        self.only_chunks.store(true, Ordering::Relaxed);
    }

    /// Runs `program` on the ring's packets from now on. Packets already in the ring stay.
    /// `filters`: it rejects packets that were otherwise requested.
    pub(crate) fn listen(&self, program: &SocketFilter, filters: bool) -> io::Result<()> {
        let mut side = lock(&self.side);
        let kernel = self.kernel();
        let Some(socket) = &kernel.socket else { return Ok(()) };
        socket.attach_filter(&kernel.selection.then(program))?;
        side.uncounted |= filters;
        Ok(())
    }

    /// From now on `filter` checks all captured packets, until [`settle`](Self::settle).
    pub(crate) fn begin_change(&self, filter: UserFilter) {
        lock(&self.side).sieve.begin_change(filter);
    }

    /// Packets that arrive from now on were filtered by the kernel as far as possible; user space
    /// applies `check` to them.
    pub(crate) fn settle(&self, check: Check) {
        let mut side = lock(&self.side);
        let open = side.open.as_ref().map_or(0, OpenBlock::left);
        side.sieve.settle(check, self.kernel().waiting() + u64::from(open));
    }

    /// Selects other packets, when a program is next attached.
    pub(crate) fn select(&self, selection: Selection) {
        self.kernel_mut().selection = selection;
    }

    /// Stops receiving, if it succeeds. A packet that the kernel is processing at that moment may
    /// still arrive.
    pub(crate) fn silence(&self) -> io::Result<()> {
        self.with_socket(|socket| socket.attach_filter(&steering::nothing()))
    }

    /// Takes the packets that the kernel has stored and not handed over.
    ///
    /// # Safety
    ///
    /// The kernel must have written its last packet into this ring.
    pub(crate) unsafe fn end(&self) {
        if let Store::Blocks(blocks) = &self.kernel().store {
            // SAFETY: the caller's promise.
            unsafe { blocks.end() };
        }
    }

    fn capture_from(
        &self,
        side: &mut Side,
        help: Option<Help>,
    ) -> Result<Option<Chunk>, CaptureError> {
        let kernel = self.kernel();
        match &kernel.store {
            Store::Frames(frames) => Ok(self.capture_from_frames(frames, &kernel, side, help)),
            Store::Blocks(_) if kernel.former.is_empty() => {
                self.capture_from_blocks(&kernel, side, help)
            }
            Store::Blocks(_) => {
                drop(kernel);
                self.capture_from_former(side, help)
            }
        }
    }

    /// Like [`capture_from`](Self::capture_from), if packets of a removed interface may remain.
    #[cold]
    fn capture_from_former(
        &self,
        side: &mut Side,
        help: Option<Help>,
    ) -> Result<Option<Chunk>, CaptureError> {
        let chunk = self.capture_from_blocks(&self.kernel(), side, help)?;
        // Chunks keep the blocks that they are in.
        self.kernel_mut().former.retain(|blocks| blocks.is_next_filled());
        Ok(chunk)
    }

    fn capture_from_frames(
        &self,
        frames: &Arc<Frames>,
        kernel: &Kernel,
        side: &mut Side,
        help: Option<Help>,
    ) -> Option<Chunk> {
        kernel.socket.as_ref()?;

        for _ in 0..VAIN_ROUNDS_MAX {
            let most =
                help.map_or(u32::MAX, |help| help.most).min(self.traits.geometry.chunk_cells);
            let gathered = frames.take(most, self.traits.longest_frame, &mut side.sieve)?;
            if gathered.is_losing {
                self.count_losses(kernel);
            }

            self.counts.other.fetch_add(gathered.bad, Ordering::Relaxed);

            if let Some(roster) = &self.traits.roster {
                let (base, cells) = gathered.cells();
                // SAFETY: `frame::read` checked each packet and its header, in frames that no chunk
                // has yet.
                unsafe { roster.attribute(base, cells, self.identity.link_type) };
            }

            if gathered.len() > 0 {
                let totals = (gathered.len(), gathered.bytes, gathered.super_packets);
                let sequence = self.count_chunk(side, totals, help);
                let ring = Arc::clone(&self.identity);
                return Some(gathered.into_chunk(
                    ring,
                    self.traits.labels,
                    sequence,
                    help.is_some(),
                ));
            }
        }
        None
    }

    fn capture_from_blocks(
        &self,
        kernel: &Kernel,
        side: &mut Side,
        help: Option<Help>,
    ) -> Result<Option<Chunk>, CaptureError> {
        for _ in 0..VAIN_ROUNDS_MAX {
            let Some(block) = side.open.take().or_else(|| self.open_next(kernel)) else { break };
            if let Some(chunk) = self.chunk_of(block, side, help)? {
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }

    /// A chunk of the next packets in `block`; `None` if none matches.
    fn chunk_of(
        &self,
        mut block: OpenBlock,
        side: &mut Side,
        help: Option<Help>,
    ) -> Result<Option<Chunk>, CaptureError> {
        let most = help.map_or(u32::MAX, |help| help.most).min(self.traits.geometry.chunk_cells);
        let taken = block.take(most, self.traits.longest_frame, &mut side.sieve);
        let bad = taken.bad;

        if let Some(roster) = &self.traits.roster {
            let (base, cells) = taken.cells();
            // SAFETY: `frame::read` checked each packet and its header, in a block that no chunk
            // has yet.
            unsafe { roster.attribute(base, cells, self.identity.link_type) };
        }

        let chunk = if taken.len() > 0 {
            let sequence =
                self.count_chunk(side, (taken.len(), taken.bytes, taken.super_packets), help);
            let ring = Arc::clone(&self.identity);
            Some(taken.into_chunk(ring, self.traits.labels, sequence, help.is_some()))
        } else {
            None
        };

        if bad.is_some() {
            #[cfg(sabotage)]
            if crate::sabotage::is("behind-a-bad-header-uncounted") {
                self.counts.other.fetch_sub(block.left().into(), Ordering::Relaxed);
            }
            self.counts.other.fetch_add(block.left().into(), Ordering::Relaxed);
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

    /// The blocks that the kernel fills, if they can be read in place.
    pub(crate) fn blocks(&self) -> Option<Arc<Blocks>> {
        match &self.kernel().store {
            // Packets are counted for their interfaces when a chunk is made of them.
            Store::Blocks(blocks) if self.traits.roster.is_none() => Some(Arc::clone(blocks)),
            Store::Blocks(_) | Store::Frames(_) => None,
        }
    }

    /// Whether packets must be delivered as chunks: those of an open block, or all, because the
    /// store has been replaced.
    #[inline]
    pub(crate) fn has_chunks(&self) -> bool {
        self.open_packets.load(Ordering::Relaxed) > 0 || self.only_chunks.load(Ordering::Relaxed)
    }

    /// Opens `next`, if there is one, the next of the `blocks` that the ring had when it was made,
    /// for a reader that gets all its packets; an error if user space must filter packets, or some
    /// must be delivered as chunks first.
    #[inline]
    pub(crate) fn open_for_reader(
        &self,
        blocks: &Arc<Blocks>,
        next: Option<Filled>,
    ) -> Result<Option<OpenBlock>, ()> {
        let mut side = lock(&self.side);

        // Under the lock the blocks are not replaced, so the lock of `kernel` is not needed.
        if self.has_chunks() || !side.sieve.is_idle() {
            return Err(());
        }

        let Some(block) = next.and_then(|next| blocks.open(next)) else { return Ok(None) };
        if block.is_losing() {
            self.count_losses(&self.kernel());
        }

        self.counts.delivered.fetch_add(block.left().into(), Ordering::Relaxed);
        side.handed_out.count_in_place(block.left().into(), 0, 0);

        Ok(Some(block).filter(|block| block.left() > 0))
    }

    /// Reads packets of `block` as
    /// [`BlockReader::for_each_head`](crate::packet::reader::BlockReader::for_each_head) does;
    /// those from index `accounted` on are added to the account with their bytes.
    #[inline]
    pub(crate) fn read_heads(
        &self,
        block: &mut OpenBlock,
        range: Range<u32>,
        accounted: u32,
        mut each: impl FnMut(Head<'_>),
    ) -> u32 {
        // While a tag is put back, no other code may copy the block, as a close does under this
        // lock.
        let mut side = lock(&self.side);
        if block.packets() - block.left() != range.start {
            block.go_to(range.start);
        }

        let snap_len = self.snap_len;
        let longest = self.longest_frame;
        let mut index = range.start;
        let mut bytes = 0;
        let mut super_packets = 0;

        let end = block.pass(range.end, |header, frame| {
            if index >= accounted {
                bytes += u64::from(frame.wire_len);
                super_packets += u64::from(frame.wire_len > longest);
            }
            index += 1;
            // SAFETY: the header and the bytes were checked to be in the block, which is held
            // during this call.
            each(unsafe { Head::of_frame(header, frame.descriptor, frame.wire_len, snap_len) });
        });
        side.handed_out.count_in_place(0, bytes, super_packets);

        end
    }

    /// Takes back a block of which a reader has read the packets before index `next`; those before
    /// `accounted` are in the account with their bytes. The others are delivered as chunks, unless
    /// the ring was closed.
    #[cold]
    pub(crate) fn take_back(&self, mut block: OpenBlock, next: u32, accounted: u32) {
        let mut side = lock(&self.side);
        let mut bytes = 0;
        let mut super_packets = 0;

        block.go_to(next);
        let left = block.left();
        block.pass(accounted, |_, frame| {
            bytes += u64::from(frame.wire_len);
            super_packets += u64::from(frame.wire_len > self.traits.longest_frame);
        });
        block.go_to(next);

        #[cfg(sabotage)]
        if crate::sabotage::is("taken-back-counted-twice") {
            side.handed_out.count_in_place(left.into(), bytes, super_packets);
        }

        side.handed_out.discount(left.into(), bytes, super_packets);
        self.counts.delivered.fetch_sub(left.into(), Ordering::Relaxed);

        if self.kernel().socket.is_none() {
            self.counts.other.fetch_add(left.into(), Ordering::Relaxed);
            return;
        }

        self.open_packets.store(left, Ordering::Relaxed);
        side.open = Some(block);
    }

    /// Counts a chunk with these packets, bytes and super-packets, and returns its sequence number.
    fn count_chunk(
        &self,
        side: &mut Side,
        (packets, bytes, super_packets): (usize, u64, u64),
        help: Option<Help>,
    ) -> u64 {
        self.counts.delivered.fetch_add(packets as u64, Ordering::Relaxed);
        side.handed_out.count_super_packets(super_packets);
        let is_abandoned = help.is_some_and(|help| help.abandoned);
        side.handed_out.count(packets as u64, bytes, help.is_some(), is_abandoned)
    }

    /// Opens the next block with packets in it, if the kernel has handed one over.
    #[inline]
    fn open_next(&self, kernel: &Kernel) -> Option<OpenBlock> {
        kernel.socket.as_ref()?;
        let Store::Blocks(blocks) = &kernel.store else { return None };
        loop {
            let former = kernel.former.iter().find_map(Blocks::open_next);
            let block = former.or_else(|| blocks.open_next())?;
            if block.is_losing() {
                self.count_losses(kernel);
            }
            if block.left() > 0 {
                return Some(block);
            }
        }
    }

    /// Counts the remaining packets that the sieve accepts in the blocks that the kernel has handed
    /// over.
    #[cold]
    fn count_wanted(&self, side: &mut Side) {
        let longest = self.traits.longest_frame;
        let counts = &self.counts;

        // Unreadable packets count as matching.
        let kernel = self.kernel();
        match &kernel.store {
            Store::Blocks(_) => {
                while let Some(mut block) = side.open.take().or_else(|| self.open_next(&kernel)) {
                    let wanted = block.take(u32::MAX, longest, &mut side.sieve).len() as u64;
                    counts.other.fetch_add(wanted + u64::from(block.left()), Ordering::Relaxed);
                }
            }
            Store::Frames(frames) => {
                let mut left = Vec::new();
                while let Some(gathered) = frames.take(u32::MAX, longest, &mut side.sieve) {
                    counts.other.fetch_add(gathered.len() as u64 + gathered.bad, Ordering::Relaxed);
                    left.push(gathered);
                }
            }
        }
    }

    /// Adds what the kernel dropped since the last time.
    #[cold]
    fn count_losses(&self, kernel: &Kernel) {
        let Some(taken) = kernel.socket.as_ref().and_then(|socket| socket.take_counts().ok())
        else {
            return;
        };
        self.counts.add_losses(taken, matches!(kernel.store, Store::Blocks(_)));
    }

    fn broken(&self, bad: BadBlock) -> CaptureError {
        CaptureError::BrokenRing { ring: self.identity.name.clone(), detail: bad.to_string() }
    }
}

impl Ring for PacketRing {
    fn identity(&self) -> &Arc<RingIdentity> {
        &self.identity
    }

    fn size(&self) -> RingSize {
        let chunk_cells = self.traits.geometry.chunk_cells;
        match &self.kernel().store {
            Store::Blocks(_) => {
                let capacity = self.traits.geometry.cells();
                let usable = (USABLE_IN_BLOCKS * f64::from(capacity)) as u32;
                RingSize { capacity, usable, chunk_cells }
            }
            Store::Frames(frames) => {
                let capacity = frames.capacity();
                RingSize { capacity, usable: capacity, chunk_cells }
            }
        }
    }

    fn is_empty(&self) -> bool {
        let kernel = self.kernel();
        match &kernel.store {
            Store::Blocks(blocks) => {
                self.open_packets.load(Ordering::Relaxed) == 0
                    && !blocks.is_next_filled()
                    && !kernel.former.iter().any(|blocks| blocks.is_next_filled())
            }
            Store::Frames(frames) => !frames.is_next_filled(),
        }
    }

    fn cells(&self) -> Cells {
        let waiting = self.backlog();
        let kernel = self.kernel();
        let captured = match &kernel.store {
            // An open block is held as well, by the packets in it that wait.
            Store::Blocks(blocks) => {
                let block_cells = (self.traits.geometry.cells() / blocks.count()).max(1);
                let open = self.open_packets.load(Ordering::Relaxed).min(block_cells);
                blocks.held().saturating_mul(block_cells).saturating_sub(open)
            }
            Store::Frames(_) => 0,
        };

        drop(kernel);
        let capacity = self.size().capacity;
        let waiting = waiting.min(capacity);
        let captured = captured.min(capacity - waiting);
        Cells { posted: capacity - waiting - captured, waiting, captured, ..Cells::default() }
    }

    fn capture(&self) -> Result<Option<Chunk>, CaptureError> {
        self.capture_from(&mut lock(&self.side), None)
    }

    fn offload(&self, help: Help) -> Result<Option<Chunk>, CaptureError> {
        let Some(mut side) = try_lock(&self.side) else { return Ok(None) };
        // Checked under the lock: the backlog that a buddy saw may have been captured since.
        if self.backlog() <= help.limit {
            return Ok(None);
        }
        self.capture_from(&mut side, Some(help))
    }

    fn watch(&self, watch: &mut dyn FnMut(BorrowedFd<'_>)) {
        if let Some(socket) = &self.kernel().socket {
            watch(socket.as_fd());
        }
    }

    fn is_gone(&self) -> bool {
        // All interfaces cannot be removed.
        self.traits.roster.is_none()
            && self.kernel().socket.as_ref().is_some_and(|socket| {
                socket.clear_error();
                netdevice::index_to_name(socket, self.ifindex.load(Ordering::Relaxed)).is_err()
            })
    }

    fn close(&self) {
        let mut side = lock(&self.side);
        if self.kernel().socket.is_none() {
            return;
        }

        self.count_losses(&self.kernel());
        if !side.sieve.is_idle() {
            self.count_wanted(&mut side);
        }

        let open = side.open.take().map_or(0, |block| block.left());
        let mut kernel = self.kernel_mut();

        #[cfg(sabotage)]
        if crate::sabotage::is("left-at-close-uncounted") {
            self.counts.other.fetch_sub(kernel.waiting(), Ordering::Relaxed);
        }

        self.counts.other.fetch_add(kernel.waiting() + u64::from(open), Ordering::Relaxed);
        self.open_packets.store(0, Ordering::Relaxed);
        self.only_chunks.store(true, Ordering::Relaxed);
        kernel.socket = None;

        // Frames stay unchanged, on a socket that gets no packets.
        if let Store::Blocks(blocks) = &kernel.store {
            blocks.cut_loose();
        }

        kernel.former.iter().for_each(|blocks| blocks.cut_loose());
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities { packet_socket: Some(self), ..Abilities::default() }
    }
}

impl Counters for PacketRing {
    fn backlog(&self) -> u32 {
        let kernel = self.kernel();
        match &kernel.store {
            Store::Blocks(blocks) => {
                let block_cells = (self.traits.geometry.cells() / blocks.count()).max(1);
                let former: u32 = kernel.former.iter().map(|blocks| blocks.filled()).sum();
                (former + blocks.filled()).saturating_mul(block_cells)
                    + self.open_packets.load(Ordering::Relaxed).min(block_cells)
            }
            Store::Frames(frames) => frames.filled(),
        }
    }

    fn arrived(&self) -> u64 {
        // A signal handler may call this, so it does not wait for the lock. While the close or a
        // move holds it, no packets arrive.
        if let Ok(kernel) = self.kernel.try_read() {
            self.counts.arrived.store(kernel.arrived(), Ordering::Relaxed);
        }
        self.counts.arrived.load(Ordering::Relaxed)
    }

    fn received(&self) -> Option<(u64, u64)> {
        let is_counted = !lock(&self.side).uncounted;
        self.count_losses(&self.kernel());
        let received = self.counts.received.load(Ordering::Relaxed);
        is_counted.then_some((received, received))
    }

    fn tally(&self) -> Tally {
        // As in `arrived`.
        if let Ok(kernel) = self.kernel.try_read() {
            self.count_losses(&kernel);
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Tally {
            delivered: count(&self.counts.delivered),
            arrived: self.arrived(),
            dropped: count(&self.counts.no_cell) + count(&self.counts.other),
        }
    }

    fn account(&self) -> Account {
        let side = lock(&self.side);
        self.count_losses(&self.kernel());

        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Account {
            filtered: (!side.uncounted).then_some(side.sieve.filtered()),
            dropped: Drops {
                no_cell: count(&self.counts.no_cell),
                other: count(&self.counts.other),
                ..Drops::default()
            },
            stalls: count(&self.counts.stalls),
            ..side.handed_out.account()
        }
        .balanced()
    }
}

impl OnPacketSocket for PacketRing {
    fn packet_socket(&self) -> Option<Arc<OwnedFd>> {
        self.kernel().socket.as_ref().map(PacketSocket::share)
    }

    fn keep_count(&self) {
        self.count_losses(&self.kernel());
    }
}

#[cfg(all(test, not(loom)))]
mod ring_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_ring_that_froze_was_out_of_blocks() {
        let taken = |drops, freezes| PacketCounts { packets: 100, drops, freezes };
        let told = |counts: &Counts| {
            [&counts.no_cell, &counts.other].map(|count| count.load(Ordering::Relaxed))
        };
        let counts = Counts::default();
        counts.add_losses(taken(3, 0), true);
        assert_eq!(told(&counts), [0, 3], "a ring that never froze had free blocks");
        counts.add_losses(taken(5, 1), true);
        assert_eq!(told(&counts), [5, 3]);

        // It may still be frozen; the kernel does not report the end of a freeze.
        counts.add_losses(taken(7, 0), true);
        assert_eq!(told(&counts), [12, 3]);

        let frames = Counts::default();
        frames.add_losses(taken(2, 0), false);
        assert_eq!(told(&frames), [2, 0], "the kernel counts no freezes of a ring of frames");
    }
}
