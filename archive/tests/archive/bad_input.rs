//! Damaged segments and indexes, wrong statements, missing archives.

use std::fs;
use std::os::unix::fs::FileExt;

use wirecap_index::index_path;

use crate::recordings::{PACKETS, Recordings, run};

#[test]
fn a_damaged_segment_is_named_and_the_others_are_read() {
    let recordings = Recordings::new();
    let damaged = recordings.folder.path().join("a.pcapng.zst");
    let bytes = fs::metadata(&damaged).unwrap().len();
    let modified = fs::metadata(&damaged).unwrap().modified().unwrap();
    let file = fs::OpenOptions::new().write(true).open(&damaged).unwrap();
    file.write_all_at(&[0x55; 4096], bytes / 2).unwrap();
    file.set_modified(modified).unwrap();
    let count = |statement: &str| run(&["sql", "-a", recordings.archive(), statement, "--format", "csv"]);
    let damaged_run = count("SELECT segment, count(*) FROM packets GROUP BY 1 ORDER BY 1");
    assert_eq!(damaged_run.status, Some(1));
    assert!(damaged_run.said.contains("a.pcapng.zst: "), "{}", damaged_run.said);
    assert!(damaged_run.said.contains("one segment could not be read completely"), "{}", damaged_run.said);
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

#[test]
fn an_index_of_another_version_is_not_used() {
    let recordings = Recordings::new();
    let statement = "SELECT count(*) FROM packets WHERE protocol = 6";
    let before = recordings.sql(statement);
    for name in ["a.pcapng.zst", "b.pcapng", "sub/c.pcapng.zst"] {
        let path = index_path(&recordings.folder.path().join(name));
        fs::write(&path, b"PAR1 of wirecap.schema 9 PAR1").unwrap();
    }
    assert_eq!(recordings.sql(statement), before);
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
        (&["sql", "-a", archive, "SELECT 1 FROM flows WHERE pcap_filter('tcp')"], 2, "table packets"),
        (&["sql", "-a", archive, "SELECT 1 FROM packets WHERE pcap_filter(src_addr)"], 2, "literal"),
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
