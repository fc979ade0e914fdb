//! `wirecap devices` on interfaces created for the test.

mod common;

use common::{Bed, wirecap, wirecap_unprivileged};
use wirecap_testbed::{pass_program, privileged};

#[test]
fn an_interface_with_an_address_or_with_another_program_is_for_packet() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(4);
    bed.sender().add_address("192.0.2.1/24").unwrap();
    let _program = pass_program(&bed.pair.receiver).unwrap();
    let near = wirecap(&bed.near, &["devices", "--json"]).json();
    let far = wirecap(&bed.far, &["devices", "--json"]).json();
    let named = |list: &serde_json::Value, name: &str| {
        list.as_array().unwrap().iter().find(|device| device["name"] == name).cloned().unwrap()
    };

    let lo = named(&near, "lo");
    let a0 = named(&near, "a0");
    let a1 = named(&far, "a1");
    assert_eq!((&lo["state"], &lo["engine"]), (&"down".into(), &"packet".into()), "{lo}");

    assert_eq!((&a0["engine"], &a0["rung"]), (&"packet".into(), &serde_json::Value::Null), "{a0}");
    assert_eq!(a0["addresses"], serde_json::json!(["192.0.2.1/24"]), "{a0}");
    assert!(a0["why"].as_str().unwrap().contains("192.0.2.1/24"), "{a0}");

    // A program that is no capture's.
    assert_eq!((&a1["engine"], &a1["mark"]), (&"packet".into(), &"dedicated".into()), "{a1}");
    assert!(a1["why"].as_str().unwrap().contains("an XDP program of another program"), "{a1}");
    assert_eq!(
        (&a1["state"], &a1["driver"], &a1["kind"]),
        (&"up".into(), &"veth".into(), &"veth".into())
    );
    assert_eq!((&a1["rx_queues"], &a1["mtu"]), (&4.into(), &1500.into()), "{a1}");
    assert_eq!(a1["index"], bed.pair.receiver.index, "{a1}");
    assert!(a1["speed_mbps"].is_null(), "a veth has no speed: {a1}");
    assert_eq!(a1["attached_xdp"][0]["mode"], "native", "{a1}");
}

#[test]
fn the_table_has_a_row_and_a_reason_for_each_interface() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let table = wirecap(&bed.far, &["devices"]);
    assert_eq!((table.status, table.stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = table.stdout.lines().collect();
    assert!(lines[0].starts_with("name ") && lines[0].ends_with("addresses"), "{lines:#?}");
    let row = lines.iter().position(|line| line.starts_with("a1 ")).unwrap();
    assert_eq!(
        lines[row].split_whitespace().collect::<Vec<_>>(),
        ["a1", "up", "veth", "2", "1500", "-"]
    );
    assert!(
        lines[row + 1]
            .starts_with("  auto selects xdp (native copy): dedicated; veth has native XDP"),
        "{lines:#?}"
    );
}

#[test]
fn devices_needs_no_privileges() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let root = wirecap(&bed.far, &["devices"]);
    let unprivileged = wirecap_unprivileged(&bed.far, &["devices"]);
    assert_eq!(unprivileged.status, Some(0));
    // What only a privileged process can see is named.
    assert!(unprivileged.stdout.starts_with(root.stdout.trim_end()), "{unprivileged:#?} {root:#?}");
    assert!(unprivileged.stdout.contains("not known: tcx programs"), "{unprivileged:#?}");
}
