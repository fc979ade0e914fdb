//! The externally visible state of a ring while the capture runs.

use crate::names::RingName;
use crate::umem::pool::Cells;

/// How a ring gets on: a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingState {
    /// The ring.
    pub name: RingName,
    /// R x M: how many packets it can hold.
    pub capacity: u32,
    /// Where its cells are. With the engine `packet`, whose chunks are blocks: how many cells' memory.
    pub cells: Cells,
    /// T: a backlog above it calls buddies; none in basic mode.
    pub threshold: Option<u32>,
    /// The worker that the ring is a home ring of.
    pub worker: usize,
    /// The other workers that took chunks from it, each with how many.
    pub helpers: Vec<(usize, u64)>,
}
