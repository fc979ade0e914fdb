//! Recordings of live traffic on disks that fill up, fail, are slow, stall and lose power, and by
//! processes that are killed. A recording continues or ends with an error that states the reason;
//! files with final names are complete; the ledger agrees with the files.

mod disk;
#[path = "../recording/mod.rs"]
mod recording;
mod soak;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use disk::{Disk, Faults};
use recording::{Bed, Finished, Running, WIRECAP};
use rustix::process::Signal;
use tempfile::TempDir;
use wirecap::savefile::{ReadError, Reader};
use wirecap_testbed::{
    Generator, Load, Sizes, Stamp, Traffic, cpu_times, pass_program, privileged, wait_until,
};

/// Chunks of a pool that has room for all packets of most tests, so that the result does not depend
/// on the machine's speed.
const DEEP: &str = "1024";

/// A number from the environment, or the default for a short run.
fn setting(name: &str, short: u64) -> u64 {
    env::var(name).map_or(short, |value| {
        value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number"))
    })
}

/// Whether to try all combinations, which takes minutes: `WIRECAP_FAULTS=all`.
fn is_thorough() -> bool {
    env::var("WIRECAP_FAULTS").is_ok_and(|value| value == "all")
}

/// Starts a recording, and returns when its first file is there.
fn start(bed: &Bed, file: &Path, chunks: &str, more: &[&str]) -> Running {
    let path = file.to_str().unwrap();
    let arguments = ["capture", "-i", "a1", "-w", path, "--json", "-M", "64", "-R", chunks];
    let running = bed.capture(&[&arguments[..], more].concat());
    let directory = file.parent().unwrap();
    let has_begun = |path: &Path| {
        let is_open = path == file || path.extension().is_some_and(|extension| extension == "part");
        is_open && path.metadata().is_ok_and(|metadata| metadata.len() > 0)
    };
    wait_until(&format!("{} has the first file", directory.display()), || {
        fs::read_dir(directory).unwrap().any(|entry| has_begun(&entry.unwrap().path()))
    });
    running
}

/// Numbers and times, in nanoseconds, of the packets of a file. An incomplete file may end within a
/// packet.
fn packets(path: &Path) -> Vec<(u64, u64)> {
    let may_be_torn = path.extension().is_some_and(|extension| extension == "part");
    let mut packets = Vec::new();
    let mut reader = match Reader::open(path) {
        Ok(reader) => reader,
        Err(_) if may_be_torn => return packets,
        Err(error) => panic!("{}: {error}", path.display()),
    };
    loop {
        match reader.next_record() {
            Ok(Some(record)) => {
                let stamp = Stamp::of(record.data).expect("the generator's");
                packets.push((stamp.sequence, record.timestamp.unwrap().unix_nanos()));
            }
            Ok(None) => return packets,
            Err(ReadError::Truncated { .. } | ReadError::Malformed { .. }) if may_be_torn => {
                return packets;
            }
            Err(ReadError::Source { source, .. })
                if may_be_torn && source.kind() == io::ErrorKind::UnexpectedEof =>
            {
                return packets;
            }
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
}

/// The files of a directory by name, with their packets.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<(u64, u64)>> {
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), packets(&path))).collect()
}

/// The number of packets in the files, which must be the first ones sent, each once and in order.
#[track_caller]
fn first_packets(files: &BTreeMap<PathBuf, Vec<(u64, u64)>>) -> u64 {
    let numbers: Vec<u64> = files.values().flatten().map(|(number, _)| *number).collect();
    let expected: Vec<u64> = (0..numbers.len() as u64).collect();
    assert!(numbers == expected, "not the first {} packets: {:?}", numbers.len(), gaps(&numbers));
    expected.len() as u64
}

fn gaps(numbers: &[u64]) -> Vec<(u64, u64)> {
    numbers
        .windows(2)
        .filter(|pair| pair[1] != pair[0] + 1)
        .map(|pair| (pair[0], pair[1]))
        .take(5)
        .collect()
}

/// Names with all formats and compressions.
const NAMES: [&str; 4] = ["t-%i.pcapng", "t-%i.pcap", "t-%i.pcapng.zst", "t-%i.pcap.gz"];

