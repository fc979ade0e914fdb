//! Ways to bring packets from the cells of a pool into a file in memory: the work that no recorder
//! can avoid, and the recorder itself. CPU time of this process per packet, medians of rounds in
//! turns. `WIRECAP_WAYS_DIR`: a directory in memory (tmpfs), /dev/shm by default.
//!
//! The packets are in cells of 2 KiB, together larger than the processor's caches, as after a
//! burst. `written` writes as many bytes from a page that stays in the cache: the kernel's part,
//! which every recorder has. `copied` is the recorder's way: copy packets to a page of 256 KiB,
//! write the page. `mapped` copies them to mapped pages of the file, which the kernel allocates in
//! advance (`MADV_POPULATE_WRITE`). `gathered` lets the kernel copy from the cells (writev).
//! `recorded` is a [`Recording`], with its thread for the disk.

#![allow(unsafe_code)] // mmap, and prefetching

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::path::Path;
use std::ptr;
use std::slice;
use std::time::Duration;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::time::{ClockId, clock_gettime};
use wirecap_recorder::{
    Compression, CutRules, Durability, Recording, Settings, StoreRules, Target,
};
use wirecap_savefile::{Format, Record, Timestamp};

const PACKETS: usize = 200_000;
const CELL_BYTES: usize = 2048;
const CHUNK_PACKETS: usize = 256;
/// As the recorder writes to a file in memory: the page stays in the second-level cache.
const PAGE_BYTES: usize = 256 << 10;
/// Pages are written or mapped at this alignment.
const ALIGNMENT: usize = 4096;
const LENGTHS: [usize; 4] = [60, 256, 768, 1514];
const ROUNDS: usize = 9;
/// Number of packets that are prefetched in advance, as a capture does.
const AHEAD: usize = 12;
const LINE_BYTES: usize = 64;
/// Maximum number of parts of a `writev`.
const PARTS: usize = 1024;

/// Memory that is mapped until the drop.
struct Mapped(*mut u8, usize);

impl Mapped {
    /// On huge pages if the kernel has any.
    fn anonymous(bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, flags) }?;
        let mapped = Self(start.cast(), bytes);
        // SAFETY: the mapping is only used through `mapped`. The advice changes no contents.
        unsafe { madvise(start, bytes, Advice::LinuxHugepage) }?;
        Ok(mapped)
    }

    /// A part of a file, with all of its pages present.
    fn of_file(file: &File, offset: u64, bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED;
        // SAFETY: a new mapping at an address that the kernel chooses. No other process has the
        // file.
        let start = unsafe { mmap(ptr::null_mut(), bytes, protection, flags, file, offset) }?;
        let mapped = Self(start.cast(), bytes);
        // SAFETY: as above.
        unsafe { madvise(start, bytes, Advice::LinuxPopulateWrite) }?;
        Ok(mapped)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is readable and writable for its whole length until the drop.
        unsafe { slice::from_raw_parts_mut(self.0, self.1) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        let _ = unsafe { munmap(self.0.cast(), self.1) };
    }
}

/// The encoded bytes around each packet.
struct Envelope {
    format: Format,
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Envelope {
    fn new(format: Format, len: usize) -> Self {
        let data = vec![0xa5; len];
        let record = record(&data);
        let mut encoded = vec![0; format.encoded_len(&record)];
        format.encode(&record, &mut encoded);
        let start = encoded
            .windows(len)
            .position(|part| part == data)
            .expect("the record contains its data");
        Self { format, head: encoded[..start].to_vec(), tail: encoded[start + len..].to_vec() }
    }

    fn bytes_with(&self, len: usize) -> usize {
        self.head.len() + len + self.tail.len()
    }

    fn copy(&self, packet: &[u8], to: &mut [u8]) {
        let (head, rest) = to.split_at_mut(self.head.len());
        let (data, tail) = rest.split_at_mut(packet.len());
        head.copy_from_slice(&self.head);
        data.copy_from_slice(packet);
        tail.copy_from_slice(&self.tail);
    }
}

const TIME: Timestamp = Timestamp::from_unix_nanos(1_700_000_000_000_000_000);

fn record(data: &[u8]) -> Record<'_> {
    Record {
        timestamp: Some(TIME),
        queue: Some(0),
        wire_len: data.len() as u32,
        data,
        ..Record::default()
    }
}

