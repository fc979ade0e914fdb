//! Both sides of the comparison on a live interface: the kernel's counters and the capture's rings.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::comparison::{BothSides, Comparison, Proof, Reset, Seen};
use crate::capture::target::Way;
use crate::capture::{Attached, Attachment, Shared};
use crate::device::ReceiveMode;
use crate::device::received::{Received, Tap};
use crate::packet::Direction;

/// How often both sides are compared while the capture runs. A driver may query its firmware for
/// its counters.
const COMPARE_PERIOD: Duration = Duration::from_secs(5);

/// A captured interface and its rings.
struct Sides<'a> {
    attached: &'a Attached,
    shared: &'a Shared,
}

impl BothSides for Sides<'_> {
    fn received(&mut self) -> Option<Received> {
        let received = self.attached.target.device.received_for(self.attached.tap()).ok()?;
        let sees_sent =
            matches!(self.attached.target.way, Way::Packet { direction: Direction::InOut, .. });
        Some(Received { sent: if sees_sent { received.sent } else { 0 }, ..received })
    }

    fn seen(&mut self) -> Result<Seen, String> {
        if let Some(reason) = self.attached.is_partial() {
            return Err(reason.to_owned());
        }

        let is_by_queue = self.attached.tap() == Tap::Driver;
        let mut seen = Seen::new();

        for (_, ring) in self.shared.rings_of(self.attached.index) {
            let (least, most) =
                ring.received().ok_or("the kernel does not count what the filter rejects")?;
            let queue = is_by_queue.then_some(ring.identity().name.queue);

            // A part of the queues can be compared by queue only.
            let whole = self.attached.target.whole.then_some(None);
            for place in queue.map(Some).into_iter().chain(whole) {
                let sum = seen.entry(place).or_default();
                *sum = (sum.0 + least, sum.1 + most);
            }
        }

        Ok(seen)
    }

    fn without_ring(&mut self) -> u64 {
        self.attached.missed()
    }

    fn last_packet(&mut self) -> Option<SystemTime> {
        self.attached.watched.last_packet
    }

    fn silent_queue_since(&mut self) -> Option<SystemTime> {
        self.attached.watched.queues.silent_since()
    }

    fn pause(&mut self, time: Duration) {
        thread::sleep(time);
    }

    fn now(&mut self) -> SystemTime {
        SystemTime::now()
    }
}

impl Attached {
    /// Where its packets come from.
    fn tap(&self) -> Tap {
        match &self.attachment {
            Some(Attachment::Xdp(attachment))
                if attachment.receive_mode() == ReceiveMode::Generic =>
            {
                Tap::Generic
            }
            Some(Attachment::Xdp(_)) => Tap::Driver,
            _ => Tap::Socket,
        }
    }

    /// Why the rings do not get all packets of what they receive from, if so.
    fn is_partial(&self) -> Option<&'static str> {
        match (&self.attachment, &self.target.way) {
            (None, _) => Some("it is not attached"),
            (Some(Attachment::Xdp(attachment)), _) if !attachment.has_all() => {
                Some("a queue was closed")
            }
            (_, Way::Packet { direction: Direction::Out, .. }) => {
                Some("only sent packets are captured")
            }
            (Some(Attachment::Packet(_)), _) if !self.target.whole => {
                Some("only some queues are captured")
            }
            _ => None,
        }
    }

    /// Whether the device delivers wrong packets while it has no cells: igb repeats and mixes
    /// packets then.
    pub(in crate::capture) fn delivers_wrong_if_starved(&self) -> bool {
        self.target.device.driver.as_deref() == Some("igb")
    }

    /// Begins to compare, when packets reach the rings.
    pub(in crate::capture) fn begin_comparison(&mut self, shared: &Shared) {
        self.compared = Instant::now();
        if self.all.is_some() {
            return self
                .comparison
                .give_up(&self.watched.name, "all interfaces share their sockets");
        }
        self.watched.shows_no_life = self.shows_no_life();
        self.comparison =
            Comparison::begin(&self.watched.name, &mut Sides { attached: self, shared });
    }

    /// Compares while the capture runs.
    pub(super) fn compare(&mut self, shared: &Shared) {
        if self.watched.unseen_now().is_some() || self.compared.elapsed() < COMPARE_PERIOD {
            return;
        }
        self.compared = Instant::now();
        self.compare_by(shared, Comparison::look);
    }

    /// Compares for the last time, before the rings receive nothing any more.
    pub(in crate::capture) fn compare_at_end(&mut self, shared: &Shared) {
        let proof = self.proof_of_life();
        self.compare_by(shared, |comparison, sides| comparison.end(sides, proof));
    }

    fn compare_by(
        &mut self,
        shared: &Shared,
        compare: impl FnOnce(&mut Comparison, &mut dyn BothSides) -> Option<Reset>,
    ) {
        let mut comparison = std::mem::take(&mut self.comparison);
        let reset = compare(&mut comparison, &mut Sides { attached: self, shared });
        self.comparison = comparison;
        if let Some(reset) = reset {
            self.watched.lose_count(reset, SystemTime::now());
        }
    }

    /// Whether only packets show that its device is alive: it does not answer, nor report that it
    /// was reset.
    fn shows_no_life(&self) -> bool {
        let liveness = self.watched.liveness.as_ref();
        liveness.is_some_and(|liveness| !liveness.reports_resets()) && !self.can_ask()
    }

    /// Whether its device is known to live although no packets arrive.
    fn proof_of_life(&self) -> Proof {
        // An answering device that was silent is in a gap. Without a carrier no packets are
        // expected.
        let expects_packets = self.watched.carrier_losses.is_some();
        match self.watched.unseen_now() {
            Some(_) => Proof::Gap,
            None if self.shows_no_life() && expects_packets => Proof::Packets,
            None => Proof::Alive,
        }
    }
}
