//! A capture that a signal handler stops; versions, statuses, interfaces and structures of other
//! sizes; static and dynamic linking.

mod common;

use std::process::Command;

use common::{Bed, compile, installed, pkg_config, said, sources, succeed};
use wirecap_testbed::privileged;

const EXPECTED: &str = "version: 1, 1\nstatus: no such interface or queue, or it is down or gone; unknown status\n\
    devices: 2, found: 1, none asked for: 2\na size that cannot be: 1\npromiscuous: 0\n\
    promiscuous: 1\nlarger: 1, 1, 1\nsmaller: 1, 1, 1\nthe same descriptor: 1\nnext: the capture has ended\nclose: 0\n";

#[test]
fn a_signal_handler_stops_a_capture() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let linked = compile("tests/signals.c", folder.path(), &[]);
    let alone = folder.path().join("static");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-o"]).arg(&alone).arg(sources().join("tests/signals.c"));
    compiler.args(pkg_config(&["--cflags"])).arg(installed().join("usr/local/lib/libwirecap.a"));
    succeed(compiler.args(["-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lgcc_s"]));
    for program in [linked, alone] {
        let bed = Bed::new(1);
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", installed().join("usr/local/lib")).arg("a1");
        let output = bed.receiver.run_in(|| command.output()).unwrap().unwrap();
        assert_eq!(said(&output), EXPECTED);
    }
}
