//! Recordings with several files on real veth pairs: the contents of the files together, signals,
//! restarts, a slow disk.

mod recording;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use recording::{Bed, Finished, Running, WIRECAP, tcpdump};
use rustix::process::Signal;
use tempfile::TempDir;
use wirecap::savefile::Reader;
use wirecap_testbed::{
    Generator, Load, Sizes, Traffic, pass_program, privileged, wait_until, write_program,
};

/// Options for a pool that has room for all packets of a test, so that the result does not depend
/// on the machine's speed.
const DEEP: [&str; 5] = ["-M", "64", "-R", "1024", "--json"];

fn start(bed: &Bed, file: &Path, more: &[&str]) -> Running {
    let file = file.to_str().unwrap();
    bed.capture(&[&["capture", "-i", "a1", "-w", file], &DEEP[..], more].concat())
}

/// The files, ordered by name.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn names(directory: &Path) -> Vec<String> {
    files(directory)
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect()
}

/// The data of a file's packets.
fn packets(file: &Path) -> Vec<Vec<u8>> {
    let mut reader =
        Reader::open(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut packets = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        packets.push(record.data.to_vec());
    }
    packets
}

/// The times of a file's packets, in nanoseconds.
fn times(file: &Path) -> Vec<u64> {
    let mut reader = Reader::open(file).unwrap();
    let mut times = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        times.push(record.timestamp.unwrap().unix_nanos());
    }
    times
}

fn all_packets(directory: &Path) -> Vec<Vec<u8>> {
    files(directory).iter().flat_map(|file| packets(file)).collect()
}

/// Asserts that every packet was delivered, recorded and is in a file.
#[track_caller]
fn assert_recorded(finished: &Finished, sent: u64) {
    finished.assert_success();
    let ledger = finished.ledger();
    let recorded = &ledger["recorded"];
    assert_eq!(
        (&ledger["delivered"], &recorded["in_file"], &recorded["writer"]),
        (&sent.into(), &sent.into(), &0.into()),
        "{ledger}"
    );
}

#[test]
fn the_files_together_have_every_sent_packet_and_none_exceeds_the_limit() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let expected: Vec<Vec<u8>> = (0..20_000)
        .map(|sequence| bed.traffic().frame(wirecap_testbed::Stamp { queue: 0, sequence }))
        .collect();
    for (name, compressed) in [
        ("t-%i.pcapng", false),
        ("t-%i.pcap", false),
        ("t-%i.pcapng.zst", true),
        ("t-%i.pcap.gz", true),
    ] {
        let folder = TempDir::new().unwrap();
        let running = start(&bed, &folder.path().join(name), &["--file-size", "100K"]);
        wait_until("the first file is there before its first packet", || {
            names(folder.path()).len() == 1
        });
        bed.generator().send(&[Load::new(0, 20_000)]).unwrap();
        let finished = running.interrupt();
        assert_recorded(&finished, 20_000);
        let files = files(folder.path());
        assert!(
            files.len() > 10 && finished.stderr.contains(&format!("in {} files", files.len())),
            "{}",
            finished.stderr
        );
        assert_eq!(all_packets(folder.path()), expected, "{name}");
        for file in &files {
            let metadata = fs::metadata(file).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
            assert!(
                compressed || metadata.len() <= 100 << 10,
                "{}: {} bytes",
                file.display(),
                metadata.len()
            );
            assert!(compressed || tcpdump(file, &[]).1, "{}", file.display());
        }
    }
}

