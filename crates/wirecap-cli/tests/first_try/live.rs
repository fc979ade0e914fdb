//! Interfaces: packets shown, recorded, counted, sent and forwarded.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Child;

use wirecap_testbed::{privileged, wait_until};

use crate::day::{COUNT, DNS_EVERY, Day, frame, names};

/// A snap length above that of the packets.
const WHOLE: usize = 1000;

/// Types the tasks with interfaces that need no more than CAP_NET_RAW.
pub(crate) fn type_all(day: &Day) {
    let sending = day.sending(&day.pairs[0].sender);
    shown(day);
    recorded(day);
    rotated(day);
    piped(day);
    counted(day);
    controlled(day);
    drop(sending);
    sent(day);
    forwarded(day, "wirecap forward b1 c1 -c 200 --no-control");
}

fn shown(day: &Day) {
    day.types("wirecap -i a1 -c 6").assert_lines(6);
    let dns = day.types("wirecap -ni a1 -c 4 port 53");
    dns.assert_lines(4);
    assert!(dns.stdout.lines().all(|line| line.contains("10.0.0.2.53:")), "{dns:#?}");
    let all = day.types("wirecap -i a1 -nnevvX -c 2");
    all.assert_success();
    assert_eq!(all.stdout.matches("0x0000:  4500").count(), 2, "{all:#?}");
    day.types("wirecap show -ni a1 -Q in -p -s 64 -B 4096 -c 3 udp").assert_lines(3);
    day.types("wirecap show --with tshark -ni a1 -f 'udp port 53' -c 3").assert_lines(3);
    day.types("wirecap show -i a1 --with tshark -T fields -e udp.dstport -c 3").assert_lines(3);
    day.types("wirecap -ni any -c 3 udp").assert_lines(3);
    day.types("wirecap -lni a1 | head -n 3").assert_lines(3);

    // A viewer ends without a word about how.
    let interrupted = day.types("timeout --preserve-status -s INT 2 wirecap show -ni a1 udp");
    interrupted.assert_success();
    assert!(
        interrupted.stdout.contains("10.0.0.2") && !interrupted.stderr.contains("ending"),
        "{interrupted:#?}"
    );

    // Refused with the command that shows packets, which ends after three of them here.
    for line in ["wirecap capture -i a1", "wirecap a1", "wirecap show a1"] {
        let advice = day.types(line).advice();
        day.types(&format!("{advice} -c 3")).assert_lines(3);
    }
}

fn recorded(day: &Day) {
    for (line, file, count, every, snap_len) in [
        ("wirecap -i a1 -c 5 -w r1.pcap", "r1.pcap", 5, 1, WHOLE),
        ("wirecap -nnvi a1 -s60 -c 5 -w r2.pcap udp port 53", "r2.pcap", 5, DNS_EVERY, 60),
        ("wirecap capture -i a1 -w r3.pcapng -c 100", "r3.pcapng", 100, 1, WHOLE),
        ("wirecap capture -i a1 -c 20 -w r4.pcap.gz port 53", "r4.pcap.gz", 20, DNS_EVERY, WHOLE),
        (
            "wirecap capture -i a1 -f 'port 53' -a packets:5 -w r5.pcapng",
            "r5.pcapng",
            5,
            DNS_EVERY,
            WHOLE,
        ),
        ("wirecap capture -i any -c 9 -w r6.pcapng udp", "r6.pcapng", 9, 1, WHOLE),
        ("wirecap -i a1 -U -w - -c 7 > r7.pcapng", "r7.pcapng", 7, 1, WHOLE),
        ("wirecap -B 4096 -i a1 -Q in -c 7 -w r8.pcap", "r8.pcap", 7, 1, WHOLE),
    ] {
        day.types(line).assert_success();
        day.assert_live(file, count, every, snap_len);
    }
    let kinds = day.types("capinfos -t r1.pcap r3.pcapng").stdout;
    assert!(kinds.contains("nanosecond") && kinds.contains("pcapng"), "{kinds}");

    let refused = day.types("wirecap -i a1 -c 5 -w r1.pcap");
    assert!(refused.status == Some(1) && refused.stderr.contains("--force"), "{refused:#?}");
    day.types("wirecap -i a1 -c 6 -w r1.pcap --force").assert_success();
    day.assert_live("r1.pcap", 6, 1, WHOLE);

    // As by Ctrl-C.
    let interrupted = day.types("wirecap -i a1 -w r9.pcap & until [ -s r9.pcap ]; do sleep 0.1; done; sleep 0.1; kill -INT $!; wait $!");
    interrupted.assert_success();
    assert!(interrupted.stderr.contains("lossless: yes"), "{interrupted:#?}");
    day.assert_in_order("r9.pcap", &day.packets("r9.pcap"), 1, WHOLE);
}

