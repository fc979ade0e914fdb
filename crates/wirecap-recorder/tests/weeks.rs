//! Weeks of recording in seconds: the rules over months, with a stepped clock, midnights and
//! changes of daylight saving time; and real files of three weeks, with checks of memory,
//! descriptors and the directory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use wirecap_recorder::{
    Compression, CutRules, Cutter, Durability, Numbering, Pattern, Period, Recording, Room,
    Settings, Store, StoreRules, Target,
};
use wirecap_savefile::{
    Format, Interface, Reader, Record, Section, StreamSink, Timestamp, Writer as SavefileWriter,
};

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// The local clock is one hour ahead of UTC, and two hours from day 20 to day 40 of every 50 days,
/// changing at 01:00 UTC.
fn daylight_saving(seconds: i64) -> i64 {
    let day = (seconds - 3600).rem_euclid(50 * 86_400) / 86_400;
    if (20..40).contains(&day) { 7200 } else { 3600 }
}

/// A disk in memory: names and sizes.
type Disk = Vec<(PathBuf, u64)>;

/// The result of a simulated recording.
#[derive(Debug, Default)]
struct Outcome {
    packets: u64,
    files: u64,
    /// The maximum number of names that the store held.
    names_most: usize,
}

/// Distributes packets with these times, in seconds, to files by the rules, and checks the budgets
/// after each packet.
fn simulate(cut: CutRules, rules: StoreRules, times: impl Iterator<Item = u64>) -> Outcome {
    const HEAD: u64 = 100;
    const PACKET: u64 = 1000;
    let pattern = Pattern::new(Path::new("d/t-%Y%m%d-%H%M%S-%i.pcap"), Numbering::Pattern).unwrap();
    let mut cutter = Cutter::new(cut, daylight_saving);
    let mut store: Store<PathBuf> = Store::new(rules, []);
    let mut disk = Disk::new();
    let mut outcome = Outcome::default();
    let mut is_open = false;
    // Every name must be new.
    let mut names = BTreeSet::new();
    for seconds in times {
        let nanos = seconds * SECOND;
        if is_open && cutter.is_cut_before(nanos, PACKET) {
            store.complete(disk.last().unwrap().0.clone());
            is_open = false;
        }
        if !is_open {
            while let Room::Remove(name) = store.room_for_file() {
                disk.retain(|(other, _)| *other != name);
            }
            let path = pattern.path(outcome.files, seconds.cast_signed());
            let found = pattern.sequence_of(path.file_name().unwrap().to_str().unwrap());
            assert_eq!(found, Some(Some(outcome.files)), "{path:?}");
            assert!(names.insert(path.clone()), "{path:?} was there already");
            disk.push((path, 0));
            outcome.files += 1;
            cutter.open(nanos, HEAD, 0);
            is_open = true;
            write(&mut store, &mut disk, HEAD);
        }
        assert!(!cutter.is_over(nanos), "a file takes the packet that it was opened for");
        write(&mut store, &mut disk, PACKET);
        cutter.add(PACKET);
        outcome.packets += 1;
        assert!(rules.files.is_none_or(|most| disk.len() as u64 <= most), "{} files", disk.len());
        let used = disk.iter().map(|(_, bytes)| bytes).sum::<u64>();
        assert!(rules.bytes.is_none_or(|most| used <= most), "{used} bytes");
        assert!(cut.packets.is_none_or(|most| cutter.packets() <= most));
        outcome.names_most = outcome.names_most.max(store.names().count());
        if rules == StoreRules::default() {
            disk.clear();
            disk.push((PathBuf::new(), 0));
        }
    }
    outcome
}

fn write(store: &mut Store<PathBuf>, disk: &mut Disk, bytes: u64) {
    loop {
        match store.room_for(bytes, u64::MAX) {
            Room::Enough => break,
            Room::Remove(name) => disk.retain(|(other, _)| *other != name),
            Room::None => panic!("the open file alone is small"),
        }
    }
    let open = disk.last_mut().unwrap();
    open.1 += bytes;
    store.set_open_bytes(open.1);
}

fn hourly() -> CutRules {
    let period = Period { length: Duration::from_secs(HOUR), is_aligned: true };
    CutRules { period: Some(period), ..CutRules::default() }
}

#[test]
fn half_a_year_of_hourly_files_uses_memory_only_for_kept_files() {
    const BEGIN: u64 = 1_700_000_000 / DAY * DAY;
    let times = || (BEGIN..BEGIN + 180 * DAY).step_by(600);
    // The repeated hour is one period, since both hours have the same local time.
    let offsets: Vec<i64> = times().map(|seconds| daylight_saving(seconds.cast_signed())).collect();
    let repeated = offsets.windows(2).filter(|pair| pair[1] < pair[0]).count() as u64;
    assert!(repeated >= 3);
    let kept = StoreRules { files: Some(48), ..StoreRules::default() };
    for rules in [StoreRules::default(), kept] {
        let outcome = simulate(hourly(), rules, times());
        assert_eq!(outcome.packets, 180 * DAY / 600);
        assert_eq!(outcome.files, 180 * 24 - repeated);
        // Without a budget, no file is removed and no name is stored.
        assert_eq!(outcome.names_most, if rules == kept { 47 } else { 0 });
    }
}

