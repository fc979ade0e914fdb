//! Errors in libpcap's form: texts in buffers of a fixed size.
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
    // SAFETY: guaranteed by the caller; the text and its terminator fit into the buffer.
    unsafe {
        buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), end);
        buffer.add(end).write(0);
    }
}

/// Copies a C string; null gives an empty one.
///
/// # Safety
///
/// `text` must be null or a string that stays valid during the call.
pub(crate) unsafe fn text(text: *const c_char) -> String {
    match text.is_null() {
        true => String::new(),
        // SAFETY: guaranteed by the caller.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    }
}

/// The text of a system error in libpcap's format, `DOING: REASON`.
pub(crate) fn system(doing: &str, errno: c_int) -> String {
    // SAFETY: the function accepts any number; its text is valid until this thread's next call.
    let says = unsafe { text(real::strerror(errno)) };
    format!("{doing}: {says}")
}
