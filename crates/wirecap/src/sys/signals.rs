//! Signals of the process, which the engine's threads do not handle.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

/// Signals that a thread raises itself (faults). If they were blocked, they would end the process.
const OWN_FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Runs `work` with all signals of this thread blocked, except those that a thread raises itself. Threads started meanwhile
/// keep them blocked.
///
/// A signal to a process is delivered to any thread that does not block it: the program's handlers would run in the
/// engine's threads, concurrently with a handler in one of the program's threads.
pub(crate) fn blocked<T>(work: impl FnOnce() -> T) -> T {
    let _restored = Blocked::new();
    work()
}

/// The mask to restore.
struct Blocked(Option<libc::sigset_t>);

impl Blocked {
    fn new() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both variables are local; the first is filled before it is read, and the second before it is assumed to
        // be initialised.
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
        // SAFETY: without a new mask the call only writes the current one, to a local variable.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr());
            libc::sigismember(mask.as_ptr(), libc::SIGALRM) == 0
        }
    }

    #[test]
    fn threads_started_meanwhile_block_signals_and_their_starter_does_not() {
        assert!(takes_alarms());
        let made = blocked(|| {
            assert!(!takes_alarms());
            std::thread::spawn(takes_alarms)
        });
        assert!(!made.join().unwrap());
        assert!(takes_alarms());
    }
}