/// In real seconds, because the clock also ends files: the shortest period, on both engines.
#[test]
fn a_file_per_second_has_the_packets_of_that_second() {
    if !privileged() {
        return;
    }
    let second = |nanos: u64| nanos / 1_000_000_000;
    for engine in ["packet", "xdp"] {
        let bed = Bed::new(1);
        let folder = TempDir::new().unwrap();
        let running = start(
            &bed,
            &folder.path().join("t-%i.pcap"),
            &["--engine", engine, "--file-time", "1s"],
        );
        let _passing = (engine == "packet").then(|| pass_program(&bed.pair.receiver).unwrap());
        let mut generator = bed.generator();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            generator.send(&[Load::new(0, 10)]).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
        running.interrupt().assert_success();
        let mut times: Vec<Vec<u64>> =
            files(folder.path()).iter().map(|file| times(file)).collect();
        // The first file begins with the capture, perhaps at the end of a second.
        times.retain(|times| !times.is_empty());
        let seconds: Vec<u64> = times.iter().map(|times| second(times[0])).collect();
        let expected: Vec<u64> = (seconds[0]..seconds[0] + seconds.len() as u64).collect();
        assert_eq!(seconds, expected, "{engine}");
        assert!((5..=7).contains(&seconds.len()), "{engine}: {seconds:?}");
        for (times, expected) in times.iter().zip(expected) {
            assert!(times.iter().all(|time| second(*time) == expected), "{engine}: {times:?}");
        }
    }
}

/// What a recording reports as written exists, and is what tcpdump would have written.
#[test]
fn reports_name_files_that_exist() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    for (more, expected) in [
        (&["-G", "1", "-W", "1"][..], Some("g.pcap")),
        (&["--file-packets", "100"], None),
        (&["--file-packets", "30"], None),
    ] {
        let folder = TempDir::new().unwrap();
        let running = start(&bed, &folder.path().join("g.pcap"), more);
        bed.generator().send(&[Load::new(0, 100)]).unwrap();
        let finished = if expected.is_some() {
            running.finish()
        } else {
            wait_until("the packets are there", || all_packets(folder.path()).len() == 100);
            running.interrupt()
        };
        assert_recorded(&finished, 100);
        let names = names(folder.path());
        if let Some(expected) = expected {
            assert_eq!(names, [expected]);
        }
        let to = finished.ledger()["recorded"]["to"].as_str().unwrap().to_owned();
        let said: Vec<&str> =
            to.split(" ... ").map(|path| path.rsplit('/').next().unwrap()).collect();
        let ends = if names.len() == 1 {
            vec![&*names[0]]
        } else {
            vec![&*names[0], &names[names.len() - 1]]
        };
        assert_eq!(said, ends, "{more:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(&format!("to {to}")), "{}", finished.stderr);
    }
}

#[test]
fn sighup_starts_the_next_file_and_the_capture_continues() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let folder = TempDir::new().unwrap();
    let running = start(&bed, &folder.path().join("t-%i.pcap"), &["--file-size", "1G"]);
    for round in 1..=3_usize {
        bed.generator().send(&[Load::new(0, 100)]).unwrap();
        // Packets sent before the signal are in the file that the signal ends.
        wait_until("the packets are in the file", || {
            let last = files(folder.path()).pop().unwrap();
            last.to_str().unwrap().ends_with(".part") && tcpdump(&last, &[]).0.len() == 100
        });
        running.signal(Signal::HUP);
        wait_until("the file is complete", || {
            names(folder.path()).iter().filter(|name| name.ends_with(".pcap")).count() == round
        });
    }
    assert_recorded(&running.interrupt(), 300);
    assert_eq!(names(folder.path()), ["t-00001.pcap", "t-00002.pcap", "t-00003.pcap"]);
    assert!(files(folder.path()).iter().all(|file| packets(file).len() == 100));
}

#[test]
fn budgets_and_sequence_continue_after_a_restart() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let folder = TempDir::new().unwrap();
    let pattern = folder.path().join("t-%i.pcap");
    for round in 0..3 {
        let running = start(&bed, &pattern, &["--file-packets", "10", "--keep-files", "4"]);
        bed.generator().send(&[Load::new(0, 25)]).unwrap();
        assert_recorded(&running.interrupt(), 25);
        let last: usize = 3 * (round + 1);
        let expected: Vec<String> = (1..=last)
            .skip(last.saturating_sub(4))
            .map(|number| format!("t-{number:05}.pcap"))
            .collect();
        assert_eq!(names(folder.path()), expected);
    }
}

