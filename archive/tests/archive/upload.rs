//! `upload`: each segment of a sensor arrives complete, once, in the layout that readers expect.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use wirecap_index::{Ensured, ensure, index_path};
use wirecap_savefile::{FileSink, Sink};
use wirecap_testbed::{skip, wait_until};

use crate::recordings::{BEGIN, Packet, Random, SECOND, STEP, packets, record, run};
use crate::s3::{Server, damage, run_on};

/// Packets of a small segment.
const SMALL: usize = 200;
/// Packets of a segment of 10 MB, which is sent in two parts.
const MEDIUM: usize = 16_000;
/// Packets of a segment of 32 MB.
const LARGE: usize = 50_000;

/// The directory with a sensor's recordings.
struct Spool {
    folder: TempDir,
    /// Segments by the names of their files.
    recorded: BTreeMap<String, Vec<u8>>,
    packets: usize,
}

impl Spool {
    /// Small segments, with indexes except every third.
    fn new(sensor: u64, segments: u64) -> Self {
        let mut spool =
            Self { folder: tempfile::tempdir().unwrap(), recorded: BTreeMap::new(), packets: 0 };
        for number in 0..segments {
            let path =
                spool.add(&format!("rec_{number:05}.pcapng.zst"), 100 * sensor + number, SMALL);
            if number % 3 != 0 {
                assert!(matches!(ensure(&path, &mut |_| true).unwrap(), Ensured::Written { .. }));
            }
        }
        spool
    }

    /// Gives a segment its name when it is complete, as `wirecap capture` does.
    fn add(&mut self, name: &str, number: u64, count: usize) -> PathBuf {
        let path = self.folder.path().join(name);
        let part = self.folder.path().join(format!("part-of-{name}"));
        // Few flows, so that the index is small.
        let few = packets(number, SMALL);
        let nanos = |place: usize| few[0].nanos + place as u64 * STEP;
        let packets: Vec<Packet> = (0..count)
            .map(|place| Packet { nanos: nanos(place), ..few[place % SMALL].clone() })
            .collect();
        record(&part, &packets);
        fs::rename(part, &path).unwrap();
        self.recorded.insert(name.to_owned(), fs::read(&path).unwrap());
        self.packets += count;
        path
    }

    fn path(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    fn files(&self) -> Vec<String> {
        files(self.folder.path())
    }

    /// Compares this sensor's segments in the archive with its recordings. Segments that are still
    /// on the sensor may be missing in the archive, or have no index there.
    fn check(&self, archive: &Path, sensor: &str) {
        let sensor = archive.join(format!("sensor={sensor}"));
        let there = files(&sensor);
        for (name, bytes) in &self.recorded {
            let of_it: Vec<&String> =
                there.iter().filter(|path| path.ends_with(&format!("-{name}"))).collect();
            assert!(of_it.len() <= 1, "{name} is there twice: {of_it:?}");
            if self.folder.path().join(name).exists() {
                continue;
            }
            let [path] = of_it[..] else { panic!("{name} is lost") };
            assert!(
                fs::read(sensor.join(path)).unwrap() == *bytes,
                "{path} differs from what was recorded"
            );
            assert!(index_path(&sensor.join(path)).exists(), "{path} has no index");
        }
    }

    /// The archive has every segment and index, and nothing else of this sensor.
    fn check_all(&self, archive: &Path, sensor: &str) {
        assert_eq!(self.files(), Vec::<String>::new(), "nothing remains here");
        self.check(archive, sensor);
        let there = files(&archive.join(format!("sensor={sensor}")));
        assert_eq!(there.len(), 2 * self.recorded.len(), "{there:?}");
    }
}

/// The files of a directory and its subdirectories, relative to it; none if it does not exist.
pub(crate) fn files(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    if !directory.exists() {
        return found;
    }
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        match path.is_dir() {
            true => found.extend(files(&path).into_iter().map(|inner| format!("{name}/{inner}"))),
            false => found.push(name),
        }
    }
    found.sort();
    found
}