/// Random numbers from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn count(value: &serde_json::Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Checks the ledger: every packet sent was delivered or dropped by the capture, and the packets in
/// the file, those written, and those discarded for the writer are not more than those delivered.
/// Returns the number in the file.
#[track_caller]
fn in_file(finished: &Finished, sent: u64) -> u64 {
    let ledger = finished.ledger();
    let dropped = &ledger["dropped"];
    let recorded = &ledger["recorded"];
    let [delivered, in_file, written] =
        [&ledger["delivered"], &recorded["in_file"], &recorded["written"]].map(count);
    assert_eq!(
        delivered + count(&dropped["no_cell"]) + count(&dropped["ring_full"]),
        sent,
        "{ledger}"
    );
    assert!(in_file <= written && written + count(&recorded["writer"]) <= delivered, "{ledger}");
    in_file
}

type Fault = fn(&mut Faults);

#[test]
fn a_disk_that_fails_ends_the_recording_with_an_error_and_whole_files() {
    if !privileged() {
        return;
    }
    // The fault, the expected words of the error, and whether the disk keeps what it has accepted.
    let cases: [(Fault, &str, bool); 4] = [
        (|faults| faults.room = Some(2_345_678), "No space left", true),
        (|faults| faults.write_error_behind = Some(2_345_678), "Input/output error", true),
        (|faults| faults.sync_error_behind = Some(4), "Input/output error", false),
        (|faults| faults.is_read_only = true, "Read-only file system", true),
    ];
    let names = ["t-%i.pcapng", "t-%i.pcapng.zst", "t-%i.pcap"];
    for (place, name) in names.into_iter().enumerate() {
        for (case, (fault, words, keeps)) in cases.into_iter().enumerate() {
            if !is_thorough() && case % names.len() != place {
                continue;
            }
            let bed = Bed::new(1);
            let disk = Disk::mount();
            let more = ["--file-size", "1M", "--sync", "200ms"];
            let running = start(&bed, &disk.path().join(name), DEEP, &more);
            // A compressed file is small, so the disk fails from the beginning.
            disk.set(|faults| {
                fault(faults);
                if name.ends_with(".zst") {
                    faults.room = faults.room.map(|_| 100_000);
                    faults.write_error_behind = faults.write_error_behind.map(|_| 100_000);
                }
            });
            let mut generator = bed.generator();
            let sent =
                generator.send(&[Load::new(0, 40_000).per_second(60_000)]).unwrap()[0].frames;
            let finished = running.finish();
            finished.assert_refused(1, &[words, disk.path().to_str().unwrap()]);
            let ledger = finished.ledger();
            assert!(count(&ledger["delivered"]) <= sent, "{ledger}");
            assert_eq!(ledger["lossless"], false, "{ledger}");
            // It is unknown what a failed sync has lost, so the ledger counts only what is
            // certainly on the disk.
            let found = disk.after_power_loss();
            let there = files(if keeps { disk.path() } else { found.path() });
            assert_eq!(
                first_packets(&there),
                count(&ledger["recorded"]["in_file"]),
                "{name}: {words}: {ledger}"
            );
            // The incomplete file does not have its final name.
            let is_part =
                |path: &PathBuf| path.extension().is_some_and(|extension| extension == "part");
            assert!(files(disk.path()).keys().any(is_part), "{name}: {words}");
        }
    }
}

#[test]
fn short_writes_are_continued() {
    if !privileged() {
        return;
    }
    for (name, bytes, sent) in
        [("t-%i.pcapng", 60, 20_000), ("t-%i.pcap.gz", 60, 20_000), ("t-%i.pcapng", 1500, 2_000)]
    {
        let bed = Bed::new(1);
        let disk = Disk::mount();
        disk.set(|faults| faults.gulp = Some(1000));
        let running = start(&bed, &disk.path().join(name), DEEP, &["--file-size", "500K"]);
        let traffic = Traffic { sizes: Sizes::fixed(bytes), ..bed.traffic() };
        Generator::new(&bed.pair.sender, &traffic).unwrap().send(&[Load::new(0, sent)]).unwrap();
        let finished = running.interrupt();
        finished.assert_success();
        assert_eq!(in_file(&finished, sent), sent, "{name}, {bytes}");
        assert_eq!(first_packets(&files(disk.path())), sent, "{name}, {bytes}");
    }
}

