//! Preserves a ring's order of forwarded packets when several workers have its chunks (advanced
//! mode).
//!
//! The packets of a chunk wait until all earlier chunks of the ring are finished: dropped, with all
//! their packets handed over. The worker that finishes the chunk that others wait for hands over
//! the waiting packets. The wait is bounded: a chunk that takes too long is skipped, and its
//! packets count as late.

use std::any::Any;
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::forward::outlet::{Batch, Outlet};
use crate::sync::{AtomicBool, Mutex, Ordering, lock, try_lock};
use crate::umem::chunk::Order;

/// The sequence that keeps one ring's packets in order.
#[derive(Debug)]
pub(crate) struct Sequence {
    longest_wait: Duration,
    /// Maximum number of chunks that wait for one.
    window: usize,
    blocked: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the first unfinished chunk.
    next: u64,
    /// From that one on.
    slots: VecDeque<Slot>,
    /// How many batches wait.
    parked: usize,
    /// Time at which the first waiting packet arrived here, or at which an earlier chunk was last
    /// finished.
    since: Option<Instant>,
    spare_batches: Vec<Batch>,
    spare_slots: Vec<Vec<Parked>>,
}

/// One chunk.
#[derive(Debug)]
struct Slot {
    /// The number of holders of packets to be sent: the chunk itself, and ports with packets of it.
    holders: u32,
    parked: Vec<Parked>,
}

#[derive(Debug)]
struct Parked {
    outlet: Arc<dyn Outlet>,
    batch: Batch,
}

impl Sequence {
    pub(crate) fn new(longest_wait: Duration, window: usize) -> Self {
        let blocked = AtomicBool::new(false);
        let state = Mutex::new(State::default());
        Self { longest_wait, window, blocked, state }
    }

    /// The ring's reference to its sequence, which is set once.
    pub(crate) fn of(order: &Arc<dyn Order>) -> Arc<Self> {
        let order: Arc<dyn Any + Send + Sync> = Arc::clone(order) as _;
        order.downcast().expect("rings are kept in order by sequences")
    }

    /// Announces packets of chunk `sequence`: [`submit`](Self::submit) will hand them over, and
    /// then [`finish`](Self::finish) will be called once more.
    pub(crate) fn hold(&self, sequence: u64) {
        let mut state = lock(&self.state);
        if let Some(slot) = state.slot(sequence) {
            slot.holders += 1;
        }
    }

    /// Hands over packets of chunk `sequence`, now or when it is its turn. Leaves the batch empty.
    pub(crate) fn submit(&self, sequence: u64, outlet: &Arc<dyn Outlet>, batch: &mut Batch) {
        let mut state = lock(&self.state);
        if sequence <= state.next {
            outlet.submit(batch, sequence < state.next);
        } else {
            state.park(sequence, outlet, batch);
            self.give_up_overdue(&mut state);
        }
        self.note(&state);
    }

    /// Whether packets wait for an earlier chunk.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }

    /// Sends packets that have waited for too long.
    pub(crate) fn tend(&self) {
        if self.is_blocked()
            && let Some(mut state) = try_lock(&self.state)
        {
            self.give_up_overdue(&mut state);
            self.note(&state);
        }
    }

    /// Sends all waiting packets.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        while state.parked > 0 {
            state.give_up();
        }
        self.note(&state);
    }

    /// Cells of packets that wait.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn parked_cells(&self) -> usize {
        let state = lock(&self.state);
        state
            .slots
            .iter()
            .flat_map(|slot| &slot.parked)
            .map(|parked| parked.batch.cells.len())
            .sum()
    }

    fn give_up_overdue(&self, state: &mut State) {
        let is_overdue = |since: Instant| since.elapsed() >= self.longest_wait;
        while state.slots.len() > self.window || state.since.is_some_and(is_overdue) {
            state.give_up();
        }
    }

    fn note(&self, state: &State) {
        self.blocked.store(state.parked > 0, Ordering::Relaxed);
    }
}

impl Order for Sequence {
    /// Reports that the chunk was dropped, or that all packets held of it were handed over.
    fn finish(&self, sequence: u64) {
        let mut state = lock(&self.state);
        if let Some(slot) = state.slot(sequence) {
            slot.holders -= 1;
        }
        state.advance();
        self.give_up_overdue(&mut state);
        self.note(&state);
    }
}

impl State {
    /// The state of a chunk; `None` if it is finished or was skipped.
    fn slot(&mut self, sequence: u64) -> Option<&mut Slot> {
        let index = usize::try_from(sequence.checked_sub(self.next)?).ok()?;
        while self.slots.len() <= index {
            let parked = self.spare_slots.pop().unwrap_or_default();
            self.slots.push_back(Slot { holders: 1, parked });
        }
        Some(&mut self.slots[index])
    }

