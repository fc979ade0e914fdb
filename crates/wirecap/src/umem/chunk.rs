//! Chunks and their packets: a worker gets a chunk, owns it, and recycles it by dropping it.

#![allow(unsafe_code)]

pub(crate) mod heads;
pub(crate) mod records;

use std::any::Any;
use std::fmt;
use std::mem;
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, OnceLock};

use crate::filter::{PacketType, VlanTag};
use crate::names::RingName;
use crate::savefile::LinkType;
use crate::sys::xdp::Descriptor;
use crate::time::Timestamp;
use crate::umem::chunk::records::{FileRecord, Stamps};
use crate::umem::recycle::CellList;

pub use heads::Head;

/// The identity of a ring in its capture.
#[derive(Debug)]
pub(crate) struct RingIdentity {
    pub(crate) name: RingName,
    /// The ring's index among the rings of its capture.
    pub(crate) index: usize,
    /// The index of the ring's interface among the interfaces of its capture.
    pub(crate) interface_index: usize,
    /// Snap length.
    pub(crate) snap_len: u32,
    /// Link type of its packets.
    pub(crate) link_type: LinkType,
    /// Keeps forwarded packets in the ring's order, if order is kept.
    pub(crate) order: OnceLock<Arc<dyn Order>>,
}

/// Keeps the forwarded packets of one ring in the ring's order.
pub(crate) trait Order: Any + Send + Sync + fmt::Debug {
    /// Reports that the chunk with this sequence number was dropped.
    fn finish(&self, sequence: u64);
}

/// The owner of cells, which takes them back when their chunk is dropped.
///
/// # Safety
///
/// `base` must point to memory that stays mapped while the value lives, and every list of cells
/// given to [`Chunk::new`] with this owner must describe packets inside it, each preceded by the
/// record of the chunk's [`Stamps`]. Packets and records must not be written to until `recycle`
/// gets the list back.
pub(crate) unsafe trait CellOwner: Send + Sync + fmt::Debug {
    /// The start of the memory that descriptors' addresses count from.
    fn base(&self) -> NonNull<u8>;
    /// Takes the cells back. Must not fail, block or allocate.
    fn recycle(&self, list: Box<CellList>);
    /// Bytes of each cell, aligned to this size, if cells can be recycled one by one. Otherwise a
    /// list of cells is recycled as a whole.
    fn cell_bytes(&self) -> Option<u32> {
        None
    }
}

/// The origin of a chunk's packets, and how to read them.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) owner: Arc<dyn CellOwner>,
    pub(crate) ring: Arc<RingIdentity>,
    pub(crate) base: NonNull<u8>,
    pub(crate) stamps: Stamps,
    pub(crate) sequence: u64,
}

/// Up to M captured packets of one ring. Dropping a chunk recycles its cells.
///
/// A chunk is owned: it may be sent to another thread, and may outlive its worker and its capture.
/// While it is held, its cells are not available to the ring.
pub struct Chunk {
    /// None only while the chunk is being dropped.
    list: Option<Box<CellList>>,
    origin: Origin,
    snap_len: u32,
    /// Some of its packets have several cells.
    fragmented: bool,
    /// Its packets were drained; the cells of those that were sent are marked as [`GONE`].
    drained: bool,
    offloaded: bool,
}

/// The cells of a chunk that is drained.
pub(crate) struct Drained<'a> {
    pub(crate) cells: &'a mut [Descriptor],
    /// Some packets have several cells.
    pub(crate) fragmented: bool,
    pub(crate) origin: &'a Origin,
}

/// The address of a cell that left its chunk.
pub(crate) const GONE: u64 = u64::MAX;

