//! The packets that a device timestamps with its own clock.
//!
//! A program that asks the device (`bpf_xdp_metadata_rx_timestamp`) is bound to its device and
//! cannot be the target of a tail call, so the capture needs the interface for itself. The engine
//! writes the raw clock, whose epoch may be anything from power-on to that of TAI. A packet without
//! a hardware timestamp gets none: its time in the file is 0, and the ledger counts it (`untimed`).
//! No other clock takes its place: rings are not merged by these timestamps, and files are cut by
//! the last known time. The device's timestamps are never enabled: if they are off, opening reports
//! that and prints the command.

use std::io;

use crate::sys::ethtool::Ethtool;

/// `enum hwtstamp_rx_filters` (linux/net_tstamp.h).
const STAMPS_NONE: i32 = 0;
const STAMPS_ALL: i32 = 1;

/// The received packets that a device timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HardwareClock {
    /// It has no clock, or its clock is unknown to the kernel.
    Missing,
    /// It could, but is not configured to.
    Off,
    /// Some, such as those of the Precision Time Protocol.
    SomePackets,
    /// Every packet.
    EveryPacket,
}

impl HardwareClock {
    pub(super) fn of(ethtool: &Ethtool<'_>) -> io::Result<Self> {
        match ethtool.stamped_packets() {
            Ok(STAMPS_NONE) => Ok(Self::Off),
            Ok(STAMPS_ALL) => Ok(Self::EveryPacket),
            Ok(_) => Ok(Self::SomePackets),
            Err(error) if is_ignorance(&error) => Ok(Self::Missing),
            Err(error) => Err(error),
        }
    }
}

/// Drivers without a clock reject the query with several errors.
fn is_ignorance(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL))
}
