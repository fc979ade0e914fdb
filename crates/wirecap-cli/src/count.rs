//! `wirecap count`: packets and bytes per ring, live.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use wirecap::{Capture, CaptureError, Worker, grouped};

use crate::failure::Failure;
use crate::options::CaptureOptions;
use crate::size;

/// Count packets and bytes per ring, live
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: CaptureOptions,

    /// How many workers share the rings; of queues that are fewer, rings are made by flow [default: one per
    /// receive queue, but no more than there are CPUs]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,

    /// Time between two lines or updates
    #[arg(long, value_name = "TIME", value_parser = size::duration, default_value = "1s")]
    interval: Duration,
}

/// What the workers have counted so far, one per ring.
#[derive(Debug, Default)]
struct Tally {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Tally {
    fn read(&self) -> (u64, u64) {
        (self.packets.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let capture = arguments.options.open(|builder| match arguments.workers {
        Some(count) => builder.workers(count),
        None => builder.at_most_workers(cpus),
    })?;
    let tallies: Vec<Tally> = capture.rings().iter().map(|_| Tally::default()).collect();
    let running = AtomicBool::new(true);
    let outcome = thread::scope(|scope| {
        let workers: Vec<_> = capture
            .workers()
            .into_iter()
            .map(|worker| scope.spawn(|| count(worker, &tallies, &capture, arguments.options.count)))
            .collect();
        let display = scope.spawn(|| show(arguments, &capture, &tallies, &running));
        let outcomes = workers.into_iter().map(|worker| worker.join().expect("counting does not panic"));
        let outcome = outcomes.fold(Ok(()), Result::and);
        running.store(false, Ordering::Release);
        display.thread().unpark();
        outcome
    });
    arguments.options.report(&capture.close())?;
    Ok(outcome?)
}

/// One worker's loop: nothing per packet but the packet's length.
fn count(
    mut worker: Worker,
    tallies: &[Tally],
    capture: &Capture,
    limit: Option<u64>,
) -> Result<(), CaptureError> {
    while let Some(chunk) = worker.next_chunk().inspect_err(|_| capture.stop())? {
        let bytes: u64 = chunk.iter().map(|packet| u64::from(packet.wire_len())).sum();
        let tally = &tallies[chunk.ring_index()];
        tally.packets.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        tally.bytes.fetch_add(bytes, Ordering::Relaxed);
        if limit.is_some_and(|limit| total(tallies) >= limit) {
            capture.stop();
        }
    }
    Ok(())
}

fn total(tallies: &[Tally]) -> u64 {
    tallies.iter().map(|tally| tally.read().0).sum()
}

/// Shows the rates until the workers are done: a table that redraws itself on a terminal, a line per
/// interval elsewhere.
fn show(arguments: &Arguments, capture: &Capture, tallies: &[Tally], running: &AtomicBool) {
    let started = Instant::now();
    let terminal = io::stderr().is_terminal();
    let mut last: Vec<(u64, u64)> = vec![(0, 0); tallies.len()];
    let mut last_time = started;
    let mut drawn_lines = 0;
    while running.load(Ordering::Acquire) {
        let wake = arguments.options.duration.map_or(arguments.interval, |duration| {
            arguments.interval.min(duration.saturating_sub(started.elapsed()))
        });
        thread::park_timeout(wake);
        if arguments.options.duration.is_some_and(|duration| started.elapsed() >= duration) {
            capture.stop();
        }
        if last_time.elapsed() < arguments.interval || !running.load(Ordering::Acquire) {
            continue;
        }
        let seconds = last_time.elapsed().as_secs_f64();
        last_time = Instant::now();
        let counts: Vec<(u64, u64)> = tallies.iter().map(Tally::read).collect();
        let lines = rates(capture, &counts, &last, seconds);
        if terminal {
            if drawn_lines > 0 {
                eprint!("\x1b[{drawn_lines}A\x1b[J");
            }
            lines.iter().for_each(|line| eprintln!("{line}"));
            drawn_lines = lines.len();
        } else {
            eprintln!(
                "{:.0} s: {}",
                started.elapsed().as_secs_f64(),
                lines.last().map_or("", String::as_str)
            );
        }
        last = counts;
    }
    if terminal && drawn_lines > 0 {
        eprint!("\x1b[{drawn_lines}A\x1b[J");
    }
}

/// A line per ring and one for the sum, with a heading.
fn rates(capture: &Capture, counts: &[(u64, u64)], last: &[(u64, u64)], seconds: f64) -> Vec<String> {
    let dropped = capture.ledger().total.dropped.total();
    let backlogs = capture.backlogs();
    let line = |name: &str, packets: u64, rate: f64, bits: f64, waiting: u64| {
        let (rate, bits) = (size::human_rate(rate), size::human_rate(bits));
        let (packets, waiting) = (grouped(packets), grouped(waiting));
        format!("{name:<16} {packets:>16} packets {rate:>8}packets/s {bits:>8}bit/s {waiting:>9} waiting")
    };
    let mut lines = Vec::new();
    let mut sum = (0, 0.0, 0.0, 0);
    for (index, ring) in capture.rings().iter().enumerate() {
        let rate = (counts[index].0 - last[index].0) as f64 / seconds;
        let bits = (counts[index].1 - last[index].1) as f64 * 8.0 / seconds;
        let waiting = u64::from(backlogs[index]);
        lines.push(line(&ring.to_string(), counts[index].0, rate, bits, waiting));
        sum = (sum.0 + counts[index].0, sum.1 + rate, sum.2 + bits, sum.3 + waiting);
    }
    lines.push(format!("{}, {} lost", line("sum", sum.0, sum.1, sum.2, sum.3), grouped(dropped)));
    lines
}
