//! The device's own count of received packets against what the capture saw: whether packets are
//! missing that no column of the ledger has, and whether a device without packets is quiet or dead.
//!
//! Both sides are read one after the other while packets arrive. So each reading has the seen
//! packets before and after the device's count, and only a difference outside this bracket counts.
//!
//! Both are read when the capture begins and ends, when a gap by removal ends, and every five
//! seconds. At the beginning the bracket spans several readings while packets arrive, since a
//! driver counts a batch when it is complete. At the end both are read for up to a second until
//! they agree. When a capture ends while a device may be dead, it waits up to 250 ms for a packet,
//! the only proof of life.
//!
//! Without a packet, and if a queue that had packets gets none while others do and GPRC (the count
//! of igb and igc before the queues) does not show that all arrived, the verdict is `lossless until
//! TIME`. If another event follows the silence, its gap begins with the last packet, or the silence
//! is listed by itself if it took longer than a second.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use wirecap_units::size::count_of;

use crate::device::received::Received;
use crate::ledger::Counted;

/// A driver counts a batch (a NAPI poll) when it is complete: so many packets of a queue may be on
/// one side only.
const BATCH: u64 = 64;
/// How long both sides may differ when the capture ends, until it is believed.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait at the end for a packet, which shows that the device is not dead.
const LAST_PACKET: Duration = Duration::from_millis(250);
/// How long the queues may be behind the device's own count.
const ON_THE_WIRE: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_millis(1);
/// Time between two readings of an idle interface: longer than a batch takes.
const STILL: Duration = Duration::from_micros(300);
const STILL_READINGS: usize = 6;

/// The packets that the capture saw, of each receive queue or (`None`) of all: at least and at
/// most.
pub(crate) type Seen = BTreeMap<Option<u32>, (u64, u64)>;

/// An interface, as the capture and its device count it.
pub(crate) trait BothSides {
    /// The device's count; `None` if it cannot be read.
    fn received(&mut self) -> Option<Received>;
    /// What the capture saw; an error says why it does not know.
    fn seen(&mut self) -> Result<Seen, String>;
    /// Packets that the capture counts, but not by queue: no ring was there.
    fn without_ring(&mut self) -> u64;
    /// When the last packet came, at the earliest, if that is known.
    fn last_packet(&mut self) -> Option<SystemTime>;
    /// When the last packet came before a queue fell silent alone, at the earliest, if one did.
    fn silent_queue_since(&mut self) -> Option<SystemTime>;
    /// Waits.
    fn pause(&mut self, time: Duration);
    fn now(&mut self) -> SystemTime;
}

/// Whether a device that delivers nothing can be known to live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// A virtual interface cannot die unnoticed, and a device that has just answered is alive.
    Alive,
    /// Only packets show it.
    Packets,
    /// It is known to give nothing, and the ledger has that period.
    Gap,
}

/// Both sides at one moment.
#[derive(Debug, Clone)]
struct Reading {
    at: SystemTime,
    received: Received,
    seen: Result<Seen, String>,
    without_ring: u64,
}

impl Reading {
    fn take(sides: &mut dyn BothSides) -> Option<Self> {
        let at = sides.now();
        let before = sides.seen();
        let received = sides.received()?;
        let after = sides.seen();
        let seen = before.and_then(|before| {
            let after = after?;
            let most = |place| after.get(place).map_or(u64::MAX, |(_, most)| *most);
            Ok(before.iter().map(|(place, (least, _))| (*place, (*least, most(place)))).collect())
        });
        Some(Self { at, received, seen, without_ring: sides.without_ring() })
    }

    /// As [`take`](Self::take), again until nothing has moved. While packets arrive, either side
    /// may be ahead by a part of a batch; then the bracket spans several readings.
    fn take_still(sides: &mut dyn BothSides) -> Option<Self> {
        let first = Self::take(sides)?;
        let mut base = first.clone();
        let mut last = first;

        for _ in 0..STILL_READINGS {
            sides.pause(STILL);
            let next = Self::take(sides)?;
            if next.received == last.received && next.seen == last.seen {
                return Some(next);
            }
            base.span(&next);
            last = next;
        }

        Some(base)
    }

