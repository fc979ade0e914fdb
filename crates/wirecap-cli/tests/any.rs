//! `-i any`: one packet socket per link type for all interfaces, also those that appear later, with
//! an account of each.

mod recording;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use recording::{Bed, Finished, WIRECAP, copy_for_everybody};
use rustix::process::Signal;
use tempfile::TempDir;
use wirecap::savefile::Reader;
use wirecap_testbed::{
    Interface, Namespace, PacketSender, Stamp, Traffic, Tun, VethPair, privileged, wait_until,
};

/// Frames of the test bed, by the interface that received them.
type Counts = BTreeMap<String, u64>;

/// A bed whose interfaces are not dedicated to capturing.
fn plain_bed() -> Bed {
    let sender = Namespace::new().unwrap();
    let receiver = Namespace::new().unwrap();
    let pair = VethPair::new((&sender, "a0"), (&receiver, "a1"), 1, 1500).unwrap();
    Bed { sender, receiver, pair }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn ip(namespace: &Namespace, arguments: &str) {
    let run = || Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    let output = namespace.run_in(run).unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The frames of a file by the interface that its blocks name, and the number of interfaces that it
/// describes.
fn counts_in(file: &Path) -> (Counts, usize) {
    let mut reader = Reader::open(file).unwrap();
    let mut counts = Counts::new();
    while let Some(record) = reader.next_record().unwrap() {
        let interface = record.interface as usize;
        let name = reader.interfaces()[interface].name.clone().unwrap();
        *counts.entry(name).or_default() += 1;
    }
    (counts, reader.interfaces().len())
}

/// The delivered packets by interface, from the ledger.
fn counts_in_ledger(ledger: &serde_json::Value) -> Counts {
    let interfaces = ledger["interfaces"].as_array().unwrap().iter();
    let counts = interfaces
        .map(|seen| (seen["name"].as_str().unwrap(), seen["delivered"].as_u64().unwrap()));
    let mut sums = Counts::new();
    for (name, count) in counts.filter(|(_, count)| *count > 0) {
        *sums.entry(name.to_owned()).or_default() += count;
    }
    sums
}

/// Sends frames from one end of a pair to the other.
fn send(pair: &VethPair, frames: u64) {
    let mut sender = PacketSender::on(&pair.sender).unwrap();
    let traffic = Traffic::to(&pair.receiver);
    (0..frames)
        .for_each(|sequence| sender.send(&traffic.frame(Stamp { queue: 0, sequence })).unwrap());
}

/// A UDP packet without a link-layer header.
fn ip_packet(to: &Interface, sequence: u64) -> Vec<u8> {
    Traffic::to(to).frame(Stamp { queue: 0, sequence })[14..].to_vec()
}

fn descriptors(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

/// The memory of packets, as the line about the opened capture states it.
fn memory(line: &str) -> String {
    line.trim().rsplit(", ").next().unwrap().to_owned()
}

#[test]
fn a_hundred_and_twenty_interfaces_cost_as_much_as_one() {
    if !privileged() {
        return;
    }
    const INTERFACES: u64 = 120;
    let bed = plain_bed();
    let more: Vec<VethPair> = (1..INTERFACES)
        .map(|number| {
            let names = (format!("s{number}"), format!("v{number}"));
            VethPair::new((&bed.sender, &names.0), (&bed.receiver, &names.1), 1, 1500).unwrap()
        })
        .collect();

    let cost = |interface: &str| {
        let command = ["count", "-i", interface, "--engine", "packet", "--json", "udp"];
        let mut running = bed.start(Command::new(WIRECAP).args(command));
        let line = running.wait_for("capturing");
        // The watcher has begun.
        thread::sleep(Duration::from_millis(300));
        let count = descriptors(running.id());
        (running, memory(&line), count)
    };
    let (one, one_memory, one_descriptors) = cost("a1");
    one.interrupt().assert_success();
    let (all, all_memory, all_descriptors) = cost("any");
    for (number, pair) in (1..).zip(&more).filter(|(number, _)| number % 10 == 0) {
        send(pair, number);
    }
    let finished = all.interrupt();
    finished.assert_success();

    assert_eq!(all_memory, one_memory);
    assert!(
        all_descriptors <= one_descriptors + 4,
        "{all_descriptors} descriptors, {one_descriptors} for one"
    );
    let ledger = finished.ledger();
    let sent: Counts =
        (1..INTERFACES).filter(|n| n % 10 == 0).map(|n| (format!("v{n}"), n)).collect();
    assert_eq!(counts_in_ledger(&ledger), sent);
    assert_eq!(ledger["delivered"], sent.values().sum::<u64>());
    assert_eq!(ledger["interfaces"].as_array().unwrap().len() as u64, INTERFACES);
}

/// Records while interfaces of three link layers appear, are renamed, disappear and return, with an
/// independent count.
fn record_a_history(flags: &[&str]) -> (Finished, Counts, TempDir, PathBuf) {
    let bed = plain_bed();
    let directory = TempDir::new().unwrap();
    ip(&bed.receiver, "link set lo up");
    let file = directory.path().join("t.pcapng");
    let arguments =
        [&["capture", "-i", "any", "-w", text(&file), "--json"], flags, &["udp"]].concat();
    let mut running = bed.start(Command::new(WIRECAP).args(&arguments));
    running.wait_for("capturing");
    let mut sent = Counts::new();
    let mut count = |name: &str, frames: u64| *sent.entry(name.to_owned()).or_default() += frames;

    send(&bed.pair, 11);
    count("a1", 11);
    let pod = VethPair::new((&bed.sender, "s1"), (&bed.receiver, "pod1"), 1, 1500).unwrap();
    send(&pod, 23);
    count("pod1", 23);
    let socket = bed.receiver.run_in(|| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
    (0..7).for_each(|_| _ = socket.send_to(b"x", "127.0.0.1:9").unwrap());
    count("lo", 7);

    // Created some time before it is set up, as a VPN's is: the sockets of its link type are in
    // place.
    let mut tun = Tun::new(&bed.receiver, "tun0").unwrap();
    running.wait_for("tun0: new interface");
    tun.set_up().unwrap();
    (0..5).for_each(|sequence| tun.receive(&ip_packet(&bed.pair.receiver, sequence)).unwrap());
    count("tun0", 5);

    // A renamed interface keeps the name of its first packet.
    ip(&bed.receiver, "link set pod1 down");
    ip(&bed.receiver, "link set pod1 name pod1x");
    ip(&bed.receiver, "link set pod1x up");
    pod.sender.wait_until_running().unwrap();
    send(&pod, 3);
    count("pod1", 3);

    // Removed, and another one of the same name.
    ip(&bed.receiver, "link del pod1x");
    let pod = VethPair::new((&bed.sender, "s2"), (&bed.receiver, "pod2"), 1, 1500).unwrap();
    send(&pod, 2);
    ip(&bed.receiver, "link del pod2");
    let pod = VethPair::new((&bed.sender, "s3"), (&bed.receiver, "pod2"), 1, 1500).unwrap();
    send(&pod, 4);
    count("pod2", 6);

    // Moved to another namespace, its packets are no longer seen, and moved back they are.
    let elsewhere = Namespace::new().unwrap();
    let path = elsewhere.path().display().to_string();
    ip(&bed.receiver, &format!("link set pod2 netns {path}"));
    ip(&elsewhere, "link set pod2 up");
    let moved = VethPair {
        sender: pod.sender.clone(),
        receiver: Interface::find(&elsewhere, "pod2").unwrap(),
    };
    moved.sender.wait_until_running().unwrap();
    send(&moved, 100);
    let here = bed.receiver.path().display().to_string();
    ip(&elsewhere, &format!("link set pod2 netns {here}"));
    ip(&bed.receiver, "link set pod2 up");
    let pod =
        VethPair { sender: pod.sender, receiver: Interface::find(&bed.receiver, "pod2").unwrap() };
    pod.sender.wait_until_running().unwrap();
    // A port that leaves a bridge still exists.
    ip(&bed.receiver, "link add br0 type bridge");
    ip(&bed.receiver, "link set pod2 master br0");
    ip(&bed.receiver, "link set pod2 nomaster");
    send(&pod, 9);
    count("pod2", 9);

    drop(tun);
    send(&bed.pair, 1);
    count("a1", 1);
    let finished = running.interrupt();
    finished.assert_success();
    (finished, sent, directory, file)
}

#[test]
fn interfaces_that_come_and_go_have_exact_books_and_nothing_is_unseen() {
    if !privileged() {
        return;
    }
    let (finished, sent, _directory, file) = record_a_history(&[]);
    let ledger = finished.ledger();
    assert_eq!(counts_in_ledger(&ledger), sent, "{}", finished.stderr);
    assert_eq!(counts_in(&file).0, sent);
    assert_eq!(ledger["delivered"], sent.values().sum::<u64>());
    assert_eq!(ledger["lossless"], true, "{}", finished.stderr);
    // A raw IP packet is recorded as such.
    let mut reader = Reader::open(&file).unwrap();
    let mut link_types = Counts::new();
    while let Some(interface) =
        reader.next_record().unwrap().map(|record| record.interface as usize)
    {
        let interface = &reader.interfaces()[interface];
        *link_types.entry(format!("{:?}", interface.link_type)).or_default() += 1;
    }
    assert_eq!(link_types.values().copied().min(), Some(sent["tun0"]), "{link_types:?}");
}

#[test]
fn an_unprivileged_process_records_interfaces_that_come_and_go() {
    if !privileged() {
        return;
    }
    let bed = plain_bed();
    let directory = TempDir::new_in("/tmp").unwrap();
    let chown = Command::new("chown").arg("nobody").arg(directory.path()).status().unwrap();
    assert!(chown.success());
    let (_copy, program) = copy_for_everybody();
    let file = directory.path().join("t.pcapng");
    let arguments = ["capture", "-i", "any", "-Z", "nobody", "-w", text(&file), "--json", "udp"];
    let mut running = bed.start(Command::new(program).args(arguments));
    running.wait_for("capturing");
    send(&bed.pair, 3);
    let pod = VethPair::new((&bed.sender, "s1"), (&bed.receiver, "pod1"), 1, 1500).unwrap();
    running.wait_for("pod1: new interface");
    // It becomes promiscuous, as the others are.
    let promiscuity = |name: &str| {
        let show = || {
            Command::new("ip").args(["-d", "link", "show", "dev", name]).output().unwrap().stdout
        };
        String::from_utf8(bed.receiver.run_in(show).unwrap()).unwrap().contains("promiscuity 1")
    };
    wait_until("both are promiscuous", || promiscuity("a1") && promiscuity("pod1"));
    send(&pod, 5);
    let mut tun = Tun::new(&bed.receiver, "tun0").unwrap();
    running.wait_for("tun0: new interface");
    tun.set_up().unwrap();
    tun.receive(&ip_packet(&bed.pair.receiver, 0)).unwrap();
    let finished = running.interrupt();
    finished.assert_success();
    let expected =
        Counts::from([("a1".to_owned(), 3), ("pod1".to_owned(), 5), ("tun0".to_owned(), 1)]);
    assert_eq!(counts_in_ledger(&finished.ledger()), expected, "{}", finished.stderr);
    assert_eq!(counts_in(&file).0, expected);
}

#[test]
fn each_file_of_a_set_describes_its_interfaces() {
    if !privileged() {
        return;
    }
    let bed = plain_bed();
    let directory = TempDir::new().unwrap();
    let pattern = directory.path().join("t-%i.pcapng");
    let arguments =
        ["capture", "-i", "any", "-w", text(&pattern), "--file-time", "1h", "--json", "udp"];
    let mut running = bed.start(Command::new(WIRECAP).args(arguments));
    running.wait_for("capturing");
    let files = || {
        let mut files: Vec<PathBuf> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "pcapng"));
        files.sort();
        files
    };
    // Names an interface that the first file has, one that appears in it, and one that appears only
    // in the second.
    let first = VethPair::new((&bed.sender, "s1"), (&bed.receiver, "pod1"), 1, 1500).unwrap();
    send(&bed.pair, 2);
    send(&first, 3);
    // Packets wait half a second for their block.
    thread::sleep(Duration::from_millis(1200));
    running.signal(Signal::HUP);
    wait_until("the first file is complete", || files().len() == 1);
    let second = VethPair::new((&bed.sender, "s2"), (&bed.receiver, "pod2"), 1, 1500).unwrap();
    send(&second, 4);
    send(&first, 5);
    let finished = running.interrupt();
    finished.assert_success();

    let found: Vec<(Counts, usize)> = files().iter().map(|file| counts_in(file)).collect();
    let counts = |list: &[(&str, u64)]| -> Counts {
        list.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
    };
    assert_eq!(found.len(), 2, "{found:?} {}", finished.stderr);
    assert_eq!(found[0].0, counts(&[("a1", 2), ("pod1", 3)]), "{}", finished.stderr);
    assert_eq!(found[1].0, counts(&[("pod2", 4), ("pod1", 5)]));
    // a1 was there at the beginning, so both describe it; the second file does not describe
    // interfaces without packets.
    assert_eq!([found[0].1, found[1].1], [2, 3]);
    // The counts at the end are those of the right interfaces.
    let statistics = Command::new("capinfos").arg(&files()[1]).output().unwrap();
    assert!(statistics.status.success(), "{}", String::from_utf8_lossy(&statistics.stderr));
}

#[test]
fn what_passed_before_a_link_type_had_its_socket_is_unseen() {
    if !privileged() {
        return;
    }
    let bed = plain_bed();
    let mut tun = Tun::new(&bed.receiver, "tun0").unwrap();
    let mut running = bed.start(Command::new(WIRECAP).args([
        "count",
        "-i",
        "any",
        "--duration",
        "5s",
        "--json",
        "udp",
    ]));
    running.wait_for("capturing");
    thread::sleep(Duration::from_millis(300));
    // It was down, and its first packets come at once.
    tun.set_up().unwrap();
    (0..5).for_each(|sequence| tun.receive(&ip_packet(&bed.pair.receiver, sequence)).unwrap());
    running.wait_for("captured again: tun0");
    (0..8).for_each(|sequence| tun.receive(&ip_packet(&bed.pair.receiver, sequence)).unwrap());
    let finished = running.interrupt();
    assert_eq!(finished.status.code(), Some(3), "packets may be lost: {}", finished.stderr);
    let ledger = finished.ledger();
    let unseen = &ledger["unseen"];
    assert_eq!(unseen[0]["interface"], "tun0", "{ledger}");
    assert_eq!(unseen[0]["reason"], "link_type");
    assert!(unseen[0]["to"].is_f64() && unseen[1].is_null(), "{unseen}");
    assert_eq!(ledger["lossless"], false);
    let counted = counts_in_ledger(&ledger)["tun0"];
    assert!((8..=13).contains(&counted), "{counted}");
}

#[test]
fn a_pcap_file_has_one_link_type_and_others_are_unseen() {
    if !privileged() {
        return;
    }
    let bed = plain_bed();
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("t.pcap");
    let arguments = ["capture", "-i", "any", "-w", text(&file), "--json", "udp"];
    let mut running = bed.start(Command::new(WIRECAP).args(arguments));
    running.wait_for("capturing");
    send(&bed.pair, 3);
    let mut tun = Tun::new(&bed.receiver, "tun0").unwrap();
    tun.set_up().unwrap();
    running.wait_for("tun0: packets are not captured");
    tun.receive(&ip_packet(&bed.pair.receiver, 0)).unwrap();
    let finished = running.interrupt();
    assert_eq!(counts_in_ledger(&finished.ledger()), Counts::from([("a1".to_owned(), 3)]));
    assert_eq!(finished.ledger()["unseen"][0]["interface"], "tun0");
    assert!(finished.stderr.contains("write pcapng"), "{}", finished.stderr);

    let refused =
        bed.run(Command::new(WIRECAP).args(["capture", "-i", "any", "--force", "-w", text(&file)]));
    assert!(
        !refused.status.success() && refused.stderr.contains("write pcapng"),
        "{}",
        refused.stderr
    );
}

#[test]
fn an_interface_that_is_named_is_captured_once() {
    if !privileged() {
        return;
    }
    for engine in ["packet", "auto"] {
        let bed = Bed::new(1);
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("t.pcapng");
        let other = VethPair::new((&bed.sender, "s1"), (&bed.receiver, "b1"), 1, 1500).unwrap();
        let arguments = ["capture", "--engine", engine, "-i", "any", "-i", "a1", "-s", "40"];
        let mut command = Command::new(WIRECAP);
        let mut running =
            bed.start(command.args(arguments).args(["-w", text(&file), "--json", "udp"]));
        running.wait_for_all(&["capturing a1", "capturing any"]);
        send(&bed.pair, 6);
        send(&other, 7);
        let finished = running.interrupt();
        finished.assert_success();
        let sent = Counts::from([("a1".to_owned(), 6), ("b1".to_owned(), 7)]);
        assert_eq!(counts_in(&file).0, sent, "{engine}: {}", finished.stderr);
        assert_eq!(finished.ledger()["delivered"], 13);
        assert_eq!(counts_in_ledger(&finished.ledger()), Counts::from([("b1".to_owned(), 7)]));
        let mut reader = Reader::open(&file).unwrap();
        while let Some(record) = reader.next_record().unwrap() {
            let interface = record.interface as usize;
            let len = record.data.len();
            let is_named = reader.interfaces()[interface].name.as_deref() == Some("a1");
            assert_eq!(len, if is_named { 40 } else { 60 }, "the snap length is that of a1");
        }
    }
}

#[test]
fn a_dedicated_port_is_captured_by_xdp_beside_all_others() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("t.pcapng");
    let other = VethPair::new((&bed.sender, "s1"), (&bed.receiver, "b1"), 1, 1500).unwrap();
    let arguments = ["capture", "-i", "any", "-w", text(&file), "--json", "udp"];
    let mut running = bed.start(Command::new(WIRECAP).args(arguments));
    let named = running.wait_for("capturing a1");
    let all = running.wait_for("capturing any");
    assert!(named.contains("xdp engine") && all.contains("packet engine"), "{named}{all}");
    send(&bed.pair, 6);
    send(&other, 7);
    let finished = running.interrupt();
    finished.assert_success();
    let sent = Counts::from([("a1".to_owned(), 6), ("b1".to_owned(), 7)]);
    assert_eq!(counts_in(&file).0, sent, "{}", finished.stderr);
    assert_eq!(finished.ledger()["delivered"], 13);
}

#[test]
fn a_tagged_packet_keeps_its_tag_and_its_interface() {
    if !privileged() {
        return;
    }
    let bed = plain_bed();
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("t.pcapng");
    let arguments = ["capture", "-i", "any", "-w", text(&file), "--json", "vlan", "5"];
    let running = bed.capture(&arguments);
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    let traffic = Traffic::to(&bed.pair.receiver);
    for (sequence, tag) in [5, 5, 6, 5].into_iter().enumerate() {
        let plain = traffic.frame(Stamp { queue: 0, sequence: sequence as u64 });
        let tagged = [&plain[..12], &[0x81, 0, 0, tag], &plain[12..]].concat();
        sender.send(&tagged).unwrap();
    }
    let finished = running.interrupt();
    finished.assert_success();
    assert_eq!(counts_in(&file).0, Counts::from([("a1".to_owned(), 3)]), "{}", finished.stderr);
    let mut reader = Reader::open(&file).unwrap();
    while let Some(record) = reader.next_record().unwrap() {
        assert_eq!(record.data[12..16], [0x81, 0, 0, 5]);
    }
}

#[test]
fn received_and_sent_packets_are_selected_by_direction() {
    if !privileged() {
        return;
    }
    for (flags, expected) in
        [(&[][..], 4 + 7), (&["-Q", "in"], 4), (&["-Q", "out"], 7), (&["-Q", "inout"], 11)]
    {
        let bed = plain_bed();
        let arguments = [&["count", "-i", "any", "--json"], flags, &["udp"]].concat();
        let running = bed.capture(&arguments);
        send(&bed.pair, 4);
        let back =
            VethPair { sender: bed.pair.receiver.clone(), receiver: bed.pair.sender.clone() };
        send(&back, 7);
        let finished = running.interrupt();
        finished.assert_success();
        let counted = counts_in_ledger(&finished.ledger());
        assert_eq!(
            counted,
            Counts::from([("a1".to_owned(), expected)]),
            "{flags:?}: {}",
            finished.stderr
        );
    }
}

#[test]
fn a_changed_filter_is_that_of_every_link_type() {
    if !privileged() {
        return;
    }
    let bed = plain_bed();
    let mut tun = Tun::new(&bed.receiver, "tun0").unwrap();
    tun.set_up().unwrap();
    let name = format!("any-test-{}", std::process::id());
    let running = bed.capture(&["count", "-i", "any", "--name", &name, "--json", "tcp"]);
    let mut both = |frames: u64| {
        send(&bed.pair, frames);
        (0..frames)
            .for_each(|sequence| tun.receive(&ip_packet(&bed.pair.receiver, sequence)).unwrap());
    };
    both(5);
    let change = |expression: &str| {
        let changed = bed.run(Command::new(WIRECAP).args(["filter", &name, expression]));
        changed.assert_success();
    };
    change("udp port 9");
    both(3);
    // Packets that wait in the ring must match both filters.
    let delivered = || {
        let status = bed.run(Command::new(WIRECAP).args(["status", &name, "--json"])).stdout;
        serde_json::from_slice::<serde_json::Value>(&status).unwrap()["ledger"]["delivered"].clone()
    };
    wait_until("the packets are delivered", || delivered() == 6);
    change("udp port 10");
    both(2);
    let finished = running.interrupt();
    finished.assert_success();
    let expected = Counts::from([("a1".to_owned(), 3), ("tun0".to_owned(), 3)]);
    assert_eq!(counts_in_ledger(&finished.ledger()), expected, "{}", finished.stderr);
}

#[test]
fn the_engine_xdp_and_forwarding_need_names() {
    if !privileged() {
        return;
    }
    let bed = plain_bed();
    let refused = bed.run(Command::new(WIRECAP).args(["count", "-i", "any", "--engine", "xdp"]));
    assert!(!refused.status.success() && refused.stderr.contains("-i eth1"), "{}", refused.stderr);
    let refused = bed.run(Command::new(WIRECAP).args(["forward", "any", "a1"]));
    assert!(!refused.status.success(), "{}", refused.stderr);
}
