//! `capture --index`, `index`, `find` and `show`, as a user runs them.

#[path = "recording/mod.rs"]
mod recording;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use recording::{Bed, WIRECAP};
use rustix::process::Signal;
use wirecap::savefile::Reader;
use wirecap_testbed::{Load, Rate, pass_program, privileged, wait_until};

fn wirecap(arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new(WIRECAP).args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// The number of a process's thread that has this name.
fn thread_named(name: &str, process: u32) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let is_it = |path: &PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    let path = tasks.map(|task| task.unwrap().path()).find(is_it)?;
    path.file_name()?.to_str()?.parse().ok()
}

/// Whether a thread has idle CPU and I/O priority.
fn is_idle(thread: u32) -> bool {
    let says = |program: &str, word: &str| {
        let output = Command::new(program).args(["-p", &thread.to_string()]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains(word)
    };
    says("chrt", "SCHED_IDLE") && says("ionice", "idle")
}

fn packets(file: &Path) -> Vec<(u64, Vec<u8>)> {
    let mut reader =
        Reader::open(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut packets = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        packets.push((record.timestamp.unwrap().unix_nanos(), record.data.to_vec()));
    }
    packets
}

fn files(directory: &Path, is_index: bool) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_str().unwrap().ends_with(".flows.parquet") == is_index);
    files.sort();
    files
}

