//! The blocks of a TPACKET_V3 ring: their contents, and their return to the kernel.
//!
//! The kernel fills the blocks in turn, numbers each when it opens it, and hands it over by its
//! status word. It opens a block only after the previous one in that place was returned; otherwise
//! it waits there, even if other blocks are free.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use crate::packet::frame::{self, BadFrame, Frame};
use crate::sieve::{Sieve, Sifted};
use crate::sys::memory::{LINE_BYTES, Mapping, prefetch};
use crate::sys::packet::BlockShape;
use crate::sys::xdp::Descriptor;
use crate::umem::chunk::records::{Stamps, packet_type};
use crate::umem::chunk::{CellOwner, Chunk, RingIdentity};
use crate::umem::recycle::{CellList, Spare};

/// Offsets in a block, whose description has `struct tpacket_hdr_v1` after two words.
mod place {
    use super::offset_of;

    const HEADER: usize = offset_of!(libc::tpacket_block_desc, hdr);
    pub(super) const STATUS: usize = HEADER + offset_of!(libc::tpacket_hdr_v1, block_status);
    pub(super) const PACKETS: usize = HEADER + offset_of!(libc::tpacket_hdr_v1, num_pkts);
    pub(super) const FIRST: usize = HEADER + offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt);
    /// The low half of the block's number.
    pub(super) const NUMBER: usize = HEADER
        + offset_of!(libc::tpacket_hdr_v1, seq_num)
        + if cfg!(target_endian = "big") { 4 } else { 0 };
}

/// A block's description.
type Description = [AtomicU32; size_of::<libc::tpacket_block_desc>() / size_of::<u32>()];

const _: () = assert!(size_of::<libc::tpacket_block_desc>() == 48);
const _: () = assert!(place::STATUS == 8 && place::PACKETS == 12 && place::FIRST == 16);
const _: () = assert!(offset_of!(libc::tpacket3_hdr, tp_next_offset) == 0);

/// How many packets ahead memory is prefetched: the number processed while it arrives.
const PACKETS_AHEAD: usize = 16;
/// The prefetched part of a packet: its header, and the bytes that programs read first.
const LINES_AHEAD: usize = 2;

/// Maximum number of recounts because a block was opened during a count.
const COUNT_ROUNDS_MAX: u32 = 8;

/// The kernel wrote an invalid value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadBlock {
    pub(crate) block: usize,
    pub(crate) frame: BadFrame,
}

impl fmt::Display for BadBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} has {}", self.block, self.frame)
    }
}

/// The state of the next block, or of one soon after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The kernel has not opened it.
    NotYet,
    /// The kernel is filling it and has stored this many packets.
    Filling(u32),
    /// The kernel has handed it over with this many packets.
    Filled(u32),
}

/// The next block to be opened, which the kernel has handed over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filled {
    /// The number of the next block when this one was found: blocks in between were taken by
    /// another process.
    last: u64,
    number: u64,
    packets: u32,
}

/// The blocks of one ring, shared with the kernel.
#[derive(Debug)]
pub(crate) struct Blocks {
    mapping: Mapping,
    shape: BlockShape,
    /// The number of the block that is next to be opened; the kernel counts from 1.
    next: AtomicU64,
    /// Number of packets in all blocks before the next one, for even and for odd block numbers: the
    /// count for a block is written before it becomes the next one, so a signal handler finds
    /// number and count consistent.
    before: [AtomicU64; 2],
    /// Number of holders of each block: chunks, and the code that takes packets out. The last one
    /// returns the block.
    holders: Box<[AtomicU32]>,
    /// Number of blocks with holders.
    held: AtomicU32,
    /// The kernel stores no more packets.
    ended: AtomicBool,
    /// The list of the last dropped chunk, for reuse.
    spare: Spare,
}

impl Blocks {
    /// The blocks of a new ring of this shape.
    pub(crate) fn new(mapping: Mapping, shape: BlockShape) -> Self {
        assert!(shape.ring_bytes() <= mapping.bytes(), "the ring is larger than its mapping");
        assert!(
            (shape.block_bytes as usize).is_multiple_of(rustix::param::page_size()),
            "blocks are pages"
        );
        let holders = (0..shape.blocks).map(|_| AtomicU32::new(0)).collect();
        let next = AtomicU64::new(1);
        let ended = AtomicBool::new(false);
        let spare = Spare::new();
        let before = [const { AtomicU64::new(0) }; 2];
        Self { mapping, shape, next, before, holders, held: AtomicU32::new(0), ended, spare }
    }

    /// Opens the next block, if the kernel has handed it over. Each is opened once.
    #[inline]
    pub(crate) fn open_next(self: &Arc<Self>) -> Option<OpenBlock> {
        self.open(self.next_filled()?)
    }

