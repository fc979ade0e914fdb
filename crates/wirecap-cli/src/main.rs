//! The `wirecap` command. All of it is in the library beside this file, where benches reach it,
//! too.

use std::process::ExitCode;

fn main() -> ExitCode {
    wirecap_cli::main()
}
