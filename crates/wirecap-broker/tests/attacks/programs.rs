//! Programs outside the terms, and objects that are named by the wrong numbers.

use std::time::{Duration, Instant};

use wirecap::privileged::HookPlan;
use wirecap_broker::{Ask, HookAsk, Permitted, Reply, Terms, raw};
use wirecap_testbed::{Counters, skip, wait_until};

use crate::bed::{Attacker, Bed, CAPTURED, OTHER, is_refusal, plan, steering, terms};
use crate::filters::nothing;

fn opening(plan: &HookPlan, turn: u32) -> Ask {
    Ask::OpenHook { plan: Box::new(plan.clone()), turn }
}

pub(crate) fn no_program_is_attached_to_another_interface_or_queue() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(Some(&[0])));
    let captured = bed.device(CAPTURED);
    let other = bed.device(OTHER);
    let turn = attacker.turn(&captured);
    attacker.is_refused(&Ask::AttachLock(other.clone()));
    attacker.is_refused(&opening(&plan(&other, &[0]), turn));
    for queues in [&[1][..], &[0, 1], &[0, 4095], &[0, u32::MAX]] {
        attacker.is_refused(&opening(&plan(&captured, queues), turn));
    }
    attacker.is_refused(&opening(&HookPlan { whole: true, ..plan(&captured, &[0]) }, turn));
    assert_eq!(bed.program_of(&bed.captured), None);
    bed.assert_other_untouched();

    let number = match attacker.ask(&opening(&plan(&captured, &[0]), turn)).0 {
        Reply::Hook(number, _) => number,
        reply => panic!("{reply:?}"),
    };
    attacker.is_done(&Ask::Release { object: turn });
    let before = bed.program_of(&bed.captured);
    let move_to = HookAsk::MoveTo(other.clone());
    for ask in [move_to, HookAsk::ClaimQueue { queue: 1 }, HookAsk::AddQueue { queue: 1 }] {
        let reply = attacker.hook(number, ask);
        assert!(is_refusal(&reply), "{reply:?}");
    }
    assert_eq!(bed.program_of(&bed.captured), before);
    bed.assert_other_untouched();
    attacker.end();
    assert_eq!(bed.program_of(&bed.captured), None, "after the end");
}

pub(crate) fn the_right_to_change_a_program_is_that_of_its_interface() {
    let bed = Bed::new();
    let both = |queues: Option<Vec<u32>>| {
        let interface = |name: &str| Permitted { name: name.to_owned(), queues: queues.clone() };
        Terms { interfaces: vec![interface(CAPTURED), interface(OTHER)], ..terms(None) }
    };
    let attacker = Attacker::new(&bed, &both(None));
    let captured = bed.device(CAPTURED);
    let other = bed.device(OTHER);
    let of_other = attacker.turn(&other);
    let (socket, _) = attacker.object(&Ask::PacketSocket);
    for number in [0, u32::MAX, of_other, of_other + 1000, socket] {
        attacker.is_refused(&opening(&plan(&captured, &[0]), number));
        assert_eq!(bed.program_of(&bed.captured), None);
    }
    let (hook, _) = attacker.open(&plan(&captured, &[0]));
    let before = bed.program_of(&bed.captured);
    assert!(matches!(attacker.hook(hook, HookAsk::Prepare(Some(nothing()))), Reply::Filters(_)));
    for turn in [0, hook, socket, of_other, u32::MAX] {
        let reply = attacker.hook(hook, HookAsk::Exchange { turn });
        assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
        assert_eq!(
            bed.program_of(&bed.captured),
            before,
            "the program is changed without the right"
        );
    }
    // The right itself is that of one process at a time.
    let rival = Attacker::new(&bed, &terms(None));
    let turn = rival.turn(&captured);
    attacker.is_refused(&Ask::AttachLock(captured.clone()));
    for ask in
        [HookAsk::PrepareToPass, HookAsk::AttachAgain, HookAsk::AttachAnew, HookAsk::RunOnNewQueues]
    {
        let reply = attacker.hook(hook, ask);
        assert!(is_refusal(&reply), "{reply:?}");
    }
    assert_eq!(bed.program_of(&bed.captured), before);
    rival.is_done(&Ask::Release { object: turn });
    rival.end();
    attacker.end();
}

