//! The file that a command writes, or standard output.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use wirecap_savefile::FileSink;
use wirecap_units::output::{cannot_write, is_standard_output, unless_reader_ended};

use crate::failure::Failure;

/// Prints a line.
pub(crate) fn print(line: impl fmt::Display) -> Result<(), Failure> {
    unless_reader_ended(writeln!(io::stdout(), "{line}"))
        .map_err(|fault| Failure::Failed(fault.into()))
}

/// Creates a file that only its owner can read; replaces an existing file only if requested.
pub(crate) fn create(path: &Path, replaces: bool) -> Result<File, Failure> {
    let created = if replaces { FileSink::replace(path) } else { FileSink::create(path) };
    created
        .map(FileSink::into_file)
        .map_err(|error| Failure::Failed(cannot_write(path, &error).into()))
}

/// The file at `path`, or standard output.
pub(crate) fn open(path: &Path, replaces: bool) -> Result<Box<dyn Write + Send>, Failure> {
    match is_standard_output(path) {
        true => Ok(Box::new(io::stdout())),
        false => Ok(Box::new(create(path, replaces)?)),
    }
}
