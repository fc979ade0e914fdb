//! One flow that its queue's worker cannot process alone, while the other queues' workers have
//! capacity left.

use std::error::Error;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirecap_testbed::PacketSender;

use super::{Outcome, Verdict};
use crate::bed::Bed;
use crate::command::{Running, wirecap};
use crate::kind::kind;

const QUEUES: u32 = 4;
/// Processing time of a packet in a worker.
const COST: Duration = Duration::from_millis(1);
/// Packets of one flow per tick. Together with `OTHERS` they are 0.9 of what four workers can
/// process; the flow has more than half of them.
const DOMINANT: u64 = 20;
const OTHERS: u64 = 16;
/// Both numbers of packets are sent in each tick.
const TICK: Duration = Duration::from_millis(10);
const TICKS: u64 = 800;
/// Maximum delay that a late sender catches up with: 180 packets at once, while a pool has room for
/// 2,048.
const BEHIND_MAX: Duration = Duration::from_millis(50);
/// Minimum fraction of packets that basic mode loses.
const LOSS_MIN: f64 = 0.2;
/// Maximum ratio of the actual to the planned duration of sending. A longer one makes the run void:
/// the load was lower than stated, so neither loss nor its absence means anything.
const SLACK: f64 = 1.05;
/// Number of void runs in a row that fail the check.
const VOID_RUNS: usize = 3;

pub(super) fn skew_on_igb() -> Outcome {
    skew(&Bed::new(kind("igb"))?)
}

pub(super) fn skew_on_virtio() -> Outcome {
    skew(&Bed::new(kind("virtio"))?)
}

/// With a load of nine tenths of the group's capacity, advanced mode loses nothing, and basic mode
/// loses at least a fifth.
fn skew(bed: &Bed) -> Outcome {
    bed.receiver.set_queues(QUEUES)?;
    let advanced = handled(bed, &["-T", "20"])?;
    if advanced.delivered != advanced.sent || !advanced.said.contains("lossless: yes") {
        return Err(format!("advanced mode: {advanced:?}").into());
    }
    let basic = handled(bed, &["--basic"])?;
    let lost = 1.0 - basic.delivered as f64 / basic.sent as f64;
    if lost < LOSS_MIN {
        return Err(format!("basic mode loses {lost:.2} only: {basic:?}").into());
    }
    println!("{:>8} advanced mode loses nothing, basic mode {:.0} %", bed.kind.name, lost * 100.0);
    Ok(Verdict::ok())
}

#[derive(Debug)]
struct Handled {
    sent: u64,
    delivered: u64,
    said: String,
}

/// A run that is not void.
fn handled(bed: &Bed, mode: &[&str]) -> Result<Handled, Box<dyn Error>> {
    let planned = TICK * TICKS as u32;
    for _ in 0..VOID_RUNS {
        let (handled, took) = run(bed, mode)?;
        if took <= planned.mul_f64(SLACK) {
            return Ok(handled);
        }
        println!("{:>8} void: sending took {took:.1?} instead of {planned:.1?}", bed.kind.name);
    }
    Err(format!("{VOID_RUNS} runs in a row are void: the machine is too slow for the sender")
        .into())
}

/// Sends the load to `wirecap handle`. Returns also how long sending took.
fn run(bed: &Bed, mode: &[&str]) -> Result<(Handled, Duration), Box<dyn Error>> {
    let mut command = Command::new(wirecap());
    command.args([
        "handle", "--engine", "xdp", "--take", "--json", "-M", "64", "-R", "32", "--warm", "off",
    ]);
    command.args(["--cost", &COST.as_nanos().to_string(), "-i", &bed.receiver.0]).args(mode);
    let mut running = Running::start(&mut command)?;
    running.wait_for("capturing ")?;
    bed.wait_for_links()?;
    let took = send(bed)?;
    bed.rest()?;
    // Let the workers process the packets in the pools before the capture ends.
    thread::sleep(COST * 64 * 32);
    let ended = running.interrupt()?;
    let ledger: Value = serde_json::from_str(&ended.stdout)?;
    let delivered =
        ledger["delivered"].as_u64().ok_or("the ledger has no number of delivered packets")?;
    Ok((Handled { sent: TICKS * (DOMINANT + OTHERS), delivered, said: ended.stderr }, took))
}

/// Sends the load. Returns how long that took.
fn send(bed: &Bed) -> Result<Duration, Box<dyn Error>> {
    let one = bed.frames(&[60], 1, u64::MAX)?;
    let many = bed.frames(&[60], 64, u64::MAX)?;
    let mut sender = PacketSender::on(&bed.sender.interface()?)?;
    let begin = Instant::now();
    let mut due = begin;
    for tick in 0..TICKS {
        for number in 0..DOMINANT {
            sender.send(&one.frame(tick * DOMINANT + number))?;
        }
        for number in 0..OTHERS {
            sender.send(&many.frame(tick * OTHERS + number))?;
        }
        due = (due + TICK).max(Instant::now() - BEHIND_MAX);
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(begin.elapsed())
}
