//! The boundary between the engine and C programs, for the C libraries: a panic becomes a text and
//! does not cross it, and threads are not cancelled in engine code.
#![allow(unsafe_code)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`, which may panic or block. A panic must not enter C code. The thread cannot be
/// cancelled meanwhile, since the unwinding of a cancellation must not be caught.
///
/// # Errors
///
/// The text of the panic.
pub fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let before = cancel::disable();
    let outcome = caught(work);
    cancel::restore(before);
    outcome
}

/// Runs `work`, which may panic but makes no system call at which the thread could be cancelled.
///
/// # Errors
///
/// The text of the panic.
#[inline]
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| words(&*panic))
}

#[cold]
fn words(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("internal error of wirecap: {}", message.unwrap_or_default())
}

/// Cancellation of threads, with which some programs end their captures.
pub mod cancel {
    use std::ffi::c_int;
    use std::ptr;

    const DISABLE: c_int = 1;

    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }

    /// Disables cancellation of this thread; returns the previous state.
    #[inline]
    pub(super) fn disable() -> c_int {
        let mut before = 0;
        // SAFETY: the pointer is to a local variable.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        before
    }

    #[inline]
    pub(super) fn restore(before: c_int) {
        // SAFETY: the state is from `disable` in this thread.
        unsafe { pthread_setcancelstate(before, ptr::null_mut()) };
    }

    /// Ends this thread if it was cancelled. No function between here and the program may catch the
    /// unwinding.
    #[inline]
    pub fn point() {
        // SAFETY: the function has no preconditions.
        unsafe { pthread_testcancel() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_text() {
        assert_eq!(guarded(|| 7), Ok(7));
        let said = |work: fn() -> u32| guarded(work).unwrap_err();
        assert_eq!(said(|| panic!("no cell")), "internal error of wirecap: no cell");
        assert_eq!(said(|| panic!("no cell {}", 3)), "internal error of wirecap: no cell 3");
    }
}
