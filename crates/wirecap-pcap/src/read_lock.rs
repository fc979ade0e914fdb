//! Which thread reads from a handle: one at a time.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::getpid;
use rustix::thread::gettid;

/// No thread reads.
const NO_THREAD: usize = 0;
/// The bit of a closed handle. Threads' numbers are smaller.
const CLOSED: usize = 1 << (usize::BITS - 1);
/// The handle is being freed, so no thread may read any more.
const FREED: usize = usize::MAX;
/// Above every stack: no read has stored its position yet.
const NO_FRAME: usize = usize::MAX;

/// The right to read from a handle, called its seat.
///
/// A callback may leave a read by longjmp or by an exception, of which this library is not
/// notified, and a thread may be cancelled. So the seat may belong to a call that has ended. The
/// same thread always gets the seat again; the address of the call's stack frame shows whether that
/// call still runs. Another thread gets the seat if the thread that took it has ended.
#[derive(Debug)]
pub(crate) struct ReadLock {
    /// The owner and the bit `CLOSED`: one atomic operation leaves the seat or closes the handle,
    /// and its result says who frees the handle. The one that does not must not access it
    /// afterwards.
    thread: AtomicUsize,
    /// The position of the reading call on its thread's stack.
    frame: AtomicUsize,
}

/// The position of a reading call among nested ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seat {
    /// The outermost call.
    First,
    /// A call from a callback of another one.
    Nested,
}

/// This thread's number, which is its id. After a fork the child's thread keeps the number that it
/// had in the parent.
fn this_thread() -> usize {
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(NO_THREAD) });
    NUMBER.with(|number| {
        if number.get() == NO_THREAD {
            number.set(gettid().as_raw_pid().unsigned_abs() as usize);
        }
        number.get()
    })
}

/// Whether the caller is a signal handler on the alternate stack of sigaltstack(2), whose address
/// says nothing about the order of calls. The kernel hides a stack that was set with SS_AUTODISARM
/// from the handler that runs on it.
fn is_on_signal_stack() -> bool {
    // SAFETY: zeroed memory is a valid `stack_t`, and the call only writes to it.
    unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(std::ptr::null(), &raw mut stack) == 0
            && stack.ss_flags & libc::SS_ONSTACK != 0
    }
}

