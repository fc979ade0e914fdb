//! Immediate mode with both libraries.

mod common;

use common::{Bed, Library, compile, said};
use wirecap_testbed::{loss_lock, privileged};

#[test]
fn packets_are_readable_at_once_and_complete_and_waiting_causes_few_wake_ups() {
    if !privileged() {
        return;
    }
    let _alone = loss_lock().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = compile("immediate.c", folder.path(), &[]);
    let run = |library, variables: &[(&str, &str)]| {
        let bed = Bed::new();
        let mut command = bed.command(&program, library);
        let output = bed.run(command.args(["a1", "a0"]).envs(variables.iter().copied()));
        assert!(output.status.success(), "{library:?} {variables:?}: {}", said(&output));
        eprint!("{library:?} {variables:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let theirs = run(Library::System, &[]);
    assert_eq!(run(Library::DropIn, &[]), theirs);
}
