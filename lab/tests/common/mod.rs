//! Runs the built program in namespaces of the test bed.

#[path = "../../../crates/wirecap-cli/tests/common/belongings.rs"]
pub(crate) mod belongings;
#[path = "../../../crates/wirecap-cli/tests/common/running.rs"]
mod running;

#[allow(unused_imports, reason = "each test file uses a part of it")]
pub(crate) use running::{
    Finished, Running, run as lab, run_unprivileged as lab_unprivileged, start,
};

/// The program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_wirecap-lab");
