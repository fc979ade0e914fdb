//! Checks the engine's guarantees independently of the engine.
//!
//! Work conservation is checked after every event. Workers that rest without looking at their
//! buddies, and workers that serve their home rings first, are detected. If no worker is stuck or
//! leaves, a ring above T is assumed to be noted at the latest after the longest chunk, sleep and
//! wake-up, regardless of what the ring's worker did. From then on no worker may serve more rings
//! below T in a row than it has home rings.

use std::fmt;
use std::time::Duration;

use crate::group::GLANCE_EVERY;
use crate::ledger::{Ledger, Mode, PortAccount};
use crate::sim::{SimCapture, SimSettings, Violation};
use crate::umem::chunk::Chunk;
use crate::umem::supply::Supply;

/// A guarantee of the engine that was violated.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrokenPromise {
    /// Cells are conserved: each cell is in exactly one place.
    Cells {
        /// The ring, or the first of the rings that share a pool.
        ring: usize,
        /// Number of cells found: free, on the rx ring, in chunks, idle, or being sent.
        found: usize,
        /// R x M, summed over all rings that share the pool.
        cells: usize,
    },
    /// A ring of an elastic pool has its reserved cells.
    Share {
        /// The ring.
        ring: usize,
        /// Number of cells that it has.
        found: usize,
        /// Minimum number of cells that it should have.
        guaranteed: usize,
    },
    /// The kernel finds only free cells on the fill ring.
    FillRing {
        /// The ring.
        ring: usize,
        /// The invalid entry.
        violation: Violation,
    },
    /// Packets are conserved: each offered packet is delivered or counted as dropped.
    Packets {
        /// The ring.
        ring: usize,
        /// Packets that arrived.
        arrived: u64,
        /// Offered packets in the ledger.
        offered: u64,
        /// Delivered packets in the ledger.
        delivered: u64,
        /// Packets that were in chunks.
        in_chunks: u64,
    },
    /// Each packet passed to a port was sent or counted as dropped.
    Sending {
        /// Packets that the kernel sent.
        sent: u64,
        /// The port's account.
        account: Box<PortAccount>,
    },
    /// The kernel finds only cells of the application on the tx ring.
    TxRing {
        /// The queue.
        queue: usize,
        /// The address of another cell, in bytes from the start of the pool.
        address: u64,
    },
    /// Order is kept, and no packet is delivered twice.
    Order {
        /// The ring.
        ring: usize,
        /// The sequence number of the chunk that is out of order or repeats packets.
        sequence: u64,
    },
    /// No worker waits while a ring of its group is above T.
    Waiting {
        /// The worker.
        worker: usize,
        /// The ring.
        ring: usize,
        /// Time for which the ring was above T.
        for_long: Duration,
        /// Time of the violation.
        at: Duration,
    },
    /// While a ring of its group is above T, and the ring's own worker has noted this or must have
    /// noted it, a worker serves no more rings below T in a row than it has home rings. If the
    /// ring's worker may be stuck, the limit applies after this worker has looked at all rings.
    Serving {
        /// The worker.
        worker: usize,
        /// The ring that the worker served.
        ring: usize,
        /// Time of the violation.
        at: Duration,
    },
    /// Offloading takes place only above T, or if the ring's worker is stuck or gone.
    Offloading {
        /// The ring.
        ring: usize,
        /// The ring's backlog in packets.
        backlog: u32,
        /// Time of the violation.
        at: Duration,
    },
}

impl fmt::Display for BrokenPromise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cells { ring, found, cells } => {
                write!(f, "ring {ring} has {found} cells instead of {cells}")
            }
            Self::Share { ring, found, guaranteed } => {
                write!(f, "ring {ring} has {found} of its {guaranteed} reserved cells")
            }
            Self::FillRing { ring, violation } => {
                write!(f, "on the fill ring of ring {ring} the kernel found {violation:?}")
            }
            Self::Packets { ring, arrived, offered, delivered, in_chunks } => write!(
                f,
                "of {arrived} packets that arrived at ring {ring} the ledger offered {offered} and delivered \
                 {delivered}, and {in_chunks} were in chunks"
            ),
            Self::Sending { sent, account } => {
                write!(f, "the kernel sent {sent} packets, but the port's account is {account:?}")
            }
            Self::TxRing { queue, address } => {
                write!(
                    f,
                    "on the tx ring of queue {queue} the kernel found a cell at {address:#x} that is in use"
                )
            }
            Self::Order { ring, sequence } => {
                write!(f, "chunk {sequence} of ring {ring} is out of order or repeats packets")
            }
            Self::Waiting { worker, ring, for_long, at } => {
                write!(
                    f,
                    "worker {worker} waits after {at:?}, and ring {ring} has been above T for {for_long:?}"
                )
            }
            Self::Serving { worker, ring, at } => {
                write!(
                    f,
                    "worker {worker} serves ring {ring} again after {at:?}, and another is above T"
                )
            }
            Self::Offloading { ring, backlog, at } => {
                write!(f, "ring {ring} was offloaded at a backlog of {backlog} after {at:?}")
            }
        }
    }
}