fn start(arguments: &[&str], environment: &[(&str, String)]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_wirecap-archive"))
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (*name, value.as_str())))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Sends SIGTERM. Returns the exit status and the output.
fn terminate(child: Child) -> (Option<i32>, String) {
    let sent = Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// As proc(5) writes it.
const SCHED_IDLE: &str = "5";

/// The scheduling policies of a process's threads.
fn policies(child: &Child) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let stats =
        threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("stat")).unwrap());
    // The policy is field 41; the second field is in parentheses.
    let policy = |stat: String| {
        stat.rsplit(')').next().unwrap().split_whitespace().nth(38).unwrap().to_owned()
    };
    stats.map(policy).collect()
}

pub(crate) fn bucket() -> (TempDir, PathBuf, Server) {
    let root = tempfile::tempdir().unwrap();
    let archive = root.path().join("bucket/packets");
    fs::create_dir_all(&archive).unwrap();
    let server = Server::new(root.path());
    (root, archive, server)
}

pub(crate) const URL: &str = "s3://bucket/packets";

#[test]
fn three_sensors_upload_at_once_and_nothing_is_lost_or_doubled_if_one_is_killed_repeatedly() {
    let kills: u32 = std::env::var("WIRECAP_KILLS").map_or(20, |kills| kills.parse().unwrap());
    let (_root, archive, server) = bucket();
    let environment = server.environment();
    let mut spools: Vec<Spool> = (1..=3).map(|sensor| Spool::new(sensor, 30)).collect();
    for (sensor, spool) in (1..).zip(&mut spools) {
        spool.add("z_medium.pcapng", 100 * sensor + 50, MEDIUM);
    }
    let names = ["lab-1", "lab-2", "lab-3"];
    let begin = |spools: &[Spool], sensor: usize| {
        let arguments =
            ["upload", spools[sensor].path(), "-a", URL, "--sensor", names[sensor], "--remove"];
        start(&[&arguments[..], &["--rate", "16M"]].concat(), &environment)
    };
    let others = [begin(&spools, 1), begin(&spools, 2)];
    let mut random = Random::new(std::process::id().into());
    let mut kill = 0;
    while kill < kills {
        let mut child = begin(&spools, 0);
        // Sending a segment in parts and reading it back takes longer than a second.
        thread::sleep(Duration::from_millis(50 + random.below(2500)));
        match child.try_wait().unwrap() {
            Some(status) => {
                assert!(status.success());
                // Several may end before the next kill.
                let number = spools[0].recorded.len() as u64;
                spools[0].add(&format!("z_medium_{number:03}.pcapng"), 151 + number, MEDIUM);
            }
            None => {
                child.kill().unwrap();
                child.wait().unwrap();
                kill += 1;
            }
        }
        spools[0].check(&archive, names[0]);
        let left = spools[0].files().len();
        let there = files(&archive.join("sensor=lab-1")).len();
        println!("after kill {kill}: {left} files here, {there} objects");
    }
    for child in [begin(&spools, 0)].into_iter().chain(others) {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let mut counts = Vec::new();
    for (spool, name) in spools.iter().zip(names) {
        spool.check_all(&archive, name);
        counts.push(format!("{name},{},{}", spool.packets, spool.recorded.len()));
    }
    let all: usize = spools.iter().map(|spool| spool.recorded.len()).sum();
    assert_eq!(files(&archive).len(), 2 * all);
    let statement =
        "SELECT sensor, count(*), count(DISTINCT segment) FROM packets GROUP BY 1 ORDER BY 1";
    let sql = run_on(&server, &["sql", "-a", URL, statement, "--format", "csv"], &[]);
    assert!(sql.is_success, "{}", sql.said);
    assert_eq!(sql.text().lines().skip(1).collect::<Vec<_>>(), counts);
    let all: usize = spools.iter().map(|spool| spool.packets).sum();
    let found = run_on(&server, &["find", "-a", URL, "--count"], &[]);
    assert_eq!(found.text().trim(), all.to_string(), "{}", found.said);
}

#[test]
fn a_directory_as_archive_has_the_layout_and_gives_the_same_answers() {
    let mut spool = Spool::new(1, 4);
    let open = spool.folder.path().join("rec_00004.pcapng.part");
    record(&open, &packets(4, SMALL));
    // Times are those of the packets.
    spool.add("last hour.pcapng", 30, SMALL);
    let archive = tempfile::tempdir().unwrap();
    let to = archive.path().to_str().unwrap();
    let arguments = ["upload", spool.path(), "-a", to, "--sensor", "lab-1"];
    let first = run(&arguments);
    assert!(first.is_success, "{}", first.said);
    assert!(first.said.contains("rec_00001.pcapng.zst: uploaded "), "{}", first.said);
    assert!(
        first.said.contains("5 segments uploaded") && first.said.contains("1 not complete"),
        "{}",
        first.said
    );
    let there = files(archive.path());
    assert_eq!(there.len(), 10, "{there:?}");
    let begin = BEGIN + 30 * 3600 * SECOND;
    let end = BEGIN + 30 * 3600 * SECOND + (SMALL as u64 - 1) * STEP;
    let start = format!("sensor=lab-1/date=2026-11-23/hour=23/{begin}-{end}-");
    let of_hour: Vec<&String> = there.iter().filter(|name| name.starts_with(&start)).collect();
    assert!(of_hour.len() == 2 && of_hour[0].ends_with("-last_hour.pcapng"), "{there:?}");
    let sum = Command::new("sha256sum").arg(archive.path().join(of_hour[0])).output().unwrap();
    let digest = String::from_utf8(sum.stdout).unwrap()[..16].to_owned();
    assert!(of_hour[0].starts_with(&format!("{start}{digest}-")), "{of_hour:?} {digest}");

    let statement = "SELECT count(*), sum(length), min(time) FROM packets WHERE dst_port = 53";
    fs::remove_file(open).unwrap();
    let answers =
        [to, spool.path()].map(|place| run(&["sql", "-a", place, statement, "--format", "csv"]));
    assert!(answers[0].is_success, "{}", answers[0].said);
    assert_eq!(answers[0].text(), answers[1].text());

    // Nothing is sent again.
    let state = |name: &String| {
        fs::metadata(archive.path().join(name)).map(|file| (file.ino(), file.mtime_nsec()))
    };
    let before: Vec<_> = there.iter().map(|name| state(name).unwrap()).collect();
    let again = run(&arguments);
    assert!(
        again.is_success && again.said.contains("0 segments uploaded (0 bytes), 5 existed"),
        "{}",
        again.said
    );
    let removed = run(&[&arguments[..], &["--remove"]].concat());
    assert!(
        removed.is_success && removed.said.contains("5 existed, 5 removed here"),
        "{}",
        removed.said
    );
    assert_eq!(there.iter().map(|name| state(name).unwrap()).collect::<Vec<_>>(), before);
    spool.recorded.remove("last hour.pcapng");
    assert_eq!(spool.files(), Vec::<String>::new());
    spool.check(archive.path(), "lab-1");
}

#[test]
fn only_segments_that_were_read_back_correctly_are_removed_here() {
    let (_root, archive, server) = bucket();
    let mut spool = Spool::new(1, 3);
    spool.add("z_large.pcapng", 150, LARGE);
    let arguments = ["upload", spool.path(), "-a", URL, "--sensor", "lab-1"];
    let first = run_on(&server, &arguments, &[]);
    assert!(first.is_success, "{}", first.said);
    let there = files(&archive);
    let object = |end: &str| archive.join(there.iter().find(|name| name.ends_with(end)).unwrap());
    // A byte of the large segment and one of an index changed; an index and a segment are missing.
    damage(&object("z_large.pcapng"));
    damage(&object("rec_00001.pcapng.zst.flows.parquet"));
    fs::remove_file(object("rec_00000.pcapng.zst.flows.parquet")).unwrap();
    fs::remove_file(object("rec_00002.pcapng.zst")).unwrap();
    let second = run_on(&server, &[&arguments[..], &["--remove"]].concat(), &[]);
    assert!(second.is_success, "{}", second.said);
    assert!(second.said.contains("4 segments uploaded"), "{}", second.said);
    spool.check_all(&archive, "lab-1");
    let count = run_on(&server, &["find", "-a", URL, "--count"], &[]);
    assert_eq!(count.text().trim(), spool.packets.to_string(), "{}", count.said);
}

#[test]
fn a_segment_that_changes_in_the_archive_before_it_is_read_back_stays_here() {
    let (_root, archive, server) = bucket();
    let mut spool = Spool::new(1, 0);
    spool.add("large.pcapng", 1, LARGE);
    let arguments = ["upload", spool.path(), "-a", URL, "--sensor", "lab-1", "--remove"];
    let child = start(&[&arguments[..], &["--rate", "8M"]].concat(), &server.environment());
    let object = || files(&archive).into_iter().find(|name| name.ends_with("large.pcapng"));
    wait_until("the object is complete", || object().is_some());
    // Reading it back takes four seconds.
    let file = fs::OpenOptions::new().write(true).open(archive.join(object().unwrap())).unwrap();
    file.write_all_at(b"!", file.metadata().unwrap().len() - 1).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the archive does not return sensor=lab-1/"), "{said}");
    assert_eq!(spool.files(), ["large.pcapng", "large.pcapng.flows.parquet"]);
    assert_eq!(files(&archive).len(), 1, "there is no index");
    assert!(run_on(&server, &arguments, &[]).is_success);
    spool.check_all(&archive, "lab-1");
}

#[test]
fn a_segment_without_its_index_in_the_layout_is_not_read() {
    let spool = Spool::new(1, 2);
    let archive = tempfile::tempdir().unwrap();
    let to = archive.path().to_str().unwrap();
    assert!(run(&["upload", spool.path(), "-a", to, "--sensor", "lab-1"]).is_success);
    let there = files(archive.path());
    let index =
        there.iter().find(|name| name.ends_with("rec_00001.pcapng.zst.flows.parquet")).unwrap();
    fs::remove_file(archive.path().join(index)).unwrap();
    // The temporary file of a killed upload in a directory.
    let segment = archive.path().join(index.strip_suffix(".flows.parquet").unwrap());
    fs::rename(&segment, segment.with_extension("zst#1")).unwrap();
    let count = || run(&["find", "-a", to, "--count"]).text().trim().to_owned();
    assert_eq!(count(), SMALL.to_string());
    assert!(run(&["upload", spool.path(), "-a", to, "--sensor", "lab-1"]).is_success);
    assert_eq!(count(), (2 * SMALL).to_string());
    assert_eq!(files(archive.path()), there, "the leftover is gone");
}

/// As after a kill between the last byte of an index and its read-back.
#[test]
fn an_index_that_differs_in_the_archive_is_sent_again() {
    let spool = Spool::new(1, 2);
    let archive = tempfile::tempdir().unwrap();
    let to = archive.path().to_str().unwrap();
    let upload = || run(&["upload", spool.path(), "-a", to, "--sensor", "lab-1"]);
    assert!(upload().is_success);
    let there = files(archive.path());
    let index = there.iter().find(|name| name.ends_with(".flows.parquet")).unwrap();
    let index = archive.path().join(index);
    let sent = fs::read(&index).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&index).unwrap();
    file.write_all_at(b"!", 5).unwrap();
    let again = upload();
    assert!(again.is_success, "{}", again.said);
    assert!(
        again.said.contains("1 segments uploaded") && again.said.contains("1 existed"),
        "{}",
        again.said
    );
    assert!(fs::read(&index).unwrap() == sent);
    assert_eq!(files(archive.path()), there);
}

