//! Points in time as savefiles and users see them: nanoseconds of UTC.

use std::fmt;

/// A packet's time of arrival: nanoseconds since the Unix epoch, UTC.
///
/// Sixty-four bits of nanoseconds last until the year 2554.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

/// Which packets' times of arrival are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Timestamps {
    /// None: packets have no times. It costs nothing.
    #[default]
    None,
    /// Every packet's, by itself.
    Packet,
    /// With the engine `xdp`: of the first packet of a batch that the driver hands over and of every
    /// eighth one, each for those up to the next, which may have come up to a few microseconds later.
    /// Where the kernel does not tell where a batch ends, and with other engines, as
    /// [`Packet`](Self::Packet).
    Batch,
    /// Every packet's, by the clock of the device that received it, as it stands: nothing is converted (a clock that
    /// `ptp4l` keeps shows TAI, 37 s ahead of UTC since 2017). A packet that the device gave no time has none. With the
    /// engine `xdp`, where the driver shows its times to programs and was told to stamp every packet
    /// (`hwstamp_ctl -i eth0 -r 1`); anywhere else opening is an error that says what is missing. Such a capture has
    /// its interface for itself.
    Hardware,
}

impl Timestamp {
    /// The time that lies `nanos` nanoseconds after the Unix epoch.
    pub const fn from_unix_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn unix_nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds since the Unix epoch.
    pub const fn unix_seconds(self) -> u64 {
        self.0 / 1_000_000_000
    }

    /// The nanoseconds that [`unix_seconds`](Self::unix_seconds) leaves out, below 1,000,000,000.
    pub const fn subsec_nanos(self) -> u32 {
        (self.0 % 1_000_000_000) as u32
    }
}

impl fmt::Display for Timestamp {
    /// Seconds and nanoseconds since the epoch: `1700000000.000000001`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.unix_seconds(), self.subsec_nanos())
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timestamp({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_splits_into_seconds_and_nanoseconds() {
        let stamp = Timestamp::from_unix_nanos(1_700_000_000_000_000_001);
        assert_eq!(stamp.unix_seconds(), 1_700_000_000);
        assert_eq!(stamp.subsec_nanos(), 1);
        assert_eq!(stamp.to_string(), "1700000000.000000001");
    }
}
