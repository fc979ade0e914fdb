//! Conversions: what the copy contains, and what is counted as omitted.

use std::io::Cursor;

use wirecap_savefile::{Conversion, Converted, Format, Interface, LinkType, Reader, StreamSink};

use crate::order::{Big, Little, Order};
use crate::packet::{Packet, read_whole};

/// Copies the packets that `chooses` accepts. Returns the file and the numbers of omitted items.
fn convert(
    file: &[u8],
    format: Format,
    snap_len: u32,
    mut chooses: impl FnMut(usize) -> bool,
) -> (Vec<u8>, String) {
    let reader = Reader::from_start(Cursor::new(file.to_vec())).expect("it is a savefile");
    let mut conversion = Conversion::new(reader, StreamSink::new(Vec::new(), "memory"), format, snap_len);
    let mut number = 0;
    loop {
        let step = conversion.step(|_, _| {
            number += 1;
            chooses(number - 1)
        });
        if step.expect("it is whole") == Converted::End {
            break;
        }
    }
    let (writer, left_out) = conversion.finish().expect("memory takes everything");
    (writer.finish().expect("memory takes everything").into_inner(), left_out.to_string())
}

/// A packet with flags, a comment, an identifier and an option of an unknown type.
fn rich_packet(order: Order, ticks: u32, data: &[u8; 8]) -> Vec<u8> {
    let words = order.words(&[0, 0, ticks, 8, 60]);
    let options = [
        order.option(1, b"suspicious"),
        order.option(2, &order.u32(0x0001_0002)),
        order.option(5, &[1, 2, 3, 4, 5, 6, 7, 8]),
        order.option(2989, b"custom"),
        order.option(0, &[]),
    ];
    order.block(6, &[words, data.to_vec(), options.concat()].concat())
}

/// A section with texts, name resolution, secrets, statistics, and a block of an unknown type.
fn rich_section(order: Order) -> Vec<Vec<u8>> {
    let described = [
        order.option(1, b"first comment"),
        order.option(2, b"eth0"),
        order.option(3, b"uplink"),
        order.option(9, &[6]),
        order.option(1, b"second comment"),
        order.option(0, &[]),
    ];
    vec![
        order.section(),
        order.interface(1, 100, &described.concat()),
        order.block(4, &[order.u16(0), order.u16(0)].concat()),
        order.block(10, &[order.u32(0x544c_534b), order.u32(4), b"keys".to_vec()].concat()),
        rich_packet(order, 5, b"packet 0"),
        order.block(0x0bad_0bad, b"whatever"),
        rich_packet(order, 6, b"packet 1"),
        order.block(5, &order.words(&[0, 0, 6])),
    ]
}

#[test]
fn pcapng_to_pcapng_loses_nothing_of_either_byte_order() {
    let file = [rich_section(Little), rich_section(Big), rich_section(Little)].concat().concat();
    assert_eq!(convert(&file, Format::Pcapng, 0, |_| true), (file, String::new()));
}

#[test]
fn pcapng_to_pcapng_leaves_out_packets_and_nothing_else() {
    let (mut first, mut second) = (rich_section(Big), rich_section(Little));
    let file = [first.concat(), second.concat()].concat();
    let (copy, _) = convert(&file, Format::Pcapng, 0, |number| number == 1 || number == 2);
    first.remove(4);
    second.remove(6);
    assert_eq!(copy, [first.concat(), second.concat()].concat());
}

#[test]
fn packets_that_are_cut_keep_their_options() {
    for order in [Little, Big] {
        let simple = order.block(3, &[order.u32(8), b"simple 1".to_vec()].concat());
        let file = [rich_section(order).concat(), simple].concat();
        let (copy, _) = convert(&file, Format::Pcapng, 5, |_| true);
        let reader = Reader::new(Cursor::new(copy.clone())).expect("it is whole");
        assert_eq!(reader.interfaces()[0].snap_len, 5);
        let packets = read_whole(&copy);
        let data: Vec<&[u8]> = packets.iter().map(|packet| &*packet.data).collect();
        assert_eq!(data, [b"packe", b"packe", b"simpl"]);
        assert_eq!(packets.iter().map(|packet| packet.wire_len).collect::<Vec<_>>(), [60, 60, 8]);
        let comments = copy.windows(10).filter(|window| window == b"suspicious").count();
        assert_eq!(comments, 2, "{order:?}");
    }
}

#[test]
fn items_that_pcap_cannot_store_are_counted() {
    for order in [Little, Big] {
        let (copy, left_out) = convert(&rich_section(order).concat(), Format::Pcap, 0, |_| true);
        let packet = |nanos, data: &[u8]| Packet { wire_len: 60, ..Packet::plain(nanos, data) };
        assert_eq!(read_whole(&copy), [packet(5000, b"packet 0"), packet(6000, b"packet 1")]);
        let reader = Reader::new(Cursor::new(copy)).expect("it is whole");
        assert_eq!(reader.interfaces()[0].snap_len, 100);
        assert_eq!(
            left_out,
            "4 comments, 6 options of packets, 2 descriptions of interfaces and sections, 1 block of name resolution, \
             1 block of decryption secrets, 1 block of statistics, 1 block of another kind"
        );
    }
}

#[test]
fn pcap_keeps_snap_length_and_check_sequence_and_gets_no_name() {
    let head = [Big.u32(0xa1b2_c3d4), Big.u16(2), Big.u16(4)].concat();
    let header = [head, Big.words(&[0, 0, 96, 1 << 26 | 2 << 28 | 101])].concat();
    let file = [header, Big.words(&[5, 7, 4, 60]), vec![1, 2, 3, 4]].concat();
    for format in [Format::Pcapng, Format::Pcap] {
        let (copy, left_out) = convert(&file, format, 0, |_| true);
        assert_eq!(left_out, "");
        assert_eq!(
            read_whole(&copy),
            [Packet { wire_len: 60, ..Packet::plain(5_000_007_000, &[1, 2, 3, 4]) }]
        );
        let reader = Reader::new(Cursor::new(copy)).expect("it is whole");
        let expected =
            Interface { link_type: LinkType::RAW, snap_len: 96, fcs_len: Some(4), ..Interface::default() };
        let mut interface = reader.interfaces()[0].clone();
        interface.time_source = None;
        assert_eq!(interface, expected);
    }
}

#[test]
fn a_copy_without_packets_is_readable() {
    let pcap = Little.pcap(0xa1b2_c3d4, 4, &[]);
    let pcapng = rich_section(Little).concat();
    for (file, format) in [
        (&pcap, Format::Pcap),
        (&pcap, Format::Pcapng),
        (&pcapng, Format::Pcap),
        (&pcapng, Format::Pcapng),
        (&Little.section(), Format::Pcap),
    ] {
        let (copy, _) = convert(file, format, 0, |_| false);
        assert_eq!(read_whole(&copy), []);
        assert_eq!(Reader::new(Cursor::new(copy)).expect("it has a header").interfaces().len(), 1);
    }
}
