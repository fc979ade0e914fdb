//! What the rings of an elastic capture share: one UMEM, and the stock of cells that are nobody's own.
//!
//! The socket of the first ring registers the UMEM, and the others, on other queues and interfaces, bind to
//! it (`XDP_SHARED_UMEM`), each with a fill ring of its own. The kernel receives on all of them as on the first:
//! with a copy, or without.

use std::sync::{Arc, OnceLock};

use crate::device::{Device, Rung, XdpSupport};
use crate::error::OpenError;
use crate::pool::{Geometry, Pool};
use crate::supply::{Stock, Supply};
use crate::sync::{Mutex, lock};
use crate::xdp::{SocketKernel, system};

/// A ring's rx ring has room for the cells of so many pools, which bounds what one ring may take.
const REACH: u32 = 8;
/// The largest UMEM: that of the largest pool, four times.
const MAX_CELLS: u64 = 1 << 28;

/// What the rings of an elastic capture share.
#[derive(Debug)]
pub(crate) struct Commons {
    pub(super) pool: Arc<Pool>,
    stock: Arc<Stock>,
    /// The cells of each ring's own, until they are asked for.
    shares: Mutex<Vec<Vec<u64>>>,
    /// R x M.
    cells: u32,
    warm: Option<u32>,
    /// Every interface can receive without a copy, as far as is known.
    pub(super) zero_copy: bool,
    /// The ring that registered the UMEM, once it is bound, and its rung.
    pub(super) first: OnceLock<(Arc<SocketKernel>, Rung)>,
}

impl Commons {
    /// For `rings` rings on `devices`, each of the geometry `ring` if it were alone.
    ///
    /// # Errors
    ///
    /// When the pool would be too large, or the memory is not to be had.
    pub(crate) fn new<'a>(
        ring: Geometry,
        rings: usize,
        warm: Option<u32>,
        devices: impl IntoIterator<Item = &'a Device>,
    ) -> Result<Self, OpenError> {
        let cells = u64::from(ring.cells()) * rings as u64;
        if cells > MAX_CELLS {
            return Err(OpenError::BadParameter {
                parameter: "R x M x rings (cells of an elastic pool)",
                value: cells,
                allowed: format!("up to {MAX_CELLS}"),
            });
        }
        let pool = Pool::new(Geometry { chunks: ring.chunks * rings as u32, ..ring })
            .map_err(|source| system("map the memory of the pool", source))?;
        let (shares, stock) = Stock::share_out(&pool, rings, Supply::guaranteed(ring.cells()));
        let is_zero_copy = |device: &Device| device.xdp.as_ref().is_none_or(XdpSupport::is_zero_copy);
        Ok(Self {
            pool: Arc::new(pool),
            stock,
            shares: Mutex::new(shares),
            cells: ring.cells(),
            warm,
            zero_copy: devices.into_iter().all(is_zero_copy),
            first: OnceLock::new(),
        })
    }

    /// The cells of its own of the ring that stands at `index` in the capture; given once.
    pub(super) fn share(&self, index: usize) -> (Vec<u64>, Supply) {
        let own = std::mem::take(&mut lock(&self.shares)[index]);
        (own, Supply::elastic(self.cells, self.warm, Arc::clone(&self.stock)))
    }

    /// Slots of the rx ring of each.
    pub(super) fn rx_slots(&self) -> u32 {
        self.pool.geometry().cells().min(REACH.saturating_mul(self.cells)).next_power_of_two()
    }
}
