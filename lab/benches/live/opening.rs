//! The time from the start of a command until it captures, on four receive queues, without packets.
//!
//! The goal is that four rings are open within 0.1 s, with the default options and with
//! `--engine xdp`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use wirecap_lab::live::Outcome;
use wirecap_lab::live::figures::Figures;
use wirecap_testbed::{Bound, Figure, Goals, Namespace, VethPair, Watch};

use crate::Effort;

const QUEUES: u32 = 4;
const SECONDS_MAX: f64 = 0.1;
/// Openings of a round, whose figure is their mean: one takes too short a time to see whether it
/// was disturbed.
const OPENINGS: u32 = 5;
const COMMANDS: [&str; 4] = [
    "count -i a1",
    "count -i a1 --engine xdp",
    "capture -i a1 -w /dev/null",
    "capture -i a1 -w /dev/null --engine xdp",
];

pub(crate) fn run(effort: Effort, goals: &mut Goals) -> Outcome<()> {
    println!("\ntime until a command captures on {QUEUES} queues");
    let sender = Namespace::new()?;
    let receiver = Namespace::new()?;
    let _pair = VethPair::new((&sender, "a0"), (&receiver, "a1"), QUEUES, 1500)?;

    for command in COMMANDS {
        let mut rounds = Vec::new();
        for _ in 0..effort.rounds(9) {
            rounds.push(round(&receiver, command, effort.choose(OPENINGS, 1))?);
        }

        let seconds: Figures = rounds.iter().map(|round| round.value).collect();
        println!("  wirecap {command:<40} {seconds:.3} s");
        if effort.has_goals() {
            let goal = format!("wirecap {command}: seconds until {QUEUES} rings are open");
            goals.judge(&goal, Bound::AtMost(SECONDS_MAX), &rounds);
        }
    }
    Ok(())
}

/// The mean of this many openings, in seconds.
fn round(namespace: &Namespace, command: &str, openings: u32) -> Outcome<Figure> {
    let watch = Watch::begin();
    let mut took = Duration::ZERO;
    for _ in 0..openings {
        took += open(namespace, command)?;
    }
    let value = took.as_secs_f64() / f64::from(openings);
    Ok(Figure { value, is_disturbed: watch.end().is_disturbed() })
}

/// Starts the command, waits until it captures, and ends it.
fn open(namespace: &Namespace, arguments: &str) -> Outcome<Duration> {
    let mut command = Command::new(crate::wirecap().program().to_string());
    command.args(arguments.split(' '));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let (begun, child) = namespace.run_in(|| (Instant::now(), command.spawn()))?;

    let mut child = child?;
    let mut errors = BufReader::new(child.stderr.take().ok_or("piped")?);
    let mut said = String::new();
    while !said.contains("capturing") {
        if errors.read_line(&mut said)? == 0 {
            return Err(
                format!("wirecap {arguments} does not capture: {}, {said}", child.wait()?).into()
            );
        }
    }
    let took = begun.elapsed();

    kill_process(Pid::from_child(&child), Signal::INT)?;
    match child.wait()? {
        // 3 if the ledger cannot prove that nothing was lost.
        status if matches!(status.code(), Some(0 | 3)) => Ok(took),
        status => Err(format!("wirecap {arguments}: {status}").into()),
    }
}
