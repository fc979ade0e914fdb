//! The part of a query plan that reads segments or their indexes.
//!
//! Its input is the jobs: rows that name the segments and pieces to be read. They are divided into
//! partitions, which may be read by different threads, or by different machines of a cluster:
//! Ballista divides a stage by the partitions of the stage's leaves, which must be plans that
//! Ballista knows.
//!
//! If the scan were a leaf, each task would get the whole scan, and every packet would be read once
//! per task: Ballista gives each task a share of a stage's partitions by rewriting the leaves of
//! the stage's plan, and it can rewrite only DataFusion's leaves and its own. A damaged segment
//! does not fail a task, because Ballista would repeat it. The scan records segment and reason as a
//! metric of the task, which the client requests at the end, so each damaged segment is reported
//! once.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions,
};
use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet,
};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::TryStreamExt;
use tokio::sync::mpsc::Sender;
use wirecap_index::{Packet, Planned, Query, Storage, Table};
use wirecap_units::error::causes;

use crate::columns::{self, Lines};
use crate::found::FoundRows;
use crate::message::{self, FaultMessage, ScanMessage, TableMessage};
use crate::node::Node;
use crate::search::Wanted;
use crate::segment::Segment;
use crate::table::Kind;
use crate::watch::Watch;

/// Approximate bytes of packets in a batch, which a thread holds in memory.
const BATCH_BYTES: usize = 1 << 20;
/// The metric of the bytes of segments that were read.
pub(crate) const BYTES_READ: &str = "bytes_read";
/// The beginning of the metrics of segments that could not be read completely.
const FAULT: &str = "fault\0";

/// The segment and the reason in the name of such a metric.
pub(crate) fn fault_in(metric: &str) -> Option<(&str, &str)> {
    metric.strip_prefix(FAULT)?.split_once('\0')
}

/// A segment to be read, or some of its pieces.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) segment: Segment,
    /// The pieces in the order in which they are read; none for the table `flows`.
    pub(crate) planned: Planned,
    /// The segment's position in the archive.
    pub(crate) place: u64,
}

/// How the segments are reached.
#[derive(Debug, Clone)]
pub(crate) enum Access {
    /// By the store that listed them.
    Opened(Arc<dyn Storage>),
    /// By this process of a cluster, which opens the archive.
    Node(Arc<Node>),
}

impl Access {
    fn storage(&self, archive: &str) -> Result<Arc<dyn Storage>> {
        match self {
            Self::Opened(storage) => Ok(Arc::clone(storage)),
            Self::Node(node) => node.storage(archive),
        }
    }
}

/// What is read, of which archive.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) kind: Kind,
    pub(crate) archive: Arc<str>,
    pub(crate) access: Access,
    pub(crate) wanted: Wanted,
    pub(crate) watch: Arc<Watch>,
}

/// Reads packets or flows.
#[derive(Debug)]
pub(crate) struct Scan {
    reading: Reading,
    schema: SchemaRef,
    /// What `EXPLAIN` shows.
    details: String,
    /// Segments that could not be read when the query was planned, and that were not reported to
    /// the user.
    faults: Vec<(String, String)>,
    jobs: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    progress: Arc<Progress>,
    metrics: ExecutionPlanMetricsSet,
}

/// The progress of all parts of a scan.
#[derive(Debug, Default)]
struct Progress {
    pieces: AtomicU64,
    bytes: AtomicU64,
    total: u64,
}

impl Scan {
    /// `total` is the number of pieces or segments to be read, if known.
    pub(crate) fn new(
        reading: Reading,
        schema: SchemaRef,
        details: String,
        faults: Vec<(String, String)>,
        jobs: Arc<dyn ExecutionPlan>,
        total: u64,
    ) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            jobs.properties().output_partitioning().clone(),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let progress = Arc::new(Progress { total, ..Progress::default() });
        let properties = Arc::new(properties);
        let metrics = ExecutionPlanMetricsSet::new();
        Self { reading, schema, details, faults, jobs, properties, progress, metrics }
    }

    pub(crate) fn message(&self) -> Result<ScanMessage> {
        let columns = self.schema.fields().iter().map(|field| field.name().clone()).collect();
        let faults = self.faults.iter().map(|(segment, reason)| FaultMessage {
            segment: segment.clone(),
            reason: reason.clone(),
        });

        Ok(ScanMessage {
            table: Some(TableMessage::new(
                self.reading.kind,
                &self.reading.archive,
                &self.reading.wanted,
            )?),
            columns,
            details: self.details.clone(),
            faults: faults.collect(),
        })
    }

    pub(crate) fn from_message(
        message: ScanMessage,
        jobs: Arc<dyn ExecutionPlan>,
        node: &Arc<Node>,
    ) -> Result<Self> {
        let (kind, archive, wanted) = message::required(message.table)?.read()?;
        let all = kind.schema();
        let columns = message.columns.iter().map(|name| all.index_of(name));
        let schema = Arc::new(all.project(&columns.collect::<Result<Vec<_>, _>>()?)?);

        let reading = Reading {
            kind,
            archive,
            access: Access::Node(Arc::clone(node)),
            wanted,
            watch: Arc::new(Watch::silent()),
        };
        let faults =
            message.faults.into_iter().map(|FaultMessage { segment, reason }| (segment, reason));
        Ok(Self::new(reading, schema, message.details, faults.collect(), jobs, 0))
    }
}

