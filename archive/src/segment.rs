//! A segment of the archive and its name, which contains the sensor and the times, so the segment
//! need not be read for them.
//!
//! In the layout of an archive of several sensors, a segment is
//! `sensor=NAME/date=YYYY-MM-DD/hour=HH/FIRST-LAST-DIGEST-FILE`: date and hour in UTC, those of the
//! first packet; the times of the first and the last packet in nanoseconds since 1970; 16 digits of
//! the SHA-256 of the segment; the file's name on the sensor. Files with other names belong to a
//! plain directory of recordings.

use std::path::PathBuf;

use arrow::temporal_conversions::timestamp_s_to_datetime;

/// A segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Its file, or the key of its object.
    pub(crate) path: PathBuf,
    /// Its name relative to the archive.
    pub(crate) name: String,
    /// The sensor that recorded it, if the name contains one.
    pub(crate) sensor: Option<String>,
    /// The earliest and the latest time of its packets, if the name contains them.
    pub(crate) times: Option<(u64, u64)>,
}

impl Segment {
    pub(crate) fn new(path: PathBuf, name: String) -> Self {
        let sensor =
            name.split('/').find_map(|part| part.strip_prefix("sensor=")).map(str::to_owned);
        let times = sensor.as_ref().and_then(|_| times(name.rsplit('/').next()?));
        Self { path, name, sensor, times }
    }
}

/// The name of a sensor in the layout, which is also part of a directory's name, and a value in the
/// SQL of wirecap and of other engines.
pub(crate) fn sensor(text: &str) -> Result<String, String> {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    match (1..=SENSOR_BYTES_MAX).contains(&text.len())
        && !text.starts_with('.')
        && text.bytes().all(is_known)
    {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "invalid name of a sensor {text:?}: expected 1 to {SENSOR_BYTES_MAX} letters, digits, '.', '_' and '-', the first not '.'"
        )),
    }
}

const SENSOR_BYTES_MAX: usize = 64;
/// Maximum bytes of the original file's name in the name of a segment. With times, digest and the
/// extension of the index, the whole name has fewer than the 255 bytes that file systems allow.
const FILE_BYTES_MAX: usize = 160;
/// Hexadecimal digits of the digest in a name.
const DIGEST_DIGITS: usize = 16;

/// The name of a segment in the layout, from the sensor, the times of its first and its last
/// packet, its SHA-256 in hexadecimal digits, and its file's name.
pub(crate) fn name(
    sensor: &str,
    (first, last): (u64, u64),
    digest: &str,
    file_name: &str,
) -> String {
    let seconds = i64::try_from(first / 1_000_000_000).unwrap_or(i64::MAX);
    let hour = timestamp_s_to_datetime(seconds).unwrap_or_default().format("date=%Y-%m-%d/hour=%H");
    let is_known =
        |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
    let safe: String =
        file_name.chars().map(|letter| if is_known(&letter) { letter } else { '_' }).collect();

    // The end of the name is kept, because it has the extension.
    let file_name = &safe[safe.len().saturating_sub(FILE_BYTES_MAX)..];
    format!("sensor={sensor}/{hour}/{first}-{last}-{}-{file_name}", &digest[..DIGEST_DIGITS])
}

fn times(file_name: &str) -> Option<(u64, u64)> {
    let mut parts = file_name.splitn(4, '-');
    let times = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let digest = parts.next()?;
    let is_digest =
        digest.len() == DIGEST_DIGITS && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_digest && times.0 <= times.1).then_some(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn a_name_has_the_utc_hour_of_the_first_packet_and_is_read_as_it_was_written() {
        let times = (1_795_369_199_999_999_999, 1_795_369_200_000_000_000);
        let name = name("lab-1", times, DIGEST, "eth0-7.pcapng.zst");
        assert_eq!(
            name,
            "sensor=lab-1/date=2026-11-22/hour=17/1795369199999999999-1795369200000000000-0123456789abcdef-eth0-7.pcapng.zst"
        );
        let segment = Segment::new("x".into(), name);
        assert_eq!((segment.sensor.as_deref(), segment.times), (Some("lab-1"), Some(times)));
    }

    #[test]
    fn times_at_both_ends_of_the_range_have_a_date() {
        let first = name("s", (0, 0), DIGEST, "f.pcap");
        assert_eq!(first, "sensor=s/date=1970-01-01/hour=00/0-0-0123456789abcdef-f.pcap");
        let last = name("s", (u64::MAX, u64::MAX), DIGEST, "f.pcap");
        assert!(
            last.starts_with("sensor=s/date=2554-07-21/hour=23/18446744073709551615-"),
            "{last}"
        );
    }

    #[test]
    fn letters_that_stores_or_shells_treat_specially_are_replaced_in_file_names() {
        let name = name("s", (0, 0), DIGEST, "a b:c/d%20é#1=x.pcapng");
        assert!(name.ends_with("-0123456789abcdef-a_b_c_d_20__1_x.pcapng"), "{name}");
    }

    #[test]
    fn a_long_file_name_keeps_its_end() {
        let long = format!("{}.pcapng.zst", "x".repeat(240));
        let name = name("s", (u64::MAX, u64::MAX), DIGEST, &long);
        let file = name.rsplit('/').next().unwrap();
        assert!(file.ends_with("x.pcapng.zst"), "{file}");
        assert!(file.len() + ".flows.parquet#1".len() <= 255, "{}", file.len());
    }

    #[test]
    fn a_sensor_is_a_name_without_a_path() {
        for right in ["lab-1", "a", "10.0.0.1", "Rack_7"] {
            assert_eq!(sensor(right).as_deref(), Ok(right));
        }
        for wrong in ["", "a/b", "..", ".x", "a b", "ü", "a=b", &"x".repeat(65)] {
            assert!(sensor(wrong).unwrap_err().contains("invalid name of a sensor"), "{wrong}");
        }
    }

    #[test]
    fn names_in_the_layout_contain_sensor_and_times() {
        let name = "sensor=lab-1/date=2026-11-22/hour=17/1795366800000000000-1795366859999999999-0123456789abcdef-eth0-7.pcapng.zst";
        let segment = Segment::new("x".into(), name.to_owned());
        assert_eq!(segment.sensor.as_deref(), Some("lab-1"));
        assert_eq!(segment.times, Some((1_795_366_800_000_000_000, 1_795_366_859_999_999_999)));
        for plain in [
            "2026-11-22-17.pcapng",
            "a/1-2-0123456789abcdef-x.pcap",
            "sensor=a/2-1-0123456789abcdef-x.pcap",
        ] {
            assert_eq!(Segment::new("x".into(), plain.to_owned()).times, None, "{plain}");
        }
    }
}
