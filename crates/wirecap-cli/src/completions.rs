//! `wirecap completions DIR` (hidden): shell completions, generated from the commands.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::{Shell, generate_to};

use crate::failure::Failure;

/// Write the completions of bash, fish and zsh into a directory
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    directory: PathBuf,
}

pub(crate) fn run(arguments: &Arguments, mut command: Command) -> Result<(), Failure> {
    fs::create_dir_all(&arguments.directory)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        generate_to(shell, &mut command, "wirecap", &arguments.directory)?;
    }
    Ok(())
}
