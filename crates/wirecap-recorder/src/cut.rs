//! Decides when one file ends and the next begins. No I/O: bytes, packets and times are arguments.
//!
//! A file ends if it would become larger than its limit (header, packets and final counts together,
//! before compression), would get too many packets, or at the end of a period. Every file except
//! the first has at least one packet, even if that packet alone exceeds the limit. Periods follow
//! the local clock: when daylight saving time changes, a day has 23 or 25 hours. Late packets stay
//! in the open file; a clock that is set back by more than a period ends it. If no packet arrives,
//! the file is completed two seconds after the end of its period, and the next packet begins the
//! next file: only the first file can be empty.

use std::ops::Range;
use std::time::Duration;

/// The time that each file covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// Its length; in whole seconds if it is aligned.
    pub length: Duration,
    /// If true, files begin at multiples of the length on the local clock: daily files begin at
    /// midnight. Otherwise periods are counted from the beginning of the first file.
    pub is_aligned: bool,
}

/// The limits that end a file; the first one reached applies. Every file has at least one packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CutRules {
    /// Maximum file size in bytes, before compression.
    pub bytes: Option<u64>,
    /// Maximum number of packets.
    pub packets: Option<u64>,
    /// The file ends with its period.
    pub period: Option<Period>,
}

impl CutRules {
    /// Whether the rules can ever begin a second file.
    pub fn is_cut(&self) -> bool {
        *self != Self::default()
    }
}

/// Applies [`CutRules`] to a stream of packets.
#[derive(Debug, Clone)]
pub struct Cutter {
    rules: CutRules,
    /// Seconds by which the local clock is ahead of UTC at a given time.
    utc_offset: fn(i64) -> i64,
    /// The time at which the first file began.
    origin: Option<u64>,
    bytes_max: u64,
    packets_max: u64,
    bytes: u64,
    packets: u64,
    /// The times that the current file accepts, in nanoseconds of UTC.
    times: Range<u64>,
}

const SECOND: u64 = 1_000_000_000;

/// Packets of several rings arrive in turns: those of a ring that was not read for a while have
/// earlier times. They belong to the current file, even if its period is shorter than their delay.
const LATE_NANOS: u64 = 10 * SECOND;

impl Cutter {
    /// Applies these rules. `utc_offset` returns the seconds by which the local clock is ahead of
    /// UTC at a time in seconds since the epoch.
    pub fn new(rules: CutRules, utc_offset: fn(i64) -> i64) -> Self {
        Self {
            rules,
            utc_offset,
            origin: None,
            bytes_max: rules.bytes.unwrap_or(u64::MAX),
            packets_max: rules.packets.unwrap_or(u64::MAX),
            bytes: 0,
            packets: 0,
            times: 0..u64::MAX,
        }
    }

    /// Applies these rules from the next file on.
    pub fn set_rules(&mut self, rules: CutRules) {
        *self = Self {
            origin: self.origin,
            times: self.times.clone(),
            ..Self::new(rules, self.utc_offset)
        };
    }

    /// Begins a file at `nanos` (since the epoch), with `head_bytes` before its first packet and
    /// `tail_bytes` after its last.
    pub fn open(&mut self, nanos: u64, head_bytes: u64, tail_bytes: u64) {
        let origin = *self.origin.get_or_insert(nanos);
        (self.bytes, self.packets) = (head_bytes + tail_bytes, 0);
        self.times =
            self.rules.period.map_or(0..u64::MAX, |period| self.slot(period, nanos, origin));
    }

    /// Whether a new file must begin before a packet with this time that takes this many bytes in
    /// the file.
    #[inline]
    pub fn is_cut_before(&self, nanos: u64, bytes: u64) -> bool {
        self.is_over(nanos)
            || self.packets > 0
                && (self.bytes + bytes > self.bytes_max || self.packets >= self.packets_max)
    }

    /// Whether a packet with this time is outside the file's period. A time in the period before
    /// the file's, or up to ten seconds before it, is treated as reordering; an earlier one means
    /// that the clock was set back, and ends the file, too.
    #[inline]
    pub fn is_over(&self, nanos: u64) -> bool {
        #[cfg(sabotage)]
        if crate::sabotage::is("clock-set-back-goes-on") {
            return nanos >= self.times.end;
        }
        self.has_ended(nanos) || nanos < self.times.start
    }

    /// Whether the file's period has ended at this time. A clock that lags behind the packets says
    /// nothing else.
    #[inline]
    pub fn has_ended(&self, nanos: u64) -> bool {
        nanos >= self.times.end
    }

