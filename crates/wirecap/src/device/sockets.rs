//! The sockets of all processes, as the kernel's `sock_diag` reports them (since Linux 5.3).

use std::io;

use rustix::process::geteuid;

use super::netlink::{Attributes, Netlink, Payload};

/// `SOCK_DIAG_BY_FAMILY` (`linux/sock_diag.h`).
const BY_FAMILY: u16 = 20;
/// Bytes of `struct unix_diag_msg`.
const ANSWER_BYTES: usize = 16;
/// The states of a socket that is bound to a name, as bits: it listens (`TCP_LISTEN`), or does not
/// listen yet (`TCP_CLOSE`). The sockets of its connections also have the name, and belong to no
/// user.
const NAMED: u32 = 1 << 10 | 1 << 7;
/// `UDIAG_SHOW_NAME` and `UDIAG_SHOW_UID` (`linux/unix_diag.h`).
const SHOW: u32 = 0x01 | 0x40;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;

/// Part of the names of all claims of captures.
pub(crate) const CLAIMS: &str = "wirecap/1";

/// A socket that is bound to an abstract name (`unix(7)`), given without its leading zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AbstractName {
    pub(crate) name: String,
    /// The user that the socket belongs to.
    pub(crate) user: u32,
}

/// Whether a capture of wirecap claims something of the interface of this index: then the XDP
/// program there is its own.
pub(super) fn has_capture(index: u32) -> bool {
    let user = geteuid().as_raw();
    let names = abstract_names(&format!("{CLAIMS}/{index}/"));
    // If the kernel does not list the names, opening a capture finds out.
    names.map_or(true, |names| names.iter().any(|name| name.user == 0 || name.user == user))
}

/// The abstract names in this network namespace that begin with `prefix`. The kernel goes through
/// all sockets.
pub(crate) fn abstract_names(prefix: &str) -> io::Result<Vec<AbstractName>> {
    // `struct unix_diag_req`: family, protocol, two bytes of padding, states, inode (any),
    // requested attributes, a cookie.
    let mut request = [0; 24];
    request[0] = libc::AF_UNIX as u8;
    request[4..8].copy_from_slice(&NAMED.to_ne_bytes());
    request[12..16].copy_from_slice(&SHOW.to_ne_bytes());

    let named = |payload: &[u8]| {
        let (_, attributes) = Attributes::after_header::<ANSWER_BYTES>(payload)?;
        let name = attributes.bytes(UNIX_DIAG_NAME)?.strip_prefix(b"\0")?;
        let name = std::str::from_utf8(name).ok().filter(|name| name.starts_with(prefix))?;
        Some(AbstractName { name: name.to_owned(), user: attributes.u32(UNIX_DIAG_UID)? })
    };
    Netlink::sockets()?.list(BY_FAMILY, &Payload::new(&request), named)
}
