//! The bodies of the fuzz targets, for arbitrary bytes; the tests in `mutated` run them on the
//! stored corpus.

use std::io::{self, Cursor, Read};

use wirecap_savefile::{Format, Reader, Section, StreamSink, Writer};

use crate::packet::{Packet, read_rest, read_whole};

/// Reads a file of arbitrary bytes. Its end must be permanent, and its packets must not change when
/// they are written and read again.
pub(crate) fn read_compressed(file: &[u8]) {
    if let Ok(reader) = Reader::new(Cursor::new(file.to_vec())) {
        read_to_the_end(reader);
    }
}

/// Like [`read_compressed`]; in addition, the result must not depend on the lengths of the reads.
/// (For a compressed file it may: how much a decompressor returns before an error depends on them.)
fn read_plain(file: &[u8]) {
    let at_once = Reader::new(Cursor::new(file.to_vec()));
    let bit_by_bit = Reader::new(Dribble { bytes: Cursor::new(file.to_vec()), calls: 0 });
    match (at_once, bit_by_bit) {
        (Ok(at_once), Ok(bit_by_bit)) => {
            assert!(
                read_to_the_end(at_once) == read_to_the_end(bit_by_bit),
                "bit by bit it differs"
            );
        }
        (Err(error), Err(again)) => assert_eq!(error.to_string(), again.to_string()),
        (at_once, bit_by_bit) => panic!("{at_once:?} at once, {bit_by_bit:?} bit by bit"),
    }
}

fn read_to_the_end(mut reader: Reader) -> (Vec<Packet>, Option<String>) {
    let (packets, end) = read_rest(&mut reader);
    let end = end.map(|error| error.to_string());
    let (more, end_again) = read_rest(&mut reader);
    assert!(more.is_empty(), "{} packets after the end", more.len());
    assert_eq!(end, end_again.map(|error| error.to_string()), "an end must stay");
    assert!(
        read_whole(&written(&reader, &packets)) == as_written(&packets),
        "written again it differs"
    );
    (packets, end)
}

/// Reads these bytes with the first four replaced by a pcap magic number.
pub(crate) fn read_pcap(bytes: &[u8]) {
    let magics = [0xa1b2_c3d4_u32, 0xa1b2_3c4d, 0xa1b2_cd34];
    let Some(choice) = bytes.first().copied().map(usize::from) else { return };
    let magic = magics[choice / 2 % magics.len()];
    let mut file = bytes.to_vec();
    put(&mut file, 0, if choice % 2 == 0 { magic.to_le_bytes() } else { magic.to_be_bytes() });
    read_plain(&file);
}

/// Reads these bytes with the first four replaced by the type of a pcapng section header; then
/// again with each block's trailing length set to its leading length.
pub(crate) fn read_pcapng(bytes: &[u8]) {
    let mut file = bytes.to_vec();
    put(&mut file, 0, 0x0a0d_0d0a_u32.to_le_bytes());
    read_plain(&file);
    let mut at = 0;
    while let Some(len) = file.get(at + 4..at + 8) {
        let len: [u8; 4] = len.try_into().expect("four bytes");
        let size = match is_big_endian(bytes) {
            true => u32::from_be_bytes(len),
            false => u32::from_le_bytes(len),
        };
        let Some(end) = at.checked_add(size as usize).filter(|end| *end >= at + 12) else { break };
        put(&mut file, end - 4, len);
        at = end;
    }
    read_plain(&file);
}

fn is_big_endian(file: &[u8]) -> bool {
    file.get(8) == Some(&0x1a)
}

/// Replaces four bytes, if the file is long enough.
fn put(file: &mut [u8], at: usize, bytes: [u8; 4]) {
    if let Some(place) = file.get_mut(at..at + 4) {
        place.copy_from_slice(&bytes);
    }
}

fn written(reader: &Reader, packets: &[Packet]) -> Vec<u8> {
    let sink = StreamSink::new(Vec::new(), "memory");
    let mut writer = Writer::new(sink, Format::Pcapng, &Section::default());
    for interface in reader.interfaces() {
        writer.add_interface(interface).expect("memory takes everything");
    }
    for packet in packets.iter().filter(|packet| can_be_written(packet)) {
        writer.write(&packet.record()).expect("memory takes everything");
    }
    writer.finish().expect("memory takes everything").into_inner()
}

fn can_be_written(packet: &Packet) -> bool {
    packet.data.len() <= wirecap_savefile::PACKET_BYTES_MAX as usize
}

/// The packets as read back from a file that stores a time for each.
fn as_written(packets: &[Packet]) -> Vec<Packet> {
    let packets = packets.iter().filter(|packet| can_be_written(packet)).cloned();
    packets.map(|packet| Packet { nanos: packet.nanos.or(Some(0)), ..packet }).collect()
}

/// Returns a few bytes at a time, and sometimes an interrupted-call error.
struct Dribble {
    bytes: Cursor<Vec<u8>>,
    calls: usize,
}

impl Read for Dribble {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.calls += 1;
        if self.calls.is_multiple_of(5) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let len = buffer.len().min(1 + self.calls % 7);
        self.bytes.read(&mut buffer[..len])
    }
}
