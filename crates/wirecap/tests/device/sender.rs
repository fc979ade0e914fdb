//! Packet sockets: one that sends frame by frame, and one that only listens.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Sends frames on one interface.
pub(crate) struct Sender {
    socket: OwnedFd,
    address: libc::sockaddr_ll,
}

/// Sees all frames of one interface.
pub(crate) struct Tap {
    _socket: OwnedFd,
}

impl Tap {
    pub(crate) fn on(index: u32) -> Self {
        let socket = packet_socket();
        let address = link_address(index, libc::ETH_P_ALL as u16);
        // SAFETY: the pointer is to an address whose size is given and that lives until the call
        // returns.
        let result = unsafe {
            libc::bind(
                socket.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as u32,
            )
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        Self { _socket: socket }
    }
}

fn packet_socket() -> OwnedFd {
    // SAFETY: the call takes no pointers, and the descriptor has no other owner.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}

fn link_address(index: u32, protocol: u16) -> libc::sockaddr_ll {
    // SAFETY: a `sockaddr_ll` of zeros is a valid one.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index as i32;
    address
}

impl Sender {
    pub(crate) fn on(index: u32) -> Self {
        Self { socket: packet_socket(), address: link_address(index, 0) }
    }

    /// Sends a frame of this ethertype; false if the kernel had no room for it.
    pub(crate) fn send(&self, ethertype: u16) -> bool {
        let mut frame = [0x02_u8; 60];
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        // SAFETY: both pointers are to values whose sizes are given and that live until the call
        // returns.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const self.address).cast(),
                size_of_val(&self.address) as u32,
            )
        };
        sent == 60
    }
}
