//! Network namespaces, and commands that configure them.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// Another network namespace than the test's own.
pub(crate) struct Namespace(File);

impl Namespace {
    pub(crate) fn new() -> Self {
        std::thread::scope(|scope| {
            let namespace = scope.spawn(|| {
                enter_new_namespace();
                Self(File::open("/proc/thread-self/ns/net").expect("the namespace"))
            });
            namespace.join().expect("a namespace")
        })
    }

    /// A path that `ip link set netns` takes.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs `body` in a thread in this namespace.
    pub(crate) fn enter<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let kind = Some(LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(self.0.as_fd(), kind)
                    .expect("the namespace");
                body()
            });
            thread.join().expect("the thread in the namespace")
        })
    }
}

/// Runs `body` in a new network namespace, which is removed when it returns.
pub(crate) fn in_new_namespace(body: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        wirecap_testbed::skip("root, to make a network namespace");
        return;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            enter_new_namespace();
            body();
        });
    });
}

#[allow(unsafe_code)]
fn enter_new_namespace() {
    // SAFETY: NEWNET replaces this thread's network namespace and neither its memory nor its
    // descriptors.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.expect("a new namespace");
}

/// Runs `ip` with these arguments in the thread's namespace.
pub(crate) fn ip(words: &str) {
    run("ip", words);
}

/// Runs a program with these arguments in the thread's namespace; returns its output.
pub(crate) fn run(program: &str, words: &str) -> String {
    let output = Command::new(program).args(words.split_whitespace()).output().expect(program);
    assert!(
        output.status.success(),
        "{program} {words}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// A pair `a0`, `a1` with this number of queues, both up, without addresses.
pub(crate) fn make_pair(queues: u32) {
    let ends = format!("numtxqueues {queues} numrxqueues {queues}");
    ip(&format!("link add a0 {ends} type veth peer name a1 {ends}"));
    for end in ["a0", "a1"] {
        ip(&format!("link set {end} addrgenmode none"));
        ip(&format!("link set {end} up"));
    }
}

/// The sum of the statistics of `ethtool -S` whose names match: an independent account.
pub(crate) fn ethtool_sum(interface: &str, matches: impl Fn(&str) -> bool) -> u64 {
    let counters = run("ethtool", &format!("-S {interface}"));
    let counters = counters.lines().filter_map(|line| line.trim().split_once(": "));
    counters
        .filter(|(name, _)| matches(name))
        .map(|(_, value)| value.parse::<u64>().expect("a number"))
        .sum()
}

/// A counter of `ip -s -s link`'s JSON, as `"dropped":5` in the half `rx` or `tx`.
pub(crate) fn link_counter(interface: &str, half: &str, counter: &str) -> u64 {
    let json = run("ip", &format!("-s -s -j link show {interface}"));
    let after =
        |text: &str, key: &str| text.split_once(&format!("\"{key}\":")).expect(key).1.to_owned();
    let half = after(&after(&json, "stats64"), half);
    let value = after(&half, counter);
    value.split([',', '}']).next().and_then(|digits| digits.parse().ok()).expect("a number")
}