    /// Opens the block that was the next one, unless another thread has opened it meanwhile.
    #[inline]
    #[unsafe(link_section = "wirecap_wakeup")]
    pub(crate) fn open(self: &Arc<Self>, block: Filled) -> Option<OpenBlock> {
        let Filled { last, number, packets: left } = block;
        let packets = self.before(last).load(Ordering::Relaxed) + u64::from(left);

        // While blocks are skipped, a signal handler may briefly read the wrong one of the two
        // counts.
        self.before(number + 1).store(packets, Ordering::Relaxed);
        self.next.compare_exchange(last, number + 1, Ordering::Release, Ordering::Relaxed).ok()?;

        let index = self.index_of(number);
        self.hold(index);

        let start = self.start(index);
        let first = self.word(index, place::FIRST).load(Ordering::Relaxed) as usize;
        self.fetch_first(start, first, left);

        let rest = start + size_of::<libc::tpacket_block_desc>();
        Some(OpenBlock {
            blocks: Arc::clone(self),
            index,
            rest,
            next: start + first,
            left,
            packets: left,
        })
    }

    /// Prefetches the first `packets` of the block at `start`, whose first one is at `first`:
    /// [`fetch_ahead`] begins behind them.
    #[inline]
    fn fetch_first(&self, start: usize, first: usize, packets: u32) {
        let is_in_block =
            first + size_of::<libc::tpacket3_hdr>() <= self.shape.block_bytes as usize;
        if !is_in_block || !first.is_multiple_of(align_of::<u32>()) {
            return;
        }
        // SAFETY: `at` checked that the word, which is the header's first, lies in the mapping and
        // is aligned; the block was handed over.
        let distance = unsafe { self.mapping.at::<u32>(start + first, 1).read() } as usize;
        let base = self.mapping.base();
        let others = (packets as usize).saturating_sub(1);
        (1..=others.min(PACKETS_AHEAD))
            .for_each(|ahead| fetch(base, start + first, ahead, distance));
    }

    /// How many blocks there are.
    pub(crate) fn count(&self) -> u32 {
        self.shape.blocks
    }

    /// Whether the kernel has handed over the block that is next to be opened.
    #[inline]
    pub(crate) fn is_next_filled(&self) -> bool {
        self.next_filled().is_some()
    }

    /// The block that is next to be opened, if the kernel has handed it over.
    #[inline]
    pub(crate) fn next_filled(&self) -> Option<Filled> {
        let last = self.next.load(Ordering::Relaxed);
        let (number, Turn::Filled(packets)) = self.next_turn(last) else { return None };
        Some(Filled { last, number, packets })
    }

    /// The next block to be opened from block `number` on, and its state. Blocks taken by another
    /// process, which shares the ring after a fork, are skipped.
    #[inline]
    fn next_turn(&self, mut number: u64) -> (u64, Turn) {
        loop {
            match self.turn(number) {
                Turn::NotYet if let Some(latest) = self.latest_in_place_of(number) => {
                    number = self.next_after_taken(number, latest);
                }
                turn => return (number, turn),
            }
        }
    }

    /// The number of the block that the kernel has opened in the place of block `number`, if it is
    /// a later one: another process has taken that block and returned it. Until the kernel opens a
    /// later one, the block looks like one that the kernel is filling, and libpcap waits as well.
    #[inline]
    fn latest_in_place_of(&self, number: u64) -> Option<u64> {
        let found = self.word(self.index_of(number), place::NUMBER).load(Ordering::Relaxed);
        let ahead = found.wrapping_sub(number as u32).cast_signed();
        (ahead > 0).then(|| number + u64::from(ahead.unsigned_abs()))
    }

    /// The position to continue from if another process has taken block `number`, and `latest` is
    /// in its place.
    #[cold]
    fn next_after_taken(&self, number: u64, latest: u64) -> u64 {
        let oldest = (latest + 1).saturating_sub(self.shape.blocks.into()).max(number + 1);
        // The other process may also have taken blocks in between.
        let filled = (oldest..latest).find(|&later| matches!(self.turn(later), Turn::Filled(_)));
        filled.unwrap_or(latest)
    }

    /// Number of blocks that the kernel has handed over and that were not opened yet.
    pub(crate) fn filled(&self) -> u32 {
        let next = self.next.load(Ordering::Relaxed);
        let is_filled = |ahead: u32| matches!(self.turn(next + u64::from(ahead)), Turn::Filled(_));
        let mut filled = 0;
        let mut limit = self.shape.blocks;
        // Blocks are filled in turn, so the filled ones come first.
        while filled < limit {
            let middle = filled + (limit - filled) / 2;
            if is_filled(middle) { filled = middle + 1 } else { limit = middle }
        }
        filled
    }

    /// Number of blocks that the kernel does not own, because they are open or chunks hold them.
    pub(crate) fn held(&self) -> u32 {
        self.held.load(Ordering::Relaxed)
    }

    /// Takes the block that the kernel is filling, if it has packets, as if it had been handed
    /// over.
    ///
    /// # Safety
    ///
    /// The kernel must have written its last packet into these blocks.
    pub(crate) unsafe fn end(&self) {
        // Release pairs with the acquire in `turn`: a thread that sees the end sees the packets.
        self.ended.store(true, Ordering::Release);
    }

    /// Packets in blocks that were not opened yet.
    pub(crate) fn waiting(&self) -> u64 {
        let packets = |number| match self.turn(number) {
            Turn::NotYet => None,
            Turn::Filling(packets) | Turn::Filled(packets) => Some(u64::from(packets)),
        };
        let next = self.next.load(Ordering::Relaxed);
        (next..next + u64::from(self.shape.blocks)).map_while(packets).sum()
    }

