//! The externally visible state of a ring while the capture runs.

use crate::names::RingName;
use crate::umem::pool::Cells;

/// The state of a ring: a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingState {
    /// The ring.
    pub name: RingName,
    /// R x M: the number of packets that it can hold.
    pub capacity: u32,
    /// The places of its cells. With the engine `packet`, whose chunks are blocks: memory in units
    /// of cells.
    pub cells: Cells,
    /// T: a backlog above it calls buddies; none in basic mode.
    pub threshold: Option<u32>,
    /// The worker whose home ring it is.
    pub worker: usize,
    /// The other workers that took chunks from it, each with their number.
    pub helpers: Vec<(usize, u64)>,
}