#[test]
fn a_damaged_segment_is_named_and_stays() {
    let mut spool = Spool::new(1, 2);
    let damaged = spool.add("torn.pcapng.zst", 3, SMALL);
    let bytes = fs::read(&damaged).unwrap();
    fs::write(&damaged, &bytes[..bytes.len() / 2]).unwrap();
    let archive = tempfile::tempdir().unwrap();
    let to = archive.path().to_str().unwrap();
    let run = run(&["upload", spool.path(), "-a", to, "--sensor", "lab-1", "--remove"]);
    assert_eq!(run.status, Some(1), "{}", run.said);
    assert!(run.said.contains("torn.pcapng.zst: "), "{}", run.said);
    assert!(run.said.contains("1 segment is not in the archive"), "{}", run.said);
    assert_eq!(spool.files(), ["torn.pcapng.zst"]);
    assert_eq!(files(archive.path()).len(), 4);
}

#[test]
fn a_file_that_is_being_recorded_stays_until_it_is_complete() {
    let mut spool = Spool::new(1, 2);
    let path = spool.add("single.pcapng", 3, SMALL);
    let archive = tempfile::tempdir().unwrap();
    let to = archive.path().to_str().unwrap();
    let upload = || run(&["upload", spool.path(), "-a", to, "--sensor", "lab-1", "--remove"]);
    // A recorder that has written all of its packets so far.
    let bytes = fs::read(&path).unwrap();
    let mut recorder = FileSink::replace(&path).unwrap();
    recorder.append(&bytes).unwrap();
    let first = upload();
    assert!(first.is_success, "{}", first.said);
    assert!(first.said.contains("0 failed, 1 not complete"), "{}", first.said);
    assert_eq!(spool.files(), ["single.pcapng"]);
    drop(recorder);
    let second = upload();
    assert!(second.is_success, "{}", second.said);
    spool.check_all(archive.path(), "lab-1");
}

