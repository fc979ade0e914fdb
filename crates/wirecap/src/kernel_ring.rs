//! The application's half of a ring that is shared with the kernel: one side produces, the other
//! consumes.
//!
//! AF_XDP has four of them per queue (fill, rx, tx, completion; kernel documentation,
//! `networking/af_xdp.rst`). Two free-running 32-bit indices show the progress of each side; slots
//! from the consumer's index up to the producer's belong to the consumer, the others to the
//! producer. Both halves are here because the simulated kernel uses the other one.

#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use crate::sync::{AtomicU32, Ordering, UnsafeCell, fence};

/// The other side published an invalid index: the ring can no longer be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BrokenRing {
    pub(crate) producer: u32,
    pub(crate) consumer: u32,
    pub(crate) capacity: u32,
}

impl fmt::Display for BrokenRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { producer, consumer, capacity } = self;
        write!(f, "indices {producer} and {consumer} do not fit a ring of {capacity} slots")
    }
}

/// The addresses of the parts of one ring, and the owner of its memory.
pub(crate) struct SharedRing<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    slots: NonNull<UnsafeCell<T>>,
    capacity: u32,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the pointers refer to memory that `_owner` keeps alive and that is not tied to a thread;
// the indices are atomics, and the slots are only accessed through `Producer` and `Consumer`, of
// which there is one each (guaranteed by the caller of `from_parts`).
unsafe impl<T: Send> Send for SharedRing<T> {}
// SAFETY: as above: a shared reference only permits access to the atomics.
unsafe impl<T: Send> Sync for SharedRing<T> {}

/// `XDP_RING_NEED_WAKEUP`: the kernel sleeps until it is called.
const NEED_WAKEUP: u32 = 1;

impl<T: Copy> SharedRing<T> {
    /// A ring whose parts are at the given addresses.
    ///
    /// # Safety
    ///
    /// The addresses must be valid and suitably aligned for as long as `owner` lives; `capacity`
    /// slots, a power of two, must be mapped; and at most one `Producer` and one `Consumer` may be
    /// made on the memory in all, the kernel's own half included.
    pub(crate) unsafe fn from_parts(
        producer: NonNull<AtomicU32>,
        consumer: NonNull<AtomicU32>,
        flags: NonNull<AtomicU32>,
        slots: NonNull<UnsafeCell<T>>,
        capacity: u32,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        assert!(capacity.is_power_of_two(), "ring capacity {capacity} is not a power of two");
        Self { producer, consumer, flags, slots, capacity, _owner: owner }
    }

    /// What keeps the ring's memory, if it is an `O`.
    fn owner<O: Any>(&self) -> Option<&O> {
        self._owner.downcast_ref()
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: valid while `_owner` lives, as guaranteed by the caller of `from_parts`.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as in `producer`.
        unsafe { self.consumer.as_ref() }
    }

    fn flags(&self) -> &AtomicU32 {
        // SAFETY: as in `producer`.
        unsafe { self.flags.as_ref() }
    }

    /// The run of slots from index `start`: the number of `wanted` slots before the ring wraps.
    fn run(&self, start: u32, wanted: u32) -> (usize, usize) {
        let first = start & (self.capacity - 1);
        (first as usize, wanted.min(self.capacity - first) as usize)
    }

    /// Appends `count` slots from index `start` to `out`, which has room for them.
    ///
    /// # Safety
    ///
    /// The slots must belong to the caller's side.
    #[cfg(not(loom))]
    unsafe fn copy_out(&self, start: u32, count: u32, out: &mut Vec<T>) {
        let (first, run) = self.run(start, count);

        // SAFETY: `run` keeps the range inside the mapped slots; the caller owns them, so no code
        // writes while the slice lives. `UnsafeCell<T>` has the layout of `T`.
        let slots =
            unsafe { std::slice::from_raw_parts(self.slots.as_ptr().add(first).cast::<T>(), run) };
        out.extend_from_slice(slots);

        if run < count as usize {
            // SAFETY: as above; the rest starts at slot 0.
            let rest = unsafe {
                std::slice::from_raw_parts(self.slots.as_ptr().cast::<T>(), count as usize - run)
            };
            out.extend_from_slice(rest);
        }
    }

