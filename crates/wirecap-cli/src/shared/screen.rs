//! Output for terminals: a block of lines that redraws itself, emphasis, bars.

use std::borrow::Cow;
use std::env;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::shared::service;

/// How many notices were written to standard error.
static NOTICES: Mutex<u64> = Mutex::new(0);

fn notices() -> MutexGuard<'static, u64> {
    NOTICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a permanent line to standard error, from any thread. The block is redrawn below it.
pub(crate) fn notice(text: &str) {
    let mut notices = notices();
    let mut stderr = io::stderr();
    let clear = if stderr.is_terminal() { "\r\x1b[K" } else { "" };
    // A closed terminal is ignored.
    let _ = stderr.write_all(format!("{clear}{}\n", service::marked(text)).as_bytes());
    *notices += 1;
}

/// A stream that may be a terminal.
#[derive(Debug)]
pub(crate) struct Screen<W: Write> {
    stream: W,
    is_terminal: bool,
    has_colours: bool,
    has_blocks: bool,
    drawn_lines: usize,
    size_of: fn(&W) -> Option<(usize, usize)>,
    /// The terminal's columns and rows when it last drew.
    size: Option<(usize, usize)>,
    /// How many notices had been written when it last drew.
    notices: u64,
}

impl<W: Write + IsTerminal + AsFd> Screen<W> {
    pub(crate) fn on(stream: W) -> Self {
        let is_terminal = stream.is_terminal();
        let has_colours =
            is_terminal && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            stream,
            is_terminal,
            has_colours,
            has_blocks: has_utf8(),
            drawn_lines: 0,
            size_of,
            size: None,
            notices: 0,
        }
    }
}

/// The columns and rows of a terminal that knows them.
fn size_of(stream: &impl AsFd) -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then(|| (size.ws_col.into(), size.ws_row.into()))
}

impl<W: Write> Screen<W> {
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Writes a line to stay.
    pub(crate) fn line(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.stream, "{line}")
    }

    /// Writes lines; on a terminal they replace the last drawn ones and are cut to its width.
    pub(crate) fn redraw(&mut self, lines: &[String]) -> io::Result<()> {
        let notices = notices();
        if std::mem::replace(&mut self.notices, *notices) != *notices {
            // Not where it was any more.
            self.drawn_lines = 0;
        }

        drop(notices);
        let together =
            |lines: &[String]| lines.iter().flat_map(|line| [line, "\n"]).collect::<String>();

        if !self.is_terminal {
            self.stream.write_all(together(lines).as_bytes())?;
            return self.stream.flush();
        }

        let size = (self.size_of)(&self.stream);
        if std::mem::replace(&mut self.size, size) != size && self.drawn_lines > 0 {
            // The position of the last drawing is unknown.
            self.drawn_lines = 0;
            self.stream.write_all(b"\x1b[2J\x1b[H")?;
        }

        self.erase()?;
        let lines = fitting(lines, size);
        self.stream.write_all(unwrapped(&together(&lines)).as_bytes())?;
        self.drawn_lines = lines.len();

        self.stream.flush()
    }

    /// Erases the block for good. A terminal that was closed is ignored.
    pub(crate) fn clear(&mut self) {
        let _ = self.erase();
    }

    /// Erases the last drawing, from its first column on: the terminal may have printed ^C behind
    /// it.
    fn erase(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.drawn_lines) {
            0 => Ok(()),
            lines => write!(self.stream, "\r\x1b[{lines}A\x1b[J"),
        }
    }

    /// Keeps the last drawing. The next output begins in the first column: the terminal may have
    /// printed ^C behind it. A terminal that was closed is ignored.
    pub(crate) fn keep(&mut self) {
        if std::mem::take(&mut self.drawn_lines) > 0 {
            let _ = self.stream.write_all(b"\r\x1b[K").and_then(|()| self.stream.flush());
        }
    }

    pub(crate) fn bold(&self, text: &str) -> String {
        self.in_style(text, "1")
    }

    /// `yes` in green or `no` in red.
    pub(crate) fn yes_or_no(&self, yes: bool) -> String {
        if yes { self.in_style("yes", "1;32") } else { self.in_style("no", "1;31") }
    }

    fn in_style(&self, text: &str, style: &str) -> String {
        if self.has_colours { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A bar whose length is `share` of `width` columns, filled up to them.
    pub(crate) fn bar(&self, share: f64, width: usize) -> String {
        let filled = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
        let (full, empty) = if self.has_blocks { ("█", "░") } else { ("#", ".") };
        let full = full.repeat(filled);
        let empty = empty.repeat(width - filled);
        format!("{}{empty}", self.in_style(&full, "36"))
    }
}

/// The lines that fit the terminal, and the number of the others. Lines that scroll off the top
/// cannot be erased.
fn fitting(lines: &[String], size: Option<(usize, usize)>) -> Cow<'_, [String]> {
    let room = size.map_or(usize::MAX, |(_, rows)| rows.saturating_sub(1).max(1));
    if lines.len() <= room {
        return Cow::Borrowed(lines);
    }
    let mut shown = lines[..room - 1].to_vec();
    shown.push(format!("and {} more lines: the terminal has no room", lines.len() - shown.len()));
    Cow::Owned(shown)
}

