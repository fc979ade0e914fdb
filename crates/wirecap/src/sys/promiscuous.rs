//! Promiscuous mode, joined through a packet socket: the kernel reverts it when the socket closes, also when the
//! process is killed.

use std::io;
use std::os::fd::OwnedFd;

use wirecap_filter::opener::raw_socket;

use crate::sys::option::set_option;

/// Keeps an interface in promiscuous mode while it lives.
#[derive(Debug)]
pub(crate) struct Promiscuous(#[expect(dead_code, reason = "held for what its drop does")] OwnedFd);

impl Promiscuous {
    pub(crate) fn join(ifindex: u32) -> io::Result<Self> {
        // Protocol 0: the socket receives nothing.
        let socket = raw_socket(libc::AF_PACKET)?;
        let membership = libc::packet_mreq {
            mr_ifindex: ifindex.cast_signed(),
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
        Ok(Self(socket))
    }
}
