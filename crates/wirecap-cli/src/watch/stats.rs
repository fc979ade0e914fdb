//! `wirecap stats`: what recordings, or the packets of an interface, consist of.

mod report;
mod tally;

use std::time::{Duration, Instant};

use clap::Args;
use wirecap::filter::FilterRequest;
use wirecap::{Capture, CaptureBuilder, Ledger, Timestamps};
use wirecap_index::{Query, be_idle, plan};
use wirecap_units::clock;

use crate::host::devices;
use crate::losses;
use crate::search::find::{FindProgress, places_and_filter};
use crate::shared::control::Control;
use crate::shared::failure::Failure;
use crate::shared::options::{CaptureOptions, END_AND_OUTPUT, in_json, show_briefly};
use crate::shared::output;
use crate::shared::progress::Progress;
use crate::shared::service;
use tally::Tally;

/// Show what recordings, or the packets of an interface, consist of
///
/// Packets, bytes, rates, sizes, protocols, addresses and ports. Of recordings, only the parts that
/// may match are read, as by wirecap find.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:
  wirecap stats trace.pcapng
  wirecap stats /data --from 17:00 --to 17:30 host 10.1.2.3
  sudo wirecap stats -i eth1 --duration 10s udp",
    mut_arg("interfaces", |arg| arg.required_unless_present("words")),
    mut_arg("json", |arg| arg.help("Print the statistics as one JSON object, with -i also the ledger"))
)]
pub(crate) struct Arguments {
    /// Directories with all below them, files, or patterns such as 'rec/*.zst', then a filter; with
    /// -i and -r, only a filter
    #[arg(value_name = "DIR|FILTER", required_unless_present_any = ["interfaces", "read", "list_interfaces"])]
    words: Vec<String>,

    /// Only packets from this time on, as in wirecap find
    #[arg(long, value_name = "TIME", value_parser = clock::time, allow_hyphen_values = true, conflicts_with_all = ["interfaces", "read"])]
    from: Option<u64>,

    /// Only packets before this time
    #[arg(long, value_name = "TIME", value_parser = clock::time, allow_hyphen_values = true, conflicts_with_all = ["interfaces", "read"])]
    to: Option<u64>,

    /// Number of protocols, addresses and ports to list
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one, help_heading = END_AND_OUTPUT)]
    most: usize,

    #[command(flatten)]
    options: CaptureOptions,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| "expected a number above 0".to_owned())
}

const PATIENCE: Duration = Duration::from_millis(200);

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let options = &arguments.options;
    if options.habits.list_interfaces {
        return devices::list();
    }
    if options.read.is_some() || !options.interfaces.sources.is_empty() {
        return of_capture(arguments);
    }
    of_recordings(arguments)
}

/// The packets of an interface until the capture ends, or of a savefile that may be a pipe.
fn of_capture(arguments: &Arguments) -> Result<(), Failure> {
    let options = &arguments.options;
    let filter =
        (!arguments.words.is_empty()).then(|| FilterRequest::from(arguments.words.join(" ")));

    let capture = options.open(|builder| {
        let builder = builder.workers(1).timestamps(Timestamps::Batch);
        filter.into_iter().fold(builder, CaptureBuilder::filter)
    })?;

    let mut tally = Tally::default();
    service::ready();

    let outcome = losses::watched(&capture, None, &Control::none(), || {
        collect(&capture, options, &mut tally)
    });
    let ledger = capture.close();

    tell(arguments, &tally, Some(&ledger))?;
    show_briefly(&ledger, "");
    outcome?;

    Failure::unless_lossless(&ledger)
}

fn collect(capture: &Capture, options: &CaptureOptions, tally: &mut Tally) -> Result<(), Failure> {
    let mut worker = capture.workers().pop().expect("a new capture has its workers");
    let mut progress = Progress::new(options.habits.quiet);
    let deadline = options.duration.map(|duration| Instant::now() + duration);
    let most = options.count.unwrap_or(u64::MAX);

    while !worker.is_finished() {
        if let Some(chunk) = worker.next_chunk_timeout(PATIENCE)? {
            for packet in
                chunk.iter().take((most - tally.packets()).try_into().unwrap_or(usize::MAX))
            {
                tally.add(chunk.link_type(), packet.timestamp(), packet.wire_len(), packet.data());
            }
        }

        if tally.packets() >= most || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            capture.stop();
        }

        progress.tick(capture);
    }

    Ok(())
}

fn of_recordings(arguments: &Arguments) -> Result<(), Failure> {
    clock::check_order(arguments.from, arguments.to).map_err(Failure::Usage)?;
    if let Some(flag) = arguments.options.live_flag() {
        return Err(Failure::Usage(format!("{flag} has no effect on recordings: omit it")));
    }

    let (segments, filter) = places_and_filter(&arguments.words)?;
    let filter = (!filter.is_empty()).then(|| FilterRequest::from(filter));
    let mut query = Query::new(filter, None, arguments.from, arguments.to);
    query.check().map_err(|error| Failure::Usage(error.to_string()))?;

    if segments.is_empty() {
        return Err(Failure::Failed("there are no recordings in these places".into()));
    }

    output::check_open()?;

    let mut find_progress = FindProgress::new()?;
    be_idle();

    let plan = plan(&segments, &mut query, &mut |note| find_progress.tell(&note))?;
    let mut tally = Tally::default();
    let most = arguments.options.count.unwrap_or(u64::MAX);

    plan.run::<Failure>(&mut query, &mut |note| find_progress.tell(&note), &mut |found| {
        let record = &found.record;
        tally.add(found.interface.link_type, record.timestamp, record.wire_len, record.data);
        Ok(tally.packets() < most)
    })?;
    find_progress.live.clear();

    tell(arguments, &tally, None)?;
    find_progress.outcome()
}

fn tell(arguments: &Arguments, tally: &Tally, ledger: Option<&Ledger>) -> Result<(), Failure> {
    if !arguments.options.json {
        return output::print(report::text(tally, arguments.most));
    }
    let mut json = report::json(tally, arguments.most);
    if let Some(ledger) = ledger.filter(|_| arguments.options.read.is_none()) {
        json["ledger"] = in_json(ledger)?;
    }
    output::print(json)
}
