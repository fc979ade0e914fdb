//! Who reads from a handle: one thread at a time.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Nobody reads.
const NOBODY: usize = 0;

/// The reader's seat of a handle.
///
/// A callback may leave a read by longjmp or by an exception that passes us without a trace, so a seat may be
/// taken by a call that is no more. The same thread gets it again in any case; and whether the call that
/// took it still runs can be told from where its frame was on the stack.
#[derive(Debug)]
pub(crate) struct Turn {
    thread: AtomicUsize,
    /// Where the reading call stands on its thread's stack.
    frame: AtomicUsize,
    /// The handle was closed while somebody read.
    closed: AtomicBool,
}

/// What a call is among the calls that read from a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seat {
    /// The only one.
    First,
    /// One from a callback of another.
    Nested,
}

/// A number for this thread, which a child process has too: the address of something of its own.
fn this_thread() -> usize {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

impl Turn {
    pub(crate) const fn new() -> Self {
        Self { thread: AtomicUsize::new(NOBODY), frame: AtomicUsize::new(0), closed: AtomicBool::new(false) }
    }

    /// Takes the seat; `None` while another thread has it.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Seat> {
        let mark = 0_u8;
        let (thread, frame) = (this_thread(), (&raw const mark).addr());
        match self.thread.compare_exchange(NOBODY, thread, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => {}
            Err(owner) if owner != thread => return None,
            // Stacks grow downwards: what was called later stands lower.
            Err(_) if frame < self.frame.load(Ordering::Relaxed) => return Some(Seat::Nested),
            Err(_) => {}
        }
        self.frame.store(frame, Ordering::Relaxed);
        Some(Seat::First)
    }

    /// Leaves the seat. Whether it is now the caller's to free the handle.
    #[inline]
    #[must_use = "nobody else frees the handle"]
    pub(crate) fn leave(&self, seat: Seat) -> bool {
        if seat == Seat::Nested {
            return false;
        }
        self.thread.store(NOBODY, Ordering::SeqCst);
        self.is_closed() && self.take_for_good()
    }

    /// Closes the handle. Whether it is the caller's to free it: if not, whoever reads will.
    #[must_use = "nobody else frees the handle"]
    pub(crate) fn close(&self) -> bool {
        let mark = 0_u8;
        let abandoned = self.thread.load(Ordering::Relaxed) == this_thread()
            && (&raw const mark).addr() >= self.frame.load(Ordering::Relaxed);
        self.closed.store(true, Ordering::SeqCst);
        abandoned || self.take_for_good()
    }

    /// Whether the handle was closed.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Of all who try after the handle was closed one succeeds, and not while somebody reads.
    fn take_for_good(&self) -> bool {
        self.thread.compare_exchange(NOBODY, usize::MAX, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_reads_at_a_time_and_may_read_again_from_a_callback() {
        let turn = Turn::new();
        let seat = turn.enter().unwrap();
        assert_eq!(seat, Seat::First);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(turn.enter().is_none()));
        });
        #[inline(never)]
        fn callback(turn: &Turn) -> Seat {
            let room = std::hint::black_box([0_u8; 512]);
            let seat = turn.enter().unwrap();
            std::hint::black_box(room);
            seat
        }
        let nested = callback(&turn);
        assert_eq!(nested, Seat::Nested);
        assert!(!turn.leave(nested));
        assert!(!turn.leave(seat));
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(turn.enter(), Some(Seat::First)));
        });
    }

    #[test]
    fn a_handle_closed_while_it_is_read_is_freed_by_the_reader() {
        let turn = Turn::new();
        let seat = turn.enter().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(!turn.close()));
        });
        assert!(turn.leave(seat), "the reader is the last one");
        let idle = Turn::new();
        assert!(idle.close(), "nobody reads");
    }
}
