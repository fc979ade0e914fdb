//! Plans a search over many segments: which of their pieces may contain matching packets, by their
//! indexes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use datafusion::physical_optimizer::pruning::PruningPredicate;
use wirecap_filter::FilterRequest;
use wirecap_index::{Between, Ends, FindError, Plan, Planned, Query};

use crate::location::Listing;
use crate::sieve::Condition;
use crate::watch::Watch;

/// Number of simultaneous requests for indexes, which mostly wait for the storage.
const THREADS: usize = 8;

/// The search criteria; each thread makes a separate query from them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    pub(crate) filter: Option<FilterRequest>,
    pub(crate) between: Option<Between>,
    pub(crate) from: Option<u64>,
    pub(crate) to: Option<u64>,
    /// From the conditions of a SQL query: matching flows have at least one of the ends of each
    /// condition.
    pub(crate) ends: Vec<Vec<Ends>>,
}

impl Wanted {
    pub(crate) fn query(&self) -> Query {
        let query = Query::new(self.filter.clone(), self.between, self.from, self.to);
        query.with_ends(self.ends.iter().cloned())
    }

    /// Whether packets of these times may match.
    pub(crate) fn is_in_time(&self, (first, last): (u64, u64)) -> bool {
        self.from.is_none_or(|from| last >= from) && self.to.is_none_or(|to| first < to)
    }
}

/// A segment of a listing and its plan.
pub(crate) type Found = (usize, Planned);

/// Plans all segments of the listing; those that cannot be read are named and skipped.
pub(crate) fn plan(
    listing: &Listing,
    wanted: &Wanted,
    predicate: Option<&PruningPredicate>,
    watch: &Watch,
) -> Result<(Vec<Found>, u64), FindError> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut query = wanted.query();
        let mut found = Vec::new();
        let mut scanned_bytes = 0;

        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(segment) = listing.segments.get(place) else {
                return Ok((found, scanned_bytes));
            };
            watch.examined(place, listing.segments.len());

            let mut note = |note: wirecap_index::Note<'_>| watch.note(&note);
            let mut plan = Plan::default();
            let storage = &*listing.storage;
            let path = &segment.path;

            match predicate {
                Some(predicate) => {
                    let mut condition = Condition { predicate, segment };
                    plan.add(storage, path, &mut query, &mut condition, &mut note)?;
                }
                None => plan.add(storage, path, &mut query, &mut (), &mut note)?,
            }

            if watch.is_stopped() {
                return Err(FindError::Stopped);
            }

            scanned_bytes += plan.scanned_bytes;
            found.extend(plan.segments.into_iter().map(|planned| (place, planned)));
        }
    };

    let parts: Vec<Result<(Vec<Found>, u64), FindError>> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS.min(listing.segments.len())).map(|_| scope.spawn(worker)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut all = Vec::new();
    let mut scanned_bytes = 0;

    for part in parts {
        let (found, bytes) = part?;
        all.extend(found);
        scanned_bytes += bytes;
    }

    all.sort_by_key(|(place, _)| *place);
    Ok((all, scanned_bytes))
}
