//! The boundary between the engine and programs in C, for the libraries that have one: no panic crosses it, no
//! thread is cancelled behind it, and errors cross it as texts.
#![allow(unsafe_code)]

use std::any::Any;
use std::error::Error;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does something that may panic, which must not cross into C, or sleep. Meanwhile the thread cannot be cancelled:
/// the unwinding that comes of it must not be caught.
///
/// # Errors
///
/// What the panic said.
pub fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let before = cancel::disable();
    let outcome = caught(work);
    cancel::restore(before);
    outcome
}

/// Does something that may panic, and makes no system call at which the thread could be cancelled.
///
/// # Errors
///
/// What the panic said.
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

/// An error with its causes, in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let _ = write!(text, ": {source}");
        cause = source.source();
    }
    text
}

/// Cancelling of threads: some programs end their captures in this way.
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
    pub(super) fn disable() -> c_int {
        let mut before = 0;
        // SAFETY: the place is ours.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        before
    }

    pub(super) fn restore(before: c_int) {
        // SAFETY: the state is one that the thread had.
        unsafe { pthread_setcancelstate(before, ptr::null_mut()) };
    }

    /// Ends this thread here if it was cancelled. Nothing on the way to the program may catch the unwinding.
    pub fn point() {
        // SAFETY: the function has no conditions.
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

    #[test]
    fn an_error_text_includes_its_causes() {
        let cause = std::io::Error::other("the kernel says no");
        let error = std::io::Error::new(std::io::ErrorKind::NotFound, Outer(cause));
        assert_eq!(chain(&Outer(error)), "outer: outer: the kernel says no");
    }

    #[derive(Debug)]
    struct Outer(std::io::Error);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("outer")
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }
}
