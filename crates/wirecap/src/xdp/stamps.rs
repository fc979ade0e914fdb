//! The clock that provides a packet's arrival time.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};

use crate::sys::memory::Mapping;
use crate::time::Timestamp;
use crate::umem::chunk::records::Stamps;
use crate::umem::rx::StampSource;

/// Size of the value in which the program records that there was no room for a timestamp.
pub(crate) const FAILED_BYTES: u32 = 8;

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// No timestamps were requested.
#[derive(Debug)]
pub(crate) struct NoStamps;

impl StampSource for NoStamps {
    fn stamps(&self) -> Stamps {
        Stamps::None
    }
}

/// Timestamps that the XDP program wrote before the packets; if the driver has no room for them,
/// all packets of a chunk have its time of capture, or none with the device's clock.
#[derive(Debug)]
pub(crate) struct ProgramStamps {
    /// They are read from the device's clock.
    by_device: bool,
    /// The map in which the program records that there was no room, mapped into this process.
    failed: Mapping,
}

impl ProgramStamps {
    pub(crate) fn new(by_device: bool, failed: impl AsFd) -> io::Result<Self> {
        Ok(Self { by_device, failed: Mapping::of(failed, FAILED_BYTES as usize, 0)? })
    }

    /// Whether a packet had no room for a timestamp: in its place are bytes of the cell's previous
    /// packet.
    ///
    /// Called for each chunk, after its packets were taken off the ring, because the program
    /// records it before the packet is published. Drivers have room before all packets or before
    /// none; a driver with room only before some gets times of capture from then on.
    fn has_failed(&self) -> bool {
        // SAFETY: `at` checked the address. The kernel's side is a program's store to the same
        // word.
        unsafe { self.failed.at::<AtomicU32>(0, 1).as_ref() }.load(Ordering::Relaxed) != 0
    }
}

impl StampSource for ProgramStamps {
    fn stamps(&self) -> Stamps {
        match (self.has_failed(), self.by_device) {
            (true, true) => Stamps::None,
            (true, false) => Stamps::AtCapture(Timestamp::from_unix_nanos(nanos(clock_gettime(
                ClockId::Realtime,
            )) as u64)),
            (false, true) => Stamps::Device,
            (false, false) => Stamps::Tai { ahead_of_utc_nanos: tai_ahead_of_utc_nanos() },
        }
    }
}

/// The difference between CLOCK_TAI and UTC: a whole number of seconds, 0 if no time service has
/// set it.
///
/// It is read for each chunk, because a time service may set it at any moment; the two readings are
/// far less than half a second apart, so that rounding finds the exact number.
fn tai_ahead_of_utc_nanos() -> u64 {
    let Ok(tai) = clock_gettime_dynamic(DynamicClockId::Tai) else { return 0 };
    let ahead = nanos(tai) - nanos(clock_gettime(ClockId::Realtime));
    let seconds = (ahead + NANOS_PER_SECOND / 2).div_euclid(NANOS_PER_SECOND);
    (seconds.max(0) * NANOS_PER_SECOND) as u64
}

fn nanos(time: rustix::time::Timespec) -> i64 {
    time.tv_sec * NANOS_PER_SECOND + time.tv_nsec
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::bpf::Map;

    #[test]
    #[cfg_attr(miri, ignore = "miri has no bpf(2)")]
    fn a_packet_without_room_for_a_timestamp_does_not_get_that_of_the_cells_previous_packet() {
        if !wirecap_testbed::privileged() {
            return;
        }
        let failed = Map::create_mappable("nostamp", FAILED_BYTES, 1).unwrap();
        let stamps = ProgramStamps::new(false, &failed).unwrap();
        assert!(matches!(stamps.stamps(), Stamps::Tai { .. }), "the first packets had room");
        // As the program does for a later one.
        failed.update(0, &1_u64.to_ne_bytes()).unwrap();
        assert!(matches!(stamps.stamps(), Stamps::AtCapture(_)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no CLOCK_TAI")]
    fn tai_is_whole_seconds_ahead() {
        let ahead = tai_ahead_of_utc_nanos();
        assert_eq!(ahead % NANOS_PER_SECOND as u64, 0);
        assert!(ahead < 1000 * NANOS_PER_SECOND as u64);
    }
}
