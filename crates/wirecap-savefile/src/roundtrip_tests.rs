//! Packets and interfaces are the same after writing and reading, for generated captures.

use std::io::Cursor;

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use wirecap_savefile::Timestamp;
use wirecap_savefile::{
    Direction, Format, Interface, LinkType, Reader, Section, Statistics, StreamSink, Writer,
};

use crate::packet::{Packet, read_rest};

/// The input of a writer.
#[derive(Debug, Clone)]
struct Capture {
    section: Section,
    interfaces: Vec<Interface>,
    packets: Vec<Packet>,
    statistics: Vec<Statistics>,
    buffer_bytes: usize,
}

fn text() -> impl Strategy<Value = Option<String>> {
    of("[ -~äöü→]{1,40}")
}

fn section() -> impl Strategy<Value = Section> {
    (text(), text(), text(), text()).prop_map(|(application, os, hardware, comment)| Section {
        application,
        os,
        hardware,
        comment,
    })
}

fn interface() -> impl Strategy<Value = Interface> {
    let texts = (text(), text(), text(), text(), text(), of("[a-z]{5,9} clock"));
    (texts, any::<u16>(), any::<u32>(), of(0..16_u8)).prop_map(
        |(texts, link_type, snap_len, fcs_words)| {
            let fcs_len = fcs_words.map(|words| 2 * words);
            let (name, description, filter, hardware, os, time_source) = texts;
            let link_type = LinkType(link_type);

            Interface {
                name,
                description,
                filter,
                hardware,
                os,
                link_type,
                snap_len,
                fcs_len,
                time_source,
                other_options: Vec::new(),
            }
        },
    )
}

fn time() -> impl Strategy<Value = Option<Timestamp>> {
    of(any::<u64>()).prop_map(|nanos| nanos.map(Timestamp::from_unix_nanos))
}

prop_compose! {
    fn packet(interfaces: u32)(
        interface in 0..interfaces,
        nanos in any::<u64>(),
        queue in of(any::<u32>()),
        direction in prop_oneof![
            Just(None), Just(Some(Direction::Inbound)), Just(Some(Direction::Outbound))
        ],
        wire_len in any::<u32>(),
        data in vec(any::<u8>(), 0..300),
    ) -> Packet {
        Packet { interface, nanos: Some(nanos), queue, direction, wire_len, data }
    }
}

prop_compose! {
    fn statistics(interfaces: u32)(
        interface in 0..interfaces,
        times in (time(), time()),
        counts in vec(of(any::<u64>()), 5),
    ) -> Statistics {
        Statistics {
            interface,
            start: times.0,
            end: times.1,
            received: counts[0],
            dropped_by_interface: counts[1],
            accepted_by_filter: counts[2],
            dropped_by_os: counts[3],
            delivered: counts[4],
        }
    }
}

fn capture() -> impl Strategy<Value = Capture> {
    (section(), vec(interface(), 1..5)).prop_flat_map(|(section, interfaces)| {
        let count = interfaces.len() as u32;
        let items = (vec(packet(count), 0..40), vec(statistics(count), 0..4), 0..3000_usize);
        items.prop_map(move |(packets, statistics, buffer_bytes)| Capture {
            section: section.clone(),
            interfaces: interfaces.clone(),
            packets,
            statistics,
            buffer_bytes,
        })
    })
}

fn write(capture: &Capture, format: Format) -> Vec<u8> {
    let sink = StreamSink::new(Vec::new(), "memory");
    let mut writer = Writer::with_buffer(sink, format, &capture.section, capture.buffer_bytes);
    for interface in &capture.interfaces {
        writer.add_interface(interface).expect("it fits");
    }
    for packet in &capture.packets {
        writer.write(&packet.record()).expect("it fits");
    }
    for statistics in &capture.statistics {
        writer.statistics(statistics).expect("the interface is there");
    }
    writer.finish().expect("memory takes everything").into_inner()
}

proptest! {
    #[test]
    fn pcapng_keeps_everything(capture in capture()) {
        let mut reader = Reader::new(Cursor::new(write(&capture, Format::Pcapng))).expect("it is whole");
        let (packets, error) = read_rest(&mut reader);
        prop_assert!(error.is_none(), "{:?}", error);
        prop_assert_eq!(packets, capture.packets);
        prop_assert_eq!(reader.section(), &capture.section);
        prop_assert_eq!(reader.interfaces(), &capture.interfaces[..]);
        for index in 0..capture.interfaces.len() as u32 {
            let last = capture.statistics.iter().rfind(|statistics| statistics.interface == index);
            prop_assert_eq!(reader.statistics(index), last);
        }
    }

    #[test]
    fn pcap_keeps_times_lengths_and_data(mut capture in capture()) {
        capture.interfaces.truncate(1);
        capture.interfaces[0].snap_len = 400;

        for packet in &mut capture.packets {
            let nanos = packet.nanos.map(|nanos| nanos % (1_000_000_000 << 32));
            *packet = Packet { interface: 0, nanos, queue: None, direction: None, ..packet.clone() };
        }

        capture.statistics.clear();
        let mut reader = Reader::new(Cursor::new(write(&capture, Format::Pcap))).expect("it is whole");
        let (packets, error) = read_rest(&mut reader);
        prop_assert!(error.is_none(), "{:?}", error);
        prop_assert_eq!(packets, capture.packets);
        prop_assert_eq!(reader.interfaces()[0].link_type, capture.interfaces[0].link_type);
        prop_assert_eq!(reader.interfaces()[0].snap_len, 400);
    }
}