#[test]
fn a_slow_disk_is_reported_as_backlog_before_packets_are_lost_by_the_writer() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let disk = Disk::mount();
    // 30 MB/s arrive, and the disk writes 5.
    disk.set(|faults| faults.bytes_per_second = Some(5_000_000));
    let file = disk.path().join("t.pcapng");
    let running = start(&bed, &file, "128", &[]);
    let sent = 60_000;
    let traffic = Traffic { sizes: Sizes::fixed(1500), ..bed.traffic() };
    let mut generator = Generator::new(&bed.pair.sender, &traffic).unwrap();
    generator.send(&[Load::new(0, sent).per_second(20_000)]).unwrap();
    disk.set(|faults| faults.bytes_per_second = None);
    let finished = running.interrupt();
    let in_file = in_file(&finished, sent);
    let ledger = finished.ledger();
    let writer = count(&ledger["recorded"]["writer"]);
    assert!(writer > 0 && ledger["delivered"] == in_file + writer, "{ledger}");
    assert_eq!(finished.status.code(), Some(3), "{}", finished.stderr);
    let numbers: Vec<u64> = packets(&file).iter().map(|(number, _)| *number).collect();
    assert!(numbers.len() as u64 == in_file && numbers.is_sorted_by(|a, b| a < b), "{ledger}");
    let said = |words: &str| {
        finished.stderr.find(words).unwrap_or_else(|| panic!("{words:?}: {}", finished.stderr))
    };
    let backlog = said("packets wait for");
    let loss = said("the writer's queue is full");
    assert!(backlog < loss, "{}", finished.stderr);
}

/// `WIRECAP_STALL_SECONDS=10 WIRECAP_STALL_RATE=200000` tests the documented limits, in a release
/// build.
#[test]
fn a_stalled_disk_loses_no_packets_while_the_pool_has_room() {
    if !privileged() {
        return;
    }
    let seconds = setting("WIRECAP_STALL_SECONDS", 2);
    let rate = setting("WIRECAP_STALL_RATE", 20_000);
    // Seven eighths of the pool may wait, in addition to 14 pages.
    let chunks = (rate * (seconds + 1) / 64 * 8 / 7 + 64).to_string();
    for engine in ["xdp", "packet"].into_iter().take(if is_thorough() { 2 } else { 1 }) {
        let bed = Bed::new(1);
        let disk = Disk::mount();
        // On a veth, packet sockets receive the generator's frames only if an XDP program passes
        // them.
        let _passing = (engine == "packet").then(|| pass_program(&bed.pair.receiver).unwrap());
        let file = disk.path().join("t.pcapng");
        let running = start(&bed, &file, &chunks, &["--engine", engine]);
        let mut generator = bed.generator();
        let sent = rate * (seconds + 1);
        let sending = generator.start(&[Load::new(0, sent).per_second(rate)]).unwrap();
        thread::sleep(Duration::from_millis(500));
        disk.set(|faults| faults.is_stalled = true);
        let before = disk.written_bytes();
        let begin = Instant::now();
        thread::sleep(Duration::from_secs(seconds));
        assert_eq!(disk.written_bytes(), before, "it stood still for {:?}", begin.elapsed());
        disk.set(|faults| faults.is_stalled = false);
        sending.wait().unwrap();
        let finished = running.interrupt();
        finished.assert_success();
        assert_eq!(in_file(&finished, sent), sent, "{engine}");
        assert_eq!(packets(&file).len() as u64, sent, "{engine}");
        assert!(finished.stderr.contains("accepts no data"), "{}", finished.stderr);
    }
}

/// The common part of runs that are killed.
struct Runs {
    bed: Bed,
    folder: TempDir,
}

