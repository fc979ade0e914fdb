//! Forks of the process: from then on two processes have its captures.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// How many forks this process and those that it was forked from have made.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// How many forks there were until now. Counting begins with the first call.
pub(crate) fn count() -> u64 {
    extern "C" fn note() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // Where there is no memory for it, forks are not noticed.
        // SAFETY: the function may be called in a child, whatever the parent's threads did.
        let _ = unsafe { libc::pthread_atfork(None, Some(note), Some(note)) };
    });
    FORKS.load(Ordering::Relaxed)
}

/// Whether there was a fork since there were `before` of them.
#[inline]
pub(crate) fn is_past(before: u64) -> bool {
    FORKS.load(Ordering::Relaxed) != before
}

/// Which of the processes that have a handle may read from it, where only one of them can: the one that is the first
/// to do so after a fork.
#[derive(Debug)]
pub(crate) struct SoleReader {
    /// How often the right to read was claimed, in memory that the processes share.
    claims: NonNull<AtomicU64>,
    /// How often, by what this process knows.
    known: u64,
    /// The forks at the last claim.
    forks: u64,
}

// SAFETY: the memory is the value's own, and is accessed atomically.
unsafe impl Send for SoleReader {}

impl SoleReader {
    pub(crate) fn new() -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, which is zero.
        let place = unsafe {
            mmap_anonymous(std::ptr::null_mut(), size_of::<AtomicU64>(), protection, MapFlags::SHARED)?
        };
        let claims = NonNull::new(place.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { claims, known: 0, forks: count() })
    }

    /// Whether this process may read.
    #[inline]
    pub(crate) fn may_read(&mut self) -> bool {
        !is_past(self.forks) || self.claim()
    }

    #[cold]
    fn claim(&mut self) -> bool {
        let forks = count();
        // SAFETY: mapped until this is dropped.
        let claims = unsafe { self.claims.as_ref() };
        let next = self.known + 1;
        let is_ours = claims.compare_exchange(self.known, next, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_ours {
            (self.known, self.forks) = (next, forks);
        }
        is_ours
    }
}

impl Drop for SoleReader {
    fn drop(&mut self) {
        // SAFETY: it has no other user any more.
        let _ = unsafe { munmap(self.claims.as_ptr().cast(), size_of::<AtomicU64>()) };
    }
}
