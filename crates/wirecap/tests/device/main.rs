//! The kernel's information about interfaces, read in network namespaces that each test creates.

mod namespace;
mod sender;
mod xdp;

use std::time::{Duration, Instant};

use namespace::{Namespace, ethtool_sum, in_new_namespace, ip, link_counter, make_pair};
use sender::{Sender, Tap};
use wirecap::device::{
    AttachedXdp, ChosenEngine, Device, DeviceError, DropSource, Mac, Mark, OperationalState,
    Presence, Reason, ReceiveMode, Scope, XdpFeatures, XdpMode, devices,
};
use xdp::{Program, Verdict};

/// Time limit for actions of the kernel on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn find(name: &str) -> Device {
    Device::find(name).unwrap()
}

/// The losses that a veth reports, after checking their source.
fn dropped(device: &Device, source: DropSource) -> u64 {
    let counters = device.counters().unwrap();
    assert_eq!(counters.source, source);
    counters.dropped.unwrap()
}

fn is_queue_drops(name: &str) -> bool {
    name.starts_with("rx_queue_") && name.ends_with("_drops") && !name.ends_with("xdp_drops")
}

fn is_received(name: &str) -> bool {
    name.starts_with("rx_queue_") && name.ends_with("_xdp_packets")
}

#[test]
fn a_veth_is_described_as_it_was_made() {
    in_new_namespace(|| {
        make_pair(3);
        ip("link set a1 mtu 1400 address 02:00:00:00:00:07");
        let device = Device::find("a1").unwrap();
        assert_eq!(device.name, "a1");
        assert_eq!(device.mac, Some(Mac([2, 0, 0, 0, 0, 7])));
        assert_eq!(device.mtu, 1400);
        assert_eq!((device.rx_queues, device.tx_queues), (3, 3));
        assert_eq!(device.driver.as_deref(), Some("veth"));
        assert_eq!(device.kind.as_deref(), Some("veth"));
        assert_eq!(device.link_type, 1);
        assert!(device.up && device.running);
    });
}

