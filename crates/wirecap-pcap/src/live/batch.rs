//! Filtered packets on their way to the program.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::{ptr, slice};

use wirecap::Head;

use crate::abi::PacketHeader;

/// Up to N packets for the program, filtered together. A callback may invalidate the ones that it has not got.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Batch<const N: usize> {
    len: usize,
    /// Where looking goes on.
    pub(super) end: usize,
    /// Packets refused behind the last one.
    pub(super) refused: u32,
    /// Some may have been refused.
    pub(super) is_sifted: bool,
    /// The chunk of the packets, and the filter and direction with which they were filtered.
    pub(super) chunks: u64,
    pub(super) generation: u32,
    /// The handle's disturbances before they were filtered.
    pub(super) disturbances: u32,
    /// The first `len` of them are there. They come last: few packets end in the cache lines in which the rest begins.
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
        // SAFETY: the code that set `len` had put so many there, and the two types have one layout.
        unsafe { &*(ptr::from_ref(packets) as *const [Delivered]) }
    }

    /// Whether packets may have been refused among them.
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

/// Where packets go next.
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
    /// Which of them is next.
    pub(super) at: usize,
    /// The position of the reader in its chunk that this requires.
    pub(super) from: usize,
}

/// As many as are fetched into the processor's cache together.
const AHEAD: usize = 16;

impl Ahead {
    pub(super) const fn new() -> Self {
        Self { batch: Batch::new(), at: 0, from: 0 }
    }
}

/// A packet for the program. Its bytes stay until the next read of the handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivered {
    pub(crate) header: PacketHeader,
    pub(crate) data: *const u8,
    /// The packet behind it in its chunk.
    pub(super) after: u32,
    /// Packets refused in front of it.
    pub(super) refused: u32,
}

impl Delivered {
    /// The packet of this head, with at most `longest` bytes, and its time with `nanos` or microseconds.
    #[inline]
    pub(super) fn new(head: &Head<'_>, longest: u32, nanos: bool, after: u32, refused: u32) -> Self {
        let header = PacketHeader {
            seconds: head.seconds as _,
            fraction: if nanos { head.nanos } else { head.nanos / 1000 }.into(),
            captured_bytes: (head.data.len() as u32).min(longest),
            wire_bytes: head.wire_len,
        };
        Self { header, data: head.data.as_ptr(), after, refused }
    }
}
