//! `wirecap count`: packets and bytes per ring, live.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use wirecap::{Capture, CaptureError, Worker, grouped};

use crate::host::devices;
use crate::losses;
use crate::shared::control::ControlOptions;
use crate::shared::failure::Failure;
use crate::shared::filter::{FilterOptions, filtered};
use crate::shared::options::{CaptureOptions, END_AND_OUTPUT, ENGINE};
use crate::shared::output;
use crate::shared::screen::Screen;
use crate::shared::service;
use crate::shared::threads;
use crate::size;

/// Count packets and bytes per ring, live
///
/// Prints a table on a terminal, otherwise a line per interval, to standard output (with --json: to
/// standard error). If the reader closes the pipe, the capture ends. The final ledger goes to
/// standard error.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  sudo wirecap count -i eth1
  sudo wirecap count -i eth1@2 --workers 4 -T 60
  wirecap count -r trace.pcapng.zst udp")]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: CaptureOptions,

    /// Number of workers [default: one per receive queue, at most one per CPU]
    ///
    /// If there are more workers than receive queues, the flows of a queue are spread over several
    /// rings.
    #[arg(long, value_name = "N", help_heading = ENGINE)]
    workers: Option<usize>,

    /// Time between updates
    #[arg(long, value_name = "TIME", value_parser = size::duration, default_value = "1s", help_heading = END_AND_OUTPUT)]
    interval: Duration,

    #[command(flatten)]
    filter: FilterOptions,

    #[command(flatten)]
    control: ControlOptions,
}

/// Maximum wait for the last output at the end.
const LAST_FRAME: Duration = Duration::from_secs(1);

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
    if arguments.options.habits.list_interfaces {
        return devices::list();
    }

    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let filter = arguments.filter.request()?;
    let claim = arguments.control.claim("count", &arguments.options.sources())?;

    let capture = arguments.options.open(|builder| match arguments.workers {
        Some(count) => filtered(builder, filter).workers(count),
        None => filtered(builder, filter).at_most_workers(cpus),
    })?;
    let mut control = claim.serve()?;
    let tallies: Vec<Tally> = (0..capture.most_rings()).map(|_| Tally::default()).collect();
    let running = AtomicBool::new(true);

    service::ready();
    let outcome = losses::watched(&capture, None, &control, || {
        thread::scope(|scope| {
            let workers: Vec<_> = capture
                .workers()
                .into_iter()
                .enumerate()
                .map(|(index, worker)| {
                    let limit = &arguments.options.count;
                    threads::spawn_worker(scope, index, || {
                        count(worker, &tallies, &capture, *limit)
                    })
                })
                .collect();
            let display = scope.spawn(|| show(arguments, &capture, &tallies, &running));
            let outcomes =
                workers.into_iter().map(|worker| worker.join().expect("counting does not panic"));
            let outcome = outcomes.fold(Ok(()), Result::and).map_err(Failure::from);

            running.store(false, Ordering::Release);
            display.thread().unpark();

            outcome.and(display.join().expect("showing does not panic"))
        })
    });

    let ledger = capture.close();
    let reported = arguments.options.report(&ledger);
    let outcome = outcome.and_then(|()| Failure::unless_lossless(&ledger));
    control.end(&ledger, &outcome);

    reported.and(outcome)
}

/// One worker's loop, without work per packet.
fn count(
    mut worker: Worker,
    tallies: &[Tally],
    capture: &Capture,
    limit: Option<u64>,
) -> Result<(), CaptureError> {
    while let Some(chunk) = worker.next_chunk().inspect_err(|_| capture.stop())? {
        let tally = &tallies[chunk.ring_index()];
        tally.packets.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        tally.bytes.fetch_add(chunk.wire_bytes(), Ordering::Relaxed);
        if limit.is_some_and(|limit| total(tallies) >= limit) {
            capture.stop();
        }
    }
    Ok(())
}

fn total(tallies: &[Tally]) -> u64 {
    tallies.iter().map(|tally| tally.read().0).sum()
}

/// Draws in a separate thread: a stopped terminal, or an unread pipe, delays nothing else.
struct Live {
    frames: Option<SyncSender<Vec<String>>>,
    outcome: Receiver<io::Result<()>>,
    is_terminal: bool,
}

impl Live {
    /// On standard output, or on standard error if standard output has the ledger as JSON.
    fn new(json: bool) -> io::Result<Self> {
        match json {
            true => Self::on(Screen::on(io::stderr())),
            false => Self::on(Screen::on(io::stdout())),
        }
    }

