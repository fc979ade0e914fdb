//! Recordings on a real file system: all packets are in the files, and no budget is exceeded at any
//! moment.

#[path = "../../wirecap-testbed/src/skip.rs"]
mod skip;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tempfile::TempDir;
use wirecap_recorder::{
    Answer, Commands, Compression, CutRules, Durability, Numbering, Pattern, Period, Recording,
    RulesError, Settings, StoreRules, Summary, Target, Watch,
};
use wirecap_savefile::{
    FileSink, Format, Interface, Reader, Record, Section, StreamSink, Timestamp, WriteError, Writer,
};

const SECOND: u64 = 1_000_000_000;

fn head(format: Format) -> Vec<u8> {
    let mut writer =
        Writer::new(StreamSink::new(Vec::new(), "memory"), format, &Section::default());
    writer.add_interface(&Interface::default()).unwrap();
    writer.finish().unwrap().into_inner()
}

fn settings(format: Format, compression: Compression) -> Settings {
    Settings {
        format,
        head: head(format),
        tail_bytes: 0,
        sources: Vec::new(),
        interfaces: 1,
        source_tail_bytes: 0,
        compression,
        compressors: 3,
        cut: CutRules::default(),
        store: StoreRules::default(),
        files_max: None,
        bytes_max: None,
        durability: Durability::None,
        command: None,
        line: None,
    }
}

fn target(directory: &Path, name: &str) -> Target {
    Target::Set(Pattern::new(&directory.join(name), Numbering::Pattern).unwrap())
}

/// A new single file.
fn single(path: &Path) -> Target {
    Target::File(FileSink::create(path).unwrap().into_file(), path.to_owned())
}

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_unix_nanos(nanos)
}

/// The data of the packet with this number, which repeat the number.
fn data(number: u32, len: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(len.max(4)).collect()
}

fn write(
    recording: &mut Recording,
    number: u32,
    len: usize,
    nanos: u64,
) -> Result<bool, WriteError> {
    let data = data(number, len);
    let record = Record {
        timestamp: Some(at(nanos)),
        wire_len: data.len() as u32,
        data: &data,
        ..Record::default()
    };
    recording.write(&record, at(nanos))
}

/// The files, in the order of their numbers, with the numbers and times of their packets.
fn files(directory: &Path) -> Vec<(PathBuf, Vec<(u32, u64)>)> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), packets(&path))).collect()
}

fn packets(path: &Path) -> Vec<(u32, u64)> {
    let mut reader =
        Reader::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut packets = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        let number = u32::from_le_bytes(record.data[..4].try_into().unwrap());
        assert_eq!(record.data, data(number, record.data.len()));
        packets.push((number, record.timestamp.unwrap().unix_nanos()));
    }
    packets
}

/// Checks the directory after each of the writer's operations.
struct Auditor {
    directory: PathBuf,
    store: StoreRules,
    most: Arc<Mutex<(u64, u64)>>,
}

impl Watch for Auditor {
    fn around(&self, work: &mut dyn FnMut()) {
        work();
        let sizes: Vec<u64> = fs::read_dir(&self.directory)
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .collect();
        let files = sizes.len() as u64;
        let bytes = sizes.iter().sum::<u64>();
        assert!(self.store.files.is_none_or(|max| files <= max), "{files} files");
        assert!(self.store.bytes.is_none_or(|max| bytes <= max), "{bytes} bytes");
        let mut most = self.most.lock().unwrap();
        *most = (most.0.max(files), most.1.max(bytes));
    }
}

#[derive(Debug, Clone)]
struct Plan {
    format: Format,
    compression: Compression,
    cut: CutRules,
    store: StoreRules,
    /// For each packet: its length, the time since the previous packet (the clock may be set), and
    /// whether a flush follows.
    packets: Vec<(usize, i64, bool)>,
    /// Packets before which the recording ends and another one begins.
    restarts: Vec<usize>,
    /// Whether the files are in memory, where long packets are written from their batches, and not
    /// on a disk, which may have direct I/O.
    is_in_memory: bool,
}

