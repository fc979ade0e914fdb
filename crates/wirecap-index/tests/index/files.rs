//! Segments as a recording writes them: a sequence of pages, which are compressed or not.

use std::fs;
use std::path::{Path, PathBuf};

use wirecap_filter::FilterRequest;
use wirecap_index::{FindError, Outcome, Plan, Query, plan};
use wirecap_recorder::{CompressedSink, Compression};
use wirecap_savefile::{
    Format, Interface, LinkType, Reader, Record, Section, Sink, StreamSink, Timestamp, Writer,
};

/// A packet that owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Packet {
    pub(crate) nanos: u64,
    pub(crate) wire_len: u32,
    pub(crate) data: Vec<u8>,
}

impl Packet {
    pub(crate) fn record(&self) -> Record<'_> {
        let timestamp = Some(Timestamp::from_unix_nanos(self.nanos));
        Record { timestamp, wire_len: self.wire_len, data: &self.data, ..Record::default() }
    }
}

pub(crate) fn head(format: Format, link_type: LinkType) -> Vec<u8> {
    let mut writer =
        Writer::new(StreamSink::new(Vec::new(), "memory"), format, &Section::default());
    writer.add_interface(&Interface { link_type, ..Interface::default() }).unwrap();
    writer.finish().unwrap().into_inner()
}

/// Writes the packets as a segment, which is compressed in pages of this many bytes if its name
/// ends with .zst or .gz. A page is a frame, as earlier versions wrote it, if the name ends with
/// .frames.zst.
pub(crate) fn write_segment<'a>(
    path: &Path,
    packets: impl IntoIterator<Item = &'a Packet>,
    link_type: LinkType,
    page_bytes: usize,
) {
    let name = path.to_str().unwrap();
    let format = if name.contains(".pcap.") || name.ends_with(".pcap") {
        Format::Pcap
    } else {
        Format::Pcapng
    };
    let mut file = Vec::new();
    let mut page = head(format, link_type);
    let mut pages = (name.ends_with(".zst") && !name.ends_with(".frames.zst")).then(|| {
        let file = fs::File::create(path).unwrap();
        CompressedSink::new(file, name.to_owned(), Compression::Zstandard).unwrap()
    });
    let mut end_page = |page: &mut Vec<u8>, file: &mut Vec<u8>| {
        let frame = match () {
            () if pages.is_some() => {
                pages.as_mut().unwrap().append(page).unwrap();
                Vec::new()
            }
            () if name.ends_with(".zst") => zstd::bulk::compress(page, 1).unwrap(),
            () if name.ends_with(".gz") => {
                let mut encoder =
                    flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                std::io::Write::write_all(&mut encoder, page).unwrap();
                encoder.finish().unwrap()
            }
            () => page.clone(),
        };
        file.extend(frame);
        page.clear();
    };
    end_page(&mut page, &mut file);
    for packet in packets {
        let record = packet.record();
        let len = format.encoded_len(&record);
        if page.len() + len > page_bytes && !page.is_empty() {
            end_page(&mut page, &mut file);
        }
        let at = page.len();
        page.resize(at + len, 0);
        format.encode(&record, &mut page[at..]);
    }
    if !page.is_empty() {
        end_page(&mut page, &mut file);
    }
    match pages {
        Some(mut pages) => pages.end().unwrap(),
        None => fs::write(path, file).unwrap(),
    }
}

/// All packets of a file up to its end or the first error.
pub(crate) fn packets_of(path: &Path) -> Vec<Packet> {
    let mut packets = Vec::new();
    let Ok(mut reader) = Reader::open(path) else { return packets };
    while let Ok(Some(Record { timestamp, wire_len, data, .. })) = reader.next_record() {
        let nanos = timestamp.map_or(0, Timestamp::unix_nanos);
        packets.push(Packet { nanos, wire_len, data: data.to_vec() });
    }
    packets
}

/// Searches segments. Returns the packets found, the plan, and what was read.
pub(crate) fn find(segments: &[PathBuf], mut query: Query) -> (Vec<Packet>, Plan, Outcome) {
    let plan = plan(segments, &mut query, &mut |_| true).unwrap();
    let mut found = Vec::new();
    let outcome = plan.run(&mut query, &mut |_| true, &mut |packet| -> Result<bool, FindError> {
        let Record { timestamp, wire_len, data, .. } = packet.record;
        let nanos = timestamp.map_or(0, Timestamp::unix_nanos);
        found.push(Packet { nanos, wire_len, data: data.to_vec() });
        Ok(true)
    });
    (found, plan, outcome.unwrap())
}

pub(crate) fn query(expression: &str) -> Query {
    let filter = (!expression.is_empty()).then(|| FilterRequest::from(expression));
    Query::new(filter, None, None, None)
}

/// A UDP or TCP packet between two hosts of 10.0/16, with this many payload bytes.
pub(crate) fn ip_packet(
    nanos: u64,
    source: (u16, u16),
    destination: (u16, u16),
    tcp_flags: Option<u8>,
    payload: usize,
) -> Packet {
    let mut data = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let transport = if tcp_flags.is_some() { 20 } else { 8 };
    let total = (20 + transport + payload) as u16;
    data.extend([0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, if tcp_flags.is_some() { 6 } else { 17 }, 0, 0]);
    data[16..18].copy_from_slice(&total.to_be_bytes());
    for (host, _) in [source, destination] {
        let [high, low] = host.to_be_bytes();
        data.extend([10, 0, high, low]);
    }
    for (_, port) in [source, destination] {
        data.extend(port.to_be_bytes());
    }
    match tcp_flags {
        Some(flags) => data.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 4, 0, 0, 0, 0, 0]),
        None => data.extend([((8 + payload) as u16).to_be_bytes(), [0, 0]].concat()),
    }
    data.extend((0..payload).map(|byte| (byte as u8).wrapping_mul(37) ^ nanos as u8));
    Packet { nanos, wire_len: data.len() as u32, data }
}
