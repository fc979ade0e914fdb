//! `wirecap capture` and `wirecap count` on real veth pairs; tcpdump and tshark read the files.

mod recording;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use recording::{Bed, WIRECAP, copy_for_everybody, tcpdump, tshark};
use rustix::process::Signal;
use tempfile::TempDir;
use wirecap::savefile::{ReadError, Reader};
use wirecap_testbed::{
    AfXdpSender, Counters, Load, PacketSender, Stamp, Traffic, VethPair, loss_lock, pass_program,
    privileged,
};

/// Options for a pool that has room for all packets of a test, so that the result does not depend
/// on the machine's speed.
const DEEP: [&str; 4] = ["-M", "64", "-R", "512"];

fn savefile(directory: &TempDir, name: &str) -> String {
    directory.path().join(name).display().to_string()
}

fn capture<'a>(device: &'a str, file: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["capture", "-i", device, "-w", file], &DEEP[..], more].concat()
}

#[test]
fn a_recorded_file_equals_the_senders_frames() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    for format in ["pcapng", "pcap"] {
        let file = savefile(&directory, format);
        let running = bed.capture(&capture("a1", &file, &["--format", format, "--json"]));
        bed.generator().send(&[Load::new(0, 5000)]).unwrap();
        let finished = running.interrupt();
        finished.assert_success();
        assert!(finished.stderr.contains("wrote 5,000 packets"), "{}", finished.stderr);
        let verdict = finished.stderr.trim_end().lines().last().unwrap();
        let is_yes =
            ["lossless: yes", "lossless: yes (VLAN tags of a1 may be lost)"].contains(&verdict);
        assert!(is_yes, "{}", finished.stderr);
        let ledger = finished.ledger();
        assert_eq!(ledger["delivered"], 5000, "{ledger}");
        assert_eq!(ledger["offered"], 5000, "{ledger}");
        let (lines, whole) = tcpdump(Path::new(&file), &[]);
        assert!(whole && lines.len() == 5000, "{} packets", lines.len());
        let packets = tshark(Path::new(&file), &["frame.time_epoch", "frame.len", "data.data"]);
        let mut last = String::new();
        for (sequence, packet) in packets.iter().enumerate() {
            let stamp = Stamp { queue: 0, sequence: sequence as u64 };
            let payload: String =
                bed.traffic().frame(stamp)[42..].iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!((&*packet[1], &*packet[2]), ("60", &*payload));
            assert!(packet[0] >= last, "packet {sequence} is earlier than its predecessor");
            last.clone_from(&packet[0]);
        }
        assert_eq!(packets.len(), 5000);
    }
}

#[test]
fn rings_are_merged_in_time_order_with_their_queues() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(4);
    let directory = TempDir::new().unwrap();
    let file = savefile(&directory, "merged");
    let running = bed.capture(&capture("a1", &file, &["--json"]));
    let traffic = bed.traffic();
    thread::scope(|scope| {
        for queue in 0..4u16 {
            let pair = &bed.pair;
            let traffic = &traffic;
            scope.spawn(move || {
                let mut sender = AfXdpSender::on(&pair.sender, queue.into()).unwrap();
                for sequence in 0..2000 {
                    sender.send(&traffic.frame(Stamp { queue, sequence })).unwrap();
                }
                sender.flush().unwrap();
            });
        }
    });
    let finished = running.interrupt();
    finished.assert_success();
    assert_eq!(finished.ledger()["delivered"], 8000);
    let packets =
        tshark(Path::new(&file), &["frame.time_epoch", "frame.packet_id", "frame.interface_queue"]);
    assert_eq!(packets.len(), 8000);
    let disordered = packets.windows(2).filter(|pair| pair[0][0] > pair[1][0]).count();
    assert_eq!(disordered, 0, "packets out of their order in time");
    for queue in ["0", "1", "2", "3"] {
        assert_eq!(
            packets.iter().filter(|packet| packet[2] == queue).count(),
            2000,
            "queue {queue}"
        );
    }
}

