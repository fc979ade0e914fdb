//! The verdict: whether everything that reached the interfaces is where the user wants it.

use std::fmt;
use std::time::SystemTime;

use wirecap_units::size::{count_of, grouped};

use super::unseen::clock_time;
use super::{Counted, Ledger};
use crate::warning::Warning;

/// What a ledger proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// No packet was lost.
    Yes,
    /// No packet was lost up to this time, when the last one came. Since then an interface or one
    /// of its queues has been quiet or dead, perhaps for a time only, and no counter can tell
    /// which.
    Until(SystemTime),
    /// No lost packet was counted, but some may have been lost.
    NotKnown,
    /// Packets were lost.
    No,
}

/// The verdict of a ledger: the answer with its reasons. Its text is the last line of the ledger's.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// The answer.
    pub answer: Answer,
    /// The lost packets that were counted, by reason.
    pub losses: Vec<(u64, String)>,
    /// Why more packets may be lost than were counted.
    pub unknown: Vec<String>,
    /// What was not checked, because no counter shows it.
    pub unchecked: Vec<String>,
}

impl Verdict {
    /// The answer in one word, as in JSON: `yes`, `until`, `not_known` or `no`.
    pub fn word(&self) -> &'static str {
        match self.answer {
            Answer::Yes => "yes",
            Answer::Until(_) => "until",
            Answer::NotKnown => "not_known",
            Answer::No => "no",
        }
    }

    /// Whether packets were lost, or something happened by which some may have been lost. A link
    /// that is merely quiet is no alarm.
    pub fn is_alarm(&self) -> bool {
        matches!(self.answer, Answer::NotKnown | Answer::No)
    }

    /// Number of lost packets that were counted.
    pub fn lost(&self) -> u64 {
        self.losses.iter().map(|(count, _)| count).sum()
    }
}

impl fmt::Display for Verdict {
    /// `lossless: yes`, or the losses with their reasons, and why more may be lost than are
    /// counted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unknown = self.unknown.join(", ");
        match self.answer {
            Answer::Yes if self.unchecked.is_empty() => f.write_str("lossless: yes"),
            Answer::Yes => write!(f, "lossless: yes ({})", self.unchecked.join("; ")),
            Answer::Until(last) => {
                write!(
                    f,
                    "lossless until {}; since then quiet or dead: not known",
                    clock_time(last)
                )
            }
            Answer::NotKnown => write!(f, "lossless: not known ({unknown})"),
            Answer::No => {
                let reasons: Vec<String> = self
                    .losses
                    .iter()
                    .map(|(count, reason)| format!("{} {reason}", grouped(*count)))
                    .collect();
                let lost = count_of(self.lost(), "packet", "packets");
                let reasons = reasons.join(", ");
                let more =
                    if unknown.is_empty() { unknown } else { format!("; perhaps more: {unknown}") };

                write!(f, "lossless: no ({lost} lost: {reasons}{more})")
            }
        }
    }
}

impl Ledger {
    /// The verdict with its reasons. What the commands print, `--json` and the C library are made
    /// of it.
    pub fn judge(&self) -> Verdict {
        let losses = self.losses();
        let unknown = self.unknown();
        #[cfg(sabotage)]
        let is_quiet =
            self.quiet_since.iter().filter(|_| !crate::sabotage::is("quiet-link-is-lossless"));
        #[cfg(not(sabotage))]
        let is_quiet = self.quiet_since.iter();
        let answer = match is_quiet.min() {
            _ if !losses.is_empty() => Answer::No,
            _ if !unknown.is_empty() => Answer::NotKnown,
            Some(last) => Answer::Until(*last),
            None => Answer::Yes,
        };
        Verdict { answer, losses, unknown, unchecked: self.unchecked() }
    }

    /// The text of the [verdict](Self::judge), the last line of the ledger's.
    pub fn verdict(&self) -> String {
        self.judge().to_string()
    }

