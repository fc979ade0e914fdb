//! `wirecap demo`: its verdict, and what it leaves behind however it ends: nothing.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use common::{Running, start, wait_until, wirecap, wirecap_unprivileged};
use wirecap::bpf::Link;
use wirecap_testbed::{Namespace, loss_lock, privileged};

#[test]
fn the_books_balance_and_the_story_is_told() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let demo = wirecap(&Namespace::new().unwrap(), &["demo"]);
    assert_eq!((demo.status, demo.stderr.as_str()), (Some(0), ""), "{demo:#?}");
    let said = |words: &str| demo.stdout.matches(words).count();
    assert_eq!(said("the sender's count equals the ledger: yes"), 2, "{}", demo.stdout);
    assert_eq!(said("every packet came once, in the order of its ring: yes"), 1, "{}", demo.stdout);
    assert_eq!(said("exactly the packets beyond R x M were lost: yes"), 1, "{}", demo.stdout);
    assert_eq!(said("\x1b"), 0, "no terminal, no escape sequences");
    // Both acts put the sender's count directly above the ledger's.
    let lines: Vec<&str> = demo.stdout.lines().collect();
    let number = |line: &str| line.split_whitespace().next_back().unwrap().replace(',', "").parse::<u64>();
    let books = lines.windows(2).filter(|pair| pair[0].contains("by the counters of a0 itself"));
    let books: Vec<_> = books.map(|pair| (number(pair[0]).unwrap(), number(pair[1]).unwrap())).collect();
    assert_eq!(books.len(), 2, "{}", demo.stdout);
    assert!(books.iter().all(|(sent, offered)| sent == offered && *sent > 0), "{books:?}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{}", demo.stdout);
}

#[test]
fn whoever_interrupts_it_is_obeyed_and_nothing_stays() {
    if !privileged() {
        return;
    }
    for signal in ["-INT", "-TERM"] {
        let demo = start(&Namespace::new().unwrap(), &["demo"]);
        let belongings = Belongings::of(&demo);
        demo.signal(signal);
        let demo = demo.finish();
        assert_eq!(
            (demo.status, demo.stderr.as_str()),
            (Some(1), "wirecap: interrupted; the test bed is removed\n")
        );
        belongings.are_gone();
    }
}

#[test]
fn a_killed_demo_leaves_no_namespace_link_or_program() {
    if !privileged() {
        return;
    }
    // At any time: while the test bed is built, and while packets are captured.
    for after_ms in [Some(0), Some(30), Some(100), None] {
        let demo = start(&Namespace::new().unwrap(), &["demo"]);
        let belongings = match after_ms {
            Some(after_ms) => {
                thread::sleep(Duration::from_millis(after_ms));
                Belongings::now(&demo)
            }
            None => Belongings::of(&demo),
        };
        demo.signal("-KILL");
        assert_eq!(demo.finish().status, None);
        belongings.are_gone();
    }
}

#[test]
fn without_privileges_it_says_what_is_missing() {
    if !privileged() {
        return;
    }
    let demo = wirecap_unprivileged(&Namespace::new().unwrap(), &["demo"]);
    demo.refused(1, &["cannot make a network namespace", "run as root", "CAP_SYS_ADMIN"]);
}

/// Kernel objects that a process holds.
#[derive(Debug)]
struct Belongings {
    /// As in `net:[4026532000]`.
    namespaces: BTreeSet<String>,
    links: BTreeSet<u32>,
}

impl Belongings {
    /// What the demo holds as soon as it captures.
    fn of(demo: &Running) -> Self {
        let mut belongings = Self::now(demo);
        wait_until("the demo captures", || {
            belongings = Self::now(demo);
            !belongings.links.is_empty()
        });
        assert!(belongings.namespaces.len() >= 2, "{belongings:?}");
        belongings
    }

    fn now(demo: &Running) -> Self {
        let process = Path::new("/proc").join(demo.pid().to_string());
        let link =
            |info: String| info.lines().find_map(|line| line.strip_prefix("link_id:")?.trim().parse().ok());
        Self {
            namespaces: namespaces_of(&process),
            links: entries(&process.join("fdinfo")).flat_map(fs::read_to_string).filter_map(link).collect(),
        }
    }

    /// Waits until nobody holds them. The kernel removes a namespace, and the interfaces in it, with its
    /// last holder.
    fn are_gone(&self) {
        let is_gone = |link| Link::by_id(link).is_err_and(|error| error.errno() == Some(libc::ENOENT));
        wait_until("the demo's links and their programs are gone", || {
            self.links.iter().copied().all(is_gone)
        });
        wait_until("the demo's namespaces are gone", || {
            let is_process = |path: &std::path::PathBuf| path.join("ns").exists();
            entries(Path::new("/proc"))
                .filter(is_process)
                .all(|process| self.namespaces.is_disjoint(&namespaces_of(&process)))
        });
    }
}

/// The network namespaces, beside the test's, that a process is in or holds a descriptor of.
fn namespaces_of(process: &Path) -> BTreeSet<String> {
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    entries(&process.join("fd"))
        .chain([process.join("ns/net")])
        .chain(entries(&process.join("task")).map(|task| task.join("ns/net")))
        .flat_map(fs::read_link)
        .filter(|target| *target != own)
        .filter_map(|target| target.to_str().filter(|text| text.starts_with("net:[")).map(str::to_owned))
        .collect()
}

/// What is in the directory, if it is still there.
fn entries(directory: &Path) -> impl Iterator<Item = std::path::PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}