#[test]
fn packets_stay_in_the_order_of_time_when_an_interface_is_handed_back() {
    if !privileged() {
        return;
    }
    for queues in [1, 2] {
        let bed = Bed::new(queues);
        let directory = TempDir::new().unwrap();
        let file = savefile(&directory, "handed-back.pcapng");
        let mut running =
            bed.start(Command::new(WIRECAP).args(capture("a1", &file, &["--json", "udp"])));
        let banner = running.wait_for("capturing");
        assert!(banner.contains("xdp engine"), "{banner}");
        // Flows that several packet sockets share, sent all the time.
        let sent = thread::scope(|scope| {
            let sending = scope.spawn(|| send_flows(&bed, queues, 6_000));
            thread::sleep(Duration::from_millis(500));
            ip(&bed, &["address", "add", "10.9.9.1/24", "dev", "a1"]);
            while !running.wait_for("").contains("handed back to the host") {}
            sending.join().unwrap()
        });
        let finished = running.interrupt();
        finished.assert_success();
        assert_eq!(finished.ledger()["recorded"]["in_file"], sent, "{}", finished.stderr);
        let mut reader = Reader::open(Path::new(&file)).unwrap();
        let mut times = Vec::new();
        while let Some(record) = reader.next_record().unwrap() {
            times.push(record.timestamp.unwrap());
        }
        assert_eq!(times.len() as u64, sent);
        let late = times.windows(2).filter(|pair| pair[1] < pair[0]).count();
        assert_eq!(late, 0, "packets out of order, {queues} queues");
    }
}

/// Sends packets of a hundred flows to the queues in turn, a packet every half millisecond. Returns
/// their number.
fn send_flows(bed: &Bed, queues: u32, packets: u64) -> u64 {
    let mut senders: Vec<_> =
        (0..queues).map(|queue| AfXdpSender::on(&bed.pair.sender, queue).unwrap()).collect();
    let traffic = Traffic { flows: 100, ..bed.traffic() };
    for sequence in 0..packets {
        let queue = sequence as usize % senders.len();
        let frame = traffic.frame(Stamp { queue: queue as u16, sequence });
        senders[queue].send(&frame).unwrap();
        senders[queue].flush().unwrap();
        thread::sleep(Duration::from_micros(500));
    }
    packets
}

fn ip(bed: &Bed, words: &[&str]) {
    let run = || Command::new("ip").args(words).status();
    assert!(bed.receiver.run_in(run).unwrap().unwrap().success(), "{words:?}");
}

#[test]
fn a_packets_queue_is_recorded_if_the_interface_has_several() {
    if !privileged() {
        return;
    }
    let directory = TempDir::new().unwrap();
    for (queue_count, device, queue, recorded) in
        [(1, "a1", 0, ""), (2, "a1@0", 0, "0"), (2, "a1@1", 1, "1")]
    {
        let bed = Bed::new(queue_count);
        let file = savefile(&directory, device);
        let running = bed.capture(&capture(device, &file, &["--engine", "xdp", "--json"]));
        bed.generator().send(&[Load::new(queue, 100)]).unwrap();
        let finished = running.interrupt();
        finished.assert_success();
        assert_eq!(finished.ledger()["delivered"], 100);
        let queues = tshark(Path::new(&file), &["frame.interface_queue"]);
        assert_eq!(queues, vec![vec![recorded]; 100], "{device} of {queue_count} queues");
    }
}

#[test]
fn a_number_of_packets_ends_the_capture() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let file = savefile(&directory, "limited");
    let mut counters = Counters::of(&bed.pair.receiver).unwrap();
    let running = bed.capture(&capture("a1", &file, &["-c", "123", "--json"]));
    bed.generator().send(&[Load::new(0, 1000)]).unwrap();
    let finished = running.finish();
    finished.assert_success();
    assert!(finished.stderr.contains("wrote 123 packets"), "{}", finished.stderr);
    assert_eq!(tcpdump(Path::new(&file), &[]).0.len(), 123);
    let ledger = finished.ledger();
    // Packets that were sent after the end went to the host.
    let taken = counters.since_start().unwrap().redirected();
    assert!((123..=1000).contains(&taken), "{taken}");
    assert_eq!(
        (&ledger["offered"], &ledger["delivered"]),
        (&taken.into(), &taken.into()),
        "{ledger}"
    );
}

