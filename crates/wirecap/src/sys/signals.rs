//! Signals of the process, which are none of the engine's threads' business.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

/// Signals that a thread raises by what it does itself. Blocked, they would end the process.
const OWN_FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Does `work` with all signals of this thread blocked, as they are for good in the threads that it makes; but for those that
/// a thread raises itself.
///
/// A signal to a process goes to any thread that takes it: the program's handlers would run in the engine's threads,
/// beside the one that handles the next signal in a thread of the program's.
pub(crate) fn blocked<T>(work: impl FnOnce() -> T) -> T {
    let _restored = Blocked::new();
    work()
}

/// The mask to go back to.
struct Blocked(Option<libc::sigset_t>);

impl Blocked {
    fn new() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the places are ours; the first is filled before it is read, and the second before it is taken for filled.
        Self(unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for signal in OWN_FAULTS {
                libc::sigdelset(all.as_mut_ptr(), signal);
            }
            let status = libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            (status == 0).then(|| before.assume_init())
        })
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // SAFETY: a mask that this thread had.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    /// Whether this thread takes SIGALRM.
    fn takes_alarms() -> bool {
        let mut mask = MaybeUninit::uninit();
        // SAFETY: without a new mask the call only writes the present one, to a place that is ours.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr());
            libc::sigismember(mask.as_ptr(), libc::SIGALRM) == 0
        }
    }

    #[test]
    fn threads_that_are_made_meanwhile_take_no_signals_and_their_maker_does_again() {
        assert!(takes_alarms());
        let made = blocked(|| {
            assert!(!takes_alarms());
            std::thread::spawn(takes_alarms)
        });
        assert!(!made.join().unwrap());
        assert!(takes_alarms());
    }
}
