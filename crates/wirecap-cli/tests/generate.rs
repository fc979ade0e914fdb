//! `wirecap generate` against the kernel's counters and what arrives at the other end.

mod common;

use std::collections::BTreeMap;
use std::thread;

use common::{Bed, Finished, start, wait_until, wirecap, wirecap_unprivileged};
use wirecap::{Capture, Ledger};
use wirecap_testbed::{Counters, Namespace, Sizes, Stamp, Traffic, drop_program, loss_lock, privileged};

/// Runs `generate` on `a0` with these arguments, separated by blanks.
fn generate(bed: &Bed, arguments: &str) -> Finished {
    let arguments: Vec<&str> = ["generate", "-i", "a0"].into_iter().chain(arguments.split(' ')).collect();
    wirecap(&bed.near, &arguments)
}

/// Captures what arrives while `work` is done, and gives each packet with its ring.
fn arriving(bed: &Bed, work: impl FnOnce() + Send) -> (Vec<(u32, Vec<u8>)>, Ledger) {
    let capture =
        bed.far.run_in(|| Capture::on("a1").chunk(64).pool(256).workers(1).open()).unwrap().unwrap();
    let mut worker = capture.workers().pop().unwrap();
    let packets = thread::scope(|scope| {
        let taking = scope.spawn(move || {
            let mut packets = Vec::new();
            while let Some(chunk) = worker.next_chunk().unwrap() {
                packets.extend(chunk.iter().map(|packet| (chunk.ring().queue, packet.data().to_vec())));
            }
            packets
        });
        work();
        bed.far.run_in(|| capture.stop()).unwrap();
        taking.join().unwrap()
    });
    (packets, bed.far.run_in(|| capture.close()).unwrap())
}

#[test]
fn the_kernel_sends_exactly_as_many_frames_as_asked() {
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
fn frames_are_those_asked_for_whichever_way_they_are_sent() {
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
            assert_eq!(packet, traffic.frame(Stamp { queue: 0, sequence }), "{via}, packet {sequence}");
        }
    }
}

#[test]
fn unless_told_otherwise_frames_are_addressed_to_their_own_sender() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let (packets, _) = arriving(&bed, || assert_eq!(generate(&bed, "-c 1").status, Some(0)));
    let mac = bed.sender().mac;
    assert_eq!(packets[0].1[..12], [mac, mac].concat());
}

#[test]
fn queues_share_the_frames_and_each_arrives_at_its_own() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(4);
    let (packets, ledger) = arriving(&bed, || {
        let json = generate(&bed, "-c 1001 --queue 0,1,3 --rate 30k --via xdp --json").json();
        assert_eq!((&json["frames"], &json["counted_by_interface"]), (&1001.into(), &1001.into()), "{json}");
        let queues: Vec<_> =
            json["queues"].as_array().unwrap().iter().map(|q| (&q["queue"], &q["frames"])).collect();
        let expected = [(0, 334), (1, 334), (3, 333)].map(|(queue, frames)| (queue.into(), frames.into()));
        assert_eq!(queues, expected.iter().map(|(q, f)| (q, f)).collect::<Vec<_>>());
    });
    assert!(ledger.is_lossless(), "{ledger}");
    let mut by_queue: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for (queue, packet) in packets {
        let stamp = Stamp::of(&packet).unwrap();
        assert_eq!(u32::from(stamp.queue), queue);
        by_queue.entry(queue).or_default().push(stamp.sequence);
    }
    let counts: Vec<_> = by_queue.iter().map(|(queue, sequences)| (*queue, sequences.len())).collect();
    assert_eq!(counts, [(0, 334), (1, 334), (3, 333)]);
    assert!(by_queue.values().all(|sequences| sequences.iter().copied().eq(0..sequences.len() as u64)));
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
    assert_eq!((&json["via"], &json["counted_by_interface"]), (&"xdp".into(), &100.into()), "{json}");
    let refusal = generate(&bed, &format!("-c 100 --queue {cpus} --via kernel"));
    refusal.refused(1, &["no CPU reaches queue"]);
}

#[test]
fn a_peer_that_takes_no_xdp_frames_is_served_by_af_xdp_and_noticed_otherwise() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let json = generate(&bed, "-c 100 --json").json();
    assert_eq!((&json["via"], &json["counted_by_interface"]), (&"xdp".into(), &100.into()), "{json}");
    let finished = generate(&bed, "-c 100 --via kernel");
    assert!(finished.stderr.contains("do not know of 100 of them"), "{finished:#?}");
    assert!(finished.stderr.contains("--via xdp"), "{finished:#?}");
}

#[test]
fn a_rate_is_not_exceeded_and_a_duration_ends_it() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let _receiving = drop_program(&bed.pair.receiver).unwrap();
    for via in ["kernel", "xdp"] {
        let json = generate(&bed, &format!("--duration 500ms --rate 10k --via {via} --json")).json();
        let (frames, seconds) = (json["frames"].as_u64().unwrap(), json["duration_s"].as_f64().unwrap());
        assert_eq!(json["counted_by_interface"], frames, "{json}");
        // A millisecond's worth is caught up with after a stall.
        assert!(frames as f64 <= seconds * 10_000.0 + 11.0, "{json}");
        assert!(frames > 0 && (0.4..20.0).contains(&seconds), "{json}");
    }
}

#[test]
fn ctrl_c_ends_it_and_what_was_sent_is_told() {
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
fn what_cannot_be_sent_is_refused_and_nothing_is_sent() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let mut counters = Counters::of(bed.sender()).unwrap();
    let cases: [(&str, i32, &[&str]); 13] = [
        ("", 2, &["--count", "--duration"]),
        ("-c 0", 2, &["--count", "0 is not in"]),
        ("-c 1 --rate 0", 2, &["--rate", "between 1 and"]),
        ("-c 1 --rate 1 --queue 0,1", 2, &["--rate", "2"]),
        ("--duration 0s", 2, &["--duration"]),
        ("--duration -1s", 2, &["--duration"]),
        ("-c 1 --size 59", 2, &["59 is too short"]),
        ("-c 1 --size 1515", 2, &["1515", "between 60 and 1514"]),
        ("-c 1 --size 1515 --via xdp", 2, &["1515", "between 60 and 1514"]),
        ("-c 1 --flows 0", 2, &["--flows"]),
        ("-c 1 --queue 1,1", 2, &["queue 1 is named twice"]),
        ("-c 1 --queue 2", 1, &["a0@2 does not exist", "0 to 1"]),
        ("-c 1 --to-mac 02:00", 2, &["--to-mac", "six bytes"]),
    ];
    for (arguments, status, words) in cases {
        let arguments = ["generate", "-i", "a0"].into_iter().chain(arguments.split_whitespace());
        wirecap(&bed.near, &arguments.collect::<Vec<_>>()).refused(status, words);
    }
    for via in ["kernel", "xdp"] {
        let arguments = ["generate", "-i", "a0", "-c", "1", "--via", via];
        wirecap_unprivileged(&bed.near, &arguments).refused(1, &["run as root", "CAP_"]);
    }
    assert_eq!(counters.since_start().unwrap().handed_over(), 0);
}

#[test]
fn interfaces_that_nothing_is_sent_on_are_refused() {
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