#[test]
fn without_permissions_files_are_reported_and_stay() {
    if !is_root() {
        return skip("running a command as another user needs root");
    }
    let spool = Spool::new(1, 2);
    let archive = tempfile::tempdir().unwrap();
    let to = archive.path().to_str().unwrap();
    let arguments = ["upload", spool.path(), "-a", to, "--sensor", "lab-1", "--remove"];
    let allow = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let as_other_user = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        let output =
            command.arg(env!("CARGO_BIN_EXE_wirecap-archive")).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    ensure(&spool.folder.path().join("rec_00000.pcapng.zst"), &mut |_| true).unwrap();
    allow(archive.path(), 0o777);
    allow(spool.folder.path(), 0o755);
    let segments: Vec<PathBuf> =
        spool.recorded.keys().map(|name| spool.folder.path().join(name)).collect();
    for path in &segments {
        allow(path, 0o600);
    }
    let (status, said) = as_other_user();
    assert_eq!(status, Some(1), "{said}");
    for path in &segments {
        assert!(
            said.contains(&format!("cannot open {}: Permission denied", path.display())),
            "{said}"
        );
    }
    assert!(said.contains("2 segments are not in the archive"), "{said}");
    for path in &segments {
        allow(path, 0o644);
        allow(&index_path(path), 0o644);
    }
    let (status, said) = as_other_user();
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("it is in the archive, but cannot be removed here: Permission denied"),
        "{said}"
    );
    assert!(said.contains("2 segments are not in the archive or are still here"), "{said}");
    assert_eq!(spool.files().len(), 4);
    assert!(run(&arguments).is_success);
    spool.check_all(archive.path(), "lab-1");
}

