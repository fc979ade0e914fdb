//! Queries that need more memory than they may use.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use crate::recordings::{Packet, packets, record};

/// Bytes of a frame.
const FRAME_BYTES: usize = 1500;
/// Packets of a segment.
const OF_SEGMENT: usize = 20_000;

/// `WIRECAP_SORT_GB=10` sets the packets' size, in gigabytes; the memory is then 512 MiB (use a
/// release build).
#[test]
fn a_sort_of_more_packets_than_fit_into_memory_uses_the_disk() {
    let gigabytes = std::env::var("WIRECAP_SORT_GB").ok().map(|text| text.parse::<f64>().unwrap());
    let segments =
        gigabytes.map_or(4, |size| (size * 1e9 / (OF_SEGMENT * FRAME_BYTES) as f64).ceil() as u64);
    let memory = if gigabytes.is_some() { "512M" } else { "48M" };
    let [folder, spill] =
        [(); 2].map(|()| tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let full = |packet: Packet| {
        let mut data = packet.data;
        data.resize(FRAME_BYTES, 0);
        Packet { data, ..packet }
    };
    for number in 0..segments {
        let packets: Vec<Packet> = packets(number, OF_SEGMENT).into_iter().map(full).collect();
        record(&folder.path().join(format!("{number:05}.pcapng")), &packets);
    }
    let mut query = Command::new(env!("CARGO_BIN_EXE_wirecap-archive"))
        .args(["sql", "-a", folder.path().to_str().unwrap(), "--format", "csv", "--threads", "2", "--memory", memory])
        .args(["--spill", spill.path().to_str().unwrap()])
        .arg("SELECT src_port, CAST(time AS BIGINT) AS nanos, data FROM packets ORDER BY src_port DESC NULLS LAST, time DESC")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut count = 0;
    let mut before = None;
    for line in BufReader::new(query.stdout.take().unwrap()).lines().skip(1) {
        let line = line.unwrap();
        let mut fields = line.splitn(3, ',');
        let key: (Option<u16>, u64) =
            (fields.next().unwrap().parse().ok(), fields.next().unwrap().parse().unwrap());
        assert!(before.is_none_or(|before| before >= key), "row {count} is not in order");
        assert_eq!(fields.next().unwrap().len(), 2 * FRAME_BYTES, "row {count}");
        before = Some(key);
        count += 1;
    }
    let mut said = String::new();
    query.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(query.wait().unwrap().success(), "{said}");
    assert_eq!(count, segments as usize * OF_SEGMENT);
    assert_eq!(fs::read_dir(spill.path()).unwrap().count(), 0, "nothing remains on the disk");
}