// SAFETY: `base` points into memory that `owner` keeps mapped and that belongs to this chunk alone
// (guaranteed by `CellOwner`); no part is tied to a thread.
unsafe impl Send for Chunk {}
// SAFETY: a shared chunk only permits reading its packets.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// A chunk of the cells in `list`.
    ///
    /// # Safety
    ///
    /// The cells must have been captured from `owner` and checked to lie inside its memory, with
    /// [`Stamps::record_bytes`] before each packet. If some packets have several cells,
    /// [`Fragmented::find`](crate::umem::fragments::Fragmented::find) must have been called.
    pub(crate) unsafe fn new(
        list: Box<CellList>,
        owner: Arc<dyn CellOwner>,
        ring: Arc<RingIdentity>,
        stamps: Stamps,
        sequence: u64,
        offloaded: bool,
    ) -> Self {
        let base = owner.base();
        let snap_len = ring.snap_len;
        #[cfg(sabotage)]
        let snap_len = if crate::sabotage::is("snap-length-ignored") { u32::MAX } else { snap_len };
        let fragmented = !list.fragmented.packets().is_empty();
        let origin = Origin { owner, ring, base, stamps, sequence };
        Self { list: Some(list), origin, snap_len, fragmented, drained: false, offloaded }
    }

    #[inline]
    fn list(&self) -> &CellList {
        self.list.as_ref().expect("a chunk has its list until it is dropped")
    }

    /// One descriptor per packet.
    #[inline]
    fn packets(&self) -> &[Descriptor] {
        if self.drained {
            return &[];
        }
        if self.fragmented { self.list().fragmented.packets() } else { &self.list().cells }
    }

    /// The number of cells that waited in the ring after this chunk was captured, if the ring
    /// reported it.
    pub(crate) fn left_behind(&self) -> Option<u32> {
        self.list().left_behind
    }

    /// The number of the ring's cells in the chunk.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn cells(&self) -> usize {
        self.list().cells.iter().filter(|cell| cell.address != GONE).count()
    }

    /// Lets a test simulate an engine that loses or duplicates cells.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn tamper(&mut self, tamper: impl FnOnce(&mut Vec<Descriptor>)) {
        tamper(&mut self.list.as_mut().expect("a chunk has its list until it is dropped").cells);
    }

    /// The number of packets; at least one, until the chunk is [drained](Self::drain).
    #[expect(clippy::len_without_is_empty, reason = "no chunk is empty before it is drained")]
    #[inline]
    pub fn len(&self) -> usize {
        self.packets().len()
    }

    /// Bytes of all its packets on the wire, counted during the capture.
    pub fn wire_bytes(&self) -> u64 {
        self.list().wire_bytes
    }

    /// The packets, in ring order.
    #[inline]
    pub fn iter(&self) -> Packets<'_> {
        Packets { descriptors: self.packets().iter(), chunk: self }
    }

    /// The packet at `index`, starting at 0, in ring order.
    pub fn get(&self, index: usize) -> Option<Packet<'_>> {
        self.packets().get(index).map(|descriptor| Packet { descriptor, chunk: self })
    }

    /// The ring of the packets.
    pub fn ring(&self) -> &RingName {
        &self.origin.ring.name
    }

    /// The ring's index in [`Capture::rings`](crate::Capture::rings).
    pub fn ring_index(&self) -> usize {
        self.origin.ring.index
    }

    /// The index of the ring's interface in [`Capture::interfaces`](crate::Capture::interfaces).
    pub fn interface_index(&self) -> usize {
        self.origin.ring.interface_index
    }

    /// The number of earlier chunks of this ring. Sorted by sequence number, the chunks of one ring
    /// contain its packets in order of arrival.
    pub fn sequence(&self) -> u64 {
        self.origin.sequence
    }

    /// Whether its packets are of several interfaces: see [`Packet::seen_interface`].
    #[inline]
    pub fn is_of_any(&self) -> bool {
        matches!(self.origin.stamps, Stamps::Header { numbered: true, .. })
    }

    /// The link type of the packets.
    pub fn link_type(&self) -> LinkType {
        self.origin.ring.link_type
    }

    /// Takes the cells out for sending; none the second time. The chunk is then empty. Cells whose
    /// address is set to [`GONE`] are not recycled with it.
    pub(crate) fn take_cells(&mut self) -> Drained<'_> {
        let drained = mem::replace(&mut self.drained, true);
        let list = self.list.as_mut().expect("a chunk has its list until it is dropped");
        let cells: &mut [Descriptor] = if drained { &mut [] } else { &mut list.cells };
        Drained { cells, fragmented: self.fragmented, origin: &self.origin }
    }

    /// Whether a worker other than the ring's own captured it.
    pub fn is_offloaded(&self) -> bool {
        self.offloaded
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(mut list) = self.list.take() {
            if self.drained {
                list.cells.retain(|cell| cell.address != GONE);
            }
            self.origin.owner.recycle(list);
        }
        if let Some(order) = self.origin.ring.order.get() {
            order.finish(self.origin.sequence);
        }
    }
}

impl<'a> IntoIterator for &'a Chunk {
    type Item = Packet<'a>;
    type IntoIter = Packets<'a>;

