//! Filters on the command line.

mod recording;

use std::fs;
use std::path::Path;
use std::process::Command;

use recording::{Bed, WIRECAP, tcpdump, tshark};
use tempfile::TempDir;
use wirecap_testbed::{Load, privileged};

/// Matches every other frame of the test bed's sender: those whose sequence number is odd.
const ODD: [&str; 6] = ["udp", "and", "ether[55]", "&", "1", "=1"];

fn wirecap(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(WIRECAP).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Records half of 5,000 frames. The file names the filter.
fn record(engine: &str) -> (TempDir, String, serde_json::Value) {
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("odd.pcapng").display().to_string();
    let options =
        ["capture", "-i", "a1", "--engine", engine, "-w", &file, "-M", "64", "-R", "512", "--json"];
    let running = bed.capture(&[&options[..], &ODD].concat());
    // On a veth, AF_PACKET receives the generator's frames only if an XDP program passes them.
    let _pass =
        (engine == "packet").then(|| wirecap_testbed::pass_program(&bed.pair.receiver).unwrap());
    bed.generator().send(&[Load::new(0, 5000)]).unwrap();
    let finished = running.interrupt();
    finished.assert_success();
    let ledger = finished.ledger();
    (directory, file, ledger)
}

#[test]
fn a_filtered_file_has_matching_packets_and_names_the_filter() {
    if !privileged() {
        return;
    }
    for (engine, filtered) in [("xdp", 2500.into()), ("packet", serde_json::Value::Null)] {
        let (_directory, file, ledger) = record(engine);
        assert_eq!(
            (&ledger["delivered"], &ledger["offered"]),
            (&2500.into(), &2500.into()),
            "{ledger}"
        );
        assert_eq!(ledger["filtered"], filtered, "{ledger}");
        let (lines, whole) = tcpdump(Path::new(&file), &[]);
        assert!(whole && lines.len() == 2500, "{} packets", lines.len());
        let (matching, _) = tcpdump(Path::new(&file), &ODD);
        assert_eq!(matching.len(), 2500);
        let filters = tshark(Path::new(&file), &["frame.interface_name"]);
        assert_eq!(filters.len(), 2500);
        let info = Command::new("capinfos").args(["-I", &file]).output().unwrap();
        let info = String::from_utf8(info.stdout).unwrap();
        assert!(info.contains("udp and ether[55] & 1 =1"), "{info}");
    }
}

#[test]
fn a_savefile_is_filtered_as_it_is_read() {
    if !privileged() {
        return;
    }
    let (_directory, file, _) = record("xdp");
    let (status, json, _) = wirecap(&["count", "-r", &file, "--json", "ether[55] & 2 = 2"]);
    let ledger: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(status, Some(0));
    assert_eq!(
        (&ledger["seen"], &ledger["delivered"], &ledger["filtered"]),
        (&2500.into(), &1250.into(), &1250.into())
    );
}

#[test]
fn a_bad_filter_is_named_and_nothing_is_changed() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("never.pcapng");
    let file = path.to_str().unwrap();
    let (status, _, said) = wirecap(&["capture", "-i", "lo", "-w", file, "udp", "port", "zork"]);
    let text = "wirecap: unknown port 'zork' in the filter \"udp port zork\"; see pcap-filter(7)\n";
    assert_eq!((status, &*said), (Some(2), text));
    assert!(!path.exists(), "a file was made");

    let program = directory.path().join("program");
    fs::write(&program, "1\n0 0 0 0\n").unwrap();
    let (status, _, said) =
        wirecap(&["count", "-i", "lo", "--bpf-program", program.to_str().unwrap()]);
    assert!(status == Some(2) && said.contains("does not end with ret"), "{said}");
    let (status, _, said) = wirecap(&["count", "-i", "lo", "--bpf-program", "/no/such/file"]);
    assert!(status == Some(1) && said.contains("/no/such/file"), "{said}");
}

#[test]
fn a_program_printed_by_tcpdump_filters_and_one_for_live_packets_is_rejected_for_a_file() {
    if !privileged() {
        return;
    }
    let (directory, file, _) = record("xdp");
    let path = directory.path().join("program");
    let run = |program: &str| {
        fs::write(&path, program).unwrap();
        wirecap(&["count", "-r", &file, "--json", "--bpf-program", path.to_str().unwrap()])
    };
    // ether[55] = 3, which one in 256 sequence numbers has.
    let (status, json, _) = run("4\n48 0 0 55\n21 0 1 3\n6 0 0 96\n6 0 0 0\n");
    let ledger: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((status, &ledger["delivered"]), (Some(0), &20.into()), "{ledger}");
    // The interface index.
    let (status, _, said) = run("2\n32 0 0 4294963208\n22 0 0 0\n");
    assert!(status == Some(1) && said.contains("[ifidx]") && said.contains("odd.pcapng"), "{said}");
}

#[test]
fn without_libpcap_a_filter_names_the_package_and_everything_else_works() {
    let directory = TempDir::new().unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(WIRECAP)
            .args(arguments)
            .env("WIRECAP_LIBPCAP", directory.path().join("none.so"))
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, said) = run(&["count", "-i", "lo", "udp"]);
    assert!(status == Some(1) && said.contains("libpcap0.8") && said.contains("none.so"), "{said}");
    assert_eq!(run(&["devices"]).0, Some(0));
}
