//! `wirecap generate`, compared with the kernel's counters and the frames that arrive.

mod common;

use std::collections::BTreeMap;
use std::process::Command;
use std::thread;

use common::{Bed, Finished, arriving, start, wirecap, wirecap_unprivileged};
use wirecap_send::recording::queue_of;
use wirecap_send::traffic::{HashKey, Rss};
use wirecap_testbed::{
    Counters, Interface, Namespace, Sizes, Stamp, Traffic, drop_program, loss_lock, privileged,
    wait_until,
};

/// Runs `generate` on `a0` with these arguments, separated by blanks.
fn generate(bed: &Bed, arguments: &str) -> Finished {
    let arguments: Vec<&str> =
        ["generate", "-i", "a0"].into_iter().chain(arguments.split(' ')).collect();
    wirecap(&bed.near, &arguments)
}

#[test]
fn the_kernel_sends_exactly_the_requested_number_of_frames() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let _receiving = drop_program(&bed.pair.receiver).unwrap();
    let mut counters = Counters::of(bed.sender()).unwrap();
    let json = generate(&bed, "-c 300000 --json").json();
    assert_eq!(counters.since_start().unwrap().handed_over_as_xdp(), 300_000);
    assert_eq!(
        (&json["frames"], &json["counted_by_interface"]),
        (&300_000.into(), &300_000.into()),
        "{json}"
    );
    assert_eq!((&json["via"], &json["interface"]), (&"kernel".into(), &"a0".into()), "{json}");
    assert!(json["frames_per_s"].as_f64().unwrap() > 0.0, "{json}");
}

#[test]
fn both_senders_send_the_requested_frames() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let traffic = Traffic {
        sizes: Sizes::imix(),
        flows: 3,
        source_mac: bed.sender().mac,
        destination_mac: [2, 0, 0, 0, 0, 0xfe],
        ..Traffic::to(&bed.pair.receiver)
    };
    for via in ["kernel", "xdp"] {
        let options = "-c 1000 --rate 50k --size imix --flows 3 --to-mac 02:00:00:00:00:fe --via";
        let (packets, ledger) = arriving(&bed, || {
            let finished = generate(&bed, &format!("{options} {via}"));
            assert_eq!(finished.status, Some(0), "{finished:#?}");
            assert!(finished.stderr.contains("sent 1,000 frames on a0"), "{finished:#?}");
        });
        assert!(ledger.is_lossless() && packets.len() == 1000, "{ledger}");
        for (sequence, (_, packet)) in (0..).zip(packets) {
            assert_eq!(
                packet,
                traffic.frame(Stamp { queue: 0, sequence }),
                "{via}, packet {sequence}"
            );
        }
    }
}

#[test]
fn by_default_frames_are_addressed_to_their_sender() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let (packets, _) = arriving(&bed, || assert_eq!(generate(&bed, "-c 1").status, Some(0)));
    let mac = bed.sender().mac;
    assert_eq!(packets[0].1[..12], [mac, mac].concat());
}

#[test]
fn queues_share_the_frames_and_each_arrives_on_its_own_queue() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(4);
    let (packets, ledger) = arriving(&bed, || {
        let json = generate(&bed, "-c 1001 --queue 0,1,3 --rate 30k --via xdp --json").json();
        assert_eq!(
            (&json["frames"], &json["counted_by_interface"]),
            (&1001.into(), &1001.into()),
            "{json}"
        );
        let queues: Vec<_> = json["queues"]
            .as_array()
            .unwrap()
            .iter()
            .map(|q| (&q["queue"], &q["frames"]))
            .collect();
        let expected =
            [(0, 334), (1, 334), (3, 333)].map(|(queue, frames)| (queue.into(), frames.into()));
        assert_eq!(queues, expected.iter().map(|(q, f)| (q, f)).collect::<Vec<_>>());
    });
    assert!(ledger.is_lossless(), "{ledger}");
    let mut by_queue: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for (queue, packet) in packets {
        let stamp = Stamp::of(&packet).unwrap();
        assert_eq!(u32::from(stamp.queue), queue);
        by_queue.entry(queue).or_default().push(stamp.sequence);
    }
    let counts: Vec<_> =
        by_queue.iter().map(|(queue, sequences)| (*queue, sequences.len())).collect();
    assert_eq!(counts, [(0, 334), (1, 334), (3, 333)]);
    assert!(
        by_queue.values().all(|sequences| sequences.iter().copied().eq(0..sequences.len() as u64))
    );
}

