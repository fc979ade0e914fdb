//! `wirecap completions SHELL|DIR` (hidden): shell completions, generated from the commands.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Command, ValueEnum};
use clap_complete::{Shell, generate, generate_to};

use crate::shared::failure::Failure;
use crate::shared::output;

/// Print the completions of bash, fish or zsh, or write all three into a directory
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(value_name = "SHELL|DIR")]
    place: PathBuf,
}

const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

/// Whether the word is rather the name of a shell than of a directory: it has no slash, and no
/// directory has this name.
fn fits_no_directory(place: &Path) -> bool {
    place.components().count() == 1 && !place.is_dir()
}

pub(crate) fn run(arguments: &Arguments, mut command: Command) -> Result<(), Failure> {
    let named = arguments.place.to_str().and_then(|name| Shell::from_str(name, true).ok());
    if let Some(shell) = named.filter(|shell| SHELLS.contains(shell)) {
        let mut script = Vec::new();
        generate(shell, &mut command, "wirecap", &mut script);
        return output::printed(std::io::stdout().write_all(&script));
    }

    if fits_no_directory(&arguments.place) {
        let name = arguments.place.display();
        return Err(Failure::Usage(format!(
            "no completions for {name}: expected bash, fish or zsh, or a directory, such as ./{name}"
        )));
    }

    fs::create_dir_all(&arguments.place)?;
    for shell in SHELLS {
        generate_to(shell, &mut command, "wirecap", &arguments.place)?;
    }

    Ok(())
}
