//! `wirecap archive find`: finds packets in an archive, in order of time, as `wirecap find` does in
//! directories.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use clap::Args;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::prelude::SessionContext;
use futures::{StreamExt, TryStreamExt};
use wirecap_index::{Between, Extract, Note, Outcome, Plan};
use wirecap_recorder::{CompressedSink, Compression, format_of};
use wirecap_savefile::{Format, Section, Sink, StreamSink, Writer};
use wirecap_units::clock;
use wirecap_units::output::{is_standard_output, refuse_terminal};
use wirecap_units::size::{grouped, human_bytes};

use crate::cache::CacheOptions;
use crate::cluster::{Cluster, ClusterOptions, Connection, PARTS, Report};
use crate::engine;
use crate::failure::Failure;
use crate::found::{self, Savefile};
use crate::location::{Archive, Listing};
use crate::output;
use crate::pcap_filter;
use crate::search::{self, Wanted};
use crate::watch::Watch;

/// Find packets in an archive and write them in order of time
///
/// The filter, the options for time, flow and output, and the result are those of wirecap find.
/// Only the parts of segments that may contain matching packets are read.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  wirecap archive find -a s3://bucket/packets --from 17:00 --to 17:30 -w found.pcapng host 10.1.2.3 and tcp port 443
  wirecap archive find -a /data --flow 10.1.2.3.443:10.9.9.9 | wirecap show -r - -nn
  wirecap archive find -a /data --count udp port 53
  wirecap archive find --cluster http://lab:50050 -a s3://bucket/packets host 10.1.2.3 -w found.pcapng")]
pub(crate) struct Arguments {
    /// The filter, see pcap-filter(7); without one all packets match
    #[arg(value_name = "FILTER")]
    words: Vec<String>,

    /// The archive: a directory, or s3://, gs://, az:// with a bucket and a prefix
    ///
    /// Credentials and endpoint come from the provider's environment variables, such as
    /// AWS_ACCESS_KEY_ID.
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
    /// In both directions and with any VLAN tag, with or without ports as tcpdump prints them;
    /// IPv6: [fe80::1]:[fe80::2].53.
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

    #[command(flatten)]
    cache: CacheOptions,

    #[command(flatten)]
    cluster: ClusterOptions,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    clock::check_order(arguments.from, arguments.to).map_err(Failure::Usage)?;
    let expression = arguments.words.join(" ");
    let filter = match expression.is_empty() {
        true => None,
        false => Some(pcap_filter::request(&expression).map_err(Failure::Usage)?),
    };

    if !arguments.count && !arguments.list && is_standard_output(&arguments.write) {
        let advice = "name a file with -w, or use wirecap show";
        refuse_terminal("packets", advice).map_err(Failure::Usage)?;
    }

    let between = arguments.flow;
    let from = arguments.from;
    let to = arguments.to;
    let wanted = Wanted { filter, between, from, to, ends: Vec::new() };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let watch = Arc::new(Watch::new());
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let of_signal = Arc::clone(&watch);
    let flag = Arc::clone(&is_interrupted);

    runtime.spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            flag.store(true, Ordering::Release);
            of_signal.stop();
        }
    });
    let begun = Instant::now();

    if let Some(cluster) = &arguments.cluster.cluster {
        let outcome = runtime.block_on(on_cluster(arguments, cluster, &wanted, &watch, begun));
        let ended = watch.end();
        runtime.shutdown_background();
        return outcome.and(ended);
    }

    let listing = runtime
        .block_on(async { Archive::open(&arguments.archive)?.list(&arguments.cache).await })?;
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

/// The savefile that is written.
enum Output {
    Plain(Writer<StreamSink<Box<dyn Write + Send>>>),
    Compressed(Writer<CompressedSink>),
}

impl Output {
    fn open(arguments: &Arguments) -> Result<Self, Failure> {
        let section = Section {
            application: Some(concat!("wirecap ", env!("CARGO_PKG_VERSION")).to_owned()),
            ..Section::default()
        };

        if is_standard_output(&arguments.write) {
            let output: Box<dyn Write + Send> = Box::new(io::stdout());
            let sink = StreamSink::new(output, "standard output");
            return Ok(Self::Plain(Writer::new(sink, Format::Pcapng, &section)));
        }

        let file = output::create(&arguments.write, arguments.force)?;
        let name = arguments.write.display().to_string();
        let format = format_of(&arguments.write);

        Ok(match Compression::of(&arguments.write) {
            Compression::None => {
                let output: Box<dyn Write + Send> = Box::new(file);
                Self::Plain(Writer::new(StreamSink::new(output, name), format, &section))
            }
            compression => Self::Compressed(Writer::new(
                CompressedSink::new(file, name, compression)?,
                format,
                &section,
            )),
        })
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
        listing
            .segments
            .retain(|segment| segment.times.is_none_or(|times| wanted.is_in_time(times)));

        let (planned, scanned_bytes) = search::plan(&listing, wanted, None, &watch)?;
        let segments = planned.into_iter().map(|(_, planned)| planned).collect();

        Ok(Self {
            listing,
            all,
            plan: Plan { segments, scanned_bytes, ..Plan::default() },
            watch,
            begun,
        })
    }

    fn end(self, arguments: &Arguments, wanted: &Wanted) -> Result<(), Failure> {
        if arguments.list {
            return self.list();
        }

        if arguments.count {
            let storage = &*self.listing.storage;
            let mut query = wanted.query();
            let outcome =
                self.plan
                    .run_in::<Failure>(storage, &mut query, &mut self.note(), &mut |_| Ok(true))?;
            output::print(outcome.packets)?;
            self.report(&outcome);
            return Ok(());
        }

        match Output::open(arguments)? {
            Output::Plain(writer) => self.write(wanted, writer),
            Output::Compressed(writer) => self.write(wanted, writer),
        }
    }

