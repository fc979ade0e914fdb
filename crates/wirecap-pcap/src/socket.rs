//! System calls on packet sockets that neither the engine nor a crate provides.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_short};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with, sockopt};

/// A protocol that no frame has: a socket bound to it receives nothing, and costs the receive path
/// nothing.
const NO_PROTOCOL: u16 = 0xffff;

/// Makes a packet socket of the real library receive nothing: it is kept for its other functions.
pub(crate) fn silence(descriptor: c_int, ifindex: u32) -> io::Result<()> {
    bind(descriptor, ifindex, NO_PROTOCOL)
}

/// A packet socket that only sends.
pub(crate) fn sender(ifindex: u32) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    bind(socket.as_raw_fd(), ifindex, 0)?;
    Ok(socket)
}

fn bind(descriptor: c_int, ifindex: u32, protocol: u16) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: ifindex.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let bytes = size_of_val(&address) as libc::socklen_t;

    // SAFETY: the pointer and the length describe `address`, which the kernel only reads.
    let outcome = unsafe { libc::bind(descriptor, (&raw const address).cast(), bytes) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits until a descriptor is readable, for at most `longest` if given. Returns the events of
/// each, or none after a timeout or an interrupted wait.
///
/// The thread may be cancelled here, and no function between here and the program may catch that
/// unwinding.
pub(crate) fn wait<const N: usize>(
    descriptors: [RawFd; N],
    longest: Option<Duration>,
) -> [c_short; N] {
    unsafe extern "C-unwind" {
        fn poll(polled: *mut libc::pollfd, count: libc::nfds_t, longest_millis: c_int) -> c_int;
    }
    let mut polled = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let whole_millis = |longest: Duration| {
        longest.as_secs() as c_int * 1000 + longest.subsec_micros().div_ceil(1000) as c_int
    };
    let longest_millis = longest.map_or(-1, whole_millis);

    // SAFETY: the array has as many elements as the call states.
    match unsafe { poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, longest_millis) } {
        1.. => polled.map(|polled| polled.revents),
        _ => [0; N],
    }
}

/// The state of a socket's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Nothing is wrong.
    Well,
    /// Its interface went down, and may come up again.
    Down,
    /// Its interface was removed.
    Gone,
}

/// Checks whether the interface of `socket` still exists, if the socket reports an error or the
/// interface is already `down`.
pub(crate) fn health(socket: BorrowedFd<'_>, ifindex: u32, down: bool) -> Health {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = poll(&mut polled, Some(&now));
    let failed = polled[0].revents().contains(PollFlags::ERR);
    if failed {
        let _ = sockopt::socket_error(socket);
    }
    match failed || down {
        true if netdevice::index_to_name(socket, ifindex).is_err() => Health::Gone,
        true if failed => Health::Down,
        _ => Health::Well,
    }
}
