//! A DataFusion session over an archive, with limits of memory and threads.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use ballista_core::config::BALLISTA_CLIENT_PULL;
use ballista_core::extension::{SessionConfigExt, SessionStateExt};
use datafusion::common::Result;
use datafusion::common::format::ExplainFormat;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::ScalarUDF;
use datafusion::optimizer::Analyzer;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::cluster::MESSAGE_BYTES_MAX;
use crate::codec::LogicalCodec;
use crate::location::Listing;
use crate::pcap_filter::{AddColumns, PcapFilter};
use crate::search::Wanted;
use crate::table::{ArchiveTable, Kind, Planner};
use crate::watch::Watch;

/// Rows of a batch at most; DataFusion's default.
const BATCH_ROWS: usize = 8192;
/// Approximate bytes of a row of `packets`: a full Ethernet frame and its columns.
const ROW_BYTES: usize = 2048;
/// Minimum number of batches of full frames that fit into a thread's part of the memory.
const BATCHES_MIN: usize = 64;
/// Maximum number of spilled files that a sort merges at once. The sort reserves four batches for
/// each file: two that it reads ahead, and two for sorting. The remaining batches of `BATCHES_MIN`
/// are for the last merge, which joins the threads' results and cannot spill. Without this limit,
/// the threads' merges use all of the memory.
const MERGED_MAX: usize = BATCHES_MIN * 3 / 4 / 4;
/// Consumers that an error message lists when memory is exhausted.
const LISTED: NonZeroUsize = NonZeroUsize::new(3).expect("it is not 0");

/// Limits of a query.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits<'a> {
    pub(crate) memory_bytes: u64,
    pub(crate) threads: usize,
    /// Directory for data that does not fit into memory.
    pub(crate) spill_directory: Option<&'a Path>,
}

/// Rows of a batch on a cluster at most: an executor holds and sends batches of full frames.
const CLUSTER_BATCH_ROWS: usize = 1024;

/// A session with the tables `flows` and `packets`, whose queries run here.
pub(crate) fn session(
    archive: &str,
    listing: &Listing,
    limits: &Limits<'_>,
    watch: &Arc<Watch>,
) -> Result<SessionContext> {
    let memory = usize::try_from(limits.memory_bytes).unwrap_or(usize::MAX);

    // A sort holds several batches per thread when it merges spilled data, and reserves memory for
    // them that no other part may use. Both default to sizes for narrow rows: 8,192 rows of packets
    // are 16 MiB, and the reservation is 10 MiB.
    let part = memory / limits.threads;
    let mut config = SessionConfig::new()
        .with_target_partitions(limits.threads)
        .with_batch_size((part / BATCHES_MIN / ROW_BYTES).clamp(16, BATCH_ROWS))
        .with_sort_spill_reservation_bytes((part / 16).min(10 << 20))
        .with_information_schema(true);
    config.options_mut().explain.format = ExplainFormat::Indent;

    let pool = TrackConsumersPool::new(FairSpillPool::new(memory), LISTED);
    let mode = match limits.spill_directory {
        Some(directory) => DiskManagerMode::Directories(vec![directory.to_owned()]),
        None => DiskManagerMode::OsTmpDirectory,
    };
    let disk =
        DiskManagerBuilder::default().with_mode(mode).with_max_spill_merge_fan_in(MERGED_MAX);
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(pool))
        .with_disk_manager_builder(disk)
        .build_arc()?;
    let state = builder(config).with_runtime_env(runtime).build();

    with_tables(state, archive, &Planner::Here(listing.clone(), Arc::clone(watch)))
}

/// A session with the tables `flows` and `packets`, and with those of `find`, whose queries run on
/// a cluster in `parts` parts.
pub(crate) fn on_cluster(
    scheduler: &str,
    archive: &str,
    wanted: &Wanted,
    parts: usize,
) -> Result<SessionContext> {
    let mut config = SessionConfig::new_with_ballista()
        .with_target_partitions(parts)
        .with_batch_size(CLUSTER_BATCH_ROWS)
        .with_ballista_grpc_client_max_message_size(MESSAGE_BYTES_MAX)
        .with_ballista_logical_extension_codec(Arc::new(LogicalCodec::default()))
        // The client needs the job's name to cancel it, so it must know the name before the job
        // runs.
        .set_bool(BALLISTA_CLIENT_PULL, true);
    config.options_mut().explain.format = ExplainFormat::Indent;

    let state = builder(config).build().upgrade_for_ballista(scheduler.to_owned())?;
    let context = with_tables(state, archive, &Planner::Cluster)?;

    for (name, kind) in [("found", Kind::Found), ("candidates", Kind::Candidates)] {
        let table = ArchiveTable::new(kind, archive, wanted.clone(), Planner::Cluster);
        context.register_table(name, Arc::new(table))?;
    }

    Ok(context)
}

fn builder(config: SessionConfig) -> SessionStateBuilder {
    let mut rules = Analyzer::new().rules;
    rules.insert(0, Arc::new(AddColumns));
    SessionStateBuilder::new()
        .with_config(config)
        .with_default_features()
        .with_analyzer_rules(rules)
}

fn with_tables(state: SessionState, archive: &str, planner: &Planner) -> Result<SessionContext> {
    let context = SessionContext::new_with_state(state);
    context.register_udf(ScalarUDF::from(PcapFilter::new()));
    for (name, kind) in [("flows", Kind::Flows), ("packets", Kind::Packets)] {
        let table = ArchiveTable::new(kind, archive, Wanted::default(), planner.clone());
        context.register_table(name, Arc::new(table))?;
    }
    Ok(context)
}
