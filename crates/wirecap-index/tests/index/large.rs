//! A search in a recording that is much larger than its result. `WIRECAP_RECORDING_GB=50` sets the
//! recording's size before compression.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use wirecap_index::{Ensured, ensure};
use wirecap_savefile::LinkType;

use crate::files::{Packet, find, ip_packet, query, write_segment};

/// Size of a segment before compression.
const SEGMENT_BYTES: u64 = 96 << 20;
const PACKETS: u64 = 80_000;

/// A segment with many flows. In every tenth segment, one flow is from host 10.0.255.1.
fn traffic(number: u64, packets: u64) -> Vec<Packet> {
    let wanted = number % 10 == 3;
    (0..packets)
        .map(|place| {
            let nanos = 1_700_000_000_000_000_000 + (number * packets + place) * 100_000;
            let mixed = (number * packets + place).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            // The set of flows changes every 4,000 packets.
            let flow = (place / 4000) * 500 + mixed % 500;
            let host = (flow.wrapping_mul(0x2545_f491) >> 8) as u16 % 60_000;
            match wanted && place % 1000 < 3 && place < packets / 8 {
                true => ip_packet(nanos, (0xff01, 40_000), (7, 443), Some(0x10), 200),
                false => ip_packet(
                    nanos,
                    (host, 1024 + (flow % 50_000) as u16),
                    (flow as u16 % 200, 443),
                    Some(0x10),
                    1100,
                ),
            }
        })
        .collect()
}

/// The time for which this thread has run. Where it is much less than the elapsed time, other
/// programs disturb the measurement.
fn cpu_time() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

#[test]
fn one_flow_is_found_in_a_large_recording_without_reading_it() {
    let gigabytes: f64 =
        std::env::var("WIRECAP_RECORDING_GB").map_or(0.06, |text| text.parse().unwrap());
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (mut segments, mut bytes, mut number): (Vec<PathBuf>, u64, u64) = (Vec::new(), 0, 0);
    let small = gigabytes < 1.0;
    let packets = if small { PACKETS / 8 } else { PACKETS };
    let mut index_bytes = 0;
    while (bytes as f64) < gigabytes * 1e9 {
        let path = folder.path().join(format!("s{number:05}.pcapng.zst"));
        let traffic = traffic(number, packets);
        bytes += traffic.iter().map(|packet| packet.data.len() as u64 + 32).sum::<u64>();
        write_segment(&path, &traffic, LinkType::ETHERNET, 1 << 20);
        match ensure(&path, &mut |_| true).unwrap() {
            Ensured::Written { bytes, .. } => index_bytes += bytes,
            outcome => panic!("{outcome:?}"),
        }
        segments.push(path);
        number += 1;
    }
    assert!(small || bytes / number <= SEGMENT_BYTES * 2);
    let stored: u64 = segments.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    let begun = Instant::now();
    let busy = cpu_time();
    let (found, _, outcome) = find(&segments, query("host 10.0.255.1 and tcp port 40000"));
    let by_index = begun.elapsed();
    let cpu_by_index = cpu_time() - busy;
    let wanted = (0..number).filter(|number| number % 10 == 3).count() as u64;
    assert_eq!(found.len() as u64, wanted * (packets / 8).div_ceil(1000) * 3);
    assert!(outcome.read_bytes as f64 <= 1.2 * outcome.matching_bytes as f64, "{outcome:?}");
    assert!(outcome.read_bytes * 20 < stored, "{outcome:?} of {stored}");
    // The fastest search without an index: read all packets, and apply the same filter.
    let begun = Instant::now();
    let busy = cpu_time();
    let mut matched = 0;
    let filter = wirecap_filter::Filter::compile(
        "host 10.0.255.1 and tcp port 40000",
        LinkType::ETHERNET,
        0,
    )
    .unwrap();
    let filter = wirecap_filter::CompiledFilter::new(&filter).unwrap();
    for segment in &segments {
        let mut reader = wirecap_savefile::Reader::open(segment).unwrap();
        while let Some(record) = reader.next_record().unwrap() {
            let bytes =
                filter.matches(record.data, record.wire_len, &wirecap_filter::Context::default());
            matched += u64::from(bytes > 0);
        }
    }
    let by_reading = begun.elapsed();
    let cpu_by_reading = cpu_time() - busy;
    assert_eq!(matched, found.len() as u64);
    let ratio = by_reading.as_secs_f64() / by_index.as_secs_f64();
    println!(
        "{number} files, {bytes} bytes, {stored} stored, {index_bytes} of indexes: {} packets by the index in {by_index:.3?} \
         ({cpu_by_index:.3?} of CPU time), {} bytes read; by reading all in {by_reading:.3?} ({cpu_by_reading:.3?}), \
         {:.0} times as long",
        found.len(),
        outcome.read_bytes,
        ratio,
    );
    // The documented ratio holds for a release build; a small recording is read too quickly to
    // measure it.
    assert!(gigabytes < 20.0 || cfg!(debug_assertions) || ratio >= 50.0, "{ratio:.0} times");
}