/// The files of a recording have mode 0600.
#[test]
fn find_reports_files_that_the_user_may_not_read() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().to_str().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // A pcap file with a packet of 60 bytes.
    let words: [u32; 10] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1, 1_700_000_000, 0, 60, 60];
    let mut file: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    file.resize(file.len() + 60, 0);
    for (name, mode) in [("open.pcap", 0o644), ("private.pcap", 0o600)] {
        fs::write(folder.path().join(name), &file).unwrap();
        fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let find = |user: &str| {
        let mut command = Command::new("setpriv");
        command.args([
            &format!("--reuid={user}"),
            &format!("--regid={user}"),
            "--clear-groups",
            WIRECAP,
        ]);
        let output =
            command.args(["find", directory, "--count"]).stdin(Stdio::null()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (output.status.code(), text(output.stdout).trim().parse::<u64>().ok(), text(output.stderr))
    };
    let (status, packets, said) = find("0");
    assert_eq!((status, packets), (Some(0), Some(2)), "{said}");
    let (status, packets, said) = find("65534");
    assert_eq!((status, packets), (Some(1), Some(1)), "{said}");
    assert!(said.contains("private.pcap: Permission denied"), "{said}");
}

#[test]
fn find_works_during_a_recording_and_nothing_is_lost() {
    if !privileged() {
        return;
    }
    const SENT: u64 = 60_000;
    let bed = Bed::new(1);
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().to_str().unwrap();
    let pattern = format!("{directory}/r-%i.pcapng.zst");
    let running = bed.capture(&[
        "capture",
        "-i",
        "a1",
        "-w",
        &pattern,
        "--index",
        "on",
        "--file-size",
        "500K",
        "-M",
        "64",
        "-R",
        "2048",
        "--json",
    ]);
    let mut generator = bed.generator();
    generator.send(&[Load::new(0, SENT / 2).at(Rate::PerSecond(30_000))]).unwrap();
    wait_until("the thread that makes indexes is idle", || {
        thread_named("index", running.id()).is_some_and(is_idle)
    });
    // The file that is being written has no index; earlier files may already have theirs.
    let (is_found, count, said) = wirecap(&["find", directory, "--count", "udp"]);
    let mut last = count.trim().parse::<u64>().unwrap();
    assert!(is_found && last > 0, "{count}{said}");
    assert!(said.contains("without a valid index"), "{said}");
    let sending = generator.start(&[Load::new(0, SENT / 2).at(Rate::PerSecond(30_000))]).unwrap();
    while !sending.is_finished() {
        let (is_found, count, said) = wirecap(&["find", directory, "--count", "udp"]);
        let count = count.trim().parse::<u64>().unwrap();
        assert!(is_found && count >= last, "{count} after {last}: {said}");
        last = count;
    }
    sending.wait().unwrap();
    let finished = running.interrupt();
    finished.assert_success();
    let ledger = finished.ledger();
    assert_eq!(
        (&ledger["delivered"], &ledger["recorded"]["in_file"]),
        (&SENT.into(), &SENT.into())
    );
    let recorded = files(folder.path(), false);
    assert!(recorded.len() > 2, "{recorded:?}");
    assert_eq!(
        files(folder.path(), true).len(),
        recorded.len(),
        "every complete file has its index"
    );
    let found = format!("{directory}/found.pcapng");
    let (is_found, _, said) = wirecap(&["find", directory, "-w", &found, "udp"]);
    assert!(is_found && !said.contains("without a valid index"), "{said}");
    let all: Vec<_> = recorded.iter().flat_map(|file| packets(file)).collect();
    assert_eq!(all.len() as u64, SENT);
    assert_eq!(packets(Path::new(&found)), all);
    let (_, none, said) = wirecap(&["find", directory, "--count", "host 203.0.113.77"]);
    assert_eq!(none.trim(), "0", "{said}");
    assert!(said.contains("in 0 of"), "nothing is read of files that cannot match: {said}");
}

#[test]
fn searches_and_indexes_run_at_idle_priority() {
    let folder = tempfile::tempdir().unwrap();
    // They wait for a writer of the pipe.
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for words in [&["find", "--count"][..], &["index"]] {
        let mut command = Command::new(WIRECAP);
        command
            .args(words)
            .arg(&pipe)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut running = command.spawn().unwrap();
        wait_until("it is idle", || is_idle(running.id()));
        running.kill().unwrap();
        running.wait().unwrap();
    }
}

#[test]
fn removing_a_file_for_a_budget_removes_its_index() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let folder = tempfile::tempdir().unwrap();
    let pattern = folder.path().join("r-%i.pcap");
    let pattern = pattern.to_str().unwrap();
    let running = bed.capture(&[
        "capture",
        "-i",
        "a1",
        "-w",
        pattern,
        "--index",
        "on",
        "--file-packets",
        "50",
        "--keep-files",
        "3",
        "-M",
        "64",
        "-R",
        "1024",
        "--json",
    ]);
    bed.generator().send(&[Load::new(0, 1000).at(Rate::PerSecond(5_000))]).unwrap();
    let finished = running.interrupt();
    finished.assert_success();
    assert_eq!(finished.ledger()["recorded"]["in_file"], 1000);
    let recorded = files(folder.path(), false);
    let indexes = files(folder.path(), true);
    assert_eq!(recorded.len(), 3);
    for index in indexes {
        let segment = index.to_str().unwrap().strip_suffix(".flows.parquet").unwrap().to_owned();
        assert!(recorded.contains(&segment.into()), "{} belongs to nothing", index.display());
    }
}

/// A recording of 50 generated UDP packets from port 1024 + n to port 53, made without a kernel.
fn recording_of(folder: &Path, name: &str, begin: u64) -> PathBuf {
    recording_of_packets(folder, name, begin, 50)
}

