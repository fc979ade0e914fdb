//! The live line of a long capture, on a terminal only.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use wirecap::{Capture, grouped};

use crate::size;

const INTERVAL: Duration = Duration::from_secs(1);

/// Shows how a capture gets on, once a second, if standard error is a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
    started: Instant,
    last: Instant,
    last_delivered: u64,
    visible: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        let visible = io::stderr().is_terminal();
        Self { shown: false, started: now, last: now, last_delivered: 0, visible }
    }

    /// Shows the line if it is time.
    pub(crate) fn tick(&mut self, capture: &Capture) {
        let now = Instant::now();
        if !self.visible || now - self.last < INTERVAL {
            return;
        }
        let total = capture.ledger().total;
        let rate = (total.delivered - self.last_delivered) as f64 / (now - self.last).as_secs_f64();
        let waiting: u64 = capture.backlogs().into_iter().map(u64::from).sum();
        eprint!(
            "\r\x1b[K{:.0} s: {} packets, {}packets/s, {} waiting, {} lost",
            (now - self.started).as_secs_f64(),
            grouped(total.delivered),
            size::human_rate(rate),
            grouped(waiting),
            grouped(total.dropped.total()),
        );
        let _ = io::stderr().flush();
        (self.shown, self.last, self.last_delivered) = (true, now, total.delivered);
    }

    /// Removes the line.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            eprint!("\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