#[test]
fn a_missing_interface_is_named_with_those_that_exist() {
    in_new_namespace(|| {
        make_pair(1);
        match Device::find("a2") {
            Err(DeviceError::NoSuchDevice { name, existing }) => {
                assert_eq!(name, "a2");
                for name in ["lo", "a0", "a1"] {
                    assert!(
                        existing.iter().any(|found| found == name),
                        "{name} is not in {existing:?}"
                    );
                }
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn presence_follows_the_interface_and_not_its_name() {
    in_new_namespace(|| {
        make_pair(1);
        let device = Device::find("a1").unwrap();
        assert_eq!(device.presence().unwrap(), Presence::Up);
        ip("link set a1 down");
        assert_eq!(device.presence().unwrap(), Presence::Down);
        assert!(device.exists().unwrap());
        ip("link set a1 name b1");
        assert_eq!(device.presence().unwrap(), Presence::Renamed("b1".into()));
        ip("link del a0");
        make_pair(1);
        assert_eq!(device.presence().unwrap(), Presence::Gone);
        assert!(!device.exists().unwrap());
    });
}

/// Waits until the veth's queues have taken all frames: the last frames are still in its ring when
/// the sender has finished.
fn wait_for_received(expected: impl Fn(u64) -> bool) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let received = ethtool_sum("a1", is_received);
        if expected(received) || Instant::now() > deadline {
            return received;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Moves `a0` away and sets it up there.
fn move_sender(namespace: &Namespace) {
    ip(&format!("link set a0 netns {}", namespace.path()));
    namespace.enter(|| {
        ip("link set a0 addrgenmode none");
        ip("link set a0 up");
    });
}

/// Sends from `a0` in two batches, each as long as the ring, or in one if a signal comes. Returns
/// the number of frames.
///
/// From one thread only: a veth counts its peer's frames without a lock, and loses counts if two
/// processors send to one queue at the same time.
fn send_batches() -> u64 {
    Program::load(Verdict::Redirect(find("a0").index)).generate(512, 256)
}

/// Sends frames to `a1`, whose slow program returns `verdict`, until the ring overflows. Checks
/// that the device's loss is exactly the number of missing frames.
fn lose_frames(verdict: Verdict, send_batches: impl Fn() -> u64, source: DropSource) {
    const TRIES: usize = 2000;
    let device = find("a1");
    let _receiver = Program::load_slow(verdict).attach(device.index);
    let before = device.counters().unwrap();
    let lost = || device.counters().unwrap().dropped_since(&before).unwrap();
    let mut sent = 0;
    for _ in 0..TRIES {
        sent += send_batches();
        if lost() > 0 {
            break;
        }
    }
    let received = wait_for_received(|received| received + dropped(&device, source) >= sent);
    assert!(lost() > 0, "nothing overflowed: this shows nothing");
    assert_eq!(received + lost(), sent);
}

const NOWHERE: u32 = 99_999;

#[test]
fn a_veth_with_a_peer_in_this_namespace_reports_the_peers_errors() {
    in_new_namespace(|| {
        make_pair(1);
        lose_frames(Verdict::Drop, send_batches, DropSource::VethPeer);
        assert_eq!(link_counter("a0", "tx", "dropped"), dropped_by_receiver());
    });
    in_new_namespace(|| {
        make_pair(1);
        lose_frames(Verdict::Redirect(NOWHERE), send_batches, DropSource::VethPeer);
    });
}

#[test]
fn a_veth_with_a_peer_in_another_namespace_reports_rx_dropped_less_queue_drops() {
    in_new_namespace(|| {
        let namespace = Namespace::new();
        make_pair(1);
        move_sender(&namespace);
        lose_frames(
            Verdict::Redirect(NOWHERE),
            || namespace.enter(send_batches),
            DropSource::VethReceiver,
        );
        let in_queues = ethtool_sum("a1", is_queue_drops);
        assert!(in_queues > 0);
        assert_eq!(link_counter("a1", "rx", "dropped"), in_queues + dropped_by_receiver());
    });
}

fn dropped_by_receiver() -> u64 {
    find("a1").counters().unwrap().dropped.unwrap()
}

/// A protocol that the stack handles, and one that it does not.
const ETHERTYPES: [u16; 2] = [0x0806, 0x88b5];

fn send(count: usize, ethertype: u16) -> u64 {
    let sender = Sender::on(find("a0").index);
    (0..count).filter(|_| sender.send(ethertype)).count() as u64
}

#[test]
fn a_veth_that_gets_socket_buffers_loses_none() {
    for verdict in [Verdict::Drop, Verdict::Pass, Verdict::Redirect(NOWHERE)] {
        in_new_namespace(|| {
            make_pair(1);
            let device = find("a1");
            let _receiver = Program::load(verdict).attach(device.index);
            let sent: u64 = ETHERTYPES.iter().map(|&ethertype| send(1000, ethertype)).sum();
            assert_eq!(wait_for_received(|received| received == sent), sent);
            assert_eq!(dropped(&device, DropSource::VethPeer), 0);
        });
    }
}

#[test]
fn without_a_program_a_veth_does_not_count_what_is_captured() {
    in_new_namespace(|| {
        make_pair(1);
        let device = find("a1");
        send(1000, ETHERTYPES[1]);
        assert_eq!(dropped(&device, DropSource::VethReceiver), 1000, "the stack's, as documented");
        let _tap = Tap::on(device.index);
        send(1000, ETHERTYPES[1]);
        assert_eq!(dropped(&device, DropSource::VethReceiver), 1000);
    });
}

#[test]
fn loopback_reports_no_losses() {
    in_new_namespace(|| {
        let counters = find("lo").counters().unwrap();
        assert_eq!((counters.dropped, counters.source), (None, DropSource::NotReported));
    });
}

#[test]
fn a_device_of_another_namespace_is_ignored() {
    in_new_namespace(|| {
        make_pair(1);
        let device = find("a1");
        let elsewhere = Namespace::new();
        elsewhere.enter(|| {
            make_pair(1);
            assert_eq!(find("a1").index, device.index);
            assert!(matches!(device.counters(), Err(DeviceError::OtherNamespace { .. })));
            assert!(matches!(device.presence(), Err(DeviceError::OtherNamespace { .. })));
        });
    });
}

/// Looks up `a1` until it is in the required state, up to the time limit: the kernel makes some
/// changes later.
fn find_when(wanted: impl Fn(&Device) -> bool) -> Device {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let device = find("a1");
        if wanted(&device) || Instant::now() > deadline {
            return device;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Checks the engine that `auto` selects for `a1` after these commands.
fn with_ruling_after(commands: &[&str], check: impl FnOnce(Option<Reason>) + Send) {
    in_new_namespace(|| {
        make_pair(1);
        for command in commands {
            ip(command);
        }
        check(find("a1").carries_host_traffic());
    });
}

/// Whether the kernel reports the XDP features of interfaces; otherwise the test is skipped.
fn features_are_reported() -> bool {
    let are_reported = find("lo").xdp.is_some();
    if !are_reported {
        wirecap_testbed::skip_on_this_machine(
            "this kernel does not report XDP features (Linux 6.3)",
        );
    }
    are_reported
}

/// Dedicates an interface of this namespace to capturing.
fn dedicate(name: &str) {
    let here = wirecap_testbed::Namespace::current().unwrap();
    let interface = wirecap_testbed::Interface::find(&here, name).unwrap();
    wirecap_testbed::dedicate(&interface).unwrap();
}

#[test]
fn auto_selects_xdp_on_a_dedicated_interface_only() {
    in_new_namespace(|| {
        if !features_are_reported() {
            return;
        }
        make_pair(2);
        // Other tests dedicate interfaces of the usual names.
        ip("link set a1 down");
        ip("link set a1 name span1 up");
        let choice = find("span1").choose_engine();
        assert_eq!(find("span1").carries_host_traffic(), None);
        assert_eq!(choice.engine, ChosenEngine::Packet, "without a mark: {}", choice.why);
        assert_eq!(find("span1").mark, Mark::Missing);
        assert_eq!(choice.why, "not dedicated: wirecap dedicate span1");
        dedicate("span1");
        let choice = find("span1").choose_engine();
        assert_eq!(
            choice.engine,
            ChosenEngine::Xdp(Some(ReceiveMode::NativeCopy)),
            "{}",
            choice.why
        );
        assert_eq!(
            (find("span1").mark, find("span1").contradictions()),
            (Mark::Dedicated, Vec::new())
        );
    });
}

#[test]
fn a_mark_is_not_for_another_device_of_the_same_name() {
    in_new_namespace(|| {
        make_pair(1);
        dedicate("a1");
        ip("link set a1 address 02:00:00:00:00:08");
        let device = find("a1");
        assert!(matches!(device.mark, Mark::OtherAddress(_)), "{:?}", device.mark);
        let choice = device.choose_engine();
        assert_eq!(choice.engine, ChosenEngine::Packet);
        assert!(choice.why.contains("its mark is of another device"), "{}", choice.why);
        assert!(choice.why.ends_with("wirecap dedicate a1"), "{}", choice.why);
    });
}

#[test]
fn a_dedicated_interface_that_is_down_is_still_dedicated() {
    in_new_namespace(|| {
        make_pair(1);
        dedicate("a1");
        ip("link set a1 down");
        assert!(matches!(find("a1").choose_engine().engine, ChosenEngine::Xdp(_)));
    });
}

/// Checks that a dedicated `a1` is for `packet` after this change, for this reason only.
fn contradicted_after(change: impl FnOnce() + Send, reason: impl FnOnce(&Reason) -> bool + Send) {
    in_new_namespace(|| {
        make_pair(1);
        ip("link set a1 addrgenmode none down");
        ip("link set a1 up");
        dedicate("a1");
        assert_eq!(find("a1").contradictions(), Vec::new());
        change();
        let device = find("a1");
        let contradictions = device.contradictions();
        let [found] = &contradictions[..] else {
            panic!("the mark is contradicted by {contradictions:?}")
        };
        assert!(reason(found), "{found:?}");
        let choice = device.choose_engine();
        assert_eq!(choice.engine, ChosenEngine::Packet, "{found:?}");
        assert_eq!(choice.why, format!("it is dedicated, but {found}"));
    });
}

/// Adds a filter that takes every frame: a classic one of one instruction.
fn add_tc_filter(side: &str) {
    let filter = ["filter", "add", "dev", "a1", side, "bpf", "bytecode", "1,6 0 0 4294967295"];
    assert!(
        std::process::Command::new("tc").args(filter).status().unwrap().success(),
        "{filter:?}"
    );
}

#[test]
fn a_tc_filter_contradicts_a_mark() {
    // What the host sends through it is its traffic as well.
    for (qdisc, side) in [("clsact", "ingress"), ("clsact", "egress"), ("ingress", "ingress")] {
        let add = || {
            namespace::run("tc", &format!("qdisc add dev a1 {qdisc}"));
            add_tc_filter(side);
        };
        contradicted_after(add, |reason| *reason == Reason::TcFilter);
    }
}

#[test]
fn a_qdisc_without_a_filter_contradicts_nothing() {
    in_new_namespace(|| {
        make_pair(1);
        dedicate("a1");
        namespace::run("tc", "qdisc add dev a1 clsact");
        assert_eq!(find("a1").contradictions(), Vec::new());
    });
}

#[test]
fn a_netfilter_hook_contradicts_a_mark() {
    for family in ["netdev", "inet"] {
        let table = format!("add table {family} t");
        let chain =
            format!("add chain {family} t c {{ type filter hook ingress device a1 priority 0; }}");
        let add = || [table, chain].iter().for_each(|words| _ = namespace::run("nft", words));
        contradicted_after(add, |reason| *reason == Reason::Netfilter);
    }
}

#[test]
fn a_netfilter_hook_of_another_interface_contradicts_nothing() {
    in_new_namespace(|| {
        make_pair(1);
        dedicate("a1");
        namespace::run("nft", "add table netdev t");
        namespace::run(
            "nft",
            "add chain netdev t c { type filter hook ingress device a0 priority 0; }",
        );
        assert_eq!(find("a1").contradictions(), Vec::new());
        assert_eq!(find("a1").hooks.unwrap().unknown, Vec::<String>::new());
    });
}

#[test]
fn a_tcx_program_contradicts_a_mark() {
    in_new_namespace(|| {
        make_pair(1);
        dedicate("a1");
        let Some(program) = xdp::TcxProgram::attach(find("a1").index) else {
            wirecap_testbed::skip_on_this_machine("this kernel has no tcx (Linux 6.6)");
            return;
        };
        assert_eq!(find("a1").contradictions(), [Reason::Tcx], "the mark is contradicted");
        assert_eq!(find("a1").choose_engine().engine, ChosenEngine::Packet);
        drop(program);
        // A command that another test is about to execute may still have the descriptor.
        wirecap_testbed::wait_until("the program is gone", || {
            find("a1").contradictions().is_empty()
        });
    });
}

#[test]
fn a_packet_socket_of_another_process_contradicts_a_mark() {
    in_new_namespace(|| {
        make_pair(1);
        dedicate("a1");
        let mut device = find("a1");
        device.packet_listeners = 1;
        assert_eq!(device.contradictions(), [Reason::PacketSockets(1)], "the mark is contradicted");
        assert_eq!(device.choose_engine().engine, ChosenEngine::Packet);
    });
}

#[test]
fn the_hosts_uses_contradict_a_mark() {
    contradicted_after(
        || ip("route add 198.51.100.0/24 dev a1"),
        |reason| matches!(reason, Reason::Route(_)),
    );
    contradicted_after(
        || ip("addr add 192.0.2.1/32 dev a1"),
        |reason| matches!(reason, Reason::Address(_)),
    );
    let bridge = || {
        ip("link add b0 type bridge");
        ip("link set a1 master b0");
    };
    contradicted_after(bridge, |reason| matches!(reason, Reason::Upper(_)));
    in_new_namespace(|| {
        ip("link set lo up");
        dedicate("lo");
        assert_eq!(find("lo").choose_engine().engine, ChosenEngine::Packet);
    });
}

#[test]
fn an_xdp_program_that_is_no_captures_contradicts_a_mark() {
    in_new_namespace(|| {
        make_pair(1);
        dedicate("a1");
        let attached = Program::load(Verdict::Pass).attach(find("a1").index);
        assert_eq!(find("a1").contradictions(), [Reason::ForeignXdp], "the mark is contradicted");
        assert_eq!(find("a1").choose_engine().engine, ChosenEngine::Packet);
        drop(attached);
        let capture = wirecap::Capture::on("a1")
            .engine(wirecap::Engine::Xdp)
            .chunk(64)
            .pool(16)
            .open()
            .unwrap();
        assert_eq!(find("a1").contradictions(), Vec::new(), "a capture's own program");
        capture.close();
    });
}

#[test]
fn a_device_whose_frames_arrive_on_its_ports_is_for_packet() {
    let mut device = Device::find("lo").unwrap();
    device.link_type = libc::ARPHRD_ETHER;
    device.mark = Mark::Dedicated;
    device.addresses.clear();
    for (kind, is_controller) in
        [("bond", true), ("team", true), ("bridge", false), ("veth", false)]
    {
        device.kind = Some(kind.to_owned());
        let has =
            device.contradictions().iter().any(|reason| matches!(reason, Reason::Controller(_)));
        assert_eq!(has, is_controller, "the mark is contradicted: {kind}");
    }
}

#[test]
fn an_automatic_address_leaves_an_interface_free() {
    in_new_namespace(|| {
        make_pair(1);
        ip("link set a1 addrgenmode eui64");
        ip("link set a1 down");
        ip("link set a1 up");
        let device = find_when(|device| !device.addresses.is_empty());
        assert_eq!(device.addresses.len(), 1, "{device:?}");
        assert_eq!(device.addresses[0].scope, Scope::Link);
        assert!(device.addresses[0].is_automatic());
        assert_eq!(device.routes.count, 0);
        assert_eq!(device.carries_host_traffic(), None);
    });
}

#[test]
fn any_other_address_makes_it_the_hosts() {
    for address in ["192.0.2.1/24", "169.254.7.7/16", "2001:db8::1/64", "fe80::1/64"] {
        with_ruling_after(&[&format!("addr add {address} dev a1")], |ruling| {
            let Some(Reason::Address(found)) = ruling else { panic!("{address}: {ruling:?}") };
            assert_eq!(found.to_string(), address);
        });
    }
}

#[test]
fn the_local_end_of_a_point_to_point_address_is_listed() {
    with_ruling_after(&["addr add 192.0.2.1 peer 192.0.2.2/32 dev a1"], |ruling| {
        let Some(Reason::Address(found)) = ruling else { panic!("{ruling:?}") };
        assert_eq!(found.ip.to_string(), "192.0.2.1");
    });
}

#[test]
fn a_route_makes_it_the_hosts() {
    let routes: [(&[&str], &str); 6] = [
        (&["route add 198.51.100.0/24 dev a1"], "198.51.100.0/24"),
        (&["route add default dev a1 table 77"], "default"),
        (&["-6 route add default via fe80::9 dev a1"], "default via fe80::9"),
        (&["route add 198.51.100.0/24 via inet6 fe80::9 dev a1"], "198.51.100.0/24 via fe80::9"),
        (&["route add 198.51.100.0/24 nexthop dev a0 nexthop dev a1"], "198.51.100.0/24"),
        (&["nexthop add id 1 dev a1", "route add 198.51.100.0/24 nhid 1"], "198.51.100.0/24"),
    ];
    for (commands, text) in routes {
        with_ruling_after(commands, |ruling| {
            let Some(Reason::Route(found)) = ruling else { panic!("{commands:?}: {ruling:?}") };
            assert_eq!(found.to_string(), text);
        });
    }
}

#[test]
fn routes_through_others_and_to_nowhere_do_not_count() {
    let commands = ["route add 198.51.100.0/24 dev a0", "route add blackhole 203.0.113.0/24"];
    with_ruling_after(&commands, |ruling| assert_eq!(ruling, None));
}

#[test]
fn default_routes_are_recognised() {
    in_new_namespace(|| {
        make_pair(1);
        ip("addr add 192.0.2.1/24 dev a1");
        ip("route add default via 192.0.2.9");
        let device = find("a1");
        assert!(device.is_default_route());
        assert_eq!(device.routes.count, 2, "{:?}", device.routes);
        assert_eq!(device.routes.default[0].to_string(), "default via 192.0.2.9");
        assert_eq!(device.routes.first[0].to_string(), "192.0.2.0/24");
        assert!(!find("a0").is_default_route());
    });
}

#[test]
fn an_upper_device_makes_an_interface_the_hosts() {
    let uppers: [(&[&str], &str); 2] = [
        (&["link add m0 link a1 type macvlan"], "macvlan m0"),
        (&["link add b0 type bridge", "link set a1 master b0"], "bridge b0"),
    ];
    for (commands, text) in uppers {
        with_ruling_after(commands, |ruling| {
            let Some(Reason::Upper(found)) = ruling else { panic!("{commands:?}: {ruling:?}") };
            assert_eq!(found.to_string(), text);
        });
    }
}

#[test]
fn a_macvlan_in_a_container_is_detected() {
    in_new_namespace(|| {
        make_pair(1);
        let container = Namespace::new();
        let path = container.path();
        ip(&format!("link add m0 link a1 netns {path} address 02:00:00:00:00:05 type macvlan"));
        assert_eq!(find("a1").carries_host_traffic(), None, "it is not up yet");
        container.enter(|| ip("link set m0 up"));
        let device = find("a1");
        assert_eq!(device.uppers, []);
        let other = Reason::OtherMac(Mac([2, 0, 0, 0, 0, 5]));
        assert_eq!(device.carries_host_traffic(), Some(other.clone()));
        assert_eq!(device.contradictions(), [other], "the mark is contradicted");
    });
}

#[test]
fn auto_leaves_loopback_and_down_interfaces_to_packet() {
    in_new_namespace(|| {
        assert_eq!(find("lo").carries_host_traffic(), Some(Reason::Loopback));
        assert_eq!(find("lo").choose_engine().engine, ChosenEngine::Packet);
        assert!(find("lo").is_loopback());
        make_pair(1);
        ip("link set a1 down");
        assert_eq!(find("a1").carries_host_traffic(), Some(Reason::Down));
        assert_eq!(find("a1").choose_engine().engine, ChosenEngine::Packet);
        assert_eq!(find("a1").operational_state, OperationalState::Down);
        assert_eq!(find("a0").operational_state, OperationalState::LowerLayerDown);
        assert!(!find("a0").carrier);
    });
}

#[test]
fn an_interface_without_its_own_xdp_gets_the_generic_rung() {
    in_new_namespace(|| {
        if !features_are_reported() {
            return;
        }
        make_pair(1);
        ip("link add m0 link a1 type macvlan");
        ip("link set m0 addrgenmode none up");
        dedicate("m0");
        let choice = find("m0").choose_engine();
        assert_eq!(choice.engine, ChosenEngine::Xdp(Some(ReceiveMode::Generic)), "{}", choice.why);
    });
}

#[test]
fn an_interface_without_ethernet_gets_the_packet_engine() {
    in_new_namespace(|| {
        ip("tuntap add t0 mode tun");
        ip("link set t0 addrgenmode none up");
        let mut device = find("t0");
        device.mark = Mark::Dedicated;
        assert_eq!(device.mac, None);
        assert_eq!(device.carries_host_traffic(), None);
        assert_eq!(device.choose_engine().engine, ChosenEngine::Packet, "the mark is contradicted");
    });
}

#[test]
fn queues_follow_the_driver() {
    in_new_namespace(|| {
        make_pair(4);
        namespace::run("ethtool", "-L a1 rx 3 tx 2");
        let device = find("a1");
        assert_eq!((device.rx_queues, device.tx_queues), (3, 2));
    });
}

#[test]
fn without_a_driver_the_stack_gives_the_number_of_queues() {
    in_new_namespace(|| {
        make_pair(1);
        ip("link add m0 link a1 numrxqueues 3 numtxqueues 2 type macvlan");
        ip("link set m0 up");
        let device = find("m0");
        if (device.rx_queues, device.tx_queues) == (1, 1) {
            wirecap_testbed::skip_on_this_machine(
                "this kernel does not report queues in use (Linux 6.8)",
            );
            return;
        }
        assert_eq!((device.rx_queues, device.tx_queues), (3, 2));
    });
}

#[test]
fn a_veth_can_do_native_xdp_and_be_redirected_to_while_its_peer_listens() {
    in_new_namespace(|| {
        if !features_are_reported() {
            return;
        }
        make_pair(1);
        let features = |name: &str| find(name).xdp.unwrap().features;
        assert!(
            features("a1")
                .contains(XdpFeatures::BASIC | XdpFeatures::REDIRECT | XdpFeatures::RX_SG)
        );
        assert!(!features("a1").intersects(XdpFeatures::XSK_ZEROCOPY | XdpFeatures::NDO_XMIT));
        let _peer = Program::load(Verdict::Pass).attach(find("a0").index);
        assert!(features("a1").contains(XdpFeatures::NDO_XMIT));
        assert!(find("lo").xdp.unwrap().features.is_empty());
    });
}

#[test]
fn attached_programs_are_listed_with_their_mode() {
    in_new_namespace(|| {
        make_pair(1);
        assert_eq!(find("a1").attached_xdp, []);
        let program = Program::load(Verdict::Pass);
        let index = find("a1").index;
        let modes =
            |attached: Vec<AttachedXdp>| attached.iter().map(|xdp| xdp.mode).collect::<Vec<_>>();
        let attachment = program.attach(index);
        let attached = find("a1").attached_xdp;
        let shown = namespace::run("ip", "link show a1");
        assert!(shown.contains(&format!("prog/xdp id {} ", attached[0].program_id)), "{shown}");
        assert_eq!(modes(attached), [XdpMode::Native]);
        drop(attachment);
        // A process that another test starts has a copy of the link's descriptor until exec.
        assert_eq!(find_when(|device| device.attached_xdp.is_empty()).attached_xdp, []);
        let _attachment = program.attach_generic(index);
        assert_eq!(modes(find("a1").attached_xdp), [XdpMode::Generic]);
    });
}

#[test]
fn offloads_follow_ethtool() {
    in_new_namespace(|| {
        make_pair(1);
        let offloads = || find("a1").offloads.unwrap();
        for state in ["on", "off"] {
            let is_on = state == "on";
            namespace::run(
                "ethtool",
                &format!("-K a1 gro {state} gso {state} tso {state} tx {state}"),
            );
            // Linux disables TSO without checksum offload, and veth has no receive side of these
            // offloads.
            let found = offloads();
            assert_eq!(
                (found.gro, found.gso, found.tso, found.tx_checksum),
                (is_on, is_on, is_on, is_on)
            );
            namespace::run(
                "ethtool",
                &format!("-K a1 rxvlan {state} rx-vlan-stag-hw-parse {state}"),
            );
            assert_eq!(offloads().rx_vlan, is_on);
        }
        assert!(!offloads().lro && !offloads().gro_hardware);
    });
}

#[test]
fn all_devices_are_listed_by_index() {
    in_new_namespace(|| {
        make_pair(1);
        ip("link add b0 type bridge");
        let devices = devices().unwrap();
        let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["lo", "a1", "a0", "b0"]);
        assert!(devices.is_sorted_by_key(|device| device.index));
        for device in &devices {
            let found = find(&device.name);
            assert_eq!(
                (found.index, found.kind, found.xdp),
                (device.index, device.kind.clone(), device.xdp)
            );
        }
    });
}

#[test]
fn added_and_removed_interfaces_do_not_break_the_list() {
    in_new_namespace(|| {
        let churn = std::sync::atomic::AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while churn.load(std::sync::atomic::Ordering::Relaxed) {
                    make_pair(1);
                    ip("link del a0");
                }
            });
            let lists: Vec<_> = (0..100).map(|_| devices()).collect();
            churn.store(false, std::sync::atomic::Ordering::Relaxed);
            for list in lists {
                assert_eq!(list.unwrap()[0].name, "lo");
            }
        });
    });
}

#[test]
fn an_alternative_name_finds_the_proper_one() {
    in_new_namespace(|| {
        make_pair(1);
        ip("link property add dev a1 altname uplink");
        assert_eq!(find("uplink").name, "a1");
    });
}

#[test]
fn impossible_names_are_rejected_with_the_reason() {
    for name in ["", ".", "..", "a/b", "a:0", "a b", "a\0", "sixteen-letters-"] {
        assert!(matches!(Device::find(name), Err(DeviceError::InvalidName { .. })), "{name:?}");
    }
    let error = Device::find("sixteen-letters-").unwrap_err();
    assert_eq!(
        error.to_string(),
        "\"sixteen-letters-\" cannot be an interface: a name has at most 15 bytes"
    );
}
