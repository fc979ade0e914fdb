//! Whether a device that delivers no packets is alive: on the rings an idle link and a dead device
//! look the same.
//!
//! A device that was reset without its driver (a function-level reset, a bus error) keeps its
//! carrier and stays silent. Three things distinguish it from an idle one. A virtio device reports
//! that it was reset. Some devices send an interrupt whenever their driver is woken, so they can be
//! probed. And packets that a device or its driver counts must reach the rings.
//!
//! - A virtio device whose status lacks DRIVER_OK was reset. Only the driver can start it again:
//!   unbind it and bind it.
//! - The drivers igb, igc, ixgbe, i40e and ice make the device send an interrupt when an AF_XDP
//!   socket in zero-copy mode is polled. While no packets arrive, the watcher polls the sockets and
//!   counts the device's interrupts. A device that has answered before is silent if it does not
//!   answer for a second; one that was busy at every check, and had no opportunity to answer, after
//!   five seconds. The gap begins at its last answer or packet. When an administrator sets the
//!   interface down and up, these drivers restart the device; the capture itself does not do this.
//! - A whole interface captured with `xdp` is also silent if the driver or the device counts
//!   packets for two seconds while none reaches the program or a ring. On a receive mode that
//!   copies, the watcher then detaches the program and attaches it again, once per gap. vmxnet3
//!   needs this: after the interface was set down and up, its driver (Linux 7.3) counts no XDP
//!   packets, although the program is attached.
//! - After a gap the same counters are read at each check. The gap ends with the first packet, or
//!   when the device has counted none for a second. It does not end merely because the interface is
//!   up: vmxnet3 may have its carrier for a while before it counts and delivers.
//! - When a capture ends, the watcher checks once more and waits up to a second for the answer. If
//!   the device has counted 32 packets since the last packet was captured, beyond those that it may
//!   have counted late, and no packet arrives in that second, the time since then is a gap, too.
//!
//! After an interface was returned to the host no socket wakes its driver, so the device owes no
//! answer.

use std::time::{Duration, Instant};

/// How long a device may owe an answer: on an idle machine it takes microseconds.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same for a device that was never seen to answer, because packets arrived at every check.
const UNTRIED_PATIENCE: Duration = Duration::from_secs(5);
/// So many packets that were counted and came to no ring are no accident: a driver counts some that
/// no program sees.
const MISSING: u64 = 32;

/// The observations of a device at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Signs {
    /// Packets that reached its rings so far, before the filter.
    pub(super) packets: u64,
    /// Interrupts that it sent so far, if they are counted and an answer to being asked.
    pub(super) interrupts: Option<u64>,
    /// It says that it was reset.
    pub(super) was_reset: bool,
}

/// The state of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// Nothing speaks against it.
    Alive,
    /// It has not answered yet.
    Doubtful,
    /// It gives nothing, for so long at least.
    Silent(Duration, Silence),
}

/// How it is known that a device gives nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silence {
    /// It was reset, and its driver does not know.
    Reset,
    /// It sends no interrupts any more.
    NoAnswer,
    /// Packets are counted that reach no ring.
    Bypass,
}

/// The observations of a device so far.
#[derive(Debug, Clone, Default)]
pub(super) struct LivenessWatch {
    last: Option<(Signs, Instant)>,
    /// When it was last known to be alive.
    alive: Option<Instant>,
    /// Since when it owes an answer.
    asked: Option<Instant>,
    /// It has answered before.
    has_answered: bool,
    /// Packets came from it.
    has_delivered: bool,
    counted: Option<(u64, u64, Instant)>,
    bypassed: Option<Bypass>,
    last_delivery: Option<Delivery>,
    /// The counts since the device may have come back.
    resumed: Option<Resumed>,
}

/// Packets are counted, and none come.
#[derive(Debug, Clone, Copy)]
struct Bypass {
    since: Instant,
    is_certain: bool,
}

