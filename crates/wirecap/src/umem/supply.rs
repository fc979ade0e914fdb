//! The number of posted cells of a fill ring, and the place of the others.
//!
//! With all cells posted, a ring keeps R x M packets without a thread. A smaller posted set is
//! faster, because the same cells return while they are in the cache, but a thread must replenish
//! it as the backlog grows. Cells on a fill ring cannot be withdrawn. So a returning cell is posted
//! if fewer than the required number are left there; otherwise it is pushed on a separate stack.
//!
//! In an elastic capture a quarter of R x M cells is reserved for each ring. The others are in a
//! common stock, which replenishes a fill ring when the ring's reserved cells are used up. A ring
//! returns a cell to the stock only when its fill ring holds its full reserve, so the reserve never
//! leaves the ring, and a burst of one ring can use all cells except the reserves of the others.

use std::sync::Arc;

use crate::sync::{Mutex, lock, try_lock};
use crate::umem::pool::Pool;

/// The share of one fill ring in its pool.
#[derive(Debug, Clone)]
pub(crate) struct Supply {
    /// The number of cells to be posted.
    pub(crate) posted: u32,
    /// Number of reserved cells: on the fill ring, filled, in chunks or idle.
    pub(crate) own: u32,
    /// The stock from which it takes more cells, and to which it returns excess ones.
    pub(crate) stock: Option<Arc<Stock>>,
}

impl Supply {
    /// All `cells` cells are reserved; `warm` of them are posted, or all.
    pub(crate) fn of(cells: u32, warm: Option<u32>) -> Self {
        #[cfg(sabotage)]
        let warm = match warm {
            None if crate::sabotage::is("pool-posted-in-part") => Some(cells / 2),
            warm => warm,
        };
        Self { posted: warm.unwrap_or(cells).min(cells), own: cells, stock: None }
    }

    /// Shares of an elastic pool: a quarter of the `cells` of a separate pool is reserved for a
    /// queue. Of these, `warm` are posted, or all; further cells come from `stock`.
    pub(crate) fn elastic(cells: u32, warm: Option<u32>, stock: Arc<Stock>) -> Self {
        Self { stock: Some(stock), ..Self::of(Self::guaranteed(cells), warm) }
    }

    /// Number of cells that an elastic pool reserves, of `cells` cells.
    pub(crate) fn guaranteed(cells: u32) -> u32 {
        cells.div_ceil(4)
    }

    /// Whether every returned cell is posted.
    pub(crate) fn posts_all(&self) -> bool {
        self.posted == self.own && self.stock.is_none()
    }

    /// Number of idle cells that are kept and not returned to the stock.
    pub(crate) fn kept_idle(&self) -> usize {
        (self.own - self.posted) as usize
    }
}

/// Idle cells for the fill rings of all rings.
#[derive(Debug)]
pub(crate) struct Stock(Mutex<Vec<u64>>);

impl Stock {
    /// Assigns `own` cells of `pool` to each of `rings` rings; the stock has the others.
    pub(crate) fn share_out(pool: &Pool, rings: usize, own: u32) -> (Vec<Vec<u64>>, Arc<Self>) {
        let mut addresses = pool.cell_addresses();
        let shares = (0..rings).map(|_| addresses.by_ref().take(own as usize).collect()).collect();
        let mut idle = Vec::with_capacity(pool.geometry().cells() as usize);
        idle.extend(addresses);
        (shares, Arc::new(Self(Mutex::new(idle))))
    }

    /// Moves up to `count` cells to `idle`, the most recently returned ones.
    pub(crate) fn take(&self, count: usize, idle: &mut Vec<u64>) {
        let stock = &mut *lock(&self.0);
        idle.extend(stock.drain(stock.len().saturating_sub(count)..));
    }

    /// Takes the cells beyond `kept` from `idle`, unless another thread uses the stock.
    pub(crate) fn try_put(&self, idle: &mut Vec<u64>, kept: usize) {
        if let Some(mut stock) = try_lock(&self.0) {
            // There is room for all cells; one too many is a duplicate.
            let room = stock.capacity() - stock.len();
            stock.extend(idle.drain(kept..).take(room));
        }
    }

    /// The number of idle cells.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_keeps_the_cells_idle_that_it_does_not_post() {
        let kept = |warm| Supply::of(32, warm).kept_idle();
        assert_eq!([None, Some(8), Some(40)].map(kept), [0, 24, 0]);
    }
}