fn recording_of_packets(folder: &Path, name: &str, begin: u64, count: u64) -> PathBuf {
    use wirecap::savefile::{FileSink, Format, Interface, Record, Section, Timestamp, Writer};
    let path = folder.join(name);
    let mut writer =
        Writer::new(FileSink::create(&path).unwrap(), Format::Pcapng, &Section::default());
    writer.add_interface(&Interface { name: Some("eth0".into()), ..Interface::default() }).unwrap();
    for number in 0..count {
        let mut data = [0; 60];
        data[12] = 8;
        data[14] = 0x45;
        data[17] = 46;
        data[23] = 17;
        data[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        data[34..38].copy_from_slice(&[4, number as u8, 0, 53]);
        data[39] = 26;
        let timestamp = Some(Timestamp::from_unix_nanos((begin + number * 2) * 1_000_000_000));
        writer
            .write(&Record { timestamp, wire_len: 60, data: &data, ..Record::default() })
            .unwrap();
    }
    writer.finish().unwrap();
    path
}

#[test]
fn several_directories_are_searched_in_time_order() {
    let folder = tempfile::tempdir().unwrap();
    let a = folder.path().join("a");
    let b = folder.path().join("b");
    fs::create_dir(&a).unwrap();
    fs::create_dir(&b).unwrap();
    recording_of(&a, "x.pcapng", 1_700_000_000);
    recording_of(&b, "y.pcapng", 1_700_000_001);
    let (is_done, said, error) = wirecap(&["index", a.to_str().unwrap()]);
    assert!(is_done && said.contains("x.pcapng.flows.parquet: 50 packets"), "{said}{error}");
    let found = folder.path().join("found.pcap");
    let a = a.to_str().unwrap();
    let b = format!("{}/*.pcapng", b.display());
    let output = found.to_str().unwrap();
    let (is_found, _, said) =
        wirecap(&["find", a, &b, "-w", output, "udp", "and", "src", "port", "1029"]);
    assert!(is_found, "{said}");
    let times: Vec<u64> = packets(&found).iter().map(|(nanos, _)| nanos / 1_000_000_000).collect();
    assert_eq!(times, [1_700_000_010, 1_700_000_011]);
    let count =
        |more: &[&str]| wirecap(&[&["find", a, &b, "--count"], more].concat()).1.trim().to_owned();
    assert_eq!(count(&[]), "100");
    assert_eq!(count(&["--from", "1700000010", "--to", "1700000020"]), "10");
    assert_eq!(count(&["--flow", "10.0.0.2.53:10.0.0.1"]), "100");
    assert_eq!(count(&["--flow", "10.0.0.2:10.0.0.1.1030", "udp"]), "2");
    assert_eq!(count(&["--flow", "10.0.0.2:10.0.0.3"]), "0");
    // Packets of years ago are reported with a date instead of an age.
    let said = wirecap(&["find", a, &b, "--count"]).2;
    assert!(said.contains("the oldest packet in them is from 2023-11-1"), "{said}");
    let (_, listed, _) = wirecap(&["find", a, &b, "--list", "src port 1029"]);
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[0].contains("x.pcapng: 50 packets, "), "{listed}");
    assert!(
        lines[1].starts_with("  2023-11-1") && lines[1].ends_with(", 1 of 2 pieces may match"),
        "{listed}"
    );
    assert!(lines[2].contains("y.pcapng: 50 packets"), "{listed}");
    assert_eq!((lines[4], lines.len()), ("  it has no index", 5), "{listed}");
    assert!(lines.iter().all(|line| line.len() <= 80), "{listed}");
    let (is_done, _, said) =
        wirecap(&["find", folder.path().join("none").to_str().unwrap(), "udp"]);
    assert!(!is_done && said.contains("no such file"), "{said}");
    let (is_done, _, said) = wirecap(&["find", a, "udp and and"]);
    assert!(!is_done && said.contains("udp and and"), "{said}");
    // A file that was replaced by another gets a new index.
    fs::remove_file(format!("{a}/x.pcapng")).unwrap();
    recording_of(Path::new(a), "x.pcapng", 1_600_000_000);
    assert_eq!(count(&["--to", "1650000000"]), "50");
    assert!(wirecap(&["index", a]).1.contains("changed after its index"));
    assert!(wirecap(&["index", a]).2.contains("0 indexes written, 1 existed"));
}

#[test]
fn a_file_counts_as_read_once_with_or_without_an_index() {
    let folder = tempfile::tempdir().unwrap();
    let file = recording_of(folder.path(), "x.pcapng", 1_700_000_000);
    let file = file.to_str().unwrap();
    for is_indexed in [false, true] {
        assert!(!is_indexed || wirecap(&["index", file]).0);
        let said = wirecap(&["find", file, "--count"]).2;
        let (_, rest) = said.split_once(": read ").unwrap_or_else(|| panic!("{said}"));
        let (read, rest) = rest.split_once(" of ").unwrap();
        assert!(rest.starts_with(&format!("{read} in ")), "{said}");
        assert_eq!(said.contains("without a valid index"), !is_indexed, "{said}");
    }
}

