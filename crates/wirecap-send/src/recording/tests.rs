//! Compares frames made from recordings with the recorded packets.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use wirecap_savefile::{FileSink, Format, Interface, Record, Section, Writer};
use wirecap_testbed::traces;

use super::headers::{Fragment, Headers, Version, protocol, word};
use super::*;
use crate::play::Pace;
use crate::traffic::HashKey;

fn settings() -> Settings {
    Settings {
        rounds: Some(1),
        frames_max: u64::MAX,
        schedule: Schedule::new(Pace::Recorded(1.0), u64::MAX),
        rewrite: false,
        spread: None,
        destination_mac: None,
        own_mac: [2, 0, 0, 0, 0, 1],
        frame_bytes_max: 1514,
        cut: Cut::Pad,
        preload_bytes_max: 0,
    }
}

/// A savefile in a separate directory, which is removed with it.
struct Savefile {
    path: PathBuf,
    _directory: tempfile::TempDir,
}

/// Writes packets of this link type, each with its length on the wire, 1 ms after the one before.
fn savefile(link_type: LinkType, packets: &[(Vec<u8>, u32)]) -> Savefile {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("recording");
    let sink = FileSink::create(&path).unwrap();
    let mut writer = Writer::new(sink, Format::Pcapng, &Section::default());
    let interface = writer.add_interface(&Interface { link_type, ..Interface::default() }).unwrap();

    for (number, (data, wire_len)) in (1_u64..).zip(packets) {
        let timestamp = Some(Timestamp::from_unix_nanos(number * 1_000_000));
        writer
            .write(&Record { interface, timestamp, wire_len: *wire_len, data, ..Record::default() })
            .unwrap();
    }

    writer.finish().unwrap();
    Savefile { path, _directory: directory }
}

fn whole(packets: impl IntoIterator<Item = Vec<u8>>) -> Vec<(Vec<u8>, u32)> {
    packets.into_iter().map(|packet| (packet.clone(), packet.len() as u32)).collect()
}

/// All frames, each with its queue and its time.
fn frames(path: &Path, settings: Settings) -> (Vec<(Vec<u8>, u32, u64)>, Recording) {
    let mut recording = Recording::open(path, settings).unwrap();
    let mut frames = Vec::new();
    let mut batch = Batch::default();
    loop {
        batch.clear();
        recording.fill(&mut batch);
        if batch.is_empty() {
            return (frames, recording);
        }
        frames.extend(batch.iter().map(|frame| (frame.bytes.to_vec(), frame.queue, frame.due_ns)));
    }
}

/// The one's complement sum of words, which is 0xffff if they include a correct checksum.
fn sum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let total: u64 = words
        .map(|word| u64::from(u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)])))
        .sum();
    let mut total = total;
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// Which checksums of a complete datagram are correct: that of IP, and that of its payload.
fn checksums(frame: &[u8]) -> (Option<bool>, Option<bool>) {
    let Some(headers) = Headers::of(frame) else { return (None, None) };
    let network_bytes = headers.transport - headers.network;

    let (of_ip, payload_bytes) = match headers.version {
        Version::V4 => {
            let total = usize::from(word(frame, headers.network + 2).unwrap());
            let header = frame.get(headers.network..headers.transport);
            (header.map(|header| sum(&[header]) == 0xffff), total.checked_sub(network_bytes))
        }
        Version::V6 => {
            let total = usize::from(word(frame, headers.network + 4).unwrap()) + 40;
            (None, total.checked_sub(network_bytes))
        }
    };
    let covered = matches!(headers.protocol, protocol::TCP | protocol::UDP)
        || headers.protocol == protocol::ICMPV6 && headers.version == Version::V6;
    let payload =
        payload_bytes.and_then(|bytes| frame.get(headers.transport..headers.transport + bytes));
    let (Some(payload), true, Fragment::No, false) =
        (payload, covered, headers.fragment, headers.is_routed)
    else {
        return (of_ip, None);
    };
    if headers.protocol == protocol::UDP && word(payload, 6) == Some(0) {
        return (of_ip, None);
    }

    let (start, end) = headers.addresses();
    let length = (payload.len() as u32).to_be_bytes();
    let right = sum(&[&frame[start..end], &length, &[0, headers.protocol], payload]) == 0xffff;

    (of_ip, Some(right))
}

/// An Ethernet frame with a UDP datagram over IPv4, with correct checksums.
fn udp(source: [u8; 4], destination: [u8; 4], ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let udp_bytes = (8 + payload.len()) as u16;
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
    ip[2..4].copy_from_slice(&(20 + udp_bytes).to_be_bytes());
    ip.extend([source, destination].as_flattened());

    let checksum = !sum(&[&ip]);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());

    let mut datagram =
        [ports.0.to_be_bytes(), ports.1.to_be_bytes(), udp_bytes.to_be_bytes(), [0, 0]].concat();
    datagram.extend(payload);

    let checksum = match !sum(&[&ip[12..20], &[0, 17], &udp_bytes.to_be_bytes(), &datagram]) {
        0 => 0xffff,
        checksum => checksum,
    };
    datagram[6..8].copy_from_slice(&checksum.to_be_bytes());

    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3, 8, 0][..], &ip, &datagram].concat()
}

