//! The interface of a receive ring to workers and the group, for all engines.

use std::any::Any;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::error::CaptureError;
use crate::filter::Filter;
use crate::ledger::{Account, Tally};
use crate::time::Timestamps;
use crate::umem::chunk::{Chunk, RingIdentity};
use crate::umem::pool::{Cells, Geometry};
use crate::umem::rx::RxRing;

pub(crate) use crate::umem::rx::Help;

/// The settings of the rings of an interface, for any engine.
#[derive(Debug, Clone)]
pub(crate) struct RingSettings {
    pub(crate) geometry: Geometry,
    /// Source of the timestamps.
    pub(crate) timestamps: Timestamps,
    pub(crate) promiscuous: bool,
    /// Bytes kept of each packet.
    pub(crate) snap_len: u32,
    /// The filter; all packets, if there is none.
    pub(crate) filter: Option<Filter>,
    /// The interface's place in the capture.
    pub(crate) interface_index: usize,
    /// The place of the interface's first ring in the capture.
    pub(crate) first_ring_index: usize,
}

/// The usable share of the memory of a packet ring in blocks. If less than a quarter is free, the kernel may drop a packet
/// that one processor receives while another one has closed a block and not yet opened the next: since Linux 5.3
/// `__tpacket_v3_has_room` looks a quarter of the ring ahead, then at the current block, without the lock.
pub(crate) const USABLE_IN_BLOCKS: f64 = 0.75;

