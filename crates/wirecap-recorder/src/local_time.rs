//! Local time and `strftime` of the C library.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::mem::MaybeUninit;

fn local(seconds: i64) -> libc::tm {
    let mut broken_down = MaybeUninit::zeroed();
    // SAFETY: both pointers are to valid objects of the expected types. The function fails only for years
    // that do not fit an `int`; the structure then stays zero, which is a valid value.
    unsafe {
        libc::localtime_r(&raw const seconds, broken_down.as_mut_ptr());
        broken_down.assume_init()
    }
}

/// The seconds by which the local clock is ahead of UTC at this time.
pub(crate) fn utc_offset(seconds: i64) -> i64 {
    local(seconds).tm_gmtoff
}

/// The result of strftime(3) for the pattern, or the pattern itself if the result is empty or longer than a
/// file name may be.
pub(crate) fn format(pattern: &str, seconds: i64) -> String {
    let Ok(c_pattern) = CString::new(pattern) else { return pattern.to_owned() };
    let (time, mut text) = (local(seconds), [0_u8; 512]);
    // SAFETY: the pattern is NUL-terminated, and the function writes at most `text.len()` bytes.
    let len =
        unsafe { libc::strftime(text.as_mut_ptr().cast(), text.len(), c_pattern.as_ptr(), &raw const time) };
    if len == 0 { pattern.to_owned() } else { String::from_utf8_lossy(&text[..len]).into_owned() }
}
