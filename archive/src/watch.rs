//! The output for the user while a command runs: progress on a terminal, and each segment that
//! could not be read.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use wirecap_index::Note;
use wirecap_units::error::causes;
use wirecap_units::size::human_bytes;

use crate::failure::Failure;

/// Shared by all threads of a command.
#[derive(Debug)]
pub(crate) struct Watch {
    bar: ProgressBar,
    /// Segments that could not be read, or not completely, and why.
    faulty: Mutex<BTreeMap<String, String>>,
    /// Whether lines are printed.
    has_user: bool,
    is_stopped: AtomicBool,
}

impl Watch {
    pub(crate) fn new() -> Self {
        // Progress is written to standard error, and only if that is a terminal.
        let bar = ProgressBar::new_spinner();
        bar.set_style(
            ProgressStyle::with_template("{elapsed} {msg}").expect("the template is well-formed"),
        );
        bar.enable_steady_tick(Duration::from_secs(1));
        Self { bar, faulty: Mutex::default(), has_user: true, is_stopped: AtomicBool::new(false) }
    }

    /// For a process of a cluster, whose user is elsewhere.
    pub(crate) fn silent() -> Self {
        let bar = ProgressBar::hidden();
        Self { bar, faulty: Mutex::default(), has_user: false, is_stopped: AtomicBool::new(false) }
    }

    /// Shows how many of the segments were examined.
    pub(crate) fn examined(&self, count: usize, total: usize) {
        self.bar.set_message(format!("index: {count} of {total} segments"));
    }

    /// Shows a line of progress.
    pub(crate) fn show(&self, line: String) {
        self.bar.set_message(line);
    }

    /// Shows how many pieces were read.
    pub(crate) fn read(&self, count: u64, total: u64, bytes: u64) {
        self.bar.set_message(format!("{count} of {total} pieces, {}", human_bytes(bytes)));
    }

    /// Names a segment that cannot be read completely, only once.
    pub(crate) fn faulty(&self, segment: &str, error: &dyn Error) {
        self.faulty_because(segment, causes(error));
    }

    /// As [`faulty`](Self::faulty), with the reason as text.
    pub(crate) fn faulty_because(&self, segment: &str, reason: String) {
        let mut faulty = self.faulty.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Vacant(entry) = faulty.entry(segment.to_owned()) {
            self.announce(&format!("{segment}: {reason}"));
            entry.insert(reason);
        }
    }

    /// The segments that could not be read, or not completely, and why.
    pub(crate) fn faults(&self) -> Vec<(String, String)> {
        let faulty = self.faulty.lock().unwrap_or_else(PoisonError::into_inner);
        faulty.iter().map(|(segment, reason)| (segment.clone(), reason.clone())).collect()
    }

    /// Handles a message of the search; returns whether to continue.
    pub(crate) fn note(&self, note: &Note<'_>) -> bool {
        let name = |path: &Path| path.display().to_string();

        match note {
            Note::Looked(..) => {}
            Note::Scanning(path, bytes) => self.bar.set_message(format!(
                "reading {}, which has no valid index: {}",
                path.display(),
                human_bytes(*bytes)
            )),
            Note::Vanished(path) => {
                self.announce(&format!("{} was removed before all of it was read", path.display()));
            }
            Note::Faulty(path, error) => self.faulty(&name(path), *error),
            Note::NotDissected(path, link_type) => self.announce(&format!(
                "{}: packets of link type {} are not dissected, so --flow finds none of them; use a filter",
                path.display(),
                link_type.0
            )),
        }
        !self.is_stopped()
    }

    /// Prints a line on standard error.
    pub(crate) fn announce(&self, line: &str) {
        if !self.has_user {
            return;
        }
        self.bar.suspend(|| eprintln!("{line}"));
    }

    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Removes the progress line. Segments that could not be read make the command fail after
    /// everything possible was done.
    pub(crate) fn end(&self) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        let count = self.faulty.lock().unwrap_or_else(PoisonError::into_inner).len();
        match count {
            0 => Ok(()),
            1 => Err(Failure::Failed("one segment could not be read completely".into())),
            count => Err(Failure::Failed(
                format!("{count} segments could not be read completely").into(),
            )),
        }
    }
}
