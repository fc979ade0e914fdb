//! Savefiles of the kinds that people have: of other systems and byte orders, with unusual lengths,
//! times, options and link types. tcpdump says what is right. The files in `files` stand for these
//! kinds; they were made for these tests.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use wirecap::savefile::{
    Element, FileSink, Format, Interface, LinkType, Reader, Record, Section, Timestamp, Writer,
};

const WIRECAP: &str = env!("CARGO_BIN_EXE_wirecap");

fn kind(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files").join(name)
}

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn wirecap(arguments: &[&str]) -> Output {
    run(WIRECAP, arguments)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The lines of the packets that tcpdump prints, and whether it read the file to its end.
fn tcpdump(path: &Path, arguments: &[&str]) -> (Vec<String>, bool) {
    let output = run("tcpdump", &[&["-nttr", text(path)], arguments].concat());
    let lines = String::from_utf8(output.stdout).unwrap();
    (lines.lines().map(str::to_owned).collect(), output.status.success())
}

/// The number of packets that match a filter, by `count`, by a copy, and by `find`.
fn counts(path: &Path, filter: &str) -> [u64; 3] {
    let folder = TempDir::new().unwrap();
    let copy = folder.path().join("copy");
    let counted = wirecap(&["count", "--json", "-r", text(path), filter]);
    let ledger: serde_json::Value = serde_json::from_slice(&counted.stdout).unwrap();
    let copied = wirecap(&["capture", "-r", text(path), "-w", text(&copy), filter]);
    assert!(copied.status.success(), "{copied:?}");
    let found = wirecap(&["find", "--count", text(path), filter]);
    let found = String::from_utf8(found.stdout).unwrap().trim().parse().unwrap();
    [ledger["delivered"].as_u64().unwrap(), data(&copy).len() as u64, found]
}

/// The data of a file's packets.
fn data(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = Reader::open(path).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        packets.push(record.data.to_vec());
    }
    packets
}

#[test]
fn filters_match_in_files_of_bsd_loopbacks_what_they_match_in_tcpdump() {
    for name in ["null-ip6-be.pcap", "loop-ip6-le.pcap"] {
        for filter in ["ip6", "ip", "tcp port 80", "ip6 host ::1 and tcp", "not ip6", "udp"] {
            let matching = tcpdump(&kind(name), &["-q", filter]);
            let matching = matching.0.iter().filter(|line| !line.starts_with('\t')).count() as u64;
            assert_eq!(counts(&kind(name), filter), [matching; 3], "{name}: {filter}");
        }
        // The families of all BSDs and of Linux: 24, 28, 30 and 10, of which filters in files match
        // the first three.
        assert_eq!(counts(&kind(name), "ip6")[0], 3, "{name}");
    }
}

#[test]
fn copies_of_big_endian_files_have_their_pseudo_headers_in_their_own_order() {
    let folder = TempDir::new().unwrap();
    for name in ["be-usb.pcap", "be-nflog.pcap", "null-ip6-be.pcap"] {
        let expected = tcpdump(&kind(name), &["-e"]);
        assert!(expected.1, "{name}");
        for extension in ["pcap", "pcapng"] {
            let copy = folder.path().join(format!("copy-{name}.{extension}"));
            assert!(
                wirecap(&["capture", "-r", text(&kind(name)), "-w", text(&copy)]).status.success()
            );
            assert_eq!(tcpdump(&copy, &["-e"]), expected, "{name} to {extension}");
            let found = folder.path().join(format!("found-{name}.{extension}"));
            assert!(wirecap(&["find", text(&kind(name)), "-w", text(&found)]).status.success());
            assert_eq!(tcpdump(&found, &["-e"]), expected, "{name} to {extension}");
        }
    }
}

#[test]
fn what_tcpdump_reads_is_copied_whole() {
    let folder = TempDir::new().unwrap();
    // tcpdump rejects interfaces with two snap lengths, also in a copy block by block.
    for (name, extensions) in [
        ("bad-opt.pcapng", &["pcap", "pcapng"][..]),
        ("over-snaplen.pcap", &["pcap", "pcapng"]),
        ("two-snaplens.pcapng", &["pcap"]),
    ] {
        let expected = data(&kind(name));
        assert_eq!(expected.len(), 2, "{name}");
        for extension in extensions {
            let copy = folder.path().join(format!("copy-{name}.{extension}"));
            let output = wirecap(&["capture", "-r", text(&kind(name)), "-w", text(&copy)]);
            assert!(output.status.success(), "{output:?}");
            assert_eq!(data(&copy), expected, "{name} to {extension}");
            let (lines, is_whole) = tcpdump(&copy, &["-q"]);
            assert_eq!((lines.len(), is_whole), (2, true), "{name} to {extension}");
        }
    }
}

#[test]
fn times_that_a_copy_cannot_hold_are_an_error() {
    let folder = TempDir::new().unwrap();
    for name in ["before-1970.pcapng", "far-future.pcapng"] {
        let copy = folder.path().join(format!("{name}.pcap"));
        let found = folder.path().join(format!("found-{name}"));
        for arguments in [
            ["capture", "-r", text(&kind(name)), "-w", text(&copy)],
            ["find", text(&kind(name)), "-w", text(&found), "--force"],
        ] {
            let output = wirecap(&arguments);
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(
                !output.status.success() && error.contains("before 1970 or after 2554"),
                "{error}"
            );
        }
        let copy = folder.path().join(name);
        assert!(wirecap(&["capture", "-r", text(&kind(name)), "-w", text(&copy)]).status.success());
        assert_eq!(tcpdump(&copy, &["-q"]), tcpdump(&kind(name), &["-q"]), "{name}");
    }
}

