//! Ballista's messages on standard error.

use ::log::{Level, LevelFilter, Log, Metadata, Record};

struct Printer;

impl Log for Printer {
    /// Details of the transport are of no use to users.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Warn || metadata.target().starts_with("ballista")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            eprintln!("{}: {}", record.level().as_str().to_ascii_lowercase(), record.args());
        }
    }

    fn flush(&self) {}
}

/// Prints warnings and errors from now on; if `is_verbose`, also Ballista's other messages.
pub(crate) fn start(is_verbose: bool) {
    // It is set once in this process.
    if ::log::set_logger(&Printer).is_ok() {
        ::log::set_max_level(if is_verbose { LevelFilter::Info } else { LevelFilter::Warn });
    }
}
