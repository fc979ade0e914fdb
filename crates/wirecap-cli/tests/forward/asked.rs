//! Requests to a running `forward` over its control socket, as for a capture.

use std::process::{self, Command};

use rustix::process::Signal;
use serde_json::Value;
use wirecap_testbed::{Stamp, Traffic, privileged, wait_until};

use crate::bed::{Bed, ENGINES, WIRECAP, at};

/// Runs a command on forwarding's control socket. Returns its exit status and output.
fn ask(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(WIRECAP).args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn the_filter_of_a_running_forward_changes_and_drop_stays() {
    if !privileged() {
        return;
    }
    for engine in ENGINES {
        let mut bed = Bed::new(1, 1500);
        let name = format!("test-{}-{engine}", process::id());
        let forwarder = bed.forward(&format!(
            "--engine {engine} -R 64 --name {name} --filter tcp --drop udp_port_7"
        ));
        let status = || {
            let (status, text) = ask(&["status", &name, "--json"]);
            assert_eq!(status, Some(0), "{text}");
            serde_json::from_str::<Value>(&text).unwrap()
        };
        wait_until("forwarding can be asked", || ask(&["status", &name]).0 == Some(0));
        let frame = |destination_port| {
            Traffic { destination_port, ..Traffic::to(&bed.inline.right.interface) }
                .frame(Stamp { queue: 0, sequence: 0 })
        };
        let frames: Vec<Vec<u8>> = [7, 9, 9].map(frame).to_vec();
        // Only xdp counts non-matching packets.
        let counts_all = engine == "xdp";
        if counts_all {
            bed.send(&frames);
            wait_until("all are seen", || at(&status(), "/ledger/filtered") == 3);
        }
        assert_eq!(ask(&["filter", &name, "udp"]), (Some(0), String::new()));
        bed.send(&frames);
        bed.wait_for_arrivals(2);
        wait_until("all are seen", || !counts_all || at(&status(), "/ledger/filtered") == 4);
        forwarder.signal(Signal::USR1);
        forwarder.wait_for("so far:");
        let (code, text) = ask(&["stop", &name]);
        assert!(
            code == Some(0) && text.contains("2 packets delivered; lossless: yes"),
            "{code:?} {text}"
        );
        let ledger = forwarder.finish().ledger();
        assert_eq!(at(&ledger, "/delivered"), 2, "{ledger}");
        assert!(!counts_all || at(&ledger, "/filtered") == 4, "{ledger}");
        bed.check_books(&ledger);
    }
}