/// A directory in memory.
fn memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn plans() -> impl Strategy<Value = Plan> {
    let option = |strategy| proptest::option::of(strategy);
    let cut = (
        option((20_000..100_000_u64).boxed()),
        option((1..50_u64).boxed()),
        proptest::option::of(1..30_u64),
        any::<bool>(),
    );
    let store = (option((1..6_u64).boxed()), option((250_000..600_000_u64).boxed()));
    let formats = prop_oneof![Just(Format::Pcapng), Just(Format::Pcap)];
    let compressions =
        prop_oneof![Just(Compression::None), Just(Compression::Gzip), Just(Compression::Zstandard)];
    let second = SECOND.cast_signed();
    let pauses = prop_oneof![50 => 0..3 * second, 1 => -200 * second..200 * second];
    let packets = vec((4..3000_usize, pauses, proptest::bool::weighted(0.1)), 0..300);
    let restarts = vec(0..300_usize, 0..3);
    (formats, compressions, cut, store, packets, restarts, any::<bool>()).prop_map(
        |(
            format,
            compression,
            (bytes, cut_packets, seconds, is_aligned),
            (files, store_bytes),
            packets,
            restarts,
            is_in_memory,
        )| {
            let period =
                seconds.map(|seconds| Period { length: Duration::from_secs(seconds), is_aligned });
            // Files must be small compared to the budget.
            let bytes = if store_bytes.is_some() { Some(bytes.unwrap_or(100_000)) } else { bytes };
            Plan {
                format,
                compression,
                cut: CutRules { bytes, packets: cut_packets, period },
                store: StoreRules { files, bytes: store_bytes, free_bytes: None },
                packets,
                restarts,
                is_in_memory,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_files_have_the_newest_packets_in_order_within_the_budgets(plan in plans()) {
        let folder = if plan.is_in_memory { memory() } else { tempfile::tempdir().unwrap() };
        let extension = match plan.compression {
            Compression::None => "",
            Compression::Gzip => ".gz",
            Compression::Zstandard => ".zst",
        };
        let name = format!("trace{extension}");
        let begin = |now: u64| {
            let directory = folder.path().to_owned();
            let watch = Auditor { directory, store: plan.store, most: Arc::default() };
            let settings =
                Settings { cut: plan.cut, store: plan.store, ..settings(plan.format, plan.compression) };
            Recording::begin(settings, target(folder.path(), &name), at(now), Box::new(watch)).unwrap()
        };
        let mut nanos = 1_700_000_000 * SECOND;
        let mut recording = begin(nanos);
        let mut times = Vec::new();
        for (number, &(len, pause, is_flushed)) in plan.packets.iter().enumerate() {
            if plan.restarts.contains(&number) {
                recording.finish(Vec::new()).unwrap();
                recording = begin(nanos);
            }
            nanos = nanos.saturating_add_signed(pause);
            times.push(nanos);
            prop_assert!(write(&mut recording, number as u32, len, nanos).unwrap());
            if is_flushed {
                recording.flush().unwrap();
            }
        }
        recording.finish(Vec::new()).unwrap();

        let files = files(folder.path());
        let stream: Vec<(u32, u64)> = files.iter().flat_map(|(_, packets)| packets.clone()).collect();
        let first = plan.packets.len() - stream.len();
        let expected: Vec<(u32, u64)> =
            times.iter().enumerate().skip(first).map(|(number, &nanos)| (number as u32, nanos)).collect();
        prop_assert_eq!(stream, expected, "the end of the stream, in order");
        if plan.store == StoreRules::default() {
            prop_assert_eq!(first, 0, "nothing was removed");
        }
        for (path, packets) in &files {
            prop_assert!(plan.cut.packets.is_none_or(|max| packets.len() as u64 <= max));
            if let (Some(max), Compression::None) = (plan.cut.bytes, plan.compression) {
                prop_assert!(packets.len() <= 1 || fs::metadata(path).unwrap().len() <= max);
            }
            // A packet from the period before, or up to ten seconds before the period, does not end
            // the file.
            let is_set_back = plan.packets.iter().any(|(_, pause, _)| *pause < 0);
            let times = || packets.iter().map(|(_, nanos)| *nanos);
            if let (Some(period), Some(first), Some(last)) = (plan.cut.period, times().min(), times().max()) {
                let length = period.length.as_nanos() as u64;
                let late = if is_set_back { length.max(10 * SECOND) } else { 0 };
                prop_assert!(last - first < length + late, "{first} to {last}");
            }
        }
    }
}

/// Many pages, as full as packets allow, so that a disk with direct I/O gets whole blocks directly.
#[test]
fn long_files_on_a_disk_and_in_memory_have_every_packet_in_order() {
    const PACKETS: u32 = 6000;
    for folder in [tempfile::tempdir().unwrap(), memory()] {
        for (format, name) in [(Format::Pcapng, "t-%i.pcapng"), (Format::Pcap, "u-%i.pcap")] {
            let cut = CutRules { packets: Some(u64::from(PACKETS) / 3), ..CutRules::default() };
            let settings = Settings { cut, ..settings(format, Compression::None) };
            let mut recording =
                Recording::begin(settings, target(folder.path(), name), at(0), Box::new(()))
                    .unwrap();
            for number in 0..PACKETS {
                let len = number as usize * 7919 % 9000;
                assert!(write(&mut recording, number, len, u64::from(number)).unwrap());
                if number % 997 == 0 {
                    recording.flush().unwrap();
                }
            }
            let summary = recording.finish(Vec::new()).unwrap();
            assert_eq!((summary.packets, summary.files), (u64::from(PACKETS), 3));
        }
        let found = files(folder.path()).into_iter().flat_map(|(_, packets)| packets);
        let numbers: Vec<u32> = found.map(|(number, _)| number).collect();
        assert_eq!(numbers, (0..PACKETS).chain(0..PACKETS).collect::<Vec<u32>>());
    }
}

/// The threads that wrote to files, and those that removed files.
#[derive(Clone, Default)]
struct Threads(Arc<Mutex<(Vec<ThreadId>, Vec<ThreadId>)>>);

impl Watch for Threads {
    fn accepted(&self, _bytes: u64) {
        self.0.lock().unwrap().0.push(thread::current().id());
    }

    fn removed(&self, _path: &Path) {
        self.0.lock().unwrap().1.push(thread::current().id());
    }
}

#[test]
fn the_capture_thread_writes_to_files_in_memory_and_leaves_their_removal_to_the_writer() {
    const PACKETS: u32 = 3000;
    let folder = memory();
    let threads = Threads::default();
    let mut settings = settings(Format::Pcapng, Compression::None);
    settings.cut.bytes = Some(100_000);
    settings.store.bytes = Some(400_000);
    let target = target(folder.path(), "t-%i.pcapng");
    let mut recording =
        Recording::begin(settings, target, at(0), Box::new(threads.clone())).unwrap();
    for number in 0..PACKETS {
        assert!(write(&mut recording, number, 900, 0).unwrap());
        if number % 10 == 0 {
            recording.flush().unwrap();
            while recording.summary().packets <= u64::from(number) {
                thread::yield_now();
            }
        }
    }
    let summary = recording.finish(Vec::new()).unwrap();
    let (wrote, removed) = &*threads.0.lock().unwrap();
    let is_here = |thread: &&ThreadId| **thread == thread::current().id();
    // The beginning of the first file, and pages while the writer had nothing to do.
    assert!(wrote.iter().filter(is_here).count() > 1, "no page was written here");
    assert_eq!(removed.iter().filter(is_here).count(), 0);
    assert!(removed.len() as u64 == summary.removed && summary.removed > 20, "{summary:?}");
    assert_eq!(summary.packets, u64::from(PACKETS));
    let found = files(folder.path()).into_iter().flat_map(|(_, packets)| packets);
    let numbers: Vec<u32> = found.map(|(number, _)| number).collect();
    assert_eq!(numbers, (PACKETS - numbers.len() as u32..PACKETS).collect::<Vec<u32>>());
}

/// Holds the writer at the end of each file until the test opens the gate.
struct Gate {
    reached: mpsc::Sender<()>,
    opened: mpsc::Receiver<()>,
}

impl Watch for Gate {
    fn completed(&self, _path: &Path) {
        self.reached.send(()).unwrap();
        self.opened.recv().unwrap();
    }
}

#[test]
fn a_capture_thread_that_waits_for_a_page_learns_that_the_writer_has_failed() {
    const PATIENCE: Duration = Duration::from_secs(60);
    let folder = memory();
    let settings = settings(Format::Pcap, Compression::None);
    let (reached, at_gate) = mpsc::channel();
    let (open_gate, opened) = mpsc::channel();
    let gate = Box::new(Gate { reached, opened });
    let mut recording =
        Recording::begin(settings, target(folder.path(), "t-%i.pcap"), at(0), gate).unwrap();
    let record = |recording: &mut Recording, number| {
        assert!(write(recording, number, 60, 0).unwrap());
        recording.rotate().unwrap();
    };
    record(&mut recording, 0);
    at_gate.recv_timeout(PATIENCE).unwrap();
    // The writer is held at the end of the first file, so it keeps the pages of the next ones.
    let mut number = 1;
    while recording.backlog() < 1.0 {
        record(&mut recording, number);
        number += 1;
    }
    fs::remove_dir_all(folder.path()).unwrap();
    let (ended, capture) = mpsc::channel();
    let thread = thread::spawn(move || ended.send(write(&mut recording, number, 60, 0)).unwrap());
    let early = capture.recv_timeout(Duration::from_millis(300));
    assert!(matches!(early, Err(mpsc::RecvTimeoutError::Timeout)), "a page was free: {early:?}");
    // The second file cannot be created.
    open_gate.send(()).unwrap();
    let outcome =
        capture.recv_timeout(PATIENCE).expect("the capture thread still waits for a page");
    let error = outcome.unwrap_err().to_string();
    assert!(error.starts_with("cannot write to /dev/shm"), "{error}");
    thread.join().unwrap();
}

#[test]
fn a_file_gets_its_name_when_it_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(Format::Pcapng, Compression::None);
    settings.cut.packets = Some(2);
    let mut recording =
        Recording::begin(settings, target(folder.path(), "t-%i.pcapng"), at(0), Box::new(()))
            .unwrap();
    let names =
        || files(folder.path()).into_iter().map(|(path, _)| path.file_name().unwrap().to_owned());
    assert_eq!(
        names().collect::<Vec<_>>(),
        ["t-00001.pcapng.part"],
        "readable before the first packet"
    );
    for number in 0..3 {
        assert!(write(&mut recording, number, 60, 0).unwrap());
    }
    recording.flush().unwrap();
    while recording.summary().packets < 3 {
        thread::yield_now();
    }
    assert_eq!(names().collect::<Vec<_>>(), ["t-00001.pcapng", "t-00002.pcapng.part"]);
    let summary = recording.finish(Vec::new()).unwrap();
    assert_eq!(names().collect::<Vec<_>>(), ["t-00001.pcapng", "t-00002.pcapng"]);
    assert_eq!((summary.packets, summary.files, summary.removed), (3, 2, 0));
}

#[test]
fn complete_files_are_announced_by_lines_and_commands() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, line) = std::io::pipe().unwrap();
    let copies = tempfile::tempdir().unwrap();
    let copy = format!("cp \"$0\" {}", copies.path().display());
    let mut settings = settings(Format::Pcap, Compression::None);
    settings.cut.packets = Some(10);
    settings.command =
        Some(Box::new(Commands::new(["sh", "-c", &copy].map(str::to_owned).to_vec())));
    settings.line = Some(OwnedFd::from(line));
    let mut recording =
        Recording::begin(settings, target(folder.path(), "t-%i.pcap"), at(0), Box::new(()))
            .unwrap();
    for number in 0..35 {
        write(&mut recording, number, 60, 0).unwrap();
    }
    recording.finish(Vec::new()).unwrap();
    let lines: Vec<String> = BufReader::new(reader).lines().map(Result::unwrap).collect();
    let paths: Vec<String> =
        files(folder.path()).into_iter().map(|(path, _)| path.display().to_string()).collect();
    assert_eq!((lines.len(), lines), (4, paths));
    let copied: usize = files(copies.path()).iter().map(|(_, packets)| packets.len()).sum();
    assert_eq!(copied, 35);
}

