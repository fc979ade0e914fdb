//! The filter of a handle, or of all handles of a group, and the packets that it filters in user
//! space.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wirecap::filter::ClassicInsn;

use crate::wanted::Wanted;

/// The filter of a handle, or of all handles of a group.
#[derive(Debug, Default)]
pub(crate) struct FilterSlot {
    pub(crate) sieve: Mutex<Option<Arc<Sieve>>>,
    /// Incremented when `sieve` or a handle's direction changes.
    pub(crate) generation: AtomicU32,
    pub(crate) program: Mutex<Vec<ClassicInsn>>,
    /// The filter runs in user space on all packets, and not in the kernel.
    pub(crate) sifts: AtomicBool,
}

/// A filter, and the packets that it filters in user space.
#[derive(Debug)]
pub(crate) struct Sieve {
    pub(crate) wanted: Wanted,
    /// For each ring, how many packets are filtered in user space, counted from its first packet:
    /// the kernel filters later ones. `None` for all packets.
    pub(crate) until: Option<Box<[u64]>>,
}

impl FilterSlot {
    pub(crate) fn sift(&self, sieve: Sieve) {
        *locked(&self.sieve) = Some(Arc::new(sieve));
        self.generation.fetch_add(1, Ordering::Release);
    }
}

impl Sieve {
    /// How many packets of a ring are filtered in user space, counted from its first packet.
    pub(crate) fn until(&self, ring: usize) -> u64 {
        // If the ring did not exist when the filter was set, all of its packets arrived later.
        self.until.as_ref().map_or(u64::MAX, |until| until.get(ring).copied().unwrap_or(0))
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
