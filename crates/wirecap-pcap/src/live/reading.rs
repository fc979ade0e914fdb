//! Passes packets from the worker to the program. All functions require the handle's turn.
//!
//! The functions that run at each wake-up, here, in `read` and in the engine, are in a separate
//! section, so their code is on few adjacent pages: after a sleep the code is in no cache, and each
//! page is another miss.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use wirecap::filter::PacketType;
use wirecap::{BlockReader, CaptureError, CellReader, Chunk, Head, NextBlock, Packet, Worker};

use super::Live;
use super::batch::{Batch, Delivered};
use super::rest::Rest;
use crate::abi::{D_INOUT, D_OUT, PacketHeader};
use crate::failure::{cancel, caught, causes, guarded};
use crate::filter_slot::{Sieve, locked};
use crate::forks::SoleReader;
use crate::pollable::Pollable;
use crate::socket::{self, Health};

/// Packets that are read in place, where the kernel wrote them.
trait Heads {
    /// Passes the packets in this range of the current block or chunk to `each`; returns the index
    /// after the last one.
    fn for_each_head(&mut self, range: Range<u32>, each: impl FnMut(Head<'_>)) -> u32;
}

impl Heads for BlockReader {
    #[inline]
    fn for_each_head(&mut self, range: Range<u32>, each: impl FnMut(Head<'_>)) -> u32 {
        Self::for_each_head(self, range, each)
    }
}

impl Heads for CellReader {
    #[inline]
    fn for_each_head(&mut self, range: Range<u32>, each: impl FnMut(Head<'_>)) -> u32 {
        Self::for_each_head(self, range, each)
    }
}

/// The longest single wait of a read. After it, the read checks whether its thread was cancelled or
/// an interface that is down was removed. The read continues until there are packets or it is
/// interrupted, since libpcap's timeout applies after packets have arrived.
const AT_A_TIME: Duration = Duration::from_millis(250);
/// libpcap's error text for a removed interface, which programs compare.
const DISAPPEARED: &str = "The interface disappeared";

/// The error if another process has read from the handle since a fork.
const READ_ELSEWHERE: &str = "wirecap: another process has read from this handle since the fork; the engine xdp serves one process";

/// The state that reading changes. As in [`Live`], fields that every wake-up uses come first.
#[repr(C)]
pub(super) struct Reader {
    /// Reads the packets of the only ring in place.
    blocks: Option<InPlace>,
    /// The first packet of the current chunk or block that was neither delivered nor rejected.
    next: usize,
    /// The number of chunks and blocks so far.
    chunks: u64,
    /// The number of packets taken from the ring before the current chunk.
    before_chunk: u64,
    generation: u32,
    wanted: Option<Arc<Sieve>>,
    rest: Rest,
    /// Set if only one process can read.
    sole: Option<SoleReader>,
    /// The current chunk, unless packets are read in place.
    chunk: Option<Chunk>,
    /// The number of packets taken from each ring, if there may be several rings.
    got: Box<[u64]>,
    /// None only while the handle is being closed.
    pub(super) worker: Option<Worker>,
    /// A buffer for packets in the form that filters see.
    room: Vec<u8>,
    /// The header that `pcap_next_ex` returned last.
    header: PacketHeader,
    copy: Vec<u8>,
}

/// Reads a ring's contents in place: blocks of a packet socket, cells of an AF_XDP socket.
enum InPlace {
    Blocks(BlockReader),
    Cells(CellReader),
}

/// Which packets match, if not all do.
struct Choice<'a> {
    direction: c_int,
    /// The number of the chunk's packets that the filter applies to.
    until: u64,
    wanted: Option<&'a Sieve>,
}

/// The outcome of looking for packets.
#[derive(Debug)]
pub(crate) enum Found {
    Packets,
    Nothing,
    Broken,
    Failed(String),
}

impl Live {
    /// Filters packets of the current chunk until `batch` is full or has `limit` matching packets.
    /// Returns whether there is a chunk. A finished chunk is recycled.
    ///
    /// # Safety
    ///
    /// The caller must have the handle's turn, and no thread may use packets that an earlier read
    /// returned.
    #[inline]
    unsafe fn look<const N: usize>(&self, batch: &mut Batch<N>, limit: usize) -> bool {
        // SAFETY: the caller has the turn, and no other reference exists.
        let reader = unsafe { &mut *self.reader.get() };
        batch.disturbances = self.disturbances.load(Ordering::Acquire);

        let generation = self.filter.generation.load(Ordering::Acquire);
        if reader.generation != generation {
            reader.generation = generation;
            reader.wanted.clone_from(&locked(&self.filter.sieve));
        }

        let Some(ring) = reader.ring_in_hand() else { return false };

        if reader.chunk.is_none() && reader.is_exhausted() {
            reader.let_go();
            return false;
        }

        let direction = self.direction.load(Ordering::Relaxed);
        let sieve = reader.wanted.as_deref();
        let until = sieve.map_or(0, |sieve| sieve.until(ring).saturating_sub(reader.before_chunk));

        batch.clear();
        (batch.generation, batch.chunks, batch.is_sifted) = (generation, reader.chunks, false);

        let limit = limit.min(N);
        let wants_all = direction == D_INOUT && reader.next as u64 >= until;

        let Some(chunk) = &reader.chunk else {
            let all = wants_all && self.look_at_block(reader, batch, limit);
            if !all {
                self.give_back(reader);
            }
            return all;
        };

        if wants_all {
            self.look_at_all(chunk, reader.next, batch, limit);
        } else {
            batch.is_sifted = true;
            let choice = Choice { direction, until, wanted: sieve };
            self.look_for_wanted(chunk, reader.next, &choice, &mut reader.room, batch, limit);
        }

        if batch.is_empty() {
            self.refuse(batch.refused);
            reader.chunk = None;
        }

        true
    }

    /// Puts the next packets of the current block into `batch`, at most `limit`. Returns whether
    /// there were any.
    #[inline]
    fn look_at_block<const N: usize>(
        &self,
        reader: &mut Reader,
        batch: &mut Batch<N>,
        limit: usize,
    ) -> bool {
        let next = reader.next as u32;
        let range = next..next.saturating_add(limit as u32);

        let end = match &mut reader.blocks {
            Some(InPlace::Blocks(blocks)) => self.gather_in_place(blocks, range, batch),
            Some(InPlace::Cells(cells)) => self.gather_in_place(cells, range, batch),
            None => return false,
        };
        batch.end = end as usize;

        !batch.is_empty()
    }

    // Not inlined, like `look_at_all`: the loop needs the processor's registers. Each kind of
    // reader has its own instance.
    #[inline(never)]
    #[unsafe(link_section = "wirecap_wakeup")]
    fn gather_in_place<const N: usize>(
        &self,
        heads: &mut impl Heads,
        range: Range<u32>,
        batch: &mut Batch<N>,
    ) -> u32 {
        let snap_len = self.snap_len;
        let nanos = self.nanos;
        let mut after = range.start;
        let mut end = range.start;

        batch.extend(|places| {
            end = heads.for_each_head(range, |head| {
                after += 1;
                places.push(Delivered::new(&head, snap_len, nanos, after, 0));
            });
        });
        end
    }

    /// Returns the current block; the rest of it arrives as chunks.
    #[cold]
    fn give_back(&self, reader: &mut Reader) {
        let Some(blocks) = &mut reader.blocks else { return };
        let left = u64::from(blocks.len()).saturating_sub(reader.next as u64);
        blocks.put_back(reader.next as u32);
        if let Some(got) = reader.got.first_mut() {
            *got -= left;
        }
        self.taken.store(self.taken.load(Ordering::Relaxed) - left, Ordering::Relaxed);
    }

    /// Puts the next packets of `chunk` into `batch`, at most `limit`; all of them match.
    #[inline(never)]
    fn look_at_all<const N: usize>(
        &self,
        chunk: &Chunk,
        next: usize,
        batch: &mut Batch<N>,
        limit: usize,
    ) {
        let snap_len = self.snap_len;
        let nanos = self.nanos;
        batch.end = chunk.len().min(next + limit);

        let range = next..batch.end;
        let mut after = next as u32;
        batch.extend(|places| {
            chunk.for_each_head(range, |head| {
                after += 1;
                places.push(Delivered::new(&head, snap_len, nanos, after, 0));
            });
        });
    }

    /// Puts the matching packets of `chunk` from `next` on into `batch`.
    #[cold]
    fn look_for_wanted<const N: usize>(
        &self,
        chunk: &Chunk,
        mut next: usize,
        choice: &Choice<'_>,
        room: &mut Vec<u8>,
        batch: &mut Batch<N>,
        limit: usize,
    ) {
        while batch.len() < limit
            && let Some(packet) = chunk.get(next)
        {
            next += 1;
            if choice.direction != D_INOUT && !is_direction(&packet, choice.direction) {
                continue;
            }

            let kept = match choice.wanted {
                Some(sieve) if next as u64 <= choice.until => {
                    sieve.wanted.kept(&packet, self.device.index, room)
                }
                _ => u32::MAX,
            };
            if kept == 0 {
                batch.refused += 1;
                continue;
            }

            let longest = kept.min(self.snap_len);
            let refused = std::mem::take(&mut batch.refused);
            batch.extend(|places| {
                chunk.for_each_head(next - 1..next, |head| {
                    places.push(Delivered::new(&head, longest, self.nanos, next as u32, refused));
                });
            });
        }
        batch.end = next;
    }

    fn refuse(&self, packets: u32) {
        if packets > 0 {
            self.refused.fetch_add(packets.into(), Ordering::Relaxed);
        }
    }

    /// Records that the program gets `packet` now, so that the next read continues after it even if
    /// the callback does not return. `SIFTED` means that packets before it may have been rejected.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look), which returned the packet, and there must have been no read
    /// since.
    #[inline]
    pub(crate) unsafe fn hand_out<const SIFTED: bool>(&self, packet: &Delivered) {
        if SIFTED {
            self.refuse(packet.refused);
        }
        // SAFETY: the caller has the turn, and no other reference exists.
        unsafe { (*self.reader.get()).next = packet.after as usize };
    }

    /// Whether an event since `batch` was filtered may have invalidated it.
    #[inline]
    pub(crate) fn is_disturbed<const N: usize>(&self, batch: &Batch<N>) -> bool {
        self.disturbances.load(Ordering::Acquire) != batch.disturbances
    }

    /// Whether the rest of `batch` after `packet` is still valid: there was no later read, and
    /// filter and direction are the same.
    ///
    /// # Safety
    ///
    /// The caller must have the handle's turn.
    #[cold]
    pub(crate) unsafe fn goes_on<const N: usize>(
        &self,
        batch: &Batch<N>,
        packet: &Delivered,
    ) -> bool {
        // SAFETY: the caller has the turn, and no other reference exists.
        let reader = unsafe { &*self.reader.get() };
        reader.next == packet.after as usize
            && reader.chunks == batch.chunks
            && self.filter.generation.load(Ordering::Acquire) == batch.generation
    }

    /// Notes that all of `batch` was handed out.
    ///
    /// # Safety
    ///
    /// As for [`hand_out`](Self::hand_out).
    pub(crate) unsafe fn finish<const N: usize>(&self, batch: &Batch<N>) {
        self.refuse(batch.refused);
        // SAFETY: the caller has the turn, and no other reference exists.
        unsafe { (*self.reader.get()).next = batch.end };
    }

    /// The next matching packets, at most `limit`, without waiting.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    pub(crate) unsafe fn next_there<const N: usize>(
        &self,
        batch: &mut Batch<N>,
        limit: usize,
    ) -> Found {
        loop {
            if self.was_broken_off() {
                return Found::Broken;
            }

            // SAFETY: guaranteed by the caller.
            match caught(|| unsafe { self.look(batch, limit) }) {
                Ok(true) if !batch.is_empty() => return Found::Packets,
                Ok(_) => {}
                Err(panic) => return Found::Failed(panic),
            }

            // SAFETY: guaranteed by the caller.
            match unsafe { self.take_chunk_there() } {
                Ok(true) => {}
                Ok(false) => return Found::Nothing,
                Err(text) => return Found::Failed(text),
            }
        }
    }

    /// Hands out the next packet that [`look_ahead`](Self::look_ahead) found. `None` if none is
    /// left, or if they are no longer valid.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    #[inline]
    pub(crate) unsafe fn take_ahead(&self) -> Option<Delivered> {
        // SAFETY: the caller has the turn, and no other reference to either exists.
        let (reader, ahead) = unsafe { (&mut *self.reader.get(), &mut *self.ahead.get()) };
        let packet = *ahead.batch.packets().get(ahead.at)?;
        let stands = reader.next == ahead.from
            && reader.chunks == ahead.batch.chunks
            && reader.has_packets();
        let is_void = || self.filter.generation.load(Ordering::Acquire) != ahead.batch.generation;

        if !stands || is_void() || self.is_broken_off() {
            ahead.batch.clear();
            return None;
        }

        ahead.at += 1;
        ahead.from = packet.after as usize;
        reader.next = ahead.from;
        self.refuse(packet.refused);

        Some(packet)
    }

    /// Filters the next packets without waiting, for [`take_ahead`](Self::take_ahead).
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    pub(crate) unsafe fn look_ahead(&self) -> Found {
        // SAFETY: the caller has the turn, no other reference exists, and `next_there` makes none
        // to `ahead`.
        let ahead = unsafe { &mut *self.ahead.get() };
        // SAFETY: guaranteed by the caller.
        let found = unsafe { self.next_there(&mut ahead.batch, usize::MAX) };
        // SAFETY: as above.
        (ahead.at, ahead.from) = (0, unsafe { (*self.reader.get()).next });
        if !matches!(found, Found::Packets) {
            ahead.batch.clear();
        }
        found
    }

    /// Waits for packets, or only checks for them if the handle is nonblocking. Returns `Nothing`
    /// as an error if a nonblocking handle has no packets.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    #[unsafe(link_section = "wirecap_wakeup")]
    pub(crate) unsafe fn wait(&self) -> Result<(), Found> {
        // SAFETY: the caller has the turn.
        if unsafe { (*self.reader.get()).has_packets() } {
            return Ok(());
        }

        self.pollable.tell(false);

        loop {
            if self.was_broken_off() {
                return Err(Found::Broken);
            }

            let nonblocking = self.is_nonblocking();

            // SAFETY: guaranteed by the caller.
            let taken = unsafe {
                match nonblocking || self.looks_first() {
                    true => self.take_chunk_there(),
                    false => self.wait_for_chunk(),
                }
            };
            match taken {
                Ok(true) => return Ok(()),
                Ok(false) if nonblocking => return self.look_at_interface(),
                // SAFETY: guaranteed by the caller.
                Ok(false) if unsafe { self.pause()? } => return Ok(()),
                Ok(false) => {}
                Err(text) => return Err(Found::Failed(text)),
            }
        }
    }

    /// Whether a read looks for packets itself before it waits. Otherwise the worker looks and
    /// waits.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    unsafe fn looks_first(&self) -> bool {
        // SAFETY: the caller has the turn.
        matches!(self.pollable, Pollable::Socket(_))
            || unsafe { (*self.reader.get()).rest.is_allowed() }
    }

    /// Waits for a chunk; returns whether there was one.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    #[cold]
    unsafe fn wait_for_chunk(&self) -> Result<bool, String> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.take_chunk(|reader| guarded(|| reader.worker().next_chunk_timeout(AT_A_TIME)))
        }
    }

    /// Lets packets accumulate in a ring that was just emptied. If none have arrived since the last
    /// rest, waits for one instead; returns whether there was one.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    unsafe fn rest(&self) -> Result<bool, String> {
        // SAFETY: the caller has the turn, and no other reference exists.
        let reader = unsafe { &mut *self.reader.get() };
        if !reader.rest.is_allowed() {
            return Ok(false);
        }
        if reader.rest.is_calm() {
            reader.worker().skip_sleeps();
        }

        let Some(longest) = reader.rest.begin() else {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.wait_for_chunk() };
        };

        // The flag is checked again: if the program has the descriptor, the worker may have cleared
        // the wake-up of `break_off` since the last check.
        if !self.is_broken_off()
            && socket::wait([self.waker.as_fd().as_raw_fd()], Some(longest)) != [0]
        {
            let _ = rustix::io::read(&self.waker, &mut [0u8; 8]);
        }

        Ok(false)
    }

    /// Waits for some time or until there are packets, unless the worker has already waited.
    /// Returns whether packets are in hand.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    unsafe fn pause(&self) -> Result<bool, Found> {
        let Pollable::Socket(single) = &self.pollable else {
            // SAFETY: guaranteed by the caller.
            let found = unsafe { self.rest() }.map_err(Found::Failed)?;
            if !found {
                cancel::point();
            }
            return Ok(found);
        };
        let look = || match self.look_at_interface() {
            Err(found @ Found::Failed(_)) => Err(found),
            _ => Ok(()),
        };

        // An interface that went down may have been removed since: its socket reports only the
        // first of these events.
        if self.is_down() {
            look()?;
        }

        let longest = self.is_down().then_some(AT_A_TIME);
        if single.wait(longest) {
            look()?;
        }

        Ok(false)
    }

    /// Checks the interface when there are no packets: `Failed` if it was removed, otherwise
    /// `Nothing`.
    fn look_at_interface(&self) -> Result<(), Found> {
        let health = socket::health(self.sender.as_fd(), self.device.index, self.is_down());
        match health {
            Health::Gone => {
                self.down.store(true, Ordering::Relaxed);
                return Err(Found::Failed(DISAPPEARED.to_owned()));
            }
            Health::Down => self.down.store(true, Ordering::Relaxed),
            Health::Well => {}
        }
        Err(Found::Nothing)
    }

    /// Takes a block or chunk without waiting; returns whether there was one.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    #[unsafe(link_section = "wirecap_wakeup")]
    unsafe fn take_chunk_there(&self) -> Result<bool, String> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.pollable {
                Pollable::Socket(_) => match self.take_block() {
                    NextBlock::Packets(_) => Ok(true),
                    NextBlock::Nothing => Ok(false),
                    // The thread cannot be cancelled here, because this makes no system call that
                    // is a cancellation point.
                    NextBlock::Chunks => {
                        self.take_chunk(|reader| caught(|| reader.worker().try_next_chunk()))
                    }
                },
                // If the program does not poll and no buddies call for help, no wake-up needs to be
                // cleared.
                Pollable::Several(_) if self.membership.is_none() && !self.pollable.is_wanted() => {
                    match guarded(|| self.take_block())? {
                        NextBlock::Packets(_) => Ok(true),
                        NextBlock::Nothing => Ok(false),
                        NextBlock::Chunks => self.take_chunk(|reader| {
                            guarded(|| {
                                if reader.worker().is_idle() {
                                    Ok(None)
                                } else {
                                    reader.worker().try_next_chunk()
                                }
                            })
                        }),
                    }
                }
                Pollable::Several(_) => {
                    self.take_chunk(|reader| guarded(|| reader.worker().try_next_chunk()))
                }
            }
        }
    }

    /// Takes the next block, if blocks are read in place.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    #[inline]
    #[unsafe(link_section = "wirecap_wakeup")]
    unsafe fn take_block(&self) -> NextBlock {
        // SAFETY: the caller has the turn, and no other reference exists.
        let reader = unsafe { &mut *self.reader.get() };
        let Some(blocks) = &mut reader.blocks else { return NextBlock::Chunks };

        if reader.sole.as_mut().is_some_and(|sole| !sole.may_read()) {
            // `take_chunk` returns the error.
            return NextBlock::Chunks;
        }

        let next = blocks.open_next();
        if let NextBlock::Packets(packets) = next {
            self.took(reader, 0, packets as usize);
            reader.rest.took(packets as usize);
        }

        next
    }

    /// Records that packets of a ring are in hand.
    #[inline]
    fn took(&self, reader: &mut Reader, ring: usize, packets: usize) {
        // Only the thread that has the turn writes this counter.
        let before = self.taken.load(Ordering::Relaxed);
        self.taken.store(before + packets as u64, Ordering::Relaxed);
        self.down.store(false, Ordering::Relaxed);
        reader.before_chunk = before;
        if let Some(got) = reader.got.get_mut(ring) {
            reader.before_chunk = *got;
            *got += packets as u64;
        }
        reader.chunks += 1;
        reader.next = 0;
    }

    /// Takes a chunk with `get`; returns whether there was one.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    unsafe fn take_chunk(
        &self,
        get: impl FnOnce(&mut Reader) -> Result<Result<Option<Chunk>, CaptureError>, String>,
    ) -> Result<bool, String> {
        // SAFETY: the caller has the turn, and no other reference exists.
        let reader = unsafe { &mut *self.reader.get() };
        if reader.sole.as_mut().is_some_and(|sole| !sole.may_read()) {
            return Err(READ_ELSEWHERE.to_owned());
        }

        let chunk = get(reader)?.map_err(|error| match error {
            CaptureError::InterfaceGone { .. } => DISAPPEARED.to_owned(),
            error => causes(&error),
        })?;
        let Some(chunk) = chunk else { return Ok(false) };
        self.took(reader, chunk.ring_index(), chunk.len());
        reader.rest.took(chunk.len());
        reader.chunk = Some(chunk);

        Ok(true)
    }

    /// Called at the end of a read: returns the chunk if all of it was read, and sets whether the
    /// descriptor is readable.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    pub(crate) unsafe fn tidy(&self) {
        // SAFETY: the caller has the turn, and no other reference exists.
        let reader = unsafe { &mut *self.reader.get() };
        if reader.is_exhausted() {
            reader.let_go();
        }
        self.pollable.tell(reader.has_packets());
    }

    /// The address of the header that [`keep`](Self::keep) returned last.
    ///
    /// # Safety
    ///
    /// The caller must have the handle's turn.
    pub(crate) unsafe fn header(&self) -> *mut PacketHeader {
        // SAFETY: the caller has the turn, and no reference is made.
        unsafe { &raw mut (*self.reader.get()).header }
    }

    /// Keeps a packet valid until the next read, as `pcap_next` requires, and returns the chunk if
    /// this was its last packet.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look), and the packet must be the one that was handed out last.
    pub(crate) unsafe fn keep(&self, packet: &Delivered) -> (*mut PacketHeader, *const u8) {
        // SAFETY: the caller has the turn, and no other reference exists.
        let reader = unsafe { &mut *self.reader.get() };
        reader.header = packet.header;

        let mut data = packet.data;

        if reader.is_exhausted() {
            // SAFETY: the packet's bytes are in the chunk or block, which was not returned yet.
            let bytes =
                unsafe { std::slice::from_raw_parts(data, packet.header.captured_bytes as usize) };
            reader.copy.clear();
            reader.copy.extend_from_slice(bytes);
            data = reader.copy.as_ptr();
            reader.let_go();
        }

        self.pollable.tell(reader.has_packets());
        (&raw mut reader.header, data)
    }
}

