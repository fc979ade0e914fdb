//! The blocks of a TPACKET_V3 ring: what the kernel wrote into them, and how they go back to it.
//!
//! The kernel fills the blocks in turn, numbers them as it begins them, and hands each over by its
//! status word. It begins a block only after the one that stood there before was returned, and waits
//! at that block if it was not, however many others are free.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::chunk::{Chunk, Home, RingIdentity, Stamps};
use crate::packet::frame::{self, BadFrame};
use crate::recycle::CellList;
use crate::sys::memory::Mapping;
use crate::sys::packet::BlockShape;

/// Places in a block, whose description has `struct tpacket_hdr_v1` after two words of its own.
mod place {
    use super::offset_of;

    const HEADER: usize = offset_of!(libc::tpacket_block_desc, hdr);
    pub(super) const STATUS: usize = HEADER + offset_of!(libc::tpacket_hdr_v1, block_status);
    pub(super) const PACKETS: usize = HEADER + offset_of!(libc::tpacket_hdr_v1, num_pkts);
    pub(super) const FIRST: usize = HEADER + offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt);
    /// The low half of the block's number.
    pub(super) const NUMBER: usize =
        HEADER + offset_of!(libc::tpacket_hdr_v1, seq_num) + if cfg!(target_endian = "big") { 4 } else { 0 };
}

const _: () = assert!(size_of::<libc::tpacket_block_desc>() == 48);
const _: () = assert!(place::STATUS == 8 && place::PACKETS == 12 && place::FIRST == 16);

/// What the kernel wrote cannot be.
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

/// Where a block stands that is next, or soon, in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The kernel has not begun it.
    NotYet,
    /// The kernel is at it and has put so many packets in.
    Filling(u32),
    /// The kernel has handed it over with so many packets.
    Filled(u32),
}

/// The blocks of one ring, shared with the kernel.
#[derive(Debug)]
pub(crate) struct Blocks {
    mapping: Mapping,
    shape: BlockShape,
    /// The number of the block that is next to be opened; the kernel counts from 1.
    next: AtomicU64,
    /// For each block how many hold it: chunks, and whoever takes packets out. The last one returns it.
    holders: Box<[AtomicU32]>,
}

impl Blocks {
    /// The blocks of a ring of this shape that was just made.
    pub(crate) fn new(mapping: Mapping, shape: BlockShape) -> Self {
        assert!(shape.ring_bytes() <= mapping.bytes(), "the ring is larger than its mapping");
        assert!((shape.block_bytes as usize).is_multiple_of(rustix::param::page_size()), "blocks are pages");
        let holders = (0..shape.blocks).map(|_| AtomicU32::new(0)).collect();
        Self { mapping, shape, next: AtomicU64::new(1), holders }
    }

    /// Opens the next block, if the kernel has handed it over. Each is opened once.
    pub(crate) fn open_next(self: &Arc<Self>) -> Option<OpenBlock> {
        let number = self.next.load(Ordering::Relaxed);
        let Turn::Filled(left) = self.turn(number) else { return None };
        self.next.compare_exchange(number, number + 1, Ordering::Relaxed, Ordering::Relaxed).ok()?;
        let index = self.index_of(number);
        self.hold(index);
        let start = self.start(index);
        let first = self.word(index, place::FIRST).load(Ordering::Relaxed) as usize;
        let rest = start + size_of::<libc::tpacket_block_desc>();
        Some(OpenBlock { blocks: Arc::clone(self), index, rest, next: start + first, left })
    }

    /// How many blocks the kernel has handed over that were not opened yet.
    pub(crate) fn filled(&self) -> u32 {
        self.filled_from(self.next.load(Ordering::Relaxed))
    }

    fn filled_from(&self, number: u64) -> u32 {
        let is_filled = |ahead: u32| matches!(self.turn(number + u64::from(ahead)), Turn::Filled(_));
        let (mut filled, mut limit) = (0, self.shape.blocks);
        // Blocks are filled in turn: those that are come first.
        while filled < limit {
            let middle = filled + (limit - filled) / 2;
            if is_filled(middle) { filled = middle + 1 } else { limit = middle }
        }
        filled
    }

