//! The requests that a broker refuses by its terms alone.

mod body;

use std::fs;
use std::path::{Path, PathBuf};

use body::{LOOPBACK, ask};
use proptest::prelude::*;
use wirecap::Timestamps;
use wirecap::device::DeviceSummary;
use wirecap::filter::Filter;
use wirecap::privileged::{BindMode, HookPlan, Inquiry, Steering};
use wirecap::savefile::LinkType;
use wirecap_broker::{Ask, HookAsk, raw};

fn device() -> DeviceSummary {
    described(LOOPBACK, "lo", 1, 1)
}

fn described(index: u32, name: &str, rx_queues: u32, rx_queues_max: u32) -> DeviceSummary {
    // In the order of its fields, one of which is private.
    let fields =
        (index, name, None::<[u8; 6]>, 65536_u32, rx_queues, rx_queues_max, false, Some(1_u64));
    raw::of_bytes(&raw::to_bytes(&fields)).unwrap()
}

fn steering(queues: &[u32], most: u32, with_most: usize) -> Steering {
    raw::of_bytes(&raw::to_bytes(&(queues, most, with_most))).unwrap()
}

fn plan() -> HookPlan {
    HookPlan {
        device: device(),
        steering: steering(&[0, 3], 2, 1),
        whole: false,
        filter: Some(filter()),
        drop_rejected: true,
        timestamps: Timestamps::Batch,
        promiscuous: true,
        counts_own: true,
    }
}

/// `ip`.
fn filter() -> Filter {
    Filter::parse("4,40 0 0 12,21 0 1 2048,6 0 0 262144,6 0 0 0", LinkType(1)).unwrap()
}

/// A request of each kind that a recording makes.
fn usual() -> Vec<(&'static str, Ask)> {
    let mode = BindMode { zero_copy: true, fragments: false };
    let socket = 3;
    let ifindex = LOOPBACK;
    let hook = 7;
    let on = |ask| Ask::Hook { hook, ask };
    vec![
        ("netlink", Ask::Netlink(Inquiry::Route { groups: 0x51 })),
        ("pool-file", Ask::PoolFile { bytes: 64 << 20 }),
        ("xdp-socket", Ask::XdpSocket),
        ("register-umem", Ask::RegisterUmem { socket, file: 2, bytes: 64 << 20, cell_bytes: 2048 }),
        ("bind-xdp", Ask::BindXdp { socket, ifindex, queue: 3, mode }),
        ("bind-xdp-beside", Ask::BindXdpBeside { socket, first: 4, ifindex, queue: 0 }),
        ("packet-socket", Ask::PacketSocket),
        ("bind-packet", Ask::BindPacket { socket, ifindex }),
        ("promiscuous", Ask::Promiscuous { ifindex }),
        ("promiscuous-also", Ask::PromiscuousAlso { holder: 5, ifindex }),
        ("guarded-hooks", Ask::GuardedHooks { ifindex }),
        ("turn", Ask::AttachLock(device())),
        ("open-hook", Ask::OpenHook { plan: Box::new(plan()), turn: 6 }),
        ("receive", on(HookAsk::Receive { key: 1, socket })),
        ("prepare", on(HookAsk::Prepare(Some(filter())))),
        ("exchange", on(HookAsk::Exchange { turn: 6 })),
        ("claim-queue", on(HookAsk::ClaimQueue { queue: 3 })),
        ("close-queue", on(HookAsk::CloseQueue { queue: 3, keys: vec![6, 7] })),
        ("move-to", on(HookAsk::MoveTo(device()))),
        ("leave", on(HookAsk::Leave)),
        ("release", Ask::Release { object: 6 }),
        ("run", Ask::Run { path: b"/var/lib/recordings/t-1.pcapng".to_vec() }),
    ]
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/broker_requests")
}

/// The stored corpus of the fuzz target.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let entries =
        fs::read_dir(folder()).unwrap_or_else(|error| panic!("{}: {error}", folder().display()));
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn the_requests_of_a_recording_are_permitted_and_in_the_corpus() {
    let corpus = corpus();
    for (name, usual) in usual() {
        let bytes = raw::to_bytes(&usual);
        let permitted = ask(&bytes).unwrap_or_else(|| panic!("{usual:?} is refused"));
        assert_eq!(raw::to_bytes(&permitted), bytes);
        let stored = corpus.iter().find(|(stored, _)| stored == name);
        assert!(
            stored.is_some_and(|(_, stored)| *stored == bytes),
            "fuzz/corpus/broker_requests/{name}"
        );
    }
}

#[test]
fn bytes_after_a_request_are_refused() {
    for (name, usual) in usual() {
        let bytes = raw::to_bytes(&usual);
        assert!(ask(&[&bytes[..], &[0]].concat()).is_none(), "{name}");
    }
}

#[test]
fn requests_outside_the_terms_are_refused() {
    let elsewhere = |index| described(index, "lo", 1, 1);
    let with_queues = |queues, queues_max| described(LOOPBACK, "lo", queues, queues_max);
    let opening = |plan| Ask::OpenHook { plan: Box::new(plan), turn: 6 };
    let outside = [
        Ask::Netlink(Inquiry::Route { groups: 0x80 }),
        Ask::BindPacket { socket: 3, ifindex: 2 },
        Ask::BindPacket { socket: 3, ifindex: 0 },
        Ask::Promiscuous { ifindex: u32::MAX },
        Ask::PromiscuousAlso { holder: 5, ifindex: 2 },
        Ask::GuardedHooks { ifindex: u32::MAX },
        Ask::BindXdpBeside { socket: 3, first: 4, ifindex: LOOPBACK, queue: 4096 },
        Ask::AttachLock(elsewhere(2)),
        Ask::AttachLock(with_queues(1, 4097)),
        Ask::AttachLock(described(LOOPBACK, "longer-than-a-name", 1, 1)),
        opening(HookPlan { device: elsewhere(0), ..plan() }),
        opening(HookPlan { device: with_queues(u32::MAX, 0), ..plan() }),
        opening(HookPlan { steering: steering(&[0, 3], (1 << 20) + 1, 2), ..plan() }),
        opening(HookPlan { steering: steering(&[3, 0], 1, 2), ..plan() }),
        Ask::Hook { hook: 7, ask: HookAsk::MoveTo(elsewhere(2)) },
        Ask::Run { path: b"/var/lib/recordings/../x".to_vec() },
        Ask::Run { path: b"/var/lib/recordings-2/x".to_vec() },
        Ask::Run { path: b"x".to_vec() },
    ];
    for outside in outside {
        assert!(ask(&raw::to_bytes(&outside)).is_none(), "{outside:?}");
    }
}

proptest! {
    /// A process under an attacker's control may send any bytes.
    #[test]
    fn bytes_of_any_kind_are_judged(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        ask(&bytes);
    }

    #[test]
    fn requests_that_are_almost_usual_are_judged(
        choice in any::<proptest::sample::Index>(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
    ) {
        let corpus = corpus();
        let mut bytes = choice.get(&corpus).1.clone();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        ask(&bytes);
    }
}