#[test]
fn all_frames_of_a_model_arrive_on_the_queue_of_their_hash() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(4);
    for (model, key, hash_key) in [
        ("heavy", "symmetric", HashKey::Symmetric),
        ("bursts", "standard", HashKey::Standard),
        ("hot", "symmetric", HashKey::Symmetric),
        ("even", "standard", HashKey::Standard),
    ] {
        let options =
            format!("--model {model} --key {key} --queues 4 -c 3000 --rate 20k --seed 7 --json");
        let mut json = serde_json::Value::Null;
        let (packets, ledger) = arriving(&bed, || json = generate(&bed, &options).json());
        assert!(ledger.is_lossless() && packets.len() == 3000, "{model}: {ledger}");
        assert_eq!(
            (&json["frames"], &json["counted_by_interface"]),
            (&3000.into(), &3000.into()),
            "{json}"
        );
        let rss = Rss::new(hash_key, 4);
        let mut arrived = vec![0; 4];
        for (queue, packet) in packets {
            assert_eq!(queue_of(&rss, &packet), queue);
            let sequence = arrived[queue as usize];
            assert_eq!(Stamp::of(&packet), Some(Stamp { queue: queue as u16, sequence }));
            arrived[queue as usize] += 1;
        }
        let told: Vec<u64> = json["queues"]
            .as_array()
            .unwrap()
            .iter()
            .map(|queue| queue["frames"].as_u64().unwrap())
            .collect();
        assert_eq!(told, arrived, "{model}");
    }
}

#[test]
fn the_standard_trace_arrives_on_six_queues() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(6);
    let mut json = serde_json::Value::Null;
    let (packets, ledger) =
        arriving(&bed, || json = generate(&bed, "--model standard --duration 50ms --json").json());
    assert!(ledger.is_lossless(), "{ledger}");
    let mut arrived = vec![0; 6];
    packets.iter().for_each(|(queue, _)| arrived[*queue as usize] += 1);
    for (queue, arrived) in arrived.into_iter().enumerate() {
        assert_eq!(json["queues"][queue]["frames"], arrived, "{json}");
    }
    assert_eq!(json["counted_by_interface"], packets.len(), "{json}");
}

#[test]
fn a_models_savefile_is_the_same_for_the_same_seed() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, options: &str| {
        let path = directory.path().join(name);
        let namespace = Namespace::current().unwrap();
        let arguments = ["generate", "-w", path.to_str().unwrap(), "--json"]
            .into_iter()
            .chain(options.split(' '));
        let json = wirecap(&namespace, &arguments.collect::<Vec<_>>()).json();
        (std::fs::read(path).unwrap(), json)
    };
    let (standard, json) = write("first", "--model standard --seed 1 --duration 200ms");
    assert_eq!(standard, write("second", "--model standard --seed 1 --duration 200ms").0);
    assert_ne!(standard, write("third", "--model standard --seed 2 --duration 200ms").0);
    let mut piped = Command::new(env!("CARGO_BIN_EXE_wirecap"));
    let piped =
        piped.args("generate -w - --model standard --duration 200ms".split(' ')).output().unwrap();
    assert!(piped.status.success() && piped.stdout == standard);
    let mut reader = wirecap::savefile::Reader::new(std::io::Cursor::new(standard)).unwrap();
    let mut packets = vec![0; json["queues"].as_array().unwrap().len()];
    while let Some(record) = reader.next_record().unwrap() {
        assert!(record.timestamp.unwrap().unix_nanos() < 200_000_000);
        packets[record.queue.unwrap() as usize] += 1;
    }
    assert_eq!(packets.len(), 6);
    for (queue, packets) in packets.into_iter().enumerate() {
        assert_eq!(json["queues"][queue]["frames"], packets, "{json}");
    }
}

