//! Detects forks of the process: after a fork, two processes have its captures.
//!
//! In the child, closing a handle only unmaps it and closes its descriptors. A block that another
//! process took is skipped once the kernel has reused it; until then the reader waits, as in
//! libpcap. Only one process can know the read position of AF_XDP rings: the process that reads
//! first after the fork owns them.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The number of forks that this process and its ancestors have made.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The number of forks so far. Counting starts with the first call.
pub(crate) fn count() -> u64 {
    extern "C" fn note() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // If there is no memory for the handlers, forks are not detected.
        // SAFETY: `note` is async-signal-safe, so it may run in a child whatever the parent's
        // threads were doing.
        let _ = unsafe { libc::pthread_atfork(None, Some(note), Some(note)) };
    });
    FORKS.load(Ordering::Relaxed)
}

/// Whether there was a fork since [`count`] returned `before`.
#[inline]
pub(crate) fn is_past(before: u64) -> bool {
    FORKS.load(Ordering::Relaxed) != before
}

/// Decides which process may read from a handle that several processes have but only one can read
/// from: the one that reads first after the fork.
#[derive(Debug)]
pub(crate) struct SoleReader {
    /// How often processes have claimed the right to read, in memory that they share.
    claims: NonNull<AtomicU64>,
    /// The number of claims that this process knows of.
    known: u64,
    /// The number of forks at this process's last claim.
    forks: u64,
}

// SAFETY: the value owns its mapping, and all accesses are atomic.
unsafe impl Send for SoleReader {}

impl SoleReader {
    pub(crate) fn new() -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the mapping is new and filled with zeroes.
        let place = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                size_of::<AtomicU64>(),
                protection,
                MapFlags::SHARED,
            )?
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
        // SAFETY: the memory is mapped until the value is dropped.
        let claims = unsafe { self.claims.as_ref() };
        let next = self.known + 1;
        let is_ours =
            claims.compare_exchange(self.known, next, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_ours {
            (self.known, self.forks) = (next, forks);
        }
        is_ours
    }
}

impl Drop for SoleReader {
    fn drop(&mut self) {
        // SAFETY: nothing else in this process uses the mapping.
        let _ = unsafe { munmap(self.claims.as_ptr().cast(), size_of::<AtomicU64>()) };
    }
}