    /// Packets in all blocks, opened or not: without a lock, for signal handlers too.
    pub(crate) fn arrived(&self) -> u64 {
        let mut packets = 0;
        // If another thread opens blocks meanwhile, the count is repeated some times; a thread that
        // a signal handler interrupted opens none.
        for _ in 0..COUNT_ROUNDS_MAX {
            let next = self.next.load(Ordering::Acquire);
            packets = self.before(next).load(Ordering::Relaxed) + self.waiting();
            fence(Ordering::Acquire);
            if self.next.load(Ordering::Relaxed) == next {
                break;
            }
        }
        packets
    }

    /// The counter of the packets in all blocks before block `number`.
    #[inline]
    fn before(&self, number: u64) -> &AtomicU64 {
        &self.before[(number & 1) as usize]
    }

    /// Where block `number` stands.
    #[inline]
    fn turn(&self, number: u64) -> Turn {
        let description = self.description(self.index_of(number));
        let word = |place: usize| &description[place / size_of::<u32>()];
        let is_its_turn = |order| word(place::NUMBER).load(order) == number as u32;

        // A block that was not returned still has the status and the number of its last turn.
        // Acquire: the kernel numbers a block after it has seen that it was returned, so having
        // seen the number, we do not see an earlier status.
        if !is_its_turn(Ordering::Acquire) {
            return Turn::NotYet;
        }

        // Acquire pairs with the barrier that the kernel puts before it hands a block over: having
        // seen the status, we see the packets.
        let status = word(place::STATUS).load(Ordering::Acquire);

        // Another process that shares the ring may have taken it meanwhile, and the kernel may be a
        // turn ahead.
        if !is_its_turn(Ordering::Relaxed) {
            return Turn::NotYet;
        }

        let packets = word(place::PACKETS).load(Ordering::Relaxed);
        let is_last = || packets > 0 && self.ended.load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER != 0 || is_last() {
            return Turn::Filled(packets);
        }

        Turn::Filling(packets)
    }

    /// Releases the kernel's side, which the mapping keeps alive. Chunks and open blocks keep their
    /// packets.
    pub(crate) fn cut_loose(&self) {
        let is_held = |index: &usize| self.holders[*index].load(Ordering::Acquire) > 0;
        let held = (0..self.holders.len()).filter(is_held).flat_map(|index| {
            let start = self.start(index);
            let packets = start + size_of::<libc::tpacket_block_desc>()
                ..start + self.shape.block_bytes as usize;
            // Where the packets begin, for `go_to`.
            [start + place::FIRST..start + place::FIRST + size_of::<u32>(), packets]
        });

        // If there is no memory for it, the mapping stays unchanged, on a socket that gets no
        // packets. SAFETY: packets of chunks are only read, and so is the position of the first
        // one; the status of a block, which is written, is not in the ranges, and the kernel need
        // not see it.
        let _ = unsafe { self.mapping.cut_loose(held) };
    }