fn packet(cells: &[u8], number: usize, len: usize) -> &[u8] {
    &cells[number * CELL_BYTES..][..len]
}

fn prefetch(cells: &[u8], number: usize, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if number < PACKETS {
        let start = cells[number * CELL_BYTES..].as_ptr();
        for offset in (0..len).step_by(LINE_BYTES) {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // SAFETY: prefetching accesses nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(offset).cast()) };
        }
    }
}

fn written(
    file: &mut File,
    _: &[u8],
    len: usize,
    envelope: &Envelope,
    page: &mut [u8],
) -> io::Result<f64> {
    let begun = process_nanos();
    let bytes = PACKETS * envelope.bytes_with(len);
    for offset in (0..bytes).step_by(PAGE_BYTES) {
        file.write_all(&page[..PAGE_BYTES.min(bytes - offset)])?;
    }
    Ok(process_nanos() - begun)
}

fn copied(
    file: &mut File,
    cells: &[u8],
    len: usize,
    envelope: &Envelope,
    page: &mut [u8],
) -> io::Result<f64> {
    let begun = process_nanos();
    let bytes = envelope.bytes_with(len);
    let mut used = 0;
    for number in 0..PACKETS {
        if used + bytes > page.len() {
            file.write_all(&page[..used])?;
            used = 0;
        }
        prefetch(cells, number + AHEAD, len);
        envelope.copy(packet(cells, number, len), &mut page[used..used + bytes]);
        used += bytes;
    }
    file.write_all(&page[..used])?;
    Ok(process_nanos() - begun)
}

fn mapped(
    file: &mut File,
    cells: &[u8],
    len: usize,
    envelope: &Envelope,
    _: &mut [u8],
) -> io::Result<f64> {
    let begun = process_nanos();
    let bytes = envelope.bytes_with(len);
    let mut offset = 0;
    let mut used = 0;
    let map = |offset: usize| {
        file.set_len((offset + PAGE_BYTES) as u64)?;
        Mapped::of_file(file, offset as u64, PAGE_BYTES)
    };
    let mut page = map(0)?;
    for number in 0..PACKETS {
        if used + bytes > PAGE_BYTES {
            offset += used / ALIGNMENT * ALIGNMENT;
            used %= ALIGNMENT;
            page = map(offset)?;
        }
        prefetch(cells, number + AHEAD, len);
        envelope.copy(packet(cells, number, len), &mut page.bytes()[used..used + bytes]);
        used += bytes;
    }
    drop(page);
    file.set_len((offset + used) as u64)?;
    Ok(process_nanos() - begun)
}

fn gathered(
    file: &mut File,
    cells: &[u8],
    len: usize,
    envelope: &Envelope,
    _: &mut [u8],
) -> io::Result<f64> {
    let begun = process_nanos();
    for first in (0..PACKETS).step_by(PARTS / 3) {
        let numbers = first..(first + PARTS / 3).min(PACKETS);
        numbers.clone().for_each(|number| prefetch(cells, number, len));
        let mut parts: Vec<IoSlice<'_>> = numbers
            .flat_map(|number| [&envelope.head[..], packet(cells, number, len), &envelope.tail])
            .filter(|part| !part.is_empty())
            .map(IoSlice::new)
            .collect();
        let mut parts = &mut parts[..];
        while !parts.is_empty() {
            let written = file.write_vectored(parts)?;
            IoSlice::advance_slices(&mut parts, written);
        }
    }
    Ok(process_nanos() - begun)
}