#[test]
fn impossible_searches_are_errors_with_their_status() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for name in ["rec", "empty"] {
        fs::create_dir(path(name)).unwrap();
    }
    let whole = recording_of(Path::new(&path("rec")), "a.pcapng", 1_700_000_000);
    let cut = path("rec/b.pcapng");
    let bytes = fs::read(&whole).unwrap();
    fs::write(path("exists.pcap"), "kept").unwrap();
    let find = |arguments: &[&str]| {
        let output = Command::new(WIRECAP)
            .arg("find")
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let rec = path("rec");
    let empty = path("empty");
    let exists = path("exists.pcap");
    let from = "2026-11-22T18:00";
    let to = "2026-11-22T17:00";
    for (arguments, status, said) in [
        (&["/no/such/directory", "udp"][..], 2, "no such file"),
        (&[&empty, "--count"], 1, "no recordings"),
        (&[&rec, "--from", from, "--to", to, "--count"], 2, "is not before --to"),
        (&[&rec, "--from", from, "--to", from, "--count"], 2, "is not before --to"),
        (&[&rec, "--from", "yesterday"], 2, "invalid time"),
        (&[&rec, "-w", &exists], 1, "--force replaces it"),
        (&[&rec, "-w", &rec], 1, "is a directory"),
        (&[&rec, "--count", "port"], 2, "port"),
    ] {
        let (code, output, error) = find(arguments);
        assert!(
            code == status && error.contains(said) && output.is_empty(),
            "{arguments:?}: {code} {output} {error}"
        );
    }
    assert_eq!(fs::read(&exists).unwrap(), b"kept");
    // A damaged index is not used: the file is read instead. Of a damaged file, the packets before
    // the damage are found, and the exit status shows the damage.
    assert!(wirecap(&["index", &rec]).0);
    fs::write(path("rec/a.pcapng.flows.parquet"), "PAR1").unwrap();
    let (code, count, error) = find(&[&rec, "--count", "udp"]);
    assert_eq!((code, count.trim()), (0, "50"), "{error}");
    assert!(error.contains("1 file (") && error.contains("without a valid index"), "{error}");
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let (code, count, error) = find(&[&rec, "--count", "udp"]);
    let count: u64 = count.trim().parse().unwrap();
    assert!(
        code == 1 && (51..100).contains(&count) && error.contains("b.pcapng"),
        "{count} {error}"
    );
    let (code, listed, error) = find(&[&rec, "--list", "tcp"]);
    assert!(
        code == 1 && listed.is_empty() && error.contains("0 of 2 files may have"),
        "{listed}{error}"
    );
    // It is not an error if the reader closes the pipe early.
    fs::remove_file(&cut).unwrap();
    let mut child = Command::new(WIRECAP)
        .args(["find", &rec])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn packets_are_not_written_to_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let file = recording_of(folder.path(), "x.pcapng", 1_700_000_000);
    let file = file.to_str().unwrap();
    for command in [
        format!("find {file}"),
        format!("capture -r {file} -w -"),
        format!("capture -r {file} -w /dev/tty"),
    ] {
        let command = format!("{WIRECAP} {command}");
        let output = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.code() == Some(2) && said.contains("terminal"),
            "{command}: {output:?}"
        );
    }
}

