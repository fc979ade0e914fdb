//! Captures of other processes on the same interface, and programs that are none of wirecap's.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use wirecap::bpf::asm::{Assembler, Reg::R0};
use wirecap::bpf::{Link, LoadOptions, Map, MapKind, Program, ProgramKind, XDP_PASS, XdpMode};
use wirecap::privileged::HookPlan;
use wirecap_broker::{Ask, HookAsk, Permitted, Reply, Terms};

use crate::ROLE;
use crate::bed::{Attacker, Bed, CAPTURED, OTHER, Sentinel, is_refusal, plan, terms};
use crate::filters::nothing;

/// All that a hook can do to its program, one after the other: the other capture notices nothing.
#[track_caller]
fn try_everything(bed: &Bed, attacker: &Attacker, hook: u32, sentinel: &mut Sentinel) {
    let device = bed.device(CAPTURED);
    let exchange = |filter| {
        let prepared = attacker.hook(hook, HookAsk::Prepare(filter));
        let (Reply::Object(turn), _) = attacker.ask(&Ask::AttachLock(device.clone())) else {
            panic!("{prepared:?}")
        };
        let exchanged = attacker.hook(hook, HookAsk::Exchange { turn });
        attacker.is_done(&Ask::Release { object: turn });
        assert!(matches!(exchanged, Reply::Done | Reply::Bpf(_)), "{exchanged:?}");
    };
    let mut asks = vec![
        HookAsk::RunOnNewQueues,
        HookAsk::AttachAgain,
        HookAsk::RunOnNewQueues,
        HookAsk::KeepUnfiltered,
        HookAsk::AttachAgain,
        HookAsk::MoveTo(device.clone()),
        HookAsk::AttachAgain,
        HookAsk::RunOnNewQueues,
    ];
    for queue in [0, 1] {
        asks.extend([HookAsk::ClaimQueue { queue }, HookAsk::AddQueue { queue }]);
        asks.push(HookAsk::CloseQueue { queue, keys: vec![0, 1, 2, u32::MAX] });
        asks.extend([HookAsk::AddQueue { queue }, HookAsk::AttachAgain]);
    }
    asks.extend([HookAsk::AttachAnew, HookAsk::AttachAgain, HookAsk::RunOnNewQueues]);
    sentinel.assert_undisturbed(bed);
    exchange(Some(nothing()));
    sentinel.assert_undisturbed(bed);
    for ask in asks {
        attacker.hook(hook, ask);
        sentinel.assert_undisturbed(bed);
        exchange(Some(nothing()));
        sentinel.assert_undisturbed(bed);
    }
    if let Reply::Object(turn) = attacker.hook(hook, HookAsk::PrepareToPass) {
        attacker.hook(hook, HookAsk::Exchange { turn });
        attacker.is_done(&Ask::Release { object: turn });
    }
    sentinel.assert_undisturbed(bed);
    attacker.hook(hook, HookAsk::Leave);
    sentinel.assert_undisturbed(bed);
}

fn dropping(bed: &Bed, queues: &[u32]) -> HookPlan {
    HookPlan { filter: Some(nothing()), drop_rejected: true, ..plan(&bed.device(CAPTURED), queues) }
}

pub(crate) fn the_queue_of_another_capture_is_not_taken() {
    let bed = Bed::new();
    let mut sentinel = Sentinel::on(&bed, 1);
    let attacker = Attacker::new(&bed, &terms(None));
    let device = bed.device(CAPTURED);
    let turn = attacker.turn(&device);
    for queues in [&[1][..], &[0, 1], &[1, 4095]] {
        for whole in [false, true] {
            let plan = Box::new(HookPlan { whole, ..dropping(&bed, queues) });
            let reply = attacker.ask(&Ask::OpenHook { plan, turn }).0;
            assert!(matches!(reply, Reply::Fault(_)), "{reply:?}");
        }
    }
    attacker.is_done(&Ask::Release { object: turn });
    let (hook, _) = attacker.open(&HookPlan { whole: true, ..dropping(&bed, &[0]) });
    for ask in [HookAsk::ClaimQueue { queue: 1 }, HookAsk::AddQueue { queue: 1 }] {
        let reply = attacker.hook(hook, ask);
        assert!(is_refusal(&reply), "{reply:?}");
    }
    try_everything(&bed, &attacker, hook, &mut sentinel);
    attacker.end();
    sentinel.assert_undisturbed(&bed);
    sentinel.end(&bed);
}

