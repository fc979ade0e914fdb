//! The frames of a TPACKET_V2 ring: one packet each, which the kernel hands over at once.
//!
//! A received frame gets a header in the form of TPACKET_V3, in place, so that the code for packets
//! of blocks can read these too. For that the kernel leaves more room before the packet than it
//! needs itself.

#![allow(unsafe_code)]

use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::packet::blocks::{Labels, is_wanted};
use crate::packet::frame::{self, Frame};
use crate::sieve::Sieve;
use crate::sys::memory::Mapping;
use crate::sys::packet::FrameShape;
use crate::sys::xdp::Descriptor;
use crate::umem::chunk::{CellOwner, Chunk, RingIdentity};
use crate::umem::recycle::{CellList, Spare};

/// The status of a frame that was taken and not returned: neither the kernel's (0) nor filled.
const HELD: u32 = 1 << 31;
const HEADER_BYTES: usize = size_of::<libc::tpacket2_hdr>();
const NEW_HEADER_BYTES: usize = size_of::<libc::tpacket3_hdr>();
const _: () = assert!(HEADER_BYTES == 32 && NEW_HEADER_BYTES == 48);
const _: () = assert!(offset_of!(libc::tpacket2_hdr, tp_status) == 0);
const _: () = assert!(offset_of!(libc::tpacket3_hdr, tp_next_offset) == 0);

/// The frames of one ring, shared with the kernel.
#[derive(Debug)]
pub(crate) struct Frames {
    mapping: Mapping,
    shape: FrameShape,
    /// Number of frames taken, which is the index of the next one.
    next: AtomicU64,
    /// The list of the last dropped chunk, for reuse.
    spare: Spare,
}

/// The packets taken out of the ring.
#[derive(Debug)]
pub(crate) struct Gathered {
    frames: Arc<Frames>,
    list: Box<CellList>,
    /// Bytes of the packets on the wire.
    pub(crate) bytes: u64,
    /// Packets longer than the interface's longest frame.
    pub(crate) super_packets: u64,
    /// Packets with an invalid header.
    pub(crate) bad: u64,
    /// Packets were lost that the counts do not include yet.
    pub(crate) is_losing: bool,
}

impl Frames {
    /// The frames of a new ring of this shape.
    pub(crate) fn new(mapping: Mapping, shape: FrameShape) -> Self {
        assert!(shape.ring_bytes() <= mapping.bytes(), "the ring is larger than its mapping");
        assert!(
            shape.frame_bytes as usize >= FrameShape::HEADROOM,
            "a frame has room for its header"
        );
        Self { mapping, shape, next: AtomicU64::new(0), spare: Spare::new() }
    }

    /// Whether a packet can be taken.
    pub(crate) fn is_next_filled(&self) -> bool {
        self.is_filled(self.next.load(Ordering::Relaxed))
    }

    /// Number of packets that can be taken.
    pub(crate) fn filled(&self) -> u32 {
        let next = self.next.load(Ordering::Acquire);
        let mut filled = 0;
        let mut limit = self.shape.frames();

        // Frames are filled in turn, so the filled ones come first.
        while filled < limit {
            let middle = filled + (limit - filled) / 2;
            if self.is_filled(next + u64::from(middle)) {
                filled = middle + 1;
            } else {
                limit = middle;
            }
        }

        filled
    }

    /// Packets in all frames, taken or not: without a lock, for signal handlers too.
    pub(crate) fn arrived(&self) -> u64 {
        self.next.load(Ordering::Acquire) + u64::from(self.filled())
    }

    /// Number of packets that the ring can hold.
    pub(crate) fn capacity(&self) -> u32 {
        self.shape.frames()
    }

    /// Takes up to `count` packets that the sieve accepts, in the order of their arrival; `None` if
    /// there are none at all. Those longer than `longest` bytes are super-packets. Only one thread
    /// may call this at a time.
    pub(crate) fn take(
        self: &Arc<Self>,
        count: u32,
        longest: u32,
        sieve: &mut Sieve,
    ) -> Option<Gathered> {
        let first = self.next.load(Ordering::Relaxed);
        if !self.is_filled(first) {
            return None;
        }

        let list = self.spare.list(count.min(self.shape.frames()) as usize);
        let frames = Arc::clone(self);
        let idle = sieve.is_idle();
        let mut gathered =
            Gathered { frames, list, bytes: 0, super_packets: 0, bad: 0, is_losing: false };
        let mut number = first;
        let end = first + u64::from(self.shape.frames());

        while gathered.list.cells.len() < count as usize && number < end && self.is_filled(number) {
            let start = self.shape.start(number);
            gathered.is_losing |=
                self.status(number).load(Ordering::Relaxed) & libc::TP_STATUS_LOSING != 0;

            // SAFETY: the frame was handed over, and no other thread takes it: it is ours.
            unsafe { self.renew_header(number) };
            let room = start..start + self.shape.frame_bytes as usize;

            // SAFETY: the frame is mapped, and ours.
            match unsafe { frame::read(self.mapping.base(), &room, start) } {
                Ok(frame) if idle || is_wanted(self.mapping.base(), &frame, sieve) => {
                    gathered.add(&frame, longest);
                }
                Ok(_) => self.give_back(number),
                Err(_) => {
                    gathered.bad += 1;
                    self.give_back(number);
                }
            }

            number += 1;
        }

        self.next.store(number, Ordering::Release);
        Some(gathered)
    }