#[test]
fn the_installed_decoder_shows_packets_with_its_own_flags() {
    let folder = tempfile::tempdir().unwrap();
    let file = recording_of(folder.path(), "x.pcapng", 1_700_000_000);
    let file = file.to_str().unwrap();
    let (is_shown, lines, said) =
        wirecap(&["show", "-r", file, "-nn", "-tt", "src port 1025 or src port 1030"]);
    assert!(is_shown && lines.lines().count() == 2, "{lines}{said}");
    assert!(
        lines.starts_with("1700000002.000000") && lines.contains("10.0.0.1.1030 > 10.0.0.2.53"),
        "{lines}"
    );
    let (is_shown, lines, said) = wirecap(&[
        "show",
        "-r",
        file,
        "--filter",
        "src port 1025",
        "--with",
        "tshark",
        "-T",
        "fields",
        "-e",
        "udp.srcport",
    ]);
    assert!(is_shown && lines.trim() == "1025", "{lines}{said}");
    // It is not an error if the decoder ends early, here before the file fits into a pipe.
    let large = recording_of_packets(folder.path(), "large.pcapng", 1_700_000_000, 50_000);
    for file in [file, large.to_str().unwrap()] {
        let (is_shown, lines, said) = wirecap(&["show", "-r", file, "-nn", "-c", "3"]);
        assert!(is_shown && lines.lines().count() == 3, "{lines}{said}");
        assert!(!said.contains("wirecap: ") && said.contains("lossless: yes"), "{said}");
    }
    // A file that cannot be read to its end is an error also if the decoder has shown all packets
    // before.
    let cut = folder.path().join("cut.pcapng");
    let bytes = fs::read(file).unwrap();
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let (is_shown, lines, said) = wirecap(&["show", "-r", cut.to_str().unwrap(), "-nn"]);
    assert!(!is_shown && lines.lines().count() > 20, "{lines}{said}");
    assert!(said.contains("the packets could not be read"), "{said}");
    let output = Command::new(WIRECAP)
        .args(["show", "-r", file])
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    let missing = String::from_utf8_lossy(&output.stderr).into_owned();
    // A decoder in an administrator's directory (sbin) is found without PATH.
    assert!(
        output.status.success() || missing.contains("install the package tcpdump"),
        "{missing}"
    );
    let mut command = Command::new(WIRECAP);
    let output =
        command.args(["show", "-r", file, "--with", "tshark"]).env("PATH", "/nonexistent").output();
    let output = output.unwrap();
    let missing = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && missing.contains("install the package tshark"),
        "{missing}"
    );
    // The error is the capture's only: the decoder does not complain about an empty file.
    let (is_shown, _, said) = wirecap(&["show", "-r", "/no/such/file"]);
    assert!(!is_shown && said.contains("/no/such/file") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_file_is_shown_however_it_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = recording_of(folder.path(), "x.pcapng", 1_700_000_000);
    let file = file.to_str().unwrap();
    for words in [
        &["show", file, "-nn", "src port 1025"][..],
        &["show", "-nnr", file, "src port 1025"],
        &["-nr", file, "src port 1025"],
        &["-r", file, "-n", "src port 1025"],
    ] {
        let (is_shown, lines, said) = wirecap(words);
        assert!(is_shown && lines.lines().count() == 1, "{words:?}: {lines}{said}");
    }
    for (words, reason) in [
        (&["show", "-nn"][..], "name an interface, -i DEV"),
        (&["show", "no-such-file.pcap"], "no such file"),
        (&["show", "-r", file, "-ni", "eth0"], "one interface or of one file"),
        (&["-r", file, "-p"], "-p has no effect on a file"),
    ] {
        let (is_shown, _, said) = wirecap(words);
        assert!(!is_shown && said.contains(reason), "{words:?}: {said}");
    }
    // With -w, the same flags write a file.
    let copy = folder.path().join("copy.pcap");
    let (is_written, _, said) =
        wirecap(&["-nnvr", file, "-w", copy.to_str().unwrap(), "src port 1025"]);
    assert!(is_written && said.contains("wrote 1 packets"), "{said}");
}

