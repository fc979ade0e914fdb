//! `wirecap handle`: applies the filter x times to every packet, one worker per ring (the paper's
//! pkt_handler and multi_pkt_handler). With x = 300 it simulates an application that is too slow.

use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use wirecap::{Capture, CaptureError, Worker, grouped};
use wirecap_send::SlowCore;

use crate::host::devices;
use crate::losses;
use crate::shared::app_cost::{AppCost, AppCostOptions};
use crate::shared::control::ControlOptions;
use crate::shared::failure::Failure;
use crate::shared::options::{CaptureOptions, ENGINE};
use crate::shared::progress::Progress;
use crate::shared::service;
use crate::shared::threads;
use crate::size;

/// Simulate a slow consumer: apply a filter x times to every packet
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: CaptureOptions,

    #[command(flatten)]
    weight: AppCostOptions,

    /// Number of workers [default: one per ring]
    ///
    /// If there are more workers than receive queues, the flows of a queue are spread over several
    /// rings.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = ENGINE)]
    workers: Option<u16>,

    /// The filter to apply; non-matching packets are counted, not dropped
    #[arg(value_name = "FILTER", help_heading = "Filter", default_values_t = ["net".to_owned(), "131.225.2".to_owned(), "and".to_owned(), "udp".to_owned()])]
    filter: Vec<String>,

    #[command(flatten)]
    control: ControlOptions,
}

const PATIENCE: Duration = Duration::from_millis(200);

/// The account of the packets of one worker.
#[derive(Debug, Default, Clone, Copy)]
struct Handled {
    packets: u64,
    matched: u64,
    busy: Duration,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.options.habits.list_interfaces {
        return devices::list();
    }

    let expression = arguments.filter.join(" ");
    let weight =
        AppCost::new(arguments.weight, &expression, arguments.options.interfaces.snap_len)?;
    let claim = arguments.control.claim("handle", &arguments.options.sources())?;

    let capture = arguments.options.open(|builder| match arguments.workers {
        Some(count) => builder.workers(count.into()),
        None => builder,
    })?;
    let mut control = claim.serve()?;

    if let Some(cost) = arguments.weight.cost() {
        warn_of_shortfall(&capture, cost);
    }

    service::ready();
    let outcomes = losses::watched(&capture, None, &control, || {
        thread::scope(|scope| {
            let handle = |(index, worker)| {
                threads::spawn_worker(scope, index, || handle(worker, &weight, &capture))
            };
            let workers: Vec<_> = capture.workers().into_iter().enumerate().map(handle).collect();
            watch(&capture, &arguments.options, || {
                workers.iter().all(thread::ScopedJoinHandle::is_finished)
            });

            let join = |worker: thread::ScopedJoinHandle<'_, _>| {
                worker.join().expect("handling does not panic")
            };
            workers.into_iter().map(join).collect::<Vec<Result<Handled, CaptureError>>>()
        })
    });
    if arguments.weight.cost().is_none()
        && let Some(cost) = Handled::cost(&outcomes)
        && !capture.ledger().is_lossless()
    {
        warn_of_shortfall(&capture, cost);
    }

    let ledger = capture.close();

    for (worker, handled) in outcomes.iter().enumerate() {
        if let Ok(handled) = handled {
            eprintln!("{}", handled.line(worker));
        }
    }

    let reported = arguments.options.report(&ledger);
    let outcome = outcomes.into_iter().try_for_each(|outcome| outcome.map(drop));
    let outcome = outcome.map_err(Failure::from).and_then(|()| Failure::unless_lossless(&ledger));
    control.end(&ledger, &outcome);

    reported.and(outcome)
}

/// Warns if packets of a load that the workers can process may be lost, depending on its
/// distribution over the rings.
fn warn_of_shortfall(capture: &Capture, cost: Duration) {
    if let Some(shortfall) = capture.guarantee(cost).and_then(|guarantee| guarantee.shortfall()) {
        eprintln!("warning: {shortfall}");
    }
}

/// Shows the progress until all workers have ended, and stops the capture when the limits are
/// reached.
fn watch(capture: &Capture, options: &CaptureOptions, done: impl Fn() -> bool) {
    let deadline = options.duration.map(|duration| Instant::now() + duration);
    let mut progress = Progress::new(options.habits.quiet);
    while !done() {
        thread::sleep(Duration::from_millis(20));
        let enough = options.count.is_some_and(|count| capture.ledger().total.delivered >= count);
        if enough || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            capture.stop();
        }
        progress.tick(capture);
    }
}

fn handle(
    mut worker: Worker,
    weight: &AppCost,
    capture: &Capture,
) -> Result<Handled, CaptureError> {
    let mut handled = Handled::default();
    let mut core = SlowCore::default();

    while !worker.is_finished() {
        let chunk = worker.next_chunk_timeout(PATIENCE).inspect_err(|_| capture.stop())?;
        let Some(chunk) = chunk else { continue };
        let begin = Instant::now();
        handled.matched += weight.process(&mut core, &chunk);
        handled.packets += chunk.len() as u64;
        handled.busy += begin.elapsed();
    }
    Ok(handled)
}

impl Handled {
    /// The workers' average time per packet.
    fn cost(outcomes: &[Result<Self, CaptureError>]) -> Option<Duration> {
        let handled = || outcomes.iter().flatten();
        let packets: u64 = handled().map(|handled| handled.packets).sum();
        let busy: Duration = handled().map(|handled| handled.busy).sum();
        (packets > 0).then(|| busy.div_f64(packets as f64)).filter(|cost| !cost.is_zero())
    }

    fn line(&self, worker: usize) -> String {
        let rate = self.packets as f64 / self.busy.as_secs_f64().max(f64::MIN_POSITIVE);
        let rate = if self.packets == 0 {
            "idle".to_owned()
        } else {
            format!("{}packets/s while busy", size::human_rate(rate))
        };
        format!(
            "worker {worker}: {} packets, {} matched, {rate}",
            grouped(self.packets),
            grouped(self.matched)
        )
    }
}
