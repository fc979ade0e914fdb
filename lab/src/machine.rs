//! A description of the machine of a measurement.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The properties of a machine that affect packet processing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Names and values, in the order of display.
    pub facts: Vec<(String, String)>,
}

impl Machine {
    /// This machine, without unknown properties.
    pub fn this() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let field = |name: &str| value_of(&cpuinfo, name).map(str::to_owned);
        let is_virtual =
            value_of(&cpuinfo, "flags").is_some_and(|flags| flags.contains("hypervisor"));
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let release = read("/etc/os-release");
        let system =
            value_of(&release, "PRETTY_NAME").map(|name| name.trim_matches('"').to_owned());
        let facts = [
            ("processor", field("model name")),
            (
                "usable processors",
                Some(format!("{cpus}{}", if is_virtual { ", virtual" } else { "" })),
            ),
            ("memory", memory(&read("/proc/meminfo"))),
            ("kernel", Some(read("/proc/sys/kernel/osrelease").trim().to_owned())),
            ("system", system),
            ("wirecap", Some(env!("CARGO_PKG_VERSION").to_owned())),
            ("date", Some(today())),
        ];
        let known = facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Self { facts: known.filter(|(_, value)| !value.is_empty()).collect() }
    }

    /// The conditions of a result: everything except the date.
    pub fn key(&self) -> String {
        let lasting = self.facts.iter().filter(|(name, _)| name != "date");
        lasting.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    }

    /// With one more fact, such as a rival's version.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.facts.push((name.into(), value.into()));
        self
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The value of the first line `name : value` or `name=value`.
fn value_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| {
        let rest = line.strip_prefix(name)?.trim_start();
        rest.strip_prefix([':', '=']).map(str::trim)
    };
    text.lines().find_map(value)
}

fn memory(meminfo: &str) -> Option<String> {
    let kib: f64 = value_of(meminfo, "MemTotal")?.strip_suffix("kB")?.trim().parse().ok()?;
    Some(format!("{:.1} GiB", kib / 1024.0 / 1024.0))
}

/// Today by UTC, as year-month-day.
fn today() -> String {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    date((since_epoch.as_secs() / 86_400) as i64)
}

/// The date of a day counted from 1970-01-01 (Hinnant, *chrono-Compatible Low-Level Date
/// Algorithms*): years begin in March here, so that a leap day is the last day.
fn date(days: i64) -> String {
    let from_era = days + 719_468;
    let era = from_era.div_euclid(146_097);
    let day_of_era = from_era.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year_of_era;
    let month = month + 3;
    let (year, month) = if month > 12 { (year + 1, month - 12) } else { (year, month) };
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_their_dates() {
        let dates = [0, 59, 11_016, 11_017, 20_879, 47_540].map(date);
        let expected =
            ["1970-01-01", "1970-03-01", "2000-02-29", "2000-03-01", "2027-03-02", "2100-02-28"];
        assert_eq!(dates, expected);
    }

    #[test]
    fn facts_are_found_in_the_kernels_files() {
        let cpuinfo = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu hypervisor\n";
        assert_eq!(value_of(cpuinfo, "model name"), Some("AMD EPYC"));
        assert_eq!(value_of("NAME=a\nPRETTY_NAME=\"b\"\n", "PRETTY_NAME"), Some("\"b\""));
        assert_eq!(memory("MemTotal:       25165824 kB\n").as_deref(), Some("24.0 GiB"));
        assert_eq!(memory("MemTotal: much\n"), None);
        assert!(Machine::this().facts.iter().any(|(name, _)| name == "kernel"));
    }
}
