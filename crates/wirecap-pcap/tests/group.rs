//! Handles of one process in a buddy group, which environment variables request.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use common::{Bed, Library, compile, finish, said};
use wirecap_testbed::{
    PacketSender, Sizes, Stamp, Ticks, Traffic, Watch, loss_lock, privileged, repeat_if_disturbed,
};

/// Sends `sent` frames of one flow, every tenth with TCP in its header, to a program with one
/// thread per device; returns its output.
fn threads(devices: &[&str], settings: &[(&str, &str)], sent: u64) -> String {
    let bed = Bed::new();
    let folder = tempfile::tempdir().unwrap();
    let program = compile("threads.c", folder.path(), &[]);
    let mut command = bed.command(program, Library::DropIn);
    command
        .args(["300", &(sent - sent / 10).to_string(), "udp"])
        .args(devices)
        .envs(settings.iter().copied());
    let mut child = bed.spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut output = BufReader::with_capacity(1, child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    child.stdout = Some(output.into_inner());
    if line != "ready\n" {
        return line + &said(&finish(child));
    }
    let traffic = Traffic::to(&bed.pair.receiver);
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    for sequence in 0..sent {
        let mut frame = traffic.frame(Stamp { queue: 0, sequence });
        if sequence % 10 == 0 {
            frame[23] = 6;
        }
        sender.send(&frame).unwrap();
    }
    said(&finish(child))
}

/// How many packets each thread got.
fn shares(text: &str) -> Vec<u64> {
    let share = |line: &str| line.strip_prefix("thread ")?.split(' ').next()?.parse().ok();
    text.lines().filter_map(share).collect()
}

const GROUP: [(&str, &str); 5] = [
    ("WIRECAP_GROUP", "a1"),
    ("WIRECAP_WORKERS", "3"),
    ("WIRECAP_M", "64"),
    ("WIRECAP_R", "32"),
    ("WIRECAP_T", "5"),
];

#[test]
fn threads_of_a_program_share_the_load_of_one_flow() {
    if !privileged() {
        return;
    }
    for devices in [["a1", "a1", "a1"], ["a1@2", "a1@0", "a1@1"]] {
        let text = threads(&devices, &GROUP, 10_000);
        assert!(text.contains("total 9000 received 9000 dropped 0\n"), "{text}");
        let shares = shares(&text);
        assert_eq!(shares.iter().sum::<u64>(), 9000, "{text}");
        assert!(shares.iter().all(|share| *share > 0), "{text}");
    }
}

/// Processing time of a packet in nanoseconds: a handler can process 5,000 per second.
const COST_NS: &str = "200000";
/// The rate of one flow, whose packets all go to one queue or thread: 1.6 times what one handler
/// can process, about half of what three can.
const SKEWED_RATE: f64 = 1.6 * 5000.0;
const SKEWED_BYTES: u16 = 1500;

/// Its duration, long enough that one handler alone loses a fifth of it. `make skew` sets twenty
/// seconds.
fn skewed_time() -> Duration {
    wirecap_testbed::skewed_time(5.0)
}

/// Sends this load, in so many flows, to handlers on `devices` of a bed, and returns the counts.
fn handlers(
    bed: &Bed,
    watch: &Watch,
    library: Library,
    devices: &[&str],
    settings: &[(&str, &str)],
    flows: u32,
) -> Result<Books, String> {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("handlers.c", folder.path(), &[]);
    let mut command = bed.command(program, library);
    command
        .args(["1", "udp and ip"])
        .args(devices)
        .env("HANDLER_NS", COST_NS)
        .envs(settings.iter().copied());
    let mut child = bed.spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    watch.process(child.id());
    let mut output = BufReader::with_capacity(1, child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    child.stdout = Some(output.into_inner());
    assert_eq!(line, "ready\n", "{}", said(&finish(child)));
    let traffic =
        Traffic { sizes: Sizes::fixed(SKEWED_BYTES), flows, ..Traffic::to(&bed.pair.receiver) };
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    let mut ticks = Ticks::new(skewed_time());
    let mut sent = 0;
    while let Some(at) = ticks.next_at() {
        for sequence in sent..(SKEWED_RATE * at) as u64 {
            sender.send(&traffic.frame(Stamp { queue: 0, sequence })).unwrap();
        }
        sent = (SKEWED_RATE * at) as u64;
    }
    let text = said(&finish(child));
    ticks.check()?;
    let totals: Vec<u64> =
        text.lines().last().unwrap().split(' ').filter_map(|word| word.parse().ok()).collect();
    let [got, received, dropped, matches] = totals[..] else { panic!("{text}") };
    assert_eq!(matches, got, "{text}");
    Ok(Books { sent, got, received, dropped, shares: shares(&text) })
}

#[derive(Debug)]
struct Books {
    sent: u64,
    got: u64,
    received: u64,
    dropped: u64,
    shares: Vec<u64>,
}

/// The paper's claim, with the same memory in both cases: 2 MiB for each handle, libpcap's default.
/// With libpcap, threads share an interface by filters: each gets its part of the packets. With the
/// drop-in, each thread opens a ring of the interface.
#[test]
fn heavy_handlers_under_skewed_load_lose_packets_on_libpcap_and_none_in_a_group() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let parts = ["a1=udp[1] & 3 = 0 or udp[1] & 3 = 3", "a1=udp[1] & 3 = 1", "a1=udp[1] & 3 = 2"];
    let of_libpcap = |watch: &Watch| handlers(&Bed::new(), watch, Library::System, &parts, &[], 1);
    let Some(plain) = repeat_if_disturbed("libpcap", of_libpcap) else { return };
    assert_eq!((plain.got + plain.dropped, plain.received), (plain.sent, plain.sent), "{plain:?}");
    assert!(plain.dropped > plain.sent / 5, "one handler did more than it can: {plain:?}");
    assert_eq!(
        plain.shares.iter().filter(|share| **share > 0).count(),
        1,
        "the load is skewed: {plain:?}"
    );
    let devices = ["a1@0", "a1@1", "a1@2"];
    let of_a_group = |threshold: &'static str| {
        move |watch: &Watch| {
            let settings = [
                ("WIRECAP_GROUP", "a1"),
                ("WIRECAP_WORKERS", "3"),
                // 2 MiB.
                ("WIRECAP_M", "16"),
                ("WIRECAP_R", "64"),
                ("WIRECAP_T", threshold),
            ];
            let books = handlers(&Bed::new(), watch, Library::DropIn, &devices, &settings, 1)?;
            let counted = (books.got + books.dropped, books.received);
            assert_eq!(
                counted,
                (books.sent, books.sent),
                "the handles count each packet once: {books:?}"
            );
            Ok(books)
        }
    };
    // Only offloading prevents the loss: with a threshold that is never exceeded, the group is in
    // basic mode.
    let Some(alone) = repeat_if_disturbed("a group that does not offload", of_a_group("100"))
    else {
        return;
    };
    assert!(alone.dropped > alone.sent / 5, "one handler did more than it can: {alone:?}");
    // The default T, with chunks so small that the group's guarantee holds.
    let with_help = |watch: &Watch| match of_a_group("60")(watch)? {
        lossy if lossy.dropped > 0 => Err(format!("the group lost packets: {lossy:?}")),
        books => Ok(books),
    };
    let Some(group) = repeat_if_disturbed("a group", with_help) else { return };
    assert!(group.shares.iter().all(|share| *share > 0), "no handle helped: {group:?}");
}

