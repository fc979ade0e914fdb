//! Length, time and size of many packets at a time: the chunk's layout is looked up once for all of
//! them.

#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

use super::records::{self, Stamps, program_stamp};
use super::{Chunk, Packet};
use crate::sys::memory::{LINE_BYTES, prefetch, prefetch_to_second_level};
use crate::sys::xdp::Descriptor;
use crate::time::Timestamp;

/// Number of packets prefetched in advance if packets are in cells: each is in separate memory,
/// which another core wrote.
pub(crate) const PACKETS_AHEAD: usize = 12;

/// Maximum number of packets that share a reading of the clock
/// ([`Timestamps::Batch`](crate::Timestamps::Batch)).
pub(crate) const PACKETS_PER_READING: usize = 8;

/// Number of packets whose timestamps are all read before the next ones are assumed to come in
/// groups like these.
const PACKETS_PER_TRIAL: usize = 4 * PACKETS_PER_READING;

/// Maximum number of bytes of a packet in a block that is prefetched into the first-level cache.
const SHORT_BYTES_MAX: u32 = 256;

/// Maximum number of bytes of a packet that is prefetched as a whole: the processor's own
/// prefetcher recognises the rest of a longer one.
const FETCHED_BYTES_MAX: usize = 2 << 10;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The most used properties of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head<'a> {
    /// Its bytes, as from [`Packet::data`].
    pub data: &'a [u8],
    /// Its length on the wire, in bytes.
    pub wire_len: u32,
    /// Its arrival in whole seconds since the Unix epoch, UTC; 0 if the capture was opened without
    /// timestamps.
    pub seconds: u64,
    /// The nanoseconds within the second.
    pub nanos: u32,
}

impl Head<'_> {
    /// Its arrival; `None` if the capture was opened without timestamps, or if the device provided
    /// none.
    #[inline]
    pub fn timestamp(&self) -> Option<Timestamp> {
        let nanos = self.seconds * NANOS_PER_SECOND + u64::from(self.nanos);
        (nanos > 0).then(|| Timestamp::from_unix_nanos(nanos))
    }

    /// The head of the packet that `descriptor` describes, whose `header` the kernel wrote, cut to
    /// `snap_len` bytes.
    ///
    /// # Safety
    ///
    /// The packet must begin at the descriptor's distance after its header, and neither may be
    /// written to while the value lives.
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
    pub fn for_each_head<'a>(&'a self, range: Range<usize>, each: impl FnMut(Head<'a>)) {
        self.for_each::<false>(range, each);
    }

    /// As [`for_each_head`](Self::for_each_head), for programs that read whole packets: these are
    /// prefetched, each up to 2 KiB.
    ///
    /// # Panics
    ///
    /// If the chunk has fewer packets than the end of the range.
    #[inline]
    pub fn for_each_whole<'a>(&'a self, range: Range<usize>, each: impl FnMut(Head<'a>)) {
        self.for_each::<true>(range, each);
    }

    #[inline]
    fn for_each<'a, const WHOLE: bool>(
        &'a self,
        range: Range<usize>,
        mut each: impl FnMut(Head<'a>),
    ) {
        if let Stamps::Tai { ahead_of_utc_nanos } = self.origin.stamps
            && !self.fragmented
        {
            let packets = self.packets();
            let mut unknown = Grouping::default();

            // SAFETY: the packets were checked when they were captured, with the timestamps before
            // them, and stay as long as the chunk.
            unsafe {
                each_by_program::<WHOLE>(
                    self.origin.base,
                    packets,
                    range,
                    self.snap_len,
                    ahead_of_utc_nanos,
                    &mut unknown,
                    each,
                );
            }
            return;
        }

        let is_by_kernel =
            matches!(self.origin.stamps, Stamps::Header { told: true, .. }) && !self.fragmented;
        if WHOLE {
            range.clone().take(PACKETS_AHEAD).for_each(|index| self.fetch(index));
        }

        for (descriptor, index) in self.packets()[range.clone()].iter().zip(range) {
            if WHOLE {
                self.fetch(index + PACKETS_AHEAD);
            }
            let packet = Packet { descriptor, chunk: self };
            each(if is_by_kernel { packet.head_by_kernel() } else { packet.head() });
        }
    }
}

