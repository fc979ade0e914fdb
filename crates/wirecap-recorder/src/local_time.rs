//! The C library's clock on the wall: local time, and `strftime`.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::mem::MaybeUninit;

fn local(seconds: i64) -> libc::tm {
    let mut broken_down = MaybeUninit::zeroed();
    // SAFETY: both point to what the function expects. It fails only for years that an `int` does not hold; then the
    // structure stays as it is, with zeros, which is a value of its own.
    unsafe {
        libc::localtime_r(&raw const seconds, broken_down.as_mut_ptr());
        broken_down.assume_init()
    }
}

/// How far the local clock is ahead of UTC at this time, in seconds.
pub(crate) fn utc_offset(seconds: i64) -> i64 {
    local(seconds).tm_gmtoff
}

/// What strftime(3) makes of the pattern; the pattern itself where that is longer than file names are.
pub(crate) fn format(pattern: &str, seconds: i64) -> String {
    let Ok(c_pattern) = CString::new(pattern) else { return pattern.to_owned() };
    let (time, mut text) = (local(seconds), [0_u8; 512]);
    // SAFETY: the pattern ends with a zero, and the function writes no more than the text has room for.
    let len =
        unsafe { libc::strftime(text.as_mut_ptr().cast(), text.len(), c_pattern.as_ptr(), &raw const time) };
    if len == 0 { pattern.to_owned() } else { String::from_utf8_lossy(&text[..len]).into_owned() }
}
