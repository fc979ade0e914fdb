//! The host begins to use an interface that `auto` captures with `xdp`.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use wirecap::device::Device;
use wirecap::{Capture, CaptureBuilder, Engine, Event, Warning};
use wirecap_testbed::{
    AfXdpSender, Stamp, Traffic, VethPair, privileged, redirect_by_tcx, skip_on_this_machine,
    wait_until,
};

use crate::bed::{A_WHILE, Bed, ip, keep_events, run, send_numbered, small, take_all};

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(86_400);

#[test]
fn auto_returns_an_interface_when_the_host_gets_an_address_on_it() {
    if !privileged() {
        return;
    }
    let uses: [(&str, &[&[&str]]); 5] = [
        ("", &[&["address", "add", "10.9.9.1/24", "dev", "a1"]]),
        ("", &[&["route", "add", "10.9.8.0/24", "dev", "a1"]]),
        (
            "bridge",
            &[&["link", "add", "br9", "type", "bridge"], &["link", "set", "a1", "master", "br9"]],
        ),
        // A bond takes only interfaces that are down; this one is up again in a moment.
        (
            "bond",
            &[
                &["link", "add", "bond9", "type", "bond"],
                &["link", "set", "a1", "down"],
                &["link", "set", "a1", "master", "bond9"],
            ],
        ),
        ("vlan", &[&["link", "add", "link", "a1", "name", "a1.9", "type", "vlan", "id", "9"]]),
    ];
    for (kind, commands) in uses {
        let bed = Bed::new(2);
        if !kernel_has(&bed, kind) {
            skip_on_this_machine(&format!(
                "this kernel has no {kind}; `make vm` boots one that has"
            ));
            continue;
        }
        let (builder, events) = keep_events(small(Engine::Auto));
        let capture = bed.open(builder);
        assert!(capture.interfaces()[0].reception.engine() == Engine::Xdp);
        let mut workers = capture.workers();
        (0..2).for_each(|queue| bed.send(queue, 300));
        commands.iter().for_each(|command| ip(&bed.receiver, command));
        let is_handed_back = |event: &Event| matches!(event, Event::HandedBack { .. });
        wait_until("it was handed back", || events.lock().unwrap().iter().any(is_handed_back));
        (0..2).for_each(|queue| bed.send(queue, 300));
        thread::sleep(Duration::from_millis(100));
        let taken: u64 = workers.iter_mut().map(|worker| take_all(worker).unwrap()).sum();
        let ledger = bed.close(capture);
        let handed_back =
            events.lock().unwrap().iter().filter(|event| is_handed_back(event)).count();
        assert_eq!(handed_back, 1, "{:?}", events.lock().unwrap());
        // The stack of a bridge or an address may send packets itself: only packets sent here are
        // counted.
        assert_eq!((taken, ledger.total.delivered), (1_200, 1_200), "{commands:?} {ledger}");
        assert_eq!(ledger.engine, "xdp, packet");
        // Packets of an interface are unseen while it is down.
        assert_eq!(ledger.is_lossless(), kind != "bond", "{ledger}");
    }
}

/// Whether interfaces of this kind can be created; no kind is always available.
pub(crate) fn kernel_has(bed: &Bed, kind: &str) -> bool {
    let arguments = match kind {
        "" => return true,
        "vlan" => &["link", "add", "link", "a1", "name", "probe9", "type", "vlan", "id", "8"][..],
        _ => &["link", "add", "probe9", "type", kind],
    };
    let probe = || Command::new("ip").args(arguments).output().unwrap().status.success();
    let has = bed.receiver.run_in(probe).unwrap();
    if has {
        ip(&bed.receiver, &["link", "delete", "probe9"]);
    }
    has
}

/// Another process holds the right to change the program of `a1`, as while it opens a capture
/// there.
struct Turn(#[expect(dead_code)] UnixListener);

impl Turn {
    fn take(bed: &Bed) -> Self {
        let listen = || {
            let index = Device::find("a1").unwrap().index;
            let name = SocketAddr::from_abstract_name(format!("wirecap/1/{index}/turn")).unwrap();
            UnixListener::bind_addr(&name).unwrap()
        };
        Self(bed.at_receiver(listen))
    }
}

#[test]
fn an_interface_that_cannot_be_returned_at_once_is_returned_later_and_captured_all_the_time() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let (builder, events) = keep_events(small(Engine::Auto).reattach(true));
    let capture = bed.open(builder);
    let mut workers = capture.workers();
    let count = |wanted: fn(&Event) -> bool| {
        events.lock().unwrap().iter().filter(|event| wanted(event)).count()
    };
    let refusals = || count(|event| matches!(event, Event::NotHandedBack { .. }));
    let returns = || count(|event| matches!(event, Event::HandedBack { .. }));
    let send = || (0..2).for_each(|queue| bed.send(queue, 300));

    let turn = Turn::take(&bed);
    ip(&bed.receiver, &["address", "add", "10.9.9.1/24", "dev", "a1"]);
    wait_until("it cannot be handed back", || refusals() == 1);
    send();
    // Several attempts, none of which changes anything.
    thread::sleep(Duration::from_secs(1));
    send();
    assert_eq!((refusals(), returns()), (1, 0), "{:?}", events.lock().unwrap());

    // No message from the kernel announces that the right is free.
    drop(turn);
    wait_until("it was handed back", || returns() == 1);
    send();
    thread::sleep(A_WHILE);
    // The rings that continue are those of the engine `packet`.
    ip(&bed.receiver, &["link", "delete", "a1"]);
    wait_until("it is gone", || count(|event| matches!(event, Event::Lost { .. })) == 1);
    let pair = VethPair::new((&bed.sender, "a0"), (&bed.receiver, "a1"), 2, 1500)
        .and_then(wirecap_testbed::dedicated)
        .unwrap();
    wait_until("it is captured again", || count(|event| matches!(event, Event::Back(_))) == 1);
    (0..2).for_each(|queue| send_numbered(&pair, queue, 0..300));
    thread::sleep(A_WHILE);

    let taken: u64 = workers.iter_mut().map(|worker| take_all(worker).unwrap()).sum();
    let ledger = bed.close(capture);
    assert_eq!((refusals(), returns()), (1, 1), "{:?}", events.lock().unwrap());
    assert_eq!((taken, ledger.total.delivered), (2_400, 2_400), "{ledger}");
    assert_eq!(ledger.engine, "xdp, packet");
}

