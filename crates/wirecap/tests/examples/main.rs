//! The examples of forwarding behave as documented, and account for every packet.

#[path = "../../examples/balancer.rs"]
mod balancer;
#[path = "../../examples/firewall.rs"]
mod firewall;
#[path = "../../examples/limiter.rs"]
mod limiter;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use wirecap::{Capture, Ledger, PortAccount};
use wirecap_testbed::{
    Counters, Generator, Host, Inline, Load, Namespace, PacketReceiver, PacketSender, Sizes, Stamp,
    Traffic, VethPair, pass_program, privileged, uninterrupted,
};

/// Time limit on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs an example in its namespace during `work`, and stops it when all packets have passed.
fn while_running(
    middle: &Namespace,
    open: impl FnOnce() -> Capture + Send,
    run: impl FnOnce(&Capture) + Send,
    work: impl FnOnce(),
) -> Ledger {
    let capture = middle.run_in(open).unwrap();
    thread::scope(|scope| {
        let running = scope.spawn(|| middle.run_in(|| run(&capture)).unwrap());
        work();
        thread::sleep(Duration::from_millis(300));
        middle.run_in(|| capture.stop()).unwrap();
        running.join().unwrap();
    });
    middle.run_in(|| capture.close()).unwrap()
}

fn port(ledger: &Ledger, name: &str) -> PortAccount {
    ledger
        .ports
        .iter()
        .find(|port| port.name == name)
        .unwrap_or_else(|| panic!("no {name}: {ledger}"))
        .account
}

/// Delivered packets were handed to the ports, except those that the example dropped, and were
/// sent.
#[track_caller]
fn check_books(ledger: &Ledger, dropped: u64) {
    let mut taken = 0;
    let mut sent = 0;
    for port in &ledger.ports {
        let account = port.account;
        assert_eq!(account.taken, account.sent + account.dropped.total(), "{ledger}");
        (taken, sent) = (taken + account.taken, sent + account.sent);
    }
    assert_eq!(ledger.total.delivered, taken + dropped, "{ledger}");
    assert!(ledger.is_lossless() && taken == sent, "{ledger}");
}

