//! Details of libpcap's behaviour that programs notice, with both libraries.

mod common;

use common::{Bed, Library, compile, said};
use wirecap_testbed::privileged;

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
        let slow = bed.run(
            bed.command("tc", Library::System)
                .args("qdisc add dev a1 root tbf rate 8kbit burst 2000 limit 10000000".split_whitespace()),
        );
        assert!(slow.status.success(), "{}", said(&slow));
        let output = bed.run(bed.command(&program, library).args(["a1", "a0", "odd@0"]));
        assert!(output.status.success(), "{library:?}: {} {}", output.status, said(&output));
        said(&output)
    };
    let theirs = run(Library::System);
    assert!(theirs.contains("one was refused: 1"), "{theirs}");
    assert_eq!(run(Library::DropIn), theirs);
}