/// The state of the rings as observed independently of the engine.
#[derive(Debug)]
pub(super) struct Audit {
    rings: Vec<Page>,
    cells: usize,
    /// Number of cells reserved for each ring, if the rings share one pool.
    guaranteed: Option<usize>,
    /// The backlog above which offloading is allowed; `None` in basic mode.
    threshold: Option<f64>,
    /// For each worker, the times when it took consecutive chunks of rings below T while another
    /// ring was above T.
    low_chunks: Vec<Vec<u64>>,
    /// Maximum time until a ring above T is noted by its own worker, in nanoseconds; `None` if that
    /// worker may be stuck.
    noted_within: Option<u64>,
    /// Number of packets that the kernel sent, if the capture forwards.
    sent: Option<u64>,
    broken: Vec<BrokenPromise>,
}

#[derive(Debug, Clone, Default)]
struct Page {
    next_sequence: u64,
    /// The lowest possible number of the next packet.
    next_number: u64,
    in_chunks: u64,
    held: usize,
    /// The backlog before the last request.
    backlog: u32,
    /// Time since which it has been above T.
    above_since: Option<u64>,
    /// Time since which a worker must know this from the rings that it looked at.
    known_since: Option<u64>,
}

/// Maximum number of violations kept; the first ones show the cause.
const KEPT: usize = 10;

impl Audit {
    pub(super) fn new(settings: &SimSettings) -> Self {
        let cells = settings.geometry.cells() as usize;
        let threshold = match settings.mode {
            Mode::Basic => None,
            Mode::Advanced(share) => Some(share * cells as f64),
        };

        let guaranteed =
            settings.elastic.then(|| Supply::guaranteed(settings.geometry.cells()) as usize);
        let rings = vec![Page::default(); settings.rings];
        let sent = settings.forwards.then_some(0);
        let low_chunks = vec![Vec::new(); settings.workers];

        Self {
            rings,
            cells,
            guaranteed,
            threshold,
            low_chunks,
            noted_within: None,
            sent,
            broken: Vec::new(),
        }
    }

    /// No worker gets stuck or leaves: each looks at its home rings at least this often.
    pub(super) fn expect_notes_within(&mut self, longest: Duration) {
        self.noted_within = Some(longest.as_nanos() as u64);
    }

    fn found(&mut self, promise: BrokenPromise) {
        if self.broken.len() < KEPT {
            self.broken.push(promise);
        }
    }

    /// Records the backlogs on which a worker's decision is based.
    pub(super) fn note_backlogs(&mut self, capture: &SimCapture) {
        for (ring, page) in self.rings.iter_mut().enumerate() {
            page.backlog = capture.backlog(ring);
        }
    }

    /// Checks a captured chunk: it must be the next in sequence, and its packets later than all
    /// earlier ones.
    pub(super) fn captured(&mut self, chunk: &Chunk) {
        let ring = chunk.ring_index();
        let page = &mut self.rings[ring];
        let mut in_order = chunk.sequence() == page.next_sequence;

        page.next_sequence += 1;
        page.in_chunks += chunk.len() as u64;
        page.held += chunk.len();

        for packet in chunk {
            let number = packet.data().try_into().map_or(0, u64::from_ne_bytes);
            in_order &= number >= page.next_number;
            page.next_number = number + 1;
        }

        if !in_order {
            self.found(BrokenPromise::Order { ring, sequence: chunk.sequence() });
        }
    }

    fn is_above(&self, backlog: u32) -> bool {
        self.threshold.is_some_and(|threshold| f64::from(backlog) > threshold)
    }

    /// A packet arrived in `ring`, in which `backlog` packets wait now.
    pub(super) fn received(&mut self, ring: usize, backlog: u32, now: u64) {
        if self.is_above(backlog) {
            self.rings[ring].above_since.get_or_insert(now);
        }
    }

    /// `worker` has been waiting since that time. If it could not see when it began that a ring is
    /// above T, it may wait for `longest`.
    pub(super) fn waits(&mut self, worker: usize, since: u64, longest: Duration, now: u64) {
        for ring in 0..self.rings.len() {
            let Some(above_since) = self.rings[ring].above_since else { continue };
            let for_long = Duration::from_nanos(now - above_since);
            if above_since <= since || for_long > longest {
                self.found(BrokenPromise::Waiting {
                    worker,
                    ring,
                    for_long,
                    at: Duration::from_nanos(now),
                });
            }
        }
    }