impl InPlace {
    /// A reader of the ring of `worker`, if the ring can be read in place.
    fn of(worker: &Worker) -> Option<Self> {
        let blocks = worker.block_reader().map(Self::Blocks);
        blocks.or_else(|| worker.cell_reader().map(Self::Cells))
    }

    #[inline]
    fn open_next(&mut self) -> NextBlock {
        match self {
            Self::Blocks(blocks) => blocks.open_next(),
            Self::Cells(cells) => cells.open_next(),
        }
    }

    #[inline]
    fn len(&self) -> u32 {
        match self {
            Self::Blocks(blocks) => blocks.len(),
            Self::Cells(cells) => cells.len(),
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        match self {
            Self::Blocks(blocks) => blocks.is_empty(),
            Self::Cells(cells) => cells.is_empty(),
        }
    }

    #[inline]
    fn put_back(&mut self, next: u32) {
        match self {
            Self::Blocks(blocks) => blocks.put_back(next),
            Self::Cells(cells) => cells.put_back(next),
        }
    }
}

impl Reader {
    /// A reader of a capture with this number of rings.
    pub(super) fn new(worker: Worker, rings: usize, sole: Option<SoleReader>, rest: Rest) -> Self {
        Self {
            blocks: InPlace::of(&worker),
            worker: Some(worker),
            sole,
            rest,
            chunk: None,
            next: 0,
            wanted: None,
            generation: 0,
            chunks: 0,
            got: if rings > 1 { vec![0; rings].into() } else { Box::default() },
            before_chunk: 0,
            room: Vec::new(),
            header: PacketHeader::default(),
            copy: Vec::new(),
        }
    }

