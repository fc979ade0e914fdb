//! Periods in which packets may have passed that the capture neither captured nor counted.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// A period in which packets of an interface may have passed without being captured or counted.
///
/// It begins when the interface was last found in order, at most a quarter of a second before the
/// event, and ends when packets are captured again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unseen {
    /// The interface's name when the capture was opened.
    pub interface: String,
    /// Where it begins.
    pub from: SystemTime,
    /// Its end; `None` while it lasts, or if it lasted until the capture ended.
    pub to: Option<SystemTime>,
    /// Why.
    pub reason: UnseenReason,
}

/// Why packets were not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum UnseenReason {
    /// The interface was down.
    Down,
    /// The device had lost its carrier.
    NoCarrier,
    /// The interface was removed, or moved to another network namespace.
    Removed,
    /// The capture's program was detached from the interface, or replaced.
    Detached,
    /// Receive queues were added, and the driver ran the capture's program on them only later.
    Queues,
    /// The device delivered nothing although it was not idle: it was reset without its driver, no
    /// longer sends interrupts, or counts packets that reach no ring.
    Silent,
    /// It appeared during a capture of all interfaces, and no socket received its link type yet.
    LinkType,
    /// The kernel's messages about the interface overflowed, or the kernel did not answer.
    Unwatched,
    /// A counter of the device went backwards: drops before its reset are not known.
    CountersReset,
    /// Its rings got another size, and the driver may have dropped packets in the former ones
    /// without counting them.
    Resized,
    /// No packet came before another event, and no counter tells whether the device was quiet or
    /// dead.
    QuietOrDead,
}

impl fmt::Display for UnseenReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Down => "it was down",
            Self::NoCarrier => "it had no carrier",
            Self::Removed => "it was removed",
            Self::Detached => "the capture's program was detached",
            Self::Queues => "receive queues appeared",
            Self::Silent => "its device was silent",
            Self::LinkType => "no socket received its link type",
            Self::Unwatched => "its state is not known",
            Self::CountersReset => "its counters were reset",
            Self::Resized => "its rings were resized",
            Self::QuietOrDead => "no counter tells which",
        })
    }
}

impl Unseen {
    /// Its duration, if it has ended.
    pub fn duration(&self) -> Option<Duration> {
        self.to.map(|to| to.duration_since(self.from).unwrap_or_default())
    }
}

impl fmt::Display for Unseen {
    /// `eth1: not seen for 1.204 s from 1763811015.250: it was removed`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.reason {
            UnseenReason::CountersReset => "drops not known",
            UnseenReason::QuietOrDead => "quiet or dead",
            _ => "not seen",
        };
        write!(f, "{}: {what} ", self.interface)?;
        match self.duration() {
            Some(duration) => write!(f, "for {:.3} s", duration.as_secs_f64())?,
            None => f.write_str("until the end")?,
        }
        write!(f, " from {:.3}: {}", unix_seconds(self.from), self.reason)
    }
}

impl Serialize for Unseen {
    /// Times in seconds since 1970 (UTC).
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Unseen", 4)?;
        object.serialize_field("interface", &self.interface)?;
        object.serialize_field("from", &unix_seconds(self.from))?;
        object.serialize_field("to", &self.to.map(unix_seconds))?;
        object.serialize_field("reason", &self.reason)?;
        object.end()
    }
}

/// The time of day (UTC) to the millisecond, for a person who reads it soon after:
/// `03:12:07.250 UTC`.
pub(super) fn clock_time(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs() % 86_400;
    let millis = since.subsec_millis();
    let hours = seconds / 3600;
    let minutes = seconds / 60 % 60;
    let seconds = seconds % 60;
    format!("{hours:02}:{minutes:02}:{seconds:02}.{millis:03} UTC")
}

pub(super) fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_has_a_text_and_a_json_form() {
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        let mut unseen = Unseen {
            interface: "eth1".to_owned(),
            from: at(1_500),
            to: Some(at(2_704)),
            reason: UnseenReason::Removed,
        };
        assert_eq!(unseen.to_string(), "eth1: not seen for 1.204 s from 1.500: it was removed");
        let json = serde_json::to_string(&unseen).unwrap();
        assert_eq!(json, r#"{"interface":"eth1","from":1.5,"to":2.704,"reason":"removed"}"#);
        unseen.to = None;
        assert_eq!(unseen.to_string(), "eth1: not seen until the end from 1.500: it was removed");
        unseen.reason = UnseenReason::CountersReset;
        assert_eq!(
            unseen.to_string(),
            "eth1: drops not known until the end from 1.500: its counters were reset"
        );
    }
}
