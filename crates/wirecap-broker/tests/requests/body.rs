//! The body of the broker's fuzz target, which the tests run on the stored corpus.

use std::path::{Component, Path, PathBuf};

use wirecap::device::DeviceSummary;
use wirecap::filter::Filter;
use wirecap::privileged::{HookPlan, Inquiry};
use wirecap_broker::{Ask, HookAsk, Permitted, Terms, User, judge, raw};

pub(crate) const LOOPBACK: u32 = 1;
const QUEUES: [u32; 2] = [0, 3];
/// `IFNAMSIZ`, without the zero.
const NAME_BYTES_MAX: usize = 15;
/// `RTMGRP_LINK`, and the addresses and routes of both families.
const GROUPS: u32 = 0x1 | 0x8 | 0x10 | 0x40 | 0x100 | 0x400;

/// One interface: the loopback, of which every namespace has one with the index 1.
fn terms(queues: Option<Vec<u32>>, command: Option<Vec<String>>) -> Terms {
    Terms {
        interfaces: vec![Permitted { name: "lo".to_owned(), queues }],
        any: false,
        user: User { name: "nobody".to_owned(), uid: 65534, gid: 65534 },
        directory: PathBuf::from("/var/lib/recordings"),
        command,
        sockets: Vec::new(),
    }
}

/// Decodes the bytes as a request, and checks that a broker accepts only what the terms permit.
/// Returns the request if it does.
pub(crate) fn ask(bytes: &[u8]) -> Option<Ask> {
    let command = Some(vec!["true".to_owned()]);
    let some_queues = judge(&terms(Some(QUEUES.to_vec()), None), bytes).ok();
    let all_queues = judge(&terms(None, command), bytes).ok();
    if let Some(ask) = &some_queues {
        assert_within_terms(ask, Some(&QUEUES));
        assert!(!matches!(ask, Ask::Run { .. }), "a command, of which the terms have none");
    }
    if let Some(ask) = &all_queues {
        assert_within_terms(ask, None);
    }
    some_queues.or(all_queues)
}

/// The guarantees of the terms, stated independently of the broker. Those that depend on earlier
/// requests are attacked in `tests/attacks`.
fn assert_within_terms(ask: &Ask, queues: Option<&[u32]>) {
    let is_permitted = |queue: &u32| queues.map_or(*queue < 4096, |queues| queues.contains(queue));
    match ask {
        Ask::Netlink(Inquiry::Route { groups }) => assert_eq!(groups | GROUPS, GROUPS, "{ask:?}"),
        Ask::BindXdp { ifindex, queue, .. } | Ask::BindXdpBeside { ifindex, queue, .. } => {
            assert!(*ifindex == LOOPBACK && is_permitted(queue), "{ask:?}");
        }
        Ask::BindPacket { ifindex, .. }
        | Ask::Promiscuous { ifindex }
        | Ask::PromiscuousAlso { ifindex, .. }
        | Ask::GuardedHooks { ifindex } => assert_eq!(*ifindex, LOOPBACK),
        Ask::AttachLock(device) | Ask::Hook { ask: HookAsk::MoveTo(device), .. } => {
            assert_permitted(device);
        }
        Ask::OpenHook { plan, .. } => {
            let HookPlan { device, steering, whole, filter, .. } = &**plan;
            assert_permitted(device);
            assert!(steering.queues().iter().all(is_permitted), "{ask:?}");
            assert!(steering.queues().is_sorted_by(|a, b| a < b) && !steering.queues().is_empty());
            assert!(!whole || queues.is_none(), "{ask:?}");
            let keys = [device.rx_queues, device.rx_queues_max].map(|queues| steering.keys(queues));
            assert!(keys.iter().all(|keys| *keys <= 1 << 20), "{ask:?}");
            filter.iter().for_each(assert_valid);
        }
        Ask::Hook { ask: HookAsk::Prepare(Some(filter)), .. } => assert_valid(filter),
        Ask::Run { path } => {
            let path = Path::new(std::str::from_utf8(path).unwrap_or("/var/lib/recordings/other"));
            let is_below = path.starts_with("/var/lib/recordings");
            assert!(
                is_below && path.components().all(|part| part != Component::ParentDir),
                "{ask:?}"
            );
        }
        Ask::Netlink(Inquiry::Generic | Inquiry::Sockets)
        | Ask::PoolFile { .. }
        | Ask::XdpSocket
        | Ask::RegisterUmem { .. }
        | Ask::PacketSocket
        | Ask::Hook { .. }
        | Ask::Release { .. } => {}
    }
    // No other request has these bytes.
    let again = raw::to_bytes(ask);
    assert_eq!(raw::to_bytes(&raw::of_bytes::<Ask>(&again).expect("a request")), again);
}

fn assert_permitted(device: &DeviceSummary) {
    assert!(device.index == LOOPBACK && device.name.len() <= NAME_BYTES_MAX, "{device:?}");
    assert!(device.rx_queues.max(device.rx_queues_max) <= 4096, "{device:?}");
}

/// Ends, and does not jump out of itself.
fn assert_valid(filter: &Filter) {
    let insns = filter.program();
    assert!((1..=1 << 15).contains(&insns.len()));
    assert_eq!(
        insns.last().expect("an instruction").code & 7,
        6,
        "the last instruction is a return"
    );
    for (place, insn) in insns.iter().enumerate() {
        if insn.code & 7 == 5 && insn.code & 0xf0 != 0 {
            let farthest = place + 1 + usize::from(insn.jt.max(insn.jf));
            assert!(farthest < insns.len(), "{insn:?} at {place}");
        }
    }
}
