//! Errors as libpcap's callers get them: texts in buffers of a fixed size.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};

pub(crate) use wirecap_boundary::{cancel, caught, guarded};
pub(crate) use wirecap_units::error::causes;

use crate::abi::ERRBUF_BYTES;
use crate::real;

/// Writes `text` into a caller's buffer, truncated to its size.
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