#[test]
fn the_host_answers_at_an_address_that_it_gets_while_auto_captures() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(Capture::on("a1").engine(Engine::Auto).chunk(64).pool(256));
    let _workers = capture.workers();
    ip(&bed.receiver, &["address", "add", "10.9.9.1/24", "dev", "a1"]);
    ip(&bed.sender, &["address", "add", "10.9.9.2/24", "dev", "a0"]);
    let ping = || {
        Command::new("ping").args(["-c", "1", "-W", "1", "10.9.9.1"]).stdout(Stdio::null()).status()
    };
    wait_until("the host answers", || bed.sender.run_in(ping).unwrap().unwrap().success());
    bed.close(capture);
}

/// Starts a capture of `a1` by `auto`, lets something happen, and checks that the interface is
/// handed back for this reason and all packets before and after it are captured.
fn hands_back_after<T>(happens: impl FnOnce(&Bed) -> T, reason: &str) {
    hands_back(small(Engine::Auto), happens, reason);
}

/// As [`hands_back_after`], with a watcher whose own checks never come due: only the kernel's
/// message causes one.
fn hands_back_at_a_message<T>(happens: impl FnOnce(&Bed) -> T, reason: &str) {
    hands_back(small(Engine::Auto).look_every(NEVER), happens, reason);
}

fn hands_back<T>(builder: CaptureBuilder, happens: impl FnOnce(&Bed) -> T, reason: &str) {
    let bed = Bed::new(2);
    let (builder, events) = keep_events(builder);
    let capture = bed.open(builder);
    assert!(capture.interfaces()[0].reception.engine() == Engine::Xdp);
    let mut workers = capture.workers();
    (0..2).for_each(|queue| bed.send(queue, 300));
    let _lasts_until_the_end = happens(&bed);
    let began = Instant::now();
    let reasons = || {
        let events = events.lock().unwrap();
        let reasons = events.iter().filter_map(|event| match event {
            Event::HandedBack { reason, .. } => Some(reason.clone()),
            _ => None,
        });
        reasons.collect::<Vec<_>>()
    };
    wait_until("it was handed back", || !reasons().is_empty());
    println!("handed back after {:?}: {reason}", began.elapsed());
    (0..2).for_each(|queue| bed.send(queue, 300));
    thread::sleep(Duration::from_millis(100));
    let taken: u64 = workers.iter_mut().map(|worker| take_all(worker).unwrap()).sum();
    let ledger = bed.close(capture);
    assert_eq!(reasons(), [reason]);
    assert_eq!((taken, ledger.total.delivered), (1_200, 1_200), "{reason}: {ledger}");
    assert!(ledger.is_lossless(), "{reason}: {ledger}");
}

#[test]
fn auto_returns_an_interface_because_of_the_kernels_message_alone() {
    if !privileged() {
        return;
    }
    let uses = [
        (["address", "add", "10.9.9.1/24", "dev", "a1"], "the host has address 10.9.9.1/24 on it"),
        (["route", "add", "10.9.8.0/24", "dev", "a1"], "the host's route 10.9.8.0/24 uses it"),
    ];
    for (command, reason) in uses {
        hands_back_at_a_message(|bed| ip(&bed.receiver, &command), reason);
    }
}

#[test]
fn auto_returns_an_interface_to_a_tcx_program() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let attach = |bed: &Bed| redirect_by_tcx(&bed.pair.receiver, &bed.pair.receiver);
    if let Err(error) = attach(&bed) {
        return skip_on_this_machine(&format!("this kernel has no tcx (Linux 6.6): {error}"));
    }
    // The kernel does not report it: the watcher must ask.
    hands_back_after(|bed| attach(bed).unwrap(), "a tcx program handles its frames");
}

