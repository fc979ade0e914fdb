//! Standard output and standard error, either of which may fail: a pipe whose reader has ended, a
//! closed terminal, a full disk.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use wirecap::savefile::{FileSink, WriteError};
use wirecap_units::output;
pub(crate) use wirecap_units::output::is_standard_output;

use crate::shared::closed;
use crate::shared::failure::Failure;

/// As std's, which panics if the reader has closed the pipe: that is no reason to stop capturing or
/// forwarding.
macro_rules! eprintln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let text = format!($($text)*);
        let _closed_pipe = writeln!(std::io::stderr(), "{}", $crate::shared::service::marked(&text));
    }};
}

/// Prints a line for programs or people to read.
pub(crate) fn print(line: impl fmt::Display) -> Result<(), Failure> {
    printed(writeln!(io::stdout(), "{line}"))
}

/// Standard output was closed when the process began. The standard library has opened /dev/null in
/// its place, which takes everything.
pub(crate) fn check_open() -> Result<(), Failure> {
    match closed::stdout_was_closed() {
        true => Err(Failure::Failed("cannot write to standard output: it is closed".into())),
        false => Ok(()),
    }
}

/// The result of writing to standard output. A reader that ends early is the usual end of a pipe.
pub(crate) fn printed(outcome: io::Result<()>) -> Result<(), Failure> {
    check_open()?;
    unless_reader_ended(outcome)
}

/// The result of writing to standard output, whether it was open or not.
pub(crate) fn unless_reader_ended(outcome: io::Result<()>) -> Result<(), Failure> {
    output::unless_reader_ended(outcome).map_err(|fault| Failure::Failed(fault.into()))
}

/// The outcome of writing a savefile. A reader that closes the pipe is its usual end, not an error.
pub(crate) fn unless_broken_pipe(outcome: Result<(), Failure>) -> Result<(), Failure> {
    if is_broken_pipe(&outcome) { Ok(()) } else { outcome }
}

/// Whether the reader of a savefile has closed the pipe.
pub(crate) fn is_broken_pipe(outcome: &Result<(), Failure>) -> bool {
    let Err(Failure::Failed(error)) = outcome else { return false };
    matches!(error.downcast_ref(), Some(WriteError::BrokenPipe { .. }))
}

/// A terminal shows nothing of a savefile.
pub(crate) fn refuse_terminal() -> Result<(), Failure> {
    let advice = "name a file with -w, or use wirecap show";
    output::refuse_terminal("packets", advice).map_err(Failure::Usage)
}

/// Where a file is.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Detects before an interface is opened that no file can be created at `path`: a wrong directory,
/// a file that exists unless it `replaces` that, one that another process writes to.
pub(crate) fn check(path: &Path, replaces: bool) -> Result<(), Failure> {
    check_directory(path)?;
    FileSink::check(path, replaces).map_err(|error| cannot_write(path, &error))
}

/// Why the file at `path` is not created.
pub(crate) fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(output::cannot_write(path, error).into())
}

/// Detects a wrong directory before an interface is opened.
pub(crate) fn check_directory(path: &Path) -> Result<(), Failure> {
    let directory = directory_of(path);
    let problem = |text: String| Err(Failure::Failed(text.into()));

    if path.is_dir() {
        return problem(format!("{} is a directory; name a file in it", path.display()));
    }

    match fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => {
            let may_create =
                accessat(CWD, directory, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
            match path.exists() {
                // Its own permissions decide.
                true => Ok(()),
                false => may_create.map_err(|error| cannot_write(path, &error.into())),
            }
        }
        Ok(_) => problem(format!("{} is not a directory", directory.display())),
        Err(error) => {
            problem(format!("cannot write to directory {}: {error}", directory.display()))
        }
    }
}
