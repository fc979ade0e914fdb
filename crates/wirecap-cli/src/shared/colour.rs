//! Styles of the output. The words carry the meaning; colours only help to find them.
//!
//! Bold, and those of the 16 colours that can be read on a light and on a dark background.
//! [`anstream`] removes them for a pipe, a dumb terminal and with `NO_COLOR`, as `clap` does in the
//! help and in errors.

use anstream::AutoStream;
use anstream::ColorChoice;
use anstream::stream::RawStream;
use anstyle::{AnsiColor, Style};

pub(crate) const STRONG: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const FILLED: Style = AnsiColor::Cyan.on_default();

/// The text with escape sequences around it, for streams of [`anstream`].
pub(crate) fn painted(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// Whether this stream shows styles.
pub(crate) fn is_shown_on(stream: &impl RawStream) -> bool {
    AutoStream::choice(stream) != ColorChoice::Never
}
