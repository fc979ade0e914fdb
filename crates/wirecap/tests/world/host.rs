//! The host begins to use an interface that `auto` captures with `xdp`.

use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use wirecap::{Capture, Engine, Event};
use wirecap_testbed::{privileged, skip_on_this_machine, wait_until};

use crate::bed::{Bed, ip, take_all};

#[test]
fn auto_returns_an_interface_when_the_host_gets_an_address_on_it() {
    if !privileged() {
        return;
    }
    let uses: [(&str, &[&[&str]]); 5] = [
        ("", &[&["address", "add", "10.9.9.1/24", "dev", "a1"]]),
        ("", &[&["route", "add", "10.9.8.0/24", "dev", "a1"]]),
        ("bridge", &[&["link", "add", "br9", "type", "bridge"], &["link", "set", "a1", "master", "br9"]]),
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
            skip_on_this_machine(&format!("this kernel has no {kind}; `make vm` boots one that has"));
            continue;
        }
        let events = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&events);
        let builder = Capture::on("a1").engine(Engine::Auto).chunk(64).pool(256);
        let capture = bed.open(builder.on_event(move |event| told.lock().unwrap().push(event.clone())));
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
        let handed_back = events.lock().unwrap().iter().filter(|event| is_handed_back(event)).count();
        assert_eq!(handed_back, 1, "{:?}", events.lock().unwrap());
        // The stack of a bridge or an address may send packets itself: only packets sent here are counted.
        assert_eq!((taken, ledger.total.delivered), (1_200, 1_200), "{commands:?} {ledger}");
        assert_eq!(ledger.engine, "xdp, packet");
        // Packets of an interface are unseen while it is down.
        assert_eq!(ledger.is_lossless(), kind != "bond", "{ledger}");
    }
}

/// Whether interfaces of this kind can be created; no kind is always available.
fn kernel_has(bed: &Bed, kind: &str) -> bool {
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
    let ping =
        || Command::new("ping").args(["-c", "1", "-W", "1", "10.9.9.1"]).stdout(Stdio::null()).status();
    wait_until("the host answers", || bed.sender.run_in(ping).unwrap().unwrap().success());
    bed.close(capture);
}

#[test]
fn auto_leaves_an_interface_to_a_dhcp_client() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let choice = || bed.at_receiver(|| wirecap::device::Device::find("a1").unwrap().choose_engine());
    assert!(
        matches!(choice().engine, wirecap::device::ChosenEngine::Xdp(_)),
        "{choice:?}",
        choice = choice()
    );
    // Any process with a packet socket will do.
    let listen = "import socket, time; s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0); \
                  s.bind(('a1', 0x0800)); print(flush=True); time.sleep(60)";
    let start = || Command::new("python3").args(["-c", listen]).stdout(Stdio::piped()).spawn();
    let mut client = bed.receiver.run_in(start).unwrap().unwrap();
    wait_until("the client listens", || choice().why.contains("packet socket"));
    assert_eq!(choice().engine, wirecap::device::ChosenEngine::Packet);
    client.kill().unwrap();
    client.wait().unwrap();
    // A socket that only sends or sets promiscuous mode has no protocol, and does not listen.
    wait_until("no socket listens", || !choice().why.contains("packet socket"));
}