fn conversation() -> Vec<Vec<u8>> {
    let hosts = |number: u8| ([10, 1, 0, number], [192, 168, 7, 255 - number]);
    let both_ways = |number: u8| {
        let (client, server) = hosts(number);
        [
            udp(client, server, (4000 + u16::from(number), 53), b"question"),
            udp(server, client, (53, 4000 + u16::from(number)), b"an answer"),
        ]
    };
    (0..50).flat_map(both_ways).collect()
}

#[test]
fn replayed_frames_keep_bytes_and_times() {
    let packets = conversation();
    let file = savefile(LinkType::ETHERNET, &whole(packets.clone()));
    let (frames, recording) = frames(&file.path, settings());
    assert_eq!(frames.len(), packets.len());
    for (number, (frame, packet)) in (0..).zip(frames.iter().zip(&packets)) {
        assert_eq!(frame, &(packet.clone(), 0, number * 1_000_000));
    }
    let expected = Reading { packets: 100, frames: 100, rounds: 1, ..Reading::default() };
    assert_eq!(recording.reading(), expected);
    assert!(recording.into_error().is_none());
}

#[test]
fn rounds_have_other_addresses_and_right_checksums() {
    let file = savefile(LinkType::ETHERNET, &whole(conversation()));
    let (frames, recording) =
        frames(&file.path, Settings { rounds: Some(20), rewrite: true, ..settings() });
    assert_eq!((frames.len(), recording.reading().rounds), (2000, 20));

    let mut addresses = HashSet::new();

    for (frame, ..) in &frames {
        assert_eq!(checksums(frame), (Some(true), Some(true)), "{frame:02x?}");
        addresses.insert(frame[26..34].to_vec());
    }

    assert_eq!(addresses.len(), 2000);

    // Both directions of a connection still match.
    assert!(frames.chunks(2).all(|pair| pair[0].0[26..30] == pair[1].0[30..34]));
    assert!(frames.windows(2).all(|pair| pair[0].2 < pair[1].2));
}

#[test]
fn a_udp_datagram_without_checksum_stays_so_and_none_gets_lost() {
    let mut without = udp([10, 0, 0, 1], [10, 0, 0, 2], (1, 2), b"x");
    without[40..42].fill(0);
    // Some of these would have the checksum 0, which means that there is none.
    let others =
        (0..=u16::MAX).step_by(7).map(|port| udp([10, 0, 0, 1], [10, 0, 0, 2], (port, 2), b""));
    let file = savefile(LinkType::ETHERNET, &whole([without].into_iter().chain(others)));
    let (frames, _) = frames(&file.path, Settings { rounds: Some(2), rewrite: true, ..settings() });
    let of_round = frames.len() / 2;
    for (number, (frame, ..)) in frames.iter().enumerate() {
        let expected = (number % of_round != 0).then_some(true);
        assert_eq!(checksums(frame), (Some(true), expected), "{number}");
    }
}

#[test]
fn multicast_and_broadcast_addresses_are_not_rewritten() {
    let addresses = [[224, 0, 0, 251], [255, 255, 255, 255], [127, 0, 0, 1], [0, 0, 0, 0]];
    let packets = addresses.map(|address| udp([10, 0, 0, 1], address, (1, 2), b"all"));
    let file = savefile(LinkType::ETHERNET, &whole(packets));
    let (frames, _) = frames(&file.path, Settings { rounds: Some(2), rewrite: true, ..settings() });
    for ((frame, ..), address) in frames[4..].iter().zip(addresses) {
        assert_eq!(frame[30..34], address);
        assert_ne!(frame[26..30], [10, 0, 0, 1]);
        assert_eq!(checksums(frame), (Some(true), Some(true)));
    }
}

#[test]
fn flows_are_spread_as_a_nic_would_and_directions_stay_together_by_the_symmetric_key() {
    let file = savefile(LinkType::ETHERNET, &whole(conversation()));
    let queues = |key| {
        let (frames, _) =
            frames(&file.path, Settings { spread: Some(Rss::new(key, 4)), ..settings() });
        frames.into_iter().map(|(_, queue, _)| queue).collect::<Vec<_>>()
    };
    let standard = queues(HashKey::Standard);
    let symmetric = queues(HashKey::Symmetric);
    assert!(symmetric.chunks(2).all(|pair| pair[0] == pair[1]));
    assert!(standard.chunks(2).any(|pair| pair[0] != pair[1]));
    for queue in 0..4 {
        assert!(standard.contains(&queue) && symmetric.contains(&queue));
    }
}

