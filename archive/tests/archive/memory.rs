//! Queries that need more memory than they may use.

use std::fs;

use crate::recordings::{Packet, packets, record, run};

#[test]
fn a_sort_of_more_packets_than_fit_into_memory_uses_the_disk() {
    const COUNT: usize = 80_000;
    let folder = tempfile::tempdir().unwrap();
    let spill = tempfile::tempdir().unwrap();
    // Full frames: 120 MB.
    let full = |packet: Packet| {
        let mut data = packet.data;
        data.resize(1500, 0);
        Packet { data, ..packet }
    };
    for number in 0..4 {
        let packets: Vec<Packet> = packets(number, COUNT / 4).into_iter().map(full).collect();
        record(&folder.path().join(format!("{number}.pcapng")), &packets);
    }
    let result = folder.path().with_extension("sorted.csv");
    let run = run(&[
        "sql",
        "-a",
        folder.path().to_str().unwrap(),
        "SELECT src_port, CAST(time AS BIGINT) AS nanos, data FROM packets ORDER BY src_port DESC NULLS LAST, time DESC",
        "--memory",
        "48M",
        "--threads",
        "2",
        "--spill",
        spill.path().to_str().unwrap(),
        "-w",
        result.to_str().unwrap(),
    ]);
    assert!(run.is_success, "{}", run.said);
    let text = fs::read_to_string(&result).unwrap();
    fs::remove_file(&result).unwrap();
    let keys: Vec<(Option<u16>, u64)> = text
        .lines()
        .skip(1)
        .map(|line| {
            let mut fields = line.splitn(3, ',');
            (fields.next().unwrap().parse().ok(), fields.next().unwrap().parse().unwrap())
        })
        .collect();
    assert_eq!(keys.len(), COUNT);
    assert!(keys.is_sorted_by(|a, b| a >= b), "the result is not sorted");
    assert_eq!(fs::read_dir(spill.path()).unwrap().count(), 0, "nothing remains on the disk");
}
