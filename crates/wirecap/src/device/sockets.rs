//! Who has a socket, as the kernel's `sock_diag` tells (since Linux 5.3).

use std::io;

use super::netlink::{Attributes, Netlink, Payload};

/// `SOCK_DIAG_BY_FAMILY` (`linux/sock_diag.h`).
const BY_FAMILY: u16 = 20;
/// Bytes of `struct unix_diag_msg`.
const ANSWER_BYTES: usize = 16;
/// The state of a socket that listens, as a bit (`TCP_LISTEN`).
const LISTENING: u32 = 1 << 10;
/// `UDIAG_SHOW_NAME` and `UDIAG_SHOW_UID` (`linux/unix_diag.h`).
const SHOW: u32 = 0x01 | 0x40;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;

/// The user whose socket listens at an abstract name, if the kernel tells. It looks at every listening socket of the
/// network namespace.
pub(crate) fn owner_of_abstract_name(name: &[u8]) -> io::Result<Option<u32>> {
    // `struct unix_diag_req`: family, protocol, two bytes of padding, states, inode (any), what is shown, a cookie.
    let mut request = [0; 24];
    request[0] = libc::AF_UNIX as u8;
    request[4..8].copy_from_slice(&LISTENING.to_ne_bytes());
    request[12..16].copy_from_slice(&SHOW.to_ne_bytes());
    let owner = |payload: &[u8]| {
        let (_, attributes) = Attributes::after_header::<ANSWER_BYTES>(payload)?;
        // An abstract name begins with a zero.
        let is_meant = attributes.bytes(UNIX_DIAG_NAME)?.strip_prefix(b"\0")? == name;
        is_meant.then(|| attributes.u32(UNIX_DIAG_UID))?
    };
    let owners = Netlink::sockets()?.list(BY_FAMILY, &Payload::new(&request), owner)?;
    Ok(owners.first().copied())
}
