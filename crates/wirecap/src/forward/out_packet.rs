//! Packets to be sent: drained from their chunk, with their cells.
//!
//! A packet in transit borrows from its chunk and owns its cells in it. Sending it marks its
//! descriptor in the chunk's list as gone; dropping it leaves the descriptor in the list, and the
//! cell is recycled with the chunk. So dropping costs nothing, sending does not allocate, and no
//! cell can be in two places. The timestamp is in the bytes before the packet; it is read before
//! the head overwrites it. A detached packet has its own list. Frames of several cells are chains
//! of descriptors (`XDP_PKT_CONTD`), put on the ring completely or not at all.

#![allow(unsafe_code)]

mod resize;

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crate::names::RingName;
use crate::sys::memory::Memory;
use crate::sys::xdp::CONTINUED;
use crate::sys::xdp::Descriptor;
use crate::time::Timestamp;
use crate::umem::chunk::records::Stamps;
use crate::umem::chunk::{CellOwner, Chunk, Drained, GONE, Order, Origin, RingIdentity};
use crate::umem::owners::Owners;
use crate::umem::recycle::CellList;

pub use resize::NoRoom;

/// Bytes before and after a packet that is kept as a copy.
const COPY_ROOM: usize = 256;

impl Chunk {
    /// Takes the packets out, in ring order, to be changed and sent by a [`Port`](crate::Port).
    /// Packets that are dropped instead are recycled with the chunk, which is then empty.
    pub fn drain(&mut self) -> Drain<'_> {
        let packets = self.len();
        let Drained { cells, fragmented, origin } = self.take_cells();
        let cell_bytes = origin.owner.cell_bytes().map(u64::from);
        Drain {
            cells: Cell::from_mut(cells).as_slice_of_cells(),
            packets,
            fragmented,
            origin,
            cell_bytes,
        }
    }
}

/// The packets of a chunk, to be sent or dropped one by one; from [`Chunk::drain`]. Packets that
/// are not taken are recycled with the chunk.
#[derive(Debug)]
pub struct Drain<'a> {
    cells: &'a [Cell<Descriptor>],
    packets: usize,
    fragmented: bool,
    origin: &'a Origin,
    cell_bytes: Option<u64>,
}

impl<'a> Drain<'a> {
    /// The remaining cells and their origin, if each cell is one packet and can be recycled
    /// separately.
    pub(super) fn plain(&self) -> Option<(&'a [Cell<Descriptor>], &'a Origin)> {
        (!self.fragmented && self.cell_bytes.is_some()).then_some((self.cells, self.origin))
    }
}

impl<'a> Iterator for Drain<'a> {
    type Item = OutPacket<'a>;

    #[inline]
    fn next(&mut self) -> Option<OutPacket<'a>> {
        if self.cells.is_empty() {
            return None;
        }
        let more = if self.fragmented {
            self.cells.iter().take_while(|cell| cell.get().is_continued()).count()
        } else {
            0
        };
        let (cells, rest) = self.cells.split_at(more + 1);
        self.cells = rest;
        self.packets -= 1;
        Some(OutPacket::lent(cells, self.origin, self.cell_bytes, self.fragmented))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.packets, Some(self.packets))
    }
}

impl ExactSizeIterator for Drain<'_> {}

/// A packet that was drained from its chunk and owns its cells: it can be changed, and sent by a
/// [`Port`](crate::Port). If it is dropped, its cells are recycled with the chunk.
///
/// The packet is complete, whatever the snap length. It can be lengthened or shortened at both
/// ends, within its cell. A frame that is longer than a cell has several
/// ([`fragments`](Self::fragments)); [`data`](Self::data) is then the first one, and its tail that
/// of the last one.
pub struct OutPacket<'a> {
    cells: Cells<'a>,
    base: NonNull<u8>,
    /// The lowest address to which its head can grow.
    lowest: u64,
    /// The highest address to which its tail can grow.
    highest: u64,
    captured: Captured,
}

/// Properties of a packet when it was captured.
#[derive(Debug, Clone, Copy)]
struct Captured {
    address: u64,
    header_distance: u32,
    stamps: Stamps,
    /// It was longer on the wire.
    cut_short: bool,
    /// Its time of arrival, once the head has overwritten the stored one.
    time: Option<Option<Timestamp>>,
}