impl DisplayAs for Scan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), self.details)
    }
}

impl ExecutionPlan for Scan {
    fn name(&self) -> &str {
        match self.reading.kind {
            Kind::Flows => "FlowScan",
            _ => "PacketScan",
        }
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.jobs]
    }

    /// The jobs are divided by bytes already.
    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Self { reading, schema, details, faults, progress, .. } = &*self;
        Ok(Arc::new(Self::new(
            reading.clone(),
            Arc::clone(schema),
            details.clone(),
            faults.clone(),
            children.swap_remove(0),
            progress.total,
        )))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(
            children,
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        )
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let jobs = self.jobs.execute(partition, Arc::clone(&context))?;
        let mut builder = RecordBatchReceiverStreamBuilder::new(Arc::clone(&self.schema), 1);
        let rows = context.session_config().batch_size().max(1);
        let output = Output { schema: Arc::clone(&self.schema), tx: builder.tx(), rows };

        let part = Part {
            reading: self.reading.clone(),
            progress: Arc::clone(&self.progress),
            metrics: self.metrics.clone(),
            partition,
            bytes_read: MetricBuilder::new(&self.metrics).counter(BYTES_READ, partition),
        };

        if partition == 0 {
            for (segment, reason) in &self.faults {
                part.faulty(segment, reason.clone());
            }
        }

        builder.spawn(async move {
            let jobs: Vec<RecordBatch> = jobs.try_collect().await?;
            let read =
                SpawnedTask::spawn_blocking(move || part.run(&jobs, &output)).join_unwind().await;
            read.map_err(|error| DataFusionError::External(error.into()))?
        });
        Ok(builder.build())
    }
}

/// The channel to which a part sends its batches.
struct Output {
    schema: SchemaRef,
    tx: Sender<Result<RecordBatch>>,
    /// Rows of a batch at most.
    rows: usize,
}

impl Output {
    /// Whether to continue: the reader may have closed the channel.
    fn send(&self, columns: Vec<ArrayRef>, rows: usize) -> bool {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options);
        self.tx.blocking_send(batch.map_err(Into::into)).is_ok()
    }
}

/// Packets of one segment, which become a batch.
pub(crate) trait Rows {
    fn push(&mut self, packet: &Packet<'_>);

    fn len(&self) -> usize;

    /// Bytes of the packets that are held.
    fn data_bytes(&self) -> usize;

    /// The packets as columns; none are left.
    fn take(&mut self, segment: &Segment) -> Vec<ArrayRef>;
}

/// A partition of a scan while it is read.
struct Part {
    reading: Reading,
    progress: Arc<Progress>,
    metrics: ExecutionPlanMetricsSet,
    partition: usize,
    bytes_read: Count,
}

impl Part {
    fn run(&self, jobs: &[RecordBatch], output: &Output) -> Result<()> {
        let Reading { kind, archive, access, .. } = &self.reading;
        let storage = access.storage(archive)?;
        let mut query = self.reading.wanted.query();

        for batch in jobs {
            for job in message::decode_jobs(batch)? {
                let is_read = match kind {
                    Kind::Packets => {
                        let mut lines = Lines::new(Arc::clone(&output.schema));
                        self.read_packets(&job, &*storage, &mut query, &mut lines, output)?
                    }
                    Kind::Found | Kind::Candidates => {
                        let mut rows = FoundRows::new(Arc::clone(&output.schema), job.place);
                        self.read_packets(&job, &*storage, &mut query, &mut rows, output)?
                    }
                    Kind::Flows => self.read_flows(&job.segment, &*storage, &mut query, output)?,
                };
                if !is_read {
                    return Ok(());
                }
            }
        }

        Ok(())
    }