/// Whether no thread of this process has this number.
fn is_gone(thread: usize) -> bool {
    // SAFETY: signal 0 only checks whether the thread exists.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, getpid().as_raw_pid(), thread, 0) };
    sent != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

impl ReadLock {
    pub(crate) const fn new() -> Self {
        Self { thread: AtomicUsize::new(NO_THREAD), frame: AtomicUsize::new(NO_FRAME) }
    }

    /// Takes the seat; `None` while another thread has it.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Seat> {
        let mark = 0_u8;
        let thread = this_thread();
        let frame = (&raw const mark).addr();

        match self.thread.compare_exchange(NO_THREAD, thread, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => {}
            Err(owner) if owner & !CLOSED != thread => {
                // A closed handle without a reader is being freed.
                let may_take = owner & CLOSED == 0 && is_gone(owner);
                let take = || {
                    self.thread.compare_exchange(
                        owner,
                        thread,
                        Ordering::Acquire,
                        Ordering::Relaxed,
                    )
                };
                if !may_take || take().is_err() {
                    return None;
                }
            }

            // Stacks grow downwards: a later call has a lower address.
            Err(_) if frame < self.frame.load(Ordering::Relaxed) => return Some(Seat::Nested),
            Err(_) => {}
        }

        self.frame.store(frame, Ordering::Relaxed);
        Some(Seat::First)
    }

    /// Leaves the seat. Returns whether the caller must free the handle.
    #[inline]
    #[must_use = "no other code frees the handle"]
    pub(crate) fn leave(&self, seat: Seat) -> bool {
        if seat == Seat::Nested {
            return false;
        }

        self.frame.store(NO_FRAME, Ordering::Relaxed);
        let thread = this_thread();
        match self.thread.compare_exchange(thread, NO_THREAD, Ordering::SeqCst, Ordering::Relaxed) {
            Err(owner) if owner == thread | CLOSED => {
                // Closed meanwhile; only this thread may free the handle now.
                self.thread.store(FREED, Ordering::SeqCst);
                true
            }
            // Another thread took the seat: in the child of a fork inside a read, this thread
            // counts as ended.
            Ok(_) | Err(_) => false,
        }
    }

    /// Whether the caller runs inside a read of this thread: it is a callback, or a signal handler
    /// that interrupted the read. On an alternate signal stack a read that was left by longjmp
    /// counts as well: such a handler cannot stop the capture, which lasts until the process ends.
    pub(crate) fn is_on_this_stack(&self) -> bool {
        let mark = 0_u8;
        let owner = self.thread.load(Ordering::Relaxed) & !CLOSED;
        owner != NO_THREAD
            && owner == this_thread()
            && ((&raw const mark).addr() < self.frame.load(Ordering::Relaxed)
                || is_on_signal_stack())
    }

    /// Closes the handle. Returns whether the caller must free it; if not, the reading thread does.
    #[must_use = "no other code frees the handle"]
    pub(crate) fn close(&self) -> bool {
        let owner = self.thread.fetch_or(CLOSED, Ordering::SeqCst);
        let is_unread = match owner {
            NO_THREAD => true,
            owner if owner & CLOSED != 0 => false,
            owner if owner == this_thread() => !self.is_on_this_stack(),
            owner => is_gone(owner),
        };
        let free = || {
            self.thread.compare_exchange(owner | CLOSED, FREED, Ordering::SeqCst, Ordering::Relaxed)
        };
        is_unread && free().is_ok()
    }

    /// Whether the handle was closed.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.thread.load(Ordering::SeqCst) & CLOSED != 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn one_thread_reads_at_a_time_and_may_read_again_from_a_callback() {
        let turn = ReadLock::new();
        let seat = turn.enter().unwrap();
        assert_eq!(seat, Seat::First);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(turn.enter().is_none()));
        });
        #[inline(never)]
        fn callback(turn: &ReadLock) -> Seat {
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

    /// A turn whose reader has ended.
    fn orphaned() -> ReadLock {
        let turn = ReadLock::new();
        std::thread::scope(|scope| {
            scope.spawn(|| turn.enter().unwrap());
        });
        // The join may return shortly before the kernel has removed the thread.
        while !is_gone(turn.thread.load(Ordering::Relaxed)) {
            std::thread::yield_now();
        }
        turn
    }

    #[test]
    fn a_seat_is_free_after_its_thread_has_ended() {
        assert_eq!(orphaned().enter(), Some(Seat::First));
        assert!(orphaned().close(), "no thread reads any more");
    }

    #[test]
    fn a_handler_on_an_alternate_stack_does_not_free_a_handle_that_is_read() {
        static TURN: ReadLock = ReadLock::new();
        static IS_INSIDE: AtomicBool = AtomicBool::new(false);
        static MUST_FREE: AtomicBool = AtomicBool::new(true);
        extern "C" fn close(_: libc::c_int) {
            IS_INSIDE.store(TURN.is_on_this_stack(), Ordering::SeqCst);
            MUST_FREE.store(TURN.close(), Ordering::SeqCst);
        }
        #[inline(never)]
        fn read() -> bool {
            let seat = TURN.enter().unwrap();
            // SAFETY: the handler uses atomics and system calls only.
            unsafe { libc::raise(libc::SIGUSR2) };
            TURN.leave(seat)
        }

        // Above the frames of the calls below, where an outer call would be.
        let mut memory = [0_u8; 1 << 16];
        let stack =
            libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };

        // SAFETY: the memory outlives its use: the alternate stack is disabled below.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = close as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);

            let mut before: libc::stack_t = std::mem::zeroed();
            assert_eq!(libc::sigaltstack(&raw const stack, &raw mut before), 0);

            let reader_frees = read();
            assert_eq!(libc::sigaltstack(&raw const before, std::ptr::null_mut()), 0);
            assert!(reader_frees, "the reader is the last one");
        }

        std::hint::black_box(&mut memory);
        assert!(IS_INSIDE.load(Ordering::SeqCst));
        assert!(!MUST_FREE.load(Ordering::SeqCst), "the read has not ended");
    }

    #[test]
    fn a_handle_that_is_closed_when_a_read_ends_is_freed_once() {
        for _ in 0..2_000 {
            let turn = ReadLock::new();
            let begin = std::sync::Barrier::new(2);

            let (reader_frees, closer_frees) = std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    let seat = turn.enter().unwrap();
                    begin.wait();
                    turn.leave(seat)
                });
                begin.wait();
                let closer_frees = turn.close();
                (reader.join().unwrap(), closer_frees)
            });
            assert!(reader_frees != closer_frees, "reader: {reader_frees}, closer: {closer_frees}");
            assert!(turn.is_closed() && turn.enter().is_none());
        }
    }

    #[test]
    fn a_read_that_lost_its_seat_does_not_free_an_open_handle() {
        let turn = ReadLock::new();
        let seat = turn.enter().unwrap();
        // What another thread of a fork's child does, which does not find this one.
        let other = this_thread() + 1;
        turn.thread.store(other, Ordering::SeqCst);
        assert!(!turn.leave(seat));
        assert_eq!(turn.thread.load(Ordering::SeqCst), other, "the other thread reads");
    }

    #[test]
    fn a_closed_handle_has_no_next_read() {
        let turn = ReadLock::new();
        assert!(turn.close());
        assert!(turn.enter().is_none());
        assert!(!turn.close(), "closed twice");
    }

    #[test]
    fn a_handle_closed_while_it_is_read_is_freed_by_the_reader() {
        let turn = ReadLock::new();
        let seat = turn.enter().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(!turn.close()));
        });
        assert!(turn.leave(seat), "the reader is the last one");
        let idle = ReadLock::new();
        assert!(idle.close(), "no thread reads");
    }
}
