//! Arrival times of packets, and the packets for which they are read.

use serde::{Deserialize, Serialize};
pub use wirecap_savefile::Timestamp;

/// The packets whose arrival times are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Timestamps {
    /// None: packets have no timestamps, which costs nothing.
    #[default]
    None,
    /// Every packet's, by itself.
    Packet,
    /// Engine `xdp`: the clock is read for the first packet of a batch of the driver and for every
    /// eighth one; the packets up to the next reading, which may have arrived up to a few
    /// microseconds later, get the same time. If the kernel does not report where a batch ends, and
    /// with other engines, as [`Packet`](Self::Packet).
    Batch,
    /// The raw clock of the device, unconverted (a clock synchronised by `ptp4l` shows TAI, 37 s
    /// ahead of UTC since 2017). A packet without a hardware timestamp has none. Engine `xdp`, if
    /// the driver provides timestamps to programs and is configured to timestamp every packet
    /// (`hwstamp_ctl -i eth0 -r 1`); otherwise opening fails with the reason. Such a capture does
    /// not share its interface.
    Hardware,
}