    fn is_filled(&self, number: u64) -> bool {
        // Acquire pairs with the barrier that the kernel puts before it hands a frame over.
        self.status(number).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    fn give_back(&self, number: u64) {
        self.status(number).store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }

    fn status(&self, number: u64) -> &AtomicU32 {
        // SAFETY: `at` checked that the word lies in the mapping, which lives as long as `self`,
        // and is aligned; a frame's first word is only accessed atomically.
        unsafe { self.mapping.at::<AtomicU32>(self.shape.start(number), 1).as_ref() }
    }

    /// Replaces the kernel's header by one in the form of TPACKET_V3, followed by the sender's
    /// address.
    ///
    /// # Safety
    ///
    /// The frame must have no other user.
    unsafe fn renew_header(&self, number: u64) {
        let place =
            self.mapping.at::<u8>(self.shape.start(number), self.shape.frame_bytes as usize);

        // SAFETY: header and address are in the frame, which we own; both consist of integers.
        let (old, address) = unsafe {
            (
                place.cast::<libc::tpacket2_hdr>().read_unaligned(),
                place.add(HEADER_BYTES).cast::<libc::sockaddr_ll>().read_unaligned(),
            )
        };

        // SAFETY: integers, of which 0 is a value.
        let mut new: libc::tpacket3_hdr = unsafe { std::mem::zeroed() };
        (new.tp_sec, new.tp_nsec) = (old.tp_sec, old.tp_nsec);
        (new.tp_len, new.tp_snaplen) = (old.tp_len, old.tp_snaplen);
        (new.tp_mac, new.tp_net, new.tp_status) = (old.tp_mac, old.tp_net, old.tp_status);
        (new.hv1.tp_vlan_tci, new.hv1.tp_vlan_tpid) = (old.tp_vlan_tci.into(), old.tp_vlan_tpid);
        const WORD: usize = size_of::<u32>();

        // SAFETY: as above; the first word is written separately, because other threads read it.
        unsafe {
            place.add(NEW_HEADER_BYTES).cast::<libc::sockaddr_ll>().write_unaligned(address);
            let from = (&raw const new).cast::<u8>().add(WORD);
            place.as_ptr().add(WORD).copy_from_nonoverlapping(from, NEW_HEADER_BYTES - WORD);
        }

        self.status(number).store(HELD, Ordering::Relaxed);
    }
}

// SAFETY: the mapping lives as long as the value. `Gathered::into_chunk` is the only one to make
// chunks with this owner: every packet was checked, and its frame is the chunk's until `recycle`.
unsafe impl CellOwner for Frames {
    fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    fn recycle(&self, list: Box<CellList>) {
        list.cells
            .iter()
            .for_each(|cell| self.give_back(self.shape.number_at(cell.address as usize)));
        self.spare.put(list);
    }
}

impl Gathered {
    fn add(&mut self, frame: &Frame, longest: u32) {
        self.bytes += u64::from(frame.wire_len);
        self.super_packets += u64::from(frame.wire_len > longest);
        self.list.cells.push(frame.descriptor);
    }

    /// The packets, and what their addresses count from.
    pub(crate) fn cells(&self) -> (NonNull<u8>, &[Descriptor]) {
        (self.frames.mapping.base(), &self.list.cells)
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
        let stamps = labels.stamps();
        // SAFETY: `frame::read` checked each packet, which has its header as far in front of it as
        // its descriptor says; no other chunk has their frames until this one is dropped.
        unsafe { Chunk::new(self.list, self.frames, ring, stamps, sequence, offloaded) }
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::names::RingName;

    const LABELS: Labels = Labels { timestamps: true, by_queue: false, numbered: false };

    /// The kernel's half of a ring: it fills frames in turn, unless the next one was not returned.
    pub(in crate::packet) struct Kernel {
        mapping: Mapping,
        shape: FrameShape,
        filled: u64,
        lost: u64,
    }

    pub(in crate::packet) fn ring() -> (Arc<Frames>, Kernel) {
        let shape = FrameShape::of(4 * 4096, 1500);
        let file: OwnedFd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, shape.ring_bytes() as u64).unwrap();
        let map = || Mapping::of(&file, shape.ring_bytes(), 0).unwrap();
        (Arc::new(Frames::new(map(), shape)), Kernel { mapping: map(), shape, filled: 0, lost: 0 })
    }