#[test]
fn flags_of_tcpdump_and_dumpcap_create_the_same_files_as_there() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    for (flags, expected) in [
        (&["-C", "1", "-W", "3"][..], &["t.pcap0", "t.pcap1", "t.pcap2"][..]),
        (&["-C", "1k", "-c", "30"], &["t.pcap", "t.pcap1", "t.pcap2"]),
    ] {
        let folder = TempDir::new().unwrap();
        let running = start(&bed, &folder.path().join("t.pcap"), flags);
        bed.generator().send(&[Load::new(0, 60_000)]).unwrap();
        let finished = if flags.contains(&"-c") { running.finish() } else { running.interrupt() };
        finished.assert_success();
        assert_eq!(names(folder.path()), expected, "{}", finished.stderr);
    }
    let folder = TempDir::new().unwrap();
    let running = start(
        &bed,
        &folder.path().join("t.pcapng"),
        &["-b", "packets:10", "-b", "files:2", "-a", "packets:45"],
    );
    bed.generator().send(&[Load::new(0, 1000)]).unwrap();
    running.finish().assert_success();
    let names = names(folder.path());
    assert!(
        names.len() == 2 && names[0].starts_with("t_00004_") && names[1].starts_with("t_00005_"),
        "{names:?}"
    );
    assert_eq!(all_packets(folder.path()).len(), 15);
}

#[test]
fn a_command_is_run_for_each_complete_file() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let folder = TempDir::new().unwrap();
    let copies = TempDir::new().unwrap();
    let script = folder.path().join("copy");
    write_program(&script, &format!("#!/bin/sh\ncp \"$1\" {}\n", copies.path().display()));
    let command = script.to_str().unwrap();
    let running =
        start(&bed, &folder.path().join("t-%i.pcap"), &["--file-packets", "100", "-z", command]);
    bed.generator().send(&[Load::new(0, 950)]).unwrap();
    assert_recorded(&running.interrupt(), 950);
    assert_eq!(all_packets(copies.path()).len(), 950);
}

#[test]
fn a_descriptor_gets_the_path_of_each_complete_file() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let folder = TempDir::new().unwrap();
    let elsewhere = TempDir::new().unwrap();
    let list = elsewhere.path().join("list");
    let file = folder.path().join("t-%i.pcap");
    let shell = |descriptor: &str| {
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec \"$@\" 3>\"$0\""])
            .arg(&list)
            .args([WIRECAP, "capture", "-i", "a1", "-w"]);
        command.arg(&file).args(["--file-packets", "100", "--announce-fd", descriptor]).args(DEEP);
        command
    };
    let mut running = bed.start(&mut shell("3"));
    running.wait_for("capturing");
    bed.generator().send(&[Load::new(0, 950)]).unwrap();
    assert_recorded(&running.interrupt(), 950);
    let announced: Vec<PathBuf> =
        fs::read_to_string(&list).unwrap().lines().map(PathBuf::from).collect();
    assert_eq!((announced.len(), announced), (10, files(folder.path())));
    bed.run(&mut shell("77")).assert_refused(1, &["file descriptor 77"]);
}

#[test]
fn two_captures_do_not_write_to_the_same_file_or_set() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let folder = TempDir::new().unwrap();
    for (name, more) in [("one.pcapng", &["--force"][..]), ("t-%i.pcap", &["--file-size", "1G"])] {
        let file = folder.path().join(name);
        let running = start(&bed, &file, more);
        // The file is created only after the interface is open.
        wait_until("the first capture has its file", || {
            names(folder.path()).iter().any(|found| found[..2] == name[..2])
        });
        let path = file.to_str().unwrap();
        let second = bed.run(
            Command::new(WIRECAP).args(
                [
                    &["capture", "-i", "a1", "--engine", "packet", "-w", path, "--duration", "1s"],
                    more,
                ]
                .concat(),
            ),
        );
        second.assert_refused(1, &["another process is writing"]);
        bed.generator().send(&[Load::new(0, 100)]).unwrap();
        assert_recorded(&running.interrupt(), 100);
    }
    assert_eq!(all_packets(folder.path()).len(), 200);
}

