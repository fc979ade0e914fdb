//! Checks during forwarding: the outgoing interfaces, the progress, and whether to end.
//!
//! Interfaces are checked five times a second: down, renamed, removed, or stalled (for a second
//! none of the packets that were waiting or dropped was sent). Down or stalled is reported. If the
//! interface is removed or renamed, the command ends with an error: an interface that appears later
//! under the old name is a different one.

use std::io;
use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use wirecap::device::{Device, Presence};
use wirecap::{Capture, Ledger, PortAccount, grouped};

use super::Arguments;
use super::mirror::Mirror;
use super::way::Way;
use crate::shared::failure::Failure;
use crate::shared::screen::Screen;
use crate::size;

/// Time between two looks.
const GLANCE: Duration = Duration::from_millis(20);
/// Time between two looks at the interfaces.
const EGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Time between two updates of the display.
const SHOW_INTERVAL: Duration = Duration::from_secs(1);
/// An interface that accepts no packet for this time while packets wait for it has stalled.
const STALL: Duration = Duration::from_secs(1);

/// Watches until all workers have ended, and stops the capture when the limits are reached.
pub(crate) fn watch(
    arguments: &Arguments,
    capture: &Capture,
    ways: &[Way],
    mirror: Option<&Mirror>,
    mut egresses: Vec<Egress>,
    done: impl Fn() -> bool,
) -> Result<(), Failure> {
    let deadline = arguments.duration.map(|duration| Instant::now() + duration);
    let mut live = Live::new(ways);
    let mut looked = Instant::now();
    let mut outcome = Ok(());

    while !done() {
        thread::sleep(GLANCE);
        let enough = arguments.count.is_some_and(|count| sent(&capture.ledger()) >= count);
        if enough || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            capture.stop();
        }

        if looked.elapsed() >= EGRESS_INTERVAL {
            looked = Instant::now();
            let ledger = capture.ledger();
            let seen = egresses.iter_mut().try_for_each(|egress| egress.look(&ledger));
            if let (Err(failure), Ok(())) = (seen, &outcome) {
                outcome = Err(failure);
                capture.stop();
            }
        }

        mirror.iter().for_each(|mirror| mirror.keep_up());
        live.tick(capture, ways);
    }

    live.screen.clear();
    outcome
}

/// Packets sent on all ports.
pub(crate) fn sent(ledger: &Ledger) -> u64 {
    ledger.ports.iter().map(|port| port.account.sent).sum()
}

/// An outgoing interface.
#[derive(Debug)]
pub(crate) struct Egress {
    device: Device,
    presence: Presence,
    stall: StallWatch,
}

impl Egress {
    pub(crate) fn find(name: &str) -> Result<Self, Failure> {
        let device = Device::find(name)?;
        Ok(Self { device, presence: Presence::Up, stall: StallWatch::default() })
    }

    /// Reports changes. A removed interface is an error: a later one of the same name is a
    /// different one.
    fn look(&mut self, ledger: &Ledger) -> Result<(), Failure> {
        let name = &self.device.name;
        let presence = self.device.presence()?;
        match (&self.presence, &presence) {
            (_, Presence::Gone) => {
                let message = format!("{name} was removed; start forward again");
                return Err(Failure::Failed(message.into()));
            }
            (_, Presence::Renamed(new)) => {
                let message = format!("{name} was renamed to {new}: start again with that name");
                return Err(Failure::Failed(message.into()));
            }
            (Presence::Up, Presence::Down) => {
                eprintln!("warning: {name} is down: packets for it are dropped and counted");
            }
            (Presence::Down, Presence::Up) => eprintln!("{name} is up again"),
            _ => {}
        }

        self.presence = presence;

        if let Some(port) = ledger.ports.iter().find(|port| port.name == *name) {
            match self.stall.look(&port.account, Instant::now()) {
                Some(Stall::Begins { waiting, dropped }) => eprintln!(
                    "warning: {name} does not send; {} packets wait, {} were dropped",
                    grouped(waiting),
                    grouped(dropped)
                ),
                Some(Stall::Ends) => eprintln!("{name} sends again"),
                None => {}
            }
        }

        Ok(())
    }
}

/// Detects that a port is up but sends nothing.
#[derive(Debug, Default)]
struct StallWatch {
    /// The time since which it has sent none of its packets, and its account at that time.
    still: Option<Still>,
    /// Packets that it had no room for, at the last look.
    no_room: u64,
    stalled: bool,
}

