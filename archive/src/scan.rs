//! The part of a query plan that reads segments or their indexes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, ReplaceChildrenOptions};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};
use tokio::sync::mpsc::Sender;
use wirecap_index::{Piece, Planned, Table};

use crate::columns::{self, Lines};
use crate::location::Listing;
use crate::search::Wanted;
use crate::segment::Segment;
use crate::watch::Watch;

/// Approximate bytes of packets in a batch, which a thread holds in memory.
const BATCH_BYTES: usize = 1 << 20;

/// A piece of a segment to be read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    /// Of the scan's list.
    pub(crate) planned: usize,
    pub(crate) piece: Piece,
}

/// The input of a scan, in parts that are read at the same time.
#[derive(Debug)]
pub(crate) enum Work {
    /// Packets: the planned segments by their position in the listing, and their pieces.
    Packets { planned: Vec<(usize, Arc<Planned>)>, wanted: Wanted, jobs: Vec<Vec<Job>> },
    /// The indexes of these segments of the listing.
    Flows { segments: Vec<Vec<usize>> },
}

/// Reads packets or flows.
#[derive(Debug)]
pub(crate) struct Scan {
    listing: Listing,
    work: Work,
    /// What `EXPLAIN` shows.
    details: String,
    watch: Arc<Watch>,
    properties: Arc<PlanProperties>,
    progress: Arc<Progress>,
}

/// The progress of all parts of a scan.
#[derive(Debug, Default)]
struct Progress {
    pieces: AtomicU64,
    bytes: Arc<AtomicU64>,
    total: u64,
}

impl Scan {
    pub(crate) fn new(
        schema: SchemaRef,
        listing: Listing,
        work: Work,
        details: String,
        watch: Arc<Watch>,
    ) -> Self {
        let (parts, total) = match &work {
            Work::Packets { jobs, .. } => (jobs.len(), jobs.iter().map(Vec::len).sum::<usize>()),
            Work::Flows { segments } => (segments.len(), segments.iter().map(Vec::len).sum()),
        };
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(parts),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let progress = Arc::new(Progress { total: total as u64, ..Progress::default() });
        Self { listing, work, details, watch, properties: Arc::new(properties), progress }
    }
}

impl DisplayAs for Scan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), self.details)
    }
}

impl ExecutionPlan for Scan {
    fn name(&self) -> &str {
        match self.work {
            Work::Packets { .. } => "PacketScan",
            Work::Flows { .. } => "FlowScan",
        }
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let schema = self.schema();
        let mut builder = RecordBatchReceiverStreamBuilder::new(Arc::clone(&schema), 1);
        let output = Output { schema, tx: builder.tx(), rows: context.session_config().batch_size() };
        let (listing, watch) = (self.listing.clone(), Arc::clone(&self.watch));
        let progress = Arc::clone(&self.progress);
        match &self.work {
            Work::Packets { planned, wanted, jobs } => {
                let jobs = jobs[partition].clone();
                // Only those of this part.
                let planned: Vec<_> = jobs
                    .iter()
                    .map(|job| {
                        let (place, planned) = &planned[job.planned];
                        (*place, Arc::clone(planned), job.piece)
                    })
                    .collect();
                let wanted = wanted.clone();
                builder.spawn_blocking(move || {
                    read_packets(&planned, &listing, &wanted, &output, &watch, &progress)
                });
            }
            Work::Flows { segments } => {
                let segments = segments[partition].clone();
                builder.spawn_blocking(move || read_flows(&segments, &listing, &output, &watch, &progress));
            }
        }
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

fn read_packets(
    jobs: &[(usize, Arc<Planned>, Piece)],
    listing: &Listing,
    wanted: &Wanted,
    output: &Output,
    watch: &Watch,
    progress: &Progress,
) -> Result<()> {
    let mut query = wanted.query();
    let mut faulty = None;
    for (place, planned, piece) in jobs {
        if watch.is_stopped() {
            return Ok(());
        }
        if faulty == Some(*place) {
            continue;
        }
        let segment = &listing.segments[*place];
        let mut lines = Lines::new(Arc::clone(&output.schema));
        let mut is_read = true;
        let read = planned.read(&*listing.storage, piece, &mut query, &progress.bytes, &mut |packet| {
            lines.push(packet);
            if lines.len() >= output.rows || lines.data_bytes() >= BATCH_BYTES {
                let rows = lines.len();
                is_read = output.send(lines.take(segment), rows);
            }
            is_read
        });
        if let Err(fault) = read {
            watch.faulty(&segment.path.display().to_string(), &fault);
            faulty = Some(*place);
        }
        let rows = lines.len();
        if !is_read || rows > 0 && !output.send(lines.take(segment), rows) {
            return Ok(());
        }
        progress.step(watch);
    }
    Ok(())
}

impl Progress {
    fn step(&self, watch: &Watch) {
        let count = self.pieces.fetch_add(1, Ordering::Relaxed) + 1;
        watch.read(count, self.total, self.bytes.load(Ordering::Relaxed));
    }
}

fn read_flows(
    segments: &[usize],
    listing: &Listing,
    output: &Output,
    watch: &Watch,
    progress: &Progress,
) -> Result<()> {
    for place in segments {
        if watch.is_stopped() {
            return Ok(());
        }
        let segment = &listing.segments[*place];
        if let Some(index) = index_of(segment, listing, watch) {
            for rows in index.rows().chunks(output.rows.max(1)) {
                let fields = output.schema.fields().iter();
                let columns =
                    fields.map(|field| columns::of_rows(field.name(), segment, &index, rows)).collect();
                if !output.send(columns, rows.len()) {
                    return Ok(());
                }
            }
        }
        progress.step(watch);
    }
    Ok(())
}

/// The index of a segment, made from the segment if it has none; `None` if the segment cannot be read.
fn index_of(segment: &Segment, listing: &Listing, watch: &Watch) -> Option<wirecap_index::Index> {
    let name = segment.path.display().to_string();
    let loaded = listing.storage.table(&segment.path).and_then(|table: Table| {
        table.index().map_err(|error| wirecap_index::Without::Damaged(error.to_string()))
    });
    match loaded {
        Ok(index) => Some(index),
        Err(_) if listing.storage.has_files() => {
            let built = wirecap_index::build(&segment.path, &mut |_| !watch.is_stopped());
            match built {
                Ok(built) => {
                    if let Some(fault) = &built.fault {
                        watch.faulty(&name, fault);
                    }
                    Some(built.index)
                }
                Err(wirecap_savefile::ReadError::Empty) => None,
                Err(error) => {
                    watch.faulty(&name, &error);
                    None
                }
            }
        }
        Err(without) => {
            watch.faulty(&name, &without);
            None
        }
    }
}
