//! An archive of a hundred sensors that is much larger than the results of queries.
//! `WIRECAP_ARCHIVE_GB=50` sets its size before compression; the printed rates are those of a
//! release build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use sha2::{Digest, Sha256};
use wirecap_index::{Ensured, ensure, index_path};

use crate::cluster::Cluster;
use crate::recordings::{BEGIN, Packet, Random, SECOND, record};
use crate::upload::MODULES;

const SENSORS: u64 = 100;
/// Bytes of a frame, and those of them that do not compress.
const FRAME_BYTES: usize = 1000;
const RANDOM_BYTES: usize = 100;
/// Bytes of a segment before compression, if the archive is large enough.
const SEGMENT_BYTES: f64 = 62.5e6;
/// The flow that one sensor has seen in one hour.
const FLOW: &str = "10.255.0.1.40000:10.255.0.2.443";
const OF_FLOW: u64 = 20;

/// A frame of TCP between two addresses; of the payload, only the beginning is random.
fn frame(random: &mut Random, source: [u8; 4], destination: [u8; 4], port: u16) -> Vec<u8> {
    let mut data = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    data.extend((FRAME_BYTES as u16 - 14).to_be_bytes());
    data.extend([0, 0, 0, 0, 64, 6, 0, 0]);
    data.extend(source);
    data.extend(destination);
    data.extend(port.to_be_bytes());
    data.extend(443_u16.to_be_bytes());
    data.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 16, 0, 0, 0, 0, 0, 0]);
    for _ in 0..RANDOM_BYTES / 4 {
        data.extend((random.below(1 << 32) as u32).to_le_bytes());
    }
    data.resize(FRAME_BYTES, b'x');
    data
}

/// An hour of a sensor: a hundred flows at a time, 40 packets of each.
fn hour(sensor: u64, hour: u64, packets: u64) -> Vec<Packet> {
    let mut random = Random::new(sensor * 1000 + hour);
    let begin = BEGIN + hour * 3600 * SECOND;
    let step = 3600 * SECOND / packets;
    let has_flow = (sensor, hour) == (37, 0);
    (0..packets)
        .map(|place| {
            let (source, destination, port) =
                match has_flow && place >= packets / 2 && place < packets / 2 + OF_FLOW {
                    true => ([10, 255, 0, 1], [10, 255, 0, 2], 40_000),
                    false => {
                        let client = (place / 4000) * 100 + random.below(100);
                        let source = [10, sensor as u8, (client >> 8) as u8, client as u8];
                        (source, [192, 0, 2, (client % 60) as u8], 1024 + client as u16)
                    }
                };
            let data = frame(&mut random, source, destination, port);
            Packet {
                nanos: begin + place * step,
                protocol: Some(6),
                source: None,
                destination: None,
                ports: None,
                vlan: None,
                flags: None,
                data,
            }
        })
        .collect()
}

/// The directories of a segment that begins at a time.
fn date_and_hour(nanos: u64) -> String {
    let seconds = i64::try_from(nanos / SECOND).unwrap();
    let time = arrow::temporal_conversions::timestamp_s_to_datetime(seconds).unwrap();
    time.format("date=%Y-%m-%d/hour=%H").to_string()
}

/// An archive in the layout of uploads.
struct Archive {
    folder: tempfile::TempDir,
    segments: Vec<PathBuf>,
    packets: u64,
    /// Before compression.
    bytes: u64,
    stored_bytes: u64,
    index_bytes: u64,
}

