//! The synchronisation primitives of the engine: the standard ones, or loom's under `--cfg loom`,
//! so that the very code that runs is the code that is model-checked.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
};

#[cfg(not(loom))]
pub(crate) use std::{
    cell::UnsafeCell,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
};

use std::sync::{PoisonError, TryLockError};

/// Locks `mutex`, also when a thread panicked while it held it.
///
/// No code of the user's runs under any of the engine's locks, so a panic there is a broken invariant
/// that has already been reported; the packets of the other threads are still worth delivering.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks `mutex` if it is free.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Tries every schedule of `run`'s threads in which threads are interrupted up to three times, or
/// LOOM_MAX_PREEMPTIONS times.
#[cfg(all(test, loom))]
pub(crate) fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(run);
}
