//! The tables `flows`, the index of each segment, and `packets`.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{DFSchema, Result};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_optimizer::pruning::{PruningPredicate, PruningPredicateBuilder};
use datafusion::physical_plan::ExecutionPlan;
use wirecap_units::size::human_bytes;

use crate::columns;
use crate::location::Listing;
use crate::pcap_filter;
use crate::scan::{Job, Scan, Work};
use crate::search::{self, Wanted};
use crate::sieve;
use crate::watch::Watch;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Flows,
    Packets,
}

/// A table over the segments of an archive.
#[derive(Debug)]
pub(crate) struct ArchiveTable {
    kind: Kind,
    schema: SchemaRef,
    listing: Listing,
    watch: Arc<Watch>,
}

impl ArchiveTable {
    pub(crate) fn new(kind: Kind, listing: Listing, watch: Arc<Watch>) -> Self {
        let schema = match kind {
            Kind::Flows => columns::of_flows(),
            Kind::Packets => columns::of_packets(),
        };
        Self { kind, schema, listing, watch }
    }

    /// The conditions on columns in the form that DataFusion's pruning accepts; `None` if they exclude nothing.
    fn predicate(&self, state: &dyn Session, filters: &[Expr]) -> Result<Option<PruningPredicate>> {
        let conditions =
            filters.iter().filter(|filter| pcap_filter::expression_of(filter).is_none()).cloned();
        let Some(condition) = conjunction(conditions) else { return Ok(None) };
        let columns = DFSchema::try_from(Arc::clone(&self.schema))?;
        let physical = state.create_physical_expr(condition, &columns)?;
        // A condition from which no pruning can be made excludes nothing.
        let predicate =
            PruningPredicateBuilder::new().with_file_schema(Arc::clone(&self.schema)).try_build(physical);
        Ok(predicate.ok().filter(|predicate| !predicate.always_true()))
    }

    async fn packets(
        &self,
        listing: &Listing,
        filters: &[Expr],
        predicate: Option<PruningPredicate>,
        parts: usize,
    ) -> Result<(Work, String)> {
        let expressions: Vec<&str> = filters.iter().filter_map(pcap_filter::expression_of).collect();
        let expression = match expressions[..] {
            [] => None,
            [one] => Some(one.to_owned()),
            _ => Some(expressions.iter().map(|one| format!("({one})")).collect::<Vec<_>>().join(" and ")),
        };
        let filter = expression.as_deref().map(pcap_filter::request).transpose();
        let filter = filter.map_err(DataFusionError::Plan)?;
        let wanted = Wanted { filter, ..Wanted::default() };
        let (of_thread, watch, its) = (listing.clone(), Arc::clone(&self.watch), wanted.clone());
        let planned =
            tokio::task::spawn_blocking(move || search::plan(&of_thread, &its, predicate.as_ref(), &watch));
        let (planned, _) = planned
            .await
            .map_err(|error| DataFusionError::External(error.into()))?
            .map_err(|error| DataFusionError::External(error.into()))?;
        let planned: Vec<_> =
            planned.into_iter().map(|(place, planned)| (place, Arc::new(planned))).collect();
        let total: usize = planned.iter().map(|(_, planned)| planned.pieces).sum();
        let jobs: Vec<Job> = planned
            .iter()
            .enumerate()
            .flat_map(|(number, (_, planned))| {
                planned.selected.iter().map(move |piece| Job { planned: number, piece: *piece })
            })
            .collect();
        let segments = planned.iter().filter(|(_, planned)| !planned.selected.is_empty()).count();
        let bytes: u64 = jobs.iter().map(|job| job.piece.bytes).sum();
        let mut details = format!(
            "segments={segments} of {}, pieces={} of {total}, bytes={}",
            self.listing.segments.len(),
            jobs.len(),
            human_bytes(bytes)
        );
        if let Some(expression) = expression {
            details += &format!(", pcap_filter={expression:?}");
        }
        Ok((Work::Packets { planned, wanted, jobs: split(jobs, parts) }, details))
    }
}

/// Divides jobs into at most `parts` parts of consecutive jobs, with about the same number of bytes each.
fn split(jobs: Vec<Job>, parts: usize) -> Vec<Vec<Job>> {
    let total: u64 = jobs.iter().map(|job| job.piece.len).sum();
    let share = (total / parts.max(1) as u64).max(1);
    let mut split = vec![Vec::new(); parts.max(1)];
    let mut before = 0;
    for job in jobs {
        let part = (before / share).min(parts.max(1) as u64 - 1);
        before += job.piece.len;
        split[part as usize].push(job);
    }
    split
}

#[async_trait]
impl TableProvider for ArchiveTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    /// The scan applies `pcap_filter` itself. All other conditions exclude segments and pieces, and DataFusion applies them to
    /// the remaining rows.
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
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
        let predicate = self.predicate(state, filters)?;
        let mut listing = self.listing.clone();
        if let Some(predicate) = &predicate {
            let mut keep = sieve::may_match(predicate, &listing.segments).into_iter();
            listing.segments.retain(|_| keep.next().unwrap_or(true));
        }
        let parts = state.config().target_partitions();
        let (work, details) = match self.kind {
            Kind::Packets => self.packets(&listing, filters, predicate, parts).await?,
            Kind::Flows => {
                let mut segments = vec![Vec::new(); parts.max(1)];
                for place in 0..listing.segments.len() {
                    segments[place % parts.max(1)].push(place);
                }
                let details =
                    format!("segments={} of {}", listing.segments.len(), self.listing.segments.len());
                (Work::Flows { segments }, details)
            }
        };
        let schema = match projection {
            Some(columns) => Arc::new(self.schema.project(columns)?),
            None => Arc::clone(&self.schema),
        };
        Ok(Arc::new(Scan::new(schema, listing, work, details, Arc::clone(&self.watch))))
    }
}
