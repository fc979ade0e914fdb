//! What is looked at while packets are forwarded: the interfaces that they leave by, how it gets on, and whether it is
//! time to end.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use wirecap::device::{Device, Presence};
use wirecap::{Capture, Ledger, grouped};

use super::Arguments;
use super::mirror::Mirror;
use super::way::Way;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::size;

/// Time between two looks.
const GLANCE: Duration = Duration::from_millis(20);
/// Time between two looks at the interfaces.
const EGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Time between two updates of what is shown.
const SHOW_INTERVAL: Duration = Duration::from_secs(1);
/// An interface that takes no packet for so long while some wait has stalled.
const STALL: Duration = Duration::from_secs(1);

/// Watches until all workers are done, and stops the capture when it is time.
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

/// An interface that packets leave by.
#[derive(Debug)]
pub(crate) struct Egress {
    device: Device,
    presence: Presence,
    /// Since when it has taken no packet while some waited, and how many it had taken.
    still: Option<(Instant, u64)>,
    stalled: bool,
}

impl Egress {
    pub(crate) fn find(name: &str) -> Result<Self, Failure> {
        let device = Device::find(name)?;
        Ok(Self { device, presence: Presence::Up, still: None, stalled: false })
    }

    /// Says what has changed. One that is gone is a failure: another of the same name would be another one.
    fn look(&mut self, ledger: &Ledger) -> Result<(), Failure> {
        let name = &self.device.name;
        let presence = self.device.presence()?;
        match (&self.presence, &presence) {
            (_, Presence::Gone) => {
                let message = format!("{name} was removed: nothing can be sent on it any more; start again");
                return Err(Failure::Failed(message.into()));
            }
            (_, Presence::Renamed(new)) => {
                let message = format!("{name} was renamed to {new}: start again with that name");
                return Err(Failure::Failed(message.into()));
            }
            (Presence::Up, Presence::Down) => {
                eprintln!("warning: {name} is down: what should leave by it is dropped and counted");
            }
            (Presence::Down, Presence::Up) => eprintln!("{name} is up again"),
            _ => {}
        }
        self.presence = presence;
        self.look_for_stall(ledger);
        Ok(())
    }

    fn look_for_stall(&mut self, ledger: &Ledger) {
        let name = &self.device.name;
        let Some(port) = ledger.ports.iter().find(|port| port.name == *name) else { return };
        let (sent, waiting) = (port.account.sent, port.account.waiting);
        self.still = match self.still {
            _ if waiting == 0 => None,
            Some((since, before)) if before == sent => Some((since, before)),
            _ => Some((Instant::now(), sent)),
        };
        let stalled = self.still.is_some_and(|(since, _)| since.elapsed() >= STALL);
        if stalled && !self.stalled {
            eprintln!("warning: {name} has taken no packet for a while; {} wait", grouped(waiting));
        }
        if !stalled && self.stalled {
            eprintln!("{name} takes packets again");
        }
        self.stalled = stalled;
    }
}

/// A table on the terminal, a row for each way. Elsewhere nothing is shown.
struct Live {
    screen: Screen<io::Stderr>,
    shown: Instant,
    /// Packets and bytes sent on each way.
    last: Vec<(u64, u64)>,
}

impl Live {
    fn new(ways: &[Way]) -> Self {
        Self { screen: Screen::on(io::stderr()), shown: Instant::now(), last: vec![(0, 0); ways.len()] }
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
            let per_second = |now: u64, then: u64| now.saturating_sub(then) as f64 / age.as_secs_f64();
            let lost = lost_before(capture, &ledger, index) + account.dropped.total() + way.no_room();
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
        // A terminal that went away is no reason to stop forwarding.
        let _ = self.screen.redraw(&lines);
        self.shown = Instant::now();
    }
}

/// Packets of an interface that no worker got.
fn lost_before(capture: &Capture, ledger: &Ledger, interface: usize) -> u64 {
    let before: usize = capture.interfaces()[..interface].iter().map(|interface| interface.rings).sum();
    let own = ledger.rings.iter().skip(before).take(capture.interfaces()[interface].rings);
    own.map(|ring| ring.account.dropped.total()).sum::<u64>() + ledger.device_drops[interface].unwrap_or(0)
}