/// The counts at the last comparison that found new packets on the rings.
#[derive(Debug, Clone, Copy)]
struct Delivery {
    received: u64,
    packets: u64,
    /// How many packets were new: so many may be counted late, by a device that updates its
    /// counters at intervals.
    new: u64,
    /// The comparison before.
    since: Instant,
}

/// A device that may have come back: its first and last counts, and the packets on the rings.
#[derive(Debug, Clone, Copy)]
struct Resumed {
    first: u64,
    last: u64,
    packets: u64,
    since: Instant,
    /// When the last count changed.
    counted: Instant,
}

impl LivenessWatch {
    /// What `signs`, found at `now`, say.
    pub(super) fn feel(&mut self, signs: Signs, now: Instant) -> Life {
        let (last, then) = self.last.replace((signs, now)).unwrap_or((signs, now));
        if signs.was_reset {
            return self.silent(now, Silence::Reset);
        }

        let has_packets = signs.packets != last.packets;
        let has_answer =
            signs.interrupts.zip(last.interrupts).is_some_and(|(now, before)| now != before);
        if has_packets || has_answer {
            self.has_delivered |= has_packets;
            self.has_answered |= has_answer && !has_packets && self.asked.is_some();
            self.asked = None;
            // Packets since the last look arrived after it; more is not known.
            self.alive = Some(then);
        }

        let patience = if self.has_answered { PATIENCE } else { UNTRIED_PATIENCE };

        match self.asked.filter(|_| self.is_to_answer(signs.interrupts)) {
            Some(asked) if now.duration_since(asked) >= patience => {
                self.silent(now, Silence::NoAnswer)
            }
            Some(_) => Life::Doubtful,
            None => Life::Alive,
        }
    }

    /// Whether a device with this number of interrupts must answer when it is probed: it has
    /// answered before, or its packets caused interrupts. A device without either may have no
    /// counted interrupts.
    pub(super) fn is_to_answer(&self, interrupts: Option<u64>) -> bool {
        self.has_answered || (self.has_delivered && interrupts > Some(0))
    }

    /// The device was asked at `now`.
    pub(super) fn ask(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
    }

    /// The device has no carrier: missing answers no longer count.
    pub(super) fn forgive(&mut self) {
        self.asked = None;
        self.counted = None;
        self.bypassed = None;
        self.last_delivery = None;
        self.resumed = None;
    }

    /// The device or its driver has counted `received` packets so far, of which `packets` came to
    /// the rings.
    pub(super) fn compare(&mut self, received: u64, packets: u64, now: Instant) -> Life {
        let before = self.counted.replace((received, packets, now));
        let (received_before, packets_before, then) = before.unwrap_or((received, packets, now));
        if before.is_none() || packets != packets_before {
            let new = packets.saturating_sub(packets_before);
            self.last_delivery = Some(Delivery { received, packets, new, since: then });
        }

        let is_certain = self.bypassed.is_some_and(|bypass| bypass.is_certain);
        if packets != packets_before || (received < received_before + MISSING && !is_certain) {
            self.bypassed = None;
            return Life::Alive;
        }

        // One look may have come between the one count and the other.
        let is_certain = self.bypassed.is_some();
        let since = self.bypassed.map_or(then, |bypass| bypass.since);
        self.bypassed = Some(Bypass { since, is_certain });

        self.bypass(packets, now)
    }

    /// What the last comparison says at `now`, when `packets` have come.
    pub(super) fn bypass(&self, packets: u64, now: Instant) -> Life {
        let has_come = self.counted.is_some_and(|(_, before, _)| before != packets);
        match self.bypassed.filter(|_| !has_come) {
            None => Life::Alive,
            Some(Bypass { is_certain: false, .. }) => Life::Doubtful,
            Some(Bypass { since, .. }) => Life::Silent(now.duration_since(since), Silence::Bypass),
        }
    }