#[test]
fn a_queue_that_no_cpu_reaches_is_served_by_af_xdp() {
    if !privileged() {
        return;
    }
    let cpus = thread::available_parallelism().unwrap().get();
    let bed = Bed::new(cpus as u32 + 1);
    let _receiving = drop_program(&bed.pair.receiver).unwrap();
    let json = generate(&bed, &format!("-c 100 --queue {cpus} --json")).json();
    assert_eq!(
        (&json["via"], &json["counted_by_interface"]),
        (&"xdp".into(), &100.into()),
        "{json}"
    );
    let refusal = generate(&bed, &format!("-c 100 --queue {cpus} --via kernel"));
    refusal.refused(1, &["no CPU reaches queue"]);
}

#[test]
fn frames_for_a_peer_without_xdp_are_sent_by_af_xdp_or_reported_as_missing() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let json = generate(&bed, "-c 100 --json").json();
    assert_eq!(
        (&json["via"], &json["counted_by_interface"]),
        (&"xdp".into(), &100.into()),
        "{json}"
    );
    let finished = generate(&bed, "-c 100 --via kernel");
    assert!(finished.stderr.contains("100 of them are missing"), "{finished:#?}");
    assert!(finished.stderr.contains("--via xdp"), "{finished:#?}");
}

/// The kernel accepts frames for an interface that does not send them.
#[test]
fn frames_that_the_interface_does_not_send_are_not_reported_as_sent() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    bed.pair.receiver.set_up(false).unwrap();
    for way in ["--via kernel", "--via xdp", "--model even"] {
        let mut counters = Counters::of(bed.sender()).unwrap();
        let finished = generate(&bed, &format!("-c 500 {way} --json"));
        assert_eq!(counters.since_start().unwrap().tx_packets, 0, "{way}");
        assert_eq!(finished.status, Some(1), "{way}: {finished:#?}");
        let none = "a0 sent none of the 500 frames, although the kernel accepted them";
        for words in ["sent 0 of 500 frames", none] {
            assert!(finished.stderr.contains(words), "{way}: {finished:#?}");
        }
        assert!(finished.stdout.contains("\"frames\":0,"), "{way}: {finished:#?}");
    }
}

#[test]
fn a_rate_is_not_exceeded_and_a_duration_ends_it() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let _receiving = drop_program(&bed.pair.receiver).unwrap();
    for via in ["kernel", "xdp"] {
        let json =
            generate(&bed, &format!("--duration 500ms --rate 10k --via {via} --json")).json();
        let frames = json["frames"].as_u64().unwrap();
        let seconds = json["duration_s"].as_f64().unwrap();
        assert_eq!(json["counted_by_interface"], frames, "{json}");
        // After a stall, at most one millisecond's frames are sent in addition.
        assert!(frames as f64 <= seconds * 10_000.0 + 11.0, "{json}");
        assert!(frames > 0 && (0.4..20.0).contains(&seconds), "{json}");
    }
}

#[test]
fn ctrl_c_ends_sending_with_a_report() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let _receiving = drop_program(&bed.pair.receiver).unwrap();
    for via in ["kernel", "xdp"] {
        let mut counters = Counters::of(bed.sender()).unwrap();
        let arguments = "generate -i a0 --duration 1h --rate 20k --json --via";
        let arguments: Vec<&str> = arguments.split(' ').chain([via]).collect();
        let running = start(&bed.near, &arguments);
        wait_until("frames are sent", || counters.since_start().unwrap().handed_over() > 0);
        running.signal("-INT");
        let json = running.finish().json();
        assert_eq!(json["frames"], counters.since_start().unwrap().handed_over(), "{json}");
    }
}