/// A library that delays the first large write of a process until the file `STALLED_UNTIL` exists,
/// for at most a minute.
const STALL: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>
static void stall(size_t count) {
    static int stalled;
    if (count > 10000 && !__sync_lock_test_and_set(&stalled, 1))
        for (int n = 0; n < 6000 && access(getenv("STALLED_UNTIL"), F_OK); n++) usleep(10000);
}
ssize_t write(int fd, const void *bytes, size_t count) {
    ssize_t (*next)(int, const void *, size_t) = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    stall(count);
    return next(fd, bytes, count);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    ssize_t (*next)(int, const struct iovec *, int) =
        (ssize_t (*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev");
    size_t bytes = 0;
    for (int n = 0; n < count; n++) bytes += parts[n].iov_len;
    stall(bytes);
    return next(fd, parts, count);
}
"#;

fn stalling(folder: &TempDir) -> PathBuf {
    let source = folder.path().join("stall.c");
    let library = folder.path().join("stall.so");
    fs::write(&source, STALL).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .arg("-ldl")
        .status();
    assert!(compiled.expect("a C compiler is installed by `make test`").success());
    library
}

#[test]
fn a_stalled_disk_costs_no_packets_while_the_pool_has_room_and_is_then_reported_as_the_cause() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let tools = TempDir::new().unwrap();
    let library = stalling(&tools);
    // Before packets wait in the pool, of which seven eighths may be used, 12 pages of 1 MiB are
    // filled, each with 13,797 short packets or 689 long ones.
    let cases = [
        ("xdp", "2048", 60, 280_000, 56_000, true),
        ("packet", "2048", 1514, 100_000, 40_000, true),
        ("xdp", "32", 60, 400_000, 80_000, false),
    ];
    for (engine, chunks, bytes, sent, rate, is_deep) in cases {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("t.pcap");
        let end_of_stall = folder.path().join("end-of-stall");
        let mut running = bed.start(
            Command::new(WIRECAP)
                .env("LD_PRELOAD", &library)
                .env("STALLED_UNTIL", &end_of_stall)
                .args([
                    "capture", "-i", "a1", "--engine", engine, "--json", "-M", "64", "-R", chunks,
                ])
                .args(["--sync", "none"])
                .args(["-w", file.to_str().unwrap()]),
        );
        running.wait_for("capturing");
        let _passing = (engine == "packet").then(|| pass_program(&bed.pair.receiver).unwrap());
        let traffic = Traffic { sizes: Sizes::fixed(bytes), ..bed.traffic() };
        Generator::new(&bed.pair.sender, &traffic)
            .unwrap()
            .send(&[Load::new(0, sent).per_second(rate)])
            .unwrap();
        if !is_deep {
            running.signal(Signal::USR1);
            running.wait_for("so far:");
        }
        fs::write(end_of_stall, "").unwrap();
        let finished = running.interrupt();
        let ledger = finished.ledger();
        let dropped = &ledger["dropped"];
        let recorded = &ledger["recorded"];
        let count = |value: &serde_json::Value| value.as_u64().unwrap();
        let in_file = count(&recorded["in_file"]);
        assert_eq!(packets(&file).len() as u64, in_file);
        assert_eq!(count(&ledger["delivered"]), in_file + count(&recorded["writer"]), "{ledger}");
        assert_eq!(
            count(&ledger["delivered"]) + count(&dropped["no_cell"]) + count(&dropped["ring_full"]),
            sent,
            "{ledger}"
        );
        if is_deep {
            assert_recorded(&finished, sent);
        } else {
            assert!(count(&recorded["writer"]) > 0, "{ledger}");
            assert_eq!(finished.status.code(), Some(3), "{}", finished.stderr);
            assert!(finished.stderr.contains("accepts no data"), "{}", finished.stderr);
            let losing = format!("warning: {} is losing packets: ", file.display());
            assert!(finished.stderr.contains(&losing), "{}", finished.stderr);
            let so_far = finished.stderr.split_once("so far:").unwrap().1;
            let verdict = so_far.lines().find(|line| line.starts_with("lossless: ")).unwrap();
            assert!(verdict.contains(" discarded for the writer"), "{}", finished.stderr);
        }
    }
}
