//! The tables `flows`, the index of each segment, and `packets`; and two that `find` reads on a
//! cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{DFSchema, Result, internal_err};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_optimizer::pruning::{PruningPredicate, PruningPredicateBuilder};
use datafusion::physical_plan::ExecutionPlan;
use wirecap_index::{Piece, Planned};
use wirecap_units::size::human_bytes;

use crate::location::Listing;
use crate::message::{self, KindMessage, TableMessage};
use crate::node::Node;
use crate::pcap_filter;
use crate::scan::{Access, Job, Reading, Scan};
use crate::search::{self, Wanted};
use crate::sieve;
use crate::watch::Watch;
use crate::{columns, ends, found};

/// Which of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Flows,
    Packets,
    /// The matching packets, with everything that a savefile of them needs.
    Found,
    /// The segments that may have such packets.
    Candidates,
}

impl Kind {
    pub(crate) fn schema(self) -> SchemaRef {
        match self {
            Self::Flows => columns::of_flows(),
            Self::Packets => columns::of_packets(),
            Self::Found => found::schema(),
            Self::Candidates => found::schema_of_candidates(),
        }
    }
}

impl From<Kind> for KindMessage {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Flows => Self::Flows,
            Kind::Packets => Self::Packets,
            Kind::Found => Self::Found,
            Kind::Candidates => Self::Candidates,
        }
    }
}

impl From<KindMessage> for Kind {
    fn from(message: KindMessage) -> Self {
        match message {
            KindMessage::Flows => Self::Flows,
            KindMessage::Packets => Self::Packets,
            KindMessage::Found => Self::Found,
            KindMessage::Candidates => Self::Candidates,
        }
    }
}

impl TableMessage {
    pub(crate) fn new(kind: Kind, archive: &str, wanted: &Wanted) -> Result<Self> {
        let kind = KindMessage::from(kind) as i32;
        Ok(Self { kind, archive: archive.to_owned(), wanted: Some(wanted.try_into()?) })
    }

    /// Which table, of which archive, and which packets.
    pub(crate) fn read(self) -> Result<(Kind, Arc<str>, Wanted)> {
        let kind = self.kind().into();
        Ok((kind, self.archive.into(), message::required(self.wanted)?.try_into()?))
    }
}

/// Where queries are planned.
#[derive(Debug, Clone)]
pub(crate) enum Planner {
    /// Here, with these segments.
    Here(Listing, Arc<Watch>),
    /// In this process, a scheduler, which lists the segments for each query.
    Node(Arc<Node>),
    /// By the scheduler of a cluster, to which this process sends its queries.
    Cluster,
}

/// A table over the segments of an archive.
#[derive(Debug)]
pub(crate) struct ArchiveTable {
    kind: Kind,
    schema: SchemaRef,
    archive: Arc<str>,
    /// Which packets, in addition to the conditions of a query.
    wanted: Wanted,
    planner: Planner,
}

impl ArchiveTable {
    pub(crate) fn new(kind: Kind, archive: &str, wanted: Wanted, planner: Planner) -> Self {
        Self { kind, schema: kind.schema(), archive: archive.into(), wanted, planner }
    }

    pub(crate) fn message(&self) -> Result<TableMessage> {
        TableMessage::new(self.kind, &self.archive, &self.wanted)
    }

    pub(crate) fn from_message(message: TableMessage, node: &Arc<Node>) -> Result<Self> {
        let (kind, archive, wanted) = message.read()?;
        Ok(Self::new(kind, &archive, wanted, Planner::Node(Arc::clone(node))))
    }

    /// The conditions on columns in the form that DataFusion's pruning accepts; `None` if they
    /// exclude nothing.
    fn predicate(&self, state: &dyn Session, filters: &[Expr]) -> Result<Option<PruningPredicate>> {
        let conditions =
            filters.iter().filter(|filter| pcap_filter::expression_of(filter).is_none()).cloned();
        let Some(condition) = conjunction(conditions) else { return Ok(None) };
        let columns = DFSchema::try_from(Arc::clone(&self.schema))?;
        let physical = state.create_physical_expr(condition, &columns)?;
        // A condition from which no pruning can be made excludes nothing.
        let predicate = PruningPredicateBuilder::new()
            .with_file_schema(Arc::clone(&self.schema))
            .try_build(physical);
        Ok(predicate.ok().filter(|predicate| !predicate.always_true()))
    }