fn recorded(
    file: &mut File,
    cells: &[u8],
    len: usize,
    envelope: &Envelope,
    _: &mut [u8],
) -> io::Result<f64> {
    let settings = Settings {
        format: envelope.format,
        head: Vec::new(),
        tail_bytes: 0,
        sources: Vec::new(),
        interfaces: 1,
        source_tail_bytes: 0,
        compression: Compression::None,
        compressors: 0,
        cut: CutRules::default(),
        store: StoreRules::default(),
        files_max: None,
        bytes_max: None,
        durability: Durability::None,
        command: None,
        line: None,
    };
    let target = Target::File(file.try_clone()?, "recorded".into());
    let mut recording =
        Recording::begin(settings, target, TIME, Box::new(())).map_err(io::Error::other)?;
    let begun = process_nanos(); // not before: the pages of a recording are allocated only once
    for number in 0..PACKETS {
        // As a capture does with every chunk.
        while number % CHUNK_PACKETS == 0 && !recording.has_room(CHUNK_PACKETS * CELL_BYTES, false)
        {
            recording.wait_for_room(Duration::from_micros(100)).map_err(io::Error::other)?;
        }
        prefetch(cells, number + AHEAD, len);
        recording.write(&record(packet(cells, number, len)), TIME).map_err(io::Error::other)?;
    }
    recording.finish(Vec::new()).map_err(io::Error::other)?;
    Ok(process_nanos() - begun)
}

/// Returns the CPU time that it took, in nanoseconds.
type Way = fn(&mut File, &[u8], usize, &Envelope, &mut [u8]) -> io::Result<f64>;
const WAYS: [(&str, Way); 5] = [
    ("copied", copied),
    ("mapped", mapped),
    ("gathered", gathered),
    ("written", written),
    ("recorded", recorded),
];

fn process_nanos() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn measure(
    way: Way,
    path: &Path,
    cells: &mut [u8],
    page: &mut [u8],
    len: usize,
    format: Format,
) -> io::Result<f64> {
    cells.fill(1); // evicts the packets
    let envelope = Envelope::new(format, len);
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
    let nanos = way(&mut file, cells, len, &envelope, page)?;
    let expected = PACKETS * envelope.bytes_with(len);
    let bytes = file.metadata()?.len();
    drop(file);
    fs::remove_file(path)?;
    assert_eq!(bytes, expected as u64, "the file has all packets");
    Ok(nanos / PACKETS as f64)
}

fn main() -> io::Result<()> {
    let folder = env::var("WIRECAP_WAYS_DIR").unwrap_or("/dev/shm".to_owned());
    let path = Path::new(&folder).join(format!("wirecap-ways-{}", std::process::id()));
    let mut cells = Mapped::anonymous(PACKETS * CELL_BYTES)?;
    let mut page = vec![1; PAGE_BYTES];
    println!(
        "ns of CPU time per packet, medians of {ROUNDS} rounds in turns (range), ratio to copied pcap"
    );
    for len in LENGTHS {
        let formats = [("pcap", Format::Pcap), ("pcapng", Format::Pcapng)];
        let mut costs: Vec<Vec<f64>> = vec![Vec::new(); formats.len() * WAYS.len()];
        // The first round makes the memory present.
        for round in 0..=ROUNDS {
            for (place, (way, format)) in WAYS
                .iter()
                .flat_map(|(_, way)| formats.map(|(_, format)| (way, format)))
                .enumerate()
            {
                let cost = measure(*way, &path, cells.bytes(), &mut page, len, format)?;
                if round > 0 {
                    costs[place].push(cost);
                }
            }
        }
        costs.iter_mut().for_each(|costs| costs.sort_by(f64::total_cmp));
        let first = costs[0][ROUNDS / 2];
        let names =
            WAYS.iter().flat_map(|(way, _)| formats.map(|(format, _)| format!("{way}, {format}")));
        for (name, costs) in names.zip(&costs) {
            let median = costs[ROUNDS / 2];
            println!(
                "{len:>5} bytes  {name:<17} {median:>5.0} ({:.0}-{:.0}), {:.2}",
                costs[0],
                costs[ROUNDS - 1],
                median / first
            );
        }
    }
    Ok(())
}
