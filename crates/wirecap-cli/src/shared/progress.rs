//! The live line of a long command, on a terminal only.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use wirecap::{Capture, grouped};

use crate::shared::events;
use crate::size;

const INTERVAL: Duration = Duration::from_secs(1);

/// A line on standard error that replaces itself once a second, if that is a terminal. A stopped
/// terminal delays only the line.
#[derive(Debug)]
pub(crate) struct LiveLine {
    visible: bool,
    shown: bool,
    last: Instant,
}

impl LiveLine {
    pub(crate) fn new() -> Self {
        Self { visible: io::stderr().is_terminal(), shown: false, last: Instant::now() }
    }

    /// How long ago the line was shown, if it is time to show it again.
    pub(crate) fn is_due(&self) -> Option<Duration> {
        let age = self.last.elapsed();
        (self.visible && age >= INTERVAL).then_some(age)
    }

    /// When to show the line again; `None` if it is not visible.
    fn due(&self) -> Option<Instant> {
        self.visible.then(|| self.last + INTERVAL)
    }

    /// Replaces the line.
    pub(crate) fn show(&mut self, text: String) {
        events::replace(text);
        (self.shown, self.last) = (true, Instant::now());
    }

    /// Removes the line.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            events::erase();
        }
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Work that takes less time than this is not mentioned.
const SLOW: Duration = Duration::from_secs(1);
/// In a log, work is mentioned once, and only if it takes this long.
const SLOW_IN_LOG: Duration = Duration::from_secs(5);

/// Runs `work`, and shows progress if it takes long: on a terminal by a line that counts the
/// seconds, otherwise by a line in the log.
pub(crate) fn while_waiting<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let is_done = AtomicBool::new(false);

    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut line = LiveLine::new();
            let mut is_said = false;

            while !is_done.load(Ordering::Acquire) {
                thread::park_timeout(SLOW);
                let waited = started.elapsed();
                if is_done.load(Ordering::Acquire) || waited < SLOW {
                    continue;
                }

                if line.visible {
                    line.show(format!("{what}: {:.0} s", waited.as_secs_f64()));
                } else if waited >= SLOW_IN_LOG && !std::mem::replace(&mut is_said, true) {
                    eprintln!("{what} is taking longer than {} s", SLOW_IN_LOG.as_secs());
                }
            }
        });
        let outcome = work();
        is_done.store(true, Ordering::Release);
        watcher.thread().unpark();

        outcome
    })
}

/// Shows how a count of packets grows.
#[derive(Debug)]
pub(crate) struct Progress {
    line: LiveLine,
    started: Instant,
    last_packets: u64,
}

impl Progress {
    /// One that is not shown if `is_quiet`.
    pub(crate) fn new(is_quiet: bool) -> Self {
        let mut line = LiveLine::new();
        line.visible &= !is_quiet;
        Self { line, started: Instant::now(), last_packets: 0 }
    }

    /// When to show the progress again; `None` if it is not shown.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.line.due()
    }

    /// Shows the progress of a capture if it is time.
    pub(crate) fn tick(&mut self, capture: &Capture) {
        let counts = || {
            // Not the ledger, which asks the devices: as long as the kernel adds or removes other
            // interfaces they do not answer, and this thread records.
            let mut delivered = 0;
            let mut lost = 0;

            for ring in 0..capture.ring_count() {
                let tally = capture.tally(ring);
                delivered += tally.delivered;
                lost += tally.dropped;
            }

            let waiting: u64 = capture.backlogs().into_iter().map(u64::from).sum();
            (delivered, format!(", {} waiting, {} lost", grouped(waiting), grouped(lost)))
        };
        self.show("packets", counts);
    }

    /// Shows how many frames were sent if it is time.
    pub(crate) fn tick_sent(&mut self, frames: u64) {
        self.show("frames", || (frames, String::new()));
    }

    fn show(&mut self, unit: &str, counts: impl FnOnce() -> (u64, String)) {
        let Some(age) = self.line.is_due() else { return };
        let (packets, rest) = counts();
        let rate = (packets - self.last_packets) as f64 / age.as_secs_f64();
        self.line.show(format!(
            "{:.0} s: {} {unit}, {}{unit}/s{rest}",
            self.started.elapsed().as_secs_f64(),
            grouped(packets),
            size::human_rate(rate),
        ));
        self.last_packets = packets;
    }
}