pub(crate) fn a_queue_that_was_given_up_is_not_taken_back() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    let (hook, _) = attacker.open(&dropping(&bed, &[0, 1]));
    attacker.hook(hook, HookAsk::CloseQueue { queue: 1, keys: vec![1] });
    let mut sentinel = Sentinel::on(&bed, 1);
    try_everything(&bed, &attacker, hook, &mut sentinel);
    attacker.end();
    sentinel.assert_undisturbed(&bed);
    sentinel.end(&bed);
}

pub(crate) fn no_program_replaces_that_of_a_capture_that_came_later() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    let (hook, _) = attacker.open(&HookPlan { whole: true, ..dropping(&bed, &[0, 1]) });
    for queue in [0, 1] {
        attacker.hook(hook, HookAsk::CloseQueue { queue, keys: vec![queue] });
    }
    let mut sentinel = Sentinel::on(&bed, 1);
    try_everything(&bed, &attacker, hook, &mut sentinel);
    attacker.end();
    sentinel.assert_undisturbed(&bed);
    sentinel.end(&bed);
}

pub(crate) fn a_move_does_not_take_the_queues_of_another_capture() {
    let bed = Bed::new();
    let mut sentinel = Sentinel::on(&bed, 1);
    let interface = |name: &str, queues| Permitted { name: name.to_owned(), queues };
    let interfaces = vec![interface(CAPTURED, None), interface(OTHER, None)];
    let attacker = Attacker::new(&bed, &Terms { interfaces, ..terms(None) });
    let device = bed.device(OTHER);
    let plan = HookPlan { filter: Some(nothing()), drop_rejected: true, ..plan(&device, &[0, 1]) };
    let (hook, _) = attacker.open(&plan);
    let mut lying = bed.device(CAPTURED);
    for queues in [(0, 0), (1, 1), (2, 2)] {
        (lying.rx_queues, lying.rx_queues_max) = queues;
        attacker.hook(hook, HookAsk::MoveTo(lying.clone()));
        sentinel.assert_undisturbed(&bed);
        attacker.hook(hook, HookAsk::AttachAgain);
        sentinel.assert_undisturbed(&bed);
    }
    attacker.end();
    sentinel.end(&bed);

    // The queues of the terms are those of their interface.
    let interfaces = vec![interface(CAPTURED, None), interface(OTHER, Some(vec![0]))];
    let attacker = Attacker::new(&bed, &Terms { interfaces, ..terms(None) });
    for plan in [dropping(&bed, &[1]), HookPlan { whole: true, ..dropping(&bed, &[0]) }] {
        let (hook, _) = attacker.open(&plan);
        let reply = attacker.hook(hook, HookAsk::MoveTo(device.clone()));
        assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
        attacker.is_done(&Ask::Release { object: hook });
    }
    bed.assert_other_untouched();
    attacker.end();
}

/// The map by which captures find each other.
const ARRAY: (MapKind, &str, u32) = (MapKind::ProgArray, "wirecap_queues", 4096);

/// A program that passes everything, and refers to a map.
fn foreign(name: &str, map: Option<(MapKind, &str, u32)>) -> Program {
    let mut program = Assembler::new();
    let map = map.map(|(kind, name, entries)| Map::create(kind, name, 4, entries).unwrap());
    if let Some(map) = &map {
        program.load_map_fd(R0, map);
    }
    program.mov(R0, XDP_PASS).exit();
    let options = LoadOptions { fragments: true, device: None };
    Program::load(ProgramKind::Xdp, name, &program.finish().unwrap(), options).unwrap()
}

/// The attacker asks for a program where another one is; that one stays.
#[track_caller]
fn assert_not_replaced(bed: &Bed, program: u32) {
    let attacker = Attacker::new(bed, &terms(None));
    let turn = attacker.turn(&bed.device(CAPTURED));
    for whole in [false, true] {
        let plan = Box::new(HookPlan { whole, ..plan(&bed.device(CAPTURED), &[0]) });
        let reply = attacker.ask(&Ask::OpenHook { plan, turn }).0;
        assert!(is_refusal(&reply), "it is joined: {reply:?}");
        assert_eq!(bed.program_of(&bed.captured), Some(program));
    }
    attacker.end();
    assert_eq!(bed.program_of(&bed.captured), Some(program), "after the end");
}

