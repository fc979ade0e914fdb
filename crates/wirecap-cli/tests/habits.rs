//! Command lines that users of tcpdump and dumpcap type.

mod recording;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use recording::{Bed, Finished, WIRECAP, tcpdump};
use tempfile::TempDir;
use wirecap_testbed::{Load, privileged, wait_until};

fn run(bed: &Bed, arguments: &[&str]) -> Finished {
    bed.run(Command::new(WIRECAP).args(arguments))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_list_of_interfaces_needs_no_interface_and_no_file() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let list = run(&bed, &["devices"]).stdout;
    for arguments in [
        &["-D"][..],
        &["capture", "-D"],
        &["capture", "-D", "-n"],
        &["count", "-D"],
        &["handle", "-D"],
        &["profile", "-D"],
    ] {
        let finished = run(&bed, arguments);
        finished.assert_success();
        assert_eq!(finished.stdout, list, "{arguments:?}");
    }
    run(&bed, &["capture", "-i", "a1"]).assert_refused(2, &["--write"]);
    run(&bed, &["capture", "-w", "x.pcap"]).assert_refused(2, &["--interface"]);
}

#[test]
fn flags_of_tcpdump_are_accepted_and_packets_are_written_immediately() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("t.pcap");
    let flags = [
        "capture",
        "-i",
        "a1",
        "-nn",
        "-l",
        "-q",
        "-U",
        "-s",
        "0",
        "-y",
        "EN10MB",
        "--json",
        "-w",
        text(&file),
    ];
    let running = bed.capture(&flags);
    bed.generator().send(&[Load::new(0, 100)]).unwrap();
    wait_until("all packets are in the file", || tcpdump(&file, &[]).0.len() == 100);
    let finished = running.interrupt();
    finished.assert_success();
    assert_eq!(finished.ledger()["delivered"], 100);
    // Times in nanoseconds, in host byte order.
    assert_eq!(fs::read(&file).unwrap()[..4], 0xa1b2_3c4d_u32.to_ne_bytes());
}

#[test]
fn the_error_of_a_foreign_flag_names_the_flag_to_use() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let refused = |flags: &[&str], words: &[&str]| {
        run(&bed, &[&["capture", "-i", "a1", "-w", "/dev/null"], flags].concat())
            .assert_refused(2, words);
    };
    refused(&["-e"], &["wirecap show"]);
    refused(&["-B", "4096"], &["--buffer 4M"]);
    refused(&["-I"], &["monitor mode"]);
    refused(&["-y", "IEEE802_11"], &["expected EN10MB or RAW"]);
    refused(&["-y", "RAW"], &["the link layer of a1 is not RAW"]);
}

#[test]
fn a_filter_may_be_in_a_file_and_a_savefile_may_come_from_a_pipe() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let folder = TempDir::new().unwrap();
    let [filter, all, some] =
        ["filter", "all.pcap", "some.pcap"].map(|name| folder.path().join(name));
    let running = bed.capture(&["capture", "-i", "a1", "-w", text(&all), "--json"]);
    bed.generator().send(&[Load::new(0, 50)]).unwrap();
    let finished = running.interrupt();
    assert_eq!(finished.ledger()["delivered"], 50);
    for (expression, count) in [("# what the bed sends\nudp   # is UDP\n", 50), ("tcp\n", 0)] {
        fs::write(&filter, expression).unwrap();
        let mut command = Command::new(WIRECAP);
        command.args(["capture", "-r", "-", "--force", "-w", text(&some), "-F", text(&filter)]);
        let status =
            command.stdin(Stdio::from(File::open(&all).unwrap())).stderr(Stdio::null()).status();
        assert!(status.unwrap().success());
        assert_eq!(tcpdump(&some, &[]).0.len(), count, "{expression}");
    }
}

#[test]
fn any_is_every_interface_including_the_loopback() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let folder = TempDir::new().unwrap();
    let ip =
        |arguments: &[&str]| assert!(bed.run(Command::new("ip").args(arguments)).status.success());
    ip(&["link", "set", "lo", "up"]);
    let file = folder.path().join("t.pcapng");
    let flags = [
        "capture",
        "-i",
        "any",
        "--engine",
        "packet",
        "-w",
        text(&file),
        "--json",
        "udp",
        "and",
        "port",
        "9",
    ];
    let running = bed.capture(&flags);
    let socket = bed.receiver.run_in(|| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
    for _ in 0..7 {
        socket.send_to(b"x", "127.0.0.1:9").unwrap();
    }
    let finished = running.interrupt();
    finished.assert_success();
    let ledger = finished.ledger();
    assert_eq!(ledger["delivered"], 7, "{ledger}");
    let interfaces = ledger["interfaces"].as_array().unwrap();
    let counts: Vec<_> = interfaces
        .iter()
        .map(|seen| (seen["name"].as_str().unwrap(), seen["delivered"].as_u64()))
        .collect();
    assert_eq!(counts, [("lo", Some(7)), ("a1", Some(0))]);
    assert_eq!(tcpdump(&file, &[]).0.len(), 7);
}

#[test]
fn durations_have_several_units() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("t.pcap");
    bed.capture(&["capture", "-i", "a1", "-w", text(&file), "--duration", "1h30m"])
        .interrupt()
        .assert_success();
    let refused = run(&bed, &["capture", "-i", "a1", "-w", text(&file), "--duration", "30m1h"]);
    refused.assert_refused(2, &["larger unit"]);
}