#[test]
fn watch_uploads_segments_when_they_are_complete_until_sigterm() {
    let (_root, archive, server) = bucket();
    let mut spool = Spool::new(1, 2);
    let arguments = ["upload", spool.path(), "-a", URL, "--sensor", "lab-1", "--watch", "--remove"]
        .map(str::to_owned);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // rec_00000 has no index, and a capture could be writing it, so the others are uploaded first.
    let child = start(&arguments, &server.environment());
    wait_until("the segment with an index is uploaded", || {
        spool.files() == ["rec_00000.pcapng.zst"]
    });
    let path = spool.add("rec_00002.pcapng.zst", 2, SMALL);
    assert!(matches!(ensure(&path, &mut |_| true).unwrap(), Ensured::Written { .. }));
    wait_until("the next segment is uploaded", || spool.files() == ["rec_00000.pcapng.zst"]);
    assert!(matches!(
        ensure(&spool.folder.path().join("rec_00000.pcapng.zst"), &mut |_| true).unwrap(),
        Ensured::Written { .. }
    ));
    wait_until("the first segment is uploaded", || spool.files().is_empty());
    let (status, said) = terminate(child);
    assert_eq!(status, Some(0), "{said}");
    assert!(
        said.contains("rec_00002.pcapng.zst: uploaded ") && said.contains("removed here"),
        "{said}"
    );
    assert!(said.contains("3 segments uploaded"), "{said}");
    spool.check_all(&archive, "lab-1");
}

