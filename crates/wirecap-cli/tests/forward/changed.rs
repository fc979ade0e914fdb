//! Options that select, change and record packets.

use std::fs::File;
use std::io::Read;
use std::process::Command;

use tempfile::TempDir;
use wirecap::savefile::Reader;
use wirecap_testbed::privileged;

use crate::bed::{Bed, ENGINES, Recording, at, port};
use crate::unchanged::frame;

const TO: [u8; 6] = [2, 0, 0, 0, 0xaa, 0xbb];

fn frames(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|index| frame(index, index as u64, 60 + index)).collect()
}

/// Forwards frames. Returns those that arrive, of which there should be `count`, and the ledger.
#[track_caller]
fn through(options: &str, frames: &[Vec<u8>], count: u64) -> (Vec<Vec<u8>>, serde_json::Value) {
    let mut bed = Bed::new(1, 1500);
    let forwarder = bed.forward(options);
    let recording = Recording::at(&bed.inline.right);
    bed.send(frames);
    let arrived = recording.finish(count);
    (arrived, bed.finish(forwarder))
}

#[test]
fn addresses_and_tags_are_rewritten() {
    if !privileged() {
        return;
    }
    let sent = frames(120);
    for engine in ENGINES {
        let rewrite = |changes: &str| {
            let options = format!("--engine {engine} -R 16 --workers 1 --rewrite {changes}");
            let (arrived, ledger) = through(&options, &sent, 120);
            assert_eq!(at(port(&ledger, "right"), "/sent"), 120, "{ledger:#}");
            arrived
        };
        let is_tagged = |frame: &[u8]| matches!(frame[12..14], [0x81, 0x00] | [0x88, 0xa8]);

        let arrived = rewrite("left:dst=02:00:00:00:aa:bb --rewrite right:dst=02:00:00:00:00:01");
        for (arrived, sent) in arrived.iter().zip(&sent) {
            assert_eq!((&arrived[..6], &arrived[6..]), (&TO[..], &sent[6..]), "{engine}");
        }
        let arrived = rewrite("src=02:00:00:00:aa:bb,vlan=push:100:3");
        for (arrived, sent) in arrived.iter().zip(&sent) {
            let expected = [&sent[..6], &TO, &[0x81, 0x00, 0x60, 0x64], &sent[12..]].concat();
            assert_eq!(*arrived, expected, "{engine}");
        }
        let arrived = rewrite("vlan=pop");
        for (arrived, sent) in arrived.iter().zip(&sent) {
            let rest = if is_tagged(sent) { &sent[16..] } else { &sent[12..] };
            // A frame below Ethernet's minimum length is sent as it is: a veth does not pad.
            assert_eq!(*arrived, [&sent[..12], rest].concat(), "{engine}");
        }
        let arrived = rewrite("vlan=set:7");
        for (arrived, sent) in arrived.iter().zip(&sent) {
            let mut expected = sent.clone();
            if is_tagged(sent) {
                expected[14] &= 0xf0;
                expected[15] = 7;
            }
            assert_eq!(*arrived, expected, "{engine}");
        }
    }
}

#[test]
fn only_matching_packets_pass_and_packets_to_drop_do_not() {
    if !privileged() {
        return;
    }
    // Two of the six kinds of frames are tagged: 802.1Q with VLAN 100, and 802.1ad.
    let sent = frames(120);
    for engine in ENGINES {
        for (options, kinds) in [
            ("--filter arp", &[3][..]),
            ("--drop vlan", &[0, 1, 2, 3]),
            ("--filter not_arp --drop vlan_100", &[0, 1, 2, 5]),
            ("-f ip --drop arp", &[1]),
        ] {
            let expected: Vec<_> =
                sent.iter().enumerate().filter(|(index, _)| kinds.contains(&(index % 6))).collect();
            let mut bed = Bed::new(1, 1500);
            let engine_options = format!("--engine {engine} -R 16 --workers 1 {options}");
            let forwarder = bed.forward(&engine_options);
            let recording = Recording::at(&bed.inline.right);
            bed.send(&sent);
            let arrived = recording.finish(expected.len() as u64);
            assert!(
                arrived.iter().eq(expected.iter().map(|(_, frame)| *frame)),
                "{engine} {options}"
            );
            let ledger = bed.finish(forwarder);
            if engine == "xdp" {
                assert_eq!(
                    at(&ledger, "/filtered"),
                    120 - expected.len() as u64,
                    "{options}: {ledger:#}"
                );
            }
        }
    }
}

