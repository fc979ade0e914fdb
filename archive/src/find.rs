//! `wirecap archive find`: finds packets in an archive, in order of time, as `wirecap find` does in directories.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use indicatif::{HumanBytes, HumanCount};
use wirecap_index::{Between, Found, Outcome, Plan};
use wirecap_recorder::{CompressedSink, Compression};
use wirecap_savefile::{Format, Interface, PACKET_BYTES_MAX, Section, Sink, StreamSink, WriteError, Writer};
use wirecap_units::clock;

use crate::failure::Failure;
use crate::location::{Archive, Listing};
use crate::output;
use crate::pcap_filter;
use crate::search::{self, Wanted};
use crate::watch::Watch;

/// Find packets in an archive and write them in order of time
///
/// The options and the result are those of wirecap find. Only the parts of segments that may contain matching packets are read.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  wirecap archive find -a s3://bucket/packets --from 17:00 --to 17:30 -w found.pcapng host 10.1.2.3 and tcp port 443
  wirecap archive find -a /data --flow 10.1.2.3.443:10.9.9.9 | wirecap show -r - -nn
  wirecap archive find -a /data --count udp port 53")]
pub(crate) struct Arguments {
    /// The filter, see pcap-filter(7); without one all packets match
    #[arg(value_name = "FILTER")]
    words: Vec<String>,

    /// The archive: a directory, or s3://, gs://, az:// with a bucket and a prefix
    ///
    /// Credentials and endpoint come from the provider's environment variables, such as AWS_ACCESS_KEY_ID.
    #[arg(short, long, value_name = "DIR|URL", env = "WIRECAP_ARCHIVE")]
    archive: String,

    /// Only packets from this time on: 18:00, 2026-11-22T18:00:00.5, -10m
    ///
    /// Local time (with Z: UTC), a time before now, or seconds since 1970.
    #[arg(long, value_name = "TIME", value_parser = clock::time, allow_hyphen_values = true)]
    from: Option<u64>,

    /// Only packets before this time
    #[arg(long, value_name = "TIME", value_parser = clock::time, allow_hyphen_values = true)]
    to: Option<u64>,

    /// Only packets between two addresses: 10.0.0.1.443:10.0.0.2
    ///
    /// In both directions and with any VLAN tag, with or without ports as tcpdump prints them; IPv6:
    /// [fe80::1]:[fe80::2].53.
    #[arg(long, value_name = "A:B", value_parser = Between::parse)]
    flow: Option<Between>,

    /// The savefile; - is standard output. Format by extension, as in wirecap capture
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    write: PathBuf,

    /// Replace the savefile if it exists
    #[arg(long)]
    force: bool,

    /// Print the number of matching packets only
    #[arg(long, conflicts_with_all = ["list", "write", "force"])]
    count: bool,

    /// List the segments that may contain matching packets, with their times
    #[arg(long, conflicts_with_all = ["write", "force"])]
    list: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let (Some(from), Some(to)) = (arguments.from, arguments.to)
        && from >= to
    {
        let (from, to) = (clock::text(from), clock::text(to));
        return Err(Failure::Usage(format!("--from {from} is not before --to {to}: no packet can match")));
    }
    let expression = arguments.words.join(" ");
    let filter = match expression.is_empty() {
        true => None,
        false => Some(pcap_filter::request(&expression).map_err(Failure::Usage)?),
    };
    if !arguments.count && !arguments.list {
        output::refuse_terminal(&arguments.write, "packets")?;
    }
    let wanted = Wanted { filter, between: arguments.flow, from: arguments.from, to: arguments.to };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let watch = Arc::new(Watch::new());
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let (of_signal, flag) = (Arc::clone(&watch), Arc::clone(&is_interrupted));
    runtime.spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            flag.store(true, Ordering::Release);
            of_signal.stop();
        }
    });
    let begun = Instant::now();
    let listing = runtime.block_on(async { Archive::open(&arguments.archive)?.list().await })?;
    if listing.segments.is_empty() {
        return Err(Failure::Failed(format!("no recordings in {}", arguments.archive).into()));
    }
    let outcome = Search::new(listing, &wanted, Arc::clone(&watch), begun)
        .and_then(|search| search.end(arguments, &wanted));
    let ended = watch.end();
    runtime.shutdown_background();
    match is_interrupted.load(Ordering::Acquire) {
        true => Err(Failure::Failed("interrupted".into())),
        false => outcome.and(ended),
    }
}

struct Search {
    listing: Listing,
    /// Number of segments in the archive.
    all: usize,
    plan: Plan,
    watch: Arc<Watch>,
    begun: Instant,
}