impl Runs {
    fn paths(&self) -> BTreeSet<PathBuf> {
        fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// The packets of all files except those of `before`, in the order of the files' numbers.
    fn new_files(&self, before: &BTreeSet<PathBuf>) -> BTreeMap<PathBuf, Vec<(u64, u64)>> {
        self.paths().difference(before).map(|path| (path.clone(), packets(path))).collect()
    }
}

#[test]
fn a_killed_process_leaves_complete_files_and_the_next_one_continues() {
    if !privileged() {
        return;
    }
    let seed = setting("WIRECAP_SEED", u64::from(std::process::id()));
    println!("WIRECAP_SEED={seed}");
    let kills = setting("WIRECAP_KILLS", 4);
    let mut chance = Chance(seed);
    let runs = Runs { bed: Bed::new(1), folder: TempDir::new().unwrap() };
    for kill in 0..kills {
        let name = NAMES[kill as usize % NAMES.len()];
        let before = runs.paths();
        let pattern = runs.folder.path().join(name);
        let running = start(&runs.bed, &pattern, DEEP, &["--file-size", "100K", "--sync", "none"]);
        let mut generator = runs.bed.generator();
        let sending = generator.start(&[Load::endless(0).per_second(30_000)]).unwrap();
        thread::sleep(Duration::from_millis(chance.below(600)));
        // Packets that can be read now must remain. Files that are renamed while the directory is
        // read may be missed, so only the packets before the first gap count.
        let seen: BTreeSet<u64> =
            runs.new_files(&before).values().flatten().map(|(number, _)| *number).collect();
        let seen = (0..).take_while(|number| seen.contains(number)).count() as u64;
        thread::sleep(Duration::from_millis(chance.below(600)));
        running.signal(Signal::KILL);
        assert_eq!(running.finish_killed(), None, "a status");
        let sent: u64 = sending.stop().unwrap().iter().map(|sent| sent.frames).sum();
        let left = runs.new_files(&before);
        let parts = left.keys().filter(|path| path.to_str().unwrap().ends_with(".part")).count();
        assert!(parts <= 1, "{:?}", left.keys());
        let kept = first_packets(&left);
        assert!(seen <= kept && kept <= sent, "{seen} were seen, {kept} of {sent} are there");
        // The next process completes the files that this one left, and loses none of their packets.
        let bed = &runs.bed;
        let next = bed.run(
            Command::new(WIRECAP).args(["capture", "-i", "a1", "--duration", "10ms"]).args([
                "--file-size",
                "100K",
                "-w",
                pattern.to_str().unwrap(),
            ]),
        );
        next.assert_success();
        let completed = runs.new_files(&before);
        assert_eq!(first_packets(&completed), kept);
        let is_complete = |path: &PathBuf| !path.to_str().unwrap().ends_with(".part");
        assert!(completed.keys().all(is_complete), "{:?}", completed.keys());
    }
}

#[test]
fn a_power_failure_loses_at_most_the_sync_time() {
    if !privileged() {
        return;
    }
    let sync = Duration::from_secs(2);
    let cases = [("t-%i.pcap", "1G"), ("t-%i.pcapng", "300K"), ("t-%i.pcapng.zst", "1G")];
    for (name, size) in cases.into_iter().take(if is_thorough() { 3 } else { 1 }) {
        let bed = Bed::new(1);
        let disk = Disk::mount();
        let running =
            start(&bed, &disk.path().join(name), DEEP, &["--file-size", size, "--sync", "2s"]);
        let mut generator = bed.generator();
        let sending = generator.start(&[Load::endless(0).per_second(5000)]).unwrap();
        thread::sleep(Duration::from_millis(3300));
        // The time for which the threads waited for a CPU is allowed in addition.
        let waited: Duration =
            cpu_times(&running.id().to_string()).unwrap().values().map(|time| time.waited).sum();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let found = disk.after_power_loss();
        running.signal(Signal::KILL);
        assert_eq!(running.finish_killed(), None, "a status");
        let sent: u64 = sending.stop().unwrap().iter().map(|sent| sent.frames).sum();
        let there = files(found.path());
        let kept = first_packets(&there);
        let last = there.values().flatten().last().map(|(_, nanos)| Duration::from_nanos(*nanos));
        let lost = last.map(|last| now.saturating_sub(last));
        assert!(
            lost.is_some_and(|lost| lost <= sync + waited),
            "{name}: {kept} of {sent} packets are there, {lost:?} are lost; {waited:?} waited"
        );
        // The next recording continues with the files found.
        let pattern = found.path().join(name);
        let next = bed.run(
            Command::new(WIRECAP).args(["capture", "-i", "a1", "--duration", "10ms"]).args([
                "--file-size",
                size,
                "-w",
                pattern.to_str().unwrap(),
            ]),
        );
        next.assert_success();
        assert_eq!(first_packets(&files(found.path())), kept);
    }
}

#[test]
fn an_incomplete_file_that_cannot_be_read_is_kept_and_the_next_recording_starts() {
    if !privileged() {
        return;
    }
    for name in NAMES {
        let bed = Bed::new(1);
        let disk = Disk::mount();
        let pattern = disk.path().join(name);
        let running = start(&bed, &pattern, DEEP, &["--file-size", "1G"]);
        bed.generator().send(&[Load::new(0, 5_000)]).unwrap();
        wait_until(&format!("{name} has the packets"), || {
            first_packets(&files(disk.path())) >= 5_000
        });
        running.signal(Signal::KILL);
        assert_eq!(running.finish_killed(), None, "a status");
        let [complete, next, last] =
            ["00001", "00002", "00003"].map(|number| disk.path().join(name.replace("%i", number)));
        let part = disk.path().join(name.replace("%i", "00001") + ".part");
        let bytes = fs::read(&part).unwrap();
        let record = || {
            let mut command = Command::new(WIRECAP);
            command.args(["capture", "-i", "a1", "--duration", "10ms", "--file-size", "1G", "-w"]);
            bed.run(command.arg(&pattern)).assert_success();
        };
        // At the beginning, in the middle, and in the last block.
        for readable in [0, bytes.len() / 2, bytes.len() - 1] {
            disk.set(|faults| faults.read_error_behind = Some(readable));
            record();
            disk.set(|faults| faults.read_error_behind = None);
            assert!(
                fs::read(&part).unwrap() == bytes && next.exists(),
                "{name}: error at {readable}"
            );
            fs::remove_file(&next).unwrap();
        }
        record();
        record();
        assert!(complete.exists() && next.exists() && last.exists() && !part.exists(), "{name}");
        assert_eq!(first_packets(&files(disk.path())), 5_000);
    }
}

/// What a killed process has written is not on the disk yet. The next one completes the file, and
/// has it written before the file gets its name.
#[test]
fn a_file_that_the_next_process_completes_survives_a_power_failure() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let disk = Disk::mount();
    let pattern = disk.path().join("t-%i.pcap");
    let running = start(&bed, &pattern, DEEP, &["--file-size", "1G", "--sync", "none"]);
    bed.generator().send(&[Load::new(0, 1_000)]).unwrap();
    wait_until("the packets are written", || first_packets(&files(disk.path())) == 1_000);
    running.signal(Signal::KILL);
    assert_eq!(running.finish_killed(), None, "a status");
    assert_eq!(
        first_packets(&files(disk.after_power_loss().path())),
        0,
        "a sync came before the power failure"
    );
    let arguments = ["capture", "-i", "a1", "--duration", "10ms", "--file-size", "1G", "-w"];
    let next = bed.run(Command::new(WIRECAP).args(arguments).arg(&pattern));
    next.assert_success();
    let found = disk.after_power_loss();
    let bytes =
        fs::metadata(found.path().join("t-00001.pcap")).map_or(0, |metadata| metadata.len());
    assert!(bytes > 1_000 * 60, "the completed file is on the disk, with {bytes} bytes");
    assert_eq!(first_packets(&files(found.path())), 1_000, "the completed file is on the disk");
}