/// Replaces the current line of a terminal on standard error, cut to its width.
pub(crate) fn replace_line(text: &str) {
    // A closed terminal is ignored.
    let _ = io::stderr().write_all(format!("\r\x1b[K{}", unwrapped(text)).as_bytes());
}

/// Writes a line to stay on standard error, on a terminal in the place of one that is replaced from
/// time to time.
pub(crate) fn announce(line: &str) {
    let mut stream = io::stderr().lock();
    let begin = if stream.is_terminal() { "\r\x1b[K" } else { "" };
    // A closed terminal is ignored.
    let _ = stream.write_all(format!("{begin}{}\n", service::marked(line)).as_bytes());
}

/// The text such that a terminal cuts off what it has no room for: a line that goes on in the next
/// one is not where it is looked for when it is to be replaced. To be written in one piece, or the
/// terminal may stay so.
fn unwrapped(text: &str) -> String {
    format!("\x1b[?7l{text}\x1b[?7h")
}

/// Whether the terminal's user reads UTF-8, by the variables that decide it.
pub(crate) fn has_utf8() -> bool {
    let set = |name| env::var(name).ok().filter(|value: &String| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
    locale.is_some_and(|locale| locale.to_ascii_lowercase().replace('-', "").contains("utf8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen() -> Screen<Vec<u8>> {
        Screen {
            stream: Vec::new(),
            is_terminal: true,
            has_colours: false,
            has_blocks: false,
            drawn_lines: 0,
            size_of: |_| Some((80, 24)),
            size: None,
            notices: 0,
        }
    }

    #[test]
    fn a_terminal_of_another_size_is_cleared_before_it_is_drawn_on() {
        let mut screen = screen();
        let lines = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
        screen.redraw(&lines).unwrap();
        screen.size_of = |_| Some((40, 3));
        screen.redraw(&lines).unwrap();
        screen.redraw(&lines).unwrap();
        let drawn = String::from_utf8(screen.stream)
            .unwrap()
            .replace("\x1b[?7l", "")
            .replace("\x1b[?7h", "");
        let small = "a\nand 2 more lines: the terminal has no room\n";
        assert_eq!(drawn, format!("a\nb\nc\n\x1b[2J\x1b[H{small}\r\x1b[2A\x1b[J{small}"));
    }

    #[test]
    fn a_drawing_replaces_the_previous_one() {
        let mut screen = screen();
        screen.redraw(&["a".to_owned(), "b".to_owned()]).unwrap();
        screen.redraw(&["c".to_owned()]).unwrap();
        screen.keep();
        screen.redraw(&["d".to_owned()]).unwrap();
        let drawn = String::from_utf8(screen.stream)
            .unwrap()
            .replace("\x1b[?7l", "")
            .replace("\x1b[?7h", "");
        assert_eq!(drawn, "a\nb\n\r\x1b[2A\x1b[Jc\n\r\x1b[Kd\n");
    }

    #[test]
    fn a_drawing_is_never_wider_than_the_terminal_and_all_else_wraps_again() {
        let mut screen = screen();
        screen.redraw(&["wide".to_owned()]).unwrap();
        screen.line("a line to stay").unwrap();
        assert_eq!(
            String::from_utf8(screen.stream).unwrap(),
            "\x1b[?7lwide\n\x1b[?7ha line to stay\n"
        );
        let mut file = Screen { is_terminal: false, ..self::screen() };
        file.redraw(&["a".to_owned(), "b".to_owned()]).unwrap();
        assert_eq!(String::from_utf8(file.stream).unwrap(), "a\nb\n");
    }

    #[test]
    fn a_bar_has_the_requested_width_for_every_share() {
        let screen = screen();
        assert_eq!(
            [0.0, 0.5, 1.0, 7.0].map(|share| screen.bar(share, 4)),
            ["....", "##..", "####", "####"]
        );
        assert_eq!(screen.bar(f64::NAN, 2), "..");
    }
}
