//! Handles of processes that fork.

mod common;

use std::thread;

use common::{Bed, Library, compile, said};
use wirecap_testbed::{Namespace, VethPair, privileged};

#[test]
fn a_handle_survives_forks_as_with_libpcap() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("forks.c", folder.path(), &[]);
    let run = |library, device: &str, variables: &[(&str, &str)], mode: &str| {
        let namespace = Namespace::new().unwrap();
        let pair = VethPair::new((&namespace, "a0"), (&namespace, "a1"), 2, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        let bed = Bed { namespace, pair };
        let mut command = bed.command(&program, library);
        command.args([device, "a0", mode]).envs(variables.iter().copied());
        let output = bed.run(&mut command);
        assert!(output.status.success(), "{device} {variables:?}: {}", said(&output));
        said(&output)
    };
    let several: [(&str, &[(&str, &str)]); 3] = [
        ("a1", &[]),
        ("a1@0-1", &[]),
        ("a1", &[("WIRECAP_GROUP", "a1"), ("WIRECAP_WORKERS", "2")]),
    ];
    // The programs mostly wait, each in a namespace of its own.
    thread::scope(|scope| {
        let run = &run;
        let ours = scope.spawn(|| run(Library::DropIn, "a1", &[], "immediate"));
        let theirs = scope.spawn(|| run(Library::System, "a1", &[], "immediate"));
        let libpcaps = scope.spawn(|| run(Library::System, "a1", &[], "both"));
        let drop_ins = several.map(|(device, variables)| {
            let handle = scope.spawn(move || run(Library::DropIn, device, variables, "both"));
            (handle, device, variables)
        });
        let alone = ["a1", "a1@0-1"].map(|device| {
            let run = move || run(Library::DropIn, device, &[("WIRECAP_ENGINE", "xdp")], "alone");
            (scope.spawn(run), device)
        });
        assert_eq!(ours.join().unwrap(), theirs.join().unwrap(), "in immediate mode");
        let theirs = libpcaps.join().unwrap();
        for (ours, device, variables) in drop_ins {
            assert_eq!(ours.join().unwrap(), theirs, "{device} {variables:?}");
        }
        // A process that reads AF_XDP rings changes state that the other process relies on.
        let same = theirs.find("== the child reads some").unwrap();
        let expected = format!(
            "{}== the child reads first, then the parent\n  child: exit 7\n  dispatch: -1 wirecap: another process has \
             read from this handle since the fork; the engine xdp serves one process\n  read 0\n",
            &theirs[..same]
        );
        for (ours, device) in alone {
            assert_eq!(ours.join().unwrap(), expected, "{device}");
        }
    });
}
