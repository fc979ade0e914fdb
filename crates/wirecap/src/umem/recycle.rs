//! The recycle queue: cells return from any thread (the paper's work-queue pair, section 3.2.2).
//!
//! It holds whole lists of cells, linked through the lists themselves, so there is always room:
//! adding a list never fails, blocks or allocates. The next capture from the ring takes all lists
//! at once, so a plain linked stack suffices (single elements are never popped, so the ABA problem
//! cannot occur).

#![allow(unsafe_code)]

use std::ptr;

use crate::sync::{AtomicPtr, Ordering};
use crate::sys::xdp::Descriptor;
use crate::umem::fragments::Fragmented;

/// The captured cells of one chunk.
#[derive(Debug)]
pub(crate) struct CellList {
    pub(crate) cells: Vec<Descriptor>,
    /// Bytes of the packets in them, as they were on the wire.
    pub(crate) wire_bytes: u64,
    /// Number of cells that waited behind them, if the ring reported it.
    pub(crate) left_behind: Option<u32>,
    /// The packets in them, if some packets have several cells.
    pub(crate) fragmented: Fragmented,
    /// The list below this one while it is in a recycle queue.
    next: *mut CellList,
}

// SAFETY: `next` is only set and followed by the recycle queue, which owns the whole stack then.
unsafe impl Send for CellList {}
// SAFETY: as above; nothing reaches `next` through a shared reference.
unsafe impl Sync for CellList {}

impl CellList {
    /// An empty list with room for `capacity` cells.
    pub(crate) fn with_capacity(capacity: usize) -> Box<Self> {
        Box::new(Self {
            cells: Vec::with_capacity(capacity),
            wire_bytes: 0,
            left_behind: None,
            fragmented: Fragmented::default(),
            next: ptr::null_mut(),
        })
    }

    /// Empties the list for its next use.
    pub(crate) fn clear(&mut self) {
        self.cells.clear();
        if !self.fragmented.packets().is_empty() {
            self.fragmented.clear();
        }
    }
}

/// Lists of cells that return to their pool.
#[derive(Debug)]
pub(crate) struct RecycleQueue {
    top: AtomicPtr<CellList>,
}

impl RecycleQueue {
    pub(crate) fn new() -> Self {
        Self { top: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Puts `list` in.
    pub(crate) fn push(&self, list: Box<CellList>) {
        let list = Box::into_raw(list);
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            // SAFETY: until the exchange below succeeds, `list` is ours alone.
            unsafe { (*list).next = top };
            // Release pairs with the acquire in `take_all`.
            match self.top.compare_exchange_weak(top, list, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(current) => top = current,
            }
        }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.top.load(Ordering::Relaxed).is_null()
    }

    /// Takes all lists that wait, the latest first.
    pub(crate) fn take_all(&self) -> Recycled {
        // Acquire pairs with the release in `push`: the lists' contents are seen.
        Recycled { top: self.top.swap(ptr::null_mut(), Ordering::Acquire) }
    }
}

impl Drop for RecycleQueue {
    fn drop(&mut self) {
        drop(self.take_all());
    }
}

/// A place for one unused list, so that the next chunk allocates none.
#[derive(Debug)]
pub(crate) struct Spare {
    list: AtomicPtr<CellList>,
}

impl Spare {
    pub(crate) fn new() -> Self {
        Self { list: AtomicPtr::new(ptr::null_mut()) }
    }

    /// An empty list with room for `capacity` cells: the stored one, if it is large enough.
    pub(crate) fn list(&self, capacity: usize) -> Box<CellList> {
        match self.exchange(ptr::null_mut()) {
            Some(list) if list.cells.capacity() >= capacity => list,
            _ => CellList::with_capacity(capacity),
        }
    }

    /// Stores `list` and replaces the previous one.
    pub(crate) fn put(&self, mut list: Box<CellList>) {
        list.clear();
        drop(self.exchange(Box::into_raw(list)));
    }

    fn exchange(&self, list: *mut CellList) -> Option<Box<CellList>> {
        // A thread that takes a list sees the writes before it was stored.
        let list = self.list.swap(list, Ordering::AcqRel);
        // SAFETY: the stored pointer came from `Box::into_raw` in `put`, and is taken out once.
        (!list.is_null()).then(|| unsafe { Box::from_raw(list) })
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        drop(self.exchange(ptr::null_mut()));
    }
}

/// The lists taken out of a recycle queue.
pub(crate) struct Recycled {
    top: *mut CellList,
}

impl Iterator for Recycled {
    type Item = Box<CellList>;

    fn next(&mut self) -> Option<Box<CellList>> {
        if self.top.is_null() {
            return None;
        }
        // SAFETY: the pointer came from `Box::into_raw` in `push`, and `take_all` made the whole
        // stack this iterator's own.
        let list = unsafe { Box::from_raw(self.top) };
        self.top = list.next;
        Some(list)
    }
}

impl Drop for Recycled {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn list(address: u64) -> Box<CellList> {
        let mut list = CellList::with_capacity(1);
        list.cells.push(Descriptor { address, len: 0, options: 0 });
        list
    }

    #[test]
    fn every_list_returns_once() {
        let queue = RecycleQueue::new();
        assert!(queue.is_empty());
        for address in 0..3 {
            queue.push(list(address));
        }
        let addresses: Vec<u64> = queue.take_all().map(|list| list.cells[0].address).collect();
        assert_eq!(addresses, [2, 1, 0]);
        assert!(queue.is_empty());
    }

    #[test]
    fn lists_pushed_by_many_threads_all_arrive() {
        const PER_THREAD: u64 = if cfg!(miri) { 20 } else { 1000 };
        let queue = RecycleQueue::new();
        let mut seen = Vec::new();

        std::thread::scope(|scope| {
            for thread in 0..4 {
                let queue = &queue;
                scope.spawn(move || {
                    for n in 0..PER_THREAD {
                        queue.push(list(thread * PER_THREAD + n));
                    }
                });
            }
            for _ in 0..PER_THREAD {
                seen.extend(queue.take_all().map(|list| list.cells[0].address));
            }
        });

        seen.extend(queue.take_all().map(|list| list.cells[0].address));
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..4 * PER_THREAD));
    }

    #[test]
    fn lists_left_behind_are_freed() {
        let queue = RecycleQueue::new();
        queue.push(list(1));
        queue.push(list(2));
        let mut taken = queue.take_all();
        queue.push(list(3));
        taken.next();
    }
}

#[cfg(all(test, loom))]
mod model {
    use std::sync::Arc;

    use loom::thread;

    use super::*;
    use crate::sync::model;

    #[test]
    fn every_list_returns_once() {
        model(|| {
            let queue = Arc::new(RecycleQueue::new());
            let pushers = [1u64, 2].map(|address| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    let mut list = CellList::with_capacity(1);
                    list.cells.push(Descriptor { address, ..Descriptor::default() });
                    queue.push(list);
                })
            });

            let mut seen: Vec<u64> = queue.take_all().map(|list| list.cells[0].address).collect();
            pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
            seen.extend(queue.take_all().map(|list| list.cells[0].address));
            seen.sort_unstable();
            assert_eq!(seen, [1, 2]);
        });
    }
}
