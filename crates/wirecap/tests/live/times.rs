//! The times of packets in a real capture, beside those at which the kernel handled them, which a
//! program at one of the kernel's tracepoints reads for each packet.
//!
//! The order of readings of one clock does not depend on the machine's speed; the size of the
//! errors does. It is printed here (with `--nocapture`), and measured by
//! `cd lab && cargo bench --bench live -- times`.

use wirecap::bpf::BpfError;
use wirecap::{Engine, Timestamps};
use wirecap_testbed::{Load, Witness, loss_lock, privileged};

use crate::bed::{Bed, balanced, take};

const FRAMES: u64 = 16_000;
/// Other tests redirect packets meanwhile; those with many hold the lock of the tests of loss.
const ROOM: u32 = 1 << 20;
/// Number of packets of a batch that share a reading.
const READ_EVERY: usize = 8;

/// The times of packets in a capture, and those that the witness read for the same packets.
struct Times {
    captured: Vec<u64>,
    witnessed: Vec<u64>,
}

/// `None` without privileges.
fn capture(
    engine: Engine,
    timestamps: Timestamps,
    load: Load,
    witness: fn(u32) -> Result<Witness, BpfError>,
) -> Option<Times> {
    if !privileged() {
        return None;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(engine, 1);
    let capture = bed.open(bed.small().timestamps(timestamps));
    let mut worker = capture.workers().pop().unwrap();
    let witness = witness(ROOM).unwrap();
    let sent = bed.generator().send(&[load]).unwrap()[0].frames;
    let mut captured = Vec::new();
    take(&mut worker, sent, |chunk| {
        captured.extend(chunk.iter().map(|packet| packet.timestamp().unwrap().unix_nanos()));
    });
    let witnessed = witness.times(sent).unwrap();
    balanced(&bed.close(capture), sent);
    assert!(witnessed.is_sorted() && captured.is_sorted(), "clocks do not go back");
    let mut errors: Vec<u64> = captured
        .iter()
        .zip(&witnessed)
        .map(|(captured, witnessed)| witnessed.abs_diff(*captured))
        .collect();
    errors.sort_unstable();
    let [half, most, all] = [50, 99, 100].map(|percent| errors[errors.len() * percent / 100 - 1]);
    println!(
        "{engine:?}, {timestamps:?}: half within {half} ns, 99 % within {most} ns, all within {all} ns"
    );
    Some(Times { captured, witnessed })
}

/// The witness reads the clock after the capture's program, and before the program runs for the
/// next packet.
#[test]
fn a_packets_own_time_lies_between_the_witness_of_its_predecessor_and_its_own() {
    let load = Load::new(0, FRAMES);
    let Some(times) = capture(Engine::Xdp, Timestamps::Packet, load, Witness::of_redirects) else {
        return;
    };
    for (packet, (captured, witnessed)) in times.captured.iter().zip(&times.witnessed).enumerate() {
        let before = packet.checked_sub(1).map_or(0, |before| times.witnessed[before]);
        assert!(
            (before..=*witnessed).contains(captured),
            "packet {packet}: {before} {captured} {witnessed}"
        );
    }
}

/// A reading is not later than the packet, and not older than the seventh packet before it.
#[test]
fn a_time_of_a_batch_is_never_late_and_at_most_seven_packets_old() {
    for load in [Load::new(0, FRAMES), Load::new(0, FRAMES).per_second(100_000)] {
        let Some(times) = capture(Engine::Xdp, Timestamps::Batch, load, Witness::of_redirects)
        else {
            return;
        };
        let mut shared = 0;
        for (packet, (captured, witnessed)) in
            times.captured.iter().zip(&times.witnessed).enumerate()
        {
            let before = packet.checked_sub(READ_EVERY).map_or(0, |before| times.witnessed[before]);
            assert!(
                (before..=*witnessed).contains(captured),
                "packet {packet}: {before} {captured} {witnessed}"
            );
            shared += usize::from(packet > 0 && times.captured[packet - 1] == *captured);
        }
        println!("{shared} of {FRAMES} have the reading of the packet before");
    }
}

/// The kernel reads the clock for a packet ring after the tracepoint (or before, if another process
/// of the machine asked for times of all packets).
#[test]
fn a_time_of_a_packet_ring_is_not_later_than_the_next_packet() {
    let load = Load::new(0, FRAMES);
    let Some(times) = capture(Engine::Packet, Timestamps::Packet, load, Witness::of_arrivals)
    else {
        return;
    };
    for (packet, captured) in times.captured.iter().enumerate() {
        let next = times.witnessed.get(packet + 1).copied().unwrap_or(u64::MAX);
        assert!(*captured <= next, "packet {packet}: {captured} {next}");
    }
}