pub(crate) fn a_socket_with_another_key_or_of_another_interface_receives_nothing() {
    let bed = Bed::new();
    let interface = |name: &str| Permitted { name: name.to_owned(), queues: None };
    let terms = Terms { interfaces: vec![interface(CAPTURED), interface(OTHER)], ..terms(None) };
    let attacker = Attacker::new(&bed, &terms);
    let (hook, state) = attacker.open(&plan(&bed.device(CAPTURED), &[0]));
    let (bound, _own) = attacker.xdp_socket(bed.index(), 0);
    let (elsewhere, _other) = attacker.xdp_socket(bed.other(), 0);
    let (unbound, _descriptor) = attacker.object(&Ask::XdpSocket);
    let outside = [
        (state.queues_max, bound),
        (u32::MAX, bound),
        (0, elsewhere),
        (0, unbound),
        (0, hook),
        (0, 0),
        (0, u32::MAX),
    ];
    for (key, socket) in outside {
        let reply = attacker.hook(hook, HookAsk::Receive { key, socket });
        assert!(matches!(reply, Reply::Refused(_)), "key {key}, socket {socket}: {reply:?}");
    }
    bed.send(0, 10);
    wait_until("packets without a socket are counted", || {
        matches!(attacker.hook(hook, HookAsk::Unseated), Reply::Count(10))
    });
    assert!(matches!(attacker.hook(hook, HookAsk::Receive { key: 0, socket: bound }), Reply::Done));
    attacker.end();
}

/// A program that is told of fewer queues than the interface has might take all packets for its
/// own.
pub(crate) fn no_packet_of_another_queue_is_dropped() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(Some(&[0])));
    let mut lying = bed.device(CAPTURED);
    (lying.rx_queues, lying.rx_queues_max) = (1, 1);
    let plan = HookPlan { filter: Some(nothing()), drop_rejected: true, ..plan(&lying, &[0]) };
    attacker.open(&plan);
    let mut counters = Counters::of(&bed.captured.receiver).unwrap();
    bed.send(0, 100);
    bed.send(1, 100);
    let deadline = Instant::now() + Duration::from_secs(5);
    let passed = loop {
        let queues = counters.since_start().unwrap().rx_queues;
        if queues[1].passed() == 100 || Instant::now() > deadline {
            break (queues[0].passed(), queues[1].passed());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(passed, (0, 100), "packets of queue 1, which is not in the terms");
    attacker.end();
}

pub(crate) fn numbers_are_those_of_objects_of_the_right_kind() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    let device = bed.device(CAPTURED);
    let (hook, _) = attacker.open(&plan(&device, &[0]));
    let turn = attacker.turn(&device);
    let (file, _memory) = attacker.object(&Ask::PoolFile { bytes: 4096 });
    let (packet, _socket) = attacker.object(&Ask::PacketSocket);
    let (xdp, _descriptor) = attacker.object(&Ask::XdpSocket);
    let (promiscuous, _) = attacker.object(&Ask::Promiscuous { ifindex: bed.index() });
    let all = [hook, turn, file, packet, xdp, promiscuous, 0, u32::MAX, promiscuous + 1];
    let before = bed.program_of(&bed.captured);
    for &number in &all {
        if number != xdp {
            attacker.is_refused(&Ask::RegisterUmem {
                socket: number,
                file,
                bytes: 4096,
                cell_bytes: 4096,
            });
            let ifindex = bed.index();
            let queue = 0;
            attacker.is_refused(&Ask::BindXdp {
                socket: number,
                ifindex,
                queue,
                mode: crate::bed::COPY,
            });
            attacker.is_refused(&Ask::BindXdpBeside { socket: number, first: xdp, ifindex, queue });
            attacker.is_refused(&Ask::BindXdpBeside { socket: xdp, first: number, ifindex, queue });
        }
        if number != file {
            attacker.is_refused(&Ask::RegisterUmem {
                socket: xdp,
                file: number,
                bytes: 4096,
                cell_bytes: 4096,
            });
        }
        if number != packet {
            attacker.is_refused(&Ask::BindPacket { socket: number, ifindex: bed.index() });
        }
        if number != hook {
            for ask in
                [HookAsk::IsInPlace, HookAsk::Leave, HookAsk::Prepare(None), HookAsk::Unseated]
            {
                attacker.is_refused(&Ask::Hook { hook: number, ask });
            }
        }
        if number != turn {
            attacker.is_refused(&opening(&plan(&device, &[1]), number));
        }
    }
    assert_eq!(bed.program_of(&bed.captured), before);
    assert_eq!(bed.packet_sockets().iter().filter(|index| **index == bed.index()).count(), 0);
    attacker.end();
}

