//! The comparison of a device's own receive count with what the capture saw.

use std::fmt;
use std::time::SystemTime;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use wirecap_units::size::{count_of, grouped};

use super::unseen::{clock_time, unix_seconds};

/// The packets that a device counted as received since the capture began, and those that the
/// capture saw.
///
/// The two are read one after the other, so packets that arrive in between make the number of seen
/// ones a range.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counted {
    /// The interface, or the receive queue (`eth0@3`) if its driver counts per queue.
    pub place: String,
    /// Packets that the device or its driver counted.
    pub device: u64,
    /// Packets that the capture saw, delivered, filtered or dropped: at least and at most.
    pub seen: (u64, u64),
    /// When both last agreed.
    pub agreed: Option<SystemTime>,
    /// Why the two cannot be compared, if so.
    pub not_compared: Option<String>,
}

impl Counted {
    /// Packets that the device counted, and that are in no column of the ledger.
    pub fn missing(&self) -> u64 {
        match self.not_compared {
            None => self.device.saturating_sub(self.seen.1),
            Some(_) => 0,
        }
    }

    /// Whether the device counted fewer packets than were seen, so that its counters must have been
    /// reset.
    pub fn was_reset(&self) -> bool {
        self.not_compared.is_none() && self.device < self.seen.0
    }

    /// The interface's name.
    pub(super) fn interface(&self) -> &str {
        self.place.split('@').next().unwrap_or_default()
    }

    /// Why it forbids "lossless: yes", if it does.
    pub(super) fn objection(&self) -> Option<String> {
        let place = &self.place;

        if self.missing() > 0 {
            let missing = count_of(self.missing(), "packet", "packets");
            let since = self
                .agreed
                .map(|agreed| format!(" since {}", clock_time(agreed)))
                .unwrap_or_default();
            return Some(format!(
                "{place}: its device counted {missing} that the capture did not see{since}"
            ));
        }

        self.was_reset()
            .then(|| format!("{place}: its device counted fewer packets than were seen"))
    }
}

impl fmt::Display for Counted {
    /// `eth0@3: device counted 1,000, seen 980 to 990`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = self.seen;
        write!(
            f,
            "{}: device counted {}, seen {}",
            self.place,
            grouped(self.device),
            grouped(least)
        )?;
        if most > least { write!(f, " to {}", grouped(most)) } else { Ok(()) }
    }
}

impl Serialize for Counted {
    /// The time in seconds since 1970 (UTC).
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Counted", 6)?;
        object.serialize_field("place", &self.place)?;
        object.serialize_field("device", &self.device)?;
        object.serialize_field("seen", &self.seen)?;
        object.serialize_field("missing", &self.missing())?;
        object.serialize_field("agreed", &self.agreed.map(unix_seconds))?;
        object.serialize_field("not_compared", &self.not_compared)?;
        object.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(device: u64, seen: (u64, u64)) -> Counted {
        Counted { place: "eth0@3".to_owned(), device, seen, ..Counted::default() }
    }

    #[test]
    fn only_a_count_outside_the_bracket_is_an_objection() {
        assert_eq!(counted(100, (98, 100)).objection(), None);
        assert_eq!(counted(98, (98, 100)).objection(), None);
        let missing = counted(101, (98, 100)).objection().unwrap();
        assert_eq!(missing, "eth0@3: its device counted 1 packet that the capture did not see");
        assert!(counted(97, (98, 100)).was_reset());
    }

    #[test]
    fn a_count_that_cannot_be_compared_objects_to_nothing() {
        let counted =
            Counted { not_compared: Some("GRO merges packets".to_owned()), ..counted(101, (0, 0)) };
        assert_eq!((counted.missing(), counted.objection()), (0, None));
    }

    #[test]
    fn the_bracket_is_printed_as_a_range_only_if_it_is_one() {
        assert_eq!(
            counted(1000, (990, 1000)).to_string(),
            "eth0@3: device counted 1,000, seen 990 to 1,000"
        );
        assert_eq!(
            counted(1000, (1000, 1000)).to_string(),
            "eth0@3: device counted 1,000, seen 1,000"
        );
    }
}
