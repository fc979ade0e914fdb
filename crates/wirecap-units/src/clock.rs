//! Local time: parsing, printing, and the conversions of strftime(3).

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::civil::DateTime;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, ZonedDateTime};

use crate::size;

const NANOS: u64 = 1_000_000_000;

/// The time zone of `TZ` or of `/etc/localtime`, or UTC if neither can be read. It is read once,
/// like the C library does.
fn zone() -> TimeZone {
    static ZONE: OnceLock<TimeZone> = OnceLock::new();
    ZONE.get_or_init(|| TimeZone::try_system().unwrap_or(TimeZone::UTC)).clone()
}

/// Local time at these seconds since the epoch. Years after 9999, which no capture has, become the
/// year 9999.
fn local(seconds: i64) -> ZonedDateTime {
    let timestamp = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    timestamp.to_zoned_datetime(zone())
}

/// The seconds by which the local clock is ahead of UTC at these seconds since the epoch.
pub fn utc_offset(seconds: i64) -> i64 {
    local(seconds).offset().seconds().into()
}

/// The result of strftime(3) for the pattern at these seconds since the epoch, in local time, or
/// the pattern itself if it has an unknown conversion.
pub fn format(pattern: &str, seconds: i64) -> String {
    format_zoned(pattern, &local(seconds))
}

fn format_zoned(pattern: &str, time: &ZonedDateTime) -> String {
    strtime::format(pattern, time).unwrap_or_else(|_| pattern.to_owned())
}

/// The current time in nanoseconds since the epoch.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// Parses a point in time to nanoseconds since the epoch: `18:00`, `2026-11-22T18:00:00.5`, `-10m`,
/// or seconds since 1970.
///
/// # Errors
///
/// The fault in the text.
pub fn time(text: &str) -> Result<u64, String> {
    time_at(text, now())
}

fn time_at(text: &str, now: u64) -> Result<u64, String> {
    let expected = || {
        format!(
            "invalid time {text:?}: expected 2026-11-22T18:00:00, 18:00, -10m or seconds since 1970"
        )
    };

    if let Some(before) = text.strip_prefix('-') {
        let before = size::duration(before)?;
        return Ok(now.saturating_sub(before.as_nanos() as u64));
    }

    let (whole, fraction) = text.trim_end_matches('Z').split_once('.').map_or(
        (text.trim_end_matches('Z'), 0),
        |(whole, digits)| {
            let nanos = (!digits.is_empty() && digits.len() <= 9)
                .then(|| format!("{digits:0<9}").parse().ok());
            (whole, nanos.flatten().unwrap_or(u64::MAX))
        },
    );
    if fraction >= NANOS {
        return Err(expected());
    }

    let of_seconds = |seconds: i64| {
        let nanos = u64::try_from(seconds).ok().and_then(|seconds| seconds.checked_mul(NANOS));
        nanos.and_then(|nanos| nanos.checked_add(fraction)).ok_or_else(expected)
    };
    let is_utc = text.ends_with('Z');
    if let Some(seconds) = whole.parse::<u32>().ok().filter(|_| !is_utc) {
        return of_seconds(seconds.into());
    }

    let (date, clock) = match whole.split_once(['T', ' ']) {
        Some((date, clock)) => (Some(date), clock),
        None if whole.contains(':') => (None, whole),
        None => (Some(whole), "00:00"),
    };
    let zone = if is_utc { TimeZone::UTC } else { zone() };

    let day = match date {
        Some(date) => day(date).ok_or_else(expected)?,
        None => local((now / NANOS).cast_signed()).with_time_zone(zone.clone()).datetime(),
    };
    let time = at(day, clock).ok_or_else(expected)?;

    // A time that the clock skips is the one after it, and one that it has twice is the first, as
    // with mktime(3).
    let zoned = time.to_zoned_datetime(zone).map_err(|_| expected())?;
    of_seconds(zoned.timestamp().as_second())
}

/// The beginning of a day such as `2026-11-22`.
fn day(date: &str) -> Option<DateTime> {
    let [year, month, day] = numbers(date, '-')?.try_into().ok()?;
    if !(1970..=2500).contains(&year) {
        return None;
    }
    DateTime::new(year, month.try_into().ok()?, day.try_into().ok()?, 0, 0, 0, 0).ok()
}

/// The time on this day of a clock that shows `18:00` or `18:00:05`. A leap second is the next
/// minute's first.
fn at(day: DateTime, clock: &str) -> Option<DateTime> {
    let (hour, minute, second) = match numbers(clock, ':')?[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second @ 0..=60] => (hour, minute, second),
        _ => return None,
    };
    let hour = hour.try_into().ok()?;
    let minute = minute.try_into().ok()?;
    let minute = DateTime::new(day.year(), day.month(), day.day(), hour, minute, 0, 0).ok()?;
    minute.checked_add(i64::from(second).seconds()).ok()
}

/// Checks that the time of `--from` is before that of `--to`.
///
/// # Errors
///
/// The fault in the text.
pub fn check_order(from: Option<u64>, to: Option<u64>) -> Result<(), String> {
    match (from, to) {
        (Some(from), Some(to)) if from >= to => {
            let from = text(from);
            let to = text(to);
            Err(format!("--from {from} is not before --to {to}: no packet can match"))
        }
        _ => Ok(()),
    }
}

fn numbers(text: &str, separator: char) -> Option<Vec<i16>> {
    let number =
        |part: &str| part.parse().ok().filter(|_| part.bytes().all(|byte| byte.is_ascii_digit()));
    text.split(separator).map(number).collect()
}