#[test]
fn statistics_of_recordings_are_those_of_their_packets() {
    let folder = tempfile::tempdir().unwrap();
    let file = recording_of(folder.path(), "x.pcapng", 1_700_000_000);
    let json = |words: &[&str]| {
        let (is_told, text, said) = wirecap(&[&["stats", "--json"], words].concat());
        assert!(is_told, "{words:?}: {said}");
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    // 50 packets of 60 bytes, 2 s apart.
    let place = folder.path().to_str().unwrap();
    let name = file.to_str().unwrap();
    for words in [&[place][..], &[name], &["-r", name], &[name, "udp port 53"]] {
        let stats = json(words);
        assert_eq!(
            (&stats["packets"], &stats["bytes"], &stats["cut"]),
            (&50.into(), &3000.into(), &0.into())
        );
        assert_eq!(stats["bits_per_second"].as_f64().unwrap().round(), 245.0, "{words:?}");
        assert_eq!(
            (&stats["addresses"][0]["name"], &stats["addresses"][0]["bytes"]),
            (&"10.0.0.1".into(), &3000.into())
        );
        assert_eq!(stats["protocols"][0]["name"], "IPv4 UDP");
    }
    let some = json(&[name, "src port 1025 or src port 1030"]);
    assert_eq!((&some["packets"], &some["packets_per_second"]), (&2.into(), &0.2.into()));
    assert_eq!(json(&["-c", "7", name])["packets"], 7);
    assert_eq!(json(&["--from", "1700000090", place])["packets"], 5);

    let (is_told, text, _) = wirecap(&["stats", name]);
    assert!(is_told && text.starts_with("packets   50, 2.9 KiB on the wire\n"), "{text}");
    assert!(text.contains("udp 53") && text.contains("100.0 %"), "{text}");
    for (words, reason) in [
        (&["stats"][..], "wirecap stats FILE"),
        (&["stats", "/no/such/file"], "no such file"),
        (&["stats", "-r", name, "--from", "1"], "cannot be used with"),
        (&["stats", name, "--duration", "1s"], "--duration has no effect"),
        (&["stats", name, "-s", "20"], "-s has no effect"),
    ] {
        let (is_told, _, said) = wirecap(words);
        assert!(!is_told && said.contains(reason), "{words:?}: {said}");
    }
}

#[test]
fn statistics_of_an_interface_come_with_the_ledger() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    for engine in ["xdp", "packet"] {
        // On a veth, packet sockets receive the generator's frames only if an XDP program passes
        // them.
        let _passing = (engine == "packet").then(|| pass_program(&bed.pair.receiver).unwrap());
        let arguments = [
            "stats",
            "-i",
            "a1",
            "--engine",
            engine,
            "-c",
            "500",
            "--duration",
            "1m",
            "--json",
            "udp",
        ];
        let mut running = bed.start(Command::new(WIRECAP).args(arguments));
        running.wait_for("capturing");
        bed.generator().send(&[Load::new(0, 500)]).unwrap();
        let finished = running.finish();
        finished.assert_success();
        let stats: serde_json::Value = serde_json::from_slice(&finished.stdout).unwrap();
        assert_eq!((&stats["packets"], &stats["ledger"]["delivered"]), (&500.into(), &500.into()));
        assert_eq!(stats["protocols"][0]["packets"], 500, "{stats}");
    }
}

#[test]
fn packets_are_shown_and_recorded_without_a_command() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let folder = tempfile::tempdir().unwrap();
    let mut running = bed.start(Command::new(WIRECAP).args(["-nnvvi", "a1", "-c", "5", "udp"]));
    running.wait_for("capturing");
    bed.generator().send(&[Load::new(0, 5).at(Rate::PerSecond(100))]).unwrap();
    let finished = running.finish();
    finished.assert_success();
    let lines = String::from_utf8_lossy(&finished.stdout).into_owned();
    assert_eq!(lines.matches("proto UDP").count(), 5, "{lines}");

    let file = folder.path().join("x.pcap");
    let file = file.to_str().unwrap();
    let mut running = bed.start(
        Command::new(WIRECAP).args(["-nnvi", "a1", "-c", "5", "-B", "4096", "-w", file, "udp"]),
    );
    running.wait_for("capturing");
    bed.generator().send(&[Load::new(0, 5).at(Rate::PerSecond(100))]).unwrap();
    running.finish().assert_success();
    assert_eq!(wirecap(&["-r", file, "-n"]).1.lines().count(), 5);
}

