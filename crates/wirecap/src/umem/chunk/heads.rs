//! What programs ask of every packet, told of many packets at a time: where a chunk's packets have their lengths
//! and times is looked up once for all of them.

#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

use super::records::{self, Stamps, program_stamp};
use super::{Chunk, Packet};
use crate::sys::memory::prefetch;
use crate::sys::xdp::Descriptor;
use crate::time::Timestamp;

/// How many packets ahead the processor fetches those in cells: each is in memory of its own, which another core wrote.
const PACKETS_AHEAD: usize = 12;

/// A packet at a glance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head<'a> {
    /// Its bytes, as [`Packet::data`] gives them.
    pub data: &'a [u8],
    /// Its length on the wire, in bytes.
    pub wire_len: u32,
    /// When it arrived, in whole seconds since the Unix epoch, UTC; 0 if the capture was opened without timestamps.
    pub seconds: u64,
    /// The nanoseconds that go with the seconds.
    pub nanos: u32,
}

impl Head<'_> {
    /// The head of the packet that `descriptor` describes, whose `header` the kernel wrote, cut to `snap_len` bytes.
    ///
    /// # Safety
    ///
    /// The packet must begin behind its header as far as the descriptor says, and nothing may write to either
    /// while the value lives.
    #[inline]
    pub(crate) unsafe fn of_frame(
        header: NonNull<u8>,
        descriptor: Descriptor,
        wire_len: u32,
        snap_len: u32,
    ) -> Self {
        let len = descriptor.len.min(snap_len) as usize;
        // SAFETY: the caller's promise.
        unsafe {
            let (seconds, nanos) = records::seconds_and_nanos(header);
            let start = header.add(descriptor.header_distance() as usize);
            Self { data: slice::from_raw_parts(start.as_ptr(), len), wire_len, seconds, nanos }
        }
    }
}

impl Chunk {
    /// Calls `each` with the packets at the places in `range`, counted from 0 in ring order.
    ///
    /// It is [`iter`](Self::iter) for who wants length, time and bytes of every packet, in half of the
    /// instructions.
    ///
    /// # Panics
    ///
    /// If the chunk has fewer packets than the range says.
    #[inline]
    pub fn for_each_head<'a>(&'a self, range: Range<usize>, mut each: impl FnMut(Head<'a>)) {
        let packets =
            self.packets()[range.clone()].iter().map(|descriptor| Packet { descriptor, chunk: self });
        match self.origin.stamps {
            Stamps::Header { told: true, .. } if !self.fragmented => {
                packets.for_each(|packet| each(packet.head_by_kernel()));
            }
            Stamps::Tai { ahead_of_utc_nanos } if !self.fragmented => {
                let mut ahead = self.fetch_ahead(range);
                packets.for_each(|packet| {
                    ahead.next();
                    each(packet.head_by_program(ahead_of_utc_nanos));
                });
            }
            _ => packets.for_each(|packet| each(packet.head())),
        }
    }

    /// Has the processor fetch packets, with the times in front of them: some at the beginning of the chunk, and one more
    /// at each step.
    #[inline]
    fn fetch_ahead(&self, range: Range<usize>) -> impl Iterator<Item = ()> {
        let packets = self.packets();
        let fetch = |descriptor: &Descriptor| {
            let start = self.origin.base.as_ptr().wrapping_add(descriptor.address as usize);
            prefetch(start.wrapping_sub(size_of::<u64>()));
            prefetch(start);
        };
        if range.start == 0 {
            packets.iter().take(PACKETS_AHEAD).for_each(fetch);
        }
        packets.get(range.start + PACKETS_AHEAD..).unwrap_or_default().iter().map(fetch)
    }
}

impl<'a> Packet<'a> {
    /// The head of any packet.
    fn head(&self) -> Head<'a> {
        let time = self.timestamp().unwrap_or_default();
        Head {
            data: self.data(),
            wire_len: self.wire_len(),
            seconds: time.unix_seconds(),
            nanos: time.subsec_nanos(),
        }
    }

    /// The head of a packet in one piece with a header by the kernel, where time was asked for.
    #[inline]
    fn head_by_kernel(&self) -> Head<'a> {
        let header = self.header();
        // SAFETY: as in `wire_len`.
        let (wire_len, (seconds, nanos)) =
            unsafe { (records::wire_len(header), records::seconds_and_nanos(header)) };
        Head { data: self.in_its_cell(), wire_len, seconds, nanos }
    }

    /// The head of a packet in one piece whose time the XDP program wrote in front of it.
    #[inline]
    fn head_by_program(&self, ahead_of_utc_nanos: u64) -> Head<'a> {
        let &Descriptor { len: wire_len, .. } = self.descriptor;
        // SAFETY: the program wrote it, and the packet is as it was captured.
        let tai = unsafe { program_stamp(self.start()) };
        let time = Timestamp::from_unix_nanos(tai.saturating_sub(ahead_of_utc_nanos));
        Head { data: self.in_its_cell(), wire_len, seconds: time.unix_seconds(), nanos: time.subsec_nanos() }
    }
}
