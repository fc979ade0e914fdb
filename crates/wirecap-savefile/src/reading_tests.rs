//! Reading every type of block, and files with a single fault.

use std::io::Cursor;

use wirecap_savefile::{Direction, Format, LinkType, Part, ReadError, Reader};

use crate::order::{Big, Little};
use crate::packet::{Packet, read_all, read_rest, read_whole};

fn packet(nanos: u64, data: [u8; 4]) -> Packet {
    Packet { wire_len: 60, ..Packet::plain(nanos, &data) }
}

#[test]
fn pcap_of_every_magic_and_byte_order_is_read() {
    for order in [Little, Big] {
        for (magic, nanos, extra) in [
            (0xa1b2_c3d4, 5_000_007_000, 0),
            (0xa1b2_3c4d, 5_000_000_007, 0),
            (0xa1b2_cd34, 5_000_007_000, 8),
        ] {
            let packets =
                [order.words(&[5, 7, 4, 60]), vec![0xee; extra], vec![1, 2, 3, 4]].concat();
            let file = order.pcap(magic, 4, &packets.repeat(2));
            assert_eq!(
                read_whole(&file),
                vec![packet(nanos, [1, 2, 3, 4]); 2],
                "{order:?} {magic:x}"
            );
        }
    }
}

#[test]
fn pcap_before_version_2_4_has_its_lengths_in_reverse_order() {
    for (minor, first, second) in [(2, 60, 4), (3, 60, 4), (3, 4, 60), (4, 4, 60)] {
        let packets = [Big.words(&[5, 7, first, second]), vec![1, 2, 3, 4]].concat();
        let file = Big.pcap(0xa1b2_3c4d, minor, &packets);
        assert_eq!(read_whole(&file), [packet(5_000_000_007, [1, 2, 3, 4])], "version 2.{minor}");
    }
}

#[test]
fn a_pcap_file_knows_its_link_type_without_packets() {
    let mut reader = Reader::new(Cursor::new(Big.pcap(0xa1b2_c3d4, 4, &[]))).expect("it is whole");
    assert_eq!(reader.format(), Format::Pcap);
    assert_eq!(reader.interfaces()[0].link_type, LinkType::ETHERNET);
    assert_eq!(reader.interfaces()[0].snap_len, 65_535);
    assert!(reader.next_record().expect("it is whole").is_none());
}

#[test]
fn sections_of_either_byte_order_follow_each_other() {
    let mut file = Vec::new();
    for order in [Little, Big, Little] {
        file.extend(order.section());
        file.extend(order.interface(1, 0, &[]));
        file.extend(order.enhanced(5, [1, 2, 3, 4]));
    }
    let numbered = |interface| Packet { interface, ..packet(5000, [1, 2, 3, 4]) };
    assert_eq!(read_whole(&file), [numbered(0), numbered(1), numbered(2)]);
}

