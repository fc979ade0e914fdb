//! Which handle of a group counts which packets.
//!
//! Each ring has one handle that counts its packets, whichever handle reads them: that of its home
//! worker, or the first one if the home worker has no handle. If handles join or leave, another
//! handle may count the ring from then on. The sum over all handles, open and closed, is the number
//! of packets of the group.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

/// How often a handle tries to read its counts while others join and leave.
const TRIES: usize = 8;

/// The rings whose packets are counted.
pub(super) trait Rings {
    fn ring_count(&self) -> usize;
    /// The home worker of a ring.
    fn home(&self, ring: usize) -> usize;
    /// The packets of a ring so far.
    fn counts(&self, ring: usize) -> Counts;
}

/// Packets that arrived at a ring, read or not, and packets that it dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) arrived: u64,
    pub(crate) dropped: u64,
}

impl Counts {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { arrived: self.arrived + other.arrived, dropped: self.dropped + other.dropped }
    }

    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            arrived: self.arrived.saturating_sub(earlier.arrived),
            dropped: self.dropped.saturating_sub(earlier.dropped),
        }
    }

    fn max(self, other: Self) -> Self {
        Self { arrived: self.arrived.max(other.arrived), dropped: self.dropped.max(other.dropped) }
    }
}

/// Counts that a signal handler may read.
#[derive(Debug, Default)]
pub(super) struct SharedCounts {
    arrived: AtomicU64,
    dropped: AtomicU64,
}

impl SharedCounts {
    fn load(&self) -> Counts {
        let [arrived, dropped] =
            [&self.arrived, &self.dropped].map(|count| count.load(Ordering::Relaxed));
        Counts { arrived, dropped }
    }

    fn store(&self, counts: Counts) {
        self.arrived.store(counts.arrived, Ordering::Relaxed);
        self.dropped.store(counts.dropped, Ordering::Relaxed);
    }

    /// Raises the counts to at least these; returns the result.
    pub(super) fn raise(&self, counts: Counts) -> Counts {
        let before = Counts {
            arrived: self.arrived.fetch_max(counts.arrived, Ordering::Relaxed),
            dropped: self.dropped.fetch_max(counts.dropped, Ordering::Relaxed),
        };
        before.max(counts)
    }
}

/// The counts of a group's handles.
#[derive(Debug)]
pub(super) struct Shares {
    /// Whether a handle has the worker with this index.
    held: Box<[AtomicBool]>,
    /// The packets of each ring that are assigned to handles.
    assigned: Box<[SharedCounts]>,
    /// The packets that are assigned to the handles with each worker.
    shares: Box<[SharedCounts]>,
    /// Grows by two with each handle that joins or leaves; odd meanwhile.
    version: AtomicU64,
    changing: Mutex<()>,
}

impl Shares {
    pub(super) fn new(rings: usize, workers: usize) -> Self {
        let zeros = |count: usize| (0..count).map(|_| SharedCounts::default()).collect();
        Self {
            held: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            assigned: zeros(rings),
            shares: zeros(workers),
            version: AtomicU64::new(0),
            changing: Mutex::new(()),
        }
    }

    /// A handle gets `worker`. Returns the packets that earlier handles with this worker counted.
    pub(super) fn join(&self, rings: &impl Rings, worker: usize) -> Counts {
        self.set_held(rings, worker, true)
    }

    /// The handle with `worker` is closed. Returns the packets that handles with this worker have
    /// counted.
    pub(super) fn leave(&self, rings: &impl Rings, worker: usize) -> Counts {
        self.set_held(rings, worker, false)
    }

    fn set_held(&self, rings: &impl Rings, worker: usize, held: bool) -> Counts {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);

        // Pairs with the fence in `try_counts`: a handle that saw packets which are not in the
        // counts below also sees the new version. So no handle counts a packet that arrives before
        // the next one counts the ring.
        fence(Ordering::SeqCst);
        self.assign(rings);
        self.held[worker].store(held, Ordering::Relaxed);