    #[inline]
    fn hold(&self, index: usize) {
        if self.holders[index].fetch_add(1, Ordering::Relaxed) == 0 {
            self.held.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn let_go(&self, index: usize) {
        // AcqRel: all accesses of the other holders to the block precede its return.
        if self.holders[index].fetch_sub(1, Ordering::AcqRel) == 1 {
            self.held.fetch_sub(1, Ordering::Relaxed);
            self.word(index, place::STATUS).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
    }

    #[inline]
    fn index_of(&self, number: u64) -> usize {
        ((number - 1) % u64::from(self.shape.blocks)) as usize
    }

    #[inline]
    fn start(&self, index: usize) -> usize {
        index * self.shape.block_bytes as usize
    }

    #[inline]
    fn word(&self, index: usize, place: usize) -> &AtomicU32 {
        &self.description(index)[place / size_of::<u32>()]
    }

    /// The words of a block's description.
    #[inline]
    fn description(&self, index: usize) -> &Description {
        // SAFETY: `at` checked that the description lies in the mapping, which lives as long as
        // `self`, and is aligned; it is only accessed atomically.
        unsafe { self.mapping.at::<Description>(self.start(index), 1).as_ref() }
    }
}

// SAFETY: the mapping lives as long as the value, and is exchanged only for one with the same
// packets. `Taken::into_chunk` is the only one to make chunks with this owner: every packet was
// checked, and the block is held for the chunk until `recycle`.
unsafe impl CellOwner for Blocks {
    fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    fn recycle(&self, list: Box<CellList>) {
        let first = list.cells.first().expect("no chunk is empty");
        self.let_go(first.address as usize / self.shape.block_bytes as usize);
        self.spare.put(list);
    }
}

/// A block from which packets are taken. After it is dropped, it returns to the kernel as soon as
/// no chunk holds it.
#[derive(Debug)]
pub(crate) struct OpenBlock {
    blocks: Arc<Blocks>,
    index: usize,
    /// The start of the part that was not taken yet, from the first block's start.
    rest: usize,
    /// The position of the next packet's header, according to the kernel.
    next: usize,
    /// How many packets were not taken yet.
    left: u32,
    /// How many there were.
    packets: u32,
}

impl OpenBlock {
    /// How many packets were not taken yet.
    pub(crate) fn left(&self) -> u32 {
        self.left
    }

    /// How many packets it has, taken or not.
    pub(crate) fn packets(&self) -> u32 {
        self.packets
    }

    /// Moves to the packet at `index`, counted from the block's first one, regardless of taken
    /// packets; no chunk may have any of them.
    #[cold]
    pub(crate) fn go_to(&mut self, index: u32) {
        let start = self.blocks.start(self.index);
        let first = self.blocks.word(self.index, place::FIRST).load(Ordering::Relaxed) as usize;
        self.rest = start + size_of::<libc::tpacket_block_desc>();
        (self.next, self.left) = (start + first, self.packets);
        self.pass(index, |_, _| ());
    }

    /// Passes the packets up to index `end` and their headers to `each`. Returns where it stopped:
    /// at the end, or at a packet with an invalid header.
    #[inline]
    pub(crate) fn pass(&mut self, end: u32, mut each: impl FnMut(NonNull<u8>, &Frame)) -> u32 {
        let base = self.blocks.mapping.base();
        let room_end = self.blocks.start(self.index) + self.blocks.shape.block_bytes as usize;
        let mut rest = self.rest;
        let mut next = self.next;
        let packets = self.packets;
        let mut index = packets - self.left;

        while index < end.min(packets) {
            // SAFETY: the range is a part of a block that was handed over and is held, so it is
            // mapped, and neither the kernel nor a chunk has it.
            let Ok(frame) = (unsafe { frame::read(base, &(rest..room_end), next) }) else { break };
            fetch_ahead(base, frame.next, frame.next.wrapping_sub(next));
            // SAFETY: `frame::read` found the header there.
            each(unsafe { base.add(next) }, &frame);
            (rest, next) = (frame.end, frame.next);
            index += 1;
        }

        (self.rest, self.next, self.left) = (rest, next, packets - index);
        index
    }

    /// Whether packets were lost before this block that the counts do not include yet.
    #[inline]
    pub(crate) fn is_losing(&self) -> bool {
        let status = self.blocks.word(self.index, place::STATUS).load(Ordering::Relaxed);
        status & libc::TP_STATUS_LOSING != 0
    }

    /// Takes up to `count` packets out that the sieve accepts. Those longer than `longest` bytes
    /// are super-packets.
    #[inline]
    pub(crate) fn take(&mut self, count: u32, longest: u32, sieve: &mut Sieve) -> Taken<'_> {
        let count = count.min(self.left) as usize;
        let list = self.blocks.spare.list(count);
        let mut taken = Taken { block: self, list, bytes: 0, super_packets: 0, bad: None };
        // Usually every packet is accepted, and no packet is examined.
        taken.bad = match sieve.is_idle() {
            true => taken.add(count, longest, |_, _| true),
            false => taken.add(count, longest, |base, frame| is_wanted(base, frame, sieve)),
        };
        taken
    }
}

impl Drop for OpenBlock {
    #[inline]
    fn drop(&mut self) {
        self.blocks.let_go(self.index);
    }
}

/// The properties of a ring's packets besides their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Labels {
    /// When they arrived.
    pub(crate) timestamps: bool,
    /// Their receive queue: the ring's number.
    pub(crate) by_queue: bool,
    /// Their interfaces, by number.
    pub(crate) numbered: bool,
}

impl Labels {
    pub(crate) fn stamps(self) -> Stamps {
        let Self { timestamps, by_queue, numbered } = self;
        Stamps::Header { told: timestamps, by_queue, numbered }
    }
}

/// The packets taken out of a block.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    block: &'a mut OpenBlock,
    list: Box<CellList>,
    /// Bytes of the packets on the wire.
    pub(crate) bytes: u64,
    /// Packets longer than the interface's longest frame.
    pub(crate) super_packets: u64,
    /// Why there are fewer than requested: the kernel's offsets are invalid from here on.
    pub(crate) bad: Option<BadBlock>,
}

