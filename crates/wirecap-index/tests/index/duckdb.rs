//! DuckDB, used from Python, reads the index as documented.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use wirecap_index::{Ensured, SCHEMA_VERSION, ensure};
use wirecap_savefile::LinkType;
use wirecap_testbed::skip;

use crate::files::{ip_packet, write_segment};

/// The directory in which `make deps-test` installs the module.
const MODULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/duckdb");
/// Runs the query from standard input. Prints one line per row, with tabs between the columns.
const RUN: &str = "
import sys, duckdb
for row in duckdb.sql(sys.stdin.read()).fetchall():
    print('\\t'.join('' if value is None else str(value) for value in row))
";

fn python(folder: &Path, arguments: &[&str], input: &str) -> Option<(bool, String)> {
    let mut command = Command::new("python3");
    command.args(arguments).env("PYTHONPATH", MODULES).current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = if output.status.success() { output.stdout } else { output.stderr };
    Some((output.status.success(), String::from_utf8(said).unwrap()))
}

fn query(folder: &Path, sql: &str) -> Vec<Vec<String>> {
    let (is_done, said) = python(folder, &["-c", RUN], sql).unwrap();
    assert!(is_done, "{sql}\n{said}");
    said.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// The rows of the documentation's table of columns: names and types.
fn documented_columns(page: &str) -> Vec<(String, &str)> {
    let table =
        page.split("| column | type | content |").nth(1).unwrap().split("\n\n").next().unwrap();
    let mut columns = Vec::new();
    for line in table.lines().skip(2) {
        let mut cells = line.trim_matches('|').split('|');
        let names = cells.next().unwrap();
        let kind = cells.next().unwrap().trim();
        columns
            .extend(names.split(',').map(|name| (name.trim().trim_matches('`').to_owned(), kind)));
    }
    columns
}

#[test]
fn duckdb_reads_the_index_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    if python(folder.path(), &["-c", "import duckdb"], "").is_none_or(|(is_there, _)| !is_there) {
        skip("Python has no module duckdb: run make deps-test, which needs python3, pip and PyPI");
        return;
    }
    let recording = folder.path().join("rec");
    fs::create_dir(&recording).unwrap();
    // TCP packets by source, destination and destination port.
    let mut expected: BTreeMap<(String, String, u16), (u64, u64)> = BTreeMap::new();
    let mut total = 0;
    for file in 0..3_u64 {
        let mut packets = Vec::new();
        for number in 0..900_u64 {
            let a = (number % 3) as u16 + 1;
            let b = (number % 5) as u16 + 10;
            let flags = (number % 4 != 0).then_some(0x10);
            let nanos = 1_700_000_000_000_000_000 + (file * 900 + number) * 100_000_000;
            let packet = ip_packet(nanos, (a, 40_000 + a), (b, 443), flags, 10 * a as usize);
            if flags.is_some() {
                let key = (format!("10.0.0.{a}"), format!("10.0.0.{b}"), 443);
                let (count, bytes) = expected.entry(key).or_default();
                (*count, *bytes) = (*count + 1, *bytes + u64::from(packet.wire_len));
            }
            total += 1;
            packets.push(packet);
        }
        let path = recording.join(format!("s{file}.pcapng.zst"));
        write_segment(&path, &packets, LinkType::ETHERNET, 10_000);
        assert!(matches!(ensure(&path, &mut |_| true).unwrap(), Ensured::Written { .. }));
    }
    let page = include_str!("../../../../docs/index-format.md");
    // The query in the documentation, unchanged.
    let documented = page.split("```sql\n").nth(1).unwrap().split("```").next().unwrap();
    let mut largest: Vec<_> = expected.into_iter().collect();
    largest.sort_by_key(|(_, (_, bytes))| u64::MAX - bytes);
    let found = query(folder.path(), documented);
    assert_eq!(found.len(), 10);
    for row in &found {
        let key = (row[0].clone(), row[1].clone(), row[2].parse().unwrap());
        let sums = (row[3].parse().unwrap(), row[4].parse().unwrap());
        assert!(largest.contains(&(key, sums)), "{row:?} is not in {largest:?}");
    }
    let bytes: Vec<String> = found.into_iter().map(|row| row[4].clone()).collect();
    let most: Vec<String> =
        largest.iter().take(10).map(|(_, (_, bytes))| bytes.to_string()).collect();
    assert_eq!(bytes, most);
    // The columns have the documented names and types, in this order.
    let of_duckdb = |kind: &str| match kind.split(',').next().unwrap() {
        "uint64" => vec!["UBIGINT"],
        "uint32" => vec!["UINTEGER"],
        "uint16" => vec!["USMALLINT"],
        "uint8" => vec!["UTINYINT"],
        "string" => vec!["VARCHAR"],
        "timestamp" => vec!["TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS"],
        "list of struct" => {
            vec![
                "STRUCT(\"offset\" UBIGINT, packets UINTEGER, tcp_flags UTINYINT, tcp_flags_all UTINYINT)[]",
            ]
        }
        kind => panic!("{kind}"),
    };
    let described =
        query(folder.path(), "DESCRIBE SELECT * FROM read_parquet('rec/*.flows.parquet')");
    let columns = documented_columns(page);
    assert_eq!(described.len(), columns.len());
    for (row, (name, kind)) in described.iter().zip(columns) {
        assert!(row[0] == name && of_duckdb(kind).contains(&&*row[1]), "{row:?}: {name} {kind}");
    }
    let filtered = "SELECT DISTINCT path_in_schema FROM parquet_metadata('rec/*.flows.parquet') \
                    WHERE bloom_filter_offset IS NOT NULL ORDER BY 1";
    let filtered: Vec<String> = query(folder.path(), filtered).into_iter().flatten().collect();
    assert_eq!(filtered, ["dst_addr", "dst_port", "flow", "src_addr", "src_port"]);
    // The contents of lists, and the metadata outside of rows.
    let places = "SELECT sum(piece.packets), count(DISTINCT piece.offset) FROM \
                  (SELECT unnest(pieces) AS piece FROM read_parquet('rec/s1*.flows.parquet'))";
    let [counted] = &query(folder.path(), places)[..] else { panic!("one row") };
    assert_eq!(counted[0], (total / 3).to_string());
    assert!(counted[1].parse::<u64>().unwrap() > 1, "{counted:?}");
    let schema = "SELECT DISTINCT decode(value) FROM parquet_kv_metadata('rec/*.flows.parquet') \
                  WHERE decode(key) = 'wirecap.schema'";
    assert_eq!(query(folder.path(), schema), [[SCHEMA_VERSION.to_string()]]);
}
