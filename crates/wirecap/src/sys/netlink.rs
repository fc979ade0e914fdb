//! Netlink sockets, and two of their options that rustix does not have.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use crate::sys::opener::{Inquiry, opener};

/// A netlink socket in the network namespace of this thread, or of the process that opens for this
/// one.
pub(crate) fn netlink_socket(inquiry: Inquiry) -> io::Result<OwnedFd> {
    match opener() {
        Some(opener) => opener.netlink_socket(inquiry),
        None => open_netlink_socket(inquiry),
    }
}

/// Opens a netlink socket, and binds it to the groups of notifications. Needs no privilege.
///
/// # Errors
///
/// The kernel's.
pub fn open_netlink_socket(inquiry: Inquiry) -> io::Result<OwnedFd> {
    let (protocol, groups) = match inquiry {
        Inquiry::Route { groups } => (None, groups),
        Inquiry::Generic => (Some(netlink::GENERIC), 0),
        Inquiry::Sockets => (Some(netlink::SOCK_DIAG), 0),
    };
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;

    // A kernel without this filter sends more than requested; the caller checks again.
    let _ = set_strict_checking(socket.as_fd());

    if groups != 0 {
        // The default holds the notifications of some fifty interfaces. Beyond the system's limit
        // it needs CAP_NET_ADMIN.
        if sockopt::set_socket_recv_buffer_size_force(&socket, NOTIFICATION_BYTES).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&socket, NOTIFICATION_BYTES);
        }
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    }

    Ok(socket)
}

/// Opens a socket for questions to netfilter, which the kernel answers only to a process with
/// CAP_NET_ADMIN.
pub(crate) fn open_netfilter_socket() -> io::Result<OwnedFd> {
    let protocol = Some(netlink::NETFILTER);
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?)
}

/// Memory for notifications that were not read yet: those of a thousand interfaces.
const NOTIFICATION_BYTES: usize = 4 << 20;

/// Asks the kernel to honour filters in dump requests (since Linux 4.20; before, it ignores them).
fn set_strict_checking(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;

    // SAFETY: the kernel reads `size_of::<c_int>()` bytes of `on`, which lives until the call
    // returns.
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

/// The number of the network namespace of `socket`, which is never reused while the machine runs.
/// `None` before Linux 5.14.
pub(crate) fn namespace_cookie(socket: BorrowedFd<'_>) -> Option<u64> {
    let mut cookie = 0_u64;
    let mut len = size_of::<u64>() as libc::socklen_t;

    // SAFETY: the kernel writes at most `len` bytes, the size of `cookie`, and the new length to
    // `len`.
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
