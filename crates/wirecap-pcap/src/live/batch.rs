//! Filtered packets on their way to the program.
//!
//! User space filters a whole batch before the callback gets, or `pcap_next_ex` returns, its first
//! packet. A callback that sets a filter, reads or closes invalidates the rest of the batch, which
//! is filtered again. A counter of such events is the only check after each callback.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::{ptr, slice};

use wirecap::Head;

use crate::abi::PacketHeader;

/// Up to N packets for the program, filtered together. A callback may invalidate those that were
/// not delivered yet.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Batch<const N: usize> {
    len: usize,
    /// The index in the chunk at which filtering continues.
    pub(super) end: usize,
    /// Packets rejected after the last one.
    pub(super) refused: u32,
    /// Some packets may have been rejected.
    pub(super) is_sifted: bool,
    /// Identifies the chunk of the packets; `generation` identifies the filter and direction that
    /// were applied.
    pub(super) chunks: u64,
    pub(super) generation: u32,
    /// The handle's count of disturbances before the packets were filtered.
    pub(super) disturbances: u32,
    /// The first `len` are initialised. The array is the last field, so that a batch of few packets
    /// uses few cache lines.
    packets: [MaybeUninit<Delivered>; N],
}

impl<const N: usize> Batch<N> {
    pub(crate) const fn new() -> Self {
        Self {
            packets: [const { MaybeUninit::uninit() }; N],
            len: 0,
            end: 0,
            refused: 0,
            is_sifted: false,
            chunks: 0,
            generation: 0,
            disturbances: 0,
        }
    }

    #[inline]
    pub(crate) fn packets(&self) -> &[Delivered] {
        let packets = &self.packets[..self.len];
        // SAFETY: the first `len` packets are initialised, and the two types have the same layout.
        unsafe { &*(ptr::from_ref(packets) as *const [Delivered]) }
    }

    /// Whether packets may have been rejected between or after those of the batch.
    pub(crate) fn is_sifted(&self) -> bool {
        self.is_sifted
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn clear(&mut self) {
        (self.len, self.refused) = (0, 0);
    }

    /// Adds the packets that `look` pushes, as far as there is room.
    #[inline]
    pub(super) fn extend(&mut self, look: impl FnOnce(&mut Places<'_>)) {
        let mut places = Places(self.packets[self.len..].iter_mut());
        look(&mut places);
        self.len = N - places.0.len();
    }
}

/// The free places of a batch.
pub(super) struct Places<'a>(slice::IterMut<'a, MaybeUninit<Delivered>>);

impl Places<'_> {
    /// Adds a packet, if there is room.
    #[inline]
    pub(super) fn push(&mut self, packet: Delivered) {
        if let Some(place) = self.0.next() {
            place.write(packet);
        }
    }
}

/// Packets filtered ahead for calls that return one at a time.
#[derive(Debug)]
pub(super) struct Ahead {
    pub(super) batch: Batch<AHEAD>,
    /// The index of the next packet in the batch.
    pub(super) at: usize,
    /// The position in the chunk that the reader must have for the batch to be valid.
    pub(super) from: usize,
}

/// As many packets as are prefetched together.
const AHEAD: usize = 16;

impl Ahead {
    pub(super) const fn new() -> Self {
        Self { batch: Batch::new(), at: 0, from: 0 }
    }
}

/// A packet for the program. Its bytes stay valid until the next read of the handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivered {
    pub(crate) header: PacketHeader,
    pub(crate) data: *const u8,
    /// The index of the next packet in the chunk.
    pub(super) after: u32,
    /// Packets rejected since the previous one.
    pub(super) refused: u32,
}

impl Delivered {
    /// The packet of this head, with at most `longest` bytes, and its timestamp in nanoseconds if
    /// `nanos`, otherwise in microseconds.
    #[inline]
    pub(super) fn new(
        head: &Head<'_>,
        longest: u32,
        nanos: bool,
        after: u32,
        refused: u32,
    ) -> Self {
        let header = PacketHeader {
            seconds: head.seconds as _,
            fraction: if nanos { head.nanos } else { head.nanos / 1000 }.into(),
            captured_bytes: (head.data.len() as u32).min(longest),
            wire_bytes: head.wire_len,
        };
        Self { header, data: head.data.as_ptr(), after, refused }
    }
}