#[test]
fn the_recording_ends_at_its_limit_of_files_or_bytes() {
    for (files_max, bytes_max) in [(Some(3), None), (None, Some(2000))] {
        let folder = tempfile::tempdir().unwrap();
        let mut settings =
            Settings { files_max, bytes_max, ..settings(Format::Pcap, Compression::None) };
        settings.cut.packets = Some(5);
        let mut recording =
            Recording::begin(settings, target(folder.path(), "t-%i"), at(0), Box::new(())).unwrap();
        let taken =
            (0..100).filter(|&number| write(&mut recording, number, 100, 0).unwrap()).count();
        recording.finish(Vec::new()).unwrap();
        let sizes: u64 =
            files(folder.path()).iter().map(|(path, _)| fs::metadata(path).unwrap().len()).sum();
        match bytes_max {
            None => assert_eq!((taken, files(folder.path()).len()), (15, 3)),
            Some(max) => assert!(sizes <= max && sizes + 140 > max, "{sizes} bytes"),
        }
        assert_eq!(
            files(folder.path()).iter().map(|(_, packets)| packets.len()).sum::<usize>(),
            taken
        );
    }
}

#[test]
fn the_file_of_a_killed_process_is_truncated_to_whole_packets_and_completed() {
    let folder = tempfile::tempdir().unwrap();
    let complete = folder.path().join("t-00001.pcapng");
    let begin = || {
        let settings = settings(Format::Pcapng, Compression::None);
        Recording::begin(settings, target(folder.path(), "t-%i.pcapng"), at(0), Box::new(()))
    };
    let mut recording = begin().unwrap();
    for number in 0..10 {
        write(&mut recording, number, 100, 0).unwrap();
    }
    recording.finish(Vec::new()).unwrap();
    // The file ends within the last packet, as after a crash.
    let bytes = fs::read(&complete).unwrap();
    fs::write(folder.path().join("t-00001.pcapng.part"), &bytes[..bytes.len() - 30]).unwrap();
    fs::remove_file(&complete).unwrap();
    let recording = begin().unwrap();
    assert_eq!(packets(&complete).len(), 9);
    assert!(folder.path().join("t-00002.pcapng.part").exists(), "the sequence continues");
    // A second recording of the set is rejected and changes nothing.
    let error = begin().expect_err("the first one still writes");
    assert!(format!("{error:?}").contains("another process is writing"), "{error:?}");
    recording.finish(Vec::new()).unwrap();
    assert_eq!(files(folder.path()).len(), 2);
}

