//! `wirecap man-pages DIR` (hidden): the man pages, made from the commands' own help.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Command};

use crate::failure::Failure;

/// Write the man pages into a directory
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    directory: PathBuf,
}

pub(crate) fn run(arguments: &Arguments, command: Command) -> Result<(), Failure> {
    fs::create_dir_all(&arguments.directory)?;
    let mut command = without_help(command);
    command.build();
    clap_mangen::generate_to(command, &arguments.directory)?;
    Ok(())
}

/// Without the subcommands `help`, whose pages would say the same a second time.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}
