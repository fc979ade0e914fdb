//! Signal handlers that use a handle whose read they have interrupted.

mod common;

use std::path::Path;

use common::{Bed, Library, compile, said};
use wirecap_testbed::privileged;

/// How long the handlers run before one of them closes the handle.
const SECONDS: u64 = 4;

/// How many runs each kind of handle gets: `WIRECAP_SIGNAL_SECONDS` is the duration of all of them.
fn rounds(kinds: usize) -> u64 {
    let whole = std::env::var("WIRECAP_SIGNAL_SECONDS")
        .map_or(0, |text| text.parse::<u64>().expect("seconds"));
    whole.div_ceil(SECONDS * kinds as u64).max(1)
}

fn run(program: &Path, library: Library, engine: &str) -> String {
    let bed = Bed::new();
    let mut command = bed.command(program, library);
    command.args(["a1", "a0", &(SECONDS * 1000).to_string()]).env("WIRECAP_ENGINE", engine);
    let output = bed.run(&mut command);
    eprint!("{library:?} {engine}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{library:?} {engine}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn handlers_read_statistics_break_loops_and_close_under_load() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("signals.c", folder.path(), &[]);
    let theirs = run(&program, Library::System, "");
    assert!(theirs.ends_with("close in a handler: done\n"), "{theirs}");
    let engines = ["packet", "xdp"];
    for round in 1..=rounds(engines.len()) {
        for engine in engines {
            assert_eq!(run(&program, Library::DropIn, engine), theirs, "{engine}, round {round}");
        }
    }
}

#[test]
fn every_read_ends_when_a_signal_interrupts_it_at_any_moment() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("breaking.c", folder.path(), &[]);
    let runs = [(Library::System, ""), (Library::DropIn, "packet"), (Library::DropIn, "xdp")];
    for mode in ["blocks", "immediate"] {
        for (library, engine) in runs {
            let bed = Bed::new();
            let mut command = bed.command(&program, library);
            let output =
                bed.run(command.args(["a1", "a0", "2000", mode]).env("WIRECAP_ENGINE", engine));
            let found = String::from_utf8_lossy(&output.stdout);
            let expected = "reads 2000, packets 1\n";
            assert_eq!(
                found,
                expected,
                "{library:?} {engine} {mode}: {} {}",
                output.status,
                said(&output)
            );
        }
    }
}