/// Sets of files: the packets of all together have no gap.
fn rotated(day: &Day) {
    for (line, start, files, counts) in [
        ("wirecap capture -i a1 -w by-time-%H%M%S.pcap -G 1 -W 3", "by-time", 3, 2..usize::MAX),
        ("wirecap -i a1 -w by-size.pcap -C 2k -W 3 -c 60", "by-size", 3, 30..60),
        (
            "wirecap capture -i a1 -w by-count.pcapng -b packets:10 -b files:2 -c 35",
            "by-count",
            2,
            15..16,
        ),
        ("wirecap capture -i a1 -w by-flag-%i.pcap --file-packets 10 -c 35", "by-flag", 4, 35..36),
    ] {
        let ran = day.types(line);
        ran.assert_success();
        let names = names(&day.path(""), start);
        assert_eq!(names.len(), files, "{names:?} {ran:#?}");
        let mut packets: Vec<_> = names.iter().map(|name| day.packets(name)).collect();
        packets.sort();
        let packets = packets.concat();
        assert!(counts.contains(&packets.len()), "{} packets: {ran:#?}", packets.len());
        day.assert_in_order(start, &packets, 1, WHOLE);
    }
    let compressed =
        day.types("wirecap capture -i a1 -w zipped-%i.pcap --file-packets 10 -c 20 -z gzip");
    compressed.assert_success();
    let names = names(&day.path(""), "zipped");
    assert!(names.len() == 2 && names.iter().all(|name| name.ends_with(".pcap.gz")), "{names:?}");
}

fn piped(day: &Day) {
    day.types("wirecap capture -i a1 -w - -c 10 | tcpdump -nr -").assert_lines(10);
    // A reader that leaves ends the capture.
    let left = day
        .types("{ wirecap capture -i a1 -U -w - 'not port 22'; echo $? >&2; } | tshark -nr - -c 3");
    left.assert_lines(3);
    assert!(left.stderr.lines().any(|line| line == "0"), "{left:#?}");
    let stats = day.types("wirecap capture -i a1 -w - -c 20 | wirecap stats -r - --json").json();
    assert_eq!(stats["packets"], 20, "{stats}");
    let found =
        day.types("wirecap capture -i a1 -w - -c 30 | wirecap capture -r - -w piped.pcap port 53");
    found.assert_success();
    day.assert_live("piped.pcap", 10, DNS_EVERY, WHOLE);
    day.types("mkfifo pipe; wirecap capture -i a1 -c 4 -w pipe & tcpdump -nr pipe").assert_lines(4);
}

fn counted(day: &Day) {
    for line in [
        "wirecap count -i a1 -c 20 --json",
        "wirecap handle -i a1 -c 20 --json",
        "wirecap profile -i a1 -c 20 --json",
    ] {
        let ledger = day.types(line).json();
        assert!(
            ledger["delivered"].as_u64().unwrap() >= 20 && ledger["lossless"] == true,
            "{ledger}"
        );
    }
    let stats = day.types("wirecap stats -i a1 -c 20 --json udp").json();
    assert_eq!(stats["packets"], 20, "{stats}");
    let ledger = day.types("wirecap capture -i a1 -c 20 --json -w j.pcap").json();
    assert_eq!(
        (&ledger["recorded"]["in_file"], &ledger["lossless"]),
        (&20.into(), &true.into()),
        "{ledger}"
    );
}

