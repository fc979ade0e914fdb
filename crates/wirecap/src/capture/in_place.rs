//! The rings that can be read in place: each engine has its own reader.

use std::sync::Arc;

use crate::packet::ring::PacketRing;
use crate::umem::ring::Ring;
use crate::umem::rx::RxRing;

/// A ring whose packets can be read where the kernel put them.
#[derive(Debug, Clone)]
pub(crate) enum ReadableRing {
    /// In cells, by the engine `xdp`.
    Cells(Arc<RxRing>),
    /// In blocks, by the engine `packet`.
    Blocks(Arc<PacketRing>),
}

/// As rings of a group.
pub(crate) fn as_rings<R: Ring + 'static>(rings: Vec<Arc<R>>) -> Vec<Arc<dyn Ring>> {
    rings.into_iter().map(|ring| ring as Arc<dyn Ring>).collect()
}