    fn on<W: Write + IsTerminal + AsFd + Send + 'static>(
        mut screen: Screen<W>,
    ) -> io::Result<Self> {
        let is_terminal = screen.is_terminal();
        let (frames, inbox) = sync_channel::<Vec<String>>(1);
        let (ended, outcome) = sync_channel(1);

        thread::Builder::new().name("display".to_owned()).spawn(move || {
            // A terminal that went away is no reason to stop counting.
            let mut draw = |lines: Vec<String>| {
                screen.redraw(&lines).or_else(|error| if is_terminal { Ok(()) } else { Err(error) })
            };
            let outcome = inbox.iter().try_for_each(&mut draw);
            screen.keep();
            drop(ended.send(outcome));
        })?;
        Ok(Self { frames: Some(frames), outcome, is_terminal })
    }

    /// Shows the lines, unless earlier ones are still being written; false if no more can be shown.
    fn show(&self, lines: Vec<String>) -> bool {
        let sent = self.frames.as_ref().map(|frames| frames.try_send(lines));
        !matches!(sent, Some(Err(TrySendError::Disconnected(_))))
    }

    /// Waits, for a limited time, until everything is written, and returns the result.
    fn end(mut self) -> io::Result<()> {
        drop(self.frames.take());
        self.outcome.recv_timeout(LAST_FRAME).unwrap_or(Ok(()))
    }
}

/// Shows the rates until the workers are done: a table that redraws itself on a terminal, a line
/// per interval elsewhere. The reader of a pipe ends the capture by closing the pipe.
fn show(
    arguments: &Arguments,
    capture: &Capture,
    tallies: &[Tally],
    running: &AtomicBool,
) -> Result<(), Failure> {
    let started = Instant::now();
    let deadline = arguments.options.duration.map(|duration| started + duration);
    let live = Live::new(arguments.options.json)?;
    let mut last: Vec<(u64, u64)> = vec![(0, 0); tallies.len()];
    let mut shown = started;

    while running.load(Ordering::Acquire) {
        let next = shown + arguments.interval;
        let wake = deadline.map_or(next, |deadline| deadline.min(next));
        thread::park_timeout(wake.saturating_duration_since(Instant::now()));

        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            capture.stop();
            break;
        }

        if now < next || !running.load(Ordering::Acquire) {
            continue;
        }

        let counts: Vec<(u64, u64)> = tallies.iter().map(Tally::read).collect();
        let (rings, sum) = rates(capture, &counts, &last, (now - shown).as_secs_f64());

        let lines = if live.is_terminal {
            table(capture, &rings, &sum)
        } else {
            vec![line(now - started, &sum)]
        };
        if !live.show(lines) && !arguments.options.json {
            capture.stop();
            break;
        }

        (last, shown) = (counts, now);
    }

    let shown = live.end();

    // With the ledger as JSON, it is not part of the result.
    if arguments.options.json { Ok(()) } else { output::unless_reader_ended(shown) }
}

/// The changes of a ring's counts, or of all rings', since the last look.
#[derive(Debug, Default, Clone, Copy)]
struct Rates {
    packets: u64,
    packets_per_second: f64,
    bits_per_second: f64,
    waiting: u64,
    lost: u64,
}

impl Rates {
    fn plus(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            packets_per_second: self.packets_per_second + other.packets_per_second,
            bits_per_second: self.bits_per_second + other.bits_per_second,
            waiting: self.waiting + other.waiting,
            lost: self.lost + other.lost,
        }
    }

    /// A row of the table, of at most 79 columns.
    fn row(&self, name: &str) -> String {
        format!(
            "{name:<14} {:>15} {:>10} {:>10} {:>12} {:>12}",
            grouped(self.packets),
            size::human_rate(self.packets_per_second),
            size::human_rate(self.bits_per_second),
            grouped(self.waiting),
            grouped(self.lost),
        )
    }
}

/// The rates of each ring, and of all together.
fn rates(
    capture: &Capture,
    counts: &[(u64, u64)],
    last: &[(u64, u64)],
    seconds: f64,
) -> (Vec<Rates>, Rates) {
    let ledger = capture.ledger();
    let backlogs = capture.backlogs();

    let ring = |index: usize| Rates {
        packets: counts[index].0,
        packets_per_second: (counts[index].0 - last[index].0) as f64 / seconds,
        bits_per_second: (counts[index].1 - last[index].1) as f64 * 8.0 / seconds,
        waiting: backlogs[index].into(),
        lost: ledger.rings[index].account.dropped.total(),
    };

    // Rings that were added meanwhile are shown next time.
    let rings: Vec<Rates> = (0..ledger.rings.len().min(backlogs.len())).map(ring).collect();
    let mut sum = rings.iter().copied().fold(Rates::default(), Rates::plus);

    // Including drops of devices, which rings do not have.
    sum.lost = ledger.total.dropped.total();
    (rings, sum)
}

fn table(capture: &Capture, rings: &[Rates], sum: &Rates) -> Vec<String> {
    let head = format!(
        "{:<14} {:>15} {:>10} {:>10} {:>12} {:>12}",
        "ring", "packets", "packets/s", "bit/s", "waiting", "lost"
    );
    let rows =
        capture.rings().into_iter().zip(rings).map(|(name, rates)| rates.row(&name.to_string()));
    [head].into_iter().chain(rows).chain([sum.row("sum")]).collect()
}

fn line(elapsed: Duration, sum: &Rates) -> String {
    format!(
        "{:.0} s: {} packets, {}packets/s, {}bit/s, {} waiting, {} lost",
        elapsed.as_secs_f64(),
        grouped(sum.packets),
        size::human_rate(sum.packets_per_second),
        size::human_rate(sum.bits_per_second),
        grouped(sum.waiting),
        grouped(sum.lost),
    )
}
