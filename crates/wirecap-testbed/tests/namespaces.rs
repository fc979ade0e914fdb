//! No part of a test bed remains after it ends for any reason.
//!
//! The witness is a veth end in a second namespace, which disappears with the namespace of its
//! peer.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use wirecap_filter::bpf::links;
use wirecap_testbed::{
    Generator, Interface, Load, Namespace, Traffic, VethPair, loss_lock, pass_program, privileged,
    uninterrupted,
};

/// Passes the witness's namespace to the child process.
const WITNESS_PATH: &str = "WIRECAP_TESTBED_WITNESS";

/// Time limit on a busy machine: the kernel removes namespaces one after the other.
const PATIENCE: Duration = Duration::from_secs(60);

fn witness_vanishes(namespace: &Namespace) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if Interface::find(namespace, "witness").is_err() {
            return true;
        }
        thread::sleep(Duration::from_millis(2));
    }
    false
}

#[test]
fn a_namespace_and_its_interfaces_end_with_the_last_handle() {
    if !privileged() {
        return;
    }
    let there = Namespace::new().expect("a namespace");
    let here = Namespace::new().expect("a namespace");
    let pair = VethPair::new((&here, "a0"), (&there, "witness"), 1, 1500).expect("a pair");
    drop(here);
    assert!(
        Interface::find(&there, "witness").is_ok(),
        "the pair's sending end holds its namespace"
    );
    drop(pair);
    assert!(witness_vanishes(&there));
}

#[test]
fn a_panic_leaves_nothing() {
    if !privileged() {
        return;
    }
    let there = Namespace::new().expect("a namespace");
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let here = Namespace::new().expect("a namespace");
        let pair = VethPair::new((&here, "a0"), (&there, "witness"), 1, 1500).expect("a pair");
        let mut generator =
            Generator::new(&pair.sender, &Traffic::to(&pair.receiver)).expect("a generator");
        let _run = generator.start(&[Load::endless(0)]).expect("a run");
        here.run_in(|| panic!("on purpose")).expect("in the namespace");
    }));
    let message = panicked.expect_err("a panic").downcast::<&str>().expect("its message");
    assert_eq!(*message, "on purpose");
    assert!(witness_vanishes(&there));
}

#[test]
fn a_killed_process_leaves_neither_namespace_nor_program() {
    if !privileged() {
        return;
    }
    let there = Namespace::new().expect("a namespace");
    let mut child = Command::new(env::current_exe().expect("this test"))
        .args(["--exact", "child_that_holds_a_test_bed", "--ignored", "--nocapture"])
        .env(WITNESS_PATH, there.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut lines = lines.map(|line| line.expect("a line"));
    let programs = lines.find_map(|line| line.strip_prefix("attached: ").map(str::to_owned));
    assert!(Interface::find(&there, "witness").is_ok());
    let programs: Vec<u32> =
        programs.expect("a test bed").split(' ').map(|id| id.parse().expect("an id")).collect();
    assert_eq!(programs.len(), 1);

    child.kill().expect("killed");
    child.wait().expect("waited for");
    assert!(witness_vanishes(&there));
    let attached = links().expect("a search");
    assert!(attached.iter().all(|(_, link)| !programs.contains(&link.program_id)));
}

/// Not a test itself: the process that `a_killed_process_leaves_neither_namespace_nor_program`
/// kills.
#[test]
#[ignore = "started by another test"]
fn child_that_holds_a_test_bed() {
    let Some(witness_path) = env::var_os(WITNESS_PATH) else { return };
    let there = Namespace::at(Path::new(&witness_path)).expect("the witness's namespace");
    let here = Namespace::new().expect("a namespace");
    let pair = VethPair::new((&here, "a0"), (&there, "witness"), 1, 1500).expect("a pair");
    let link = pass_program(&pair.receiver).expect("a program");
    let mut generator =
        Generator::new(&pair.sender, &Traffic::to(&pair.receiver)).expect("a generator");
    let _run = generator.start(&[Load::endless(0).per_second(10_000)]).expect("a run");
    println!("\nattached: {}", link.info().expect("its description").program_id);
    thread::sleep(3 * PATIENCE);
}

#[test]
fn the_callers_thread_stays_where_it_is() {
    if !privileged() {
        return;
    }
    let namespace_of_thread = || fs::read_link("/proc/thread-self/ns/net").expect("/proc");
    let before = namespace_of_thread();
    let namespace = Namespace::new().expect("a namespace");
    let inside = namespace.run_in(namespace_of_thread).expect("in the namespace");
    assert_ne!(inside, before);
    assert_eq!(namespace_of_thread(), before);
    let by_path = Namespace::at(&namespace.path()).expect("the same");
    assert_eq!(by_path.run_in(namespace_of_thread).expect("in the namespace"), inside);
}

#[test]
fn hosts_with_addresses_talk_to_each_other() {
    if !privileged() {
        return;
    }
    let here = Namespace::new().expect("a namespace");
    let there = Namespace::new().expect("a namespace");
    let pair = VethPair::new((&here, "a0"), (&there, "a1"), 1, 1500).expect("a pair");
    pair.sender.add_address("10.0.0.1/24").expect("an address");
    pair.receiver.add_address("10.0.0.2/24").expect("an address");
    let socket_at = |namespace: &Namespace, address| {
        namespace
            .run_in(|| UdpSocket::bind((address, 4242)))
            .expect("in the namespace")
            .expect("a socket")
    };
    let near = socket_at(&here, "10.0.0.1");
    let far = socket_at(&there, "10.0.0.2");
    near.send_to(b"hello", ("10.0.0.2", 4242)).expect("sent");
    far.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut buffer = [0; 16];
    let (bytes, from) = uninterrupted(|| far.recv_from(&mut buffer)).expect("received");
    assert_eq!((&buffer[..bytes], from), (&b"hello"[..], ([10, 0, 0, 1], 4242).into()));
    let error = pair.sender.add_address("10.0.0.1/240").expect_err("not an address");
    assert!(error.to_string().contains("10.0.0.1/240"), "{error}");
}

#[test]
fn an_interface_that_is_not_there_is_named_in_the_error() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new().expect("a namespace");
    let error = Interface::find(&namespace, "nothing0").expect_err("there is none");
    assert_eq!(error.to_string(), "cannot describe interface nothing0");
    let taken = VethPair::new((&namespace, "a0"), (&namespace, "a0"), 1, 1500)
        .expect_err("one name for two");
    assert!(taken.to_string().starts_with("`ip link add a0 mtu 1500"), "{taken}");
}

#[test]
fn only_one_at_a_time_holds_the_loss_lock() {
    let lock = loss_lock().expect("the lock");
    thread::scope(|scope| {
        let second = scope.spawn(|| {
            let _lock = loss_lock().expect("the lock");
            Instant::now()
        });
        thread::sleep(Duration::from_millis(50));
        let released = Instant::now();
        drop(lock);
        assert!(second.join().expect("the second") >= released);
    });
}