    /// Widens the bracket by what another reading says about this moment.
    fn span(&mut self, other: &Self) {
        let devices =
            self.places().map(|place| (place, self.device(place).zip(other.device(place))));
        let devices: Vec<_> = devices.collect();
        let (Ok(seen), Ok(others)) = (&mut self.seen, &other.seen) else { return };

        for (place, devices) in devices {
            let (Some((device, later)), Some(bracket)) = (devices, seen.get_mut(&place)) else {
                continue;
            };
            let Some((least, most)) = others.get(&place) else { continue };
            let counted = later.saturating_sub(device);
            bracket.0 = bracket.0.min(least.saturating_sub(counted));
            bracket.1 = bracket.1.max(most.saturating_sub(counted));
        }
    }

    /// Where the device counts.
    fn places(&self) -> impl Iterator<Item = Option<u32>> {
        std::iter::once(None).chain(self.received.queues.iter().map(|(queue, _)| Some(*queue)))
    }

    /// The device's count of a place.
    fn device(&self, place: Option<u32>) -> Option<u64> {
        match place {
            None => Some(self.received.total),
            Some(queue) => {
                let mut queues = self.received.queues.iter();
                queues.find(|(other, _)| *other == queue).map(|(_, count)| *count)
            }
        }
    }

    /// The counts that a dead device or queue would not move: of each queue if they are known.
    fn pulses(&self) -> Vec<(Option<u32>, u64)> {
        match self.received.queues.is_empty() {
            true => vec![(None, self.received.total)],
            false => {
                self.received.queues.iter().map(|(queue, count)| (Some(*queue), *count)).collect()
            }
        }
    }

    /// Whether a counter went backwards since `earlier`.
    fn was_reset_since(&self, earlier: &Self) -> bool {
        let went_back = |(place, before): &(Option<u32>, u64)| {
            self.device(*place).is_some_and(|now| now < *before)
        };
        earlier.pulses().iter().any(went_back) || self.received.total < earlier.received.total
    }
}

/// The comparison of both sides since a capture, or a gap, began.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    interface: String,
    base: Option<Reading>,
    last: Option<Reading>,
    agreed: Option<SystemTime>,
    /// When each count last moved, at the earliest.
    moved: BTreeMap<Option<u32>, SystemTime>,
    /// The last reading differed.
    is_suspicious: bool,
    /// What is known, once it is.
    counted: Vec<Counted>,
    quiet_since: Option<SystemTime>,
}

/// A counter went backwards: what it counted since this time is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reset {
    pub(crate) last_known: SystemTime,
}

impl Comparison {
    /// Begins, when packets reach the capture.
    pub(crate) fn begin(interface: &str, sides: &mut dyn BothSides) -> Self {
        let base = Reading::take_still(sides);
        let agreed = base.as_ref().map(|base| base.at);
        Self {
            interface: interface.to_owned(),
            last: base.clone(),
            base,
            agreed,
            ..Self::default()
        }
    }

    /// Compares while the capture runs. Does not wait; a difference is believed when it is found
    /// twice.
    pub(crate) fn look(&mut self, sides: &mut dyn BothSides) -> Option<Reset> {
        self.base.as_ref()?;
        let now = Reading::take(sides)?;
        if let Some(reset) = self.find_reset(&now) {
            return Some(reset);
        }

        self.follow(&now);
        self.admit_new_queues(&now);

        let counted = self.judge(&now, BATCH);
        if is_in_order(&counted) {
            (self.agreed, self.is_suspicious) = (Some(now.at), false);
            self.counted.clear();
        } else if std::mem::replace(&mut self.is_suspicious, true) {
            self.counted = counted;
        }

        self.last = Some(now);
        None
    }