        // Release pairs with the acquire in `try_counts`: a thread that sees this version sees what
        // led to it.
        self.version.store(version + 2, Ordering::Release);
        self.shares[worker].load()
    }

    /// Assigns all packets so far to the handles that count their rings.
    fn assign(&self, rings: &impl Rings) {
        for ring in 0..rings.ring_count() {
            let Some(counter) = self.counter(rings.home(ring)) else { continue };
            let before = self.assigned[ring].load();
            let now = rings.counts(ring);
            let share = &self.shares[counter];
            share.store(share.load().plus(now.since(before)));
            self.assigned[ring].store(now.max(before));
        }
    }

    /// The worker whose handle counts the packets of the worker `home`.
    fn counter(&self, home: usize) -> Option<usize> {
        let is_held = |worker: &AtomicBool| worker.load(Ordering::Relaxed);
        if is_held(&self.held[home]) { Some(home) } else { self.held.iter().position(is_held) }
    }

    /// The packets that handles with `worker` have counted so far. `None` while other handles join
    /// or leave. A signal handler may call it.
    pub(super) fn counts(&self, rings: &impl Rings, worker: usize) -> Option<Counts> {
        (0..TRIES).find_map(|_| self.try_counts(rings, worker))
    }

    fn try_counts(&self, rings: &impl Rings, worker: usize) -> Option<Counts> {
        let version = self.version.load(Ordering::Acquire);
        if !version.is_multiple_of(2) {
            return None;
        }
        let own =
            (0..rings.ring_count()).filter(|ring| self.counter(rings.home(*ring)) == Some(worker));
        let unassigned = own.map(|ring| rings.counts(ring).since(self.assigned[ring].load()));
        let counts = unassigned.fold(self.shares[worker].load(), Counts::plus);
        fence(Ordering::SeqCst);
        (self.version.load(Ordering::Relaxed) == version).then_some(counts)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Two rings with one worker each. At each look at a ring, a packet arrives there and another
    /// one is dropped, and open handles are asked for their counts.
    struct Busy<'a> {
        shares: &'a Shares,
        packets: [Cell<u64>; 2],
        /// The most that the handle of each worker has counted, and what earlier handles counted
        /// before.
        handles: [RefCell<Option<(Counts, Counts)>>; 2],
        /// The packets of closed handles.
        closed: Cell<Counts>,
        is_quiet: Cell<bool>,
    }

    impl Rings for Busy<'_> {
        fn ring_count(&self) -> usize {
            2
        }

        fn home(&self, ring: usize) -> usize {
            ring
        }

        fn counts(&self, ring: usize) -> Counts {
            let packets = self.packets[ring].get();
            if !self.is_quiet.replace(true) {
                self.packets[ring].set(packets + 1);
                (0..2).for_each(|worker| _ = self.ask(worker));
                self.is_quiet.set(false);
            }
            Counts { arrived: packets, dropped: packets }
        }
    }

    impl Busy<'_> {
        /// What `pcap_stats` of the handle with `worker` returns.
        fn ask(&self, worker: usize) -> Counts {
            let mut handle = self.handles[worker].borrow_mut();
            let Some((before, most)) = &mut *handle else { return Counts::default() };
            if let Some(now) = self.shares.try_counts(self, worker) {
                *most = most.max(now.since(*before));
            }
            *most
        }

        fn open(&self, worker: usize) {
            let before = self.shares.join(self, worker);
            *self.handles[worker].borrow_mut() = Some((before, Counts::default()));
        }

        fn close(&self, worker: usize) {
            let counted = self.shares.leave(self, worker);
            let (before, most) = self.handles[worker].take().unwrap();
            self.closed.set(self.closed.get().plus(most.max(counted.since(before))));
        }
    }

    #[test]
    fn packets_that_arrive_while_handles_join_and_leave_are_counted_once() {
        let shares = Shares::new(2, 2);
        let busy = Busy {
            shares: &shares,
            packets: Default::default(),
            handles: Default::default(),
            closed: Cell::default(),
            is_quiet: Cell::new(false),
        };
        busy.open(0);

        for _ in 0..3 {
            busy.open(1);
            busy.close(0);
            busy.open(0);
            busy.close(1);
        }

        busy.open(1);
        busy.is_quiet.set(true);

        let total = busy.ask(0).plus(busy.ask(1)).plus(busy.closed.get());
        let packets = busy.packets.iter().map(Cell::get).sum();
        assert_eq!(total, Counts { arrived: packets, dropped: packets });
        assert!(packets > 20, "{packets} packets arrived");
    }
}
