//! Damaged segments and indexes, wrong clocks, wrong statements, missing archives. Wrong
//! credentials and missing buckets are in `s3`, queries that need more memory than they may use in
//! `memory`, those of clusters in `cluster`.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use twox_hash::XxHash64;
use wirecap_index::{Ensured, ensure, index_path};

use crate::recordings::{
    BEGIN, PACKETS, Packet, Recordings, SECOND, STEP, packets, read, record, run,
};

#[test]
fn a_damaged_segment_is_named_and_the_others_are_read() {
    let recordings = Recordings::new();
    let damaged = recordings.folder.path().join("a.pcapng.zst");
    let bytes = fs::metadata(&damaged).unwrap().len();
    let modified = fs::metadata(&damaged).unwrap().modified().unwrap();
    let file = fs::OpenOptions::new().write(true).open(&damaged).unwrap();
    file.write_all_at(&[0x55; 4096], bytes / 2).unwrap();
    file.set_modified(modified).unwrap();
    let count =
        |statement: &str| run(&["sql", "-a", recordings.archive(), statement, "--format", "csv"]);
    let damaged_run = count("SELECT segment, count(*) FROM packets GROUP BY 1 ORDER BY 1");
    assert_eq!(damaged_run.status, Some(1));
    assert!(damaged_run.said.contains("a.pcapng.zst: "), "{}", damaged_run.said);
    assert!(
        damaged_run.said.contains("one segment could not be read completely"),
        "{}",
        damaged_run.said
    );
    let lines: Vec<&str> = damaged_run.text().lines().collect();
    assert!(lines.contains(&format!("b.pcapng,{PACKETS}").as_str()), "{lines:?}");
    assert!(lines.contains(&format!("sub/c.pcapng.zst,{PACKETS}").as_str()), "{lines:?}");
    // A query that does not need the damaged part is answered.
    let other = count("SELECT count(*) FROM packets WHERE segment = 'b.pcapng'");
    assert!(other.is_success && other.text().ends_with(&format!("{PACKETS}\n")), "{}", other.said);
    let found = run(&["find", "-a", recordings.archive(), "--count", "tcp"]);
    assert_eq!(found.status, Some(1));
    assert!(found.said.contains("a.pcapng.zst: "), "{}", found.said);
}

#[test]
fn a_damaged_or_missing_index_does_not_change_the_result() {
    let recordings = Recordings::new();
    let statement = "SELECT count(*), sum(length) FROM packets WHERE dst_port = 53";
    let flows = "SELECT sum(packets), sum(bytes) FROM flows WHERE dst_port = 53";
    let before = (recordings.sql(statement), recordings.sql(flows));
    fs::remove_file(index_path(&recordings.folder.path().join("b.pcapng"))).unwrap();
    let index = index_path(&recordings.folder.path().join("a.pcapng.zst"));
    let mut bytes = fs::read(&index).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&index, bytes).unwrap();
    assert_eq!((recordings.sql(statement), recordings.sql(flows)), before);
}

/// Writes another schema version into a valid index, with the right checksum of the footer.
fn of_version_9(index: &Path) {
    let mut bytes = fs::read(index).unwrap();
    let find = |bytes: &[u8], text: &[u8]| {
        bytes.windows(text.len()).rposition(|part| part == text).unwrap()
    };
    let key = b"wirecap.schema";
    let value = find(&bytes, key) + key.len();
    // Thrift: the type of the value's field, its length, its letters.
    assert_eq!(bytes[value..value + 3], [0x18, 1, b'1']);
    bytes[value + 2] = b'9';
    let digits = find(&bytes, b"xxh64:") + 6;
    bytes[digits..digits + 16].fill(b'0');
    let length = u32::from_le_bytes(bytes[bytes.len() - 8..bytes.len() - 4].try_into().unwrap());
    let footer = bytes.len() - 8 - length as usize;
    let checksum = format!("{:016x}", XxHash64::oneshot(0, &bytes[footer..]));
    bytes[digits..digits + 16].copy_from_slice(checksum.as_bytes());
    fs::write(index, bytes).unwrap();
}

#[test]
fn an_index_of_another_version_is_not_used() {
    let recordings = Recordings::new();
    let statement = "SELECT count(*) FROM packets WHERE protocol = 6";
    let before = recordings.sql(statement);
    let indexes = ["a.pcapng.zst", "b.pcapng", "sub/c.pcapng.zst"]
        .map(|name| index_path(&recordings.folder.path().join(name)));
    for index in &indexes {
        of_version_9(index);
    }
    assert_eq!(recordings.sql(statement), before);
    let list = run(&["find", "-a", recordings.archive(), "--list", "tcp"]);
    let reasons =
        list.text().lines().filter(|line| line.contains("its schema has version 9, not 1"));
    assert_eq!(reasons.count(), 3, "{}", list.text());
    for index in &indexes {
        fs::write(index, b"PAR1 of wirecap.schema 9 PAR1").unwrap();
    }
    assert_eq!(recordings.sql(statement), before);
}