    fn park(&mut self, sequence: u64, outlet: &Arc<dyn Outlet>, batch: &mut Batch) {
        let empty = self.spare_batches.pop().unwrap_or_default();
        let batch = mem::replace(batch, empty);
        outlet.count_parked(batch.packets, 0);
        let slot = self.slot(sequence).expect("it is later than the first that is not done with");
        slot.parked.push(Parked { outlet: Arc::clone(outlet), batch });
        self.parked += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    /// Advances to the first unfinished chunk.
    fn advance(&mut self) {
        while self.slots.front().is_some_and(|slot| slot.holders == 0) {
            self.step();
        }
    }

    /// Skips the first chunk, and the chunks after it that have no waiting packets.
    #[cold]
    fn give_up(&mut self) {
        let parked = self.parked;
        self.step();
        while self.parked == parked && parked > 0 {
            self.step();
        }
        self.advance();
    }

    /// Advances to the next chunk and hands over its waiting packets.
    fn step(&mut self) {
        let Some(slot) = self.slots.pop_front() else { return };
        self.spare_slots.push(slot.parked);
        self.next += 1;
        if let Some(slot) = self.slots.front_mut() {
            for Parked { outlet, mut batch } in slot.parked.drain(..) {
                outlet.count_parked(0, batch.packets);
                outlet.submit(&mut batch, false);
                self.spare_batches.push(batch);
                self.parked -= 1;
            }
        }
        self.since = (self.parked > 0).then(Instant::now);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ledger::PortAccount;

    /// Records the marks of the handed-over batches, those of late ones as negative numbers.
    #[derive(Debug, Default)]
    struct Notes(Mutex<Vec<i64>>);

    impl Outlet for Notes {
        fn copies(&self) -> bool {
            true
        }

        fn submit(&self, batch: &mut Batch, late: bool) {
            let mark = i64::from(batch.lens[0]);
            lock(&self.0).push(if late { -mark } else { mark });
            batch.clear();
        }

        fn count_parked(&self, _coming: u64, _going: u64) {}

        fn collect(&self) {}

        fn push_on(&self) {}

        fn is_lagging(&self) -> bool {
            false
        }

        fn account(&self) -> PortAccount {
            PortAccount::default()
        }

        fn close(&self) {}
    }

    struct Bench {
        order: Sequence,
        notes: Arc<Notes>,
        outlet: Arc<dyn Outlet>,
    }

    impl Bench {
        fn new(longest_wait: Duration, window: usize) -> Self {
            let notes = Arc::new(Notes::default());
            Self { order: Sequence::new(longest_wait, window), outlet: notes.clone(), notes }
        }

        /// The action of a port with packets of a chunk.
        fn send(&self, sequence: u64, mark: u32) {
            self.order.hold(sequence);
            self.order.submit(sequence, &self.outlet, &mut batch(mark));
            self.order.finish(sequence);
        }

        fn marks(&self) -> Vec<i64> {
            std::mem::take(&mut lock(&self.notes.0))
        }
    }

    fn batch(mark: u32) -> Batch {
        Batch { lens: vec![mark], packets: 1, ..Batch::default() }
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn the_first_chunk_goes_at_once_and_the_others_when_those_before_are_dropped() {
        let bench = Bench::new(LONG, 100);
        bench.send(2, 30);
        bench.send(1, 20);
        bench.send(0, 10);
        bench.send(0, 11);
        assert_eq!(bench.marks(), [10, 11]);
        // No packets of chunk 1 remain to be sent, but it is not the first yet.
        bench.order.finish(1);
        assert!(bench.marks().is_empty() && bench.order.is_blocked());
        bench.order.finish(0);
        assert_eq!(bench.marks(), [20, 30]);
        assert!(!bench.order.is_blocked());
    }

    #[test]
    fn a_chunk_of_which_nothing_is_sent_delays_no_other_once_it_is_dropped() {
        let bench = Bench::new(LONG, 100);
        bench.send(3, 40);
        for sequence in [0, 2, 1] {
            assert!(bench.marks().is_empty());
            bench.order.finish(sequence);
        }
        assert_eq!(bench.marks(), [40]);
    }

    #[test]
    fn later_chunks_wait_for_packets_flushed_after_their_chunk_was_dropped() {
        let bench = Bench::new(LONG, 100);
        bench.order.hold(0);
        bench.order.finish(0);
        bench.send(1, 20);
        assert!(bench.marks().is_empty());
        bench.order.submit(0, &bench.outlet, &mut batch(10));
        bench.order.finish(0);
        assert_eq!(bench.marks(), [10, 20]);
    }

    #[test]
    fn chunks_beyond_the_window_do_not_wait_and_skipped_ones_are_late() {
        let bench = Bench::new(LONG, 3);
        (1..=2).for_each(|sequence| bench.send(sequence, 10 * sequence as u32));
        assert!(bench.marks().is_empty());
        bench.send(3, 30);
        assert_eq!(bench.marks(), [10]);
        bench.send(0, 5);
        assert_eq!(bench.marks(), [-5]);
        bench.order.finish(0);
        bench.order.finish(1);
        assert_eq!(bench.marks(), [20]);
        bench.order.finish(2);
        assert_eq!(bench.marks(), [30]);
    }

    #[test]
    fn a_chunk_that_is_never_dropped_delays_at_most_the_window() {
        let bench = Bench::new(LONG, 3);
        (1..1000).for_each(|sequence| bench.order.finish(sequence));
        assert!(lock(&bench.order.state).slots.len() <= 3);
        bench.send(1000, 100);
        assert_eq!(bench.marks(), [100]);
    }

    #[test]
    fn a_packet_that_waits_too_long_is_sent() {
        let bench = Bench::new(Duration::ZERO, 100);
        bench.send(5, 60);
        assert_eq!(bench.marks(), [60]);
        let bench = Bench::new(Duration::from_millis(5), 100);
        bench.send(5, 60);
        std::thread::sleep(Duration::from_millis(20));
        bench.order.tend();
        assert_eq!(bench.marks(), [60]);
        bench.send(7, 80);
        bench.order.close();
        assert_eq!(bench.marks(), [80]);
    }
}