#[test]
fn zeros_at_the_end_are_removed_and_other_damage_is_not_cut_off() {
    for (format, extension) in [(Format::Pcapng, "pcapng"), (Format::Pcap, "pcap")] {
        let folder = tempfile::tempdir().unwrap();
        let complete = folder.path().join(format!("t-00001.{extension}"));
        let part = folder.path().join(format!("t-00001.{extension}.part"));
        let begin = || {
            let target = target(folder.path(), &format!("t-%i.{extension}"));
            Recording::begin(settings(format, Compression::None), target, at(0), Box::new(()))
                .unwrap()
        };
        let mut recording = begin();
        for number in 0..10 {
            write(&mut recording, number, 100, 0).unwrap();
        }
        recording.finish(Vec::new()).unwrap();
        let bytes = fs::read(&complete).unwrap();
        fs::remove_file(&complete).unwrap();
        // After a power failure: the file has its size, but its end was not written. In pcapng,
        // almost two packets are missing; in pcap, two whole packets, because a pcap file does not
        // show that the rest of a packet was not written.
        let missing = if format == Format::Pcap { 2 * (16 + 100) } else { 250 };
        let mut end_missing = bytes.clone();
        end_missing[bytes.len() - missing..].fill(0);
        end_missing.extend([0; 4096]);
        fs::write(&part, &end_missing).unwrap();
        begin().finish(Vec::new()).unwrap();
        assert_eq!(packets(&complete).len(), 8, "{extension}");
        for file in fs::read_dir(folder.path()).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
        // Damage with packets after it: at each place of a packet, with values that are no lengths,
        // with lengths beyond the end of the file, and with zeros.
        let packet = bytes.len() / 2;
        for begin_at in (packet - 160..packet).step_by(4) {
            for (fill, len) in [
                (&[0xff][..], 128),
                (&[0][..], 128),
                (&[0, 0x20, 0, 0][..], 4),
                (&[0, 2, 1, 0, 0, 1, 1, 0][..], 8),
            ] {
                let mut damaged = bytes.clone();
                damaged[begin_at..begin_at + len]
                    .iter_mut()
                    .zip(fill.iter().cycle())
                    .for_each(|(byte, new)| *byte = *new);
                fs::write(&part, &damaged).unwrap();
                begin().finish(Vec::new()).unwrap();
                let what = format!("{extension}: {len} bytes of {fill:x?} at {begin_at}");
                // Damage of a packet's data or times does not show.
                if complete.exists() {
                    assert_eq!(fs::read(&complete).unwrap(), damaged, "{what}");
                    fs::remove_file(&complete).unwrap();
                } else {
                    assert_eq!(fs::read(&part).unwrap(), damaged, "{what}");
                }
                for file in fs::read_dir(folder.path()).unwrap() {
                    fs::remove_file(file.unwrap().path()).unwrap();
                }
            }
        }
    }
}

