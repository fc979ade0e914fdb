//! The interface of a receive ring to workers and the group, for all engines.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::error::CaptureError;
use crate::filter::Filter;
use crate::ledger::{Account, Tally};
use crate::time::Timestamps;
use crate::umem::chunk::{Chunk, RingIdentity};
use crate::umem::pool::{Cells, Geometry};

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

/// The usable share of the memory of a packet ring in blocks. If less than a quarter is free, the
/// kernel may drop a packet that one processor receives while another one has closed a block and
/// not yet opened the next: since Linux 5.3 `__tpacket_v3_has_room` looks a quarter of the ring
/// ahead, then at the current block, without the lock.
pub(crate) const USABLE_IN_BLOCKS: f64 = 0.75;

/// The conditions under which a worker captures from the ring of another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Help {
    /// No packets are taken if at most this many wait.
    pub(crate) limit: u32,
    /// The maximum number of packets taken; a chunk has at most M.
    pub(crate) most: u32,
    /// The ring's worker is stuck or gone; such chunks are counted separately.
    pub(crate) abandoned: bool,
}

/// How many packets a ring holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingSize {
    /// R x M: the number of packets that it can hold.
    pub(crate) capacity: u32,
    /// Number of packets that it can hold without a risk of loss; T is a share of it.
    pub(crate) usable: u32,
    /// M: the maximum number of packets of a chunk.
    pub(crate) chunk_cells: u32,
}

/// Something that chunks are captured from. A dropped chunk returns its cells itself.
pub(crate) trait Ring: Counters + Send + Sync + fmt::Debug {
    /// Its name and place.
    fn identity(&self) -> &Arc<RingIdentity>;
    /// How many packets it holds.
    fn size(&self) -> RingSize;
    /// Whether no packets wait: a snapshot.
    fn is_empty(&self) -> bool {
        self.backlog() == 0
    }
    /// Where its cells are.
    fn cells(&self) -> Cells {
        let waiting = self.backlog();
        Cells { waiting, posted: self.size().capacity.saturating_sub(waiting), ..Cells::default() }
    }
    /// Takes up to M packets; `None` if no packets wait or the ring is closed.
    fn capture(&self) -> Result<Option<Chunk>, CaptureError>;
    /// As [`capture`](Self::capture), for a worker whose home ring it is not: `None` while another
    /// worker captures from the ring.
    fn offload(&self, help: Help) -> Result<Option<Chunk>, CaptureError>;
    /// Passes a descriptor that is readable while packets wait to `watch`.
    fn watch(&self, watch: &mut dyn FnMut(BorrowedFd<'_>));
    /// Whether its interface was removed, so that no packets can arrive. Resets the error of a
    /// packet socket whose interface was set down, which would wake its worker forever.
    fn is_gone(&self) -> bool;
    /// Counts the remaining packets as dropped and releases the kernel's side.
    fn close(&self);
    /// What not every ring can do.
    fn abilities(&self) -> Abilities<'_> {
        Abilities::default()
    }
}

/// The counters of a ring.
pub(crate) trait Counters {
    /// Number of packets that wait to be captured: a snapshot.
    fn backlog(&self) -> u32;
    /// Number of packets that arrived and were not dropped, captured or not. Counting may take some
    /// time, and packets of several cells may count more than once.
    fn arrived(&self) -> u64 {
        self.account().delivered + u64::from(self.backlog())
    }
    /// Packets that reached the ring so far, before the filter and whatever became of them: at
    /// least and at most, since a waiting packet may use several cells. `None` if the kernel does
    /// not count non-matching packets.
    fn received(&self) -> Option<(u64, u64)> {
        let waiting = u64::from(self.backlog());
        let account = self.account();
        let seen = account.offered + account.filtered?;
        Some((seen, seen + waiting))
    }
    /// The account of its packets so far. It takes no lock and allocates no memory, so a signal
    /// handler may call it, but packets that are being taken out of the ring at that moment may be
    /// missing.
    fn tally(&self) -> Tally {
        let account = self.account();
        Tally {
            delivered: account.delivered,
            arrived: account.delivered + u64::from(self.backlog()),
            dropped: account.dropped.total(),
        }
    }
    /// The ring's account, without `device` drops.
    fn account(&self) -> Account;
}

/// What a ring can do beyond [`Ring`].
#[derive(Default)]
pub(crate) struct Abilities<'a> {
    pub(crate) posting: Option<&'a dyn Posting>,
    pub(crate) finite: Option<&'a dyn Finite>,
    pub(crate) packet_socket: Option<&'a dyn OnPacketSocket>,
}

/// A ring whose free cells the application posts.
pub(crate) trait Posting {
    /// Number of packets that it can take without [`tend`](Self::tend).
    fn unattended(&self) -> u32;
    /// Posts more free cells, if fewer than required are posted.
    fn tend(&self);
}

/// A ring with an end. Packets do not accumulate in it while its worker rests.
pub(crate) trait Finite {
    /// Whether all packets were captured and no more can arrive.
    fn is_exhausted(&self) -> bool;
}

/// A ring whose packets a packet socket receives.
pub(crate) trait OnPacketSocket {
    /// The socket; `None` once the ring is closed.
    fn packet_socket(&self) -> Option<Arc<OwnedFd>>;
    /// Accumulates the kernel's counters of few bits. Must be called before they can wrap.
    fn keep_count(&self);
}

impl dyn Ring {
    /// Number of packets that it can take without being tended.
    pub(crate) fn unattended(&self) -> u32 {
        self.abilities().posting.map_or_else(|| self.size().capacity, Posting::unattended)
    }

    /// Posts more free cells, if fewer than required are posted.
    pub(crate) fn tend(&self) {
        if let Some(ring) = self.abilities().posting {
            ring.tend();
        }
    }

    /// Whether all packets were captured and no more can arrive: the end of a file.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.abilities().finite.is_some_and(Finite::is_exhausted)
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

        fn size(&self) -> RingSize {
            RingSize { capacity: 10, usable: 10, chunk_cells: 4 }
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

        fn close(&self) {}
    }

    impl Counters for Plain {
        fn backlog(&self) -> u32 {
            self.waiting
        }

        fn account(&self) -> Account {
            let dropped = Drops { no_cell: 2, ring_full: 1, ..Drops::default() };
            Account { delivered: 7, dropped, ..Account::default() }
        }
    }

    #[test]
    fn an_engine_that_says_no_more_has_the_counts_of_its_backlog_and_account() {
        let ring: &dyn Ring = &Plain { waiting: 3 };
        assert_eq!(ring.cells(), Cells { waiting: 3, posted: 7, ..Cells::default() });
        assert_eq!(ring.tally(), Tally { delivered: 7, arrived: 10, dropped: 3 });
        assert_eq!((ring.arrived(), ring.unattended()), (10, 10));
        assert!(!ring.is_empty() && Plain { waiting: 0 }.is_empty());
        assert!(!ring.is_exhausted() && ring.abilities().packet_socket.is_none());
    }
}