    /// Packets in the block that the kernel is at.
    pub(crate) fn filling(&self) -> u32 {
        let next = self.next.load(Ordering::Relaxed);
        match self.turn(next + u64::from(self.filled_from(next))) {
            Turn::Filling(packets) => packets,
            Turn::NotYet | Turn::Filled(_) => 0,
        }
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

    /// Where block `number` stands.
    fn turn(&self, number: u64) -> Turn {
        let index = self.index_of(number);
        // Acquire pairs with the barrier that the kernel puts before it hands a block over: having seen
        // the status, we see the packets.
        let status = self.word(index, place::STATUS).load(Ordering::Acquire);
        // A block that was not returned still bears the status and the number of its last turn.
        if self.word(index, place::NUMBER).load(Ordering::Relaxed) != number as u32 {
            return Turn::NotYet;
        }
        let packets = self.word(index, place::PACKETS).load(Ordering::Relaxed);
        if status & libc::TP_STATUS_USER == 0 { Turn::Filling(packets) } else { Turn::Filled(packets) }
    }

    /// Lets go of the kernel's side, which the mapping keeps alive. Chunks keep their packets.
    pub(crate) fn cut_loose(&self) {
        let is_held = |index: &usize| self.holders[*index].load(Ordering::Acquire) > 0;
        let held = (0..self.holders.len()).filter(is_held).map(|index| {
            let start = self.start(index);
            start + size_of::<libc::tpacket_block_desc>()..start + self.shape.block_bytes as usize
        });
        // Where there is no memory for it the mapping stays as it is, on a socket that gets no packets.
        // SAFETY: packets of chunks are only read; what is written, a block's status, is not among the
        // ranges, and no kernel is to see it.
        let _ = unsafe { self.mapping.cut_loose(held) };
    }

    fn hold(&self, index: usize) {
        self.holders[index].fetch_add(1, Ordering::Relaxed);
    }

    fn let_go(&self, index: usize) {
        // AcqRel: whatever the other holders did with the block comes before its return.
        if self.holders[index].fetch_sub(1, Ordering::AcqRel) == 1 {
            self.word(index, place::STATUS).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
    }

    fn index_of(&self, number: u64) -> usize {
        ((number - 1) % u64::from(self.shape.blocks)) as usize
    }

    fn start(&self, index: usize) -> usize {
        index * self.shape.block_bytes as usize
    }

    fn word(&self, index: usize, place: usize) -> &AtomicU32 {
        // SAFETY: `at` checked that the word lies in the mapping, which lives as long as `self`, and is
        // aligned; a block's description is only accessed atomically.
        unsafe { self.mapping.at::<AtomicU32>(self.start(index) + place, 1).as_ref() }
    }
}

// SAFETY: the mapping lives as long as the value, and is exchanged only for one with the same packets.
// `Taken::into_chunk` is the only one to make chunks with this home: every packet was checked, and the
// block is held for the chunk until `recycle`.
unsafe impl Home for Blocks {
    fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    fn recycle(&self, list: Box<CellList>) {
        let first = list.cells.first().expect("no chunk is empty");
        self.let_go(first.address as usize / self.shape.block_bytes as usize);
    }
}

/// A block that packets are taken out of. Dropped, it is the kernel's as soon as no chunk holds it.
#[derive(Debug)]
pub(crate) struct OpenBlock {
    blocks: Arc<Blocks>,
    index: usize,
    /// Where what was not taken yet begins, counted from the first block's start.
    rest: usize,
    /// Where the next packet's header is, by what the kernel wrote.
    next: usize,
    /// How many packets were not taken yet.
    left: u32,
}

impl OpenBlock {
    /// How many packets were not taken yet.
    pub(crate) fn left(&self) -> u32 {
        self.left
    }

    /// Whether packets were lost before this block, of which the counts do not tell yet.
    pub(crate) fn is_losing(&self) -> bool {
        let status = self.blocks.word(self.index, place::STATUS).load(Ordering::Relaxed);
        status & libc::TP_STATUS_LOSING != 0
    }

    /// Takes up to `count` packets out. Those longer than `longest` bytes are super-packets.
    pub(crate) fn take(&mut self, count: u32, longest: u32) -> Taken<'_> {
        let count = count.min(self.left);
        let list = CellList::with_capacity(count as usize);
        let mut taken = Taken { block: self, list, bytes: 0, super_packets: 0, bad: None };
        for _ in 0..count {
            if let Err(bad) = taken.add_next(longest) {
                taken.bad = Some(bad);
                break;
            }
        }
        taken
    }
}

impl Drop for OpenBlock {
    fn drop(&mut self) {
        self.blocks.let_go(self.index);
    }
}

/// What was taken out of a block.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    block: &'a mut OpenBlock,
    list: Box<CellList>,
    /// Bytes of the packets on the wire.
    pub(crate) bytes: u64,
    /// Packets longer than what the interface carries.
    pub(crate) super_packets: u64,
    /// Why there are fewer than were asked for: what the kernel wrote leads nowhere from here on.
    pub(crate) bad: Option<BadBlock>,
}

impl Taken<'_> {
    fn add_next(&mut self, longest: u32) -> Result<(), BadBlock> {
        let block = &mut *self.block;
        let end = block.blocks.start(block.index) + block.blocks.shape.block_bytes as usize;
        // SAFETY: the range is the rest of a block that was handed over and is held, so it is mapped, and
        // neither the kernel nor a chunk has it.
        let frame = unsafe { frame::read(block.blocks.mapping.base(), &(block.rest..end), block.next) }
            .map_err(|frame| BadBlock { block: block.index, frame })?;
        (block.rest, block.next) = (frame.end, frame.next);
        block.left -= 1;
        self.bytes += u64::from(frame.wire_len);
        self.super_packets += u64::from(frame.wire_len > longest);
        self.list.cells.push(frame.descriptor);
        Ok(())
    }

    /// How many packets were taken.
    pub(crate) fn len(&self) -> usize {
        self.list.cells.len()
    }

    /// A chunk of the packets; `None` if there are none.
    pub(crate) fn into_chunk(
        self,
        ring: Arc<RingIdentity>,
        timestamps: bool,
        sequence: u64,
        offloaded: bool,
    ) -> Option<Chunk> {
        if self.list.cells.is_empty() {
            return None;
        }
        let home = Arc::clone(&self.block.blocks);
        home.hold(self.block.index);
        let stamps = Stamps::Header { told: timestamps };
        // SAFETY: `frame::read` checked each packet, which has its header as far in front of it as its
        // descriptor says; the block was just held for the chunk.
        Some(unsafe { Chunk::new(self.list, home, ring, stamps, sequence, offloaded) })
    }
}
