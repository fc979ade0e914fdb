//! Forwarding between NICs of two kinds: `A0` sends to `A1`; frames are forwarded from `A1` to
//! `B1`, whose cable leads to `B0`.

use std::error::Error;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use wirecap_testbed::{PacketReceiver, Stamp};

use super::{Outcome, Verdict};
use crate::bed::{Bed, Nic};
use crate::command::{Running, run, wirecap};
use crate::frames::Frames;
use crate::kind::kind;

/// Maximum time for frames to pass.
const PATIENCE: Duration = Duration::from_secs(20);
const LENGTHS: &[u16] = &[60, 1024, 1025, 1514];

pub(super) fn one_way_to_igb() -> Outcome {
    one_way("virtio", "igb")
}

pub(super) fn one_way_to_virtio() -> Outcome {
    one_way("igb", "virtio")
}

pub(super) fn igb_and_virtio() -> Outcome {
    two_way("igb", "virtio")
}

pub(super) fn plain_and_fixed() -> Outcome {
    two_way("plain", "fixed")
}

pub(super) fn vmxnet3_and_e1000e() -> Outcome {
    two_way("vmxnet3", "e1000e")
}

/// The output interface receives no other packets of the host and needs no program.
fn one_way(from: &'static str, to: &'static str) -> Outcome {
    let from = Bed::new(kind(from))?;
    let to = Bed::new(kind(to))?;
    let forwarding = start(&from, &to, &["--one-way"])?;
    let frames = from.frames(LENGTHS, 16, 400)?;
    let outcome =
        passes(&from, &to.sender, &frames).map_err(|error| with_counts(error, &from, &to));
    finish(forwarding, outcome)
}

fn two_way(one: &'static str, other: &'static str) -> Outcome {
    let one = Bed::new(kind(one))?;
    let other = Bed::new(kind(other))?;
    let forwarding = start(&one, &other, &[])?;
    let there = one.frames(LENGTHS, 16, 400)?;
    let back = other.frames(LENGTHS, 16, 400)?;
    let outcome =
        passes(&one, &other.sender, &there).map_err(|error| format!("there: {error}")).and_then(
            |()| passes(&other, &one.sender, &back).map_err(|error| format!("back: {error}")),
        );
    finish(forwarding, outcome.map_err(|error| with_counts(error.into(), &one, &other)))
}

/// Adds the counters of each NIC on the path to the error.
fn with_counts(error: Box<dyn Error>, one: &Bed, other: &Bed) -> Box<dyn Error> {
    let counts = [&one.sender, &one.receiver, &other.receiver, &other.sender].map(Nic::counts);
    format!("{error}; {}", counts.join("; ")).into()
}

fn start(from: &Bed, to: &Bed, options: &[&str]) -> Result<Running, Box<dyn Error>> {
    let mut command = Command::new(wirecap());
    command.args(["forward", "--engine", "xdp", "--take", "-R", "8"]).args(options);
    command.args([&from.receiver.0, &to.receiver.0]);
    let mut forwarding = Running::start(&mut command)?;
    forwarding.wait_for("forwarding ")?;
    // The links of the judging NICs went down with those of their peers.
    from.wait_for_links()?;
    to.wait_for_links()?;
    Ok(forwarding)
}

/// Ends the forwarding and adds its output to the error.
fn finish(forwarding: Running, outcome: Result<(), Box<dyn Error>>) -> Outcome {
    let ended = forwarding.interrupt()?;
    outcome.map_err(|error| format!("{error}; {}", ended.stderr))?;
    if !["lossless: yes", "lossless until"].iter().any(|words| ended.stderr.contains(words)) {
        return Err(ended.stderr.into());
    }
    Ok(Verdict::ok())
}

/// Sends frames and compares the frames that arrive at `judge`.
fn passes(bed: &Bed, judge: &Nic, frames: &Frames) -> Result<(), Box<dyn Error>> {
    // The frames have another destination address.
    run("ip", &["link", "set", &judge.0, "promisc", "on"])?;
    let mut receiver = PacketReceiver::on(&judge.interface()?)?;
    let sent = AtomicBool::new(false);
    let received = thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let mut received = Vec::new();
            let mut last = Instant::now();
            while !sent.load(Relaxed)
                || ((received.len() as u64) < frames.count() && last.elapsed() < PATIENCE)
            {
                let frame = receiver
                    .receive(Duration::from_millis(100))
                    .map_err(|error| error.to_string())?;
                if let Some(frame) = frame.filter(|frame| Stamp::of(frame).is_some()) {
                    received.push(frame.to_vec());
                    last = Instant::now();
                }
            }
            Ok::<_, String>(received)
        });
        let outcome = bed.send_each(frames.iter()).map_err(|error| error.to_string());
        sent.store(true, Relaxed);
        let received = receiving.join().expect("a receiver");
        outcome.and(received)
    })?;
    Ok(frames.compare(received.iter().map(Vec::as_slice))?)
}
