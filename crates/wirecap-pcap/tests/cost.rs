//! The resources that a handle uses.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{Bed, Library, compile, finish, said};
use wirecap_testbed::privileged;

/// Routes and pairs of interfaces of a busy host: by default fewer than `WIRECAP_HOST=1000000,500`.
const ROUTES_AND_PAIRS: [u32; 2] = [50_000, 50];

/// So that each run of ip(8) ends in time.
const COMMANDS_AT_A_TIME: usize = 50_000;

fn routes_and_pairs() -> [u32; 2] {
    let Ok(text) = std::env::var("WIRECAP_HOST") else { return ROUTES_AND_PAIRS };
    let (routes, pairs) = text.split_once(',').expect("ROUTES,PAIRS");
    [routes, pairs].map(|number| number.parse().expect("a number"))
}

/// The numbers that the program prints, by name.
fn cost(bed: &Bed, program: &Path, library: Library, snap_len: &str) -> impl Fn(&str) -> u64 {
    let output = bed.run(bed.command(program, library).args(["a1", snap_len]));
    assert!(output.status.success(), "{library:?}: {}", said(&output));
    let text = said(&output);
    eprintln!("{library:?} {snap_len}: {}", text.replace('\n', ", "));
    move |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("it says so");
        line.trim().parse().unwrap()
    }
}

#[test]
fn a_handle_uses_no_more_resources_than_requested() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("cost.c", folder.path(), &[]);
    let bed = Bed::new();
    // A program that reads only headers gets as much memory as with libpcap, up to one block more.
    let theirs = cost(&bed, &program, Library::System, "68");
    let ours = cost(&bed, &program, Library::DropIn, "68");
    assert!(ours("ring_kib") <= theirs("ring_kib") + 256);
    assert_eq!(ours("promiscuity"), theirs("promiscuity"));
    assert!(ours("descriptors") <= 6);
    // A program that requests complete packets gets eight times as much.
    assert!(cost(&bed, &program, Library::DropIn, "262144")("ring_kib") > 16_000);
}

#[test]
fn opening_does_not_query_the_hosts_routes_and_interfaces() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("cost.c", folder.path(), &[]);
    let bed = Bed::new();
    let before = cost(&bed, &program, Library::DropIn, "68");
    let [routes, pairs] = routes_and_pairs();
    let pair = |n| format!("link add v{n} type veth peer name w{n}\n");
    let route = |n: u32| {
        let [_, a, b, c] = n.to_be_bytes();
        format!("route add 11.{a}.{b}.{c}/32 dev a0\n")
    };
    let address = "addr add 10.255.0.1/24 dev a0\n".to_owned();
    let commands: Vec<String> = std::iter::once(address)
        .chain((0..pairs).map(pair))
        .chain((0..routes).map(route))
        .collect();
    let path = folder.path().join("commands");
    for some in commands.chunks(COMMANDS_AT_A_TIME) {
        std::fs::write(&path, some.concat()).unwrap();
        let output =
            finish(bed.spawn(Command::new("ip").arg("-b").arg(&path).stderr(Stdio::piped())));
        assert!(output.status.success(), "{}", said(&output));
    }
    let crowded = cost(&bed, &program, Library::DropIn, "68");
    assert!(before("bytes") > 0);
    for number in ["calls", "bytes"] {
        assert_eq!(crowded(number), before(number), "{number}");
    }
}

/// The program's output with a library; `packets` has the number of packets and the microseconds
/// between them.
fn wake_ups(
    program: &Path,
    library: Library,
    engine: &str,
    packets: [&str; 2],
    mode: &str,
) -> String {
    let bed = Bed::new();
    let mut command = bed.command(program, library);
    let output =
        bed.run(command.args(["a1", "a0"]).args(packets).arg(mode).env("WIRECAP_ENGINE", engine));
    eprint!("{library:?} {engine} {mode} {packets:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{library:?} {engine}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_handle_that_is_never_read_costs_no_wake_up() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("wakeups.c", folder.path(), &[]);
    for library in [Library::System, Library::DropIn] {
        let printed = wake_ups(&program, library, "packet", ["2000", "500"], "unread");
        assert_eq!(printed, "threads 1\nwoken 0\nreceived 1\n", "{library:?}");
    }
}

#[test]
fn a_reader_wakes_no_more_often_than_packets_and_timeouts_require() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("wakeups.c", folder.path(), &[]);
    for packets in [["2000", "500"], ["20", "100000"]] {
        let theirs = wake_ups(&program, Library::System, "", packets, "read");
        assert_eq!(theirs, "read 1\nwoken too often 0\n");
        for engine in ["packet", "xdp"] {
            let ours = wake_ups(&program, Library::DropIn, engine, packets, "read");
            assert_eq!(ours, theirs, "{engine} {packets:?}");
        }
    }
}
