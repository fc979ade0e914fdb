//! Standard output, and a line on standard error that replaces itself.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use wirecap_units::output;

use super::failure::Failure;

/// Time between two texts of the line.
const INTERVAL: Duration = Duration::from_secs(1);

/// As std's, which panics if the reader has closed the pipe: that is no reason to stop an
/// experiment.
macro_rules! eprintln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _closed_pipe = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// Prints a line for programs or people to read.
pub(crate) fn print(line: impl fmt::Display) -> Result<(), Failure> {
    printed(writeln!(io::stdout(), "{line}"))
}

/// The result of writing to standard output. A reader that ends early is the usual end of a pipe.
pub(crate) fn printed(outcome: io::Result<()>) -> Result<(), Failure> {
    output::unless_reader_ended(outcome).map_err(|fault| Failure::Failed(fault.into()))
}

/// A line on standard error that replaces itself, if that is a terminal.
#[derive(Debug)]
pub(crate) struct LiveLine {
    is_visible: bool,
    is_shown: bool,
    last: Instant,
}

impl LiveLine {
    pub(crate) fn new() -> Self {
        Self { is_visible: io::stderr().is_terminal(), is_shown: false, last: Instant::now() }
    }

    /// Whether it can be seen.
    pub(crate) fn is_visible(&self) -> bool {
        self.is_visible
    }

    /// Whether it is time to show the line again.
    pub(crate) fn is_due(&self) -> bool {
        self.is_visible && self.last.elapsed() >= INTERVAL
    }

    /// Replaces the line, if it can be seen.
    pub(crate) fn show(&mut self, text: &str) {
        if self.is_visible {
            replace(text);
            self.is_shown = true;
            self.last = Instant::now();
        }
    }

    /// Removes the line.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            replace("");
        }
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Without line wrap, because a line that continues in the next one could not be replaced; and in
/// one piece, or the terminal may stay so.
fn replace(text: &str) {
    // A closed terminal is ignored.
    let _closed = io::stderr().write_all(format!("\r\x1b[K\x1b[?7l{text}\x1b[?7h").as_bytes());
}