/// Packets received and dropped.
type Counters = (Option<u64>, Option<u64>);

/// The texts of a file's options and blocks, and the counters of its interfaces.
fn contents(path: &Path) -> (BTreeSet<&'static str>, Vec<Counters>) {
    let bytes = fs::read(path).unwrap();
    let texts =
        ["section comment", "if comment", "CLIENT_RAN", "host.one", "a comment", "custom", "eth0"];
    let is_there = |text: &&str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    let texts = texts.into_iter().filter(is_there).collect();
    let mut reader = Reader::open(path).unwrap();
    let mut statistics = Vec::new();
    while let Some(element) = reader.next_element().unwrap() {
        if let Element::Block(block) = element {
            statistics.extend(
                block
                    .statistics()
                    .map(|(counts, _)| (counts.received, counts.dropped_by_interface)),
            );
        }
    }
    (texts, statistics)
}

#[test]
fn comments_secrets_names_statistics_and_custom_blocks_are_found_with_their_packets() {
    let folder = TempDir::new().unwrap();
    let full = folder.path().join("full.pcapng");
    fs::copy(kind("full.pcapng"), &full).unwrap();
    let found = folder.path().join("found.pcapng");
    for has_index in [false, true] {
        if has_index {
            assert!(wirecap(&["index", text(&full)]).status.success());
        }
        assert!(
            wirecap(&["find", text(&full), "udp", "-w", text(&found), "--force"]).status.success()
        );
        assert_eq!(contents(&found), contents(&full), "index: {has_index}");
        assert_eq!(contents(&found).0.len(), 7, "{:?}", contents(&found));
        assert_eq!(tcpdump(&found, &["-q"]), tcpdump(&full, &["-q"]));
        let packet_times = Reader::open(&found).unwrap().interfaces()[0].time_source.clone();
        assert!(packet_times.is_some(), "the packets have times");
    }
    // Nothing of files without matching packets.
    assert!(wirecap(&["find", text(&full), "tcp", "-w", text(&found), "--force"]).status.success());
    assert_eq!(data(&found).len(), 0);
    assert!(!contents(&found).0.contains("CLIENT_RAN"));
}

/// A UDP packet between these addresses.
fn udp(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend([from, to].concat());
    packet.extend([0, 53, 0, 53, 0, 8, 0, 0]);
    packet
}

#[test]
fn a_flow_is_found_in_any_link_type_that_carries_ip_and_others_are_named() {
    let folder = TempDir::new().unwrap();
    let wifi = [&[8, 1], &[0; 22][..], &[0xaa, 0xaa, 3, 0, 0, 0, 8, 0]].concat();
    let cases: [(u16, Vec<u8>); 12] = [
        (101, Vec::new()),
        (12, Vec::new()),
        (228, Vec::new()),
        (0, vec![2, 0, 0, 0]),
        (108, vec![0, 0, 0, 2]),
        (109, vec![2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (9, vec![0xff, 3, 0, 0x21]),
        (104, vec![0x0f, 0, 8, 0]),
        (105, wifi.clone()),
        (127, [&[0, 0, 8, 0, 0, 0, 0, 0], &wifi[..]].concat()),
        (192, [&[0, 0, 8, 0, 105, 0, 0, 0], &wifi[..]].concat()),
        (239, vec![2, 0, 0, 0, 32, 0, 9, 0]),
    ];
    let write = |link_type, header: &[u8]| {
        let path = folder.path().join(format!("{link_type}.pcapng"));
        let mut writer =
            Writer::new(FileSink::create(&path).unwrap(), Format::Pcapng, &Section::default());
        writer
            .add_interface(&Interface { link_type: LinkType(link_type), ..Interface::default() })
            .unwrap();
        for last in [2, 3, 2, 2] {
            let data = [header, &udp([10, 0, 0, 1], [10, 0, 0, last])].concat();
            let timestamp = Some(Timestamp::from_unix_nanos(1_700_000_000_000_000_000));
            writer
                .write(&Record {
                    timestamp,
                    wire_len: data.len() as u32,
                    data: &data,
                    ..Record::default()
                })
                .unwrap();
        }
        writer.finish().unwrap();
        path
    };
    let find =
        |path: &Path| wirecap(&["find", "--count", text(path), "--flow", "10.0.0.2:10.0.0.1.53"]);
    for (link_type, header) in cases {
        let path = write(link_type, &header);
        for has_index in [false, true] {
            if has_index {
                assert!(wirecap(&["index", text(&path)]).status.success());
            }
            let found = find(&path);
            assert_eq!(
                String::from_utf8_lossy(&found.stdout).trim(),
                "3",
                "{link_type}, index: {has_index}"
            );
        }
    }
    let usb = find(&write(189, &[0; 64]));
    let note = String::from_utf8_lossy(&usb.stderr);
    assert_eq!((String::from_utf8_lossy(&usb.stdout).trim(), usb.status.success()), ("0", true));
    assert!(note.contains("link type 189 are not dissected"), "{note}");
}

#[test]
fn a_directory_is_searched_with_the_directories_below_it() {
    let folder = TempDir::new().unwrap();
    fs::create_dir_all(folder.path().join("2026/11/29")).unwrap();
    for name in ["a.pcapng", "2026/b.pcapng", "2026/11/29/c.pcapng"] {
        fs::copy(kind("full.pcapng"), folder.path().join(name)).unwrap();
    }
    let found = wirecap(&["find", "--count", text(folder.path()), "udp"]);
    assert_eq!(String::from_utf8_lossy(&found.stdout).trim(), "6");
}
