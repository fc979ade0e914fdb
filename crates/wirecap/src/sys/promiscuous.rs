//! Promiscuous mode, joined through a packet socket: the kernel undoes it when the socket goes,
//! whatever way the process ends.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Keeps an interface in promiscuous mode while it lives.
#[derive(Debug)]
pub(crate) struct Promiscuous(#[expect(dead_code, reason = "held for what its drop does")] OwnedFd);

impl Promiscuous {
    pub(crate) fn join(ifindex: u32) -> io::Result<Self> {
        // Protocol 0: the socket receives nothing.
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let membership = libc::packet_mreq {
            mr_ifindex: ifindex.cast_signed(),
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        // SAFETY: the pointer and the length describe `membership`, which the kernel only reads.
        let outcome = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw const membership).cast(),
                size_of_val(&membership) as libc::socklen_t,
            )
        };
        if outcome == 0 { Ok(Self(socket)) } else { Err(io::Error::last_os_error()) }
    }
}
