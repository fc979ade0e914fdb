//! `wirecap demo`: its result, and that it leaves no kernel objects, no matter how it ends.

mod common;

use std::thread;
use std::time::Duration;

use common::belongings::Belongings;
use common::{start, wirecap, wirecap_unprivileged};
use wirecap_testbed::{Namespace, loss_lock, privileged};

#[test]
fn the_counts_of_the_demo_balance() {
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
    // Both parts print the sender's count directly above the ledger's.
    let lines: Vec<&str> = demo.stdout.lines().collect();
    let number =
        |line: &str| line.split_whitespace().next_back().unwrap().replace(',', "").parse::<u64>();
    let books = lines.windows(2).filter(|pair| pair[0].contains("by the counters of a0 itself"));
    let books: Vec<_> =
        books.map(|pair| (number(pair[0]).unwrap(), number(pair[1]).unwrap())).collect();
    assert_eq!(books.len(), 2, "{}", demo.stdout);
    assert!(books.iter().all(|(sent, offered)| sent == offered && *sent > 0), "{books:?}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{}", demo.stdout);
}

#[test]
fn an_interrupted_demo_ends_and_cleans_up() {
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
    // The demo is killed while it builds the test bed, and while it captures packets.
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
fn without_privileges_the_error_names_the_missing_one() {
    if !privileged() {
        return;
    }
    let demo = wirecap_unprivileged(&Namespace::new().unwrap(), &["demo"]);
    demo.refused(1, &["cannot make a network namespace", "run as root", "CAP_SYS_ADMIN"]);
}