/// Something that chunks are captured from.
pub(crate) trait Ring: Send + Sync + fmt::Debug {
    /// Its name and place.
    fn identity(&self) -> &Arc<RingIdentity>;
    /// R x M: the number of packets that it can hold.
    fn capacity(&self) -> u32;
    /// Number of packets that the ring can hold without a risk of loss; T is a share of it.
    fn usable(&self) -> u32 {
        self.capacity()
    }
    /// M: the maximum number of packets of a chunk.
    fn chunk_cells(&self) -> u32;
    /// Number of packets that wait to be captured: a snapshot.
    fn backlog(&self) -> u32;
    /// Whether no packets wait: a snapshot.
    fn is_empty(&self) -> bool {
        self.backlog() == 0
    }
    /// Where its cells are.
    fn cells(&self) -> Cells {
        let waiting = self.backlog();
        Cells { waiting, posted: self.capacity().saturating_sub(waiting), ..Cells::default() }
    }
    /// Takes up to M packets; `None` if no packets wait or the ring is closed.
    fn capture(&self) -> Result<Option<Chunk>, CaptureError>;
    /// As [`capture`](Self::capture), for a worker whose home ring it is not: `None` while another worker captures
    /// from the ring.
    fn offload(&self, help: Help) -> Result<Option<Chunk>, CaptureError>;
    /// Passes a descriptor that is readable while packets wait to `watch`.
    fn watch(&self, watch: &mut dyn FnMut(BorrowedFd<'_>));
    /// Whether its interface was removed, so that no packets can arrive. Resets the error of a packet socket whose
    /// interface was set down, which would wake its worker forever.
    fn is_gone(&self) -> bool;
    /// Whether packets accumulate while its worker rests. Those of a file do not.
    fn accumulates(&self) -> bool {
        true
    }
    /// Whether all packets were captured and no more can arrive: the end of a file.
    fn is_exhausted(&self) -> bool {
        false
    }
    /// Number of packets that arrived and were not dropped, captured or not. Counting may take some time, and
    /// packets of several cells may count more than once.
    fn arrived(&self) -> u64 {
        self.account().delivered + u64::from(self.backlog())
    }
    /// Packets that reached the ring so far, before the filter and whatever became of them: at least and at most, since
    /// a waiting packet may use several cells. `None` if the kernel does not count non-matching packets.
    fn received(&self) -> Option<(u64, u64)> {
        let waiting = u64::from(self.backlog());
        let account = self.account();
        let seen = account.offered + account.filtered?;
        Some((seen, seen + waiting))
    }
    /// The account of its packets so far. It takes no lock and allocates no memory, so a signal handler may
    /// call it, but packets that are being taken out of the ring at that moment may be missing.
    fn tally(&self) -> Tally {
        let account = self.account();
        Tally {
            delivered: account.delivered,
            arrived: account.delivered + u64::from(self.backlog()),
            dropped: account.dropped.total(),
        }
    }
    /// Accumulates the kernel's counters of few bits. Must be called before they can wrap.
    fn keep_count(&self) {}
    /// The packet socket that receives its packets, if it uses one.
    fn packet_socket(&self) -> Option<Arc<OwnedFd>> {
        None
    }
    /// The ring itself, if its packets can be read in place; the engine knows the type.
    fn read_in_place(self: Arc<Self>) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
    /// Number of packets that it can take without [`tend`](Self::tend).
    fn unattended(&self) -> u32 {
        self.capacity()
    }
    /// Posts more free cells, if fewer than required are posted.
    fn tend(&self) {}
    /// The ring's account, without `device` drops.
    fn account(&self) -> Account;
    /// Counts the remaining packets as dropped and releases the kernel's side.
    fn close(&self);
}

/// The rx ring of an AF_XDP socket, or of the simulated kernel.
impl Ring for RxRing {
    fn identity(&self) -> &Arc<RingIdentity> {
        RxRing::identity(self)
    }

    fn capacity(&self) -> u32 {
        RxRing::capacity(self)
    }

    fn chunk_cells(&self) -> u32 {
        RxRing::chunk_cells(self)
    }

    fn unattended(&self) -> u32 {
        RxRing::unattended(self)
    }

    fn tend(&self) {
        RxRing::tend(self);
    }

    fn backlog(&self) -> u32 {
        RxRing::backlog(self)
    }

    fn cells(&self) -> Cells {
        RxRing::cells(self)
    }

    fn capture(&self) -> Result<Option<Chunk>, CaptureError> {
        RxRing::capture(self)
    }

    fn offload(&self, help: Help) -> Result<Option<Chunk>, CaptureError> {
        RxRing::offload(self, help)
    }

    fn watch(&self, watch: &mut dyn FnMut(BorrowedFd<'_>)) {
        RxRing::watch(self, watch);
    }

    fn arrived(&self) -> u64 {
        RxRing::arrived(self)
    }

    fn received(&self) -> Option<(u64, u64)> {
        Some(RxRing::received(self))
    }

    fn tally(&self) -> Tally {
        RxRing::tally(self)
    }

    fn is_gone(&self) -> bool {
        RxRing::is_gone(self)
    }

    fn read_in_place(self: Arc<Self>) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self)
    }

    fn account(&self) -> Account {
        RxRing::account(self)
    }

    fn close(&self) {
        RxRing::close(self);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ledger::Drops;

    /// A ring with 3 of 10 packets waiting, and only what an engine must implement.
    #[derive(Debug)]
    struct Plain {
        waiting: u32,
    }

    impl Ring for Plain {
        fn identity(&self) -> &Arc<RingIdentity> {
            unimplemented!("nothing asks for it")
        }

        fn capacity(&self) -> u32 {
            10
        }

        fn chunk_cells(&self) -> u32 {
            4
        }

        fn backlog(&self) -> u32 {
            self.waiting
        }

        fn capture(&self) -> Result<Option<Chunk>, CaptureError> {
            Ok(None)
        }

        fn offload(&self, _help: Help) -> Result<Option<Chunk>, CaptureError> {
            Ok(None)
        }

        fn watch(&self, _watch: &mut dyn FnMut(BorrowedFd<'_>)) {}

        fn is_gone(&self) -> bool {
            false
        }

        fn account(&self) -> Account {
            let dropped = Drops { no_cell: 2, ring_full: 1, ..Drops::default() };
            Account { delivered: 7, dropped, ..Account::default() }
        }

        fn close(&self) {}
    }

    #[test]
    fn an_engine_that_says_no_more_has_the_counts_of_its_backlog_and_account() {
        let ring = Arc::new(Plain { waiting: 3 });
        assert_eq!(ring.cells(), Cells { waiting: 3, posted: 7, ..Cells::default() });
        assert_eq!(ring.tally(), Tally { delivered: 7, arrived: 10, dropped: 3 });
        assert_eq!((ring.arrived(), ring.unattended()), (10, 10));
        assert!(!ring.is_empty() && Plain { waiting: 0 }.is_empty());
        assert!(!ring.is_exhausted() && ring.packet_socket().is_none());
        assert!(ring.read_in_place().is_none());
    }
}
