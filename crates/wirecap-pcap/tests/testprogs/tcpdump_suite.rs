//! tcpdump's own tests, which read savefiles: the system's tcpdump has the same results with the
//! drop-in as with the system's libpcap.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use wirecap_testbed::privileged;

use crate::common::{Bed, Library, said};
use crate::source::{self, Fetched};

/// tcpdump 4.99.3 has 600 tests. With far fewer, this is a different suite.
const TESTS_MIN: usize = 500;

/// The contents of config.h, which tells the suite how tcpdump was built.
fn configuration() -> &'static str {
    let libraries = Command::new("sh").args(["-c", "ldd $(command -v tcpdump)"]).output().unwrap();
    if said(&libraries).contains("libcrypto") { "#define HAVE_LIBCRYPTO 1\n" } else { "" }
}

/// Runs the suite with a library; returns the outcome of each test, and its output.
fn run(bed: &Bed, source: &Path, library: Library) -> (Vec<String>, Vec<(String, Vec<u8>)>) {
    let folder = tempfile::tempdir().unwrap();
    let copied =
        Command::new("cp").arg("-r").arg(source.join("tests")).arg(folder.path()).status().unwrap();
    assert!(copied.success());
    fs::write(folder.path().join("config.h"), configuration()).unwrap();
    let mut command = bed.command("perl", library);
    // The suite's key files are in a folder that only root can read.
    command.arg("tests/TESTrun").env("TCPDUMP_BIN", "tcpdump -Z root").current_dir(folder.path());
    let output = bed.run(command.stdin(Stdio::null()));
    let text = said(&output);
    let outcomes = text.lines().filter(|line| line.starts_with("    ") && line.contains(": "));
    let mut said: Vec<(String, Vec<u8>)> = fs::read_dir(folder.path().join("tests/NEW"))
        .unwrap()
        .map(|entry| entry.unwrap())
        // Standard error is not compared: it names the library's version, and is a part of the
        // outcome.
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "out"))
        .map(|entry| {
            (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).unwrap())
        })
        .collect();
    said.sort();
    (outcomes.map(str::to_owned).collect(), said)
}

#[test]
fn tcpdumps_own_tests_have_the_same_results_with_both_libraries() {
    if !privileged() {
        return;
    }
    let Some(source) = source::or_skip(Fetched::Tcpdump) else { return };
    let bed = Bed::new();
    let (theirs, said_theirs) = run(&bed, source, Library::System);
    let (ours, said_ours) = run(&bed, source, Library::DropIn);
    let passed = theirs.iter().filter(|line| line.contains(": passed")).count();
    eprintln!("tcpdump's own tests: {passed} of {} passed on libpcap", theirs.len());
    assert!(passed >= TESTS_MIN, "{theirs:#?}");
    assert_eq!(ours, theirs);
    assert!(said_ours.len() >= TESTS_MIN);
    let differs = said_ours.iter().zip(&said_theirs).find(|(ours, theirs)| ours != theirs);
    assert!(
        differs.is_none() && said_ours.len() == said_theirs.len(),
        "{:?}",
        differs.map(|(ours, _)| &ours.0)
    );
}
