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

pub(crate) fn run(arguments: &Arguments, mut command: Command) -> Result<(), Failure> {
    fs::create_dir_all(&arguments.directory)?;
    command.build();
    clap_mangen::generate_to(command, &arguments.directory)?;
    Ok(())
}