#[test]
fn complete_files_survive_a_power_failure_unless_syncs_are_turned_off() {
    if !privileged() {
        return;
    }
    for (sync, kept) in [("close", 1_000), ("none", 0)] {
        let bed = Bed::new(1);
        let disk = Disk::mount();
        let more = ["--file-packets", "500", "--sync", sync];
        let running = start(&bed, &disk.path().join("t-%i.pcap"), DEEP, &more);
        bed.generator().send(&[Load::new(0, 1_250)]).unwrap();
        let third = disk.path().join("t-00003.pcap.part");
        wait_until("the third file exists", || third.exists());
        let found = disk.after_power_loss();
        assert_eq!(first_packets(&files(found.path())), kept, "--sync {sync}");
        let finished = running.interrupt();
        finished.assert_success();
        assert_eq!(first_packets(&files(disk.path())), 1_250);
    }
}

#[test]
fn a_directory_that_is_removed_ends_the_recording_with_an_error() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let folder = TempDir::new().unwrap();
    let directory = folder.path().join("traces");
    fs::create_dir(&directory).unwrap();
    let running = start(&bed, &directory.join("t-%i.pcap"), DEEP, &["--file-size", "100K"]);
    fs::remove_dir_all(&directory).unwrap();
    bed.generator().send(&[Load::new(0, 10_000)]).unwrap();
    let finished = running.finish();
    finished.assert_refused(1, &[directory.to_str().unwrap(), "No such file or directory"]);
    assert_eq!(finished.ledger()["recorded"]["in_file"], 0, "{}", finished.ledger());
    assert_eq!(finished.ledger()["lossless"], false, "{}", finished.ledger());
}