    /// Shows how many pieces were read.
    fn note(&self) -> impl FnMut(Note<'_>) -> bool {
        let total: usize = self.plan.segments.iter().map(|segment| segment.selected.len()).sum();
        let mut read = 0;
        move |note| {
            if let Note::Looked(..) = note {
                self.watch.show(format!("{read} of {total} pieces"));
                read += 1;
            }
            self.watch.note(&note)
        }
    }

    fn write<S: Sink>(self, wanted: &Wanted, writer: Writer<S>) -> Result<(), Failure> {
        let storage = &*self.listing.storage;
        let mut query = wanted.query();
        let outcome =
            self.plan.extract::<S, Failure>(storage, &mut query, &mut self.note(), writer)?;
        // If there is no outcome, the reader of standard output has closed it.
        if let Some(outcome) = outcome {
            self.report(&outcome);
        }
        Ok(())
    }

    fn list(&self) -> Result<(), Failure> {
        self.plan.candidates().try_for_each(output::print)?;
        let count = self.plan.candidates().count();
        let all = self.all;
        self.watch.announce(&format!("{count} of {all} segments may have matching packets"));
        Ok(())
    }

    fn report(&self, outcome: &Outcome) {
        let segments = (self.plan.candidates().count() as u64, self.all as u64);
        let read_bytes = outcome.read_bytes + self.plan.scanned_bytes;
        announce(&self.watch, outcome.packets, segments, read_bytes, self.begun);
    }
}

/// The same search on a cluster.
async fn on_cluster(
    arguments: &Arguments,
    cluster: &Cluster,
    wanted: &Wanted,
    watch: &Watch,
    begun: Instant,
) -> Result<(), Failure> {
    let archive = Archive::name_for_cluster(&arguments.archive)?;
    let connection = Connection::open(cluster).await?;
    let session = engine::on_cluster(connection.url(), &archive, wanted, PARTS)?;
    let remote = Remote { connection, session, watch, begun };

    tokio::select! {
        outcome = remote.end(arguments) => outcome,
        _ = tokio::signal::ctrl_c() => {
            remote.connection.cancel().await;
            Err(Failure::Failed("interrupted".into()))
        }
    }
}

struct Remote<'a> {
    connection: Connection,
    session: SessionContext,
    watch: &'a Watch,
    begun: Instant,
}

impl Remote<'_> {
    async fn end(&self, arguments: &Arguments) -> Result<(), Failure> {
        if arguments.list {
            return self.list().await;
        }

        if arguments.count {
            let batches: Vec<RecordBatch> =
                self.run("SELECT count(*) FROM found").await?.try_collect().await?;
            let count = batches.iter().find(|batch| batch.num_rows() > 0);
            let count =
                count.map_or(0, |batch| batch.column(0).as_primitive::<Int64Type>().value(0));
            output::print(count)?;
            return self.report(count.unsigned_abs()).await;
        }

        match Output::open(arguments)? {
            Output::Plain(writer) => self.write(writer).await,
            Output::Compressed(writer) => self.write(writer).await,
        }
    }

    async fn run(&self, statement: &str) -> Result<SendableRecordBatchStream, Failure> {
        self.connection.run(self.session.sql(statement).await?).await
    }

    async fn write<S: Sink>(&self, writer: Writer<S>) -> Result<(), Failure> {
        let statement = format!("SELECT * FROM found ORDER BY {}", found::ORDER.join(", "));
        let mut stream = self.run(&statement).await?;
        let mut savefile = Savefile::new(Extract::new(writer));
        while let Some(batch) = stream.next().await {
            if !savefile.write(&batch?)? {
                // The reader of standard output has closed it.
                return Ok(());
            }
        }
        let packets = savefile.packets;
        savefile.end()?;
        self.report(packets).await
    }

    async fn list(&self) -> Result<(), Failure> {
        let stream = self.run("SELECT * FROM candidates ORDER BY place").await?;
        let batches: Vec<RecordBatch> = stream.try_collect().await?;
        let mut count = 0;
        let mut all = 0;

        for batch in &batches {
            let [lines, segments, faults] =
                [1, 2, 3].map(|column| batch.column(column).as_string::<i32>());
            for row in 0..batch.num_rows() {
                if segments.is_valid(row) {
                    self.watch.faulty_because(segments.value(row), faults.value(row).to_owned());
                    continue;
                }

                all += 1;

                if lines.is_valid(row) {
                    count += 1;
                    output::print(lines.value(row))?;
                }
            }
        }

        self.watch.announce(&format!("{count} of {all} segments may have matching packets"));
        Ok(())
    }

    async fn report(&self, packets: u64) -> Result<(), Failure> {
        let Report { read_bytes, segments: (count, all) } =
            self.connection.report(self.watch).await?;
        announce(self.watch, packets, (count, all), read_bytes, self.begun);
        Ok(())
    }
}

fn announce(
    watch: &Watch,
    packets: u64,
    (count, all): (u64, u64),
    read_bytes: u64,
    begun: Instant,
) {
    watch.announce(&format!(
        "found {} packets in {count} of {all} segments: read {} in {:.1} s",
        grouped(packets),
        human_bytes(read_bytes),
        begun.elapsed().as_secs_f64(),
    ));
}