#[test]
fn an_interface_may_be_described_between_packets() {
    let second = Little.block(6, &Little.words(&[1, 0, 0, 0, 60]));
    let interface = Little.interface(101, 0, &[]);
    let file = [
        Little.section(),
        interface.clone(),
        Little.enhanced(5, [1, 2, 3, 4]),
        Little.block(0x0bad, &[1, 2, 3, 4]), // An unknown block.
        interface,
        second,
    ];
    let mut reader = Reader::new(Cursor::new(file.concat())).expect("it is whole");
    assert_eq!(reader.interfaces().len(), 1);

    let (packets, _) = read_rest(&mut reader);
    assert_eq!(packets.iter().map(|packet| packet.interface).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(reader.interfaces().len(), 2);
}

/// The time of a packet `ticks` after the epoch, on an interface with these options, as the reader
/// returns it.
fn time(options: &[u8], ticks: u64) -> Option<u64> {
    let file = [Big.section(), Big.interface(1, 0, options), Big.enhanced(ticks, [0; 4])].concat();
    read_whole(&file)[0].nanos
}

#[test]
fn ticks_of_every_length_become_nanoseconds() {
    let time = |tsresol: u8, ticks| time(&Big.option(9, &[tsresol]), ticks);
    assert_eq!(time(0, 3), Some(3_000_000_000));
    assert_eq!(time(6, 3), Some(3000));
    assert_eq!(time(9, u64::MAX), Some(u64::MAX));
    assert_eq!(time(12, 12_345), Some(12));
    assert_eq!(time(28, u64::MAX), Some(1));
    assert_eq!(time(127, u64::MAX), Some(0));
    assert_eq!(time(0x80, 3), Some(3_000_000_000));
    assert_eq!(time(0x80 | 32, 3 << 31), Some(1_500_000_000));
    assert_eq!(time(0xff, u64::MAX), Some(0));
}

#[test]
fn an_interface_without_a_resolution_counts_microseconds() {
    assert_eq!(time(&[], 1), Some(1000));
}

#[test]
fn a_clock_may_be_offset_by_seconds() {
    let time = |seconds: i64, ticks| time(&Big.option(14, &seconds.to_be_bytes()), ticks);
    assert_eq!(time(2, 1), Some(2_000_001_000));
    assert_eq!(time(-2, 2_000_001), Some(1000));
}

#[test]
fn a_time_outside_the_range_of_timestamps_is_none() {
    assert_eq!(time(&Big.option(14, &(-2_i64).to_be_bytes()), 1), None);
    assert_eq!(time(&Big.option(14, &i64::MAX.to_be_bytes()), u64::MAX), None);
    assert_eq!(time(&[], u64::MAX), None);
}

#[test]
fn a_simple_packet_is_as_long_as_the_first_interface_allows() {
    for (snap_len, len) in [(0, 6), (4, 4), (100, 6)] {
        let data =
            [vec![1, 2, 3, 4, 5, 6, 0, 0][..(len as usize).next_multiple_of(4)].to_vec()].concat();
        let block = Little.block(3, &[Little.u32(6), data].concat());
        let file = [Little.section(), Little.interface(1, snap_len, &[]), block].concat();
        let expected = Packet {
            nanos: None,
            wire_len: 6,
            ..Packet::plain(0, &[1, 2, 3, 4, 5, 6][..len as usize])
        };
        assert_eq!(read_whole(&file), [expected], "snap_len {snap_len}");
    }
}

#[test]
fn an_obsolete_packet_has_a_short_interface_number_and_flags() {
    let interface_and_drops = [Big.u16(1), Big.u16(9)].concat();
    let flags =
        [Big.option(2, &2_u32.to_be_bytes()), Big.option(6, &[0, 0, 0, 5]), vec![0; 4]].concat();
    let body = [interface_and_drops, Big.words(&[0, 5, 4, 60]), vec![1, 2, 3, 4], flags].concat();
    let interface = Big.interface(1, 0, &[]);
    let file = [Big.section(), interface.clone(), interface, Big.block(2, &body)].concat();
    let expected =
        Packet { interface: 1, direction: Some(Direction::Outbound), ..packet(5000, [1, 2, 3, 4]) };
    assert_eq!(read_whole(&file), [expected]);
}

#[test]
fn texts_need_not_be_utf_8_and_may_end_in_a_zero() {
    let options =
        [Big.option(2, b"eth0\0"), Big.option(3, &[b'a', 0xff]), Big.option(11, b"\0ip")].concat();
    let file = [Big.section(), Big.interface(1, 0, &options)].concat();
    let reader = Reader::new(Cursor::new(file)).expect("it is whole");
    let interface = &reader.interfaces()[0];
    assert_eq!(interface.name.as_deref(), Some("eth0"));
    assert_eq!(interface.description.as_deref(), Some("a\u{fffd}"));
    assert_eq!(interface.filter.as_deref(), Some("ip"));
}

#[test]
fn a_filter_in_bpf_code_is_not_a_text() {
    let file = [Big.section(), Big.interface(1, 0, &Big.option(11, &[1, 0, 6, 0, 0, 0, 0, 0, 0]))]
        .concat();
    assert_eq!(Reader::new(Cursor::new(file)).expect("it is whole").interfaces()[0].filter, None);
}

/// A file with one valid packet, followed by `tail`.
fn ending_in(tail: &[u8]) -> Vec<u8> {
    [&Little.section(), &Little.interface(1, 0, &[]), &Little.enhanced(5, [1, 2, 3, 4]), tail]
        .concat()
}

/// The offset of `tail` in the file of `ending_in`.
const TAIL: u64 = 28 + 20 + 36;

/// The text of the error after the valid packet.
fn error_after_a_packet(tail: &[u8]) -> String {
    let (packets, error) = read_all(Cursor::new(ending_in(tail)));
    assert_eq!(packets.len(), 1);
    error.expect("the tail is wrong").to_string()
}

#[test]
fn a_truncated_file_yields_the_packets_before_the_cut_and_its_offset() {
    let pcapng = ending_in(&Little.enhanced(6, [5, 6, 7, 8]));
    for len in TAIL as usize + 1..pcapng.len() {
        let (packets, error) = read_all(Cursor::new(pcapng[..len].to_vec()));
        assert_eq!(packets, [packet(5000, [1, 2, 3, 4])]);
        let Some(ReadError::Truncated { offset: TAIL, present, .. }) = error else {
            panic!("{error:?}")
        };
        assert_eq!(present, len - TAIL as usize);
    }

    let record = [Little.words(&[5, 7, 4, 60]), vec![1, 2, 3, 4]].concat();
    let pcap = Little.pcap(0xa1b2_3c4d, 4, &record.repeat(2));
    for len in 45..pcap.len() {
        let (packets, error) = read_all(Cursor::new(pcap[..len].to_vec()));
        assert_eq!(packets.len(), 1);
        let Some(ReadError::Truncated { offset: 44, present, .. }) = error else {
            panic!("{error:?}")
        };
        assert_eq!(present, len - 44);
    }
}

#[test]
fn a_truncated_packet_has_a_readable_error() {
    let cut = &Little.enhanced(6, [5, 6, 7, 8])[..30];
    assert_eq!(
        error_after_a_packet(cut),
        "the savefile ends inside a packet that begins at byte 84: 30 of 36 bytes are present"
    );
}

#[test]
fn the_error_of_a_block_has_its_offset() {
    let unequal = [Little.words(&[9, 16, 0]), Little.u32(20)].concat();
    let foreign = Little.block(6, &Little.words(&[1, 0, 0, 0, 0]));
    let too_long = Little.block(6, &Little.words(&[0, 0, 0, 9, 9, 0, 0]));
    let huge = Little.words(&[6, 0xffff_fff0, 0]);
    let odd = Little.words(&[6, 33, 0]);
    let cut_option = Little.block(1, &Little.words(&[1, 0, 0x0009_0002]));
    let newer = Little.block(0x0a0d_0d0a, &Little.words(&[0x1a2b_3c4d, 2, 0, 0]));
    let orderless = Little.block(0x0a0d_0d0a, &Little.words(&[0x1a2b_3c4e, 1, 0, 0]));

    for (tail, problem) in [
        (unequal, "a block has length 16 at its head and 20 at its end"),
        (foreign, "a block belongs to interface 1, but its section has 1 so far"),
        (too_long, "a block of type 0x6 is too short for its contents"),
        (
            huge,
            "a block of type 0x6 has length 4294967280: expected a multiple of 4 from 12 to 16777216",
        ),
        (odd, "a block of type 0x6 has length 33: expected a multiple of 4 from 12 to 16777216"),
        (cut_option, "a block of type 0x1 is too short for its contents"),
        (newer, "the section has pcapng version 2.0, not 1.0"),
        (orderless, "the section header has no byte-order magic"),
    ] {
        assert_eq!(
            error_after_a_packet(&tail),
            format!("malformed savefile: at byte {TAIL}, {problem}")
        );
    }
}

#[test]
fn a_packet_longer_than_the_limit_is_rejected_before_it_is_read() {
    let file = Little.pcap(0xa1b2_c3d4, 4, &Little.words(&[5, 7, 262_145, 262_145]));
    let (_, error) = read_all(Cursor::new(file));
    assert_eq!(
        error.expect("a packet of pcap is too long").to_string(),
        "malformed savefile: at byte 24, a packet has 262145 bytes; the maximum is 262144"
    );
}

#[test]
fn a_pcapng_packet_longer_than_the_limit_is_rejected() {
    for (len, is_rejected) in [(262_144, false), (262_145, true)] {
        let data = [Little.words(&[0, 0, 5, len, len]), vec![0; len.next_multiple_of(4) as usize]]
            .concat();
        let file = [Little.section(), Little.interface(1, 0, &[]), Little.block(6, &data)].concat();
        let (packets, error) = read_all(Cursor::new(file));
        assert_eq!(packets.len(), usize::from(!is_rejected), "packets of {len} bytes");

        let told = error.map(|error| error.to_string()).unwrap_or_default();
        let expected =
            if is_rejected { "a packet has 262145 bytes; the maximum is 262144" } else { "" };
        assert!(
            told.ends_with(expected) && told.is_empty() != is_rejected,
            "a packet of {len} bytes: {told}"
        );
    }
}

#[test]
fn a_section_has_its_own_interfaces() {
    let tail = [Big.section(), Big.enhanced(5, [0; 4])].concat();
    assert!(error_after_a_packet(&tail).contains("its section has 0 so far"));
}

#[test]
fn the_number_of_interfaces_is_bounded() {
    let file = [Little.section(), Little.interface(1, 0, &[]).repeat(65_537)].concat();
    let (_, error) = read_all(Cursor::new(file));
    let error = error.expect("they are too many").to_string();
    assert_eq!(
        error,
        "malformed savefile: at byte 1310748, the file has more than 65536 interfaces"
    );
}

#[test]
fn a_file_of_another_format_is_rejected_with_its_first_bytes() {
    let text = |file: &'static [u8]| Reader::new(file).expect_err("it is no savefile").to_string();
    assert_eq!(text(b""), "the savefile is empty");
    assert!(text(b"ELF").contains("3 of 4 bytes"));
    assert_eq!(
        text(b"\x7fELF and more"),
        "neither pcapng nor pcap, compressed or not: it begins with 7f 45 4c 46"
    );
    assert!(text(b"a text").ends_with("it begins with 61 20 74 65, which is text"));
    assert_eq!(
        text(b"\xfd7zXZ\0\0\0"),
        "compressed by xz, which wirecap does not read: decompress it first, xz -d"
    );
    assert!(text(b"\xd4\xc3\xb2\xa1\x02\0\x04\0").contains("8 of 24 bytes"));
    assert!(
        Reader::open("no/such/file")
            .expect_err("it is not there")
            .to_string()
            .contains("no/such/file")
    );
}

#[test]
fn an_unknown_pcap_version_is_rejected() {
    let error =
        Reader::new(Cursor::new(Little.pcap(0xa1b2_c3d4, 5, &[]))).expect_err("it is too new");
    assert!(error.to_string().contains("pcap version 2.5"), "{error}");
}

#[test]
fn reserved_bits_are_rejected_and_the_length_of_a_check_sequence_is_read() {
    for (link_type, fcs_len) in
        [(0, None), (1 << 26, Some(0)), (1 << 26 | 2 << 28, Some(4)), (2 << 28, None)]
    {
        let head = [Little.u32(0xa1b2_c3d4), Little.u16(2), Little.u16(4)].concat();
        let file = [head, Little.words(&[0, 0, 65_535, 1 | link_type])].concat();
        let reader = Reader::new(Cursor::new(file.clone())).expect("it is whole");
        assert_eq!(reader.interfaces()[0].fcs_len, fcs_len, "{link_type:#x}");

        for bit in 16..26 {
            let mut file = file.clone();
            file.splice(20.., Little.u32(1 | link_type | 1 << bit));
            let error = Reader::new(Cursor::new(file)).expect_err("a bit is reserved").to_string();
            assert!(error.contains("reserved bits"), "{error}");
        }
    }
}

#[test]
fn sections_of_version_1_0_and_1_2_are_read() {
    for (major, minor) in [(1, 0), (1, 1), (1, 2), (1, 3), (0, 0), (2, 0)] {
        let version = [Big.u16(major), Big.u16(minor)].concat();
        let section =
            Big.block(0x0a0d_0d0a, &[Big.u32(0x1a2b_3c4d), version, vec![0xff; 8]].concat());
        let file = [section, Big.interface(1, 0, &[]), Big.enhanced(5, [1, 2, 3, 4])].concat();
        let is_read = Reader::new(Cursor::new(file)).is_ok();
        assert_eq!(is_read, [(1, 0), (1, 2)].contains(&(major, minor)), "{major}.{minor}");
    }
}

#[test]
fn texts_of_a_hostile_file_take_little_memory() {
    let long = Little.option(2, &[b'n'; 65_535]);
    let options = [long, Little.option(3, &[0xff; 65_535]), Little.option(0, &[])].concat();
    let interface = Little.interface(1, 0, &options);
    let file =
        [Little.section(), interface.repeat(2000), Little.enhanced(5, [1, 2, 3, 4])].concat();
    let mut reader = Reader::new(Cursor::new(file)).expect("it is well-formed");
    assert!(reader.next_record().expect("it is well-formed").is_some());
    assert_eq!(reader.interfaces().len(), 2000);

    let texts = reader.interfaces().iter().flat_map(|known| [&known.name, &known.description]);
    let bytes: Vec<usize> = texts.flatten().map(String::capacity).collect();
    assert!(
        bytes.iter().all(|len| *len <= 16 << 10) && bytes.iter().sum::<usize>() <= 16 << 20,
        "{bytes:?}"
    );
    assert_eq!(
        reader.interfaces()[0].name.as_deref(),
        Some(&*"n".repeat(16 << 10)),
        "the first are kept"
    );
}

#[test]
fn parts_are_returned_with_their_bytes_and_offsets() {
    for order in [Little, Big] {
        let unknown = order.block(0x0bad, &[1, 2, 3, 4]);
        let packet = order.enhanced(5, [1, 2, 3, 4]);
        let parts =
            [order.section(), order.interface(1, 0, &[]), packet.clone(), unknown.clone(), packet];
        let mut reader = Reader::from_start(Cursor::new(parts.concat())).expect("it is whole");
        let mut offset = 0;
        let mut blocks = Vec::new();

        for part in &parts {
            assert_eq!(reader.offset(), offset);
            offset += part.len() as u64;
            match reader.next_part().expect("it is whole").expect("there is another part") {
                Part::Packet(record) => {
                    assert_eq!((record.data, record.wire_len), (&[1, 2, 3, 4][..], 60));
                }
                Part::Block(bytes) => blocks.push(bytes.to_vec()),
            }
        }

        assert_eq!(blocks, [&parts[0], &parts[1], &unknown].map(Vec::clone));
        assert!(reader.next_part().expect("it is whole").is_none());
        assert_eq!((reader.offset(), reader.format()), (offset, Format::Pcapng));

        let text = format!("{reader:?}");
        assert!(text.contains("Pcapng") && text.contains("interfaces: 1"), "{text}");
    }
}

#[test]
fn a_file_that_has_grown_is_read_on_after_its_end() {
    struct Growing(std::sync::mpsc::Receiver<u8>);

    impl std::io::Read for Growing {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            Ok(to.iter_mut().zip(self.0.try_iter()).map(|(to, byte)| *to = byte).count())
        }
    }

    let append = |to: &std::sync::mpsc::Sender<u8>, bytes: &[u8]| {
        bytes.iter().for_each(|byte| to.send(*byte).expect("it is open"));
    };
    let (write, file) = std::sync::mpsc::channel();
    append(&write, &[Little.section(), Little.interface(1, 0, &[])].concat());

    let mut reader = Reader::new(Growing(file)).expect("it is whole");
    assert!(reader.next_record().expect("it is whole").is_none());

    let packet = Little.enhanced(5, [1, 2, 3, 4]);
    append(&write, &packet[..20]);
    assert!(matches!(reader.next_record(), Err(ReadError::Truncated { .. })));
    append(&write, &packet[20..]);
    assert_eq!(reader.next_record().expect("it is whole").map(|record| record.data.len()), Some(4));
}

#[cfg(feature = "compressed")]
#[test]
fn a_compressed_file_has_the_same_packets() {
    use std::io::Write;

    let file =
        [Little.section(), Little.interface(1, 0, &[]), Little.enhanced(5, [1, 2, 3, 4])].concat();
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).expect("memory takes everything");
        encoder.finish().expect("memory takes everything")
    };

    let (first, second) = file.split_at(40);
    let zstandard = zstd::encode_all(&file[..], 1).expect("memory takes everything");
    for compressed in [gzip(&file), [gzip(first), gzip(second)].concat(), zstandard] {
        assert_eq!(read_whole(&compressed), read_whole(&file));
    }
}