impl Taken<'_> {
    /// Adds the next matching packets, up to `count` of all; returns why there are no more.
    #[inline]
    fn add(
        &mut self,
        count: usize,
        longest: u32,
        mut accepts: impl FnMut(NonNull<u8>, &Frame) -> bool,
    ) -> Option<BadBlock> {
        let block = &mut *self.block;
        let base = block.blocks.mapping.base();
        let end = block.blocks.start(block.index) + block.blocks.shape.block_bytes as usize;
        let mut rest = block.rest;
        let mut next = block.next;
        let mut left = block.left;
        let mut bytes = 0;
        let mut super_packets = 0;
        let mut len = 0;
        let mut bad = None;

        // Written in place, because `push` checks the capacity for each packet.
        let places = &mut self.list.cells.spare_capacity_mut()[..count];

        while left > 0 && len < count {
            // SAFETY: the range is the rest of a block that was handed over and is held, so it is
            // mapped, and neither the kernel nor a chunk has it.
            let frame = match unsafe { frame::read(base, &(rest..end), next) } {
                Ok(frame) => frame,
                Err(frame) => {
                    bad = Some(BadBlock { block: block.index, frame });
                    break;
                }
            };
            fetch_ahead(base, frame.next, frame.next.wrapping_sub(next));
            (rest, next) = (frame.end, frame.next);
            left -= 1;

            if accepts(base, &frame) {
                bytes += u64::from(frame.wire_len);
                super_packets += u64::from(frame.wire_len > longest);
                places[len].write(frame.descriptor);
                len += 1;
            }
        }

        (block.rest, block.next, block.left) = (rest, next, left);
        (self.bytes, self.super_packets) = (bytes, super_packets);

        // SAFETY: the list was empty, and this number of entries was written from its start on.
        unsafe { self.list.cells.set_len(len) };
        bad
    }

    /// The packets, and what their addresses count from.
    pub(crate) fn cells(&self) -> (NonNull<u8>, &[Descriptor]) {
        (self.block.blocks.mapping.base(), &self.list.cells)
    }

    /// How many packets were taken.
    pub(crate) fn len(&self) -> usize {
        self.list.cells.len()
    }

    /// A chunk of the packets, of which there is at least one.
    pub(crate) fn into_chunk(
        mut self,
        ring: Arc<RingIdentity>,
        labels: Labels,
        sequence: u64,
        offloaded: bool,
    ) -> Chunk {
        self.list.wire_bytes = self.bytes;
        let owner = Arc::clone(&self.block.blocks);
        owner.hold(self.block.index);
        let stamps = labels.stamps();
        // SAFETY: `frame::read` checked each packet, which has its header as far in front of it as
        // its descriptor says; the block was just held for the chunk.
        unsafe { Chunk::new(self.list, owner, ring, stamps, sequence, offloaded) }
    }
}

/// Prefetches a packet some packets after the one at `next`, assuming that all have the same
/// distance as the last two. Only the previous packet's header contains a packet's position, so
/// without prefetching each packet would be a separate cache miss.
#[inline]
fn fetch_ahead(base: NonNull<u8>, next: usize, distance: usize) {
    fetch(base, next, PACKETS_AHEAD, distance);
}

/// Prefetches a packet that is `packets` behind the one at `offset`.
#[inline]
fn fetch(base: NonNull<u8>, offset: usize, packets: usize, distance: usize) {
    let place = base.as_ptr().wrapping_add(offset).wrapping_add(distance.wrapping_mul(packets));
    for line in 0..LINES_AHEAD {
        prefetch(place.wrapping_add(line * LINE_BYTES));
    }
}

