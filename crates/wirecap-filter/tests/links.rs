//! A search for links while another thread attaches and detaches links. It is a separate test
//! program because a search holds each link open for a moment, so links of other tests would stay
//! attached after their owners closed them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use wirecap_filter::bpf::asm::{Assembler, Reg::*};
use wirecap_filter::bpf::{Link, LoadOptions, Program, ProgramKind, XDP_PASS, XdpMode, links};
use wirecap_testbed::{Namespace, VethPair, privileged};

const ATTACHED: u64 = 20;
const SEARCHES_MAX: u64 = 10_000_000;

#[test]
fn a_search_skips_links_that_are_being_attached_or_detached() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new().expect("a namespace");
    let pair = VethPair::new((&namespace, "a0"), (&namespace, "a1"), 1, 1500).expect("a pair");
    let mut code = Assembler::new();
    code.mov(R0, XDP_PASS).exit();
    let program = Program::load(
        ProgramKind::Xdp,
        "attach",
        &code.finish().expect("a program"),
        LoadOptions::default(),
    )
    .expect("loaded");
    let attached = AtomicU64::new(0);
    let ended = AtomicU64::new(0);
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            let attach_all = || {
                while ended.load(Ordering::Relaxed) == 0 {
                    // The interface stays busy while a search has its last link open.
                    let link = Link::attach_xdp(&program, pair.receiver.index, XdpMode::Native);
                    attached.fetch_add(link.is_ok().into(), Ordering::Relaxed);
                }
            };
            namespace.run_in(attach_all).expect("in the namespace");
        });
        let mut searches = 0;
        let outcome = loop {
            searches += 1;
            let outcome = links();
            let is_enough =
                attached.load(Ordering::Relaxed) >= ATTACHED || searches >= SEARCHES_MAX;
            if outcome.is_err() || is_enough {
                break outcome;
            }
        };
        ended.store(1, Ordering::Relaxed);
        outcome
    });
    outcome.expect("no search fails for a link that comes or goes");
    assert!(attached.into_inner() >= ATTACHED, "links came and went");
}
