//! `wirecap lab`: the lab is a program of its own, so that this one, which runs with privileges,
//! has no part of it.

use std::ffi::OsString;

use clap::Args;

use crate::shared::failure::Failure;

/// Name the program that has the experiments
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let words = arguments.words.iter().map(|word| format!(" {}", word.display()));
    let command = format!("wirecap-lab{}", words.collect::<String>());
    Err(Failure::Usage(format!("the lab is a separate program; run: {command}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_one_line_with_the_command_to_run() {
        let arguments = Arguments { words: ["report", "--full"].map(OsString::from).to_vec() };
        let error = run(&arguments).unwrap_err().to_string();
        assert_eq!(error, "the lab is a separate program; run: wirecap-lab report --full");
    }
}
