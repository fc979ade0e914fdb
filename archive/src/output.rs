//! The file that a command writes, or standard output.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use wirecap_savefile::FileSink;

use crate::failure::Failure;

pub(crate) fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A terminal cannot display binary data, and may interpret it as commands.
pub(crate) fn refuse_terminal(path: &Path, what: &str) -> Result<(), Failure> {
    match is_standard_output(path) && io::stdout().is_terminal() {
        true => Err(Failure::Usage(format!("cannot write {what} to a terminal: name a file with -w"))),
        false => Ok(()),
    }
}

/// Creates a file that only its owner can read; replaces an existing file only if requested.
pub(crate) fn create(path: &Path, replaces: bool) -> Result<File, Failure> {
    let created = if replaces { FileSink::replace(path) } else { FileSink::create(path) };
    created.map(FileSink::into_file).map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::AlreadyExists => "; --force replaces it",
            _ => "",
        };
        Failure::Failed(format!("cannot write to {}: {error}{advice}", path.display()).into())
    })
}

/// The file at `path`, or standard output.
pub(crate) fn open(path: &Path, replaces: bool) -> Result<Box<dyn Write + Send>, Failure> {
    match is_standard_output(path) {
        true => Ok(Box::new(io::stdout())),
        false => Ok(Box::new(create(path, replaces)?)),
    }
}