/// Whether the sieve accepts a packet that was [read](frame::read) relative to `base` and that we
/// own.
pub(super) fn is_wanted(base: NonNull<u8>, frame: &Frame, sieve: &mut Sieve) -> bool {
    let Descriptor { address, len, .. } = frame.descriptor;
    let mac = frame.descriptor.header_distance();
    // SAFETY: `frame::read` found that the packet and its header lie in the block.
    let (data, packet_type) = unsafe {
        let start = base.add(address as usize);
        (
            slice::from_raw_parts(start.as_ptr(), len as usize),
            packet_type(start.sub(mac as usize), mac),
        )
    };
    sieve.accepts(1, &Sifted { data, wire_len: frame.wire_len, tagged: frame.tagged, packet_type })
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use std::collections::VecDeque;
    use std::os::fd::OwnedFd;
    use std::sync::mpsc::{self, TryRecvError};
    use std::thread;

    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::names::RingName;

    const SHAPE: BlockShape = BlockShape { block_bytes: 4096, blocks: 4 };
    const LABELS: Labels = Labels { timestamps: true, by_queue: false, numbered: false };

    /// The kernel's half of a ring: it opens blocks in turn, and waits for a block that was not
    /// returned.
    pub(in crate::packet) struct Kernel {
        mapping: Mapping,
        begun: u64,
        lost: u64,
    }

    /// A packet as the kernel has it: its bytes without the removed tag, and the tag.
    #[derive(Clone)]
    struct Given {
        data: Vec<u8>,
        tag: Option<(u16, u16)>,
    }

    pub(in crate::packet) fn ring() -> (Arc<Blocks>, Kernel) {
        let file: OwnedFd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, SHAPE.ring_bytes() as u64).unwrap();
        let map = || Mapping::of(&file, SHAPE.ring_bytes(), 0).unwrap();
        (Arc::new(Blocks::new(map(), SHAPE)), Kernel { mapping: map(), begun: 0, lost: 0 })
    }

    impl Kernel {
        fn write<T>(&self, offset: usize, value: T) {
            // SAFETY: `at` checked the place; the tests run both halves on one thread.
            unsafe { self.mapping.at::<T>(offset, 1).write(value) }
        }

        /// Fills the next block with `packets` and hands it over, or drops them.
        fn hand_over(&mut self, packets: &[Given]) {
            let start = (self.begun % 4) as usize * 4096;

            // SAFETY: as in `write`.
            let status = unsafe { self.mapping.at::<u32>(start + place::STATUS, 1).read() };
            if status != libc::TP_STATUS_KERNEL {
                self.lost += packets.len() as u64;
                return;
            }

            self.begun += 1;
            self.write(start + place::NUMBER, self.begun);
            self.write(start + place::PACKETS, packets.len() as u32);
            self.write(start + place::FIRST, 48_u32);

            let mut offset = 48;
            for packet in packets {
                offset += self.put(start + offset, packet);
            }

            self.write(start + place::STATUS, libc::TP_STATUS_USER);
        }

        /// Hands a block over with this many packets, of which only the first `valid` have a valid
        /// header.
        pub(in crate::packet) fn hand_over_broken(&mut self, packets: usize, valid: usize) {
            let start = (self.begun % 4) as usize * 4096;
            self.hand_over(&vec![plain(60); packets]);
            if valid < packets {
                let header = start + 48 + valid * 144;
                // SAFETY: `hand_over` has just written a header there.
                unsafe { self.mapping.at::<libc::tpacket3_hdr>(header, 1).as_mut().tp_mac = 0 };
            }
        }

        /// Writes a packet and gives the length of its place.
        fn put(&self, place: usize, packet: &Given) -> usize {
            const MAC: usize = 82;
            let room = (MAC + packet.data.len()).next_multiple_of(8);

            // SAFETY: integers, of which 0 is a value.
            let mut header: libc::tpacket3_hdr = unsafe { std::mem::zeroed() };
            header.tp_next_offset = room as u32;
            (header.tp_sec, header.tp_nsec) = (7, place as u32);
            (header.tp_len, header.tp_snaplen) =
                (packet.data.len() as u32 + 100, packet.data.len() as u32);
            header.tp_mac = MAC as u16;

            if let Some((tpid, tci)) = packet.tag {
                header.tp_status = libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
                (header.hv1.tp_vlan_tpid, header.hv1.tp_vlan_tci) = (tpid, tci.into());
            }

            self.write(place, header);
            packet.data.iter().enumerate().for_each(|(n, byte)| self.write(place + MAC + n, *byte));

            room
        }
    }

    fn plain(bytes: usize) -> Given {
        Given { data: (0..bytes).map(|n| n as u8).collect(), tag: None }
    }

    fn identity() -> Arc<RingIdentity> {
        let name = RingName::of_queue("test", 0);
        Arc::new(RingIdentity {
            name,
            index: 0,
            interface_index: 0,
            snap_len: 4096,
            link_type: crate::savefile::LinkType::ETHERNET,
            order: Default::default(),
        })
    }

    fn chunk(block: &mut OpenBlock, count: u32) -> Chunk {
        block.take(count, 200, &mut Sieve::default()).into_chunk(identity(), LABELS, 0, false)
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no memfd")]
    fn packets_come_out_with_their_tags_lengths_and_times() {
        let (blocks, mut kernel) = ring();
        assert!(blocks.open_next().is_none() && !blocks.is_next_filled());

        let tagged = Given { tag: Some((0x88a8, 0x2007)), ..plain(60) };
        kernel.hand_over(&[plain(60), tagged, plain(1), plain(150)]);
        assert_eq!((blocks.filled(), blocks.waiting(), blocks.is_next_filled()), (1, 4, true));
        assert_eq!(blocks.arrived(), 4);

        let mut block = blocks.open_next().unwrap();
        let taken = block.take(3, 200, &mut Sieve::default());
        assert_eq!((taken.len(), taken.bytes, taken.super_packets), (3, 160 + 164 + 101, 0));

        let first = taken.into_chunk(identity(), LABELS, 0, false);
        assert_eq!(block.left(), 1);

        let taken = block.take(3, 200, &mut Sieve::default());
        assert_eq!((taken.len(), taken.super_packets, taken.bad), (1, 1, None));
        drop(taken);

        let bytes: Vec<u8> = (0..60).collect();
        let with_tag = [&bytes[..12], &[0x88, 0xa8, 0x20, 7], &bytes[12..]].concat();
        assert!(first.iter().map(|packet| packet.data()).eq([&bytes[..], &with_tag, &[0]]));
        assert!(first.iter().map(|packet| packet.wire_len()).eq([160, 164, 101]));
        assert!(first.iter().all(|packet| packet.timestamp().unwrap().unix_seconds() == 7));
        assert!(first.iter().all(|packet| packet.queue().is_none()));
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no memfd")]
    fn packets_are_passed_in_place_from_any_of_them_on() {
        let (blocks, mut kernel) = ring();
        let tagged = Given { tag: Some((0x88a8, 0x2007)), ..plain(60) };
        kernel.hand_over(&[plain(60), tagged, plain(1), plain(150)]);

        let lens = |block: &mut OpenBlock, end| {
            let mut lens = Vec::new();
            let stopped = block.pass(end, |_, frame| lens.push(frame.descriptor.len));
            (lens, stopped, block.left())
        };
        let mut block = blocks.open_next().unwrap();
        assert_eq!(lens(&mut block, 2), (vec![60, 64], 2, 2));
        assert_eq!(lens(&mut block, 9), (vec![1, 150], 4, 0));

        for (place, expected) in [(0, vec![60, 64, 1, 150]), (1, vec![64, 1, 150]), (4, vec![])] {
            block.go_to(place);
            assert_eq!(lens(&mut block, 4), (expected, 4, 0));
        }

        block.go_to(0);

        // An invalid header ends it, from the start and from that packet.
        kernel.write(48 + 144 + 144 + offset_of!(libc::tpacket3_hdr, tp_snaplen), u32::MAX);
        assert_eq!(lens(&mut block, 4), (vec![60, 64], 2, 2));
        assert_eq!(lens(&mut block, 4), (vec![], 2, 2));
        drop(block);
        assert!(blocks.open_next().is_none() && blocks.filled() == 0, "it is the kernel's again");
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no memfd")]
    fn a_block_returns_to_the_kernel_when_its_last_chunk_is_dropped() {
        let (blocks, mut kernel) = ring();
        (0..5).for_each(|_| kernel.hand_over(&vec![plain(60); 2]));
        assert_eq!((blocks.filled(), kernel.lost), (4, 2));

        let mut block = blocks.open_next().unwrap();
        let first = chunk(&mut block, 1);
        let second = chunk(&mut block, 1);

        drop((block, first));
        kernel.hand_over(&[plain(60)]);
        assert_eq!(kernel.lost, 3, "the second chunk holds the block");
        drop(second);
        kernel.hand_over(&[plain(61)]);
        assert_eq!((kernel.lost, blocks.filled()), (3, 4));

        let lens: Vec<u32> =
            std::iter::from_fn(|| blocks.open_next()).map(|block| block.left()).collect();
        assert_eq!(lens, [2, 2, 2, 1]);
        assert!(blocks.open_next().is_none(), "returned blocks are not opened twice");
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no memfd")]
    fn a_held_block_does_not_count_as_new_when_others_return() {
        let (blocks, mut kernel) = ring();
        kernel.hand_over(&[plain(60)]);

        let held = chunk(&mut blocks.open_next().unwrap(), 1);

        for _ in 0..3 {
            kernel.hand_over(&[plain(60)]);
            drop(blocks.open_next().unwrap());
        }

        kernel.hand_over(&[plain(60)]);
        assert_eq!((kernel.lost, blocks.filled(), blocks.waiting()), (1, 0, 0));
        assert!(blocks.open_next().is_none());
        drop(held);
        kernel.hand_over(&[plain(60)]);
        assert_eq!((kernel.lost, blocks.filled()), (1, 1));
    }

    /// The reader looks at the next block without a pause while the kernel, which waited for it,
    /// begins it.
    #[test]
    #[cfg_attr(miri, ignore = "miri has no memfd")]
    fn a_block_begun_during_the_check_does_not_count_as_filled() {
        const LAPS: u64 = 20_000;
        let (blocks, kernel) = ring();
        let packets = |number: u64| 1 + (number % 7) as u32;
        let (give_back, given_back) = mpsc::channel::<OpenBlock>();

        // Without a pause while the other thread runs; if it has no processor, this thread gives
        // its own up.
        let pause = |looks: &mut u32| {
            *looks += 1;
            if looks.is_multiple_of(10_000) { thread::yield_now() } else { std::hint::spin_loop() }
        };
        let fill = move || {
            let mut held = VecDeque::new();
            let mut looks = 0;

            for number in 1..=LAPS {
                let start = ((number - 1) % 4) as usize * 4096;

                // SAFETY: a block's description is only accessed atomically here and in `Blocks`.
                let word =
                    |place| unsafe { kernel.mapping.at::<AtomicU32>(start + place, 1).as_ref() };
                while word(place::STATUS).load(Ordering::Acquire) != libc::TP_STATUS_KERNEL {
                    match given_back.try_recv() {
                        Ok(block) => held.push_back(block),
                        Err(TryRecvError::Empty) => pause(&mut looks),
                        Err(TryRecvError::Disconnected) => return,
                    }
                    if held.len() == 4 {
                        held.pop_front();
                    }
                }

                word(place::NUMBER).store(number as u32, Ordering::Relaxed);
                word(place::PACKETS).store(0, Ordering::Relaxed);
                word(place::FIRST).store(48, Ordering::Relaxed);
                word(place::PACKETS).store(packets(number), Ordering::Relaxed);
                word(place::STATUS).store(libc::TP_STATUS_USER, Ordering::Release);
            }
        };
        thread::scope(|scope| {
            scope.spawn(fill);

            // Dropped here, so that a failure ends the other thread.
            let give_back = give_back;
            let mut looks = 0;

            for number in 1..=LAPS {
                let block = loop {
                    match blocks.open_next() {
                        Some(block) => break block,
                        None => pause(&mut looks),
                    }
                };
                assert_eq!(block.left(), packets(number), "block {number}");

                // The last ones may return after the kernel's thread has ended.
                let _ = give_back.send(block);
            }
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no memfd")]
    fn blocks_that_another_process_took_are_passed_over() {
        let (blocks, mut kernel) = ring();
        let take_elsewhere = |kernel: &Kernel, index: usize| {
            kernel.write(index * 4096 + place::STATUS, libc::TP_STATUS_KERNEL);
        };

        for number in 1..10 {
            kernel.hand_over(&vec![plain(60); number]);
            assert_eq!(blocks.is_next_filled(), matches!(number, 1 | 5 | 9), "block {number}");
            if number < 6 {
                take_elsewhere(&kernel, (number - 1) % 4);
            }
        }

        assert_eq!(blocks.arrived(), 0, "what another process took is its own");
        let lens: Vec<u32> =
            std::iter::from_fn(|| blocks.open_next()).map(|block| block.left()).collect();
        assert_eq!((lens, kernel.lost), (vec![6, 7, 8, 9], 0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no memfd")]
    fn chunks_keep_their_packets_when_the_blocks_are_cut_loose() {
        let (blocks, mut kernel) = ring();
        kernel.hand_over(&[plain(60)]);
        kernel.hand_over(&[plain(70)]);
        let held = chunk(&mut blocks.open_next().unwrap(), 1);
        blocks.cut_loose();
        assert_eq!(blocks.waiting(), 0);
        kernel.write(48 + 82, [0xff_u8; 60]);
        assert_eq!(held.get(0).unwrap().data(), plain(60).data);
        drop(held);
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no memfd")]
    fn an_open_block_is_read_again_after_the_blocks_are_cut_loose() {
        let (blocks, mut kernel) = ring();
        kernel.hand_over(&[plain(60), plain(70), plain(80)]);
        let mut block = blocks.open_next().unwrap();
        assert_eq!(block.pass(1, |_, _| ()), 1);
        blocks.cut_loose();
        for (index, expected) in [(1, vec![70, 80]), (0, vec![60, 70, 80]), (3, vec![])] {
            block.go_to(index);
            assert_eq!(block.left(), 3 - index);
            let mut lens = Vec::new();
            assert_eq!(block.pass(3, |_, frame| lens.push(frame.descriptor.len)), 3);
            assert_eq!(lens, expected);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no memfd")]
    fn an_invalid_header_offset_ends_the_block() {
        type Lie = fn(&mut libc::tpacket3_hdr);
        let lies: [Lie; 6] = [
            |header| header.tp_mac = 0,
            |header| header.tp_mac = 51,
            |header| header.tp_mac = u16::MAX,
            |header| header.tp_snaplen = 4096,
            |header| header.tp_snaplen = u32::MAX,
            |header| header.tp_mac = 4000,
        ];
        for (number, lie) in lies.into_iter().enumerate() {
            let (blocks, mut kernel) = ring();
            kernel.hand_over(&vec![plain(60); 3]);
            let second = 48 + 144;
            // SAFETY: the kernel's half has just written a header there.
            unsafe { lie(kernel.mapping.at::<libc::tpacket3_hdr>(second, 1).as_mut()) };
            let mut block = blocks.open_next().unwrap();
            let taken = block.take(3, 200, &mut Sieve::default());
            assert!(taken.len() == 1 && taken.bad.is_some(), "lie {number}: {taken:?}");
        }

        for next in [0_u32, 8, 143, 4000, u32::MAX] {
            let (blocks, mut kernel) = ring();
            kernel.hand_over(&vec![plain(60); 3]);
            kernel.write(48, next);
            let mut block = blocks.open_next().unwrap();
            let taken = block.take(3, 200, &mut Sieve::default());
            assert!(taken.len() == 1 && taken.bad.is_some(), "next {next}: {taken:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 2000 }))]

        /// Whatever a block contains, its packets are consecutive, readable and kept.
        #[test]
        #[cfg_attr(miri, ignore = "miri has no memfd")]
        fn a_block_of_anything_gives_packets_inside_it(
            headers in prop::collection::vec(any::<([u16; 2], u8, u8, u8)>(), 1..20),
            packets in 0..30u32,
            first in prop_oneof![Just(48), 0..5000u32],
        ) {
            let (blocks, mut kernel) = ring();
            kernel.hand_over(&[]);

            let mut at = 48;

            for ([mac, next], len, status, wild) in headers {
                // SAFETY: integers, of which 0 is a value.
                let mut header: libc::tpacket3_hdr = unsafe { std::mem::zeroed() };
                header.tp_mac = if wild & 7 == 1 { mac } else { 48 + mac % 40 };
                header.tp_snaplen = if wild & 7 == 2 { u32::from(mac) << 16 } else { len.into() };
                header.tp_status = status.into();

                let room = (u32::from(header.tp_mac) + u32::from(len)).next_multiple_of(8);
                header.tp_next_offset = if wild & 7 == 3 { next.into() } else { room };
                kernel.write(at, header);
                at += room as usize;

                if at + 200 > 4096 {
                    break;
                }
            }

            kernel.write(place::PACKETS, packets);
            kernel.write(place::FIRST, first);

            let mut block = blocks.open_next().unwrap();
            let taken = block.take(100, 200, &mut Sieve::default());
            prop_assert!(taken.len() == packets as usize || taken.bad.is_some());

            let mut rest = 48;

            for cell in &taken.list.cells {
                prop_assert!(cell.address >= rest && cell.header_distance() >= 48);
                rest = cell.address + u64::from(cell.len);
                prop_assert!(rest <= 4096);
            }
        }
    }
}