    /// Compares for the last time, while packets still reach the capture.
    pub(crate) fn end(&mut self, sides: &mut dyn BothSides, proof: Proof) -> Option<Reset> {
        if self.base.is_none() {
            self.quiet_since = sides.silent_queue_since();
            return None;
        }

        let begin = sides.now();
        let mut reset = None;

        let (now, counted) = loop {
            let now = Reading::take(sides)?;
            if reset.is_none() {
                reset = self.find_reset(&now);
            }
            let counted = self.judge(&now, 0);
            let waited = now.at.duration_since(begin).unwrap_or_default();
            // Both agree at some moment if none is missing: a batch is soon counted on both sides.
            if is_in_order(&counted) || waited >= PATIENCE {
                break (now, counted);
            }
            sides.pause(PAUSE);
        };
        self.follow(&now);

        if is_in_order(&counted) {
            self.agreed = Some(now.at);
        }

        let agreed = self.agreed;
        self.counted = counted.into_iter().map(|counted| Counted { agreed, ..counted }).collect();

        let has_all_on_wire = self.note_what_is_on_the_wire(&now, sides);
        let quiet = if proof == Proof::Packets { self.quiet_since(now, sides) } else { None };
        let silent = sides.silent_queue_since().filter(|_| !has_all_on_wire);
        self.quiet_since = quiet.into_iter().chain(silent).min();

        reset
    }

    /// What the comparison found.
    pub(crate) fn counted(&self) -> &[Counted] {
        &self.counted
    }

    /// Since when the device may be dead, when the capture has ended.
    pub(crate) fn may_be_dead_since(&self) -> Option<SystemTime> {
        self.quiet_since
    }

    /// The counts are not comparable any more, for this reason.
    pub(crate) fn give_up(&mut self, interface: &str, reason: &str) {
        self.base = None;
        self.interface = interface.to_owned();
        let place = self.interface.clone();
        let not_compared = Some(reason.to_owned());
        self.counted = vec![Counted { place, not_compared, ..Counted::default() }];
    }

    /// A counter that went backwards: the comparison begins again.
    fn find_reset(&mut self, now: &Reading) -> Option<Reset> {
        #[cfg(sabotage)]
        if crate::sabotage::is("counter-reset-unnoticed") {
            return None;
        }
        let last = self.last.as_ref().filter(|last| now.was_reset_since(last))?;
        let last_known = last.at;
        (self.base, self.last) = (Some(now.clone()), Some(now.clone()));
        self.moved.clear();
        Some(Reset { last_known })
    }

    /// Queues that were added are compared from now on.
    fn admit_new_queues(&mut self, now: &Reading) {
        let Some(base) = &mut self.base else { return };
        let (Ok(seen), Ok(seen_before)) = (&now.seen, &mut base.seen) else { return };
        for (queue, count) in &now.received.queues {
            let place = Some(*queue);
            if let Some(packets) = seen.get(&place).filter(|_| !seen_before.contains_key(&place)) {
                base.received.queues.push((*queue, *count));
                seen_before.insert(place, *packets);
            }
        }
    }

    /// Notes which counts have moved since the last reading.
    fn follow(&mut self, now: &Reading) {
        let Some(last) = &self.last else { return };
        for (place, count) in now.pulses() {
            if last.device(place) != Some(count) {
                self.moved.insert(place, last.at);
            }
        }
    }

    /// Both sides since the beginning, with `slack` packets more or fewer on each.
    fn judge(&self, now: &Reading, slack: u64) -> Vec<Counted> {
        let Some(base) = &self.base else { return Vec::new() };
        let (Ok(seen), Ok(seen_before)) = (&now.seen, &base.seen) else {
            let reason = now.seen.as_ref().err().or(base.seen.as_ref().err()).cloned();
            return vec![Counted {
                place: self.interface.clone(),
                not_compared: reason,
                ..Counted::default()
            }];
        };

        let without_ring = now.without_ring.saturating_sub(base.without_ring);
        let sent = now.received.sent.saturating_sub(base.received.sent);
        let by_queue = !now.received.queues.is_empty() && seen.keys().any(Option::is_some);

        let compare = |(place, (least, most)): (&Option<u32>, &(u64, u64))| {
            let (least_before, most_before) = seen_before.get(place).copied().unwrap_or_default();
            let device = now.device(*place)?.saturating_sub(base.device(*place)?);
            let least = least.saturating_sub(most_before).saturating_sub(slack);

            let most = most
                .saturating_sub(least_before)
                .saturating_add(without_ring)
                .saturating_add(slack);
            let place = place.map_or_else(
                || self.interface.clone(),
                |queue| format!("{}@{queue}", self.interface),
            );
            let counted = Counted { place, device, seen: (least, most), ..Counted::default() };

            Some(Self::with_reservations(counted, now, sent))
        };
        let places = seen.iter().filter(|(place, _)| place.is_some() == by_queue);
        let counted: Vec<Counted> = places.filter_map(compare).collect();
        if !counted.is_empty() {
            return counted;
        }

        let not_compared = Some("its driver does not count by queue".to_owned());
        vec![Counted { place: self.interface.clone(), not_compared, ..Counted::default() }]
    }