#[test]
fn files_outside_the_set_are_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("important");
    let same = folder.path().join("t.pcap1");
    fs::write(&other, "kept").unwrap();
    let mut settings = settings(Format::Pcap, Compression::None);
    settings.cut.packets = Some(1);
    settings.store.files = Some(2);
    let pattern = Pattern::new(&folder.path().join("t.pcap"), Numbering::Appended).unwrap();
    let mut recording =
        Recording::begin(settings, Target::Set(pattern), at(0), Box::new(())).unwrap();
    for number in 0..5 {
        write(&mut recording, number, 60, 0).unwrap();
    }
    let Summary { files, removed, .. } = recording.finish(Vec::new()).unwrap();
    assert_eq!((files, removed), (5, 3));
    assert_eq!(fs::read(&other).unwrap(), b"kept");
    assert!(!same.exists() && folder.path().join("t.pcap4").exists());
}

#[test]
fn a_ring_of_names_restarts_and_replaces_files() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut settings = settings(Format::Pcap, Compression::None);
        settings.cut.packets = Some(1);
        settings.store.files = Some(3);
        let pattern = Pattern::new(&folder.path().join("t"), Numbering::Ring(3)).unwrap();
        let mut recording =
            Recording::begin(settings, Target::Set(pattern), at(0), Box::new(())).unwrap();
        for number in 0..8 {
            write(&mut recording, number, 60, 0).unwrap();
        }
        recording.finish(Vec::new()).unwrap();
        let numbers: BTreeMap<String, u32> = files(folder.path())
            .into_iter()
            .map(|(path, packets)| {
                (path.file_name().unwrap().to_str().unwrap().to_owned(), packets[0].0)
            })
            .collect();
        let expected =
            [("t0", 6), ("t1", 7), ("t2", 5)].map(|(name, number)| (name.to_owned(), number));
        assert_eq!(numbers, BTreeMap::from(expected));
    }
}

#[test]
fn compressed_files_are_read_completely_by_standard_tools() {
    let folder = tempfile::tempdir().unwrap();
    for (extension, compression, tool) in
        [("zst", Compression::Zstandard, "zstdcat"), ("gz", Compression::Gzip, "zcat")]
    {
        let path = folder.path().join(format!("t.pcap.{extension}"));
        let settings = settings(Format::Pcap, compression);
        let mut recording = Recording::begin(settings, single(&path), at(0), Box::new(())).unwrap();
        // Not compressible: tshark 4.0 reads several frames if they are in its buffer at once.
        let mut state = 1_u64;
        for number in 0..5000_u64 {
            let next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            };
            let data: Vec<u8> = std::iter::repeat_with(next).take(1000).collect();
            let record = Record {
                timestamp: Some(at(number)),
                wire_len: 1000,
                data: &data,
                ..Record::default()
            };
            while !recording.has_room(2000, true) {
                recording.wait_for_room(std::time::Duration::from_millis(1)).unwrap();
            }
            assert!(recording.write(&record, at(number)).unwrap());
        }
        recording.finish(Vec::new()).unwrap();
        let path = path.display();
        for read in [
            format!("set -o pipefail; {tool} {path} | tcpdump -nr - --count 2>/dev/null"),
            // It ends at the end of a Zstandard frame, or calls what follows damaged.
            format!("set -o pipefail; tshark -r {path} 2>/dev/null | wc -l | sed 's/$/ packets/'"),
        ] {
            let output = Command::new("bash").args(["-c", &read]).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let is_whole = output.status.success() && text.trim() == "5000 packets";
            assert!(is_whole, "the file is read to its end: {read}: {output:?}");
        }
    }
}