/// The disk updates its maximum after each write and each new name, so no moment is missed.
#[test]
fn budgets_hold_at_every_moment_of_a_live_recording() {
    if !privileged() {
        return;
    }
    let seed = setting("WIRECAP_SEED", u64::from(std::process::id()));
    println!("WIRECAP_SEED={seed}");
    let mut chance = Chance(seed);
    for number in 0..if is_thorough() { 30 } else { 2 } {
        let bed = Bed::new(1);
        let disk = Disk::mount();
        let name = NAMES[number % NAMES.len()];
        let files_max = 2 + chance.below(6);
        let bytes = 4_200_000 + chance.below(3_000_000);
        let size = 100_000 + chance.below(1_900_000);
        let packets = 1000 + chance.below(20_000);
        let more = [
            ("--keep-files", files_max.to_string()),
            ("--keep-bytes", bytes.to_string()),
            ("--file-size", size.to_string()),
            ("--file-packets", packets.to_string()),
        ];
        let more: Vec<&str> =
            more.iter().flat_map(|(option, value)| [*option, value.as_str()]).collect();
        let running = start(&bed, &disk.path().join(name), DEEP, &more);
        let sent = 60_000;
        let mut generator = bed.generator();
        let sending = generator.start(&[Load::new(0, sent).per_second(60_000)]).unwrap();
        for _ in 0..chance.below(4) {
            thread::sleep(Duration::from_millis(chance.below(300)));
            running.signal(Signal::HUP);
        }
        sending.wait().unwrap();
        let finished = running.interrupt();
        finished.assert_success();
        assert_eq!(in_file(&finished, sent), sent, "{more:?}");
        let most = disk.most();
        assert!(most.0 <= bytes && most.1 as u64 <= files_max, "{most:?} with {name} {more:?}");
        let left: Vec<u64> =
            files(disk.path()).values().flatten().map(|(number, _)| *number).collect();
        assert!(
            gaps(&left).is_empty() && left.last() == Some(&(sent - 1)),
            "{more:?}: {:?}",
            gaps(&left)
        );
    }
}

#[test]
fn the_minimum_free_space_holds_while_other_programs_write() {
    if !privileged() {
        return;
    }
    const ROOM: u64 = 8_000_000;
    const FLOOR: u64 = 3_000_000;
    let bed = Bed::new(1);
    let disk = Disk::mount();
    disk.set(|faults| faults.room = Some(ROOM));
    let more = ["--file-size", "500K", "--keep-free", &FLOOR.to_string()];
    let running = start(&bed, &disk.path().join("t-%i.pcap"), DEEP, &more);
    let mut generator = bed.generator();
    let sending = generator.start(&[Load::new(0, 120_000).per_second(60_000)]).unwrap();
    // Another program takes space on the disk; the recording removes its own files.
    fs::write(disk.path().join("other"), vec![0; 1_500_000]).unwrap();
    sending.wait().unwrap();
    let finished = running.interrupt();
    finished.assert_success();
    let (most, _) = disk.most();
    assert!(most + FLOOR <= ROOM, "{most} of {ROOM} bytes were used");
    assert!(most > ROOM - FLOOR - 1_500_000, "{most} bytes: the room was used");
    assert!(finished.stderr.contains("removed by a budget"), "{}", finished.stderr);
    assert_eq!(in_file(&finished, 120_000), 120_000);
    fs::remove_file(disk.path().join("other")).unwrap();
    // The remaining files have the last packets.
    let left: Vec<u64> = files(disk.path()).values().flatten().map(|(number, _)| *number).collect();
    assert!(gaps(&left).is_empty() && left.last() == Some(&119_999), "{:?}", gaps(&left));
}
