//! Socket options that are plain values.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// Sets an option whose value the kernel only reads.
pub(crate) fn set_option<T>(
    socket: &impl AsFd,
    level: c_int,
    option: c_int,
    value: &T,
) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();

    // SAFETY: the pointer and the length describe `value`.
    let outcome = unsafe {
        libc::setsockopt(
            fd,
            level,
            option,
            (&raw const *value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A type of which all bit patterns are values.
///
/// # Safety
///
/// An implementation guarantees it.
pub(crate) unsafe trait Plain {}
// SAFETY: an integer.
unsafe impl Plain for c_int {}
// SAFETY: integers.
unsafe impl Plain for libc::tpacket_stats_v3 {}

/// The value of an option; bytes that the kernel does not write are 0.
pub(crate) fn get_option<T: Plain>(
    socket: &impl AsFd,
    level: c_int,
    option: c_int,
) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut bytes = size_of::<T>() as libc::socklen_t;

    // SAFETY: the pointer and the length describe `value`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            value.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };

    // SAFETY: zeroed, then written to by the kernel; `Plain` types take any bits.
    if outcome == 0 { Ok(unsafe { value.assume_init() }) } else { Err(io::Error::last_os_error()) }
}
