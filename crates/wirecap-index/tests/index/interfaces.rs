//! Packets of several interfaces in one savefile.

use std::error::Error;
use std::fs;

use wirecap_filter::FilterRequest;
use wirecap_index::{Disk, Query, ensure, plan};
use wirecap_savefile::{Format, LinkType, Reader, Record, Section, StreamSink, Timestamp, Writer};

use crate::files::{Packet, head, ip_packet, query, write_segment};

#[test]
fn interfaces_are_numbered_in_the_order_of_the_packets_found() {
    const SECOND: u64 = 1_000_000_000;
    let folder = tempfile::tempdir().unwrap();
    let packet =
        |second: u64, port: u16| ip_packet(second * SECOND, (1, 1000), (2, port), None, 20);
    // The first recording is read first, but its only match is later than that of the second
    // recording.
    let recordings: [(LinkType, Vec<Packet>); 2] = [
        (LinkType::ETHERNET, vec![packet(1, 80), packet(5, 53)]),
        (LinkType(276), vec![packet(3, 53), packet(4, 80)]),
    ];
    let mut paths = Vec::new();
    for (number, (link_type, packets)) in recordings.iter().enumerate() {
        let path = folder.path().join(format!("{number}.pcapng"));
        write_segment(&path, packets, *link_type, 10_000);
        paths.push(path);
    }
    let mut query = Query::new(None::<FilterRequest>, None, Some(2 * SECOND), None);
    let plan = plan(&paths, &mut query, &mut |_| true).unwrap();
    let file = folder.path().join("found.pcapng");
    let sink = StreamSink::new(std::fs::File::create(&file).unwrap(), "found");
    let writer = Writer::new(sink, Format::Pcapng, &Section::default());
    plan.extract::<_, Box<dyn Error>>(&Disk, &mut query, &mut |_| true, writer).unwrap();
    let mut reader = Reader::open(&file).unwrap();
    let mut found = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        found.push((record.timestamp.unwrap().unix_nanos() / SECOND, record.interface));
    }
    assert_eq!(found, [(3, 0), (4, 0), (5, 1)]);
    let link_types: Vec<LinkType> =
        reader.interfaces().iter().map(|interface| interface.link_type).collect();
    assert_eq!(link_types, [LinkType(276), LinkType::ETHERNET]);
}

/// A section with one packet.
fn small_section(number: u64) -> Vec<u8> {
    let mut file = head(Format::Pcapng, LinkType::ETHERNET);
    let data = [number as u8; 60];
    let timestamp = Some(Timestamp::from_unix_nanos(1_700_000_000_000_000_000 + number));
    let record = Record { timestamp, wire_len: 60, data: &data, ..Record::default() };
    let start = file.len();
    file.resize(start + Format::Pcapng.encoded_len(&record), 0);
    Format::Pcapng.encode(&record, &mut file[start..]);
    file
}

/// A segment of many sections, as after `cat` of many files: what others require is read once, not
/// for each of them.
#[test]
fn sections_in_the_middle_of_a_segment_are_read_once() {
    const SECTIONS: u64 = 300;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sections.pcapng");
    let file: Vec<u8> = (0..SECTIONS).flat_map(small_section).collect();
    fs::write(&path, &file).unwrap();
    ensure(&path, &mut |_| true).unwrap();
    let mut query = query("");
    let planned = plan(&[path], &mut query, &mut |_| true).unwrap();
    let mut found = Vec::new();
    let outcome = planned
        .run(&mut query, &mut |_| true, &mut |packet| {
            found.push(packet.record.data[0]);
            Ok::<bool, wirecap_index::FindError>(true)
        })
        .unwrap();
    assert_eq!(found, (0..SECTIONS).map(|number| number as u8).collect::<Vec<_>>());
    let read = outcome.read_bytes;
    let len = file.len() as u64;
    assert!(read <= 2 * len, "{read} bytes were read of a file of {len}");
}
