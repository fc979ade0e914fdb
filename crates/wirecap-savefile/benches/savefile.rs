//! The cost of writing a packet to a savefile and of reading one, in ns per packet and GB/s.
//!
//! `cargo bench -p wirecap-savefile` runs everything. For callgrind, `... -- pcapng 60 1000000`
//! writes one million packets of 60 bytes, and `... -- read pcapng 60 1000000` reads them.
//!
//! The sink counts bytes and discards them, and the files are in memory, so only wirecap is
//! measured. The baseline is the minimum work of a writer: one copy of the data into a buffer.

use std::env;
use std::hint::black_box;
use std::io::{self, Cursor};
use std::sync::Arc;
use std::time::{Duration, Instant};

use wirecap_savefile::{
    Format, Interface, Reader, Record, Section, Sink, StreamSink, Timestamp, Writer,
};

const PACKETS: u64 = 2_000_000;
const FILE_PACKETS: u64 = 20_000;
const ROUNDS: usize = 7;
const LENGTHS: [usize; 3] = [60, 512, 1500];
/// Packets are read from a buffer of this size, like the cells of a chunk.
const SOURCE_BYTES: usize = 256 * 2048;

#[derive(Default)]
struct CountingSink(u64);

impl Sink for CountingSink {
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += black_box(bytes).len() as u64;
        Ok(bytes.len())
    }

    fn take_back(&mut self, _byte_count: usize) -> io::Result<bool> {
        Ok(false)
    }

    fn name(&self) -> String {
        "nowhere".into()
    }
}

/// The packets of a chunk, each in a cell of 2 KiB.
fn packets(source: &[u8], len: usize, count: u64) -> impl Iterator<Item = (u64, &[u8])> {
    let cells = (source.len() / 2048) as u64;
    (0..count).map(move |index| (index, &source[(index % cells) as usize * 2048..][..len]))
}

fn write_packets(format: Format, source: &[u8], len: usize, count: u64, queue: Option<u32>) -> u64 {
    let mut writer = Writer::new(CountingSink::default(), format, &Section::default());
    let interface = writer.add_interface(&Interface::default()).expect("the sink takes everything");
    for (index, data) in packets(source, len, count) {
        let record = Record {
            interface,
            timestamp: Some(Timestamp::from_unix_nanos(1_700_000_000_000_000_000 + index)),
            queue,
            wire_len: len as u32,
            data,
            ..Record::default()
        };
        writer.write(black_box(&record)).expect("the sink takes everything");
    }
    let expected = writer.file_bytes();
    let packets = writer.packets();
    let sink = writer.finish().expect("the sink takes everything");
    assert_eq!((sink.0, packets), (expected, count), "the writer lost bytes or packets");
    sink.0
}

fn copy_packets(source: &[u8], len: usize, count: u64) -> u64 {
    let mut buffer = vec![0u8; 1 << 20];
    let mut at = 0;
    for (_, data) in packets(source, len, count) {
        if buffer.len() - at < len {
            black_box(&buffer[..at]);
            at = 0;
        }
        buffer[at..at + len].copy_from_slice(black_box(data));
        at += len;
    }
    count * len as u64
}

/// A file of [`FILE_PACKETS`] packets in memory.
fn file_of(format: Format, source: &[u8], len: usize) -> Arc<[u8]> {
    let mut writer =
        Writer::new(StreamSink::new(Vec::new(), "memory"), format, &Section::default());
    let interface = writer.add_interface(&Interface::default()).expect("memory takes everything");
    for (_, data) in packets(source, len, FILE_PACKETS) {
        let record =
            Record { interface, queue: Some(3), wire_len: len as u32, data, ..Record::default() };
        writer.write(&record).expect("memory takes everything");
    }
    writer.finish().expect("memory takes everything").into_inner().into()
}

/// Reads the file repeatedly until `count` packets were read.
fn read_packets(file: &Arc<[u8]>, count: u64) -> u64 {
    let mut read = 0;
    for _ in 0..count / FILE_PACKETS {
        let mut reader = Reader::new(Cursor::new(Arc::clone(file))).expect("it is our own file");
        while let Some(record) = reader.next_record().expect("it is our own file") {
            black_box(record);
            read += 1;
        }
    }
    assert_eq!(read, count, "the reader lost packets");
    file.len() as u64 * (count / FILE_PACKETS)
}

fn report(name: &str, len: usize, run: impl Fn() -> u64) {
    let mut times: Vec<(Duration, u64)> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            let bytes = run();
            (start.elapsed(), bytes)
        })
        .collect();
    times.sort();
    let ns = |round: usize| times[round].0.as_nanos() as f64 / PACKETS as f64;
    let median = ns(ROUNDS / 2);
    let bytes = times[0].1;
    println!(
        "{name:<14} {len:>5} B  {median:>7.2} ns/packet ({:.2}-{:.2})  {:>6.2} GB/s",
        ns(0),
        ns(ROUNDS - 1),
        bytes as f64 / PACKETS as f64 / median
    );
}

fn main() {
    let source = vec![0x5a; SOURCE_BYTES];
    let arguments: Vec<String> =
        env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [task @ .., format, len, count] = arguments.as_slice() {
        let format = if format == "pcap" { Format::Pcap } else { Format::Pcapng };
        let [len, count] = [len, count].map(|number| number.parse().expect("a number"));
        match task {
            [] => write_packets(format, &source, len, count as u64, Some(3)),
            _ => read_packets(&file_of(format, &source, len), count as u64),
        };
        return;
    }
    for len in LENGTHS {
        report("copy only", len, || copy_packets(&source, len, PACKETS));
        report("pcap", len, || write_packets(Format::Pcap, &source, len, PACKETS, None));
        report("pcapng", len, || write_packets(Format::Pcapng, &source, len, PACKETS, None));
        report("pcapng, queue", len, || {
            write_packets(Format::Pcapng, &source, len, PACKETS, Some(3))
        });
        for (name, format) in [("read pcap", Format::Pcap), ("read pcapng", Format::Pcapng)] {
            let file = file_of(format, &source, len);
            report(name, len, || read_packets(&file, PACKETS));
        }
    }
}