#[test]
fn auto_returns_an_interface_to_a_tc_filter() {
    if !privileged() {
        return;
    }
    let filter = ["filter", "add", "dev", "a1", "ingress", "bpf", "bytecode", "1,6 0 0 4294967295"];
    hands_back_after(
        |bed| {
            run(&bed.receiver, "tc", &["qdisc", "add", "dev", "a1", "clsact"]);
            run(&bed.receiver, "tc", &filter);
        },
        "a tc filter handles its frames",
    );
}

#[test]
fn auto_returns_an_interface_to_a_netfilter_hook() {
    if !privileged() {
        return;
    }
    let chain = "add chain netdev t c { type filter hook ingress device a1 priority 0; }";
    hands_back_after(
        |bed| {
            run(&bed.receiver, "nft", &["add table netdev t"]);
            run(&bed.receiver, "nft", &[chain]);
        },
        "a netfilter hook handles its frames",
    );
}

#[test]
fn auto_returns_an_interface_to_another_process_with_a_packet_socket() {
    if !privileged() {
        return;
    }
    let mut client = None;
    hands_back_after(
        |bed| client = Some(listen(bed)),
        "a packet socket of another process receives on it, as a DHCP client's does",
    );
    end(client.unwrap());
}

#[test]
fn auto_returns_an_interface_that_is_released() {
    if !privileged() {
        return;
    }
    // Another address is as good as no mark, and leaves the marks of other tests alone.
    let change =
        |bed: &Bed| ip(&bed.receiver, &["link", "set", "a1", "address", "02:00:00:00:00:77"]);
    let bed = Bed::new(1);
    let (builder, events) = keep_events(small(Engine::Auto));
    let capture = bed.open(builder);
    change(&bed);
    let is_handed_back = |event: &Event| matches!(event, Event::HandedBack { reason, .. } if reason.contains("not dedicated"));
    wait_until("it was handed back", || events.lock().unwrap().iter().any(is_handed_back));
    bed.close(capture);
}

/// A mirrored or spoofed frame must not change the engine.
#[test]
fn frames_for_the_ports_own_address_are_counted_and_hand_nothing_back() {
    if !privileged() {
        return;
    }
    for filter in [None, Some("udp port 9")] {
        let bed = Bed::new(2);
        let (builder, events) = keep_events(small(Engine::Auto));
        let builder = filter.into_iter().fold(builder, CaptureBuilder::filter);
        let capture = bed.open(builder);
        let mut workers = capture.workers();
        // To the receiver's address, and to another one.
        (0..2).for_each(|queue| bed.send(queue, 300));
        let mut others = AfXdpSender::on(&bed.pair.sender, 0).unwrap();
        let elsewhere =
            Traffic { destination_mac: [2, 0, 0, 0, 0, 0x77], ..Traffic::to(&bed.pair.receiver) };
        (0..50).for_each(|sequence| {
            others.send(&elsewhere.frame(Stamp { queue: 0, sequence })).unwrap();
        });
        others.flush().unwrap();
        let is_told =
            |event: &Event| matches!(event, Event::OwnFrames { interface } if interface == "a1");
        wait_until("it was told", || events.lock().unwrap().iter().any(is_told));
        let taken: u64 = workers.iter_mut().map(|worker| take_all(worker).unwrap()).sum();
        let ledger = bed.close(capture);
        assert_eq!((taken, ledger.total.delivered, ledger.engine), (650, 650, "xdp"), "{ledger}");
        let warning = Warning::OwnFrames { interface: "a1".to_owned(), frames: 600 };
        let is_of_tags = |warning: &&Warning| matches!(warning, Warning::TagsBeside { .. });
        let warnings: Vec<&Warning> =
            ledger.warnings.iter().filter(|warning| !is_of_tags(warning)).collect();
        assert_eq!(warnings, [&warning], "frames for its own address, {filter:?}");
        assert_eq!(events.lock().unwrap().len(), 1, "{:?}", events.lock().unwrap());
        assert!(ledger.is_lossless(), "{ledger}");
    }
}

/// Any process with a packet socket will do.
fn listen(bed: &Bed) -> Child {
    let listen = "import socket, time; s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0); \
                  s.bind(('a1', 0x0800)); print(flush=True); time.sleep(60)";
    let start = || Command::new("python3").args(["-c", listen]).stdout(Stdio::piped()).spawn();
    bed.receiver.run_in(start).unwrap().unwrap()
}

fn end(mut client: Child) {
    client.kill().unwrap();
    client.wait().unwrap();
}

#[test]
fn auto_leaves_an_interface_to_a_dhcp_client() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let choice =
        || bed.at_receiver(|| wirecap::device::Device::find("a1").unwrap().choose_engine());
    assert!(
        matches!(choice().engine, wirecap::device::ChosenEngine::Xdp(_)),
        "{choice:?}",
        choice = choice()
    );
    let client = listen(&bed);
    wait_until("the client listens", || choice().why.contains("packet socket"));
    assert_eq!(choice().engine, wirecap::device::ChosenEngine::Packet);
    end(client);
    // A socket that only sends or sets promiscuous mode has no protocol, and does not listen.
    wait_until("no socket listens", || !choice().why.contains("packet socket"));
}