    /// Adds a packet of this many bytes to the current file.
    #[inline]
    pub fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.packets += 1;
    }

    /// The number of packets in the current file.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// The times accepted by a file that begins at `nanos`.
    fn slot(&self, period: Period, nanos: u64, origin: u64) -> Range<u64> {
        let length = (period.length.as_nanos() as u64).max(1);
        let (start, end) = if period.is_aligned {
            let seconds = (nanos / SECOND).cast_signed();
            let (start, end) = self.aligned(seconds, (length / SECOND).max(1).cast_signed());
            (
                start.max(0).cast_unsigned() * SECOND,
                end.max(0).cast_unsigned().saturating_mul(SECOND),
            )
        } else {
            let start = match nanos.checked_sub(origin) {
                Some(since) => origin + since / length * length,
                None => nanos,
            };
            (start, start.saturating_add(length))
        };
        start.saturating_sub(length.max(LATE_NANOS))..end
    }

    /// The beginning and end, in seconds of UTC, of the local clock's period that contains this
    /// time. A period is longer or shorter by the amount by which the local clock is changed during
    /// it.
    fn aligned(&self, seconds: i64, length: i64) -> (i64, i64) {
        #[cfg(sabotage)]
        if crate::sabotage::is("days-of-utc") {
            let start = seconds - seconds.rem_euclid(length);
            return (start, start + length);
        }

        let period_of = |seconds: i64| (seconds + (self.utc_offset)(seconds)).div_euclid(length);
        let present = period_of(seconds);
        let local = seconds + (self.utc_offset)(seconds);
        let start = seconds - local.rem_euclid(length);
        let mut end = start + length;
        let ahead = (self.utc_offset)(end) - (self.utc_offset)(seconds);
        let goes_on = ahead < 0 && period_of(end) == present;
        let is_over = ahead > 0 && end - ahead > seconds && period_of(end - ahead) > present;
        if goes_on || is_over {
            end -= ahead;
        }

        (start, end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Summer time, two hours ahead of UTC instead of one, from day 100 to day 200, at 01:00 UTC.
    fn summer_time(seconds: i64) -> i64 {
        let summer = 100 * 86_400 + 3600..200 * 86_400 + 3600;
        if summer.contains(&seconds) { 7200 } else { 3600 }
    }

    fn cutter(rules: CutRules) -> Cutter {
        Cutter::new(rules, summer_time)
    }

    fn aligned(seconds: u64) -> Cutter {
        let period = Period { length: Duration::from_secs(seconds), is_aligned: true };
        cutter(CutRules { period: Some(period), ..CutRules::default() })
    }

    #[test]
    fn a_file_has_at_least_one_packet_and_keeps_its_limits() {
        let mut cutter =
            cutter(CutRules { bytes: Some(1000), packets: Some(3), ..CutRules::default() });
        cutter.open(0, 100, 50);
        assert!(!cutter.is_cut_before(0, 5000), "one packet in any case");
        cutter.add(500);
        assert!(!cutter.is_cut_before(0, 350) && cutter.is_cut_before(0, 351));
        cutter.add(10);
        cutter.add(10);
        assert!(cutter.is_cut_before(0, 1), "three packets");
    }

    #[test]
    fn days_begin_at_local_midnight_also_when_the_clock_changes() {
        let mut cutter = aligned(86_400);
        for (day, hours) in [(99, 24), (100, 23), (150, 24), (200, 25), (201, 24)] {
            let noon = day * 86_400 + 12 * 3600;
            cutter.open(noon * SECOND, 0, 0);
            let midnight = cutter.times.end / SECOND;
            let local = midnight.cast_signed() + summer_time(midnight.cast_signed());
            assert_eq!(local.rem_euclid(86_400), 0, "day {day} ends at {midnight}");
            cutter.open((midnight - hours * 3600) * SECOND, 0, 0);
            assert_eq!(cutter.times.end / SECOND, midnight, "day {day} has {hours} hours");
            cutter.open((midnight - hours * 3600 - 1) * SECOND, 0, 0);
            assert_eq!(cutter.times.end / SECOND, midnight - hours * 3600, "before day {day}");
        }
    }

    #[test]
    fn a_clock_set_back_ends_the_file_and_reordering_does_not() {
        let mut cutter = aligned(3600);
        cutter.open(10 * 3600 * SECOND, 0, 0);
        assert!(!cutter.is_over((10 * 3600 - 5) * SECOND), "a packet that comes late");
        assert!(cutter.is_over((9 * 3600 - 1) * SECOND), "the clock was set back");
    }

    #[test]
    fn a_clock_set_back_before_the_first_file_begins_a_period_of_its_own() {
        let period = Period { length: Duration::from_secs(10), is_aligned: false };
        let mut cutter = cutter(CutRules { period: Some(period), ..CutRules::default() });
        cutter.open(100 * SECOND, 0, 0);
        assert!(cutter.is_over(89 * SECOND), "the clock was set back");
        cutter.open(50 * SECOND, 0, 0);
        assert!(!cutter.is_over(50 * SECOND) && !cutter.is_over(60 * SECOND - 1), "its period");
        assert!(
            cutter.is_over(60 * SECOND) && cutter.is_over(39 * SECOND),
            "the end of its period"
        );
    }

    /// Three rings, whose packets come up to two seconds late, and a clock that lags two seconds
    /// behind them.
    #[test]
    fn a_period_of_any_length_has_one_file() {
        const STEP: u64 = SECOND / 10;
        const LATE: u64 = 2 * SECOND;

        for seconds in
            [1, 2, 3, 5, 7, 10, 15, 30, 60, 90, 300, 600, 900, 3600, 7200, 21_600, 43_200, 86_400]
        {
            for is_aligned in [true, false] {
                let period = Period { length: Duration::from_secs(seconds), is_aligned };
                let mut cutter = cutter(CutRules { period: Some(period), ..CutRules::default() });

                // A multiple of the period on the local clock, which is two hours ahead of UTC.
                let begin = ((150 * 86_400 + 7200) / seconds * seconds - 7200) * SECOND;

                // Long periods have fewer steps, or the test would take long.
                let step = STEP * seconds.div_ceil(60);
                let mut files = 0;
                let mut is_open = false;

                for now in (begin..begin + 20 * seconds * SECOND).step_by(step as usize) {
                    for late in [0, LATE / 3, LATE] {
                        let nanos = now - late;
                        if is_open && cutter.is_cut_before(nanos, 60) {
                            is_open = false;
                        }

                        if !is_open {
                            cutter.open(nanos, 0, 0);
                            (files, is_open) = (files + 1, true);
                        }
                        cutter.add(60);
                    }
                    is_open &= !cutter.has_ended(now - LATE);
                }

                assert_eq!(files, 20, "{seconds} s, aligned: {is_aligned}");
            }
        }
    }

    #[test]
    fn periods_that_are_not_aligned_count_from_the_first_file() {
        let period = Period { length: Duration::from_secs(10), is_aligned: false };
        let mut cutter = cutter(CutRules { period: Some(period), ..CutRules::default() });
        cutter.open(7 * SECOND, 0, 0);
        assert!(!cutter.is_over(17 * SECOND - 1) && cutter.is_over(17 * SECOND));
        cutter.open(43 * SECOND, 0, 0);
        assert!(!cutter.is_over(47 * SECOND - 1) && cutter.is_over(47 * SECOND));
    }

    #[test]
    fn a_period_that_is_not_aligned_may_have_a_fraction_of_a_second() {
        let period = Period { length: Duration::from_millis(1500), is_aligned: false };
        let mut cutter =
            Cutter::new(CutRules { period: Some(period), ..CutRules::default() }, summer_time);
        cutter.open(10 * SECOND, 0, 0);
        cutter.add(1);
        assert!(!cutter.is_over(11_499_999_999) && cutter.is_over(11_500_000_000));
        cutter.open(12 * SECOND, 0, 0);
        assert!(!cutter.is_over(12_999_999_999) && cutter.is_over(13 * SECOND));
    }

    #[test]
    fn new_rules_apply_from_the_next_file_on() {
        let mut cutter = cutter(CutRules { packets: Some(2), ..CutRules::default() });
        cutter.open(0, 0, 0);
        cutter.add(10);
        cutter.set_rules(CutRules { bytes: Some(100), ..CutRules::default() });
        cutter.open(0, 0, 0);
        for _ in 0..4 {
            assert!(!cutter.is_cut_before(0, 20));
            cutter.add(20);
        }
        assert!(!cutter.is_cut_before(0, 20) && cutter.is_cut_before(0, 21));
    }

    proptest! {
        #[test]
        fn a_period_contains_its_beginning_and_ends_where_another_begins(
            seconds in 86_400 * 90..86_400_i64 * 210,
            length in prop_oneof![Just(60), Just(900), Just(3600), Just(7200), Just(21_600), Just(86_400)],
        ) {
            let cutter = aligned(length);
            let length = length.cast_signed();
            let (start, end) = cutter.aligned(seconds, length);
            prop_assert!(start <= seconds && seconds < end, "{} {} {}", start, seconds, end);
            prop_assert!(end - start <= length + 3600);

            let period_of = |seconds: i64| (seconds + summer_time(seconds)).div_euclid(length);
            prop_assert_ne!(period_of(seconds), period_of(end));

            // In the hour that the clock repeats, shorter periods occur twice.
            if length >= 7200 {
                prop_assert_eq!(period_of(seconds), period_of(end - 1));
            }
        }
    }
}