    /// Not compared if the device counts other packets than those that the capture can see. But if
    /// it counts packets and none at all was seen, they are missing.
    fn with_reservations(counted: Counted, now: &Reading, sent: u64) -> Counted {
        let (least, most) = counted.seen;
        let is_cut_off = most <= BATCH && counted.device > most + BATCH;
        if let Some(reason) = now.received.differs.as_ref().filter(|_| !is_cut_off) {
            return Counted { not_compared: Some(reason.clone()), ..counted };
        }

        // Packet sockets see sent packets as well, but not those of every sender.
        let all = counted.device + sent;

        match sent > 0 && most >= counted.device {
            true if (least..=most).contains(&all) => Counted { device: all, ..counted },
            true => {
                let reason = "packets that this host sent cannot be told apart";
                Counted { not_compared: Some(reason.to_owned()), ..counted }
            }
            false => counted,
        }
    }

    /// Since when the device, or one of its queues that was alive, gives nothing, unless a packet
    /// comes now.
    fn quiet_since(&mut self, last: Reading, sides: &mut dyn BothSides) -> Option<SystemTime> {
        let begin = last.at;
        let mut now = last.clone();
        let mut quiet = last.pulses();

        loop {
            quiet.retain(|(place, count)| now.device(*place) == Some(*count));
            let was_alive = |(place, _): &(Option<u32>, u64)| self.moved.contains_key(place);
            let is_all_quiet = quiet.len() == last.pulses().len();
            let dead: Vec<Option<u32>> = match is_all_quiet {
                true => quiet.iter().map(|(place, _)| *place).collect(),
                false => quiet
                    .iter()
                    .filter(|liveness_watch| was_alive(liveness_watch))
                    .map(|(place, _)| *place)
                    .collect(),
            };
            if dead.is_empty() || (!is_all_quiet && self.nothing_is_missing_on_the_wire(&now)) {
                return None;
            }

            let Some(next) = Reading::take(sides) else { return Some(begin) };
            if next.at.duration_since(begin).unwrap_or_default() >= LAST_PACKET {
                let since = dead.iter().filter_map(|place| self.moved.get(place)).copied();
                let began = self.base.as_ref().map_or(begin, |base| base.at);
                return Some(match is_all_quiet {
                    true => since.chain(sides.last_packet()).max().unwrap_or(began),
                    false => since.min().unwrap_or(began),
                });
            }

            now = next;
            sides.pause(PAUSE);
        }
    }

    /// Notes packets that the device counted before it distributed them to its queues, and no queue
    /// has. The device may also count frames for its management controller, so they are no proof of
    /// a loss. Returns whether the queues have all packets of such a count: a queue without packets
    /// then got none.
    fn note_what_is_on_the_wire(&mut self, now: &Reading, sides: &mut dyn BothSides) -> bool {
        let mut now = now.clone();
        let begin = now.at;

        while self.more_on_wire(&now) > 0 {
            if now.at.duration_since(begin).unwrap_or_default() >= ON_THE_WIRE {
                let more = count_of(self.more_on_wire(&now), "packet", "packets");
                let reason = format!("the device counted {more} more than its queues");
                let place = self.interface.clone();
                let not_compared = Some(reason);
                self.counted.push(Counted { place, not_compared, ..Counted::default() });
                return false;
            }

            sides.pause(PAUSE);
            let Some(next) = Reading::take(sides) else { return false };
            now = next;
        }
        now.received.on_wire.is_some()
    }

    /// Packets that the device counted and no queue has.
    fn more_on_wire(&self, now: &Reading) -> u64 {
        let Some(base) = &self.base else { return 0 };
        let on_wire = now.received.on_wire.zip(base.received.on_wire);
        let arrived = now.received.total.saturating_sub(base.received.total)
            + now.received.dropped.saturating_sub(base.received.dropped);
        on_wire.map_or(0, |(now, before)| now.saturating_sub(before).saturating_sub(arrived))
    }

