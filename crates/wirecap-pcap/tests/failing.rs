//! Handles that cannot be opened.

mod common;

use common::{Bed, Library, compile, said};
use wirecap_testbed::privileged;

/// Fails to open `device`; returns the error, and how many descriptors were left over.
fn fail(bed: &Bed, device: &str, setting: (&str, &str), descriptors: i32) -> String {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("failing.c", folder.path(), &[]);
    let mut command = bed.command(program, Library::DropIn);
    let command = command.args([device, &descriptors.to_string()]).env(setting.0, setting.1);
    said(&bed.run(command))
}

#[test]
fn a_failed_open_leaves_no_descriptor_open_and_names_the_setting() {
    if !privileged() {
        return;
    }
    let bed = Bed::new();
    bed.ip("address add 10.0.0.1/24 dev a1");
    for (device, setting, reason) in [
        ("a1", ("WIRECAP_ENGINE", "dpdk"), "invalid WIRECAP_ENGINE"),
        ("a1@7", ("WIRECAP_ENGINE", "packet"), "a1@7 does not exist"),
        ("a1", ("WIRECAP_ENGINE", "xdp"), "WIRECAP_TAKE=1"),
        ("a1@0", ("WIRECAP_ENGINE", "off"), "only wirecap's engine captures single receive queues"),
    ] {
        let text = fail(&bed, device, setting, 0);
        assert!(text.ends_with("\nleft over: 0\n") && text.contains(reason), "{setting:?}: {text}");
        assert!(!text.contains("--"), "it names an option of the command: {text}");
    }
}

#[test]
fn a_failed_open_leaves_no_descriptor_open_when_there_are_too_few() {
    if !privileged() {
        return;
    }
    let bed = Bed::new();
    for descriptors in 1..4 {
        let text = fail(&bed, "a1", ("WIRECAP_ENGINE", "packet"), descriptors);
        assert!(text.contains("Too many open files"), "{descriptors} descriptors: {text}");
        assert!(text.ends_with("\nleft over: 0\n"), "{descriptors} descriptors: {text}");
    }
}

/// The real library needs no netlink socket.
#[test]
fn a_requested_engine_is_not_replaced_when_the_interface_cannot_be_looked_up() {
    if !privileged() {
        return;
    }
    let bed = Bed::new();
    let text = fail(&bed, "a1", ("WIRECAP_ENGINE", "packet"), -1);
    assert!(text.contains("did not report interface a1"), "{text}");
    assert!(text.ends_with("\nleft over: 0\n"), "{text}");
    let text = fail(&bed, "a1", ("WIRECAP_ENGINE", ""), -1);
    assert_eq!(text, "opened\n", "the system's libpcap captures if no engine was requested");
}
