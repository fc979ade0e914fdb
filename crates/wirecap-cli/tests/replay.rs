//! `wirecap replay`, compared with the savefile, the kernel's counters and the frames that arrive.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Bed, Finished, arriving, start, wirecap, wirecap_unprivileged};
use wirecap::Timestamp;
use wirecap::savefile::{FileSink, Format, Interface, LinkType, Reader, Record, Section, Writer};
use wirecap_send::play::{Batch, Source};
use wirecap_send::recording::queue_of;
use wirecap_send::traffic::{Frames, HashKey, Model, Pattern, Rss};
use wirecap_testbed::{
    Counters, Sizes, drop_program, loss_lock, own_traces, privileged, traces, wait_until,
};

/// Runs `replay` on `a0` with this file and these arguments, separated by blanks.
fn replay(bed: &Bed, file: &Path, arguments: &str) -> Finished {
    let fixed = ["replay", file.to_str().unwrap(), "-i", "a0"];
    wirecap(&bed.near, &fixed.into_iter().chain(arguments.split_whitespace()).collect::<Vec<_>>())
}

/// A directory with a savefile.
struct Recorded {
    directory: tempfile::TempDir,
    frames: Vec<Vec<u8>>,
}

impl Recorded {
    /// Frames of all lengths and of many flows, 20,000 in a second.
    fn new(frames: u64) -> Self {
        let mut model = Model::new(Pattern::Even, 5);
        model.sizes = Sizes::mix(&[(60, 3), (61, 1), (590, 1), (1513, 1), (1514, 1)]);
        model = Model { packets: frames, per_second: 20_000, ..model };
        let mut source =
            Frames::new(model.stream(), Rss::new(HashKey::Standard, 1), [2; 6], [4; 6], u64::MAX);
        let mut frames = Vec::new();
        let mut batch = Batch::default();
        loop {
            batch.clear();
            source.fill(&mut batch);
            if batch.is_empty() {
                break;
            }
            frames.extend(batch.iter().map(|frame| (frame.bytes.to_vec(), frame.due_ns)));
        }
        let directory = tempfile::tempdir().unwrap();
        write(&directory.path().join("file"), LinkType::ETHERNET, &frames);
        Self { directory, frames: frames.into_iter().map(|(frame, _)| frame).collect() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("file")
    }
}

/// Writes these frames with their times.
fn write(path: &Path, link_type: LinkType, frames: &[(Vec<u8>, u64)]) {
    let mut writer =
        Writer::new(FileSink::replace(path).unwrap(), Format::Pcap, &Section::default());
    let interface = writer.add_interface(&Interface { link_type, ..Interface::default() }).unwrap();
    for (data, time_ns) in frames {
        let timestamp = Some(Timestamp::from_unix_nanos(*time_ns));
        let wire_len = data.len() as u32;
        writer
            .write(&Record { interface, timestamp, wire_len, data, ..Record::default() })
            .unwrap();
    }
    writer.finish().unwrap();
}

fn bytes(packets: Vec<(u32, Vec<u8>)>) -> Vec<Vec<u8>> {
    packets.into_iter().map(|(_, packet)| packet).collect()
}

#[test]
fn replayed_frames_arrive_unchanged_in_order_at_any_pace() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let file = Recorded::new(3000);
    for pace in ["", "-x 2.5", "--rate 40kpps", "--rate 200Mbps", "--rate 20k --via kernel"] {
        let mut json = serde_json::Value::Null;
        let (packets, ledger) =
            arriving(&bed, || json = replay(&bed, &file.path(), &format!("{pace} --json")).json());
        assert!(ledger.is_lossless(), "{pace}: {ledger}");
        assert!(bytes(packets) == file.frames, "{pace}: other frames arrived than those recorded");
        let counts = (&json["packets"], &json["frames"], &json["counted_by_interface"]);
        assert_eq!(counts, (&3000.into(), &3000.into(), &3000.into()), "{json}");
        assert_eq!(json["bytes"], file.frames.iter().map(Vec::len).sum::<usize>(), "{json}");
    }
}