#[test]
fn a_duration_ends_the_capture() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let file = savefile(&directory, "timed");
    let finished = bed.capture(&capture("a1", &file, &["--duration", "300ms"])).finish();
    finished.assert_success();
    assert!(tcpdump(Path::new(&file), &[]).1, "an empty capture is a valid file");
    let finished = bed.capture(&["count", "-i", "a1", "-R", "16", "--duration", "300ms"]).finish();
    finished.assert_success();
}

#[test]
fn a_pipe_gets_the_packets_and_may_be_closed() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let read_all =
        format!("{WIRECAP} capture -i a1 -M 64 -R 512 -c 500 -w - | tcpdump -n -r - 2>/dev/null");
    let mut running = bed.start(Command::new("sh").args(["-c", &read_all]));
    running.wait_for("capturing");
    bed.generator().send(&[Load::new(0, 500)]).unwrap();
    let finished = running.finish();
    assert_eq!(
        String::from_utf8_lossy(&finished.stdout).lines().count(),
        500,
        "{}",
        finished.stderr
    );

    let read_some = format!(
        "{{ {WIRECAP} capture -i a1 -M 64 -R 512 --duration 20s -w -; echo status $? >&2; }} | head -c 24 >/dev/null"
    );
    let mut running = bed.start(Command::new("sh").args(["-c", &read_some]));
    running.wait_for("capturing");
    bed.generator().send(&[Load::new(0, 5000).per_second(2500)]).unwrap();
    let finished = running.finish();
    // The reader has not read all packets, and wanted no more: as with tcpdump, that is no failure.
    assert!(finished.stderr.contains("status 0"), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("standard output: its reader closed it and left "),
        "{}",
        finished.stderr
    );
    assert!(finished.stderr.contains("lossless: yes"), "{}", finished.stderr);
}

#[test]
fn a_full_disk_ends_the_capture_with_an_error_and_whole_packets() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    // The mount is private to the shell and is removed when the shell ends, so the shell copies the
    // file out of it first.
    let disk = savefile(&directory, "disk");
    let kept = savefile(&directory, "kept");
    let script = format!(
        "mkdir {disk} && mount -t tmpfs -o size=1M full {disk} && \
         {WIRECAP} capture -i a1 -M 64 -R 512 -w {disk}/file; echo status $? >&2; cp {disk}/file {kept}"
    );
    let mut running = bed.start(Command::new("unshare").args(["-m", "sh", "-c", &script]));
    running.wait_for("capturing");
    bed.generator().send(&[Load::new(0, 20_000)]).unwrap();
    let finished = running.finish();
    let (lines, whole) = tcpdump(Path::new(&kept), &[]);
    assert!(finished.stderr.contains("status 1"), "{}", finished.stderr);
    assert!(finished.stderr.contains("No space left on device"), "{}", finished.stderr);
    assert!(
        finished.stderr.contains(&format!("it contains {} complete packets", lines.len())),
        "{}",
        finished.stderr
    );
    assert!(whole && !lines.is_empty());
}

/// The number of complete packets in a savefile, and whether it ends within another packet: a kill
/// may interrupt a write between two memory pages. The file may have no other fault.
fn complete_packets(file: &str) -> (usize, bool) {
    let mut reader = Reader::open(file).unwrap();
    let mut packets = 0;
    loop {
        match reader.next_record() {
            Ok(Some(_)) => packets += 1,
            Ok(None) => return (packets, false),
            Err(ReadError::Truncated { offset, present, .. }) => {
                assert_eq!(offset + present as u64, fs::metadata(file).unwrap().len());
                return (packets, true);
            }
            Err(error) => panic!("{file}: {error}"),
        }
    }
}