/// The owner of a packet's cells. Cells that were given away have the address [`GONE`].
enum Cells<'a> {
    /// Cells of a borrowed chunk, until they are given away.
    Lent { cells: &'a [Cell<Descriptor>], origin: &'a Origin },
    /// One for a new packet.
    New(NewCell),
    /// Its own.
    Kept(Box<Kept>),
}

/// A cell for a new packet.
struct NewCell {
    cell: Cell<Descriptor>,
    owners: Arc<Owners>,
}

impl Drop for NewCell {
    fn drop(&mut self) {
        if self.cell.get().address != GONE {
            self.owners.give_back(&[self.cell.get()]);
        }
    }
}

/// The cells of a packet that outlives its chunk.
struct Kept {
    cells: Box<[Cell<Descriptor>]>,
    owner: Arc<dyn CellOwner>,
    ring: Arc<RingIdentity>,
    /// The list with which they are recycled.
    list: Option<Box<CellList>>,
}

impl Kept {
    fn new(
        cells: impl Iterator<Item = Descriptor>,
        owner: Arc<dyn CellOwner>,
        ring: Arc<RingIdentity>,
    ) -> Self {
        let cells: Box<[_]> = cells.map(Cell::new).collect();
        let list = Some(CellList::with_capacity(cells.len()));
        Self { cells, owner, ring, list }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let Some(mut list) = self.list.take() else { return };
        list.cells.extend(self.cells.iter().map(Cell::get).filter(|cell| cell.address != GONE));
        if !list.cells.is_empty() {
            self.owner.recycle(list);
        }
    }
}

/// The memory of a packet that was copied.
#[derive(Debug)]
struct Copied(Memory);

// SAFETY: the memory lives as long as the value, and one packet has it.
unsafe impl CellOwner for Copied {
    fn base(&self) -> NonNull<u8> {
        self.0.base()
    }

    fn recycle(&self, list: Box<CellList>) {
        drop(list);
    }
}

impl<'a> OutPacket<'a> {
    /// The packet in `cells`, which lie in memory of `origin`.
    fn lent(
        cells: &'a [Cell<Descriptor>],
        origin: &'a Origin,
        cell_bytes: Option<u64>,
        fragmented: bool,
    ) -> Self {
        let first = cells[0].get();
        let last = cells[cells.len() - 1].get();
        let header_distance = if fragmented { 0 } else { first.header_distance() };
        let start = in_memory(origin.base, first.address);

        // SAFETY: the packet has not been changed since it was captured.
        let wire_len = unsafe { origin.stamps.wire_len_of(start, first.len, header_distance) };
        let (lowest, highest) = match cell_bytes {
            Some(bytes) => (first.address & !(bytes - 1), (last.address & !(bytes - 1)) + bytes),
            None => {
                let record = match origin.stamps {
                    Stamps::Header { .. } => header_distance,
                    stamps => stamps.record_bytes(),
                };
                (first.address - u64::from(record), last.address + u64::from(last.len))
            }
        };

        let captured = Captured {
            address: first.address,
            header_distance,
            stamps: origin.stamps,
            cut_short: wire_len > first.len,
            time: None,
        };
        Self { cells: Cells::Lent { cells, origin }, base: origin.base, lowest, highest, captured }
    }