#[test]
fn a_replay_that_was_stopped_reports_how_late_its_frames_were() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let file = Recorded::new(3000);
    let _receiving = drop_program(&bed.pair.receiver).unwrap();
    let mut counters = Counters::of(bed.sender()).unwrap();
    let path = file.path();
    let arguments = ["replay", path.to_str().unwrap(), "-i", "a0", "--rate", "1000", "--json"];
    let running = start(&bed.near, &arguments);
    wait_until("some frames are sent", || counters.since_start().unwrap().handed_over() >= 100);
    running.signal("-STOP");
    // Until it has stopped, it may still send.
    wait_until("it has stopped", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", running.pid())).unwrap();
        stat.rsplit(')').next().unwrap().starts_with(" T")
    });
    let before = Instant::now();
    thread::sleep(Duration::from_secs(1));
    let stopped_us = before.elapsed().as_secs_f64() * 1e6;
    running.signal("-CONT");
    let json = running.finish().json();
    assert_eq!(
        (&json["frames"], &json["counted_by_interface"]),
        (&3000.into(), &3000.into()),
        "{json}"
    );
    let late = |key: &str| json["lateness_us"][key].as_f64().unwrap();
    // A frame is due every millisecond. The first ones due meanwhile were late by the whole time,
    // and more than one in a hundred of all frames by the time without 32 ms. The counts of the
    // histogram have three digits.
    assert!(late("max") >= (stopped_us - 1e3) * 0.999, "{stopped_us} {json}");
    assert!(late("percentile_99") >= (stopped_us - 32e3) * 0.999, "{stopped_us} {json}");
    assert!(late("max") <= json["duration_s"].as_f64().unwrap() * 1e6 * 1.001, "{json}");
}

#[test]
fn no_pace_is_faster_than_requested() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let file = Recorded::new(2000);
    let _receiving = drop_program(&bed.pair.receiver).unwrap();
    let bits = file.frames.iter().map(Vec::len).sum::<usize>() as f64 * 8.0;
    let recorded_s = |path: &Path| {
        let mut reader = Reader::open(path).unwrap();
        let mut last = Timestamp::default();
        while let Some(record) = reader.next_record().unwrap() {
            last = record.timestamp.unwrap();
        }
        last.unix_nanos() as f64 / 1e9
    };
    let recorded_s = recorded_s(&file.path());
    // Replay begins with the first frame, without waiting.
    for (pace, least_s) in [
        ("", recorded_s * 0.99),
        ("-x 0.5", recorded_s * 1.98),
        ("--rate 10k", 0.1999),
        ("--rate 100Mbit/s", (bits - 1514.0 * 8.0) / 100e6),
        ("-l 3 --rate 20k", 0.2999),
    ] {
        let json = replay(&bed, &file.path(), &format!("{pace} --json")).json();
        assert!(json["duration_s"].as_f64().unwrap() >= least_s, "{pace}: {json}");
    }
}

#[test]
fn at_top_speed_every_frame_is_handed_to_the_interface() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let file = Recorded::new(5000);
    let sent = |options: &str, via: &str| {
        let mut counters = Counters::of(bed.sender()).unwrap();
        let json = replay(&bed, &file.path(), &format!("--top --loop 20 --json {options}")).json();
        assert_eq!((&json["frames"], &json["rounds"]), (&100_000.into(), &20.into()), "{json}");
        assert_eq!(json["via"], via, "{json}");
        assert_eq!(counters.since_start().unwrap().handed_over(), 100_000);
        assert!(json["lateness_us"].is_null(), "{json}");
    };
    // The other end does not accept XDP frames yet.
    sent("", "xdp");
    let _receiving = drop_program(&bed.pair.receiver).unwrap();
    sent("", "kernel");
    sent("--via xdp", "xdp");
    sent("--queues 1", "xdp");
}

#[test]
fn flows_arrive_on_the_queues_that_rss_selects() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(4);
    let file = Recorded::new(2000);
    for (key, hash_key) in [("standard", HashKey::Standard), ("symmetric", HashKey::Symmetric)] {
        let mut json = serde_json::Value::Null;
        let options = format!("--queues 4 --key {key} --loop 3 --rewrite --rate 20k --json");
        let (packets, ledger) =
            arriving(&bed, || json = replay(&bed, &file.path(), &options).json());
        assert!(ledger.is_lossless() && packets.len() == 6000, "{ledger}");
        let rss = Rss::new(hash_key, 4);
        let mut arrived = [0_u64; 4];
        for (queue, packet) in packets {
            assert_eq!(queue_of(&rss, &packet), queue);
            arrived[queue as usize] += 1;
        }
        for (queue, arrived) in arrived.into_iter().enumerate() {
            assert!(arrived > 1000);
            assert_eq!(json["queues"][queue]["frames"], arrived, "{json}");
        }
    }
}