    fn into_iter(self) -> Packets<'a> {
        self.iter()
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk")
            .field("ring", &format_args!("{}", self.origin.ring.name))
            .field("sequence", &self.origin.sequence)
            .field("packets", &self.len())
            .field("offloaded", &self.offloaded)
            .finish()
    }
}

/// The packets of a chunk, in ring order.
#[derive(Debug, Clone)]
pub struct Packets<'a> {
    descriptors: slice::Iter<'a, Descriptor>,
    chunk: &'a Chunk,
}

impl<'a> Iterator for Packets<'a> {
    type Item = Packet<'a>;

    #[inline]
    fn next(&mut self) -> Option<Packet<'a>> {
        #[cfg(sabotage)]
        if crate::sabotage::is("allocation-per-packet") {
            drop(std::hint::black_box(Box::new(0_u8)));
        }
        self.descriptors.next().map(|descriptor| Packet { descriptor, chunk: self.chunk })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.descriptors.size_hint()
    }

    #[inline]
    fn nth(&mut self, count: usize) -> Option<Packet<'a>> {
        self.descriptors.nth(count).map(|descriptor| Packet { descriptor, chunk: self.chunk })
    }
}

impl ExactSizeIterator for Packets<'_> {}

/// One captured packet, borrowed from its chunk.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    descriptor: &'a Descriptor,
    chunk: &'a Chunk,
}

impl<'a> Packet<'a> {
    #[inline]
    fn start(&self) -> NonNull<u8> {
        // SAFETY: the descriptor was checked against the owner's memory when it was captured.
        unsafe { self.chunk.origin.base.add(self.descriptor.address as usize) }
    }

    /// The kernel's header, if the chunk's packets have one.
    #[inline]
    fn header(&self) -> NonNull<u8> {
        // SAFETY: the distance was checked when the packet was captured.
        unsafe { self.start().sub(self.descriptor.header_distance() as usize) }
    }

