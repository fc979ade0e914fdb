//! `wirecap archive sql`: a query over the tables `flows` and `packets`.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use arrow::array::RecordBatch;
use arrow::csv;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::writer::FileWriter;
use arrow::json::LineDelimitedWriter;
use arrow::util::pretty::pretty_format_batches_with_schema;
use clap::{Args, ValueEnum};
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use wirecap_units::output::{is_standard_output, refuse_terminal};
use wirecap_units::size;

use crate::cache::CacheOptions;
use crate::cluster::{ClusterOptions, Connection, PARTS};
use crate::engine::{Limits, on_cluster, session};
use crate::failure::Failure;
use crate::location::Archive;
use crate::output;
use crate::search::Wanted;
use crate::watch::Watch;

/// Maximum number of rows in a table: its columns are as wide as the widest of these rows.
const TABLE_ROWS_MAX: usize = 100_000;

/// Query recordings with SQL
///
/// The tables: flows, the index of each segment (a row per flow, direction, interface and minute),
/// and packets. Conditions on time, addresses, ports, protocol, VLAN and lengths exclude segments
/// and pieces of segments before these are read, and so does pcap_filter('EXPRESSION') with
/// tcpdump's filter language. EXPLAIN shows what is excluded. Each segment that cannot be read
/// completely is named and skipped, and the exit status is then 1.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  wirecap archive sql -a /data 'SELECT src_addr, sum(bytes) FROM flows GROUP BY 1 ORDER BY 2 DESC LIMIT 10'
  wirecap archive sql -a /data \"SELECT time, src_addr, length FROM packets WHERE pcap_filter('icmp')\" --format csv
  wirecap archive sql -a /data \"SELECT * FROM packets WHERE dst_port = 53 AND time >= '2026-11-22T17:00:00Z'\" -w dns.parquet
  wirecap archive sql --cluster http://lab:50050 -a s3://bucket/packets 'SELECT sensor, count(*) FROM packets GROUP BY 1'")]
pub(crate) struct Arguments {
    /// The SQL statement
    #[arg(value_name = "SQL")]
    statement: String,

    /// The archive: a directory, or s3://, gs://, az:// with a bucket and a prefix
    ///
    /// Credentials and endpoint come from the provider's environment variables, such as
    /// AWS_ACCESS_KEY_ID.
    #[arg(short, long, value_name = "DIR|URL", env = "WIRECAP_ARCHIVE")]
    archive: String,

    /// Format of the result [default: by the extension of the file, else table]
    #[arg(long, value_enum)]
    format: Option<Format>,

    /// Write the result into a file; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    write: PathBuf,

    /// Replace the file if it exists
    #[arg(long)]
    force: bool,

    /// Memory for sorting, grouping and joining; data beyond it goes to disk
    ///
    /// Units are powers of 1,024: 16G is 16 GiB.
    #[arg(long, value_name = "BYTES", value_parser = size::bytes, default_value = "1G", conflicts_with = "cluster")]
    memory: u64,

    /// Directory for data that exceeds the memory [default: that of temporary files]
    #[arg(long, value_name = "DIR", conflicts_with = "cluster")]
    spill: Option<PathBuf>,

    /// Number of threads [default: one per CPU]; with --cluster, of parts of the query
    /// [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    #[command(flatten)]
    cache: CacheOptions,

    #[command(flatten)]
    cluster: ClusterOptions,
}

/// A format of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Aligned columns, for reading
    Table,
    /// Comma-separated values with a line of names
    Csv,
    /// An object for each row, one per line
    Json,
    /// Apache Parquet, compressed with Zstandard
    Parquet,
    /// Arrow IPC file
    Arrow,
}