pub(crate) fn the_link_of_another_namespace_is_left_alone() {
    let bed = Bed::new();
    // One program on two interfaces of the same index: here without a link, and in the other
    // namespace with one.
    let program = foreign("wirecap_v1", Some(ARRAY));
    let id = program.id().unwrap();
    bed.in_here(|| attach_without_link(bed.index(), &program));
    let far = &bed.elsewhere.receiver;
    let link = far
        .namespace
        .run_in(|| Link::attach_xdp(&program, far.index, XdpMode::Native))
        .unwrap()
        .unwrap();
    assert_eq!(
        (bed.program_of(&bed.captured), bed.program_of(&bed.elsewhere)),
        (Some(id), Some(id))
    );
    assert_not_replaced(&bed, id);
    assert_eq!(bed.program_of(&bed.elsewhere), Some(id), "the program of the other namespace");
    assert_eq!(link.info().unwrap().program_id, id);
}

/// By netlink, as `ip link set dev NAME xdp` does.
fn attach_without_link(ifindex: u32, program: &Program) {
    const IFLA_XDP: u16 = 43 | 0x8000;
    const IFLA_XDP_FD: u16 = 1;
    const IFLA_XDP_FLAGS: u16 = 3;
    const XDP_FLAGS_DRV_MODE: u32 = 4;
    let attribute = |kind: u16, value: &[u8]| {
        [&(4 + value.len() as u16).to_ne_bytes(), &kind.to_ne_bytes(), value].concat()
    };
    let descriptor = attribute(IFLA_XDP_FD, &program.as_fd().as_raw_fd().to_ne_bytes());
    let flags = attribute(IFLA_XDP_FLAGS, &XDP_FLAGS_DRV_MODE.to_ne_bytes());
    let attributes = attribute(IFLA_XDP, &[descriptor, flags].concat());
    let mut message = Vec::new();
    message.extend((16 + 16 + attributes.len() as u32).to_ne_bytes());
    message.extend(libc::RTM_SETLINK.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend([0; 4]);
    message.extend(ifindex.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(attributes);
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None).unwrap();
    send(&socket, &message, SendFlags::empty()).unwrap();
    let mut answer = [0; 1024];
    recv(&socket, &mut answer[..], rustix::net::RecvFlags::empty()).unwrap();
    let error = i32::from_ne_bytes(answer[16..20].try_into().unwrap());
    assert_eq!(error, 0, "attaching a program by netlink");
}

pub(crate) fn a_program_of_the_same_name_is_not_joined() {
    let bed = Bed::new();
    let maps = [
        None,
        Some((MapKind::ProgArray, "another", 4096)),
        Some((MapKind::Array, "wirecap_queues", 4096)),
        Some((MapKind::ProgArray, "wirecap_queues", 1)),
    ];
    for map in maps {
        let program = foreign("wirecap_v1", map);
        let link =
            bed.in_here(|| Link::attach_xdp(&program, bed.index(), XdpMode::Native)).unwrap();
        assert_not_replaced(&bed, program.id().unwrap());
        drop(link);
    }
}

pub(crate) fn a_program_of_another_user_is_not_joined() {
    let bed = Bed::new();
    let mut command = Command::new("setpriv");
    let capabilities = "+bpf,+net_admin";
    command.args(["--reuid=1000", "--regid=1000", "--clear-groups"]);
    command.args([format!("--inh-caps={capabilities}"), format!("--ambient-caps={capabilities}")]);
    command.arg(std::env::current_exe().unwrap()).env(ROLE, format!("user:{}", bed.index()));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = bed.in_here(|| command.spawn()).unwrap();
    let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    assert_not_replaced(&bed, line.parse().unwrap());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// The process of another user, with a program that looks like wirecap's.
pub(crate) fn be_another_user(ifindex: &str) {
    let program = foreign("wirecap_v1", Some(ARRAY));
    let _link = Link::attach_xdp(&program, ifindex.parse().unwrap(), XdpMode::Native).unwrap();
    println!("{}", program.id().unwrap());
    std::io::stdout().flush().unwrap();
    let _end_of_the_test = std::io::stdin().read_line(&mut String::new());
}

pub(crate) fn a_false_dispatcher_is_not_joined() {
    let bed = Bed::new();
    let program = foreign("wirecap_disp_v1", Some(ARRAY));
    let _link = bed.in_here(|| Link::attach_xdp(&program, bed.index(), XdpMode::Native)).unwrap();
    assert_not_replaced(&bed, program.id().unwrap());
}
