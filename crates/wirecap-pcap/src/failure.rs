//! Errors as libpcap's callers get them: texts in buffers of a fixed size.
#![allow(unsafe_code)]

use std::any::Any;
use std::error::Error;
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::ERRBUF_BYTES;
use crate::real;

/// Writes `text` into a caller's buffer, cut to what it holds.
///
/// # Safety
///
/// `buffer` must be null or have room for `PCAP_ERRBUF_SIZE` bytes.
pub(crate) unsafe fn write(buffer: *mut c_char, text: &str) {
    if buffer.is_null() {
        return;
    }
    let mut end = text.len().min(ERRBUF_BYTES - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // SAFETY: the caller's promise; what is written is shorter.
    unsafe {
        buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), end);
        buffer.add(end).write(0);
    }
}

/// A text of the real library's.
///
/// # Safety
///
/// `text` must be null or a string that stays.
pub(crate) unsafe fn text(text: *const c_char) -> String {
    match text.is_null() {
        true => String::new(),
        // SAFETY: the caller's promise.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    }
}

/// `DOING: what the system says`, as libpcap has it.
pub(crate) fn system(doing: &str, errno: c_int) -> String {
    // SAFETY: the function takes any number; its text stays until this thread's next call.
    let says = unsafe { text(real::strerror(errno)) };
    format!("{doing}: {says}")
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let _ = write!(text, ": {source}");
        cause = source.source();
    }
    text
}

/// Does something that may panic, which must not cross into C, or sleep. Meanwhile nobody can cancel the thread:
/// the unwinding that comes of it must not be caught.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let before = cancel::disable();
    let outcome = caught(work);
    cancel::restore(before);
    outcome
}

/// Does something that may panic, and makes no system call at which the thread could be cancelled.
#[inline]
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| words(&*panic))
}

#[cold]
fn words(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("internal error of wirecap: {}", message.unwrap_or_default())
}

/// Cancelling of threads: some programs end their captures in this way.
pub(crate) mod cancel {
    use std::ffi::c_int;
    use std::ptr;

    const DISABLE: c_int = 1;

    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }

    /// Keeps this thread from being cancelled; gives what was before.
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
    pub(crate) fn point() {
        // SAFETY: the function has no conditions.
        unsafe { pthread_testcancel() };
    }
}
