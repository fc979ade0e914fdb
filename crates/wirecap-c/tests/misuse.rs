//! Incorrect use of handles, with the program run under valgrind and sanitizers.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{compile, installed, said};
use wirecap_testbed::{Namespace, VethPair, privileged, skip};

const VALGRIND: [&str; 5] = [
    "valgrind",
    "-q",
    "--error-exitcode=9",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite,possible",
];
/// `enum wirecap_engine`.
const XDP: &str = "1";
const PACKET: &str = "2";

/// Runs the program, optionally under a tool such as valgrind. Every line of its output must report
/// success.
fn run(program: &Path, watcher: &[&str], engine: &str) {
    let namespace = Namespace::new().unwrap();
    let _pair = VethPair::new((&namespace, "a0"), (&namespace, "a1"), 1, 1500)
        .and_then(wirecap_testbed::dedicated)
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("timeout");
    command.env("LD_LIBRARY_PATH", installed().join("usr/local/lib")).args(["-k", "5", "180"]);
    command
        .args(watcher)
        .arg(program)
        .args(["a1", "a0", engine])
        .arg(folder.path().join("trace.pcap"));
    command.stdin(Stdio::null());
    let output = namespace.run_in(|| command.output()).unwrap().unwrap();
    let text = said(&output);
    let bad: Vec<&str> = text.lines().filter(|line| !line.starts_with("ok: ")).collect();
    assert!(
        bad.is_empty() && output.status.success() && text.lines().count() > 40,
        "{text}{}",
        output.status
    );
}

/// Runs each program with each engine.
fn run_all(flags: &[&str], watcher: &[&str], engines: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    for source in ["tests/misuse.c", "tests/ports.c"] {
        let program = compile(source, folder.path(), flags);
        engines.iter().for_each(|engine| run(&program, watcher, engine));
    }
}

#[test]
fn misused_handles_fail_and_nothing_else_does() {
    if privileged() {
        run_all(&[], &[], &[XDP, PACKET]);
    }
}

#[test]
fn valgrind_finds_nothing() {
    if privileged() {
        run_all(&[], &VALGRIND, &[PACKET]);
    }
}

#[test]
fn the_sanitizers_find_nothing() {
    if privileged() && has_sanitizers() {
        run_all(
            &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
            &[],
            &[XDP, PACKET],
        );
    }
}

/// On Debian, the sanitizers are part of the gcc package.
fn has_sanitizers() -> bool {
    let output = Command::new("cc").arg("-print-file-name=libasan.so").output().unwrap();
    let has = said(&output).contains('/');
    if !has {
        skip("the C compiler has no sanitizers");
    }
    has
}