    /// Whether every offered packet was delivered and reached the file or port that the application
    /// reported, and no packet can have passed unseen. False if a zero-copy driver ran out of
    /// cells, because its losses are unknown, and if an interface may have been dead since its last
    /// packet.
    pub fn is_lossless(&self) -> bool {
        self.judge().answer == Answer::Yes
    }

    /// The number of lost packets by reason, from the wire to the file or port.
    fn losses(&self) -> Vec<(u64, String)> {
        let dropped = &self.total.dropped;
        let not_sent = self.ports.iter().map(|port| port.account.dropped.total()).sum();
        let not_recorded =
            self.recorded.as_ref().map_or(0, |recorded| recorded.lost(self.total.delivered));
        #[cfg(sabotage)]
        let not_recorded =
            if crate::sabotage::is("not-recorded-is-lossless") { 0 } else { not_recorded };
        let reasons = [
            (dropped.no_cell, "no free cell"),
            (dropped.ring_full, "ring full"),
            (dropped.device.unwrap_or(0), "device"),
            (dropped.no_ring, "queue without a ring"),
            (dropped.other, "other"),
            (self.total.cut, "cut into several by the device"),
            (not_sent, "not sent"),
            (not_recorded, "not recorded"),
        ];
        let reasons = reasons.into_iter().map(|(count, reason)| (count, reason.to_owned()));
        let later = self.lost_later.iter().map(|lost| (lost.packets, lost.reason.clone()));

        reasons.chain(later).filter(|(count, _)| *count > 0).collect()
    }

    /// Why more packets may be lost than are counted.
    fn unknown(&self) -> Vec<String> {
        let mut unknown = Vec::new();
        let starved = self.total.starved;
        #[cfg(sabotage)]
        let starved = if crate::sabotage::is("starved-is-lossless") { 0 } else { starved };

        if starved > 0 {
            let times = count_of(starved, "time", "times");
            let wrong =
                if self.starved_wrong { "; its packets may be repeated or mixed then" } else { "" };
            unknown.push(format!("a zero-copy driver ran out of cells {times}{wrong}"));
        }

        #[cfg(sabotage)]
        if crate::sabotage::is("unseen-is-lossless") {
            return unknown;
        }

        if let Some(first) = self.unseen.first() {
            let periods = count_of(self.unseen.len() as u64, "unseen period", "unseen periods");
            let is_one = self.unseen.iter().all(|unseen| unseen.interface == first.interface);
            unknown.push(if is_one {
                format!("{periods} of {}", first.interface)
            } else {
                periods
            });
        }

        #[cfg(sabotage)]
        if crate::sabotage::is("device-count-not-compared") {
            return unknown;
        }

        unknown.extend(self.counted.iter().filter_map(Counted::objection));
        #[cfg(sabotage)]
        if crate::sabotage::is("damaged-savefile-is-lossless") {
            return unknown;
        }

        let unreadable =
            self.unreadable.iter().map(|file| format!("{file} could not be read to its end"));
        unknown.extend(unreadable);

        #[cfg(sabotage)]
        if crate::sabotage::is("filter-without-tags-is-lossless") {
            return unknown;
        }

        unknown.extend(self.warnings.iter().filter_map(missing_tags));
        unknown
    }

    /// What no counter shows, and therefore was not checked.
    fn unchecked(&self) -> Vec<String> {
        let is_silent = self.total.dropped.device.is_none() && self.engine != "file";
        let silence =
            is_silent.then(|| "no drops seen; the driver does not report its own".to_owned());
        let mut unchecked: Vec<String> = silence.into_iter().collect();
        unchecked.extend(self.warnings.iter().filter_map(|warning| match warning {
            Warning::TagsTakenOut { interface, tags_matter: false } => {
                Some(format!("{interface} removes VLAN tags"))
            }
            Warning::TagsBeside { interface, tags_matter: false, .. } => {
                Some(format!("VLAN tags of {interface} may be lost"))
            }
            _ => None,
        }));

        let reasons = self.counted.iter().filter_map(|counted| {
            let reason = counted.not_compared.as_ref()?;
            Some(format!("{} is not compared with its device's count: {reason}", counted.place))
        });
        let mut reasons: Vec<String> = reasons.collect();
        if reasons.len() > UNCHECKED_MAX {
            reasons = vec![format!(
                "{} interfaces are not compared with their devices' counts",
                reasons.len()
            )];
        }

        unchecked.extend(reasons);
        unchecked.extend(self.untimed());

        unchecked
    }