#[test]
fn frames_that_cannot_be_sent_are_counted_by_reason() {
    let whole_frame = vec![0; 1514];
    let tagged = [&[0; 12][..], &[0x81, 0x00], &[0; 1504]].concat();
    let packets = [
        (vec![0; 13], 13),
        (vec![0; 1515], 1515),
        (tagged, 1518),
        (whole_frame, 1514),
        (vec![7; 60], 90),
    ];
    let file = savefile(LinkType::ETHERNET, &packets);
    let counts = |cut| frames(&file.path, Settings { cut, ..settings() }).1.reading();
    let skipped = Skipped { too_long: 1, too_short: 1, ..Skipped::default() };
    let read = Reading { packets: 5, frames: 3, padded: 1, skipped, rounds: 1 };
    assert_eq!(counts(Cut::Pad), read);
    assert_eq!(counts(Cut::Keep), Reading { padded: 0, ..read });

    let without_cut =
        Reading { frames: 2, padded: 0, skipped: Skipped { cut: 1, ..skipped }, ..read };
    assert_eq!(counts(Cut::Skip), without_cut);

    let (frames, _) = frames(&file.path, settings());
    assert_eq!(frames[2].0, [vec![7; 60], vec![0; 30]].concat());

    let other = savefile(LinkType(147), &packets);
    assert_eq!(super::tests::frames(&other.path, settings()).1.reading().skipped.link_type, 5);
}

#[test]
fn ip_without_a_header_gets_one() {
    let frame = udp([10, 0, 0, 1], [10, 0, 0, 2], (1, 2), b"x");
    let file = savefile(LinkType::RAW, &whole([frame[14..].to_vec()]));
    let (frames, _) = frames(&file.path, settings());
    let own = settings().own_mac;
    assert_eq!(frames[0].0, [&own[..], &own, &[8, 0], &frame[14..]].concat());
}

#[test]
fn a_recording_in_memory_gives_the_same_as_from_its_file() {
    let file = savefile(LinkType::ETHERNET, &whole(conversation()));
    let bytes = conversation().iter().map(Vec::len).sum();

    let read = |preload_bytes_max, rounds| {
        let settings =
            Settings { preload_bytes_max, rounds: Some(rounds), rewrite: true, ..settings() };
        let (frames, recording) = frames(&file.path, settings);
        (frames, recording.reading(), recording.into_error().map(|error| error.to_string()))
    };
    let from_file = read(0, 3);
    assert_eq!(from_file.0.len(), 300);
    assert!(read(bytes, 3) == from_file && read(bytes - 1, 3) == from_file);

    let whole = fs::read(&file.path).unwrap();
    fs::write(&file.path, &whole[..whole.len() - 10]).unwrap();

    let from_file = read(0, 3);
    assert!(from_file.2.is_some() && read(bytes, 3) == from_file);
}

#[test]
fn an_endless_loop_of_a_recording_without_frames_ends() {
    let file = savefile(LinkType::ETHERNET, &[(vec![0; 5], 5)]);
    let (frames, recording) = frames(&file.path, Settings { rounds: None, ..settings() });
    assert!(frames.is_empty());
    assert_eq!(recording.reading().rounds, 1);
}

#[test]
fn a_truncated_savefile_yields_its_packets_and_the_error() {
    let file = savefile(LinkType::ETHERNET, &whole(conversation()));
    let bytes = fs::read(&file.path).unwrap();
    fs::write(&file.path, &bytes[..bytes.len() - 10]).unwrap();
    let (frames, recording) = frames(&file.path, Settings { rounds: None, ..settings() });
    assert_eq!((frames.len(), recording.reading().packets), (99, 99));
    assert!(matches!(recording.into_error(), Some(ReadError::Truncated { .. })));
}

/// Correct checksums stay correct in later rounds, and wrong ones stay wrong.
#[test]
fn checksums_of_stored_traces_are_corrected() {
    let mut files = 0;
    let mut updated = 0;

    for path in traces() {
        let rounds = |rounds| {
            let settings = Settings { rounds: Some(rounds), rewrite: true, ..settings() };
            let recording = Recording::open(&path, settings.clone()).ok()?;
            drop(recording);
            Some(frames(&path, settings).0)
        };
        let Some(twice) = rounds(2) else { continue };
        let (first, second) = twice.split_at(twice.len() / 2);
        if twice.len() % 2 != 0 || first.len() != rounds(1).unwrap().len() {
            continue; // a file that ends in an error is not read twice
        }

        files += 1;

        for ((before, ..), (after, ..)) in first.iter().zip(second) {
            assert_eq!(checksums(before), checksums(after), "{}: {before:02x?}", path.display());
            updated += usize::from(before != after);
        }
    }

    assert!(files >= 15 && updated >= 500, "{updated} packets of {files} files");
}
