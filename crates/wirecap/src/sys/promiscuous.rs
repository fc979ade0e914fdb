//! Promiscuous mode, joined through a packet socket: the kernel reverts it when the socket closes,
//! also when the process is killed.

use std::io;
use std::os::fd::OwnedFd;

use crate::sys::opener::{Handle, opener};
use crate::sys::option::set_option;
use crate::sys::packet::open_packet_socket;

/// Keeps interfaces in promiscuous mode while it lives.
#[derive(Debug)]
pub(crate) enum Promiscuous {
    Here(OwnedFd),
    Elsewhere(Handle),
}

impl Promiscuous {
    pub(crate) fn join(ifindex: u32) -> io::Result<Self> {
        match opener() {
            Some(opener) => opener.promiscuous(ifindex).map(Self::Elsewhere),
            None => join_promiscuous(ifindex).map(Self::Here),
        }
    }

    /// Also keeps another interface in promiscuous mode, by the same socket.
    pub(crate) fn join_also(&self, ifindex: u32) -> io::Result<()> {
        match (self, opener()) {
            (Self::Here(socket), _) => join_promiscuous_by(socket, ifindex),
            (Self::Elsewhere(holder), Some(opener)) => opener.promiscuous_also(holder, ifindex),
            (Self::Elsewhere(_), None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// A socket that keeps an interface in promiscuous mode while it is open. CAP_NET_RAW.
///
/// # Errors
///
/// The kernel's.
pub fn join_promiscuous(ifindex: u32) -> io::Result<OwnedFd> {
    // It is bound to nothing, so it receives nothing.
    let socket = open_packet_socket()?;
    join_promiscuous_by(&socket, ifindex)?;
    Ok(socket)
}

/// Makes a packet socket keep an interface in promiscuous mode, besides others. The kernel ends
/// this when the interface is removed.
///
/// # Errors
///
/// The kernel's.
pub fn join_promiscuous_by(socket: &OwnedFd, ifindex: u32) -> io::Result<()> {
    let membership = libc::packet_mreq {
        mr_ifindex: ifindex.cast_signed(),
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
}
