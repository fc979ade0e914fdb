//! Files of other programs: each trace is read like libpcap reads it, and again after compression.

use std::fs;
use std::io::{Cursor, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::packet::{Packet, read_all, read_whole};
use crate::stored::{own_traces, traces};
use crate::tools::{has, tcpdump};

/// The packet as tcpdump copies it: pcap has no interfaces, and packets without a time get time 0.
fn as_copied(packet: Packet, copy: &Packet) -> Packet {
    let nanos = copy.nanos.and(packet.nanos.or(Some(0)));
    Packet { interface: 0, queue: None, direction: None, nanos, ..packet }
}

#[test]
fn every_trace_is_read_as_libpcap_reads_it() {
    if !has("tcpdump") {
        return;
    }
    for path in traces() {
        let (expected, whole) = tcpdump(&path);
        let (packets, error) = read_all(fs::File::open(&path).expect("the trace is there"));
        assert_eq!(packets.len(), expected.len(), "{}: {error:?}", path.display());
        for (packet, copy) in packets.into_iter().zip(expected) {
            assert_eq!(as_copied(packet, &copy), copy, "{}", path.display());
        }
        assert_eq!(error.is_none(), whole, "{}: {error:?}", path.display());
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory takes everything");
    encoder.finish().expect("memory takes everything")
}

fn zstandard(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).expect("memory takes everything")
}

#[test]
fn a_compressed_trace_has_the_same_packets() {
    for path in own_traces().into_iter().chain(traces().into_iter().step_by(16)) {
        let plain = fs::read(&path).expect("the trace is there");
        let (expected, error) = read_all(Cursor::new(plain.clone()));
        for compressed in [gzip(&plain), zstandard(&plain)] {
            let (packets, compressed_error) = read_all(Cursor::new(compressed));
            assert!(packets == expected, "{}: packets differ", path.display());
            assert_eq!(compressed_error.is_some(), error.is_some(), "{}", path.display());
        }
    }
}

/// A pcap file with incompressible packets.
fn noisy_file() -> Vec<u8> {
    let mut file = vec![0; 24];
    file[..4].copy_from_slice(&0xa1b2_3c4d_u32.to_le_bytes());
    file[4] = 2;
    file[6] = 4;
    let mut noise = 1_u32;
    for _ in 0..20_000 {
        file.extend([0; 8]);
        file.extend([100, 0, 0, 0, 100, 0, 0, 0]);
        for _ in 0..100 {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            file.push((noise >> 24) as u8);
        }
    }
    file
}

#[test]
fn concatenated_compressed_files_are_read_as_one() {
    let file = noisy_file();
    let (head, tail) = file.split_at(file.len() / 2);
    for compress in [gzip, zstandard] {
        let joined = [compress(head), compress(tail)].concat();
        assert_eq!(read_whole(&joined), read_whole(&file));
    }
}

#[test]
fn a_truncated_compressed_file_yields_its_complete_packets() {
    let file = noisy_file();
    for compress in [gzip, zstandard] {
        let mut cut = compress(&file);
        cut.truncate(cut.len() / 2);
        let (packets, error) = read_all(Cursor::new(cut));
        let error = error.expect("half a file is missing");
        // Zstandard returns whole blocks of 128 KiB.
        assert!((8500..10_010).contains(&packets.len()), "{} packets, then {error}", packets.len());
        assert_eq!(packets, read_whole(&file)[..packets.len()]);
    }
}