    /// The packets to which the NIC gave no timestamp, if there are any.
    pub(super) fn untimed(&self) -> Option<String> {
        let untimed = self.recorded.as_ref().map_or(0, |recorded| recorded.untimed);
        #[cfg(sabotage)]
        let untimed = if crate::sabotage::is("missing-times-unmarked") { 0 } else { untimed };
        (untimed > 0).then(|| {
            format!("{} without a hardware timestamp", count_of(untimed, "packet", "packets"))
        })
    }
}

/// Why the filter may have missed packets, if it depends on VLAN tags that may be missing.
fn missing_tags(warning: &Warning) -> Option<String> {
    match warning {
        Warning::TagsTakenOut { interface, tags_matter: true } => Some(format!(
            "the filter depends on VLAN tags, which {interface} removes: ethtool -K {interface} rxvlan off"
        )),
        Warning::TagsBeside { interface, peer, tags_matter: true } => {
            let peer = peer.as_deref().unwrap_or("PEER");
            Some(format!(
                "the filter depends on VLAN tags, and those of {interface} may be lost: ethtool -K {peer} txvlan off \
                 tx-vlan-stag-hw-insert off"
            ))
        }
        _ => None,
    }
}

/// More interfaces are counted instead of listed.
const UNCHECKED_MAX: usize = 2;

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::super::*;
    use super::*;

    /// The ledger of a capture of 100 packets that lost none.
    fn clean() -> Ledger {
        let account =
            Account { delivered: 100, filtered: Some(0), ..Account::default() }.balanced();
        let rings = vec![RingLedger { name: "a@0".to_owned(), account }];
        Ledger::of("xdp", "B-(256,512)".to_owned(), Duration::from_secs(1), rings, vec![Some(0)])
    }

    /// As [`clean`], with this ring.
    fn with(change: impl Fn(&mut Account)) -> Ledger {
        let mut ledger = clean();
        change(&mut ledger.rings[0].account);
        let account = ledger.rings[0].account.clone().balanced();
        let rings = vec![RingLedger { name: "a@0".to_owned(), account }];
        Ledger::of("xdp", ledger.mode, ledger.duration, rings, vec![Some(0)])
    }

    #[test]
    fn every_column_forbids_lossless_by_itself() {
        let no_ring = clean().with_gaps(3, Vec::new());
        let device = Ledger { total: Account::default(), ..clean() };
        let device = Ledger::of("xdp", device.mode, device.duration, device.rings, vec![Some(3)]);
        let recorded =
            Recorded { to: "f".to_owned(), written: 97, in_file: 97, ..Recorded::default() };
        let dropped = PortDrops { down: 3, ..PortDrops::default() };

        let port = PortLedger {
            name: "b".to_owned(),
            account: PortAccount { dropped, ..PortAccount::default() },
        };
        let later = LostLater { packets: 3, reason: "no room".to_owned() };
        let cases = [
            (with(|account| account.dropped.no_cell = 3), "3 no free cell"),
            (with(|account| account.dropped.ring_full = 3), "3 ring full"),
            (with(|account| account.dropped.other = 3), "3 other"),
            (with(|account| account.cut = 3), "3 cut into several by the device"),
            (no_ring, "3 queue without a ring"),
            (device, "3 device"),
            (Ledger { ports: vec![port], ..clean() }, "3 not sent"),
            (Ledger { recorded: Some(recorded), ..clean() }, "3 not recorded"),
            (Ledger { lost_later: vec![later], ..clean() }, "3 no room"),
        ];

        for (ledger, reason) in cases {
            let verdict = ledger.judge();
            assert_eq!((verdict.answer, verdict.lost()), (Answer::No, 3), "{ledger}");
            assert_eq!(verdict.to_string(), format!("lossless: no (3 packets lost: {reason})"));
            assert!(!ledger.is_lossless() && verdict.is_alarm());
        }

        assert!(clean().is_lossless(), "{}", clean());
    }

    #[test]
    fn dropped_packets_are_offered_whatever_the_column() {
        for change in [
            (|drops| drops.no_cell = 3) as fn(&mut Drops),
            |drops| drops.ring_full = 3,
            |drops| drops.other = 3,
            |drops| drops.no_ring = 3,
            |drops| drops.device = Some(3),
        ] {
            let ledger = with(|account| change(&mut account.dropped));
            assert_eq!(
                ledger.rings[0].account.offered, 103,
                "{:?}",
                ledger.rings[0].account.dropped
            );
        }

        let no_ring = clean().with_gaps(3, Vec::new()).total;
        assert_eq!(no_ring.offered, 103, "packets without a ring are offered");
        assert_eq!(clean().with_gaps(3, Vec::new()).total.seen, Some(103));
    }

    #[test]
    fn the_sum_has_every_column_of_its_rings() {
        let dropped = Drops { no_cell: 1, ring_full: 2, device: None, no_ring: 4, other: 8 };
        let account =
            Account { dropped, cut: 16, starved: 32, stalls: 64, ..Account::default() }.balanced();
        let rings = vec![RingLedger { name: "a@0".to_owned(), account }; 2];
        let ledger = Ledger::of("xdp", String::new(), Duration::ZERO, rings, vec![Some(128)]);
        let dropped = Drops { no_cell: 2, ring_full: 4, device: Some(128), no_ring: 8, other: 16 };
        let total = &ledger.total;
        let sum = (total.dropped, total.cut, total.starved, total.stalls);
        assert_eq!(sum, (dropped, 32, 64, 128), "the sum has every column");
        assert_eq!(total.offered, 158);
    }

    #[test]
    fn what_was_not_counted_forbids_lossless() {
        let at = UNIX_EPOCH + Duration::from_millis(3_723_250);
        let unseen = Unseen {
            interface: "a".to_owned(),
            from: at,
            to: None,
            reason: UnseenReason::CountersReset,
        };

        let missing =
            Counted { place: "a@3".to_owned(), device: 9, seen: (3, 4), ..Counted::default() };
        let reset =
            Counted { place: "a".to_owned(), device: 2, seen: (3, 4), ..Counted::default() };
        let cases = [
            (with(|account| account.starved = 1), "a zero-copy driver ran out of cells 1 time"),
            (
                Ledger { starved_wrong: true, ..with(|account| account.starved = 2) },
                "a zero-copy driver ran out of cells 2 times; its packets may be repeated or mixed then",
            ),
            (clean().with_gaps(0, vec![unseen.clone()]), "1 unseen period of a"),
            (
                Ledger { counted: vec![missing.clone()], ..clean() },
                "a@3: its device counted 5 packets that the capture did not see",
            ),
            (
                Ledger { counted: vec![Counted { agreed: Some(at), ..missing }], ..clean() },
                "a@3: its device counted 5 packets that the capture did not see since 01:02:03.250 UTC",
            ),
            (
                Ledger { counted: vec![reset], ..clean() },
                "a: its device counted fewer packets than were seen",
            ),
            (
                Ledger { unreadable: Some("f.pcap".to_owned()), ..clean() },
                "f.pcap could not be read to its end",
            ),
        ];

        for (ledger, reason) in cases {
            assert_eq!(
                ledger.judge().answer,
                Answer::NotKnown,
                "what was not counted, {reason}: {ledger}"
            );
            assert_eq!(ledger.verdict(), format!("lossless: not known ({reason})"));
            assert!(!ledger.is_lossless() && ledger.judge().is_alarm());
        }
    }

    #[test]
    fn a_link_that_may_be_dead_is_no_alarm_and_not_lossless() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let ledger = Ledger { quiet_since: vec![at(7200), at(3600)], ..clean() };
        let until = "lossless until 01:00:00.000 UTC; since then quiet or dead: not known";
        assert_eq!(ledger.verdict(), until, "a link that may be dead");
        assert!(!ledger.is_lossless() && !ledger.judge().is_alarm());
        let lossy =
            Ledger { quiet_since: vec![at(1)], ..with(|account| account.dropped.other = 1) };
        assert_eq!(lossy.judge().answer, Answer::No, "a counted loss comes first");
    }

    #[test]
    fn tags_that_may_be_missing_matter_only_to_a_filter_that_depends_on_them() {
        let interface = || "a".to_owned();
        let of = |warning| Ledger { warnings: vec![warning], ..clean() }.verdict();
        let taken_out =
            |tags_matter| of(Warning::TagsTakenOut { interface: interface(), tags_matter });
        let beside = |tags_matter| {
            of(Warning::TagsBeside { interface: interface(), peer: None, tags_matter })
        };
        assert_eq!(taken_out(false), "lossless: yes (a removes VLAN tags)");
        assert_eq!(
            taken_out(true),
            "lossless: not known (the filter depends on VLAN tags, which a removes: ethtool -K a rxvlan off)"
        );
        assert_eq!(beside(false), "lossless: yes (VLAN tags of a may be lost)");
        assert_eq!(
            beside(true),
            "lossless: not known (the filter depends on VLAN tags, and those of a may be lost: ethtool -K PEER txvlan \
             off tx-vlan-stag-hw-insert off)"
        );
    }

    #[test]
    fn a_count_that_is_not_compared_is_named_and_no_alarm() {
        let not_compared = Some("GRO merges packets".to_owned());
        let of = |place: &str| Counted {
            place: place.to_owned(),
            not_compared: not_compared.clone(),
            ..Counted::default()
        };
        let ledger = Ledger { counted: vec![of("a")], ..clean() };
        let named = "lossless: yes (a is not compared with its device's count: GRO merges packets)";
        assert_eq!(ledger.verdict(), named);

        let ledger = Ledger { counted: vec![of("a"), of("b"), of("c")], ..clean() };
        assert_eq!(
            ledger.verdict(),
            "lossless: yes (3 interfaces are not compared with their devices' counts)"
        );
    }

    #[test]
    fn packets_without_a_hardware_timestamp_are_in_the_ledger_and_the_verdict() {
        let recorded = Recorded {
            to: "f".to_owned(),
            written: 100,
            in_file: 100,
            untimed: 7,
            ..Recorded::default()
        };
        let ledger = Ledger { recorded: Some(recorded), ..clean() };
        assert_eq!(ledger.verdict(), "lossless: yes (7 packets without a hardware timestamp)");

        let text = ledger.to_string();
        assert!(
            text.contains(
                "\n7 packets without a hardware timestamp: their time in the file is 0\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn counts_that_agree_are_one_line_and_others_one_each() {
        let of = |place: &str, device, seen| Counted {
            place: place.to_owned(),
            device,
            seen,
            ..Counted::default()
        };
        let agree = vec![of("a@0", 5, (5, 5)), of("a@1", 7, (6, 8))];
        let text = Ledger { counted: agree.clone(), ..clean() }.to_string();
        assert!(text.contains("\na: device counted 12, seen 11 to 13\nlossless: yes"), "{text}");

        let counted = [agree, vec![of("a@2", 9, (0, 0))]].concat();
        let text = Ledger { counted, ..clean() }.to_string();
        assert!(text.contains("\na@2: device counted 9, seen 0\nlossless: not known"), "{text}");
        assert!(!text.contains("a@0: device"), "{text}");
    }
}