#[test]
fn sigterm_ends_an_upload_in_the_middle_of_a_segment_and_leaves_no_partial_segment() {
    let mut spool = Spool::new(1, 0);
    spool.add("large.pcapng", 1, LARGE);
    let archive = tempfile::tempdir().unwrap();
    let to = archive.path().to_str().unwrap();
    let arguments = ["upload", spool.path(), "-a", to, "--sensor", "lab-1", "--remove"];
    let child = start(&[&arguments[..], &["--rate", "8M"]].concat(), &[]);
    let is_sending = || !files(archive.path()).is_empty();
    wait_until("the first part is in the archive", is_sending);
    assert!(policies(&child).iter().all(|policy| policy == SCHED_IDLE), "{:?}", policies(&child));
    let second = run(&arguments);
    assert_eq!(second.status, Some(1));
    assert!(second.said.contains("another upload of this directory is running"), "{}", second.said);
    let (status, said) = terminate(child);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert_eq!(files(archive.path()), Vec::<String>::new());
    assert!(run(&arguments).is_success);
    spool.check_all(archive.path(), "lab-1");
}

#[test]
fn the_rate_limits_the_bytes_that_are_sent_and_read_back() {
    let mut spool = Spool::new(1, 0);
    let path = spool.add("large.pcapng", 1, LARGE / 16);
    assert!(matches!(ensure(&path, &mut |_| true).unwrap(), Ensured::Written { .. }));
    let bytes = fs::metadata(&path).unwrap().len() + fs::metadata(index_path(&path)).unwrap().len();
    let archive = tempfile::tempdir().unwrap();
    let arguments =
        ["upload", spool.path(), "-a", archive.path().to_str().unwrap(), "--sensor", "lab-1"];
    let begun = Instant::now();
    let run = run(&[&arguments[..], &["--rate", "1M"]].concat());
    assert!(run.is_success, "{}", run.said);
    // The upload waits for all bytes except the last ones: those of the index when it is read back.
    let waited_for = 2 * bytes - fs::metadata(index_path(&path)).unwrap().len();
    let seconds = waited_for as f64 / f64::from(1 << 20);
    assert!(seconds > 2.0 && begun.elapsed().as_secs_f64() >= seconds, "{:?}", begun.elapsed());
}

