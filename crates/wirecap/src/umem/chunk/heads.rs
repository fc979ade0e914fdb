//! Length, time and size of many packets at a time: the chunk's layout is looked up once for all of them.

#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

use super::records::{self, Stamps, program_stamp};
use super::{Chunk, Packet};
use crate::sys::memory::{LINE_BYTES, prefetch};
use crate::sys::xdp::Descriptor;
use crate::time::Timestamp;

/// How many packets ahead the processor fetches those in cells: each is in memory of its own, which another core wrote.
pub(crate) const PACKETS_AHEAD: usize = 12;

/// Bytes of a packet that [`Chunk::fetch`] asks for: the processor sees by itself how the rest of a long one goes on.
const FETCHED_BYTES_MAX: usize = 512;

/// A packet that is read as a stream, or, as likely, not by this processor.
const LONG_BYTES: usize = 1 << 10;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

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
    /// It is [`iter`](Self::iter) for length, time and bytes of every packet, in half of the
    /// instructions.
    ///
    /// # Panics
    ///
    /// If the chunk has fewer packets than the range says.
    #[inline]
    pub fn for_each_head<'a>(&'a self, range: Range<usize>, mut each: impl FnMut(Head<'a>)) {
        let packets = self.packets()[range.clone()].iter();
        let packets = packets.map(|descriptor| Packet { descriptor, chunk: self });
        match self.origin.stamps {
            Stamps::Header { told: true, .. } if !self.fragmented => {
                packets.for_each(|packet| each(packet.head_by_kernel()));
            }
            // SAFETY: the packets were checked when they were captured, with the times in front of them, and stay as long as
            // the chunk.
            Stamps::Tai { ahead_of_utc_nanos } if !self.fragmented => unsafe {
                let (base, snap_len) = (self.origin.base, self.snap_len);
                each_by_program(base, self.packets(), range, snap_len, ahead_of_utc_nanos, each);
            },
            _ => packets.for_each(|packet| each(packet.head())),
        }
    }
}

impl Chunk {
    /// How many packets ahead a program that iterates over them calls [`fetch`](Self::fetch).
    pub const PACKETS_AHEAD: usize = PACKETS_AHEAD;

    /// Has the processor fetch the packet at `index`, if there is one, with its time: up to 512 bytes, of one of 1 KiB and more
    /// only the first line. A program that reads whole packets, and calls this [`PACKETS_AHEAD`](Self::PACKETS_AHEAD) places
    /// ahead, does not wait for the memory of each packet in turn.
    #[inline]
    pub fn fetch(&self, index: usize) {
        let Some(packet) = self.packets().get(index) else { return };
        fetch_packet(self.origin.base, packet);
        let start = self.origin.base.as_ptr().wrapping_add(packet.address as usize);
        let bytes = match packet.len.min(self.snap_len) as usize {
            LONG_BYTES.. => 0,
            bytes => bytes.min(FETCHED_BYTES_MAX),
        };
        (LINE_BYTES..bytes).step_by(LINE_BYTES).for_each(|offset| prefetch(start.wrapping_add(offset)));
    }
}

/// Calls `each` with those of `packets` at the places in `range`, whose addresses count from `base`, cut to `snap_len` bytes.
/// The processor fetches packets before they are looked at, with the times in front of them: some at the beginning, and one
/// more at each step.
///
/// # Safety
///
/// Each packet must lie in one piece in memory that stays for `'a` and that nothing writes to, behind its time by the program,
/// which is so far ahead of UTC.
#[inline]
pub(crate) unsafe fn each_by_program<'a>(
    base: NonNull<u8>,
    packets: &[Descriptor],
    range: Range<usize>,
    snap_len: u32,
    ahead_of_utc_nanos: u64,
    mut each: impl FnMut(Head<'a>),
) {
    if range.start == 0 {
        fetch(base, &packets[..packets.len().min(PACKETS_AHEAD)]);
    }
    let mut second = Second::default();
    let mut look = |&Descriptor { address, len: wire_len, .. }: &Descriptor| {
        // SAFETY: the caller's promise.
        let (tai, data) = unsafe {
            let start = base.add(address as usize);
            (program_stamp(start), slice::from_raw_parts(start.as_ptr(), wire_len.min(snap_len) as usize))
        };
        let nanos = second.nanos_at(tai, ahead_of_utc_nanos);
        each(Head { data, wire_len, seconds: second.unix_seconds, nanos });
    };
    // One window for each packet behind which there is one to be fetched: a single pointer for both.
    let fetched = packets.len().min(range.end + PACKETS_AHEAD);
    let windows = packets[range.start..fetched.max(range.start)].windows(PACKETS_AHEAD + 1);
    let rest = range.start + windows.len()..range.end;
    for window in windows {
        fetch_packet(base, &window[PACKETS_AHEAD]);
        look(&window[0]);
    }
    packets[rest].iter().for_each(look);
}

/// Has the processor fetch `packets`, with the times in front of them.
pub(crate) fn fetch(base: NonNull<u8>, packets: &[Descriptor]) {
    packets.iter().for_each(|packet| fetch_packet(base, packet));
}

#[inline]
fn fetch_packet(base: NonNull<u8>, packet: &Descriptor) {
    let start = base.as_ptr().wrapping_add(packet.address as usize);
    prefetch(start.wrapping_sub(size_of::<u64>()));
    prefetch(start);
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
}

/// The second in which the last packet arrived: most arrive in that of the one before, and need no division.
#[derive(Debug, Default)]
struct Second {
    unix_seconds: u64,
    /// When it began, by CLOCK_TAI.
    began: u64,
    /// How long it is; 0 before the first packet.
    nanos: u64,
}

impl Second {
    /// Goes to the second of `tai` and gives the nanoseconds in it.
    #[inline]
    fn nanos_at(&mut self, tai: u64, ahead_of_utc_nanos: u64) -> u32 {
        let nanos = tai.wrapping_sub(self.began);
        if nanos < self.nanos { nanos as u32 } else { self.find(tai, ahead_of_utc_nanos) }
    }

    #[cold]
    fn find(&mut self, tai: u64, ahead_of_utc_nanos: u64) -> u32 {
        let time = Timestamp::from_unix_nanos(tai.saturating_sub(ahead_of_utc_nanos));
        let nanos = time.subsec_nanos();
        self.unix_seconds = time.unix_seconds();
        // Neither before 1970, all of which counts as its beginning, nor where time runs out has a second an end.
        let has_end = tai >= ahead_of_utc_nanos && tai < u64::MAX - NANOS_PER_SECOND;
        (self.began, self.nanos) = if has_end { (tai - u64::from(nanos), NANOS_PER_SECOND) } else { (0, 0) };
        nanos
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn times_are_divided_into_seconds_as_one_by_one() {
        const AHEAD: u64 = 37 * NANOS_PER_SECOND;
        let times = [
            0,
            1,
            AHEAD - 1,
            AHEAD,
            AHEAD + 1,
            2 * AHEAD,
            2 * AHEAD + 999_999_999,
            2 * AHEAD + 1_000_000_000,
        ];
        let mut second = Second::default();
        // Back and forth, as clocks go.
        for tai in times.into_iter().chain(times.into_iter().rev()).chain([u64::MAX, 5, u64::MAX - 1]) {
            let nanos = second.nanos_at(tai, AHEAD);
            let time = Timestamp::from_unix_nanos(tai.saturating_sub(AHEAD));
            assert_eq!((second.unix_seconds, nanos), (time.unix_seconds(), time.subsec_nanos()), "{tai}");
        }
    }
}
