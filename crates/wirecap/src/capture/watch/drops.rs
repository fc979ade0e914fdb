//! The device's drops since a capture began, from counters that its driver may reset.

use std::time::SystemTime;

use super::comparison::Reset;
use crate::device::DeviceCounters;

/// The drops of a device, and of the removed ones that it replaces.
#[derive(Debug, Default)]
pub(crate) struct DropCount {
    start: Option<DeviceCounters>,
    last: Option<(DeviceCounters, SystemTime)>,
    /// Drops before the counters last began.
    before: u64,
    /// Drops since then, at the last reading.
    since: u64,
}

impl DropCount {
    /// Begins with these counters.
    pub(crate) fn begin(counters: Option<DeviceCounters>) -> Self {
        let last = counters.map(|counters| (counters, SystemTime::now()));
        Self { start: counters, last, ..Self::default() }
    }

    /// Another device replaces the one that was counted.
    pub(crate) fn replace(&mut self, counters: Option<DeviceCounters>) {
        *self = Self { before: self.before + self.since, ..Self::begin(counters) };
    }

    /// The drops so far, by a reading at `now`; `None` if the device reports none. If the counter
    /// went backwards, what it counted between the last reading and its reset is unknown.
    pub(crate) fn read(
        &mut self,
        counters: Option<DeviceCounters>,
        now: SystemTime,
    ) -> (Option<u64>, Option<Reset>) {
        let (Some(counters), Some(start)) = (counters, self.start) else { return (None, None) };
        let mut reset = None;

        if let Some((last, last_known)) = self.last
            && counters.went_back_since(&last)
        {
            reset = Some(Reset { last_known });
            #[cfg(sabotage)]
            let is_kept = !crate::sabotage::is("drops-before-a-reset-forgotten");
            #[cfg(not(sabotage))]
            let is_kept = true;
            self.before += if is_kept { self.since } else { 0 };
            self.start = Some(DeviceCounters { dropped: Some(0), ..counters });
        }

        let since = counters.dropped_since(&self.start.unwrap_or(start));
        self.last = Some((counters, now));
        self.since = since.unwrap_or(self.since);

        (since.map(|since| self.before + since), reset)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::device::DropSource;

    fn at(dropped: u64, source: DropSource) -> Option<DeviceCounters> {
        Some(DeviceCounters { dropped: Some(dropped), source })
    }

    #[test]
    fn drops_before_a_reset_stay_counted_and_the_reset_is_named() {
        let begin = SystemTime::now();
        let mut drops = DropCount::begin(at(100, DropSource::Driver));
        let second = |number| begin + Duration::from_secs(number);
        assert_eq!(drops.read(at(103, DropSource::Driver), second(1)), (Some(3), None));
        let (count, reset) = drops.read(at(2, DropSource::Driver), second(2));
        let expected = (Some(5), Some(Reset { last_known: second(1) }));
        assert_eq!((count, reset), expected, "the drops before and after a reset");
        assert_eq!(drops.read(at(9, DropSource::Driver), second(3)), (Some(12), None));
    }

    #[test]
    fn another_device_continues_the_sum() {
        let mut drops = DropCount::begin(at(0, DropSource::Driver));
        drops.read(at(4, DropSource::Driver), SystemTime::now());
        drops.replace(at(70, DropSource::Driver));
        assert_eq!(drops.read(at(71, DropSource::Driver), SystemTime::now()), (Some(5), None));
    }

    #[test]
    fn an_estimate_that_shrinks_is_no_reset() {
        let mut drops = DropCount::begin(at(0, DropSource::VethReceiver));
        drops.read(at(4, DropSource::VethReceiver), SystemTime::now());
        assert_eq!(drops.read(at(3, DropSource::VethReceiver), SystemTime::now()), (Some(3), None));
        assert_eq!(drops.read(at(3, DropSource::VethPeer), SystemTime::now()), (None, None));
    }
}
