//! The process at the other end of a socket.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// A process that listens at a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listener {
    /// Its PID; `None` if it is not visible in this process's PID namespace.
    pub(crate) pid: Option<u32>,
    /// Its user when it started listening.
    pub(crate) uid: u32,
}

/// The process that listens at the socket that `socket` is connected to.
pub(crate) fn listener(socket: impl AsFd) -> io::Result<Listener> {
    // Not with rustix, whose `Pid` must not be 0, which the kernel returns for an invisible
    // process.
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;

    // SAFETY: the kernel writes at most `bytes` bytes to `peer`, of which any are a valid value.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }

    Ok(Listener { pid: u32::try_from(peer.pid).ok().filter(|pid| *pid > 0), uid: peer.uid })
}