    /// The search criteria, with the `pcap_filter` expressions of a query.
    fn wanted(&self, filters: &[Expr]) -> Result<Wanted> {
        let expressions: Vec<&str> =
            filters.iter().filter_map(pcap_filter::expression_of).collect();
        let expression = match expressions[..] {
            [] => return Ok(self.wanted.clone()),
            [one] => one.to_owned(),
            _ => expressions.iter().map(|one| format!("({one})")).collect::<Vec<_>>().join(" and "),
        };
        let filter = pcap_filter::request(&expression).map_err(DataFusionError::Plan)?;
        Ok(Wanted { filter: Some(filter), ..self.wanted.clone() })
    }

    /// The jobs for packets, in parts; their number of pieces, and what `EXPLAIN` shows.
    fn packets(
        &self,
        planned: Vec<(usize, Planned)>,
        listing: &Listing,
        all: usize,
        wanted: &Wanted,
        parts: usize,
    ) -> (Vec<Vec<Job>>, u64, String) {
        let total: usize = planned.iter().map(|(_, planned)| planned.pieces).sum();
        let pieces = || planned.iter().flat_map(|(_, planned)| &planned.selected);
        let segments = planned.iter().filter(|(_, planned)| !planned.selected.is_empty()).count();
        let count = pieces().count();
        let bytes: u64 = pieces().map(|piece| piece.bytes).sum();
        let mut details = format!(
            "segments={segments} of {all}, pieces={count} of {total}, bytes={}",
            human_bytes(bytes)
        );

        if let Some(expression) = &wanted.filter {
            details += &format!(", pcap_filter={:?}", expression.to_string());
        }

        let jobs = match self.kind {
            Kind::Found => split_segments(planned, listing, parts),
            _ => split_pieces(planned, listing, parts),
        };
        (jobs, count as u64, details)
    }
}

/// The number of the part for work that follows `before` of the `total` bytes: all parts have about
/// the same number of bytes.
fn part_of(before: u64, total: u64, parts: usize) -> usize {
    let share = (total / parts as u64).max(1);
    usize::try_from(before / share).unwrap_or(usize::MAX).min(parts - 1)
}

fn bytes_of<'a>(planned: impl IntoIterator<Item = &'a (usize, Planned)>) -> u64 {
    planned.into_iter().flat_map(|(_, planned)| &planned.selected).map(|piece| piece.len).sum()
}

fn job(place: usize, planned: Planned, listing: &Listing) -> Job {
    Job { segment: listing.segments[place].clone(), planned, place: place as u64 }
}

/// Divides the pieces into parts of consecutive pieces.
fn split_pieces(planned: Vec<(usize, Planned)>, listing: &Listing, parts: usize) -> Vec<Vec<Job>> {
    let total = bytes_of(&planned);
    let mut split: Vec<Vec<Job>> = (0..parts).map(|_| Vec::new()).collect();
    let mut before = 0;

    for (place, mut planned) in planned {
        let mut of_parts: Vec<(usize, Vec<Piece>)> = Vec::new();

        for piece in std::mem::take(&mut planned.selected) {
            let part = part_of(before, total, parts);
            before += piece.len;
            match of_parts.last_mut() {
                Some((last, pieces)) if *last == part => pieces.push(piece),
                _ => of_parts.push((part, vec![piece])),
            }
        }

        for (part, selected) in of_parts {
            let Planned { path, without, matches_max, context, .. } = &planned;
            let path = path.clone();
            let without = without.clone();
            let of_piece = |piece: &Piece| Some((piece.offset, *matches_max.get(&piece.offset)?));
            let matches_max = selected.iter().filter_map(of_piece).collect();
            let context = context.clone();
            let of_part = Planned { path, without, selected, matches_max, context, ..planned };
            split[part].push(job(place, of_part, listing));
        }
    }

    split
}

/// Divides the segments, but not their pieces, into parts: a damaged segment is read up to the
/// damage, in the order of `find` on one machine.
fn split_segments(
    planned: Vec<(usize, Planned)>,
    listing: &Listing,
    parts: usize,
) -> Vec<Vec<Job>> {
    let total = bytes_of(&planned);
    let mut split: Vec<Vec<Job>> = (0..parts).map(|_| Vec::new()).collect();
    let mut before = 0;

    for of_segment in planned {
        let part = part_of(before, total, parts);
        before += bytes_of([&of_segment]);
        let (place, mut planned) = of_segment;
        if !planned.selected.is_empty() {
            planned.selected.sort_by_key(|piece| piece.earliest);
            split[part].push(job(place, planned, listing));
        }
    }

    split
}