#[test]
fn a_capture_that_receives_nothing_names_the_usual_causes_once() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let mut running = bed.start(Command::new(WIRECAP).args([
        "-i",
        "a1",
        "-w",
        "/dev/null",
        "udp",
        "port",
        "9999",
    ]));
    running.wait_for("no packets for 5 s");
    std::thread::sleep(std::time::Duration::from_secs(3));
    let finished = running.interrupt();
    assert_eq!(
        finished.stderr.matches("wirecap doctor a1 shows more").count(),
        1,
        "{}",
        finished.stderr
    );
}

#[test]
fn packets_are_shown_as_they_are_found() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let mut running =
        bed.start(Command::new(WIRECAP).args(["show", "-i", "a1", "-nn", "-c", "5", "udp"]));
    running.wait_for("capturing");
    bed.generator().send(&[Load::new(0, 5).at(Rate::PerSecond(100))]).unwrap();
    let finished = running.finish();
    finished.assert_success();
    assert_eq!(String::from_utf8_lossy(&finished.stdout).lines().count(), 5);
}

/// tcpdump ignores these flags if it reads packets from a pipe.
#[test]
fn direction_and_snap_length_of_what_is_shown_are_those_of_the_capture() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    for (namespace, interface, address) in
        [(&bed.sender, "a0", "10.99.0.1/24"), (&bed.receiver, "a1", "10.99.0.2/24")]
    {
        let add = || {
            Command::new("ip").args(["address", "add", address, "dev", interface]).status().unwrap()
        };
        assert!(namespace.run_in(add).unwrap().success());
    }
    let arguments = ["show", "-i", "a1", "-nq", "-Q", "in", "-s36", "-c", "5", "icmp"];
    let mut running = bed.start(Command::new(WIRECAP).args(arguments));
    running.wait_for("capturing");
    let mut ping = Command::new("ping");
    ping.args(["-q", "-c", "20", "-i", "0.2", "-s", "200", "10.99.0.1"]);
    let pinged = bed.run(&mut ping);
    let finished = running.finish();
    pinged.assert_success();
    finished.assert_success();
    let lines = String::from_utf8_lossy(&finished.stdout).into_owned();
    let is_reply = |line: &str| line.contains("10.99.0.1 > 10.99.0.2") && line.contains("[|icmp]");
    assert_eq!(lines.lines().filter(|line| is_reply(line)).count(), 5, "{lines}");
    assert_eq!(lines.lines().count(), 5, "{lines}");
}

#[test]
fn a_decoder_that_has_shown_enough_ends_the_capture_of_continuing_traffic() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    for engine in ["xdp", "packet"] {
        let _passing = (engine == "packet").then(|| pass_program(&bed.pair.receiver).unwrap());
        let mut running = bed.start(
            Command::new(WIRECAP).args(["show", "-i", "a1", "--engine", engine, "-nn", "-c", "2"]),
        );
        running.wait_for("capturing");
        let mut generator = bed.generator();
        let sending = generator.start(&[Load::endless(0).per_second(5_000)]).unwrap();
        let finished = running.finish();
        sending.stop().unwrap();
        finished.assert_success();
        assert_eq!(String::from_utf8_lossy(&finished.stdout).lines().count(), 2, "{engine}");
        let said = &finished.stderr;
        assert!(!said.contains("wirecap: ") && said.contains("lossless: yes"), "{engine}: {said}");
    }
}

#[test]
fn a_signal_to_show_ends_the_capture_and_all_packets_are_shown() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let mut running = bed.start(Command::new(WIRECAP).args(["show", "-i", "a1", "-nn", "udp"]));
    running.wait_for("capturing");
    bed.generator().send(&[Load::new(0, 500)]).unwrap();
    running.signal(Signal::TERM);
    let finished = running.finish();
    finished.assert_success();
    assert_eq!(
        String::from_utf8_lossy(&finished.stdout).lines().count(),
        500,
        "{}",
        finished.stderr
    );
}