pub(crate) fn released_numbers_are_gone_and_new_objects_have_other_ones() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    let device = bed.device(CAPTURED);
    let (hook, _) = attacker.open(&plan(&device, &[0]));
    attacker.is_done(&Ask::Release { object: hook });
    assert_eq!(bed.program_of(&bed.captured), None, "its program is detached");
    attacker.is_refused(&Ask::Release { object: hook });
    attacker.is_refused(&Ask::Hook { hook, ask: HookAsk::AttachAgain });
    let (file, _memory) = attacker.object(&Ask::PoolFile { bytes: 4096 });
    attacker.is_done(&Ask::Release { object: file });
    let (socket, _descriptor) = attacker.object(&Ask::XdpSocket);
    assert!(socket != file && socket != hook);
    attacker.is_refused(&Ask::RegisterUmem { socket, file, bytes: 4096, cell_bytes: 4096 });
    let turn = attacker.turn(&device);
    attacker.is_done(&Ask::Release { object: turn });
    attacker.is_refused(&opening(&plan(&device, &[0]), turn));
    assert_eq!(bed.program_of(&bed.captured), None);
    attacker.end();
}

pub(crate) fn impossible_steering_is_refused() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    let device = bed.device(CAPTURED);
    let turn = attacker.turn(&device);
    let impossible = [
        steering(&[], 1, 0),
        steering(&[], 1, 1),
        steering(&[1, 0], 1, 2),
        steering(&[0, 0], 1, 2),
        steering(&[0], 0, 1),
        steering(&[0], 1, 0),
        steering(&[0], 1, 2),
        steering(&[0, 1], 1, usize::MAX),
        steering(&[0], u32::MAX, 1),
        steering(&[0], 1 << 31, 1),
        steering(&[0], (1 << 20) + 1, 1),
        steering(&[0, u32::MAX], 1, 2),
        steering(&[4096], 1, 1),
        steering(&(0..100_000).collect::<Vec<_>>(), 1, 100_000),
    ];
    for steering in impossible {
        let plan = HookPlan { steering, ..plan(&device, &[0]) };
        // Without the queues, which are many.
        let (reply, descriptor) = attacker.exchange(&raw::to_bytes(&opening(&plan, turn)));
        assert!(matches!(reply, Reply::Refused(_)) && descriptor.is_none(), "{reply:?}");
    }
    for (rx_queues, rx_queues_max) in
        [(0, u32::MAX), (u32::MAX, u32::MAX), (u32::MAX, 0), (4097, 2)]
    {
        let mut device = device.clone();
        (device.rx_queues, device.rx_queues_max) = (rx_queues, rx_queues_max);
        attacker.is_refused(&opening(&plan(&device, &[0]), turn));
        attacker.is_refused(&Ask::AttachLock(device));
    }
    assert_eq!(bed.program_of(&bed.captured), None);
    // All hooks together have a limit.
    let large =
        |queue| HookPlan { steering: steering(&[queue], 1 << 18, 1), ..plan(&device, &[0]) };
    for queue in [0, 1] {
        let reply = attacker.ask(&opening(&large(queue), turn)).0;
        if matches!(reply, Reply::Fault(_)) {
            skip("steering in a program that is loaded without CAP_PERFMON");
            return attacker.end();
        }
        assert!(matches!(reply, Reply::Hook(..)), "{reply:?}");
    }
    let reply = attacker.ask(&opening(&plan(&device, &[2]), turn)).0;
    assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
    attacker.end();
}
