//! Chunks and the packets in them: what a worker gets, owns, and gives back by dropping it.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crate::filter::{PacketType, VlanTag};
use crate::packet::frame;
use crate::pool::Descriptor;
use crate::recycle::CellList;
use crate::savefile::LinkType;
use crate::time::Timestamp;

/// A receive ring by name: receive queue `queue` of `interface`, written `eth0@2`; where the packets of a queue
/// are dealt out to several rings, `eth0@2.0`, `eth0@2.1` and so on. Where the rings of an interface share its
/// packets by flow, with the engine `packet`, they are only numbered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RingName {
    /// The interface's name.
    pub interface: String,
    /// Its receive queue, or its number among the interface's rings, counted from 0.
    pub queue: u32,
    /// Which of the queue's rings it is, counted from 0; `None` if the queue has one.
    pub part: Option<u32>,
}

impl RingName {
    /// The only ring of receive queue `queue`.
    pub fn of_queue(interface: impl Into<String>, queue: u32) -> Self {
        Self { interface: interface.into(), queue, part: None }
    }
}

impl fmt::Display for RingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.interface, self.queue)?;
        match self.part {
            Some(part) => write!(f, ".{part}"),
            None => Ok(()),
        }
    }
}

/// Where a ring stands in its capture.
#[derive(Debug)]
pub(crate) struct RingIdentity {
    pub(crate) name: RingName,
    /// The ring's place among the rings of its capture.
    pub(crate) index: usize,
    /// The place of the ring's interface among the interfaces of its capture.
    pub(crate) interface_index: usize,
    /// Bytes kept of each packet.
    pub(crate) snap_len: u32,
    /// What its packets begin with.
    pub(crate) link_type: LinkType,
}

/// Where cells live and where they go when their chunk is dropped.
///
/// # Safety
///
/// `base` must point to memory that stays mapped while the value lives, and every list of cells given
/// to [`Chunk::new`] with this home must describe packets inside it, each preceded by the record that
/// the chunk's [`Stamps`] says, which nobody writes to until `recycle` gets the list back.
pub(crate) unsafe trait Home: Send + Sync + fmt::Debug {
    /// The start of the memory that descriptors' addresses count from.
    fn base(&self) -> NonNull<u8>;
    /// Takes the cells back. Must not fail, block or allocate.
    fn recycle(&self, list: Box<CellList>);
}

/// Where a chunk's packets have their times of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stamps {
    /// Nobody asked.
    None,
    /// The eight bytes before the packet hold CLOCK_TAI in nanoseconds, written by the XDP program.
    Tai {
        /// How far CLOCK_TAI is ahead of UTC.
        ahead_of_utc_nanos: u64,
    },
    /// All of the chunk's packets count as arrived when the chunk was captured.
    AtCapture(Timestamp),
    /// A [`FileRecord`] stands before the packet.
    InFile,
    /// The packet's header by the kernel stands as far in front of it as the descriptor's `options` say.
    /// It has the length on the wire, and UTC.
    Header {
        /// Whether the time was asked for.
        told: bool,
        /// Whether the ring's number is that of a receive queue.
        by_queue: bool,
    },
}

impl Stamps {
    /// Bytes needed in front of each packet.
    pub(crate) fn record_bytes(self) -> u32 {
        match self {
            Self::Tai { .. } => size_of::<u64>() as u32,
            Self::InFile => FileRecord::BYTES as u32,
            Self::None | Self::AtCapture(_) | Self::Header { .. } => 0,
        }
    }
}

/// What a savefile knows of a packet, as it stands before it in a chunk's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileRecord {
    pub(crate) unix_nanos: u64,
    pub(crate) wire_len: u32,
    pub(crate) queue: u32,
}

impl FileRecord {
    pub(crate) const BYTES: usize = 16;
    pub(crate) const NO_TIME: u64 = u64::MAX;
    pub(crate) const NO_QUEUE: u32 = u32::MAX;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.unix_nanos.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.wire_len.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.queue.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let (unix_nanos, rest) = bytes.split_first_chunk().expect("sixteen bytes hold eight");
        let (wire_len, queue) = rest.split_first_chunk().expect("eight bytes hold four");
        Self {
            unix_nanos: u64::from_ne_bytes(*unix_nanos),
            wire_len: u32::from_ne_bytes(*wire_len),
            queue: u32::from_ne_bytes(queue.try_into().expect("four bytes are left")),
        }
    }
}

/// Up to M captured packets of one ring. Dropping a chunk recycles its cells.
///
/// A chunk is owned: it may be sent to another thread, and may outlive the worker and the capture it
/// came from. While it is held, its cells are not available to the ring.
pub struct Chunk {
    /// None only while the chunk is being dropped.
    list: Option<Box<CellList>>,
    home: Arc<dyn Home>,
    ring: Arc<RingIdentity>,
    base: NonNull<u8>,
    snap_len: u32,
    /// Some of its packets have several cells.
    fragmented: bool,
    stamps: Stamps,
    sequence: u64,
    offloaded: bool,
}

