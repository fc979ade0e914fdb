//! What packets leave through: a tx ring, or a packet socket.

use std::fmt;

use crate::forward::batch::Batch;
use crate::ledger::PortAccount;

/// One transmit queue of an interface, shared by all who send on it.
pub(crate) trait Outlet: Send + Sync + fmt::Debug {
    /// Whether packets are sent from copies, not from their cells.
    fn copies(&self) -> bool;
    /// Hands the packets of `batch` to the kernel, as far as it takes them, counts the others as dropped, and gives their
    /// cells back. `late`: they are out of their ring's order. Leaves the batch empty.
    fn submit(&self, batch: &mut Batch, late: bool);
    /// Counts packets that wait for their turn, and that wait no longer.
    fn count_parked(&self, coming: u64, going: u64);
    /// Takes back the cells that the kernel is done with.
    fn collect(&self);
    /// Has the kernel go on with what is left on its ring.
    fn push_on(&self);
    /// Whether something is left on its ring that the kernel may take soon.
    fn is_lagging(&self) -> bool;
    /// The account so far.
    fn account(&self) -> PortAccount;
    /// Counts what is left as dropped and lets go of the kernel's side.
    fn close(&self);
}