impl Chunk {
    /// Number of packets in advance for which a program that iterates over packets calls
    /// [`fetch`](Self::fetch).
    pub const PACKETS_AHEAD: usize = PACKETS_AHEAD;

    /// Prefetches the packet at `index`, if there is one, with its timestamp: up to 2 KiB. A
    /// program that reads whole packets, and calls this [`PACKETS_AHEAD`](Self::PACKETS_AHEAD)
    /// packets in advance, does not wait for the memory of each packet.
    #[inline]
    pub fn fetch(&self, index: usize) {
        let Some(packet) = self.packets().get(index) else { return };
        let is_in_block = matches!(self.origin.stamps, Stamps::Header { .. });
        if is_in_block && packet.len <= SHORT_BYTES_MAX {
            // Packets follow each other in a block, so the processor's own prefetcher has brought
            // short ones into the second-level cache.
            each_line(self.origin.base, packet, self.snap_len, prefetch);
            return;
        }
        if !is_in_block {
            fetch_stamp(self.origin.base, packet);
        }
        each_line(self.origin.base, packet, self.snap_len, prefetch_to_second_level);
    }
}

/// Calls `fetch` with a place in each cache line of a packet, except perhaps the last one.
#[inline]
fn each_line(base: NonNull<u8>, packet: &Descriptor, snap_len: u32, fetch: fn(*const u8)) {
    let start = base.as_ptr().wrapping_add(packet.address as usize).cast_const();
    let bytes = (packet.len.min(snap_len) as usize).min(FETCHED_BYTES_MAX);
    let mut offset = 0;
    while offset < bytes {
        fetch(start.wrapping_add(offset));
        offset += LINE_BYTES;
    }
}

/// Whether the last packets came in groups with the same timestamp. The next ones are then assumed
/// to do the same, so that most timestamps are not read: each is in a cache line that another core
/// wrote.
#[derive(Debug, Default)]
pub(crate) struct Grouping {
    is_regular: bool,
}