impl Archive {
    fn new(gigabytes: f64) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let hours = ((gigabytes * 1e9 / SENSORS as f64 / SEGMENT_BYTES) as u64).max(1);
        let of_segment = ((gigabytes * 1e9 / (SENSORS * hours) as f64) as u64 / FRAME_BYTES as u64)
            .max(2 * OF_FLOW);
        let next = AtomicU64::new(0);
        let write = || {
            let mut written = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= SENSORS * hours {
                    return written;
                }
                let sensor = number % SENSORS;
                let hour_number = number / SENSORS;
                let packets = hour(sensor, hour_number, of_segment);
                let times = (packets[0].nanos, packets[packets.len() - 1].nanos);
                let place =
                    folder.path().join(format!("sensor=s{sensor:02}/{}", date_and_hour(times.0)));
                fs::create_dir_all(&place).unwrap();
                let new = place.join("new.pcapng.zst");
                record(&new, &packets);
                let digest: String = Sha256::digest(fs::read(&new).unwrap())
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                let path = place.join(format!(
                    "{}-{}-{}-eth0.pcapng.zst",
                    times.0,
                    times.1,
                    &digest[..16]
                ));
                fs::rename(new, &path).unwrap();
                assert!(matches!(ensure(&path, &mut |_| true).unwrap(), Ensured::Written { .. }));
                written.push(path);
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let mut segments: Vec<PathBuf> = thread::scope(|scope| {
            let writers: Vec<_> = (0..threads).map(|_| scope.spawn(write)).collect();
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        segments.sort();
        let size = |path: &Path| fs::metadata(path).unwrap().len();
        let stored_bytes = segments.iter().map(|path| size(path)).sum();
        let index_bytes = segments.iter().map(|path| size(&index_path(path))).sum();
        let packets = of_segment * SENSORS * hours;
        Self {
            folder,
            segments,
            packets,
            bytes: packets * FRAME_BYTES as u64,
            stored_bytes,
            index_bytes,
        }
    }

    fn path(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }
}

/// A program that ended.
struct Measured {
    text: String,
    said: String,
    seconds: f64,
    /// Of the program and of those that it started.
    processor_seconds: f64,
    /// Bytes of their reads, of any file and pipe.
    read_bytes: u64,
}

/// CPU time of children that ended, in seconds.
fn processor_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // Fields 16 and 17, in hundredths of a second.
    (fields[13].parse::<f64>().unwrap() + fields[14].parse::<f64>().unwrap()) / 100.0
}

/// Runs a program and counts what it reads.
fn measure(arguments: &[&str]) -> Measured {
    // The kernel adds the counts of a process that ended to those of its parent.
    let script = "\"$@\"; status=$?; while read -r name value; do [ $name != rchar: ] || echo \"rchar $value\" >&2; done </proc/$$/io; exit $status";
    let begun = Instant::now();
    let before = processor_seconds();
    let output = Command::new("bash")
        .args(["-c", script, "bash"])
        .args(arguments)
        .env("PYTHONPATH", MODULES)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let seconds = begun.elapsed().as_secs_f64();
    let processor_seconds = processor_seconds() - before;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    let read_bytes =
        said.lines().find_map(|line| line.strip_prefix("rchar ")?.parse().ok()).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    Measured { text, said, seconds, processor_seconds, read_bytes }
}

fn command(arguments: &[&str]) -> Measured {
    measure(&[&[env!("CARGO_BIN_EXE_wirecap-archive")], arguments].concat())
}

/// The last line of CSV.
fn row(measured: &Measured) -> &str {
    measured.text.lines().last().unwrap_or_default()
}

#[test]
fn a_question_about_one_flow_reads_little_of_a_large_archive() {
    let gigabytes: f64 =
        std::env::var("WIRECAP_ARCHIVE_GB").map_or(0.05, |text| text.parse().unwrap());
    let begun = Instant::now();
    let archive = Archive::new(gigabytes);
    let is_large = gigabytes >= 20.0;
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    println!(
        "segments,packets,MB of packets,MB stored,MB of indexes\n{},{},{:.0},{:.0},{:.1}\n",
        archive.segments.len(),
        archive.packets,
        megabytes(archive.bytes),
        megabytes(archive.stored_bytes),
        megabytes(archive.index_bytes),
    );
    println!("made in {:.1} s\n", begun.elapsed().as_secs_f64());
    let stored_bytes = archive.stored_bytes + archive.index_bytes;
    // At most 8 GB for 50 GB of packets. A small archive is not checked: its indexes are relatively
    // larger.
    assert!(!is_large || stored_bytes <= archive.bytes * 8 / 50);
    println!(
        "question,seconds,CPU seconds,MB read,% of the packets,% of the stored bytes,MB of packets/s,MB of packets/s of CPU"
    );
    let show = |name: &str, measured: &Measured| {
        let Measured { seconds, processor_seconds, read_bytes, .. } = measured;
        println!(
            "\"{name}\",{seconds:.2},{processor_seconds:.2},{:.1},{:.3},{:.2},{:.0},{:.0}",
            megabytes(*read_bytes),
            *read_bytes as f64 * 100.0 / archive.bytes as f64,
            *read_bytes as f64 * 100.0 / stored_bytes as f64,
            megabytes(archive.bytes) / seconds,
            megabytes(archive.bytes) / processor_seconds.max(0.01),
        );
    };

    // One flow.
    let find = command(&["find", "-a", archive.path(), "--count", "--flow", FLOW]);
    assert_eq!(find.text.trim(), OF_FLOW.to_string());
    show("find, one flow", &find);
    let condition = "src_addr = '10.255.0.1' AND dst_addr = '10.255.0.2' AND src_port = 40000 AND dst_port = 443";
    let expected = format!("{OF_FLOW},{}", OF_FLOW * FRAME_BYTES as u64);
    let of_packets = format!("SELECT count(*), sum(length) FROM packets WHERE {condition}");
    let sql = command(&["sql", "-a", archive.path(), &of_packets, "--format", "csv"]);
    assert_eq!(row(&sql), expected);
    show("sql, one flow, packets", &sql);
    for measured in [&find, &sql] {
        // Most bytes of a small archive are those of indexes.
        let allowed = if is_large { 0.01 } else { 1.0 };
        let share = measured.read_bytes as f64 / archive.bytes as f64;
        assert!(share < allowed, "{:.2} % of the bytes: {}", share * 100.0, measured.said);
    }
    let plan = command(&[
        "sql",
        "-a",
        archive.path(),
        &format!("EXPLAIN ANALYZE {of_packets}"),
        "--format",
        "csv",
    ]);
    let (_, count) = plan.text.split_once("bytes_read=").unwrap();
    let count: String = count.chars().take_while(|letter| !",]".contains(*letter)).collect();
    println!("\"of these, bytes of segments: {count}\"");

    // The same question to tcpdump and to DuckDB.
    let files: Vec<&str> = archive.segments.iter().map(|path| path.to_str().unwrap()).collect();
    let expression = "tcp port 40000 and host 10.255.0.1";
    let list = archive.folder.path().join("segments.txt");
    fs::write(&list, files.join("\n") + "\n").unwrap();
    let script = "while read -r file; do zstd -dcq \"$file\" | tcpdump -nr - \"$2\" 2>/dev/null; done <\"$1\" | wc -l";
    let tcpdump = measure(&["bash", "-c", script, "bash", list.to_str().unwrap(), expression]);
    assert_eq!(tcpdump.text.trim(), OF_FLOW.to_string());
    show("zstd -dc | tcpdump -r in a loop, one flow", &tcpdump);
    let of_flows = format!("SELECT sum(packets), sum(bytes) FROM flows WHERE {condition}");
    let sql = command(&["sql", "-a", archive.path(), &of_flows, "--format", "csv"]);
    assert_eq!(row(&sql), expected);
    show("sql, one flow, flows", &sql);
    let code = format!(
        "import duckdb
print(*duckdb.sql('''SELECT sum(packets), sum(bytes) FROM read_parquet('{}/sensor=*/date=*/hour=*/*.flows.parquet', hive_partitioning = true)
WHERE {condition}''').fetchall()[0], sep=',')",
        archive.path()
    );
    let has_duckdb =
        Command::new("python3").args(["-c", "import duckdb"]).env("PYTHONPATH", MODULES).output();
    match has_duckdb.is_ok_and(|output| output.status.success()) {
        true => {
            let duckdb = measure(&["python3", "-c", &code]);
            assert_eq!(row(&duckdb), expected);
            show("DuckDB, one flow, the same indexes", &duckdb);
        }
        false => wirecap_testbed::skip("Python has no module duckdb: run make deps-test"),
    }

    // All packets.
    let all = "SELECT count(*), sum(length) FROM packets WHERE tcp_flags & 16 = 16";
    let expected = format!("{},{}", archive.packets, archive.bytes);
    for threads in ["1", "2"] {
        let sql =
            command(&["sql", "-a", archive.path(), all, "--threads", threads, "--format", "csv"]);
        assert_eq!(row(&sql), expected);
        show(&format!("sql, all packets, threads: {threads}"), &sql);
    }
    let script = "while read -r file; do zstd -dcq \"$file\" | tcpdump -nr - \"$2\" -w - 2>/dev/null; done <\"$1\" | wc -c";
    let tcpdump = measure(&[
        "bash",
        "-c",
        script,
        "bash",
        list.to_str().unwrap(),
        "tcp[tcpflags] & tcp-ack != 0",
    ]);
    assert!(tcpdump.text.trim().parse::<u64>().unwrap() > archive.bytes);
    show("zstd -dc | tcpdump -r -w - in a loop, all packets", &tcpdump);
    for executors in 1..=3 {
        let cluster = Cluster::new(executors);
        let before = cluster.read_bytes();
        let cpu_before = cluster.processor_seconds();
        let sql = command(&[
            "sql",
            "-a",
            archive.path(),
            all,
            "--cluster",
            &cluster.url,
            "--format",
            "csv",
        ]);
        assert_eq!(row(&sql), expected);
        let measured = Measured {
            read_bytes: cluster.read_bytes() - before,
            processor_seconds: cluster.processor_seconds() - cpu_before,
            ..sql
        };
        show(&format!("sql, all packets, executors with one thread: {executors}"), &measured);
        if executors == 3 {
            let before = cluster.read_bytes();
            let find = command(&[
                "find",
                "-a",
                archive.path(),
                "--cluster",
                &cluster.url,
                "--count",
                "--flow",
                FLOW,
            ]);
            assert_eq!(find.text.trim(), OF_FLOW.to_string());
            show(
                "find, one flow, cluster",
                &Measured { read_bytes: cluster.read_bytes() - before, ..find },
            );
        }
    }
}