    /// Slot by slot, so that loom sees each access.
    #[cfg(loom)]
    unsafe fn copy_out(&self, start: u32, count: u32, out: &mut Vec<T>) {
        for offset in 0..count {
            let (slot, _) = self.run(start.wrapping_add(offset), 1);
            // SAFETY: `run` keeps `slot` in bounds and the caller owns it.
            out.push(unsafe { self.slots.add(slot).as_ref().with(|value| *value) });
        }
    }

    /// Fills the slots from index `start` with `items`, each converted by `convert`.
    ///
    /// # Safety
    ///
    /// The slots must belong to the caller's side, and `items` be no longer than the ring.
    #[cfg(not(loom))]
    unsafe fn copy_in<S>(&self, start: u32, items: &[S], convert: impl Fn(&S) -> T) {
        let (first, run) = self.run(start, items.len() as u32);
        let (before_wrap, after_wrap) = items.split_at(run);
        for (slots, items) in [(first, before_wrap), (0, after_wrap)] {
            // SAFETY: `run` keeps the range inside the mapped slots; the caller owns them.
            let slots = unsafe {
                std::slice::from_raw_parts_mut(
                    self.slots.as_ptr().add(slots).cast::<T>(),
                    items.len(),
                )
            };
            for (slot, item) in slots.iter_mut().zip(items) {
                *slot = convert(item);
            }
        }
    }

    /// Slot by slot, so that loom sees each access.
    #[cfg(loom)]
    unsafe fn copy_in<S>(&self, start: u32, items: &[S], convert: impl Fn(&S) -> T) {
        for (offset, item) in items.iter().enumerate() {
            let (slot, _) = self.run(start.wrapping_add(offset as u32), 1);
            // SAFETY: `run` keeps `slot` in bounds and the caller owns it.
            unsafe { self.slots.add(slot).as_ref().with_mut(|value| *value = convert(item)) };
        }
    }
}

impl<T> fmt::Debug for SharedRing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRing").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

/// A ring in this process's own memory: for the simulated kernel and for tests.
#[cfg(any(test, feature = "sim"))]
pub(crate) struct HeapRing<T> {
    producer: AtomicU32,
    consumer: AtomicU32,
    flags: AtomicU32,
    slots: Box<[UnsafeCell<T>]>,
}

// SAFETY: the slots are only accessed through the one `Producer` and the one `Consumer` that `pair`
// returns.
#[cfg(any(test, feature = "sim"))]
unsafe impl<T: Send> Sync for HeapRing<T> {}

#[cfg(any(test, feature = "sim"))]
impl<T: Copy + Default + Send + 'static> HeapRing<T> {
    /// Both halves of a new ring of `capacity` slots, a power of two, whose indices begin at
    /// `start`.
    pub(crate) fn pair(capacity: u32, start: u32) -> (Producer<T>, Consumer<T>) {
        let ring = Arc::new(Self {
            producer: AtomicU32::new(start),
            consumer: AtomicU32::new(start),
            flags: AtomicU32::new(0),
            slots: (0..capacity).map(|_| UnsafeCell::new(T::default())).collect(),
        });
        let half = || {
            // SAFETY: the parts live inside the `Arc` that is passed as the owner, `capacity` slots
            // were allocated, and this function creates exactly one half of each kind.
            unsafe {
                SharedRing::from_parts(
                    NonNull::from(&ring.producer),
                    NonNull::from(&ring.consumer),
                    NonNull::from(&ring.flags),
                    NonNull::new_unchecked(ring.slots.as_ptr().cast_mut()),
                    capacity,
                    ring.clone(),
                )
            }
        };
        (Producer::new(half()), Consumer::new(half()))
    }
}

