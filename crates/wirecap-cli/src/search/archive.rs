//! `wirecap archive`: a separate program, because its query engine is larger than the rest of
//! wirecap.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::shared::failure::Failure;

const PROGRAM: &str = "wirecap-archive";

/// Search recordings in a directory or in object storage with SQL or filters
///
/// Runs the program wirecap-archive, which is installed separately. `wirecap archive --help` lists
/// its commands, and `wirecap archive COMMAND --help` their options.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// The command of the archive and its arguments
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Becomes that program.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let beside = env::current_exe().ok().map(|command| command.with_file_name(PROGRAM));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(&program).args(&arguments.words).exec();
    Err(Failure::Failed(match error.kind() {
        io::ErrorKind::NotFound => format!(
            "{PROGRAM} is not installed\nbuild it with make archive in the source of wirecap, and copy it to a directory in PATH"
        )
        .into(),
        _ => format!("cannot run {}: {error}", program.display()).into(),
    }))
}
