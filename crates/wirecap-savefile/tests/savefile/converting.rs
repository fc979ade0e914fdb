//! Conversions: what the copy contains, and what is counted as omitted.

use std::io::Cursor;

use wirecap_savefile::{
    Conversion, ConversionError, Converted, FileSink, Format, Interface, LinkType,
    PACKET_BYTES_MAX, Reader, StreamSink, WriteError,
};

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
    let mut conversion =
        Conversion::new(reader, StreamSink::new(Vec::new(), "memory"), format, snap_len);
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
    let mut first = rich_section(Big);
    let mut second = rich_section(Little);
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
        let expected = Interface {
            link_type: LinkType::RAW,
            snap_len: 96,
            fcs_len: Some(4),
            ..Interface::default()
        };
        let mut interface = reader.interfaces()[0].clone();
        interface.time_source = None;
        assert_eq!(interface, expected);
    }
}

/// What tcpdump and tshark make of files with packets longer than their snapshot length: tcpdump
/// truncates those of pcap, tshark keeps all bytes.
#[test]
fn packets_longer_than_the_snap_length_of_their_file_are_copied_whole() {
    let long = [vec![0; 55], vec![1; 70]];
    let pcap =
        [Little.u32(0xa1b2_3c4d), Little.u16(2), Little.u16(4), Little.words(&[0, 0, 48, 1])]
            .concat();
    let records = long.iter().flat_map(|data| {
        let len = data.len() as u32;
        [Little.words(&[5, 7, len, len]), data.clone()].concat()
    });
    let pcap: Vec<u8> = pcap.into_iter().chain(records).collect();
    let packet = |number, data: &[u8]| {
        let len = data.len() as u32;
        let padding = vec![0; data.len().next_multiple_of(4) - data.len()];
        Little.block(6, &[Little.words(&[number, 0, 5, len, len]), data.to_vec(), padding].concat())
    };
    let pcapng = [
        Little.section(),
        Little.interface(1, 50, &[]),
        packet(0, &long[0]),
        Little.interface(1, 100, &[]),
        packet(1, &long[1]),
    ];
    for file in [pcap, pcapng.concat()] {
        for format in [Format::Pcap, Format::Pcapng] {
            let (copy, _) = convert(&file, format, 0, |_| true);
            let data: Vec<Vec<u8>> =
                read_whole(&copy).into_iter().map(|packet| packet.data).collect();
            assert_eq!(data, long, "{format:?}");
            let snap_len =
                Reader::new(Cursor::new(copy)).expect("it is whole").interfaces()[0].snap_len;
            let expected = match (file[0] == 0x4d, format) {
                (true, Format::Pcap) => 48,
                (false, Format::Pcapng) => 50,
                _ => PACKET_BYTES_MAX,
            };
            assert_eq!(snap_len, expected, "{format:?}");
            let (copy, _) = convert(&file, format, 50, |_| true);
            let lengths: Vec<usize> =
                read_whole(&copy).iter().map(|packet| packet.data.len()).collect();
            assert_eq!(lengths, [50, 50], "{format:?}");
        }
    }
}

/// The file states its snapshot length at its beginning, and the longer packet comes after the
/// buffer was written.
#[test]
fn the_snap_length_of_a_long_copy_is_raised_for_a_late_packet() {
    let header =
        [Little.u32(0xa1b2_3c4d), Little.u16(2), Little.u16(4), Little.words(&[0, 0, 1000, 1])]
            .concat();
    let short = [Little.words(&[5, 7, 1000, 1000]), vec![0; 1000]].concat();
    let long = [Little.words(&[5, 7, 2000, 2000]), vec![1; 2000]].concat();
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    for has_long in [false, true] {
        let last = if has_long { &long } else { &short };
        let file = [&header[..], &short.repeat(3000), last].concat();
        let path = folder.path().join(format!("copy-{has_long}"));
        let reader = Reader::from_start(Cursor::new(file.clone())).expect("it is a savefile");
        let sink = FileSink::create(&path).expect("the folder is empty");
        let mut conversion = Conversion::new(reader, sink, Format::Pcapng, 0);
        while conversion.step(|_, _| true).expect("it is whole") != Converted::End {}
        conversion.finish().and_then(|(writer, _)| writer.finish()).expect("the disk has room");
        let limit = if has_long { PACKET_BYTES_MAX } else { 1000 };
        assert_eq!(Reader::open(&path).expect("it is a savefile").interfaces()[0].snap_len, limit);
        // What a stream has passed on cannot be changed.
        let (stream, _) = convert(&file, Format::Pcapng, 0, |_| true);
        let reader = Reader::new(Cursor::new(stream.clone())).expect("it is a savefile");
        assert_eq!(reader.interfaces()[0].snap_len, PACKET_BYTES_MAX);
        assert_eq!(read_whole(&stream).len(), 3001);
        assert!(read_whole(&stream) == read_whole(&std::fs::read(&path).expect("it is there")));
    }
}

/// libpcap ignores the options of packets.
#[test]
fn a_packet_with_an_invalid_option_is_read() {
    for order in [Little, Big] {
        // An option of a hundred bytes in a block that has eight left.
        let options = [order.u16(1), order.u16(100), vec![b'x'; 4]].concat();
        let bad =
            order.block(6, &[order.words(&[0, 0, 5, 4, 4]), b"data".to_vec(), options].concat());
        let file = [order.section(), order.interface(1, 0, &[]), bad.clone(), bad].concat();
        let (copy, _) = convert(&file, Format::Pcap, 0, |_| true);
        assert_eq!(read_whole(&copy).len(), 2, "{order:?}");
        assert_eq!(convert(&file, Format::Pcapng, 0, |_| true).0, file, "{order:?}");
    }
}

#[test]
fn a_time_that_the_copy_cannot_hold_is_an_error() {
    for seconds in [-100, 0x7fff_ffff_ffff_i64] {
        let interface =
            Little.interface(1, 0, &Little.option(14, &Little.u64(seconds.cast_unsigned())));
        let packet = Little.block(6, &[Little.words(&[0, 0, 5, 4, 4]), b"data".to_vec()].concat());
        let file = [Little.section(), interface, packet].concat();
        let reader = Reader::from_start(Cursor::new(file.clone())).expect("it is a savefile");
        let sink = StreamSink::new(Vec::new(), "memory");
        let mut conversion = Conversion::new(reader, sink, Format::Pcap, 0);
        let outcome = loop {
            match conversion.step(|_, _| true) {
                Ok(Converted::End) => break Ok(()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        let expected = matches!(outcome, Err(ConversionError::Write(WriteError::TimeOutOfRange)));
        assert!(expected, "{seconds}: {outcome:?}");
        assert_eq!(
            convert(&file, Format::Pcapng, 0, |_| true).0,
            file,
            "the copy by block has the same times"
        );
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