    /// A new packet in the cell at `address`; it owns the bytes from `address` on.
    pub(super) fn new(cell: Descriptor, owners: Arc<Owners>) -> OutPacket<'static> {
        let base = owners.pool().memory().base();
        let bytes = u64::from(owners.pool().geometry().cell_bytes);
        let lowest = cell.address & !(bytes - 1);
        let captured = Captured {
            address: cell.address,
            header_distance: 0,
            stamps: Stamps::None,
            cut_short: false,
            time: Some(None),
        };
        let cells = Cells::New(NewCell { cell: Cell::new(cell), owners });
        OutPacket { cells, base, lowest, highest: lowest + bytes, captured }
    }

    fn cells(&self) -> &[Cell<Descriptor>] {
        match &self.cells {
            Cells::Lent { cells, .. } => cells,
            Cells::New(new) => slice::from_ref(&new.cell),
            Cells::Kept(kept) => &kept.cells,
        }
    }

    fn first(&self) -> &Cell<Descriptor> {
        &self.cells()[0]
    }

    fn last(&self) -> &Cell<Descriptor> {
        let cells = self.cells();
        &cells[cells.len() - 1]
    }

    fn identity(&self) -> Option<&RingIdentity> {
        match &self.cells {
            Cells::Lent { origin, .. } => Some(&origin.ring),
            Cells::New(_) => None,
            Cells::Kept(kept) => Some(&kept.ring),
        }
    }

    /// The sequence that keeps it in the order of its ring, and the sequence number of its chunk.
    pub(super) fn order(&self) -> Option<(&Arc<dyn Order>, u64)> {
        match &self.cells {
            Cells::Lent { origin, .. } => Some((origin.ring.order.get()?, origin.sequence)),
            Cells::New(_) | Cells::Kept(_) => None,
        }
    }

    /// The number of its ring on its interface.
    pub(super) fn queue(&self) -> u32 {
        self.identity().map_or(0, |ring| ring.name.queue)
    }

    /// The start of its memory.
    pub(super) fn memory(&self) -> NonNull<u8> {
        self.base
    }

    /// Whether it was longer on the wire.
    pub(super) fn is_cut_short(&self) -> bool {
        self.captured.cut_short
    }

    /// Gives its cells away.
    pub(super) fn give_away(self, to: &mut Vec<Descriptor>) {
        let cells = self.cells();
        for (index, cell) in cells.iter().enumerate() {
            let options = if index + 1 < cells.len() { CONTINUED } else { 0 };
            to.push(Descriptor { options, ..give_away(cell) });
        }
    }

    /// Bytes of the packet, in all its cells.
    #[expect(clippy::len_without_is_empty, reason = "whether a packet is empty is no question")]
    pub fn len(&self) -> usize {
        self.cells().iter().map(|cell| cell.get().len as usize).sum()
    }

    /// The packet's bytes in the first cell, from the link-layer header on: all of them, unless it
    /// [`is_fragmented`](Self::is_fragmented).
    #[inline]
    pub fn data(&self) -> &[u8] {
        self.bytes(self.first())
    }

    /// Like [`data`](Self::data), writable.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        let Descriptor { address, len, .. } = self.first().get();
        // SAFETY: as in `bytes`; `self` is borrowed for as long as the slice lives.
        unsafe { slice::from_raw_parts_mut(in_memory(self.base, address).as_ptr(), len as usize) }
    }

    /// The bytes in a cell of the packet.
    fn bytes(&self, cell: &Cell<Descriptor>) -> &[u8] {
        let Descriptor { address, len, .. } = cell.get();
        // SAFETY: the cell was checked against its memory when it was captured, address and length
        // are only changed within it, and it is this packet's alone until it is given away, which
        // consumes the packet.
        unsafe { slice::from_raw_parts(in_memory(self.base, address).as_ptr(), len as usize) }
    }

    /// Whether the packet lies in several cells.
    pub fn is_fragmented(&self) -> bool {
        self.cells().len() > 1
    }

    /// All of the packet's bytes, cell by cell.
    pub fn fragments(&self) -> impl Iterator<Item = &[u8]> {
        self.cells().iter().map(|cell| self.bytes(cell))
    }

    /// Like [`fragments`](Self::fragments), writable.
    pub fn fragments_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let base = self.base;
        self.cells().iter().map(move |cell| {
            let Descriptor { address, len, .. } = cell.get();
            // SAFETY: as in `bytes`; no two cells of a packet are the same, and `self` is borrowed
            // for as long as the slices live.
            unsafe { slice::from_raw_parts_mut(in_memory(base, address).as_ptr(), len as usize) }
        })
    }

    /// The time of arrival, as from [`Packet::timestamp`](crate::Packet::timestamp), also after the
    /// head has grown; `None` without timestamps, and for a packet that was
    /// [built](crate::Port::build).
    pub fn timestamp(&self) -> Option<Timestamp> {
        let Captured { address, header_distance, stamps, time, .. } = self.captured;
        // SAFETY: the head did not grow over the timestamp before it.
        time.unwrap_or_else(|| unsafe {
            stamps.time_of(in_memory(self.base, address), header_distance)
        })
    }

    /// The packet's ring; `None` if it was built.
    pub fn ring(&self) -> Option<&RingName> {
        self.identity().map(|ring| &ring.name)
    }

    /// Detaches the packet from its chunk: it may outlive the chunk, be kept, and move to other
    /// threads. With the engine `packet` it is copied. Costs an allocation. Its cells are missing
    /// in the ring until it is sent or dropped, and it no longer belongs to the order of its ring.
    pub fn detach(self) -> DetachedPacket {
        let Cells::Lent { cells, origin } = self.cells else {
            return DetachedPacket(self.into_static());
        };
        let ring = Arc::clone(&origin.ring);

        if origin.owner.cell_bytes().is_none() {
            return DetachedPacket(self.copied(ring));
        }

        let given =
            cells.iter().map(|cell| cell.replace(Descriptor { address: GONE, ..cell.get() }));
        let kept = Kept::new(given, Arc::clone(&origin.owner), ring);
        let Self { base, lowest, highest, captured, .. } = self;

        DetachedPacket(OutPacket {
            cells: Cells::Kept(Box::new(kept)),
            base,
            lowest,
            highest,
            captured,
        })
    }

    /// The same packet without borrows.
    fn into_static(self) -> OutPacket<'static> {
        let Self { cells, base, lowest, highest, captured } = self;
        let cells = match cells {
            Cells::New(new) => Cells::New(new),
            Cells::Kept(kept) => Cells::Kept(kept),
            Cells::Lent { .. } => {
                unreachable!("a borrowed packet was taken out of its chunk before")
            }
        };
        OutPacket { cells, base, lowest, highest, captured }
    }

    /// A copy in separate memory.
    fn copied(&self, ring: Arc<RingIdentity>) -> OutPacket<'static> {
        let time = self.timestamp();
        let len = self.len();
        let memory = Memory::on_heap(len + 2 * COPY_ROOM);
        let base = memory.base();
        let highest = memory.bytes() as u64;
        let cell = Descriptor { address: COPY_ROOM as u64, len: len as u32, options: 0 };
        let kept = Kept::new([cell].into_iter(), Arc::new(Copied(memory)), ring);
        let captured = Captured { address: cell.address, time: Some(time), ..self.captured };
        let cells = Cells::Kept(Box::new(kept));
        let mut copy = OutPacket { cells, base, lowest: 0, highest, captured };
        let mut rest = copy.data_mut();

        for fragment in self.fragments() {
            let (place, behind) = rest.split_at_mut(fragment.len());
            place.copy_from_slice(fragment);
            rest = behind;
        }

        copy
    }
}

/// Gives away a cell that is one packet.
pub(super) fn give_away(cell: &Cell<Descriptor>) -> Descriptor {
    let given = cell.replace(Descriptor { address: GONE, ..Descriptor::default() });
    Descriptor { options: 0, ..given }
}

fn in_memory(base: NonNull<u8>, address: u64) -> NonNull<u8> {
    // SAFETY: every address of a packet lies in its memory: it was checked when the packet was
    // captured, and `OutPacket` keeps it in its cell.
    unsafe { base.add(address as usize) }
}

impl fmt::Debug for OutPacket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutPacket")
            .field("ring", &self.ring())
            .field("len", &self.len())
            .field("cells", &self.cells().len())
            .finish_non_exhaustive()
    }
}

/// A kept packet, from [`OutPacket::detach`]. It may move to another thread.
#[derive(Debug)]
pub struct DetachedPacket(OutPacket<'static>);

// SAFETY: the packet borrows from no chunk: its cells are its own, their memory and their owner are
// not tied to a thread.
unsafe impl Send for DetachedPacket {}

impl DetachedPacket {
    /// The packet, to be read, changed and sent.
    pub fn into_packet(self) -> OutPacket<'static> {
        self.0
    }
}
