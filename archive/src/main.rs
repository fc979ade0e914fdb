//! The `wirecap-archive` command; `wirecap archive` runs it.

use std::process::ExitCode;

fn main() -> ExitCode {
    wirecap_archive::main()
}