#[test]
fn a_compressed_file_that_is_being_written_is_complete_after_each_page() {
    let folder = tempfile::tempdir().unwrap();
    for (extension, compression, tool) in
        [("zst", Compression::Zstandard, "zstd"), ("gz", Compression::Gzip, "gzip")]
    {
        let path = folder.path().join(format!("t.pcap.{extension}"));
        let settings = settings(Format::Pcap, compression);
        let mut recording = Recording::begin(settings, single(&path), at(0), Box::new(())).unwrap();
        for round in 1..=3 {
            for number in 0..500 {
                write(&mut recording, number, 1000, number.into()).unwrap();
            }
            recording.flush().unwrap();
            while recording.summary().packets < 500 * round {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            // Packets are counted before the end of the file is written.
            let is_whole = || Command::new(tool).arg("-tq").arg(&path).status().unwrap().success();
            assert!(
                (0..100).any(|_| is_whole()),
                "the {extension} file is complete after page {round}"
            );
            assert_eq!(packets(&path).len() as u64, 500 * round);
        }
        recording.finish(Vec::new()).unwrap();
        assert_eq!(packets(&path).len(), 1500);
    }
}

#[test]
fn a_single_file_neither_rotates_nor_ends_by_rules() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.pcap");
    let cut = CutRules { packets: Some(3), ..CutRules::default() };
    let settings = Settings { cut, ..settings(Format::Pcap, Compression::None) };
    let mut recording = Recording::begin(settings, single(&path), at(0), Box::new(())).unwrap();
    for number in 0..100 {
        assert!(write(&mut recording, number, 60, number.into()).unwrap());
        match number {
            20 => recording.rotate().unwrap(),
            40 => {
                recording
                    .change_rules(cut, StoreRules::default(), Answer::new(Result::unwrap))
                    .unwrap();
            }
            _ => {}
        }
    }
    let summary = recording.finish(Vec::new()).unwrap();
    assert_eq!((summary.packets, summary.files, packets(&path).len()), (100, 1, 100));
}

#[test]
fn a_single_file_ends_by_rules_if_it_is_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.pcap");
    let cut = CutRules { packets: Some(3), ..CutRules::default() };
    let settings =
        Settings { cut, files_max: Some(1), ..settings(Format::Pcap, Compression::None) };
    let mut recording = Recording::begin(settings, single(&path), at(0), Box::new(())).unwrap();
    let accepted: Vec<bool> =
        (0..5).map(|number| write(&mut recording, number, 60, number.into()).unwrap()).collect();
    assert_eq!(accepted, [true, true, true, false, false]);
    recording.finish(Vec::new()).unwrap();
    assert_eq!(packets(&path).len(), 3);
}

#[test]
fn a_full_disk_leaves_whole_packets_and_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(Format::Pcapng, Compression::None);
    settings.store.free_bytes = Some(u64::MAX / 2);
    let error = Recording::begin(settings, target(folder.path(), "t-%i"), at(0), Box::new(()))
        .expect_err("none is free");
    assert!(
        matches!(&error, WriteError::Sink { packets: 0, source, .. } if source.to_string().contains("budget")),
        "{error:?}"
    );
}

#[test]
fn an_impossible_budget_of_free_bytes_removes_no_earlier_file() {
    let folder = tempfile::tempdir().unwrap();
    let begin = |settings| {
        Recording::begin(settings, target(folder.path(), "t-%i.pcap"), at(0), Box::new(()))
    };
    let mut recording = begin(settings(Format::Pcap, Compression::None)).unwrap();
    write(&mut recording, 7, 60, 0).unwrap();
    recording.finish(Vec::new()).unwrap();
    let mut settings = settings(Format::Pcap, Compression::None);
    settings.store.free_bytes = Some(u64::MAX / 2);
    begin(settings).expect_err("none is free");
    assert_eq!(files(folder.path()).len(), 1);
}

/// The recording's answer to a question about rules.
fn check(recording: &mut Recording, cut: CutRules, store: StoreRules) -> Result<(), RulesError> {
    let (answer, answers) = std::sync::mpsc::channel();
    recording
        .check_rules(cut, store, Answer::new(move |outcome| answer.send(outcome).unwrap()))
        .unwrap();
    answers.recv().unwrap()
}

#[test]
fn rules_that_the_recording_cannot_obey_are_refused_and_change_nothing() {
    for folder in [tempfile::tempdir().unwrap(), memory()] {
        let settings = settings(Format::Pcap, Compression::None);
        let target = target(folder.path(), "t-%i.pcap");
        let mut recording = Recording::begin(settings, target, at(0), Box::new(())).unwrap();
        // 24 bytes of header, and 10 packets of 16 and 1,000 bytes.
        (0..10).for_each(|number| assert!(write(&mut recording, number, 1000, 0).unwrap()));
        let cut = |bytes| CutRules { bytes: Some(bytes), ..CutRules::default() };
        let of_bytes = |bytes| StoreRules { bytes: Some(bytes), ..StoreRules::default() };
        let refused = check(&mut recording, cut(5_000), of_bytes(15_183)).unwrap_err();
        let RulesError::NoRoom { open_bytes: 10_184, .. } = refused else { panic!("{refused:?}") };
        assert!(check(&mut recording, cut(5_000), of_bytes(15_184)).is_ok());
        recording.flush().unwrap();
        assert!(check(&mut recording, cut(5_000), of_bytes(15_183)).is_err());
        let of_free = |bytes| StoreRules { free_bytes: Some(bytes), ..StoreRules::default() };
        let refused = check(&mut recording, cut(5_000), of_free(1 << 60)).unwrap_err();
        let RulesError::NoFreeBytes { .. } = refused else { panic!("{refused:?}") };
        assert!(check(&mut recording, cut(5_000), of_free(1)).is_ok());
        (10..20).for_each(|number| assert!(write(&mut recording, number, 1000, 0).unwrap()));
        let summary = recording.finish(Vec::new()).unwrap();
        assert_eq!((summary.packets, summary.files, summary.removed), (20, 1, 0));
    }
}

