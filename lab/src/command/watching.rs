//! Shows the progress of experiments, and stops them at a signal.

use std::sync::{Mutex, PoisonError};

use wirecap_lab::experiment::Watch;
use wirecap_lab::runner::Audience;

use super::failure::Failure;
use super::signals::Interruption;
use super::terminal::LiveLine;

/// A live line on a terminal, and a line for each experiment anywhere.
#[derive(Debug)]
pub(crate) struct Watching {
    interruption: Interruption,
    line: Mutex<LiveLine>,
}

impl Watching {
    /// Watches from now on.
    pub(crate) fn begin() -> Result<Self, Failure> {
        // A run of a full report may last a minute.
        let answer = || {
            eprintln!("\nwirecap-lab: stopping after this run; press Ctrl-C again to stop at once");
        };
        Ok(Self {
            interruption: Interruption::watch_and(answer)?,
            line: Mutex::new(LiveLine::new()),
        })
    }

    fn with_line(&self, act: impl FnOnce(&mut LiveLine)) {
        // A line that was being written when a thread panicked is still a line.
        act(&mut self.line.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Watch for Watching {
    fn progress(&self, share: f64, what: &str) {
        self.with_line(|line| {
            if line.is_due() {
                line.show(&format!("{:3.0} % {what}", 100.0 * share));
            }
        });
    }

    fn is_stopped(&self) -> bool {
        self.interruption.came()
    }
}

impl Audience for Watching {
    fn begins(&self, place: usize, count: usize, title: &str) {
        eprintln!("{place}/{count} {title}");
    }

    fn ended(&self, how: &str) {
        self.with_line(LiveLine::clear);
        eprintln!("     {how}");
    }
}