    fn is_stopped(&self, output: &Output) -> bool {
        self.reading.watch.is_stopped() || output.tx.is_closed()
    }

    /// Reports a segment that cannot be read completely: to this process's user, and as a metric,
    /// which the client of a cluster reads.
    fn faulty(&self, segment: &str, reason: String) {
        MetricBuilder::new(&self.metrics)
            .counter(format!("{FAULT}{segment}\0{reason}"), self.partition)
            .add(1);
        self.reading.watch.faulty_because(segment, reason);
    }

    /// Reads the pieces of a segment up to the first that is damaged; returns whether the receiver
    /// accepts more rows.
    fn read_packets(
        &self,
        job: &Job,
        storage: &dyn Storage,
        query: &mut Query,
        lines: &mut impl Rows,
        output: &Output,
    ) -> Result<bool> {
        let read_bytes = Arc::new(AtomicU64::new(0));
        let path = job.segment.path.display().to_string();

        let reader = match job.planned.open(storage, &read_bytes) {
            Ok(reader) => reader,
            Err(fault) => {
                self.faulty(&path, causes(&fault));
                self.progress.step(&self.reading.watch);
                return Ok(true);
            }
        };

        for piece in &job.planned.selected {
            if self.is_stopped(output) {
                return Ok(false);
            }

            let mut is_read = true;
            let read = reader.read(piece, query, &mut |packet| {
                lines.push(packet);
                if lines.len() >= output.rows || lines.data_bytes() >= BATCH_BYTES {
                    let rows = lines.len();
                    is_read = output.send(lines.take(&job.segment), rows);
                }
                is_read
            });
            self.count(read_bytes.swap(0, Ordering::Relaxed));

            let is_faulty = read.is_err();
            if let Err(fault) = read {
                self.faulty(&path, causes(&fault));
            }

            let rows = lines.len();
            if !is_read || rows > 0 && !output.send(lines.take(&job.segment), rows) {
                return Ok(false);
            }

            self.progress.step(&self.reading.watch);
            if is_faulty {
                break;
            }
        }

        Ok(true)
    }

    fn count(&self, bytes: u64) {
        self.bytes_read.add(usize::try_from(bytes).unwrap_or(usize::MAX));
        self.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn read_flows(
        &self,
        segment: &Segment,
        storage: &dyn Storage,
        query: &mut Query,
        output: &Output,
    ) -> Result<bool> {
        if self.is_stopped(output) {
            return Ok(false);
        }

        if let Some(index) = self.index_of(segment, storage, query) {
            for rows in index.rows().chunks(output.rows) {
                let fields = output.schema.fields().iter();
                let columns = fields
                    .map(|field| columns::of_rows(field.name(), segment, &index, rows))
                    .collect();
                if !output.send(columns, rows.len()) {
                    return Ok(false);
                }
            }
        }

        self.progress.step(&self.reading.watch);
        Ok(true)
    }

    /// The index of a segment, perhaps without rows that cannot match. It is made from the segment
    /// if that has none; `None` if the segment cannot be read.
    fn index_of(
        &self,
        segment: &Segment,
        storage: &dyn Storage,
        query: &mut Query,
    ) -> Option<wirecap_index::Index> {
        let name = segment.path.display().to_string();
        let loaded = storage.table(&segment.path).and_then(|table: Table| {
            let index = match self.reading.wanted.ends.is_empty() {
                true => table.index().map_err(Box::<dyn Error>::from),
                false => query.index(table),
            };
            index.map_err(|error| wirecap_index::Without::Damaged(error.to_string()))
        });
        match loaded {
            Ok(index) => Some(index),
            Err(_) if storage.has_files() => {
                let built =
                    wirecap_index::build(&segment.path, &mut |_| !self.reading.watch.is_stopped());
                match built {
                    Ok(built) => {
                        if let Some(fault) = &built.fault {
                            self.faulty(&name, causes(fault));
                        }
                        Some(built.index)
                    }
                    Err(wirecap_savefile::ReadError::Empty) => None,
                    Err(error) => {
                        self.faulty(&name, causes(&error));
                        None
                    }
                }
            }
            Err(without) => {
                self.faulty(&name, causes(&without));
                None
            }
        }
    }
}

impl Progress {
    fn step(&self, watch: &Watch) {
        let count = self.pieces.fetch_add(1, Ordering::Relaxed) + 1;
        watch.read(count, self.total, self.bytes.load(Ordering::Relaxed));
    }
}