/// Shows a ring's fill level without producing, consuming or keeping it alive: a mapped ring would
/// keep its socket open.
#[derive(Debug, Clone)]
pub(crate) struct Gauge<T>(Weak<SharedRing<T>>);

impl<T: Copy> Gauge<T> {
    /// Number of filled slots: a snapshot, which may be outdated at once; 0 if the ring is gone.
    pub(crate) fn filled(&self) -> u32 {
        let Some(ring) = self.0.upgrade() else { return 0 };
        // Acquire: the consumer saw the producer at least this far, so the load below is no older
        // than that, and the difference is never negative.
        let consumer = ring.consumer().load(Ordering::Acquire);
        let filled = ring.producer().load(Ordering::Relaxed).wrapping_sub(consumer);
        // If both sides advance between the two loads, the ring looks fuller than it is.
        filled.min(ring.capacity)
    }

    /// The producer's index: the total number of filled slots, modulo 2^32, if it started at 0 as
    /// the kernel's indices do; `None` if the ring is gone.
    pub(crate) fn produced(&self) -> Option<u32> {
        self.0.upgrade().map(|ring| ring.producer().load(Ordering::Acquire))
    }
}

/// The half that takes slots filled by the other side.
#[derive(Debug)]
pub(crate) struct Consumer<T> {
    shared: Arc<SharedRing<T>>,
    /// Slots up to here were taken; published by `release`.
    head: u32,
    /// The last seen index of the producer.
    tail: u32,
}

impl<T: Copy> Consumer<T> {
    pub(crate) fn new(shared: SharedRing<T>) -> Self {
        let head = shared.consumer().load(Ordering::Relaxed);
        Self { shared: Arc::new(shared), head, tail: head }
    }

    /// What keeps the ring's memory, if it is an `O`.
    pub(crate) fn owner<O: Any>(&self) -> Option<&O> {
        self.shared.owner()
    }

    /// Another ring is at the same address now: resets the indices.
    pub(crate) fn restart(&mut self) {
        self.head = self.shared.consumer().load(Ordering::Relaxed);
        self.tail = self.head;
    }

    /// A view of the ring's fill level for code that does not own the consumer.
    pub(crate) fn gauge(&self) -> Gauge<T> {
        Gauge(Arc::downgrade(&self.shared))
    }

    /// Number of filled slots that can be taken.
    ///
    /// # Errors
    ///
    /// When the producer's index is further ahead than the ring is long.
    pub(crate) fn available(&mut self) -> Result<u32, BrokenRing> {
        // Acquire pairs with the producer's release of its index: having seen the new index, we
        // also see the slots that were filled before it.
        let producer = self.shared.producer().load(Ordering::Acquire);
        let available = producer.wrapping_sub(self.head);
        if available > self.shared.capacity {
            return Err(BrokenRing {
                producer,
                consumer: self.head,
                capacity: self.shared.capacity,
            });
        }

        // Stored only after the check: `take_into` trusts it.
        self.tail = producer;
        Ok(available)
    }

    /// Appends up to `max` filled slots to `out`; the producer gets them back by
    /// [`release`](Self::release). Returns how many were taken.
    ///
    /// # Errors
    ///
    /// When the producer's index is further ahead than the ring is long.
    pub(crate) fn take_into(&mut self, out: &mut Vec<T>, max: usize) -> Result<usize, BrokenRing> {
        let mut available = self.tail.wrapping_sub(self.head);
        if (available as usize) < max {
            available = self.available()?;
        }
        let count = available.min(u32::try_from(max).unwrap_or(u32::MAX));
        // SAFETY: `available` checked the indices: these slots are filled and ours until `release`.
        unsafe { self.shared.copy_out(self.head, count, out) };
        self.head = self.head.wrapping_add(count);
        Ok(count as usize)
    }

