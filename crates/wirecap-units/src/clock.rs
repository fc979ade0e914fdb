//! Parsing and printing of times in local time, by the C library.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::size;

const NANOS: u64 = 1_000_000_000;

fn local(seconds: i64) -> libc::tm {
    let mut broken_down = MaybeUninit::zeroed();
    // SAFETY: both pointers are to valid objects of the expected types. The function fails only for years
    // that do not fit an `int`; the structure then stays zero, which is a valid value.
    unsafe {
        libc::localtime_r(&raw const seconds, broken_down.as_mut_ptr());
        broken_down.assume_init()
    }
}

/// Converts to seconds since the epoch.
fn seconds(mut broken_down: libc::tm, is_utc: bool) -> i64 {
    broken_down.tm_isdst = -1;
    // SAFETY: both functions read and write the structure, which is valid.
    unsafe {
        match is_utc {
            true => libc::timegm(&raw mut broken_down),
            false => libc::mktime(&raw mut broken_down),
        }
    }
}

/// The current time in nanoseconds since the epoch.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// Parses a point in time to nanoseconds since the epoch: `18:00`, `2026-11-22T18:00:00.5`, `-10m`, or
/// seconds since 1970.
///
/// # Errors
///
/// The fault in the text.
pub fn time(text: &str) -> Result<u64, String> {
    time_at(text, now())
}

fn time_at(text: &str, now: u64) -> Result<u64, String> {
    let expected =
        || format!("invalid time {text:?}: expected 2026-11-22T18:00:00, 18:00, -10m or seconds since 1970");
    if let Some(before) = text.strip_prefix('-') {
        let before = size::duration(before)?;
        return Ok(now.saturating_sub(before.as_nanos() as u64));
    }
    let (whole, fraction) = text.trim_end_matches('Z').split_once('.').map_or(
        (text.trim_end_matches('Z'), 0),
        |(whole, digits)| {
            let nanos =
                (!digits.is_empty() && digits.len() <= 9).then(|| format!("{digits:0<9}").parse().ok());
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
    if let Some(seconds) = whole.parse::<u32>().ok().filter(|_| !text.ends_with('Z')) {
        return of_seconds(seconds.into());
    }
    let (date, clock) = match whole.split_once(['T', ' ']) {
        Some((date, clock)) => (Some(date), clock),
        None if whole.contains(':') => (None, whole),
        None => (Some(whole), "00:00"),
    };
    let mut broken_down = local((now / NANOS).cast_signed());
    if let Some(date) = date {
        let [year, month, day] = numbers(date, '-').filter(|date| date.len() == 3).ok_or_else(expected)?[..]
        else {
            return Err(expected());
        };
        if !(1970..=2500).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return Err(expected());
        }
        (broken_down.tm_year, broken_down.tm_mon, broken_down.tm_mday) = (year - 1900, month - 1, day);
    }
    let clock = numbers(clock, ':').filter(|clock| (2..=3).contains(&clock.len())).ok_or_else(expected)?;
    let (hour, minute, second) = (clock[0], clock[1], clock.get(2).copied().unwrap_or(0));
    if hour > 23 || minute > 59 || second > 60 {
        return Err(expected());
    }
    (broken_down.tm_hour, broken_down.tm_min, broken_down.tm_sec) = (hour, minute, second);
    of_seconds(seconds(broken_down, text.ends_with('Z')))
}

/// Checks that the time of `--from` is before that of `--to`.
///
/// # Errors
///
/// The fault in the text.
pub fn check_order(from: Option<u64>, to: Option<u64>) -> Result<(), String> {
    match (from, to) {
        (Some(from), Some(to)) if from >= to => {
            let (from, to) = (text(from), text(to));
            Err(format!("--from {from} is not before --to {to}: no packet can match"))
        }
        _ => Ok(()),
    }
}

fn numbers(text: &str, separator: char) -> Option<Vec<i32>> {
    let number = |part: &str| part.parse().ok().filter(|_| part.bytes().all(|byte| byte.is_ascii_digit()));
    text.split(separator).map(number).collect()
}

/// Formats local time to the microsecond.
pub fn text(nanos: u64) -> String {
    let time = local((nanos / NANOS).cast_signed());
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}",
        time.tm_year + 1900,
        time.tm_mon + 1,
        time.tm_mday,
        time.tm_hour,
        time.tm_min,
        time.tm_sec,
        nanos % NANOS / 1000
    )
}

/// Formats local time to the second.
fn text_to_second(nanos: u64) -> String {
    let mut text = text(nanos).replace('T', " ");
    text.truncate("2026-11-22 18:00:00".len());
    text
}

/// Formats a time range to the second; the date is printed once if it is the same.
pub fn span(first: u64, last: u64) -> String {
    let (first, last) = (text_to_second(first), text_to_second(last));
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
        ] {
            assert_eq!(time_at(text, now), Ok(nanos), "{text}");
        }
        assert_eq!(time_at(&super::text(now), now), Ok(now));
        assert_eq!(time_at(&super::text(now)[11..19], now), Ok(now));
        for bad in [
            "",
            "x",
            "2023-13-01",
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