    /// Whether the queues have all packets that the device counted before it distributed them.
    fn nothing_is_missing_on_the_wire(&self, now: &Reading) -> bool {
        let is_counted = now.received.on_wire.is_some();
        is_counted && self.more_on_wire(now) == 0
    }
}

/// Whether nothing speaks for packets in no column.
fn is_in_order(counted: &[Counted]) -> bool {
    counted.iter().all(|counted| counted.missing() == 0 && !counted.was_reset())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sides with fixed numbers, in simulated time.
    struct Fixed {
        now: SystemTime,
        received: Received,
        seen: u64,
        /// Packets that come while the other side is read.
        per_reading: u64,
        /// By how many packets the device's count is behind at each reading, the last first; then
        /// by none.
        behind: Vec<u64>,
        queue: Option<u32>,
        silent_queue_since: Option<SystemTime>,
    }

    impl Fixed {
        fn new() -> Self {
            Self {
                now: SystemTime::UNIX_EPOCH,
                received: Received::default(),
                seen: 0,
                per_reading: 0,
                behind: Vec::new(),
                queue: None,
                silent_queue_since: None,
            }
        }

        fn pass(&mut self, packets: u64) {
            self.received.total += packets;
            self.seen += packets;
        }
    }

    impl BothSides for Fixed {
        fn received(&mut self) -> Option<Received> {
            self.pass(self.per_reading);
            let total = self.received.total - self.behind.pop().unwrap_or(0);
            let queues = self.queue.map(|queue| (queue, total));
            Some(Received { total, queues: queues.into_iter().collect(), ..self.received.clone() })
        }

        fn seen(&mut self) -> Result<Seen, String> {
            let places = [None, self.queue.map(Some).unwrap_or_default()];
            Ok(places.map(|place| (place, (self.seen, self.seen))).into())
        }

        fn without_ring(&mut self) -> u64 {
            0
        }

        fn last_packet(&mut self) -> Option<SystemTime> {
            None
        }

        fn silent_queue_since(&mut self) -> Option<SystemTime> {
            self.silent_queue_since
        }

        fn pause(&mut self, time: Duration) {
            self.now += time;
        }

        fn now(&mut self) -> SystemTime {
            self.now
        }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn one_missing_packet_is_found_on_a_link_that_is_still() {
        let mut sides = Fixed::new();
        let mut comparison = Comparison::begin("eth7", &mut sides);
        sides.pass(1000);
        sides.received.total += 1;
        comparison.end(&mut sides, Proof::Alive);
        assert_eq!(comparison.counted()[0].missing(), 1);
        assert_eq!(comparison.counted()[0].agreed, Some(at(0) + STILL), "when both last agreed");
    }

    #[test]
    fn packets_that_come_while_both_sides_are_read_are_not_missing() {
        let mut sides = Fixed { per_reading: 7, ..Fixed::new() };
        let mut comparison = Comparison::begin("eth7", &mut sides);
        sides.pass(1000);
        comparison.end(&mut sides, Proof::Alive);
        assert!(is_in_order(comparison.counted()), "{:?}", comparison.counted());
    }

    #[test]
    fn a_batch_that_is_not_counted_yet_at_the_beginning_is_not_missing_at_the_end() {
        let mut sides = Fixed { per_reading: 1, behind: vec![0, 9, 5, 9], ..Fixed::new() };
        sides.pass(100);
        let mut comparison = Comparison::begin("eth7", &mut sides);
        (sides.per_reading, sides.behind) = (0, Vec::new());
        comparison.end(&mut sides, Proof::Alive);
        assert!(is_in_order(comparison.counted()), "{:?}", comparison.counted());
    }

    #[test]
    fn a_queue_that_was_added_is_compared_from_then_on() {
        let mut sides = Fixed::new();
        let mut comparison = Comparison::begin("eth7", &mut sides);
        sides.queue = Some(3);
        sides.pass(10);
        comparison.look(&mut sides);
        sides.received.total += 5;
        comparison.end(&mut sides, Proof::Alive);
        let [counted] = comparison.counted() else { panic!("{:?}", comparison.counted()) };
        assert_eq!((&*counted.place, counted.missing()), ("eth7@3", 5));
    }

    #[test]
    fn a_counter_that_went_backwards_is_told_with_the_last_time_that_is_known() {
        for ends in [false, true] {
            let mut sides = Fixed::new();
            sides.pass(500);

            let mut comparison = Comparison::begin("eth7", &mut sides);
            let last_known = sides.now;
            sides.now = at(5);
            sides.received.total = 3;

            let reset = match ends {
                false => comparison.look(&mut sides),
                true => comparison.end(&mut sides, Proof::Alive),
            };
            assert_eq!(reset, Some(Reset { last_known }), "a counter that went backwards");
        }
    }

    #[test]
    fn a_difference_while_the_capture_runs_is_believed_when_it_is_found_twice() {
        let mut sides = Fixed::new();
        let mut comparison = Comparison::begin("eth7", &mut sides);
        sides.received.total += BATCH + 1;
        assert_eq!(comparison.look(&mut sides), None);
        assert!(comparison.counted().is_empty());
        assert_eq!(comparison.look(&mut sides), None);
        assert_eq!(comparison.counted()[0].missing(), 1, "beyond a batch");
    }

    #[test]
    fn only_packets_prove_that_a_mute_device_lives() {
        let mut sides = Fixed::new();
        let mut comparison = Comparison::begin("eth7", &mut sides);
        sides.pass(10);
        comparison.end(&mut sides, Proof::Packets);
        assert!(comparison.may_be_dead_since().is_some());
        for (proof, per_reading) in [(Proof::Packets, 1), (Proof::Alive, 0), (Proof::Gap, 0)] {
            let mut sides = Fixed::new();
            let mut comparison = Comparison::begin("eth7", &mut sides);
            sides.per_reading = per_reading;
            comparison.end(&mut sides, proof);
            assert_eq!(comparison.may_be_dead_since(), None, "{proof:?}");
        }
    }

    #[test]
    fn a_queue_that_was_silent_may_have_been_dead_unless_all_packets_on_the_wire_came() {
        let silent = Some(at(7));
        for (on_wire, beyond, since) in
            [(None, 0, silent), (Some(0), 3, silent), (Some(0), 0, None)]
        {
            let mut sides = Fixed { silent_queue_since: silent, ..Fixed::new() };
            sides.received.on_wire = on_wire;
            let mut comparison = Comparison::begin("eth7", &mut sides);
            sides.pass(10);
            sides.received.on_wire = on_wire.map(|count| count + 10 + beyond);
            comparison.end(&mut sides, Proof::Alive);
            assert_eq!(comparison.may_be_dead_since(), since, "{on_wire:?}, {beyond} beyond");
            assert!(is_in_order(comparison.counted()), "{:?}", comparison.counted());
        }
    }

    #[test]
    fn packets_of_which_none_is_seen_are_missing_whatever_the_driver_counts() {
        let mut sides = Fixed::new();
        sides.received.differs = Some("it is a bond".to_owned());
        let mut comparison = Comparison::begin("eth7", &mut sides);
        sides.received.total += 200;
        comparison.end(&mut sides, Proof::Alive);
        assert_eq!(comparison.counted()[0].missing(), 200);
        sides.seen += 150;
        comparison.end(&mut sides, Proof::Alive);
        assert_eq!(comparison.counted()[0].not_compared.as_deref(), Some("it is a bond"));
    }

    #[test]
    fn sent_packets_are_seen_as_well_and_explain_no_missing_one() {
        let mut sides = Fixed::new();
        let mut comparison = Comparison::begin("eth7", &mut sides);
        sides.pass(100);
        (sides.received.sent, sides.seen) = (20, 120);
        comparison.end(&mut sides, Proof::Alive);
        assert!(
            is_in_order(comparison.counted()) && comparison.counted()[0].not_compared.is_none()
        );
        sides.seen = 110;
        comparison.end(&mut sides, Proof::Alive);
        assert!(comparison.counted()[0].not_compared.is_some(), "sent ones may not be seen");
        sides.seen = 90;
        comparison.end(&mut sides, Proof::Alive);
        assert_eq!(comparison.counted()[0].missing(), 10);
    }
}
