//! Whose clock says when a packet arrived.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};

use crate::bpf::Map;
use crate::time::Timestamp;
use crate::umem::chunk::records::Stamps;
use crate::umem::rx::StampSource;

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// No times: nobody asked for them.
#[derive(Debug)]
pub(crate) struct NoStamps;

impl StampSource for NoStamps {
    fn stamps(&self) -> Stamps {
        Stamps::None
    }
}

/// Times that the XDP program wrote in front of the packets; where the driver has no room for them,
/// the time at which a chunk was captured stands for all of its packets, or none if they were the device's.
#[derive(Debug)]
pub(crate) struct ProgramStamps {
    /// They are by the device's clock.
    by_device: bool,
    /// Nonzero when the program found no room.
    failed: Arc<Map>,
    known: AtomicU8,
}

const UNKNOWN: u8 = 0;
const BY_PROGRAM: u8 = 1;
const AT_CAPTURE: u8 = 2;

impl ProgramStamps {
    pub(crate) fn new(by_device: bool, failed: Arc<Map>) -> Self {
        Self { by_device, failed, known: AtomicU8::new(UNKNOWN) }
    }

    /// A driver has room in front of all packets or of none, so the first packet of a ring tells.
    fn learn(&self) -> u8 {
        let failed = self.failed.lookup(0).is_ok_and(|values| values[0] != [0; 4]);
        let known = if failed { AT_CAPTURE } else { BY_PROGRAM };
        self.known.store(known, Ordering::Relaxed);
        known
    }
}

impl StampSource for ProgramStamps {
    fn stamps(&self) -> Stamps {
        let known = match self.known.load(Ordering::Relaxed) {
            UNKNOWN => self.learn(),
            known => known,
        };
        match (known, self.by_device) {
            (AT_CAPTURE, true) => Stamps::None,
            (AT_CAPTURE, false) => {
                Stamps::AtCapture(Timestamp::from_unix_nanos(nanos(clock_gettime(ClockId::Realtime)) as u64))
            }
            (_, true) => Stamps::Device,
            (_, false) => Stamps::Tai { ahead_of_utc_nanos: tai_ahead_of_utc_nanos() },
        }
    }
}

/// How far CLOCK_TAI is ahead of UTC: a whole number of seconds, 0 where nobody told the kernel.
///
/// It is asked for each chunk, because a time service may set it at any moment; the two readings are
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

    #[test]
    #[cfg_attr(miri, ignore = "miri has no CLOCK_TAI")]
    fn tai_is_whole_seconds_ahead() {
        let ahead = tai_ahead_of_utc_nanos();
        assert_eq!(ahead % NANOS_PER_SECOND as u64, 0);
        assert!(ahead < 1000 * NANOS_PER_SECOND as u64);
    }
}
