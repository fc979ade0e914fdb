//! Frames are forwarded unchanged, independent of contents and length.

use std::time::{Duration, Instant};

use wirecap_testbed::{frames_of_several_cells, loss_lock, privileged};

use crate::bed::{Bed, ENGINES, Recording, at, port, transfer_seconds};

/// Pseudo-random bytes from a seed.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// A frame of this many bytes, with the headers selected by `kind`: an unknown type, IPv4, IPv6,
/// the type of ARP, one VLAN tag, or two.
pub(crate) fn frame(kind: usize, seed: u64, frame_bytes: usize) -> Vec<u8> {
    let header: &[u8] = match kind % 6 {
        0 => &[0x88, 0xb5],
        1 => &[0x08, 0x00, 0x45, 0x00],
        2 => &[0x86, 0xdd, 0x60, 0x00],
        3 => &[0x08, 0x06],
        4 => &[0x81, 0x00, 0x20, 0x64, 0x08, 0x00, 0x45],
        _ => &[0x88, 0xa8, 0x00, 0x05, 0x81, 0x00, 0xef, 0xff, 0x86, 0xdd],
    };
    let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8];
    frame.extend(header);
    frame.extend(noise(seed, frame_bytes - frame.len()));
    frame
}

/// Sends frames of these lengths, and compares them with those that arrive.
#[track_caller]
fn pass_unchanged(
    engine: &str,
    mtu_bytes: u32,
    lengths: impl Iterator<Item = usize>,
    options: &str,
) {
    let kinds_of = |length: usize| [length % 4, 4 + length % 2];
    let mut frames: Vec<Vec<u8>> = lengths
        .flat_map(|length| {
            kinds_of(length).map(|kind| frame(kind, (length * 6 + kind) as u64, length))
        })
        .collect();
    let mut bed = Bed::new(1, mtu_bytes);
    let forwarder = bed.forward(&format!("--engine {engine} {options}"));
    let recording = Recording::at(&bed.inline.right);
    bed.send(&frames);
    let mut arrived = recording.finish(frames.len() as u64);
    let ledger = bed.finish(forwarder);
    assert_eq!(arrived.len(), frames.len(), "{engine}: {ledger:#}");
    // The others do not wait for a worker that gets no CPU time for too long; the ledger counts its
    // late packets.
    if at(port(&ledger, "right"), "/late") > 0 {
        println!("out of order: {ledger:#}");
        [&mut frames, &mut arrived].into_iter().for_each(|frames| frames.sort_unstable());
    }
    for (index, (arrived, sent)) in arrived.iter().zip(&frames).enumerate() {
        assert_eq!(arrived, sent, "{engine}, frame {index} of {} bytes", sent.len());
    }
    assert_eq!(at(port(&ledger, "right"), "/sent"), frames.len() as u64, "{ledger:#}");
    assert_eq!(at(port(&ledger, "left"), "/taken"), 0, "no host answered: {ledger:#}");
}

#[test]
fn frames_of_every_length_pass_unchanged_and_in_order() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    // One worker has a single ring, so the order is unique.
    let time = Duration::from_secs(transfer_seconds().unwrap_or(0));
    for engine in ENGINES {
        let begin = Instant::now();
        pass_unchanged(engine, 1500, 60..=1514, "-R 64 --workers 1");
        while begin.elapsed() < time {
            pass_unchanged(engine, 1500, 60..=1514, "-R 64 --workers 1");
        }
    }
}

#[test]
fn jumbo_frames_pass_unchanged() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let lengths = (60..=9014).step_by(37).chain([1791, 1792, 1793, 3584, 3585, 9014]);
    for engine in ENGINES.into_iter().filter(|engine| *engine != "xdp" || frames_of_several_cells())
    {
        pass_unchanged(engine, 9000, lengths.clone(), "-R 64 --workers 1");
    }
}

#[test]
fn in_advanced_mode_order_is_kept() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    // Small chunks, and either worker may process any of them.
    pass_unchanged("xdp", 1500, 60..=1514, "-T 0 -M 4 -R 4096 --workers 2");
}

#[test]
fn with_one_way_no_packet_is_forwarded_back() {
    if !privileged() {
        return;
    }
    for engine in ENGINES {
        let mut bed = Bed::new(1, 1500);
        let forwarder = bed.forward(&format!("--engine {engine} -R 16 --one-way"));
        let frames: Vec<Vec<u8>> = (0..100).map(|index| frame(index, index as u64, 100)).collect();
        bed.send_back(&frames);
        bed.send(&frames);
        bed.wait_for_arrivals(100);
        let ledger = bed.finish(forwarder);
        assert_eq!(ledger["ways"].as_array().unwrap().len(), 1);
        assert_eq!(
            (at(&ledger, "/delivered"), at(port(&ledger, "right"), "/sent")),
            (100, 100),
            "{ledger:#}"
        );
    }
}
