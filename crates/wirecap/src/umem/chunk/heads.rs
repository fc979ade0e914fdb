//! Length, time and size of many packets at a time: the chunk's layout is looked up once for all of them.

#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

use super::records::{self, Stamps, program_stamp};
use super::{Chunk, Packet};
use crate::sys::memory::{LINE_BYTES, prefetch, prefetch_to_second_level};
use crate::sys::xdp::Descriptor;
use crate::time::Timestamp;

/// Number of packets prefetched in advance if packets are in cells: each is in separate memory, which another core
/// wrote.
pub(crate) const PACKETS_AHEAD: usize = 12;

/// Maximum number of packets that share a reading of the clock ([`Timestamps::Batch`](crate::Timestamps::Batch)).
pub(crate) const PACKETS_PER_READING: usize = 8;

/// Maximum number of bytes of a packet that [`Chunk::fetch`] prefetches: the processor's own prefetcher recognises
/// the rest of a longer one.
const FETCHED_BYTES_MAX: usize = 2 << 10;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The most used properties of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head<'a> {
    /// Its bytes, as from [`Packet::data`].
    pub data: &'a [u8],
    /// Its length on the wire, in bytes.
    pub wire_len: u32,
    /// Its arrival in whole seconds since the Unix epoch, UTC; 0 if the capture was opened without timestamps.
    pub seconds: u64,
    /// The nanoseconds within the second.
    pub nanos: u32,
}

impl Head<'_> {
    /// The head of the packet that `descriptor` describes, whose `header` the kernel wrote, cut to `snap_len` bytes.
    ///
    /// # Safety
    ///
    /// The packet must begin at the descriptor's distance after its header, and neither may be written to while
    /// the value lives.
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
    /// Calls `each` with the packets at the indices in `range`, in ring order.
    ///
    /// It is [`iter`](Self::iter) for length, time and bytes of every packet, in half of the
    /// instructions.
    ///
    /// # Panics
    ///
    /// If the chunk has fewer packets than the end of the range.
    #[inline]
    pub fn for_each_head<'a>(&'a self, range: Range<usize>, mut each: impl FnMut(Head<'a>)) {
        let packets = self.packets()[range.clone()].iter();
        let packets = packets.map(|descriptor| Packet { descriptor, chunk: self });
        match self.origin.stamps {
            Stamps::Header { told: true, .. } if !self.fragmented => {
                packets.for_each(|packet| each(packet.head_by_kernel()));
            }
            // SAFETY: the packets were checked when they were captured, with the timestamps before them, and stay as long as
            // the chunk.
            Stamps::Tai { ahead_of_utc_nanos } if !self.fragmented => unsafe {
                let (base, snap_len) = (self.origin.base, self.snap_len);
                let mut unknown = Grouping::default();
                each_by_program(
                    base,
                    self.packets(),
                    range,
                    snap_len,
                    ahead_of_utc_nanos,
                    &mut unknown,
                    each,
                );
            },
            _ => packets.for_each(|packet| each(packet.head())),
        }
    }
}

impl Chunk {
    /// Number of packets in advance for which a program that iterates over packets calls
    /// [`fetch`](Self::fetch).
    pub const PACKETS_AHEAD: usize = PACKETS_AHEAD;

    /// Prefetches the packet at `index`, if there is one, with its timestamp: up to 2 KiB. A program that reads whole
    /// packets, and calls this [`PACKETS_AHEAD`](Self::PACKETS_AHEAD) packets in advance, does not wait for the memory of
    /// each packet.
    #[inline]
    pub fn fetch(&self, index: usize) {
        let Some(packet) = self.packets().get(index) else { return };
        let start = self.origin.base.as_ptr().wrapping_add(packet.address as usize).cast_const();
        let bytes = (packet.len.min(self.snap_len) as usize).min(FETCHED_BYTES_MAX);
        let lines = (0..bytes).step_by(LINE_BYTES).map(|offset| start.wrapping_add(offset));
        if let Stamps::Header { .. } = self.origin.stamps {
            // Packets follow each other in a block, so the processor's own prefetcher has brought them into the
            // second-level cache.
            lines.for_each(prefetch);
        } else {
            prefetch_to_second_level(start.wrapping_sub(size_of::<u64>())); // the timestamp
            lines.for_each(prefetch_to_second_level);
        }
    }
}

/// Whether the last packets came in groups with the same timestamp. The next ones are then assumed to do the same, so that
/// most timestamps are not read: each is in a cache line that another core wrote.
#[derive(Debug, Default)]
pub(crate) struct Grouping {
    is_regular: bool,
}

