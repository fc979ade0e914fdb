//! `--latency`: a histogram of the time that packets spend inside.
//!
//! It is measured for each packet from the packet's timestamp to the return of the flush that
//! passed the packet's chunk to the kernel, and includes the sleep in which a worker lets packets
//! accumulate. Packets that wait for an earlier chunk, or for a device without room, leave later
//! than the latency shows.

use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::json;
use wirecap::grouped;

use crate::size::count_of;

/// Longer times count as this.
const LONGEST_NS: u64 = 3_600_000_000_000;
/// Significant digits that are kept of a time.
const DIGITS: u8 = 2;
/// Columns of the longest bar.
const BAR_COLUMNS: usize = 40;

/// Times that packets took, in nanoseconds.
#[derive(Debug, Clone)]
pub(crate) struct Latency(Histogram<u64>);

impl Latency {
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("the bounds are in order"))
    }

    /// Records the time that a packet took.
    #[inline]
    pub(crate) fn note(&mut self, nanos: u64) {
        self.0.saturating_record(nanos);
    }

    /// Adds the times that another one has recorded.
    pub(crate) fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let at = |quantile| self.0.value_at_quantile(quantile);
        json!({
            "packets": self.0.len(),
            "min": self.0.min(),
            "median": at(0.5),
            "p90": at(0.9),
            "p99": at(0.99),
            "p999": at(0.999),
            "max": self.0.max(),
        })
    }

    /// A line of figures, and a bar for each doubling of time between the shortest and the longest.
    pub(crate) fn picture(&self, bar: impl Fn(f64, usize) -> String) -> String {
        let packets = self.0.len();
        if packets == 0 {
            return "no packets".to_owned();
        }

        let at = |quantile| human(self.0.value_at_quantile(quantile));
        let mut text = format!(
            "{}, shortest {}, median {}, 99 % {}, 99.9 % {}, longest {}",
            counted(packets),
            human(self.0.min()),
            at(0.5),
            at(0.99),
            at(0.999),
            human(self.0.max()),
        );

        let rows = self.doublings();
        let most = rows.iter().map(|(_, count)| *count).max().unwrap_or(1);

        for (below_ns, count) in rows {
            let bar = bar(count as f64 / most as f64, BAR_COLUMNS);
            let _infallible =
                write!(text, "\n  < {:>7} {bar} {:>15}", human(below_ns), grouped(count));
        }

        text
    }

    /// The number of packets by time, in rows from half of a power of two of nanoseconds to that
    /// power, without empty rows at both ends.
    fn doublings(&self) -> Vec<(u64, u64)> {
        let first = self.0.min().max(1).ilog2();
        let last = self.0.max().max(1).ilog2();
        let row = |power: u32| {
            let from = if power == first { 0 } else { 1 << power };
            let below = 2 << power;
            (below, self.0.count_between(from, below - 1))
        };
        (first..=last).map(row).collect()
    }
}

/// `1 packet`, `1,000 packets`
pub(super) fn counted(packets: u64) -> String {
    count_of(packets, "packet", "packets")
}

/// `850 ns`, `12.3 us`, `1.05 ms`, `2.10 s`
fn human(nanos: u64) -> String {
    let time = Duration::from_nanos(nanos);
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} us", time.as_secs_f64() * 1e6),
        1_000_000..1_000_000_000 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(share: f64, width: usize) -> String {
        "#".repeat((share * width as f64).round() as usize)
    }

    #[test]
    fn every_packet_belongs_to_one_row() {
        let mut latency = Latency::new();
        for nanos in [0, 700, 900, 1_500, 40_000, 41_000, 5_000_000] {
            latency.note(nanos);
        }
        let rows = latency.doublings();
        assert_eq!(rows.iter().map(|(_, count)| count).sum::<u64>(), 7);
        assert_eq!(rows.first().map(|(_, count)| *count), Some(1), "{rows:?}");
        assert_eq!(rows.last().map(|(below, count)| (*below, *count)), Some((8_388_608, 1)));
    }

    #[test]
    fn the_picture_begins_with_the_figures() {
        let mut latency = Latency::new();
        assert_eq!(latency.picture(bar), "no packets");
        (0..1000).for_each(|_| latency.note(10_000));
        let mut other = Latency::new();
        other.note(2_000_000_000);
        latency.add(&other);
        let picture = latency.picture(bar);
        let first = picture.lines().next().unwrap();
        assert!(first.starts_with("1,001 packets, shortest 10.0 us, median 10."), "{picture}");
        assert!(first.ends_with("longest 2.0 s"), "{picture}");
        assert_eq!(latency.json()["packets"], 1001);
        assert!(latency.json()["p99"].as_u64().unwrap() < 10_200, "{}", latency.json());
    }

    #[test]
    fn times_are_shown_in_their_own_unit() {
        assert_eq!(
            [0, 999, 1_000, 12_345, 1_500_000, 2_100_000_000].map(human),
            ["0 ns", "999 ns", "1.0 us", "12.3 us", "1.5 ms", "2.1 s"]
        );
    }
}