    impl Kernel {
        pub(in crate::packet) fn receive(&mut self, data: &[u8], tag: Option<(u16, u16)>) {
            const MAC: usize = 82;
            let start = self.shape.start(self.filled);
            let place = self.mapping.at::<u8>(start, self.shape.frame_bytes as usize);

            // SAFETY: `at` checked the place; the tests run both halves on one thread, and the
            // types are integers.
            unsafe {
                if place.cast::<u32>().read() != libc::TP_STATUS_KERNEL {
                    self.lost += 1;
                    return;
                }

                let mut header: libc::tpacket2_hdr = std::mem::zeroed();
                header.tp_status = libc::TP_STATUS_USER;

                if let Some((tpid, tci)) = tag {
                    header.tp_status |=
                        libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
                    (header.tp_vlan_tpid, header.tp_vlan_tci) = (tpid, tci);
                }

                (header.tp_len, header.tp_snaplen) = (data.len() as u32, data.len() as u32);
                (header.tp_mac, header.tp_sec, header.tp_nsec) = (MAC as u16, 7, 9);
                place.add(MAC).as_ptr().copy_from_nonoverlapping(data.as_ptr(), data.len());

                let mut address: libc::sockaddr_ll = std::mem::zeroed();
                address.sll_pkttype = libc::PACKET_OUTGOING;
                place.add(HEADER_BYTES).cast::<libc::sockaddr_ll>().write(address);
                place.cast::<libc::tpacket2_hdr>().write(header);
            }

            self.filled += 1;
        }
    }

    fn chunk(frames: &Arc<Frames>, count: u32) -> Option<Chunk> {
        let name = RingName::of_queue("test", 0);
        let identity = RingIdentity {
            name,
            index: 0,
            interface_index: 0,
            snap_len: 4096,
            link_type: crate::savefile::LinkType::ETHERNET,
            order: Default::default(),
        };
        let gathered = frames.take(count, 200, &mut Sieve::default())?;
        (gathered.len() > 0).then(|| gathered.into_chunk(Arc::new(identity), LABELS, 0, false))
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no memfd")]
    fn each_packet_arrives_at_once_with_its_tag_time_and_direction() {
        let (frames, mut kernel) = ring();
        assert!(chunk(&frames, 9).is_none() && !frames.is_next_filled());

        let bytes: Vec<u8> = (0..60).collect();
        kernel.receive(&bytes, None);
        kernel.receive(&bytes, Some((0x88a8, 0x2007)));
        assert_eq!((frames.filled(), frames.arrived(), frames.is_next_filled()), (2, 2, true));

        let chunk = chunk(&frames, 9).unwrap();
        assert_eq!((frames.filled(), frames.arrived()), (0, 2));

        let with_tag = [&bytes[..12], &[0x88, 0xa8, 0x20, 7], &bytes[12..]].concat();
        assert!(chunk.iter().map(|packet| packet.data()).eq([&bytes[..], &with_tag]));
        assert!(chunk.iter().map(|packet| packet.wire_len()).eq([60, 64]));
        assert!(chunk.iter().all(|packet| packet.timestamp().unwrap().unix_seconds() == 7));

        let sent = crate::filter::PacketType::Outgoing;
        assert!(chunk.iter().all(|packet| packet.packet_type() == Some(sent)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no memfd")]
    fn frames_return_to_the_kernel_when_their_chunk_is_dropped() {
        let (frames, mut kernel) = ring();
        let capacity = u64::from(frames.capacity());
        (0..capacity + 3).for_each(|number| kernel.receive(&[number as u8; 60], None));
        assert_eq!((kernel.lost, u64::from(frames.filled())), (3, capacity));

        let first = chunk(&frames, 2).unwrap();
        let second = chunk(&frames, 1).unwrap();
        drop(second);
        kernel.receive(&[0; 60], None);
        assert_eq!(kernel.lost, 4, "the first chunk holds the next frame");
        drop(first);
        (0..3).for_each(|_| kernel.receive(&[0xff; 60], None));
        assert_eq!((kernel.lost, frames.arrived()), (4, capacity + 3));

        let rest = chunk(&frames, u32::MAX >> 1).unwrap();
        assert_eq!(rest.len() as u64, capacity);
        assert!(chunk(&frames, 1).is_none(), "held frames are not taken again");
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no memfd")]
    fn invalid_header_offsets_are_counted_and_skipped() {
        let (frames, mut kernel) = ring();
        for (mac, len) in [(0, 60), (u16::MAX, 60), (82, 1 << 20), (51, 60)] {
            kernel.receive(&[1; 60], None);
            let place =
                kernel.mapping.at::<u8>(kernel.shape.start(kernel.filled - 1), HEADER_BYTES);
            // SAFETY: the kernel's half has just written a header there.
            let header = unsafe { place.cast::<libc::tpacket2_hdr>().as_mut() };
            (header.tp_mac, header.tp_snaplen) = (mac, len);
        }
        kernel.receive(&[1; 60], None);
        let gathered = frames.take(9, 200, &mut Sieve::default()).unwrap();
        assert_eq!((gathered.bad, gathered.len()), (4, 1));
    }
}
