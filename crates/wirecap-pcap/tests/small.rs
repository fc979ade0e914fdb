//! Details of libpcap's behaviour that programs notice, with both libraries.

mod common;

use std::process::Command;

use common::{Bed, Library, compile, said};
use wirecap_testbed::privileged;

/// The counters of a veth are always 0, so the program runs where other files are mounted in their
/// place.
#[test]
fn packets_that_the_interface_dropped_are_counted_as_by_libpcap() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("drops.c", folder.path(), &[]);
    let run = |library| {
        let bed = Bed::new();
        let counters = "/sys/class/net/a1/statistics";
        let script = format!(
            "mount -t sysfs sysfs /sys && cp -r --no-preserve=all {counters} {copy} && mount --bind {copy} {counters} && \
             LD_LIBRARY_PATH=$1 exec \"$0\" a1 {counters}/rx_missed_errors",
            copy = folder.path().join(format!("{library:?}")).display(),
        );
        let program = bed.command(&program, library);
        let libraries = program
            .get_envs()
            .find_map(|(name, value)| (name == "LD_LIBRARY_PATH").then_some(value));
        let mut command = Command::new("unshare");
        command
            .args(["-m", "--propagation", "private", "sh", "-c", &script])
            .arg(program.get_program());
        command.arg(libraries.flatten().unwrap_or_default());
        let output = bed.run(&mut command);
        assert!(output.status.success(), "{library:?}: {} {}", output.status, said(&output));
        said(&output)
    };
    let theirs = run(Library::System);
    assert!(
        theirs.contains("after 5 more: 0, 0 0 5\n"),
        "libpcap counts no drops of the interface: {theirs}"
    );
    assert_eq!(run(Library::DropIn), theirs, "packets that the interface dropped");
}

#[test]
fn details_that_programs_notice_are_the_same_as_with_libpcap() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("small.c", folder.path(), &[]);
    let run = |library| {
        let bed = Bed::new();
        bed.ip("link add odd@0 type veth peer name odd@1");
        bed.ip("link set odd@0 up");
        bed.ip("link set odd@1 up");
        // So slow that sent frames stay in the interface's queue.
        let slow = bed.run(bed.command("tc", Library::System).args(
            "qdisc add dev a1 root tbf rate 8kbit burst 2000 limit 10000000".split_whitespace(),
        ));
        assert!(slow.status.success(), "{}", said(&slow));
        let output = bed.run(bed.command(&program, library).args(["a1", "a0", "odd@0"]));
        assert!(output.status.success(), "{library:?}: {} {}", output.status, said(&output));
        said(&output)
    };
    let theirs = run(Library::System);
    assert!(theirs.contains("one was refused: 1"), "{theirs}");
    assert_eq!(run(Library::DropIn), theirs);
}