/// Divides the indexes into parts.
fn split_indexes(listing: &Listing, parts: usize) -> Vec<Vec<Job>> {
    let mut split: Vec<Vec<Job>> = (0..parts).map(|_| Vec::new()).collect();

    for (place, segment) in listing.segments.iter().enumerate() {
        let planned = Planned {
            path: segment.path.clone(),
            without: None,
            bytes: 0,
            packets: 0,
            times: None,
            pieces: 0,
            selected: Vec::new(),
            matches_max: BTreeMap::new(),
            context: Vec::new(),
            is_faulty: false,
        };
        split[place % parts].push(job(place, planned, listing));
    }
    split
}

async fn plan(
    listing: &Listing,
    wanted: &Wanted,
    predicate: Option<PruningPredicate>,
    watch: &Arc<Watch>,
) -> Result<Vec<(usize, Planned)>> {
    let listing = listing.clone();
    let watch = Arc::clone(watch);
    let wanted = wanted.clone();
    let planned = tokio::task::spawn_blocking(move || {
        search::plan(&listing, &wanted, predicate.as_ref(), &watch)
    });
    let (planned, _) = planned
        .await
        .map_err(|error| DataFusionError::External(error.into()))?
        .map_err(|error| DataFusionError::External(error.into()))?;

    Ok(planned)
}

#[async_trait]
impl TableProvider for ArchiveTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    /// The scan applies `pcap_filter` itself. All other conditions exclude segments and pieces, and
    /// DataFusion applies them to the remaining rows.
    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        let support = |filter: &&Expr| match pcap_filter::expression_of(filter) {
            Some(_) => TableProviderFilterPushDown::Exact,
            None => TableProviderFilterPushDown::Inexact,
        };
        Ok(filters.iter().map(support).collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (mut listing, watch, access) = match &self.planner {
            Planner::Here(listing, watch) => {
                (listing.clone(), Arc::clone(watch), Access::Opened(Arc::clone(&listing.storage)))
            }
            Planner::Node(node) => (
                node.list(&self.archive).await?,
                Arc::new(Watch::silent()),
                Access::Node(Arc::clone(node)),
            ),
            Planner::Cluster => {
                return internal_err!("the scheduler of the cluster plans this query");
            }
        };
        let all = listing.segments.len();
        listing
            .segments
            .retain(|segment| segment.times.is_none_or(|times| self.wanted.is_in_time(times)));

        let predicate = self.predicate(state, filters)?;
        if let Some(predicate) = &predicate {
            let mut keep = sieve::may_match(predicate, &listing.segments).into_iter();
            listing.segments.retain(|_| keep.next().unwrap_or(true));
        }

        let parts = state.config().target_partitions().max(1);
        let wanted = Wanted { ends: ends::of(filters), ..self.wanted(filters)? };

        let (jobs, total, mut details) = match self.kind {
            Kind::Packets | Kind::Found => {
                let planned = plan(&listing, &wanted, predicate, &watch).await?;
                self.packets(planned, &listing, all, &wanted, parts)
            }
            Kind::Flows => {
                let count = listing.segments.len();
                (split_indexes(&listing, parts), count as u64, format!("segments={count} of {all}"))
            }
            Kind::Candidates => {
                let planned = plan(&listing, &wanted, predicate, &watch).await?;
                let candidates = planned.iter().filter(|(_, planned)| !planned.selected.is_empty());
                let lines = candidates.map(|(place, planned)| (*place, planned.to_string()));
                let rows = found::candidates(all, lines, &watch.faults())?;
                let schema = Arc::clone(&self.schema);
                return Ok(MemorySourceConfig::try_new_exec(
                    &[vec![rows]],
                    schema,
                    projection.cloned(),
                )?);
            }
        };
        if !wanted.ends.is_empty() {
            details += ", indexes by addresses and ports";
        }

        let jobs = jobs
            .iter()
            .map(|part| Ok(vec![message::encode_jobs(part)?]))
            .collect::<Result<Vec<_>>>()?;
        let jobs = MemorySourceConfig::try_new_exec(&jobs, message::schema_of_jobs(), None)?;

        let schema = match projection {
            Some(columns) => Arc::new(self.schema.project(columns)?),
            None => Arc::clone(&self.schema),
        };

        // If the query is planned here, the faults were already reported to the user.
        let faults = match self.planner {
            Planner::Here(..) => Vec::new(),
            _ => watch.faults(),
        };
        let reading =
            Reading { kind: self.kind, archive: Arc::clone(&self.archive), access, wanted, watch };
        Ok(Arc::new(Scan::new(reading, schema, details, faults, jobs, total)))
    }
}