/// tcpdump verifies the checksums.
#[test]
fn rounds_with_changed_addresses_have_valid_checksums() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    let copy = directory.path().join("copy");
    // TCP and UDP over IPv4 and IPv6, as hosts send them.
    let frames: Vec<_> = ["45000028000100004006000000000000", "6000000000140640"]
        .into_iter()
        .flat_map(ip_frames)
        .collect();
    let timed: Vec<_> = frames.into_iter().zip((0..).step_by(100_000)).collect();
    write(&file, LinkType::ETHERNET, &timed);
    let (packets, ledger) = arriving(&bed, || {
        assert_eq!(replay(&bed, &file, "--loop 50 --rewrite").status, Some(0));
    });
    assert!(ledger.is_lossless(), "{ledger}");
    let arrived: Vec<_> = bytes(packets).into_iter().zip((0..).step_by(1000)).collect();
    assert_eq!(arrived.len(), timed.len() * 50);
    write(&copy, LinkType::ETHERNET, &arrived);
    let output = Command::new("tcpdump")
        .args(["-vvnr", copy.to_str().unwrap()])
        .stderr(Stdio::null())
        .output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let right = text.matches("(correct)").count() + text.matches("[udp sum ok]").count();
    assert_eq!(right, arrived.len(), "{text:.2000}");
    assert!(!text.contains("bad") && !text.contains("incorrect"), "{text:.2000}");
}

/// A TCP segment and a UDP datagram without payload after this beginning of an IP header, in which
/// the protocol is TCP.
fn ip_frames(beginning: &str) -> [Vec<u8>; 2] {
    let beginning: Vec<u8> = (0..beginning.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&beginning[at..at + 2], 16).unwrap())
        .collect();
    let is_v4 = beginning[0] == 0x45;
    [6_u8, 17].map(|protocol| {
        let transport_bytes = if protocol == 6 { 20_u16 } else { 8 };
        let mut transport = vec![0x04, 0xd2, 0, 80];
        if protocol == 6 {
            transport.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 1, 0, 0, 0, 0, 0]);
        } else {
            transport.extend([0, 8, 0, 0]);
        }
        let mut ip = beginning.clone();
        let addresses: Vec<u8> = if is_v4 {
            ip.truncate(12);
            ip[3] = 20 + transport_bytes as u8;
            ip[9] = protocol;
            vec![10, 1, 2, 3, 192, 168, 0, 9]
        } else {
            ip[5] = transport_bytes as u8;
            ip[6] = protocol;
            [&[0x20, 1, 0xd, 0xb8][..], &[0; 11], &[1], &[0x20, 1, 0xd, 0xb8], &[0; 11], &[2]]
                .concat()
        };
        let pseudo_header =
            [&addresses[..], &[0, protocol], &transport_bytes.to_be_bytes()].concat();
        let checksum = checksum(&[&pseudo_header[..], &transport].concat());
        let at = if protocol == 6 { 16 } else { 6 };
        transport[at..at + 2].copy_from_slice(&checksum);
        ip.extend(addresses);
        if is_v4 {
            ip[10..12].fill(0);
            let checksum = self::checksum(&ip);
            ip[10..12].copy_from_slice(&checksum);
        }
        let ether_type: &[u8] = if is_v4 { &[8, 0] } else { &[0x86, 0xdd] };
        [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3][..], ether_type, &ip, &transport].concat()
    })
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}

#[test]
fn frames_that_cannot_be_sent_are_counted_by_reason() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    let frames = [vec![1; 60], vec![2; 13], vec![3; 1515], vec![4; 1514], vec![5; 9000]];
    write(&file, LinkType::ETHERNET, &frames.clone().map(|frame| (frame, 0)));
    let mut finished = None;
    let (packets, _) = arriving(&bed, || finished = Some(replay(&bed, &file, "--json")));
    assert_eq!(bytes(packets), [vec![1; 60], vec![4; 1514]]);
    let finished = finished.unwrap();
    let json = finished.json();
    assert_eq!((&json["packets"], &json["frames"]), (&5.into(), &2.into()), "{json}");
    let not_sent =
        (&json["not_sent"]["too_long"], &json["not_sent"]["too_short"], &json["not_sent"]["ended"]);
    assert_eq!(not_sent, (&2.into(), &1.into(), &0.into()), "{json}");
    assert!(
        finished.stderr.contains("2 packets, longer than the interface's MTU"),
        "{finished:#?}"
    );
    write(&file, LinkType(147), &frames.map(|frame| (frame, 0)));
    replay(&bed, &file, "")
        .refused(1, &["5 packets, neither Ethernet nor bare IP", "none of the 5 packets"]);
}

