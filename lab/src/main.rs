//! The program `wirecap-lab`: runs the experiments and reports the results.

mod command;

use std::process::ExitCode;

fn main() -> ExitCode {
    command::main()
}