/// A UDP socket on a host.
fn socket(host: &Host, port: u16) -> UdpSocket {
    let open = || UdpSocket::bind((host.ipv4, port)).unwrap();
    let socket = host.interface.namespace.run_in(open).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

#[test]
fn the_firewall_rejects_unsolicited_packets() {
    if !privileged() {
        return;
    }
    let bed = Inline::new(1, 1500).and_then(Inline::dedicated).unwrap();
    bed.set_checksum_offload(false).unwrap();
    bed.add_addresses().unwrap();
    let firewall = Mutex::default();
    let open = || firewall::open("left", "right").unwrap();
    let run = |capture: &Capture| firewall::run(capture, &firewall).unwrap();
    let ledger = while_running(&bed.middle, open, run, || {
        let inside = socket(&bed.left, 1000);
        let outside = socket(&bed.right, 2000);
        let stranger = socket(&bed.right, 3000);
        let mut text = [0; 16];
        // Before the inside has sent, nothing passes from outside.
        for _ in 0..3 {
            outside.send_to(b"knock", (bed.left.ipv4, 1000)).unwrap();
        }
        inside.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let kept_out = uninterrupted(|| inside.recv_from(&mut text)).unwrap_err();
        assert_eq!(kept_out.kind(), ErrorKind::WouldBlock);
        inside.set_read_timeout(Some(PATIENCE)).unwrap();
        inside.send_to(b"question", (bed.right.ipv4, 2000)).unwrap();
        assert_eq!(uninterrupted(|| outside.recv_from(&mut text)).unwrap().0, 8);
        outside.send_to(b"answer", (bed.left.ipv4, 1000)).unwrap();
        assert_eq!(uninterrupted(|| inside.recv_from(&mut text)).unwrap().0, 6);
        stranger.send_to(b"spam", (bed.left.ipv4, 1000)).unwrap();
        outside.send_to(b"wrong door", (bed.left.ipv4, 1001)).unwrap();
        // With a VLAN tag, a packet belongs to no conversation: it passes from inside only.
        let mut tagged = [0_u8; 60];
        tagged[..6].fill(0xff);
        tagged[6] = 2;
        tagged[12..18].copy_from_slice(&[0x81, 0, 0, 5, 8, 0]);
        for end in [&bed.left, &bed.right] {
            PacketSender::on(&end.interface).unwrap().send(&tagged).unwrap();
        }
    });
    let refused = firewall.into_inner().unwrap().refused;
    assert_eq!(refused, 6, "{ledger}");
    check_books(&ledger, refused);
}

/// A front and three backs, each connected to a separate host.
fn cables() -> (Namespace, Vec<VethPair>) {
    let middle = Namespace::new().unwrap();
    let cable = |name| {
        VethPair::new((&Namespace::new().unwrap(), "eth0"), (&middle, name), 1, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap()
    };
    let cables = ["front", "back0", "back1", "back2"].map(cable).to_vec();
    (middle, cables)
}

#[test]
fn the_balancer_keeps_each_flow_at_one_port_and_brings_answers_back() {
    if !privileged() {
        return;
    }
    const FLOWS: u64 = 64;
    const FRAMES: u64 = 6_400;
    let (middle, cables) = cables();
    let (front, backs) = cables.split_first().unwrap();
    let mut receivers: Vec<_> =
        backs.iter().map(|back| PacketReceiver::on(&back.sender).unwrap()).collect();
    let mut answers = Counters::of(&front.sender).unwrap();
    let names = ["back0", "back1", "back2"];
    let open = || balancer::open("front", &names).unwrap();
    let ledger = while_running(
        &middle,
        open,
        |capture| balancer::run(capture).unwrap(),
        || {
            let traffic = Traffic { flows: FLOWS as u32, ..Traffic::to(&front.receiver) };
            let mut generator = Generator::new(&front.sender, &traffic).unwrap();
            generator.send(&[Load::new(0, FRAMES).per_second(20_000)]).unwrap();
            for back in backs {
                PacketSender::on(&back.sender).unwrap().send(&[0x5a; 60]).unwrap();
            }
        },
    );
    check_books(&ledger, 0);
    assert_eq!(answers.since_start().unwrap().rx_packets, 3, "{ledger}");
    let mut back_of_flow = HashMap::new();
    let mut received = 0;
    for (back, receiver) in receivers.iter_mut().enumerate() {
        while let Some(frame) = receiver.receive(Duration::from_millis(50)).unwrap() {
            let Some(stamp) = Stamp::of(frame) else { continue };
            let known = back_of_flow.insert(stamp.sequence % FLOWS, back);
            assert!(
                known.is_none_or(|known| known == back),
                "{stamp:?} came at {back} after {known:?}"
            );
            received += 1;
        }
    }
    assert_eq!((received, back_of_flow.len() as u64), (FRAMES, FLOWS), "{ledger}");
    for name in names {
        // About a third of the flows each, because a hash selects.
        assert!(port(&ledger, name).sent > FRAMES / 10, "{ledger}");
    }
}

#[test]
fn the_limiter_lets_the_burst_and_the_rate_pass_and_counts_the_rest() {
    if !privileged() {
        return;
    }
    const FRAME_BYTES: u64 = 1000;
    const BURST: u32 = 100_000;
    const BITS_PER_SECOND: f64 = 800_000.0;
    let bed = Inline::new(1, 1500).and_then(Inline::dedicated).unwrap();
    let _passing = pass_program(&bed.right.interface).unwrap();
    let mut arrivals = Counters::of(&bed.right.interface).unwrap();
    let buckets = [(); 2].map(|()| Mutex::new(limiter::Bucket::new(BITS_PER_SECOND, BURST)));
    let begin = Instant::now();
    let open = || limiter::open("left", "right").unwrap();
    let run = |capture: &Capture| limiter::run(capture, &buckets).unwrap();
    let ledger = while_running(&bed.middle, open, run, || {
        let sizes = Sizes::fixed(FRAME_BYTES as u16);
        let traffic = Traffic { sizes, ..Traffic::to(&bed.right.interface) };
        let mut generator = Generator::new(&bed.left.interface, &traffic).unwrap();
        generator.send(&[Load::new(0, 2000).per_second(10_000)]).unwrap();
    });
    let most = f64::from(BURST) + BITS_PER_SECOND / 8.0 * begin.elapsed().as_secs_f64();
    let passed = port(&ledger, "right").sent;
    assert!(
        passed >= u64::from(BURST) / FRAME_BYTES && (passed * FRAME_BYTES) as f64 <= most,
        "{ledger}"
    );
    assert_eq!(arrivals.since_start().unwrap().rx_packets, passed, "{ledger}");
    let dropped: u64 = buckets.into_iter().map(|bucket| bucket.into_inner().unwrap().dropped).sum();
    assert_eq!(passed + dropped, 2000, "{ledger}");
    check_books(&ledger, dropped);
}