#[test]
fn a_killed_capture_leaves_nothing_behind_but_a_file_that_reads_to_its_last_packet() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let mut generator = bed.generator();
    let run = generator.start(&[Load::endless(0).per_second(300_000)]).unwrap();
    for moment in 0..10u64 {
        let file = savefile(&directory, &format!("killed{moment}"));
        let running = bed.capture(&capture("a1", &file, &[]));
        // Moments within half a second that differ from run to run.
        let pause = u64::from(std::process::id()) * 7919 + moment * 104_729;
        thread::sleep(Duration::from_millis(pause % 500));
        running.signal(Signal::KILL);
        running.finish();
        // No program is left: another one can be attached immediately.
        drop(bed.receiver.run_in(|| pass_program(&bed.pair.receiver)).unwrap().unwrap());
        if fs::metadata(&file).is_ok_and(|metadata| metadata.len() > 0) {
            let (lines, whole) = tcpdump(Path::new(&file), &[]);
            let (packets, torn) = complete_packets(&file);
            assert_eq!((lines.len(), whole), (packets, !torn), "{file}");
        }
    }
    run.stop().unwrap();
    let running = bed.capture(&["count", "-i", "a1", "-M", "64", "-R", "512", "--json"]);
    bed.generator().send(&[Load::new(0, 1000)]).unwrap();
    assert_eq!(running.interrupt().ledger()["delivered"], 1000);
}

#[test]
fn an_interface_that_is_removed_ends_the_capture_with_its_ledger_and_the_reason() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let file = savefile(&directory, "removed");
    let running = bed.capture(&capture("a1", &file, &["--json", "--reattach", "off"]));
    bed.generator().send(&[Load::new(0, 700)]).unwrap();
    let removal = bed.sender.run_in(|| Command::new("ip").args(["link", "delete", "a0"]).status());
    assert!(removal.unwrap().unwrap().success());
    let finished = running.finish();
    finished.assert_refused(1, &["a1 was removed"]);
    assert_eq!(finished.ledger()["delivered"], 700);
    assert_eq!(tcpdump(Path::new(&file), &[]).0.len(), 700);
}

#[test]
fn count_counts_per_ring() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let running = bed.capture(&["count", "-i", "a1", "-M", "64", "-R", "512", "--json"]);
    bed.generator().send(&[Load::new(0, 3000), Load::new(1, 1000)]).unwrap();
    let finished = running.interrupt();
    finished.assert_success();
    let ledger = finished.ledger();
    assert_eq!(ledger["delivered"], 4000, "{ledger}");
    assert_eq!(ledger["bytes"], 240_000, "{ledger}");
    assert_eq!(ledger["rings"][0]["delivered"], 3000, "{ledger}");
    assert_eq!(ledger["rings"][1]["delivered"], 1000, "{ledger}");
}

#[test]
fn more_workers_than_queues_get_separate_rings() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let count = ["count", "-i", "a1", "-M", "64", "-R", "512", "--json", "--workers", "3"];
    for (engine, names) in
        [("xdp", ["a1@0.0", "a1@0.1", "a1@0.2"]), ("packet", ["a1@0", "a1@1", "a1@2"])]
    {
        let running = bed.capture(&[&count[..], &["--engine", engine]].concat());
        let traffic = Traffic { flows: 100, ..bed.traffic() };
        let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
        (0..3000).for_each(|sequence| {
            sender.send(&traffic.frame(Stamp { queue: 0, sequence })).unwrap();
        });
        let finished = running.interrupt();
        finished.assert_success();
        let ledger = finished.ledger();
        assert_eq!(
            (&ledger["offered"], &ledger["delivered"]),
            (&3000.into(), &3000.into()),
            "{ledger}"
        );
        for (ring, name) in ledger["rings"].as_array().unwrap().iter().zip(names) {
            assert_eq!(ring["name"], name, "{ledger}");
            assert!(ring["delivered"].as_u64().unwrap() > 300, "{ledger}");
        }
    }
}

#[test]
fn an_option_after_an_interface_applies_to_it() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let other = VethPair::new((&bed.sender, "b0"), (&bed.receiver, "b1"), 1, 1500)
        .and_then(wirecap_testbed::dedicated)
        .unwrap();
    let directory = TempDir::new().unwrap();
    let file = savefile(&directory, "snaplen");
    let interfaces = ["-s", "50", "-i", "a1", "-f", "ether[0] < 5", "-i", "b1", "-s", "30"];
    let others = ["-M", "64", "-R", "64", "-w", &file, "ether[0] >= 3"];
    let running = bed.capture(&[&["capture"], &interfaces[..], &others].concat());
    for interface in [&bed.pair.sender, &other.sender] {
        let mut sender = PacketSender::on(interface).unwrap();
        (0..10).for_each(|n| sender.send(&[n; 60]).unwrap());
    }
    let finished = running.interrupt();
    finished.assert_success();
    assert!(finished.stderr.contains("30 bytes kept of each packet"), "{}", finished.stderr);
    let packets = tshark(Path::new(&file), &["frame.interface_name", "frame.cap_len", "frame.len"]);
    let kept = |name: &str| packets.iter().filter(|packet| packet[0] == name).collect::<Vec<_>>();
    for (name, bytes, count) in [("a1", "50", 5), ("b1", "30", 7)] {
        let kept = kept(name);
        assert_eq!(kept.len(), count, "{packets:?}");
        assert!(kept.iter().all(|packet| packet[1..] == [bytes, "60"]), "{packets:?}");
    }
    let info = Command::new("capinfos").args(["-I", &file]).output().unwrap();
    let info = String::from_utf8(info.stdout).unwrap();
    assert!(info.contains("ether[0] < 5") && info.contains("ether[0] >= 3"), "{info}");
}