// SAFETY: `base` points into memory that `home` keeps mapped and that belongs to this chunk alone
// (the promise of `Home`); no part is tied to a thread.
unsafe impl Send for Chunk {}
// SAFETY: through a shared chunk its packets can only be read.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// A chunk of the cells in `list`.
    ///
    /// # Safety
    ///
    /// The cells must have been captured from `home` and checked to lie inside its memory, with
    /// [`Stamps::record_bytes`] in front of each packet; and where some packets have several cells,
    /// [`Fragmented::find`](crate::fragments::Fragmented::find) must have been told.
    pub(crate) unsafe fn new(
        list: Box<CellList>,
        home: Arc<dyn Home>,
        ring: Arc<RingIdentity>,
        stamps: Stamps,
        sequence: u64,
        offloaded: bool,
    ) -> Self {
        let (base, snap_len) = (home.base(), ring.snap_len);
        let fragmented = !list.fragmented.packets().is_empty();
        Self { list: Some(list), home, ring, base, snap_len, fragmented, stamps, sequence, offloaded }
    }

    fn list(&self) -> &CellList {
        self.list.as_ref().expect("a chunk has its list until it is dropped")
    }

    /// One descriptor per packet.
    fn packets(&self) -> &[Descriptor] {
        if self.fragmented { self.list().fragmented.packets() } else { &self.list().cells }
    }

    /// How many cells waited in the ring behind this chunk when it was captured, if the ring told.
    pub(crate) fn left_behind(&self) -> Option<u32> {
        self.list().left_behind
    }

    /// How many of the ring's cells the chunk holds.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn cells(&self) -> usize {
        self.list().cells.len()
    }

    /// Lets a test play an engine that loses or doubles cells.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn tamper(&mut self, tamper: impl FnOnce(&mut Vec<Descriptor>)) {
        tamper(&mut self.list.as_mut().expect("a chunk has its list until it is dropped").cells);
    }

    /// How many packets are in the chunk; at least one.
    #[expect(clippy::len_without_is_empty, reason = "no chunk is empty")]
    pub fn len(&self) -> usize {
        self.packets().len()
    }

    /// Bytes of all its packets together, as they were on the wire. Known since the capture: nothing is
    /// added up.
    pub fn wire_bytes(&self) -> u64 {
        self.list().wire_bytes
    }

    /// The packets, in the order in which the ring received them.
    pub fn iter(&self) -> Packets<'_> {
        Packets { descriptors: self.packets().iter(), chunk: self }
    }

    /// The packet at `index`, counted from 0 in ring order.
    pub fn get(&self, index: usize) -> Option<Packet<'_>> {
        self.packets().get(index).map(|descriptor| Packet { descriptor, chunk: self })
    }

    /// The ring the packets came from.
    pub fn ring(&self) -> &RingName {
        &self.ring.name
    }

    /// The ring's place in [`Capture::rings`](crate::Capture::rings).
    pub fn ring_index(&self) -> usize {
        self.ring.index
    }

    /// The place of the ring's interface in [`Capture::interfaces`](crate::Capture::interfaces).
    pub fn interface_index(&self) -> usize {
        self.ring.interface_index
    }

    /// How many chunks were captured from this ring before this one. Chunks of one ring, put in the
    /// order of their sequence numbers, hold its packets in the order of their arrival.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// What the packets begin with.
    pub fn link_type(&self) -> LinkType {
        self.ring.link_type
    }

    /// Whether a worker got it that the ring is not the home ring of.
    pub fn is_offloaded(&self) -> bool {
        self.offloaded
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(list) = self.list.take() {
            self.home.recycle(list);
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
            .field("ring", &format_args!("{}", self.ring.name))
            .field("sequence", &self.sequence)
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
    fn start(&self) -> NonNull<u8> {
        // SAFETY: the descriptor was checked against the home's memory when it was captured.
        unsafe { self.chunk.base.add(self.descriptor.address as usize) }
    }

    /// Where the kernel's header stands, if the chunk's packets have one.
    fn header(&self) -> NonNull<u8> {
        // SAFETY: the distance was checked when the packet was captured.
        unsafe { self.start().sub(self.descriptor.options as usize) }
    }

    /// The packet's bytes, from the link-layer header on, cut to the snap length.
    ///
    /// They lie in the cell where the kernel put them, unless the packet was too long for one (see
    /// [`fragments`](Self::fragments)). Then the first call copies all such packets of the chunk, into
    /// memory that later chunks use again: some 0.1 ns per byte, once.
    #[inline]
    pub fn data(&self) -> &'a [u8] {
        let len = self.descriptor.len.min(self.chunk.snap_len) as usize;
        if self.chunk.fragmented && self.descriptor.is_continued() {
            return self.in_one_piece(len);
        }
        // SAFETY: address and length were checked against the home's memory when the descriptor was
        // captured, and nobody writes there until the chunk is dropped, which `'a` forbids.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), len) }
    }

    #[cold]
    fn in_one_piece(&self, len: usize) -> &'a [u8] {
        let fragmented = |packet: &Packet<'_>| packet.descriptor.is_continued();
        let fragments = || self.chunk.iter().filter(fragmented).flat_map(|packet| packet.fragments());
        self.chunk.list().fragmented.in_one_piece(self.descriptor, len, |bytes| {
            fragments().for_each(|fragment| bytes.extend_from_slice(fragment));
        })
    }

    /// The packet's bytes in the pieces in which they lie in the cells, cut to the snap length: one,
    /// unless the packet was too long for a cell. No copy is made.
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

    /// The packet's length on the wire, in bytes; more than [`data`](Self::data) holds when the snap
    /// length cut it.
    #[inline]
    pub fn wire_len(&self) -> u32 {
        match self.chunk.stamps {
            Stamps::InFile => self.file_record().wire_len,
            // SAFETY: these packets have a header, which is ours as the packet is.
            Stamps::Header { .. } => unsafe { frame::wire_len(self.header()) },
            Stamps::None | Stamps::Tai { .. } | Stamps::AtCapture(_) => self.descriptor.len,
        }
    }

    /// The receive queue that the packet came from; `None` where nobody tells.
    #[inline]
    pub fn queue(&self) -> Option<u32> {
        match self.chunk.stamps {
            Stamps::InFile => Some(self.file_record().queue).filter(|queue| *queue != FileRecord::NO_QUEUE),
            Stamps::Header { by_queue: false, .. } => None,
            Stamps::Header { .. } | Stamps::None | Stamps::Tai { .. } | Stamps::AtCapture(_) => {
                Some(self.chunk.ring.name.queue)
            }
        }
    }

    /// For whom the packet is; `None` where nobody tells.
    pub fn packet_type(&self) -> Option<PacketType> {
        match self.chunk.stamps {
            // SAFETY: as in `wire_len`; the kernel filled what lies between header and packet.
            Stamps::Header { .. } => unsafe { frame::packet_type_of(self.header(), self.descriptor.options) },
            Stamps::None | Stamps::Tai { .. } | Stamps::AtCapture(_) | Stamps::InFile => None,
        }
    }

    /// The VLAN tag that the kernel had taken out of the packet, and that stands in its bytes again. The
    /// kernel's own filters see the packet without it.
    pub fn tag_put_back(&self) -> Option<VlanTag> {
        match self.chunk.stamps {
            // SAFETY: as in `wire_len`.
            Stamps::Header { .. } => unsafe { frame::tag_put_back(self.header()) },
            Stamps::None | Stamps::Tai { .. } | Stamps::AtCapture(_) | Stamps::InFile => None,
        }
    }

    fn file_record(&self) -> FileRecord {
        // SAFETY: packets of a file stand behind their records, which are theirs as the packets are.
        let bytes = unsafe { self.start().sub(FileRecord::BYTES).cast::<[u8; FileRecord::BYTES]>().read() };
        FileRecord::from_bytes(bytes)
    }

    /// When the packet arrived; `None` if the capture was opened without timestamps.
    #[inline]
    pub fn timestamp(&self) -> Option<Timestamp> {
        match self.chunk.stamps {
            Stamps::None | Stamps::Header { told: false, .. } => None,
            Stamps::AtCapture(time) => Some(time),
            Stamps::InFile => Some(self.file_record().unix_nanos)
                .filter(|nanos| *nanos != FileRecord::NO_TIME)
                .map(Timestamp::from_unix_nanos),
            // SAFETY: as in `wire_len`.
            Stamps::Header { told: true, .. } => Some(unsafe { frame::timestamp(self.header()) }),
            Stamps::Tai { ahead_of_utc_nanos } => {
                // SAFETY: the room in front of the packet was checked when it was captured; it is
                // ours as the packet is, and the program filled it before the packet was published.
                let tai = unsafe { self.start().sub(8).cast::<u64>().read_unaligned() };
                Some(Timestamp::from_unix_nanos(tai.saturating_sub(ahead_of_utc_nanos)))
            }
        }
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
            let start = self.chunk.base.add(cell.address as usize);
            Some(slice::from_raw_parts(start.as_ptr(), len as usize))
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;

    #[derive(Debug)]
    struct Nowhere;

    // SAFETY: no chunk with this home has any cells.
    unsafe impl Home for Nowhere {
        fn base(&self) -> NonNull<u8> {
            NonNull::dangling()
        }

        fn recycle(&self, _list: Box<CellList>) {}
    }

    impl Chunk {
        /// A chunk without packets, for models of who gets which chunk.
        pub(crate) fn hollow(ring: &Arc<RingIdentity>) -> Self {
            let list = CellList::with_capacity(0);
            // SAFETY: there are no cells.
            unsafe { Self::new(list, Arc::new(Nowhere), Arc::clone(ring), Stamps::None, 0, false) }
        }
    }
}