    /// `worker`, which has `homes` home rings, took `chunk`; `away`: whether the worker of the
    /// chunk's ring was stuck or gone.
    pub(super) fn served(
        &mut self,
        worker: usize,
        chunk: &Chunk,
        homes: usize,
        away: bool,
        capture: &SimCapture,
        now: u64,
    ) {
        let ring = chunk.ring_index();
        let low_chunks = &mut self.low_chunks[worker];
        let is_needed = self.rings.iter().any(|page| page.above_since.is_some());

        if !is_needed || away || self.rings[ring].above_since.is_some() {
            low_chunks.clear();
        } else {
            low_chunks.push(now);
        }

        let glances = GLANCE_EVERY as usize * self.rings.len();
        let after = |since: u64| low_chunks.iter().filter(|begun| **begun > since).count();

        let is_late = |page: &Page| {
            let must_be_known_since =
                page.above_since.zip(self.noted_within).map(|(since, within)| since + within);
            let known_since = page.known_since.into_iter().chain(must_be_known_since).min();
            known_since.is_some_and(|since| after(since) > homes)
                || page.above_since.is_some_and(|since| after(since) > homes + glances)
        };
        if self.rings.iter().any(is_late) {
            low_chunks.clear();
            self.found(BrokenPromise::Serving { worker, ring, at: Duration::from_nanos(now) });
        }

        if !self.is_above(capture.backlog(ring)) {
            (self.rings[ring].above_since, self.rings[ring].known_since) = (None, None);
        }

        // The worker has looked at its home rings and at the ring that it served.
        for (other, page) in self.rings.iter_mut().enumerate() {
            if page.above_since.is_some() && (other == ring || capture.home_of(other) == worker) {
                page.known_since.get_or_insert(now);
            }
        }
    }

    /// A buddy took a chunk; `away`: whether the worker of the chunk's ring was stuck or gone.
    pub(super) fn offloaded(&mut self, chunk: &Chunk, away: bool, at: Duration) {
        let ring = chunk.ring_index();
        let backlog = self.rings[ring].backlog;
        let allowed =
            self.threshold.is_some_and(|threshold| away || f64::from(backlog) > threshold);
        if !allowed || !chunk.is_offloaded() {
            self.found(BrokenPromise::Offloading { ring, backlog, at });
        }
    }

    /// A chunk is about to be dropped.
    pub(super) fn recycled(&mut self, chunk: &Chunk) {
        self.rings[chunk.ring_index()].held -= chunk.len();
    }

    /// The kernel has sent this many more packets.
    pub(super) fn sent(&mut self, packets: usize) {
        self.sent = self.sent.map(|sent| sent + packets as u64);
    }

    /// Counts all cells.
    pub(super) fn check_cells(&mut self, capture: &SimCapture) {
        let mut sum = capture.stock_cells();

        for ring in 0..self.rings.len() {
            let waiting = capture.backlog(ring) as usize;
            let home = capture.kernel(ring).free_cells() + capture.idle_cells(ring);
            let found = home + waiting + self.rings[ring].held;
            sum += found;

            match self.guaranteed {
                None if self.sent.is_none() && found != self.cells => {
                    self.found(BrokenPromise::Cells { ring, found, cells: self.cells });
                }
                Some(guaranteed) if found < guaranteed => {
                    self.found(BrokenPromise::Share { ring, found, guaranteed });
                }
                _ => {}
            }
        }

        let cells = self.cells * self.rings.len();
        if self.guaranteed.is_some() && sum != cells {
            self.found(BrokenPromise::Cells { ring: 0, found: sum, cells });
        }

        let on_their_way = capture.cells_on_their_way();
        if self.sent.is_some() && sum + on_their_way != capture.cells() {
            self.found(BrokenPromise::Cells {
                ring: 0,
                found: sum + on_their_way,
                cells: capture.cells(),
            });
        }
    }

    /// Compares the ledger with `arrived`, the number of packets that arrived at each ring.
    pub(super) fn conclude(
        mut self,
        capture: &SimCapture,
        ledger: &Ledger,
        arrived: &[u64],
    ) -> Vec<BrokenPromise> {
        if let Some(sent) = self.sent {
            let account = ledger.ports[0].account;
            let queues = 0..arrived.len();
            let last: usize =
                queues.map(|queue| capture.transmitter(queue).take_sent().len()).sum();
            let sent = sent + last as u64;
            let is_known = account.taken <= ledger.total.delivered && account.waiting == 0;

            if !is_known || account.sent != sent || account.taken != sent + account.dropped.total()
            {
                self.found(BrokenPromise::Sending { sent, account: Box::new(account) });
            }

            for queue in 0..arrived.len() {
                for address in capture.transmitter(queue).violations() {
                    self.found(BrokenPromise::TxRing { queue, address });
                }
            }
        }

        for (ring, &arrived) in arrived.iter().enumerate() {
            for violation in capture.kernel(ring).violations() {
                self.found(BrokenPromise::FillRing { ring, violation });
            }

            let account = &ledger.rings[ring].account;
            let in_chunks = self.rings[ring].in_chunks;
            let offered = account.offered;
            let delivered = account.delivered;
            if offered != arrived || delivered != in_chunks {
                self.found(BrokenPromise::Packets { ring, arrived, offered, delivered, in_chunks });
            }
        }
        self.broken
    }
}