#[test]
fn a_mirror_records_packets_as_received() {
    if !privileged() {
        return;
    }
    let sent = frames(100);
    for engine in ENGINES {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("mirror.pcapng");
        let options = format!(
            "--engine {engine} -R 16 --workers 1 --rewrite vlan=push:5 --drop arp --mirror {}",
            file.display()
        );
        let expected: Vec<&Vec<u8>> = sent
            .iter()
            .enumerate()
            .filter(|(index, _)| index % 6 != 3)
            .map(|(_, frame)| frame)
            .collect();
        let (arrived, _) = through(&options, &sent, expected.len() as u64);
        assert!(arrived.iter().all(|frame| frame[12..16] == [0x81, 0x00, 0x00, 0x05]), "{engine}");
        let mut reader = Reader::open(&file).unwrap();
        let mut recorded = Vec::new();
        while let Some(record) = reader.next_record().unwrap() {
            assert_eq!(record.interface, 0);
            assert!(record.timestamp.is_some_and(|time| time.unix_seconds() > 1_600_000_000));
            recorded.push(record.data.to_vec());
        }
        assert!(
            recorded.iter().eq(expected),
            "{engine}: {} of {} recorded",
            recorded.len(),
            arrived.len()
        );
        let capinfos = Command::new("capinfos").arg("-I").arg(&file).output().unwrap();
        let info = String::from_utf8_lossy(&capinfos.stdout);
        assert!(info.contains("Name = left") && info.contains("Name = right"), "{info}");
    }
}

#[test]
fn a_mirror_whose_disk_is_full_ends_and_forwarding_continues() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(1, 1500);
    let forwarder = bed.forward("--engine xdp -R 16 --mirror /dev/full");
    let sent = frames(1000);
    bed.send(&sent);
    forwarder.wait_for("continues without recording");
    bed.send(&sent);
    bed.wait_for_arrivals(2000);
    let finished = forwarder.interrupt();
    finished.refused(1, &["No space left"]);
    bed.check_books(&serde_json::from_str(&finished.stdout).unwrap());
}

#[test]
fn a_mirror_whose_reader_leaves_ends_and_loses_nothing() {
    if !privileged() {
        return;
    }
    let directory = TempDir::new().unwrap();
    let fifo = directory.path().join("mirror");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut bed = Bed::new(1, 1500);
    let forwarder = bed.start(&format!("--engine xdp -R 16 --mirror {}", fifo.display()));
    forwarder.wait_for("waiting for a reader of");
    let mut reader = File::open(&fifo).unwrap();
    forwarder.wait_for("forwarding");

    let sent = frames(1000);
    bed.send(&sent);
    reader.read_exact(&mut [0; 1000]).unwrap();
    drop(reader);
    forwarder.wait_for("mirror: its reader closed it; recording ends");
    bed.send(&sent);
    bed.wait_for_arrivals(2000);

    let finished = forwarder.interrupt();
    let ledger = finished.ledger();
    assert_eq!(ledger["lossless"], true, "a reader that left is no loss: {}", finished.stderr);
    assert!(
        finished.stderr.contains("mirror: its reader closed it and left "),
        "{}",
        finished.stderr
    );
    let [delivered, in_file, unread] =
        ["/delivered", "/recorded/in_file", "/recorded/unread"].map(|name| at(&ledger, name));
    assert_eq!((delivered, in_file + unread), (2000, 2000), "{ledger:#}");
    bed.check_books(&ledger);
}

#[test]
fn the_transit_times_of_packets_are_reported() {
    if !privileged() {
        return;
    }
    for engine in ENGINES {
        let mut bed = Bed::new(1, 1500);
        let forwarder = bed.forward(&format!("--engine {engine} -R 16 --latency -c 500"));
        bed.send(&frames(500));
        let finished = forwarder.finish();
        let ledger = finished.ledger();
        bed.check_books(&ledger);
        let way = &ledger["ways"][0];
        assert_eq!(
            (way["from"].as_str(), at(way, "/latency_ns/packets")),
            (Some("left"), 500),
            "{ledger:#}"
        );
        assert!(at(way, "/latency_ns/min") > 0, "{ledger:#}");
        assert!(at(way, "/latency_ns/median") <= at(way, "/latency_ns/max"), "{ledger:#}");
        assert!(
            finished.stderr.contains("from left to right: 500 packets, shortest"),
            "{finished:#?}"
        );
        assert!(finished.stderr.contains("from right to left: no packets"), "{finished:#?}");
    }
}

#[test]
fn a_warning_names_a_host_that_forwards_as_well() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1, 1500);
    bed.inline.bridge().unwrap();
    let switch_on = || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    bed.inline.middle.run_in(switch_on).unwrap();
    let finished = bed.forward("-R 4").interrupt();
    assert_eq!(finished.ledger()["engine"], "packet");
    for words in ["left is a port of bridge", "right is a port of bridge", "net.ipv4.ip_forward=0"]
    {
        assert!(finished.stderr.contains(words), "{words:?} is not in {finished:#?}");
    }
}