#[test]
fn fewer_cells_may_be_posted_than_there_are() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    for (options, posted) in [
        (&["--warm", "1000"][..], 1000),
        (&["--elastic"], 4096),
        (&["--elastic", "--warm", "1000"], 1000),
    ] {
        let count = ["count", "-i", "a1", "-M", "64", "-R", "256", "--json"];
        let running = bed.capture(&[&count[..], options].concat());
        bed.generator().send(&[Load::new(0, 1000)]).unwrap();
        let finished = running.interrupt();
        assert_eq!(finished.ledger()["delivered"], 1000);
        let words = format!("16,384 packets ({} posted)", wirecap::grouped(posted));
        assert!(finished.stderr.contains(&words), "{}", finished.stderr);
    }
}

#[test]
fn wrong_usage_is_named_with_exit_status_2() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let cases: [(&[&str], &str); 10] = [
        (&["count", "-i", "a1", "-M", "0"], "M (cells per chunk)"),
        (&["count", "-i", "a1", "-R", "0"], "R (chunks per pool)"),
        (&["count", "-i", "a1", "-R", "4000000000"], "R x M"),
        (&["count", "-i", "a1", "-T", "250"], "T (threshold"),
        (&["count", "-i", "a1", "--warm", "0"], "K (warm cells)"),
        (&["count", "-i", "a1", "--warm", "some"], "off"),
        (&["count", "-i", "a1@x"], "a1@x"),
        (&["count", "-i", "a1", "--buffer", "12parsecs"], "unit"),
        (&["count", "-i", "a1", "-c", "0"], "0"),
        (&["capture", "-i", "a1", "-w", "-", "--json"], "--json"),
    ];
    for (arguments, words) in cases {
        bed.run(Command::new(WIRECAP).args(arguments)).assert_refused(2, &[words]);
    }
}

#[test]
fn impossible_fixes_are_named_with_exit_status_1() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let file = savefile(&directory, "none");
    let cases: [(&[&str], &[&str]); 6] = [
        (&["capture", "-i", "nonesuch", "-w", &file], &["nonesuch", "a1"]),
        (
            &["capture", "-i", "a1", "--engine", "packet", "--elastic", "-w", &file],
            &["a1", "--engine xdp"],
        ),
        (&["capture", "-i", "a1@4", "-w", &file], &["a1@4", "one receive queue"]),
        (&["capture", "-i", "a1", "-w", "/nonesuch/file"], &["/nonesuch"]),
        (&["capture", "-i", "a1", "-w", "/proc/nonesuch"], &["/proc/nonesuch"]),
        (&["capture", "-i", "a1", "-M", "65536", "-R", "1024", "-w", &file], &["memory", "-R"]),
    ];
    for (arguments, words) in cases {
        bed.run(Command::new(WIRECAP).args(arguments)).assert_refused(1, words);
        assert!(!Path::new(&file).exists(), "a capture that failed left a file");
    }
    drop(bed.receiver.run_in(|| pass_program(&bed.pair.receiver)).unwrap().unwrap());
}