/// One handle: its worker has all three rings, or there is another worker without a handle.
#[test]
fn the_statistics_of_a_group_with_fewer_handles_than_rings_count_all_rings() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    for (engine, workers) in [("packet", "1"), ("xdp", "1"), ("packet", "2")] {
        let settings = [
            ("WIRECAP_ENGINE", engine),
            ("WIRECAP_GROUP", "a1@0-2"),
            ("WIRECAP_WORKERS", workers),
            ("WIRECAP_M", "64"),
            ("WIRECAP_R", "16"),
        ];
        let bed = Bed::with_queues(3);
        let run = |watch: &Watch| handlers(&bed, watch, Library::DropIn, &["a1@1"], &settings, 32);
        let Some(books) = repeat_if_disturbed(engine, run) else { return };
        assert_eq!(
            (books.got + books.dropped, books.received),
            (books.sent, books.sent),
            "{settings:?}: {books:?}"
        );
        assert!(
            books.dropped > books.sent / 5,
            "{settings:?}: the handler did more than it can: {books:?}"
        );
    }
}

#[test]
fn packets_that_another_handle_reads_are_counted_once() {
    if !privileged() {
        return;
    }
    const SENT: u64 = 3000;
    let folder = tempfile::tempdir().unwrap();
    let program = compile("helped.c", folder.path(), &[]);
    for engine in ["packet", "xdp"] {
        let bed = Bed::with_queues(2);
        let settings = [
            ("WIRECAP_ENGINE", engine),
            ("WIRECAP_GROUP", "a1"),
            ("WIRECAP_WORKERS", "2"),
            ("WIRECAP_M", "64"),
            ("WIRECAP_R", "64"),
            ("WIRECAP_T", "5"),
        ];
        let mut command = bed.command(&program, Library::DropIn);
        command.args([&SENT.to_string(), "a1@0", "a1@1"]).envs(settings);
        let mut child = bed.spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let mut output = BufReader::with_capacity(1, child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        child.stdout = Some(output.into_inner());
        if line == "ready\n" {
            let traffic = Traffic::to(&bed.pair.receiver);
            let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
            for sequence in 0..SENT {
                sender.send(&traffic.frame(Stamp { queue: 0, sequence })).unwrap();
            }
        }
        let text = line + &said(&finish(child));
        assert_eq!(text, "ready\nbefore: 3000\nread 3000, received 3000\n", "{engine}");
    }
}

#[test]
fn a_handle_that_lacks_descriptors_returns_its_worker() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("few_descriptors.c", folder.path(), &[]);
    let bed = Bed::new();
    let settings = [("WIRECAP_GROUP", "a1"), ("WIRECAP_WORKERS", "2")];
    let output = bed.run(bed.command(program, Library::DropIn).envs(settings));
    let text = said(&output);
    assert!(output.status.success() && text.ends_with("opened\n"), "{text}");
    assert!(
        text.contains("cannot make an epoll instance"),
        "no open failed after it had joined: {text}"
    );
}

#[test]
fn handles_without_the_group_setting_are_independent() {
    if privileged() {
        let text = threads(&["a1", "a1"], &[], 200);
        assert!(text.contains("total 360 received 360 dropped 0\n"), "{text}");
        assert_eq!(shares(&text), [180, 180]);
    }
}

#[test]
fn invalid_settings_are_reported_to_the_program() {
    if !privileged() {
        return;
    }
    let missing = "a1@7 does not exist: a1 has one receive queue, 0";
    for (device, variable, value, reason) in [
        (
            "a1",
            "WIRECAP_ENGINE",
            "dpdk",
            "a1: invalid WIRECAP_ENGINE (or 'engine' in pcap.conf) 'dpdk'",
        ),
        ("a1@7", "WIRECAP_GROUP", "a1@7", missing),
        ("a1@7", "WIRECAP_ENGINE", "xdp", missing),
        (
            "a1@0",
            "WIRECAP_ENGINE",
            "off",
            "a1@0: only wirecap's engine captures single receive queues: WIRECAP_ENGINE is off",
        ),
    ] {
        let text = threads(&[device], &[(variable, value)], 1);
        assert!(text.contains(reason), "{device}, {variable}={value}: {text}");
    }
}
