//! A segment of the archive by its name, which tells sensor and times without reading anything.
//!
//! In the layout of an archive of several sensors, a segment is `sensor=NAME/date=YYYY-MM-DD/hour=HH/FIRST-LAST-DIGEST-FILE`: date and hour in UTC, those of the
//! first packet; the times of the first and the last packet in nanoseconds since 1970; 16 digits of the SHA-256 of the
//! segment; the name that it had on the sensor. Other names are those of a plain directory of recordings.

use std::path::PathBuf;

/// A segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Its file, or the key of its object.
    pub(crate) path: PathBuf,
    /// Its name relative to the archive.
    pub(crate) name: String,
    /// The sensor that recorded it, if the name tells.
    pub(crate) sensor: Option<String>,
    /// The earliest and the latest time of its packets, if the name tells.
    pub(crate) times: Option<(u64, u64)>,
}

impl Segment {
    pub(crate) fn new(path: PathBuf, name: String) -> Self {
        let sensor = name.split('/').find_map(|part| part.strip_prefix("sensor=")).map(str::to_owned);
        let times = sensor.as_ref().and_then(|_| times(name.rsplit('/').next()?));
        Self { path, name, sensor, times }
    }
}

fn times(file_name: &str) -> Option<(u64, u64)> {
    let mut parts = file_name.splitn(4, '-');
    let times = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let digest = parts.next()?;
    let is_digest = digest.len() == 16 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_digest && times.0 <= times.1).then_some(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_the_layout_tell_sensor_and_times() {
        let name = "sensor=lab-1/date=2026-11-22/hour=17/1795366800000000000-1795366859999999999-0123456789abcdef-eth0-7.pcapng.zst";
        let segment = Segment::new("x".into(), name.to_owned());
        assert_eq!(segment.sensor.as_deref(), Some("lab-1"));
        assert_eq!(segment.times, Some((1_795_366_800_000_000_000, 1_795_366_859_999_999_999)));
        for plain in
            ["2026-11-22-17.pcapng", "a/1-2-0123456789abcdef-x.pcap", "sensor=a/2-1-0123456789abcdef-x.pcap"]
        {
            assert_eq!(Segment::new("x".into(), plain.to_owned()).times, None, "{plain}");
        }
    }
}