/// Makes a recording with two packets per file, and calls `meanwhile` before each packet.
fn two_packets_a_file(
    target: Target,
    compression: Compression,
    packets: u32,
    mut meanwhile: impl FnMut(u32),
) -> Summary {
    let mut settings = settings(Format::Pcap, compression);
    settings.cut.packets = Some(2);
    let mut recording = Recording::begin(settings, target, at(0), Box::new(())).unwrap();
    for number in 0..packets {
        meanwhile(number);
        assert!(write(&mut recording, number, 60, 0).unwrap());
        recording.flush().unwrap();
        let written = || {
            // Both counts must come from the same summary.
            let Summary { packets, vanished, .. } = recording.summary();
            packets + vanished * 2
        };
        while written() <= u64::from(number) {
            thread::yield_now();
        }
    }
    recording.finish(Vec::new()).unwrap()
}

/// The numbers of the packets in the regular files of a directory.
fn numbers_in(directory: &Path) -> Vec<u32> {
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let regular = paths.filter(|path| fs::symlink_metadata(path).unwrap().is_file());
    let mut numbers: Vec<u32> =
        regular.flat_map(|path| packets(&path)).map(|(number, _)| number).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn existing_entries_with_names_of_the_set_neither_end_nor_delay_the_recording() {
    for (pattern, numbering) in [("t-%i.pcap", Numbering::Pattern), ("t.pcap", Numbering::Ring(9))]
    {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let victim = elsewhere.path().join("victim");
        fs::write(&victim, "kept").unwrap();
        let pattern = Pattern::new(&folder.path().join(pattern), numbering).unwrap();
        let name = |sequence, suffix: &str| {
            let mut name = pattern.path(sequence, 0).into_os_string();
            name.push(suffix);
            PathBuf::from(name)
        };
        let summary =
            two_packets_a_file(Target::Set(pattern.clone()), Compression::None, 10, |number| {
                match number {
                    // While the first file is being written, occupy its final name and the names of
                    // the next files.
                    1 => {
                        fs::create_dir(name(0, "")).unwrap();
                        // Opening the pipe for writing would block until a reader opens it.
                        assert!(
                            Command::new("mkfifo")
                                .arg(name(1, ".part"))
                                .status()
                                .unwrap()
                                .success()
                        );
                        symlink(&victim, name(2, ".part")).unwrap();
                        symlink("/dev/null", name(3, ".part")).unwrap();
                        let taken = name(3, "").to_str().unwrap().replace(".pcap", "-1.pcap");
                        fs::create_dir(taken).unwrap();
                    }
                    5 => symlink(&victim, name(2, "")).unwrap(),
                    _ => {}
                }
            });
        assert_eq!((summary.packets, summary.files, summary.vanished), (10, 5, 0));
        assert_eq!(numbers_in(folder.path()), (0..10).collect::<Vec<_>>());
        assert_eq!(fs::read(&victim).unwrap(), b"kept");
    }
}

#[test]
fn the_largest_possible_number_does_not_end_the_sequence() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["t-18446744073709551615.pcap", "t-09223372036854775807.pcap.part"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let target = target(folder.path(), "t-%i.pcap");
    let summary = two_packets_a_file(target, Compression::None, 4, |_| {});
    assert_eq!((summary.packets, summary.files), (4, 2));
    assert!(folder.path().join("t-00002.pcap").exists());
}

#[test]
fn a_file_that_is_removed_while_it_is_written_is_not_counted() {
    let folder = tempfile::tempdir().unwrap();
    let part = folder.path().join("t-00002.pcap.part");
    let set = target(folder.path(), "t-%i.pcap");
    let summary = two_packets_a_file(set, Compression::None, 6, |number| match number {
        3 => fs::remove_file(&part).unwrap(),
        // A file of the same name by another process does not count either.
        5 => {
            let part = folder.path().join("t-00003.pcap.part");
            fs::remove_file(&part).unwrap();
            fs::write(&part, "another").unwrap();
        }
        _ => {}
    });
    assert_eq!((summary.packets, summary.files, summary.vanished), (2, 3, 2));

    let path = folder.path().join("single.pcap");
    for is_removed in [false, true] {
        let file = FileSink::replace(&path).unwrap().into_file();
        let settings = settings(Format::Pcap, Compression::None);
        let target = Target::File(file, path.clone());
        let mut recording = Recording::begin(settings, target, at(0), Box::new(())).unwrap();
        write(&mut recording, 0, 60, 0).unwrap();
        if is_removed {
            fs::remove_file(&path).unwrap();
        } else {
            // The file was renamed and is complete.
            fs::rename(&path, folder.path().join("moved.pcap")).unwrap();
        }
        let summary = recording.finish(Vec::new()).unwrap();
        assert_eq!((summary.packets, summary.vanished), if is_removed { (0, 1) } else { (1, 0) });
    }
}

#[test]
fn files_of_another_user_in_a_shared_directory_are_not_part_of_the_set() {
    if !rustix::process::geteuid().is_root() {
        skip::skip("without root there is no other user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let [complete, incomplete] =
        ["t-00001.pcap", "t-00007.pcap.part"].map(|name| folder.path().join(name));
    for path in [&complete, &incomplete] {
        fs::write(path, "another user's").unwrap();
        chown(path, Some(65_534), None).unwrap();
    }
    // The lock that a recording of the other user would hold.
    let locked = fs::File::open(&incomplete).unwrap();
    locked.lock().unwrap();
    let mut settings = settings(Format::Pcap, Compression::None);
    settings.cut.packets = Some(1);
    settings.store.files = Some(1);
    let mut recording =
        Recording::begin(settings, target(folder.path(), "t-%i.pcap"), at(0), Box::new(()))
            .unwrap();
    for number in 0..3 {
        write(&mut recording, number, 60, 0).unwrap();
    }
    let summary = recording.finish(Vec::new()).unwrap();
    assert_eq!((summary.packets, summary.removed), (3, 2));
    assert!(
        [&complete, &incomplete].iter().all(|path| fs::read(path).unwrap() == b"another user's")
    );
    assert_eq!(packets(&folder.path().join("t-00003.pcap")), [(2, 0)]);
}

#[test]
fn a_ring_of_compressed_files_continues_after_a_killed_process() {
    let folder = tempfile::tempdir().unwrap();
    let pattern = Pattern::new(&folder.path().join("t.gz"), Numbering::Ring(3)).unwrap();
    fs::write(folder.path().join("t.gz1.part"), "incomplete").unwrap();
    let summary = two_packets_a_file(Target::Set(pattern), Compression::Gzip, 8, |_| {});
    assert_eq!((summary.packets, summary.files), (8, 4));
    let mut names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["t.gz0", "t.gz1", "t.gz2"]);
}

#[test]
fn each_file_describes_the_interfaces_of_its_packets_and_keeps_its_size() {
    const BYTES_MAX: u64 = 4000;
    const TAIL_BYTES: u64 = 100;
    let named =
        |source: usize| Interface { name: Some(format!("if{source}")), ..Interface::default() };
    let describe = |source: usize| Format::Pcapng.description(&named(source));
    for compression in [Compression::None, Compression::Zstandard] {
        let directory = TempDir::new().unwrap();
        let extension = if compression == Compression::None { "pcapng" } else { "pcapng.zst" };
        let cut = CutRules { bytes: Some(BYTES_MAX), ..CutRules::default() };
        let mut head = head(Format::Pcapng);
        head.extend(describe(0));
        // The head has an interface that write() names, and the source 0.
        let settings = Settings {
            head,
            tail_bytes: 2 * TAIL_BYTES,
            sources: vec![1],
            interfaces: 2,
            source_tail_bytes: TAIL_BYTES,
            cut,
            ..settings(Format::Pcapng, compression)
        };
        let target = target(directory.path(), &format!("t-%i.{extension}"));
        let mut recording = Recording::begin(settings, target, at(SECOND), Box::new(())).unwrap();
        let mut expected = Vec::new();
        let mut sources = 0;
        for number in 0..500_u32 {
            let data = data(number, 60 + number as usize % 90);
            let record = Record {
                timestamp: Some(at(2 * SECOND)),
                wire_len: 200,
                data: &data,
                ..Record::default()
            };
            // Interfaces come one after the other, and stay for some time.
            let source = (number / 7 + number % 3) as usize;
            if number % 10 == 0 {
                assert!(recording.write(&record, at(0)).unwrap());
                expected.push(None);
            } else {
                assert!(recording.write_of(source, &|| describe(source), &record, at(0)).unwrap());
                expected.push(Some(format!("if{source}")));
            }
            sources = sources.max(recording.sources().len());
        }
        let bytes = recording.bytes();
        let in_last = recording.sources();
        recording.finish(Vec::new()).unwrap();
        assert!(sources > 3 && sources < 40, "{sources}");

        let mut files: Vec<PathBuf> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(files.len() > 10, "{files:?}");
        let mut found = Vec::new();
        let mut file_bytes = 0;
        for file in &files {
            let mut reader = Reader::open(file).unwrap();
            while let Some(interface) = reader.next_record().unwrap().map(|record| record.interface)
            {
                found.push(reader.interfaces()[interface as usize].name.clone());
            }
            // Room for the counts at the end is kept.
            let interfaces = reader.interfaces().len() as u64;
            assert!(
                interfaces < 40,
                "a file does not describe all interfaces that were: {interfaces}"
            );
            if compression == Compression::None {
                let len = file.metadata().unwrap().len();
                assert!(
                    len + interfaces * TAIL_BYTES <= BYTES_MAX,
                    "{} has {len} bytes",
                    file.display()
                );
                file_bytes += len;
            }
        }
        assert_eq!(found, expected);
        if compression == Compression::None {
            assert_eq!(bytes, file_bytes);
        }
        let last = Reader::open(files.last().unwrap()).map(|mut reader| {
            while reader.next_record().unwrap().is_some() {}
            reader.interfaces().iter().map(|interface| interface.name.clone()).collect::<Vec<_>>()
        });
        let last = last.unwrap();
        assert!(
            in_last
                .iter()
                .all(|(source, index)| last[*index as usize] == Some(format!("if{source}")))
        );
    }
}