/// A running capture, asked and changed by others.
fn controlled(day: &Day) {
    let capture =
        day.starts(false, "wirecap capture -i a1 -w day-%i.pcap --file-packets 1000000 --name day");
    wait_until("the capture can be asked", || day.types("wirecap status day").status == Some(0));
    let listed = day.types("wirecap status");
    assert!(listed.stdout.contains("day"), "{listed:#?}");
    // top needs a terminal, and names what does not.
    let advice = day.types("wirecap top").advice();
    let advice = advice.split(" to ").next().unwrap();
    assert!(day.types(advice).stdout.contains("day"), "{advice}");
    for line in ["wirecap rotate day", "wirecap filter day port 53", "wirecap stop day"] {
        day.types(line).assert_success();
    }
    let ended = capture.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(names(&day.path(""), "day-").len(), 2);
    let gone = day.types("wirecap stop day");
    assert!(
        day.types(gone.advice().split(" lists").next().unwrap()).status == Some(0),
        "{gone:#?}"
    );
}

/// Starts tcpdump at the near end, and returns when it captures.
fn watching(day: &Day, line: &str) -> Child {
    let mut tcpdump = day.starts(true, line);
    let mut said = BufReader::new(tcpdump.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains("listening on") {
        assert!(said.read_line(&mut text).unwrap() > 0, "{text}");
    }
    // It must be able to write its last lines.
    tcpdump.stderr = Some(said.into_inner());
    tcpdump
}

fn sent(day: &Day) {
    let tcpdump = watching(day, &format!("tcpdump -i b0 -c {COUNT} -w replayed.pcap"));
    let replayed = day.types("wirecap replay f.pcap -i b1 -x 1000");
    replayed.assert_success();
    assert!(tcpdump.wait_with_output().unwrap().status.success());
    day.assert_live("replayed.pcap", COUNT as usize, 1, WHOLE);

    let tcpdump = watching(day, "tcpdump -i b0 -c 20 -w generated.pcap udp");
    day.types("wirecap generate -i b1 -c 20 --size 100").assert_success();
    assert!(tcpdump.wait_with_output().unwrap().status.success());
    assert!(day.packets("generated.pcap").iter().all(|(_, bytes)| bytes.len() == 100));
    fs::remove_file(day.path("generated.pcap")).unwrap();
    fs::remove_file(day.path("replayed.pcap")).unwrap();
}

/// Forwards from one cable to another.
pub(crate) fn forwarded(day: &Day, line: &str) {
    let tcpdump = watching(day, "tcpdump -i c0 -c 200 -w forwarded.pcap");
    let forward = day.starts(false, line);
    let sending = day.sending(&day.pairs[1].sender);
    let ended = forward.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    drop(sending);
    assert!(tcpdump.wait_with_output().unwrap().status.success());
    day.assert_flows_in_order("forwarded.pcap", 200);
    fs::remove_file(day.path("forwarded.pcap")).unwrap();
}

#[test]
fn tasks_with_interfaces_work_as_with_the_usual_programs() {
    if !privileged() {
        return;
    }
    let day = Day::new();
    assert_eq!(frame(7).len(), 90);
    type_all(&day);

    day.types("wirecap dedicate a1").assert_success();
    let listed = day.types("wirecap devices");
    assert!(listed.stdout.contains("dedicated"), "{listed:#?}");
    let sending = day.sending(&day.pairs[0].sender);
    let recorded = day.types("wirecap -i a1 -c 5 -w x.pcap");
    recorded.assert_success();
    assert!(recorded.stderr.contains("xdp engine"), "{recorded:#?}");
    day.assert_live("x.pcap", 5, 1, WHOLE);
    drop(sending);
    day.types("wirecap release a1").assert_success();
    forwarded(&day, "wirecap forward b1 c1 --engine xdp -c 200 --no-control");
}