#[derive(Debug, Clone, Copy)]
struct Still {
    since: Instant,
    sent: u64,
    no_room: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Stall {
    /// The number of waiting packets, and of dropped ones since the port last sent.
    Begins {
        waiting: u64,
        dropped: u64,
    },
    Ends,
}

impl StallWatch {
    /// The change since the last look.
    fn look(&mut self, account: &PortAccount, now: Instant) -> Option<Stall> {
        let sent = account.sent;
        let no_room = account.dropped.ring_full + account.dropped.refused;
        let before = mem::replace(&mut self.no_room, no_room);
        let tried = account.waiting > 0 || no_room > before;
        let goes_on = self.still.is_some_and(|still| still.sent == sent);
        if !goes_on {
            self.still = tried.then_some(Still { since: now, sent, no_room: before });
        }

        let was_stalled = self.stalled;
        let is_late = self.still.is_some_and(|still| now - still.since >= STALL);
        self.stalled = is_late && (tried || was_stalled);

        match (was_stalled, self.still) {
            (false, Some(still)) if self.stalled => {
                Some(Stall::Begins { waiting: account.waiting, dropped: no_room - still.no_room })
            }
            (true, _) if !self.stalled => Some(Stall::Ends),
            _ => None,
        }
    }
}

/// A table on a terminal, with a row for each direction. Without a terminal nothing is shown.
struct Live {
    screen: Screen<io::Stderr>,
    shown: Instant,
    /// Packets and bytes sent on each way.
    last: Vec<(u64, u64)>,
}

impl Live {
    fn new(ways: &[Way]) -> Self {
        Self {
            screen: Screen::on(io::stderr()),
            shown: Instant::now(),
            last: vec![(0, 0); ways.len()],
        }
    }

    fn tick(&mut self, capture: &Capture, ways: &[Way]) {
        let age = self.shown.elapsed();
        if age < SHOW_INTERVAL || !self.screen.is_terminal() {
            return;
        }

        let ledger = capture.ledger();
        let mut lines = vec![format!(
            "{:<24} {:>14} {:>10} {:>10} {:>8} {:>8}",
            "", "sent", "packets/s", "bit/s", "waiting", "lost"
        )];

        for (index, (way, last)) in ways.iter().zip(&mut self.last).enumerate() {
            let Some(port) = ledger.ports.iter().find(|port| port.name == way.to) else { continue };
            let account = &port.account;
            let per_second =
                |now: u64, then: u64| now.saturating_sub(then) as f64 / age.as_secs_f64();
            let lost =
                lost_before(capture, &ledger, index) + account.dropped.total() + way.no_room();
            lines.push(format!(
                "{:<24} {:>14} {:>10} {:>10} {:>8} {:>8}",
                format!("{} to {}", way.from, way.to),
                grouped(account.sent),
                size::human_rate(per_second(account.sent, last.0)),
                size::human_rate(per_second(account.bytes, last.1) * 8.0),
                grouped(account.waiting),
                grouped(lost),
            ));

            *last = (account.sent, account.bytes);
        }

        // A closed terminal does not stop forwarding.
        let _ = self.screen.redraw(&lines);
        self.shown = Instant::now();
    }
}

/// Packets of an interface that no worker got.
fn lost_before(capture: &Capture, ledger: &Ledger, interface: usize) -> u64 {
    let before: usize =
        capture.interfaces()[..interface].iter().map(|interface| interface.rings).sum();
    let own = ledger.rings.iter().skip(before).take(capture.interfaces()[interface].rings);
    own.map(|ring| ring.account.dropped.total()).sum::<u64>()
        + ledger.device_drops[interface].unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(sent: u64, waiting: u64, refused: u64) -> PortAccount {
        let mut account = PortAccount { sent, waiting, ..PortAccount::default() };
        account.dropped.refused = refused;
        account
    }

    /// The reports of consecutive looks, two within the time after which a port has stalled.
    fn said(looks: &[PortAccount]) -> Vec<Option<Stall>> {
        let mut watch = StallWatch::default();
        let start = Instant::now();
        let times = (0..).map(|look| start + look * STALL / 2);
        looks.iter().zip(times).map(|(account, now)| watch.look(account, now)).collect()
    }

    #[test]
    fn a_port_that_sends_no_waiting_packets_is_stalled() {
        let looks = [(5, 0), (5, 7), (5, 8), (5, 9), (5, 9), (6, 8), (14, 0)];
        let begins = Stall::Begins { waiting: 9, dropped: 0 };
        let expected = [None, None, None, Some(begins), None, Some(Stall::Ends), None];
        assert_eq!(said(&looks.map(|(sent, waiting)| account(sent, waiting, 0))), expected);
    }

    #[test]
    fn a_port_that_rejects_all_packets_has_stalled_even_if_none_wait() {
        let looks = [(5, 0), (5, 1), (5, 1), (5, 4), (5, 4), (5, 5), (6, 5)];
        let begins = Stall::Begins { waiting: 0, dropped: 4 };
        let expected = [None, None, None, Some(begins), None, None, Some(Stall::Ends)];
        assert_eq!(said(&looks.map(|(sent, refused)| account(sent, 0, refused))), expected);
    }

    #[test]
    fn a_port_has_not_stalled_while_it_accepts_packets_or_none_wait() {
        let looks = [(0, 9, 0), (1, 9, 5), (2, 9, 9), (2, 0, 9), (2, 0, 9), (2, 0, 9)];
        let accounts = looks.map(|(sent, waiting, refused)| account(sent, waiting, refused));
        assert!(said(&accounts).iter().all(Option::is_none));
    }
}