#[test]
fn impossible_frames_are_rejected_and_none_is_sent() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let mut counters = Counters::of(bed.sender()).unwrap();
    let cases: [(&str, i32, &[&str]); 21] = [
        ("-c 1 --queues 2", 2, &["--model", "--queue 0,1"]),
        ("", 2, &["--count", "--duration"]),
        ("-c 0", 2, &["--count", "a number above 0"]),
        ("-c 1 --rate 0", 2, &["--rate", "expected 1 to"]),
        ("-c 1 --rate 1 --queue 0,1", 2, &["--rate", "2"]),
        ("--duration 0s", 2, &["--duration"]),
        ("--duration -1s", 2, &["-1"]),
        ("-c 1 --size 59", 2, &["59 is too short"]),
        ("-c 1 --size 1515", 2, &["1515", "expected 60 to 1514"]),
        ("-c 1 --size 1515 --via xdp", 2, &["1515", "expected 60 to 1514"]),
        ("-c 1 --flows 0", 2, &["--flows"]),
        ("-c 1 --queue 1,1", 2, &["queue 1 is given twice"]),
        ("-c 1 --queue 2", 1, &["a0@2 does not exist", "0 to 1"]),
        ("-c 1 --to-mac 02:00", 2, &["--to-mac", "a MAC address"]),
        ("--model even", 2, &["--count", "--duration"]),
        ("--model standard --rate 10k", 2, &["--rate", "sets the rate"]),
        ("--model even -c 1 --queue 1", 2, &["--queue", "cannot be used with"]),
        ("--model even -c 1 --queues 3", 1, &["a0@2 does not exist"]),
        ("--model even -c 1 --size 1515", 2, &["1515", "expected 60 to 1514"]),
        ("--model even -c 1 -w /nosuch/file", 2, &["--write", "cannot be used with"]),
        ("-c 1 --seed 7", 2, &["--model"]),
    ];
    for (arguments, status, words) in cases {
        let arguments = ["generate", "-i", "a0"].into_iter().chain(arguments.split_whitespace());
        wirecap(&bed.near, &arguments.collect::<Vec<_>>()).refused(status, words);
    }
    for way in [["--via", "kernel"], ["--via", "xdp"], ["--model", "even"]] {
        let arguments = [&["generate", "-i", "a0", "-c", "1"], &way[..]].concat();
        wirecap_unprivileged(&bed.near, &arguments).refused(1, &["run as root", "CAP_"]);
    }
    assert_eq!(counters.since_start().unwrap().handed_over(), 0);
}

#[test]
fn interfaces_without_a_port_are_rejected() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new().unwrap();
    let on = |interface: &str| wirecap(&namespace, &["generate", "-i", interface, "-c", "1"]);
    on("lo").refused(1, &["lo is not an Ethernet interface"]);
    on("nosuch0").refused(1, &["no interface nosuch0", "there are: lo"]);
    let made = namespace.run_in(|| {
        std::process::Command::new("ip")
            .args(["link", "add", "d0", "type", "veth", "peer", "name", "d1"])
            .status()
    });
    assert!(made.unwrap().unwrap().success());
    on("d0").refused(1, &["d0 is down", "ip link set d0 up"]);
}

#[test]
fn without_driver_statistics_a_device_uses_the_kernels_counters() {
    if !privileged() {
        return;
    }
    // Like a tap, a bridge has no driver statistics.
    let bed = Bed::new(1);
    let ip = |arguments: &str| {
        let run = || Command::new("ip").args(arguments.split(' ')).status().unwrap();
        assert!(bed.near.run_in(run).unwrap().success(), "ip {arguments}");
    };
    ip("link add name br0 type bridge mcast_snooping 0");
    ip("link set a0 master br0");
    ip("link set br0 up");
    Interface::find(&bed.near, "br0").unwrap().wait_until_running().unwrap();
    let json =
        wirecap(&bed.near, &["generate", "-i", "br0", "-c", "500", "--rate", "10kpps", "--json"])
            .json();
    assert_eq!(
        (&json["frames"], &json["counted_by_interface"]),
        (&500.into(), &500.into()),
        "{json}"
    );
}
