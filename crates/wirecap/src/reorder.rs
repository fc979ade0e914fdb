//! Puts what several workers did with a ring's chunks back into the ring's order.
//!
//! With offloading, chunks of one ring are processed by several workers at once, and finish in any
//! order. Each carries its ring and its sequence number; whoever needs the order of the wire collects
//! the results here. Memory is bounded: if a worker keeps a chunk for so long that the others' results
//! fill the room, its chunk is given up, and counted and marked when it comes after all.

use std::collections::BTreeMap;

/// A buffer that takes results in any order and gives them out in the order of their rings.
///
/// ```
/// let mut order = wirecap::Reorder::new(1, 100);
/// order.push(0, 1, "second");
/// assert!(order.pop().is_none()); // the first one is still being worked on
/// order.push(0, 0, "first");
/// assert_eq!(order.pop().unwrap().value, "first");
/// assert_eq!(order.pop().unwrap().value, "second");
/// ```
#[derive(Debug)]
pub struct Reorder<T> {
    rings: Vec<RingOrder<T>>,
    held: usize,
    held_max: usize,
    late: u64,
}

#[derive(Debug)]
struct RingOrder<T> {
    /// The sequence number that is due.
    next: u64,
    waiting: BTreeMap<u64, T>,
}

/// A result in its place.
#[derive(Debug, PartialEq, Eq)]
pub struct InOrder<T> {
    /// The place of its ring in the capture.
    pub ring_index: usize,
    /// The sequence number of its chunk.
    pub sequence: u64,
    /// It came after later ones of its ring had been given out, because there was no room to wait.
    pub is_late: bool,
    /// What was pushed.
    pub value: T,
}

impl<T> Reorder<T> {
    /// A buffer for `ring_count` rings that holds `held_max` results at most while they wait for earlier
    /// ones.
    pub fn new(ring_count: usize, held_max: usize) -> Self {
        let ring = || RingOrder { next: 0, waiting: BTreeMap::new() };
        Self { rings: (0..ring_count).map(|_| ring()).collect(), held: 0, held_max, late: 0 }
    }

    /// Takes the result of the chunk with this [ring index](crate::Chunk::ring_index) and
    /// [sequence number](crate::Chunk::sequence).
    ///
    /// # Panics
    ///
    /// If there is no such ring, or the chunk's result is there already.
    pub fn push(&mut self, ring_index: usize, sequence: u64, value: T) {
        let twice = self.rings[ring_index].waiting.insert(sequence, value);
        assert!(twice.is_none(), "chunk {sequence} of ring {ring_index} came twice");
        self.held += 1;
    }

    /// The next result that is in its place; `None` when all that are there wait for earlier ones.
    pub fn pop(&mut self) -> Option<InOrder<T>> {
        let ring_index = self.ready().or_else(|| self.overdue())?;
        let ring = &mut self.rings[ring_index];
        let (sequence, value) = ring.waiting.pop_first()?;
        let is_late = sequence < ring.next;
        ring.next = ring.next.max(sequence + 1);
        self.held -= 1;
        self.late += u64::from(is_late);
        Some(InOrder { ring_index, sequence, is_late, value })
    }

    /// How many results wait.
    pub fn held(&self) -> usize {
        self.held
    }

    /// How many results came too late to be given out in their order.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// A ring whose first result is due, or late.
    fn ready(&self) -> Option<usize> {
        let is_due =
            |ring: &RingOrder<T>| ring.waiting.keys().next().is_some_and(|&first| first <= ring.next);
        self.rings.iter().position(is_due)
    }

    /// When there is no room left: the ring with the most to give, whose missing chunk is given up.
    fn overdue(&self) -> Option<usize> {
        let fullest = || (0..self.rings.len()).max_by_key(|&ring| self.rings[ring].waiting.len());
        (self.held > self.held_max).then(fullest).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(order: &mut Reorder<u64>) -> Vec<(usize, u64, bool)> {
        std::iter::from_fn(|| order.pop())
            .map(|item| (item.ring_index, item.sequence, item.is_late))
            .collect()
    }

    #[test]
    fn rings_do_not_wait_for_each_other() {
        let mut order = Reorder::new(2, 10);
        order.push(0, 1, 0);
        order.push(1, 0, 0);
        assert_eq!(drain(&mut order), [(1, 0, false)]);
        order.push(0, 0, 0);
        assert_eq!(drain(&mut order), [(0, 0, false), (0, 1, false)]);
        assert_eq!((order.held(), order.late()), (0, 0));
    }

    #[test]
    fn a_chunk_that_is_kept_too_long_is_given_up_and_marked_when_it_comes() {
        let mut order = Reorder::new(1, 3);
        (1..=3).for_each(|sequence| order.push(0, sequence, 0));
        assert!(drain(&mut order).is_empty());
        order.push(0, 4, 0);
        let all: Vec<_> = (1..=4).map(|sequence| (0, sequence, false)).collect();
        assert_eq!(drain(&mut order), all);
        order.push(0, 0, 0);
        order.push(0, 5, 0);
        assert_eq!(drain(&mut order), [(0, 0, true), (0, 5, false)]);
        assert_eq!(order.late(), 1);
    }

    proptest::proptest! {
        #[test]
        fn any_order_within_the_bound_is_restored(swaps in proptest::collection::vec(0usize..8, 0..200)) {
            let mut sequences: Vec<u64> = (0..swaps.len() as u64 + 8).collect();
            swaps.iter().enumerate().for_each(|(place, distance)| sequences.swap(place, place + distance));
            let count = sequences.len();
            let mut order = Reorder::new(1, count);
            let mut given = Vec::new();
            for sequence in sequences {
                order.push(0, sequence, sequence);
                given.extend(drain(&mut order).into_iter().map(|(_, sequence, late)| (sequence, late)));
            }
            proptest::prop_assert!(given.into_iter().eq((0..count as u64).map(|sequence| (sequence, false))));
        }
    }
}