    /// For how long packets that the device counted have not come, if a capture ends at `now` and
    /// none comes any more.
    pub(super) fn missing(&self, received: u64, packets: u64, now: Instant) -> Option<Duration> {
        let last = self.last_delivery.filter(|last| packets == last.packets)?;
        (received >= last.received + last.new + MISSING).then(|| now.duration_since(last.since))
    }

    /// As [`compare`](Self::compare), of a device that has its carrier again: it is back with the
    /// first packet, or when it has counted none for a while.
    pub(super) fn resume(&mut self, received: u64, packets: u64, now: Instant) -> Life {
        let begin = Resumed { first: received, last: received, packets, since: now, counted: now };
        let Some(before) = self.resumed.replace(begin).filter(|before| received >= before.last)
        else {
            return Life::Doubtful;
        };
        let counted = if received == before.last { before.counted } else { now };

        if packets != before.packets || now.duration_since(counted) >= PATIENCE {
            self.resumed = None;
            return self.compare(received, packets, now);
        }

        self.resumed = Some(Resumed { last: received, counted, ..before });
        if received < before.first + MISSING || now.duration_since(before.since) < PATIENCE {
            return Life::Doubtful;
        }

        self.counted = Some((received, packets, now));
        self.bypassed = Some(Bypass { since: before.since, is_certain: true });

        self.bypass(packets, now)
    }

    /// For how long it has given nothing at `now`.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        let since = self.alive.or(self.last.map(|(_, last)| last)).unwrap_or(now);
        now.duration_since(since)
    }

    fn silent(&self, now: Instant, how: Silence) -> Life {
        Life::Silent(self.silence(now), how)
    }
}