#[test]
fn missing_privileges_are_named() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let unprivileged = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let (_directory, program) = copy_for_everybody();
    let setpriv = |more: &[&str], arguments: &[&str]| {
        bed.run(Command::new("setpriv").args(unprivileged).args(more).arg(&program).args(arguments))
    };
    setpriv(&[], &["count", "-i", "a1", "-R", "4"]).assert_refused(1, &["CAP_NET_RAW", "root"]);
    let capabilities =
        ["--inh-caps=+net_raw,+net_admin,+bpf", "--ambient-caps=+net_raw,+net_admin,+bpf"];
    setpriv(&capabilities, &["count", "-i", "a1"])
        .assert_refused(1, &["locked memory", "CAP_IPC_LOCK", "ulimit"]);
    // A pool within the memory limit works without root.
    let finished = setpriv(&capabilities, &["count", "-i", "a1", "-R", "4", "--duration", "200ms"]);
    finished.assert_success();
}

#[test]
fn profile_counts_each_packet_in_the_bin_of_its_time() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let directory = TempDir::new().unwrap();
    let picture = savefile(&directory, "profile.svg");
    let arguments =
        ["profile", "-i", "a1", "-M", "64", "-R", "512", "--csv", "-", "--svg", &picture];
    let running = bed.capture(&arguments);
    bed.generator().send(&[Load::new(0, 3000).per_second(20_000), Load::new(1, 1000)]).unwrap();
    let finished = running.interrupt();
    finished.assert_success();
    let csv = String::from_utf8(finished.stdout.clone()).unwrap();
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("seconds,a1@0,a1@1"));
    let rows: Vec<Vec<u64>> = lines
        .map(|line| line.split(',').skip(1).map(|count| count.parse().unwrap()).collect())
        .collect();
    let sum = |ring: usize| rows.iter().map(|row| row[ring]).sum::<u64>();
    assert_eq!((sum(0), sum(1)), (3000, 1000));
    assert!(
        rows.len() >= 10,
        "3,000 packets at 20,000 a second are in {} bins of 10 ms",
        rows.len()
    );
    assert!(finished.stderr.contains("3,000 packets"), "{}", finished.stderr);
    assert!(fs::read_to_string(picture).unwrap().contains("<svg"));
}

#[test]
fn a_savefile_is_read_as_if_it_were_captured() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let directory = TempDir::new().unwrap();
    let recorded = savefile(&directory, "recorded");
    let copied = savefile(&directory, "copied");
    let running = bed.capture(&capture("a1", &recorded, &[]));
    bed.generator().send(&[Load::new(0, 700), Load::new(1, 300)]).unwrap();
    running.interrupt().assert_success();

    let counted = bed.run(Command::new(WIRECAP).args(["count", "-r", &recorded, "--json"]));
    counted.assert_success();
    let ledger = counted.ledger();
    assert_eq!(
        (&ledger["engine"], &ledger["delivered"]),
        (&"file".into(), &1000.into()),
        "{ledger}"
    );

    bed.run(Command::new(WIRECAP).args(["capture", "-r", &recorded, "-w", &copied]))
        .assert_success();
    let fields = [
        "frame.time_epoch",
        "frame.interface_name",
        "frame.interface_queue",
        "frame.len",
        "data.data",
    ];
    assert_eq!(tshark(Path::new(&copied), &fields), tshark(Path::new(&recorded), &fields));

    let profiled = bed.run(Command::new(WIRECAP).args(["profile", "-r", &recorded]));
    assert!(profiled.stderr.contains("1,000 packets"), "{}", profiled.stderr);

    let torn = savefile(&directory, "torn");
    let bytes = fs::read(&recorded).unwrap();
    fs::write(&torn, &bytes[..bytes.len() / 2]).unwrap();
    let counted = bed.run(Command::new(WIRECAP).args(["count", "-r", &torn, "--json"]));
    counted.assert_refused(1, &["torn", "byte"]);
    assert!(counted.ledger()["delivered"].as_u64().unwrap() > 400);
    let refused = bed.run(Command::new(WIRECAP).args(["count", "-r", "/nonesuch"]));
    refused.assert_refused(1, &["/nonesuch"]);
    bed.run(Command::new(WIRECAP).args(["count", "-r", &recorded, "-i", "a1"]))
        .assert_refused(2, &["-r"]);
}

