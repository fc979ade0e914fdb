//! The parts shared by the rings of an elastic or forwarding capture: one UMEM, and its cells that
//! belong to no ring.
//!
//! The socket of the first ring registers the UMEM, and the others, on other queues and interfaces,
//! bind to it (`XDP_SHARED_UMEM`), each with a separate fill ring. The kernel receives on all of
//! them as on the first: with zero-copy or with a copy.

use std::sync::{Arc, OnceLock};

use crate::device::{Device, ReceiveMode, XdpSupport};
use crate::error::OpenError;
use crate::sync::{Mutex, lock};
use crate::sys::memory::populating_threads;
use crate::umem::pool::{Geometry, Pool};
use crate::umem::supply::{Stock, Supply};
use crate::xdp::{SocketKernel, system};

/// A ring's rx ring has room for the cells of this many pools, the maximum that one ring can take.
const REACH: u32 = 8;
/// The largest UMEM: four times the largest pool.
const MAX_CELLS: u64 = 1 << 28;

/// The parts shared by the rings of a capture.
#[derive(Debug)]
pub(crate) struct SharedUmem {
    pub(crate) pool: Arc<Pool>,
    /// The cells that belong to no ring, in an elastic capture. A forwarding capture keeps such
    /// cells for new packets.
    stock: Option<Arc<Stock>>,
    /// The reserved cells of each ring until they are requested, the first ring's last.
    shares: Mutex<Vec<Vec<u64>>>,
    rings: usize,
    /// R x M.
    cells: u32,
    warm: Option<u32>,
    /// Why all rings receive with a copy, if that is known in advance.
    pub(super) copy_because: Option<String>,
    /// The ring that registered the UMEM, once it is bound, and its receive mode.
    pub(super) first: OnceLock<(Arc<SocketKernel>, ReceiveMode)>,
}

impl SharedUmem {
    /// For `rings` rings with an elastic pool on `devices`; `ring` is the geometry of a single
    /// ring.
    ///
    /// # Errors
    ///
    /// If the pool would be too large, or the memory is not available.
    pub(crate) fn new<'a>(
        ring: Geometry,
        rings: usize,
        warm: Option<u32>,
        devices: impl IntoIterator<Item = &'a Device>,
    ) -> Result<Self, OpenError> {
        let cells = u64::from(ring.cells()) * rings as u64;
        check_cells(cells, "R x M x rings (cells of an elastic pool)")?;
        let pool = map_pool(ring, rings as u32 * ring.chunks)?;
        let (shares, stock) = Stock::share_out(&pool, rings, Supply::guaranteed(ring.cells()));
        Ok(Self::of(pool, Some(stock), shares, ring, warm, devices))
    }

    /// For `rings` rings and ports on `devices` between which packets are forwarded: each ring has
    /// all cells of its geometry, and there are additional cells for new packets.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub(crate) fn forwarding<'a>(
        ring: Geometry,
        rings: usize,
        new_packets: u32,
        warm: Option<u32>,
        devices: impl IntoIterator<Item = &'a Device>,
    ) -> Result<Self, OpenError> {
        let cells = u64::from(ring.cells()) * rings as u64 + u64::from(new_packets);
        check_cells(cells, "R x M x rings + new packets (cells of a capture that forwards)")?;
        let chunks = ring.chunks * rings as u32 + new_packets.div_ceil(ring.chunk_cells);
        let pool = map_pool(ring, chunks)?;
        let mut addresses = pool.cell_addresses();
        let own = |_| addresses.by_ref().take(ring.cells() as usize).collect();
        let shares = (0..rings).map(own).collect();
        Ok(Self::of(pool, None, shares, ring, warm, devices))
    }

    fn of<'a>(
        pool: Pool,
        stock: Option<Arc<Stock>>,
        mut shares: Vec<Vec<u64>>,
        ring: Geometry,
        warm: Option<u32>,
        devices: impl IntoIterator<Item = &'a Device>,
    ) -> Self {
        let is_zero_copy =
            |device: &Device| device.xdp.as_ref().is_none_or(XdpSupport::is_zero_copy);
        shares.reverse();
        Self {
            pool: Arc::new(pool),
            stock,
            rings: shares.len(),
            shares: Mutex::new(shares),
            cells: ring.cells(),
            warm,
            copy_because: (!devices.into_iter().all(is_zero_copy))
                .then(|| "an interface that shares its cells does not support it".to_owned()),
            first: OnceLock::new(),
        }
    }

    /// The same; if there is a reason, all rings receive with a copy.
    pub(crate) fn copying(self, because: Option<&str>) -> Self {
        Self { copy_because: because.map(str::to_owned).or(self.copy_because), ..self }
    }

    /// Whether the capture forwards.
    pub(crate) fn forwards(&self) -> bool {
        self.stock.is_none()
    }

    /// R x M.
    pub(crate) fn ring_cells(&self) -> u32 {
        self.cells
    }

    /// The cells of the next ring, and whether it is the first ring.
    pub(super) fn share(&self) -> (Vec<u64>, Supply, bool) {
        let mut shares = lock(&self.shares);
        let is_first = shares.len() == self.rings;
        let own = shares.pop().unwrap_or_default();
        let supply = match &self.stock {
            Some(stock) => Supply::elastic(self.cells, self.warm, Arc::clone(stock)),
            None => Supply::of(self.cells, self.warm),
        };
        (own, supply, is_first)
    }

    /// Slots of the rx ring of each.
    pub(super) fn rx_slots(&self) -> u32 {
        let reach = if self.forwards() { 1 } else { REACH };
        self.pool.geometry().cells().min(self.cells.saturating_mul(reach)).next_power_of_two()
    }
}

fn check_cells(cells: u64, parameter: &'static str) -> Result<(), OpenError> {
    if cells <= MAX_CELLS {
        return Ok(());
    }
    Err(OpenError::BadParameter { parameter, value: cells, allowed: format!("up to {MAX_CELLS}") })
}

fn map_pool(ring: Geometry, chunks: u32) -> Result<Pool, OpenError> {
    Pool::new(Geometry { chunks, ..ring }, populating_threads())
        .map_err(|source| system("map the memory of the pool", source))
}