/// Formats local time to the microsecond.
pub fn text(nanos: u64) -> String {
    let second = format("%Y-%m-%dT%H:%M:%S", (nanos / NANOS).cast_signed());
    format!("{second}.{:06}", nanos % NANOS / 1000)
}

/// Formats local time to the second.
fn text_to_second(nanos: u64) -> String {
    let mut text = text(nanos).replace('T', " ");
    text.truncate("2026-11-22 18:00:00".len());
    text
}

/// Formats a time range to the second; the date is printed once if it is the same.
pub fn span(first: u64, last: u64) -> String {
    let first = text_to_second(first);
    let last = text_to_second(last);
    let is_same_day = first[..10] == last[..10];
    format!("{first} to {}", if is_same_day { &last[11..] } else { &last })
}

/// The age of the oldest packet at `now`; its date if that is more than a day.
pub fn lag(oldest: u64, now: u64) -> String {
    match Duration::from_nanos(now.saturating_sub(oldest)).as_secs() {
        seconds @ 0..120 => format!("{seconds} s old"),
        seconds @ 120..7200 => format!("{} min old", seconds / 60),
        seconds @ 7200..86_400 => format!("{} h old", seconds / 3600),
        _ => format!("from {}", text_to_second(oldest)),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn times_are_read_in_all_their_forms() {
        let now = 1_700_000_000 * NANOS;
        for (text, nanos) in [
            ("2023-11-14T22:13:20Z", now),
            ("2023-11-14T22:13:20.5Z", now + NANOS / 2),
            ("2023-11-14T00:00Z", 1_699_920_000 * NANOS),
            ("1700000000", now),
            ("1700000000.000000001", now + 1),
            ("-10m", now - 600 * NANOS),
            ("2023-11-14T23:59:60Z", 1_700_006_400 * NANOS),
        ] {
            assert_eq!(time_at(text, now), Ok(nanos), "{text}");
        }

        assert_eq!(time_at(&super::text(now), now), Ok(now));
        assert_eq!(time_at(&super::text(now)[11..19], now), Ok(now));

        for bad in [
            "",
            "x",
            "2023-13-01",
            "2023-02-29",
            "2023-11-14T25:00",
            "12",
            "1:2:3:4",
            "-",
            "18:00.",
            "2023-11-14T22:13:20.1234567890",
        ] {
            assert!(bad == "12" || time_at(bad, now).is_err(), "{bad} was taken");
        }
    }

    /// With the system's `date`, which has the C library's conversions.
    #[test]
    fn times_are_formatted_as_by_the_c_library() {
        const PATTERN: &str =
            "%Y-%m-%d %H:%M:%S %I %j %u %w %U %W %V %G %g %C %y %s %a %A %b %B %h %p %P %Z %z";
        for zone in ["CET-1CEST,M3.5.0,M10.5.0/3", "EST5EDT,M3.2.0,M11.1.0", "IST-5:30", "UTC0"] {
            // The beginning and end of summer time, turns of years, a leap day, and times between.
            let edges =
                [0, 951_782_400, 1_743_296_400, 1_761_440_400, 1_762_063_200, 1_767_225_600];
            for seconds in
                edges.iter().flat_map(|edge| [edge - 1, *edge, edge + 86_399]).filter(|&at| at >= 0)
            {
                let date = Command::new("date")
                    .args(["-d", &format!("@{seconds}"), &format!("+{PATTERN}")])
                    .env("TZ", zone)
                    .env("LC_ALL", "C")
                    .output()
                    .unwrap();
                let time = Timestamp::from_second(seconds)
                    .unwrap()
                    .to_zoned_datetime(TimeZone::posix(zone).unwrap());
                let expected = String::from_utf8(date.stdout).unwrap();
                assert_eq!(format_zoned(PATTERN, &time), expected.trim_end(), "{zone} {seconds}");
            }
        }
    }

    #[test]
    fn the_start_must_be_before_the_end() {
        for (from, to) in [(None, None), (Some(5), None), (None, Some(5)), (Some(4), Some(5))] {
            assert_eq!(check_order(from, to), Ok(()));
        }
        for from in [5, 6] {
            let fault = check_order(Some(from), Some(5)).unwrap_err();
            assert!(fault.contains("is not before --to"), "{fault}");
        }
    }

    #[test]
    fn the_lag_is_an_age_up_to_a_day_and_then_a_date() {
        let now = 1_700_000_000 * NANOS;
        let lag = |seconds: u64| super::lag(now - seconds * NANOS, now);
        assert_eq!([lag(3), lag(600), lag(7200)], ["3 s old", "10 min old", "2 h old"]);
        assert_eq!(lag(1_699_999_000), format!("from {}", text_to_second(1000 * NANOS)));
        assert!(lag(1_699_999_000).starts_with("from 1970-01-01 "), "{}", lag(1_699_999_000));
        // The system's clock was set back.
        assert_eq!(super::lag(now + 1, now), "0 s old");
    }

    #[test]
    fn a_span_has_the_date_once_if_it_is_the_same() {
        let noon = time_at("2026-11-22T12:00", 0).unwrap();
        assert_eq!(span(noon, noon + 61 * NANOS), "2026-11-22 12:00:00 to 12:01:01");
        assert_eq!(span(noon, noon + 86_400 * NANOS), "2026-11-22 12:00:00 to 2026-11-23 12:00:00");
    }
}
