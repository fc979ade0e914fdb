//! Signals of the process, which the engine's threads do not handle.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

use rustix::io::Errno;

/// Signals that a thread raises itself (faults). If they were blocked, they would end the process.
const OWN_FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Runs `work` with all signals of this thread blocked, except those that a thread raises itself.
/// Threads started meanwhile keep them blocked.
///
/// A signal to a process is delivered to any thread that does not block it: the program's handlers
/// would run in the engine's threads, concurrently with a handler in one of the program's threads.
pub(crate) fn blocked<T>(work: impl FnOnce() -> T) -> T {
    let _restored = Blocked::new();
    work()
}

/// Runs a system call. If it exceeds the limit on the size of files, it fails, and the signal that
/// would end the process (SIGXFSZ) is not delivered.
pub(crate) fn without_file_size_signal<T>(
    call: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    blocked(|| {
        let outcome = call();
        if !matches!(outcome, Err(Errno::FBIG)) {
            return outcome;
        }

        let mut signal = MaybeUninit::uninit();
        let no_wait = libc::timespec { tv_sec: 0, tv_nsec: 0 };

        // SAFETY: the set is local, and filled before it is used; the call takes the signal if it
        // is pending.
        unsafe {
            libc::sigemptyset(signal.as_mut_ptr());
            libc::sigaddset(signal.as_mut_ptr(), libc::SIGXFSZ);
            libc::sigtimedwait(signal.as_ptr(), ptr::null_mut(), &raw const no_wait);
        }

        outcome
    })
}

/// The mask to restore.
struct Blocked(Option<libc::sigset_t>);

impl Blocked {
    fn new() -> Self {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();

        // SAFETY: both variables are local; the first is filled before it is read, and the second
        // before it is assumed to be initialised.
        Self(unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for signal in OWN_FAULTS {
                libc::sigdelset(all.as_mut_ptr(), signal);
            }
            let status =
                libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
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

    #[test]
    fn a_file_size_signal_is_not_delivered_later() {
        let outcome: Result<(), Errno> = without_file_size_signal(|| {
            // SAFETY: the signal, which would end the process, is blocked in this thread.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGXFSZ) };
            Err(Errno::FBIG)
        });
        assert_eq!(outcome, Err(Errno::FBIG));
    }

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