#[test]
fn handle_applies_its_filter_to_every_packet() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let heavy = ["handle", "-i", "a1", "-M", "64", "-R", "64", "-x", "3", "-T", "60", "--json"];
    let running = bed.capture(&[&heavy[..], &["udp", "dst", "port", "9"]].concat());
    bed.generator().send(&[Load::new(0, 1000), Load::new(1, 500)]).unwrap();
    let finished = running.interrupt();
    finished.assert_success();
    assert_eq!(finished.ledger()["delivered"], 1500);
    assert_eq!(finished.ledger()["mode"], "A-(64,64,60)");
    let matched: u64 = finished
        .stderr
        .lines()
        .filter_map(|line| {
            line.strip_prefix("worker ")?.split(' ').nth(3)?.replace(',', "").parse::<u64>().ok()
        })
        .sum();
    assert_eq!(matched, 1500, "{}", finished.stderr);
    let refused =
        bed.run(Command::new(WIRECAP).args(["handle", "-i", "a1", "udp", "port", "nonsense"]));
    refused.assert_refused(1, &["nonsense"]);
}

/// A capture uses the memory of the pool's cells, 24 bytes per cell, and at most 32 MiB more; a
/// recording also that of its 16 pages of 2 MiB.
#[test]
fn memory_is_bounded_by_the_pools_under_any_load() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let directory = TempDir::new().unwrap();
    let file = savefile(&directory, "file");
    // R x M = 65,536, in cells of 2 KiB.
    let pool = ["-i", "a1", "-M", "256", "-R", "256", "--json"];
    for (command, pages) in [(&["count"][..], 0), (&["capture", "-w", &file], 16)] {
        let running = bed.capture(&[command, &pool[..]].concat());
        // Three times the capacity of a ring, at full speed: every cell is used.
        bed.generator().send(&[Load::new(0, 200_000), Load::new(1, 200_000)]).unwrap();
        thread::sleep(Duration::from_millis(300));
        let peak = running.peak_memory_bytes();
        let finished = running.interrupt();
        let ledger = finished.ledger();
        assert_eq!(ledger["offered"], 400_000, "{ledger}");
        let status = if ledger["lossless"] == true { 0 } else { 3 };
        assert_eq!(finished.status.code(), Some(status), "{}", finished.stderr);
        let bound = 2 * 65_536 * (2048 + 24) + (32 << 20) + pages * (2 << 20);
        println!("{command:?}: {peak} bytes of {bound}");
        assert!(peak <= bound, "{command:?} took {peak} bytes of {bound}");
        // The memory was really used: enough packets arrived.
        assert!(peak >= 65_536 * 2048 / 4, "{command:?} took {peak} bytes only");
    }
}

#[test]
fn without_timestamps_rings_are_recorded_in_order_of_arrival_and_the_file_records_that() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let directory = TempDir::new().unwrap();
    let file = savefile(&directory, "timeless");
    let running = bed.capture(&capture("a1", &file, &["--timestamp", "none", "--json"]));
    for queue in 0..2_u16 {
        let mut sender = AfXdpSender::on(&bed.pair.sender, queue.into()).unwrap();
        (0..500).for_each(|sequence| {
            sender.send(&bed.traffic().frame(Stamp { queue, sequence })).unwrap();
        });
        sender.flush().unwrap();
    }
    let finished = running.interrupt();
    finished.assert_success();
    assert_eq!(finished.ledger()["delivered"], 1000);
    let info = Command::new("capinfos").args(["-I", &file]).output().unwrap();
    let info = String::from_utf8(info.stdout).unwrap();
    assert!(info.contains("packet times: none"), "{info}");
    let packets = tshark(Path::new(&file), &["frame.time_epoch"]);
    assert!(
        packets.len() == 1000 && packets.iter().all(|packet| packet[0].starts_with("0.0")),
        "{packets:?}"
    );
}

#[test]
fn hardware_timestamps_are_rejected_with_the_drivers_features() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let file = savefile(&directory, "never");
    for (engine, reason) in
        [("xdp", "its driver (veth) has no hardware clock"), ("packet", "the engine packet")]
    {
        let options = ["--timestamp", "hardware", "--engine", engine];
        let arguments = capture("a1", &file, &options);
        let finished = bed.run(Command::new(WIRECAP).args(&arguments));
        finished
            .assert_refused(1, &["a1 has no hardware timestamps", reason, "--timestamp packet"]);
    }
    assert!(!Path::new(&file).exists());
}
