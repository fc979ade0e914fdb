//! Parsing of numbers with units (`512M`, `10s`), and formatting for reports.

use std::time::Duration;

/// A number of bytes with an optional unit: `65536`, `512K`, `512M`, `2G`, also `512MiB`. Units are
/// powers of 1,024.
///
/// # Errors
///
/// The fault in the text.
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit
        .trim_end_matches("iB")
        .trim_end_matches(['b', 'B'])
        .to_ascii_uppercase()
        .as_str()
    {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("unknown unit {unit:?}: expected K, M, G or T")),
    };

    let number: u64 = number.parse().map_err(|_| "expected a number first".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "it is too large".to_owned())
}

/// Longer than any useful duration, and short enough for nanoseconds in 64 bits.
const HOURS_MAX: f64 = 1e6;

/// A duration with units, larger units first: `500ms`, `5m`, `1h30m`, `7d`; a number alone is in
/// seconds.
///
/// # Errors
///
/// The fault in the text.
pub fn duration(text: &str) -> Result<Duration, String> {
    let mut rest = text;
    let mut seconds = 0.0;
    let mut largest = f64::INFINITY;

    while !rest.is_empty() || largest.is_infinite() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, behind) = rest.split_at(digits);
        let end = behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end);
        let length = match unit {
            "" if largest.is_infinite() => 1.0,
            "ms" => 0.001,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            "w" => 604_800.0,
            _ => return Err(format!("unknown unit {unit:?}: expected ms, s, m, h, d or w")),
        };
        if length >= largest {
            return Err("expected larger units before smaller ones, as in 1h30m".to_owned());
        }

        let number: f64 = number.parse().map_err(|_| "expected a number first".to_owned())?;
        seconds += number * length;
        (rest, largest) = (behind, length);
    }

    if seconds > HOURS_MAX * 3600.0 {
        return Err("expected at most 1000000h".to_owned());
    }

    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// A number per second with an optional unit: `500`, `10k`, `1.5M`, `10kpps`. Units are powers of
/// 1,000; at least 1.
///
/// # Errors
///
/// The fault in the text.
pub fn rate(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let upper = unit.to_ascii_uppercase();
    let factor = match upper.strip_suffix("PPS").unwrap_or(&upper) {
        "" => 1.0,
        "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        _ => return Err(format!("unknown unit {unit:?}: expected k, M, G, kpps, Mpps or Gpps")),
    };

    let number: f64 = number.parse().map_err(|_| "expected a number first".to_owned())?;
    let per_second = (number * factor).round();
    if (1.0..=1e12).contains(&per_second) {
        Ok(per_second as u64)
    } else {
        Err("expected 1 to 1000G".to_owned())
    }
}

/// Parses a finite number.
///
/// # Errors
///
/// The fault in the text.
pub fn number(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| "expected a number".to_owned())
}

/// A count with thousands separators: `10,000,000`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count with its noun: `1 file`, `1,000 files`.
pub fn count_of(count: u64, one: &str, several: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { several })
}

/// A readable number of bytes: `1.0 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} bytes") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A readable rate: `4.32 M`, `870 k`, `8,760`, `12`.
pub fn human_rate(per_second: f64) -> String {
    match per_second {
        rate if rate >= 1e9 => format!("{:.2} G", rate / 1e9),
        rate if rate >= 1e6 => format!("{:.2} M", rate / 1e6),
        rate if rate >= 1e4 => format!("{:.0} k", rate / 1e3),
        rate => format!("{} ", grouped(rate.max(0.0).round() as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(bytes("65536"), Ok(65536));
        assert_eq!(bytes("512M"), Ok(512 << 20));
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert_eq!(bytes("1kB"), Ok(1024));
        for bad in ["", "M", "1X", "-1", "99999999999999999999", "99999999999T"] {
            assert!(bytes(bad).is_err(), "{bad} was taken");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(duration("1000000h"), Ok(Duration::from_secs(3_600_000_000)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("1w2d3h4m5s6ms"), Ok(Duration::from_millis(788_645_006)));

        for bad in [
            "",
            "s",
            "1y",
            "-1s",
            "30m1h",
            "1h1h",
            "1h30",
            "1h m",
            "1.2.3s",
            ".",
            "1000001h",
            "99999999999999999999999",
        ] {
            assert!(duration(bad).is_err(), "{bad} was taken");
        }
    }

    #[test]
    fn rates_have_decimal_units() {
        assert_eq!(rate("500"), Ok(500));
        assert_eq!(rate("10k"), Ok(10_000));
        assert_eq!(rate("10kpps"), Ok(10_000));
        assert_eq!(rate("1.5Mpps"), Ok(1_500_000));
        assert_eq!(rate("20pps"), Ok(20));
        assert_eq!(rate("1.5M"), Ok(1_500_000));
        assert_eq!(rate("14.88M"), Ok(14_880_000));
        for bad in ["", "0", "0.1", "-1", "k", "1X", "1e3", "2000G"] {
            assert!(rate(bad).is_err(), "{bad} was taken");
        }
    }

    #[test]
    fn a_count_has_its_noun() {
        let files = |count| count_of(count, "file", "files");
        assert_eq!([0, 1, 2, 1000].map(files), ["0 files", "1 file", "2 files", "1,000 files"]);
    }

    #[test]
    fn numbers_are_finite() {
        assert_eq!((number("60"), number("0.5")), (Ok(60.0), Ok(0.5)));
        for bad in ["", "nan", "inf", "-inf", "6O", "60%"] {
            assert!(number(bad).is_err(), "{bad} was taken");
        }
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"].map(str::to_owned)
        );
    }

    #[test]
    fn readable_numbers_are_rounded() {
        assert_eq!(human_bytes(1 << 30), "1.0 GiB");
        assert_eq!(human_bytes(100), "100 bytes");
        assert_eq!(human_rate(4_321_000.0), "4.32 M");
        assert_eq!(human_rate(870_000.0), "870 k");
        assert_eq!(human_rate(8_760.4), "8,760 ");
        assert_eq!(human_rate(12.0), "12 ");
    }
}