#[test]
fn packets_of_sensors_with_different_clocks_are_found_by_their_recorded_times() {
    let folder = tempfile::tempdir().unwrap();
    // The first clock is right, the second one is two hours ahead, the third one was set back by a
    // minute in the middle of the recording.
    let mut all = Vec::new();
    for (number, ahead) in [0, 7200, 0].into_iter().enumerate() {
        let mut of_sensor = packets(number as u64, 1000);
        for (place, packet) in of_sensor.iter_mut().enumerate() {
            let back = if number == 2 && place >= 500 { 60 * SECOND } else { 0 };
            packet.nanos = BEGIN + 120 * SECOND + ahead * SECOND + place as u64 * STEP - back;
        }
        let times = of_sensor.iter().map(|packet| packet.nanos);
        let first = times.clone().min().unwrap();
        let last = times.max().unwrap();
        let hour = 17 + ahead / 3600;
        let path = folder.path().join(format!(
            "sensor=s{number}/date=2026-11-22/hour={hour}/{first}-{last}-0123456789abcde{number}-eth0.pcapng.zst"
        ));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        record(&path, &of_sensor);
        assert!(matches!(ensure(&path, &mut |_| true).unwrap(), Ensured::Written { .. }));
        all.extend(of_sensor);
    }
    let archive = folder.path().to_str().unwrap();
    let mut expected: Vec<(u64, Vec<u8>)> =
        all.iter().map(|packet| (packet.nanos, packet.data.clone())).collect();
    expected.sort_by_key(|(nanos, _)| *nanos);
    // Outside of the archive.
    let found = folder.path().with_extension("found.pcapng");
    let run_found = run(&["find", "-a", archive, "-w", found.to_str().unwrap()]);
    assert!(run_found.is_success, "{}", run_found.said);
    // Packets with the same time are in the order of their segments, and this sort is stable.
    assert!(read(&found) == expected);
    fs::remove_file(found).unwrap();
    for (from, to) in [(118, 126), (60, 66), (7320, 7321), (0, 60)] {
        let wanted =
            |packet: &&Packet| (BEGIN + from * SECOND..BEGIN + to * SECOND).contains(&packet.nanos);
        let expected = all.iter().filter(wanted).count().to_string();
        let [from, to] = [from, to].map(|seconds| BEGIN / SECOND + seconds);
        let arguments = ["--from", &from.to_string(), "--to", &to.to_string()];
        let count = run(&[&["find", "-a", archive, "--count"], &arguments[..]].concat());
        assert_eq!(count.text().trim(), expected, "{from} to {to}: {}", count.said);
        let statement = format!(
            "SELECT count(*) FROM packets WHERE time >= to_timestamp({from}) AND time < to_timestamp({to})"
        );
        let count = run(&["sql", "-a", archive, &statement, "--format", "csv"]);
        assert_eq!(count.text().lines().last(), Some(&*expected), "{statement}: {}", count.said);
    }
}

#[test]
fn each_wrong_command_has_one_error_with_its_status() {
    let recordings = Recordings::new();
    let archive = recordings.archive();
    let empty = tempfile::tempdir().unwrap();
    let cases: &[(&[&str], i32, &str)] = &[
        (&["sql", "-a", archive, "SELEC 1"], 2, "SELEC"),
        (&["sql", "-a", archive, "SELECT nothing FROM packets"], 2, "nothing"),
        (&["sql", "-a", archive, "SELECT * FROM nothing"], 2, "nothing"),
        (
            &["sql", "-a", archive, "SELECT 1 FROM packets WHERE pcap_filter('tcp porte 80')"],
            2,
            "pcap_filter",
        ),
        (
            &["sql", "-a", archive, "SELECT 1 FROM flows WHERE pcap_filter('tcp')"],
            2,
            "table packets",
        ),
        (
            &["sql", "-a", archive, "SELECT 1 FROM packets WHERE pcap_filter(src_addr)"],
            2,
            "literal",
        ),
        (&["sql", "-a", "/no/such/directory", "SELECT 1"], 1, "/no/such/directory"),
        (&["sql", "-a", empty.path().to_str().unwrap(), "SELECT 1"], 1, "no recordings"),
        (&["sql", "-a", "ftp://host/x", "SELECT 1"], 2, "ftp://host/x"),
        (&["find", "-a", archive, "--count", "tcp porte 80"], 2, "porte"),
        (&["find", "-a", "/no/such/directory", "--count"], 1, "/no/such/directory"),
        (&["find", "-a", archive, "--from", "yesterday", "--count"], 2, "yesterday"),
    ];
    for (arguments, status, word) in cases {
        let run = run(arguments);
        assert_eq!(run.status, Some(*status), "{arguments:?}: {}", run.said);
        assert!(run.said.contains(word), "{arguments:?}: {}", run.said);
        assert!(run.output.is_empty(), "{arguments:?}");
    }
}
