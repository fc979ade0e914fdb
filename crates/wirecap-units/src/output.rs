//! Output files of commands, and standard output in place of a file.

use std::io::{self, IsTerminal};
use std::path::Path;

/// Whether a file name means standard output.
pub fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The result of writing to standard output. It is not an error if the reader closes the pipe
/// early.
///
/// # Errors
///
/// The fault in the text.
pub fn unless_reader_ended(outcome: io::Result<()>) -> Result<(), String> {
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}"))
        }
        _ => Ok(()),
    }
}

/// Checks that standard output is not a terminal, which cannot display binary data such as `what`
/// and may interpret it as control sequences.
///
/// # Errors
///
/// The fault in the text, with `advice`.
pub fn refuse_terminal(what: &str, advice: &str) -> Result<(), String> {
    match io::stdout().is_terminal() {
        true => Err(format!("cannot write {what} to a terminal: {advice}")),
        false => Ok(()),
    }
}

/// The error message if the file at `path` cannot be created, for a command with the option
/// `--force`.
pub fn cannot_write(path: &Path, error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::AlreadyExists => "; --force replaces it",
        _ => "",
    };
    format!("cannot write to {}: {error}{advice}", path.display())
}