/// Calls `each` with those of `packets` at the indices in `range`, cut to `snap_len` bytes;
/// addresses are relative to `base`. Timestamps and packets are prefetched, `WHOLE` or only their
/// first line: some at the beginning, and more at each step.
///
/// # Safety
///
/// Each packet must be in one piece in memory that stays for `'a` and is not written to, after the
/// program's timestamp, which is this far ahead of UTC.
#[inline]
pub(crate) unsafe fn each_by_program<'a, const WHOLE: bool>(
    base: NonNull<u8>,
    packets: &[Descriptor],
    range: Range<usize>,
    snap_len: u32,
    ahead_of_utc_nanos: u64,
    grouping: &mut Grouping,
    mut each: impl FnMut(Head<'a>),
) {
    let fetch_data = |packet: &Descriptor| match WHOLE {
        true => each_line(base, packet, snap_len, prefetch_to_second_level),
        false => fetch_start(base, packet),
    };
    let mut second = Second::default();

    // SAFETY: the caller's promise.
    let stamp_of =
        |packet: &Descriptor| unsafe { program_stamp(base.add(packet.address as usize)) };
    let head = |&Descriptor { address, len: wire_len, .. }: &Descriptor, seconds, nanos| {
        // SAFETY: the caller's promise.
        let data = unsafe {
            slice::from_raw_parts(
                base.add(address as usize).as_ptr(),
                wire_len.min(snap_len) as usize,
            )
        };
        Head { data, wire_len, seconds, nanos }
    };

    if range.start == 0 {
        packets.iter().take(PACKETS_AHEAD).for_each(fetch_data);
        if grouping.is_regular {
            fetch_stamps_of_group(base, packets, 0);
            fetch_stamps_of_group(base, packets, PACKETS_PER_READING);
        } else {
            packets.iter().take(PACKETS_AHEAD).for_each(|packet| fetch_stamp(base, packet));
        }
    }

    let mut start = range.start;
    while start < range.end {
        if grouping.is_regular {
            let group = group_at(packets, start);

            // The program's clock does not go back, so packets between two with the same time have
            // this time as well. (If it was set back in between, to the very nanosecond, they are
            // as far from the truth as the clock was.)
            let tai = stamp_of(&group[0]);
            if tai != stamp_of(&group[group.len() - 1]) {
                grouping.is_regular = false;
                packets[start..]
                    .iter()
                    .take(PACKETS_AHEAD)
                    .for_each(|packet| fetch_stamp(base, packet));
                continue;
            }

            fetch_stamps_of_group(base, packets, start + 2 * PACKETS_PER_READING);
            let nanos = second.nanos_at(tai, ahead_of_utc_nanos);
            let group = &group[..group.len().min(range.end - start)];

            for (index, packet) in group.iter().enumerate() {
                packets.get(start + index + PACKETS_AHEAD).into_iter().for_each(fetch_data);
                each(head(packet, second.unix_seconds, nanos));
            }

            start += group.len();
        } else {
            let end = range.end.min(start + PACKETS_PER_TRIAL);
            let mut look = |packet: &Descriptor| {
                let nanos = second.nanos_at(stamp_of(packet), ahead_of_utc_nanos);
                each(head(packet, second.unix_seconds, nanos));
            };

            // One window for each packet with a packet to prefetch, so that one pointer serves
            // both.
            let windows =
                packets[start..packets.len().min(end + PACKETS_AHEAD)].windows(PACKETS_AHEAD + 1);
            let rest = start + windows.len()..end;

            for window in windows {
                fetch_stamp(base, &window[PACKETS_AHEAD]);
                fetch_data(&window[PACKETS_AHEAD]);
                look(&window[0]);
            }

            packets[rest].iter().for_each(look);
            let trial = &packets[start..end];
            let mut groups = trial.chunks(PACKETS_PER_READING);
            grouping.is_regular = trial.len() >= PACKETS_PER_READING
                && groups.all(|group| stamp_of(&group[0]) == stamp_of(&group[group.len() - 1]));
            start = end;
        }
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

/// Prefetches the timestamp before `packet`.
#[inline]
fn fetch_stamp(base: NonNull<u8>, packet: &Descriptor) {
    prefetch(base.as_ptr().wrapping_add(packet.address as usize).wrapping_sub(size_of::<u64>()));
}

/// Prefetches the first bytes of `packet`.
#[inline]
fn fetch_start(base: NonNull<u8>, packet: &Descriptor) {
    prefetch(base.as_ptr().wrapping_add(packet.address as usize));
}

/// Prefetches the first bytes of `packets`, and the timestamps before them.
pub(crate) fn fetch(base: NonNull<u8>, packets: &[Descriptor]) {
    for packet in packets {
        fetch_stamp(base, packet);
        fetch_start(base, packet);
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

/// The second in which the last packet arrived: most packets arrive in the same second as the
/// previous one and need no division.
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
        // Times before 1970 count as its beginning. This second, and the last representable one,
        // are not full seconds.
        let has_end = tai >= ahead_of_utc_nanos && tai < u64::MAX - NANOS_PER_SECOND;
        (self.began, self.nanos) =
            if has_end { (tai - u64::from(nanos), NANOS_PER_SECOND) } else { (0, 0) };
        nanos
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes of a cell: a timestamp and the packet.
    const CELL: usize = 24;

    /// Packets with these timestamps: packet `i` has `i` times the byte `i`, up to a cell's room.
    fn packets_of(stamps: &[u64]) -> (Vec<u8>, Vec<Descriptor>) {
        let mut memory = Vec::new();
        let mut packets = Vec::new();
        for (number, stamp) in stamps.iter().enumerate() {
            let len = number % (CELL - size_of::<u64>() + 1);
            let address = (memory.len() + size_of::<u64>()) as u64;
            packets.push(Descriptor { address, len: len as u32, ..Descriptor::default() });
            memory.extend_from_slice(&stamp.to_ne_bytes());
            memory.resize(memory.len() + CELL - size_of::<u64>(), number as u8);
        }
        (memory, packets)
    }

    /// The packets' bytes and times, read in these ranges.
    fn read<const WHOLE: bool>(stamps: &[u64], ends: &[usize]) -> Vec<(Vec<u8>, u64)> {
        let (mut memory, packets) = packets_of(stamps);
        let mut grouping = Grouping::default();
        let mut heads = Vec::new();
        let mut start = 0;

        for &end in ends {
            let each = |head: Head<'_>| {
                heads.push((
                    head.data.to_vec(),
                    head.seconds * NANOS_PER_SECOND + u64::from(head.nanos),
                ));
            };
            let base = NonNull::from(&mut memory[..]).cast();

            // SAFETY: the packets are in this memory, after their timestamps.
            unsafe {
                each_by_program::<WHOLE>(
                    base,
                    &packets,
                    start..end,
                    u32::MAX,
                    0,
                    &mut grouping,
                    each,
                );
            };
            start = end;
        }

        heads
    }

    /// Miri takes a second for a case.
    fn cases() -> ProptestConfig {
        if cfg!(miri) { ProptestConfig::with_cases(8) } else { ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(cases())]

        /// Runs of packets have the same time, as after one reading of the clock, which does not go
        /// back.
        #[test]
        fn times_that_are_not_read_are_those_that_were_written(
            runs in prop::collection::vec((1_usize..20, 0_u64..3, any::<bool>()), 1..40),
            mut ends in prop::collection::vec(0_usize..400, 0..4),
        ) {
            let mut stamps = Vec::new();
            let mut now = 5 * NANOS_PER_SECOND - 20;

            for (packets, later, is_regular) in runs {
                now += later;
                let packets = if is_regular { PACKETS_PER_READING } else { packets };
                stamps.extend(std::iter::repeat_n(now, packets));
            }

            ends.retain(|end| *end < stamps.len());
            ends.push(stamps.len());
            ends.sort_unstable();

            let written = stamps.iter().enumerate().map(|(number, stamp)| {
                (vec![number as u8; number % (CELL - size_of::<u64>() + 1)], *stamp)
            });
            let written: Vec<_> = written.collect();
            prop_assert_eq!(&read::<false>(&stamps, &ends), &written);
            prop_assert_eq!(&read::<true>(&stamps, &ends), &written);
        }
    }

    #[test]
    fn in_regular_groups_only_the_first_and_the_last_time_are_read() {
        let mut stamps = vec![7; 3 * PACKETS_PER_TRIAL];
        // No program writes this: it shows which times are read.
        stamps[PACKETS_PER_TRIAL + 1] = 9;
        stamps[2] = 9;
        let end = stamps.len();
        let times: Vec<u64> =
            read::<true>(&stamps, &[end]).into_iter().map(|(_, time)| time).collect();
        assert_eq!(times.iter().filter(|time| **time == 9).count(), 1, "{times:?}");
        assert_eq!(times[2], 9);
    }

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
        for tai in
            times.into_iter().chain(times.into_iter().rev()).chain([u64::MAX, 5, u64::MAX - 1])
        {
            let nanos = second.nanos_at(tai, AHEAD);
            let time = Timestamp::from_unix_nanos(tai.saturating_sub(AHEAD));
            assert_eq!(
                (second.unix_seconds, nanos),
                (time.unix_seconds(), time.subsec_nanos()),
                "{tai}"
            );
        }
    }
}
