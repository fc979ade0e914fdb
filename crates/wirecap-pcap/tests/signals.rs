//! Signal handlers that use a handle whose read they have interrupted.

mod common;

use std::path::Path;

use common::{Bed, Library, compile, said};
use wirecap_testbed::privileged;

/// How long the handlers run, in milliseconds.
const DURATION: &str = "4000";

fn run(program: &Path, library: Library, engine: &str) -> String {
    let bed = Bed::new();
    let mut command = bed.command(program, library);
    command.args(["a1", "a0", DURATION]).env("WIRECAP_ENGINE", engine);
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
    for engine in ["packet", "xdp"] {
        assert_eq!(run(&program, Library::DropIn, engine), theirs, "{engine}");
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
            let output = bed.run(command.args(["a1", "a0", "2000", mode]).env("WIRECAP_ENGINE", engine));
            let (found, expected) = (String::from_utf8_lossy(&output.stdout), "reads 2000, packets 1\n");
            assert_eq!(found, expected, "{library:?} {engine} {mode}: {} {}", output.status, said(&output));
        }
    }
}