/// Calls `each` with those of `packets` at the indices in `range`, cut to `snap_len` bytes; addresses are relative to `base`.
/// Packets and the timestamps before them are prefetched: some at the beginning, and one more at each step.
///
/// # Safety
///
/// Each packet must be in one piece in memory that stays for `'a` and is not written to, after the program's timestamp, which
/// is this far ahead of UTC.
#[inline]
pub(crate) unsafe fn each_by_program<'a>(
    base: NonNull<u8>,
    packets: &[Descriptor],
    range: Range<usize>,
    snap_len: u32,
    ahead_of_utc_nanos: u64,
    grouping: &mut Grouping,
    mut each: impl FnMut(Head<'a>),
) {
    if range.start == 0 {
        fetch(base, &packets[..packets.len().min(PACKETS_AHEAD)]);
    }
    let mut second = Second::default();
    // SAFETY: the caller's promise.
    let stamp_of = |packet: &Descriptor| unsafe { program_stamp(base.add(packet.address as usize)) };
    let head = |&Descriptor { address, len: wire_len, .. }: &Descriptor, seconds, nanos| {
        // SAFETY: the caller's promise.
        let data = unsafe {
            slice::from_raw_parts(base.add(address as usize).as_ptr(), wire_len.min(snap_len) as usize)
        };
        Head { data, wire_len, seconds, nanos }
    };
    let mut start = range.start;
    if grouping.is_regular {
        if range.start == 0 {
            fetch_stamps_of_group(base, packets, PACKETS_PER_READING);
        }
        while start < range.end {
            let group = group_at(packets, start);
            // The program's clock does not go back, so packets between two with the same time have this time as well. (If it
            // was set back in between, to the very nanosecond, they are as far from the truth as the clock was.)
            let tai = stamp_of(&group[0]);
            if tai != stamp_of(&group[group.len() - 1]) {
                grouping.is_regular = false;
                fetch(base, &packets[start..packets.len().min(start + PACKETS_AHEAD)]);
                break;
            }
            fetch_stamps_of_group(base, packets, start + 2 * PACKETS_PER_READING);
            let ahead = packets.len().min(start + PACKETS_AHEAD);
            packets[ahead..].iter().take(PACKETS_PER_READING).for_each(|packet| fetch_data(base, packet));
            let nanos = second.nanos_at(tai, ahead_of_utc_nanos);
            let group = &group[..group.len().min(range.end - start)];
            group.iter().for_each(|packet| each(head(packet, second.unix_seconds, nanos)));
            start += group.len();
        }
    }
    let mut look = |packet: &Descriptor| {
        let nanos = second.nanos_at(stamp_of(packet), ahead_of_utc_nanos);
        each(head(packet, second.unix_seconds, nanos));
    };
    // One window for each packet with a packet to prefetch, so that one pointer serves both.
    let fetched = packets.len().min(range.end + PACKETS_AHEAD);
    let windows = packets[start..fetched.max(start)].windows(PACKETS_AHEAD + 1);
    let rest = start + windows.len()..range.end;
    for window in windows {
        fetch_packet(base, &window[PACKETS_AHEAD]);
        look(&window[0]);
    }
    packets[rest].iter().for_each(look);
    if start == range.start && range.len() >= PACKETS_PER_READING {
        let mut groups = packets[range].chunks(PACKETS_PER_READING);
        grouping.is_regular = groups.all(|group| stamp_of(&group[0]) == stamp_of(&group[group.len() - 1]));
    }
}

/// The packets from index `start` on that share a timestamp if groups are regular.
#[inline]
fn group_at(packets: &[Descriptor], start: usize) -> &[Descriptor] {
    &packets[start..packets.len().min(start + PACKETS_PER_READING)]
}

/// Prefetches the two timestamps that are read of the group from index `start` on, if there is one.
#[inline]
fn fetch_stamps_of_group(base: NonNull<u8>, packets: &[Descriptor], start: usize) {
    if start < packets.len() {
        let group = group_at(packets, start);
        fetch_stamp(base, &group[0]);
        fetch_stamp(base, &group[group.len() - 1]);
    }
}

/// Prefetches `packets` and the timestamps before them.
pub(crate) fn fetch(base: NonNull<u8>, packets: &[Descriptor]) {
    packets.iter().for_each(|packet| fetch_packet(base, packet));
}

#[inline]
fn fetch_packet(base: NonNull<u8>, packet: &Descriptor) {
    fetch_stamp(base, packet);
    fetch_data(base, packet);
}

#[inline]
fn fetch_stamp(base: NonNull<u8>, packet: &Descriptor) {
    prefetch(base.as_ptr().wrapping_add(packet.address as usize).wrapping_sub(size_of::<u64>()));
}

#[inline]
fn fetch_data(base: NonNull<u8>, packet: &Descriptor) {
    prefetch(base.as_ptr().wrapping_add(packet.address as usize));
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

    /// The head of a packet in one piece with a header of the kernel, if timestamps were requested.
    #[inline]
    fn head_by_kernel(&self) -> Head<'a> {
        let header = self.header();
        // SAFETY: as in `wire_len`.
        let (wire_len, (seconds, nanos)) =
            unsafe { (records::wire_len(header), records::seconds_and_nanos(header)) };
        Head { data: self.in_its_cell(), wire_len, seconds, nanos }
    }
}

/// The second in which the last packet arrived: most packets arrive in the same second as the previous one and
/// need no division.
#[derive(Debug, Default)]
struct Second {
    unix_seconds: u64,
    /// Its beginning, by CLOCK_TAI.
    began: u64,
    /// Its length; 0 before the first packet.
    nanos: u64,
}

impl Second {
    /// Advances to the second of `tai` and returns the nanoseconds within it.
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
        // Times before 1970 count as its beginning. This second, and the last representable one, are not full
        // seconds.
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
        // Forwards and backwards, as clocks are set.
        for tai in times.into_iter().chain(times.into_iter().rev()).chain([u64::MAX, 5, u64::MAX - 1]) {
            let nanos = second.nanos_at(tai, AHEAD);
            let time = Timestamp::from_unix_nanos(tai.saturating_sub(AHEAD));
            assert_eq!((second.unix_seconds, nanos), (time.unix_seconds(), time.subsec_nanos()), "{tai}");
        }
    }
}