impl Silence {
    /// What to do about it.
    pub(super) fn advice(self) -> &'static str {
        match self {
            Self::Reset => {
                "the device was reset without its driver: unbind the driver from the device and bind it again"
            }
            Self::NoAnswer => {
                "the device sends no interrupts: it was reset or has failed; set the interface down and up to restart it"
            }
            Self::Bypass => "the device counts packets that do not reach the capture",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test device that is checked every 100 ms, and probed whenever it delivered no packets.
    struct Scene {
        liveness_watch: LivenessWatch,
        began: Instant,
        millis: u64,
        signs: Signs,
    }

    impl Scene {
        fn new() -> Self {
            let signs = Signs { packets: 10, interrupts: Some(5), was_reset: false };
            Self {
                liveness_watch: LivenessWatch::default(),
                began: Instant::now(),
                millis: 0,
                signs,
            }
        }

        fn look(&mut self) -> Life {
            self.millis += 100;
            let now = self.began + Duration::from_millis(self.millis);
            let life = self.liveness_watch.feel(self.signs, now);
            self.liveness_watch.ask(now);
            life
        }

        /// Checks while the device is alive: it answers, and delivers this many packets between two
        /// checks.
        fn live(&mut self, looks: u64, packets: u64) {
            for _ in 0..looks {
                self.signs.packets += packets;
                self.signs.interrupts = self.signs.interrupts.map(|interrupts| interrupts + 1);
                assert_eq!(self.look(), Life::Alive);
            }
        }
    }

    #[test]
    fn an_idle_device_that_answers_is_alive() {
        Scene::new().live(100, 0);
    }

    #[test]
    fn a_device_that_ceases_to_answer_is_silent_since_its_last_answer() {
        let mut scene = Scene::new();
        scene.live(5, 0);
        // Probed at 500 ms; the previous answer was to the probe at 400 ms.
        for _ in 0..9 {
            assert_eq!(scene.look(), Life::Doubtful);
        }
        assert_eq!(scene.look(), Life::Silent(Duration::from_millis(1100), Silence::NoAnswer));
        assert_eq!(scene.look(), Life::Silent(Duration::from_millis(1200), Silence::NoAnswer));
        scene.live(3, 0);
    }

    #[test]
    fn packets_are_as_good_as_an_answer() {
        let mut scene = Scene::new();
        scene.live(5, 0);
        for _ in 0..50 {
            scene.signs.packets += 1;
            assert_eq!(scene.look(), Life::Alive);
        }
    }

    #[test]
    fn silence_after_packets_begins_where_the_last_ones_may_have_come() {
        let mut scene = Scene::new();
        scene.live(2, 0);
        scene.live(3, 7);
        let silent = (0..11).map(|_| scene.look()).last();
        assert_eq!(silent, Some(Life::Silent(Duration::from_millis(1200), Silence::NoAnswer)));
    }

    #[test]
    fn a_device_that_never_answered_may_be_silent() {
        let mut scene = Scene::new();
        (0..50).for_each(|_| assert_eq!(scene.look(), Life::Alive));
        scene.signs.interrupts = None;
        (0..50).for_each(|_| assert_eq!(scene.look(), Life::Alive));
    }

    #[test]
    fn a_device_never_idle_before_its_silence_is_reported_later() {
        let mut scene = Scene::new();
        scene.live(10, 3);
        // Asked at 1 s; its last packets came between 900 ms and then.
        let looks: Vec<Life> = (0..50).map(|_| scene.look()).collect();
        let silent = Life::Silent(Duration::from_millis(5100), Silence::NoAnswer);
        assert!(looks[..49].iter().all(|life| *life == Life::Doubtful), "{looks:?}");
        assert_eq!(looks[49], silent);
        scene.live(3, 0);
    }

    #[test]
    fn packets_without_an_interrupt_show_that_the_device_works() {
        for interrupts in [None, Some(0)] {
            let mut scene = Scene::new();
            scene.signs.interrupts = interrupts;
            for _ in 0..10 {
                scene.signs.packets += 3;
                assert_eq!(scene.look(), Life::Alive);
            }
            (0..100).for_each(|_| assert_eq!(scene.look(), Life::Alive));
        }
    }

    #[test]
    fn missing_answers_are_ignored_while_the_device_starts() {
        let mut scene = Scene::new();
        scene.live(5, 0);
        for _ in 0..50 {
            scene.liveness_watch.forgive();
            assert_ne!(scene.look(), Life::Silent(Duration::from_millis(1100), Silence::NoAnswer));
        }
    }

    #[test]
    fn a_device_that_reports_a_reset_is_silent_at_once() {
        let mut scene = Scene::new();
        scene.live(2, 4);
        scene.signs.was_reset = true;
        let silent = scene.look();
        assert_eq!(silent, Life::Silent(Duration::from_millis(200), Silence::Reset));
        scene.signs.was_reset = false;
        scene.live(1, 0);
    }

    #[test]
    fn counted_packets_that_reach_no_ring_are_reported_at_the_second_look() {
        let mut liveness_watch = LivenessWatch::default();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(liveness_watch.compare(100, 100, at(0)), Life::Alive);
        assert_eq!(liveness_watch.compare(200, 180, at(1)), Life::Alive, "some came");
        assert_eq!(liveness_watch.compare(210, 180, at(2)), Life::Alive, "few were counted");
        assert_eq!(liveness_watch.compare(300, 180, at(3)), Life::Doubtful);
        assert_eq!(
            liveness_watch.compare(400, 180, at(4)),
            Life::Silent(Duration::from_secs(2), Silence::Bypass)
        );
        assert_eq!(liveness_watch.compare(500, 181, at(5)), Life::Alive);
    }

    #[test]
    fn packets_that_pass_the_rings_by_do_so_until_one_comes() {
        let mut liveness_watch = LivenessWatch::default();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        liveness_watch.compare(100, 100, at(0));
        liveness_watch.compare(200, 100, at(1));
        assert_eq!(
            liveness_watch.bypass(100, at(1)),
            Life::Doubtful,
            "between two comparisons, too"
        );
        liveness_watch.compare(300, 100, at(2));

        let silent = |seconds| Life::Silent(Duration::from_secs(seconds), Silence::Bypass);
        assert_eq!(liveness_watch.bypass(100, at(2)), silent(2));
        assert_eq!(
            liveness_watch.compare(301, 100, at(3)),
            silent(3),
            "the sender has become slow"
        );
        assert_eq!(liveness_watch.bypass(101, at(3)), Life::Alive);
        assert_eq!(liveness_watch.compare(302, 101, at(4)), Life::Alive);
        assert_eq!(liveness_watch.bypass(101, at(4)), Life::Alive);
    }

    #[test]
    fn a_device_is_back_when_it_delivers_the_packets_it_counts() {
        let mut liveness_watch = LivenessWatch::default();
        let began = Instant::now();
        let at = |millis| began + Duration::from_millis(millis);
        assert_eq!(liveness_watch.resume(100, 50, at(0)), Life::Doubtful);
        assert_eq!(liveness_watch.resume(120, 50, at(100)), Life::Doubtful);
        assert_eq!(liveness_watch.resume(140, 51, at(200)), Life::Alive, "a packet has come");
        liveness_watch.forgive();
        assert_eq!(liveness_watch.resume(200, 51, at(1000)), Life::Doubtful);
        assert_eq!(
            liveness_watch.resume(200, 51, at(1100)),
            Life::Doubtful,
            "it may not receive yet"
        );
        assert_eq!(liveness_watch.resume(200, 51, at(2000)), Life::Alive, "nothing is sent to it");
        assert_eq!(liveness_watch.missing(231, 51, at(2500)), None, "few were counted since");
        assert_eq!(liveness_watch.missing(232, 51, at(2500)), Some(Duration::from_millis(500)));
    }

    #[test]
    fn a_device_that_begins_to_count_is_not_back_before_it_delivers() {
        let mut liveness_watch = LivenessWatch::default();
        let began = Instant::now();
        let at = |millis| began + Duration::from_millis(millis);
        for look in 0..9 {
            assert_eq!(liveness_watch.resume(200, 51, at(100 * look)), Life::Doubtful);
        }
        assert_eq!(liveness_watch.resume(210, 51, at(900)), Life::Doubtful);
        assert_eq!(liveness_watch.resume(210, 51, at(1800)), Life::Doubtful);
        assert_eq!(liveness_watch.resume(211, 52, at(1850)), Life::Alive);
    }

    #[test]
    fn counted_packets_that_have_not_come_are_missing_when_the_capture_ends() {
        let mut liveness_watch = LivenessWatch::default();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(liveness_watch.missing(900, 0, at(0)), None, "nothing was compared");
        liveness_watch.compare(100, 50, at(0));
        liveness_watch.compare(150, 100, at(1));
        assert_eq!(liveness_watch.missing(231, 100, at(2)), None, "50 may have been counted late");
        assert_eq!(liveness_watch.missing(232, 100, at(2)), Some(Duration::from_secs(2)));
        assert_eq!(liveness_watch.missing(232, 101, at(2)), None, "one has come");
        liveness_watch.compare(232, 100, at(2));
        assert_eq!(
            liveness_watch.missing(232, 100, at(3)),
            Some(Duration::from_secs(3)),
            "although it was doubtful before"
        );
    }

    #[test]
    fn a_device_with_carrier_that_counts_but_delivers_no_packets_is_silent() {
        let mut liveness_watch = LivenessWatch::default();
        let began = Instant::now();
        let at = |millis| began + Duration::from_millis(millis);

        // Some drivers count from 0 after they were started.
        assert_eq!(liveness_watch.resume(500, 50, at(0)), Life::Doubtful);
        assert_eq!(liveness_watch.resume(3, 50, at(100)), Life::Doubtful);

        for look in 1..10 {
            assert_eq!(
                liveness_watch.resume(3 + 20 * look, 50, at(100 + 100 * look)),
                Life::Doubtful
            );
        }

        let silent = Life::Silent(Duration::from_millis(1000), Silence::Bypass);
        assert_eq!(liveness_watch.resume(300, 50, at(1100)), silent);
        assert_eq!(liveness_watch.bypass(50, at(1100)), silent);
    }
}
