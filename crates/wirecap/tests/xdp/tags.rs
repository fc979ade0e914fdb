//! VLAN tags that a veth's other end hands over beside the frames.

use std::process::Command;

use wirecap::{Capture, Engine, Warning};
use wirecap_testbed::{Namespace, VethPair, privileged};

use crate::bed::{Bed, small};

/// Runs a program that must succeed in a namespace.
fn run(namespace: &Namespace, program: &str, arguments: &str) {
    let run = || Command::new(program).args(arguments.split(' ')).output().unwrap();
    let output = namespace.run_in(run).unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn tags_that_may_be_beside_the_frames_are_warned_about_and_in_the_verdict() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new().unwrap();
    let _pair = VethPair::new((&namespace, "a0"), (&namespace, "a1"), 1, 1500).unwrap();
    for (state, may_be_lost) in [("on", true), ("off", false)] {
        run(&namespace, "ethtool", &format!("-K a0 txvlan {state} tx-vlan-stag-hw-insert {state}"));
        let capture = namespace.run_in(|| small().open()).unwrap().unwrap();
        let ledger = namespace.run_in(|| capture.close()).unwrap();
        let warning = Warning::TagsBeside {
            interface: "a1".to_owned(),
            peer: Some("a0".to_owned()),
            tags_matter: false,
        };
        assert_eq!(ledger.warnings.contains(&warning), may_be_lost, "{:?}", ledger.warnings);
        let verdict = ledger.verdict();
        assert_eq!(verdict.contains("VLAN tags of a1 may be lost"), may_be_lost, "{verdict}");
    }
}

#[test]
fn the_warning_names_the_fix_also_if_the_other_end_is_in_another_namespace() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small());
    let ledger = bed.close(capture);
    let [warning @ Warning::TagsBeside { peer: None, .. }] = &ledger.warnings[..] else {
        panic!("{:?}", ledger.warnings)
    };
    let text = warning.to_string();
    assert!(text.contains("the other end of a1") && !text.contains("  "), "{text}");
    assert!(
        text.ends_with("at that end: ethtool -K PEER txvlan off tx-vlan-stag-hw-insert off"),
        "{text}"
    );
    // The engine `packet` puts tags back in place.
    let capture = bed.open(Capture::on("a1").engine(Engine::Packet));
    let ledger = bed.close(capture);
    assert!(ledger.warnings.is_empty(), "{:?}", ledger.warnings);
}

#[test]
fn what_a_filter_of_tags_missed_is_not_known_where_tags_may_be_lost() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new().unwrap();
    let _pair = VethPair::new((&namespace, "a0"), (&namespace, "a1"), 1, 1500).unwrap();
    let beside = "lossless: yes (VLAN tags of a1 may be lost)";
    let not_known = "lossless: not known (the filter depends on VLAN tags, and those of a1 may be lost: ethtool -K a0 \
                     txvlan off tx-vlan-stag-hw-insert off)";
    let verdict = |filter: &str, later: Option<&str>| {
        let capture = namespace.run_in(|| small().filter(filter).open()).unwrap().unwrap();
        if let Some(filter) = later {
            namespace.run_in(|| capture.set_filter(filter)).unwrap().unwrap();
        }
        namespace.run_in(|| capture.close()).unwrap().verdict()
    };

    for filter in ["vlan 5", "vlan and udp", "not vlan", "not port 22"] {
        assert_eq!(verdict(filter, None), not_known, "what the filter {filter} missed");
    }
    assert_eq!(verdict("udp", Some("vlan 5")), not_known, "a filter set later");
    assert_eq!(verdict("vlan 5", Some("udp")), not_known, "a former filter");
    for filter in ["udp", ""] {
        assert_eq!(verdict(filter, None), beside, "{filter}");
    }

    run(&namespace, "ethtool", "-K a0 txvlan off tx-vlan-stag-hw-insert off");
    assert_eq!(verdict("vlan 5", None), "lossless: yes", "the tags are in the frames");
}