#[test]
fn errors_name_what_failed_and_nothing_is_removed() {
    let (_root, _archive, server) = bucket();
    let spool = Spool::new(1, 2);
    let before = spool.files();
    let here = spool.path();
    let file = spool.folder.path().join("rec_00000.pcapng.zst");
    let file = file.to_str().unwrap();
    type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], i32, &'a str);
    let cases: &[Case<'_>] = &[
        (
            &[here, "-a", URL],
            &[("AWS_SECRET_ACCESS_KEY", "wrong")],
            1,
            "cannot list the archive s3://bucket",
        ),
        (
            &[here, "-a", "s3://no-such-bucket"],
            &[],
            1,
            "cannot list the archive s3://no-such-bucket",
        ),
        (&[here, "-a", "/no/such/archive"], &[], 1, "/no/such/archive: No such file"),
        (&[here, "-a", file], &[], 1, "not a directory"),
        (&["/no/such/spool", "-a", URL], &[], 1, "/no/such/spool: No such file"),
        (&[file, "-a", URL], &[], 1, "expected a directory"),
        (&[here, "-a", "ftp://host/x"], &[], 2, "ftp://host/x"),
        (&[here, "-a", URL, "--sensor", "a/b"], &[], 2, "invalid name of a sensor"),
        (&[here, "-a", URL, "--rate", "0"], &[], 2, "--rate 0"),
        (&[here], &[], 2, "--archive"),
    ];
    for (arguments, environment, status, word) in cases {
        let mut arguments = [&["upload"], *arguments, &["--remove"]].concat();
        if !arguments.contains(&"--sensor") {
            arguments.extend(["--sensor", "lab-1"]);
        }
        let run = run_on(&server, &arguments, environment);
        assert_eq!(run.status, Some(*status), "{arguments:?}: {}", run.said);
        assert!(run.said.contains(word), "{arguments:?}: {}", run.said);
    }
    assert_eq!(spool.files(), before);
}

#[test]
fn a_full_disk_is_an_error_and_nothing_is_removed() {
    if !is_root() {
        return skip("only root can mount a file system that is full");
    }
    let mut spool = Spool::new(1, 0);
    let path = spool.add("large.pcapng", 1, LARGE);
    assert!(matches!(ensure(&path, &mut |_| true).unwrap(), Ensured::Written { .. }));
    let before = spool.files();
    let archive = tempfile::tempdir().unwrap();
    // The command runs in a mount namespace that ends with it.
    let script = "mount -t tmpfs -o size=4M tmpfs \"$2\" && exec \"$0\" upload \"$1\" -a \"$2\" --sensor s --remove";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_wirecap-archive"), spool.path()])
        .arg(archive.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    assert_eq!(spool.files(), before);
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Where `make deps-test` puts DuckDB.
pub(crate) const MODULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools/duckdb");

#[test]
fn duckdb_reads_sensor_date_and_hour_from_the_layout() {
    let python = |code: &str, folder: &Path| {
        let mut python = Command::new("python3");
        python.args(["-c", code]).env("PYTHONPATH", MODULES).current_dir(folder).output()
    };
    let archive = tempfile::tempdir().unwrap();
    if !python("import duckdb", archive.path()).is_ok_and(|output| output.status.success()) {
        return skip(
            "Python has no module duckdb: run make deps-test, which needs python3, pip and PyPI",
        );
    }
    for (sensor, name) in [(1, "lab-1"), (2, "lab-2")] {
        let spool = Spool::new(sensor, 3);
        let to = archive.path().to_str().unwrap();
        assert!(run(&["upload", spool.path(), "-a", to, "--sensor", name]).is_success);
    }
    let code = "
import duckdb
for row in duckdb.sql('''SELECT sensor, date, hour, sum(packets)
FROM read_parquet('sensor=*/date=*/hour=*/*.flows.parquet', hive_partitioning = true)
GROUP BY ALL ORDER BY ALL''').fetchall():
    print(*row)
";
    let output = python(code, archive.path()).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = include_str!("../../../docs/guide/archive.md");
    assert!(page.contains("sensor=*/date=*/hour=*/*.flows.parquet', hive_partitioning = true"));
    let text = String::from_utf8(output.stdout).unwrap();
    // Recordings of sensor 1 begin 100 hours after 2026-11-22 17:00, of sensor 2 after 200.
    let expected = [
        "lab-1 2026-11-26 21 200",
        "lab-1 2026-11-26 22 200",
        "lab-1 2026-11-26 23 200",
        "lab-2 2026-12-01 01 200",
        "lab-2 2026-12-01 02 200",
        "lab-2 2026-12-01 03 200",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}