impl Search {
    fn new(
        mut listing: Listing,
        wanted: &Wanted,
        watch: Arc<Watch>,
        begun: Instant,
    ) -> Result<Self, Failure> {
        let all = listing.segments.len();
        listing.segments.retain(|segment| segment.times.is_none_or(|times| wanted.is_in_time(times)));
        let (planned, scanned_bytes) = search::plan(&listing, wanted, None, &watch)?;
        let segments = planned.into_iter().map(|(_, planned)| planned).collect();
        Ok(Self { listing, all, plan: Plan { segments, scanned_bytes, ..Plan::default() }, watch, begun })
    }

    fn end(self, arguments: &Arguments, wanted: &Wanted) -> Result<(), Failure> {
        if arguments.list {
            return self.list();
        }
        if arguments.count {
            let outcome = self.find(wanted, &mut |_| Ok(true))?;
            println!("{}", outcome.packets);
            self.report(&outcome);
            return Ok(());
        }
        if output::is_standard_output(&arguments.write) {
            let sink = StreamSink::new(io::stdout(), "standard output");
            return self.write(wanted, sink, Format::Pcapng);
        }
        let file = output::create(&arguments.write, arguments.force)?;
        let name = arguments.write.display().to_string();
        let compression = Compression::of(&arguments.write);
        let plain = match compression {
            Compression::None => arguments.write.clone(),
            _ => arguments.write.with_extension(""),
        };
        let format = match plain.extension() {
            Some(extension) if extension == "pcap" => Format::Pcap,
            _ => Format::Pcapng,
        };
        match compression {
            Compression::None => self.write(wanted, StreamSink::new(file, name), format),
            compression => self.write(wanted, CompressedSink::new(file, name, compression)?, format),
        }
    }

    fn find(
        &self,
        wanted: &Wanted,
        emit: &mut dyn FnMut(&Found<'_>) -> Result<bool, Failure>,
    ) -> Result<Outcome, Failure> {
        let mut query = wanted.query();
        let mut read = 0;
        let total = self.plan.segments.iter().map(|segment| segment.selected.len() as u64).sum();
        self.plan.run_in(
            &*self.listing.storage,
            &mut query,
            &mut |note| {
                if let wirecap_index::Note::Looked(..) = note {
                    self.watch.read(read, total, 0);
                    read += 1;
                }
                self.watch.note(&note)
            },
            emit,
        )
    }

    fn write<S: Sink>(self, wanted: &Wanted, sink: S, format: Format) -> Result<(), Failure> {
        let section = Section {
            application: Some(concat!("wirecap ", env!("CARGO_PKG_VERSION")).to_owned()),
            ..Section::default()
        };
        let mut writer = Writer::new(sink, format, &section);
        let mut interfaces = 0;
        let outcome = self.find(wanted, &mut |found| {
            if found.record.interface == interfaces {
                add_interface(&mut writer, found.interface)?;
                interfaces += 1;
            }
            writer.write(&found.record)?;
            Ok(true)
        });
        let outcome = match outcome {
            Err(failure) if is_broken_pipe(&failure) => return Ok(()),
            outcome => outcome?,
        };
        if interfaces == 0 {
            // Other programs reject a file without an interface.
            add_interface(&mut writer, &Interface::default())?;
        }
        match writer.finish() {
            Ok(_) | Err(WriteError::BrokenPipe { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.report(&outcome);
        Ok(())
    }

    fn list(&self) -> Result<(), Failure> {
        let selected: Vec<_> =
            self.plan.segments.iter().filter(|segment| !segment.selected.is_empty()).collect();
        for segment in &selected {
            println!(
                "{}: {} packets, {}",
                segment.path.display(),
                HumanCount(segment.packets),
                HumanBytes(segment.bytes)
            );
            let times = segment.times.map(|(first, last)| clock::span(first, last));
            println!(
                "  {}, may be in {} of {} parts",
                times.as_deref().unwrap_or("no packets"),
                HumanCount(segment.selected.len() as u64),
                HumanCount(segment.pieces as u64)
            );
        }
        self.watch.announce(&format!(
            "{} of {} segments may have matching packets",
            selected.len(),
            self.all
        ));
        Ok(())
    }

    fn report(&self, outcome: &Outcome) {
        let segments = &self.plan.segments;
        self.watch.announce(&format!(
            "found {} packets in {} of {} segments: read {} in {:.1} s",
            HumanCount(outcome.packets),
            segments.iter().filter(|segment| !segment.selected.is_empty()).count(),
            self.all,
            HumanBytes(outcome.read_bytes + self.plan.scanned_bytes),
            self.begun.elapsed().as_secs_f64(),
        ));
    }
}

fn is_broken_pipe(failure: &Failure) -> bool {
    matches!(failure, Failure::Failed(error)
        if matches!(error.downcast_ref(), Some(WriteError::BrokenPipe { .. })))
}

/// All interfaces have the same snapshot length: libpcap rejects a file whose interfaces differ in it.
fn add_interface<S: Sink>(writer: &mut Writer<S>, interface: &Interface) -> Result<(), Failure> {
    writer.add_interface(&Interface { snap_len: PACKET_BYTES_MAX, ..interface.clone() })?;
    Ok(())
}