    /// Undoes taking the last `count` slots that were not released.
    pub(crate) fn put_back(&mut self, count: u32) {
        self.head = self.head.wrapping_sub(count);
    }

    /// Returns the taken slots to the producer.
    pub(crate) fn release(&mut self) {
        // Release pairs with the producer's acquire: our reads of the slots precede their reuse.
        self.shared.consumer().store(self.head, Ordering::Release);
    }

    /// For a simulated kernel that goes to sleep or wakes up: sets whether the producer must call
    /// it. It must look at the ring once more before it sleeps.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn set_needs_wakeup(&self, needed: bool) {
        self.shared.flags().store(if needed { NEED_WAKEUP } else { 0 }, Ordering::Relaxed);
        // The other half of the fence in `Producer::needs_wakeup`.
        fence(Ordering::SeqCst);
    }

    /// Publishes an index beyond the filled slots, as a faulty kernel might;
    /// [`release`](Self::release) publishes a valid one again.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn break_index(&self) {
        let beyond = self.head.wrapping_add(self.shared.capacity + 1);
        self.shared.consumer().store(beyond, Ordering::Release);
    }
}

/// The half that fills slots for the other side.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    shared: Arc<SharedRing<T>>,
    /// Slots up to here were filled; published by `submit`.
    tail: u32,
    /// The last seen index of the consumer.
    head: u32,
}

impl<T: Copy> Producer<T> {
    pub(crate) fn new(shared: SharedRing<T>) -> Self {
        let tail = shared.producer().load(Ordering::Relaxed);
        let head = shared.consumer().load(Ordering::Relaxed);
        Self { shared: Arc::new(shared), tail, head }
    }

    /// What keeps the ring's memory, if it is an `O`.
    pub(crate) fn owner<O: Any>(&self) -> Option<&O> {
        self.shared.owner()
    }

    /// Another ring is at the same address now: resets the indices.
    pub(crate) fn restart(&mut self) {
        self.tail = self.shared.producer().load(Ordering::Relaxed);
        self.head = self.shared.consumer().load(Ordering::Relaxed);
    }

    /// Number of slots that can be filled.
    ///
    /// # Errors
    ///
    /// When the consumer's index is ahead of what was produced.
    pub(crate) fn free(&mut self) -> Result<u32, BrokenRing> {
        // Acquire pairs with the consumer's release: it has finished reading the slots that we now
        // reuse.
        self.head = self.shared.consumer().load(Ordering::Acquire);
        let capacity = self.shared.capacity;
        capacity.checked_sub(self.tail.wrapping_sub(self.head)).ok_or(BrokenRing {
            producer: self.tail,
            consumer: self.head,
            capacity,
        })
    }

    /// Number of filled slots that the consumer has not taken yet.
    ///
    /// # Errors
    ///
    /// When the consumer's index is ahead of what was produced.
    pub(crate) fn filled(&mut self) -> Result<u32, BrokenRing> {
        Ok(self.shared.capacity - self.free()?)
    }

    /// Number of slots that the consumer had taken at the last look, modulo 2^32.
    pub(crate) fn taken(&self) -> u32 {
        self.head
    }

    /// Appends to `out` the filled slots that the consumer has not taken yet. The consumer may take
    /// them during this call.
    ///
    /// # Errors
    ///
    /// When the consumer's index is ahead of what was produced.
    pub(crate) fn not_taken(&mut self, out: &mut Vec<T>) -> Result<(), BrokenRing> {
        let filled = self.filled()?;
        // SAFETY: we filled these slots, and the other side only reads them.
        unsafe { self.shared.copy_out(self.head, filled, out) };
        Ok(())
    }