    /// The packet's bytes, from the link-layer header on, up to the snap length.
    ///
    /// They are in the cell in which the kernel put them, unless the packet was too long for one
    /// (see [`fragments`](Self::fragments)). In that case the first call copies all such packets of
    /// the chunk into memory that later chunks reuse: some 0.1 ns per byte, once.
    #[inline]
    pub fn data(&self) -> &'a [u8] {
        if self.chunk.fragmented && self.descriptor.is_continued() {
            return self.in_one_piece(self.descriptor.len.min(self.chunk.snap_len) as usize);
        }
        self.in_its_cell()
    }

    /// The bytes of a packet in a single cell.
    #[inline]
    fn in_its_cell(&self) -> &'a [u8] {
        let len = self.descriptor.len.min(self.chunk.snap_len) as usize;
        // SAFETY: address and length were checked against the owner's memory when the descriptor
        // was captured, and it is not written to until the chunk is dropped, which `'a` forbids.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), len) }
    }

    #[cold]
    fn in_one_piece(&self, len: usize) -> &'a [u8] {
        let fragmented = |packet: &Packet<'_>| packet.descriptor.is_continued();
        let fragments =
            || self.chunk.iter().filter(fragmented).flat_map(|packet| packet.fragments());
        self.chunk.list().fragmented.in_one_piece(self.descriptor, len, |bytes| {
            fragments().for_each(|fragment| bytes.extend_from_slice(fragment));
        })
    }

    /// The packet's bytes in the pieces in which they are in the cells, up to the snap length: one
    /// piece, unless the packet was too long for a cell. Nothing is copied.
    pub fn fragments(&self) -> Fragments<'a> {
        let cells = if self.chunk.fragmented {
            let list = self.chunk.list();
            list.fragmented.cells_of(self.descriptor, &list.cells)
        } else {
            slice::from_ref(self.descriptor)
        };
        Fragments {
            cells: cells.iter(),
            left: self.descriptor.len.min(self.chunk.snap_len),
            chunk: self.chunk,
        }
    }

    /// The packet's length on the wire, in bytes; more than the length of [`data`](Self::data) if
    /// the snap length cut it.
    #[inline]
    pub fn wire_len(&self) -> u32 {
        let len = self.descriptor.len;
        let header_distance = self.descriptor.header_distance();
        // SAFETY: the packet is unchanged since it was captured, and is not written to.
        unsafe { self.chunk.origin.stamps.wire_len_of(self.start(), len, header_distance) }
    }

    /// The receive queue of the packet; `None` if unknown.
    #[inline]
    pub fn queue(&self) -> Option<u32> {
        match self.chunk.origin.stamps {
            Stamps::InFile => {
                Some(self.file_record().queue).filter(|queue| *queue != FileRecord::NO_QUEUE)
            }
            Stamps::Header { by_queue: false, .. } => None,
            Stamps::Header { .. }
            | Stamps::None
            | Stamps::Tai { .. }
            | Stamps::Device
            | Stamps::AtCapture(_) => Some(self.chunk.origin.ring.name.queue),
        }
    }

    /// The destination type of the packet (to this host, broadcast, ...); `None` if unknown.
    pub fn packet_type(&self) -> Option<PacketType> {
        match self.chunk.origin.stamps {
            // SAFETY: as in `wire_len`; the kernel filled the bytes between header and packet.
            Stamps::Header { .. } => unsafe {
                records::packet_type(self.header(), self.descriptor.header_distance())
            },
            Stamps::None
            | Stamps::Tai { .. }
            | Stamps::Device
            | Stamps::AtCapture(_)
            | Stamps::InFile => None,
        }
    }

    /// The packet's interface in a capture of [all interfaces](crate::Source::any): its index in
    /// [`Capture::seen_interfaces`](crate::Capture::seen_interfaces). `None` if the capture named
    /// the interface.
    #[inline]
    pub fn seen_interface(&self) -> Option<usize> {
        let is_numbered = matches!(self.chunk.origin.stamps, Stamps::Header { numbered: true, .. });
        if !is_numbered || (self.descriptor.header_distance() as usize) < records::ADDRESS_END {
            return None;
        }
        // SAFETY: as in `wire_len`; the address lies between header and packet.
        Some(unsafe { records::ifindex(self.header()) } as usize)
    }

    /// The VLAN tag that the kernel had removed and that was put back into the packet's bytes. The
    /// kernel's own filters see the packet without it.
    pub fn tag_put_back(&self) -> Option<VlanTag> {
        match self.chunk.origin.stamps {
            // SAFETY: as in `wire_len`.
            Stamps::Header { .. } => unsafe { records::tag_put_back(self.header()) },
            Stamps::None
            | Stamps::Tai { .. }
            | Stamps::Device
            | Stamps::AtCapture(_)
            | Stamps::InFile => None,
        }
    }

    fn file_record(&self) -> FileRecord {
        // SAFETY: packets of a file follow their records, which belong to the chunk like the
        // packets.
        unsafe { FileRecord::before(self.start()) }
    }

    /// The time of arrival; `None` without timestamps, or if the device provided none.
    #[inline]
    pub fn timestamp(&self) -> Option<Timestamp> {
        // SAFETY: the packet is unchanged since it was captured, and is not written to.
        unsafe { self.chunk.origin.stamps.time_of(self.start(), self.descriptor.header_distance()) }
    }
}

/// The pieces of one packet, in order; from [`Packet::fragments`].
#[derive(Debug, Clone)]
pub struct Fragments<'a> {
    cells: slice::Iter<'a, Descriptor>,
    /// Bytes up to the snap length.
    left: u32,
    chunk: &'a Chunk,
}

impl<'a> Iterator for Fragments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        let cell = self.cells.next()?;
        let len = cell.len.min(self.left);
        self.left -= len;
        // SAFETY: as in `Packet::data`, for this cell of the packet.
        unsafe {
            let start = self.chunk.origin.base.add(cell.address as usize);
            Some(slice::from_raw_parts(start.as_ptr(), len as usize))
        }
    }
}

#[cfg(test)]
mod hollow {
    use super::*;

    #[derive(Debug)]
    struct Nowhere;

    // SAFETY: no chunk with this owner has any cells.
    unsafe impl CellOwner for Nowhere {
        fn base(&self) -> NonNull<u8> {
            NonNull::dangling()
        }

        fn recycle(&self, _list: Box<CellList>) {}
    }

    impl Chunk {
        /// A chunk without packets, for models that test which worker gets which chunk.
        pub(crate) fn hollow(ring: &Arc<RingIdentity>) -> Self {
            let list = CellList::with_capacity(0);
            // SAFETY: there are no cells.
            unsafe { Self::new(list, Arc::new(Nowhere), Arc::clone(ring), Stamps::None, 0, false) }
        }
    }
}