#[test]
fn a_truncated_savefile_is_sent_up_to_its_last_packet() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let file = Recorded::new(100);
    let mut counters = Counters::of(bed.sender()).unwrap();
    let whole = fs::read(file.path()).unwrap();
    fs::write(file.path(), &whole[..whole.len() - 1]).unwrap();
    replay(&bed, &file.path(), "")
        .refused(1, &["sent 99 frames", "the savefile ends inside a packet"]);
    assert_eq!(counters.since_start().unwrap().handed_over(), 99);
}

#[test]
fn ctrl_c_a_count_or_a_time_ends_sending_with_a_report() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let file = Recorded::new(1000);
    let _receiving = drop_program(&bed.pair.receiver).unwrap();
    let accounted = |json: &serde_json::Value, counters: &mut Counters| {
        let not_sent = json["not_sent"]
            .as_object()
            .unwrap()
            .values()
            .map(|n| n.as_u64().unwrap())
            .sum::<u64>();
        assert_eq!(json["packets"], json["frames"].as_u64().unwrap() + not_sent, "{json}");
        assert_eq!(json["frames"], counters.since_start().unwrap().handed_over(), "{json}");
    };
    for pace in ["-x0.5", "--top", "--rate=1"] {
        let mut counters = Counters::of(bed.sender()).unwrap();
        let path = file.path();
        let arguments = ["replay", path.to_str().unwrap(), "-i", "a0", "-l", "0", "--json", pace];
        let running = start(&bed.near, &arguments);
        wait_until("frames are sent", || counters.since_start().unwrap().handed_over() > 0);
        running.signal("-INT");
        accounted(&running.finish().json(), &mut counters);
    }
    let mut counters = Counters::of(bed.sender()).unwrap();
    let json = replay(&bed, &file.path(), "-l 0 --top --duration 100ms --json").json();
    accounted(&json, &mut counters);
    let mut counters = Counters::of(bed.sender()).unwrap();
    let json = replay(&bed, &file.path(), "-l 0 --top -c 1500 --json").json();
    accounted(&json, &mut counters);
    assert_eq!(json["frames"], 1500, "{json}");
}

#[test]
fn invalid_arguments_are_rejected_and_nothing_is_sent() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let file = Recorded::new(10);
    let mut counters = Counters::of(bed.sender()).unwrap();
    let cases: [(&str, i32, &[&str]); 15] = [
        ("--key symmetric", 2, &["--queues"]),
        ("--via kernel --queues 2", 2, &["on one queue"]),
        ("--top --rate 10k", 2, &["cannot be used with"]),
        ("--speed 0", 2, &["--speed"]),
        ("--rate 0", 2, &["--rate", "expected 1 to"]),
        ("--rate 1furlong", 2, &["--rate", "unknown unit"]),
        ("--queues 3", 1, &["a0@2 does not exist", "0 to 1"]),
        ("--queues 0", 2, &["--queues"]),
        ("--queues 129", 2, &["--queues", "128"]),
        ("--duration 0", 2, &["--duration", "longer than 0"]),
        ("--duration -1", 2, &["-1"]),
        ("--pause-max 99999999999999999h", 2, &["--pause-max", "at most"]),
        ("--key other", 2, &["standard", "symmetric"]),
        ("-c 0", 2, &["--count"]),
        ("--to-mac 1", 2, &["--to-mac", "a MAC address"]),
    ];
    for (arguments, status, words) in cases {
        replay(&bed, &file.path(), arguments).refused(status, words);
    }
    let missing = file.directory.path().join("nosuch");
    replay(&bed, &missing, "").refused(1, &["cannot open", "nosuch", "No such file"]);
    fs::write(&missing, "this is text").unwrap();
    replay(&bed, &missing, "").refused(1, &["neither pcapng nor pcap"]);
    let path = file.path();
    let on = |interface| ["replay", path.to_str().unwrap(), "-i", interface];
    wirecap(&bed.near, &on("nosuch0")).refused(1, &["no interface nosuch0"]);
    wirecap(&bed.near, &on("lo")).refused(1, &["lo is not an Ethernet interface"]);
    wirecap_unprivileged(&bed.near, &on("a0")).refused(1, &["run as root", "CAP_"]);
    assert_eq!(counters.since_start().unwrap().handed_over(), 0);
}

