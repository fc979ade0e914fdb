//! The filter of a handle, or of all handles of a group, and on which packets it runs here.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wirecap::filter::ClassicInsn;

use crate::wanted::Wanted;

/// The filter of a handle, or of all handles of a group.
#[derive(Debug, Default)]
pub(crate) struct FilterSlot {
    pub(crate) sieve: Mutex<Option<Arc<Sieve>>>,
    /// Changes with `sieve`.
    pub(crate) generation: AtomicU32,
    pub(crate) program: Mutex<Vec<ClassicInsn>>,
    /// It runs here in the kernel's place, on all packets.
    pub(crate) sifts: AtomicBool,
}

/// A filter, and on which packets it runs here.
#[derive(Debug)]
pub(crate) struct Sieve {
    pub(crate) wanted: Wanted,
    /// The kernel filters later packets: user space filters this number of each ring's, from the first on.
    pub(crate) until: Option<Box<[u64]>>,
}

impl FilterSlot {
    pub(crate) fn sift(&self, sieve: Sieve) {
        *locked(&self.sieve) = Some(Arc::new(sieve));
        self.generation.fetch_add(1, Ordering::Release);
    }
}

impl Sieve {
    /// The number of a ring's packets to be filtered, from the first on.
    pub(crate) fn until(&self, ring: usize) -> u64 {
        // Packets of a ring that did not exist yet arrived later.
        self.until.as_ref().map_or(u64::MAX, |until| until.get(ring).copied().unwrap_or(0))
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
