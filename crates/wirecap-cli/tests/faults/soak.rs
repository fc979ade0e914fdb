//! A long recording: memory, descriptors and threads do not grow, and every packet is accounted
//! for. `make soak` runs it for an hour.

use std::fmt;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use wirecap_testbed::{Load, privileged};

use super::recording::Bed;
use super::{files, gaps, in_file, setting, start};

/// The resources of the process at one time.
#[derive(Debug, Clone, Copy)]
struct Sample {
    seconds: f64,
    memory_kib: u64,
    descriptors: usize,
    threads: usize,
    rotations: u64,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, memory_kib, descriptors, threads, rotations } = self;
        write!(
            f,
            "{seconds:.1} s: {memory_kib} KiB, {descriptors} descriptors, {threads} threads, {rotations} files"
        )
    }
}

fn sample(process: u32, begin: Instant, rotations: u64) -> Sample {
    let entries = |folder: &str| fs::read_dir(format!("/proc/{process}/{folder}")).unwrap().count();
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    Sample {
        seconds: begin.elapsed().as_secs_f64(),
        memory_kib: line.split_whitespace().next().unwrap().parse().unwrap(),
        descriptors: entries("fd"),
        threads: entries("task"),
        rotations,
    }
}

/// Allowed variation of the allocator's memory.
const MEMORY_KIB: u64 = 4096;
/// Number of files kept.
const KEPT: u64 = 10;

/// `WIRECAP_SOAK_SECONDS=3600 WIRECAP_SOAK_ROTATIONS=1000 WIRECAP_SOAK_RATE=300000`, in a release
/// build.
#[test]
fn a_long_recording_uses_no_more_memory_or_descriptors() {
    if !privileged() {
        return;
    }
    let seconds = setting("WIRECAP_SOAK_SECONDS", 4);
    let rate = setting("WIRECAP_SOAK_RATE", 20_000);
    let sent = seconds * rate;
    let rotations = setting("WIRECAP_SOAK_ROTATIONS", 40);
    let packets = (sent / rotations).to_string();
    let bed = Bed::new(1);
    let folder = TempDir::new().unwrap();
    let kept = KEPT.to_string();
    let more = ["--file-packets", &packets, "--keep-files", &kept];
    // Room for two seconds of packets, in case the process gets no CPU time for a while.
    let chunks = (rate / 32).to_string();
    let running = start(&bed, &folder.path().join("t-%i.pcapng.zst"), &chunks, &more);
    let mut generator = bed.generator();
    let begin = Instant::now();
    let sending = generator.start(&[Load::new(0, sent).per_second(rate)]).unwrap();
    let mut samples = Vec::new();
    let pause = Duration::from_secs_f64((seconds as f64 / 60.0).max(0.2));
    while !sending.is_finished() {
        thread::sleep(pause);
        let names = fs::read_dir(folder.path())
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().into_string().ok());
        let numbers = names.filter_map(|name| name.get(2..7)?.parse::<u64>().ok());
        let sample = sample(running.id(), begin, numbers.max().unwrap_or(0));
        println!("{sample}");
        samples.push(sample);
        let files = fs::read_dir(folder.path()).unwrap().count() as u64;
        assert!(files <= KEPT, "{files} files");
    }
    sending.wait().unwrap();
    let finished = running.interrupt();
    finished.assert_success();
    assert_eq!(in_file(&finished, sent), sent);
    assert!(finished.stderr.contains("removed by a budget"), "{}", finished.stderr);
    // All resources are allocated in the first third of the run; after that they must not grow.
    let (first, rest) = samples.split_at(samples.len() / 3);
    let most = |samples: &[Sample], of: fn(&Sample) -> u64| samples.iter().map(of).max().unwrap();
    let memory = |sample: &Sample| sample.memory_kib;
    assert!(most(rest, memory) <= most(first, memory) + MEMORY_KIB, "memory grows: {samples:?}");
    for of in [|sample: &Sample| sample.descriptors as u64, |sample: &Sample| sample.threads as u64]
    {
        assert!(most(rest, of) <= most(first, of) + 1, "descriptors or threads: {samples:?}");
    }
    let left: Vec<u64> =
        files(folder.path()).values().flatten().map(|(number, _)| *number).collect();
    assert!(gaps(&left).is_empty() && left.last() == Some(&(sent - 1)), "{:?}", gaps(&left));
}
