//! What a handle costs that is not read.

mod common;

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Bed, Library, compile, finish, said};
use wirecap_testbed::privileged;

/// Routes and pairs of interfaces of a busy host.
const ROUTES: u32 = 50_000;
const PAIRS: u32 = 50;

/// The numbers that the program says, by their names.
fn cost(bed: &Bed, program: &Path, library: Library, snap_len: &str) -> impl Fn(&str) -> u64 {
    let output = bed.run(bed.command(program, library).args(["a1", snap_len, "9"]));
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
    // What looks at headers only gets as much memory as from libpcap, to a block.
    let (theirs, ours) =
        (cost(&bed, &program, Library::System, "68"), cost(&bed, &program, Library::DropIn, "68"));
    assert!(ours("ring_kib") <= theirs("ring_kib") + 256);
    assert_eq!(ours("promiscuity"), theirs("promiscuity"));
    assert!(ours("descriptors") <= 6);
    // What asks for whole packets gets eight times as much, and nothing else is different.
    assert!(cost(&bed, &program, Library::DropIn, "262144")("ring_kib") > 16_000);
}

#[test]
fn opening_time_does_not_depend_on_the_hosts_routes_and_interfaces() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("cost.c", folder.path(), &[]);
    let bed = Bed::new();
    let before = cost(&bed, &program, Library::DropIn, "68")("micros");
    let mut commands = "addr add 10.255.0.1/24 dev a0\n".to_owned();
    for n in 0..PAIRS {
        writeln!(commands, "link add v{n} type veth peer name w{n}").unwrap();
    }
    for n in 0..ROUTES {
        let [_, a, b, c] = n.to_be_bytes();
        writeln!(commands, "route add 11.{a}.{b}.{c}/32 dev a0").unwrap();
    }
    let path = folder.path().join("commands");
    std::fs::write(&path, commands).unwrap();
    let output = finish(bed.spawn(Command::new("ip").arg("-b").arg(path).stderr(Stdio::piped())));
    assert!(output.status.success(), "{}", said(&output));
    let crowded = cost(&bed, &program, Library::DropIn, "68")("micros");
    assert!(crowded < before * 2 + 20_000, "{before} us, in a crowd {crowded} us");
}

#[test]
fn a_handle_that_is_never_read_costs_no_wake_up() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("unread.c", folder.path(), &[]);
    for library in [Library::System, Library::DropIn] {
        let bed = Bed::new();
        let output = bed.run(bed.command(&program, library).args(["a1", "a0"]));
        let told = String::from_utf8_lossy(&output.stdout);
        assert_eq!(told, "threads 1\nwoken 0\nreceived 1\n", "{library:?}: {}", said(&output));
    }
}