#[test]
fn days_are_cut_at_local_midnight_for_half_a_year() {
    const BEGIN: u64 = 1_700_000_000 / DAY * DAY;
    let period = Period { length: Duration::from_secs(DAY), is_aligned: true };
    let cut = CutRules { period: Some(period), ..CutRules::default() };
    let outcome = simulate(cut, StoreRules::default(), (BEGIN..BEGIN + 180 * DAY).step_by(600));
    // The first day begins at midnight UTC, after midnight on the local clock.
    assert_eq!(outcome.files, 181);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// A clock that is stepped forward and back, by seconds or by months, produces no duplicate
    /// names, exceeds no budget, and loses no packet.
    #[test]
    fn a_stepped_clock_breaks_no_rule(
        steps in proptest::collection::vec((0..500_usize, -40_000_000..40_000_000_i64), 0..12),
        pauses in proptest::collection::vec(0..4000_u64, 500),
        files in proptest::option::of(2..20_u64),
        bytes in proptest::option::of(200_000..400_000_u64),
        packets in proptest::option::of(1..30_u64),
        length in prop_oneof![Just(60), Just(HOUR), Just(DAY)],
        is_aligned in any::<bool>(),
    ) {
        let mut clock = 1_700_000_000_u64;
        let times: Vec<u64> = pauses.iter().enumerate().map(|(place, pause)| {
            clock += pause;
            for (_, step) in steps.iter().filter(|(at, _)| *at == place) {
                clock = clock.saturating_add_signed(*step).max(1_000_000_000);
            }
            clock
        }).collect();
        let period = Some(Period { length: Duration::from_secs(length), is_aligned });
        let cut = CutRules { packets: Some(packets.unwrap_or(90)), bytes: None, period };
        let outcome = simulate(cut, StoreRules { files, bytes, free_bytes: None }, times.into_iter());
        prop_assert_eq!(outcome.packets, 500);
    }
}

/// The number of descriptors of this process and the bytes of its anonymous memory, from
/// `/proc/self`.
fn resources() -> (usize, u64) {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    (descriptors, line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024)
}

#[test]
fn three_weeks_of_files_use_no_more_resources_than_the_first_days() {
    const KEPT: u64 = 24;
    const DAYS: u64 = 21;
    let folder = tempfile::tempdir().unwrap();
    let mut head = SavefileWriter::new(
        StreamSink::new(Vec::new(), "memory"),
        Format::Pcapng,
        &Section::default(),
    );
    head.add_interface(&Interface::default()).unwrap();
    let settings = Settings {
        format: Format::Pcapng,
        head: head.finish().unwrap().into_inner(),
        tail_bytes: 0,
        sources: Vec::new(),
        interfaces: 1,
        source_tail_bytes: 0,
        compression: Compression::Zstandard,
        compressors: 2,
        cut: hourly(),
        store: StoreRules { files: Some(KEPT), ..StoreRules::default() },
        files_max: None,
        bytes_max: None,
        durability: Durability::None,
        command: None,
        line: None,
    };
    let pattern = Pattern::new(&folder.path().join("t-%i.pcapng.zst"), Numbering::Pattern).unwrap();
    let begin = 1_700_000_000 / HOUR * HOUR;
    let at = |seconds: u64| Timestamp::from_unix_nanos(seconds * SECOND);
    let mut recording =
        Recording::begin(settings, Target::Set(pattern), at(begin), Box::new(())).unwrap();
    let mut early = None;
    let mut written = 0_u64;
    for seconds in (begin..begin + DAYS * DAY).step_by(300) {
        let data = written.to_le_bytes();
        let record =
            Record { timestamp: Some(at(seconds)), wire_len: 60, data: &data, ..Record::default() };
        assert!(recording.write(&record, at(seconds)).unwrap());
        written += 1;
        // As in practice, the packets of an hour are on the disk before the next ones arrive.
        if written.is_multiple_of(12) {
            recording.flush().unwrap();
            while recording.summary().packets < written {
                std::thread::yield_now();
            }
            let files = fs::read_dir(folder.path()).unwrap().count() as u64;
            assert!(files <= KEPT, "{files} files");
            // Measured here, since the writer is between two files when the first packet of an hour
            // arrives.
            if written == 2 * DAY / 300 {
                early = Some(resources());
            }
        }
    }
    let early = early.unwrap();
    let late = resources();
    assert_eq!(early.0, late.0, "descriptors");
    // Other tests run in the same process and use memory for a while.
    assert!(late.1 < early.1 + (8 << 20), "{early:?} {late:?}");
    let summary = recording.finish(Vec::new()).unwrap();
    assert_eq!((summary.packets, summary.files), (written, DAYS * 24));
    assert_eq!(summary.removed, DAYS * 24 - KEPT);
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut numbers = Vec::new();
    for path in &paths {
        let mut reader = Reader::open(path).unwrap();
        while let Some(record) = reader.next_record().unwrap() {
            numbers.push(u64::from_le_bytes(record.data.try_into().unwrap()));
        }
    }
    let expected: Vec<u64> = (written - KEPT * 12..written).collect();
    assert_eq!(numbers, expected, "the last {KEPT} hours");
}
