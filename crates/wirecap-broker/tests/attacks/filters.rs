//! Filters that are no filters.

use wirecap::filter::{ClassicInsn, Filter};
use wirecap::privileged::{HookPlan, Where};
use wirecap::savefile::LinkType;
use wirecap_broker::{Ask, HookAsk, Reply, raw};
use wirecap_testbed::wait_until;

use crate::bed::{Attacker, Bed, CAPTURED, is_refusal, plan, programs, terms};

/// An instruction in a message: `code jt jf k`.
pub(crate) type Sent = (u16, u8, u8, u32);

const LOAD_BYTE: u16 = 0x30;
const RETURN: u16 = 0x06;
const ETHERNET: LinkType = LinkType(1);

fn filter(insns: &[Sent]) -> Filter {
    let insns = insns.iter().map(|&(code, jt, jf, k)| ClassicInsn { code, jt, jf, k });
    Filter::from_program(insns.collect(), ETHERNET).unwrap()
}

/// Matches no packet.
pub(crate) fn nothing() -> Filter {
    filter(&[(RETURN, 0, 0, 0)])
}

/// Matches all packets, after `insns` instructions.
fn long(insns: usize) -> Vec<Sent> {
    let mut program = vec![(LOAD_BYTE, 0, 0, 0); insns - 1];
    program.push((RETURN, 0, 0, u32::MAX));
    program
}

/// A request with a program that no [`Filter`] holds.
pub(crate) fn preparing(hook: u32, insns: &[Sent]) -> Vec<u8> {
    let usual = raw::to_bytes(&Ask::Hook { hook, ask: HookAsk::Prepare(Some(nothing())) });
    let filter_bytes = raw::to_bytes(&nothing()).len();
    let mut bytes = usual[..usual.len() - filter_bytes].to_vec();
    bytes.extend(raw::to_bytes(&(insns, ETHERNET.0)));
    bytes
}

pub(crate) fn an_invalid_filter_never_becomes_a_program() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    let (hook, _) = attacker.open(&plan(&bed.device(CAPTURED), &[0]));
    let attached = bed.program_of(&bed.captured).unwrap();
    let accept = (RETURN, 0, 0, u32::MAX);
    let invalid: &[(&str, Vec<Sent>)] = &[
        ("no instruction", vec![]),
        ("an unknown operation", vec![(0xffff, 0, 0, 0), accept]),
        // A call, an exit and a load of a map in eBPF.
        ("a call", vec![(0x85, 0, 0, 113), accept]),
        ("an exit", vec![(0x95, 0, 0, 0), accept]),
        ("a load of 64 bits", vec![(0x18, 0, 0, 7), accept]),
        ("a jump beyond the end", vec![(0x05, 0, 0, 7), accept]),
        ("a jump of 2^32 - 2", vec![(0x05, 0, 0, u32::MAX - 1), accept]),
        ("a branch beyond the end", vec![(0x15, 255, 0, 0), accept]),
        ("no return", vec![(LOAD_BYTE, 0, 0, 0)]),
        ("a division by 0", vec![(0x34, 0, 0, 0), accept]),
        ("a remainder of 0", vec![(0x94, 0, 0, 0), accept]),
        ("memory word 16", vec![(0x60, 0, 0, 16), accept]),
        ("a store at 2^32 - 1", vec![(0x02, 0, 0, u32::MAX), accept]),
        ("32,769 instructions", long(32_769)),
        ("100,000 instructions", long(100_000)),
    ];
    for (what, insns) in invalid {
        let reply = attacker.exchange(&preparing(hook, insns)).0;
        // Some of them have a meaning for libpcap; then they run there.
        let is_harmless = matches!(reply, Reply::Filters(Where::UserSpace(_)));
        assert!(is_harmless || is_refusal(&reply), "{what}: {reply:?}");
        assert!(insns.len() <= 32_768 || matches!(reply, Reply::Refused(_)), "{what}: {reply:?}");
    }
    // Their programs, if there are any, have no filter.
    bed.send(0, 10);
    wait_until("packets without a socket are counted", || {
        matches!(attacker.hook(hook, HookAsk::Unseated), Reply::Count(10))
    });
    // Other captures on this machine have programs of the same name, but with other maps.
    let programs = programs("wirecap_v1");
    let (_, maps) = programs.iter().find(|(id, _)| *id == attached).unwrap();
    let own =
        programs.iter().filter(|(_, other)| other.iter().any(|map| maps.contains(map))).count();
    assert!((1..=2).contains(&own), "the attached and the prepared one: {own} of {programs:?}");
    attacker.end();
}

/// The program of each filter is attached, and runs on packets of 60 bytes.
pub(crate) fn a_filter_reads_nothing_beyond_the_packet() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    let plan = HookPlan { drop_rejected: true, ..plan(&bed.device(CAPTURED), &[0]) };
    let (hook, _) = attacker.open(&plan);
    let accept = (RETURN, 0, 0, u32::MAX);
    let reading: &[(&str, Vec<Sent>)] = &[
        ("a byte behind the packet", vec![(LOAD_BYTE, 0, 0, 1514), accept]),
        ("a word across its end", vec![(0x20, 0, 0, 1513), accept]),
        ("a byte 2^31 - 1 behind", vec![(LOAD_BYTE, 0, 0, i32::MAX.cast_unsigned()), accept]),
        // X = 2^32 - 1: the byte before the packet, if the sum wraps around.
        ("a byte before the packet", vec![(0x01, 0, 0, u32::MAX), (0x50, 0, 0, 0), accept]),
        ("the sum 2^32 + 4", vec![(0x01, 0, 0, u32::MAX), (0x50, 0, 0, 5), accept]),
    ];
    for (what, insns) in reading {
        let turn = attacker.turn(&plan.device);
        match attacker.exchange(&preparing(hook, insns)).0 {
            Reply::Filters(Where::Program) => {}
            reply => {
                attacker.is_done(&Ask::Release { object: turn });
                assert!(
                    is_refusal(&reply) || matches!(reply, Reply::Filters(_)),
                    "{what}: {reply:?}"
                );
                continue;
            }
        }
        let exchanged = attacker.hook(hook, HookAsk::Exchange { turn });
        assert!(matches!(exchanged, Reply::Done), "{exchanged:?}");
        attacker.is_done(&Ask::Release { object: turn });
        let before = match attacker.hook(hook, HookAsk::Filtered { queue: 0 }) {
            Reply::Count(count) => count,
            reply => panic!("{reply:?}"),
        };
        bed.send(0, 100);
        wait_until(
            what,
            || matches!(attacker.hook(hook, HookAsk::Filtered { queue: 0 }), Reply::Count(count) if count == before + 100),
        );
    }
    assert!(matches!(attacker.hook(hook, HookAsk::Unseated), Reply::Count(0)), "a packet matched");
    attacker.end();
}

pub(crate) fn a_filter_that_the_kernel_does_not_run_runs_in_user_space() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    let (hook, _) = attacker.open(&plan(&bed.device(CAPTURED), &[0]));
    // The longest that is permitted, and one whose jumps are too many for the verifier.
    let jumps: Vec<Sent> =
        (0..20_000).map(|_| (0x15, 0, 0, 7)).chain([(RETURN, 0, 0, 1)]).collect();
    for insns in [long(32_768), jumps] {
        let reply = attacker.exchange(&preparing(hook, &insns)).0;
        assert!(matches!(reply, Reply::Filters(Where::UserSpace(_))), "{reply:?}");
    }
    attacker.end();
}
