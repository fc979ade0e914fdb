//! The two options of a netlink socket that rustix does not have.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Asks the kernel to honour filters in dump requests (since Linux 4.20; before, it ignores them).
pub(crate) fn set_strict_checking(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads `size_of::<c_int>()` bytes of `on`, which lives until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_NETLINK,
            libc::NETLINK_GET_STRICT_CHK,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The number of the network namespace of `socket`, which is never reused while the machine runs. `None` before
/// Linux 5.14.
pub(crate) fn namespace_cookie(socket: BorrowedFd<'_>) -> Option<u64> {
    let mut cookie = 0_u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `cookie`, and the new length to `len`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    (result == 0).then_some(cookie)
}