    /// Fills slots with as many of `items` as there is room for, each converted by `convert`; the
    /// consumer sees them after [`submit`](Self::submit). Returns their number.
    ///
    /// # Errors
    ///
    /// When the consumer's index is ahead of what was produced.
    pub(crate) fn push_slice<S>(
        &mut self,
        items: &[S],
        convert: impl Fn(&S) -> T,
    ) -> Result<usize, BrokenRing> {
        let seen_free = self.shared.capacity.saturating_sub(self.tail.wrapping_sub(self.head));
        let free = if (seen_free as usize) < items.len() { self.free()? } else { seen_free };
        let count = items.len().min(free as usize);
        // SAFETY: the slots from `tail` on, `free` of them, are ours to fill until `submit`.
        unsafe { self.shared.copy_in(self.tail, &items[..count], convert) };
        self.tail = self.tail.wrapping_add(count as u32);
        Ok(count)
    }

    /// Publishes the filled slots to the consumer.
    pub(crate) fn submit(&mut self) {
        // Release pairs with the consumer's acquire: the slots' contents are written before the
        // index.
        self.shared.producer().store(self.tail, Ordering::Release);
    }

    /// Whether the kernel sleeps and must be called to look at the ring. Call this after
    /// [`submit`](Self::submit).
    pub(crate) fn needs_wakeup(&self) -> bool {
        // The kernel sets the flag, then looks at the ring once more; we publish the ring, then
        // look at the flag. Without a full fence between our store and our load, both sides could
        // miss each other and the ring would sleep with work in it.
        fence(Ordering::SeqCst);
        self.shared.flags().load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// Publishes an index beyond the ring, as a faulty kernel might; [`submit`](Self::submit)
    /// publishes a valid one again.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn break_index(&self) {
        let beyond = self.tail.wrapping_add(self.shared.capacity + 1);
        self.shared.producer().store(beyond, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn take(consumer: &mut Consumer<u64>, max: usize) -> Vec<u64> {
        let mut out = Vec::new();
        consumer.take_into(&mut out, max).unwrap();
        out
    }

    #[test]
    fn nothing_is_seen_before_it_is_submitted() {
        let (mut producer, mut consumer) = HeapRing::pair(4, 0);
        assert_eq!(producer.push_slice(&[1u64, 2], |n| *n), Ok(2));
        assert!(take(&mut consumer, 4).is_empty());
        producer.submit();
        assert_eq!(take(&mut consumer, 4), [1, 2]);
    }

    #[test]
    fn a_full_ring_takes_no_more_until_slots_are_released() {
        let (mut producer, mut consumer) = HeapRing::pair(4, 0);
        assert_eq!(producer.push_slice(&[1u64, 2, 3, 4, 5], |n| *n), Ok(4));
        producer.submit();
        assert_eq!(take(&mut consumer, 3), [1, 2, 3]);
        assert_eq!(producer.push_slice(&[6u64], |n| *n), Ok(0));
        consumer.release();
        assert_eq!(producer.push_slice(&[6u64, 7, 8, 9], |n| *n), Ok(3));
        producer.submit();
        assert_eq!(take(&mut consumer, 9), [4, 6, 7, 8]);
    }

    #[test]
    fn slots_that_are_put_back_are_taken_again() {
        let (mut producer, mut consumer) = HeapRing::pair(4, u32::MAX);
        producer.push_slice(&[1u64, 2, 3], |n| *n).unwrap();
        producer.submit();
        assert_eq!(take(&mut consumer, 3), [1, 2, 3]);
        consumer.put_back(2);
        consumer.release();
        assert_eq!(producer.free(), Ok(2));
        assert_eq!(take(&mut consumer, 3), [2, 3]);
    }

    #[test]
    fn slots_not_taken_can_be_peeked_at() {
        let (mut producer, mut consumer) = HeapRing::pair(4, u32::MAX - 1);
        producer.push_slice(&[1u64, 2, 3, 4], |n| *n).unwrap();
        producer.submit();
        assert_eq!(take(&mut consumer, 1), [1]);
        consumer.release();
        let mut seen = Vec::new();
        producer.not_taken(&mut seen).unwrap();
        assert_eq!((seen, producer.filled()), (vec![2, 3, 4], Ok(3)));
    }

    #[test]
    fn order_survives_many_turns_of_the_ring() {
        let (mut producer, mut consumer) = HeapRing::pair(8, 0);
        let mut next = 0u64;
        let mut seen = Vec::new();
        while seen.len() < if cfg!(miri) { 50 } else { 1000 } {
            let batch: Vec<u64> = (next..next + 5).collect();
            next += producer.push_slice(&batch, |n| *n).unwrap() as u64;
            producer.submit();
            seen.extend(take(&mut consumer, 3));
            consumer.release();
        }
        assert!(seen.iter().copied().eq(0..seen.len() as u64));
    }

    #[test]
    fn indices_wrap_around_thirty_two_bits() {
        let (mut producer, mut consumer) = HeapRing::pair(4, u32::MAX - 1);
        assert_eq!(producer.push_slice(&[1u64, 2, 3, 4], |n| *n), Ok(4));
        producer.submit();
        assert_eq!(consumer.gauge().filled(), 4);
        assert_eq!(take(&mut consumer, 4), [1, 2, 3, 4]);
    }

    #[test]
    fn an_invalid_producer_index_is_an_error() {
        let (producer, mut consumer) = HeapRing::<u64>::pair(4, 0);
        producer.break_index();
        let mut out = Vec::new();
        assert_eq!(
            consumer.take_into(&mut out, 8),
            Err(BrokenRing { producer: 5, consumer: 0, capacity: 4 })
        );
        // The invalid index is also rejected the second time.
        assert!(consumer.take_into(&mut out, 5).is_err());
        assert!(out.is_empty());
    }

    #[test]
    fn an_invalid_consumer_index_is_an_error() {
        let (mut producer, consumer) = HeapRing::<u64>::pair(4, 0);
        consumer.break_index();
        assert_eq!(producer.free(), Err(BrokenRing { producer: 0, consumer: 5, capacity: 4 }));
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::thread;

    use super::*;
    use crate::sync::model;

    const ITEMS: [u64; 5] = [0, 1, 2, 3, 4];

    /// Fills in all items, as many at a time as there is room for.
    fn produce(mut producer: Producer<u64>) {
        let mut left = &ITEMS[..];
        while !left.is_empty() {
            let pushed = producer.push_slice(left, |item| *item).unwrap();
            producer.submit();
            left = &left[pushed..];
            thread::yield_now();
        }
    }

    /// The indices wrap on the way, and so do the slots.
    #[test]
    fn slots_are_taken_in_the_order_in_which_they_were_filled() {
        model(|| {
            let (producer, mut consumer) = HeapRing::pair(2, u32::MAX - 1);
            let other = thread::spawn(move || produce(producer));
            let mut seen = Vec::new();
            while seen.len() < ITEMS.len() {
                consumer.take_into(&mut seen, 2).unwrap();
                consumer.release();
                thread::yield_now();
            }
            assert_eq!(seen, ITEMS);
            other.join().unwrap();
        });
    }

    /// A gauge may be outdated, but never reports an empty ring as full.
    #[test]
    fn a_gauge_shows_no_more_than_was_put_in() {
        model(|| {
            let (mut producer, mut consumer) = HeapRing::pair(4, u32::MAX);
            let gauge = consumer.gauge();

            let taker = thread::spawn(move || {
                let mut seen = Vec::new();
                consumer.take_into(&mut seen, 2).unwrap();
                consumer.release();
                // The ring must stay: a gauge does not keep it.
                (seen.len() as u32, consumer)
            });
            let putter = thread::spawn(move || {
                producer.push_slice(&ITEMS[..2], |item| *item).unwrap();
                producer.submit();
            });
            assert!(gauge.filled() <= 2);
            putter.join().unwrap();

            let (taken, _consumer) = taker.join().unwrap();
            assert_eq!(gauge.filled() + taken, 2);
        });
    }
}
