//! How a test reports that it cannot run here. A file of its own, because the tests of crates on
//! which this one depends include it as a module.

#![allow(unreachable_pub, dead_code)] // Not each of them uses all functions, and none exports them.

use std::env;
use std::io::{self, Write};

/// Reports that a test is skipped because `lacking` is missing.
///
/// # Panics
///
/// If the environment variable `WIRECAP_NO_SKIP` is 1, as in CI.
#[track_caller]
pub fn skip(lacking: &str) {
    assert!(may_skip(), "WIRECAP_NO_SKIP=1, but: {lacking}");
    print(lacking);
}

/// The same for what no package can add to the machine, such as a feature of its kernel: never a
/// failure.
pub fn skip_on_this_machine(lacking: &str) {
    print(lacking);
}

/// Reports that a test ran and could not judge.
///
/// # Panics
///
/// If the environment variable `WIRECAP_NO_SKIP` is 1, as in CI.
#[track_caller]
pub fn void(why: &str) {
    assert!(may_skip(), "WIRECAP_NO_SKIP=1, but void: {why}");
    announce(&format!("VOID: {why}"));
}

fn may_skip() -> bool {
    env::var_os("WIRECAP_NO_SKIP").is_none_or(|value| value != "1")
}

fn print(lacking: &str) {
    announce(&format!("SKIP: {lacking}"));
}

/// Prints a line that `.ci/run` counts, even if the test's output is captured.
pub(crate) fn announce(line: &str) {
    // Not with eprintln!, whose output the test harness discards if a test passes; and in one
    // write, because tests run in parallel.
    let _closed = io::stderr().write_all(format!("{line}\n").as_bytes());
}