impl Format {
    fn of(arguments: &Arguments) -> Self {
        let extension = arguments.write.extension().and_then(|extension| extension.to_str());
        arguments.format.unwrap_or(match extension {
            Some("csv") => Self::Csv,
            Some("json" | "jsonl" | "ndjson") => Self::Json,
            Some("parquet") => Self::Parquet,
            Some("arrow" | "ipc" | "feather") => Self::Arrow,
            _ => Self::Table,
        })
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let format = Format::of(arguments);
    let binary = match format {
        Format::Parquet => Some("Parquet"),
        Format::Arrow => Some("Arrow IPC"),
        Format::Table | Format::Csv | Format::Json => None,
    };
    if let Some(name) = binary.filter(|_| is_standard_output(&arguments.write)) {
        refuse_terminal(name, "name a file with -w").map_err(Failure::Usage)?;
    }

    let processors = || thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.map_or_else(processors, usize::from);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let watch = Arc::new(Watch::new());
    let interrupted = || Failure::Failed("interrupted".into());

    let outcome = runtime.block_on(async {
        let Some(cluster) = &arguments.cluster.cluster else {
            return tokio::select! {
                outcome = query(arguments, format, threads, &watch) => outcome,
                _ = tokio::signal::ctrl_c() => Err(interrupted()),
            };
        };
        let connection = Connection::open(cluster).await?;
        tokio::select! {
            outcome = query_on_cluster(arguments, format, &connection, &watch) => outcome,
            _ = tokio::signal::ctrl_c() => {
                connection.cancel().await;
                Err(interrupted())
            }
        }
    });
    watch.stop();

    // Threads that still read are not waited for.
    runtime.shutdown_background();
    let ended = watch.end();
    outcome.and(ended)
}

async fn query(
    arguments: &Arguments,
    format: Format,
    threads: usize,
    watch: &Arc<Watch>,
) -> Result<(), Failure> {
    let listing = Archive::open(&arguments.archive)?.list(&arguments.cache).await?;
    if listing.segments.is_empty() {
        return Err(Failure::Failed(format!("no recordings in {}", arguments.archive).into()));
    }

    let limits = Limits {
        memory_bytes: arguments.memory,
        threads,
        spill_directory: arguments.spill.as_deref(),
    };
    let session = session(&arguments.archive, &listing, &limits, watch)?;
    let stream = session.sql(&arguments.statement).await?.execute_stream().await?;

    finish(arguments, format, stream).await
}

async fn query_on_cluster(
    arguments: &Arguments,
    format: Format,
    connection: &Connection,
    watch: &Watch,
) -> Result<(), Failure> {
    let archive = Archive::name_for_cluster(&arguments.archive)?;
    let parts = arguments.threads.map_or(PARTS, usize::from);
    let session = on_cluster(connection.url(), &archive, &Wanted::default(), parts)?;
    let stream = connection.run(session.sql(&arguments.statement).await?).await?;
    finish(arguments, format, stream).await?;
    connection.report(watch).await.map(drop)
}

/// Writes the result.
async fn finish(
    arguments: &Arguments,
    format: Format,
    stream: SendableRecordBatchStream,
) -> Result<(), Failure> {
    let file = BufWriter::with_capacity(1 << 20, output::open(&arguments.write, arguments.force)?);
    unless_reader_ended(write(stream, format, file).await)
}

/// A reader that closes standard output early ends a pipe in the usual way; this is no error.
fn unless_reader_ended(outcome: Result<(), Failure>) -> Result<(), Failure> {
    match outcome {
        Err(Failure::Failed(error)) if is_broken_pipe(&*error) => Ok(()),
        outcome => outcome,
    }
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    let of_arrow = |error: &ArrowError| matches!(error, ArrowError::IoError(_, error) if error.kind() == io::ErrorKind::BrokenPipe);
    error.downcast_ref().is_some_and(of_arrow)
        || error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        // The CSV writer's form of this error.
        || error.to_string().contains("Broken pipe")
}

/// Accepts batches, one after the other.
trait Writer {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), Failure>;
    fn finish(self: Box<Self>) -> Result<(), Failure>;
}

async fn write<W: Write + Send + 'static>(
    mut stream: SendableRecordBatchStream,
    format: Format,
    file: W,
) -> Result<(), Failure> {
    let schema = stream.schema();
    let mut writer: Box<dyn Writer> = match format {
        Format::Table => Box::new(TableWriter { file, schema, batches: Vec::new() }),
        Format::Csv => {
            let mut writer = csv::WriterBuilder::new().with_header(true).build(file);
            // The names are written even if there are no rows.
            writer.write(&RecordBatch::new_empty(schema))?;
            Box::new(writer)
        }
        Format::Json => Box::new(LineDelimitedWriter::new(file)),
        Format::Parquet => {
            let compression = Compression::ZSTD(ZstdLevel::default());
            let properties = WriterProperties::builder().set_compression(compression).build();
            Box::new(ArrowWriter::try_new(file, schema, Some(properties))?)
        }
        Format::Arrow => Box::new(FileWriter::try_new(file, &schema)?),
    };

    while let Some(batch) = stream.next().await {
        writer.write(&batch?)?;
    }
    writer.finish()
}

struct TableWriter<W> {
    file: W,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl<W: Write> Writer for TableWriter<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), Failure> {
        self.batches.push(batch.clone());
        match self.batches.iter().map(RecordBatch::num_rows).sum::<usize>() > TABLE_ROWS_MAX {
            true => Err(Failure::Failed(
                "the result has more than 100,000 rows, too many for a table: add LIMIT or use --format csv"
                    .into(),
            )),
            false => Ok(()),
        }
    }

    fn finish(mut self: Box<Self>) -> Result<(), Failure> {
        let table = pretty_format_batches_with_schema(Arc::clone(&self.schema), &self.batches)?;
        writeln!(self.file, "{table}")?;
        Ok(self.file.flush()?)
    }
}

impl<W: Write> Writer for csv::Writer<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), Failure> {
        Ok(csv::Writer::write(self, batch)?)
    }

    fn finish(self: Box<Self>) -> Result<(), Failure> {
        Ok(self.into_inner().flush()?)
    }
}

impl<W: Write> Writer for LineDelimitedWriter<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), Failure> {
        Ok(LineDelimitedWriter::write(self, batch)?)
    }

    fn finish(mut self: Box<Self>) -> Result<(), Failure> {
        LineDelimitedWriter::finish(&mut self)?;
        Ok(self.into_inner().flush()?)
    }
}

impl<W: Write + Send> Writer for ArrowWriter<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), Failure> {
        Ok(ArrowWriter::write(self, batch)?)
    }

    fn finish(self: Box<Self>) -> Result<(), Failure> {
        Ok(self.into_inner()?.flush()?)
    }
}

impl<W: Write> Writer for FileWriter<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), Failure> {
        Ok(FileWriter::write(self, batch)?)
    }

    fn finish(self: Box<Self>) -> Result<(), Failure> {
        Ok(self.into_inner()?.flush()?)
    }
}
