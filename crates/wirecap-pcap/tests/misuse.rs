//! Misused handles, and programs that run under valgrind and the sanitizers.

mod common;

use std::path::Path;
use std::process::Command;

use common::{Bed, Library, compile, said};
use wirecap_testbed::{privileged, skip};

/// valgrind exits with 9 on errors and on memory that is definitely or possibly lost.
const VALGRIND: [&str; 5] = [
    "-q",
    "--error-exitcode=9",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite,possible",
    "--child-silent-after-fork=yes",
];

/// Runs a test program with the drop-in, under valgrind if `watcher` has its arguments.
fn run(program: &Path, watcher: Option<&[&str]>, folder: &Path) -> String {
    let bed = Bed::new();
    let mut command = match watcher {
        None => bed.command(program, Library::DropIn),
        Some(arguments) => {
            let mut command = bed.command("valgrind", Library::DropIn);
            command.args(arguments).arg(program);
            command
        }
    };
    command.args(["a1", "a0"]);
    if program.ends_with("walk") {
        bed.ip("link add down0 type veth peer name down1");
        command.arg(folder);
    }
    let output = bed.run(&mut command);
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

/// Asserts that every check in the output succeeded, and that there are more than 50.
fn all_well(text: &str) {
    let bad: Vec<&str> =
        text.lines().filter(|line| line.contains(": ") && !line.starts_with("ok: ")).collect();
    assert!(bad.is_empty() && text.matches("ok: ").count() > 50, "{text}");
}

#[test]
fn calls_on_misused_handles_fail_and_all_others_succeed() {
    if privileged() {
        let folder = tempfile::tempdir().unwrap();
        all_well(&run(&compile("misuse.c", folder.path(), &[]), None, folder.path()));
    }
}

#[test]
fn valgrind_finds_nothing() {
    if privileged() {
        let folder = tempfile::tempdir().unwrap();
        all_well(&run(&compile("misuse.c", folder.path(), &[]), Some(&VALGRIND), folder.path()));
        let walk = run(&compile("walk.c", folder.path(), &[]), Some(&VALGRIND), folder.path());
        assert!(walk.ends_with("gone: -1 The interface disappeared\n"), "{walk}");
    }
}

#[test]
fn the_sanitizers_find_nothing() {
    if !privileged() || !has_sanitizers() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    all_well(&run(&compile("misuse.c", folder.path(), &flags), None, folder.path()));
    let walk = run(&compile("walk.c", folder.path(), &flags), None, folder.path());
    assert!(
        walk.ends_with("gone: -1 The interface disappeared\n") && !walk.contains("ERROR"),
        "{walk}"
    );
}

/// On Debian, gcc includes the sanitizers.
fn has_sanitizers() -> bool {
    let output = Command::new("gcc").arg("-print-file-name=libasan.so").output().unwrap();
    let has = said(&output).contains('/');
    if !has {
        skip("gcc has no sanitizers");
    }
    has
}

#[test]
fn handles_that_are_closed_while_another_thread_reads_are_freed_once() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("closing.c", folder.path(), &[]);
    for (engine, rounds) in [("packet", "240"), ("xdp", "16")] {
        let bed = Bed::new();
        let mut command = bed.command(&program, Library::DropIn);
        command.args(["a1", rounds]).env("WIRECAP_ENGINE", engine);
        let output = bed.run(&mut command);
        assert!(output.status.success(), "{engine}: {} {}", output.status, said(&output));
    }
}
