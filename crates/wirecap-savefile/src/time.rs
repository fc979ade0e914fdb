//! Points in time: nanoseconds since the Unix epoch, in UTC.

use std::fmt;

/// A packet's arrival time in nanoseconds since the Unix epoch, UTC.
///
/// The type ends in the year 2554.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The time `nanos` nanoseconds after the Unix epoch.
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

    /// The nanoseconds within the second, below 1,000,000,000.
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