#[test]
fn a_removed_interface_ends_sending_with_a_report() {
    if !privileged() {
        return;
    }
    for (action, said) in
        [(&["link", "del", "a0"][..], "a0"), (&["link", "set", "a0", "down"], "down")]
    {
        for options in ["--rate 2k", "--top --via xdp", "--top --via kernel"] {
            let bed = Bed::new(1);
            let file = Recorded::new(1000);
            let receiving = drop_program(&bed.pair.receiver).unwrap();
            let mut counters = Counters::of(bed.sender()).unwrap();
            let path = file.path();
            let arguments = ["replay", path.to_str().unwrap(), "-i", "a0", "-l", "0", "--json"];
            let arguments =
                arguments.into_iter().chain(options.split_whitespace()).collect::<Vec<_>>();
            let running = start(&bed.near, &arguments);
            wait_until("frames are sent", || counters.since_start().unwrap().handed_over() > 0);
            let ip = || Command::new("ip").args(action).status();
            assert!(bed.near.run_in(ip).unwrap().unwrap().success());
            let finished = running.finish();
            drop(receiving);
            finished.refused(1, &[said, "sent "]);
            let json: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
            assert!(
                json["frames"].as_u64().unwrap() > 0 && json["duration_s"].as_f64().unwrap() > 0.0,
                "{json}"
            );
        }
    }
}

#[test]
fn a_pipe_is_read_like_a_file_but_only_once() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let file = Recorded::new(3000);
    let path = file.path();
    let send = |options: &str| {
        let mut cat = Command::new("cat").arg(&path).stdout(Stdio::piped()).spawn().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_wirecap"));
        command.args("replay /dev/stdin -i a0 --json".split(' ')).args(options.split_whitespace());
        command.stdin(cat.stdout.take().unwrap());
        let finished: Finished = bed.near.run_in(|| command.output()).unwrap().unwrap().into();
        // The command may not have read everything; `cat` then ends when no process has the pipe
        // open for reading.
        drop(command);
        let _ = cat.wait();
        finished
    };
    for pace in ["--rate 100k", "--top"] {
        let mut counters = Counters::of(bed.sender()).unwrap();
        assert_eq!(send(pace).json()["frames"], 3000, "{pace}");
        assert_eq!(counters.since_start().unwrap().handed_over(), 3000, "{pace}");
    }
    send("--loop 2").refused(2, &["a pipe", "--loop"]);
}

#[test]
fn a_warning_names_an_interface_that_the_host_uses() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let file = Recorded::new(1);
    let quiet = replay(&bed, &file.path(), "");
    assert!(!quiet.stderr.contains("warning"), "{quiet:#?}");
    bed.sender().add_address("10.0.0.1/24").unwrap();
    let warned = replay(&bed, &file.path(), "");
    assert!(warned.stderr.contains("warning: a0 carries traffic of this host"), "{warned:#?}");
}

/// Each frame that can be sent arrives unchanged and in order.
#[test]
fn stored_traces_arrive_unchanged() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let third_party = [
        "sanitized4k.pcap",
        "sanitized4k_truncated128.pcap",
        "4in6tunnel.pcap",
        "KakaoTalk_chat.pcap",
        "amqp.pcap",
        "anydesk.pcapng",
        "dhcpv6.pcap",
    ];
    let is_third_party = |path: &PathBuf| third_party.iter().any(|name| path.ends_with(name));
    let paths = own_traces().into_iter().chain(traces().into_iter().filter(is_third_party));

    let mut sent = 0;
    for path in paths {
        let Some(expected) = sendable(&path).filter(|frames| !frames.is_empty()) else { continue };
        let (packets, ledger) = arriving(&bed, || {
            let finished = replay(&bed, &path, "--rate 20k -c 4096");
            assert_eq!(finished.status, Some(0), "{}: {finished:#?}", path.display());
        });
        assert!(ledger.is_lossless(), "{ledger}");
        assert!(bytes(packets) == expected, "{}: other frames arrived", path.display());
        sent += 1;
    }

    assert!(sent >= 10, "{sent} files");
}

/// The first frames of an Ethernet savefile that `a0` can send, with zeros in place of missing
/// bytes.
fn sendable(path: &Path) -> Option<Vec<Vec<u8>>> {
    let mut reader = Reader::open(path).ok()?;
    if reader.interfaces().iter().any(|interface| interface.link_type != LinkType::ETHERNET) {
        return None;
    }
    let mut frames = Vec::new();
    // The replay of a damaged file ends with an error.
    while let Some(record) = reader.next_record().ok()? {
        let mut frame = record.data.to_vec();
        frame.resize(frame.len().max(record.wire_len as usize), 0);
        let longest = if frame.get(12..14) == Some(&[0x81, 0x00]) { 1518 } else { 1514 };
        if (14..=longest).contains(&frame.len()) && frames.len() < 4096 {
            frames.push(frame);
        }
    }
    Some(frames)
}