    fn worker(&mut self) -> &mut Worker {
        self.worker.as_mut().expect("an open handle has its worker")
    }

    /// Whether there are packets in hand, read or not.
    #[inline]
    fn has_packets(&self) -> bool {
        self.chunk.is_some() || self.blocks.as_ref().is_some_and(|blocks| !blocks.is_empty())
    }

    /// The ring whose packets are in hand.
    #[inline]
    fn ring_in_hand(&self) -> Option<usize> {
        let of_block = || self.blocks.as_ref().filter(|blocks| !blocks.is_empty()).map(|_| 0);
        self.chunk.as_ref().map(Chunk::ring_index).or_else(of_block)
    }

    /// Returns the current chunk or block after it was read.
    #[inline]
    fn let_go(&mut self) {
        self.chunk = None;
        if let Some(blocks) = &mut self.blocks {
            blocks.put_back(u32::MAX);
        }
    }

    #[inline]
    fn is_exhausted(&self) -> bool {
        match (&self.chunk, &self.blocks) {
            (Some(chunk), _) => self.next >= chunk.len(),
            (None, Some(blocks)) => !blocks.is_empty() && self.next >= blocks.len() as usize,
            (None, None) => false,
        }
    }
}

/// Whether a packet has this direction, which must be in or out.
fn is_direction(packet: &Packet<'_>, direction: c_int) -> bool {
    #[cfg(sabotage)]
    if crate::sabotage::is("direction-ignored") {
        let _ = (packet, direction);
        return true;
    }
    let is_sent = packet.packet_type() == Some(PacketType::Outgoing);
    is_sent == (direction == D_OUT)
}
